//! What a client can do with documents, and what it is told when it cannot.

mod common;

use std::time::Duration;

use base::{Cas, Datatype, DocKey};
use common::{VB, World};
use engine::{CounterRequest, End, Refusal, StoreMode};

fn key(key: &str) -> DocKey<'_> {
    DocKey::new(key.as_bytes())
}

#[test]
fn stores_and_reads() {
    let world = World::new(1);
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    let first = world.set("k", "one").expect("stored");
    let second = world.set("k", "two").expect("stored");
    assert_eq!(world.get("k"), Ok("two".into()));
    assert!(second.cas > first.cas && second.seqno.0 == first.seqno.0 + 1);
}

#[test]
fn existence_and_cas_decide() {
    let world = World::new(2);
    assert_eq!(world.store("k", "v", StoreMode::Replace, Cas::ANY, 0), Err(Refusal::NotFound));
    assert_eq!(world.store("k", "v", StoreMode::Set, Cas(5), 0), Err(Refusal::NotFound));
    let stored = world.store("k", "v", StoreMode::Add, Cas::ANY, 0).expect("added");
    assert_eq!(world.store("k", "w", StoreMode::Add, Cas::ANY, 0), Err(Refusal::Exists));
    assert_eq!(world.store("k", "w", StoreMode::Set, Cas(stored.cas.0 + 1), 0), Err(Refusal::Exists));
    assert!(world.store("k", "w", StoreMode::Replace, stored.cas, 0).is_ok());
}

#[test]
fn deleting_leaves_a_tombstone_that_counts_on() {
    let world = World::new(3);
    world.set("k", "v").expect("stored");
    world.bucket.documents().delete(VB, key("k"), Cas::ANY, world.now()).expect("deleted");
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    assert_eq!(world.bucket.documents().delete(VB, key("k"), Cas::ANY, world.now()), Err(Refusal::NotFound));
    let tombstone =
        world.bucket.documents().peek(VB, key("k"), world.now()).expect("served").expect("a tombstone");
    assert!(tombstone.version.is_deleted());
    assert_eq!(tombstone.version.meta().rev_seqno.0, 2);
    world.set("k", "again").expect("stored");
    let found = world.bucket.documents().get(VB, key("k"), world.now()).expect("found");
    assert_eq!(found.version.meta().rev_seqno.0, 3);
}

#[test]
fn documents_expire_when_somebody_looks() {
    let world = World::new(4);
    world.store("k", "v", StoreMode::Set, Cas::ANY, 10).expect("stored");
    assert_eq!(world.get("k"), Ok("v".into()));
    world.handles.clock.advance(Duration::from_secs(12));
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    let tombstone =
        world.bucket.documents().peek(VB, key("k"), world.now()).expect("served").expect("a tombstone");
    assert_eq!(tombstone.version.meta().kind, base::ItemKind::Expiration);
    assert!(world.store("k", "w", StoreMode::Add, Cas::ANY, 0).is_ok());
}

#[test]
fn a_lock_lets_only_its_cas_pass_until_it_ends() {
    let world = World::new(5);
    let before = world.set("k", "v").expect("stored");
    let locked = world.bucket.documents().get_and_lock(VB, key("k"), 10, world.now()).expect("locked");
    assert_ne!(locked.cas, before.cas);
    assert_eq!(world.bucket.documents().get(VB, key("k"), world.now()).expect("found").cas, Cas::LOCKED);
    assert_eq!(world.set("k", "w"), Err(Refusal::Locked));
    assert_eq!(world.store("k", "w", StoreMode::Set, before.cas, 0), Err(Refusal::Locked));
    assert_eq!(world.bucket.documents().unlock(VB, key("k"), before.cas, world.now()), Err(Refusal::Locked));
    assert!(world.store("k", "w", StoreMode::Set, locked.cas, 0).is_ok());
    assert_eq!(
        world.bucket.documents().unlock(VB, key("k"), locked.cas, world.now()),
        Err(Refusal::NotLocked)
    );
    world.bucket.documents().get_and_lock(VB, key("k"), 10, world.now()).expect("locked");
    world.handles.clock.advance(Duration::from_secs(11));
    assert!(world.set("k", "x").is_ok());
}

