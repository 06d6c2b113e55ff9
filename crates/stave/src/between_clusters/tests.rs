//! Names of clusters, and the checkpoint.

use std::time::Duration;

use base::env::Env;

use super::checkpoint::CheckpointFile;
use super::kept::{Heights, KeptPoints};
use super::url::parse_url;
use crate::client::dcp::Position;

#[test]
fn clusters_and_checkpoints_are_named_rightly() {
    let url = |text: &str| parse_url(text).map(|url| (url.hosts.join(" "), url.is_encrypted));
    assert_eq!(url("couchbase://a,b:1/"), Ok(("a:11210 b:1".to_owned(), false)));
    assert_eq!(url("couchbases://[::1],[::2]:7"), Ok(("[::1]:11207 [::2]:7".to_owned(), true)));
    for wrong in ["", "a", "http://a", "couchbase://", "couchbase://a/b", "couchbase://a,", "couchbase://u@a"]
    {
        assert!(parse_url(wrong).is_err(), "{wrong}");
    }
    let (env, folder) = (Env::real(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("file");
    let with = |from: &'static str, choice: &str| {
        CheckpointFile::new(&env, &path, (from, "b"), choice.to_owned()).expect("a name")
    };
    let file = |from| with(from, "--filter ^a");
    assert!(file("a").read(2).expect("none").is_none());
    let position = Position::at(base::VbUuid(3), base::Seqno(9));
    let heights =
        Heights { asked: Duration::ZERO, vbuckets: vec![(vec![(base::VbUuid(4), base::Seqno(0))], 7)] };
    let mut kept = KeptPoints::default();
    kept.add(vec![position; 2], &heights);
    file("a").write(&[position; 2], &kept).expect("written");
    let (positions, again) = file("a").read(2).expect("read").expect("a file");
    assert_eq!((positions, again.few()), (vec![position; 2], kept.few()));
    let said = file("c").read(2).expect_err("another one").to_string();
    assert!(said.contains("from bucket `a` to bucket `b`"), "{said}");
    let said = with("a", "all documents").read(2).expect_err("another choice").to_string();
    assert!(said.contains("--filter ^a") && said.contains("all documents"), "{said}");
    assert!(file("a").read(4).expect_err("another number").to_string().contains("2 vBuckets"));
    // As it was written before points were noted.
    let name = base::SmallFile::new(folder.path(), "file");
    name.write(&*env.disk, br#"{"from_bucket":"a","to_bucket":"b","vbuckets":[[3,9,9,9],[3,9,9,9]]}"#)
        .expect("written");
    let (positions, none) = file("a").read(2).expect("read").expect("a file");
    assert_eq!((positions, none.few().len()), (vec![position; 2], 0));
}
