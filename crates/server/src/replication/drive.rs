//! One connection of a link, from login to its end: between socket and consumer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::VbId;
use dcp::{Consumer, ConsumerConfig, Features, Mode};

use super::link::{Inner, Link, LinkState};
use super::login::LinkError;
use super::rollback::{Rollbacks, RolledBack};
use super::wire::Wire;

/// Bytes that may be on their way to this node, on one link.
const BUFFER_BYTES: u32 = 10 << 20;
/// Between two signs of life of the source; after twice as much it is taken for dead.
const NOOP_INTERVAL_S: u32 = 2;
/// A source that takes nothing of what we say is not read any more beyond this.
const MOST_UNSENT_BYTES: usize = 1 << 20;
/// vBuckets that are taken over at once: each waits for the bytes of those before it while nobody can write to it.
const MOST_TAKEN_OVER_AT_ONCE: usize = 16;
/// When to look again whether there is room, if nobody tells.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(100);

/// The connection.
pub(super) struct Drive<'a> {
    link: &'a Link,
    wire: Wire,
    rollbacks: &'a mut Rollbacks,
    /// What the consumer was told to follow.
    followed: BTreeMap<VbId, Mode>,
    /// The declaration that this is by.
    declared: u64,
    /// Whether some wait for others to be taken over.
    has_line: bool,
    is_full: bool,
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
        let config = ConsumerConfig {
            name: link.connection_name(),
            consumer_name: Some(link.own_name.clone()),
            buffer_bytes: BUFFER_BYTES,
            noop_interval_s: NOOP_INTERVAL_S,
            features,
        };
        let mut consumer = Consumer::new(Arc::clone(&link.bucket), config);
        let changed = Arc::clone(&link.changed);
        consumer.on_prepared(move || changed.notify_one());
        consumer.open(&mut wire.out);
        // What was rolled back for the connection before is not news for this one.
        while rollbacks.try_next().is_some() {}
        let mut inner = link.inner.lock();
        inner.consumer = Some(consumer);
        inner.state = LinkState::Connected;
        inner.connections += 1;
        drop(inner);
        Drive {
            link,
            wire,
            rollbacks,
            followed: BTreeMap::new(),
            declared: 0,
            has_line: false,
            is_full: false,
        }
    }

    /// Follows until the link is closed, or the connection breaks.
    pub(super) async fn run(mut self) -> Result<(), LinkError> {
        let mut woken = Woken::Up;
        while let Some(wait) = self.step(woken)? {
            self.link.thawed().await;
            self.wire.send()?;
            woken = self.wait(wait).await?;
        }
        Ok(())
    }

    /// Works on everything there is; for how long there is nothing more to do, or nothing if the link is closed.
    fn step(&mut self, woken: Woken) -> Result<Option<Duration>, LinkError> {
        let mut inner = self.link.inner.lock();
        let Inner { wanted, declared, taken_over, consumer, is_closed, .. } = &mut *inner;
        let Some(consumer) = consumer.as_mut().filter(|_| !*is_closed) else { return Ok(None) };
        let (received, out) = self.wire.parts();
        if let Woken::RolledBack((vb, outcome)) = woken {
            consumer.rolled_back(vb, outcome, out);
        }
        // What is not wanted any more takes no role and no change from here on: whoever said so may rely on it.
        // Nothing to look through in a turn without news: there are as many vBuckets as changes come in one.
        let is_news = std::mem::replace(&mut self.declared, *declared) != *declared;
        if is_news {
            follow(consumer, wanted, taken_over, &mut self.followed, out);
        }
        let consumed = consumer.receive(received, out)?;
        let settled = consumer.settle(out)?;
        taken_over.extend(settled.taken_over);
        if is_news || self.has_line {
            self.has_line = follow(consumer, wanted, taken_over, &mut self.followed, out);
        }
        let now = self.link.env.clock.monotonic();
        let next = consumer.tick(now, out)?;
        self.wire.consume(consumed);
        self.is_full = settled.is_full;
        for rollback in settled.rollbacks {
            self.rollbacks.order(rollback).map_err(LinkError::Thread)?;
        }
        let wait = next.saturating_sub(now);
        Ok(Some(if self.is_full { wait.min(LOOK_FOR_ROOM) } else { wait }))
    }

    async fn wait(&mut self, wait: Duration) -> Result<Woken, LinkError> {
        let room = self.is_full.then(|| self.link.bucket.replica_room());
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
            () = self.link.changed.notified() => Ok(Woken::Up),
            () = has_room => Ok(Woken::Up),
            () = tokio::time::sleep(wait) => Ok(Woken::Up),
        }
    }
}

/// Has the consumer follow what is wanted; what was taken over is not followed again. Whether some have to wait
/// for others.
fn follow(
    consumer: &mut Consumer,
    wanted: &BTreeMap<VbId, Mode>,
    taken_over: &BTreeMap<VbId, Option<Duration>>,
    followed: &mut BTreeMap<VbId, Mode>,
    out: &mut Vec<u8>,
) -> bool {
    followed.retain(|vb, mode| {
        let stays = wanted.get(vb) == Some(mode);
        if !stays {
            consumer.drop(*vb, out);
        }
        stays
    });
    let mut taking_over = consumer.taking_over();
    let mut has_line = false;
    for (vb, mode) in wanted {
        if followed.get(vb) == Some(mode) || taken_over.contains_key(vb) {
            continue;
        }
        if *mode == Mode::TakeOver {
            if taking_over >= MOST_TAKEN_OVER_AT_ONCE {
                has_line = true;
                continue;
            }
            taking_over += 1;
        }
        consumer.want(*vb, *mode, out);
        followed.insert(*vb, *mode);
    }
    has_line
}
