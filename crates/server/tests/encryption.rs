//! Encryption at rest of a whole node: the disk has no data of clients in clear, and only the right key opens
//! it again.
#![allow(clippy::disallowed_methods, reason = "this is a client, and looks at the disk beside the server")]

mod support;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::encryption::{DataKeys, EncryptedDisk, KeyRing, WrappingKeys, keys_in_use};
use base::env::{Env, OpenMode};
use node::Config;
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, http, http_as, json, vb};

const BUCKETS: &str = "buckets = [\"a:64MiB\", \"b:64MiB\"]";
/// The same, and one in the log-structured store.
const BOTH_STORES: &str = "buckets = [\"a:64MiB\", \"b:64MiB\", \"m:100MiB:magma\"]";
const KEY: &str = "customer::4711";
const BODY: &str = "{\"note\":\"the quick brown fox in a body\"}";
const XATTR: &str = "hidden-attribute-of-a-document";
const SCOPE: &str = "scope-of-secrets";
const COLLECTION: &str = "collection-of-secrets";
const USER: &str = "ann-of-the-users";
/// What must stand nowhere.
const SECRETS: [&str; 6] = [KEY, "quick brown fox", XATTR, SCOPE, COLLECTION, USER];
const PASSWORD: &str = "password-of-ann";
/// What stands nowhere without encryption either: a password, and the key that wraps others, as text and as it is.
const KEPT_NOWHERE: [&str; 3] = [
    PASSWORD,
    "1111111111111111111111111111111111111111111111111111111111111111",
    "\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11\x11",
];

fn wrapping(digits: &[char]) -> WrappingKeys {
    let text: String = digits.iter().map(|digit| digit.to_string().repeat(64) + "\n").collect();
    WrappingKeys::parse(&text, "the test").expect("keys")
}

fn try_start(folder: &Path, encryption: Option<WrappingKeys>) -> Result<Server, server::Failure> {
    try_start_with(folder, encryption, BUCKETS)
}

fn try_start_with(
    folder: &Path,
    encryption: Option<WrappingKeys>,
    buckets: &str,
) -> Result<Server, server::Failure> {
    let config = Config { encryption, ..support::config(folder, 2, buckets) };
    server::serve(config, Env::real())
}

fn start(folder: &Path, digits: &[char]) -> Server {
    try_start(folder, Some(wrapping(digits))).expect("the node starts")
}

/// A request that is on the disk when it is answered.
fn durably(client: &mut Client, key: &str, request: RequestParts<'_>) {
    let persist_to_majority = [0x11, 0x03];
    let vbucket = vb(key.as_bytes());
    let request = RequestParts { key: key.as_bytes(), frame_infos: &persist_to_majority, vbucket, ..request };
    assert_eq!(client.request(&request).status, Status::Success, "{key}");
}

fn set_durably(client: &mut Client, key: &str, value: &[u8]) {
    let request = RequestParts { opcode: opcode::SET, value, extras: &[0; 8], ..RequestParts::default() };
    durably(client, key, request);
}

/// An attribute of a document.
fn set_xattr(client: &mut Client, key: &str) {
    let (path, of_xattrs) = ("owner", 4);
    let value = format!("{path}\"{XATTR}\"");
    let extras = [0, path.len() as u8, of_xattrs];
    let (opcode, value) = (opcode::SUBDOC_DICT_UPSERT, value.as_bytes());
    durably(client, key, RequestParts { opcode, value, extras: &extras, ..RequestParts::default() });
}

/// Documents of each bucket, which are on the disk afterwards.
fn write_documents(server: &Server) {
    for (spec, _) in server.node().buckets() {
        let mut client = Client::connect(server, &spec.name, &[Feature::Xattr]);
        set_durably(&mut client, "long", BODY.repeat(2_000).as_bytes());
        for number in 0..50 {
            set_durably(&mut client, &format!("{KEY}-{number}"), BODY.as_bytes());
        }
        set_durably(&mut client, KEY, BODY.as_bytes());
        set_xattr(&mut client, KEY);
    }
}

