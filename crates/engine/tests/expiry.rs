//! Expiry: by whoever asks, by the pager, by compactions; and the longest that documents may live.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Cas, DocKey, ItemKind, RevSeqno, Seqno, VbId, VbState, Version, VersionMeta};
use common::{VB, Watched, doc};
use engine::{
    CompactOutcome, CompactRequest, CounterRequest, End, ExpiryStats, Refusal, StoreMode, StoreRequest,
    WithMetaRequest,
};
use subdoc::request::{self, Features};

const FEATURES: Features = Features { xattr: true, multiple_xattr_keys: false };
const DICT_UPSERT: u8 = 0xc8;
const XATTR_AND_PARENTS: u8 = 0x05;

fn store_in(world: &Watched, vb: VbId, key: &str, value: &str, expiry: u32) {
    let request = StoreRequest {
        key: doc(key),
        body: value.as_bytes(),
        datatype: base::Datatype::RAW,
        flags: 0,
        expiry,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    world.bucket.documents().store(vb, &request, world.bucket.now()).expect("stored");
}

fn store(world: &Watched, key: &str, expiry: u32) {
    store_in(world, VB, key, "{\"a\": 1}", expiry);
}

/// Sets an xattr of a document that is there, and its expiry.
fn set_xattr(world: &Watched, key: &str, path: &str, expiry: u32) {
    let extras = [&[0, path.len() as u8, XATTR_AND_PARENTS][..], &expiry.to_be_bytes()].concat();
    let value = [path.as_bytes(), b"\"kept\""].concat();
    let request = request::parse_single_mutation(DICT_UPSERT, &extras, &value, &FEATURES);
    let request = request.unwrap_or_else(|refusal| panic!("{}", refusal.context));
    let changed = world.bucket.documents().subdoc_mutate(VB, doc(key), &request, false, world.bucket.now());
    assert!(changed.is_ok_and(|(mutated, _)| mutated.is_some()));
}

fn find(world: &Watched, vb: VbId, key: &str) -> Option<Version> {
    let hash = world.bucket.hash(doc(key));
    world
        .bucket
        .with_vbucket(vb, |vb| vb.find(hash, doc(key)).ok().flatten().map(|found| found.clone()))
        .expect("there")
}

fn wait(world: &Watched, seconds: u64) {
    world.handles.clock.advance(Duration::from_secs(seconds));
}

/// Runs the housekeeper until nothing is due.
fn keep(world: &Watched) {
    while world.bucket.maintenance().keep_step() {}
}

fn stats(world: &Watched) -> ExpiryStats {
    world.bucket.documents().expiry_stats()
}

fn high_seqno(world: &Watched, vb: VbId) -> u64 {
    world.bucket.vbucket_stats(vb).expect("there").high_seqno.0
}

/// A real deletion, marked as expiration, with a seqno of its own.
fn assert_expired(world: &Watched, vb: VbId, key: &str, revision: u64) {
    let tombstone = find(world, vb, key).expect("its tombstone");
    let meta = tombstone.meta();
    assert_eq!((meta.kind, meta.rev_seqno), (ItemKind::Expiration, RevSeqno(revision)), "{key}");
    assert_eq!(meta.expiry, world.bucket.now().unix_s(), "when it was deleted");
}

#[test]
fn whoever_asks_for_an_expired_document_makes_it_a_tombstone() {
    let world = Watched::new(1);
    store(&world, "k", 10);
    wait(&world, 10);
    assert!(world.get("k").is_ok(), "its last second is not over");
    wait(&world, 1);
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    assert_expired(&world, VB, "k", 2);
    assert_eq!(high_seqno(&world, VB), 2);
    assert_eq!(stats(&world), ExpiryStats { by_access: 1, ..ExpiryStats::default() });
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.get("k"), Err(Refusal::NotFound));
    assert_eq!(high_seqno(&world, VB), 2, "once is enough");
}

#[test]
fn the_pager_finds_what_nobody_asks_for() {
    let world = Watched::new(2);
    keep(&world);
    for n in 0..300 {
        store(&world, &format!("short{n}"), 10);
        store(&world, &format!("long{n}"), 2000);
        store(&world, &format!("never{n}"), 0);
    }
    store_in(&world, VbId(5), "elsewhere", "v", 10);
    wait(&world, 599);
    keep(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (0, 0), "the interval is not over");
    wait(&world, 1);
    keep(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (1, 301));
    assert_eq!((stats(&world).vbuckets_visited, stats(&world).vbuckets_skipped), (2, 6));
    assert_expired(&world, VB, "short7", 2);
    assert_expired(&world, VbId(5), "elsewhere", 2);
    assert_eq!(high_seqno(&world, VB), 1200);
    assert!(world.get("long7").is_ok() && world.get("never7").is_ok());
    assert!(world.bucket.flushing().flush_all());
    let disk = world.bucket.disk_counts(VB).expect("readable");
    assert_eq!((disk.documents, disk.tombstones), (600, 300));
}

