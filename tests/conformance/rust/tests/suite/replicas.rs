//! Replica reads on a bucket without replicas.

use couchbase::error::ErrorKind;
use couchbase::get_replica_strategy::{GetReplicaStrategy, ReplicaIndex};

use crate::support::*;

/// This SDK reads a replica by its index only, and there is none.
#[test]
fn there_is_no_first_replica() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        let strategy = GetReplicaStrategy::from_index(ReplicaIndex::First, None);
        refused(collection.get_replica(&key, strategy, None).await, ErrorKind::ReplicaIndexOutOfBounds);
    });
}
