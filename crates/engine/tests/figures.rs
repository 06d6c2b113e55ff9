//! Figures that are kept from one look to the next are what a look at each vBucket finds, whatever happened in between.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::env::{Env, SimHandles};
use base::{Cas, CollectionId, Datatype, DocKey, ScopeId, Seqno, VbId, VbState};
use common::stores::{files, journaled};
use engine::settings::Key;
use engine::{
    Bucket, BucketConfig, BucketKind, CollectionTotals, EvictionPolicy, Progress, STATES, StoreMode,
    StoreRequest, VbStats, WarmupState, file_usage,
};
use kvstore::{KvStore, Nothing};
use proptest::prelude::*;
use vbucket::{Collection, CollectionOps, Manifest, ManifestUid, Scope};

const DEFAULT: CollectionId = CollectionId::DEFAULT;
/// More than one group of neighbours that are summed together.
const VBUCKETS: u16 = 32;
/// Where documents are: twice in the first group, and in others.
const USED: [u16; 4] = [0, 7, 8, 31];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Files,
    FullEviction,
    Ephemeral,
}

#[derive(Clone, Debug)]
enum Act {
    /// Where, in which collection, which key.
    Set(usize, usize, u8),
    Delete(usize, usize, u8),
    Get(usize, usize, u8),
    Evict(usize, usize, u8),
    Flush,
    File,
    Compact(usize),
    Keep,
    Role(usize, VbState),
    Rollback(usize, u8),
    DeleteVbucket(usize),
    MakeCollection,
    DropCollection(usize),
    Restart,
    Load,
    /// Looks at one figure alone: each has marks of its own.
    LookAtCollections,
    LookAtStates,
    LookAtFiles,
}

fn act() -> impl Strategy<Value = Act> {
    let place = || (0..USED.len(), 0..4_usize, 0..12_u8);
    let at = || 0..USED.len();
    let role = prop_oneof![
        3 => Just(VbState::Active),
        2 => Just(VbState::Replica),
        1 => Just(VbState::Dead),
        1 => Just(VbState::Pending),
    ];
    prop_oneof![
        12 => place().prop_map(|(at, of, key)| Act::Set(at, of, key)),
        3 => place().prop_map(|(at, of, key)| Act::Delete(at, of, key)),
        3 => place().prop_map(|(at, of, key)| Act::Get(at, of, key)),
        3 => place().prop_map(|(at, of, key)| Act::Evict(at, of, key)),
        4 => Just(Act::Flush),
        2 => Just(Act::File),
        1 => at().prop_map(Act::Compact),
        2 => Just(Act::Keep),
        3 => (at(), role).prop_map(|(at, role)| Act::Role(at, role)),
        1 => (at(), 0..20_u8).prop_map(|(at, seqno)| Act::Rollback(at, seqno)),
        1 => at().prop_map(Act::DeleteVbucket),
        2 => Just(Act::MakeCollection),
        1 => (0..4_usize).prop_map(Act::DropCollection),
        1 => Just(Act::Restart),
        2 => Just(Act::Load),
        2 => Just(Act::LookAtCollections),
        2 => Just(Act::LookAtStates),
        2 => Just(Act::LookAtFiles),
    ]
}

struct World {
    env: Env,
    handles: SimHandles,
    kind: Kind,
    store: Arc<dyn KvStore>,
    bucket: Option<Bucket>,
    collections: Vec<CollectionId>,
    uid: u64,
    next_id: u32,
    /// What clients did since the start, by collection.
    ops: BTreeMap<CollectionId, CollectionOps>,
}

fn open(env: &Env, kind: Kind) -> (Arc<dyn KvStore>, Bucket) {
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = VBUCKETS;
    let store: Arc<dyn KvStore> = match kind {
        Kind::Files => files(env),
        Kind::FullEviction => {
            config.settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
            journaled(env)
        }
        Kind::Ephemeral => {
            config.kind = BucketKind::Ephemeral;
            Arc::new(Nothing)
        }
    };
    let bucket = Bucket::open(config, env.clone(), Arc::clone(&store)).expect("the disk works");
    (store, bucket)
}

