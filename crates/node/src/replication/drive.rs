//! One connection of a link: between its bytes, what rolls back, and the state machine that follows.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use dcp::Features;

use super::fills::{Came, Fills};
use super::following::{Following, Stepped};
use super::link::Link;
use super::login::LinkError;
use super::rollback::{Rollbacks, RolledBack};
use super::wire::{Pace, Wire};
use crate::connection_memory::Held;

/// A source that takes nothing of what we say is not read any more beyond this.
const MOST_UNSENT_BYTES: usize = 1 << 20;

/// The connection.
pub struct Drive<'a, W> {
    link: &'a Link,
    wire: W,
    rollbacks: &'a mut Rollbacks,
    fills: &'a mut Fills,
    following: Following<'a>,
    charge: Held,
}

impl<'a, W: Wire> Drive<'a, W> {
    /// Begins to follow on a connection that is logged in.
    pub fn new(
        link: &'a Link,
        mut wire: W,
        features: Features,
        rollbacks: &'a mut Rollbacks,
        fills: &'a mut Fills,
    ) -> Drive<'a, W> {
        // What was rolled back for the connection before is not news for this one.
        rollbacks.forget();
        fills.forget();
        let following = Following::begin(link, features, wire.parts().1);
        Drive { link, wire, rollbacks, fills, following, charge: link.charge() }
    }

    /// Follows until the link is closed, or the connection breaks.
    ///
    /// # Errors
    ///
    /// Why the connection cannot be gone on with.
    pub async fn run(mut self, pace: &impl Pace) -> Result<(), LinkError> {
        let mut rolled_back = None;
        while let Some(stepped) = self.step(rolled_back.take())? {
            self.link.thawed().await;
            self.wire.send()?;
            self.charge.set(self.wire.held_bytes());
            // The other links of this thread have their turns, also if this one's socket always has something to read.
            pace.give_turns().await;
            rolled_back = if stepped.has_more {
                let came = self.fills.try_next();
                let refused = came.map(|came| self.came(came)).transpose()?.flatten();
                if refused.is_some() { refused } else { self.rollbacks.try_next()? }
            } else {
                self.wait(pace, stepped.wait).await?
            };
        }
        Ok(())
    }

    /// Works on what there is for one turn; nothing if the link is closed.
    fn step(&mut self, rolled_back: Option<RolledBack>) -> Result<Option<Stepped>, LinkError> {
        let (received, out) = self.wire.parts();
        let Some(mut stepped) = self.following.step(rolled_back, received, out)? else { return Ok(None) };
        self.wire.consume(stepped.consumed);
        for rollback in stepped.rollbacks.drain(..) {
            self.rollbacks.order(rollback)?;
        }
        stepped.fills.drain(..).for_each(|vb| self.fills.order(vb));
        self.fills.begin();
        Ok(Some(stepped))
    }

    /// A file came, and is put in place; or it did not, which is returned as an outcome.
    fn came(&mut self, (vb, came): Came) -> Result<Option<RolledBack>, LinkError> {
        match came {
            Ok(()) => self.rollbacks.order_fill(vb).map(|()| None),
            Err(why) => Ok(Some((vb, Err(why)))),
        }
    }

    /// Waits for something that is rolled back, which is returned; for a file, for bytes, for something that changed, for
    /// room or for the time.
    async fn wait(&mut self, pace: &impl Pace, wait: Duration) -> Result<Option<RolledBack>, LinkError> {
        match self.next_event(pace, wait).await? {
            Event::RolledBack(outcome) => Ok(Some(outcome)),
            Event::Came(came) => self.came(came),
            Event::Other => Ok(None),
        }
    }

    async fn next_event(&mut self, pace: &impl Pace, wait: Duration) -> Result<Event, LinkError> {
        let room = self.following.is_full().then(|| self.link.bucket().replicas().replica_room());
        let mut has_room = pin!(async {
            match room {
                Some(Some(room)) => drop(room.await),
                // There is room by now.
                Some(None) => {}
                None => std::future::pending().await,
            }
        });
        let reads = self.wire.unsent_bytes() < MOST_UNSENT_BYTES;
        let (wire, rollbacks, fills) = (&mut self.wire, &mut *self.rollbacks, &mut *self.fills);
        let (mut changed, mut later) = (pin!(self.link.changed()), pace.timer().after(wait));
        let (mut rolled_back, mut turned) =
            (pin!(rollbacks.next()), pin!(poll_fn(|cx| wire.poll_turn(reads, cx))));
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = rolled_back.as_mut().poll(cx) {
                return Poll::Ready(outcome.map(Event::RolledBack));
            }
            if let Poll::Ready(came) = fills.poll_next(cx) {
                return Poll::Ready(Ok(Event::Came(came)));
            }
            if let Poll::Ready(turned) = turned.as_mut().poll(cx) {
                return Poll::Ready(turned.map(|()| Event::Other));
            }
            let others: [Pin<&mut dyn Future<Output = ()>>; 3] =
                [changed.as_mut(), has_room.as_mut(), later.as_mut()];
            let is_one_ready = others.into_iter().any(|other| other.poll(cx).is_ready());
            if is_one_ready { Poll::Ready(Ok(Event::Other)) } else { Poll::Pending }
        })
        .await
    }
}

/// What a connection waited for.
enum Event {
    RolledBack(RolledBack),
    /// A file, or that there is none.
    Came(Came),
    Other,
}