/// The same, and a collection and a user.
fn fill(server: &Server) {
    write_documents(server);
    let scopes = "/pools/default/buckets/a/scopes";
    assert_eq!(http(server, "POST", scopes, &format!("name={SCOPE}")).0, 200);
    let collections = format!("{scopes}/{SCOPE}/collections");
    assert_eq!(http(server, "POST", &collections, &format!("name={COLLECTION}")).0, 200);
    assert_eq!(http(server, "POST", "/settings/audit", "auditdEnabled=true&disabled=").0, 200);
    let user = format!("/settings/rbac/users/local/{USER}");
    let form = format!("password={PASSWORD}&roles=data_reader[a]");
    assert_eq!(http(server, "PUT", &user, &form).0, 200);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

/// Which of the secrets stand in which files, and how many bytes were searched.
fn search(folder: &Path) -> (Vec<(PathBuf, &'static str)>, usize) {
    let (mut hits, mut bytes) = (Vec::new(), 0);
    for path in files(folder) {
        let content = match fs::read(&path) {
            // Compaction has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            content => content.expect("it can be read"),
        };
        bytes += content.len();
        let is_in = |secret: &&str| content.windows(secret.len()).any(|window| window == secret.as_bytes());
        let all = SECRETS.into_iter().chain(KEPT_NOWHERE);
        hits.extend(all.filter(is_in).map(|secret| (path.clone(), secret)));
    }
    (hits, bytes)
}

/// What a `kill -9` leaves: the files as they are while the node runs.
fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a folder");
    for path in files(from) {
        let place = to.path().join(path.strip_prefix(from).expect("it is below"));
        fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
        match fs::copy(&path, place) {
            // The log-structured store has merged it into another one meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => {
                copied.expect("copied");
            }
        }
    }
    to
}

fn assert_whole(server: &Server, bucket: &str) {
    let mut client = Client::connect(server, bucket, &[Feature::Xattr]);
    for number in 0..50 {
        let found = client.get(format!("{KEY}-{number}").as_bytes()).expect("an answer");
        assert_eq!((found.status, &found.value[..]), (Status::Success, BODY.as_bytes()));
    }
}

#[test]
fn nothing_stands_in_clear_and_everything_is_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let start =
        |folder: &Path| try_start_with(folder, Some(wrapping(&['1'])), BOTH_STORES).expect("the node starts");
    let server = start(folder.path());
    fill(&server);
    let killed = copy(folder.path());
    server.stop().expect("a clean stop");
    for (folder, buckets) in [(killed.path(), &["a", "b"][..]), (folder.path(), &["a", "b", "m"])] {
        let (hits, bytes) = search(folder);
        println!("searched {} files with {bytes} bytes", files(folder).len());
        assert!(hits.is_empty(), "{hits:?}");
        let server = start(folder);
        buckets.iter().for_each(|bucket| assert_whole(&server, bucket));
        assert!(json(&server, "/settings/rbac/users").to_string().contains(USER));
        assert!(json(&server, "/pools/default/buckets/a/scopes").to_string().contains(COLLECTION));
        server.stop().expect("a clean stop");
    }
    // The search finds what is there: without a key all of it is.
    let plain = tempfile::tempdir().expect("a folder");
    let server = try_start_with(plain.path(), None, BOTH_STORES).expect("the node starts");
    fill(&server);
    let (hits, _) = search(plain.path());
    let is_hit = |secret: &&str| hits.iter().any(|(_, hit)| hit == secret);
    assert_eq!(SECRETS.iter().copied().find(|secret| !is_hit(secret)), None);
    assert_eq!(KEPT_NOWHERE.iter().copied().find(is_hit), None);
    server.stop().expect("a clean stop");
}

