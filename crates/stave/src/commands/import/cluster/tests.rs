//! A bucket that is moved in from another server in the same process while it is written to.

use std::sync::Condvar;
use std::time::Duration;

use super::*;
use crate::test_server::{TestServer, contents, differences};

/// How long a test waits for what has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn flags(more: &[&str]) -> MoveInFlags {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: MoveInFlags,
    }
    let line: Line = clap::Parser::parse_from(["cluster", "couchbase://there"].iter().chain(more));
    line.flags
}

/// A move on a thread of its own.
struct Move<'a> {
    interrupted: &'a AtomicBool,
    ordered: &'a AtomicBool,
    told: &'a (Mutex<(MoveCounts, bool)>, Condvar),
}

impl Move<'_> {
    fn wait(&self, what: &str, is_so: impl Fn(&MoveCounts) -> bool) {
        let guard = self.told.0.lock().expect("sound");
        let lacks = |state: &mut (MoveCounts, bool)| !is_so(&state.0) && !state.1;
        let (guard, timeout) = self.told.1.wait_timeout_while(guard, PATIENCE, lacks).expect("sound");
        assert!(!timeout.timed_out() && (!guard.1 || is_so(&guard.0)), "{what}: {guard:?}");
    }
}

/// Moves while `work` does; what came of it.
fn moving(
    from: &TestServer,
    to: &TestServer,
    more: &[&str],
    work: impl FnOnce(&Move<'_>),
) -> anyhow::Result<(MoveCounts, SentCounts)> {
    let flags = flags(more);
    let (interrupted, ordered) = (AtomicBool::new(false), AtomicBool::new(flags.switch));
    let told = (Mutex::new((MoveCounts::default(), false)), Condvar::new());
    let (source, target) = (from.target(), to.target());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let env = Env::real();
            let options = MoveOptions {
                command: "import cluster",
                choice: &flags.choice,
                checkpoint: flags.checkpoint.as_deref(),
                conflicts: None,
                source_flags: FlagNames::USUAL,
                target_flags: FlagNames::USUAL,
                until_caught_up: flags.until_caught_up,
            };
            let done = move_in(&env, &source, target, &options, &interrupted, &ordered, &|news| {
                if let MoveNews::Following(counts) = news {
                    told.0.lock().expect("sound").0 = counts.clone();
                    told.1.notify_all();
                }
            });
            told.0.lock().expect("sound").1 = true;
            told.1.notify_all();
            let Moved { counts, sent, failed } = done?;
            failed.map_or(Ok((counts, sent)), Err)
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            work(&Move { interrupted: &interrupted, ordered: &ordered, told: &told });
        }));
        if worked.is_err() {
            interrupted.store(true, Ordering::Relaxed);
        }
        let done = thread.join().expect("no panic");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done
    })
}

