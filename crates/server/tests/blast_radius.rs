//! What is damaged of one bucket takes nothing from the others: not in a stop, not in a start.
#![allow(clippy::disallowed_methods, reason = "files are damaged behind the server's back")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use support::{Client, http, json, start, try_start, vb};

const BUCKETS: &str = "buckets = [\"a\", \"b\", \"c\"]";

/// The file of a vBucket.
fn file_of(folder: &Path, bucket: &str, vbucket: u16) -> PathBuf {
    let names = fs::read_dir(folder.join("buckets").join(bucket)).expect("the bucket has a folder");
    let paths = names.map(|entry| entry.expect("an entry").path());
    let prefix = format!("{vbucket}.couch.");
    let of =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    paths.into_iter().find(of).expect("the vBucket has a file")
}

/// Other bytes in the place of all that a file holds.
fn rot(path: &Path) {
    let len = fs::metadata(path).expect("it is there").len() as usize;
    fs::write(path, vec![0xee; len]).expect("written");
}

fn fill(server: &server::Server, bucket: &str, value: &str) {
    let mut client = Client::connect(server, bucket, &[]);
    for i in 0..20 {
        assert_eq!(client.set(format!("k{i}").as_bytes(), value.as_bytes()), Some(Status::Success));
    }
}

fn count(server: &server::Server, bucket: &str, value: &str) -> usize {
    let mut client = Client::connect(server, bucket, &[]);
    let is = |i: &i32| {
        let answer = client.get(format!("k{i}").as_bytes()).expect("an answer");
        answer.status == Status::Success && answer.value == value.as_bytes()
    };
    (0..20).filter(is).count()
}

#[test]
fn a_stop_saves_the_buckets_that_can_be_saved_and_names_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), BUCKETS);
    fill(&server, "a", "1");
    server.stop().expect("a clean stop");
    // Without a journal the last changes are in memory alone.
    let server = start(folder.path(), &format!("journal = \"off\"\n{BUCKETS}"));
    assert_eq!(count(&server, "a", "1"), 20);
    rot(&file_of(folder.path(), "a", vb(b"k0").0));
    for bucket in ["a", "b", "c"] {
        fill(&server, bucket, "2");
    }
    let failure = server.stop().expect_err("a cannot be saved").to_string();
    assert!(failure.contains("bucket a:"), "{failure}");
    let server = start(folder.path(), BUCKETS);
    assert_eq!((count(&server, "b", "2"), count(&server, "c", "2")), (20, 20));
    let of_damaged = (0..20).filter(|i| vb(format!("k{i}").as_bytes()) == vb(b"k0")).count();
    assert_eq!(count(&server, "a", "2"), 20 - of_damaged, "the other vBuckets of a were saved, too");
    server.stop().expect("what is dead has nothing to save");
}

/// A copy of all files, as a power cut would leave them.
fn image(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a folder");
    let mut left = vec![(from.to_owned(), to.path().to_owned())];
    while let Some((from, to)) = left.pop() {
        fs::create_dir_all(&to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            if path.is_dir() {
                left.push((path, to));
            } else {
                fs::copy(&path, &to).expect("copied");
            }
        }
    }
    to
}

fn in_bucket(folder: &Path, bucket: &str, prefix: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(folder.join("buckets").join(bucket)).expect("the bucket has a folder");
    let paths = names.map(|entry| entry.expect("an entry").path());
    let of = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    paths.filter(of).collect()
}

