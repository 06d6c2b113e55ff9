//! How long it takes to find a stream by its vBucket, with 1 and with 1,024 streams:
//! `cargo run --release -p dcp --example lookup`, which prints a line of JSON.

use std::hint::black_box;
use std::sync::Arc;

use base::env::Env;
use base::{Heap, Seqno, VbId};
use dcp::{Agreement, Features, Producer};
use engine::{Bucket, BucketConfig};
use protocol::dcp::{OpenFlags, StreamRequest};

const VBUCKETS: u16 = 1024;
/// Look-ups of one measurement, and measurements, of which the middle one counts.
const LOOKUPS: u64 = 20_000_000;
const ROUNDS: usize = 7;

fn producer(bucket: &Arc<Bucket>, streams: u16) -> Producer {
    let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"lookup", false).expect("a producer");
    let mut producer = Producer::new(Arc::clone(bucket), "lookup".into(), agreed, Features::default(), || ());
    let request = StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() };
    for vb in 0..streams {
        producer.request(VbId(vb), vb.into(), &request, b"").expect("a stream");
    }
    assert_eq!(producer.streams(), usize::from(streams));
    producer
}

/// vBuckets in an order that no cache foresees, all of them streamed.
fn order(streams: u16) -> Vec<VbId> {
    let mut vb = 1_u16;
    let mut next = || {
        vb = vb.wrapping_mul(25_173).wrapping_add(13_849);
        VbId((vb >> 3) % streams)
    };
    (0..4096).map(|_| next()).collect()
}

/// Nanoseconds of one call of `look`, in the middle round.
fn measure(env: &Env, order: &[VbId], look: impl Fn(VbId) -> bool) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let mut found = 0_u64;
            let begun_ns = env.clock.monotonic_ns();
            for _ in 0..LOOKUPS / order.len() as u64 {
                for vb in black_box(order) {
                    found += u64::from(look(*vb));
                }
            }
            let ns = env.clock.monotonic_ns() - begun_ns;
            assert_eq!(black_box(found), LOOKUPS / order.len() as u64 * order.len() as u64);
            ns as f64 / found as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    let env = Env::real().with_heap(Heap::default());
    let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("lookup", "unused".into()) };
    let store = Arc::new(kvstore::Memory::default());
    let bucket = Arc::new(Bucket::open(config, env.clone(), store).expect("nothing is on disk"));
    let mut fields = Vec::new();
    for streams in [1, VBUCKETS] {
        let producer = producer(&bucket, streams);
        let ns = measure(&env, &order(streams), |vb| producer.has_stream(vb));
        fields.push(format!("\"lookup_{streams}_ns\":{ns:.3}"));
    }
    println!("{{{}}}", fields.join(","));
}
