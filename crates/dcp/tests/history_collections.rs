//! Change streams of buckets in which some collections have no part in the history: what is kept, what is merged, which
//! event tells a change of that, and what is told of a collection that was dropped.

#[path = "shared/buckets.rs"]
mod buckets;
#[path = "shared/changes.rs"]
mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::env::sim::SplitMix64;
use base::env::{Env, SimHandles};
use base::{CollectionId, DocKey, Heap, ScopeId, Seqno, VbId};
use dcp::{Agreement, Features, Producer, read_event};
use engine::Bucket;
use protocol::Status;
use protocol::dcp::{Marker, Message, OpenFlags, StreamRequest, What};
use vbucket::collections::SystemEvent;
use vbucket::{Collection, Manifest};

const VB: VbId = VbId(1);
const VBUCKETS: u16 = 4;
/// Has a part in the history, as was never said.
const KEPT: CollectionId = CollectionId(8);
/// Has no part in it to begin with.
const FLEETING: CollectionId = CollectionId(9);

/// A document's version: collection, key and value.
type Told = (CollectionId, String, String);

struct World {
    env: Env,
    _handles: SimHandles,
    bucket: Arc<Bucket>,
    /// Every version by its seqno, and whether its collection had a part in the history then.
    all: BTreeMap<u64, (Told, bool)>,
    has_part: BTreeMap<CollectionId, bool>,
    changes: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let (env, handles) = Env::sim(seed);
        let env = env.with_heap(Heap::default());
        let bucket = changes::open(&env, VBUCKETS, 1_000_000);
        let has_part = BTreeMap::from([(CollectionId::DEFAULT, true), (KEPT, true), (FLEETING, false)]);
        let world = World { env, _handles: handles, bucket, all: BTreeMap::new(), has_part, changes: 0 };
        world.change(|manifest| {
            for (id, name, history) in [(KEPT, "kept", None), (FLEETING, "fleeting", Some(false))] {
                let (scope, name) = (ScopeId(0), name.to_owned());
                let made = Collection { id, scope, name, max_ttl_s: None, history };
                manifest.add_collection(made).expect("the name is new");
            }
        });
        world
    }

    fn change(&self, change: impl FnOnce(&mut Manifest)) {
        let collections = self.bucket.collections();
        let mut next = collections.manifest().successor();
        change(&mut next);
        collections.set_manifest(next).expect("the disk works");
    }

    fn let_keep(&mut self, id: CollectionId, history: bool) {
        self.change(|manifest| manifest.set_history(id, Some(history)));
        self.has_part.insert(id, history);
    }

    fn set(&mut self, collection: CollectionId, key: &str) {
        self.changes += 1;
        let value = format!("v{}", self.changes);
        let request = buckets::set(DocKey { collection, key: key.as_bytes() }, value.as_bytes());
        self.bucket.documents().store(VB, &request, self.bucket.now()).expect("stored");
        let high = self.bucket.streams().stream_state(VB).expect("it is there").3.0;
        self.all.insert(high, ((collection, key.to_owned(), value), self.has_part[&collection]));
    }

    fn flush(&self) {
        assert!(self.bucket.flushing().flush_all());
    }

    /// Takes everything to disk and out of memory, so that streams have to read it there.
    fn leave_memory(&self) {
        self.flush();
        self.bucket.roles().create_checkpoint(VB).expect("it is there");
        self.bucket.streams().drop_stream_cursors(VB);
    }

    fn crash(self) -> World {
        let World { env, _handles, bucket, mut all, has_part, changes } = self;
        drop(bucket);
        let bucket = changes::open(&env, VBUCKETS, 1_000_000);
        let high = bucket.streams().stream_state(VB).expect("it is there").3.0;
        all.retain(|seqno, _| *seqno <= high);
        World { env, _handles, bucket, all, has_part, changes }
    }

    /// What has to be told: what has a part in the history, and the newest version of each document.
    fn required(&self) -> BTreeMap<u64, Told> {
        let newest: BTreeMap<(CollectionId, &String), u64> =
            self.all.iter().map(|(seqno, ((id, key, _), _))| ((*id, key), *seqno)).collect();
        let newest: BTreeSet<u64> = newest.into_values().collect();
        let is_told = |seqno: &u64, is_kept: bool| is_kept || newest.contains(seqno);
        let told = self.all.iter().filter(|(seqno, (_, is_kept))| is_told(seqno, *is_kept));
        told.map(|(seqno, (change, _))| (*seqno, change.clone())).collect()
    }

    /// A stream of everything tells what it must, and nothing that was not; whether it told nothing else.
    fn look(&self) -> bool {
        let told = Consumer::new(self).drained(self).told;
        let required = self.required();
        for (seqno, change) in &required {
            assert_eq!(told.get(seqno), Some(change), "at {seqno}");
        }
        for (seqno, change) in &told {
            assert_eq!(self.all.get(seqno).map(|(change, _)| change), Some(change), "at {seqno}");
        }
        told.len() == required.len()
    }
}

