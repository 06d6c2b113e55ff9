//! RocksDB behind the store trait: what it refuses, kills, damage, and moves of a stopped bucket.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::Env;
use base::{DocKey, Seqno, VbId, Version};
use kvstore::migrate::{backend_of, migrate};
use kvstore::{
    Couch, CouchConfig, Failure, FilesConfig, Journaled, JournaledConfig, KvStore, RocksConfig, SaveBatch,
    StorageBackend, Values, VbStateDoc, check_rocks, open_rocks, open_to_read,
};
use store_suite as suite;

const VB: VbId = VbId(3);
/// Names the folder in which a child process writes until it is killed.
const CHILD: &str = "STAVE_TEST_ROCKS_CHILD";

fn config() -> JournaledConfig {
    let files = FilesConfig::Rocks(RocksConfig::default());
    JournaledConfig { files, journal_bytes: 128 << 10, ..JournaledConfig::default() }
}

fn save(store: &dyn KvStore, vb: VbId, items: &[Version]) {
    store.save(vb, SaveBatch { items, state: &VbStateDoc::default() }).expect("a save");
}

fn get(store: &dyn KvStore, vb: VbId, key: &str) -> Result<Option<Version>, Failure> {
    store.get(vb, DocKey::new(key.as_bytes()))
}

fn refused(outcome: Result<Journaled, Failure>) -> String {
    let refused = outcome.err().expect("it is refused");
    assert!(!refused.is_damage(), "a member of a cluster would make the bucket again: {refused}");
    refused.to_string()
}

/// What does not go through our disk cannot be encrypted, nor simulated.
#[test]
fn a_disk_that_is_more_than_the_file_system_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let env = EncryptedDisk::env(&Env::real(), DataKeys::ephemeral(&Env::real()));
    assert!(refused(Journaled::open(env, dir.path(), config())).contains("encrypts"));
    let (env, _) = Env::sim(1);
    assert!(refused(Journaled::open(env, Path::new("/data/b"), config())).contains("simulated"));
    assert!(
        refused(Journaled::without_journal(Env::real(), dir.path(), config()).map(|_| unreachable!()))
            .contains("switched off")
    );
}

#[test]
fn a_folder_of_another_store_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let couch = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("it opens");
    save(&couch, VB, &[suite::version(0, "k", 1, b"v")]);
    drop(couch);
    assert!(
        refused(Journaled::open(Env::real(), dir.path(), config()))
            .contains("type is couchstore, not rocksdb")
    );
    let other = tempfile::tempdir().expect("a folder");
    drop(open_rocks(Env::real(), other.path()).expect("it opens"));
    let couch = Couch::open(Env::real(), other.path(), CouchConfig::default()).err().expect("it is refused");
    assert!(!couch.is_damage() && couch.to_string().contains("type is rocksdb, not couchstore"), "{couch}");
}

/// A database that was copied from another bucket's folder is not taken for the bucket's own.
#[test]
fn a_database_of_another_bucket_is_refused() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    for dir in [&one, &two] {
        let store = Journaled::open(Env::real(), dir.path(), config()).expect("it opens");
        save(&store, VB, &[suite::version(0, "k", 1, b"v")]);
        store.close().expect("it closes");
    }
    fs::remove_dir_all(two.path().join("rocksdb")).expect("removed");
    fs::rename(one.path().join("rocksdb"), two.path().join("rocksdb")).expect("renamed");
    let refused = Journaled::open(Env::real(), two.path(), config()).err().expect("it is refused");
    assert!(refused.to_string().contains("of another bucket"), "{refused}");
}

/// An open database is not opened again beside itself, which would destroy it.
#[test]
fn a_database_is_open_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open_rocks(Env::real(), dir.path()).expect("it opens");
    save(&*store, VB, &[suite::version(0, "k", 1, b"v")]);
    let snapshot = store.snapshot(VB).expect("a snapshot").expect("it is there");
    drop(store);
    let second = open_rocks(Env::real(), dir.path()).err().expect("something reads it still");
    assert!(!second.is_damage() && second.to_string().contains("already"), "{second}");
    assert!(snapshot.get(DocKey::new(b"k")).expect("it is read").is_some());
    drop(snapshot);
    assert!(get(&*open_rocks(Env::real(), dir.path()).expect("it opens"), VB, "k").expect("read").is_some());
}

