//! One connection of a link: between its socket, the thread that rolls back, and the state machine that follows.

use std::time::Duration;

use ::node::connection_memory::Held;
use ::node::replication::{Following, Link, LinkError, Rollbacks, RolledBack, Stepped};
use dcp::Features;

use super::wire::Wire;

/// A source that takes nothing of what we say is not read any more beyond this.
const MOST_UNSENT_BYTES: usize = 1 << 20;

/// The connection.
pub(super) struct Drive<'a> {
    link: &'a Link,
    wire: Wire,
    rollbacks: &'a mut Rollbacks,
    following: Following<'a>,
    charge: Held,
}

/// What woke it.
enum Woken {
    /// Bytes, something that changed, or the time.
    Up,
    /// Something was rolled back.
    RolledBack(RolledBack),
}

impl<'a> Drive<'a> {
    pub(super) fn new(
        link: &'a Link,
        mut wire: Wire,
        features: Features,
        rollbacks: &'a mut Rollbacks,
    ) -> Drive<'a> {
        // What was rolled back for the connection before is not news for this one.
        while rollbacks.try_next().is_some() {}
        let following = Following::begin(link, features, &mut wire.out);
        Drive { link, wire, rollbacks, following, charge: link.charge() }
    }

    /// Follows until the link is closed, or the connection breaks.
    pub(super) async fn run(mut self) -> Result<(), LinkError> {
        let mut woken = Woken::Up;
        while let Some(stepped) = self.step(woken)? {
            self.link.thawed().await;
            self.wire.send()?;
            self.charge.set(self.wire.held_bytes());
            // The other links of this thread have their turns, also if this one's socket always has something to read.
            tokio::task::yield_now().await;
            woken = if stepped.has_more {
                self.rollbacks.try_next().map_or(Woken::Up, Woken::RolledBack)
            } else {
                self.wait(stepped.wait).await?
            };
        }
        Ok(())
    }

    /// Works on what there is for one turn; nothing if the link is closed.
    fn step(&mut self, woken: Woken) -> Result<Option<Stepped>, LinkError> {
        let rolled_back = match woken {
            Woken::Up => None,
            Woken::RolledBack(outcome) => Some(outcome),
        };
        let (received, out) = self.wire.parts();
        let Some(mut stepped) = self.following.step(rolled_back, received, out)? else { return Ok(None) };
        self.wire.consume(stepped.consumed);
        for rollback in stepped.rollbacks.drain(..) {
            self.rollbacks.order(rollback).map_err(LinkError::Thread)?;
        }
        Ok(Some(stepped))
    }

    async fn wait(&mut self, wait: Duration) -> Result<Woken, LinkError> {
        let room = self.following.is_full().then(|| self.link.bucket().replicas().replica_room());
        let has_room = async {
            match room {
                Some(Some(room)) => drop(room.await),
                // There is room by now.
                Some(None) => {}
                None => std::future::pending().await,
            }
        };
        let reads = self.wire.unsent_bytes() < MOST_UNSENT_BYTES;
        tokio::select! {
            turned = self.wire.turn(reads) => turned.map(|()| Woken::Up),
            outcome = self.rollbacks.next() => Ok(Woken::RolledBack(outcome)),
            () = self.link.changed() => Ok(Woken::Up),
            () = has_room => Ok(Woken::Up),
            () = tokio::time::sleep(wait) => Ok(Woken::Up),
        }
    }
}