/// What can be summed of a vBucket, as text.
fn figures(all: &[VbStats]) -> BTreeMap<&'static str, u64> {
    let sum = |of: fn(&VbStats) -> u64| all.iter().map(of).sum::<u64>();
    BTreeMap::from([
        ("vbuckets", all.len() as u64),
        ("documents", sum(|of| of.documents)),
        ("tombstones", sum(|of| of.tombstones)),
        ("without_value", sum(|of| of.without_value)),
        ("evicted_documents", sum(|of| of.evicted_documents)),
        ("evicted_tombstones", sum(|of| of.evicted_tombstones)),
        ("filter_bytes", sum(|of| of.filter_bytes)),
        ("item_bytes", sum(|of| of.item_bytes)),
        ("table_bytes", sum(|of| of.table_bytes)),
        ("checkpoints", sum(|of| of.checkpoints.checkpoints)),
        ("checkpoint_items", sum(|of| of.checkpoints.items)),
        ("checkpoint_item_bytes", sum(|of| of.checkpoints.item_bytes)),
        ("checkpoint_overhead_bytes", sum(|of| of.checkpoints.overhead_bytes)),
        ("unpersisted_items", sum(|of| of.checkpoints.unpersisted_items)),
        ("merged_items", sum(|of| of.checkpoints.merged)),
        ("gets", sum(|of| of.ops.get_hits + of.ops.get_misses + of.ops.get_not_resident)),
        ("stores", sum(|of| of.ops.stores)),
        ("deletes", sum(|of| of.ops.deletes)),
        ("ejects", sum(|of| of.ops.ejects)),
        ("drained", sum(|of| of.ops.drained)),
        ("created", sum(|of| of.written.created)),
        ("updated", sum(|of| of.written.updated)),
        ("logical_ticks", sum(|of| of.clock.logical_ticks)),
        ("seq_list_items", sum(|of| of.seq_list.unwrap_or_default().items)),
        ("seq_list_bytes", sum(|of| of.seq_list.unwrap_or_default().bytes)),
    ])
}

impl World {
    fn new(kind: Kind) -> World {
        let (env, handles) = Env::sim(1);
        let (store, bucket) = open(&env, kind);
        let mut world = World {
            env,
            handles,
            kind,
            store,
            bucket: Some(bucket),
            collections: vec![DEFAULT],
            uid: 0,
            next_id: 8,
            ops: BTreeMap::new(),
        };
        world.act(&Act::MakeCollection);
        world
    }

    fn bucket(&self) -> &Bucket {
        self.bucket.as_ref().expect("it is open")
    }

    fn is_loaded(&self) -> bool {
        self.bucket().loading().warmup_stats().state != WarmupState::LoadingKeys
    }

    fn take_manifest(&mut self) {
        self.uid += 1;
        let scopes =
            [(0, "_default"), (8, "s")].map(|(id, name)| Scope { id: ScopeId(id), name: name.into() });
        let collections = self.collections.iter().map(|id| {
            let is_default = *id == DEFAULT;
            let name = if is_default { "_default".into() } else { format!("c{id}") };
            let scope = ScopeId(if is_default { 0 } else { 8 });
            Collection { id: *id, scope, name, max_ttl_s: None, history: None }
        });
        let new = Manifest::new(ManifestUid(self.uid), scopes, collections).expect("it is valid");
        self.bucket().collections().set_manifest(new).expect("it follows");
        let there = &self.collections;
        self.ops.retain(|id, _| there.contains(id));
    }

    fn collection(&self, of: usize) -> CollectionId {
        self.collections[of % self.collections.len()]
    }

    fn count(&mut self, of: CollectionId, count: impl FnOnce(&mut CollectionOps)) {
        count(self.ops.entry(of).or_default());
    }

