//! What is printed is what the original's tools print.

use std::path::Path;
use std::time::Duration;

use base::encryption::KeyError;
use base::env::OpenMode;
use base::{DurabilityLevel, SyncWrite, VbId, VbState};
use couchstore::{Durability, RevMeta};
use expect_test::expect;
use kvstore::{
    Background, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, SaveBatch, VbStateDoc,
};
use store_suite::{tuned, version};

use super::*;
use crate::cli::key_error;

const ORDERS: &str = "/data/buckets/orders";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-13").join(name)
}

fn text(name: &str) -> String {
    let file = Env::real().disk.open(&golden(name), OpenMode::Read).expect("the fixture is there");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("a read");
    String::from_utf8(bytes).expect("text")
}

fn dumped(vb: u16, flags: DumpFlags) -> String {
    let flags = DumpFlags { path: golden(&format!("{vb}.couch.2")), ..flags };
    let mut out = Vec::new();
    assert_eq!(dump(&Env::real(), &flags, &mut out).expect("a sound file"), Outcome::Done);
    String::from_utf8(out).expect("text")
}

/// A file that the original's library has encrypted, and its keys.
#[test]
fn an_encrypted_file_of_the_original_is_printed_with_its_key() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-14");
    let printed = |original: CouchstoreKeyFlags| {
        let path = folder.join("3.couch.1");
        let flags = DumpFlags { path, by_seqno: true, json: true, original, ..DumpFlags::default() };
        let mut out = Vec::new();
        dump(&Env::real(), &flags, &mut out).map(|_| String::from_utf8(out).expect("text"))
    };
    let all = printed(CouchstoreKeyFlags::of_file(folder.join("keys.json"))).expect("it is readable");
    assert_eq!(all.lines().count(), 162);
    let error = printed(CouchstoreKeyFlags::default()).expect_err("its key is missing").to_string();
    assert!(error.contains("the key \"k-1\"") && error.contains("--couchstore-key-file"), "{error}");
    let error = printed(CouchstoreKeyFlags::of_file(folder.join("content.jsonl"))).expect_err("no keys");
    assert!(format!("{error:#}").contains("neither {\"keys\""), "{error:#}");
}

#[test]
fn documents_come_out_as_from_the_originals_tool() {
    for vb in [0, 1, 2, 5] {
        let ours = dumped(vb, DumpFlags { by_seqno: true, json: true, ..DumpFlags::default() });
        assert_eq!(ours, text(&format!("{vb}.dump.jsonl")), "vBucket {vb}");
    }
}

#[test]
fn by_id_are_the_same_documents_in_order_of_their_keys() {
    let by_id = dumped(5, DumpFlags { json: true, ..DumpFlags::default() });
    let by_seqno = text("5.dump.jsonl");
    let mut sorted: Vec<&str> = by_id.lines().collect();
    sorted.sort_by_key(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["seq"].as_u64()
    });
    assert_eq!(sorted, by_seqno.lines().collect::<Vec<_>>());
    assert!(by_id != by_seqno);
}

