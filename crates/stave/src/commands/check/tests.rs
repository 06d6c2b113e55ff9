//! Directories that an engine wrote are clean; damage is told with file and offset; a running node is respected.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::encryption::{EncryptedDisk, KeyRing, WrappingKeys};
use base::env::{Disk, OpenMode};
use base::{Cas, Datatype, DocKey, VbId};
use engine::{Bucket, BucketConfig, StoreMode, StoreRequest};
use expect_test::expect;
use kvstore::{Background, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig};

use super::*;
use crate::commands::encryption_flags::{EncryptionFlags, world_with};
use crate::units;

/// A bucket with documents and tombstones in 4 vBuckets, written by an engine and closed.
pub(in crate::commands) fn write_bucket(env: &Env, dir: &Path) {
    let store =
        kvstore::Couch::open(env.clone(), dir, kvstore::CouchConfig::default()).expect("the disk works");
    write_into(env, dir, Arc::new(store), &|| {}).close().expect("closed");
}

/// The same with a journal, and nobody closes it. The last round of changes is in the journal only.
pub(in crate::commands) fn write_and_die(env: &Env, dir: &Path, files_early: bool) {
    let config = JournaledConfig { file_after: Duration::ZERO, ..JournaledConfig::default() };
    let store = Arc::new(Journaled::open(env.clone(), dir, config).expect("the disk works"));
    let file = || while files_early && store.background_step().expect("filed") == Background::Worked {};
    drop(write_into(env, dir, store.clone(), &file));
}

/// Calls `between` before each round of changes.
fn write_into(env: &Env, dir: &Path, store: Arc<dyn KvStore>, between: &dyn Fn()) -> Bucket {
    let mut config = BucketConfig::new("orders", dir.into());
    config.vbuckets = 4;
    let bucket = Bucket::open(config, env.clone(), store).expect("the disk works");
    for round in 0..3u32 {
        between();
        for i in 0..200u32 {
            let (vb, key) = (VbId(i as u16 % 4), format!("key-{i}"));
            let key = DocKey::new(key.as_bytes());
            let now = bucket.now();
            let body = format!("{{\"round\":{round},\"i\":{i}}}");
            let request = StoreRequest {
                key,
                body: body.as_bytes(),
                datatype: Datatype::JSON,
                flags: 7,
                expiry: 0,
                mode: StoreMode::Set,
                cas: Cas::ANY,
                preserve_expiry: false,
            };
            bucket.documents().store(vb, &request, now).expect("stored");
            if i % 10 == 9 {
                bucket.documents().delete(vb, key, Cas::ANY, now).expect("deleted");
            }
        }
        while bucket.flushing().flush_step() == engine::Progress::Worked {}
    }
    bucket
}

/// The worlds of a node that encrypts, for one of its buckets, and of a command that is given the node's key.
pub(in crate::commands) fn encrypted_worlds(env: &Env, data: &Path, bucket: &Path) -> (Env, Env) {
    let wrapping = WrappingKeys::parse(&"1".repeat(64), "the test").expect("a key");
    env.disk.create_dir_all_synced(bucket).expect("the disk works");
    let open = |folder| {
        let ring = KeyRing::open(env, folder, "it", Some(&wrapping), true, |_| ()).expect("it opens");
        EncryptedDisk::env(env, ring.expect("it is wanted").keys().clone())
    };
    open(data);
    (open(bucket), world_with(env, Some(wrapping.clone())))
}

pub(in crate::commands) fn checked(env: &Env, path: &str, json: bool) -> (Outcome, String) {
    let place = Place::find(&*env.disk, Path::new(path)).expect("there is something to check");
    let mut out = Vec::new();
    let progress = Progress::new(env.clock.clone(), place.file_count(), Box::new(io::sink()), false);
    let files = Files { place: &place, keys: OriginalKeys::default() };
    let outcome = check(env, &files, json, progress, &mut out).expect("it can be read");
    (outcome, String::from_utf8(out).expect("text"))
}

pub(in crate::commands) fn flip(disk: &dyn Disk, path: &Path, offset: u64) {
    let file = disk.open(path, OpenMode::ReadWrite).expect("the file");
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, offset).expect("a read"), 1);
    file.write_at(&[byte[0] ^ 4], offset).expect("a write");
}

fn file_bytes(env: &Env, path: &str) -> u64 {
    env.disk.open(Path::new(path), OpenMode::Read).and_then(|file| file.len()).expect("the file")
}

