//! A producer over a simulated bucket: what a strict consumer sees.

#[path = "shared/buckets.rs"]
mod buckets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::{Env, SimHandles};
use base::{Cas, DocKey, DurabilityLevel, RevSeqno, Seqno, VbId, VbState, VbUuid, VersionMeta};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal};
use engine::{Bucket, CompactRequest, Durable, Incoming, Progress, ReplicaStream};
use protocol::dcp::{EndReason, Marker, Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{Limits, Parsed, Status, parse};
use vbucket::{FailoverEntry, IncomingSnapshot};

const VB: VbId = VbId(3);
/// Whoever knows of xattrs must answer noops.
const NOOP: [(&str, &str); 1] = [("enable_noop", "true")];

struct World {
    env: Env,
    bucket: Arc<Bucket>,
    _handles: SimHandles,
}

impl World {
    fn new(seed: u64) -> World {
        let (env, handles, bucket) = buckets::simulated(seed, 8, false);
        World { env, bucket, _handles: handles }
    }

    fn set(&self, key: &str, value: &str) {
        let request = buckets::set(DocKey::new(key.as_bytes()), value.as_bytes());
        self.bucket.documents().store(VB, &request, self.bucket.now()).expect("stored");
    }

    fn flush(&self) {
        assert!(self.bucket.flushing().flush_all());
    }

    /// The process ends without a word, and begins again with what is on disk.
    fn crash(self) -> World {
        let World { env, bucket, _handles } = self;
        drop(bucket);
        let bucket = buckets::open(&env, 8, false);
        World { env, bucket, _handles }
    }

    /// Begins to follow another node, which has a snapshot up to `end`.
    fn follow(&self, end: u64) -> ReplicaStream {
        let position = self.bucket.replicas().replica_position(VB).expect("a replica");
        let history = FailoverEntry { uuid: VbUuid(11), seqno: Seqno(0) };
        let stream =
            self.bucket.replicas().adopt_failover(&position, vec![history]).expect("it stands there");
        let start = position.snapshot_start;
        let snapshot = IncomingSnapshot { start, end: Seqno(end), ..IncomingSnapshot::default() };
        self.bucket.replicas().begin_snapshot(stream, &snapshot).expect("it follows");
        stream
    }

    fn receive(&self, stream: ReplicaStream, seqno: u64) {
        let (cas, by_seqno, rev_seqno) = (Cas(seqno << 16), Seqno(seqno), RevSeqno(1));
        let meta = VersionMeta { cas, by_seqno, rev_seqno, ..VersionMeta::default() };
        let key = format!("k{seqno}");
        let version =
            self.bucket.replicas().received(meta, DocKey::new(key.as_bytes()), b"v").expect("well formed");
        let mut changes = vec![Incoming::Version(version)];
        self.bucket.replicas().apply_replicated(stream, &mut changes).expect("in order");
    }

    /// A replica whose disk has the first four changes of a snapshot up to 9, and whose memory has nothing.
    fn inside_a_snapshot(seed: u64) -> World {
        let world = World::new(seed);
        world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
        let stream = world.follow(9);
        (1..=4).for_each(|seqno| world.receive(stream, seqno));
        world.flush();
        world.crash()
    }
}

/// A consumer that checks what it is sent, as a strict client would.
struct Consumer {
    producer: Producer,
    woken: Arc<AtomicBool>,
    out: Vec<u8>,
    documents: BTreeMap<String, (u64, String)>,
    /// Seqnos of the deletions.
    deleted: Vec<u64>,
    snapshot: Option<(u64, u64)>,
    last: u64,
    markers: Vec<Marker>,
    ended: Option<EndReason>,
}

impl Consumer {
    fn new(world: &World, controls: &[(&str, &str)]) -> Consumer {
        Consumer::with(world, controls, Features::default())
    }

    fn with(world: &World, controls: &[(&str, &str)], features: Features) -> Consumer {
        Consumer::of(world, controls, features, OpenFlags::XATTRS)
    }

    fn of(world: &World, controls: &[(&str, &str)], features: Features, flags: u32) -> Consumer {
        let flags = OpenFlags(OpenFlags::PRODUCER | flags);
        let mut agreed = Agreement::open(flags, b"test", true).expect("a producer");
        for (key, value) in controls {
            assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Success, "{key}");
        }
        let woken = Arc::new(AtomicBool::new(false));
        let wake = woken.clone();
        let producer = Producer::new(world.bucket.clone(), "test".into(), agreed, features, move || {
            wake.store(true, Ordering::Relaxed);
        });
        Consumer {
            producer,
            woken,
            out: Vec::new(),
            documents: BTreeMap::new(),
            deleted: Vec::new(),
            snapshot: None,
            last: 0,
            markers: Vec::new(),
            ended: None,
        }
    }

    fn request(&mut self, request: StreamRequest) -> Result<Vec<u8>, StreamRequestRefusal> {
        self.producer.request(VB, 7, &request, b"")
    }

    fn everything() -> StreamRequest {
        StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() }
    }

    /// Lets both ends work until nothing moves any more.
    fn drain(&mut self, world: &World) {
        loop {
            self.woken.store(false, Ordering::Relaxed);
            let step = self.producer.step(&mut self.out, 64 << 10);
            let read = world.bucket.streams().backfills().step() == Progress::Worked;
            let got = self.receive();
            if step == Step::Idle && !read && got == 0 && !self.woken.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn receive(&mut self) -> usize {
        let bytes = std::mem::take(&mut self.out);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) else {
                panic!("a producer sends whole requests");
            };
            self.take(&Message::read(&request).expect("a message of a stream"));
            rest = &rest[total_len..];
        }
        self.producer.acknowledge(bytes.len() as u32);
        bytes.len()
    }

    fn take(&mut self, message: &Message<'_>) {
        assert!(self.ended.is_none(), "nothing comes after the end");
        assert_eq!((message.vb, message.opaque), (VB, 7));
        match message.what {
            What::Marker(marker) => {
                assert!(marker.start <= marker.end && marker.end.0 > self.last, "{marker:?}");
                if let Some((_, end)) = self.snapshot {
                    assert_eq!(marker.start.0, end + 1, "snapshots follow each other");
                }
                self.snapshot = Some((marker.start.0, marker.end.0));
                self.markers.push(marker);
            }
            What::Mutation(mutation) => {
                self.within(mutation.by_seqno);
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                self.documents.insert(text(message.key), (mutation.by_seqno.0, text(message.value)));
            }
            What::Deletion(deletion) => {
                self.within(deletion.by_seqno);
                self.deleted.push(deletion.by_seqno.0);
                self.documents.remove(&String::from_utf8_lossy(message.key).into_owned());
            }
            What::SeqnoAdvanced(seqno) => self.within(seqno),
            What::End(reason) => self.ended = Some(reason),
            _ => panic!("{message:?}"),
        }
    }

    fn within(&mut self, seqno: Seqno) {
        let (start, end) = self.snapshot.expect("a snapshot was announced");
        assert!(seqno.0 > self.last && (start..=end).contains(&seqno.0), "{seqno:?} after {}", self.last);
        self.last = seqno.0;
    }

    fn has(&self, key: &str, value: &str) -> bool {
        self.documents.get(key).is_some_and(|(_, there)| there == value)
    }
}

