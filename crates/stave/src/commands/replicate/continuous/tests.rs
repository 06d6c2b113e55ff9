//! Buckets of two servers in the same process, one of which follows the other, or both each other.

use std::sync::Condvar;

use base::{Seqno, VbId, VbState};
use clap::Parser;

use super::*;
use crate::test_server::{TestServer, differences};

/// How long a test waits for what has to happen.
const TEST_PATIENCE: Duration = Duration::from_secs(60);

fn flags(more: &[&str]) -> ContinuousFlags {
    #[derive(Parser)]
    struct Line {
        #[arg(long)]
        vbuckets: Option<String>,
        #[arg(long)]
        timeout: Option<String>,
        #[command(flatten)]
        flags: ContinuousFlags,
    }
    Line::parse_from(["replicate", "--continuous"].iter().chain(more)).flags
}

/// What a direction said last, all trouble, and whether it has ended.
#[derive(Debug, Default)]
struct Said {
    counts: MoveCounts,
    trouble: Vec<String>,
    is_over: bool,
}

/// One direction that goes on.
struct Following<'a> {
    interrupted: &'a AtomicBool,
    told: &'a (Mutex<Said>, Condvar),
}

impl Following<'_> {
    fn wait(&self, what: &str, is_so: impl Fn(&MoveCounts) -> bool) {
        let guard = self.told.0.lock().expect("sound");
        let lacks = |said: &mut Said| !is_so(&said.counts) && !said.is_over;
        let (guard, timeout) = self.told.1.wait_timeout_while(guard, TEST_PATIENCE, lacks).expect("sound");
        assert!(!timeout.timed_out() && !guard.is_over, "{what}: {guard:?}");
    }

    fn wait_until_same(&self, from: &TestServer, to: &TestServer) {
        let begun = std::time::Instant::now();
        loop {
            let differing = differences(from, to);
            if differing.is_empty() {
                return;
            }
            let said = self.told.0.lock().expect("sound");
            let goes_on = !said.is_over && begun.elapsed() < TEST_PATIENCE;
            assert!(goes_on, "{} differ: {:?}; {said:?}", differing.len(), differing.first());
        }
    }
}

/// Replicates in one direction while `work` does.
fn following(
    from: &TestServer,
    to: &TestServer,
    more: &[&str],
    work: impl FnOnce(&Following<'_>),
) -> anyhow::Result<Total> {
    let (flags, env) = (flags(more), Env::real());
    let interrupted = AtomicBool::new(false);
    let told = (Mutex::new(Said::default()), Condvar::new());
    let (source, target) = (from.target(), to.target());
    let tell = |news: MoveNews<'_>| {
        let mut last = told.0.lock().expect("sound");
        match news {
            MoveNews::Following(counts) => last.counts = counts.clone(),
            MoveNews::Trouble(trouble) => last.trouble.push(trouble),
        }
        told.1.notify_all();
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let done = replicate(&env, &source, &target, &flags, &interrupted, &tell);
            let mut last = told.0.lock().expect("sound");
            last.is_over = true;
            last.trouble.extend(done.as_ref().err().map(|error| format!("{error:#}")));
            told.1.notify_all();
            done
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            work(&Following { interrupted: &interrupted, told: &told });
        }));
        interrupted.store(true, Ordering::Relaxed);
        let done = thread.join().expect("no panic");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done
    })
}

/// A file of a test's own.
fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("text").to_owned()
}