#[test]
fn values_are_joined_and_counted() {
    let world = World::new(6);
    let join = |part: &str, end| {
        world.bucket.documents().join(
            VB,
            key("k"),
            part.as_bytes(),
            Datatype::RAW,
            end,
            Cas::ANY,
            world.now(),
        )
    };
    assert_eq!(join("x", End::Back), Err(Refusal::NotFound));
    world.set("k", "mid").expect("stored");
    join(">", End::Back).expect("joined");
    join("<", End::Front).expect("joined");
    assert_eq!(world.get("k"), Ok("<mid>".into()));
    let count = |increment, delta, initial| {
        let request =
            CounterRequest { key: key("n"), increment, delta, initial, expiry: 0, preserve_expiry: false };
        world.bucket.documents().count(VB, &request, world.now()).map(|(_, number)| number)
    };
    assert_eq!(count(true, 1, None), Err(Refusal::NotFound));
    assert_eq!(count(true, 1, Some(40)), Ok(40));
    assert_eq!(count(true, 2, None), Ok(42));
    assert_eq!(count(false, 50, None), Ok(0));
    world.set("n", "not a number").expect("stored");
    assert_eq!(count(true, 1, None), Err(Refusal::NotANumber));
}

#[test]
fn the_quota_refuses_documents_but_not_deletions() {
    let (env, _handles) = base::env::Env::sim(7);
    let mut config = engine::BucketConfig::new("small", "/data/small".into());
    (config.vbuckets, config.quota_bytes) = (8, 100_000);
    let store = kvstore::Memory::default();
    let bucket = engine::Bucket::open(config, env, std::sync::Arc::new(store)).expect("opened");
    let store = |n: u32| {
        let name = format!("key{n}");
        let body = [b'x'; 1000];
        let request = engine::StoreRequest {
            key: key(&name),
            body: &body,
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(VB, &request, bucket.now())
    };
    let is_refused = |n: &u32| {
        let stored = store(*n);
        assert!(bucket.flushing().flush_all(), "what waits for the disk is not in the way");
        stored == Err(Refusal::OverQuota)
    };
    let refused = (0..200).find(is_refused).expect("the quota is reached");
    assert!(refused > 70);
    bucket.documents().delete(VB, key("key0"), Cas::ANY, bucket.now()).expect("deletions have room");
    bucket.set_param("max_size", "1MiB").expect("it may be changed");
    assert!(bucket.maintenance().keep_step());
    assert!(store(0).is_ok());
}

/// What is refused costs no look into its value, whatever that is; what its lengths tell is told first, as ever.
#[test]
fn the_quota_is_asked_before_a_value_is_looked_into() {
    let (env, _handles) = base::env::Env::sim(8);
    let mut config = engine::BucketConfig::new("small", "/data/small".into());
    (config.vbuckets, config.quota_bytes) = (8, 1_000_000);
    let store = kvstore::Memory::default();
    let bucket = engine::Bucket::open(config, env, std::sync::Arc::new(store)).expect("opened");
    let store = |n: usize, body: &[u8], datatype| {
        let name = format!("key{n}");
        let request = engine::StoreRequest { datatype, ..engine::StoreRequest::set(key(&name), body) };
        bucket.documents().store(VB, &request, bucket.now()).map(drop)
    };
    let looks = || (bucket.value_times().detected().total(), bucket.value_times().inflated().total());
    let json = format!("[{}1]", "1,".repeat(10_000));
    let snappy = snap::raw::Encoder::new().compress_vec(json.as_bytes()).expect("short");
    let is_full = |n: &usize| store(*n, json.as_bytes(), Datatype::RAW) == Err(Refusal::OverQuota);
    let full = (0..200).find(is_full).expect("the quota is reached");
    bucket.set_param("max_size", "1MiB").expect("it may be changed");
    let fill = |n: &usize| store(*n, b"1", Datatype::RAW) == Err(Refusal::OverQuota);
    let full = (full..100_000).find(fill).expect("there is room for nothing at all");
    let (before, used) = (looks(), bucket.memory().used_bytes());
    for n in 0..4 * usize::from(engine::VALUE_SAMPLE) {
        assert_eq!(store(full + n, json.as_bytes(), Datatype::RAW), Err(Refusal::OverQuota));
        assert_eq!(store(full + n, &snappy, Datatype::SNAPPY), Err(Refusal::OverQuota));
    }
    assert_eq!((looks(), bucket.memory().used_bytes()), (before, used), "no value was looked into or copied");
    let long = vec![b'1'; base::limits::MAX_VALUE_BYTES + 1];
    assert_eq!(store(full, &long, Datatype::RAW), Err(Refusal::TooBig));
    assert_eq!(store(full, &[0xff; 40], Datatype::SNAPPY), Err(Refusal::BadSnappy));
    // There is room again: the same values are looked into.
    bucket.set_param("max_size", "100MiB").expect("it may be changed");
    for n in 0..usize::from(engine::VALUE_SAMPLE) {
        store(full + n, &snappy, Datatype::SNAPPY).expect("there is room");
    }
    assert!(looks().0 > before.0 && looks().1 > before.1);
    let truncated = &snappy[..snappy.len() - 1];
    assert_eq!(store(full, truncated, Datatype::SNAPPY), Err(Refusal::BadSnappy));
}