#[test]
fn what_an_engine_wrote_is_clean() {
    let (env, _) = Env::sim(1);
    write_bucket(&env, Path::new("/data/buckets/orders"));
    env.disk.create_dir_all(Path::new("/data/buckets/sessions")).expect("a folder");
    let (outcome, out) = checked(&env, "/data", false);
    assert_eq!(outcome, Outcome::Done, "{out}");
    // how large the files are is not decided here
    let bytes: u64 = (0..4).map(|vb| file_bytes(&env, &format!("/data/buckets/orders/{vb}.couch.1"))).sum();
    let out = out.replace(&format!("{:>9}", units::bytes(bytes)), "(orders')");
    expect![[r#"
        bucket     files      documents     tombstones      bytes  faults
        orders         4            180             20  (orders')       0
        sessions       0              0              0        0 B       0
    "#]]
    .assert_eq(&out);
    let (_, out) = checked(&env, "/data", true);
    let rows: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!((&rows[0]["documents"], &rows[0]["tombstones"]), (&json!(180), &json!(20)));
    for (path, files) in [("/data/buckets/orders", 4), ("/data/buckets/orders/1.couch.1", 1)] {
        let (outcome, out) = checked(&env, path, true);
        let row: serde_json::Value = serde_json::from_str(&out).expect("one object");
        assert_eq!(
            (outcome, &row["bucket"], &row["files"]),
            (Outcome::Done, &json!("orders"), &json!(files))
        );
    }
}

#[test]
fn what_the_catalog_does_not_promise_is_told() {
    let (env, _) = Env::sim(7);
    let folder = Path::new("/data/buckets/orders");
    write_bucket(&env, folder);
    let read = |path: &Path| {
        let file = env.disk.open(path, OpenMode::Read).expect("the file");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("a read");
        bytes
    };
    let write = |path: &Path, bytes: &[u8]| {
        let file = env.disk.open(path, OpenMode::Create).expect("the file");
        file.set_len(0).and_then(|()| file.write_at(bytes, 0)).expect("a write");
    };
    let path = |name: &str| folder.join(name);
    // another vBucket's file, a file that is longer, one that is missing, one that nobody promised, a damaged catalog
    write(&path("0.couch.1"), &read(&path("3.couch.1")));
    write(&path("1.couch.1"), &[read(&path("1.couch.1")), vec![0; 5000]].concat());
    env.disk.remove_file(&path("2.couch.1")).expect("it is there");
    write(&path("9.couch.4"), &read(&path("3.couch.1")));
    flip(&*env.disk, &path("catalog"), 20);
    let (outcome, out) = checked(&env, "/data", false);
    assert_eq!(outcome, Outcome::Faults, "{out}");
    for (file, what) in [
        ("0.couch.1", "it is revision 1 of vBucket 3"),
        ("1.couch.1", "goes on behind the header"),
        ("2.couch.1", "cannot be opened"),
        ("9.couch.4", "does not list"),
        ("catalog", "checksum does not fit"),
    ] {
        let told = out.lines().any(|line| line.contains(file) && line.contains(what));
        assert!(told, "{file}, {what}: {out}");
    }
}

#[test]
fn a_flipped_bit_is_told_with_its_place() {
    let (env, _) = Env::sim(2);
    write_bucket(&env, Path::new("/data/buckets/orders"));
    let path = Path::new("/data/buckets/orders/2.couch.1");
    let file = couchstore::CouchFile::open_read(&*env.disk, path).expect("sound");
    let body = file.get(b"\0key-2", |info| info.body_offset).expect("sound").expect("there");
    flip(&*env.disk, path, body + 10);
    let (outcome, out) = checked(&env, "/data", false);
    assert_eq!(outcome, Outcome::Faults);
    let fault = out.lines().next().expect("a fault");
    assert_eq!(
        fault,
        format!(
            "/data/buckets/orders/2.couch.1: offset {body}: body of document \\x00key-2: a checksum does not match"
        )
    );
    let (_, out) = checked(&env, "/data/buckets/orders/2.couch.1", true);
    let fault: serde_json::Value = serde_json::from_str(out.lines().next().expect("a fault")).expect("JSON");
    assert_eq!((&fault["type"], &fault["offset"]), (&json!("fault"), &json!(body)));
    assert!(out.ends_with("\"faults\":1,\"files\":1,\"tombstones\":0,\"type\":\"bucket\"}\n"), "{out}");
}

#[test]
fn a_killed_directory_is_clean_whatever_is_in_the_journal_only() {
    for (seed, files_early) in [(10, false), (11, true)] {
        let (env, _) = Env::sim(seed);
        write_and_die(&env, Path::new("/data/buckets/orders"), files_early);
        let (outcome, out) = checked(&env, "/data", true);
        assert_eq!(outcome, Outcome::Done, "{out}");
        let rows: Vec<serde_json::Value> =
            out.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        let [bucket, journal] = &rows[..] else { panic!("a bucket and its journal: {out}") };
        assert_eq!((&journal["type"], &journal["faults"]), (&json!("journal"), &json!(0)));
        assert!(journal["versions"].as_u64() > Some(0), "{out}");
        let is_filed = bucket["documents"].as_u64() > Some(0);
        assert_eq!(is_filed, files_early, "{out}");
    }
}

#[test]
fn what_lies_behind_the_header_on_record_is_not_looked_at() {
    let (env, _) = Env::sim(13);
    write_and_die(&env, Path::new("/b"), true);
    let journal = kvstore::journal::check_journal(&*env.disk, Path::new("/b")).expect("sound");
    let on_record = journal.files.expect("some were filed");
    let filed = on_record.values().find(|filed| filed.revision > 0).expect("one of them");
    let path = format!("/b/{}.couch.{}", filed.vb.0, filed.revision);
    let file = env.disk.open(Path::new(&path), OpenMode::ReadWrite).expect("the file");
    // a filing that was under way: a header whose trees never arrived
    let end = file.len().expect("a length").next_multiple_of(4096);
    file.write_at(&[1; 4096], end).expect("a write");
    for path in ["/b", &path] {
        let (outcome, out) = checked(&env, path, false);
        assert_eq!(outcome, Outcome::Done, "{out}");
    }
    let at = filed.known_header_offset().expect("where it is");
    flip(&*env.disk, Path::new(&path), at + 9);
    let (outcome, out) = checked(&env, "/b", false);
    assert_eq!(outcome, Outcome::Faults);
    assert!(out.starts_with(&format!("{path}: offset {at}: ")), "{out}");
}

#[test]
fn a_damaged_segment_is_told_with_its_place() {
    let (env, _) = Env::sim(14);
    write_and_die(&env, Path::new("/b"), false);
    let journal = kvstore::journal::check_journal(&*env.disk, Path::new("/b")).expect("sound");
    let segment = &journal.segments[0].path;
    // behind the segment's header and the first frame's, with frames behind it
    flip(&*env.disk, segment, 4096 + 100);
    let (outcome, out) = checked(&env, "/b", false);
    assert_eq!(outcome, Outcome::Faults, "{out}");
    assert!(out.starts_with(&format!("{}: offset 4", segment.display())), "{out}");
    let (_, out) = checked(&env, "/b", true);
    let fault: serde_json::Value = serde_json::from_str(out.lines().next().expect("a fault")).expect("JSON");
    assert_eq!((&fault["type"], &fault["file"]), (&json!("fault"), &json!(segment.to_str())));
}

/// Which vBucket is not served because of damage is told before a start, and between starts; not once it has healed.
#[test]
fn a_vbucket_that_misses_changes_is_told_until_the_damage_heals() {
    let (env, handles) = Env::sim(15);
    write_and_die(&env, Path::new("/b"), true);
    let journal = kvstore::journal::check_journal(&*env.disk, Path::new("/b")).expect("sound");
    let segment = &journal.segments.last().expect("it was not stopped").path;
    let contents = handles.disk.contents();
    let (_, content) = contents.iter().find(|(path, _)| path == segment).expect("it is there");
    let starts = (4096..content.len()).step_by(4096);
    let frames: Vec<usize> = starts.filter(|at| content[*at..].starts_with(b"SJfr")).collect();
    // nothing says of the last one that it was synced
    let [.., damaged, _] = frames[..] else { panic!("there are several: {frames:?}") };
    flip(&*env.disk, segment, damaged as u64 + 100);
    let open = || {
        kvstore::Journaled::open(env.clone(), Path::new("/b"), kvstore::JournaledConfig::default())
            .expect("not all is lost")
    };
    let what = "may miss acknowledged changes and is not served: frames ";
    for _ in 0..2 {
        let (outcome, out) = checked(&env, "/b", false);
        assert_eq!(outcome, Outcome::Faults, "{out}");
        assert!(out.contains(what), "{out}");
        kvstore::KvStore::close(&open()).expect_err("the journal stays");
    }
    flip(&*env.disk, segment, damaged as u64 + 100);
    let (outcome, out) = checked(&env, "/b", false);
    assert_eq!(outcome, Outcome::Done, "{out}");
    kvstore::KvStore::close(&open()).expect("nothing is missing");
}

#[test]
fn only_the_newest_file_of_a_vbucket_counts() {
    let (env, _) = Env::sim(3);
    for name in ["3.couch.9", "3.couch.10", "3.couch.11.new", "0.couch.2", "notes"] {
        env.disk.create_dir_all(Path::new("/b")).expect("a folder");
        env.disk.open(&Path::new("/b").join(name), OpenMode::Create).expect("a file");
    }
    let place = Place::find(&*env.disk, Path::new("/b")).expect("a bucket");
    assert_eq!(place.data_dir, None);
    assert_eq!(place.buckets[0].files, [Path::new("/b/0.couch.2"), Path::new("/b/3.couch.10")]);
    let (outcome, out) = checked(&env, "/b", false);
    assert_eq!(outcome, Outcome::Faults);
    assert!(out.starts_with("/b/0.couch.2: offset 0: the file holds no valid header\n"), "{out}");
}

#[test]
fn what_cannot_be_checked_is_refused() {
    let (env, _) = Env::sim(4);
    env.disk.create_dir_all(Path::new("/empty")).expect("a folder");
    let refused =
        |path: &str| Place::find(&*env.disk, Path::new(path)).expect_err("nothing to check").to_string();
    expect![
        "/empty is no data directory (it holds no `buckets`) and no bucket's folder (it holds no file like 0.couch.1)"
    ]
    .assert_eq(&refused("/empty"));
    assert_eq!(refused("/missing"), "cannot read /missing");
    env.disk.open(Path::new("/empty/notes"), OpenMode::CreateNew).expect("a file");
    let told = refused("/empty/notes");
    assert!(told.starts_with("/empty/notes is no file of documents, by its name"), "{told}");
}

#[test]
fn a_running_node_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let env = Env::real();
    let data_dir = DataDir::take(folder.path(), &env).expect("nobody else has it");
    let bucket = data_dir.bucket("orders");
    write_bucket(&env, &bucket);
    let flags = |path, repair| CheckFlags {
        path,
        json: true,
        repair,
        yes: repair,
        encryption: EncryptionFlags::default(),
        original: CouchstoreKeyFlags::default(),
    };
    let paths = [folder.path().to_owned(), bucket.clone(), bucket.join("1.couch.1")];
    for (path, repair) in paths.into_iter().flat_map(|path| [(path.clone(), false), (path, true)]) {
        let error = run(&env, &flags(path, repair)).expect_err("a node runs there");
        assert!(error.to_string().starts_with("a node runs on"), "{error}");
    }
    drop(data_dir);
    let flags = flags(folder.path().to_owned(), false);
    assert_eq!(run(&env, &flags).expect("nobody has it any more"), Outcome::Done);
}

/// Copies and backups have no file to lock: who repairs one makes it, who only looks does not.
#[test]
fn a_repair_of_a_folder_without_a_lock_owns_it() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let env = Env::real();
    write_bucket(&env, &folder.path().join("buckets/orders"));
    let has_lock = || env.disk.read_dir(folder.path()).expect("a list").iter().any(|name| name == "lock");
    for (repair, yes) in [(false, false), (true, false), (true, true)] {
        assert!(!has_lock(), "who looks changes nothing");
        let flags = CheckFlags {
            path: folder.path().to_owned(),
            json: true,
            repair,
            yes,
            encryption: EncryptionFlags::default(),
            original: CouchstoreKeyFlags::default(),
        };
        assert_eq!(run(&env, &flags).expect("nobody has it"), Outcome::Done);
        let taken = take(folder.path(), yes).expect("nobody has it");
        let other = DataDir::take_existing(folder.path());
        assert_eq!(matches!(other, Err(node::data_dir::DataDirError::InUse { .. })), yes);
        drop(taken);
    }
    assert!(has_lock());
}

#[test]
fn a_key_that_does_not_fit_is_told_once_and_nothing_is_called_damaged() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let (env, data) = (Env::real(), folder.path().join("data"));
    let bucket = data.join("buckets/orders");
    env.disk.create_dir_all_synced(&bucket).expect("a folder");
    let key = |digit: &str| {
        let path = folder.path().join(format!("key-{digit}"));
        let file = env.disk.open(&path, OpenMode::Create).expect("a file");
        file.write_at(digit.repeat(64).as_bytes(), 0).expect("a write");
        EncryptionFlags::of_file(Some(path))
    };
    let given = key("1").keys(&env).expect("it is read");
    let ring = KeyRing::open(&env, &bucket, "it", given.as_ref(), true, |_| ()).expect("it opens");
    let ring = ring.expect("it is wanted");
    write_bucket(&EncryptedDisk::env(&env, ring.keys().clone()), &bucket);
    for path in [&data, &bucket] {
        let flags = |encryption, repair| CheckFlags {
            path: path.clone(),
            json: true,
            repair,
            yes: repair,
            encryption,
            original: CouchstoreKeyFlags::default(),
        };
        for repair in [false, true] {
            let wrong = run(&env, &flags(key("2"), repair)).expect_err("another key").to_string();
            assert!(wrong.contains("is encrypted under the wrapping key"), "{wrong}");
            let none = run(&env, &flags(EncryptionFlags::of_file(None), repair)).expect_err("no key");
            assert!(none.to_string().contains("under the wrapping key"), "{none}");
        }
        assert_eq!(run(&env, &flags(key("1"), false)).expect("the right key"), Outcome::Done);
    }
}

