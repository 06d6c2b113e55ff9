//! A file against a map: whatever is saved comes out, after each commit and after opening again.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use base::env::RealDisk;
use common::{Doc, Docs, TestBatch, read_all};
use couchstore::check::{Fault, Watcher, check};
use couchstore::{CouchFile, Failure, LocalUpdate, Tuning};
use proptest::prelude::*;

/// Batches of (key, deleted, length of the body).
fn batches() -> impl Strategy<Value = Vec<BTreeMap<u16, (bool, usize)>>> {
    let doc = (any::<bool>(), prop_oneof![0usize..40, 200usize..600, Just(9000)]);
    let narrow = proptest::collection::btree_map(0u16..60, doc.clone(), 0..40);
    let wide = proptest::collection::btree_map(0u16..2000, (any::<bool>(), 0usize..40), 0..400);
    proptest::collection::vec(prop_oneof![narrow, wide], 1..8)
}

fn tunings() -> impl Strategy<Value = Tuning> {
    (64usize..3000, 100usize..3000, any::<bool>()).prop_map(|(leaf_bytes, interior_bytes, compress_nodes)| {
        Tuning { leaf_bytes, interior_bytes, compress_nodes }
    })
}

fn apply(model: &mut Docs, batch: &BTreeMap<u16, (bool, usize)>, seqno: &mut u64) -> Docs {
    let mut docs = Docs::new();
    // seqnos run against the order of keys, so that both orders are exercised
    for (&key, &(deleted, len)) in batch.iter().rev() {
        *seqno += 1;
        let id = format!("key-{key}").into_bytes();
        let body = if deleted { Vec::new() } else { (0..len).map(|i| (i as u64 * *seqno) as u8).collect() };
        let rev_seqno = model.get(&id).map_or(1, |old| old.rev_seqno + 1);
        docs.insert(id, Doc { seqno: *seqno, deleted, rev_seqno, cas: *seqno << 16, body });
    }
    model.extend(docs.clone());
    docs
}

/// A batch that changes every so many one of a range of keys: whole subtrees go, come, and are passed over.
#[derive(Clone, Debug)]
struct Sweep {
    from: usize,
    step: usize,
    len: usize,
    deleted: bool,
    /// In which order seqnos are given out: that of the keys, against it, or in none.
    order: usize,
    /// How far seqnos are apart.
    gap: u64,
    /// Saved a second time, with the same seqnos, before the commit.
    again: bool,
}

fn sweeps() -> impl Strategy<Value = Vec<Sweep>> {
    let sweep = (0usize..900, 1usize..5, 1usize..900, any::<bool>(), 0usize..3, 0usize..3, any::<bool>());
    let sweep = sweep.prop_map(|(from, step, len, deleted, order, gap, again)| Sweep {
        from,
        step,
        len,
        deleted,
        order,
        gap: [1, 1, 1000][gap],
        again,
    });
    proptest::collection::vec(sweep, 1..9)
}

