//! Which node is active for which vBucket, for all threads of a run; looked at again when a node refuses.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use base::VbId;
use base::env::Env;
use std::sync::{Mutex, PoisonError};

use super::returns::Returns;
use crate::client::{Client, Map, Target};

/// How long a node is waited for that is asked for a newer map.
const ATTEMPT: Duration = Duration::from_millis(500);
/// No node is active.
const NO_NODE: u16 = u16::MAX;

/// Which node is active for which vBucket. The nodes are those of the run's beginning.
#[derive(Debug)]
pub struct Routes {
    nodes: Vec<String>,
    active: Vec<AtomicU16>,
    version: Mutex<(i64, i64)>,
    is_stale: AtomicBool,
    /// Connections that were lost.
    pub returns: Returns,
}

impl Routes {
    /// As a map says; `named` is where the node was reached that told it.
    pub fn new(map: &Map, named: &str, vbuckets: u16) -> Routes {
        let active = (0..vbuckets).map(|_| AtomicU16::new(NO_NODE)).collect();
        let (nodes, is_stale) = (map.reachable(named), AtomicBool::new(false));
        let routes =
            Routes { nodes, active, version: Mutex::new(map.version), is_stale, returns: Returns::default() };
        routes.follow(map, named);
        routes
    }

    /// The nodes, as they are numbered.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The number of the active node of a vBucket, if there is one.
    #[inline]
    pub fn node(&self, vb: VbId) -> Option<usize> {
        let node = self.active.get(usize::from(vb.0))?.load(Ordering::Relaxed);
        (node != NO_NODE).then_some(usize::from(node))
    }

    /// A node refused, or is gone.
    pub fn doubt(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Asks for a newer map if there is doubt.
    pub fn renew(&self, env: &Env, target: &Target) {
        if !self.is_stale.load(Ordering::Relaxed) {
            return;
        }
        let ask = |addr: &String| Client::open_at(env, target, addr, ATTEMPT, &[]).ok()?.map().ok()?;
        let Some(map) = self.nodes.iter().find_map(ask) else { return };
        let mut version = self.version.lock().unwrap_or_else(PoisonError::into_inner);
        if map.version > *version {
            *version = map.version;
            self.is_stale.store(false, Ordering::Relaxed);
            self.follow(&map, &target.addr);
        }
    }

    fn follow(&self, map: &Map, named: &str) {
        for (vb, active) in (0..).map(VbId).zip(&self.active) {
            let addr = map.active(vb, named);
            let node = addr.and_then(|addr| self.nodes.iter().position(|node| node == addr));
            active.store(node.map_or(NO_NODE, |node| node as u16), Ordering::Relaxed);
        }
    }
}
