//! Values that leave a vBucket and come back, and documents that are put in place after a start.

use base::{Cas, DocKey, Moment, NewVersion, Seqno, VbId, VbState, VbUuid, Version, VersionMeta};
use vbucket::{Basis, BucketContext, Change, Counts, Existence, Loaded, Origin, Placed, VBucket};

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
        let batch = self.vb.take_flush_batch(1000).expect("something is dirty");
        drop(self.vb.flushed(batch.high_seqno));
    }

    fn find(&self, name: &[u8]) -> Version {
        self.vb.find(self.hash(name), key(name)).expect("it is there").clone()
    }

    fn evict(&mut self, name: &[u8]) -> Option<Version> {
        let there = self.find(name);
        let hollow =
            NewVersion::without_value(base::Heap::shared(), there.meta(), there.key(), there.value_bytes());
        self.vb.take_value(self.hash(name), hollow, Moment(1))
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
    assert!(
        matches!(world.vb.put_value(world.hash(b"k"), &whole), Placed::Placed(old) if !old.is_resident())
    );
    assert!(matches!(world.vb.put_value(world.hash(b"k"), &whole), Placed::NotNeeded));
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
    assert!(matches!(world.vb.put_value(world.hash(b"k"), &old), Placed::NotNeeded));
    world.flush();
    world.evict(b"k").expect("it is clean");
    assert!(matches!(world.vb.put_value(world.hash(b"k"), &old), Placed::Other));
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
