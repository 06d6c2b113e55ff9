//! Nodes that replicate to each other a bucket with a history of changes: what a node sends as history has every version,
//! and a history goes on over failovers and handovers.

#![allow(missing_docs, reason = "a test is read as a whole")]

#[path = "shared/buckets.rs"]
mod buckets;
#[path = "shared/changes.rs"]
mod changes;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;
#[path = "shared/served.rs"]
mod served;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::sim::{SimDisk, SplitMix64};
use base::env::{Env, SimHandles};
use base::{Cas, CollectionId, DocKey, Heap, ScopeId, Seqno, VbId, VbState};
use dcp::{Agreement, Consumer, ConsumerConfig, Features, Mode, Producer, Stage};
use engine::{Bucket, Progress};
use protocol::dcp::{Marker, Message, OpenFlags, StreamRequest, What};
use protocol::{Limits, Parsed, parse};
use served::{FEATURES, Served};
use vbucket::{Collection, Manifest};

const VB: VbId = VbId(1);
const VBUCKETS: u16 = 4;
/// Longer than any of these tests.
const LONG: u64 = 1_000_000;

/// A version: its key, and its value or that it is deleted.
type Told = (String, Option<String>);
/// All changes of a history of a vBucket.
type Branch = BTreeMap<u64, Told>;

/// How a node follows another one.
struct Link {
    source: Arc<Bucket>,
    target: Arc<Bucket>,
    consumer: Consumer,
    served: Served,
    to_producer: Vec<u8>,
    to_consumer: Vec<u8>,
    is_handover: bool,
    has_taken_over: bool,
}

impl Link {
    fn new(source: &Arc<Bucket>, target: &Arc<Bucket>, mode: Mode, change_streams: bool) -> Link {
        let config = ConsumerConfig {
            name: "link".to_owned(),
            consumer_name: None,
            buffer_bytes: 1 << 20,
            noop_interval_s: 1_000_000,
            features: FEATURES,
            takes_files: false,
            change_streams,
        };
        let mut consumer = Consumer::new(Arc::clone(target), config);
        let mut to_producer = Vec::new();
        consumer.open(&mut to_producer);
        consumer.want(VB, mode, &mut to_producer);
        Link {
            source: Arc::clone(source),
            target: Arc::clone(target),
            consumer,
            served: Served::new(source, "link".to_owned()),
            to_producer,
            to_consumer: Vec::new(),
            is_handover: mode == Mode::TakeOver,
            has_taken_over: false,
        }
    }

    fn is_streaming(&self) -> bool {
        self.consumer.progress().all(|progress| progress.stage == Stage::Streaming)
    }

    /// Has both ends work on what came; the producer sends about so many bytes. Whether anything moved.
    fn step(&mut self, bytes: usize) -> bool {
        let asked = std::mem::take(&mut self.to_producer);
        let mut rest = &asked[..];
        while !rest.is_empty() {
            match parse(rest, Limits::AUTHENTICATED) {
                Parsed::Request { request, total_len } => {
                    self.served
                        .on_request(&request, &mut (), &mut self.to_consumer)
                        .expect("a request that is known");
                    rest = &rest[total_len..];
                }
                Parsed::Answer { answer, total_len, .. } => {
                    let producer = self.served.producer.as_mut().expect("it is open");
                    producer.answered(answer.opcode, answer.opaque, answer.status);
                    rest = &rest[total_len..];
                }
                _ => panic!("a consumer sends whole messages"),
            }
        }
        let read = self.source.streams().backfills().step() == Progress::Worked;
        if let Some(producer) = &mut self.served.producer {
            producer.step(&mut self.to_consumer, bytes);
        }
        let moved = read || !asked.is_empty() || !self.to_consumer.is_empty();
        let consumed = self.consumer.receive(&self.to_consumer, &mut self.to_producer);
        self.to_consumer.drain(..consumed.expect("a producer keeps to the rules"));
        let settled = self.consumer.settle(&mut self.to_producer).expect("a producer keeps to the rules");
        for rollback in settled.rollbacks {
            let back = self.target.roles().rollback(rollback.vb, rollback.to);
            let back = back.expect("it is a replica").expect("the disk works");
            self.consumer.rolled_back(rollback.vb, Ok(back), &mut self.to_producer);
        }
        self.has_taken_over |= !settled.taken_over.is_empty();
        let now = self.target.env().clock.monotonic();
        self.consumer.tick(now, &mut self.to_producer).expect("it is heard");
        moved || !self.to_producer.is_empty()
    }
}