#[test]
fn keys_are_exchanged_and_the_old_ones_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    fill(&server);
    server.stop().expect("a clean stop");
    let bucket = folder.path().join("buckets/a");
    let keys = || keys_in_use(&*Env::real().disk, &bucket).expect("they are read");
    let before = keys();
    let config = support::config(folder.path(), 2, BUCKETS);
    let config = Config { encryption: Some(wrapping(&['1'])), rotates_keys: true, ..config };
    let server = server::serve(config, Env::real()).expect("the node starts");
    let mut client = Client::connect(&server, "a", &[]);
    set_durably(&mut client, "while keys are exchanged", b"{}");
    for (_, bucket) in server.node().buckets() {
        while bucket.compaction().compact_step() == engine::Progress::Worked {}
    }
    assert_whole(&server, "a");
    server.stop().expect("a clean stop");
    assert!(keys().is_disjoint(&before) && keys().len() == 1, "{before:?} {:?}", keys());
    let count = |keys: Option<DataKeys>| keys.expect("there are keys").ids().len();
    let look = || KeyRing::look(&Env::real(), &bucket, "a", Some(&wrapping(&['1']))).expect("they open");
    assert_eq!(count(look()), 2);
    let server = start(folder.path(), &['1']);
    assert_whole(&server, "a");
    assert_eq!(count(look()), 1);
    server.stop().expect("a clean stop");
}

/// Waits for what happens in the background.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// Has all couchstore files encrypted as new ones are; log-structured stores do so by themselves.
fn compact(server: &Server) {
    for (_, bucket) in server.node().buckets() {
        while bucket.compaction().compact_step() == engine::Progress::Worked {}
    }
}

/// Has the node go by another list of wrapping keys, as SIGHUP does; what was taken.
fn reload(server: &Server, folder: &Path, digits: &[char]) -> Vec<String> {
    let encryption = Some(wrapping(digits));
    let told = server.reload(Config { encryption, ..support::config(folder, 2, BUCKETS) });
    assert!(told.refused.is_empty() && told.waiting.is_empty(), "{told}");
    told.taken
}

/// Ends the load, also if a check fails meanwhile.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes and reads until told to stop; how often.
fn load(mut client: Client, is_over: &AtomicBool) -> u32 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("load-{}", count % 100);
        if count % 50 == 0 {
            set_durably(&mut client, &key, BODY.as_bytes());
        } else {
            assert_eq!(client.set(key.as_bytes(), BODY.as_bytes()), Some(Status::Success));
        }
        assert_eq!(client.get(key.as_bytes()).expect("an answer").status, Status::Success);
        count += 1;
    }
    count
}

#[test]
fn keys_are_exchanged_while_clients_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    fill(&server);
    let bucket = folder.path().join("buckets/a");
    let removed = ["quarantine/1-0-x", "quarantine/repair-1/x"].map(|name| folder.path().join(name));
    let count = |wrapping: &WrappingKeys| {
        let keys = KeyRing::look(&Env::real(), &bucket, "a", Some(wrapping)).expect("they open");
        keys.expect("there are keys").ids().len()
    };
    let is_over = AtomicBool::new(false);
    let operations = std::thread::scope(|scope| {
        let client = Client::connect(&server, "a", &[]);
        let loaded = scope.spawn(|| load(client, &is_over));
        let ends = Ends(&is_over);
        for _ in 0..3 {
            let (code, told) = http(&server, "POST", "/node/controller/rotateEncryptionKeys", "");
            assert_eq!((code, &told[..]), (200, "{\"folders\":3}"), "the folder of data and two buckets");
            compact(&server);
        }
        assert_eq!(count(&wrapping(&['1'])), 4);
        // Folders that were removed, or put aside by a repair.
        for folder in &removed {
            fs::create_dir_all(folder).expect("a folder");
            for name in ["encryption-keys", "encryption-keys.copy"] {
                fs::copy(bucket.join(name), folder.join(name)).expect("copied");
            }
        }
        let taken = "encryption-key-*: earlier keys are not needed any more";
        assert_eq!(reload(&server, folder.path(), &['2', '1']), [taken]);
        assert_eq!(reload(&server, folder.path(), &['2']), [taken]);
        // One that is made now is under the new key, too.
        assert_eq!(
            http(&server, "POST", "/pools/default/buckets", "name=c&ramQuota=64&replicaNumber=0").0,
            202
        );
        set_durably(&mut Client::connect(&server, "c", &[]), KEY, BODY.as_bytes());
        drop(ends);
        loaded.join().expect("no operation failed")
    });
    println!("{operations} writes and reads while keys were exchanged, 0 failed");
    for folder in &removed {
        let keys = KeyRing::look(&Env::real(), folder, "it", Some(&wrapping(&['2']))).expect("they open");
        assert_eq!(keys.expect("there are keys").ids().len(), 4);
    }
    server.stop().expect("a clean stop");
    assert!(try_start(folder.path(), Some(wrapping(&['1']))).is_err());
    let server = start(folder.path(), &['2']);
    assert_whole(&server, "a");
    assert_whole(&server, "b");
    assert_eq!(
        Client::connect(&server, "c", &[]).get(KEY.as_bytes()).expect("an answer").value,
        BODY.as_bytes()
    );
    server.stop().expect("a clean stop");
    let (hits, _) = search(folder.path());
    assert!(hits.is_empty(), "{hits:?}");
}

