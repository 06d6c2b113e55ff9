//! The documents of a bucket: reading and changing them.
//!
//! Operations are beside this file, by kind: `read.rs`, `lock.rs`, `subdocument.rs`, `expiry.rs`; changes go through a
//! [`Writer`](crate::Writer): `store.rs`, `update.rs`, `prepare.rs`, and `write.rs` for what all of them have in common.

use std::sync::Arc;

use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::durability::Durability;
use crate::evict::Eviction;
use crate::expiry::ExpiryCounters;

/// Reading and changing documents.
pub struct Documents {
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) expiry: ExpiryCounters,
}

impl Documents {
    pub(crate) fn new(
        core: &Arc<Core>,
        checkpoints: &Arc<Checkpoints>,
        durability: &Arc<Durability>,
        eviction: &Arc<Eviction>,
    ) -> Documents {
        Documents {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            durability: Arc::clone(durability),
            eviction: Arc::clone(eviction),
            expiry: ExpiryCounters::default(),
        }
    }
}