struct Node {
    handles: SimHandles,
    bucket: Arc<Bucket>,
    seconds: u64,
    /// The history that it was in last.
    uuid: u64,
    link: Option<Link>,
}

impl Node {
    fn is_heir(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_handover)
    }
}

struct World {
    nodes: Vec<Node>,
    active: usize,
    /// By UUID.
    branches: HashMap<u64, Branch>,
    changes: u64,
}

fn uuid_of(bucket: &Bucket) -> u64 {
    bucket.with_vbucket(VB, |vb| vb.uuid().0).expect("it is there")
}

impl World {
    fn new(seed: u64, nodes: usize, seconds: u64) -> World {
        let (_, handles) = Env::sim(seed);
        let make = |at: usize| {
            let handles = handles.with_disk(SimDisk::new());
            let bucket = changes::open(&handles.env().with_heap(Heap::default()), VBUCKETS, seconds);
            let role = if at == 0 { VbState::Active } else { VbState::Replica };
            bucket.roles().set_vbucket_state(VB, role, None).expect("it is there");
            assert!(bucket.flushing().flush_all());
            let uuid = uuid_of(&bucket);
            Node { handles, bucket, seconds, uuid, link: None }
        };
        let nodes: Vec<Node> = (0..nodes).map(make).collect();
        let branches = nodes.iter().map(|node| (node.uuid, Branch::new())).collect();
        World { nodes, active: 0, branches, changes: 0 }
    }

    fn bucket(&self, at: usize) -> &Arc<Bucket> {
        &self.nodes[at].bucket
    }

    fn high(&self, at: usize) -> u64 {
        self.bucket(at).streams().stream_state(VB).expect("it is there").3.0
    }

    /// All changes that a node may have.
    fn truth(&self, at: usize) -> Branch {
        let branch = &self.branches[&self.nodes[at].uuid];
        branch.range(..=self.high(at)).map(|(seqno, change)| (*seqno, change.clone())).collect()
    }

    /// Notes which history a node is in.
    fn note_history(&mut self, at: usize) {
        let uuid = uuid_of(self.bucket(at));
        if !self.branches.contains_key(&uuid) {
            let before = self.truth(at);
            self.branches.insert(uuid, before);
        }
        self.nodes[at].uuid = uuid;
    }

    fn note(&mut self, change: Told) {
        let (high, uuid) = (self.high(self.active), self.nodes[self.active].uuid);
        self.branches.get_mut(&uuid).expect("it is known").insert(high, change);
    }

    fn set(&mut self, key: &str) {
        self.changes += 1;
        let value = format!("v{}", self.changes);
        let bucket = Arc::clone(self.bucket(self.active));
        let request = buckets::set(DocKey::new(key.as_bytes()), value.as_bytes());
        bucket.documents().store(VB, &request, bucket.now()).expect("stored");
        self.note((key.to_owned(), Some(value)));
    }

    fn delete(&mut self, key: &str) {
        let bucket = Arc::clone(self.bucket(self.active));
        let doc = DocKey::new(key.as_bytes());
        if bucket.documents().delete(VB, doc, Cas::ANY, bucket.now()).is_ok() {
            self.note((key.to_owned(), None));
        }
    }

    /// Takes everything to a node's disk and out of its memory, so that streams have to read it there.
    fn leave_memory(&self, at: usize) {
        let bucket = self.bucket(at);
        assert!(bucket.flushing().flush_all());
        bucket.roles().create_checkpoint(VB).expect("it is there");
        bucket.streams().drop_stream_cursors(VB);
    }

    fn set_role(&mut self, at: usize, role: VbState) {
        if self.bucket(at).state_of(VB) != Some(role) {
            self.bucket(at).roles().set_vbucket_state(VB, role, None).expect("it is there");
        }
        self.note_history(at);
    }

    fn follow(&mut self, at: usize, mode: Mode, change_streams: bool) {
        self.set_role(at, if mode == Mode::TakeOver { VbState::Pending } else { VbState::Replica });
        let link = Link::new(self.bucket(self.active), self.bucket(at), mode, change_streams);
        self.nodes[at].link = Some(link);
    }