#[test]
fn whoever_changes_a_document_is_never_told_busy_because_what_has_expired_is_replaced_by_what_has_expired() {
    const LONG_AGO: u32 = 31 * 24 * 3600;
    let world = Watched::new(1);
    let append = || {
        let now = world.bucket.now();
        world.bucket.documents().join(VB, doc("k"), b"x", base::Datatype::RAW, End::Back, Cas::ANY, now).err()
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    store(&world, "k", LONG_AGO);
                }
            });
        }
        let told = (0..50_000).map(|_| append()).find(|told| *told != Some(Refusal::NotFound));
        done.store(true, Ordering::Relaxed);
        assert_eq!(told, None, "what somebody was told");
    });
}

#[test]
fn a_vbucket_in_which_nothing_can_have_expired_is_passed_over() {
    let world = Watched::new(3);
    keep(&world);
    store(&world, "first", 700);
    store(&world, "second", 1500);
    let visits = |world: &Watched| {
        wait(world, 600);
        keep(world);
        (stats(world).vbuckets_visited, stats(world).by_pager)
    };
    assert_eq!(visits(&world), (0, 0));
    assert_eq!(visits(&world), (1, 1), "the first has expired");
    assert_eq!(visits(&world), (2, 2), "the bound knew of the second");
    assert_eq!(visits(&world), (2, 2));
    // What came from disk is known, too.
    store(&world, "third", 650);
    let world = world.restart(256 << 20);
    while world.bucket.loading().load_step() != engine::Progress::Idle {}
    keep(&world);
    assert_eq!(visits(&world), (0, 0));
    assert_eq!(visits(&world), (1, 1));
}

#[test]
fn replicas_never_expire_by_themselves() {
    let world = Watched::new(4);
    keep(&world);
    store(&world, "k", 10);
    assert!(world.bucket.flushing().flush_all());
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    wait(&world, 600);
    keep(&world);
    assert_eq!(stats(&world).passes, 1);
    let read = world.bucket.documents().get_replica(VB, doc("k"), world.bucket.now());
    assert_eq!(read.err(), Some(Refusal::NotFound), "nobody can read it any more");
    let compaction =
        world.bucket.compaction().compact(VB, CompactRequest::default()).expect("none is under way");
    world.bucket.compaction().compact_step();
    assert_eq!(compaction.try_take(), Some(CompactOutcome::Done));
    assert_eq!(high_seqno(&world, VB), 1);
    assert_eq!(stats(&world), ExpiryStats { passes: 1, vbuckets_skipped: 7, ..ExpiryStats::default() });
    // Once it is active it does.
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("set");
    wait(&world, 600);
    keep(&world);
    assert_eq!((stats(&world).by_pager, high_seqno(&world, VB)), (1, 2));
}

#[test]
fn the_pagers_settings_take_effect_at_once() {
    let world = Watched::new(5);
    keep(&world);
    store(&world, "a", 10);
    wait(&world, 100);
    keep(&world);
    assert_eq!(stats(&world).passes, 0);
    world.bucket.set_param("exp_pager_stime", "100").expect("a good value");
    keep(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (1, 1));
    store(&world, "b", 10);
    world.bucket.set_param("exp_pager_enabled", "false").expect("a good value");
    wait(&world, 5000);
    keep(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (1, 1));
    world.bucket.set_param("exp_pager_enabled", "true").expect("a good value");
    keep(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (2, 2));
}

/// Expired documents with system xattrs that are only on disk.
fn store_hollow(world: &Watched, documents: usize) {
    for n in 0..documents {
        let key = format!("k{n}");
        store(world, &key, 0);
        set_xattr(world, &key, "_system.x", 0);
        set_xattr(world, &key, "user.x", 10);
    }
    assert!(world.bucket.flushing().flush_all());
    for n in 0..documents {
        assert_eq!(world.bucket.eviction().evict_value(VB, doc(&format!("k{n}"))), Ok(true));
    }
}

/// Has everything fetched, and lets the pager see it.
fn fetch(world: &Watched) {
    while world.bucket.fetching().fetch_step() != engine::Progress::Idle {}
    world.handles.clock.advance(Duration::from_millis(10));
    keep(world);
}