/// One of two files under a key that its folder does not have, as one from before an exchange of keys may be, costs nothing.
#[test]
fn a_copy_under_an_unknown_key_costs_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    fill(&server);
    server.stop().expect("a clean stop");
    let elsewhere = EncryptedDisk::env(&Env::real(), DataKeys::ephemeral(&Env::real()));
    for name in ["catalog", "catalog.copy", "manifest.json", "manifest.json.copy", "uuid", "uuid.copy"] {
        let path = folder.path().join("buckets/a").join(name);
        fs::remove_file(&path).expect(name);
        let file = elsewhere.disk.open(&path, OpenMode::CreateNew).expect("a file");
        file.write_at(b"of another time", 0).and_then(|()| file.sync_data()).expect("written");
        let server = start(folder.path(), &['1']);
        assert_whole(&server, "a");
        assert_eq!(http(&server, "GET", "/healthz", "").0, 200, "{name}");
        server.stop().expect("a clean stop");
        let again = elsewhere.disk.open(&path, OpenMode::Read);
        assert!(again.is_err(), "{name} was written again under a key of the folder");
    }
}

/// When the node says that the earlier wrapping key is not needed, no bucket needs it.
#[test]
fn a_bucket_that_is_made_meanwhile_is_under_the_new_wrapping_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    for round in 0..12 {
        let digits = if round % 2 == 0 { ['2', '1'] } else { ['1', '2'] };
        let form = &format!("name=r{round}&ramQuota=64&replicaNumber=0");
        let taken = std::thread::scope(|scope| {
            let reached = (server.kv_addr(), server.http_addr());
            let made = scope.spawn(move || http(&reached, "POST", "/pools/default/buckets", form).0);
            let taken = reload(&server, folder.path(), &digits);
            assert_eq!(made.join().expect("an answer"), 202);
            taken
        });
        assert_eq!(taken, ["encryption-key-*: earlier keys are not needed any more"]);
        let alone = wrapping(&digits[..1]);
        for entry in fs::read_dir(folder.path().join("buckets")).expect("a folder") {
            let bucket = entry.expect("an entry").path();
            let keys = KeyRing::look(&Env::real(), &bucket, "it", Some(&alone)).expect("the new key will do");
            assert!(keys.is_some(), "{}", bucket.display());
        }
        assert_eq!(http(&server, "DELETE", &format!("/pools/default/buckets/r{round}"), "").0, 200);
    }
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_without_encryption_has_no_keys_to_exchange() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = try_start(folder.path(), None).expect("the node starts");
    let (code, told) = http(&server, "POST", "/node/controller/rotateEncryptionKeys", "");
    assert!(code == 400 && told.contains("encryption-key-file"), "{code} {told}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_bucket_is_encrypted_or_plain_as_its_setting_says() {
    ["couchstore", "magma"].into_iter().for_each(is_encrypted_or_plain_as_its_setting_says);
}

