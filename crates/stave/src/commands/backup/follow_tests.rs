//! A bucket that is followed while it is written to, and restored at moments.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::backup::{AtMoment, FollowCounts, FollowNews, FollowOptions, MomentReader, Version, WantedMoment};
use crate::backup::{GapSet, follow_bucket};
use crate::test_server::{BUCKET, TestServer};
use crate::units::{moment_text, parse_utc};
use base::VbId;
use base::env::{Clock, RealClock};
use base::vbucket_map::vbucket_of;

/// How long a test waits for what has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// The clock of a node's CAS has a grain of 65,536 ns; what is made later than this has a later CAS.
const GRAIN_NS: u64 = 1 << 17;

pub(super) type State = BTreeMap<(u32, String), String>;

/// A follower on a thread of its own.
pub(super) struct Follower<'a> {
    interrupted: &'a AtomicBool,
    told: &'a Told,
}

/// What the follower has told: up to which moment the log has everything, how many versions came, and whether it has ended.
type Told = (Mutex<(u64, u64, bool)>, Condvar);

impl Follower<'_> {
    /// Waits until the log has everything up to now; a moment that is a bit later than everything that was done.
    pub(super) fn catch_up(&self, env: &Env) -> u64 {
        let moment = later(env);
        self.wait(&|horizon, _| horizon > moment);
        moment
    }

    /// Waits until commits count from when they come: streams have begun, and a question that was asked behind that is
    /// answered.
    pub(super) fn is_live(&self, env: &Env) {
        self.catch_up(env);
        self.catch_up(env);
    }

    /// Waits until so many versions came.
    pub(super) fn has_versions(&self, count: u64) {
        self.wait(&|_, versions| versions >= count);
    }

    fn wait(&self, is_enough: &dyn Fn(u64, u64) -> bool) {
        let (state, moved) = self.told;
        let guard = state.lock().expect("sound");
        let lacks = |state: &mut (u64, u64, bool)| !is_enough(state.0, state.1) && !state.2;
        let (guard, timeout) = moved.wait_timeout_while(guard, PATIENCE, lacks).expect("sound");
        assert!(!timeout.timed_out() && !guard.2, "the log has {guard:?} only");
    }
}

/// A moment that is later than what was done, and earlier than what will be.
pub(super) fn later(env: &Env) -> u64 {
    let pass = |ns: u64| {
        let begun = env.clock.unix_ns();
        while env.clock.unix_ns() < begun + ns {
            std::hint::spin_loop();
        }
    };
    pass(GRAIN_NS);
    let moment = env.clock.unix_ns();
    pass(GRAIN_NS);
    moment
}

/// Follows while `work` does; what came of it.
pub(super) fn followed(server: &TestServer, dir: &Path, work: impl FnOnce(&Follower<'_>)) -> FollowCounts {
    let env = Env::real();
    followed_in(&env, server, &Repository::new(&env, dir), work)
}

/// The same at any place, and with a clock that is not this machine's.
pub(super) fn followed_in(
    env: &Env,
    server: &TestServer,
    repository: &Repository<'_>,
    work: impl FnOnce(&Follower<'_>),
) -> FollowCounts {
    let (interrupted, told) = (AtomicBool::new(false), (Mutex::new((0, 0, false)), Condvar::new()));
    let target = server.target();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let options = FollowOptions { base_every: PATIENCE * 60, ..FollowOptions::default() };
            let counts = follow_bucket(env, &target, repository, &options, &interrupted, &|news| {
                if let FollowNews::Following(counts) = news {
                    let mut state = told.0.lock().expect("sound");
                    (state.0, state.1) = (counts.horizon, counts.versions);
                    told.1.notify_all();
                }
            });
            told.0.lock().expect("sound").2 = true;
            told.1.notify_all();
            counts
        });
        let follower = Follower { interrupted: &interrupted, told: &told };
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&follower)));
        follower.interrupted.store(true, Ordering::Relaxed);
        let counts = thread.join().expect("no panic").expect("followed");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        counts
    })
}

