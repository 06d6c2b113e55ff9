//! Damaged bytes lead to a failure or to nothing, never to a wrong value or a panic.
#![allow(clippy::disallowed_methods, reason = "a test reads the file that it made")]

mod common;

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, OpenMode, RealDisk};
use common::{Doc, Docs, TestBatch, read_all};
use couchstore::fuzz::{OneFile, fuzz_damaged_file};
use couchstore::{CouchFile, Tuning};
use proptest::prelude::*;

/// A small file with several commits, and what it held after each.
fn small_file() -> (Vec<u8>, Vec<Docs>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.set_tuning(Tuning { leaf_bytes: 200, interior_bytes: 200, compress_nodes: true });
    let mut model = Docs::new();
    let mut states = Vec::new();
    for round in 0..3u64 {
        let mut batch = Docs::new();
        for key in round..round + 8 {
            let seqno = round * 8 + key - round + 1;
            let body = format!("value {key} of round {round}, value {key} of round {round}").into_bytes();
            let deleted = key % 5 == 4;
            let body = if deleted { Vec::new() } else { body };
            batch.insert(
                format!("key-{key}").into_bytes(),
                Doc { seqno, deleted, rev_seqno: 1, cas: seqno, body },
            );
        }
        model.extend(batch.clone());
        file.save(&mut TestBatch::new(&batch)).expect("a save");
        file.commit(round).expect("a commit");
        states.push(model.clone());
    }
    let raw = RealDisk.open(&path, OpenMode::Read).expect("the file");
    let mut bytes = vec![0; raw.len().expect("a length") as usize];
    assert_eq!(raw.read_at(&mut bytes, 0).expect("a read"), bytes.len());
    (bytes, states)
}

#[test]
fn no_flipped_bit_makes_a_wrong_value() {
    let (bytes, states) = small_file();
    let (mut failed, mut older) = (0, 0);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let disk = OneFile(damaged.into());
        let read = CouchFile::open_read(&disk, Path::new("damaged")).and_then(|file| read_all(&file));
        match read {
            Err(_) => failed += 1,
            // a header that does not vouch for its roots is skipped: what was committed before it shows
            Ok(docs) => {
                let state = states.iter().rposition(|state| *state == docs);
                older += usize::from(state.expect("one of the committed states") < states.len() - 1);
            }
        }
    }
    assert!(failed > 1000 && older > 100, "failed {failed}, older {older}");
}

/// A file of some hundred kilobytes with deep trees, and what it held after each commit.
fn large_file() -> (Vec<u8>, Vec<Docs>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.set_tuning(Tuning { leaf_bytes: 1000, interior_bytes: 300, compress_nodes: true });
    let (mut model, mut states) = (Docs::new(), Vec::new());
    for round in 0..4u64 {
        let mut batch = Docs::new();
        for i in 0..400u64 {
            let (key, seqno) = ((i * 7 + round * 131) % 1500, round * 400 + i + 1);
            let body = format!("{key}.{round} ").into_bytes().repeat((key % 97) as usize);
            let doc = Doc { seqno, deleted: body.is_empty(), rev_seqno: 1, cas: seqno, body };
            batch.insert(format!("key-{key:05}").into_bytes(), doc);
        }
        model.extend(batch.clone());
        file.save(&mut TestBatch::new(&batch)).expect("a save");
        file.commit(round).expect("a commit");
        states.push(model.clone());
    }
    (std::fs::read(&path).expect("the file"), states)
}

#[test]
fn flipped_bits_of_a_large_file_make_no_wrong_value() {
    let (bytes, states) = large_file();
    assert!(bytes.len() > 200_000, "{} bytes", bytes.len());
    let mut failed = 0;
    // a step that meets every bit of a byte and every part of the file
    for bit in (0..bytes.len() * 8).step_by((bytes.len() * 8 / 400) | 1) {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let disk = OneFile(damaged.into());
        match CouchFile::open_read(&disk, Path::new("damaged")).and_then(|file| read_all(&file)) {
            Err(_) => failed += 1,
            Ok(docs) => assert!(states.contains(&docs), "bit {bit} makes documents that never were"),
        }
    }
    assert!(failed > 50, "{failed} reads failed");
}

#[test]
fn a_failed_write_poisons_the_file() {
    struct Full(Arc<dyn base::env::File>, std::sync::atomic::AtomicBool);
    impl base::env::File for Full {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            self.0.read_at(buf, offset)
        }
        fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
            self.0.write_at(buf, offset)
        }
        fn sync_data(&self) -> std::io::Result<()> {
            if self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
                return self.0.sync_data();
            }
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn len(&self) -> std::io::Result<u64> {
            self.0.len()
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.0.set_len(len)
        }
    }
    struct FullDisk;
    impl Disk for FullDisk {
        fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn base::env::File>> {
            Ok(Arc::new(Full(RealDisk.open(path, mode)?, false.into())))
        }
        fn create_dir_all(&self, path: &Path) -> std::io::Result<()> {
            RealDisk.create_dir_all(path)
        }
        fn read_dir(&self, path: &Path) -> std::io::Result<Vec<String>> {
            RealDisk.read_dir(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
            RealDisk.rename(from, to)
        }
        fn remove_file(&self, path: &Path) -> std::io::Result<()> {
            RealDisk.remove_file(path)
        }
        fn sync_dir(&self, path: &Path) -> std::io::Result<()> {
            RealDisk.sync_dir(path)
        }
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&FullDisk, &path).expect("a new file");
    file.save(&mut TestBatch::default()).expect("nothing is written yet");
    assert!(matches!(file.commit(0), Err(couchstore::Failure::Io { operation: "sync", .. })));
    assert!(matches!(file.commit(0), Err(couchstore::Failure::Poisoned { .. })));
    assert!(matches!(file.save(&mut TestBatch::default()), Err(couchstore::Failure::Poisoned { .. })));
}

proptest! {
    #[test]
    fn any_bytes_end_in_values_or_a_failure(edits in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..8)) {
        let (mut bytes, _) = small_file();
        for (at, byte) in edits {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        fuzz_damaged_file(&bytes);
    }

    #[test]
    fn noise_is_no_file(bytes in proptest::collection::vec(any::<u8>(), 0..10_000)) {
        fuzz_damaged_file(&bytes);
    }
}