    fn act_on_document(&mut self, act: &Act) {
        let (Act::Set(at, of, number)
        | Act::Delete(at, of, number)
        | Act::Get(at, of, number)
        | Act::Evict(at, of, number)) = act
        else {
            return;
        };
        let (vb, collection) = (VbId(USED[*at]), self.collection(*of));
        let name = format!("key-{number}");
        let key = DocKey { collection, key: name.as_bytes() };
        let (documents, now) = (self.bucket().documents(), self.bucket().now());
        match act {
            Act::Set(..) => {
                let body = vec![b'v'; usize::from(*number) * 50];
                let request = StoreRequest {
                    key,
                    body: &body,
                    datatype: Datatype::RAW,
                    flags: 0,
                    expiry: 0,
                    mode: StoreMode::Set,
                    cas: Cas::ANY,
                    preserve_expiry: false,
                };
                if documents.store(vb, &request, now).is_ok() {
                    self.count(collection, |ops| ops.stores += 1);
                }
            }
            Act::Delete(..) => {
                if documents.delete(vb, key, Cas::ANY, now).is_ok() {
                    self.count(collection, |ops| ops.deletes += 1);
                }
            }
            Act::Get(..) => match documents.get(vb, key, now).map(drop) {
                Ok(()) | Err(engine::Refusal::NotFound) => self.count(collection, |ops| ops.gets += 1),
                // The fetcher brings it.
                Err(engine::Refusal::NotResident) => {
                    drop(self.bucket().fetching().fetch(vb, key));
                    while self.bucket().fetching().fetch_step() == Progress::Worked {}
                }
                Err(_) => {}
            },
            _ if self.kind == Kind::FullEviction => drop(self.bucket().eviction().evict_whole(vb, key)),
            _ => drop(self.bucket().eviction().evict_value(vb, key)),
        }
    }

    fn act(&mut self, act: &Act) {
        let has_disk = self.kind != Kind::Ephemeral;
        match act {
            Act::Set(..) | Act::Delete(..) | Act::Get(..) | Act::Evict(..) => self.act_on_document(act),
            Act::Flush if has_disk => assert!(self.bucket().flushing().flush_all()),
            Act::File if has_disk => {
                self.handles.clock.advance(Duration::from_secs(20));
                while self.bucket().flushing().file_step() == Progress::Worked {}
            }
            Act::Compact(at) if has_disk => {
                drop(self.bucket().compaction().compact(VbId(USED[*at]), Default::default()));
                while self.bucket().compaction().compact_step() == Progress::Worked {}
            }
            Act::Keep => {
                self.handles.clock.advance(Duration::from_secs(2));
                self.bucket().maintenance().keep_step();
            }
            Act::Role(at, role) => {
                let _ = self.bucket().roles().set_vbucket_state(VbId(USED[*at]), *role, None);
            }
            Act::Rollback(at, seqno) if has_disk => {
                let seqno = Seqno(u64::from(*seqno));
                if let Ok(done) = self.bucket().roles().rollback(VbId(USED[*at]), seqno) {
                    done.expect("the disk works");
                }
            }
            Act::DeleteVbucket(at) => {
                if let Ok(done) = self.bucket().roles().delete_vbucket(VbId(USED[*at])) {
                    done.expect("the disk works");
                }
            }
            Act::MakeCollection => {
                self.collections.push(CollectionId(self.next_id));
                self.next_id += 1;
                self.take_manifest();
            }
            Act::DropCollection(of) if self.collections.len() > 1 => {
                self.collections.remove(1 + of % (self.collections.len() - 1));
                self.take_manifest();
            }
            Act::Restart if has_disk => {
                assert!(self.bucket().flushing().flush_all());
                self.bucket = None;
                let (store, bucket) = open(&self.env, self.kind);
                (self.store, self.bucket) = (store, Some(bucket));
                self.ops.clear();
            }
            Act::Load => drop(self.bucket().loading().load_step()),
            Act::LookAtCollections => drop(self.bucket().collections().collection_totals()),
            Act::LookAtStates => drop(self.bucket().stats()),
            Act::LookAtFiles => drop(file_usage(self.bucket())),
            _ => {}
        }
    }

