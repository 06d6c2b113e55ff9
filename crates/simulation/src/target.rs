//! A node's copies and links, as the cluster's order of becoming drives them: what `server` has in its `apply`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ::node::replication::{Password, Replication, Source, Sources};
use base::{Seqno, VbId, VbState};
use cluster::state::Chain as Row;
use cluster::{ApplyTarget, Following, NodeId, Refusals, State, View};
use dcp::Mode;
use engine::Bucket;
use vbucket::{Chain, Topology};

use crate::connections::{CLIENT, PASSWORD};
use crate::node::BUCKET;

/// Why something was not done; it is tried again.
#[derive(Debug)]
pub struct NotDone;

/// The target of one look.
pub struct SimSeat<'a> {
    /// Which node.
    pub at: usize,
    /// The document, and what nodes report.
    pub view: &'a View,
    /// The node's bucket.
    pub bucket: &'a Arc<Bucket>,
    /// What follows others for it.
    pub replication: &'a Replication,
}

/// The node with this identity, by its place: identities are numbers from 1.
pub fn place_of(state: &State, id: NodeId) -> Option<usize> {
    let uuid = &state.nodes.get(&id)?.uuid;
    usize::from_str_radix(uuid, 16).ok()?.checked_sub(1)
}

/// Whether a node is alive, has reported, and does not say that its copy of a vBucket cannot be read.
pub fn is_live(view: &View, vb: u16, id: NodeId) -> bool {
    view.report(id).is_some() && !view.is_unusable(id, BUCKET, vb)
}

/// Where a node is reached: its identity.
pub fn host_of(at: usize) -> String {
    format!("{:032x}", at + 1)
}

/// What a node calls itself to those that it follows.
pub fn name_of(at: usize) -> String {
    format!("{}:1", host_of(at))
}

/// The place of the node that calls itself so.
pub fn place_of_name(name: &str) -> Option<usize> {
    let (host, _) = name.split_once(':')?;
    usize::from_str_radix(host, 16).ok()?.checked_sub(1)
}

impl ApplyTarget for SimSeat<'_> {
    type Topology = Topology;
    type Error = NotDone;

    fn role(&self, vb: u16) -> Option<VbState> {
        let (role, _, _, high) = self.bucket.streams().stream_state(VbId(vb))?;
        (role != VbState::Dead || high > Seqno(0)).then_some(role)
    }

    fn is_unreadable(&self, vb: u16) -> bool {
        self.bucket.is_unreadable(VbId(vb))
    }

    fn is_damaged(&self, vb: u16) -> bool {
        self.bucket.is_damaged(VbId(vb))
    }

    fn is_live(&self, vb: u16, id: NodeId) -> bool {
        is_live(self.view, vb, id)
    }

    fn set_aside(&self, vb: u16) -> Result<(), NotDone> {
        let place = PathBuf::from(format!("/data/quarantine/{vb}-{}", self.view.state.revision));
        // It is tried again, as a server does, and keeps nothing else from being applied.
        let _ = self.bucket.roles().set_aside(VbId(vb), &place);
        Ok(())
    }

    fn topology(&self, _: u16, chains: &[Row]) -> Result<Topology, NotDone> {
        let name = |place: &Option<NodeId>| {
            let at = place.and_then(|id| place_of(&self.view.state, id));
            at.map(|at| name_of(at).into_boxed_str())
        };
        let chain = |row: &Row| Chain::new(row.iter().map(name).collect()).ok();
        let chains = chains.iter().map(chain).collect::<Option<Vec<_>>>().ok_or(NotDone)?;
        Topology::of(chains).map_err(|_| NotDone)
    }

    fn set_role(&self, vb: u16, role: VbState) -> Result<(), NotDone> {
        self.bucket.roles().set_vbucket_state(VbId(vb), role, None).map_err(|_| NotDone)
    }

    fn activate(&self, vb: u16, topology: Topology) -> Result<(), NotDone> {
        self.bucket.roles().set_vbucket_state(VbId(vb), VbState::Active, Some(topology)).map_err(|_| NotDone)
    }

    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<NotDone>> {
        let source = |(vb, of): (&u16, &Following)| {
            let mode = if of.takes_over { Mode::TakeOver } else { Mode::Replicate };
            let node = name_of(place_of(&self.view.state, of.source)?);
            let (username, password) = (CLIENT.to_owned(), Password::from(PASSWORD.to_owned()));
            Some((VbId(*vb), Source { node, username, password, mode }))
        };
        let sources: Sources = following.iter().filter_map(source).collect();
        let refused = self.replication.want_each(self.bucket, &sources).into_iter();
        Refusals::of(refused.map(|_| NotDone))
    }

    fn remove(&self, vb: u16) -> Result<(), NotDone> {
        match self.bucket.roles().delete_vbucket(VbId(vb)) {
            Ok(Ok(())) => Ok(()),
            _ => Err(NotDone),
        }
    }
}
