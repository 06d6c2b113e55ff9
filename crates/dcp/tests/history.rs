//! Change streams: every version of every document, in order, from memory and from disk, for who asks for them; each
//! document once in a snapshot for others.

#[path = "shared/buckets.rs"]
mod buckets;
#[path = "shared/changes.rs"]
mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::sim::SplitMix64;
use base::env::{Env, SimHandles};
use base::{Cas, DocKey, Heap, Seqno, VbId, VbState};
use dcp::{Agreement, Features, Producer};
use engine::{Bucket, Progress};
use protocol::Status;
use protocol::dcp::{Marker, Message, OpenFlags, StreamRequest, What};

const VB: VbId = VbId(1);
const VBUCKETS: u16 = 4;

/// A version: its key, and its value or that it is deleted.
type Told = (String, Option<String>);

struct World {
    env: Env,
    bucket: Arc<Bucket>,
    handles: SimHandles,
    seconds: u64,
    /// Every change since the beginning.
    all: BTreeMap<u64, Told>,
    /// From here on all of them are to be told; 0 if none is.
    from: u64,
    changes: u64,
}

impl World {
    fn new(seed: u64, seconds: u64) -> World {
        let (env, handles) = Env::sim(seed);
        let env = env.with_heap(Heap::default());
        let bucket = changes::open(&env, VBUCKETS, seconds);
        let from = u64::from(seconds > 0);
        World { env, bucket, handles, seconds, all: BTreeMap::new(), from, changes: 0 }
    }

    fn high(&self) -> u64 {
        self.bucket.streams().stream_state(VB).expect("it is there").3.0
    }

    fn set(&mut self, key: &str) {
        self.changes += 1;
        let value = format!("v{}", self.changes);
        let request = buckets::set(DocKey::new(key.as_bytes()), value.as_bytes());
        self.bucket.documents().store(VB, &request, self.bucket.now()).expect("stored");
        self.all.insert(self.high(), (key.to_owned(), Some(value)));
    }

    fn delete(&mut self, key: &str) {
        let key_of = DocKey::new(key.as_bytes());
        if self.bucket.documents().delete(VB, key_of, Cas::ANY, self.bucket.now()).is_ok() {
            self.all.insert(self.high(), (key.to_owned(), None));
        }
    }

    /// Takes everything to disk and out of memory, so that streams have to read it there.
    fn leave_memory(&self) {
        assert!(self.bucket.flushing().flush_all());
        self.bucket.roles().create_checkpoint(VB).expect("it is there");
        self.bucket.streams().drop_stream_cursors(VB);
    }

    /// Ends without a word, and begins again with what is on disk.
    fn crash(self) -> World {
        let World { env, bucket, handles, seconds, mut all, from, changes } = self;
        drop(bucket);
        let bucket = changes::open(&env, VBUCKETS, seconds);
        let high = bucket.streams().stream_state(VB).expect("it is there").3.0;
        all.retain(|seqno, _| *seqno <= high);
        World { env, bucket, handles, seconds, all, from: from.min(high + 1), changes }
    }

    fn limit(&mut self, seconds: u64) {
        self.bucket.set_param("history_retention_seconds", &seconds.to_string()).expect("it is taken");
        let was_on = std::mem::replace(&mut self.seconds, seconds) > 0;
        if was_on != (seconds > 0) {
            self.from = if seconds > 0 { self.high() + 1 } else { 0 };
        }
    }

    /// What a stream of everything has to tell from where the history begins, and what it may tell before that: the last
    /// change of each document.
    fn check(&self, told: &BTreeMap<u64, Told>, markers: &[Marker]) {
        let start = if self.from == 0 { u64::MAX } else { self.from };
        let of_history = |told: &BTreeMap<u64, Told>| -> Vec<(u64, Told)> {
            told.range(start..).map(|(seqno, change)| (*seqno, change.clone())).collect()
        };
        assert_eq!(of_history(told), of_history(&self.all), "from {start} on");
        let newest: BTreeMap<&String, u64> = self.all.iter().map(|(seqno, (key, _))| (key, *seqno)).collect();
        for (key, seqno) in newest {
            assert!(told.contains_key(&seqno), "{key} at {seqno}");
        }
        for (seqno, change) in told {
            assert_eq!(self.all.get(seqno), Some(change));
        }
        if self.from == 1 {
            assert!(markers.iter().all(|marker| marker.flags & Marker::HISTORY != 0), "{markers:?}");
        }
        if self.from == 0 {
            assert!(markers.iter().all(|marker| marker.flags & Marker::HISTORY == 0), "{markers:?}");
        }
    }
}