    /// By a look at each vBucket.
    fn counted(&self, is_loaded: bool) -> Vec<(CollectionId, CollectionTotals)> {
        let mut all: BTreeMap<CollectionId, CollectionTotals> =
            self.collections.iter().map(|id| (*id, CollectionTotals::default())).collect();
        for vb in (0..VBUCKETS).map(VbId) {
            self.store.each_collection(vb, &mut |id, stats| {
                if let Some(totals) = all.get_mut(&id) {
                    totals.disk_bytes += stats.disk_bytes;
                }
            });
            self.bucket().with_vbucket(vb, |of| {
                for one in of.collections().open() {
                    let Some(totals) = all.get_mut(&one.id) else { continue };
                    let held = of.held_by(one.id);
                    totals.memory_bytes += held.bytes;
                    if of.state() == VbState::Active && is_loaded {
                        totals.documents += held.documents();
                    }
                }
            });
        }
        for (id, totals) in &mut all {
            totals.ops = self.ops.get(id).copied().unwrap_or_default();
        }
        all.into_iter().collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let bucket = self.bucket();
        let stats = bucket.stats();
        let each = (0..VBUCKETS).filter_map(|vb| bucket.vbucket_stats(VbId(vb)));
        let each: Vec<VbStats> = each.collect();
        for state in STATES {
            let of: Vec<_> = each.iter().filter(|of| of.state == state).copied().collect();
            let sums = stats.of(state);
            let told = BTreeMap::from([
                ("vbuckets", sums.vbuckets),
                ("documents", sums.documents),
                ("tombstones", sums.tombstones),
                ("without_value", sums.without_value),
                ("evicted_documents", sums.evicted_documents),
                ("evicted_tombstones", sums.evicted_tombstones),
                ("filter_bytes", sums.filter_bytes),
                ("item_bytes", sums.item_bytes),
                ("table_bytes", sums.table_bytes),
                ("checkpoints", sums.checkpoints),
                ("checkpoint_items", sums.checkpoint_items),
                ("checkpoint_item_bytes", sums.checkpoint_item_bytes),
                ("checkpoint_overhead_bytes", sums.checkpoint_overhead_bytes),
                ("unpersisted_items", sums.unpersisted_items),
                ("merged_items", sums.merged_items),
                ("gets", sums.ops.get_hits + sums.ops.get_misses + sums.ops.get_not_resident),
                ("stores", sums.ops.stores),
                ("deletes", sums.ops.deletes),
                ("ejects", sums.ops.ejects),
                ("drained", sums.ops.drained),
                ("created", sums.written.created),
                ("updated", sums.written.updated),
                ("logical_ticks", sums.clock.logical_ticks),
                ("seq_list_items", sums.seq_list_items),
                ("seq_list_bytes", sums.seq_list_bytes),
            ]);
            prop_assert_eq!(told, figures(&of), "{:?}", state);
        }
        prop_assert_eq!(stats.all().ops.stores, bucket.op_counts().stores, "deleted ones, too");
        let usage = (0..VBUCKETS).filter_map(|vb| self.store.usage(VbId(vb)));
        let usage = usage.fold((0, 0), |(a, b), of| (a + of.file_bytes, b + of.used_bytes));
        prop_assert_eq!(file_usage(bucket), usage);
        let is_loaded = self.is_loaded();
        let mut told = bucket.collections().collection_totals();
        if !is_loaded {
            told.iter_mut().for_each(|(_, totals)| totals.documents = 0);
        }
        prop_assert_eq!(told, self.counted(is_loaded));
        Ok(())
    }
}

fn holds(kind: Kind, acts: &[Act]) -> Result<(), TestCaseError> {
    let mut world = World::new(kind);
    for act in acts {
        world.act(act);
        if matches!(act, Act::Flush | Act::LookAtStates | Act::Role(..) | Act::Load) {
            world.check()?;
        }
    }
    world.check()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_a_bucket_on_files(acts in proptest::collection::vec(act(), 1..120)) {
        holds(Kind::Files, &acts)?;
    }

    #[test]
    fn of_a_bucket_that_evicts_whole_documents(acts in proptest::collection::vec(act(), 1..120)) {
        holds(Kind::FullEviction, &acts)?;
    }

    #[test]
    fn of_an_ephemeral_bucket(acts in proptest::collection::vec(act(), 1..120)) {
        holds(Kind::Ephemeral, &acts)?;
    }
}

#[test]
fn documents_that_are_not_loaded_yet_count_as_stored() {
    let mut world = World::new(Kind::Files);
    for at in 0..USED.len() {
        (0..5).for_each(|key| world.act(&Act::Set(at, 0, key)));
        (0..3).for_each(|key| world.act(&Act::Set(at, 1, key)));
    }
    world.act(&Act::Role(2, VbState::Replica));
    let documents = |world: &World| -> Vec<u64> {
        world.bucket().collections().collection_totals().iter().map(|(_, totals)| totals.documents).collect()
    };
    assert_eq!(documents(&world), [15, 9]);
    world.act(&Act::Restart);
    assert_eq!(documents(&world), [15, 9], "nothing is loaded");
    while !world.is_loaded() {
        world.act(&Act::Load);
        assert_eq!(documents(&world), [15, 9]);
    }
    world.check().expect("it holds");
}
