//! A bucket in a simulated world, for tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod lines;
pub mod spy;
pub mod stores;
pub mod wait;

use std::ops::ControlFlow;
use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, Heap, Moment, Part, VbId};
use engine::{
    Backfilled, Bucket, BucketConfig, Mutated, Refusal, Settings, StoreMode, StoreRequest, SyncOutcome,
    Topology, WriteChanges, topology_from_json,
};
use kvstore::Change;

/// A node's disk and clock, and the bucket on it.
pub struct World {
    pub env: Env,
    pub handles: SimHandles,
    pub bucket: Bucket,
}

pub const VB: VbId = VbId(3);

/// Makes lines of changes: seqno and key.
pub struct Lines;

impl WriteChanges for Lines {
    fn write(&mut self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<ControlFlow<()>, Refusal> {
        let key = String::from_utf8_lossy(change.key().key);
        out.extend_from_slice(format!("{} {key}\n", change.meta.by_seqno).as_bytes());
        Ok(ControlFlow::Continue(()))
    }
}

/// The same with the value behind it, so that lines are as large as documents.
pub struct WholeLines;

impl WriteChanges for WholeLines {
    fn write(&mut self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<ControlFlow<()>, Refusal> {
        let (seqno, key) = (change.meta.by_seqno, String::from_utf8_lossy(change.key().key));
        let value = String::from_utf8_lossy(change.value.unwrap_or_default());
        out.extend_from_slice(format!("{seqno} {key} {value}\n").as_bytes());
        Ok(ControlFlow::Continue(()))
    }
}

/// Seqnos and keys of what a backfill has made of changes.
pub fn lines(taken: &Backfilled) -> Vec<(u64, String)> {
    let text = taken.frames.iter().map(|frames| String::from_utf8_lossy(frames).into_owned());
    let text: String = text.collect();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("a line has two words at least").to_owned();
        (next().parse().expect("a seqno"), next())
    };
    text.lines().map(line).collect()
}

impl World {
    pub fn new(seed: u64) -> World {
        let (env, handles) = Env::sim(seed);
        let bucket = open(&env);
        World { env, handles, bucket }
    }

    /// Opens the bucket again on what is on the disk.
    pub fn restart(self) -> World {
        let World { env, handles, bucket } = self;
        drop(bucket);
        let bucket = open(&env);
        World { env, handles, bucket }
    }

    pub fn now(&self) -> Moment {
        self.bucket.now()
    }

    pub fn set(&self, key: &str, value: &str) -> Result<Mutated, Refusal> {
        self.store(key, value, StoreMode::Set, Cas::ANY, 0)
    }

    pub fn store(
        &self,
        key: &str,
        value: &str,
        mode: StoreMode,
        cas: Cas,
        expiry: u32,
    ) -> Result<Mutated, Refusal> {
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: value.as_bytes(),
            datatype: Datatype::RAW,
            flags: 7,
            expiry,
            mode,
            cas,
            preserve_expiry: false,
        };
        self.bucket.documents().store(VB, &request, self.now())
    }

    pub fn get(&self, key: &str) -> Result<String, Refusal> {
        let found = self.bucket.documents().get(VB, DocKey::new(key.as_bytes()), self.now())?;
        Ok(String::from_utf8_lossy(found.version.value()).into_owned())
    }
}

/// A value as a client that compresses sends it.
pub fn pack(plain: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(plain).expect("it is short")
}

/// The request for a document with this value, whatever there is.
pub fn set<'a>(key: DocKey<'a>, value: &'a str) -> StoreRequest<'a> {
    StoreRequest::set(key, value.as_bytes())
}

/// Chains of nodes, as JSON.
pub fn topology(json: &str) -> Option<Topology> {
    let json = serde_json::from_str(json).expect("it is JSON");
    Some(topology_from_json(&json).expect("it is a topology"))
}

/// What became of a sync write that was not done at once; nothing yet.
pub fn outcome(mutated: &Mutated) -> Option<SyncOutcome> {
    mutated.pending.as_ref().expect("it was not done at once").try_take()
}

pub fn open(env: &Env) -> Bucket {
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 8;
    let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default())
        .expect("the disk works");
    Bucket::open(config, env.clone(), Arc::new(store)).expect("the disk works")
}

/// A bucket on a store that can be watched.
pub struct Watched {
    pub env: Env,
    pub handles: SimHandles,
    pub bucket: Arc<Bucket>,
    pub spy: Arc<spy::Spy>,
}

pub fn doc(key: &str) -> DocKey<'_> {
    DocKey::new(key.as_bytes())
}

impl Watched {
    /// Opens a bucket that has loaded nothing yet.
    pub fn open(env: Env, handles: SimHandles, quota_bytes: u64) -> Watched {
        Watched::open_with(env, handles, quota_bytes, &Settings::default())
    }

