//! One node of a development cluster: what it is started with, and whether it runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use base::env::Env;
use base::{VbId, VbState};
use dcp::Mode;

use super::plan::{Placement, Plan};
use vbucket::{Chain, Topology};

use crate::config::Config;
use crate::node::Node;
use crate::replication::{Source, Sources};
use crate::server::{Failure, Server, serve_prepared};

/// A node.
pub(super) struct DevNode {
    pub(super) config: Config,
    pub(super) env: Env,
    /// By how many seconds its wall clock is off.
    pub(super) offset_s: Arc<AtomicI64>,
    pub(super) server: Option<Server>,
    pub(super) kv: SocketAddr,
    pub(super) http: SocketAddr,
    pub(super) is_frozen: bool,
}

impl DevNode {
    /// The node, if it runs.
    pub(super) fn node(&self) -> Option<&Arc<Node>> {
        self.server.as_ref().map(Server::node)
    }

    /// Starts it. It listens where it did before, or at free ports if that is not known yet.
    pub(super) fn start(
        &mut self,
        prepare: impl FnOnce(&Arc<Node>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let server = serve_prepared(self.config.clone(), self.env.clone(), prepare)?;
        (self.kv, self.http) = (server.kv_addr(), server.http_addr());
        (self.config.kv_addr, self.config.http_addr) = (self.kv, self.http);
        self.server = Some(server);
        Ok(())
    }

    /// Stops it cleanly, if it runs.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        self.is_frozen = false;
        self.server.take().map_or(Ok(()), Server::stop)
    }
}

/// Takes the roles away from a node that are others' now.
pub(super) fn demote(node: &Node, at: u16, plan: &Plan) {
    each_role(node, at, plan, |bucket, vb, role, _| {
        let is = bucket.state_of(vb);
        if role != VbState::Active
            && is != Some(role)
            && (is == Some(VbState::Active) || role == VbState::Dead)
        {
            // The vBucket is there: it was looked at.
            let _ = bucket.set_vbucket_state(vb, role, None);
        }
    });
}

/// Gives a node the roles that the plan has for it, and has its replicas follow those that are active.
pub(super) fn promote(node: &Node, at: u16, plan: &Plan, kv: &[SocketAddr], login: &(String, String)) {
    let mut sources: BTreeMap<String, Sources> =
        plan.buckets.keys().map(|name| (name.clone(), Sources::new())).collect();
    each_role(node, at, plan, |bucket, vb, role, row| match role {
        VbState::Active => {
            let replicas = plan.buckets.get(bucket.name()).map_or(0, |placement| placement.replicas);
            let topology = topology_of(row, replicas, kv);
            let is = bucket.inspect(vb, |vb| (vb.state(), vb.topology().cloned()));
            if is != Some((role, topology.clone())) {
                let _ = bucket.set_vbucket_state(vb, role, topology);
            }
        }
        VbState::Replica => {
            let source = Source {
                node: kv[usize::from(row[0])].to_string(),
                username: login.0.clone(),
                password: login.1.clone().into(),
                mode: Mode::Replicate,
            };
            sources.entry(bucket.name().to_owned()).or_default().insert(vb, source);
        }
        _ => {}
    });
    for (name, sources) in sources {
        let Some(bucket) = node.bucket(&name) else { continue };
        if let Err(error) = node.replication().want(&bucket, &sources) {
            tracing::error!(node = at + 1, bucket = name, %error, "the replicas do not follow");
        }
    }
}

/// The nodes that shall have a vBucket. Those that failed count as missing, so that fewer than a majority never
/// acknowledge; a bucket without copies needs nobody but the active node.
fn topology_of(row: &[u16], replicas: u8, kv: &[SocketAddr]) -> Option<Topology> {
    let copies = (1 + usize::from(replicas)).min(kv.len());
    let name = |node: Option<&u16>| node.map(|node| kv[usize::from(*node)].to_string().into_boxed_str());
    let members = (0..copies).map(|at| name(row.get(at))).collect();
    let chain = Chain::new(members).ok()?;
    Some(Topology::new(chain, None))
}

fn each_role(
    node: &Node,
    at: u16,
    plan: &Plan,
    mut each: impl FnMut(&engine::Bucket, VbId, VbState, &[u16]),
) {
    for (name, Placement { rows, .. }) in &plan.buckets {
        let Some(bucket) = node.bucket(name) else { continue };
        for (vb, row) in rows.iter().enumerate() {
            each(&bucket, VbId(vb as u16), Plan::role(row, at), row);
        }
    }
}