#[test]
fn what_the_other_bucket_loses_in_a_failover_is_sent_again() {
    let (mut from, mut to) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = from.client();
    let done = following(&from, &to, &["--checkpoint", &path(&folder, "there")], |following| {
        for round in 0..3 {
            for at in 0..200 {
                client.set(format!("k{round}-{at}").as_bytes(), b"{\"of\":\"here\"}", 0).expect("stored");
            }
            following.wait_until_same(&from, &to);
        }
        // A replica that lacked the last changes takes over; of one vBucket it had none.
        let bucket = to.bucket();
        for (vb, keeps) in [(0, 2), (1, 0)] {
            let vb = VbId(vb);
            let high = bucket.with_vbucket(vb, |vb| vb.high_seqno().0).expect("it is there");
            bucket.roles().set_vbucket_state(vb, VbState::Replica, None).expect("a replica");
            bucket.roles().rollback(vb, Seqno(high * keeps / 3)).expect("a replica").expect("the disk works");
            assert!(bucket.with_vbucket(vb, |vb| vb.high_seqno().0) < Some(high), "it loses something");
            bucket.roles().set_vbucket_state(vb, VbState::Active, None).expect("active");
        }
        following.wait("it sees the loss", |counts| counts.lost_here >= 2);
        following.wait_until_same(&from, &to);
    })
    .expect("it goes on");
    assert!(done.sent_again == 2 && done.attempts == 1 && done.sent.documents > 600, "{:?}", done.sent);
    // Once more while nobody looks: the checkpoint knows what was there.
    let bucket = to.bucket();
    bucket.roles().set_vbucket_state(VbId(2), VbState::Replica, None).expect("a replica");
    bucket.roles().rollback(VbId(2), Seqno(1)).expect("a replica").expect("the disk works");
    bucket.roles().set_vbucket_state(VbId(2), VbState::Active, None).expect("active");
    let again = ["--checkpoint", &path(&folder, "there")];
    let done = following(&from, &to, &again, |following| following.wait_until_same(&from, &to));
    assert_eq!(done.expect("it goes on").sent_again, 1);
    drop((client, bucket));
    from.stop();
    to.stop();
}

