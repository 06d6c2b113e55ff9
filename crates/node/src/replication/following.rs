//! One connection of a link, from login to its end, as a state machine: bytes in, bytes out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::VbId;
use base::planted::{self, Bug};
use dcp::{Consumer, ConsumerConfig, Features, Mode, RollBack, Settled};
use kvstore::StorageBackend;

use super::link::{Inner, Link, LinkState};
use super::login::LinkError;
use super::rollback::RolledBack;

/// When to look again whether there is room, if nobody tells.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(100);

/// The connection.
pub struct Following<'a> {
    link: &'a Link,
    /// What the consumer was told to follow.
    followed: BTreeMap<VbId, Mode>,
    /// The declaration that this is by.
    declared: u64,
    /// Whether some wait for others to be taken over.
    has_line: bool,
    is_full: bool,
}

/// What came of a step.
#[derive(Debug)]
pub struct Stepped {
    /// Bytes from the front of what was received that are done with.
    pub consumed: usize,
    /// What has to be rolled back; the outcomes are given to later steps.
    pub rollbacks: Vec<RollBack>,
    /// What is to be filled with files; the outcomes are given to later steps, too.
    pub fills: Vec<VbId>,
    /// Whether there is more to do at once: the turn was over before what was received.
    pub has_more: bool,
    /// For how long there is nothing to do, if nothing comes.
    pub wait: Duration,
}

impl<'a> Following<'a> {
    /// Begins to follow on a connection that is logged in; what is said first goes to `out`.
    pub fn begin(link: &'a Link, features: Features, out: &mut Vec<u8>) -> Following<'a> {
        let config = ConsumerConfig {
            name: link.connection_name(),
            consumer_name: Some(link.own_name.clone()),
            buffer_bytes: link.limits.buffer_bytes,
            noop_interval_s: link.limits.noop_interval_s,
            features,
            takes_files: true,
            change_streams: link.bucket.backend() == StorageBackend::LogStructured,
        };
        let mut consumer = Consumer::new(Arc::clone(&link.bucket), config);
        let changed = Arc::clone(&link.changed);
        consumer.on_prepared(move || changed.notify_one());
        consumer.open(out);
        let mut inner = link.inner.lock();
        inner.consumer = Some(consumer);
        inner.state = LinkState::Connected;
        inner.outage.connected(link.env.clock.monotonic());
        inner.connections += 1;
        let forgets = inner.connections > 1 && planted::is(Bug::LinkForgetsVbucket);
        let followed =
            inner.wanted.iter().take(usize::from(forgets)).map(|(vb, mode)| (*vb, *mode)).collect();
        drop(inner);
        Following { link, followed, declared: 0, has_line: false, is_full: false }
    }

    /// Whether it waits for room in the bucket: see [`engine::Replicas::replica_room`].
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Works on what there is, also on what was rolled back, as far as one turn allows ([`dcp::TURN_MESSAGES`],
    /// [`dcp::TURN_BYTES`]); nothing if the link is closed.
    ///
    /// # Errors
    ///
    /// Why the connection cannot be gone on with.
    pub fn step(
        &mut self,
        rolled_back: Option<RolledBack>,
        received: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Stepped>, LinkError> {
        let mut inner = self.link.inner.lock();
        let Inner { wanted, again, declared, taken_over, consumer, is_closed, .. } = &mut *inner;
        let Some(consumer) = consumer.as_mut().filter(|_| !*is_closed) else { return Ok(None) };
        if let Some((vb, outcome)) = rolled_back {
            consumer.rolled_back(vb, outcome, out);
        }
        // What is not wanted any more takes no role and no change from here on: whoever said so may rely on it.
        // Nothing to look through in a turn without news: there are as many vBuckets as changes come in one.
        let most = self.link.limits.taken_over_at_once;
        let is_news = std::mem::replace(&mut self.declared, *declared) != *declared;
        if is_news {
            for vb in std::mem::take(again) {
                if self.followed.remove(&vb).is_some() {
                    consumer.drop(vb, out);
                }
            }
            follow(consumer, wanted, taken_over, &mut self.followed, most, out);
        }
        let consumed = consumer.receive(received, out)?;
        let settled = consumer.settle(out)?;
        taken_over.extend(settled.taken_over);
        if is_news || self.has_line {
            self.has_line = follow(consumer, wanted, taken_over, &mut self.followed, most, out);
        }
        let now = self.link.env.clock.monotonic();
        let wait = consumer.tick(now, out)?.saturating_sub(now);
        self.is_full = settled.is_full;
        let wait = if self.is_full { wait.min(LOOK_FOR_ROOM) } else { wait };
        let Settled { rollbacks, fills, has_more, .. } = settled;
        Ok(Some(Stepped { consumed, rollbacks, fills, has_more, wait }))
    }
}

/// Has the consumer follow what is wanted; what was taken over is not followed again. Whether some have to wait
/// for others.
fn follow(
    consumer: &mut Consumer,
    wanted: &BTreeMap<VbId, Mode>,
    taken_over: &BTreeMap<VbId, Option<Duration>>,
    followed: &mut BTreeMap<VbId, Mode>,
    most_taken_over: usize,
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
            if taking_over >= most_taken_over && !planted::is(Bug::TakeoverLimitIgnored) {
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

#[cfg(test)]
pub(crate) mod tests {
    use base::VbState;
    use base::env::SimHandles;
    use engine::{Bucket, BucketConfig};

    use super::*;

    #[test]
    pub(crate) fn a_link_takes_over_no_more_vbuckets_at_once_than_its_limit() {
        let config = BucketConfig { vbuckets: 8, ..BucketConfig::new("b", "/data".into()) };
        let env = SimHandles::new(1).env();
        let bucket = Bucket::open(config, env, Arc::new(kvstore::Memory::default()));
        let bucket = Arc::new(bucket.expect("an empty bucket opens"));
        let mut wanted = BTreeMap::new();
        for vb in (0..5).map(VbId) {
            bucket.roles().set_vbucket_state(vb, VbState::Pending, None).expect("there is one");
            wanted.insert(vb, Mode::TakeOver);
        }
        let config = ConsumerConfig {
            name: "link".to_owned(),
            consumer_name: None,
            buffer_bytes: 1 << 20,
            noop_interval_s: 1,
            features: Features { collections: true, snappy: true, json: true },
            takes_files: false,
            change_streams: false,
        };
        let mut consumer = Consumer::new(bucket, config);
        let (mut followed, mut out) = (BTreeMap::new(), Vec::new());
        let mut turn = |consumer: &mut Consumer, wanted: &_| {
            let has_line = follow(consumer, wanted, &BTreeMap::new(), &mut followed, 2, &mut out);
            (has_line, consumer.taking_over())
        };
        assert_eq!(turn(&mut consumer, &wanted), (true, 2));
        assert_eq!(turn(&mut consumer, &wanted), (true, 2));
        // One is not wanted any more: another one has its place.
        wanted.remove(&VbId(0));
        assert_eq!(turn(&mut consumer, &wanted), (true, 2));
        // What follows is not limited.
        wanted.values_mut().for_each(|mode| *mode = Mode::Replicate);
        assert_eq!(turn(&mut consumer, &wanted), (false, 0));
    }
}