fn is_encrypted_or_plain_as_its_setting_says(backend: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    let form = format!("name=c&ramQuota=100&replicaNumber=0&encryptionAtRest=0&storageBackend={backend}");
    assert_eq!(http(&server, "POST", "/pools/default/buckets", &form).0, 202);
    let fill = |server: &Server| {
        let mut client = Client::connect(server, "c", &[]);
        (0..20).for_each(|number| set_durably(&mut client, &format!("{KEY}-{number}"), BODY.as_bytes()));
    };
    let is_plain = || {
        let (hits, _) = search(&folder.path().join("buckets/c"));
        !hits.is_empty()
    };
    fill(&server);
    server.stop().expect("a clean stop");
    assert!(is_plain(), "{backend}");
    // It is what was said over a restart, and then something else.
    for (is_on, changes_to) in [(false, "1"), (true, "0"), (false, "1")] {
        let server = start(folder.path(), &['1']);
        fill(&server);
        compact(&server);
        eventually(backend, || is_plain() != is_on);
        server.stop().expect("a clean stop");
        assert_eq!(is_plain(), !is_on, "{backend}");
        let server = start(folder.path(), &['1']);
        let form = format!("encryptionAtRest={changes_to}");
        assert_eq!(http(&server, "POST", "/pools/default/buckets/c", &form).0, 200);
        compact(&server);
        fill(&server);
        eventually(backend, || is_plain() == is_on);
        server.stop().expect("a clean stop");
        assert_eq!(is_plain(), is_on, "{backend}");
        // The first start behind the change has files of both kinds.
        let server = start(folder.path(), &['1']);
        let mut client = Client::connect(&server, "c", &[]);
        for number in 0..20 {
            let found = client.get(format!("{KEY}-{number}").as_bytes()).expect("an answer");
            assert_eq!((found.status, &found.value[..]), (Status::Success, BODY.as_bytes()), "{backend}");
        }
        server.stop().expect("a clean stop");
    }
    // Its neighbours, and what the node keeps for itself, are encrypted as they were.
    let (hits, _) = search(folder.path());
    assert!(hits.is_empty(), "{hits:?}");
    let server = start(folder.path(), &['1']);
    let mut client = Client::connect(&server, "c", &[]);
    assert_eq!(client.get(format!("{KEY}-7").as_bytes()).expect("an answer").value, BODY.as_bytes());
    server.stop().expect("a clean stop");
}

/// As in the original: whether a bucket is encrypted is one of its settings, keys are the node's security.
#[test]
fn administrators_of_a_bucket_say_whether_it_is_encrypted_and_do_not_exchange_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    for (name, roles) in [
        ("of-a", "bucket_admin[a]"),
        ("of-b", "bucket_admin[b]"),
        ("writer", "data_writer[a]"),
        ("security", "security_admin"),
    ] {
        let form = format!("password=password&roles={roles}");
        let path = format!("/settings/rbac/users/local/{name}");
        assert_eq!(http(&server, "PUT", &path, &form).0, 200, "{name}");
    }
    let code = |user: &str, method: &str, path: &str, body: &str| {
        http_as(user, server.http_addr(), method, path, body).0
    };
    let (form, patch) = ("/pools/default/buckets/a", "/v1/buckets/a/settings");
    for user in ["of-b", "writer", "security"] {
        for told in [
            code(user, "POST", form, "encryptionAtRest=0"),
            code(user, "PATCH", patch, "{\"encryption_at_rest\":false}"),
        ] {
            assert!(told == 403 || told == 404, "{user}: {told}");
        }
    }
    let is_on = || is_on(&server, "a");
    assert!(is_on());
    assert_eq!(code("of-a", "POST", form, "encryptionAtRest=0"), 200);
    assert!(!is_on());
    assert_eq!(code("of-a", "PATCH", patch, "{\"encryption_at_rest\":true}"), 200);
    assert!(is_on());
    let rotate = "/node/controller/rotateEncryptionKeys";
    assert_eq!(["of-a", "security"].map(|user| code(user, "POST", rotate, "")), [403, 200]);
    server.stop().expect("a clean stop");
}