#[test]
fn a_pass_that_is_cut_short_leaves_the_rest_to_the_next() {
    for by_role in [true, false] {
        let world = Watched::new(13);
        keep(&world);
        store_hollow(&world, 300);
        wait(&world, 600);
        keep(&world);
        let set_state = |state| world.bucket.roles().set_vbucket_state(VB, state, None).expect("set");
        if by_role {
            set_state(VbState::Replica);
            fetch(&world);
            set_state(VbState::Active);
        } else {
            world.bucket.set_param("exp_pager_enabled", "false").expect("a good value");
            keep(&world);
            world.bucket.set_param("exp_pager_enabled", "true").expect("a good value");
        }
        fetch(&world);
        let expired = stats(&world).by_pager;
        assert!(expired < 300, "{expired}");
        wait(&world, 600);
        keep(&world);
        (0..10).for_each(|_| fetch(&world));
        assert_eq!(stats(&world).by_pager, 300);
    }
}

#[test]
fn system_xattrs_stay_and_are_fetched_if_need_be_a_few_at_a_time() {
    const DOCUMENTS: usize = 150;
    let world = Watched::new(6);
    keep(&world);
    store_hollow(&world, DOCUMENTS);
    wait(&world, 600);
    keep(&world);
    assert_eq!(
        (world.bucket.fetching().fetch_stats().waiting, stats(&world).by_pager),
        (64, 0),
        "no more at once"
    );
    let mut rounds = 0;
    while stats(&world).passes == 0 {
        fetch(&world);
        rounds += 1;
    }
    assert_eq!((rounds, world.bucket.fetching().fetch_stats().batches), (3, 3), "read in batches");
    assert_eq!((stats(&world).by_pager, stats(&world).fetched), (150, 150));
    for n in 0..DOCUMENTS {
        let tombstone = find(&world, VB, &format!("k{n}")).expect("its tombstone");
        assert_eq!(tombstone.meta().kind, ItemKind::Expiration);
        let (xattrs, body) =
            engine::value::split(tombstone.value(), tombstone.meta().datatype).expect("readable");
        assert_eq!((xattrs.get(b"_system"), body), (Some(&b"{\"x\":\"kept\"}"[..]), &b""[..]));
        assert_eq!(xattrs.get(b"user"), None);
    }
    // Nothing is left to be looked for.
    let visited = stats(&world).vbuckets_visited;
    wait(&world, 600);
    keep(&world);
    wait(&world, 600);
    keep(&world);
    assert_eq!((stats(&world).passes, stats(&world).vbuckets_visited), (3, visited + 1));
}

#[test]
fn xattrs_that_cannot_be_read_are_tried_again_at_the_next_pass() {
    let world = Watched::new(7);
    keep(&world);
    store(&world, "k", 0);
    set_xattr(&world, "k", "_system.x", 10);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    world.spy.unreadable.lock().insert("k".into());
    let pass = |world: &Watched| {
        wait(world, 600);
        keep(world);
        fetch(world);
    };
    pass(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (1, 0));
    world.spy.unreadable.lock().clear();
    pass(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (2, 1));
}

#[test]
fn what_is_changed_while_it_is_fetched_stays() {
    let world = Watched::new(8);
    keep(&world);
    store(&world, "k", 0);
    set_xattr(&world, "k", "_system.x", 10);
    assert!(world.bucket.flushing().flush_all());
    assert_eq!(world.bucket.eviction().evict_value(VB, doc("k")), Ok(true));
    wait(&world, 600);
    keep(&world);
    let meta = VersionMeta { cas: Cas(7), rev_seqno: RevSeqno(50), ..VersionMeta::default() };
    with_meta(&world, "k", meta).expect("applied");
    fetch(&world);
    assert_eq!((stats(&world).passes, stats(&world).by_pager), (1, 0));
    assert_eq!(world.get("k"), Ok("foreign".into()));
}

#[test]
fn a_pass_waits_for_a_flusher_that_is_far_behind() {
    const BACKLOG: usize = 20_000;
    let world = Watched::new(9);
    keep(&world);
    store(&world, "k", 10);
    wait(&world, 600);
    for n in 0..BACKLOG {
        store(&world, &format!("other{n}"), 0);
    }
    keep(&world);
    assert_eq!(stats(&world).by_pager, 0);
    assert!(world.bucket.flushing().flush_all());
    world.handles.clock.advance(Duration::from_millis(100));
    keep(&world);
    assert_eq!((stats(&world).by_pager, stats(&world).passes), (1, 1));
}