struct Consumer {
    producer: Producer,
    woken: Arc<AtomicBool>,
    told: BTreeMap<u64, Told>,
    events: Vec<SystemEvent>,
    last: u64,
}

impl changes::Reader for Consumer {
    fn source(&mut self) -> (&mut Producer, &AtomicBool) {
        (&mut self.producer, &self.woken)
    }

    fn take(&mut self, message: &Message<'_>) {
        let seqno = match message.what {
            What::Marker(marker) => return assert_ne!(marker.flags & Marker::HISTORY, 0, "{marker:?}"),
            What::SeqnoAdvanced(_) => return,
            What::SystemEvent(seqno, ..) => {
                self.events.push(read_event(message).expect("an event"));
                seqno.0
            }
            What::Mutation(mutation) => {
                let key = DocKey::parse(message.key).expect("a collection before the key");
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let told = (key.collection, text(key.key), text(message.value));
                self.told.insert(mutation.by_seqno.0, told);
                mutation.by_seqno.0
            }
            _ => panic!("{message:?}"),
        };
        assert!(seqno > self.last, "{seqno} after {}", self.last);
        self.last = seqno;
    }
}

impl Consumer {
    fn new(world: &World) -> Consumer {
        let woken = Arc::new(AtomicBool::new(false));
        let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"test", false).expect("a producer");
        let features = Features { collections: true, ..Features::default() };
        let wake = Arc::clone(&woken);
        let mut producer =
            Producer::new(Arc::clone(&world.bucket), "test".into(), agreed, features, move || {
                wake.store(true, Ordering::Relaxed);
            });
        for name in ["enable_noop", "change_streams", "flatbuffers_system_events"] {
            assert_eq!(producer.control(name.as_bytes(), b"true"), Status::Success, "{name}");
        }
        let request = StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() };
        assert!(producer.request(VB, 7, &request, b"").is_ok());
        Consumer { producer, woken, told: BTreeMap::new(), events: Vec::new(), last: 0 }
    }

    fn drain(&mut self, world: &World) {
        changes::drain(self, &world.bucket);
    }

    fn drained(mut self, world: &World) -> Consumer {
        self.drain(world);
        self
    }

    /// What was told of a collection's part in the history, one event after the other.
    fn told_of(&self, id: CollectionId) -> Vec<Option<bool>> {
        let of = self.events.iter().filter_map(|event| match event {
            SystemEvent::CollectionBegin { collection, .. }
            | SystemEvent::CollectionChanged { collection, .. } => Some(collection),
            _ => None,
        });
        of.filter(|collection| collection.id == id).map(|collection| collection.history).collect()
    }
}

#[test]
fn a_collection_without_history_has_its_newest_versions_alone() {
    let mut world = World::new(1);
    for _ in 0..3 {
        world.set(KEPT, "k");
        world.set(FLEETING, "k");
    }
    assert!(world.look(), "checkpoints merge them");
    world.leave_memory();
    assert!(world.look());
    // Also if each of them was saved.
    for _ in 0..3 {
        world.set(KEPT, "k");
        world.set(FLEETING, "k");
        world.flush();
    }
    world.leave_memory();
    assert!(world.look());
    let history = world.bucket.history(VB);
    assert_eq!((history.start, history.versions), (1, 5), "of the other collection");
    let told = Consumer::new(&world).drained(&world);
    assert_eq!((told.told_of(KEPT), told.told_of(FLEETING)), (vec![None], vec![Some(false)]));
}

