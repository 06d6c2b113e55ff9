//! What a fault does to one node, and for how long.

use base::env::Clock as _;
use base::env::sim::{Call, Effect, Fault as DiskFault, On, SplitMix64};
use base::{DocKey, VbId};
use engine::CompactRequest;

use crate::jobs::Fault;
use crate::node::Node;
use crate::ops::Key;

impl Node {
    /// The node stands still, or its disk or clock is in trouble; for how long, in microseconds. `None` if that is no such
    /// fault.
    pub fn suffer(&mut self, fault: Fault, now_us: u64, rng: &mut SplitMix64) -> Option<u64> {
        match fault {
            Fault::Freeze => {
                let length = rng.between(50_000, 2_500_000);
                self.frozen_until_us = now_us + length;
                Some(length)
            }
            Fault::SlowDisk => {
                let length = rng.between(50_000, 1_500_000);
                self.slow_until_us = now_us + length;
                Some(length)
            }
            Fault::FullDisk => {
                let length = rng.between(20_000, 800_000);
                let full = DiskFault::for_ever(On::Kind(Call::Write), 1, Effect::DISK_FULL);
                self.handles.disk.plan(full);
                Some(length)
            }
            Fault::FailingSync => {
                let nth = rng.between(1, 3);
                let failing = DiskFault::once(On::Kind(Call::Sync), nth, Effect::IO_ERROR);
                self.handles.disk.plan(failing);
                Some(50_000)
            }
            Fault::Clock => {
                change_clock(self, rng);
                Some(100_000)
            }
            _ => None,
        }
    }

    /// A connection to a node that it follows breaks, for how long; `None` if there is none to break.
    pub fn lose_a_connection(&mut self, now_us: u64, rng: &mut SplitMix64) -> Option<u64> {
        let sources = self.links.sources();
        if sources.is_empty() {
            return None;
        }
        let source = sources[rng.below(sources.len() as u64) as usize];
        // Some stay away for so long that their copies are far behind.
        let length = if rng.chance(1, 4) { 1_500_000 } else { 100_000 };
        let length = rng.between(1_000, length);
        self.links.break_with(source, now_us + length).then_some(length)
    }

    /// Something that a bucket's own background work, or an administrator, does to it; whether values were evicted.
    pub fn do_chore(&self, keys: &[Key], rng: &mut SplitMix64) -> bool {
        let Some(bucket) = &self.bucket else { return false };
        let vb = VbId(rng.below(bucket.vbuckets().into()) as u16);
        match rng.below(5) {
            0 | 1 => {
                let purge_before_s = rng.chance(1, 2).then(|| bucket.now().unix_s());
                // Nothing to do if the vBucket is not there.
                let _ =
                    bucket.compaction().compact(vb, CompactRequest { purge_before_s, purge_through: None });
                false
            }
            2 => {
                bucket.streams().drop_stream_cursors(vb);
                false
            }
            3 => {
                // Refused for what is not there.
                let _ = bucket.roles().create_checkpoint(vb);
                false
            }
            _ => {
                let evict = |key: &Key| {
                    bucket.eviction().evict_value(VbId(key.vb), DocKey::new(&key.name)) == Ok(true)
                };
                keys.iter().filter(|key| evict(key)).count() > 0
            }
        }
    }
}

fn change_clock(node: &mut Node, rng: &mut SplitMix64) {
    // A lease allows for a quarter.
    let by = if rng.chance(1, 3) { 150 } else { 50 };
    node.rate = rng.between(1_000 - by, 1_000 + by);
    if rng.chance(1, 3) {
        let by_ns = rng.below(1_500_000_000);
        let unix_ns = node.handles.clock.unix_ns();
        let back = rng.chance(1, 2);
        let to_ns = if back { unix_ns - by_ns } else { unix_ns + by_ns };
        node.handles.clock.set_unix_ns(to_ns);
    }
}
