//! A bucket that is followed into an object store, which breaks the follower off anywhere.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::follow_tests::{State, followed_in, state_in};
use super::*;
use crate::backup::{FakeStore, FollowCounts, FollowOptions, WantedMoment, follow_bucket};
use crate::test_server::{BUCKET, TestServer};

const DIR: &str = "s3://b/prod";
/// Where the log's objects are.
const LOG: &str = "prod/default/log/";

fn place(env: &Env, fake: &FakeStore) -> BackupPlace {
    BackupPlace::of_store(env, DIR, fake.store(env))
}

/// Follows until the log has everything.
fn caught_up(env: &Env, server: &TestServer, fake: &FakeStore) -> anyhow::Result<FollowCounts> {
    let (place, interrupted) = (place(env, fake), AtomicBool::new(false));
    let base_every = Duration::from_secs(3600);
    let options = FollowOptions { once_caught_up: true, base_every, ..FollowOptions::default() };
    follow_bucket(place.env(), &server.target(), &place.repository(), &options, &interrupted, &|_| {})
}

/// Sets some keys, and notes them.
fn write(server: &TestServer, model: &mut State, round: u32) {
    let mut client = server.client();
    for at in 0..20 {
        let (key, value) = (format!("k{}", (round + at) % 31), format!("{round}.{at}"));
        client.set(key.as_bytes(), value.as_bytes(), 0).expect("stored");
        model.insert((0, key), value);
    }
}

/// The names of the log's objects, without the lock.
fn log_objects(fake: &FakeStore) -> Vec<String> {
    let kept = fake.kept();
    let names = kept.objects.keys().filter_map(|key| key.strip_prefix(LOG));
    names.filter(|name| *name != "lock").map(str::to_owned).collect()
}

fn as_at(env: &Env, fake: &FakeStore, moment: u64) -> State {
    let place = place(env, fake);
    state_in(&place.repository(), &WantedMoment::At(moment)).expect("the log has that moment").1
}

#[test]
fn a_bucket_is_followed_into_a_store_and_restored_from_it() {
    let (mut server, env, fake) = (TestServer::start(), Env::real(), FakeStore::start());
    let mut model = State::new();
    write(&server, &mut model, 0);
    let place = place(&env, &fake);
    let mut history = Vec::new();
    let counts = followed_in(place.env(), &server, &place.repository(), |follower| {
        for round in 1..6 {
            follower.catch_up(&env);
            write(&server, &mut model, round);
            history.push((follower.catch_up(&env), model.clone()));
        }
        // While it is followed, from pieces.
        assert!(log_objects(&fake).iter().any(|name| name.contains('.')), "{:?}", log_objects(&fake));
        let (moment, model) = &history[2];
        assert_eq!(as_at(&env, &fake, *moment), *model);
    });
    assert!(counts.versions >= 100 && counts.epochs == 1 && counts.gaps == 0, "{counts:?}");
    assert!(counts.longest_wait_ns < 10_000_000_000, "{counts:?}");
    assert_eq!(log_objects(&fake), ["segment-00000001"], "what ended is one object");
    for (moment, model) in &history {
        assert_eq!(as_at(&env, &fake, *moment), *model);
    }
    // The next one goes on.
    write(&server, &mut model, 9);
    let counts = caught_up(&env, &server, &fake).expect("it goes on");
    assert_eq!((counts.epochs, counts.backups), (0, 0), "{counts:?}");
    assert_eq!(as_at(&env, &fake, counts.horizon), model);
    assert_eq!(log_objects(&fake), ["segment-00000001", "segment-00000002"]);
    println!("longest wait {} ms", counts.longest_wait_ns / 1_000_000);
    server.stop();
}

#[test]
fn a_follower_that_ends_at_any_request_leaves_no_gap() {
    let (mut server, env, fake) = (TestServer::start(), Env::real(), FakeStore::start());
    let mut model = State::new();
    write(&server, &mut model, 0);
    let begun = caught_up(&env, &server, &fake).expect("a log").horizon;
    let (before, objects) = (model.clone(), fake.kept().objects.clone());
    write(&server, &mut model, 1);
    let (mut broken, mut at) = (0, 0);
    // Until the follower is through before the store refuses.
    loop {
        {
            let mut kept = fake.kept();
            kept.objects = objects.clone();
            (kept.requests, kept.refuses) = (0, Some((at, 403, "AccessDenied")));
        }
        let ended = caught_up(&env, &server, &fake);
        let requests = {
            let mut kept = fake.kept();
            kept.refuses = None;
            // That of a dead process is waited for elsewhere.
            kept.objects.remove("prod/default/log/lock");
            kept.requests
        };
        broken += u32::from(ended.is_err());
        let counts = caught_up(&env, &server, &fake).expect("it goes on");
        assert_eq!((counts.epochs, counts.gaps), (0, 0), "broken off at request {at}: {counts:?}");
        assert_eq!(as_at(&env, &fake, counts.horizon), model, "broken off at request {at}");
        assert_eq!(as_at(&env, &fake, begun), before, "broken off at request {at}");
        if ended.is_ok() && requests <= at {
            break;
        }
        at += 1 + at / 12;
        assert!(at < 1000, "it does not come to an end");
    }
    assert!(broken >= 8, "{broken}");
    println!("{broken} followers were broken off");
    // Nothing is left in pieces behind what was broken off, and all of it is sound.
    assert!(log_objects(&fake).iter().all(|name| !name.contains('.')), "{:?}", log_objects(&fake));
    let place = place(&env, &fake);
    let repository = place.repository();
    log::verify(place.env(), &repository, BUCKET).expect("sound").expect("a log");
    server.stop();
}
