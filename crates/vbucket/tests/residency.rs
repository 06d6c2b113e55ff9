//! Values that leave a vBucket and come back, and documents that are put in place after a start.

use base::{Cas, Datatype, DocKey, Moment, NewVersion, Seqno, VbId, VbState, VbUuid, Version, VersionMeta};
use vbucket::{Basis, BucketContext, Change, Counts, Existence, Loaded, Origin, Placed, RangeLimit, VBucket};

fn key(key: &[u8]) -> DocKey<'_> {
    DocKey::new(key)
}

struct World {
    context: BucketContext,
    vb: VBucket,
}

impl World {
    fn new(high: u64) -> World {
        let context = BucketContext::new(1, 2, base::Heap::default());
        let origin = Origin { high_seqno: Seqno(high), ..Origin::empty(VbState::Active, VbUuid(1)) };
        World { vb: VBucket::new(VbId(0), &context, origin), context }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.context.seed.hash(key(name))
    }

    fn set(&mut self, name: &[u8], value: &[u8]) {
        let change = Change {
            new: NewVersion::new(base::Heap::shared(), VersionMeta::default(), key(name), &[value]),
            existence: Existence::Any,
            cas: Cas::ANY,
            basis: Basis::Nothing,
            preserve_expiry: false,
        };
        let stored = self.vb.apply(self.hash(name), change, Moment(1), |_| {});
        drop(stored.map_err(|refused| refused.refusal).expect("nothing is in the way").garbage);
    }

    fn flush(&mut self) {
        let batch = self.vb.take_flush_batch(RangeLimit::items(1000)).expect("something is dirty");
        drop(self.vb.flushed(batch.high_seqno));
    }

    fn find(&self, name: &[u8]) -> Version {
        self.vb.find(self.hash(name), key(name)).expect("it is known").expect("it is there").clone()
    }

    fn evict(&mut self, name: &[u8]) -> Option<Version> {
        let there = self.find(name);
        let hollow =
            NewVersion::without_value(base::Heap::shared(), there.meta(), there.key(), there.value_bytes());
        let hash = self.hash(name);
        self.vb.take_value(hash, hollow, Moment(1))
    }
}

fn disk(name: &[u8], seqno: u64, value: Option<&[u8]>) -> Version {
    let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
    match value {
        Some(value) => NewVersion::new(base::Heap::shared(), meta, key(name), &[value]).publish(),
        None => NewVersion::without_value(base::Heap::shared(), meta, key(name), 5).publish(),
    }
}

#[test]
fn counts_follow_a_value_out_and_in_again() {
    let mut world = World::new(0);
    let value = &[b'v'; 160];
    world.set(b"k", value);
    assert!(world.evict(b"k").is_none(), "it is dirty");
    world.flush();
    let before = world.vb.counts();
    let whole = world.evict(b"k").expect("it is clean");
    assert!(world.evict(b"k").is_none(), "it is out");
    assert_eq!(world.vb.counts(), Counts { without_value: 1, bytes: before.bytes - 160, ..before });
    let hash = world.hash(b"k");
    assert!(matches!(world.vb.put_value(hash, &whole), Placed::Placed(old) if !old.is_resident()));
    assert!(matches!(world.vb.put_value(hash, &whole), Placed::NotNeeded));
    assert_eq!(world.vb.counts(), before);
    assert_eq!(world.find(b"k").value(), value);
}

#[test]
fn a_value_belongs_to_one_version_only() {
    let mut world = World::new(0);
    world.set(b"k", b"old");
    world.flush();
    let old = world.evict(b"k").expect("it is clean");
    world.set(b"k", b"new");
    let hash = world.hash(b"k");
    assert!(matches!(world.vb.put_value(hash, &old), Placed::NotNeeded));
    world.flush();
    world.evict(b"k").expect("it is clean");
    assert!(matches!(world.vb.put_value(hash, &old), Placed::Other));
    assert!(!world.find(b"k").is_resident());
    assert!(world.vb.hollow(world.hash(b"k"), key(b"k")).is_some());
}

#[test]
fn loaded_documents_are_put_in_place_at_once() {
    let mut world = World::new(9);
    let mut loaded = Loaded::new(&world.context, 2);
    for version in
        [disk(b"a", 3, None), disk(b"b", 4, Some(b"v")), disk(b"a", 7, Some(b"w")), disk(b"a", 5, None)]
    {
        loaded.insert(world.context.seed.hash(version.key()), version);
    }
    let counts = loaded.counts();
    assert_eq!((counts.documents, counts.without_value), (2, 0));
    drop(world.vb.install(loaded));
    assert_eq!(world.vb.counts(), counts);
    assert_eq!(world.find(b"a").meta().by_seqno, Seqno(7), "the newest version of each key");
    world.set(b"c", b"x");
    assert_eq!(world.find(b"c").meta().by_seqno, Seqno(10));
}

/// The version of a key with its value in another form, as a compressor makes it.
fn recoded(old: &Version, value: &[u8]) -> NewVersion {
    let meta = VersionMeta { datatype: Datatype::SNAPPY, ..old.meta() };
    NewVersion::new(base::Heap::shared(), meta, old.key(), &[value])
}

