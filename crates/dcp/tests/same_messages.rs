//! What a backfill makes of files in place is what it makes of versions, byte by byte.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{
    Cas, CollectionId, Datatype, DocKey, DurabilityLevel, Heap, ItemKind, NewVersion, RevSeqno, Seqno,
    SyncWrite, VbId, VbState, Version, VersionMeta,
};
use dcp::{Agreement, Features, Producer, Step};
use engine::{Bucket, BucketConfig, Progress};
use kvstore::{
    Compacted, Compaction, Couch, CouchConfig, Counts, FailoverEntry, Failure, KvStore, RolledBack,
    SaveBatch, Snapshot, States, Stats, Values, VbStateDoc,
};
use proptest::prelude::*;
use protocol::dcp::{OpenFlags, StreamRequest};

const VB: VbId = VbId(3);

/// A store that shows changes as versions only.
struct Plain(Couch);

impl KvStore for Plain {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        self.0.save_group(group)
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.0.get(vb, key)
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        Ok(self.0.snapshot(vb)?.map(|inner| Box::new(PlainSnapshot(inner)) as Box<dyn Snapshot>))
    }

    fn states(&self) -> Result<States, Failure> {
        self.0.states()
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.0.counts(vb)
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.0.delete_vbucket(vb)
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        self.0.rollback(vb, to)
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        self.0.compact(vb, request)
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// Without a way of its own to show changes.
struct PlainSnapshot(Box<dyn Snapshot>);

impl Snapshot for PlainSnapshot {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        self.0.state()
    }

    fn high_seqno(&self) -> Seqno {
        self.0.high_seqno()
    }

    fn purge_seqno(&self) -> Seqno {
        self.0.purge_seqno()
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.0.get(key)
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.0.scan(from, values, visit)
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.0.scan_all(from, values, visit)
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.0.scan_keys(from, values, visit)
    }
}

/// What a document looks like.
#[derive(Clone, Debug)]
struct Doc {
    kind: u8,
    key: u8,
    collection: bool,
    sync_write: u8,
    value_bytes: usize,
    /// Whether the value repeats itself, so that it can be compressed.
    is_regular: bool,
    has_xattrs: bool,
    is_snappy: bool,
    numbers: u32,
}

/// The collection beside the default one. It was never made here, but that is nobody's concern on disk.
const OTHER: CollectionId = CollectionId(8);

fn documents() -> impl Strategy<Value = Vec<Doc>> {
    let value_bytes = prop_oneof![Just(0usize), 1usize..300, 3_000usize..9_000, Just(300_000)];
    let what = (0u8..6, 0u8..40, any::<bool>(), 0u8..8);
    let doc = (what, value_bytes, any::<[bool; 3]>(), any::<u32>()).prop_map(
        |((kind, key, collection, sync_write), value_bytes, [is_regular, has_xattrs, is_snappy], numbers)| {
            Doc { kind, key, collection, sync_write, value_bytes, is_regular, has_xattrs, is_snappy, numbers }
        },
    );
    proptest::collection::vec(doc, 1..60)
}

impl Doc {
    fn plain_value(&self, kind: ItemKind) -> (Vec<u8>, Datatype) {
        let mut state = self.numbers | 1;
        let mut body: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if self.is_regular { b'a' } else { (state >> 24) as u8 }
        })
        .take(self.value_bytes)
        .collect();
        if !self.has_xattrs {
            return (body, Datatype::RAW);
        }
        if kind.is_deleted() {
            body.clear();
        }
        let mut section = Vec::new();
        for (name, value) in [("_sys", "{\"a\":1}"), ("user", "\"x\"")] {
            let pair = [name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
            section.extend_from_slice(&(pair.len() as u32).to_be_bytes());
            section.extend_from_slice(&pair);
        }
        let value = [&(section.len() as u32).to_be_bytes()[..], &section, &body].concat();
        (value, Datatype::RAW.with(Datatype::XATTR))
    }

    fn version(&self, heap: &Heap, seqno: u64) -> Version {
        let sync_write = match self.sync_write {
            0 => SyncWrite::Prepare(DurabilityLevel::Majority),
            1 => SyncWrite::Commit { prepared: Seqno(seqno - 1) },
            2 => SyncWrite::Abort { prepared: Seqno(seqno - 1) },
            _ => SyncWrite::No,
        };
        let kind = match (self.kind, sync_write) {
            (_, SyncWrite::Abort { .. }) => ItemKind::Deletion,
            (0, _) => ItemKind::Deletion,
            (1, SyncWrite::No) => ItemKind::Expiration,
            _ => ItemKind::Mutation,
        };
        let is_abort = matches!(sync_write, SyncWrite::Abort { .. });
        let (mut value, mut datatype) =
            if is_abort { (Vec::new(), Datatype::RAW) } else { self.plain_value(kind) };
        if self.is_snappy && !value.is_empty() {
            value = snap::raw::Encoder::new().compress_vec(&value).expect("it is short");
            datatype = datatype.with(Datatype::SNAPPY);
        }
        let meta = VersionMeta {
            cas: Cas(u64::from(self.numbers) << 16),
            by_seqno: Seqno(seqno),
            rev_seqno: RevSeqno(u64::from(self.numbers % 9) + 1),
            flags: self.numbers,
            expiry: self.numbers / 2,
            datatype,
            kind,
            sync_write,
        };
        let key = format!("key-{}", self.key);
        let collection = if self.collection { OTHER } else { CollectionId::DEFAULT };
        let document = DocKey { collection, key: key.as_bytes() };
        let (prepared, len) = document.to_prepared();
        let key = match sync_write.is_hidden() {
            true => DocKey { collection: CollectionId::PREPARES, key: &prepared[..len] },
            false => document,
        };
        NewVersion::new(heap, meta, key, &[&value]).publish()
    }
}

