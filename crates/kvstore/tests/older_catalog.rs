//! A catalog of a log-structured store that is older than what was stored since is refused, with all that is there; once
//! the newer one is back, everything is served.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::sim::{Call, Effect, Fault, On, SimHandles};
use base::env::{Disk, Env, OpenMode};
use base::{DocKey, VbId, VbState};
use kvstore::{
    Background, Compaction, Failure, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, SaveBatch,
    VbStateDoc, check_log,
};
use store_suite::version;

const DIR: &str = "/data";
const COPIES: [&str; 2] = ["catalog", "catalog.copy"];
const VBUCKETS: u16 = 8;

type Contents = BTreeMap<PathBuf, Vec<u8>>;

fn open(env: &Env) -> Result<Journaled, Failure> {
    let store = logstore::Config { shards: 2, ..logstore::Config::default() };
    let files = FilesConfig::Log(LogConfig { store, ..LogConfig::default() });
    let config = JournaledConfig { files, journal_bytes: 256 << 10, ..JournaledConfig::default() };
    Journaled::open(env.clone(), DIR.as_ref(), config)
}

fn save(store: &Journaled, vb: VbId, seqno: u64) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let items = [version(0, "k", seqno, format!("value {seqno}").as_bytes())];
    store.save(vb, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
}

fn save_all(store: &Journaled, seqno: u64) {
    (0..VBUCKETS).for_each(|vb| save(store, VbId(vb), seqno));
}

fn contents(handles: &SimHandles) -> Contents {
    handles.disk.contents().into_iter().collect()
}

fn catalogs(contents: &Contents) -> Contents {
    let is_copy = |path: &&PathBuf| COPIES.iter().any(|name| **path == Path::new(DIR).join(name));
    contents.keys().filter(is_copy).map(|path| (path.clone(), contents[path].clone())).collect()
}

fn put(disk: &dyn Disk, files: &Contents) {
    for (path, bytes) in files {
        let file = disk.open(path, OpenMode::Create).expect("no fault is planned");
        let written = file.set_len(0).and_then(|()| file.write_at(bytes, 0)).and_then(|()| file.sync_data());
        written.expect("no fault is planned");
    }
}

fn checked(env: &Env) -> String {
    let report = check_log(env, DIR.as_ref(), &mut |_| {}).expect("the disk works");
    report.faults.into_iter().map(|(.., what)| what).collect::<Vec<_>>().join("; ")
}

/// All vBuckets have this value.
fn expect_value(store: &Journaled, seqno: u64) {
    for vb in (0..VBUCKETS).map(VbId) {
        let found = store.get(vb, DocKey::new(b"k")).expect("it is readable").expect("it is there");
        assert_eq!(found.value(), format!("value {seqno}").as_bytes(), "{vb}");
    }
}

/// A folder with an older catalog is refused however often, nothing in it changes, and a check says what is wrong.
fn expect_refused(env: &Env, handles: &SimHandles, words: &str) {
    let before = contents(handles);
    for _ in 0..8 {
        let failure = open(env).err().expect("the catalog is older").to_string();
        assert!(failure.contains(words) && failure.contains("put the newer"), "{failure}");
    }
    assert_eq!(contents(handles), before, "nothing is removed or changed");
    assert!(!checked(env).is_empty());
}

/// The folder as a clean stop left it after the first value, and after a clean stop or a crash with the second one.
fn two_ages(stops: bool) -> (Env, SimHandles, Contents) {
    let (env, handles) = Env::sim(1);
    let store = open(&env).expect("no fault is planned");
    save_all(&store, 1);
    store.close().expect("no fault is planned");
    drop(store);
    let older = catalogs(&contents(&handles));
    let store = open(&env).expect("no fault is planned");
    save_all(&store, 2);
    if stops {
        store.close().expect("no fault is planned");
    } else {
        handles.clock.advance(std::time::Duration::from_secs(3600));
        while store.background_step().expect("no fault is planned") == Background::Worked {}
    }
    drop(store);
    (env, handles, older)
}

#[test]
fn an_older_catalog_after_a_clean_stop_is_refused_and_nothing_goes_back() {
    let (env, handles, older) = two_ages(true);
    assert_eq!(checked(&env), "");
    let newer = catalogs(&contents(&handles));
    put(&*env.disk, &older);
    expect_refused(&env, &handles, "documents were written when it was");
    assert!(checked(&env).contains("documents were written when it was"), "{}", checked(&env));
    put(&*env.disk, &newer);
    expect_value(&open(&env).expect("the catalog is the newer one"), 2);
    assert_eq!(checked(&env), "");
}