#[test]
fn a_value_changes_its_form_and_the_document_does_not_notice() {
    let mut world = World::new(0);
    world.set(b"k", b"a long value");
    let old = world.find(b"k");
    let hash = world.hash(b"k");
    let refused = world.vb.recode_value(hash, &old, recoded(&old, b"short"), Moment(1));
    assert!(refused.is_err(), "it is still to be written");
    world.flush();
    old.frequency().store(9, std::sync::atomic::Ordering::Relaxed);
    let before = world.vb.counts();
    let replaced = world.vb.recode_value(hash, &old, recoded(&old, b"short"), Moment(1));
    assert_eq!(replaced.map_err(drop).expect("nothing is in the way").value(), b"a long value");
    let new = world.find(b"k");
    assert_eq!((new.value(), new.frequency().load(std::sync::atomic::Ordering::Relaxed)), (&b"short"[..], 9));
    assert_eq!(new.meta(), VersionMeta { datatype: Datatype::SNAPPY, ..old.meta() });
    let saved = (old.allocated_bytes() - new.allocated_bytes()) as u64;
    assert_eq!(world.vb.counts(), Counts { bytes: before.bytes - saved, ..before });
    assert!(!world.vb.has_unflushed());
    // It comes back from disk in the form that it has there.
    assert!(world.evict(b"k").is_some());
    let whole = NewVersion::new(base::Heap::shared(), old.meta(), old.key(), &[old.value()]).publish();
    assert!(matches!(world.vb.put_value(hash, &whole), Placed::Placed(_)));
    assert_eq!(world.vb.counts(), before);
    // Nobody brings another form of a version that is gone, changed or locked.
    assert!(world.evict(b"k").is_some());
    assert!(world.vb.recode_value(hash, &old, recoded(&old, b"short"), Moment(1)).is_err());
    world.set(b"k", b"changed");
    world.flush();
    assert!(world.vb.recode_value(hash, &old, recoded(&old, b"short"), Moment(1)).is_err());
    let old = world.find(b"k");
    let copy = NewVersion::new(base::Heap::shared(), old.meta(), old.key(), &[old.value()]);
    let locked = world.vb.lock(hash, copy, Basis::of(Some(&old)), Moment(9_000_000_000), Moment(1));
    drop(locked.map_err(|refused| refused.refusal).expect("nothing is in the way").1);
    let old = world.find(b"k");
    assert!(world.vb.recode_value(hash, &old, recoded(&old, b"short"), Moment(1)).is_err());
}

#[test]
fn a_lock_brings_back_a_value_that_left_since_it_was_copied() {
    let mut world = World::new(0);
    world.set(b"k", b"value");
    world.flush();
    let old = world.find(b"k");
    let before = world.vb.counts();
    let copy = NewVersion::new(base::Heap::shared(), old.meta(), old.key(), &[old.value()]);
    assert!(world.evict(b"k").is_some());
    let locked =
        world.vb.lock(world.hash(b"k"), copy, Basis::of(Some(&old)), Moment(9_000_000_000), Moment(1));
    drop(locked.map_err(|refused| refused.refusal).expect("nothing is in the way").1);
    assert_eq!(world.vb.counts(), before, "and it is counted so");
}

#[test]
fn the_earliest_expiry_is_a_bound_that_a_pass_makes_exact() {
    let mut world = World::new(0);
    let expires = |world: &mut World, name: &[u8], expiry| {
        let meta = VersionMeta { expiry, ..VersionMeta::default() };
        let change = Change {
            new: NewVersion::new(base::Heap::shared(), meta, key(name), &[b"value"]),
            existence: Existence::Any,
            cas: Cas::ANY,
            basis: Basis::Nothing,
            preserve_expiry: false,
        };
        let stored = world.vb.apply(world.hash(name), change, Moment(1), |_| {});
        drop(stored.map_err(|refused| refused.refusal).expect("nothing is in the way").garbage);
    };
    let at = |seconds: u64| Moment(seconds * 1_000_000_000);
    world.set(b"never", b"value");
    assert!(!world.vb.may_have_expired(Moment(u64::MAX)));
    expires(&mut world, b"late", 500);
    expires(&mut world, b"soon", 100);
    assert!(!world.vb.may_have_expired(at(100)) && world.vb.may_have_expired(at(101)));
    expires(&mut world, b"soon", 0);
    assert!(world.vb.may_have_expired(at(101)), "a bound, which nobody looks for");
    world.vb.begin_expiry_pass();
    assert!(!world.vb.may_have_expired(Moment(u64::MAX)));
    expires(&mut world, b"new", 700);
    world.vb.end_expiry_pass(500);
    assert!(!world.vb.may_have_expired(at(500)) && world.vb.may_have_expired(at(501)));
    world.vb.begin_expiry_pass();
    expires(&mut world, b"new", 300);
    world.vb.end_expiry_pass(0);
    assert!(!world.vb.may_have_expired(at(300)) && world.vb.may_have_expired(at(301)));
}