/// The setting of a bucket.
fn is_on(server: &Server, bucket: &str) -> bool {
    let settings = json(server, &format!("/v1/buckets/{bucket}/settings"));
    let all = settings["settings"].as_array().expect("settings").clone();
    let found = all.into_iter().find(|one| one["name"] == "encryption_at_rest");
    found.expect("the setting")["value"] == true
}

#[test]
fn what_the_configuration_file_says_of_a_bucket_counts_at_each_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = "[[bucket]]\nname = \"a\"\nquota = \"64MiB\"\n[[bucket]]\nname = \"b\"\nquota = \"64MiB\"\n\
                 [bucket.settings]\nencryption_at_rest = false\n";
    let start = || try_start_with(folder.path(), Some(wrapping(&['1'])), lines).expect("the node starts");
    let server = start();
    let form = "name=c&ramQuota=100&replicaNumber=0";
    assert_eq!(http(&server, "POST", "/pools/default/buckets", form).0, 202);
    assert_eq!(["a", "b", "c"].map(|bucket| is_on(&server, bucket)), [true, false, true]);
    for (bucket, value) in [("a", 0), ("b", 1), ("c", 0)] {
        let path = format!("/pools/default/buckets/{bucket}");
        assert_eq!(http(&server, "POST", &path, &format!("encryptionAtRest={value}")).0, 200);
    }
    assert_eq!(["a", "b", "c"].map(|bucket| is_on(&server, bucket)), [false, true, false]);
    server.stop().expect("a clean stop");
    let server = start();
    let told = ["a", "b", "c"].map(|bucket| is_on(&server, bucket));
    assert_eq!(told, [true, false, false], "c is in no configuration file");
    server.stop().expect("a clean stop");
}

/// Compacts until no file of a bucket has a document in clear. The bucket's own compactor works beside it: what that has
/// begun is not begun twice, and a stop ends it.
fn compact_what_is_plain(bucket: &engine::Bucket, folder: &Path) {
    let began = Instant::now();
    while !search(folder).0.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", search(folder).0);
        while bucket.compaction().compact_step() == engine::Progress::Worked {}
    }
}

#[test]
fn a_folder_that_was_plain_is_encrypted_by_and_by() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = || try_start_with(folder.path(), None, BOTH_STORES).expect("the node starts");
    // Each start and stop adds to the manifests of a log-structured store.
    for life in 0..3 {
        let server = plain();
        if life == 0 {
            fill(&server)
        } else {
            write_documents(&server)
        }
        server.stop().expect("a clean stop");
    }
    // A start that encrypted was killed.
    fs::write(folder.path().join("buckets/a/uuid.encrypting"), "half of it").expect("written");
    for _ in 0..2 {
        let encryption = Some(wrapping(&['1']));
        let server = try_start_with(folder.path(), encryption, BOTH_STORES).expect("the node starts");
        for (spec, bucket) in server.node().buckets() {
            assert_whole(&server, &spec.name);
            compact_what_is_plain(&bucket, &folder.path().join("buckets").join(&spec.name));
            assert_whole(&server, &spec.name);
        }
        server.stop().expect("a clean stop");
    }
    assert!(!files(folder.path()).iter().any(|path| path.extension().is_some_and(|end| end == "encrypting")));
    let is_encrypted = |path: &PathBuf| fs::read(path).expect("it is there").starts_with(b"StaveEnc");
    let small = ["uuid", "manifest.json"].map(|name| folder.path().join("buckets/a").join(name));
    assert!(small.iter().all(is_encrypted));
    let (hits, _) = search(folder.path());
    assert!(hits.is_empty(), "{hits:?}");
}

