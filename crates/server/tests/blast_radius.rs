//! What is damaged of one bucket takes nothing from the others: not in a stop, not in a start.
#![allow(clippy::disallowed_methods, reason = "files are damaged behind the server's back")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use protocol::Status;
use support::{Client, start, vb};

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