fn sweep(model: &mut Docs, sweep: &Sweep, seqno: &mut u64) -> Docs {
    let mut keys: Vec<usize> = (sweep.from..).step_by(sweep.step).take(sweep.len).collect();
    keys.sort_by_key(|key| match sweep.order {
        0 => *key,
        1 => usize::MAX - key,
        _ => key * 7919 % 10_007,
    });
    let mut docs = Docs::new();
    for key in keys {
        *seqno += sweep.gap;
        let id = format!("key-{key:05}").into_bytes();
        let body = if sweep.deleted { Vec::new() } else { seqno.to_be_bytes().to_vec() };
        let rev_seqno = model.get(&id).map_or(1, |old| old.rev_seqno + 1);
        docs.insert(id, Doc { seqno: *seqno, deleted: sweep.deleted, rev_seqno, cas: *seqno, body });
    }
    model.extend(docs.clone());
    docs
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Watcher for Faults {
    fn fault(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    fn step(&mut self, _: u64) {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn sweeps_leave_a_sound_file(sweeps in sweeps(), tuning in tunings(), reopen: bool) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("0.couch.1");
        let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
        let (mut model, mut seqno) = (Docs::new(), 0);
        for one in &sweeps {
            file.set_tuning(tuning);
            let before = model.clone();
            let docs = sweep(&mut model, one, &mut seqno);
            let mut saved = TestBatch::new(&docs);
            file.save(&mut saved).expect("a save");
            for ((id, _), replaced) in saved.docs.iter().zip(&saved.replaced) {
                prop_assert_eq!(before.get(id).map(|doc| doc.seqno), replaced.map(|old| old.seqno));
            }
            if one.again {
                // with a few new ones among those that are there with the same seqnos
                let mut more = docs.clone();
                more.extend(sweep(&mut model, &Sweep { len: 20, step: 3, ..one.clone() }, &mut seqno));
                file.save(&mut TestBatch::new(&more)).expect("a save");
            }
            file.commit(0).expect("a commit");
            prop_assert_eq!(&read_all(&file.snapshot()).expect("a sound file"), &model);
            if reopen {
                file = CouchFile::open(&RealDisk, &path).expect("the file opens");
            }
        }
        let mut faults = Faults::default();
        let findings = check(&RealDisk, &path, &mut faults);
        prop_assert_eq!(faults.0.iter().map(|fault| fault.what.clone()).collect::<Vec<_>>(), Vec::<String>::new());
        prop_assert_eq!(findings.documents + findings.tombstones, model.len() as u64);
    }

    #[test]
    fn what_is_saved_comes_out(batches in batches(), tuning in tunings(), reopen: bool) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("0.couch.1");
        let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
        let (mut model, mut seqno) = (Docs::new(), 0);
        let mut snapshots = Vec::new();
        for (round, batch) in batches.iter().enumerate() {
            file.set_tuning(tuning);
            let before = model.clone();
            let mut saved = TestBatch::new(&apply(&mut model, batch, &mut seqno));
            file.save(&mut saved).expect("a save");
            for ((id, _), replaced) in saved.docs.iter().zip(&saved.replaced) {
                let old = before.get(id);
                prop_assert_eq!(old.map(|d| (d.seqno, d.deleted)), replaced.map(|r| (r.seqno, r.deleted)));
            }
            let value = round.to_string();
            let locals = [LocalUpdate { id: b"_local/round", value: Some(value.as_bytes()) }];
            file.save_locals(&locals).expect("a save");
            file.commit(round as u64).expect("a commit");
            prop_assert_eq!(file.snapshot().info().update_seqno, seqno);
            snapshots.push((file.snapshot(), model.clone()));
            if reopen {
                file = CouchFile::open(&RealDisk, &path).expect("the file opens");
            }
            let read = CouchFile::open_read(&RealDisk, &path).expect("the file opens");
            prop_assert_eq!(&read_all(&read).expect("a sound file"), &model);
            prop_assert_eq!(read.local(b"_local/round").expect("a sound file"), Some(value.into_bytes()));
            for id in model.keys().take(20) {
                let found = read.get(id, |info| info.seqno).expect("a sound file");
                prop_assert_eq!(found, Some(model[id].seqno));
            }
            prop_assert_eq!(read.get(b"no such key", |_| ()).expect("a sound file"), None);
        }
        for (snapshot, model) in snapshots {
            prop_assert_eq!(read_all(&snapshot).expect("a snapshot stays"), model);
        }
    }

    #[test]
    fn a_torn_tail_falls_back_to_the_header_before(cut in 1u64..20_000, garbage: bool) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("0.couch.1");
        let (mut model, mut seqno) = (Docs::new(), 0);
        let mut states = Vec::new();
        let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
        for round in 0..4u16 {
            let batch = (round * 10..round * 10 + 15).map(|key| (key, (false, 300))).collect();
            file.save(&mut TestBatch::new(&apply(&mut model, &batch, &mut seqno))).expect("a save");
            file.commit(0).expect("a commit");
            states.push((file.snapshot().info(), model.clone()));
        }
        let len = states[3].0.file_bytes;
        let cut_at = len.saturating_sub(cut);
        let disk = RealDisk;
        let raw = base::env::Disk::open(&disk, &path, base::env::OpenMode::ReadWrite).expect("the file");
        raw.set_len(cut_at).expect("a cut");
        if garbage {
            raw.set_len(len).expect("zeros behind the cut");
        }
        let whole = states.iter().rev().find(|(info, _)| info.file_bytes <= cut_at);
        match (CouchFile::open(&RealDisk, &path), whole) {
            (Ok(file), Some((info, model))) => {
                prop_assert_eq!(file.snapshot().info().header_offset, info.header_offset);
                prop_assert_eq!(&read_all(&file.snapshot()).expect("a sound file"), model);
            }
            (Err(Failure::NoHeader { .. }), None) => {}
            (opened, _) => prop_assert!(false, "opened: {:?}", opened.map(|f| f.snapshot().info())),
        }
    }
}

#[test]
fn saving_the_same_seqno_again_keeps_one_record() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    let (mut model, mut seqno) = (Docs::new(), 0);
    let docs = apply(&mut model, &(0..100).map(|key| (key, (false, 10))).collect(), &mut seqno);
    for _ in 0..3 {
        file.save(&mut TestBatch::new(&docs)).expect("a save");
        file.commit(0).expect("a commit");
        assert_eq!(read_all(&file.snapshot()).expect("a sound file"), model);
    }
}

#[test]
fn local_documents_come_and_go() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    let put = |id, value| LocalUpdate { id, value: Some(value) };
    let gone = |id| LocalUpdate { id, value: None };
    file.save_locals(&[put(b"a", b"1"), put(b"b", b"2")]).expect("a save");
    file.save_locals(&[gone(b"a"), put(b"c", b"3"), gone(b"d")]).expect("a save");
    file.commit(0).expect("a commit");
    let snapshot = CouchFile::open_read(&RealDisk, Path::new(&path)).expect("the file opens");
    let mut all = Vec::new();
    snapshot.scan_locals(|id, value| all.push((id.to_vec(), value.to_vec()))).expect("a sound file");
    assert_eq!(all, [(b"b".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"3".to_vec())]);
    file.save_locals(&[gone(b"b"), gone(b"c")]).expect("a save");
    file.commit(0).expect("a commit");
    assert_eq!(file.snapshot().info().local_bytes, 0);
}
