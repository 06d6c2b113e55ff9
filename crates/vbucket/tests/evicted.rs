//! Whole versions that leave a vBucket and come back, against a plain model: nothing is ever denied, and what is
//! counted is what there is, also while it is counted anew.

use std::collections::BTreeMap;

use base::{Cas, DocKey, Heap, ItemKind, Moment, NewVersion, VbId, VbState, VbUuid, Version, VersionMeta};
use proptest::prelude::*;
use vbucket::{Basis, BucketContext, Change, Existence, Look, Origin, RangeLimit, Refusal, Unknown, VBucket};

const KEYS: u8 = 12;
const NOW: Moment = Moment(1);

#[derive(Clone, Copy, Debug)]
enum Op {
    Write { key: u8, delete: bool },
    Flush,
    Evict(u8),
    Bring(u8),
    Purge,
    BeginCount,
    TakeSnapshot,
    CountSlice(usize),
    EndCount,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..KEYS, any::<bool>()).prop_map(|(key, delete)| Op::Write { key, delete }),
        4 => Just(Op::Flush),
        8 => (0..KEYS).prop_map(Op::Evict),
        4 => (0..KEYS).prop_map(Op::Bring),
        1 => Just(Op::Purge),
        2 => Just(Op::BeginCount),
        2 => Just(Op::TakeSnapshot),
        6 => (1..5_usize).prop_map(Op::CountSlice),
        2 => Just(Op::EndCount),
    ]
}

/// A count under way: its number, and what of the snapshot was not shown yet.
struct Count {
    ticket: u64,
    snapshot: Option<Vec<Version>>,
}

struct World {
    context: BucketContext,
    vb: VBucket,
    disk: BTreeMap<Vec<u8>, Version>,
    /// What there is: whether it is a tombstone.
    truth: BTreeMap<u8, bool>,
    count: Option<Count>,
}

impl World {
    fn new(filtered: bool) -> World {
        let context = BucketContext::new(1, 2, Heap::default());
        context.filters.set(filtered.then_some(10));
        let vb = VBucket::new(VbId(0), &context, Origin::empty(VbState::Active, VbUuid(1)));
        World { context, vb, disk: BTreeMap::new(), truth: BTreeMap::new(), count: None }
    }

    fn hash(&self, key: DocKey<'_>) -> u64 {
        self.context.seed.hash(key)
    }

    fn write(&mut self, key: u8, delete: bool) -> Result<u64, Refusal> {
        let name = [key];
        let key = DocKey::new(&name);
        let kind = if delete { ItemKind::Deletion } else { ItemKind::Mutation };
        let meta = VersionMeta { kind, ..VersionMeta::default() };
        let change = Change {
            new: NewVersion::new(&self.context.heap, meta, key, &[b"value"]),
            existence: Existence::Any,
            cas: Cas::ANY,
            basis: Basis::Nothing,
            preserve_expiry: false,
        };
        let stored = self.vb.apply(self.hash(key), change, NOW, |_| {}).map_err(|refused| refused.refusal)?;
        drop(stored.garbage);
        self.truth.insert(name[0], delete);
        let found = self.vb.find(self.hash(key), key).expect("just written").expect("just written");
        Ok(found.meta().rev_seqno.0)
    }

    fn flush(&mut self) {
        let Some(batch) = self.vb.take_flush_batch(RangeLimit::NONE) else { return };
        for version in batch.range.iter().flat_map(|range| range.iter()) {
            self.disk.insert(version.stored_key().to_vec(), version.clone());
        }
        drop(self.vb.flushed(batch.high_seqno));
    }

    fn evict(&mut self, key: u8) -> bool {
        let name = [key];
        let hash = self.hash(DocKey::new(&name));
        let Ok(Some(version)) = self.vb.find(hash, DocKey::new(&name)).map(|found| found.map(|v| v.clone()))
        else {
            return false;
        };
        self.vb.evict_whole(hash, &version, NOW).is_some()
    }

    /// Asks the disk for a key as long as nobody knows; what `look` sees then is certain.
    fn bring<T>(&mut self, key: u8, look: impl FnOnce(&mut World) -> T) -> T {
        let name = [key];
        let key = DocKey::new(&name);
        let hash = self.hash(key);
        let purges = self.vb.purges();
        match self.vb.begin_look(hash, key) {
            Look::InMemory => look(self),
            Look::OnDisk => {
                match self.disk.get(&key.to_stored().0[..]) {
                    Some(version) => assert!(self.vb.bring_back(hash, version, purges).0),
                    None => self.vb.found_nothing(key),
                }
                let seen = look(self);
                assert!(!self.evict(name[0]), "it is tied");
                self.vb.end_look(key);
                seen
            }
            other => panic!("{other:?}"),
        }
    }