#[test]
fn a_change_is_told_and_holds_from_there_on() {
    let mut world = World::new(2);
    let mut follower = Consumer::new(&world);
    for history in [true, false, true] {
        for _ in 0..3 {
            world.set(FLEETING, "k");
        }
        world.let_keep(FLEETING, history);
        follower.drain(&world);
    }
    _ = world.look();
    assert_eq!(follower.told_of(FLEETING), [Some(false), Some(true), Some(false), Some(true)]);
    world.leave_memory();
    assert!(world.look(), "of the first part and the third, the newest version alone");
    assert_eq!(world.required().len(), 3 + 1);
    // Of the changes on disk the last one is told.
    let told = Consumer::new(&world).drained(&world);
    assert_eq!(told.told_of(FLEETING), [Some(false), Some(true)]);
}

#[test]
fn what_each_collection_says_is_kept_to() {
    for seed in 0..40 {
        let (mut rng, mut world) = (SplitMix64::new(seed), World::new(seed));
        for _ in 0..150 {
            let key = format!("k{}", rng.below(4));
            let collection = [CollectionId::DEFAULT, KEPT, FLEETING][rng.below(3) as usize];
            match rng.below(24) {
                0 => _ = world.look(),
                1 => world.leave_memory(),
                2 | 3 => world.flush(),
                4 => drop(world.bucket.flushing().file_step()),
                5 => world.let_keep(collection, rng.chance(1, 2)),
                _ => world.set(collection, &key),
            }
        }
        _ = world.look();
        world.leave_memory();
        assert!(world.look(), "seed {seed}");
    }
}

/// The journal does not say what has a part in the history: after a crash more may be told, and never less.
#[test]
fn a_crash_loses_nothing_of_a_history() {
    for seed in 0..40 {
        let (mut rng, mut world) = (SplitMix64::new(seed), World::new(seed));
        for _ in 0..120 {
            let key = format!("k{}", rng.below(4));
            let collection = [CollectionId::DEFAULT, KEPT, FLEETING][rng.below(3) as usize];
            match rng.below(24) {
                0 => _ = world.look(),
                1 => world.leave_memory(),
                2 | 3 => world.flush(),
                4 => drop(world.bucket.flushing().file_step()),
                5 => {
                    world.flush();
                    world = world.crash();
                }
                _ => world.set(collection, &key),
            }
        }
        // What was said of collections is known after a crash.
        world.leave_memory();
        world = world.crash();
        world.leave_memory();
        _ = world.look();
        let before = Consumer::new(&world).drained(&world).told.len();
        for _ in 0..3 {
            world.set(FLEETING, "another");
            world.flush();
        }
        world.leave_memory();
        _ = world.look();
        assert_eq!(Consumer::new(&world).drained(&world).told.len(), before + 1, "seed {seed}");
    }
}

/// As the original does it: what is dropped is passed over, history or not, and the event that drops it is told.
#[test]
fn a_history_passes_over_what_is_dropped() {
    let mut world = World::new(3);
    for round in 0..4 {
        world.set(KEPT, "k");
        world.set(CollectionId::DEFAULT, "k");
        if round == 1 {
            world.leave_memory();
        }
    }
    let mut follower = Consumer::new(&world);
    follower.drain(&world);
    assert_eq!(follower.told.len(), 8, "as long as it is there");
    world.change(|manifest| manifest.remove_collection(KEPT));
    world.all.retain(|_, ((collection, ..), _)| *collection != KEPT);
    world.set(CollectionId::DEFAULT, "k");
    let is_end = |event: &SystemEvent| matches!(event, SystemEvent::CollectionEnd { id, .. } if *id == KEPT);
    follower.drain(&world);
    assert!(follower.events.iter().any(is_end));
    for _ in 0..2 {
        world.leave_memory();
        assert!(world.look());
        let told = Consumer::new(&world).drained(&world);
        assert_eq!(told.events.iter().filter(|event| is_end(event)).count(), 1);
        assert_eq!(told.told.len(), 5);
    }
    assert_eq!(world.bucket.history(VB).start, 1, "the history of the others goes on");
    let world = world.crash();
    assert!(world.look());
}
