//! Bodies for fuzzers: what must hold for any bytes.

use std::sync::Arc;

use base::env::SimHandles;
use base::{Cas, Datatype, RevSeqno, Seqno, VbId, VbState};
use engine::{Bucket, BucketConfig};
use protocol::dcp::{Marker, Message, Mutation, What};
use protocol::opcode;

use crate::{Consumer, ConsumerConfig, Features, Filter, Mode};

/// Turns of a consumer that nothing comes to any more.
const MOST_TURNS: usize = 100;

/// Any bytes as what a producer sends to a consumer that follows one vBucket and takes another one over.
pub fn fuzz_consumer(bytes: &[u8]) {
    let env = SimHandles::new(1).env();
    let config = BucketConfig { vbuckets: 2, quota_bytes: 8 << 20, ..BucketConfig::new("b", "/fuzz".into()) };
    let bucket = Bucket::open(config, env, Arc::new(kvstore::Memory::default())).expect("an empty bucket");
    let bucket = Arc::new(bucket);
    for (vb, state) in [(VbId(0), VbState::Replica), (VbId(1), VbState::Pending)] {
        bucket.roles().set_vbucket_state(vb, state, None).expect("there is one");
    }
    let config = ConsumerConfig {
        name: "fuzz".to_owned(),
        consumer_name: None,
        buffer_bytes: 1 << 20,
        noop_interval_s: 1,
        features: Features { collections: true, snappy: true, json: true },
        takes_files: false,
        change_streams: true,
    };
    let mut consumer = Consumer::new(bucket, config);
    let mut out = Vec::new();
    consumer.open(&mut out);
    consumer.want(VbId(0), Mode::Replicate, &mut out);
    consumer.want(VbId(1), Mode::TakeOver, &mut out);
    let mut rest = bytes;
    for _ in 0..bytes.len() + MOST_TURNS {
        out.clear();
        let Ok(consumed) = consumer.receive(rest, &mut out) else { return };
        rest = rest.get(consumed..).expect("no more than there was");
        let Ok(settled) = consumer.settle(&mut out) else { return };
        for rollback in settled.rollbacks {
            consumer.rolled_back(rollback.vb, Err("the fuzzer rolls nothing back"), &mut out);
        }
        if consumed == 0 && !settled.has_more {
            return;
        }
    }
}

/// Seeds of [`fuzz_consumer`]: answers to all that it asks, a snapshot and a document, with the opaques in any order.
pub fn consumer_seeds() -> Vec<Vec<u8>> {
    let answer = |opcode: u8, opaque: u32, value: &[u8]| {
        let mut frame = [0; 24];
        (frame[0], frame[1]) = (0x81, opcode);
        frame[8..12].copy_from_slice(&(value.len() as u32).to_be_bytes());
        frame[12..16].copy_from_slice(&opaque.to_be_bytes());
        [&frame[..], value].concat()
    };
    let log = [0x1234_u64.to_be_bytes(), [0; 8]].concat();
    let seed = |first: u32| {
        let mut bytes = Vec::new();
        for opaque in first..first + 12 {
            bytes.extend_from_slice(&answer(opcode::DCP_CONTROL, opaque, b""));
        }
        for opaque in 0..20 {
            bytes.extend_from_slice(&answer(opcode::DCP_STREAM_REQ, opaque, &log));
            let (opaque, vb) = (opaque, VbId((opaque % 2) as u16));
            let flags = Marker::MEMORY | Marker::CHECKPOINT;
            let marker = Marker { start: Seqno(1), end: Seqno(1), flags, more: None };
            let mutation = Mutation { by_seqno: Seqno(1), rev_seqno: RevSeqno(1), ..Mutation::default() };
            let marker = (What::Marker(marker), 0, &b""[..], &b""[..]);
            for (what, datatype, key, value) in
                [marker, (What::Mutation(mutation), Datatype::JSON.0, b"\0k", b"{}")]
            {
                let message =
                    Message { vb, opaque, stream_id: None, cas: Cas(5), datatype, key, value, what };
                message.write(&mut bytes);
            }
        }
        bytes
    };
    vec![seed(0), seed(1)]
}

/// Any bytes as the value of a request for a stream.
pub fn fuzz_filter(bytes: &[u8]) {
    if let Ok(filter) = Filter::parse(bytes) {
        let _ = filter.is_everything();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_producer_sends_never_panics() {
        base::fuzz::replay(1, 1_000, &consumer_seeds(), fuzz_consumer);
    }

    #[test]
    fn damaged_filters_never_panic() {
        let filter = br#"{"uid":"1","collections":["8","9"],"sid":3}"#.to_vec();
        base::fuzz::replay(2, 20_000, &[filter, br#"{"scope":"8"}"#.to_vec()], fuzz_filter);
    }
}
