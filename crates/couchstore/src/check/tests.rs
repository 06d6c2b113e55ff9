//! Files that are sound are found so, and what is wrong with others is told with its place.

use std::path::PathBuf;

use base::env::{OpenMode, RealDisk};

use super::*;
use crate::fuzz::OneFile;
use crate::{Batch, Body, CONTENT_OPAQUE, DocUpdate, RecordSummary, Tuning};

#[derive(Default)]
struct Heard {
    faults: Vec<Fault>,
    documents: u64,
}

impl Watcher for Heard {
    fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    fn step(&mut self, documents: u64) {
        self.documents += documents;
    }
}

fn check_bytes(bytes: &[u8]) -> (Findings, Vec<Fault>) {
    let mut heard = Heard::default();
    let findings = check(&OneFile(bytes.into()), Path::new("0.couch.1"), &mut heard);
    assert_eq!(findings.faults, heard.faults.len() as u64);
    (findings, heard.faults)
}

fn read(path: &Path) -> Vec<u8> {
    let raw = RealDisk.open(path, OpenMode::Read).expect("the file");
    let mut bytes = vec![0; raw.len().expect("a length") as usize];
    assert_eq!(raw.read_at(&mut bytes, 0).expect("a read"), bytes.len());
    bytes
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-13").join(name)
}

/// Documents with keys `from..from + 30`; every fifth is a tombstone.
struct Some30 {
    ids: Vec<Vec<u8>>,
    from: u64,
    seqno: u64,
}

impl Some30 {
    fn new(from: u64, seqno: u64) -> Some30 {
        let ids = (from..from + 30).map(|key| format!("key-{key:04}").into_bytes()).collect();
        Some30 { ids, from, seqno }
    }
}

impl Batch for Some30 {
    fn len(&self) -> usize {
        self.ids.len()
    }

    fn doc(&self, i: usize) -> DocUpdate<'_> {
        let deleted = (self.from + i as u64) % 5 == 4;
        DocUpdate {
            id: &self.ids[i],
            seqno: self.seqno + i as u64,
            rev_seqno: 1,
            deleted,
            content_meta: CONTENT_OPAQUE,
            body: if deleted { Body::None } else { Body::Compress(b"a body, a body, a body, a body") },
        }
    }

    fn rev_meta(&self, _i: usize, out: &mut Vec<u8>) {
        let meta = RevMeta { cas: 1, datatype: Some(0), ..RevMeta::default() };
        let (bytes, len) = meta.encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn saved(&mut self, _i: usize, _new: RecordSummary, _old: Option<RecordSummary>) {}
}

/// A file of many small nodes: three commits, the last of which replaces documents of the others.
fn file() -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.set_tuning(Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true });
    for (round, from) in [0, 30, 15].into_iter().enumerate() {
        file.save(&mut Some30::new(from, 1 + 30 * round as u64)).expect("a save");
        file.commit(7).expect("a commit");
    }
    read(&path)
}

#[test]
fn files_of_the_original_are_clean() {
    for (vb, documents, tombstones) in [(0, 38, 8), (1, 38, 7), (2, 36, 4), (5, 37, 6)] {
        let mut heard = Heard::default();
        let findings = check(&RealDisk, &golden(&format!("{vb}.couch.2")), &mut heard);
        assert_eq!(heard.faults, []);
        assert_eq!((findings.documents, findings.tombstones), (documents, tombstones));
        assert_eq!(heard.documents, documents + tombstones);
    }
}

#[test]
fn a_file_of_ours_is_clean() {
    let (findings, faults) = check_bytes(&file());
    assert_eq!(faults, []);
    assert_eq!((findings.documents, findings.tombstones), (48, 12));
}

#[test]
fn each_damaged_bit_of_what_is_in_use_is_found() {
    let bytes = file();
    let snapshot = CouchFile::open_read(&OneFile(bytes.as_slice().into()), Path::new("x")).expect("sound");
    let info = snapshot.info();
    let (mut found, mut unused) = (0, 0);
    // every byte is hit, at one bit of it after the other
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let (_, faults) = check_bytes(&damaged);
        match faults.first() {
            None => unused += 1,
            Some(_) => {
                assert!(faults.iter().all(|fault| fault.offset < bytes.len() as u64), "{faults:?}");
                assert!(faults.iter().any(|fault| fault.offset <= at as u64), "byte {at}: {faults:?}");
                found += 1;
            }
        }
    }
    assert!(found as u64 >= info.used_bytes(), "found {found} of {}, unused {unused}", info.used_bytes());
}