#[test]
fn memory_disk_and_what_comes_later() {
    let world = World::new(1);
    for at in 0..300 {
        world.set(&format!("k{at}"), "old");
    }
    world.flush();
    for at in 0..50 {
        world.set(&format!("k{at}"), "new");
    }
    let mut consumer = Consumer::new(&world, &NOOP);
    consumer.request(Consumer::everything()).expect("from the beginning");
    consumer.drain(&world);
    assert_eq!((consumer.documents.len(), consumer.last), (300, 350));
    assert!(consumer.has("k0", "new") && consumer.has("k299", "old"));
    world.set("later", "1");
    assert!(consumer.woken.load(Ordering::Relaxed), "somebody has to wake it");
    consumer.drain(&world);
    world.flush();
    world.set("later", "2");
    consumer.drain(&world);
    assert!(consumer.has("later", "2") && consumer.ended.is_none());
    let last = consumer.markers.last().expect("there were some");
    assert_eq!((last.start, last.end, last.flags), (Seqno(352), Seqno(352), Marker::MEMORY));
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
    consumer.drain(&world);
    assert_eq!((consumer.ended, consumer.producer.streams()), (Some(EndReason::StateChanged), 0));
}

#[test]
fn a_stream_ends_where_it_was_told_to() {
    let world = World::new(2);
    for at in 0..10 {
        world.set(&format!("k{at}"), "v");
    }
    for (end, flags) in [(4, 0), (u64::MAX, StreamFlags::TO_LATEST)] {
        let mut consumer = Consumer::new(&world, &NOOP);
        let flags = StreamFlags(flags);
        consumer
            .request(StreamRequest { end: Seqno(end), flags, ..StreamRequest::default() })
            .expect("accepted");
        consumer.drain(&world);
        // The snapshot that the end lies in is sent as a whole.
        assert_eq!((consumer.last, consumer.ended), (10, Some(EndReason::Ok)));
    }
    world.flush();
    let mut consumer = Consumer::new(&world, &NOOP);
    let flags = StreamFlags(StreamFlags::DISK_ONLY);
    consumer.request(StreamRequest { flags, ..Consumer::everything() }).expect("accepted");
    consumer.drain(&world);
    assert_eq!((consumer.last, consumer.ended), (10, Some(EndReason::Ok)));
    assert_eq!(consumer.markers[0].flags, Marker::DISK | Marker::CHECKPOINT);
}

