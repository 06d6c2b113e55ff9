//! Reads of the first replica: its copy, or the documented error on a bucket without replicas.

use couchbase::error::ErrorKind;
use couchbase::get_replica_strategy::{GetReplicaStrategy, ReplicaIndex};
use tokio::time::interval;

use crate::support::*;

/// This SDK reads a replica by its index only. The copy is there some time after the write.
#[test]
fn the_first_replica() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        let first = || GetReplicaStrategy::from_index(ReplicaIndex::First, None);
        if env("STAVE_REPLICAS") == "0" {
            refused(collection.get_replica(&key, first(), None).await, ErrorKind::ReplicaIndexOutOfBounds);
            return;
        }
        // The deadline of every test ends this.
        let mut turns = interval(SHORT / 20);
        loop {
            turns.tick().await;
            match collection.get_replica(&key, first(), None).await {
                Ok(copy) => return assert_eq!(copy.content_as::<i32>().unwrap(), 1),
                Err(error) => assert_eq!(*error.kind(), ErrorKind::DocumentNotFound, "{error}"),
            }
        }
    });
}
