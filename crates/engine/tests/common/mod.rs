//! A bucket in a simulated world, for tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, Moment, VbId};
use engine::{Bucket, BucketConfig, Mutated, Refusal, StoreMode, StoreRequest};

/// A node's disk and clock, and the bucket on it.
pub struct World {
    pub env: Env,
    pub handles: SimHandles,
    pub bucket: Bucket,
}

pub const VB: VbId = VbId(3);

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
        self.bucket.store(VB, &request, self.now())
    }

    pub fn get(&self, key: &str) -> Result<String, Refusal> {
        let found = self.bucket.get(VB, DocKey::new(key.as_bytes()), self.now())?;
        Ok(String::from_utf8_lossy(found.version.value()).into_owned())
    }
}

pub fn open(env: &Env) -> Bucket {
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 8;
    let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default())
        .expect("the disk works");
    Bucket::open(config, env.clone(), Arc::new(store)).expect("the disk works")
}
