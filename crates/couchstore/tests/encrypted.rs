//! Files of version 14 that the original's library has written, most of them encrypted, come out as that library reads
//! them; see `tests/golden/format/couchstore-14/README.md`.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use base::env::{Disk, OpenMode, RealDisk};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use couchstore::check::{Fault, Watcher, check_with};
use couchstore::fuzz::{OneFile, read_in_large_pieces};
use couchstore::{CouchFile, DocInfo, Failure, OriginalKeys, Snapshot};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-14").join(name)
}

fn bytes_of(name: &str) -> Vec<u8> {
    let file = RealDisk.open(&path_of(name), OpenMode::Read).expect("the fixture is there");
    let mut bytes = vec![0; file.len().expect("its length") as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("a read"), bytes.len());
    bytes
}

fn keys() -> OriginalKeys {
    let text: Value = serde_json::from_slice(&bytes_of("keys.json")).expect("JSON");
    let mut keys = OriginalKeys::default();
    for key in text["keys"].as_array().expect("a list") {
        let bytes = STANDARD.decode(key["key"].as_str().expect("text")).expect("base64");
        keys.insert(key["id"].as_str().expect("text").to_owned(), bytes.try_into().expect("256 bits"));
    }
    keys
}

fn open(name: &str) -> Snapshot {
    CouchFile::open_read_with(&RealDisk, &path_of(name), &keys()).expect("the file is sound")
}

/// What the library has read, in order of seqno.
fn expected(name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes_of(name)).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn shown(file: &Snapshot, info: &DocInfo<'_>) -> Result<Value, Failure> {
    let (mut stored, mut inflated) = (Vec::new(), Vec::new());
    let body = file.body(info, &mut stored, &mut inflated)?;
    let has_body = info.body_offset != 0;
    Ok(json!({
        "id": hex(info.id), "db_seq": info.seqno, "rev_seq": info.rev_seqno, "deleted": info.deleted,
        "content_meta": info.content_meta, "rev_meta": hex(info.rev_meta),
        "body_sha256": has_body.then(|| hex(&Sha256::digest(body))),
        "body_length": has_body.then_some(body.len()),
    }))
}

/// All records by seqno, up to the first that cannot be read.
fn read(file: &Snapshot) -> (Vec<Value>, Result<(), Failure>) {
    let mut all = Vec::new();
    let ended = file.changes_since(0, |info| {
        all.push(shown(file, &info)?);
        Ok::<_, Failure>(ControlFlow::Continue(()))
    });
    (all, ended.map(drop))
}

#[derive(Default)]
struct Faults(Vec<String>);

impl Watcher for Faults {
    fn fault(&mut self, fault: Fault) {
        self.0.push(format!("{}: {}", fault.offset, fault.what));
    }

    fn step(&mut self, _documents: u64) {}
}

#[test]
fn documents_come_out_as_the_original_reads_them() {
    for (name, content) in [
        ("3.couch.1", "content.jsonl"),
        ("3p.couch.1", "content.jsonl"),
        ("5.couch.1", "content.jsonl"),
        ("6.couch.1", "content6.jsonl"),
        ("7.couch.1", "content7.jsonl"),
    ] {
        let (file, expected) = (open(name), expected(content));
        let (all, ended) = read(&file);
        assert!(ended.is_ok(), "{name}: {ended:?}");
        assert_eq!(all, expected, "{name}");
        read_in_large_pieces(&file);
        let by_id: BTreeMap<_, _> = expected.iter().map(|line| (line["id"].to_string(), line)).collect();
        let mut ids = 0;
        file.scan_ids(&[], |info| {
            ids += 1;
            assert_eq!(&&shown(&file, &info)?, &by_id[&json!(hex(info.id)).to_string()], "{name}");
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })
        .expect("it can be read");
        assert_eq!(ids, by_id.len(), "{name}");
        assert!(file.local(b"_local/vbstate").expect("it can be read").is_some(), "{name}");
    }
    for name in ["4.couch.1", "4c.couch.1"] {
        assert_eq!(read(&open(name)).0, Vec::<Value>::new(), "{name}");
    }
}

#[test]
fn files_of_the_original_have_no_faults() {
    for name in ["3", "3p", "4", "4c", "5", "6", "7"] {
        let mut faults = Faults::default();
        let found = check_with(&RealDisk, &path_of(&format!("{name}.couch.1")), &keys(), &mut faults);
        assert_eq!(faults.0, Vec::<String>::new(), "{name}");
        assert_eq!(found.faults, 0);
    }
}

#[test]
fn a_file_is_refused_without_its_key_and_with_another_one() {
    let failure = |name: &str, keys: &OriginalKeys| {
        let failure = CouchFile::open_read_with(&RealDisk, &path_of(name), keys).err();
        failure.expect("it cannot be read").to_string()
    };
    let none = OriginalKeys::default();
    let said = failure("3.couch.1", &none);
    assert!(
        said.ends_with("is encrypted with the key \"k-1\" of the server that wrote it, which was not given"),
        "{said}"
    );
    for name in ["3.couch.1", "4.couch.1", "5.couch.1", "6.couch.1"] {
        assert!(failure(name, &none).contains("which was not given"), "{name}");
        assert!(CouchFile::open(&OneFile(bytes_of(name).into()), Path::new(name)).is_err(), "{name}");
    }
    let mut others = OriginalKeys::default();
    others.insert("k-1".to_owned(), [0; 32]);
    others.insert("k-2".to_owned(), [0; 32]);
    for name in ["3.couch.1", "5.couch.1"] {
        assert!(failure(name, &others).contains("the key may be another one"), "{name}");
    }
    assert!(failure("6.couch.1", &others).contains("does not open with the key that was given"));
    for name in ["3p.couch.1", "7.couch.1"] {
        assert!(CouchFile::open_read_with(&RealDisk, &path_of(name), &none).is_ok(), "{name} is plain");
    }
}

/// Whichever byte is changed: what is read as of the same header is what was written, or is refused.
#[test]
fn a_changed_byte_is_never_decrypted_into_another_value() {
    for name in ["3.couch.1", "5.couch.1", "6.couch.1"] {
        let (bytes, sound) = (bytes_of(name), open(name));
        let (header, expected) = (sound.info().header_offset, read(&sound).0);
        let mut refused = 0;
        for at in (0..bytes.len()).step_by(61) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            let disk = OneFile(changed.into());
            let Ok(file) = CouchFile::open_read_with(&disk, Path::new(name), &keys()) else {
                refused += 1;
                continue;
            };
            if file.info().header_offset != header {
                continue;
            }
            let (all, ended) = read(&file);
            refused += u64::from(ended.is_err());
            assert_eq!(all[..], expected[..all.len()], "{name}, byte {at}");
        }
        assert!(refused > 10, "{name}: {refused} changed bytes were noticed");
    }
}