    /// Opens a bucket with other settings that has loaded nothing yet.
    pub fn open_with(env: Env, handles: SimHandles, quota_bytes: u64, settings: &Settings) -> Watched {
        let env = env.with_heap(Heap::default());
        let mut config = BucketConfig::new("test", "/data/test".into());
        (config.vbuckets, config.quota_bytes) = (8, quota_bytes);
        config.settings = settings.clone();
        let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
        let spy = Arc::new(spy::Spy::new(Arc::new(store.expect("the disk works"))));
        let bucket = Bucket::open_cold(config, env.clone(), spy.clone()).expect("the disk works");
        Watched { env, handles, bucket: Arc::new(bucket), spy }
    }

    pub fn new(seed: u64) -> Watched {
        let (env, handles) = Env::sim(seed);
        Watched::open(env, handles, 256 << 20)
    }

    pub fn open_with_quota(seed: u64, quota_bytes: u64) -> Watched {
        let (env, handles) = Env::sim(seed);
        let world = Watched::open(env, handles, quota_bytes);
        while world.bucket.loading().load_step() != engine::Progress::Idle {}
        world
    }

    /// Opens it again after a clean stop.
    pub fn restart(self, quota_bytes: u64) -> Watched {
        self.bucket.close().expect("the disk works");
        let Watched { env, handles, bucket, .. } = self;
        let settings = bucket.settings().clone();
        drop(bucket);
        Watched::open_with(env, handles, quota_bytes, &settings)
    }

    /// Loads what there is room for.
    pub fn load(&self) {
        while self.bucket.loading().load_step() != engine::Progress::Idle {}
        while self.bucket.loading().warm_step() != engine::Progress::Idle {}
    }

    /// Ends the bucket, which has used no memory then.
    pub fn end(self) {
        let account = self.bucket.memory().account().clone();
        drop((self.bucket, self.spy, self.env));
        assert_eq!(account.exact(), [0; base::memory::PARTS]);
    }

    pub fn set_in(&self, vb: VbId, key: &str, value: &str) -> Result<Mutated, Refusal> {
        self.store_in(vb, key, value.as_bytes(), Datatype::RAW)
    }

    /// Stores a value that comes in some form.
    pub fn try_store_as(&self, key: &str, body: &[u8], datatype: Datatype) -> Result<Mutated, Refusal> {
        self.store_in(VB, key, body, datatype)
    }

    fn store_in(&self, vb: VbId, key: &str, body: &[u8], datatype: Datatype) -> Result<Mutated, Refusal> {
        let request = StoreRequest {
            key: doc(key),
            body,
            datatype,
            flags: 7,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        self.bucket.documents().store(vb, &request, self.bucket.now())
    }

    pub fn set(&self, key: &str, value: &str) -> Mutated {
        self.set_in(VB, key, value).expect("stored")
    }

    pub fn get(&self, key: &str) -> Result<String, Refusal> {
        let found = self.bucket.documents().get(VB, doc(key), self.bucket.now())?;
        Ok(String::from_utf8_lossy(found.version.value()).into_owned())
    }

    /// Stores a document and takes its value out of memory.
    pub fn set_evicted(&self, key: &str, value: &str) -> Mutated {
        let mutated = self.set(key, value);
        assert!(self.bucket.flushing().flush_all());
        assert_eq!(self.bucket.eviction().evict_value(VB, doc(key)), Ok(true));
        mutated
    }

    /// Does what the server does with an operation on a key: waits for what has to come from the disk, and asks again.
    pub fn settle<T>(&self, key: &str, mut ask: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
        // What was fetched is held until it was looked at.
        let mut held = None;
        for _ in 0..8 {
            match ask() {
                Err(Refusal::NotResident) => {
                    let fetch = self.bucket.fetching().fetch(VB, doc(key)).expect("few wait");
                    loop {
                        assert_ne!(
                            self.bucket.fetching().fetch_step(),
                            engine::Progress::Idle,
                            "the caller waits"
                        );
                        if let Some(fetched) = fetch.try_take() {
                            held.replace(fetched);
                            break;
                        }
                    }
                }
                Err(Refusal::Loading) => while self.bucket.loading().load_step() != engine::Progress::Idle {},
                answer => return answer,
            }
        }
        panic!("it does not settle");
    }

    pub fn used(&self) -> u64 {
        self.bucket.memory().account().exact()[base::Part::Documents as usize] as u64
    }

    /// Once everything is on disk the account knows of no versions but those that the tables point at.
    /// Nothing is kept for streams that may come back, either.
    pub fn check_account(&self) {
        assert!(self.bucket.flushing().flush_all());
        for vb in 0..self.bucket.vbuckets() {
            self.bucket.roles().create_checkpoint(VbId(vb)).expect("there is one");
        }
        let documents = self.bucket.memory().account().exact()[Part::Documents as usize];
        assert_eq!(documents as u64, self.table_bytes());
    }

    /// Bytes of the versions that the tables point at.
    pub fn table_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.bucket.each_vbucket(|vb| bytes += vb.counts().bytes);
        bytes
    }
}