/// The bucket is told to be down wherever it could be looked for, and the others serve.
fn assert_only_down(server: &server::Server, down: &str, why: &str) {
    for bucket in ["a", "b", "c"].into_iter().filter(|bucket| *bucket != down) {
        assert_eq!(count(server, bucket, "1"), 20, "{bucket}");
    }
    let (mut client, selected) = Client::try_connect(server, down, &[Feature::Xerror]);
    assert_eq!(selected, Status::Etmpfail);
    let select =
        RequestParts { opcode: opcode::SELECT_BUCKET, key: down.as_bytes(), ..RequestParts::default() };
    let reason = client.request(&select).json()["error"]["context"].to_string();
    assert!(reason.contains(why), "{reason}");
    let told = json(server, "/pools/default");
    assert_eq!(told["bucketNames"].as_array().map(Vec::len), Some(2), "{told}");
    assert_eq!(told["bucketsDown"][0]["bucketName"], down);
    for path in [format!("/pools/default/buckets/{down}"), format!("/pools/default/b/{down}")] {
        let (code, body) = http(server, "GET", &path, "");
        assert!(code == 503 && body.contains(why), "{path}: {code} {body}");
    }
    let (code, body) = http(server, "GET", "/healthz", "");
    assert!(code == 503 && body.contains(&format!("bucket {down} is down")), "{body}");
    assert!(!body.contains(why), "everybody may ask: {body}");
    let metrics = http(server, "GET", "/metrics", "").1;
    assert!(metrics.contains(&format!("stave_bucket_down{{bucket=\"{down}\"}} 1")));
    let (code, body) = http(server, "POST", "/pools/default/buckets", &format!("name={down}&ramQuotaMB=100"));
    assert!(code == 503 && body.contains(why), "another one does not take its place: {body}");
}

#[test]
fn a_bucket_whose_files_cannot_be_understood_is_down_alone_and_can_be_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), BUCKETS);
    ["a", "b", "c"].iter().for_each(|bucket| fill(&server, bucket, "1"));
    server.stop().expect("a clean stop");
    in_bucket(folder.path(), "b", "catalog").iter().for_each(|path| rot(path));
    let server = start(folder.path(), BUCKETS);
    assert_only_down(&server, "b", "catalog");
    assert_eq!(http(&server, "DELETE", "/pools/default/buckets/b", ""), (200, String::new()));
    assert_eq!(http(&server, "GET", "/healthz", ""), (200, "ok\n".to_owned()));
    assert_eq!(http(&server, "POST", "/pools/default/buckets", "name=b&ramQuotaMB=100").0, 202);
    fill(&server, "b", "2");
    server.stop().expect("a clean stop");
}

#[test]
fn a_damaged_journal_keeps_its_bucket_down_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), BUCKETS);
    ["a", "b", "c"].iter().for_each(|bucket| fill(&server, bucket, "1"));
    for bucket in ["a", "b", "c"] {
        let bucket = server.node().bucket(bucket).expect("it is served");
        while bucket.flushing().flush_step() != engine::Progress::Idle {}
    }
    let image = image(folder.path());
    server.stop().expect("a clean stop");
    // The head of the segment that the catalog names.
    in_bucket(image.path(), "a", "journal.").iter().for_each(|path| rot(path));
    let server = start(image.path(), BUCKETS);
    assert_only_down(&server, "a", "journal");
    server.stop().expect("the others stop cleanly");
}

/// What a list of buckets is lost by.
fn rot_list(folder: &Path) {
    ["buckets.json", "buckets.json.copy"].iter().for_each(|name| rot(&folder.join(name)));
}

fn remove_list(folder: &Path) {
    let remove = |name: &&str| fs::remove_file(folder.join(name)).expect("it is there");
    ["buckets.json", "buckets.json.copy"].iter().for_each(remove);
}

#[test]
fn a_lost_list_of_buckets_is_put_together_from_their_folders() {
    [rot_list, remove_list].into_iter().for_each(put_together);
}

/// Faults of the list that `stave check` finds.
fn list_faults(folder: &Path) -> usize {
    let faults = node::small_files::node_faults(&*base::env::Env::real().disk, folder);
    faults.iter().filter(|(path, _)| path.ends_with("buckets.json")).count()
}

