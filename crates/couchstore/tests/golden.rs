//! Files that the original wrote must come out as its own tools and clients saw them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use base::DocKey;
use base::env::RealDisk;
use base::leb128::decode_leb128;
use couchstore::{CouchFile, DocInfo, Durability, Failure, RevMeta, Snapshot};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const VBUCKETS: [u16; 4] = [0, 1, 2, 5];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-13")
}

fn open(vb: u16) -> Snapshot {
    CouchFile::open_read(&RealDisk, &folder().join(format!("{vb}.couch.2"))).expect("the file is sound")
}

fn text(name: &str) -> String {
    #[allow(clippy::disallowed_methods, reason = "a test reads its fixtures")]
    std::fs::read_to_string(folder().join(name)).expect("the fixture is there")
}

/// How the original's dump tool shows a key.
fn shown_key(stored: &[u8]) -> String {
    let DocKey { collection, key } = DocKey::parse(stored).expect("a prefixed key");
    match collection.0 {
        0 => format!("(collection:0x0:default){}", key.escape_ascii()),
        1 => {
            let (id, len) = decode_leb128(&key[1..]).expect("an id");
            let what = if key[0] == 0 { "collection" } else { "scope" };
            format!("(system-event-key:{what}:{id:#x}){}", key[1 + len..].escape_ascii())
        }
        2 => {
            let inner = shown_key(key);
            format!("(prepare:{}", &inner[1..])
        }
        id => format!("(collection:{id:#x}){}", key.escape_ascii()),
    }
}

fn shown(info: &DocInfo<'_>) -> Value {
    let meta = RevMeta::decode(info.rev_meta).expect("known metadata");
    let datatype = meta.datatype.expect("metadata with a datatype");
    let mut names: Vec<&str> = Vec::new();
    for (bit, name) in [(2, "snappy"), (1, "json"), (4, "xattr")] {
        if datatype & bit != 0 {
            names.push(name);
        }
    }
    if names.is_empty() {
        names.push("raw");
    }
    let mut line = json!({
        "body": null, "cas": meta.cas.to_string(), "content_meta": format!("{:#04x}", info.content_meta),
        "datatype": datatype, "datatype_as_text": names, "expiry": meta.expiry, "flags": meta.flags,
        "id": shown_key(info.id), "physical_size": info.body_bytes, "rev": info.rev_seqno, "seq": info.seqno,
    });
    if info.deleted {
        line["deleted"] = json!(if meta.expired { "TTL" } else { "explicit" });
    }
    if let Some(Durability::Pending { level, is_delete }) = meta.durability {
        line["sync_write"] = json!("pending");
        line["isDelete"] = json!(is_delete);
        line["level"] =
            json!(["none", "majority", "majorityAndPersistOnMaster", "persistToMajority"][level as usize]);
    }
    line
}

fn collect<T>(mut visit: impl FnMut(&mut dyn FnMut(T)) -> Result<(), Failure>) -> Vec<T> {
    let mut all = Vec::new();
    visit(&mut |one| all.push(one)).expect("the file is sound");
    all
}

#[test]
fn records_by_seqno_are_those_of_the_dump() {
    for vb in VBUCKETS {
        let file = open(vb);
        let ours: Vec<Value> = collect(|push| {
            file.changes_since(0, |info| {
                push(shown(&info));
                Ok(ControlFlow::Continue(()))
            })
        });
        let theirs: Vec<Value> = text(&format!("{vb}.dump.jsonl"))
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect();
        assert_eq!(ours.len(), theirs.len(), "vBucket {vb}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "vBucket {vb}");
        }
    }
}

#[test]
fn both_trees_tell_the_same() {
    for vb in VBUCKETS {
        let file = open(vb);
        let mut by_seqno = collect(|push| {
            file.changes_since(0, |info| {
                push(shown(&info));
                Ok(ControlFlow::Continue(()))
            })
        });
        let mut by_id = collect(|push| {
            file.scan_ids(&[], |info| {
                push(shown(&info));
                Ok(ControlFlow::Continue(()))
            })
        });
        by_id.sort_by_key(|doc| doc["seq"].as_u64());
        by_seqno.sort_by_key(|doc| doc["seq"].as_u64());
        assert_eq!(by_id, by_seqno, "vBucket {vb}");
    }
}

