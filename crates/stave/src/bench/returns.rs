//! Connections that a load lost: they are opened again once their node answers.
//!
//! Threads under load say what they lost and take what is there again; the thread that watches them opens connections, so
//! that none of them waits for a node that does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::env::Env;

use super::connection::Connection;
use super::plan::Plan;
use crate::client::Client;

/// How long a node is waited for.
const ATTEMPT: Duration = Duration::from_millis(500);

/// The place of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchPlace {
    /// The number of its thread.
    pub thread: usize,
    /// Its own number there.
    pub at: usize,
}

/// What was lost, with the number of the node, and what is there again. Each place is in one of them at most.
#[derive(Debug, Default)]
pub struct Returns {
    lost: Mutex<Vec<(BenchPlace, usize)>>,
    back: Mutex<Vec<(BenchPlace, Connection)>>,
    back_len: AtomicUsize,
}

impl Returns {
    /// A connection to this node was lost.
    pub fn lose(&self, place: BenchPlace, node: usize) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).push((place, node));
    }

    /// Tries to open again what was lost. True if something is there again.
    pub fn open(&self, env: &Env, plan: &Plan, nodes: &[String]) -> bool {
        let lost = std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        let (mut silent, before) = (vec![false; nodes.len()], lost.len());
        let mut left = Vec::new();
        for (place, node) in lost {
            // A node that does not answer is asked once.
            let opened = if silent[node] { None } else { open(env, plan, &nodes[node]) };
            match opened {
                Some(connection) => {
                    let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
                    back.push((place, connection));
                    self.back_len.store(back.len(), Ordering::Relaxed);
                }
                None => {
                    silent[node] = true;
                    left.push((place, node));
                }
            }
        }
        let is_any_back = left.len() < before;
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).append(&mut left);
        is_any_back
    }

    /// What is there again of a thread.
    pub fn take(&self, thread: usize) -> Vec<(usize, Connection)> {
        if self.back_len.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
        let own = back.extract_if(.., |(place, _)| place.thread == thread);
        let own = own.map(|(place, connection)| (place.at, connection)).collect();
        self.back_len.store(back.len(), Ordering::Relaxed);
        own
    }
}

fn open(env: &Env, plan: &Plan, addr: &str) -> Option<Connection> {
    let client = Client::open_at(env, &plan.target, addr, ATTEMPT, &[]).ok()?;
    Connection::new(client.into_stream(), plan.protocol, plan.pipeline).ok()
}
