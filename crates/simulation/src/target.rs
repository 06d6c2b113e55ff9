//! A node's copies and links, as the cluster's order of becoming drives them: what `server` has in its `apply`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Seqno, VbId, VbState};
use cluster::state::Chain as Row;
use cluster::{ApplyTarget, Following, NodeId, Refusals, State, View};
use dcp::Mode;
use engine::Bucket;
use vbucket::{Chain, Topology};

use crate::links::{Links, Sources};
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
    /// What it follows.
    pub links: &'a Links,
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

/// What a node calls itself to those that it follows.
pub fn name_of(at: usize) -> String {
    format!("{:032x}:1", at + 1)
}

impl SimSeat<'_> {
    /// Gives a vBucket the role in which it can follow, as a server's links do.
    fn take_role(&self, vb: VbId, mode: Mode) -> Result<(), NotDone> {
        let high = self.bucket.streams().stream_state(vb).map_or(Seqno(0), |(_, _, _, high)| high);
        let is = self.bucket.state_of(vb);
        if mode == Mode::Replicate && is == Some(VbState::Active) && high > Seqno(0) {
            return Err(NotDone);
        }
        let role = match mode {
            Mode::Replicate => VbState::Replica,
            Mode::TakeOver => VbState::Pending,
        };
        if is == Some(role) { Ok(()) } else { self.set_role(vb.0, role) }
    }
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
            Some((VbId(*vb), (place_of(&self.view.state, of.source)?, mode)))
        };
        let mut sources: Sources = following.iter().filter_map(source).collect();
        let mut refused = Vec::new();
        for (vb, mode) in self.links.fresh(&sources) {
            if let Err(refusal) = self.take_role(vb, mode) {
                sources.remove(&vb);
                refused.push(refusal);
            }
        }
        self.links.want(&sources);
        Refusals::of(refused)
    }

    fn remove(&self, vb: u16) -> Result<(), NotDone> {
        match self.bucket.roles().delete_vbucket(VbId(vb)) {
            Ok(Ok(())) => Ok(()),
            _ => Err(NotDone),
        }
    }
}