/// Saves documents in batches, the newest of each key.
fn save(store: &dyn KvStore, heap: &Heap, documents: &[Doc], batch: usize) {
    let mut seqno = 0;
    for part in documents.chunks(batch.max(1)) {
        let mut items: Vec<Version> = Vec::new();
        for doc in part {
            seqno += 2;
            let version = doc.version(heap, seqno);
            items.retain(|other| other.stored_key() != version.stored_key());
            items.push(version);
        }
        items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
        let state = VbStateDoc {
            state: VbState::Active,
            failover_table: vec![FailoverEntry { id: 7, seq: 0 }],
            max_visible_seqno: seqno,
            completed_seqno: seqno / 2,
            ..VbStateDoc::default()
        };
        store.save(VB, SaveBatch { items: &items, state: &state }).expect("a disk that works");
    }
}

/// What is agreed on, as bits.
#[derive(Clone, Copy, Debug)]
struct Agreed(u16);

impl Agreed {
    fn has(self, bit: u16) -> bool {
        self.0 & 1 << bit != 0
    }

    fn agreement(self) -> (Agreement, Features) {
        let flags = [
            (0, OpenFlags::XATTRS),
            (1, OpenFlags::DELETE_TIMES),
            (2, OpenFlags::NO_VALUE),
            (3, OpenFlags::NO_VALUE_WITH_DATATYPE),
        ];
        // Both at once are refused.
        let is_agreed = |bit: u16| self.has(bit) && (bit != 3 || !self.has(2));
        let flags = flags.iter().filter(|(bit, _)| is_agreed(*bit)).fold(0, |sum, (_, flag)| sum | flag);
        let features = Features { collections: self.has(4), snappy: self.has(5), json: self.has(6) };
        let mut agreed =
            Agreement::open(OpenFlags(OpenFlags::PRODUCER | flags), b"test", features.collections)
                .expect("a producer");
        let controls = [
            (9, "enable_noop"),
            (7, "enable_expiry_opcode"),
            (8, "force_value_compression"),
            (10, "enable_sync_writes"),
        ];
        for (bit, name) in controls {
            if self.has(bit) || bit == 9 {
                // What cannot be had together is refused, for both alike.
                agreed.control(name.as_bytes(), b"true");
            }
        }
        (agreed, features)
    }
}

struct World {
    bucket: Arc<Bucket>,
    _handles: SimHandles,
}

fn world(documents: &[Doc], batch: usize, is_plain: bool) -> World {
    let (env, handles) = Env::sim(1);
    let heap = Heap::default();
    let env = env.with_heap(heap.clone());
    let config = BucketConfig { vbuckets: 8, ..BucketConfig::new("test", "/data/test".into()) };
    let store = Couch::open(env.clone(), &config.dir, CouchConfig::default()).expect("a new disk");
    save(&store, &heap, documents, batch);
    let store: Arc<dyn KvStore> = if is_plain { Arc::new(Plain(store)) } else { Arc::new(store) };
    let bucket = Bucket::open(config, env, store).expect("what was saved");
    World { bucket: Arc::new(bucket), _handles: handles }
}

/// Everything that a consumer is sent from disk, which takes so many bytes at once.
fn messages(world: &World, agreed: Agreed, window: u32) -> Vec<u8> {
    let (mut agreement, features) = agreed.agreement();
    if window > 0 {
        agreement.control(b"connection_buffer_size", window.to_string().as_bytes());
    }
    let mut producer = Producer::new(world.bucket.clone(), "test".into(), agreement, features, || {});
    let end = world.bucket.with_vbucket(VB, |vb| vb.high_seqno()).expect("there it is");
    let request = StreamRequest { end, ..StreamRequest::default() };
    producer.request(VB, 7, &request, b"").expect("a stream");
    let mut all = Vec::new();
    loop {
        let mut out: Vec<u8> = Vec::new();
        let step = producer.step(&mut out, 64 << 10);
        let worked = world.bucket.streams().backfills().step() == Progress::Worked;
        producer.acknowledge(out.len() as u32);
        if out.is_empty() && !worked && step == Step::Idle {
            assert_eq!(producer.streams(), 0, "it ends");
            return all;
        }
        all.extend_from_slice(&out);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_ways_make_the_same_messages(
        documents in documents(),
        batch in 1usize..70,
        agreed in proptest::collection::vec((0u16..1 << 11).prop_map(Agreed), 1..6),
        window in prop_oneof![Just(0u32), 1_000u32..50_000],
    ) {
        let (fast, plain) = (world(&documents, batch, false), world(&documents, batch, true));
        for agreed in agreed {
            let made = messages(&fast, agreed, window);
            prop_assert!(!made.is_empty());
            prop_assert!(made == messages(&plain, agreed, window), "they differ as {agreed:?}");
        }
    }
}
