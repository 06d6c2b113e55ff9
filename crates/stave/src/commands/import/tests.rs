//! Files that the original wrote, sent to a node of this process.
#![allow(clippy::disallowed_methods, reason = "a test reads its fixtures")]

use std::fmt::Write as _;
use std::time::Duration;

use base::VbState;
use base64::Engine as _;
use kvstore::{
    Background, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, SaveBatch, VbStateDoc,
};
use node::{Config, Settings};
use protocol::extras::GetMetaExtras;
use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};
use server::Server;
use sha2::{Digest, Sha256};
use store_suite::{tuned, version};

use super::*;
use crate::client::{Client, Secret};
use crate::with_meta::Skipped;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-13")
}

/// A node on free ports, with a bucket that has another number of vBuckets than the files.
struct World {
    env: Env,
    server: Server,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let (env, folder) = (Env::real(), tempfile::tempdir().expect("a folder"));
        let text = "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"secret1\"\nvbuckets = 16";
        let settings = Settings::parse(text).expect("valid");
        let config = Config::new(settings, folder.path().into(), 1, || unreachable!("a password is given"));
        let server = server::serve(config.expect("valid"), env.clone()).expect("a node");
        World { env, server, _folder: folder }
    }

    fn target(&self) -> Target {
        Target {
            addr: self.server.kv_addr().to_string(),
            username: "Administrator".into(),
            password: Secret("secret1".into()),
            bucket: "default".into(),
            ..Target::default()
        }
    }

    fn client(&self) -> Client {
        let more = [Feature::Xattr, Feature::Snappy];
        Client::open_with(&self.env, &self.target(), &more).expect("a connection")
    }

    fn import(&self, conflict: Conflict) -> SentCounts {
        self.import_with(conflict, Unknown::Skip)
    }

    fn import_with(&self, conflict: Conflict, unknown: Unknown) -> SentCounts {
        self.import_files(conflict, unknown).counts
    }

    fn import_files(&self, conflict: Conflict, unknown: Unknown) -> Summary {
        let bucket = bucket_at(&self.env, &golden()).expect("files");
        import(&self.env, &bucket, self.target(), conflict, unknown).expect("imported")
    }
}

fn get_meta(client: &mut Client, key: &[u8]) -> Option<(u64, GetMetaExtras)> {
    let parts = RequestParts {
        opcode: opcode::GET_META,
        vbucket: base::vbucket_map::vbucket_of(key, client.vbuckets()),
        extras: &[2],
        key: &[&[0], key].concat(),
        ..RequestParts::default()
    };
    let answer = client.request("get meta", parts).expect("an answer");
    let number = |at: usize, len: usize| {
        answer.extras[at..at + len].iter().fold(0, |n: u64, byte| n << 8 | u64::from(*byte))
    };
    answer.is(Status::Success).then(|| {
        let extras = GetMetaExtras {
            deleted: number(0, 4) != 0,
            flags: number(4, 4) as u32,
            expiry: number(8, 4) as u32,
            rev_seqno: base::RevSeqno(number(12, 8)),
            datatype: number(20, 1) as u8,
        };
        (answer.cas.0, extras)
    })
}

/// Documents that expire may have done so by now: of those only the metadata is compared.
fn compare(client: &mut Client, expected: &Value) {
    let number = |name: &str| expected[name].as_u64().expect("a number");
    let key = expected["key"].as_str().expect("a key");
    let key = base64::engine::general_purpose::STANDARD.decode(key).expect("base64");
    let (cas, meta) = get_meta(client, &key).expect("metadata");
    assert_eq!(
        (cas, u64::from(meta.flags), meta.rev_seqno.0, u64::from(meta.expiry)),
        (number("cas"), number("flags"), number("rev_seqno"), number("expiry")),
        "{expected}"
    );
    let was_deleted = expected["deleted"] == json!(true);
    assert!(meta.deleted || !was_deleted, "{expected}");
    if number("get_status") == 0 && number("expiry") == 0 {
        assert_eq!(u64::from(meta.datatype), number("datatype"), "{expected}");
        let value = without_xattrs(client.get(&key).expect("an answer").expect("a document"));
        assert_eq!(value.len() as u64, number("value_len"), "{expected}");
        let mut sha = String::new();
        Sha256::digest(&value).iter().for_each(|byte| write!(sha, "{byte:02x}").expect("text"));
        assert_eq!(sha, expected["value_sha256"].as_str().expect("a hash"), "{expected}");
    }
}

fn without_xattrs(document: crate::client::Document) -> Vec<u8> {
    assert_eq!(document.datatype & 2, 0, "no value of the files is compressed for good");
    match document.datatype & 4 {
        0 => document.value,
        _ => {
            let len = u32::from_be_bytes(document.value[..4].try_into().expect("four bytes")) as usize;
            document.value[4 + len..].to_vec()
        }
    }
}