#[test]
fn a_damaged_body_is_told_with_its_document() {
    let bytes = file();
    let snapshot = CouchFile::open_read(&OneFile(bytes.as_slice().into()), Path::new("x")).expect("sound");
    let offset = snapshot.get(b"key-0033", |info| info.body_offset).expect("sound").expect("there");
    let mut damaged = bytes;
    damaged[offset as usize + 12] ^= 1;
    let (_, faults) = check_bytes(&damaged);
    let path: Arc<Path> = Path::new("0.couch.1").into();
    let what = "body of document key-0033: a checksum does not match".to_owned();
    assert_eq!(faults, [Fault { path, offset, what }]);
}

#[test]
fn a_header_that_points_to_damage_is_a_fault() {
    let bytes = file();
    let snapshot = CouchFile::open_read(&OneFile(bytes.as_slice().into()), Path::new("x")).expect("sound");
    let last = snapshot.header.offset;
    let root = snapshot.header.by_id.expect("there are documents").offset;
    let mut damaged = bytes;
    damaged[root as usize + 8] ^= 1;
    let (findings, faults) = check_bytes(&damaged);
    // the file is read as of the header before, and says so
    assert!(findings.documents + findings.tombstones > 0);
    assert_eq!(faults.iter().map(|fault| fault.offset).collect::<Vec<_>>(), [root, last], "{faults:?}");
}

#[test]
fn trees_that_disagree_are_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.save(&mut Some30::new(0, 1)).expect("a save");
    file.commit(1).expect("a commit");
    let by_seqno = file.header.by_seqno;
    file.save(&mut Some30::new(0, 31)).expect("a save");
    // the tree by seqno stays as it was: each document has an old seqno in one tree and a new one in the other
    file.header.by_seqno = by_seqno;
    file.commit(2).expect("a commit");
    let (_, faults) = check_bytes(&read(&path));
    assert_eq!(faults.len(), 60);
    assert!(faults[0].what.contains("key-0000 with seqno 31 is missing in the tree by seqno"), "{faults:?}");
    assert!(faults[30].what.contains("key-0000 with seqno 1 is missing in the tree by id"), "{faults:?}");
}

#[test]
fn a_wrong_reduce_value_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.save(&mut Some30::new(0, 1)).expect("a save");
    let root = file.header.by_id.as_mut().expect("there are documents");
    root.reduce.live += 1;
    let offset = root.offset;
    file.header.update_seqno = 29;
    file.commit(1).expect("a commit");
    let (_, faults) = check_bytes(&read(&path));
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert_eq!(faults[0].offset, offset);
    assert!(faults[1].what.contains("key-0029 has the seqno 30, the file goes to 29"), "{faults:?}");
}

#[test]
fn what_is_no_file_of_this_kind_is_a_fault() {
    for bytes in [&[][..], b"hello", &[0; 4096], &[1; 9000]] {
        let (findings, faults) = check_bytes(bytes);
        assert_eq!(findings.file_bytes, bytes.len() as u64);
        assert_eq!(faults[0].what, "the file holds no valid header");
    }
}

#[test]
fn sizes_as_the_original_counts_them_are_no_fault() {
    let mut crossing = 0;
    for first in 0..60 {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("0.couch.1");
        let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
        file.save(&mut Some30::new(first, 1)).expect("a save");
        let padding = vec![7; first as usize * 100];
        let local = [crate::LocalUpdate { id: b"_local/padding", value: Some(&padding) }];
        file.save_locals(&local).expect("a save");
        file.save(&mut Some30::new(0, 31)).expect("a save");
        let root = file.header.by_id.expect("there are documents");
        let mut node = crate::node::NodeBuf::default();
        file.write_data().expect("a write");
        node.read(file.writer.source(), root, file.writer.end()).expect("a node");
        let len = node.block_bytes() + crate::chunk::CHUNK_PREFIX as u64;
        let extra = crate::chunk::span(root.offset, len) - len;
        crossing += extra;
        for (over, faults) in [(0, 0), (extra, 0), (2, 1)] {
            let root = crate::node::Pointer { subtree_bytes: root.subtree_bytes + over, ..root };
            file.header.by_id = Some(root);
            file.commit(1).expect("a commit");
            assert_eq!(check_bytes(&read(&path)).1.len(), faults, "{over} more at {}", root.offset);
        }
    }
    assert!(crossing > 0, "no root lies across two blocks");
}

#[test]
fn the_first_block_may_be_marked_as_the_original_does() {
    let mut bytes = file();
    bytes[0] = 1;
    assert_eq!(check_bytes(&bytes).1, []);
    bytes[0] = 2;
    assert_eq!(check_bytes(&bytes).1.len(), 1);
}