/// What was written, to be looked at.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_waits_is_told_how_far_it_is() {
    let (env, handles) = Env::sim(5);
    let err = Written::default();
    let mut progress = Progress::new(env.clock, 1024, Box::new(err.clone()), false);
    progress.step(1);
    handles.clock.advance(Duration::from_millis(1999));
    progress.step(1);
    progress.file_done(1 << 20);
    assert!(err.0.lock().expect("nobody panics").is_empty());
    handles.clock.advance(Duration::from_millis(1));
    progress.step(1200);
    progress.step(5);
    progress.finish();
    let text = err.0.lock().expect("nobody panics").clone();
    assert_eq!(
        String::from_utf8(text).expect("text"),
        "checked 1 of 1,024 files, 1,202 documents, 1.00 MiB, 0 faults\n"
    );
}

#[test]
fn small_files_that_decide_about_data_are_looked_at() {
    let (env, _) = Env::sim(1);
    write_bucket(&env, Path::new("/data/buckets/orders"));
    let (outcome, out) = checked(&env, "/data", false);
    assert_eq!(outcome, Outcome::Done, "{out}");
    let put = |path: &str, bytes: &[u8]| {
        let file = env.disk.open(Path::new(path), OpenMode::Create).expect("a file");
        file.write_at(bytes, 0).expect("a write");
    };
    for name in ["uuid", "clean"] {
        let path = format!("/data/buckets/orders/{name}");
        flip(&*env.disk, Path::new(&path), 20);
        let (outcome, out) = checked(&env, "/data/buckets/orders", false);
        assert!(outcome == Outcome::Faults && out.contains(&path), "{out}");
        flip(&*env.disk, Path::new(&path), 20);
    }
    for (path, content) in [
        ("/data/buckets/orders/manifest.json", "{\"manifest\":1}"),
        ("/data/buckets/orders/bucket.json", "{}"),
        ("/data/buckets/orders/flushes", "[7]"),
        ("/data/buckets/orders/membership", "slot"),
        ("/data/buckets.json", "{"),
        ("/data/cluster-revision", "seven"),
        ("/data/node-uuid", "short"),
        ("/data/cluster-buckets.json", "[]"),
        ("/data/cluster-users.json", "[]"),
        ("/data/cluster-founding", "-"),
        ("/data/cluster-membership", "slot"),
    ] {
        put(path, content.as_bytes());
        let (outcome, out) = checked(&env, "/data", true);
        assert!(outcome == Outcome::Faults && out.contains(&format!("\"{path}\"")), "{path}: {out}");
        env.disk.remove_file(Path::new(path)).expect("it is there");
    }
    assert_eq!(checked(&env, "/data", false).0, Outcome::Done);
}

