//! Buckets of the simulated world, and changes as a client asks for them.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{DocKey, Heap};
use engine::{Bucket, BucketConfig, StoreRequest};
use kvstore::{Couch, CouchConfig, Journaled, JournaledConfig, KvStore};

/// A world, and the bucket of a node in it.
pub fn simulated(seed: u64, vbuckets: u16, is_journaled: bool) -> (Env, SimHandles, Arc<Bucket>) {
    let (env, handles) = Env::sim(seed);
    let env = env.with_heap(Heap::default());
    let bucket = open(&env, vbuckets, is_journaled);
    (env, handles, bucket)
}

/// A node's bucket with what is on its disk.
pub fn open(env: &Env, vbuckets: u16, is_journaled: bool) -> Arc<Bucket> {
    let config = BucketConfig { vbuckets, ..BucketConfig::new("test", "/data/test".into()) };
    let store: Arc<dyn KvStore> = if is_journaled {
        let store = Journaled::open(env.clone(), &config.dir, JournaledConfig::default());
        Arc::new(store.expect("the disk works"))
    } else {
        Arc::new(Couch::open(env.clone(), &config.dir, CouchConfig::default()).expect("the disk works"))
    };
    Arc::new(Bucket::open(config, env.clone(), store).expect("it opens"))
}

/// A document is to have this body, whatever there is.
pub fn set<'a>(key: DocKey<'a>, body: &'a [u8]) -> StoreRequest<'a> {
    StoreRequest::set(key, body)
}
