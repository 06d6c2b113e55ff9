//! How long it takes to find a stream by its vBucket, with 1 and with 1,024 streams:
//! `cargo run --release -p dcp --example lookup`, which prints a line of JSON.
//!
//! Beside it stand the same loop without a look-up, which is part of the figures, and look-ups of which each waits for
//! the one before: those say what one takes from its beginning to its end, the others what one costs among other work.

use std::hint::black_box;
use std::sync::Arc;

use base::env::Env;
use base::{Seqno, VbId};
use dcp::{Agreement, Features, Producer};
use engine::{Bucket, BucketConfig};
use protocol::dcp::{OpenFlags, StreamRequest};

const VBUCKETS: u16 = 1024;
/// Streams between two measurements.
const STEP: u16 = 128;
/// Look-ups of one measurement: a part of a millisecond, so that others who use the processor spoil few of them,
const LOOKUPS: u64 = 1 << 19;
/// and measurements, of which the middle one counts.
const ROUNDS: usize = 301;

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

/// Nanoseconds of one step of `walk`, in the middle round. It is given vBuckets again and again, and returns how many
/// of them it found.
fn measure(env: &Env, order: &[VbId], mut walk: impl FnMut(&[VbId]) -> u64) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let mut found = 0;
            let begun_ns = env.clock.monotonic_ns();
            for _ in 0..LOOKUPS / order.len() as u64 {
                found += walk(black_box(order));
            }
            let ns = env.clock.monotonic_ns() - begun_ns;
            assert_eq!(found, LOOKUPS);
            ns as f64 / found as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

/// Look-ups of which none waits for another.
fn walk(order: &[VbId], look: impl Fn(VbId) -> bool) -> u64 {
    order.iter().map(|vb| u64::from(look(*vb))).sum()
}

/// Look-ups of which each waits for the one before: where the next vBucket stands depends on what was found.
fn chain(order: &[VbId], look: impl Fn(VbId) -> bool) -> u64 {
    let mut found = 0;
    while let Some(vb) = order.get(found) {
        found += usize::from(look(*vb));
    }
    found as u64
}

fn main() {
    // Its disk is simulated: a bucket notes its identity there.
    let (simulated, _) = Env::sim(1);
    let env = Env { disk: simulated.disk, ..Env::real() };
    let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("lookup", "/data/lookup".into()) };
    let store = Arc::new(kvstore::Memory::default());
    let bucket = Arc::new(Bucket::open(config, env.clone(), store).expect("nothing is on disk"));
    let mut fields = Vec::new();
    for streams in std::iter::once(1).chain((STEP..=VBUCKETS).step_by(usize::from(STEP))) {
        let producer = producer(&bucket, streams);
        let order = order(streams);
        let mut add = |name: &str, ns: f64| fields.push(format!("\"{name}_{streams}_ns\":{ns:.3}"));
        add("lookup", measure(&env, &order, |order| walk(order, |vb| producer.has_stream(vb))));
        add("chained", measure(&env, &order, |order| chain(order, |vb| producer.has_stream(vb))));
        add("loop", measure(&env, &order, |order| walk(order, |vb| black_box(vb).0 < VBUCKETS)));
        add("chained_loop", measure(&env, &order, |order| chain(order, |vb| vb.0 < VBUCKETS)));
    }
    println!("{{{}}}", fields.join(","));
}
