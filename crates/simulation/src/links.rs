//! What a node follows, by source: what is wanted, and the connection that brings it about. What `node::replication`
//! declares and drives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::env::sim::SplitMix64;
use base::{Seqno, VbId};
use dcp::{Consumer, Mode, RollBack, Settled, Stage};
use engine::Bucket;

use crate::link::Connection;

/// Where vBuckets' changes come from: the place of a node, and how.
pub type Sources = BTreeMap<VbId, (usize, Mode)>;

/// vBuckets that are taken over at once on one link.
const MOST_TAKEN_OVER_AT_ONCE: usize = 2;

/// One source.
#[derive(Default)]
pub struct Link {
    /// What is wanted of it.
    pub wanted: BTreeMap<VbId, Mode>,
    /// What was taken over.
    taken_over: Vec<VbId>,
    /// What the consumer was told to follow.
    followed: BTreeMap<VbId, Mode>,
    /// While there is one.
    pub connection: Option<Connection>,
    /// When it is connected again, in microseconds of the world.
    pub again_us: u64,
    /// Ordered, and not done yet: a thread does them, whatever becomes of the connection.
    rollbacks: Vec<RollBack>,
    done: Vec<(VbId, Result<Seqno, &'static str>)>,
}

/// All sources of a node, by their places.
#[derive(Default)]
pub struct Links(RefCell<BTreeMap<usize, Link>>);

impl Links {
    /// Those of `sources` that are not followed in this way already.
    pub fn fresh(&self, sources: &Sources) -> BTreeMap<VbId, Mode> {
        let links = self.0.borrow();
        let is_known = |vb: &VbId, (at, mode): &(usize, Mode)| {
            links.get(at).is_some_and(|link| link.wanted.get(vb) == Some(mode))
        };
        let fresh = sources.iter().filter(|(vb, source)| !is_known(vb, source));
        fresh.map(|(vb, (_, mode))| (*vb, *mode)).collect()
    }

    /// From now on these vBuckets follow these sources, and no others follow anybody.
    pub fn want(&self, sources: &Sources) {
        let mut links = self.0.borrow_mut();
        links.retain(|at, _| sources.values().any(|(source, _)| source == at));
        for (at, _) in sources.values() {
            links.entry(*at).or_default();
        }
        for (at, link) in links.iter_mut() {
            let of = sources.iter().filter(|(_, (source, _))| source == at);
            let wanted: BTreeMap<VbId, Mode> = of.map(|(vb, (_, mode))| (*vb, *mode)).collect();
            let before = &link.wanted;
            link.taken_over.retain(|vb| wanted.contains_key(vb) && wanted.get(vb) == before.get(vb));
            link.wanted = wanted;
        }
    }

    /// The sources.
    pub fn sources(&self) -> Vec<usize> {
        self.0.borrow().keys().copied().collect()
    }

    /// Looks at one.
    pub fn with<T>(&self, source: usize, look: impl FnOnce(&mut Link) -> T) -> Option<T> {
        self.0.borrow_mut().get_mut(&source).map(look)
    }

    /// The connections with a node break.
    pub fn break_with(&self, source: usize, again_us: u64) -> bool {
        let broken = self.with(source, |link| link.disconnect(again_us));
        broken.unwrap_or(false)
    }

    /// How far each vBucket is, for whoever looks for a reason.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (source, link) in self.0.borrow().iter() {
            let progress = link.connection.iter().flat_map(|connection| connection.consumer.progress());
            let progress: Vec<_> = progress.map(|vb| (vb.vb, vb.mode, vb.stage, vb.trouble)).collect();
            text += &format!(" from {source}: wanted {:?} {progress:?}", link.wanted);
        }
        text
    }

    /// Whether everything that is wanted streams.
    pub fn are_streaming(&self) -> bool {
        self.0.borrow().values().all(Link::is_streaming)
    }
}

