//! What administrators ask for while things go wrong: each function decides on a command, as far as one can be asked for.

use base::env::sim::SplitMix64;
use cluster::command::Command;
use cluster::state::NextIds;
use cluster::{NodeId, Status};
use serde_json::json;

use crate::calm::Calm;
use crate::node::{BUCKET, Node};
use crate::nodes::{Nodes, id_of};
use crate::ops::FIRST_COLLECTION;

/// A collection is made or dropped; also the collection that is used from then on.
pub fn change_collections(node: &Node) -> Option<(Command, u32)> {
    let view = node.member.view.as_ref()?;
    let bucket = view.state.buckets.get(BUCKET)?;
    let uid = bucket.manifest.get("uid").and_then(|uid| uid.as_str()?.parse().ok()).unwrap_or(0u32) + 1;
    let mut collections = vec![json!({ "name": "_default", "uid": "0" })];
    let id = FIRST_COLLECTION + uid;
    // Every other manifest has one.
    if uid % 2 == 1 {
        collections.push(json!({ "name": format!("c{uid}"), "uid": format!("{id:x}") }));
    }
    let scopes = json!([{ "name": "_default", "uid": "0", "collections": collections }]);
    let command = Command::ChangeManifest {
        name: BUCKET.to_owned(),
        manifest: json!({ "uid": format!("{uid}"), "scopes": scopes }),
        next_ids: NextIds { scope: 8, collection: id + 1 },
    };
    (uid < 10).then_some((command, if uid % 2 == 1 { id } else { 0 }))
}

/// A node is failed over.
pub fn fail_over(calm: &Calm<'_>, nodes: &Nodes, rng: &mut SplitMix64) -> Option<Command> {
    // Mostly one that is in trouble, if there is any.
    let troubled = calm.troubled().filter(|_| rng.chance(2, 3));
    let any = nodes.any(rng);
    let other = troubled.unwrap_or(any);
    let node = id_of(other);
    let command = if rng.chance(1, 2) {
        Command::FailOver { node, force: false }
    } else {
        Command::FailOverGracefully { node }
    };
    calm.may_leave(other).then_some(command)
}

/// vBuckets are moved, for some node to go at times. The node at this place is asked.
pub fn rebalance(nodes: &Nodes, at: usize, rng: &mut SplitMix64) -> Command {
    let eject = id_of(nodes.any(rng));
    // At least two nodes stay, so that there is another one to fail over to.
    let stay = nodes[at].member.view.as_ref().map_or(0, |view| {
        let stays = |id: &NodeId| *id != eject && view.state.is_active(*id);
        view.state.nodes.keys().filter(|id| stays(id)).count()
    });
    let eject = if stay >= 3 && rng.chance(1, 4) { vec![eject] } else { Vec::new() };
    Command::Rebalance { eject }
}

/// A node that was failed over comes back.
pub fn take_back(node: &Node, rng: &mut SplitMix64) -> Option<Command> {
    let view = node.member.view.as_ref()?;
    let (id, _) = view.state.nodes.iter().find(|(_, node)| node.status == Status::FailedOver)?;
    Some(Command::Recover { node: *id, delta: rng.chance(2, 3) })
}