struct Consumer {
    producer: Producer,
    woken: Arc<AtomicBool>,
    told: BTreeMap<u64, Told>,
    markers: Vec<Marker>,
    /// Keys of the present snapshot.
    keys: BTreeSet<String>,
    is_of_changes: bool,
    last: u64,
}

fn producer(bucket: &Arc<Bucket>, woken: &Arc<AtomicBool>) -> Producer {
    let flags = OpenFlags(OpenFlags::PRODUCER);
    let mut agreed = Agreement::open(flags, b"test", false).expect("a producer");
    agreed.control(b"enable_noop", b"true");
    let features = Features { collections: true, ..Features::default() };
    let wake = woken.clone();
    Producer::new(bucket.clone(), "test".into(), agreed, features, move || {
        wake.store(true, Ordering::Relaxed)
    })
}

impl changes::Reader for Consumer {
    fn source(&mut self) -> (&mut Producer, &AtomicBool) {
        (&mut self.producer, &self.woken)
    }

    fn take(&mut self, message: &Message<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_start_matches('\0').to_owned();
        let key = text(message.key);
        let (seqno, value) = match message.what {
            What::Marker(marker) => {
                self.keys.clear();
                return self.markers.push(marker);
            }
            What::Mutation(mutation) => (mutation.by_seqno.0, Some(text(message.value))),
            What::Deletion(deletion) => (deletion.by_seqno.0, None),
            What::SeqnoAdvanced(_) => return,
            _ => panic!("{message:?}"),
        };
        let marker = self.markers.last().expect("a snapshot was announced");
        assert!(
            (marker.start.0..=marker.end.0).contains(&seqno) && seqno > self.last,
            "{seqno} in {marker:?}"
        );
        self.last = seqno;
        assert!(self.keys.insert(key.clone()) || self.is_of_changes, "{key} came twice in {marker:?}");
        let several = Marker::HISTORY | Marker::MAY_DUPLICATE;
        assert!(self.is_of_changes || marker.flags & several == 0, "{marker:?}");
        self.told.insert(seqno, (key, value));
    }
}

impl Consumer {
    fn new(world: &World, is_of_changes: bool) -> Consumer {
        let woken = Arc::new(AtomicBool::new(false));
        let mut producer = producer(&world.bucket, &woken);
        if is_of_changes {
            assert_eq!(producer.control(b"change_streams", b"true"), Status::Success);
        }
        let request = StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() };
        assert!(producer.request(VB, 7, &request, b"").is_ok());
        let (told, markers, keys) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        Consumer { producer, woken, told, markers, keys, is_of_changes, last: 0 }
    }

    fn drain(&mut self, world: &World) {
        changes::drain(self, &world.bucket);
    }
}

fn look(world: &World) {
    let mut of_changes = Consumer::new(world, true);
    of_changes.drain(world);
    world.check(&of_changes.told, &of_changes.markers);
    let mut plain = Consumer::new(world, false);
    plain.drain(world);
    let newest: BTreeMap<&String, u64> = world.all.iter().map(|(seqno, (key, _))| (key, *seqno)).collect();
    assert!(newest.values().all(|seqno| plain.told.contains_key(seqno)));
}

