//! Streams of a bucket that is in memory alone, and that keeps values compressed as they come. In the background its values
//! are not compressed (record 25).

#![allow(missing_docs, reason = "a test is read as a whole")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::env::Env;
use base::{Datatype, DocKey, Heap, Seqno, VbId};
use dcp::{Agreement, Features, Producer, Step};
use engine::{Bucket, BucketConfig, BucketKind, StoreRequest};
use protocol::dcp::{Message, OpenFlags, StreamRequest, What};
use protocol::{Limits, Parsed, Status, parse};

const VB: VbId = VbId(1);
const DOCUMENTS: usize = 40;

/// Datatype and value by key, as a consumer with this is sent them.
fn streamed(bucket: &Arc<Bucket>, snappy: bool) -> BTreeMap<Vec<u8>, (Datatype, Vec<u8>)> {
    let mut agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"test", snappy).expect("a producer");
    assert_eq!(agreed.control(b"enable_noop", b"true"), Status::Success);
    let features = Features { collections: false, snappy, json: true };
    let mut producer = Producer::new(Arc::clone(bucket), "test".into(), agreed, features, || {});
    let wanted = StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() };
    producer.request(VB, 7, &wanted, b"").expect("it may begin");
    let (mut out, mut documents) = (Vec::new(), BTreeMap::new());
    loop {
        let step = producer.step(&mut out, 64 << 10);
        let worked = bucket.streams().backfills().step() == engine::Progress::Worked;
        if step == Step::Idle && !worked && out.is_empty() {
            return documents;
        }
        let bytes = std::mem::take(&mut out);
        let mut rest = &bytes[..];
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            let message = Message::read(&request).expect("a message of a stream");
            if let What::Mutation(_) = message.what {
                let datatype = Datatype::from_wire(message.datatype).expect("a datatype");
                documents.insert(message.key.to_vec(), (datatype, message.value.to_vec()));
            }
            rest = &rest[total_len..];
        }
        producer.acknowledge(bytes.len() as u32);
    }
}

#[test]
fn values_that_are_compressed_in_memory_are_sent_so_to_those_who_take_them() {
    let (env, handles) = Env::sim(1);
    let env = env.with_heap(Heap::default());
    let config = BucketConfig::new("test", "/data/test".into());
    let config = BucketConfig { vbuckets: 4, kind: BucketKind::Ephemeral, ..config };
    let bucket = Bucket::open(config, env, Arc::new(kvstore::Nothing)).expect("it opens");
    let bucket = Arc::new(bucket);
    bucket.set_param("compression_mode", "active").expect("a good value");
    let value = |at: usize| format!("{{\"n\":{at},\"text\":\"{}\"}}", "tomatoes ".repeat(200)).into_bytes();
    let key = |at: usize| format!("k{at}").into_bytes();
    let is_packed = |at: usize| at.is_multiple_of(2);
    for at in 0..DOCUMENTS {
        let (key, plain) = (key(at), value(at));
        let packed = snap::raw::Encoder::new().compress_vec(&plain).expect("it is short");
        let as_it_is = StoreRequest::set(DocKey::new(&key), &plain);
        let request = match is_packed(at) {
            true => StoreRequest { body: &packed, datatype: Datatype::SNAPPY, ..as_it_is },
            false => as_it_is,
        };
        bucket.documents().store(VB, &request, bucket.now()).expect("stored");
    }
    for _ in 0..10 {
        handles.clock.advance(Duration::from_secs(60));
        while bucket.maintenance().keep_step() {}
    }
    let (packed, plain) = (streamed(&bucket, true), streamed(&bucket, false));
    assert_eq!((packed.len(), plain.len()), (DOCUMENTS, DOCUMENTS));
    for at in 0..DOCUMENTS {
        let (datatype, sent) = &packed[&key(at)];
        if is_packed(at) {
            assert_eq!(*datatype, Datatype::JSON.with(Datatype::SNAPPY), "k{at}");
            assert_eq!(snap::raw::Decoder::new().decompress_vec(sent).ok(), Some(value(at)), "k{at}");
        } else {
            assert_eq!((*datatype, sent), (Datatype::JSON, &value(at)), "k{at}");
        }
        assert_eq!(plain[&key(at)], (Datatype::JSON, value(at)), "k{at}");
    }
}