/// Writes until it is killed, and says what is durable. Only as a child of the next test.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let store = Journaled::open(Env::real(), Path::new(&dir), config()).expect("it opens");
    let mut out = std::io::stdout().lock();
    let states = store.states().expect("states");
    let high =
        |vb: VbId| states.iter().find(|(id, _)| *id == vb).map(|(_, one)| one.as_ref().expect("sound"));
    let mut seqnos: Vec<u64> = (0..4).map(|vb| high(VbId(vb)).map_or(0, |one| one.high_seqno.0)).collect();
    for round in 0.. {
        let vb = VbId(round % 4);
        let seqno = &mut seqnos[usize::from(vb.0)];
        let mut items: Vec<Version> = (0..8)
            .map(|_| {
                *seqno += 1;
                suite::version(0, &format!("k{:02}", *seqno * 7 % 50), *seqno, &[*seqno as u8; 300])
            })
            .collect();
        items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
        items.dedup_by(|a, b| a.stored_key() == b.stored_key());
        save(&store, vb, &items);
        writeln!(out, "\ndurable {} {}", vb.0, *seqno).expect("it is heard");
        out.flush().expect("it is heard");
        // Files, and merges tables, between saves.
        if round % 8 == 0 {
            store.counts(vb).expect("counts");
        }
        if round % 64 == 0 {
            let request = kvstore::Compaction::default();
            store.compact(vb, &request).expect("a compaction");
        }
    }
}

