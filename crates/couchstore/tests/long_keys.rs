//! Keys so long that a node has room for two of them: however often single documents are saved, trees stay shallow.

mod common;

use base::env::RealDisk;
use base::env::sim::SplitMix64;
use common::{Doc, Docs, TestBatch, read_all};
use couchstore::check::{Fault, Watcher, check};
use couchstore::{CouchFile, Tuning};

const KEYS: u64 = 2_000;
const SAVES: u64 = 3_000;
/// The longest key that a document can have.
const KEY_BYTES: usize = 250;

/// Of trees with so many keys; it grows with their logarithm. Deeper ones than 48 are not read.
const MOST_DEPTH: usize = 8;

struct Sound;

impl Watcher for Sound {
    fn fault(&mut self, fault: Fault) {
        panic!("{fault:?}");
    }

    fn step(&mut self, _: u64) {}
}

fn key(number: u64) -> Vec<u8> {
    let mut key = format!("{number:06}").into_bytes();
    key.resize(KEY_BYTES, b'x');
    key
}

fn many_small_saves(seed: u64, tuning: Tuning) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.set_tuning(tuning);
    let (mut rng, mut model, mut seqno) = (SplitMix64::new(seed), Docs::new(), 0);
    for _ in 0..SAVES {
        let mut docs = Docs::new();
        for _ in 0..=rng.below(3) {
            seqno += 1;
            let deleted = rng.chance(1, 4);
            let body = if deleted { Vec::new() } else { b"1".to_vec() };
            docs.insert(key(rng.below(KEYS)), Doc { seqno, deleted, rev_seqno: seqno, cas: seqno, body });
        }
        model.extend(docs.clone());
        file.save(&mut TestBatch::new(&docs)).expect("a save");
    }
    file.commit(1).expect("a commit");
    assert_eq!(read_all(&file.snapshot()).expect("sound"), model);
    let depth = check(&RealDisk, &path, &mut Sound).depth;
    assert!(depth <= MOST_DEPTH, "seed {seed}, {tuning:?}: {depth} levels");
}

#[test]
fn many_saves_of_single_documents_with_long_keys_leave_trees_shallow() {
    for seed in 0..3 {
        many_small_saves(seed, Tuning::default());
        // The smallest nodes that there may be.
        many_small_saves(seed, Tuning { leaf_bytes: 64, interior_bytes: 40, compress_nodes: true });
    }
}