impl Link {
    /// The connection breaks; whether there was one.
    pub fn disconnect(&mut self, again_us: u64) -> bool {
        self.again_us = again_us;
        let Some(connection) = self.connection.take() else { return false };
        // Also what was taken over with the last bytes before it broke.
        let taken_over = connection.consumer.progress().filter(|progress| progress.stage == Stage::TakenOver);
        self.taken_over.extend(taken_over.map(|progress| progress.vb));
        true
    }

    /// A new connection begins.
    pub fn connect(&mut self, connection: Connection) {
        self.followed.clear();
        // What was rolled back for the connection before is not news for this one.
        self.done.clear();
        self.connection = Some(connection);
    }

    fn is_streaming(&self) -> bool {
        let Some(connection) = &self.connection else { return self.wanted.is_empty() };
        self.rollbacks.is_empty()
            && connection.consumer.progress().filter(|progress| progress.stage == Stage::Streaming).count()
                == self.wanted.len()
    }

    /// The consumer's end works on what arrived, in the order in which a server's link does; what was taken over.
    /// An error ends the connection.
    pub fn drive(&mut self, rng: &mut SplitMix64) -> Result<Vec<VbId>, dcp::Disconnect> {
        let Link { wanted, taken_over, followed, connection, rollbacks, done, .. } = self;
        let Some(connection) = connection.as_mut() else { return Ok(Vec::new()) };
        let (consumer, received, out) = connection.consumers_end();
        for (vb, outcome) in done.drain(..) {
            consumer.rolled_back(vb, outcome, out);
        }
        follow(consumer, wanted, taken_over, followed, out);
        let consumed = consumer.receive(received, out)?;
        received.drain(..consumed);
        // More may be read before what was read is applied.
        let settled = if rng.chance(3, 4) { consumer.settle(out)? } else { Settled::default() };
        taken_over.extend(settled.taken_over.iter().map(|(vb, _)| *vb));
        follow(consumer, wanted, taken_over, followed, out);
        let now = connection.now();
        let (consumer, _, out) = connection.consumers_end();
        consumer.tick(now, out)?;
        connection.is_full = settled.is_full;
        rollbacks.extend(settled.rollbacks);
        Ok(settled.taken_over.into_iter().map(|(vb, _)| vb).collect())
    }

    /// What the thread that rolls back does next; which vBucket it did that to.
    pub fn roll_back(&mut self, bucket: &Bucket) -> Option<VbId> {
        if self.rollbacks.is_empty() {
            return None;
        }
        let RollBack { vb, to } = self.rollbacks.remove(0);
        let outcome = match bucket.roles().rollback(vb, to) {
            Ok(Ok(seqno)) => Ok(seqno),
            Ok(Err(_)) => Err("the disk"),
            Err(_) => Err("the role"),
        };
        self.done.push((vb, outcome));
        Some(vb)
    }
}

/// Has the consumer follow what is wanted; what was taken over is not followed again.
fn follow(
    consumer: &mut Consumer,
    wanted: &BTreeMap<VbId, Mode>,
    taken_over: &[VbId],
    followed: &mut BTreeMap<VbId, Mode>,
    out: &mut Vec<u8>,
) {
    followed.retain(|vb, mode| {
        let stays = wanted.get(vb) == Some(mode);
        if !stays {
            consumer.drop(*vb, out);
        }
        stays
    });
    let mut taking_over = consumer.taking_over();
    for (vb, mode) in wanted {
        if followed.get(vb) == Some(mode) || taken_over.contains(vb) {
            continue;
        }
        if *mode == Mode::TakeOver {
            if taking_over >= MOST_TAKEN_OVER_AT_ONCE {
                continue;
            }
            taking_over += 1;
        }
        consumer.want(*vb, *mode, out);
        followed.insert(*vb, *mode);
    }
}

/// The two ends of a connection that is about to be made.
pub struct Ends<'a> {
    /// Who sends changes.
    pub source: (usize, &'a Arc<Bucket>),
    /// Who takes them.
    pub target: (usize, &'a Arc<Bucket>),
}