/// A data directory with one of each small file that is kept twice; the paths of both copies of each.
fn write_small_files(env: &Env) -> Vec<std::path::PathBuf> {
    let (data, folder) = (Path::new("/data"), Path::new("/data/buckets/orders"));
    let couch = kvstore::Couch::open(env.clone(), folder, kvstore::CouchConfig::default());
    let mut config = BucketConfig::new("orders", folder.into());
    config.vbuckets = 1;
    let bucket = Bucket::open(config, env.clone(), Arc::new(couch.expect("the disk works")));
    let bucket = bucket.expect("the disk works");
    let default = vbucket::Manifest::default();
    let (scopes, collections) = (default.scopes().cloned(), default.collections().cloned());
    let manifest = vbucket::Manifest::new(vbucket::ManifestUid(1), scopes, collections).expect("valid");
    bucket.collections().set_manifest(manifest).expect("taken");
    bucket.close().expect("the disk works");
    let spec = node::config::BucketSpec::made("orders", 100 << 20, engine::BucketKind::Persistent, &[]);
    let mut list = node::bucket_list::BucketList::read(data, env).expect("there is none");
    list.put(&spec.expect("valid"), env).expect("written");
    let listed = base::SmallFile::new(data, "buckets.json").of_version(2).look(&*env.disk, |bytes, _| {
        let list: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Ok(list["buckets"][0].to_string())
    });
    let described = listed.expect("sound").expect("written").content;
    let cursors = folder.join("cursors");
    env.disk.create_dir_all(&cursors).expect("a folder");
    let write = |folder: &Path, name: &str, owner: &str, content: &str| {
        let file = base::SmallFile::new(folder, name).owned_by(owner);
        file.write(&*env.disk, content.as_bytes()).expect("written");
    };
    write(folder, "bucket.json", "", &described);
    write(&cursors, "reader", bucket.uuid(), "AQ");
    let names =
        ["catalog", "uuid", "manifest.json", "bucket.json", "cursors/reader"].map(|name| folder.join(name));
    let firsts = [data.join("buckets.json")].into_iter().chain(names);
    firsts.flat_map(|path| [path.with_file_name(last_of(&path) + ".copy"), path]).collect()
}