fn put_together(lose: fn(&Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    for bucket in ["a", "b"] {
        let form = format!("name={bucket}&ramQuotaMB=100&maxTTL=77");
        assert_eq!(http(&server, "POST", "/pools/default/buckets", &form).0, 202);
        fill(&server, bucket, "1");
    }
    assert_eq!(http(&server, "DELETE", "/pools/default/buckets/b", "").0, 200);
    server.stop().expect("a clean stop");
    lose(folder.path());
    assert_eq!(list_faults(folder.path()), 1);
    let server = start(folder.path(), "");
    assert_eq!(count(&server, "a", "1"), 20);
    assert_eq!(json(&server, "/pools/default/buckets/a")["maxTTL"], 77);
    assert_eq!(
        http(&server, "GET", "/pools/default/buckets/b", "").0,
        404,
        "what was deleted does not come back"
    );
    assert_eq!(http(&server, "POST", "/pools/default/buckets", "name=c&ramQuotaMB=100").0, 202);
    server.stop().expect("a clean stop");
    assert_eq!(list_faults(folder.path()), 0);
    fs::remove_file(folder.path().join("buckets/a/bucket.json")).expect("it is there");
    fs::remove_file(folder.path().join("buckets/a/bucket.json.copy")).expect("it is there");
    lose(folder.path());
    let server = start(folder.path(), "");
    let told = json(&server, "/pools/default");
    assert!(told["bucketsDown"][0]["reason"].to_string().contains("does not say what it is"), "{told}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_quota_that_the_machine_does_not_have_is_refused_with_the_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    for (settings, numbers) in [
        ("buckets = [\"a:900TiB\"]", ["943718400 MiB", "its limit for this process, has"]),
        ("memory-quota = \"300MiB\"\nbuckets = [\"a:400MiB\"]", ["400 MiB", "300 MiB"]),
        ("memory-quota = \"300MiB\"\nbuckets = [\"a:200MiB\", \"b:150MiB\"]", ["350 MiB", "300 MiB"]),
    ] {
        let refused = try_start(folder.path(), settings).map(drop).expect_err(settings).to_string();
        assert!(numbers.iter().all(|number| refused.contains(number)), "{refused}");
    }
    let server = start(folder.path(), "memory-quota = \"300MiB\"\nbuckets = [\"a:200MiB\"]");
    let (code, body) = http(&server, "POST", "/pools/default/buckets", "name=b&ramQuotaMB=150");
    assert!(code == 400 && ["150", "200", "300"].iter().all(|number| body.contains(number)), "{body}");
    server.stop().expect("a clean stop");
}

fn histories(server: &server::Server) -> Vec<Vec<(u64, u64)>> {
    let bucket = server.node().bucket("a").expect("it is served");
    let of = |vb: &vbucket::VBucket| {
        vb.failover().entries().iter().map(|entry| (entry.uuid.0, entry.seqno.0)).collect()
    };
    (0..support::VBUCKETS).map(|vb| bucket.inspect(base::VbId(vb), of).expect("it is here")).collect()
}

#[test]
fn a_start_that_fails_is_no_crash_to_the_buckets() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), BUCKETS);
    fill(&server, "a", "1");
    let before = histories(&server);
    server.stop().expect("a clean stop");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let in_use = || {
        let config = support::config(folder.path(), 2, BUCKETS);
        let config = node::Config { http_addr: taken.local_addr().expect("an address"), ..config };
        server::serve(config, base::env::Env::real()).map(drop)
    };
    let no_certificate = || {
        let more = format!("tls-cert = \"/none.pem\"\ntls-key = \"/none.key\"\n{BUCKETS}");
        try_start(folder.path(), &more).map(drop)
    };
    let not_prepared = || {
        let config = support::config(folder.path(), 2, BUCKETS);
        let refuse = |_: &std::sync::Arc<node::Node>| Err(server::Failure::NotPrepared("no".to_owned()));
        server::serve_prepared(config, base::env::Env::real(), refuse).map(drop)
    };
    let starts: [&dyn Fn() -> Result<(), server::Failure>; 3] = [&in_use, &no_certificate, &not_prepared];
    for (at, fails) in starts.into_iter().enumerate() {
        let error = fails().expect_err("it does not start");
        let server = start(folder.path(), BUCKETS);
        assert_eq!(histories(&server), before, "{at}: {error}");
        assert_eq!(count(&server, "a", "1"), 20);
        server.stop().expect("a clean stop");
    }
}