/// A document or a tombstone with the attributes that mobile clients and their gateways write, as another cluster sends it.
fn store_mobile(server: &TestServer, key: &str, revision: u64, is_deleted: bool) {
    let pairs = [
        (
            "_sync",
            format!("{{\"rev\":\"{revision}-abc\",\"sequence\":{revision},\"cas\":\"0x{revision:016x}\"}}"),
        ),
        ("_vv", format!("{{\"cvCas\":\"0x{revision:016x}\",\"src\":\"s\",\"ver\":\"0x1\"}}")),
        ("_mou", format!("{{\"cas\":\"0x{revision:016x}\",\"pRev\":\"{}\"}}", revision - 1)),
    ];
    let mut section = Vec::new();
    for (name, value) in &pairs {
        let pair = [name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
        section.extend_from_slice(&(pair.len() as u32).to_be_bytes());
        section.extend_from_slice(&pair);
    }
    let body: &[u8] = if is_deleted { b"" } else { b"{\"of\":\"a phone\"}" };
    let value = [&(section.len() as u32).to_be_bytes()[..], &section, body].concat();
    let plain = if is_deleted { base::Datatype::RAW } else { base::Datatype::JSON };
    store_as_sent(server, key, revision, is_deleted, (&value, plain.with(base::Datatype::XATTR)));
}

/// A document or a tombstone as another cluster sends it; the CAS follows from the revision.
fn store_as_sent(
    server: &TestServer,
    key: &str,
    revision: u64,
    is_deleted: bool,
    (value, datatype): (&[u8], base::Datatype),
) {
    let kind = if is_deleted { base::ItemKind::Deletion } else { base::ItemKind::Mutation };
    let meta = base::VersionMeta {
        cas: base::Cas((1_700_000_000_000_000_000 + (revision << 20)) & !0xffff),
        rev_seqno: base::RevSeqno(revision),
        kind,
        ..base::VersionMeta::default()
    };
    let request = engine::WithMetaRequest {
        key: base::DocKey::new(key.as_bytes()),
        value,
        datatype,
        meta,
        add: false,
        expected: base::Cas::ANY,
        force: true,
        regenerate_cas: false,
        late: None,
    };
    let bucket = server.bucket();
    let vb = base::vbucket_map::vbucket_of(key.as_bytes(), bucket.vbuckets());
    bucket.documents().apply_with_meta(vb, &request, bucket.now()).expect("it is stored");
}

#[test]
fn attributes_of_mobile_clients_come_along_with_documents_and_tombstones() {
    let (mut from, mut to) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    (0..60).for_each(|at| store_mobile(&from, &format!("m{at}"), 2 + at, false));
    let done = following(&from, &to, &["--checkpoint", &path(&folder, "mobile")], |following| {
        following.wait_until_same(&from, &to);
        (0..60).for_each(|at| store_mobile(&from, &format!("m{at}"), 100 + at, at % 3 == 0));
        following.wait_until_same(&from, &to);
    });
    done.expect("it goes on");
    let there = crate::test_server::contents(&to);
    let (mut documents, mut tombstones) = (0, 0);
    for ((_, key), (is_deleted, _, revision, .., value)) in &there {
        let text = String::from_utf8_lossy(value);
        assert!(*revision >= 100, "{key:?}");
        for attribute in ["_sync", "_vv", "_mou"] {
            assert!(text.contains(attribute), "{attribute} of {key:?} is missing: {text}");
        }
        assert!(text.contains(&format!("\"sequence\":{revision}")), "{text}");
        *if *is_deleted { &mut tombstones } else { &mut documents } += 1;
    }
    assert_eq!((documents, tombstones), (40, 20));
    from.stop();
    to.stop();
}

#[test]
fn two_buckets_that_follow_each_other_become_the_same_after_each_partition() {
    const PARTITIONS: u32 = 20;
    let (mut east, mut west) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let (there, home, log) = (path(&folder, "there"), path(&folder, "back"), path(&folder, "conflicts"));
    let write = |server: &TestServer, name: &str, partition: u32| {
        let mut client = server.client();
        for at in 0..60_u32 {
            let key = format!("k{}", (at * 7 + partition * 13 + name.len() as u32) % 40);
            if at % 5 == 4 {
                client.delete(key.as_bytes()).expect("an answer");
            } else {
                let value = format!("{{\"of\":\"{name}\",\"partition\":{partition},\"at\":{at}}}");
                let expiry = if at % 3 == 0 { 4_000_000_000 } else { 0 };
                client.set(key.as_bytes(), value.as_bytes(), expiry).expect("stored");
            }
        }
    };
    let (mut conflicts, mut documents) = (0, 0);
    for partition in 0..PARTITIONS {
        // Nothing passes between them while both are written to.
        write(&east, "east", partition);
        write(&west, "west", partition);
        let mut of_back = None;
        let arguments = ["--checkpoint", &there, "--conflict-log", &log];
        let of_there = following(&east, &west, &arguments, |_| {
            of_back =
                Some(following(&west, &east, &["--checkpoint", &home, "--conflict-log", &log], |back| {
                    // And some while both are connected.
                    write(&east, "both east", partition);
                    write(&west, "both west", partition);
                    back.wait_until_same(&east, &west);
                }));
        });
        for total in [of_there.expect("it goes on"), of_back.expect("it ran").expect("it goes on")] {
            assert_eq!((total.attempts, total.sent_again), (1, 0));
            conflicts += total.sent.conflicts - total.sent.had_already;
            documents += total.sent.documents + total.sent.tombstones;
        }
        assert_eq!(differences(&east, &west), Vec::<String>::new());
    }
    let lines = std::fs::read_to_string(&log).expect("a file");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    println!("{documents} sent, {conflicts} left as they were, in {PARTITIONS} partitions");
    assert!(conflicts > 0 && lines.len() as u64 == conflicts, "{} lines, {conflicts}", lines.len());
    for line in &lines {
        let is_same = |field: &str| line["kept"][field] == line["left_out"][field];
        assert_eq!(line["tie"], is_same("cas") && is_same("revision"), "{line}");
        assert!(line["key"].is_string(), "{line}");
    }
    east.stop();
    west.stop();
}

/// Both sides gave a document the same CAS and revision: what they do not agree on decides, in both places the same way.
#[test]
fn two_versions_with_the_same_metadata_become_one() {
    // What is there and what is here, a tombstone without a text, and whether the one from there is left out here.
    const TIES: &[(&str, Option<&str>, Option<&str>, bool)] = &[
        ("less", Some("\"a\""), Some("\"b\""), true),
        ("more", Some("\"b\""), Some("\"a\""), false),
        ("shorter", Some("\"a\""), Some("\"a\" "), true),
        ("empty", Some(""), Some("x"), true),
        ("deleted there", None, Some("x"), true),
        ("deleted here", Some("x"), None, false),
    ];
    let (mut east, mut west) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let (there, home, log) = (path(&folder, "there"), path(&folder, "back"), path(&folder, "conflicts"));
    let store = |server: &TestServer, key: &str, text: Option<&str>| {
        let json = if text.is_some_and(|text| text.starts_with('"')) {
            base::Datatype::JSON
        } else {
            base::Datatype::RAW
        };
        store_as_sent(server, key, 7, text.is_none(), (text.unwrap_or_default().as_bytes(), json));
    };
    for (key, of_east, of_west, _) in TIES {
        store(&east, key, *of_east);
        store(&west, key, *of_west);
    }
    store_mobile(&east, "attributes", 9, false);
    store_as_sent(&west, "attributes", 9, false, (b"{\"of\":\"a phone\"}", base::Datatype::JSON));
    [&east, &west].into_iter().for_each(|server| store(server, "same", Some("\"c\"")));
    // Values that are compared are fetched first.
    let bucket = west.bucket();
    assert!(bucket.flushing().flush_all());
    for key in ["less", "more", "same"] {
        let vb = base::vbucket_map::vbucket_of(key.as_bytes(), bucket.vbuckets());
        assert!(
            bucket.eviction().evict_value(vb, base::DocKey::new(key.as_bytes())).expect("it is there"),
            "{key}"
        );
    }
    let arguments = ["--checkpoint", &there, "--conflict-log", &log];
    let all = TIES.len() as u64 + 2;
    let done = following(&east, &west, &arguments, |following| {
        following.wait("it has sent all", |counts| counts.behind == Some(0));
    })
    .expect("it goes on");
    let lost: Vec<_> = TIES.iter().filter(|(.., is_left_out)| *is_left_out).map(|(key, ..)| *key).collect();
    let sent = &done.sent;
    assert_eq!((sent.conflicts, sent.had_already), (lost.len() as u64 + 1, 1), "{sent:?}");
    assert_eq!(sent.documents + sent.tombstones + sent.conflicts, all, "{sent:?}");
    let lines = std::fs::read_to_string(&log).expect("a file");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut named: Vec<_> = lines.iter().map(|line| line["key"].as_str().expect("a key")).collect();
    named.sort_by_key(|key| lost.iter().position(|one| one == key));
    assert_eq!(named, lost);
    assert!(lines.iter().all(|line| line["tie"] == true), "{lines:?}");
    let done = following(&west, &east, &["--checkpoint", &home], |back| back.wait_until_same(&west, &east));
    assert_eq!(done.expect("it goes on").sent.tombstones, 0, "documents win over tombstones");
    drop(bucket);
    east.stop();
    west.stop();
}

#[test]
fn what_goes_wrong_is_tried_again_and_what_cannot_begin_is_refused() {
    let (mut from, mut to) = (TestServer::start(), TestServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let (there, env) = (path(&folder, "there"), Env::real());
    let mut client = from.client();
    let arguments = ["--checkpoint", &there, "--collections", "none.such"];
    let ended = |following: &Following<'_>| {
        let said = following.told.0.lock().expect("sound");
        drop(following.told.1.wait_while(said, |said| !said.is_over).expect("sound"));
    };
    let refused = following(&from, &to, &arguments, ended).err().expect("refused").to_string();
    assert!(refused.contains("none.such"), "{refused}");
    client.set(b"k", b"1", 0).expect("stored");
    let http = to.http_target();
    let scopes = "/pools/default/buckets/default/scopes";
    let here = from.http_target();
    here.form(scopes, &[("name", "app")]).expect("a scope");
    here.form(&format!("{scopes}/app/collections"), &[("name", "early")]).expect("a collection");
    let done = following(&from, &to, &["--checkpoint", &there], |following| {
        following.wait("it has sent all", |counts| counts.behind == Some(0));
        // It is dropped there, and sent to again: then it is made again.
        http.send("DELETE", &format!("{scopes}/app"), &[]).expect("dropped");
        let mut cluster = crate::client::Cluster::open(&env, from.target(), &[]).expect("a cluster");
        cluster.use_collection("app.early").expect("it is there");
        cluster.set(b"late", b"2", 0).expect("stored");
        let has_it = || {
            let mut cluster = crate::client::Cluster::open(&env, to.target(), &[]).expect("a cluster");
            cluster.use_collection("app.early").is_ok() && matches!(cluster.get(b"late"), Ok(Some(_)))
        };
        let begun = std::time::Instant::now();
        while !has_it() {
            assert!(begun.elapsed() < TEST_PATIENCE, "{:?}", following.told.0.lock().expect("sound"));
        }
        following.interrupted.store(true, Ordering::Relaxed);
    })
    .expect("it goes on");
    assert!(done.attempts >= 2, "{} attempts", done.attempts);
    drop(client);
    from.stop();
    to.stop();
}