fn last_of(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().into_owned()
}

/// Each byte, each length, and no file at all: the check names the file and says why, of either copy.
#[test]
fn each_flipped_cut_or_removed_small_file_is_told() {
    let (env, _) = Env::sim(21);
    for path in write_small_files(&env) {
        assert_eq!(checked(&env, "/data", false).0, Outcome::Done);
        let file = env.disk.open(&path, OpenMode::ReadWrite).expect("it is there");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("a read");
        let put = |bytes: &[u8]| {
            let file = env.disk.open(&path, OpenMode::Create).expect("a file");
            file.set_len(0).and_then(|()| file.write_at(bytes, 0)).expect("a write");
        };
        let told = |reason: &str, how: &str| {
            let (outcome, out) = checked(&env, "/data", false);
            let said = |line: &str| {
                let end = line.rfind(&*path.to_string_lossy())? + path.as_os_str().len();
                Some(line[end..].starts_with([':', ' ']) && line[end..].contains(reason))
            };
            let is_told = out.lines().any(|line| said(line) == Some(true));
            assert!(outcome == Outcome::Faults && is_told, "{} {how}: {out}", path.display());
        };
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            put(&flipped);
            told("", &format!("flipped at {at}"));
            if at % 7 == 0 {
                put(&bytes[..at]);
                told("", &format!("cut at {at}"));
            }
        }
        env.disk.remove_file(&path).expect("it is there");
        told("missing", "removed");
        put(&bytes);
    }
}

