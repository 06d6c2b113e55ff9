//! What is removed while a node does not follow the cluster: that node may serve it for a while, and until it does not,
//! no client is told that the name is free.

use std::time::Duration;

use dev::DevTimes;

use crate::cluster::{Cluster, eventually};
use crate::support::http;

/// Long enough for a node that is cut off from the store to serve on by what others have promised.
const TIMES: DevTimes = DevTimes { lease: Duration::from_secs(1), auto_failover: None };
const COLLECTIONS: &str = "/pools/default/buckets/default/scopes/_default/collections";

fn serves(cluster: &Cluster, number: u16) -> bool {
    cluster.told_of(number)["may_serve"] == true
}

#[test]
fn a_drop_that_is_asked_again_waits_like_the_first_one() {
    let cluster = Cluster::with_times(3, 0, TIMES);
    let (first, second) = (cluster.node(1), cluster.node(2));
    assert_eq!(http(&first, "POST", COLLECTIONS, "name=c").0, 200);
    let path = format!("{COLLECTIONS}/c");
    cluster.must("/v1/dev/nodes/3/cut?from=store");
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| http(&first, "DELETE", &path, ""));
        let scopes = "/pools/default/buckets/default/scopes";
        eventually("the other node has dropped it", || !http(&second, "GET", scopes, "").1.contains("\"c\""));
        let again = http(&second, "DELETE", &path, "");
        assert!(!serves(&cluster, 3), "it may still serve the collection: {again:?}");
        assert_eq!(again.0, 404, "{again:?}");
        let made = http(&second, "POST", COLLECTIONS, "name=c");
        assert_eq!(made.0, 200, "{made:?}");
        let dropped = dropped.join().expect("an answer");
        assert_eq!(dropped.0, 200, "{dropped:?}");
    });
    cluster.must("/v1/dev/nodes/3/join?from=store");
    cluster.stop();
}

#[test]
fn a_collection_is_made_again_when_no_node_serves_the_one_that_was_dropped() {
    let cluster = Cluster::with_times(3, 0, TIMES);
    let (first, second) = (cluster.node(1), cluster.node(2));
    assert_eq!(http(&first, "POST", COLLECTIONS, "name=c").0, 200);
    cluster.must("/v1/dev/nodes/3/cut?from=store");
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| http(&first, "DELETE", &format!("{COLLECTIONS}/c"), ""));
        let scopes = "/pools/default/buckets/default/scopes";
        eventually("the other node has dropped it", || !http(&second, "GET", scopes, "").1.contains("\"c\""));
        let made = http(&second, "POST", COLLECTIONS, "name=c");
        assert!(!serves(&cluster, 3), "it may still serve the other one of that name: {made:?}");
        assert_eq!(made.0, 200, "{made:?}");
        assert_eq!(dropped.join().expect("an answer").0, 200);
    });
    cluster.must("/v1/dev/nodes/3/join?from=store");
    cluster.stop();
}

#[test]
fn a_bucket_is_made_again_when_no_node_serves_the_deleted_one() {
    let cluster = Cluster::with_times(3, 0, TIMES);
    let (first, second) = (cluster.node(1), cluster.node(2));
    let path = "/pools/default/buckets/default";
    cluster.must("/v1/dev/nodes/3/cut?from=store");
    std::thread::scope(|scope| {
        let deleted = scope.spawn(|| http(&first, "DELETE", path, ""));
        eventually("the other node has deleted it", || http(&second, "GET", path, "").0 == 404);
        let made =
            http(&second, "POST", "/pools/default/buckets", "name=default&ramQuotaMB=100&replicaNumber=0");
        assert!(!serves(&cluster, 3), "it may still serve the deleted one: {made:?}");
        assert_eq!(made.0, 202, "{made:?}");
        assert_eq!(deleted.join().expect("an answer").0, 200);
    });
    cluster.must("/v1/dev/nodes/3/join?from=store");
    cluster.stop();
}

#[test]
fn a_deletion_that_is_asked_again_waits_like_the_first_one() {
    let cluster = Cluster::with_times(3, 0, TIMES);
    let (first, second) = (cluster.node(1), cluster.node(2));
    let path = "/pools/default/buckets/default";
    cluster.must("/v1/dev/nodes/3/cut?from=store");
    std::thread::scope(|scope| {
        let deleted = scope.spawn(|| http(&first, "DELETE", path, ""));
        eventually("the other node has deleted it", || http(&second, "GET", path, "").0 == 404);
        let again = http(&second, "DELETE", path, "");
        assert!(!serves(&cluster, 3), "it may still serve the bucket: {again:?}");
        assert_eq!(again.0, 404, "{again:?}");
        assert_eq!(deleted.join().expect("an answer").0, 200);
    });
    // Of a bucket that there never was nothing is waited for.
    assert_eq!(http(&second, "DELETE", "/pools/default/buckets/none", "").0, 404);
    cluster.must("/v1/dev/nodes/3/join?from=store");
    cluster.stop();
}
