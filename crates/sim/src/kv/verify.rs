//! What a store holds, read in every way that it offers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use base::env::Disk;
use base::{DocKey, Seqno, VbId, Version};
use couchstore::check::{Fault, Watcher, check};
use kvstore::{Failure, KvStore, StoredVb, Values};

use super::DIR;
use super::model::{Found, Model, Places};
use crate::ledger::Entry;

/// Everything that a store holds; what it says in two ways that do not agree goes to `wrong`.
pub(super) fn read(store: &dyn KvStore, wrong: &mut Vec<String>) -> Result<BTreeMap<VbId, Found>, Failure> {
    let mut all = BTreeMap::new();
    for (vb, stored) in store.states()? {
        all.insert(vb, read_vbucket(store, vb, &stored?, wrong)?);
    }
    Ok(all)
}

/// Everything that a store holds of one vBucket.
pub(super) fn read_vbucket(
    store: &dyn KvStore,
    vb: VbId,
    stored: &StoredVb,
    wrong: &mut Vec<String>,
) -> Result<Found, Failure> {
    let mark = Some(stored.state.snap_end);
    let (high_seqno, purge_seqno) = (stored.high_seqno, stored.purge_seqno);
    let mut found = Found { high_seqno, purge_seqno, mark, ..Found::default() };
    let (mut tombstones, mut last) = (0, Seqno(0));
    store.scan(vb, Seqno(0), Values::Read, &mut |version| {
        let seqno = version.meta().by_seqno;
        if seqno <= last {
            wrong.push(format!("{vb}: {seqno} is visited after {last}"));
        }
        last = seqno;
        tombstones += u64::from(version.is_deleted());
        found.digest.add(version.stored_key(), &Entry::of(&version));
        found.docs.push(version);
        ControlFlow::Continue(())
    })?;
    if last > stored.high_seqno {
        wrong.push(format!("{vb}: {last} is there, only {} is claimed", stored.high_seqno));
    }
    look_up(store, vb, &found.docs, wrong)?;
    // last, as it may bring everything into the file
    let counted = store.counts(vb)?;
    let counts = (found.docs.len() as u64 - tombstones, tombstones);
    if (counted.documents, counted.tombstones) != counts {
        wrong.push(format!("{vb}: {counted:?}, but {counts:?} documents and tombstones"));
    }
    Ok(found)
}

/// What is visited can be got, as it was visited.
fn look_up(store: &dyn KvStore, vb: VbId, docs: &[Version], wrong: &mut Vec<String>) -> Result<(), Failure> {
    let keys: Vec<DocKey<'_>> = docs.iter().map(|version| version.key()).collect();
    for (version, got) in docs.iter().zip(store.get_many(vb, &keys)) {
        let got = got?.map(|got| Entry::of(&got));
        if got != Some(Entry::of(version)) {
            wrong.push(format!("{vb}: {version:?} is visited, {got:?} is got"));
        }
    }
    if let Some(version) = store.get(vb, DocKey::new(b"never written"))? {
        wrong.push(format!("{vb}: {version:?} was never written"));
    }
    Ok(())
}

/// Compares what a store holds with what it may hold at position `at`.
pub(super) fn compare(store: &dyn KvStore, model: &Model, at: u64, wrong: &mut Vec<String>) -> Places {
    match read(store, wrong) {
        Ok(found) => model.place(&found, at, wrong),
        Err(failure) => {
            wrong.push(format!("cannot be read: {failure}"));
            Places::new()
        }
    }
}

/// Names of the vBucket files of a bucket.
pub(super) fn file_names(disk: &dyn Disk) -> Vec<String> {
    let names = disk.read_dir(Path::new(DIR)).unwrap_or_default();
    let is_finished = |name: &String| {
        name.split_once(".couch.")
            .is_some_and(|(_, revision)| revision.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names.into_iter().filter(is_finished).collect()
}

/// Checks every vBucket file at its last valid header.
pub(super) fn check_files(disk: &dyn Disk, wrong: &mut Vec<String>) {
    struct Faults<'a>(&'a mut Vec<String>);
    impl Watcher for Faults<'_> {
        fn fault(&mut self, fault: Fault) {
            self.0.push(format!("check of {} at {}: {}", fault.path.display(), fault.offset, fault.what));
        }
        fn step(&mut self, _documents: u64) {}
    }
    for name in file_names(disk) {
        check(disk, &Path::new(DIR).join(name), &mut Faults(wrong));
    }
}