    /// Lets a node's link work once. Whether anything moved.
    fn step(&mut self, at: usize, bytes: usize) -> bool {
        let Some(mut link) = self.nodes[at].link.take() else { return false };
        let moved = link.step(bytes);
        if link.has_taken_over {
            self.note_history(at);
            drop(link);
            self.become_active(at);
            return true;
        }
        self.nodes[at].link = Some(link);
        self.note_history(at);
        moved
    }

    /// Lets a node's link work until it has nothing to do, or the vBucket is handed over.
    fn settle(&mut self, at: usize) {
        for _ in 0..100 {
            while self.step(at, 1 << 12) {}
            if self.nodes[at].link.as_ref().is_none_or(Link::is_streaming) {
                return;
            }
            // It asks again after a pause.
            self.nodes[at].handles.clock.advance(Duration::from_secs(10));
        }
        panic!("node {at} does not follow");
    }

    /// Whether there is an active vBucket. If a handover broke off before its end, the node that has all is to serve.
    fn is_served(&mut self) -> bool {
        if !self.nodes.iter().any(Node::is_heir) {
            self.set_role(self.active, VbState::Active);
        }
        self.bucket(self.active).state_of(VB) == Some(VbState::Active)
    }

    fn become_active(&mut self, at: usize) {
        self.nodes.iter_mut().for_each(|node| node.link = None);
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            self.set_role(other, VbState::Replica);
        }
        self.active = at;
        self.set_role(at, VbState::Active);
    }

    /// A node ends without a word, or its power goes, and it begins again.
    fn crash(&mut self, at: usize, power: Option<u64>) {
        let (seconds, role) = (self.nodes[at].seconds, self.bucket(at).state_of(VB));
        for other in 0..self.nodes.len() {
            if other == at || self.active == at {
                self.nodes[other].link = None;
            }
        }
        let Node { handles, bucket, uuid, .. } = self.nodes.remove(at);
        drop(bucket);
        let handles = match power {
            Some(seed) => handles.with_disk(handles.disk.crash(seed)),
            None => handles,
        };
        let bucket = changes::open(&handles.env().with_heap(Heap::default()), VBUCKETS, seconds);
        self.nodes.insert(at, Node { handles, bucket, seconds, uuid, link: None });
        let wanted = if role == Some(VbState::Active) { VbState::Active } else { VbState::Replica };
        self.note_history(at);
        self.set_role(at, wanted);
    }

    fn limit(&mut self, at: usize, seconds: u64) {
        self.nodes[at].seconds = seconds;
        let taken = self.bucket(at).set_param("history_retention_seconds", &seconds.to_string());
        taken.expect("it is taken");
    }

    /// What a stream of everything from a node tells.
    fn read(&self, at: usize) -> Reader {
        let mut reader = Reader::new(self.bucket(at));
        reader.drain(self.bucket(at));
        reader
    }

    /// Nothing is missing of what a node sends as history, in memory or from its disk.
    fn check(&self, at: usize) -> Result<Reader, String> {
        let (truth, reader) = (self.truth(at), self.read(at));
        let is_wrong = |what: String| format!("node {at} up to {}: {what}", self.high(at));
        // Everything up to here was there, unless something else than history was announced since.
        let mut before = Some(0);
        for (number, (seqno, change)) in reader.told.iter().enumerate() {
            if truth.get(seqno) != Some(change) {
                return Err(is_wrong(format!("{seqno} is {change:?}, not {:?}", truth.get(seqno))));
            }
            before = before.filter(|_| !reader.gaps.contains(&number));
            if let Some(skipped) = before.and_then(|before| truth.range(before + 1..*seqno).next()) {
                return Err(is_wrong(format!("{skipped:?} is missing before {seqno} in the history")));
            }
            before = reader.of_history[number].then_some(*seqno);
        }
        before = before.filter(|_| !reader.gaps.contains(&reader.told.len()));
        let last = before.and_then(|before| truth.range(before + 1..).next());
        match last.filter(|_| !reader.has_ended) {
            Some(last) => Err(is_wrong(format!("{last:?} is missing at the end of the history"))),
            None => Ok(reader),
        }
    }

    /// The same when all is read from the disk, and from where on the node says that its history is.
    fn check_on_disk(&self, at: usize) -> Result<u64, String> {
        self.leave_memory(at);
        let reader = self.check(at)?;
        let start = self.bucket(at).history(VB).start;
        let truth = self.truth(at);
        let wanted = truth.range(start..).map(|(seqno, change)| (*seqno, change.clone()));
        let told: Vec<(u64, Told)> =
            reader.told.iter().filter(|(seqno, _)| *seqno >= start).cloned().collect();
        if start > 0 && !reader.has_ended && told != wanted.collect::<Vec<_>>() {
            return Err(format!("node {at}: not all from {start} on is told: {told:?} of {truth:?}"));
        }
        Ok(start)
    }
}