#[test]
fn headers_are_those_of_the_tools() {
    for vb in VBUCKETS {
        let file = open(vb);
        let info = file.info();
        let kib = |n: u64| format!("{:.1} kB", n as f64 / 1024.0);
        let bytes = |n: u64| if n < 1024 { format!("{n} bytes") } else { kib(n) };
        let mut ours = format!("DB Info ({vb}.couch.2) - total disk size: {}\n", kib(info.file_bytes));
        write!(
            ours,
            "   crc: CRC-32C\n\nHeader at file offset {}\n   file format version: {}\n   update_seq: {}\n   \
             purge_seq: {}\n   timestamp: {}\n   doc count: {}\n   deleted doc count: {}\n   data size: {}\n   \
             B-tree size:       {}\n   └── by-id tree:    {}\n   └── by-seqno tree: {}\n   └── local size:    {}\n",
            info.header_offset,
            info.version,
            info.update_seqno,
            info.purge_seqno,
            info.timestamp_ns,
            info.live_count,
            info.deleted_count,
            kib(info.used_bytes()),
            kib(info.by_id_bytes + info.by_seqno_bytes + info.local_bytes),
            kib(info.by_id_bytes),
            kib(info.by_seqno_bytes),
            bytes(info.local_bytes),
        )
        .expect("strings take everything");
        assert_eq!(ours, text(&format!("{vb}.info.txt")));
    }
}

#[test]
fn reduce_values_are_exact() {
    for vb in VBUCKETS {
        let file = open(vb);
        let (mut live, mut deleted, mut body_bytes) = (0, 0, 0);
        file.scan_ids(&[], |info| {
            if info.deleted {
                deleted += 1
            } else {
                live += 1
            }
            body_bytes += u64::from(info.body_bytes);
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })
        .expect("the file is sound");
        let info = file.info();
        assert_eq!((live, deleted, body_bytes), (info.live_count, info.deleted_count, info.body_bytes));
        assert_eq!(live + deleted, info.seqno_count);
    }
}

#[test]
fn local_documents_are_those_of_the_tools() {
    for vb in VBUCKETS {
        let mut ours = BTreeMap::new();
        open(vb)
            .scan_locals(|id, value| {
                ours.insert(id.escape_ascii().to_string(), value.to_vec());
            })
            .expect("the file is sound");
        let listing = text(&format!("{vb}.local.txt"));
        let lines: Vec<&str> = listing.lines().collect();
        for entry in lines.chunks(3).filter(|entry| entry.len() == 3) {
            let key = entry[0].strip_prefix("Key: ").expect("a key");
            let value = entry[1].strip_prefix("Value: ").expect("a value");
            let len = entry[2].strip_prefix("Value size: ").expect("a size");
            let stored = ours.remove(key).expect("the document is there");
            assert_eq!(stored.len().to_string(), len, "{key}");
            if key == "_local/vbstate" {
                assert_eq!(String::from_utf8_lossy(&stored), value);
            }
        }
        assert!(ours.is_empty(), "{ours:?}");
    }
}

#[test]
fn values_are_what_the_client_read() {
    use base64::Engine as _;
    let mut compared = 0;
    for line in text("expected.jsonl").lines() {
        let expected: Value = serde_json::from_str(line).expect("a line of JSON");
        let number = |name: &str| expected[name].as_u64().expect("a number");
        let key = base64::engine::general_purpose::STANDARD
            .decode(expected["key"].as_str().expect("a key"))
            .expect("base64");
        let stored =
            DocKey { collection: base::CollectionId(number("collection") as u32), key: &key }.to_stored();
        let file = open(number("vb") as u16);
        let (mut block, mut body) = (Vec::new(), Vec::new());
        let read = file
            .get(&stored.0, |info| {
                let meta = RevMeta::decode(info.rev_meta).expect("known metadata");
                let value = file.body(&info, &mut block, &mut body).expect("a sound body").to_vec();
                (meta, info.deleted, info.rev_seqno, value)
            })
            .expect("the file is sound");
        let Some((meta, deleted, rev_seqno, value)) = read else {
            assert_eq!(number("get_status"), 1, "{line}");
            continue;
        };
        assert_eq!(json!(deleted), expected["deleted"], "{line}");
        assert_eq!(
            (meta.cas, u64::from(meta.flags), u64::from(meta.expiry), rev_seqno),
            (number("cas"), number("flags"), number("expiry"), number("rev_seqno")),
        );
        assert_eq!(u64::from(meta.datatype.expect("with a datatype")), number("datatype"));
        if number("get_status") == 0 {
            // the client did not ask for xattrs: it was given what is behind them
            let document = if meta.datatype.is_some_and(|d| d & 4 != 0) {
                let len = u32::from_be_bytes(value[..4].try_into().expect("four bytes")) as usize;
                &value[4 + len..]
            } else {
                &value
            };
            assert_eq!(document.len() as u64, number("value_len"));
            let sha: String = Sha256::digest(document).iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").expect("strings take everything");
                text
            });
            assert_eq!(json!(sha), expected["value_sha256"], "{line}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}
