//! Whether a node serves its clients, and if not, why and what to do about it.

use ::cluster::{NodeId, Status};

use super::Cluster;
use super::still_joining::STILL_JOINING;
use crate::node::Node;

/// Why a node serves nobody, and what to do about it; nothing if it serves.
pub fn why_not(node: &Node) -> Option<String> {
    if node.fence().may_serve(node.env().clock.monotonic_ns()) {
        return None;
    }
    let why = match node.cluster() {
        Some(cluster) => cluster.why_not(),
        None => {
            "it has not begun to join its cluster yet, or is stopping: wait, or look at its log".to_owned()
        }
    };
    Some(format!("this node serves no client: {why}"))
}

/// Whether a cluster decides about a node: whether it has read that cluster's state yet, or not.
pub fn is_a_clusters(node: &Node) -> bool {
    !node.fence().is_open()
}

/// Why nothing can be asked of a node that belongs to its cluster alone; nothing if it has begun to join the cluster, or
/// if no cluster decides about it.
///
/// A node opens its ports before it has begun to join: what it did of its own then, its cluster would not know of.
pub fn still_joining(node: &Node) -> Option<&'static str> {
    (is_a_clusters(node) && node.cluster().is_none()).then_some(STILL_JOINING)
}

/// Whether a node belongs to a cluster, as far as it knows.
pub(crate) fn is_member(node: &Node) -> bool {
    let Some(cluster) = node.cluster() else { return false };
    cluster.view().is_some_and(|view| view.state.node_of(cluster.uuid()).is_some())
}

/// What to do about a node that was failed over, and answers.
pub fn of_failed_over(id: NodeId) -> String {
    format!(
        "{id} was failed over: take it back (stave cluster add {id}), or let it leave with the next rebalance"
    )
}

/// The same about this node, if it was failed over: its cluster has let it in, and has it serve nothing.
pub fn failed_over(cluster: &Cluster) -> Option<String> {
    let view = cluster.view()?;
    let (id, of) = view.state.node_of(cluster.uuid())?;
    (of.status == Status::FailedOver).then(|| of_failed_over(id))
}

impl Cluster {
    fn why_not(&self) -> String {
        if let Some(why) = self.outside() {
            return why;
        }
        let reach = "see that the coordination store (etcd, as given by --join) runs and can be reached from this \
                     node; it serves again by itself then";
        if let Some(why) = self.lost_for_all() {
            return format!("it does not know how its cluster is: {why}; {reach}");
        }
        let Some(view) = self.view() else {
            return format!("it has not read its cluster's state yet: wait, or {reach}");
        };
        let Some((id, of)) = view.state.node_of(&self.uuid) else {
            return "its cluster has not let it in yet: wait, or look at its log".to_owned();
        };
        match of.status {
            Status::FailedOver => of_failed_over(id),
            Status::New | Status::DeltaRecovery | Status::FullRecovery => {
                format!("{id} has its share after the next rebalance: stave cluster rebalance")
            }
            Status::Active if view.alive(id).is_none() => {
                format!("the lease of {id} has run out: {reach}, unless it is failed over before")
            }
            Status::Active => format!("{id} is becoming what its cluster wants: wait, or look at its log"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use ::cluster::Fence;
    use base::env::Env;

    use super::*;
    use crate::config::BucketSpec;
    use crate::management::{BucketChange, BucketError, ManifestError};
    use crate::node_buckets::set_params;
    use crate::tests::node_in;
    use crate::user::Users;

    /// Between the first moment that its ports are open and that in which it has begun to join.
    #[test]
    pub(crate) fn a_node_that_has_not_begun_to_join_its_cluster_decides_nothing() {
        let (env, _handles) = Env::sim(3);
        let users = Users::new(&[], &*env.random);
        let alone = node_in(env, users, false);
        assert_eq!((is_a_clusters(&alone), still_joining(&alone)), (false, None));
        let node = Arc::into_inner(alone).expect("it is held once");
        let node = Arc::new(node.fenced_by(Arc::new(Fence::closed())));
        assert_eq!((is_a_clusters(&node), still_joining(&node)), (true, Some(STILL_JOINING)));
        let name = "default".to_owned();
        let (management, spec) = (node.management(), BucketSpec::parse("another").expect("valid"));
        let bucket = node.bucket(&name).expect("it is there");
        let outcomes = [
            management.create(spec.clone()),
            management.check_create(&spec),
            management.check_change(&name, &BucketChange::default()),
            management.change(&name, BucketChange::default()),
            management.flush(&name),
            management.delete(&name),
            management.change_manifest(&bucket, &|manifest, _| Ok(manifest.clone())).map(drop).map_err(
                |error| match error {
                    ManifestError::Bucket(error) => error,
                    other => panic!("{other}"),
                },
            ),
        ];
        for (at, outcome) in outcomes.into_iter().enumerate() {
            assert!(matches!(outcome, Err(BucketError::NotNow(_))), "{at}: {outcome:?}");
        }
        assert!(node.bucket(&name).is_some());
        let quota = bucket.memory().quota_bytes() / 2;
        let changed = set_params(&node, &bucket, &[("max_size", &quota.to_string())]);
        assert!(matches!(changed, Err(BucketError::Elsewhere(_))), "{changed:?}");
    }
}