/// A bucket in a log-structured store, closed or not.
fn write_log(env: &Env, dir: &Path, closed: bool) {
    let files = FilesConfig::Log(LogConfig::default());
    let config = JournaledConfig { files, file_after: Duration::ZERO, ..JournaledConfig::default() };
    let store = Arc::new(Journaled::open(env.clone(), dir, config).expect("the disk works"));
    let file = || while store.background_step().expect("filed") == Background::Worked {};
    let bucket = write_into(env, dir, store.clone(), &file);
    if closed {
        bucket.close().expect("closed");
    }
}

#[test]
fn a_log_structured_store_is_read_whole() {
    let folder = "/data/buckets/orders";
    for closed in [true, false] {
        let (env, _) = Env::sim(9);
        write_log(&env, Path::new(folder), closed);
        let (outcome, out) = checked(&env, folder, true);
        assert_eq!(outcome, Outcome::Done, "{out}");
        let row: serde_json::Value = serde_json::from_str(out.lines().next().expect("a row")).expect("JSON");
        // The last round of changes is in the journal only if nothing has closed it.
        assert_eq!((&row["documents"], &row["tombstones"]), (&json!(180), &json!(20)), "{closed}");
        assert!(row["files"].as_u64() > Some(2), "{row}");
    }
    let (env, _) = Env::sim(9);
    write_log(&env, Path::new(folder), true);
    let mut names = env.disk.read_dir(Path::new(folder)).expect("a list");
    names.retain(|name| kvstore::is_log_file(name));
    names.sort();
    for name in names {
        let path = Path::new(folder).join(&name);
        let half = file_bytes(&env, path.to_str().expect("text")) / 2;
        flip(&*env.disk, &path, half);
        let (outcome, out) = checked(&env, folder, false);
        assert_eq!(outcome, Outcome::Faults, "{name}: {out}");
        assert!(out.contains(&name), "{name}: {out}");
        flip(&*env.disk, &path, half);
        assert_eq!(checked(&env, folder, false).0, Outcome::Done, "{name} is as it was");
    }
}