/// Who has nothing yet needs no tombstones of what is on disk, and is told where the snapshot ends all the same.
#[test]
fn deletions_on_disk_are_left_out_of_streams_from_the_beginning_that_ask_for_it() {
    let world = World::new(3);
    for key in ["a", "b", "c"] {
        world.set(key, "v");
    }
    for key in ["a", "c"] {
        let deleted =
            world.bucket.documents().delete(VB, DocKey::new(key.as_bytes()), Cas::ANY, world.bucket.now());
        deleted.expect("it is there");
    }
    world.flush();
    let knows = Features { collections: true, ..Features::default() };
    let (skip, from_disk) = (OpenFlags::SKIP_DELETES, StreamFlags(StreamFlags::DISK_ONLY));
    for (features, flags, start, deleted) in [
        (knows, skip, 0, vec![]),
        (knows, 0, 0, vec![4, 5]),
        (knows, skip, 1, vec![4, 5]),
        (Features::default(), skip, 0, vec![4, 5]),
    ] {
        for sync_writes in [false, true] {
            let controls = [NOOP[0], ("enable_sync_writes", "true"), ("consumer_name", "n")];
            let controls = if sync_writes { &controls[..] } else { &controls[..1] };
            let mut consumer = Consumer::of(&world, controls, features, flags);
            let (start, end) = (Seqno(start), Seqno(u64::MAX));
            let uuid = world.bucket.standing(VB).expect("there is one").uuid;
            let (snapshot_start, snapshot_end) = (start, start);
            let request = StreamRequest { start, end, uuid, snapshot_start, snapshot_end, flags: from_disk };
            consumer.last = start.0;
            consumer.request(request).expect("accepted");
            consumer.drain(&world);
            assert_eq!(
                (consumer.deleted, consumer.last),
                (deleted.clone(), 5),
                "{features:?} {flags} {start:?}"
            );
            assert_eq!(consumer.ended, Some(EndReason::Ok));
        }
    }
}