/// The documents at a moment.
pub(super) fn state(dir: &Path, wanted: &WantedMoment) -> Result<(AtMoment, State), BackupError> {
    let env = Env::real();
    state_in(&Repository::new(&env, dir), wanted)
}

/// The same at any place.
pub(super) fn state_in(
    repository: &Repository<'_>,
    wanted: &WantedMoment,
) -> Result<(AtMoment, State), BackupError> {
    let log = ChangeLog::open(repository, BUCKET)?;
    let at = log.resolve(repository, BUCKET, wanted, 0)?;
    let mut state = State::new();
    {
        let mut reader = MomentReader::open(repository, &log, &at)?;
        let ended = reader.collections()?.ended;
        for vb in 0..reader.manifest().vbuckets {
            reader.newest(VbId(vb), &mut |version: &Version<'_>| -> Result<(), BackupError> {
                let one = &version.record;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                if !one.deleted && !ended.contains(&one.key.collection.0) {
                    state.insert((one.key.collection.0, text(one.key.key)), text(one.value));
                }
                Ok(())
            })?;
        }
    }
    Ok((at, state))
}

/// The nearest moment that a refusal names.
fn nearest(error: &BackupError) -> u64 {
    let said = error.to_string();
    let named = said.split("that it has ").nth(1).and_then(|text| text.split(' ').nth(1));
    let named = named.map(|text| text.trim_end_matches(';'));
    parse_utc(named.expect(&said)).expect(&said)
}

/// Gaps of a log as `stave backup list` tells them, and how long they take.
fn gaps_of_log(dir: &Path) -> (u64, u64) {
    let env = Env::real();
    let log = ChangeLog::open(&Repository::new(&env, dir), BUCKET).expect("read");
    let inside = super::log::gap_ranges(&log).expect("read");
    let of_epochs = || inside.iter().flat_map(GapSet::ranges);
    (of_epochs().count() as u64, of_epochs().map(|(from, to)| to - from).sum())
}

#[test]
fn each_moment_of_a_followed_bucket_can_be_restored() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env) = (folder.path(), Env::real());
    let mut client = server.client();
    let mut model = State::new();
    for at in 0..50 {
        client.set(format!("old{at}").as_bytes(), b"of the backup", 0).expect("stored");
        model.insert((0, format!("old{at}")), "of the backup".to_owned());
    }
    let mut history: Vec<(u64, State)> = Vec::new();
    let counts = followed(&server, dir, |follower| {
        follower.catch_up(&env);
        history.push((follower.catch_up(&env), model.clone()));
        for at in 0..150_u32 {
            let key = format!("k{}", at % 17);
            if at % 5 == 4 {
                client.delete(key.as_bytes()).expect("an answer");
                model.remove(&(0, key));
            } else {
                client.set(key.as_bytes(), format!("{at}").as_bytes(), 0).expect("stored");
                model.insert((0, key), format!("{at}"));
            }
            history.push((later(&env), model.clone()));
        }
        follower.catch_up(&env);
    });
    assert!(counts.versions > 140 && counts.epochs == 1, "{counts:?}");
    assert_eq!((counts.gaps, counts.gaps_ns), gaps_of_log(dir), "one number, by the follower and by the log");
    // The next one goes on, and has what was made while none followed.
    client.set(b"meanwhile", b"1", 0).expect("stored");
    model.insert((0, "meanwhile".to_owned()), "1".to_owned());
    let counts = followed(&server, dir, |follower| {
        history.push((follower.catch_up(&env), model.clone()));
    });
    assert_eq!((counts.epochs, counts.backups), (0, 0), "{counts:?}");
    let mut compared = 0;
    for (moment, model) in &history {
        match state(dir, &WantedMoment::At(*moment)) {
            Ok((_, state)) => {
                assert_eq!(state, *model, "at {moment}");
                compared += 1;
            }
            // A slow follower misses what was replaced before it came.
            Err(error) => assert!(nearest(&error) < *moment, "{error}"),
        }
    }
    println!("{compared} of {} moments compared, {} gaps", history.len(), counts.gaps);
    assert!(compared >= 100, "{compared} of {}", history.len());
    // The same by the command, into another node.
    let mut other = TestServer::start();
    let (moment, model) = &history[40];
    let at = moment_text(*moment);
    let force = ["--at", &at, "--conflict", "force", "--tolerance", "10s"];
    let sent = super::tests::restored(&other, dir, &force).expect("restored");
    assert_eq!(sent.documents, model.len() as u64, "{sent:?}");
    let (_, before) =
        state(dir, &WantedMoment::Before(vec![b"\0meanwhile".to_vec()])).expect("it was changed");
    assert!(!before.contains_key(&(0, "meanwhile".to_owned())));
    drop(client);
    server.stop();
    other.stop();
}