/// A bucket in a log-structured store as a repair leaves it, of which a file is damaged in the middle.
fn repaired_log(name: &str) -> (Env, String, String) {
    let (env, _) = Env::sim(9);
    let folder = Path::new("/data/buckets/orders");
    write_log(&env, folder, true);
    let path = folder.join(name);
    let half = file_bytes(&env, path.to_str().expect("text")) / 2;
    flip(&*env.disk, &path, half);
    let place = Place::find(&*env.disk, Path::new("/data")).expect("there is something to check");
    let names = || {
        let mut names = env.disk.read_dir(folder).expect("a list");
        names.sort();
        names
    };
    let before = names();
    let mut told = Vec::new();
    let outcome = repair::run(&env, &place, false, false, &mut told).expect("the disk works");
    assert_eq!(outcome, Outcome::Faults, "{name}");
    assert_eq!(names(), before, "nothing was changed");
    let mut out = Vec::new();
    let outcome = repair::run(&env, &place, true, true, &mut out).expect("the disk works");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (told, out) = (text(told), text(out));
    assert_eq!(outcome, Outcome::Done, "{out}");
    assert_eq!(checked(&env, "/data", false).0, Outcome::Done, "{name}: {out}");
    let repaired = out.lines().find(|line| line.contains("\"repaired\"")).expect("it was repaired");
    let repaired: serde_json::Value = serde_json::from_str(repaired).expect("JSON");
    let aside = repaired["kept_aside"].as_str().expect("a folder").to_owned();
    let kept = env.disk.read_dir(Path::new(&aside)).expect("the old folder");
    assert!(kept.iter().any(|kept| kept == name), "{name} is kept: {kept:?}");
    (env, told, out)
}

#[test]
fn a_log_structured_store_is_repaired_and_what_it_costs_is_told() {
    let (env, _) = Env::sim(9);
    write_log(&env, Path::new("/data/buckets/orders"), true);
    let mut names = env.disk.read_dir(Path::new("/data/buckets/orders")).expect("a list");
    names.retain(|name| kvstore::is_log_file(name));
    for name in names {
        let (env, told, out) = repaired_log(&name);
        assert!(told.contains(&name), "{told}");
        let lines = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let damaged: Vec<_> = lines.filter(|line| line["type"] == "damage").collect();
        let lost: u64 = damaged.iter().filter_map(|line| line["lost_documents"].as_u64()).sum();
        let (_, row) = checked(&env, "/data/buckets/orders", true);
        let row: serde_json::Value = serde_json::from_str(row.lines().next().expect("a row")).expect("JSON");
        let there = row["documents"].as_u64().expect("a number");
        if name.ends_with(".run") {
            assert!(told.contains("nothing is lost by this"), "{told}");
            assert!(damaged.iter().all(|line| line["loses_nothing"] == true), "{out}");
            assert_eq!((there, lost), (180, 0), "{name}");
        } else if name.ends_with(".seg") {
            assert_eq!(there + lost, 180, "{name}: {out}");
            assert!(lost == 0 || told.contains(&format!("it costs {lost} documents of vBuckets")), "{told}");
        }
    }
}
