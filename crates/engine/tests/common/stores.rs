//! Buckets on a store with a journal, and on one without.

use std::sync::Arc;

use base::env::{Env, SimHandles};
use engine::{Bucket, BucketConfig};
use kvstore::{Couch, CouchConfig, Journaled, JournaledConfig, KvStore};

use super::World;

pub fn journaled(env: &Env) -> Arc<dyn KvStore> {
    let store = Journaled::open(env.clone(), "/data/test".as_ref(), JournaledConfig::default());
    Arc::new(store.expect("the disk works"))
}

pub fn files(env: &Env) -> Arc<dyn KvStore> {
    let store = Couch::open(env.clone(), "/data/test".as_ref(), CouchConfig::default());
    Arc::new(store.expect("the disk works"))
}

/// Opens a bucket of 8 vBuckets on a store; `tune` changes its configuration.
pub fn open(
    env: Env,
    handles: SimHandles,
    store: impl FnOnce(&Env) -> Arc<dyn KvStore>,
    tune: impl FnOnce(&mut BucketConfig),
) -> World {
    let mut config = BucketConfig::new("test", "/data/test".into());
    config.vbuckets = 8;
    tune(&mut config);
    let bucket = Bucket::open(config, env.clone(), store(&env)).expect("the disk works");
    World { env, handles, bucket }
}
