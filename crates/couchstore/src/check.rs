//! Looks at everything a file holds as of its last valid header, and tells of each fault.
//!
//! Memory is bounded by the depth of a tree and the largest body, whatever the file's size.

mod agreement;
mod blocks;
mod walk;

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, OpenMode};

use crate::encrypted::OriginalKeys;
use crate::failure::Failure;
use crate::file::{CouchFile, open_source};
use crate::record::DocInfo;
use crate::rev_meta::RevMeta;
use crate::snapshot::Snapshot;
use crate::tree::Tree;
use agreement::Fingerprint;
use walk::Place;

/// Something in a file that should not be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub path: Arc<Path>,
    /// Where: the start of the chunk, node, header or block.
    pub offset: u64,
    /// What does not hold.
    pub what: String,
}

/// What a check came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Documents that are no tombstones.
    pub documents: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// How many faults were told of.
    pub faults: u64,
    /// Nodes on the longest way from a root to a record.
    pub depth: usize,
}

/// Is told what a check meets.
pub trait Watcher {
    /// A fault.
    fn fault(&mut self, fault: Fault);
    /// The check goes on; `documents` more were looked at.
    fn step(&mut self, documents: u64);
}

/// Checks a file as of its last valid header: marks of blocks and headers, and of all three trees each node's
/// checksum, order and reduce value; that both trees of documents hold the same; that every body can be read.
///
/// A file that cannot be opened at all is a fault, too.
pub fn check(disk: &dyn Disk, path: &Path, watcher: &mut dyn Watcher) -> Findings {
    check_with(disk, path, &OriginalKeys::default(), watcher)
}

/// The same of a file that may be encrypted with one of the keys.
pub fn check_with(disk: &dyn Disk, path: &Path, keys: &OriginalKeys, watcher: &mut dyn Watcher) -> Findings {
    check_opened(disk, path, CouchFile::open_read_with(disk, path, keys), watcher)
}

/// The same as of the header at `offset`. What stands behind it is not looked at: it may be incomplete.
pub fn check_at(disk: &dyn Disk, path: &Path, offset: u64, watcher: &mut dyn Watcher) -> Findings {
    check_opened(disk, path, CouchFile::open_read_at(disk, path, offset), watcher)
}

fn check_opened(
    disk: &dyn Disk,
    path: &Path,
    opened: Result<Snapshot, Failure>,
    watcher: &mut dyn Watcher,
) -> Findings {
    let mut faults = Faults { path: path.into(), watcher, count: 0, muted: false, depth: 0 };
    let mut findings = Findings::default();
    match opened {
        Err(failure) => {
            faults.failure(&failure);
            findings.file_bytes = without_header(disk, path, &failure, &mut faults);
        }
        Ok(file) => {
            findings.file_bytes = file.info().file_bytes;
            let mut check = Check { file: &file, faults: &mut faults, findings: &mut findings };
            check.run();
        }
    }
    (findings.faults, findings.depth) = (faults.count, faults.depth);
    findings
}

/// Tells why the headers of a file are not valid; returns the file's length, 0 if it cannot even be measured.
fn without_header(disk: &dyn Disk, path: &Path, failure: &Failure, faults: &mut Faults<'_>) -> u64 {
    let Ok(source) = open_source(disk, path, OpenMode::Read) else { return 0 };
    let bytes = source.file.len().unwrap_or(0);
    if matches!(failure, Failure::NoHeader { .. }) {
        blocks::check(&source, bytes, None, faults);
    }
    bytes
}

/// Where faults go.
struct Faults<'a> {
    path: Arc<Path>,
    watcher: &'a mut dyn Watcher,
    count: u64,
    /// A part that is looked at again tells nothing new.
    muted: bool,
    depth: usize,
}

