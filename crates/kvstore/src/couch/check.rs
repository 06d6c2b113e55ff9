//! Whether the files of a folder are those that its catalog promises. Nothing is changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::env::{Disk, OpenMode};
use base::{Seqno, VbId};
use couchstore::CouchFile;

use super::file::{OLDER_JOURNAL, OTHER_HEADER, Recorded, is_beyond, is_sound};
use super::identity::Identity;
use super::{file_name, parse_name};
use crate::catalog::{self, Believe, Contents, Found, Listed};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::journal::{self, Filed, ToldSeqnos};

/// What the catalog of a folder says, and what does not match.
#[derive(Debug, Default)]
pub struct CatalogReport {
    /// File, offset in it, and what is wrong.
    pub faults: Vec<(PathBuf, u64, String)>,
    /// The files in use, each with the offset of its header if that is listed; `None` if the catalog lists none.
    pub files: Option<BTreeMap<VbId, (PathBuf, Option<u64>)>>,
}

/// Compares a folder with its catalog, to the end whatever is wrong.
pub fn check_catalog(disk: &dyn Disk, dir: &Path) -> Result<CatalogReport, Failure> {
    let newest = newest_revisions(disk, dir)?;
    let mut check = Check { disk, dir, report: CatalogReport::default() };
    match catalog::find(disk, dir)? {
        Found::None => check.without_catalog(&newest),
        Found::Damaged(what) => check.fault(dir.join("catalog"), 0, what),
        Found::Catalog(contents, other) => {
            if let Some(what) = other {
                check.fault(dir.join("catalog"), 0, format!("one of its two copies cannot be used: {what}"));
            }
            check.with_catalog(&contents, &newest)?;
        }
    }
    Ok(check.report)
}

/// What is wrong with files that do not have the header at the place on record that was put there, or are newer than the
/// journal: file, place, and what. One that cannot be read there is passed over: it is looked at elsewhere.
pub fn check_recorded(
    disk: &dyn Disk,
    dir: &Path,
    on_record: &BTreeMap<VbId, Filed>,
    told: Option<&ToldSeqnos>,
) -> Result<Vec<(PathBuf, u64, String)>, Failure> {
    let fault = |filed: &Filed| {
        let FileAt { revision, header_offset, checksum } = filed.at().unmarked();
        let path = dir.join(file_name(filed.vb, revision));
        let file = CouchFile::open_read_at(disk, &path, header_offset).ok()?;
        if checksum.is_some_and(|checksum| checksum != file.header_checksum()) {
            return Some((path, header_offset, OTHER_HEADER.to_owned()));
        }
        let known = told?.of(filed.vb).unwrap_or_default().max(Seqno(file.info().update_seqno));
        is_beyond(disk, &path, known).then(|| (path, header_offset, OLDER_JOURNAL.to_owned()))
    };
    let mut faults: Vec<_> =
        on_record.values().filter(|filed| filed.revision > 0).filter_map(fault).collect();
    let Some(told) = told else { return Ok(faults) };
    for (vb, revision) in newest_revisions(disk, dir)? {
        let path = dir.join(file_name(vb, revision));
        let highest = told.of(vb).filter(|_| on_record.get(&vb).is_none_or(|filed| filed.revision == 0));
        if highest.is_some_and(|highest| is_beyond(disk, &path, highest)) {
            faults.push((path, 0, OLDER_JOURNAL.to_owned()));
        }
    }
    Ok(faults)
}

/// The highest revision of each vBucket's files.
fn newest_revisions(disk: &dyn Disk, dir: &Path) -> Result<BTreeMap<VbId, u64>, Failure> {
    let names = disk.read_dir(dir).map_err(|source| Failure::Disk {
        operation: "list",
        path: dir.to_owned(),
        source,
    })?;
    let mut newest: BTreeMap<VbId, u64> = BTreeMap::new();
    for (vb, revision) in names.iter().filter_map(|name| parse_name(name)) {
        let highest = newest.entry(vb).or_default();
        *highest = revision.max(*highest);
    }
    Ok(newest)
}

struct Check<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    report: CatalogReport,
}

impl Check<'_> {
    fn fault(&mut self, path: PathBuf, offset: u64, what: String) {
        self.report.faults.push((path, offset, what));
    }

    fn path(&self, vb: VbId, revision: u64) -> PathBuf {
        self.dir.join(file_name(vb, revision))
    }

    /// Files of a folder without a catalog say of none that they belong to one.
    fn without_catalog(&mut self, newest: &BTreeMap<VbId, u64>) {
        for (vb, revision) in newest {
            let path = self.path(*vb, *revision);
            let found = couchstore::CouchFile::open_read(self.disk, &path).ok();
            if found.and_then(|file| file.local(super::identity::IDENTITY_ID).ok().flatten()).is_some() {
                self.fault(path, 0, "it belongs to a catalog, and the folder has none".to_owned());
            }
        }
    }

    fn with_catalog(&mut self, contents: &Contents, newest: &BTreeMap<VbId, u64>) -> Result<(), Failure> {
        match contents.believe {
            Believe::Files => {
                for (vb, listed) in &contents.files {
                    self.listed(contents, *vb, listed);
                }
                for (vb, revision) in newest.iter().filter(|(vb, _)| !contents.files.contains_key(vb)) {
                    let path = self.path(*vb, *revision);
                    self.fault(path, 0, "the catalog does not list the vBucket".to_owned());
                }
            }
            Believe::Journal { generation, salt } => {
                match journal::check_promised(self.disk, self.dir, (generation, salt)) {
                    Err(Failure::Journal { path, offset, what }) => self.fault(path, offset, what.to_owned()),
                    other => other?,
                }
                self.identities(contents, newest);
            }
            Believe::Headers => self.identities(contents, newest),
        }
        Ok(())
    }

    fn listed(&mut self, contents: &Contents, vb: VbId, listed: &Listed) {
        let FileAt { revision, header_offset, .. } = listed.at.unmarked();
        let path = self.path(vb, revision);
        if listed.at.is_lost() {
            self.fault(path, 0, FileAt::MISSES_CHANGES.to_owned());
            return;
        }
        let identity = Identity { store: Some(contents.store), vb, revision };
        let recorded = Recorded::of(listed);
        let offset = recorded.map(|recorded| recorded.header_offset);
        let files = self.report.files.get_or_insert_default();
        let Ok(len) = self.disk.open(&path, OpenMode::Read).and_then(|file| file.len()) else {
            return self.fault(path, 0, "the catalog lists it, and it cannot be opened".to_owned());
        };
        files.insert(vb, (path.clone(), offset));
        match is_sound(self.disk, &path, identity, recorded) {
            // what is wrong inside of a file is looked for elsewhere
            Err(Failure::File { .. }) => {}
            Err(failure) => self.fault(path, header_offset.min(len), failure.to_string()),
            Ok(end) if !listed.is_tail_void && len > end => {
                self.fault(path, end, "it goes on behind the header that the catalog lists".to_owned());
            }
            Ok(_) => {}
        }
    }

    /// Files say whose they are; what else is wrong with them is looked for elsewhere.
    fn identities(&mut self, contents: &Contents, newest: &BTreeMap<VbId, u64>) {
        for (vb, revision) in newest {
            let path = self.path(*vb, *revision);
            let identity = Identity { store: Some(contents.store), vb: *vb, revision: *revision };
            if let Err(failure @ Failure::Mismatch { .. }) = is_sound(self.disk, &path, identity, None) {
                self.fault(path, 0, failure.to_string());
            }
        }
    }
}