#[test]
fn an_older_catalog_after_a_crash_is_refused_and_nothing_goes_back() {
    let (env, handles, older) = two_ages(false);
    let newer = catalogs(&contents(&handles));
    put(&*env.disk, &older);
    expect_refused(&env, &handles, "documents were written when it was");
    put(&*env.disk, &newer);
    expect_value(&open(&env).expect("the catalog is the newer one"), 2);
}

#[test]
fn without_any_catalog_documents_that_were_written_with_one_are_refused() {
    let (env, handles, _) = two_ages(true);
    let newer = catalogs(&contents(&handles));
    newer.keys().for_each(|path| env.disk.remove_file(path).expect("it is there"));
    expect_refused(&env, &handles, "documents were written when it was");
    put(&*env.disk, &newer);
    expect_value(&open(&env).expect("the catalog is back"), 2);
}

/// What an earlier version wrote notes no catalog: then the commits that are listed tell.
#[test]
fn a_list_that_lacks_commits_is_refused_after_a_clean_stop() {
    let (env, handles, older) = two_ages(true);
    let newer = catalogs(&contents(&handles));
    let numbered: Contents =
        older.iter().map(|(path, bytes)| (path.clone(), with_sequence(bytes, 99))).collect();
    put(&*env.disk, &numbered);
    expect_refused(&env, &handles, "as the last one of vBucket 0");
    let empty = numbered.iter().map(|(path, bytes)| (path.clone(), without_vbuckets(bytes))).collect();
    put(&*env.disk, &empty);
    expect_refused(&env, &handles, "it does not list vBucket 0");
    put(&*env.disk, &newer);
    expect_value(&open(&env).expect("the catalog is the newer one"), 2);
}

/// A copy under a key that the folder does not have costs no more than a damaged one; if that is so of both, nothing is served
/// and nothing takes their place.
#[test]
fn a_copy_under_an_unknown_key_is_written_again_from_the_other_one() {
    let (plain, handles) = Env::sim(1);
    let env = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
    let elsewhere = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
    let store = open(&env).expect("no fault is planned");
    save_all(&store, 1);
    store.close().expect("no fault is planned");
    drop(store);
    let spoil = |name: &str| {
        let path = Path::new(DIR).join(name);
        plain.disk.remove_file(&path).expect("it is there");
        put(&*elsewhere.disk, &BTreeMap::from([(path, b"of another time".to_vec())]));
    };
    for name in COPIES {
        spoil(name);
        let told = checked(&env);
        assert!(told.contains("one of its two copies") && told.contains("the key"), "{name}: {told}");
        let store = open(&env).expect("the other copy is whole");
        expect_value(&store, 1);
        store.close().expect("no fault is planned");
        drop(store);
        assert_eq!(checked(&env), "", "{name}");
    }
    COPIES.into_iter().for_each(spoil);
    let before = contents(&handles);
    let failure = open(&env).err().expect("neither can be read").to_string();
    assert!(failure.contains("encryption-keys"), "{failure}");
    assert_eq!(contents(&handles), before, "nothing is removed or changed");
}

fn sealed(text: &str) -> Vec<u8> {
    format!("{text}crc32c {:08x}\n", crc32c::crc32c(text.as_bytes())).into_bytes()
}

fn lines_of(bytes: &[u8], change: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).expect("it is text");
    let lines = text.lines().filter(|line| !line.starts_with("crc32c ")).filter_map(change);
    sealed(&lines.map(|line| line + "\n").collect::<String>())
}

fn with_sequence(bytes: &[u8], sequence: u64) -> Vec<u8> {
    lines_of(bytes, |line| {
        let is_sequence = line.starts_with("sequence ");
        Some(if is_sequence { format!("sequence {sequence}") } else { line.to_owned() })
    })
}

fn without_vbuckets(bytes: &[u8]) -> Vec<u8> {
    lines_of(bytes, |line| (!line.starts_with("vbucket ")).then(|| line.to_owned()))
}

/// A compaction after a clean stop writes before the journal tells of it: a crash in between is no damage.
#[test]
fn a_compaction_that_did_not_get_on_record_is_no_damage() {
    let (env, handles, _) = two_ages(true);
    let before = contents(&handles);
    let store = open(&env).expect("no fault is planned");
    // The catalog cannot name a journal.
    handles.disk.plan(Fault::once(On::Kind(Call::Rename), 1, Effect::IO_ERROR));
    store.compact(VbId(0), &Compaction::default()).expect_err("it is not on record");
    assert!(handles.disk.was_struck());
    drop(store);
    handles.disk.heal();
    let after = contents(&handles);
    assert_eq!(catalogs(&after), catalogs(&before));
    let manifest = Path::new(DIR).join("0.manifest");
    assert_ne!(after[&manifest], before[&manifest]);
    expect_value(&open(&env).expect("it is sound"), 2);
}