#[test]
fn the_follower_and_the_log_count_gaps_alike() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env) = (folder.path(), Env::real());
    let mut client = server.client();
    let mut in_log = Vec::new();
    // Of what is changed again and again while none follows, a part is missing.
    for round in 0..2 {
        for at in 0..20 * round {
            client.set(b"meanwhile", format!("{at}").as_bytes(), 0).expect("stored");
        }
        let counts = followed(&server, dir, |follower| {
            follower.catch_up(&env);
        });
        assert_eq!(counts.gaps, round, "{counts:?}");
        in_log.push((gaps_of_log(dir), (counts.gaps, counts.gaps_ns)));
    }
    assert!(in_log.iter().all(|(log, follower)| log == follower) && in_log[1].0.1 > 0, "{in_log:?}");
    drop(client);
    server.stop();
}

#[test]
fn collections_come_and_go_with_the_moments() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env) = (folder.path(), Env::real());
    let http = server.http_target();
    let scopes = "/pools/default/buckets/default/scopes";
    http.form(scopes, &[("name", "app")]).expect("a scope");
    let mut moments = Vec::new();
    followed(&server, dir, |follower| {
        follower.catch_up(&env);
        http.form(&format!("{scopes}/app/collections"), &[("name", "made")]).expect("a collection");
        // Events have no moment of their own but the one at which the follower hears of them: a document that was made
        // before counts from then.
        follower.catch_up(&env);
        follower.catch_up(&env);
        let mut cluster = crate::client::Cluster::open(&env, server.target(), &[]).expect("a cluster");
        cluster.use_collection("app.made").expect("it is there");
        cluster.set(b"k", b"in a collection", 0).expect("stored");
        moments.push(follower.catch_up(&env));
        http.request("DELETE", &format!("{scopes}/app/collections/made"), None).expect("dropped");
        follower.catch_up(&env);
        moments.push(follower.catch_up(&env));
    });
    let (_, with) = state(dir, &WantedMoment::At(moments[0])).expect("it is there");
    assert_eq!(with.values().collect::<Vec<_>>(), ["in a collection"]);
    let (_, without) = state(dir, &WantedMoment::At(moments[1])).expect("it is there");
    assert_eq!(without, State::new());
    let mut other = TestServer::start();
    let at = moment_text(moments[0]);
    let sent = super::tests::restored(&other, dir, &["--at", &at]).expect("restored");
    assert_eq!(sent.documents, 1, "{sent:?}");
    let mut there = crate::client::Cluster::open(&env, other.target(), &[]).expect("a cluster");
    there.use_collection("app.made").expect("it was made");
    drop(there);
    server.stop();
    other.stop();
}

#[test]
fn a_bucket_that_was_emptied_begins_another_part_of_the_log() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env) = (folder.path(), Env::real());
    let mut client = server.client();
    for at in 0..40 {
        client.set(format!("k{at}").as_bytes(), b"old", 0).expect("stored");
    }
    let mut moments = Vec::new();
    let counts = followed(&server, dir, |follower| {
        follower.catch_up(&env);
        moments.push(follower.catch_up(&env));
        server
            .http_target()
            .form("/pools/default/buckets/default", &[("flushEnabled", "1")])
            .expect("allowed");
        let flush = "/pools/default/buckets/default/controller/doFlush";
        server.http_target().form(flush, &[]).expect("emptied");
        drop(std::mem::replace(&mut client, server.client()));
        client.set(b"new", b"new", 0).expect("stored");
        // Behind the moment at which the other part of the log begins.
        follower.catch_up(&env);
        moments.push(follower.catch_up(&env));
    });
    assert_eq!(counts.epochs, 2, "{counts:?}");
    let (_, before) = state(dir, &WantedMoment::At(moments[0])).expect("it is there");
    assert_eq!(before.len(), 40);
    let (_, after) = state(dir, &WantedMoment::At(moments[1])).expect("it is there");
    assert_eq!(after.values().collect::<Vec<_>>(), ["new"]);
    let report = log::report(&Repository::new(&env, dir), BUCKET, true).expect("sound").expect("a log");
    assert!(
        report.text.contains("no moments for") && report.text.contains("went back to seqno"),
        "{}",
        report.text
    );
    drop(client);
    server.stop();
}

