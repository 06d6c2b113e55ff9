//! The bytes in `docs/file_format.md` are those of a real file.
#![allow(clippy::disallowed_methods, reason = "a test reads documentation and the file it made")]

use std::path::Path;

use base::env::RealDisk;
use couchstore::{Batch, Body, CONTENT_JSON, CouchFile, DocUpdate, LocalUpdate, RecordSummary, RevMeta};

struct One;

impl Batch for One {
    fn len(&self) -> usize {
        1
    }

    fn doc(&self, _i: usize) -> DocUpdate<'_> {
        DocUpdate {
            id: b"\0k",
            seqno: 1,
            rev_seqno: 1,
            deleted: false,
            content_meta: CONTENT_JSON,
            body: Body::Compress(b"{\"a\":1}"),
        }
    }

    fn rev_meta(&self, _i: usize, out: &mut Vec<u8>) {
        let meta = RevMeta {
            cas: 0x18e9_c3b8_1dff_0000,
            flags: 0x0200_0006,
            datatype: Some(1),
            ..RevMeta::default()
        };
        let (bytes, len) = meta.encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn saved(&mut self, _i: usize, _new: RecordSummary, _old: Option<RecordSummary>) {}
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

#[test]
fn the_documented_bytes_are_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("0.couch.1");
    let mut file = CouchFile::create(&RealDisk, &path).expect("a new file");
    file.save(&mut One).expect("a save");
    let locals = [LocalUpdate { id: b"|0x0|", value: Some(&[1, 1, 37]) }];
    file.save_locals(&locals).expect("a save");
    file.commit(0x18e9_c3b9_11d0_b4e9).expect("a commit");
    let written = std::fs::read(&path).expect("the file");

    let doc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/file_format.md");
    let doc = std::fs::read_to_string(doc).expect("the document");
    let (_, example) = doc.split_once("```text\n").expect("the example");
    let (example, _) = example.split_once("```").expect("the example's end");
    let mut covered = 0;
    for line in example.lines() {
        let (offset, rest) = line.split_once(' ').expect("an offset");
        let at = usize::from_str_radix(offset, 16).expect("a number");
        let bytes = rest.split("  ").next().expect("bytes").trim();
        let len = bytes.split(' ').count();
        let real: Vec<String> = written[at..at + len].iter().map(hex).collect();
        assert_eq!(bytes, real.join(" "), "at {offset}");
        covered += len;
    }
    let silent = written.iter().filter(|byte| **byte != 0).count();
    assert!(covered >= silent, "every byte that is not zero is explained");
}