impl Faults<'_> {
    fn at(&mut self, offset: u64, what: impl Into<String>) {
        if !self.muted {
            self.count += 1;
            self.watcher.fault(Fault { path: self.path.clone(), offset, what: what.into() });
        }
    }

    fn failure(&mut self, failure: &Failure) {
        match failure {
            Failure::Damaged { offset, what, .. } => self.at(*offset, *what),
            Failure::Io { operation, offset, source, .. } => {
                self.at(*offset, format!("cannot {operation}: {source}"));
            }
            Failure::NoHeader { .. } => self.at(0, "the file holds no valid header"),
            Failure::UnsupportedVersion { version, .. } => {
                self.at(0, format!("the file has the unsupported version {version}"));
            }
            Failure::Encrypted { key_id, .. } => {
                self.at(0, format!("the file is encrypted with the key {key_id:?}, which was not given"));
            }
            Failure::Poisoned { .. } => unreachable!("nothing is written here"),
        }
    }
}

/// A check of one open file.
struct Check<'c, 'f> {
    file: &'c Snapshot,
    faults: &'c mut Faults<'f>,
    findings: &'c mut Findings,
}

impl Check<'_, '_> {
    fn run(&mut self) {
        let file = self.file;
        blocks::check(&file.source, file.file_bytes, Some(file.header.offset), self.faults);
        let mut walk = |tree, visit: &mut walk::Visit<'_>| walk::walk(self.file, tree, self.faults, visit);
        walk(Tree::Local, &mut |faults, _, _, _| faults.watcher.step(0));

        let mut by_id = Fingerprint::default();
        let mut is_whole = walk(Tree::ById, &mut |faults, place, id, value| {
            faults.watcher.step(0);
            let Some(info) = DocInfo::decode_by_id(id, value) else {
                return faults.at(place.offset, "a record by id is malformed");
            };
            by_id.add(&info);
            if info.deleted {
                self.findings.tombstones += 1;
            } else {
                self.findings.documents += 1;
            }
        });

        let mut by_seqno = Fingerprint::default();
        let mut bodies = Bodies::default();
        is_whole &= walk(Tree::BySeqno, &mut |faults, place, key, value| {
            faults.watcher.step(1);
            let Some(info) = DocInfo::decode_by_seqno(key, value) else {
                return faults.at(place.offset, "a record by seqno is malformed");
            };
            by_seqno.add(&info);
            check_record(self.file, faults, place, &info);
            bodies.check(self.file, faults, place, &info);
        });

        // one by one only where the sums show that it is worth the time
        if !is_whole || by_id != by_seqno {
            agreement::compare(self.file, self.faults, &mut bodies);
        }
    }
}

fn check_record(file: &Snapshot, faults: &mut Faults<'_>, place: Place, info: &DocInfo<'_>) {
    let highest = file.header.update_seqno;
    if info.seqno == 0 || info.seqno > highest {
        faults.at(
            place.offset,
            format!("document {} has the seqno {}, the file goes to {highest}", name(info), info.seqno),
        );
    }
    if RevMeta::decode(info.rev_meta).is_none() {
        faults.at(place.offset, format!("document {} has revision metadata of an unknown form", name(info)));
    }
}

/// A document's id, fit to be printed.
fn name(info: &DocInfo<'_>) -> String {
    info.id.escape_ascii().to_string()
}

/// Buffers to read bodies with.
#[derive(Default)]
struct Bodies {
    stored: Vec<u8>,
    inflated: Vec<u8>,
}

impl Bodies {
    fn check(&mut self, file: &Snapshot, faults: &mut Faults<'_>, place: Place, info: &DocInfo<'_>) {
        if info.body_offset == 0 && info.body_bytes != 0 {
            faults.at(place.offset, format!("document {} has a body that is nowhere", name(info)));
        } else if let Err(failure) = file.body(info, &mut self.stored, &mut self.inflated) {
            match failure {
                Failure::Damaged { offset, what, .. } => {
                    faults.at(offset, format!("body of document {}: {what}", name(info)));
                }
                other => faults.failure(&other),
            }
        }
    }
}

#[cfg(test)]
mod tests;