#[test]
fn a_bucket_is_moved_in_while_it_is_written_to() {
    let (mut from, mut to) = (TestServer::start(), TestServer::start());
    let env = Env::real();
    let mut client = from.client();
    for at in 0..500 {
        client.set(format!("old{at}").as_bytes(), b"{\"of\":\"before\"}", 0).expect("stored");
    }
    for at in 0..50 {
        client.delete(format!("old{at}").as_bytes()).expect("an answer");
    }
    let http = from.http_target();
    let scopes = "/pools/default/buckets/default/scopes";
    http.form(scopes, &[("name", "app")]).expect("a scope");
    http.form(&format!("{scopes}/app/collections"), &[("name", "early")]).expect("a collection");
    let file = tempfile::tempdir().expect("a folder");
    let path = file.path().join("move").to_str().expect("text").to_owned();
    let checkpoint = ["--checkpoint", &path];
    // Broken off, and gone on with.
    let (counts, sent) = moving(&from, &to, &checkpoint, |moved| {
        moved.wait("it has caught up", |counts| counts.behind == Some(0));
        moved.interrupted.store(true, Ordering::Relaxed);
    })
    .expect("moved");
    assert_eq!((counts.end, sent.documents, sent.tombstones), (MoveEnd::Interrupted, 450, 50));
    let (counts, sent) = moving(&from, &to, &checkpoint, |moved| {
        for at in 0..2_000_u32 {
            let key = format!("k{}", at % 300);
            if at % 7 == 6 {
                client.delete(key.as_bytes()).expect("an answer");
            } else {
                let expiry = if at % 3 == 0 { 4_000_000_000 } else { 0 };
                client.set(key.as_bytes(), format!("{{\"at\":{at}}}").as_bytes(), expiry).expect("stored");
            }
            if at == 1_000 {
                http.form(&format!("{scopes}/app/collections"), &[("name", "late")]).expect("a collection");
                for name in ["app.early", "app.late"] {
                    let mut cluster =
                        crate::client::Cluster::open(&env, from.target(), &[]).expect("a cluster");
                    cluster.use_collection(name).expect("it is there");
                    cluster.set(b"k", name.as_bytes(), 0).expect("stored");
                }
            }
        }
        // Applications have stopped writing.
        moved.ordered.store(true, Ordering::Relaxed);
    })
    .expect("moved");
    let MoveEnd::Switched(ns) = counts.end else { panic!("{counts:?}") };
    println!("{} changes, switched after {} ms", counts.changes, ns / 1_000_000);
    assert!(
        sent.documents > 0 && sent.documents <= 2_002 && counts.changes < 2_500,
        "it went on: {counts:?}"
    );
    assert_eq!(differences(&from, &to), Vec::<String>::new());
    assert!(contents(&to).contains_key(&("app.late".to_owned(), b"k".to_vec())));
    // Another bucket's file.
    let said = moving(&from, &to, &["--checkpoint", &path, "--until-caught-up"], |_| {}).expect("it goes on");
    assert_eq!((said.0.end, said.0.changes), (MoveEnd::CaughtUp, 0));
    drop(client);
    from.stop();
    to.stop();
}

#[test]
fn what_is_written_here_meanwhile_is_merged() {
    let (mut from, mut to) = (TestServer::start(), TestServer::start());
    let (mut there, mut here) = (from.client(), to.client());
    for key in ["once", "often", "mine"] {
        there.set(key.as_bytes(), b"there", 0).expect("stored");
    }
    there.set(b"often", b"there again", 0).expect("stored");
    here.set(b"often", b"here", 0).expect("stored");
    for _ in 0..3 {
        here.set(b"mine", b"here", 0).expect("stored");
    }
    let caught_up = |more: &[&str]| {
        let more: Vec<&str> = ["--until-caught-up"].iter().chain(more).copied().collect();
        moving(&from, &to, &more, |_| {}).expect("moved").1
    };
    let sent = caught_up(&["--filter", "^o", "--map", "_default._default=_default.other"]);
    assert_eq!((sent.documents, sent.conflicts), (2, 0));
    let sent = caught_up(&[]);
    assert_eq!((sent.documents, sent.conflicts), (2, 1), "the one with fewer changes gives way");
    let mut value = |key: &[u8]| here.get(key).expect("an answer").expect("it is there").value;
    assert_eq!(
        (value(b"once"), value(b"often"), value(b"mine")),
        (b"there".to_vec(), b"there again".to_vec(), b"here".to_vec())
    );
    caught_up(&["--conflict", "force"]);
    assert_eq!(value(b"mine"), b"there");
    let env = Env::real();
    let mut cluster = crate::client::Cluster::open(&env, to.target(), &[]).expect("a cluster");
    cluster.use_collection("_default.other").expect("it was made");
    assert!(cluster.get(b"once").expect("an answer").is_some());
    assert!(cluster.get(b"mine").expect("an answer").is_none());
    drop((there, here, cluster));
    from.stop();
    to.stop();
}

#[test]
fn only_the_word_itself_is_the_order_to_switch() {
    for (line, is_it) in [("switch", true), (" switch ", true), ("swich", false), ("", false)] {
        assert_eq!(is_order(line), is_it, "{line:?}");
    }
}
