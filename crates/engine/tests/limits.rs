//! What clients may bring and hold at most, and what happens where it ends.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::env::Env;
use base::{Cas, Datatype, DocKey, ItemKind, RevSeqno, Seqno, VbState, VersionMeta};
use common::{VB, World};
use engine::{Bucket, BucketConfig, ByChance, End, Mutated, Refusal, StoreMode, WithMetaRequest};

fn key(key: &str) -> DocKey<'_> {
    DocKey::new(key.as_bytes())
}

fn with_meta(
    bucket: &Bucket,
    value: &[u8],
    datatype: Datatype,
    cas: u64,
    rev: u64,
) -> Result<Mutated, Refusal> {
    let meta = VersionMeta { cas: Cas(cas), rev_seqno: RevSeqno(rev), ..VersionMeta::default() };
    let request = WithMetaRequest {
        key: key("k"),
        value,
        datatype,
        meta,
        add: false,
        expected: Cas::ANY,
        force: false,
        regenerate_cas: false,
        late: None,
    };
    bucket.documents().apply_with_meta(VB, &request, bucket.now())
}

#[test]
fn a_revision_beyond_what_files_hold_is_refused() {
    let world = World::new(1);
    let most = (1 << 48) - 1;
    for beyond in [most + 1, u64::MAX] {
        assert_eq!(with_meta(&world.bucket, b"v", Datatype::RAW, 1, beyond), Err(Refusal::Invalid));
    }
    with_meta(&world.bucket, b"v", Datatype::RAW, 1, most).expect("it fits");
    world.set("k", "w").expect("the count stops, the process does not");
    world.bucket.documents().delete(VB, key("k"), Cas::ANY, world.now()).expect("deleted");
    world.set("k", "x").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    let world = world.restart();
    let found = world.bucket.documents().get(VB, key("k"), world.now()).expect("found");
    assert_eq!(found.version.meta().rev_seqno, RevSeqno(most));
}

#[test]
fn after_the_highest_foreign_cas_every_change_still_gets_its_own() {
    let world = World::new(2);
    let most = i64::MAX as u64;
    for beyond in [most + 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(with_meta(&world.bucket, b"v", Datatype::RAW, beyond, 1), Err(Refusal::Exists));
    }
    with_meta(&world.bucket, b"v", Datatype::RAW, most, 1).expect("it can be counted on from there");
    let first = world.set("k", "v").expect("stored");
    let second = world.set("k", "v").expect("stored");
    assert!(Cas(most) < first.cas && first.cas < second.cas);
    assert_eq!(world.store("k", "w", StoreMode::Set, first.cas, 0), Err(Refusal::Exists));
}

#[test]
fn the_lock_of_an_expired_document_guards_nothing() {
    let world = World::new(3);
    let lock = || {
        world.store("k", "v", StoreMode::Set, Cas::ANY, 5).expect("stored");
        let found = world.bucket.documents().get_and_lock(VB, key("k"), 30, world.now()).expect("locked");
        world.handles.clock.advance(Duration::from_secs(7));
        found.cas
    };
    let cas = lock();
    assert_eq!(world.bucket.documents().unlock(VB, key("k"), cas, world.now()), Err(Refusal::NotFound));
    assert_eq!(world.bucket.documents().delete(VB, key("k"), Cas::ANY, world.now()), Err(Refusal::NotFound));
    lock();
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    let tombstone =
        world.bucket.documents().peek(VB, key("k"), world.now()).expect("served").expect("a tombstone");
    assert_eq!(tombstone.version.meta().kind, ItemKind::Expiration);
    lock();
    world.store("k", "w", StoreMode::Add, Cas::ANY, 0).expect("there is nothing");
    assert_eq!(world.get("k"), Ok("w".into()));
    lock();
    with_meta(&world.bucket, b"v", Datatype::RAW, 1, 1 << 20).expect("there is nothing");
}

