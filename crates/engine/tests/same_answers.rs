//! Where documents are, and in which form, makes no difference: the same operations on several buckets get the same
//! answers, although some of them lose values or whole documents from memory, or compress them there, all the time.

mod common;

use std::time::Duration;

use base::env::Env;
use base::{Cas, Datatype, ItemKind, RevSeqno, VersionMeta};

use common::{VB, Watched, doc};
use engine::settings::Key;
use engine::{
    CompactOutcome, CompactRequest, CounterRequest, End, EvictionPolicy, Progress, Refusal, Settings,
    StoreMode, StoreRequest, Whole, WithMetaRequest, value,
};
use proptest::prelude::*;
use subdoc::request::{self, Features};

const KEYS: [&str; 3] = ["a", "b", "c"];
const FEATURES: Features = Features { xattr: true, multiple_xattr_keys: false };
const SUBDOC_GET: u8 = 0xc5;
const SUBDOC_DICT_UPSERT: u8 = 0xc8;
/// Path flags: the path is in an xattr; missing parents are made.
const XATTR: u8 = 0x04;
const MKDIR_P: u8 = 0x01;
/// Document flag: the document is made if it is not there.
const MKDOC: u8 = 0x01;

#[derive(Clone, Copy, Debug)]
enum Op {
    Get,
    Peek,
    Store { mode: StoreMode, cas: bool, json: bool, expires: bool, packed: bool },
    Join { front: bool, cas: bool, packed: bool },
    Count,
    Touch { soon: bool },
    Delete { cas: bool },
    Lock,
    Unlock,
    SubdocSet { path: &'static str, xattr: bool },
    SubdocGet { path: &'static str, xattr: bool },
    WithMeta { delete: bool, rev: u64, packed: bool },
    Evict,
    Compress,
    Flush,
    Wait,
    Restart,
    Purge,
}

/// What a bucket loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loses {
    Nothing,
    Values,
    Documents { filtered: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![Just(StoreMode::Set), Just(StoreMode::Add), Just(StoreMode::Replace)];
    let path = prop_oneof![Just(("_sys.x", true)), Just(("user.x", true)), Just(("x", false))];
    let same = path.clone();
    prop_oneof![
        3 => Just(Op::Get),
        1 => Just(Op::Peek),
        3 => (mode, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(mode, cas, json, expires, packed)| Op::Store { mode, cas, json, expires, packed }),
        1 => (any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(front, cas, packed)| Op::Join { front, cas, packed }),
        1 => Just(Op::Count),
        1 => any::<bool>().prop_map(|soon| Op::Touch { soon }),
        1 => any::<bool>().prop_map(|cas| Op::Delete { cas }),
        1 => Just(Op::Lock),
        1 => Just(Op::Unlock),
        2 => path.prop_map(|(path, xattr)| Op::SubdocSet { path, xattr }),
        2 => same.prop_map(|(path, xattr)| Op::SubdocGet { path, xattr }),
        1 => (any::<bool>(), 1..20u64, any::<bool>())
            .prop_map(|(delete, rev, packed)| Op::WithMeta { delete, rev, packed }),
        4 => Just(Op::Evict),
        4 => Just(Op::Compress),
        1 => Just(Op::Flush),
        1 => Just(Op::Wait),
        1 => Just(Op::Restart),
        1 => Just(Op::Purge),
    ]
}

/// A bucket, and the CAS that its client has last seen of each key.
struct Side {
    world: Option<Watched>,
    seen: [Cas; KEYS.len()],
    loses: Loses,
    compresses: bool,
}

/// What a client without compression sees of a version.
fn shown(version: &Whole) -> (VersionMeta, Vec<u8>) {
    (plain(version.meta()), value::plain(version).expect("readable").into_owned())
}

/// Metadata without the form of the value.
fn plain(meta: VersionMeta) -> VersionMeta {
    VersionMeta { datatype: meta.datatype.without(Datatype::SNAPPY), ..meta }
}

/// A body as it is sent, compressed or not.
fn sent(body: &[u8], packed: bool) -> (Vec<u8>, Datatype) {
    let pack = || snap::raw::Encoder::new().compress_vec(body).expect("it is short");
    if packed { (pack(), Datatype::SNAPPY) } else { (body.to_vec(), Datatype::RAW) }
}

const QUOTA_BYTES: u64 = 256 << 20;

/// What an operation told its client.
fn told<T>(result: Result<T, Refusal>, tell: impl FnOnce(T) -> String) -> String {
    result.map_or_else(|refusal| format!("{refusal:?}"), tell)
}

impl Side {
    fn new(loses: Loses, compresses: bool, mode: &str) -> Side {
        let settings = Settings::default();
        if let Loses::Documents { filtered } = loses {
            settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
            settings.put(Key::BfilterEnabled, u64::from(filtered));
        }
        let (env, handles) = Env::sim(5);
        let world = Watched::open_with(env, handles, QUOTA_BYTES, &settings);
        world.bucket.set_param("compression_mode", mode).expect("a good value");
        Side { world: Some(world), seen: [Cas::ANY; KEYS.len()], loses, compresses }
    }

    fn world(&self) -> &Watched {
        self.world.as_ref().expect("it is open")
    }

    /// Starts anew, with hardly any room while it loads if it loses documents.
    fn restart(&mut self) {
        let room = if matches!(self.loses, Loses::Documents { .. }) { 350 } else { QUOTA_BYTES };
        let world = self.world.take().expect("it is open").restart(room);
        world.load();
        world.bucket.settings().put(Key::MaxSize, QUOTA_BYTES);
        self.world = Some(world);
    }

    fn purge(&self) -> String {
        let world = self.world();
        assert!(world.bucket.flushing().flush_all());
        let request = CompactRequest { purge_before_s: Some(u32::MAX), ..CompactRequest::default() };
        let waiting = world.bucket.compaction().compact(VB, request).expect("none is under way");
        while world.bucket.compaction().compact_step() != Progress::Idle {}
        assert_eq!(waiting.try_take(), Some(CompactOutcome::Done));
        assert!(world.bucket.flushing().flush_all());
        let stats = world.bucket.vbucket_stats(VB).expect("it is there");
        let disk = world.bucket.disk_counts(VB).expect("readable");
        assert_eq!((stats.documents, stats.tombstones), (disk.documents, disk.tombstones));
        String::new()
    }

    fn with_meta(&self, at: usize, delete: bool, rev: u64, packed: bool) -> String {
        let world = self.world();
        let (value, datatype) = sent(&b"foreign".repeat(20), packed && !delete);
        let kind = if delete { ItemKind::Deletion } else { ItemKind::Mutation };
        let request = WithMetaRequest {
            key: doc(KEYS[at]),
            value: if delete { b"" } else { &value },
            datatype,
            meta: VersionMeta { cas: Cas(99), rev_seqno: RevSeqno(rev), kind, ..VersionMeta::default() },
            add: false,
            expected: Cas::ANY,
            force: false,
            regenerate_cas: false,
            late: None,
        };
        let now = world.bucket.now();
        let apply = || world.bucket.documents().apply_with_meta(VB, &request, now);
        told(world.settle(KEYS[at], apply), |mutated| format!("{mutated:?}"))
    }

    fn run(&mut self, at: usize, op: Op) -> String {
        if let Op::Restart = op {
            self.restart();
        }
        let (world, key) = (self.world(), doc(KEYS[at]));
        let (bucket, docs) = (&world.bucket, world.bucket.documents());
        let now = bucket.now();
        let cas_if = |wanted: bool| if wanted { self.seen[at] } else { Cas::ANY };
        let mut cas = None;
        let answer = match op {
            Op::Get => told(world.settle(KEYS[at], || docs.get(VB, key, now)), |found| {
                cas = Some(found.cas);
                format!("{:?} {:?}", found.cas, shown(&found.version))
            }),
            Op::Peek => told(world.settle(KEYS[at], || docs.peek(VB, key, now)), |seen| {
                format!("{:?}", seen.map(|seen| (seen.cas, plain(seen.version.meta()))))
            }),
            Op::Store { mode, cas: with_cas, json, expires, packed } => {
                let body = if json { "{\"x\": 1}" } else { "17" };
                // Long enough that compression gains something.
                let (body, datatype) = sent(format!("{body:200}").as_bytes(), packed);
                let request = StoreRequest {
                    key,
                    body: &body,
                    datatype,
                    flags: 3,
                    expiry: if expires { 5 } else { 0 },
                    mode,
                    cas: cas_if(with_cas),
                    preserve_expiry: json && expires,
                };
                told(world.settle(KEYS[at], || docs.store(VB, &request, now)), |mutated| {
                    cas = Some(mutated.cas);
                    format!("{mutated:?}")
                })
            }
            Op::Join { front, cas: with_cas, packed } => {
                let end = if front { End::Front } else { End::Back };
                let (part, datatype) = sent(b"8", packed);
                let join = || docs.join(VB, key, &part, datatype, end, cas_if(with_cas), now);
                told(world.settle(KEYS[at], join), |mutated| format!("{mutated:?}"))
            }
            Op::Count => {
                let request = CounterRequest {
                    key,
                    increment: true,
                    delta: 3,
                    initial: Some(1),
                    expiry: 0,
                    preserve_expiry: false,
                };
                told(world.settle(KEYS[at], || docs.count(VB, &request, now)), |done| format!("{done:?}"))
            }
            Op::Touch { soon } => {
                let expiry = if soon { 4 } else { 0 };
                told(world.settle(KEYS[at], || docs.touch(VB, key, expiry, now)), |(mutated, old)| {
                    format!("{mutated:?} {:?}", shown(&old))
                })
            }
            Op::Delete { cas: with_cas } => {
                let delete = || docs.delete(VB, key, cas_if(with_cas), now);
                told(world.settle(KEYS[at], delete), |mutated| format!("{mutated:?}"))
            }
            Op::Lock => told(world.settle(KEYS[at], || docs.get_and_lock(VB, key, 2, now)), |found| {
                cas = Some(found.cas);
                format!("{:?} {:?}", found.cas, shown(&found.version))
            }),
            Op::Unlock => {
                let unlock = || docs.unlock(VB, key, self.seen[at], now);
                told(world.settle(KEYS[at], unlock), |()| "unlocked".into())
            }
            Op::SubdocSet { path, xattr } => self.subdoc_set(at, path, xattr),
            Op::SubdocGet { path, xattr } => self.subdoc_get(at, path, xattr),
            Op::WithMeta { delete, rev, packed } => self.with_meta(at, delete, rev, packed),
            Op::Evict => {
                assert!(bucket.flushing().flush_all());
                // What was lent goes back.
                while bucket.fetching().fetch_step() != Progress::Idle {}
                let _ = match self.loses {
                    Loses::Nothing => Ok(false),
                    Loses::Values => bucket.eviction().evict_value(VB, key),
                    Loses::Documents { .. } => bucket.eviction().evict_whole(VB, key),
                };
                String::new()
            }
            Op::Compress => {
                assert!(bucket.flushing().flush_all());
                if self.compresses {
                    let _ = bucket.compression().compress_value(VB, key);
                }
                String::new()
            }
            Op::Flush => {
                assert!(bucket.flushing().flush_all());
                String::new()
            }
            Op::Wait => {
                world.handles.clock.advance(Duration::from_secs(3));
                String::new()
            }
            Op::Restart => String::new(),
            Op::Purge => self.purge(),
        };
        let stats = bucket.vbucket_stats(VB).expect("it is there");
        let answer = format!("{answer} {} {} {}", stats.documents, stats.tombstones, stats.high_seqno);
        assert!(world.used() >= world.table_bytes(), "what is in the table is charged");
        self.seen[at] = cas.unwrap_or(self.seen[at]);
        answer
    }

    fn subdoc_set(&self, at: usize, path: &str, xattr: bool) -> String {
        let flags = MKDIR_P | if xattr { XATTR } else { 0 };
        let extras = [0, path.len() as u8, flags, MKDOC];
        let value = [path.as_bytes(), b"42"].concat();
        let parsed = request::parse_single_mutation(SUBDOC_DICT_UPSERT, &extras, &value, &FEATURES);
        let request = parsed.unwrap_or_else(|refusal| panic!("{}", refusal.context));
        let bucket = &self.world().bucket;
        let now = bucket.now();
        let mutate = || bucket.documents().subdoc_mutate(VB, doc(KEYS[at]), &request, false, now);
        told(self.world().settle(KEYS[at], mutate), |(mutated, outcome)| {
            format!("{mutated:?} {}", outcome.status)
        })
    }

    fn subdoc_get(&self, at: usize, path: &str, xattr: bool) -> String {
        let extras = [0, path.len() as u8, if xattr { XATTR } else { 0 }];
        let parsed = request::parse_single_lookup(SUBDOC_GET, &extras, path.as_bytes(), &FEATURES);
        let request = parsed.unwrap_or_else(|refusal| panic!("{}", refusal.context));
        let bucket = &self.world().bucket;
        let now = bucket.now();
        let look = || {
            bucket.documents().subdoc_lookup(VB, doc(KEYS[at]), &request, now, |outcome, cas| {
                let mut body = Vec::new();
                let is_json = outcome.has_results() && subdoc::reply::write_lookup(outcome, &mut body);
                format!("{} {is_json} {body:?} {cas:?}", outcome.status)
            })
        };
        told(self.world().settle(KEYS[at], look), |answer| answer)
    }
}

/// Runs the same on a bucket that keeps everything as it is and on others, which lose or compress something.
fn compare(others: &[(Loses, bool, &str)], ops: Vec<(usize, Op)>) {
    // What tombstones keep is not loaded ahead.
    let restarts = ops.iter().any(|(_, op)| matches!(op, Op::Restart));
    let mut keeping = Side::new(Loses::Nothing, false, "off");
    let mut others: Vec<Side> =
        others.iter().map(|(loses, compresses, mode)| Side::new(*loses, *compresses, mode)).collect();
    for (at, op) in ops {
        let told = keeping.run(at, op);
        for other in &mut others {
            assert_eq!(told, other.run(at, op), "{op:?} of {}", KEYS[at]);
        }
    }
    for at in 0..KEYS.len() {
        let told = keeping.run(at, Op::Get);
        others.iter_mut().for_each(|other| assert_eq!(told, other.run(at, Op::Get)));
    }
    assert!(restarts || keeping.world().bucket.fetching().fetch_stats().fetched == 0);
    others.into_iter().chain([keeping]).for_each(|side| side.world.expect("it is open").end());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn neither_evictions_nor_compression_change_an_answer(
        ops in proptest::collection::vec((0..KEYS.len(), op()), 1..80),
    ) {
        let others =
            [(Loses::Values, false, "passive"), (Loses::Values, true, "active"), (Loses::Nothing, true, "off")];
        compare(&others, ops);
    }

    #[test]
    fn evicted_documents_change_no_answer(
        ops in proptest::collection::vec((0..KEYS.len(), op()), 1..80),
        filtered in any::<bool>(),
    ) {
        let loses = Loses::Documents { filtered };
        compare(&[(loses, false, "off"), (loses, true, "active")], ops);
    }
}
