//! A bucket is in the other store with all that it had, also after a power loss at each step.

use std::sync::Arc;

use base::VbId;
use base::encryption::key_of_file;
use base::env::Disk;
use base::env::sim::{Fault, SimDisk, SimHandles, Survival};
use engine::{Bucket, BucketConfig};
use kvstore::{FilesConfig, Journaled, JournaledConfig, LogConfig};

use super::*;
use crate::commands::check::tests::{checked, encrypted_worlds, flip, write_and_die, write_bucket};
use crate::commands::stored_bucket::StoredBucket;

const DATA: &str = "/data";
const FOLDER: &str = "/data/buckets/orders";
const MAGMA: StorageBackend = StorageBackend::LogStructured;
const COUCHSTORE: StorageBackend = StorageBackend::Couchstore;

fn env_of(disk: &SimDisk) -> Env {
    SimHandles::new(33).with_disk(disk.clone()).env()
}

fn brought(env: &Env, backend: StorageBackend) -> anyhow::Result<String> {
    bring(env, (Path::new(DATA), Path::new(FOLDER)), backend, true, &mut |_| ())
}

/// Each vBucket: highest seqno, documents, failover table.
type InStore = Vec<(u64, u64, Vec<(u64, u64)>)>;

/// Starts the bucket in a store, and stops it.
fn started(env: &Env, backend: StorageBackend) -> InStore {
    let files = match backend {
        StorageBackend::Couchstore => FilesConfig::default(),
        StorageBackend::LogStructured => FilesConfig::Log(LogConfig::default()),
        StorageBackend::RocksDb => FilesConfig::Rocks(kvstore::RocksConfig::default()),
    };
    let config = JournaledConfig { files, ..JournaledConfig::default() };
    let store = Journaled::open(env.clone(), Path::new(FOLDER), config).expect("it is in this store");
    let mut config = BucketConfig::new("orders", FOLDER.into());
    config.vbuckets = 4;
    let bucket = Bucket::open(config, env.clone(), Arc::new(store)).expect("sound");
    let of = |vb: &vbucket::VBucket| {
        let table = vb.failover().entries().iter().map(|entry| (entry.uuid.0, entry.seqno.0)).collect();
        (vb.high_seqno().0, vb.documents(), table)
    };
    let started = (0..4).map(|vb| bucket.with_vbucket(VbId(vb), of).expect("it is there")).collect();
    bucket.close().expect("the disk works");
    started
}

/// A record: vBucket, seqno, CAS, key and value.
type StoredRecord = (VbId, u64, u64, Vec<u8>, Vec<u8>);

/// All that a folder holds.
fn contents(env: &Env) -> Vec<StoredRecord> {
    let bucket = StoredBucket::open(env, Path::new(FOLDER)).expect("it can be read");
    assert!(bucket.refused.is_empty(), "{:?}", bucket.refused);
    let mut all = Vec::new();
    for (vb, _) in &bucket.vbuckets {
        let snapshot = bucket.snapshot(*vb).expect("it is there");
        let scanned = snapshot.scan_all(base::Seqno(0), kvstore::Values::Read, &mut |version| {
            let meta = version.meta();
            let (key, value) = (version.stored_key().to_vec(), version.value().to_vec());
            all.push((*vb, meta.by_seqno.0, meta.cas.0, key, value));
            std::ops::ControlFlow::Continue(())
        });
        scanned.expect("it can be read");
    }
    all
}

#[test]
fn a_bucket_goes_to_the_other_store_and_back() {
    let (env, _) = Env::sim(31);
    goes_to_the_other_store_and_back(&|| (env.clone(), env.clone()));
}

#[test]
fn an_encrypted_bucket_goes_to_the_other_store_and_back() {
    let (env, handles) = Env::sim(31);
    goes_to_the_other_store_and_back(&|| encrypted_worlds(&env, Path::new(DATA), Path::new(FOLDER)));
    let is_of_bucket = |path: &Path| path.starts_with(FOLDER) && !path.ends_with("lock");
    for (path, bytes) in handles.disk.contents().into_iter().filter(|(path, _)| is_of_bucket(path)) {
        let is_clear = bytes.windows(7).any(|window| window == b"\"round\"");
        assert!(!is_clear, "{}", path.display());
    }
}

#[test]
fn what_a_node_notes_of_an_encrypted_bucket_stays_under_the_nodes_keys() {
    let (env, _) = Env::sim(31);
    let (of_bucket, world) = encrypted_worlds(&env, Path::new(DATA), Path::new(FOLDER));
    write_bucket(&of_bucket, Path::new(FOLDER));
    let mut list = bucket_list::BucketList::read(Path::new(DATA), &world).expect("there is none");
    list.put(&node::config::BucketSpec::parse("orders").expect("a name"), &world).expect("the disk works");
    brought(&world, MAGMA).expect("it can be read");
    let key_of = |path: &str| key_of_file(&*env.disk, Path::new(path)).expect("it is there");
    let of_node = key_of("/data/buckets.json");
    assert!(of_node.is_some() && key_of("/data/buckets/orders/bucket.json") == of_node, "a start reads it");
}