#[test]
fn the_header_says_what_the_originals_tool_says() {
    let path = golden("5.couch.2").display().to_string();
    let header = dumped(5, DumpFlags { header: true, ..DumpFlags::default() }).replace(&path, "5.couch.2");
    expect![[r#"
        file                 5.couch.2
        file size            12.1 KiB
        header at offset     12288
        file format version  13
        update seqno         64
        purge seqno          0
        timestamp            1795181126119109865
        documents            37
        tombstones           6
        data in use          9.04 KiB
          bodies             5.00 KiB
          trees              4.04 KiB
            by id            1.64 KiB
            by seqno         1.56 KiB
            local            866 B
    "#]]
    .assert_eq(&header);
    let header = dumped(5, DumpFlags { header: true, json: true, ..DumpFlags::default() });
    let header: Value = serde_json::from_str(&header).expect("one object");
    assert_eq!(
        (&header["update_seq"], &header["doc_count"], &header["deleted_doc_count"], &header["timestamp"]),
        (&json!(64), &json!(37), &json!(6), &json!(1_795_181_126_119_109_865u64))
    );
}

#[test]
fn local_documents_are_readable() {
    let locals = dumped(5, DumpFlags { locals: true, ..DumpFlags::default() });
    let line = |id: &str| locals.lines().find_map(|line| line.strip_prefix(id)).expect("it is there").trim();
    assert_eq!(line("|0x0|"), r#"{"disk_size":5460,"high_seqno":64,"item_count":23}"#);
    assert_eq!(format!("Value: {}", line("_local/vbstate")), state_line(&text("5.local.txt")));
    assert!(line("_local/collections/open").starts_with("base64:"));
    let json = dumped(5, DumpFlags { locals: true, json: true, ..DumpFlags::default() });
    assert_eq!(json.lines().count(), 8);
    assert!(json.contains(r#"{"id":"_local/collections/manifest","value_base64":""#));
}

fn state_line(listing: &str) -> &str {
    let mut lines = listing.lines().skip_while(|line| *line != "Key: _local/vbstate");
    lines.nth(1).expect("its value")
}

#[test]
fn a_table_has_a_row_for_each_document() {
    let table = dumped(5, DumpFlags { by_seqno: true, ..DumpFlags::default() });
    assert_eq!(table.lines().count(), 44);
    let is_shown = |line: &&str| ["id", "_scope", "::2", "route-10"].iter().any(|end| line.ends_with(end));
    let rows: String = table.lines().filter(is_shown).map(|line| format!("|{line}\n")).collect();
    expect![[r#"
        |     seqno     rev                  cas     expiry      flags  datatype    content     bytes  state    id
        |         1       1  1795181078583246848          0  0x1000000  raw            0x83        52  live     (system-event-key:scope:0x8)_scope
        |         6       1  1795181122028503040          0  0x2000006  json           0x80       281  live     (collection:0x0:default)json::2
        |        50       5  1795181122101968896 1795181121  0x2000006  raw            0x03         0  deleted  (collection:0x9)route-10
        |        62       8  1795181126117490688          0        0x0  json           0x80        26  pending  (prepare:collection:0x0:default)pending::2
    "#]].assert_eq(&rows);
}

#[test]
fn values_come_inflated() {
    let lines = dumped(0, DumpFlags { values: true, json: true, ..DumpFlags::default() });
    let body = |id: &str| {
        let id = format!("\"id\":\"(collection:0x0:default){id}\"");
        let line = lines.lines().find(|line| line.contains(&id)).expect("it is there");
        serde_json::from_str::<Value>(line).expect("JSON")
    };
    expect![[r#"{"x": 1}"#]].assert_eq(body("ttl::1")["body"].as_str().expect("text"));
    assert_eq!(body("json::6")["body"], "");
    assert!(body("bin::3")["body_base64"].is_string() && body("bin::3")["body"].is_null());
    let table = dumped(0, DumpFlags { values: true, ..DumpFlags::default() });
    assert!(table.lines().count() > 46 + 1);
}

#[test]
fn keys_and_metadata_of_any_bytes_are_shown() {
    assert_eq!(record::key(b"\x02\x02\x02k"), "(prepare:collection:0x2)\\x02k");
    assert_eq!(record::key(b"\x02"), "(prepare:no collection)");
    assert_eq!(record::key(b""), "(no collection)");
    assert_eq!(record::key(b"\x01\x07x"), "(system-event-key:unknown)\\x07x");
    assert_eq!(record::key(b"\x80"), "(no collection)\\x80");
    let info = DocInfo {
        id: b"\0k",
        seqno: 9,
        rev_seqno: 2,
        deleted: true,
        content_meta: 3,
        body_bytes: 0,
        body_offset: 0,
        rev_meta: b"?",
    };
    expect![[
        r#"{"body":null,"content_meta":"0x03","deleted":"explicit","id":"(collection:0x0:default)k","physical_size":0,"rev":2,"rev_meta_base64":"Pw==","seq":9}"#
    ]]
    .assert_eq(&record::json(&info, None, None).to_string());
    let meta = RevMeta {
        cas: 5,
        datatype: Some(0),
        durability: Some(Durability::Abort { prepared_seqno: 8 }),
        ..RevMeta::default()
    };
    let (rev_meta, len) = meta.encode();
    let aborted = record::json(&DocInfo { rev_meta: &rev_meta[..len], ..info }, None, None);
    assert_eq!((&aborted["sync_write"], &aborted["prepared_seqno"]), (&json!("abort"), &json!(8)));
    assert!(record::row(&info).ends_with("deleted  (collection:0x0:default)k"));
}

/// A bucket as a killed node leaves it: some of it filed, some in the journal alone, and a prepare that nothing settled.
fn killed(is_log: bool) -> Env {
    let (env, _) = Env::sim(1);
    let files = match is_log {
        true => FilesConfig::Log(LogConfig::default()),
        false => FilesConfig::default(),
    };
    let config = JournaledConfig { files, file_after: Duration::ZERO, ..JournaledConfig::default() };
    let store = Journaled::open(env.clone(), Path::new(ORDERS), config).expect("the disk works");
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let save = |vb, version| {
        store.save(VbId(vb), SaveBatch { items: &[version], state: &state }).expect("no fault is planned");
    };
    save(3, version(0, "b", 1, br#"{"n":1}"#));
    save(7, version(0, "z", 1, b"else"));
    while store.background_step().expect("filed") == Background::Worked {}
    save(3, version(0, "a", 2, b"two"));
    let level = DurabilityLevel::Majority;
    save(3, tuned(2, b"\0p", 3, b"three", |meta| meta.sync_write = SyncWrite::Prepare(level)));
    env
}

fn dumped_folder(env: &Env, flags: DumpFlags) -> String {
    let flags = DumpFlags { path: ORDERS.into(), ..flags };
    let mut out = Vec::new();
    stored::dump(env, &flags, Path::new(ORDERS), &mut out).expect("a sound folder");
    String::from_utf8(out).expect("text")
}

#[test]
fn a_folder_is_dumped_with_what_its_journal_holds_whichever_store_it_is_of() {
    for is_log in [false, true] {
        let env = killed(is_log);
        let lines = |flags| -> Vec<Value> {
            let out = dumped_folder(&env, DumpFlags { json: true, values: true, ..flags });
            out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
        };
        let shown = |lines: &[Value]| -> Vec<String> {
            lines.iter().map(|line| format!("{} {} {}", line["vb"], line["id"], line["body"])).collect()
        };
        let by_key = lines(DumpFlags::default());
        let a = r#"3 "(collection:0x0:default)a" "two""#;
        let b = r#"3 "(collection:0x0:default)b" "{\"n\":1}""#;
        let p = r#"3 "(prepare:collection:0x0:default)p" "three""#;
        let z = r#"7 "(collection:0x0:default)z" "else""#;
        assert_eq!(shown(&by_key), [a, b, p, z]);
        assert_eq!(by_key[2]["sync_write"], "pending");
        let of_one = lines(DumpFlags { by_seqno: true, vbucket: Some(3), ..DumpFlags::default() });
        assert_eq!(shown(&of_one), [b, a, p]);
        let header = dumped_folder(&env, DumpFlags { header: true, ..DumpFlags::default() });
        assert_eq!(header.lines().count(), 3, "{header}");
        assert!(header.lines().nth(1).expect("a row").starts_with("    3  active            3"), "{header}");
        let flags = DumpFlags { vbucket: Some(4), ..DumpFlags::default() };
        let missing = stored::dump(&env, &flags, Path::new(ORDERS), &mut Vec::new());
        assert!(missing.expect_err("there is none").to_string().ends_with("holds no vBucket 4"));
    }
}

#[test]
fn a_data_directory_is_not_dumped_as_one_bucket() {
    let error = stored::dump(&killed(true), &DumpFlags::default(), Path::new("/data"), &mut Vec::new());
    let said = error.expect_err("several buckets").to_string();
    assert_eq!(said, "/data is a data directory: give one of its buckets, like /data/buckets/default");
}

#[test]
fn what_is_no_file_of_documents_is_refused() {
    let flags = DumpFlags { path: golden("README.md"), ..DumpFlags::default() };
    let error = dump(&Env::real(), &flags, &mut Vec::new()).expect_err("no file of documents");
    assert!(format!("{error:#}").ends_with("README.md holds no valid header"), "{error:#}");
    assert!(error.to_string().contains("takes a couchstore file"), "{error}");
}

#[test]
fn a_missing_key_stays_one() {
    let source = std::io::Error::other(KeyError::NotGiven("data".to_owned()));
    let path = std::sync::Arc::from(Path::new("data/0.couch.1"));
    let error = said_once(Failure::Io { operation: "read", path, offset: 0, source });
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    assert!(io.and_then(key_error).is_some(), "{error}");
}
