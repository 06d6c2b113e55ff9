//! A compacted file holds what the old one held, less what was left out, and passes a check.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::env::{Disk, OpenMode, RealDisk};
use common::{Doc, Docs, TestBatch, read_all};
use couchstore::check::{Fault, Watcher, check};
use couchstore::{
    Choice, Compaction, CouchFile, DocInfo, Failure, Fate, LocalUpdate, RecordSummary, Snapshot, Tuning,
};
use proptest::prelude::*;

/// Leaves out by seqno, and counts as one does who keeps counts.
#[derive(Default)]
struct Chosen {
    purged: BTreeSet<u64>,
    left_out: BTreeSet<u64>,
    late_left_out: BTreeSet<u64>,
    brought_over: i64,
}

impl Choice for Chosen {
    fn fate(&mut self, info: &DocInfo<'_>) -> Fate {
        match info.seqno {
            seqno if self.purged.contains(&seqno) => Fate::Purge,
            seqno if self.left_out.contains(&seqno) => Fate::LeaveOut,
            _ => Fate::Keep,
        }
    }

    fn leaves_out_late(&mut self, info: &DocInfo<'_>) -> bool {
        self.late_left_out.contains(&info.seqno)
    }

    fn brought_over(&mut self, _: &[u8], _: RecordSummary, old: Option<RecordSummary>) {
        self.brought_over += i64::from(old.is_none());
    }
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Watcher for Faults {
    fn fault(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    fn step(&mut self, _: u64) {}
}

#[track_caller]
fn assert_clean(path: &Path) {
    let mut faults = Faults::default();
    check(&RealDisk, path, &mut faults);
    assert_eq!(faults.0, []);
}

/// What one document is changed to: tombstone or not, and the length of its body.
type Changes = BTreeMap<u16, (bool, usize)>;

fn changes(most: usize) -> impl Strategy<Value = Changes> {
    let doc = (any::<bool>(), prop_oneof![0usize..40, 200usize..600, Just(9000)]);
    prop_oneof![
        proptest::collection::btree_map(0u16..60, doc.clone(), 0..40),
        proptest::collection::btree_map(0u16..2000, doc, 0..most),
    ]
}

fn tunings() -> impl Strategy<Value = Tuning> {
    (64usize..3000, 40usize..3000, any::<bool>()).prop_map(|(leaf_bytes, interior_bytes, compress_nodes)| {
        Tuning { leaf_bytes, interior_bytes, compress_nodes }
    })
}

struct Subject {
    file: CouchFile,
    model: Docs,
    seqno: u64,
}

impl Subject {
    fn new(path: &Path) -> Subject {
        let file = CouchFile::create(&RealDisk, path).expect("a new file");
        Subject { file, model: Docs::new(), seqno: 0 }
    }

    fn save(&mut self, changes: &Changes) {
        let mut docs = Docs::new();
        for (key, (deleted, len)) in changes.iter().rev() {
            self.seqno += 1;
            let seqno = self.seqno;
            let body = (0..if *deleted { 0 } else { *len }).map(|i| (i as u64 * seqno) as u8).collect();
            let doc = Doc { seqno, deleted: *deleted, rev_seqno: seqno / 2, cas: seqno << 16, body };
            docs.insert(format!("key-{key}").into_bytes(), doc);
        }
        self.model.extend(docs.clone());
        self.file.save(&mut TestBatch::new(&docs)).expect("a save");
        let value = self.seqno.to_string();
        let locals = [
            LocalUpdate { id: b"_local/vbstate", value: Some(value.as_bytes()) },
            LocalUpdate { id: b"|0x0|", value: Some(b"count") },
        ];
        self.file.save_locals(&locals).expect("a save");
        self.file.commit(1).expect("a commit");
    }
}

fn copy(compaction: &mut Compaction, budget: u64, choice: &mut Chosen) -> Result<u64, Failure> {
    for steps in 1.. {
        let progress = compaction.step(budget, choice)?;
        assert!(progress.done_bytes <= progress.total_bytes);
        if progress.is_done {
            return Ok(steps);
        }
    }
    unreachable!("steps end")
}

fn bring_over(compaction: &mut Compaction, newer: &Snapshot, budget: u64, choice: &mut Chosen) {
    while !compaction.catch_up(newer, budget, choice).expect("catching up").is_done {}
    assert_eq!(compaction.seqnos_behind(newer), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_kept_is_the_same(
        before in proptest::collection::vec(changes(400), 1..4),
        meanwhile in proptest::collection::vec(changes(60), 0..4),
        locked in changes(30),
        salt in 0u64..1000,
        budget in prop_oneof![Just(1u64), 500u64..5000, Just(u64::MAX)],
        tuning in tunings(),
    ) {
        let dir = tempfile::tempdir().expect("a folder");
        let (old_path, new_path) = (dir.path().join("0.couch.1"), dir.path().join("0.couch.2.new"));
        let mut subject = Subject::new(&old_path);
        before.iter().for_each(|changes| subject.save(changes));
        let old = subject.file.snapshot();
        let old_model = subject.model.clone();
        let mut choice = Chosen::default();
        for doc in subject.model.values() {
            match (doc.seqno * 31 + salt) % 5 {
                0 if doc.deleted => choice.purged.insert(doc.seqno),
                1 => choice.left_out.insert(doc.seqno),
                _ => false,
            };
        }
        let mut expected = subject.model.clone();
        let gone = |doc: &Doc| choice.purged.contains(&doc.seqno) || choice.left_out.contains(&doc.seqno);
        let highest = subject.seqno;
        expected.retain(|_, doc| doc.seqno == highest || !gone(doc));
        let purge_seqno = choice.purged.range(..highest).last().copied().unwrap_or(0);

        let mut compaction =
            Compaction::start(&RealDisk, &new_path, old.clone(), tuning).expect("a new file");
        // half of the changes are saved while the copy runs, the others while it catches up
        let (during, after) = meanwhile.split_at(meanwhile.len() / 2);
        compaction.step(budget.min(700), &mut choice).expect("a step");
        during.iter().for_each(|changes| subject.save(changes));
        copy(&mut compaction, budget, &mut choice).expect("a copy");
        bring_over(&mut compaction, &subject.file.snapshot(), budget, &mut choice);
        after.iter().for_each(|changes| subject.save(changes));
        bring_over(&mut compaction, &subject.file.snapshot(), budget, &mut choice);
        compaction.sync().expect("a sync");
        // dropped while nobody may save: left out unless an older version is there
        subject.save(&locked);
        let late: Vec<u64> = subject.model.values().map(|doc| doc.seqno).filter(|s| s % 3 == 0).collect();
        choice.late_left_out = late.into_iter().collect();
        let before_last = subject.seqno - locked.len() as u64;
        for (id, doc) in &subject.model {
            let is_late = doc.seqno > before_last && doc.seqno != subject.seqno;
            if is_late && doc.seqno % 3 == 0 && !expected.contains_key(id) {
                let known_before = |changes: &&Changes| changes.keys().any(|k| format!("key-{k}").as_bytes() == id);
                if !meanwhile.iter().any(|changes| known_before(&changes)) {
                    continue;
                }
            }
            if doc.seqno > highest {
                expected.insert(id.clone(), doc.clone());
            }
        }
        let newest = subject.file.snapshot();
        bring_over(&mut compaction, &newest, budget, &mut choice);
        let locals = [LocalUpdate { id: b"|0x0|", value: Some(b"corrected") }];
        let mut new = compaction.finish(&newest, &locals).expect("the end");
        new.commit(9).expect("a commit");

        assert_clean(&new_path);
        let read = CouchFile::open_read(&RealDisk, &new_path).expect("a sound file");
        prop_assert_eq!(read_all(&read).expect("a sound file"), expected.clone());
        let (info, state) = (read.info(), subject.seqno.to_string());
        prop_assert_eq!((info.update_seqno, info.purge_seqno), (subject.seqno, purge_seqno));
        prop_assert_eq!(read.local(b"_local/vbstate").expect("sound"), Some(state.into_bytes()));
        prop_assert_eq!(read.local(b"|0x0|").expect("sound"), Some(b"corrected".to_vec()));
        prop_assert_eq!(read_all(&old).expect("the old snapshot stays"), old_model);
        // and it goes on as any file does
        new.set_tuning(Tuning::default());
        let mut next = Subject { file: new, model: expected, seqno: subject.seqno };
        next.save(&locked);
        prop_assert_eq!(read_all(&next.file.snapshot()).expect("a sound file"), next.model);
        drop(next.file);
        assert_clean(&new_path);
    }
}

#[test]
fn steps_are_bounded_and_many() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut subject = Subject::new(&dir.path().join("0.couch.1"));
    subject.save(&(0..1000).map(|key| (key, (false, 100))).collect());
    let old = subject.file.snapshot();
    let path = dir.path().join("0.couch.2");
    let mut compaction = Compaction::start(&RealDisk, &path, old, Tuning::default()).expect("a new file");
    let steps = copy(&mut compaction, 1000, &mut Chosen::default()).expect("a copy");
    assert!((150..300).contains(&steps), "{steps} steps");
}

#[test]
fn empty_files_stay_empty() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut subject = Subject::new(&dir.path().join("0.couch.1"));
    subject.save(&Changes::new());
    let old = subject.file.snapshot();
    let path = dir.path().join("0.couch.2");
    let mut compaction =
        Compaction::start(&RealDisk, &path, old.clone(), Tuning::default()).expect("a new file");
    copy(&mut compaction, 1, &mut Chosen::default()).expect("a copy");
    compaction.finish(&old, &[]).expect("the end").commit(1).expect("a commit");
    assert_clean(&path);
}

#[test]
fn damage_ends_a_copy() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut subject = Subject::new(&path);
    subject.save(&(0..200).map(|key| (key, (false, 50))).collect());
    let file = RealDisk.open(&path, OpenMode::ReadWrite).expect("the file");
    let end = subject.file.snapshot().info().header_offset;
    let (mut failures, step) = (0, 61);
    for at in (1..end).step_by(step) {
        let mut byte = [0];
        file.read_at(&mut byte, at).expect("a read");
        file.write_at(&[byte[0] ^ 4], at).expect("a write");
        let new = dir.path().join(format!("0.couch.2.{at}"));
        let old = subject.file.snapshot();
        let mut compaction = Compaction::start(&RealDisk, &new, old.clone(), Tuning::default()).expect("new");
        let copied = copy(&mut compaction, 5000, &mut Chosen::default());
        match copied.and_then(|_| compaction.finish(&old, &[])) {
            Err(Failure::Damaged { .. }) => failures += 1,
            Err(other) => panic!("{other}"),
            // the padding before the header
            Ok(mut new_file) => {
                new_file.commit(1).expect("a commit");
                let read = read_all(&CouchFile::open_read(&RealDisk, &new).expect("sound"));
                assert_eq!(read.expect("sound"), subject.model);
            }
        }
        file.write_at(&byte, at).expect("a write");
    }
    assert!(failures as u64 > end / step as u64 * 9 / 10, "{failures}");
}
