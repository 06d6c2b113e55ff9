//! Whether what can be served is: while nothing is wrong, and nothing is under way, each vBucket is served, and what is
//! prepared is decided soon.

use base::VbId;
use cluster::state::Step;

use crate::node::BUCKET;
use crate::world::World;

/// How long a vBucket may take until it is served, or until its first prepare is decided, while nothing hinders it.
const SOON_US: u64 = 3_000_000;

/// What a vBucket waits for: its first prepare; nothing: somebody who serves it.
type WaitsFor = Option<u64>;

/// By vBucket: what it waits for, and since when, while nothing hinders it.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<Option<(WaitsFor, u64)>>);

impl World {
    /// Looks at all vBuckets.
    pub fn check_available(&mut self) {
        let now_us = self.now_us();
        self.waits.0.resize(usize::from(self.rules.vbuckets), None);
        for vb in 0..self.rules.vbuckets {
            let waits_for = if self.is_unhindered(vb) { self.what_is_waited_for(vb) } else { None };
            let before = &mut self.waits.0[usize::from(vb)];
            let Some(waits_for) = waits_for else {
                *before = None;
                continue;
            };
            let since_us = before.filter(|(same, _)| *same == waits_for).map_or(now_us, |(_, since)| since);
            *before = Some((waits_for, since_us));
            if now_us - since_us > SOON_US {
                let what = match waits_for {
                    Some(prepared) => format!("nobody decides prepare {prepared} of vBucket {vb}"),
                    None => format!("nobody serves vBucket {vb}"),
                };
                self.violation = Some(format!("{what}, and nothing hinders it: {}", self.why_not_well()));
            }
        }
    }

    /// Whether nothing is wrong, nobody chooses or moves it, and there are enough who could have what is prepared.
    fn is_unhindered(&self, vb: u16) -> bool {
        let now_us = self.now_us();
        let is_over = now_us >= self.rules.faults_us || self.crossing.is_quiet(now_us);
        let step = self.newest.buckets.get(BUCKET).and_then(|bucket| bucket.steps.get(&vb));
        let is_led = matches!(step, None | Some(Step::Settle { .. }));
        is_over && is_led && self.nodes.iter().all(|node| node.is_awake(now_us)) && self.has_majority(vb)
    }

    /// What a vBucket waits for, if it waits for anything.
    fn what_is_waited_for(&self, vb: u16) -> Option<WaitsFor> {
        let serving = *self.chain(vb).first()?;
        let node = &self.nodes[serving];
        let Some(bucket) = node.bucket.as_ref().filter(|_| node.serves(vb, self.now_us())) else {
            return Some(None);
        };
        let first = |vb: &vbucket::VBucket| vb.first_in_flight().map(|prepared| prepared.0);
        bucket.with_vbucket(VbId(vb), first).flatten().map(Some)
    }
}
