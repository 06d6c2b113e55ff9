//! A producer over a simulated bucket: what a strict consumer sees.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, Heap, Seqno, VbId, VbState};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal};
use engine::{Bucket, BucketConfig, Progress, StoreMode, StoreRequest};
use protocol::dcp::{EndReason, Marker, Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{Limits, Parsed, Status, parse};

const VB: VbId = VbId(3);
/// Whoever knows of xattrs must answer noops.
const NOOP: [(&str, &str); 1] = [("enable_noop", "true")];

struct World {
    bucket: Arc<Bucket>,
    _handles: SimHandles,
}

impl World {
    fn new(seed: u64) -> World {
        let (env, handles) = Env::sim(seed);
        let env = env.with_heap(Heap::default());
        let config = BucketConfig { vbuckets: 8, ..BucketConfig::new("test", "/data/test".into()) };
        let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
        let bucket = Bucket::open(config, env, Arc::new(store.expect("a new disk"))).expect("a new disk");
        World { bucket: Arc::new(bucket), _handles: handles }
    }

    fn set(&self, key: &str, value: &str) {
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: value.as_bytes(),
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        self.bucket.store(VB, &request, self.bucket.now()).expect("stored");
    }

    fn flush(&self) {
        assert!(self.bucket.flush_all());
    }
}

/// A consumer that checks what it is sent, as a strict client would.
struct Consumer {
    producer: Producer,
    woken: Arc<AtomicBool>,
    out: Vec<u8>,
    documents: BTreeMap<String, (u64, String)>,
    snapshot: Option<(u64, u64)>,
    last: u64,
    markers: Vec<Marker>,
    ended: Option<EndReason>,
}

impl Consumer {
    fn new(world: &World, controls: &[(&str, &str)]) -> Consumer {
        let flags = OpenFlags(OpenFlags::PRODUCER | OpenFlags::XATTRS);
        let mut agreed = Agreement::open(flags, b"test", true).expect("a producer");
        for (key, value) in controls {
            assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Success, "{key}");
        }
        let woken = Arc::new(AtomicBool::new(false));
        let wake = woken.clone();
        let features = Features::default();
        let producer = Producer::new(world.bucket.clone(), "test".into(), agreed, features, move || {
            wake.store(true, Ordering::Relaxed);
        });
        Consumer {
            producer,
            woken,
            out: Vec::new(),
            documents: BTreeMap::new(),
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
            let read = world.bucket.backfill_step() == Progress::Worked;
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
                self.documents.remove(&String::from_utf8_lossy(message.key).into_owned());
            }
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
    world.bucket.set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
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