/// What the group `encryption` tells of a bucket: the values of these names, all of one look; empty if one is not told.
fn figures<const N: usize>(server: &Server, bucket: &str, names: [&str; N]) -> [String; N] {
    let told = json(server, &format!("/v1/buckets/{bucket}/stats/encryption"));
    let stats = told["stats"].as_array().expect("stats").clone();
    names.map(|name| {
        let name = format!("ep_encryption_{name}");
        let found = stats.iter().find(|stat| stat[0] == name.as_str());
        found.and_then(|stat| stat[1].as_str()).unwrap_or_default().to_owned()
    })
}

fn numbers<const N: usize>(server: &Server, bucket: &str, names: [&str; N]) -> [u64; N] {
    figures(server, bucket, names).map(|told| told.parse().expect("a number"))
}

/// Waits until no file of a bucket is in clear, and sees to it that there are never more than before.
fn until_none_is_in_clear(server: &Server, bucket: &str) {
    let (began, mut before) = (Instant::now(), u64::MAX);
    while before > 0 {
        let [left] = numbers(server, bucket, ["clear_files"]);
        assert!(left <= before, "{bucket}: {before} files were in clear, and now {left}");
        assert!(began.elapsed() < Duration::from_secs(60), "{bucket}: {left} files stay in clear");
        let (_, bucket) =
            server.node().buckets().into_iter().find(|(spec, _)| spec.name == bucket).expect("it");
        while bucket.compaction().compact_step() == engine::Progress::Worked {}
        before = left;
    }
    assert_eq!(
        numbers(server, bucket, ["clear_files", "clear_bytes", "outdated_files", "outdated_bytes"]),
        [0; 4]
    );
}