    fn purge(&mut self) {
        self.flush();
        let old: Vec<Version> = self.disk.values().filter(|version| version.is_deleted()).cloned().collect();
        self.disk.retain(|_, version| !version.is_deleted());
        self.truth.retain(|_, deleted| !*deleted);
        let high_seqno = self.vb.high_seqno();
        self.vb.raise_purge_seqno(high_seqno);
        for version in old {
            let hash = self.hash(version.key());
            drop(self.vb.forget_tombstone(hash, &version));
        }
        let ticket = self.vb.begin_recount().expect("nothing is dropped");
        assert!(self.vb.recount_through(ticket, high_seqno));
        let all: Vec<(u64, Version)> = self.disk.values().map(|v| (self.hash(v.key()), v.clone())).collect();
        assert!(self.vb.recount_slice(ticket, &all));
        drop(self.vb.end_recount(ticket, true));
        self.count = None;
    }

    fn count(&mut self, slice: usize) {
        let Some(Count { ticket, snapshot: Some(left) }) = &mut self.count else { return };
        let (ticket, end) = (*ticket, slice.min(left.len()));
        let slice: Vec<Version> = left.drain(..end).collect();
        let slice: Vec<(u64, Version)> = slice.into_iter().map(|v| (self.hash(v.key()), v)).collect();
        assert!(self.vb.recount_slice(ticket, &slice));
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Write { key, delete } => {
                let written = self.bring(key, |world| world.write(key, delete));
                written.expect("what there is was brought");
            }
            Op::Flush => self.flush(),
            Op::Evict(key) => drop(self.evict(key)),
            Op::Bring(key) => {
                let name = [key];
                let expected = self.truth.get(&key).copied();
                self.bring(key, |world| {
                    let found = world.vb.find(world.hash(DocKey::new(&name)), DocKey::new(&name));
                    let found = found.expect("it is certain").map(|version| version.is_deleted());
                    assert_eq!(found, expected);
                });
            }
            Op::Purge => self.purge(),
            Op::BeginCount => {
                self.count = Some(Count {
                    ticket: self.vb.begin_recount().expect("nothing is dropped"),
                    snapshot: None,
                })
            }
            Op::TakeSnapshot => {
                let Some(Count { ticket, snapshot: snapshot @ None }) = &mut self.count else { return };
                let all: Vec<Version> = self.disk.values().cloned().collect();
                let newest = all.iter().map(|version| version.meta().by_seqno).max().unwrap_or_default();
                assert!(self.vb.recount_through(*ticket, newest));
                *snapshot = Some(all);
            }
            Op::CountSlice(items) => self.count(items),
            Op::EndCount => {
                let shown = |count: &Count| count.snapshot.as_ref().is_some_and(Vec::is_empty);
                if let Some(count) = self.count.take() {
                    drop(self.vb.end_recount(count.ticket, shown(&count)));
                }
            }
        }
    }

    fn check(&self) {
        let counts = self.vb.counts();
        let tombstones = self.truth.values().filter(|deleted| **deleted).count() as u64;
        assert_eq!((counts.documents, counts.tombstones), (self.truth.len() as u64 - tombstones, tombstones));
        let (mut documents, mut deleted) = (0, 0);
        for key in 0..KEYS {
            let name = [key];
            let found = self.vb.find(self.hash(DocKey::new(&name)), DocKey::new(&name));
            match (self.truth.get(&key), found) {
                (Some(deleted), Ok(Some(version))) => assert_eq!(*deleted, version.is_deleted()),
                (Some(true), Err(Unknown)) => deleted += 1,
                (Some(false), Err(Unknown)) => documents += 1,
                (None, Ok(None) | Err(Unknown)) => {}
                (truth, found) => {
                    panic!("{truth:?} of {key}, found {:?}", found.map(|found| found.is_some()))
                }
            }
        }
        assert_eq!((counts.evicted_documents, counts.evicted_tombstones), (documents, deleted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_denied_and_counts_are_right(
        ops in proptest::collection::vec(op(), 1..120), filtered in any::<bool>(),
    ) {
        let mut world = World::new(filtered);
        for op in ops {
            world.run(op);
            world.check();
        }
        let account = world.context.account().clone();
        drop(world);
        prop_assert_eq!(account.exact(), [0; base::memory::PARTS]);
    }
}

#[test]
fn a_tombstone_that_is_being_purged_is_not_forgotten() {
    let mut world = World::new(true);
    for _ in 0..4 {
        world.write(1, true).expect("nothing is in the way");
    }
    world.flush();
    assert!(world.evict(1));
    assert_eq!(world.write(1, false), Err(Refusal::Unknown));
    // The compaction is through with the file, and has not come back yet.
    world.disk.clear();
    let written = world.bring(1, |world| world.write(1, false));
    assert_eq!(written, Ok(5), "a revision beyond that of the tombstone");
}