/// The worlds are those of a node and of a command, as they are at the moment.
fn goes_to_the_other_store_and_back(worlds: &dyn Fn() -> (Env, Env)) {
    let (of_node, env) = worlds();
    write_bucket(&of_node, Path::new(FOLDER));
    let (before, all) = (started(&of_node, COUCHSTORE), contents(&env));
    assert!(all.len() >= 180, "{} records", all.len());
    for backend in [MAGMA, COUCHSTORE] {
        let said = brought(&env, backend).expect("it can be read");
        let (of_node, env) = worlds();
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!((&said["vbuckets"], &said["items"]), (&json!(4), &json!(all.len())), "{said}");
        assert_eq!(backend_of(&env, Path::new(FOLDER)).ok(), Some(backend));
        assert!(contents(&env) == all, "what is there is what was there");
        assert_eq!(started(&of_node, backend), before, "histories go on");
        assert!(contents(&env) == all, "a start changes nothing");
        let again = brought(&env, backend).expect_err("it is there");
        assert!(again.to_string().contains("in that store already"), "{again}");
        let left = env.disk.read_dir(Path::new("/data/replacing/orders")).unwrap_or_default();
        assert_eq!(left, Vec::<String>::new());
    }
}

#[test]
fn what_a_journal_holds_is_brought_along() {
    let (env, _) = Env::sim(11);
    write_and_die(&env, Path::new(FOLDER), true);
    let all = contents(&env);
    brought(&env, MAGMA).expect("it can be read");
    assert!(contents(&env) == all, "what is there is what was there");
    let names = env.disk.read_dir(Path::new(FOLDER)).expect("a list");
    assert!(!names.iter().any(|name| name.starts_with("journal.")), "{names:?}");
}

#[test]
fn a_vbucket_that_cannot_be_read_keeps_the_bucket_where_it_is() {
    let (env, handles) = Env::sim(31);
    write_bucket(&env, Path::new(FOLDER));
    let file = Path::new(FOLDER).join("2.couch.1");
    let header = couchstore::CouchFile::open_read(&*env.disk, &file).expect("sound").info().header_offset;
    flip(&*env.disk, &file, header + 20);
    let before = handles.disk.contents();
    let said = brought(&env, MAGMA).expect_err("it is damaged").to_string();
    assert!(said.starts_with("vBucket 2 cannot be read: ") && said.contains("--repair"), "{said}");
    assert!(before == handles.disk.contents(), "nothing was changed");
}

#[test]
fn a_migration_that_is_cut_off_anywhere_leaves_one_of_both_whole() {
    let (env, handles) = Env::sim(31);
    write_bucket(&env, Path::new(FOLDER));
    let all = contents(&env);
    for (path, _) in handles.disk.contents() {
        let file = handles.disk.open(&path, base::env::OpenMode::Read).expect("it is there");
        file.sync_data().expect("the disk works");
    }
    env.disk.sync_dir(Path::new(FOLDER)).expect("the disk works");
    let (mut steps, mut ended) = (0, 0);
    loop {
        let disk = handles.disk.image(Survival::Everything);
        disk.plan(Fault::power_off_at(steps + 1));
        let done = brought(&env_of(&disk), MAGMA);
        if !disk.is_off() {
            done.expect("no fault was met");
            break;
        }
        let disk = disk.crash(steps);
        let env = env_of(&disk);
        let is_in_place = env.disk.read_dir(Path::new(FOLDER)).is_ok();
        if is_in_place {
            assert!(contents(&env) == all, "step {steps}: what is in place is whole");
        }
        match brought(&env, MAGMA) {
            Ok(said) => ended += u64::from(said.contains("\"items\":null")),
            // The last step was cut off.
            Err(error) => assert!(error.to_string().contains("already"), "step {steps}: {error}"),
        }
        assert_eq!(backend_of(&env, Path::new(FOLDER)).ok(), Some(MAGMA), "step {steps}");
        assert!(contents(&env) == all, "step {steps}: what is there is what was there");
        assert_eq!(checked(&env, FOLDER, false).0, Outcome::Done, "step {steps}");
        steps += 1;
    }
    assert!(steps > 30 && ended > 3, "{steps} steps were cut off, {ended} only ended");
}

#[test]
fn a_bucket_that_is_not_there_is_told_with_both_ways() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: MigrateFlags,
    }
    let server = crate::test_server::TestServer::start();
    let addr = server.http_addr();
    let words = ["stave", "nob", "--backend", "magma", "--addr", &addr, "--password", "password"];
    let line = <Line as clap::Parser>::parse_from(words);
    let why = run(&Env::real(), &line.flags).expect_err("there is none").to_string();
    assert!(
        why.starts_with("there is no bucket nob, and no folder of this name; `stave bucket list`"),
        "{why}"
    );
    assert!(why.contains("data/buckets/nob"), "{why}");
}