/// A consumer of everything that a node has.
struct Reader {
    producer: Producer,
    woken: Arc<AtomicBool>,
    /// In the order in which it came.
    told: Vec<(u64, Told)>,
    markers: Vec<Marker>,
    /// Of each of these, whether it came as history.
    of_history: Vec<bool>,
    /// How many changes came before each marker of what is no history.
    gaps: Vec<usize>,
    has_ended: bool,
}

impl changes::Reader for Reader {
    fn source(&mut self) -> (&mut Producer, &AtomicBool) {
        (&mut self.producer, &self.woken)
    }

    fn take(&mut self, message: &Message<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_start_matches('\0').to_owned();
        let (seqno, value) = match message.what {
            What::Marker(marker) => {
                if marker.flags & Marker::HISTORY == 0 {
                    self.gaps.push(self.told.len());
                }
                return self.markers.push(marker);
            }
            What::Mutation(mutation) => (mutation.by_seqno.0, Some(text(message.value))),
            What::Deletion(deletion) => (deletion.by_seqno.0, None),
            What::SeqnoAdvanced(_) | What::SystemEvent(..) => return,
            What::End(_) => {
                self.has_ended = true;
                return;
            }
            _ => panic!("{message:?}"),
        };
        let marker = self.markers.last().expect("a snapshot was announced");
        let last = self.told.last().map_or(0, |(last, _)| *last);
        assert!((marker.start.0..=marker.end.0).contains(&seqno) && seqno > last, "{seqno} in {marker:?}");
        self.of_history.push(marker.flags & Marker::HISTORY != 0);
        self.told.push((seqno, (text(message.key), value)));
    }
}

impl Reader {
    fn new(bucket: &Arc<Bucket>) -> Reader {
        let mut agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"test", false).expect("a producer");
        for key in [&b"enable_noop"[..], b"change_streams"] {
            agreed.control(key, b"true");
        }
        let woken = Arc::new(AtomicBool::new(false));
        let wake = woken.clone();
        let features = Features { collections: true, ..Features::default() };
        let mut producer = Producer::new(bucket.clone(), "test".into(), agreed, features, move || {
            wake.store(true, Ordering::Relaxed)
        });
        let request = StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() };
        assert!(producer.request(VB, 7, &request, b"").is_ok());
        Reader {
            producer,
            woken,
            told: Vec::new(),
            markers: Vec::new(),
            of_history: Vec::new(),
            gaps: Vec::new(),
            has_ended: false,
        }
    }

    fn drain(&mut self, bucket: &Bucket) {
        changes::drain(self, bucket);
    }

    fn all(&self) -> Branch {
        self.told.iter().cloned().collect()
    }
}

fn write_some(world: &mut World, count: u64) {
    (0..count).for_each(|at| world.set(&format!("k{}", at % 3)));
}

#[test]
fn a_history_goes_on_after_a_failover() {
    for is_from_disk in [false, true] {
        let mut world = World::new(1, 2, LONG);
        write_some(&mut world, 10);
        if is_from_disk {
            world.leave_memory(0);
        }
        world.follow(1, Mode::Replicate, true);
        world.settle(1);
        write_some(&mut world, 10);
        world.settle(1);
        assert_eq!(world.high(1), 20);
        assert_eq!(world.check(1).expect("nothing is missing").all(), world.truth(1), "of a replica");
        world.become_active(1);
        write_some(&mut world, 10);
        let reader = world.check(1).expect("nothing is missing");
        assert!(reader.gaps.is_empty(), "{:?}", reader.markers);
        assert_eq!(reader.all(), world.truth(1));
        assert_eq!(world.check_on_disk(1), Ok(1), "from disk: {is_from_disk}");
        world.crash(1, None);
        assert_eq!(world.check_on_disk(1), Ok(1), "after a crash");
    }
}

