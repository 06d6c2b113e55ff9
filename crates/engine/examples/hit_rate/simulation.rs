//! The bucket itself, with its pager, on a simulated disk and clock, reading a trace.

use std::sync::Arc;
use std::time::Duration;

use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, VbId, vbucket_map};
use engine::settings::Key;
use engine::{Bucket, BucketConfig, EvictionStats, Progress, Refusal, StoreMode, StoreRequest};

use crate::models;
use crate::traces::Trace;

const VBUCKETS: u16 = 16;
const VALUE_BYTES: usize = 512;
/// Time between two reads.
const STEP: Duration = Duration::from_micros(10);
/// Reads between two looks at how much is in memory.
const READS_PER_LOOK: usize = 100;

/// What share of the measured reads found its value in memory.
pub struct Outcome {
    /// Mean share of the documents whose value was in memory.
    pub resident: f64,
    /// With Stave's pager.
    pub stave: f64,
    /// With the least recently used evicted, in as much memory.
    pub lru: f64,
    /// With the most popular kept all the time.
    pub best_unchanging: f64,
    /// With the future known.
    pub optimum: f64,
    /// What the pager did.
    pub eviction: EvictionStats,
}

struct Simulation {
    bucket: Bucket,
    handles: SimHandles,
    keys: Vec<(VbId, Vec<u8>)>,
}

impl Simulation {
    fn new(documents: u32) -> Simulation {
        let (env, handles) = Env::sim(1);
        let mut config = BucketConfig::new("trace", "/data/trace".into());
        (config.vbuckets, config.quota_bytes) = (VBUCKETS, 8 << 30);
        let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
        let store = Arc::new(store.expect("the simulated disk works"));
        let bucket = Bucket::open(config, env, store).expect("the simulated disk works");
        let key = |n: u32| {
            let key = format!("document-{n:08}").into_bytes();
            (vbucket_map::vbucket_of(&key, VBUCKETS), key)
        };
        Simulation { bucket, handles, keys: (0..documents).map(key).collect() }
    }

    fn fill(&self) {
        for (vb, key) in &self.keys {
            let request = StoreRequest {
                key: DocKey::new(key),
                body: &[b'v'; VALUE_BYTES],
                datatype: Datatype::RAW,
                flags: 0,
                expiry: 0,
                mode: StoreMode::Set,
                cas: Cas::ANY,
                preserve_expiry: false,
            };
            self.bucket.documents().store(*vb, &request, self.bucket.now()).expect("there is room");
        }
        assert!(self.bucket.flushing().flush_all(), "the simulated disk works");
    }

    /// Makes the quota such that half-way between the watermarks this share of the values is in memory.
    fn limit(&self, resident: f64) {
        let whole = self.bucket.memory().used_bytes() as f64;
        let values = (self.keys.len() * VALUE_BYTES) as f64;
        let settings = self.bucket.settings();
        let middle = (settings.get(Key::LowWatermark) + settings.get(Key::HighWatermark)) as f64 / 200.0;
        settings.put(Key::MaxSize, ((whole - values * (1.0 - resident)) / middle) as u64);
    }

    fn keep(&self) {
        while self.bucket.memory().is_above_high_watermark() {
            self.bucket.maintenance().keep_step();
            self.handles.clock.advance(Duration::from_millis(10));
        }
    }

    /// Reads a document. Whether its value was in memory.
    fn read(&self, document: u32) -> bool {
        self.handles.clock.advance(STEP);
        let (vb, key) = &self.keys[document as usize];
        let get = || self.bucket.documents().get(*vb, DocKey::new(key), self.bucket.now()).map(drop);
        match get() {
            Ok(()) => true,
            Err(Refusal::NotResident) => {
                let fetch = self.bucket.fetching().fetch(*vb, DocKey::new(key)).expect("nobody else waits");
                while self.bucket.fetching().fetch_step() != Progress::Idle {}
                get().expect("it was fetched");
                drop(fetch);
                while self.bucket.fetching().fetch_step() != Progress::Idle {}
                self.bucket.maintenance().keep_step();
                false
            }
            Err(refusal) => panic!("cannot read document {document}: {refusal:?}"),
        }
    }

    fn residents(&self) -> u64 {
        let mut residents = 0;
        self.bucket.each_vbucket(|vb| residents += vb.counts().documents - vb.counts().without_value);
        residents
    }
}

/// Reads a trace with so many of a hundred values in memory.
pub fn run(trace: &Trace, resident_percent: u32) -> Outcome {
    let simulation = Simulation::new(trace.documents);
    simulation.fill();
    simulation.limit(f64::from(resident_percent) / 100.0);
    simulation.keep();
    let (mut hits, mut looks, mut residents) = (0_usize, 0_u64, 0_u64);
    for (now, document) in trace.reads.iter().enumerate() {
        let hit = simulation.read(*document);
        if now < trace.unmeasured {
            continue;
        }
        hits += usize::from(hit);
        if now % READS_PER_LOOK == 0 {
            (looks, residents) = (looks + 1, residents + simulation.residents());
        }
    }
    let room = (residents as f64 / looks as f64).round() as usize;
    Outcome {
        resident: room as f64 / f64::from(trace.documents),
        stave: hits as f64 / (trace.reads.len() - trace.unmeasured) as f64,
        lru: models::lru(trace, room),
        best_unchanging: models::best_unchanging(trace, room),
        optimum: models::optimum(trace, room),
        eviction: simulation.bucket.eviction().eviction_stats(),
    }
}
