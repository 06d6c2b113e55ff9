//! Whether the trees by id and by seqno hold the same records.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::check::{Bodies, Faults, name, walk};
use crate::record::DocInfo;
use crate::snapshot::Snapshot;
use crate::tree::{Tree, be48};

/// A number that two sets of records share only if they are the same, whatever their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    records: u64,
    sum: u64,
}

impl Fingerprint {
    pub(super) fn add(&mut self, info: &DocInfo<'_>) {
        let mut hasher = DefaultHasher::new();
        info.id.hash(&mut hasher);
        info.rev_meta.hash(&mut hasher);
        (info.seqno, info.rev_seqno, info.deleted, info.content_meta).hash(&mut hasher);
        (info.body_bytes, info.body_offset).hash(&mut hasher);
        self.records += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

/// What looking up the other tree's record came to.
enum Other {
    Same,
    Differs,
    /// Another record stands there, or none.
    Missing,
    /// The way to it is damaged, which was told of already.
    Unknown,
}

/// Looks up each record of a tree in the other one. Bodies that the damaged tree by seqno did not lead to are read.
pub(super) fn compare(file: &Snapshot, faults: &mut Faults<'_>, bodies: &mut Bodies) {
    let mut again = |tree, visit: &mut walk::Visit<'_>| {
        faults.muted = true;
        let is_whole = walk::walk(file, tree, faults, &mut |faults, place, key, value| {
            faults.watcher.step(0);
            faults.muted = false;
            visit(faults, place, key, value);
            faults.muted = true;
        });
        faults.muted = false;
        is_whole
    };
    again(Tree::ById, &mut |faults, place, id, value| {
        let Some(info) = DocInfo::decode_by_id(id, value) else { return };
        let (id, seqno) = (name(&info), info.seqno);
        match by_seqno(file, &info) {
            Other::Same => return,
            Other::Differs => faults.at(
                place.offset,
                format!("document {id} with seqno {seqno} differs between the trees by id and by seqno"),
            ),
            Other::Missing => faults.at(
                place.offset,
                format!("document {id} with seqno {seqno} is missing in the tree by seqno"),
            ),
            Other::Unknown => {}
        }
        bodies.check(file, faults, place, &info);
    });
    again(Tree::BySeqno, &mut |faults, place, key, value| {
        let Some(info) = DocInfo::decode_by_seqno(key, value) else { return };
        if matches!(by_id(file, &info), Other::Missing) {
            let what =
                format!("document {} with seqno {} is missing in the tree by id", name(&info), info.seqno);
            faults.at(place.offset, what);
        }
    });
}

fn by_seqno(file: &Snapshot, info: &DocInfo<'_>) -> Other {
    let key = be48(info.seqno);
    let found = file.view(Tree::BySeqno).find(&key, |value| match DocInfo::decode_by_seqno(&key, value) {
        Some(other) if other.id != info.id => Other::Missing,
        Some(other) if other == *info => Other::Same,
        Some(_) => Other::Differs,
        None => Other::Unknown,
    });
    found.map_or(Other::Unknown, |found| found.unwrap_or(Other::Missing))
}

fn by_id(file: &Snapshot, info: &DocInfo<'_>) -> Other {
    let found = file.view(Tree::ById).find(info.id, |value| match DocInfo::decode_by_id(info.id, value) {
        Some(other) if other.seqno != info.seqno => Other::Missing,
        Some(other) if other == *info => Other::Same,
        Some(_) => Other::Differs,
        None => Other::Unknown,
    });
    found.map_or(Other::Unknown, |found| found.unwrap_or(Other::Missing))
}