#[test]
fn every_version_is_told_from_memory_and_from_disk() {
    for seed in 0..60 {
        let (mut rng, mut world) = (SplitMix64::new(seed), World::new(seed, 1_000_000));
        for _ in 0..200 {
            let key = format!("k{}", rng.below(6));
            match rng.below(24) {
                0 => look(&world),
                1 => world.leave_memory(),
                2 => assert!(world.bucket.flushing().flush_all()),
                3 => drop(world.bucket.flushing().file_step()),
                4 => world.bucket.roles().create_checkpoint(VB).expect("it is there"),
                5 if rng.chance(1, 3) => world = world.crash(),
                6..=8 => world.delete(&key),
                _ => world.set(&key),
            }
        }
        look(&world);
        world.leave_memory();
        look(&world);
        assert_eq!(world.bucket.history(VB).start, 1, "seed {seed}");
    }
}

#[test]
fn who_follows_is_told_every_version() {
    let mut world = World::new(1, 60);
    let mut follower = Consumer::new(&world, true);
    for round in 0..20 {
        (0..5).for_each(|at| world.set(&format!("k{}", at % 3)));
        if round % 3 == 0 {
            follower.drain(&world);
        }
        if round % 7 == 0 {
            world.leave_memory();
        }
    }
    follower.drain(&world);
    world.check(&follower.told, &follower.markers);
    assert_eq!(follower.told.len(), 100);
}

#[test]
fn it_begins_and_ends_when_it_is_switched() {
    for seed in 0..60 {
        let (mut rng, mut world) = (SplitMix64::new(seed), World::new(seed, 0));
        for _ in 0..200 {
            let key = format!("k{}", rng.below(6));
            match rng.below(30) {
                0 => look(&world),
                1 => world.leave_memory(),
                2 => assert!(world.bucket.flushing().flush_all()),
                3 => drop(world.bucket.flushing().file_step()),
                4 => world.limit(1_000_000 * rng.below(2)),
                5 if rng.chance(1, 3) => world = world.crash(),
                6..=8 => world.delete(&key),
                _ => world.set(&key),
            }
        }
        look(&world);
        world.leave_memory();
        look(&world);
    }
}

/// Nothing is made while it is not active: nothing is missing. What another node sends is in `history_replicas.rs`.
#[test]
fn it_goes_on_when_the_vbucket_becomes_active_again() {
    let mut world = World::new(1, 60);
    (0..4).for_each(|_| world.set("k"));
    world.leave_memory();
    look(&world);
    for state in [VbState::Replica, VbState::Dead, VbState::Pending, VbState::Active] {
        world.bucket.roles().set_vbucket_state(VB, state, None).expect("it is there");
    }
    (0..4).for_each(|_| world.set("k"));
    look(&world);
    world.leave_memory();
    look(&world);
    assert_eq!(world.bucket.history(VB).start, 1);
    let world = world.crash();
    look(&world);
}

#[test]
fn a_limit_in_bytes_lets_go_of_the_oldest() {
    let mut world = World::new(1, 0);
    let most = (u64::from(VBUCKETS) * 2000).to_string();
    world.bucket.set_param("history_retention_bytes", &most).expect("it is taken");
    for _ in 0..40 {
        (0..5).for_each(|_| world.set("k"));
        world.leave_memory();
        world.handles.clock.advance(Duration::from_secs(10));
        while world.bucket.flushing().file_step() == Progress::Worked {}
    }
    let history = world.bucket.history(VB);
    assert!(history.start > 1 && history.versions > 5 && history.bytes <= 3000, "{history:?}");
    world.from = history.start;
    look(&world);
}

#[test]
fn a_bucket_in_couchstore_files_keeps_none() {
    let (_, _handles, bucket) = buckets::simulated(1, VBUCKETS, true);
    let woken = Arc::new(AtomicBool::new(false));
    assert_eq!(producer(&bucket, &woken).control(b"change_streams", b"true"), Status::NotSupported);
    assert_eq!(producer(&bucket, &woken).control(b"change_streams", b"false"), Status::Einval);
    for name in ["history_retention_seconds", "history_retention_bytes"] {
        let refused = bucket.set_param(name, "5").expect_err("no history is kept");
        assert!(refused.to_string().contains("storageBackend=magma"), "{refused}");
        bucket.set_param(name, "0").expect("that is what it does");
    }
}