#[test]
fn what_holds_a_lock_is_not_shown_by_chance() {
    let world = World::new(4);
    let chosen = || match world.bucket.documents().random_key(base::CollectionId::DEFAULT, world.now()) {
        ByChance::Found(found) => Some(found),
        _ => None,
    };
    assert!(chosen().is_none());
    world.set("k", "v").expect("stored");
    let locked = world.bucket.documents().get_and_lock(VB, key("k"), 30, world.now()).expect("locked");
    for _ in 0..20 {
        let found = chosen().expect("there is one");
        assert_eq!((found.version.key(), found.cas), (key("k"), Cas::LOCKED));
    }
    world.bucket.documents().unlock(VB, key("k"), locked.cas, world.now()).expect("unlocked");
    assert_eq!(chosen().expect("there is one").cas, locked.cas);
}

/// A value of one xattr and a body.
fn with_xattr(name: &str, xattr_bytes: usize, body_bytes: usize) -> Vec<u8> {
    let pair = [name.as_bytes(), b"\0\"", &vec![b'x'; xattr_bytes], b"\"\0"].concat();
    let pair_len = (pair.len() as u32).to_be_bytes();
    let len = (pair.len() as u32 + 4).to_be_bytes();
    [&len[..], &pair_len, &pair, &vec![b'b'; body_bytes]].concat()
}

#[test]
fn xattrs_count_where_they_belong() {
    const MIB: usize = 1 << 20;
    let world = World::new(5);
    let xattr = Datatype::XATTR;
    let mut rev = 0;
    let mut put = |value: &[u8]| {
        rev += 1;
        assert!(world.bucket.flushing().flush_all(), "what waits for the disk is not in the way");
        with_meta(&world.bucket, value, xattr, 1, rev).map(|_| ())
    };
    assert_eq!(put(&with_xattr("user", 2 * MIB, 19 * MIB)), Err(Refusal::TooBig));
    assert_eq!(put(&with_xattr("_sys", MIB + 1, 1)), Err(Refusal::Invalid));
    assert_eq!(put(&with_xattr("_sys", MIB - 100, 20 * MIB)), Ok(()));
    assert_eq!(put(&with_xattr("user", 2 * MIB, 17 * MIB)), Ok(()));
    let body = vec![b'b'; 2 * MIB];
    let join = |part: &[u8]| {
        world.bucket.documents().join(VB, key("k"), part, Datatype::RAW, End::Back, Cas::ANY, world.now())
    };
    assert_eq!(join(&body), Err(Refusal::TooBig));
    assert!(join(&body[..MIB / 2]).is_ok());
    assert!(world.bucket.flushing().flush_all());
    let text = "b".repeat(19 * MIB);
    assert_eq!(world.set("k", &text), Err(Refusal::TooBig));
    assert!(world.set("k", &text[MIB * 2..]).is_ok());
}

fn documents_bytes(bucket: &Bucket) -> i64 {
    bucket.memory().account().exact()[base::Part::Documents as usize]
}

#[test]
fn the_memory_account_survives_restarts_and_ends_at_nothing() {
    let world = World::new(6);
    for n in 0..100 {
        world.set(&format!("key{}", n % 30), &"v".repeat(n)).expect("stored");
    }
    let used = documents_bytes(&world.bucket);
    assert!(used > 0 && world.bucket.flushing().flush_all());
    let world = world.restart();
    assert_eq!(documents_bytes(&world.bucket), used);
    let waiting =
        world.bucket.durability().persisted(VB, Seqno(1000)).expect("few wait").expect("it is far away");
    world.bucket.roles().set_vbucket_state(VB, VbState::Dead, None).expect("it is there");
    assert!(waiting.try_take().is_none());
    world.bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works");
    assert_eq!(documents_bytes(&world.bucket), 0);
    assert!(waiting.is_abandoned(), "nobody waits for what will never be");
    assert_eq!(world.bucket.durability().persisted(VB, Seqno(1)).err(), Some(Refusal::NotMyVbucket));
}

#[test]
fn a_tiny_quota_refuses_and_nothing_else() {
    for quota_bytes in [0, 1, 99, 100] {
        let (env, _) = Env::sim(7);
        let config = BucketConfig { vbuckets: 8, quota_bytes, ..BucketConfig::new("b", "/data/b".into()) };
        let bucket = Bucket::open(config, env, Arc::new(kvstore::Memory::default())).expect("opened");
        assert_eq!(with_meta(&bucket, &[b'v'; 100], Datatype::RAW, 1, 1), Err(Refusal::OverQuota));
        assert_eq!(documents_bytes(&bucket), 0);
    }
}