#[test]
fn everything_arrives_as_it_was() {
    let world = World::new();
    let Summary { files, counts: summary, .. } = world.import_files(Conflict::Resolve, Unknown::Skip);
    assert_eq!((files, summary.conflicts), (4, 0), "{summary:?}");
    assert_eq!(summary.skipped[&Skipped::Prepare], 3, "{summary:?}");
    assert!(summary.skipped[&Skipped::SystemEvent] > 0, "{summary:?}");
    let expected = std::fs::read_to_string(golden().join("expected.jsonl")).expect("the fixture");
    let expected = expected.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut client = world.client();
    let mut compared = 0;
    for expected in expected.filter(|line| line["collection"] == json!(0) && !line["deleted"].is_null()) {
        compare(&mut client, &expected);
        compared += 1;
    }
    assert!(compared > 100, "{compared}");

    // once more: everything is there
    let again = world.import(Conflict::Resolve);
    assert_eq!((again.documents, again.tombstones), (0, 0), "{again:?}");
    assert_eq!(again.conflicts, summary.documents + summary.tombstones);
    drop(client);
    world.server.stop().expect("stopped");
}

#[test]
fn collections_are_found_by_name_made_or_told() {
    let world = World::new();
    let mut client = world.client();
    // The bucket's first collection has a number that means another one in the files.
    let manifest = br#"{"uid": "2", "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}, {"name": "other", "uid": "8"}]}]}"#;
    let parts =
        RequestParts { opcode: opcode::SET_COLLECTIONS_MANIFEST, value: manifest, ..RequestParts::default() };
    assert!(client.request("manifest", parts).expect("an answer").is(Status::Success));
    let left = world.import(Conflict::Resolve);
    assert!(complete(&left, Unknown::Skip).is_ok());
    let said = complete(&left, Unknown::Fail).expect_err("documents were left out").to_string();
    let count: u64 = left.unknown.values().sum();
    assert!(count > 0 && left.skipped[&Skipped::UnknownCollection] == count, "{left:?}");
    for name in left.unknown.keys() {
        assert!(said.contains(name.as_str()) && name.contains('.'), "{said}");
    }
    assert!(said.contains("--create-collections") && said.contains("--skip-unknown"), "{said}");
    let made = world.import_with(Conflict::Resolve, Unknown::Create);
    assert!(made.unknown.is_empty() && complete(&made, Unknown::Create).is_ok(), "{made:?}");
    assert_eq!(made.documents + made.tombstones, count, "{made:?}");
    for name in left.unknown.keys() {
        client.collection_id(name).expect("it was made");
    }
    // Nothing went by its number.
    let other = client.collection_id("_default.other").expect("it is there");
    assert_eq!(other.0, 8);
    let stats = client.stats("collections _default.other").expect("figures");
    let items = stats.iter().find(|(name, _)| name.ends_with(":items")).map(|(_, items)| items.as_str());
    assert_eq!(items, Some("0"), "{stats:?}");
    drop(client);
    world.server.stop().expect("stopped");
}

#[test]
fn a_conflict_ends_as_was_asked() {
    let world = World::new();
    let mut client = world.client();
    // a document of the files that has one change there
    let key = b"json::2";
    for n in 0..3 {
        client.set(key, format!("{n}").as_bytes(), 0).expect("stored");
    }
    let skipped = world.import(Conflict::Skip);
    assert_eq!((skipped.conflicts, skipped.tombstones), (1, 0), "{skipped:?}");
    assert!(skipped.skipped[&Skipped::Tombstone] > 0, "{skipped:?}");
    assert_eq!(client.get(key).expect("an answer").expect("a document").value, b"2");
    assert!(world.import(Conflict::Resolve).tombstones > 0);
    assert_eq!(client.get(key).expect("an answer").expect("a document").value, b"2");
    let overwritten = world.import(Conflict::Overwrite);
    assert_eq!(overwritten.conflicts, 0, "{overwritten:?}");
    assert_eq!(client.get(key).expect("an answer").expect("a document").value.len(), 535);
    drop(client);
    world.server.stop().expect("stopped");
}

#[test]
fn what_is_no_bucket_is_refused() {
    let (env, _) = Env::sim(1);
    let open = |name: &str| {
        let path = Path::new("/b").join(name);
        env.disk.open(&path, base::env::OpenMode::Create).expect("a file");
    };
    env.disk.create_dir_all(Path::new("/b")).expect("a folder");
    open("0.couch.1");
    assert!(bucket_at(&env, Path::new("/b")).is_ok());
    let error = bucket_at(&env, Path::new("/b/0.couch.1")).err().expect("a file").to_string();
    assert_eq!(error, "/b/0.couch.1 is no bucket's folder: give one with files like 0.couch.1");
    assert!(matches!(bucket_at(&env, Path::new("/b")), Ok(Origin::Files(_))));
}

