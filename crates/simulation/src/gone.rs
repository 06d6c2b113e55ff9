//! A node that does not come back: once all is well one ends, is failed over, and others serve what it served while it
//! is away.

use cluster::command::{self, Command};
use cluster::{NodeId, Status};

use crate::jobs::Fault;
use crate::store::TTL;
use crate::world::World;

/// How long that may take once the lease is over, in microseconds: a leader is elected, and choices are made.
const SOON_US: u64 = 3_000_000;
/// So long before the end of a run nobody goes any more: who comes back has to catch up.
const LEAST_LEFT_US: u64 = 7_000_000;

/// How far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gone {
    /// Nobody has gone yet.
    #[default]
    Nobody,
    /// This node, at this time, in microseconds.
    Away(usize, u64),
    /// Others served everything, or nobody can go.
    Over,
}

impl World {
    /// All is well: one of the nodes goes, if everything is safe without it. Whether one does.
    pub fn let_one_go(&mut self) -> bool {
        let is_late = self.now_us() + LEAST_LEFT_US > self.rules.end_us;
        if self.gone == Gone::Over || is_late {
            return false;
        }
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let Some(view) = self.nodes[at].member.view.clone() else { return false };
        if let Err(refusal) = command::apply(&view, &fail_over(at)) {
            self.show(|| format!("node {at} cannot go: {refusal:?}"));
            self.gone = Gone::Over;
            return false;
        }
        self.crash(at, Fault::Crash);
        self.gone = Gone::Away(at, self.now_us());
        true
    }

    /// Whether a node is away. Others must serve what it served in time.
    pub fn is_one_gone(&mut self) -> bool {
        let Gone::Away(at, since_us) = self.gone else { return false };
        let (now_us, node) = (self.now_us(), NodeId(at as u32 + 1));
        let other = (at + 1) % self.nodes.len();
        let is_failed_over = self.newest.nodes.get(&node).is_none_or(|node| node.status != Status::Active);
        if !is_failed_over {
            self.ask_for(other, &fail_over(at));
        }
        let is_served = |vb: u16| self.nodes.iter().any(|node| node.serves(vb, now_us));
        let unserved = (0..self.rules.vbuckets).find(|vb| !is_served(*vb));
        if is_failed_over && unserved.is_none() {
            self.gone = Gone::Over;
            self.tally.gone += 1;
            return false;
        }
        if now_us - since_us > TTL.as_micros() as u64 + SOON_US {
            let what = unserved
                .map_or("it is not failed over".to_owned(), |vb| format!("nobody serves vBucket {vb}"));
            self.violation = Some(format!("node {at} is gone, and {what}: {}", self.why_not_well()));
        }
        true
    }
}

fn fail_over(at: usize) -> Command {
    Command::FailOver { node: NodeId(at as u32 + 1), force: false }
}
