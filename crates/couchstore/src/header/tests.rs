//! Files of each version are read, written on, gone back in and compacted; encrypted ones are refused by name.

use std::ops::ControlFlow;
use std::path::Path;

use base::env::{Disk, OpenMode, RealDisk};

use super::*;
use crate::check::{Fault, Watcher, check};
use crate::fuzz::OneFile;
use crate::{
    Batch, Body, CONTENT_OPAQUE, Choice, Compaction, CouchFile, DocInfo, DocUpdate, Fate, LocalUpdate,
    RecordSummary, RevMeta, Snapshot, Tuning,
};

/// A document with this seqno and a key that goes with it.
struct One(u64, String);

impl Batch for One {
    fn len(&self) -> usize {
        1
    }

    fn doc(&self, _: usize) -> DocUpdate<'_> {
        let body = Body::Compress(b"a body that is a body that is a body");
        DocUpdate {
            id: self.1.as_bytes(),
            seqno: self.0,
            rev_seqno: 1,
            deleted: false,
            content_meta: CONTENT_OPAQUE,
            body,
        }
    }

    fn rev_meta(&self, _: usize, out: &mut Vec<u8>) {
        let (bytes, len) = RevMeta::default().encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn saved(&mut self, _: usize, _: RecordSummary, _: Option<RecordSummary>) {}
}

fn save(file: &mut CouchFile, seqno: u64) {
    file.save(&mut One(seqno, format!("key-{}", seqno % 7))).expect("a save");
    file.save_locals(&[LocalUpdate { id: b"_local/x", value: Some(b"1") }]).expect("a save");
    file.commit(77).expect("a commit");
}

/// A file with ten commits of a version.
fn write(version: u8, path: &Path) -> CouchFile {
    let mut file = CouchFile::create_of_version(&RealDisk, path, version).expect("a new file");
    (1..=10).for_each(|seqno| save(&mut file, seqno));
    file
}

fn bytes_of(path: &Path) -> Vec<u8> {
    let file = RealDisk.open(path, OpenMode::Read).expect("the file");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("a read"), bytes.len());
    bytes
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
fn assert_sound(path: &Path, version: u8, last: u64) {
    let snapshot = CouchFile::open_read(&RealDisk, path).expect("it opens");
    assert_eq!((snapshot.info().version, snapshot.info().update_seqno), (version, last));
    assert_eq!(seqnos(&snapshot), (last.saturating_sub(6).max(1)..=last).collect::<Vec<_>>());
    let mut faults = Faults::default();
    check(&RealDisk, path, &mut faults);
    assert_eq!(faults.0, []);
}

fn seqnos(snapshot: &Snapshot) -> Vec<u64> {
    let (mut seqnos, mut stored, mut body) = (Vec::new(), Vec::new(), Vec::new());
    snapshot
        .changes_since(0, |info| {
            seqnos.push(info.seqno);
            let body = snapshot.body(&info, &mut stored, &mut body)?;
            assert_eq!(body, b"a body that is a body that is a body");
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })
        .expect("a sound file");
    seqnos
}

struct All;

impl Choice for All {
    fn fate(&mut self, _: &DocInfo<'_>) -> Fate {
        Fate::Keep
    }

    fn leaves_out_late(&mut self, _: &DocInfo<'_>) -> bool {
        false
    }

    fn brought_over(&mut self, _: &[u8], _: RecordSummary, _: Option<RecordSummary>) {}
}

#[test]
fn each_version_is_read_and_written_on() {
    for (version, next) in [(11, 11), (12, 13), (13, 13), (14, 14)] {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("0.couch.1");
        drop(write(version, &path));
        if version == 12 {
            as_version_12(&path);
        }
        assert_sound(&path, version, 10);
        let mut file = CouchFile::open(&RealDisk, &path).expect("it opens");
        (11..15).for_each(|seqno| save(&mut file, seqno));
        assert_sound(&path, next, 14);
        assert_eq!(file.rollback(12).expect("a sound file"), Some(12));
        file.commit(78).expect("a commit");
        assert_sound(&path, next, 12);
        save(&mut file, 13);
        assert_sound(&path, next, 13);

        let old = CouchFile::open_read(&RealDisk, &path).expect("it opens");
        let new_path = dir.path().join("0.couch.2");
        let mut copy =
            Compaction::start(&RealDisk, &new_path, old.clone(), Tuning::default()).expect("a new file");
        while !copy.step(1, &mut All).expect("a step").is_done {}
        copy.finish(&old, &[]).expect("the end").commit(79).expect("a commit");
        assert_sound(&new_path, 13, 13);
    }
}

/// Writes the last header as one of version 12: it has no timestamp.
fn as_version_12(path: &Path) {
    let last = (*CouchFile::open_read(&RealDisk, path).expect("it opens").header).clone();
    let file = RealDisk.open(path, OpenMode::ReadWrite).expect("the file");
    file.set_len(last.offset).expect("a cut");
    let offset = last.offset;
    file.write_at(&Header { version: 12, ..last }.encode(), offset).expect("a write");
    let read = CouchFile::open_read(&RealDisk, path).expect("it opens");
    assert_eq!(read.info().timestamp_ns, 0);
}

#[test]
fn headers_of_version_14_are_linked() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    drop(write(14, &path));
    let mut headers = Vec::new();
    let bytes = bytes_of(&path);
    for (i, block) in bytes.chunks(BLOCK as usize).enumerate().filter(|(_, block)| block[0] == HEADER_BLOCK) {
        let source = crate::file::open_source(&RealDisk, &path, OpenMode::Read).expect("the file");
        let header = Header::in_block(block, i as u64 * BLOCK, &source).expect("not encrypted");
        headers.push(header.expect("a sound header"));
        // 47 bits, all ones without a header before, and one that says there is no encryption
        let link = &block[9 + FIXED + TIMESTAMP..][..LINK];
        let expected = headers.iter().rev().nth(1).map_or(NO_LINK, |before| before.offset);
        assert_eq!(be(link), expected << 1);
    }
    assert_eq!(headers.len(), 10);
    assert!(headers.windows(2).all(|pair| pair[1].previous == Some(pair[0].offset)));
    assert_eq!(headers[0].previous, None);
}

#[test]
fn a_header_that_tells_of_a_metadata_header_that_is_not_there_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    drop(write(14, &path));
    let mut bytes = bytes_of(&path);
    let last = bytes.len() / BLOCK as usize * BLOCK as usize;
    let head = &mut bytes[last..];
    head[9 + FIXED + TIMESTAMP + LINK - 1] |= 1;
    let crc = Checksum::Crc32c.of(&head[9..]);
    head[5..9].copy_from_slice(&crc.to_be_bytes());
    let disk = OneFile(bytes.into());
    let failure = CouchFile::open_read(&disk, Path::new("7.couch.1")).err().expect("it has no key");
    assert_eq!(failure.to_string(), "7.couch.1 is damaged at offset 0: the metadata header is damaged");
    let mut faults = Faults::default();
    check(&disk, Path::new("7.couch.1"), &mut faults);
    assert_eq!(faults.0.iter().map(|f| &*f.what).collect::<Vec<_>>(), ["the metadata header is damaged"]);
}

#[test]
fn later_versions_are_refused_by_number() {
    let mut header = Header { version: 15, ..Header::new() }.encode();
    let crc = Checksum::Crc32c.of(&header[9..]);
    header[5..9].copy_from_slice(&crc.to_be_bytes());
    let failure = CouchFile::open_read(&OneFile(header.into()), Path::new("7.couch.1")).err();
    assert!(matches!(failure, Some(Failure::UnsupportedVersion { version: 15, .. })));
}