/// Files of which the original has encrypted all but one.
#[test]
fn encrypted_files_of_the_original_are_sent_with_their_keys() {
    let world = World::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-14");
    let open = || bucket_at(&world.env, &folder).expect("files");
    let sent = |bucket| import(&world.env, &bucket, world.target(), Conflict::Resolve, Unknown::Skip);
    let error = sent(open()).expect_err("no key was given").to_string();
    assert!(error.contains("--couchstore-key-file"), "{error}");
    let keys = CouchstoreKeyFlags::of_file(folder.join("keys.json")).read(&world.env).expect("keys");
    let summary = sent(open().with_keys(keys)).expect("imported");
    assert_eq!(summary.files, 5);
    let (_, meta) = get_meta(&mut world.client(), b"doc_0001").expect("it was sent");
    assert!(!meta.deleted);
}

/// A folder as a killed node leaves it.
fn write_bucket(env: &Env, dir: &str, is_log: bool) {
    let files = match is_log {
        true => FilesConfig::Log(LogConfig::default()),
        false => FilesConfig::default(),
    };
    let config = JournaledConfig { files, file_after: Duration::ZERO, ..JournaledConfig::default() };
    let store = Journaled::open(env.clone(), Path::new(dir), config).expect("the disk works");
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let save = |vb: u16, version| {
        store.save(VbId(vb), SaveBatch { items: &[version], state: &state }).expect("no fault is planned");
    };
    for n in 0..20u64 {
        save(n as u16 % 3, version(0, &format!("k{n}"), 1 + n / 3, format!("old {n}").as_bytes()));
    }
    while store.background_step().expect("filed") == Background::Worked {}
    for n in 0..20u64 {
        save(n as u16 % 3, version(0, &format!("k{n}"), 10 + n / 3, format!("new {n}").as_bytes()));
    }
    save(0, tuned(0, "k0", 20, b"", |meta| meta.kind = base::ItemKind::Deletion));
    let level = base::DurabilityLevel::Majority;
    save(0, tuned(2, b"\0p", 21, b"x", |meta| meta.sync_write = base::SyncWrite::Prepare(level)));
}

#[test]
fn a_killed_nodes_folder_is_sent_with_what_its_journal_holds() {
    for is_log in [false, true] {
        let world = World::new();
        let (env, _) = Env::sim(1);
        write_bucket(&env, "/b", is_log);
        let source = bucket_at(&env, Path::new("/b")).expect("a folder");
        let summary = import(&world.env, &source, world.target(), Conflict::Resolve, Unknown::Fail);
        let summary = summary.expect("imported");
        assert_eq!((summary.files, summary.what), (3, "vBuckets"), "{summary:?}");
        assert_eq!((summary.counts.documents, summary.counts.tombstones), (19, 1), "{summary:?}");
        assert_eq!(summary.counts.skipped[&Skipped::Prepare], 1, "{summary:?}");
        let mut client = world.client();
        assert!(client.get(b"k0").expect("an answer").is_none());
        for n in 1..20 {
            let found = client.get(format!("k{n}").as_bytes()).expect("an answer").expect("a document");
            assert_eq!(found.value, format!("new {n}").as_bytes());
        }
        drop(client);
        world.server.stop().expect("stopped");
    }
}

#[test]
fn a_vbucket_that_cannot_be_read_is_named_and_the_others_are_sent() {
    let world = World::new();
    let (env, _) = Env::sim(1);
    write_bucket(&env, "/b", false);
    let damaged = env.disk.open(Path::new("/b/1.couch.1"), base::env::OpenMode::ReadWrite).expect("a file");
    damaged.set_len(0).expect("cut");
    let source = bucket_at(&env, Path::new("/b")).expect("a folder");
    let summary = import(&world.env, &source, world.target(), Conflict::Resolve, Unknown::Fail);
    let summary = summary.expect("imported");
    assert_eq!((summary.files, summary.counts.documents), (2, 12), "{summary:?}");
    let said = readable(&summary.refused).expect_err("one is damaged").to_string();
    assert!(said.starts_with("1 vBuckets were not sent") && said.contains("the first is 1:"), "{said}");
    world.server.stop().expect("stopped");
}

#[test]
fn a_file_of_another_kind_is_named() {
    let world = World::new();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("0.couch.1"), "no couchstore file").expect("written");
    let bucket = bucket_at(&world.env, folder.path()).expect("a file");
    let imported = import(&world.env, &bucket, world.target(), Conflict::Resolve, Unknown::Fail);
    let error = imported.expect_err("no header");
    let said = format!("{error:#}");
    assert!(said.contains("0.couch.1") && said.contains("no valid header"), "{said}");
    world.server.stop().expect("stopped");
}