#[test]
fn a_compaction_expires_what_is_only_on_disk() {
    let world = Watched::new(10);
    store(&world, "bare", 10);
    store(&world, "k", 0);
    set_xattr(&world, "k", "_system.x", 10);
    // The last record of a file stays whatever it is, and is not even looked at.
    store(&world, "last", 0);
    assert!(world.bucket.flushing().flush_all());
    for key in ["bare", "k"] {
        assert_eq!(world.bucket.eviction().evict_value(VB, doc(key)), Ok(true));
    }
    wait(&world, 11);
    let compaction =
        world.bucket.compaction().compact(VB, CompactRequest::default()).expect("none is under way");
    world.bucket.compaction().compact_step();
    assert_eq!(compaction.try_take(), Some(CompactOutcome::Done));
    assert_eq!(stats(&world), ExpiryStats { by_compactor: 2, ..ExpiryStats::default() });
    assert_expired(&world, VB, "bare", 2);
    assert_expired(&world, VB, "k", 3);
    assert_eq!(high_seqno(&world, VB), 6);
    let world = world.restart(256 << 20);
    while world.bucket.loading().load_step() != engine::Progress::Idle {}
    while world.bucket.loading().warm_step() != engine::Progress::Idle {}
    for (key, system) in [("bare", None), ("k", Some(&b"{\"x\":\"kept\"}"[..]))] {
        let tombstone = find(&world, VB, key).expect("from disk");
        let meta = tombstone.meta();
        assert_eq!(meta.kind, ItemKind::Expiration, "marked so on disk, too");
        assert!(meta.by_seqno > Seqno(4));
        assert_eq!(
            engine::value::split(tombstone.value(), meta.datatype).expect("readable").0.get(b"_system"),
            system
        );
    }
}

fn with_meta(world: &Watched, key: &str, meta: VersionMeta) -> Result<engine::Mutated, Refusal> {
    let request = WithMetaRequest {
        key: doc(key),
        value: if meta.kind.is_deleted() { b"" } else { b"foreign" },
        datatype: base::Datatype::RAW,
        meta,
        add: false,
        expected: Cas::ANY,
        force: false,
        regenerate_cas: false,
        late: None,
    };
    world.bucket.documents().apply_with_meta(VB, &request, world.bucket.now())
}

#[test]
fn no_document_lives_longer_than_the_bucket_allows() {
    let world = Watched::new(11);
    let now = world.bucket.now().unix_s();
    let expiry = |key: &str| find(&world, VB, key).expect("there").meta().expiry;
    store(&world, "before", 0);
    store(&world, "number", 0);
    let number = CounterRequest {
        key: doc("number"),
        increment: true,
        delta: 1,
        initial: Some(1),
        expiry: 0,
        preserve_expiry: false,
    };
    world.bucket.set_param("max_ttl", "100").expect("a good value");
    assert_eq!(expiry("before"), 0, "what is there is not touched");
    for (key, sent, stored) in
        [("never", 0, 100), ("longer", 1000, 100), ("absolute", now + 101, 100), ("shorter", 99, 99)]
    {
        store(&world, key, sent);
        assert_eq!(expiry(key), now + stored, "{key}");
    }
    // Whatever is changed gets it.
    let bucket = &world.bucket;
    let at = bucket.now();
    bucket
        .documents()
        .join(VB, doc("before"), b" ", base::Datatype::RAW, End::Back, Cas::ANY, at)
        .expect("joined");
    assert_eq!(expiry("before"), now + 100);
    bucket.documents().count(VB, &CounterRequest { key: doc("counted"), ..number }, at).expect("made");
    assert_eq!(expiry("counted"), now + 100);
    bucket.documents().touch(VB, doc("shorter"), 0, at).expect("touched");
    assert_eq!(expiry("shorter"), now + 100);
    assert!(
        bucket.documents().touch(VB, doc("shorter"), 5000, at).expect("touched").0.is_none(),
        "it has that already"
    );
    set_xattr(&world, "longer", "user.x", 3000);
    assert_eq!(expiry("longer"), now + 100);
    // By replication between clusters, too.
    let foreign = |expiry, kind| VersionMeta {
        cas: Cas(7),
        rev_seqno: RevSeqno(50),
        expiry,
        kind,
        ..VersionMeta::default()
    };
    with_meta(&world, "foreign", foreign(0, ItemKind::Mutation)).expect("applied");
    assert_eq!(expiry("foreign"), now + 100);
    with_meta(&world, "gone", foreign(now + 5000, ItemKind::Deletion)).expect("applied");
    assert_eq!(expiry("gone"), now + 5000, "the time of a deletion is no expiry");
    bucket.documents().delete(VB, doc("absolute"), Cas::ANY, at).expect("deleted");
    assert_eq!(expiry("absolute"), now);
    // And no longer.
    world.bucket.set_param("max_ttl", "0").expect("a good value");
    store(&world, "never", 0);
    assert_eq!(expiry("never"), 0);
}

#[test]
fn an_expiry_that_is_kept_stays_as_it_is() {
    let world = Watched::new(12);
    store(&world, "k", 5000);
    world.bucket.set_param("max_ttl", "100").expect("a good value");
    let request = StoreRequest {
        key: DocKey::new(b"k"),
        body: b"new",
        datatype: base::Datatype::RAW,
        flags: 0,
        expiry: 0,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: true,
    };
    let now = world.bucket.now();
    world.bucket.documents().store(VB, &request, now).expect("stored");
    assert_eq!(find(&world, VB, "k").expect("there").meta().expiry, now.unix_s() + 5000);
}
