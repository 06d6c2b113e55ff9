//! What the control endpoint tells of a development cluster.

use std::collections::BTreeMap;

use ::cluster::state::{Outcome, Purpose, Rebalance, present};
use ::cluster::{NodeId, State, Status, View, keys};
use serde_json::{Value, json};

use super::config::DevError;
use super::node::Look;
use super::shared::{Shared, is_settled};

impl Shared {
    /// What there is to tell.
    pub(super) fn status(&self) -> Result<Value, DevError> {
        let snapshot = self.store.read()?;
        let view = View::of(&snapshot)?;
        let looks: Vec<Look> = self.nodes().iter().map(|node| node.look()).collect();
        let leader = snapshot.entries.get(keys::LEADER);
        let leads = |look: &&Look| {
            leader.zip(look.uuid.as_ref()).is_some_and(|(leader, uuid)| leader.value == uuid.as_bytes())
        };
        let leader = looks.iter().find(leads).map(|look| look.number);
        let nodes: Vec<Value> = looks.iter().map(|look| of_node(look, view.as_ref())).collect();
        let Some(view) = view else { return Ok(json!({ "nodes": nodes })) };
        let (state, rules) = (&view.state, view.state.auto_failover);
        Ok(json!({
            "epoch": state.epoch,
            "revision": state.revision,
            "buckets": state.buckets.keys().collect::<Vec<_>>(),
            "leader": leader,
            "is_settled": is_settled(&view),
            "auto_failover_ms": rules.enabled.then_some(rules.timeout_ms),
            "rebalance": state.rebalance.as_ref().map(|rebalance| of_rebalance(rebalance, state)),
            "last_rebalance": state.finished.as_ref().map(|finished| match finished.outcome {
                Outcome::Done => "done",
                Outcome::Cancelled => "cancelled",
                Outcome::Interrupted => "interrupted",
            }),
            "nodes": nodes,
        }))
    }
}

fn of_rebalance(rebalance: &Rebalance, state: &State) -> Value {
    let purpose = match rebalance.purpose {
        Purpose::Rebalance { .. } => "rebalance",
        Purpose::Repair => "repair",
        Purpose::GracefulFailover { .. } => "graceful_failover",
    };
    json!({ "purpose": purpose, "vbuckets": rebalance.total, "vbuckets_to_move": state.to_move() })
}

fn of_node(look: &Look, view: Option<&View>) -> Value {
    let known =
        view.zip(look.uuid.as_ref()).and_then(|(view, uuid)| Some((view, view.state.node_of(uuid)?.0)));
    let status = known.map(|(view, id)| word(view.state.nodes[&id].status));
    let shares = known.map(|(view, id)| shares(&view.state, id)).unwrap_or_default();
    json!({
        "node": look.number,
        "id": known.map(|(_, id)| id.name()),
        "kv": look.kv.to_string(),
        "http": look.http.to_string(),
        "kvs": look.tls.map(|(kv, _)| kv.to_string()),
        "https": look.tls.map(|(_, http)| http.to_string()),
        "data": look.data,
        "status": status.unwrap_or("none"),
        "is_running": look.is_running,
        "is_frozen": look.is_frozen,
        "is_cut_from_nodes": look.is_cut_from_nodes,
        "is_cut_from_store": look.is_cut_from_store,
        "has_lease": known.is_some_and(|(view, id)| view.alive(id).is_some()),
        "may_serve": look.may_serve && !look.is_frozen,
        "clock_offset_s": look.clock_offset_s,
        "injections": look.injections,
        "active_vbuckets": shares.values().map(|share| share.0).sum::<usize>(),
        "replica_vbuckets": shares.values().map(|share| share.1).sum::<usize>(),
        "buckets": shares.iter().map(|(name, (active, replica))| {
            (name.clone(), json!({ "active_vbuckets": active, "replica_vbuckets": replica }))
        }).collect::<serde_json::Map<_, _>>(),
    })
}

/// What a node is to the cluster, in a word.
pub(super) fn word(status: Status) -> &'static str {
    match status {
        Status::New => "new",
        Status::Active => "active",
        Status::FailedOver => "failed_over",
        Status::DeltaRecovery | Status::FullRecovery => "recovers",
    }
}

/// For how many vBuckets of each bucket a node is active, and of how many it is a replica.
fn shares(state: &State, id: NodeId) -> BTreeMap<String, (usize, usize)> {
    let of = |(name, bucket): (&String, &::cluster::Bucket)| {
        let active = bucket.vbuckets().filter(|vb| bucket.active(*vb) == Some(id)).count();
        let copies = bucket.map.iter().filter(|chain| present(chain).any(|other| other == id)).count();
        (name.clone(), (active, copies - active))
    };
    state.buckets.iter().map(of).collect()
}