/// The figures of all places where an operator looks agree with a search of the files.
#[test]
fn how_much_is_still_in_clear_is_told_until_none_is() {
    const ALL: [&str; 3] = ["a", "b", "m"];
    let folder = tempfile::tempdir().expect("a folder");
    let start = |encryption| try_start_with(folder.path(), encryption, BOTH_STORES).expect("the node starts");
    let of = |server: &Server, name: &str, bucket: &str| {
        let (_, page) = http(server, "GET", "/metrics", "");
        let line = format!("stave_encryption_{name}{{bucket=\"{bucket}\"}} ");
        page.lines().find_map(|of| of.strip_prefix(&line)).map(str::to_owned)
    };
    let hits = |bucket: &str| search(&folder.path().join("buckets").join(bucket)).0;
    let server = start(None);
    fill(&server);
    assert_eq!(figures(&server, "a", ["enabled", "clear_files"]), ["false", ""]);
    assert_eq!(of(&server, "clear_files", "a"), None);
    assert!(json(&server, "/pools/default/buckets/a").get("encryptionAtRestInfo").is_none());
    server.stop().expect("a clean stop");
    // A folder that was plain.
    let server = start(Some(wrapping(&['1'])));
    write_documents(&server);
    for bucket in ALL {
        assert_eq!(figures(&server, bucket, ["enabled", "data_keys"]), ["true", "1"]);
        until_none_is_in_clear(&server, bucket);
        let [files] = numbers(&server, bucket, ["files"]);
        assert!(files > 1 && hits(bucket).is_empty(), "{bucket}");
    }
    // Buckets that are made plain, and are encrypted again.
    let switch = |on| {
        for bucket in ALL {
            let path = format!("/pools/default/buckets/{bucket}");
            assert_eq!(http(&server, "POST", &path, &format!("encryptionAtRest={on}")).0, 200);
        }
    };
    switch(0);
    write_documents(&server);
    compact(&server);
    for bucket in ALL {
        eventually(bucket, || !hits(bucket).is_empty());
        let [clear] = numbers(&server, bucket, ["clear_bytes"]);
        assert!(clear > 0, "{bucket}");
        assert_eq!(figures(&server, bucket, ["enabled"]), ["false"]);
        eventually(bucket, || of(&server, "clear_files", bucket).is_some_and(|files| files != "0"));
        let told = &json(&server, &format!("/pools/default/buckets/{bucket}"))["encryptionAtRestInfo"];
        assert_ne!((&told["dataStatus"], &told["filesInClear"]), (&"encrypted".into(), &0.into()), "{told}");
    }
    switch(1);
    for bucket in ALL {
        // What is in clear is not as new files would be.
        let [clear, outdated] = numbers(&server, bucket, ["clear_bytes", "outdated_bytes"]);
        assert_eq!(clear, outdated, "{bucket}");
    }
    server.stop().expect("a clean stop");
    // Small files follow at a start.
    let server = start(Some(wrapping(&['1'])));
    write_documents(&server);
    for bucket in ALL {
        until_none_is_in_clear(&server, bucket);
        assert!(hits(bucket).is_empty(), "{:?}", hits(bucket));
        let zero = || Some("0".to_owned());
        eventually(bucket, || of(&server, "clear_files", bucket) == zero());
        assert_eq!(
            (of(&server, "clear_bytes", bucket), of(&server, "outdated_files", bucket)),
            (zero(), zero())
        );
        let told = &json(&server, &format!("/pools/default/buckets/{bucket}"))["encryptionAtRestInfo"];
        assert_eq!((&told["dataStatus"], &told["filesInClear"]), (&"encrypted".into(), &0.into()), "{told}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn without_the_right_key_nothing_opens_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), &['1']);
    fill(&server);
    server.stop().expect("a clean stop");
    let before: Vec<_> = files(folder.path()).iter().map(|path| fs::read(path).expect("read")).collect();
    for (keys, why) in
        [(None, "there is no encryption key"), (Some(wrapping(&['2'])), "under the wrapping key")]
    {
        let config = Config { encryption: keys.clone(), ..support::config(folder.path(), 2, BUCKETS) };
        let told = server::check(&config, &Env::real()).expect_err("a start would not succeed").to_string();
        let refused = try_start(folder.path(), keys).err().expect("it does not start").to_string();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(told, refused);
    }
    let after: Vec<_> = files(folder.path()).iter().map(|path| fs::read(path).expect("read")).collect();
    assert!(before == after, "nothing was changed");
    // One bucket comes from another place: it is down, its neighbour serves.
    let other = tempfile::tempdir().expect("a folder");
    let server = start(other.path(), &['3']);
    fill(&server);
    server.stop().expect("a clean stop");
    fs::remove_dir_all(folder.path().join("buckets/b")).expect("removed");
    let server = start(folder.path(), &['1']);
    assert_whole(&server, "a");
    let reason = json(&server, "/pools/default")["bucketsDown"][0]["reason"].to_string();
    assert!(reason.contains("was here before"), "{reason}");
    assert_eq!(http(&server, "DELETE", "/pools/default/buckets/b", "").0, 200);
    server.stop().expect("a clean stop");
    fs::rename(other.path().join("buckets/b"), folder.path().join("buckets/b")).expect("moved");
    let server = start(folder.path(), &['1']);
    assert_whole(&server, "a");
    let told = json(&server, "/pools/default");
    assert_eq!(told["bucketsDown"][0]["bucketName"], "b", "{told}");
    let reason = told["bucketsDown"][0]["reason"].to_string();
    assert!(reason.contains("the bucket b is encrypted under the wrapping key"), "{reason}");
    server.stop().expect("a clean stop");
    // With both keys everything opens, and is under the first one from then on.
    let server = start(folder.path(), &['1', '3']);
    assert_whole(&server, "b");
    server.stop().expect("a clean stop");
    let server = start(folder.path(), &['1']);
    assert_whole(&server, "b");
    server.stop().expect("a clean stop");
}