#[test]
fn a_history_goes_on_after_a_handover() {
    let mut world = World::new(1, 2, LONG);
    write_some(&mut world, 10);
    world.follow(1, Mode::TakeOver, true);
    world.settle(1);
    assert_eq!((world.active, world.bucket(0).state_of(VB)), (1, Some(VbState::Replica)));
    write_some(&mut world, 10);
    assert_eq!(world.check(1).expect("nothing is missing").all(), world.truth(1));
    assert_eq!(world.check_on_disk(1), Ok(1));
    // The node that gave it away follows, with the history that it has.
    world.follow(0, Mode::Replicate, true);
    world.settle(0);
    assert_eq!(world.check_on_disk(0), Ok(1));
}

#[test]
fn a_snapshot_of_which_the_later_part_is_history_has_two_markers() {
    let mut world = World::new(1, 2, 0);
    write_some(&mut world, 10);
    (0..2).for_each(|at| world.limit(at, LONG));
    write_some(&mut world, 10);
    world.leave_memory(0);
    let reader = world.check(0).expect("nothing is missing");
    let on_disk = Marker::DISK | Marker::CHECKPOINT;
    let of_history = on_disk | Marker::HISTORY | Marker::MAY_DUPLICATE;
    let markers: Vec<(u64, u64, u32)> =
        reader.markers.iter().map(|marker| (marker.start.0, marker.end.0, marker.flags)).collect();
    assert_eq!(markers, [(0, 20, on_disk), (0, 20, of_history)]);
    assert_eq!(reader.told.iter().map(|(seqno, _)| *seqno).collect::<Vec<_>>(), (11..21).collect::<Vec<_>>());
    // The replica's history begins there, whatever comes before.
    world.follow(1, Mode::Replicate, true);
    world.settle(1);
    world.become_active(1);
    write_some(&mut world, 5);
    assert_eq!(world.check_on_disk(1), Ok(11));
}

#[test]
fn a_history_begins_again_where_versions_are_missing() {
    let mut world = World::new(1, 2, LONG);
    write_some(&mut world, 10);
    world.follow(1, Mode::Replicate, true);
    world.settle(1);
    // A producer of an earlier version, or one that was told of no history.
    world.follow(1, Mode::Replicate, false);
    write_some(&mut world, 10);
    world.leave_memory(0);
    world.settle(1);
    world.follow(1, Mode::Replicate, true);
    write_some(&mut world, 10);
    world.settle(1);
    world.become_active(1);
    write_some(&mut world, 10);
    assert_eq!(world.check_on_disk(1), Ok(21));
}

/// A replica merges what a collection without history leaves out, and keeps every version from the change on that gives it
/// one.
#[test]
fn collections_have_the_same_part_in_the_history_on_replicas() {
    const ID: CollectionId = CollectionId(8);
    let mut world = World::new(1, 2, LONG);
    let change = |world: &World, change: &dyn Fn(&mut Manifest)| {
        let mut next = world.bucket(0).collections().manifest().successor();
        change(&mut next);
        for at in 0..2 {
            world.bucket(at).collections().set_manifest(next.clone()).expect("the disk works");
        }
    };
    let set = |world: &mut World| {
        for _ in 0..3 {
            let bucket = world.bucket(0);
            let request = buckets::set(DocKey { collection: ID, key: b"k" }, b"v");
            bucket.documents().store(VB, &request, bucket.now()).expect("stored");
            // Each of them is sent by itself.
            world.settle(1);
        }
    };
    let part = |world: &World| {
        let part = |vb: &vbucket::VBucket| vb.collections().get(ID).map(|one| one.history);
        world.bucket(1).with_vbucket(VB, part).expect("it is there")
    };
    change(&world, &|next| {
        let (scope, name) = (ScopeId(0), "c".to_owned());
        let made = Collection { id: ID, scope, name, max_ttl_s: None, history: Some(false) };
        next.add_collection(made).expect("the name is new");
    });
    world.follow(1, Mode::Replicate, true);
    world.settle(1);
    set(&mut world);
    assert_eq!(part(&world), Some(Some(false)));
    world.leave_memory(1);
    let seqnos = |world: &World| world.read(1).told.iter().map(|(seqno, _)| *seqno).collect::<Vec<_>>();
    assert_eq!(seqnos(&world), [4], "the newest one");
    change(&world, &|next| next.set_history(ID, Some(true)));
    set(&mut world);
    assert_eq!(part(&world), Some(Some(true)));
    world.become_active(1);
    world.leave_memory(1);
    assert_eq!(seqnos(&world), [6, 7, 8], "4 was written when the collection had no part in it");
    assert_eq!(world.bucket(1).history(VB).start, 1);
}

