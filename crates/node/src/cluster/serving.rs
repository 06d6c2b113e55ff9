//! Whether a node serves its clients, and if not, why and what to do about it.

use ::cluster::Status;

use super::Cluster;
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
    Some(format!("this node serves nobody: {why}"))
}

/// Whether a node belongs to a cluster, as far as it knows.
pub(crate) fn is_member(node: &Node) -> bool {
    let Some(cluster) = node.cluster() else { return false };
    cluster.view().is_some_and(|view| view.state.node_of(cluster.uuid()).is_some())
}

impl Cluster {
    fn why_not(&self) -> String {
        if let Some(why) = self.outside() {
            return why;
        }
        let reach = "see that the coordination store (etcd, as given by --join) runs and can be reached from this \
                     node; it serves again by itself then";
        if let Some(why) = self.lost() {
            return format!("it does not know how its cluster is: {why}; {reach}");
        }
        let Some(view) = self.view() else {
            return format!("it has not read its cluster's state yet: wait, or {reach}");
        };
        let Some((id, of)) = view.state.node_of(&self.uuid) else {
            return "its cluster has not let it in yet: wait, or look at its log".to_owned();
        };
        match of.status {
            Status::FailedOver => format!(
                "{id} was failed over: take it back (stave cluster add {id}), or let it leave with the next rebalance"
            ),
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