#[test]
fn what_was_saved_inside_a_snapshot_goes_on_from_memory_after_a_promotion() {
    let world = World::inside_a_snapshot(5);
    let stream = world.follow(9);
    (5..=6).for_each(|seqno| world.receive(stream, seqno));
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("there is one");
    let mut consumer = Consumer::new(&world, &NOOP);
    consumer.request(Consumer::everything()).expect("from the beginning");
    // The disk has four of the six changes, and still says that they lie in a replica's snapshot.
    consumer.drain(&world);
    assert_eq!((consumer.documents.len(), consumer.last, consumer.ended), (6, 6, None));
    assert_eq!((consumer.markers.len(), consumer.snapshot), (1, Some((0, 6))));
    world.set("later", "1");
    consumer.drain(&world);
    assert_eq!((consumer.last, consumer.snapshot), (7, Some((7, 7))));
}

#[test]
fn what_was_saved_of_a_snapshot_is_part_of_what_that_has_become() {
    // With collections, and for one who knows of none: what the end has for him is not known before it has come.
    for collections in [true, false] {
        let world = World::inside_a_snapshot(6);
        let stream = world.follow(14);
        world.receive(stream, 5);
        let features = Features { collections, ..Features::default() };
        let mut consumer = Consumer::with(&world, &NOOP, features);
        consumer.request(Consumer::everything()).expect("from the beginning");
        consumer.drain(&world);
        assert_eq!((consumer.last, consumer.snapshot, consumer.ended), (5, Some((0, 14)), None));
        world.receive(stream, 14);
        consumer.drain(&world);
        assert_eq!((consumer.last, consumer.markers.len(), consumer.ended), (14, 1, None));
    }
}

#[test]
fn a_part_of_a_snapshot_is_not_announced_as_the_whole_to_those_who_know_of_no_collections() {
    let world = World::inside_a_snapshot(8);
    let mut consumer = Consumer::new(&world, &NOOP);
    consumer.request(Consumer::everything()).expect("from the beginning");
    // Nothing but the disk's four of nine changes is here.
    consumer.drain(&world);
    assert_eq!((consumer.last, consumer.snapshot, consumer.ended), (4, Some((0, 9)), None));
    let stream = world.follow(9);
    (5..=9).for_each(|seqno| world.receive(stream, seqno));
    consumer.drain(&world);
    assert_eq!((consumer.last, consumer.markers.len(), consumer.ended), (9, 1, None));
}

#[test]
fn a_consumer_that_had_everything_at_first_is_sent_back_when_it_misses_tombstones_later() {
    let world = World::new(7);
    let features = Features { collections: true, ..Features::default() };
    let mut consumer = Consumer::with(&world, &NOOP, features);
    let filter = br#"{"collections":["0"]}"#;
    consumer.producer.request(VB, 7, &Consumer::everything(), filter).expect("from the beginning");
    world.set("a", "1");
    consumer.drain(&world);
    assert_eq!(consumer.documents.len(), 1);
    // It is slow, and loses its place in memory.
    let now = world.bucket.now();
    world.bucket.documents().delete(VB, DocKey::new(b"a"), Cas::ANY, now).expect("it is there");
    world.set("b", "1");
    world.flush();
    world.bucket.streams().drop_stream_cursors(VB);
    let request = CompactRequest { purge_before_s: Some(u32::MAX), purge_through: None };
    drop(world.bucket.compaction().compact(VB, request));
    assert_eq!(world.bucket.compaction().compact_step(), Progress::Worked);
    consumer.drain(&world);
    assert_eq!((consumer.documents.len(), consumer.ended), (1, Some(EndReason::Rollback)));
}

#[test]
fn a_full_buffer_stops_it_until_something_is_acknowledged() {
    let world = World::new(3);
    for at in 0..20 {
        world.set(&format!("k{at}"), &"x".repeat(1000));
    }
    let mut consumer = Consumer::new(&world, &[("enable_noop", "true"), ("connection_buffer_size", "2000")]);
    consumer.request(Consumer::everything()).expect("accepted");
    let mut out = Vec::new();
    while consumer.producer.step(&mut out, 1 << 20) == Step::More {}
    assert!((2000..3200).contains(&out.len()), "{} bytes", out.len());
    assert_eq!(consumer.producer.unacknowledged_bytes(), out.len() as u64);
    consumer.out = out;
    consumer.receive();
    consumer.drain(&world);
    assert_eq!(consumer.last, 20);
}