#[test]
fn one_follower_writes_a_log_and_ages_are_read() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let env = Env::real();
    let repository = Repository::new(&env, folder.path());
    let interrupted = AtomicBool::new(false);
    let options = FollowOptions { once_caught_up: true, base_every: PATIENCE, ..FollowOptions::default() };
    followed(&server, folder.path(), |follower| {
        follower.catch_up(&env);
        let said = follow_bucket(&env, &server.target(), &repository, &options, &interrupted, &|_| {});
        let said = said.expect_err("another one does").to_string();
        assert!(said.contains("another process works on the log"), "{said}");
        // A backup by itself disturbs nothing.
        let taken =
            take(&env, &server.target(), &repository, &TakeOptions::default(), &interrupted, &mut |_| {});
        assert!(taken.is_ok());
    });
    let counts = follow_bucket(&env, &server.target(), &repository, &options, &interrupted, &|_| {});
    assert!(counts.expect("it ends by itself").horizon > 0);
    assert_eq!(parse_keep("7"), Ok(Keep::Newest(7)));
    assert_eq!(parse_keep("2h"), Ok(Keep::Age(7200)));
    assert_eq!(parse_keep("7d"), Ok(Keep::Age(7 * 86_400)));
    for wrong in ["0", "", "x", "7y", "-1"] {
        assert!(parse_keep(wrong).is_err(), "{wrong}");
    }
    let store = ObjectStoreFlags::default();
    let kept = KeptFlags { dir: folder.path().to_owned(), store, bucket: None, json: true };
    prune(&env, &PruneFlags { kept: kept.clone(), keep: Keep::Age(3600), dry_run: false })
        .expect("nothing old");
    assert_eq!(verify(&env, &OneFlags { kept: kept.clone(), id: None }).expect("read"), Outcome::Done);
    assert_eq!(list(&env, &kept).expect("read"), Outcome::Done);
    let mut ranges = GapSet::default();
    [(10, 20), (30, 40), (15, 31), (50, 60), (60, 70)].iter().for_each(|(from, to)| ranges.add(*from, *to));
    assert_eq!(ranges.ranges().collect::<Vec<_>>(), [(10, 40), (50, 60), (60, 70)]);
    assert_eq!([ranges.around(35), ranges.around(60), ranges.around(5)], [(10, 40), (60, 60), (5, 5)]);
    server.stop();
}

#[test]
fn a_bucket_that_was_emptied_hides_no_moment_behind() {
    // One vBucket goes back to before the beginning of the log, the others do not.
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env) = (folder.path(), Env::real());
    let mut client = server.client();
    let early = (0..).map(|at| format!("early{at}"));
    let early = early.into_iter().find(|key| vbucket_of(key.as_bytes(), 4) == VbId(3)).expect("there is one");
    client.set(early.as_bytes(), b"old", 0).expect("stored");
    let mut moment = 0;
    let counts = followed(&server, dir, |follower| {
        follower.catch_up(&env);
        for at in 0..40 {
            client.set(format!("k{at}").as_bytes(), b"old", 0).expect("stored");
        }
        follower.catch_up(&env);
        let http = server.http_target();
        http.form("/pools/default/buckets/default", &[("flushEnabled", "1")]).expect("allowed");
        http.form("/pools/default/buckets/default/controller/doFlush", &[]).expect("emptied");
        drop(std::mem::replace(&mut client, server.client()));
        client.set(b"new", b"new", 0).expect("stored");
        follower.catch_up(&env);
        moment = follower.catch_up(&env);
    });
    assert_eq!(counts.epochs, 2, "{counts:?}");
    let (_, after) = state(dir, &WantedMoment::At(moment)).expect("it is there");
    assert_eq!(after.values().collect::<Vec<_>>(), ["new"]);
    drop(client);
    server.stop();
}