/// The model of [`child`]: the newest seqno of each key, once so many were saved.
fn newest(through: u64) -> Vec<(String, u64)> {
    let mut newest = std::collections::BTreeMap::new();
    newest.extend((1..=through).map(|seqno| (format!("k{:02}", seqno * 7 % 50), seqno)));
    newest.into_iter().collect()
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut durable = [0u64; 4];
    for life in 1..=5 {
        let mut child = Command::new(std::env::current_exe().expect("the test"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut heard = 0;
        for line in said.by_ref() {
            let line = line.expect("it speaks");
            let mut words = line.strip_prefix("durable ").into_iter().flat_map(|rest| rest.split(' '));
            let (Some(vb), Some(seqno)) = (words.next(), words.next()) else { continue };
            durable[vb.parse::<usize>().expect("a number")] = seqno.parse().expect("a number");
            heard += 1;
            if heard == life * 60 {
                break;
            }
        }
        assert_eq!(heard, life * 60, "the child ended early");
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        // What it said before it died was durable, too.
        for line in said {
            let line = line.expect("it spoke");
            let mut words = line.strip_prefix("durable ").into_iter().flat_map(|rest| rest.split(' '));
            if let (Some(vb), Some(seqno)) = (words.next(), words.next()) {
                durable[vb.parse::<usize>().expect("a number")] = seqno.parse().expect("a number");
            }
        }
        let store = Journaled::open(Env::real(), dir.path(), config()).expect("it opens after a kill");
        for (vb, durable) in (0..).map(VbId).zip(durable) {
            let high = store.stored_vbucket(vb).expect("it is sound").map_or(0, |one| one.high_seqno.0);
            assert!(high >= durable, "vBucket {vb} has {high}, and {durable} was durable");
            for (key, seqno) in newest(high) {
                let found = get(&store, vb, &key).expect("it is read").expect("it is there");
                assert_eq!((found.meta().by_seqno, found.value()), (Seqno(seqno), &[seqno as u8; 300][..]));
            }
            let mut scanned = Vec::new();
            store
                .scan(vb, Seqno(0), Values::Leave, &mut |version| {
                    scanned.push(version.meta().by_seqno.0);
                    ControlFlow::Continue(())
                })
                .expect("a scan");
            let mut expected: Vec<u64> = newest(high).into_iter().map(|(_, seqno)| seqno).collect();
            expected.sort_unstable();
            assert_eq!(scanned, expected);
            assert_eq!(store.counts(vb).expect("counts").documents, expected.len() as u64);
        }
    }
    let report = check_rocks(&Env::real(), dir.path(), &mut |_| {});
    // The store was dropped, and its journal says what counts.
    assert!(report.as_ref().is_ok_and(|report| report.faults.is_empty()), "{report:?}");
}

fn tables(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir.join("rocksdb")).expect("a list").map(|entry| entry.expect("an entry").path());
    all.filter(|path| path.extension().is_some_and(|kind| kind == "sst")).collect()
}

fn at_of(bytes: &[u8], marker: &[u8]) -> Option<usize> {
    bytes.windows(marker.len()).position(|window| window == marker)
}

/// A damaged table is a failure of the vBuckets that it holds, named with the table; others are served.
#[test]
fn a_damaged_table_is_a_failure_of_its_vbuckets() {
    // Of bytes that no compression changes.
    let marker: Vec<u8> = (0u32..64).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let dir = tempfile::tempdir().expect("a folder");
    let store = open_rocks(Env::real(), dir.path()).expect("it opens");
    save(&*store, VbId(1), &[suite::version(0, "key", 1, &marker)]);
    save(&*store, VbId(2), &[suite::version(0, "key", 1, b"sound")]);
    store.close().expect("it closes");
    drop(store);
    let mut damaged = None;
    for path in tables(dir.path()) {
        let mut bytes = fs::read(&path).expect("a table");
        if let Some(at) = at_of(&bytes, &marker) {
            bytes[at + 7] ^= 1;
            fs::write(&path, bytes).expect("damaged");
            damaged = Some(path);
        }
    }
    let damaged = damaged.expect("a table has the value");
    let name = damaged.file_name().expect("a name").to_string_lossy().into_owned();
    let store = open_rocks(Env::real(), dir.path()).expect("it opens all the same");
    let failure = get(&*store, VbId(1), "key").expect_err("it is damaged");
    assert!(failure.is_damage() && failure.to_string().contains(&name), "{failure}");
    let seen = store.scan(VbId(1), Seqno(0), Values::Read, &mut |_| ControlFlow::Continue(()));
    assert!(seen.is_err_and(|failure| failure.is_damage()));
    let sound = get(&*store, VbId(2), "key").expect("another vBucket is served").expect("it is there");
    assert_eq!(sound.value(), b"sound");
    // RocksDB may have stopped writing, if it met the damage in a merge: that is no damage of the other one.
    let items = [suite::version(0, "key", 2, b"new")];
    let saved = store.save(VbId(2), SaveBatch { items: &items, state: &VbStateDoc::default() });
    assert!(saved.is_ok() || saved.is_err_and(|failure| !failure.is_damage()));
    drop(store);
    let report = check_rocks(&Env::real(), dir.path(), &mut |_| {}).expect("it is read to the end");
    assert!(report.faults.iter().any(|(_, _, what)| what.contains(&name)), "{:?}", report.faults);
}

/// What is put aside is all of the database, in links, and the vBucket is forgotten.
#[test]
fn what_is_put_aside_can_be_read() {
    let [dir, aside] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let store = Journaled::open(Env::real(), dir.path(), config()).expect("it opens");
    for vb in [VbId(1), VbId(2)] {
        save(&store, vb, &[suite::version(0, "key", 1, b"v")]);
        store.counts(vb).expect("it is filed");
    }
    store.set_aside(VbId(1), aside.path()).expect("it is put aside");
    assert!(get(&store, VbId(1), "key").expect("it is read").is_none());
    assert!(get(&store, VbId(2), "key").expect("it is read").is_some());
    fs::rename(aside.path().join("rocksdb.1"), aside.path().join("rocksdb")).expect("renamed");
    let kept = open_rocks(Env::real(), aside.path()).expect("it opens");
    assert!(get(&*kept, VbId(1), "key").expect("it is read").is_some());
}

/// There and back while no node runs: everything is compared on the way.
#[test]
fn a_stopped_bucket_is_moved_there_and_back() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().join("b");
    let env = Env::real();
    let couch = Journaled::open(env.clone(), &dir, JournaledConfig::default()).expect("it opens");
    for vb in 0..8 {
        let items: Vec<Version> = (1..=50)
            .map(|seqno| suite::version(0, &format!("k{seqno:02}"), seqno, &[vb as u8; 500]))
            .collect();
        save(&couch, VbId(vb), &items);
    }
    couch.close().expect("it closes");
    drop(couch);
    for to in [
        StorageBackend::RocksDb,
        StorageBackend::LogStructured,
        StorageBackend::RocksDb,
        StorageBackend::Couchstore,
    ] {
        let moved = migrate(&env, &dir, to, &mut |_| {}).expect("it is moved");
        assert_eq!((moved.vbuckets, moved.items), (8, 400));
        assert_eq!(backend_of(&env, &dir).expect("a list"), to);
        kvstore::replace::Replacement::of(&env, &dir).remove_old().expect("it is removed");
        let read = open_to_read(&env, &dir).expect("it is read");
        let found = get(&read, VbId(5), "k07").expect("it is read").expect("it is there");
        assert_eq!((found.meta().by_seqno, found.value()), (Seqno(7), &[5; 500][..]));
    }
}