/// What happened in a seed.
#[derive(Default)]
struct Counts {
    failovers: u64,
    /// After which the history had changes of before.
    went_on: u64,
    handovers: u64,
}

fn happen(world: &mut World, rng: &mut SplitMix64, counts: &mut Counts) -> Result<(), String> {
    let at = rng.below(world.nodes.len() as u64) as usize;
    let is_replica = at != world.active;
    let is_served = world.is_served();
    let is_there = is_served || is_replica;
    match rng.below(100) {
        0..30 if is_served => {
            for _ in 0..rng.below(5) + 1 {
                let key = format!("k{}", rng.below(6));
                if rng.chance(1, 4) { world.delete(&key) } else { world.set(&key) }
            }
        }
        30..60 => _ = world.step(at, rng.below(600) as usize + 1),
        60..68 => assert!(world.bucket(at).flushing().flush_all()),
        68..74 => drop(world.bucket(at).flushing().file_step()),
        74..78 => world.leave_memory(at),
        78..80 => world.bucket(at).streams().drop_stream_cursors(VB),
        80..83 => world.nodes[at].handles.clock.advance(Duration::from_secs(rng.below(3))),
        83..86 => world.crash(at, rng.chance(1, 2).then(|| rng.next_u64())),
        86..88 if rng.chance(1, 10) => world.limit(at, LONG * rng.below(2)),
        88..91 if is_replica => world.nodes[at].link = None,
        91 if is_replica && world.nodes[at].link.is_some() => {
            counts.failovers += 1;
            world.become_active(at);
            let before = world.high(at);
            let start = world.check_on_disk(at)?;
            counts.went_on += u64::from(start > 0 && start <= before);
        }
        92 if is_replica && is_served && world.nodes.iter().all(|node| !node.is_heir()) => {
            counts.handovers += 1;
            world.follow(at, Mode::TakeOver, rng.chance(7, 8));
        }
        93..96 if is_there => _ = world.check(at)?,
        96 if is_there => _ = world.check_on_disk(at)?,
        _ => {}
    }
    for at in 0..world.nodes.len() {
        if at != world.active && world.nodes[at].link.is_none() && rng.chance(1, 4) {
            world.follow(at, Mode::Replicate, rng.chance(15, 16));
        }
    }
    Ok(())
}

fn run(seed: u64) -> Result<Counts, String> {
    let mut rng = SplitMix64::new(seed);
    let nodes = 2 + usize::from(rng.chance(1, 3));
    let (mut world, mut counts) = (World::new(seed, nodes, LONG), Counts::default());
    for _ in 0..250 {
        happen(&mut world, &mut rng, &mut counts)?;
    }
    world.nodes.iter_mut().for_each(|node| node.link = None);
    assert!(world.is_served());
    for at in (0..nodes).filter(|at| *at != world.active).collect::<Vec<_>>() {
        world.follow(at, Mode::Replicate, true);
        world.settle(at);
        if world.high(at) != world.high(world.active) {
            return Err(format!("node {at} has only {}", world.high(at)));
        }
    }
    for at in 0..nodes {
        world.check(at)?;
        world.check_on_disk(at)?;
    }
    Ok(counts)
}

#[test]
fn what_is_sent_as_history_lacks_nothing_whatever_happens() {
    let mut all = Counts::default();
    for seed in 0..150 {
        let counts = run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        all.failovers += counts.failovers;
        all.went_on += counts.went_on;
        all.handovers += counts.handovers;
    }
    println!("{} failovers, {} went on, {} handovers", all.failovers, all.went_on, all.handovers);
    assert!(all.went_on > 20 && all.handovers > 20);
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Histories, |seed| run(seed).map(drop));
}