/// A clock that is ahead of this machine's.
struct AheadClock {
    real: RealClock,
    ahead_ns: AtomicU64,
}

impl Clock for AheadClock {
    fn unix_ns(&self) -> u64 {
        self.real.unix_ns() + self.ahead_ns.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.real.monotonic_ns()
    }
}

#[test]
fn moments_behind_a_clock_that_was_set_back_are_those_of_the_clock() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, mut env, mut client) = (folder.path(), Env::real(), server.client());
    let clock = Arc::new(AheadClock { real: RealClock::new(), ahead_ns: AtomicU64::new(0) });
    env.clock = clock.clone();
    let mut moments = Vec::new();
    let counts = followed_in(&env, &server, &Repository::new(&env, dir), |follower| {
        follower.catch_up(&env);
        client.set(b"k", b"before", 0).expect("stored");
        moments.push((follower.catch_up(&env), "before"));
        clock.ahead_ns.store(3_600_000_000_000, Ordering::Relaxed);
        client.set(b"k", b"ahead", 0).expect("stored");
        moments.push((follower.catch_up(&env), "ahead"));
        clock.ahead_ns.store(0, Ordering::Relaxed);
        client.set(b"k", b"set back", 0).expect("stored");
        // The log that was ahead has no such moment.
        let now = env.clock.unix_ns();
        follower.wait(&|horizon, _| (now..now + 600_000_000_000).contains(&horizon));
        moments.push((follower.catch_up(&env), "set back"));
    });
    // The one that goes on finds a log of the future, too.
    for (moment, value) in &moments {
        let (_, state) = state(dir, &WantedMoment::At(*moment)).expect("it is there");
        assert_eq!(state.values().collect::<Vec<_>>(), [value]);
    }
    assert_eq!((counts.epochs, counts.gaps), (2, 0), "{counts:?}");
    let report = log::report(&Repository::new(&env, dir), BUCKET, true).expect("sound").expect("a log");
    assert!(report.text.contains("the clock of this machine was set back by 3"), "{}", report.text);
    drop(client);
    server.stop();
}

#[test]
fn a_key_of_a_collection_that_was_made_again_names_its_last_change() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env, http) = (folder.path(), Env::real(), server.http_target());
    let scopes = "/pools/default/buckets/default/scopes";
    http.form(scopes, &[("name", "app")]).expect("a scope");
    let make = || drop(http.form(&format!("{scopes}/app/collections"), &[("name", "made")]).expect("made"));
    let set = |value: &str| {
        let mut cluster = crate::client::Cluster::open(&env, server.target(), &[]).expect("a cluster");
        cluster.use_collection("app.made").expect("it is there");
        cluster.set(b"k", value.as_bytes(), 0).expect("stored");
    };
    make();
    set("0");
    followed(&server, dir, |follower| {
        follower.catch_up(&env);
        set("1");
        follower.catch_up(&env);
        http.request("DELETE", &format!("{scopes}/app/collections/made"), None).expect("dropped");
        follower.catch_up(&env);
        make();
        for value in ["2", "3", "4"] {
            set(value);
            follower.catch_up(&env);
        }
    });
    let mut other = TestServer::start();
    let before = ["--before", "k", "--before-in", "app.made"];
    let sent = super::tests::restored(&other, dir, &before).expect("restored");
    assert_eq!(sent.documents, 1, "{sent:?}");
    let mut there = crate::client::Cluster::open(&env, other.target(), &[]).expect("a cluster");
    there.use_collection("app.made").expect("it was made");
    assert_eq!(there.get(b"k").expect("an answer").expect("it is there").value, b"3");
    drop(there);
    server.stop();
    other.stop();
}