#[test]
fn requests_are_checked() {
    let world = World::new(4);
    world.set("a", "1");
    let mut consumer = Consumer::new(&world, &NOOP);
    let refused = |status| Err(StreamRequestRefusal::Status(status));
    let mut ask = |request: StreamRequest| consumer.request(request).map(drop);
    let everything = Consumer::everything();
    assert_eq!(ask(StreamRequest { start: Seqno(5), end: Seqno(3), ..everything }), refused(Status::Erange));
    assert_eq!(ask(StreamRequest { start: Seqno(5), ..everything }), refused(Status::Erange));
    let unknown = StreamRequest { start: Seqno(1), snapshot_end: Seqno(1), ..everything };
    assert_eq!(ask(unknown), Err(StreamRequestRefusal::RollBack(Seqno(0))));
    assert_eq!(ask(everything), Ok(()));
    assert_eq!(ask(everything), refused(Status::KeyEexists));
    let mut out = Vec::new();
    assert_eq!(consumer.producer.close_stream(VB, None, &mut out), Status::Success);
    assert_eq!(consumer.producer.close_stream(VB, None, &mut out), Status::KeyEnoent);
    assert!(out.is_empty(), "an end is sent only if that was agreed on");
}

/// One change, and a prepare that a node which is not there has to acknowledge.
fn with_a_prepare_behind_a_change(seed: u64) -> World {
    let world = World::new(seed);
    world.set("a", "1");
    let topology =
        Some(engine::topology_from_json(&serde_json::json!([["n_0", "n_1"]])).expect("a chain of two nodes"));
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, topology).expect("there is one");
    let durable = Durable { level: DurabilityLevel::Majority, timeout: Duration::from_secs(10) };
    let request = buckets::set(DocKey::new(b"b"), b"2");
    world
        .bucket
        .documents()
        .durably(Some(durable))
        .store(VB, &request, world.bucket.now())
        .expect("prepared");
    world
}

#[test]
fn a_prepare_at_the_end_is_a_gap_for_those_who_understand_one() {
    let bounds = |consumer: &Consumer| {
        let markers = consumer.markers.iter();
        markers.map(|marker| (marker.start.0, marker.end.0, marker.flags)).collect::<Vec<_>>()
    };
    for is_on_disk in [false, true] {
        let mut world = with_a_prepare_behind_a_change(40);
        if is_on_disk {
            world.flush();
            world = world.crash();
        }
        let kind = if is_on_disk { Marker::DISK } else { Marker::MEMORY } | Marker::CHECKPOINT;
        for (collections, end) in [(false, 1), (true, 2)] {
            let features = Features { collections, ..Features::default() };
            let mut consumer = Consumer::with(&world, &NOOP, features);
            consumer.request(Consumer::everything()).expect("from the beginning");
            consumer.drain(&world);
            assert_eq!((bounds(&consumer), consumer.last), (vec![(0, end, kind)], end), "{is_on_disk}");
        }
    }
}

#[test]
fn a_prepare_alone_wakes_no_consumer_that_does_not_see_it() {
    let world = with_a_prepare_behind_a_change(41);
    let features = Features { collections: true, ..Features::default() };
    let mut consumer = Consumer::with(&world, &NOOP, features);
    consumer.request(Consumer::everything()).expect("from the beginning");
    consumer.drain(&world);
    let request = buckets::set(DocKey::new(b"c"), b"3");
    let durable = Durable { level: DurabilityLevel::Majority, timeout: Duration::from_secs(10) };
    world
        .bucket
        .documents()
        .durably(Some(durable))
        .store(VB, &request, world.bucket.now())
        .expect("prepared");
    consumer.drain(&world);
    assert_eq!((consumer.markers.len(), consumer.last), (1, 2));
}
