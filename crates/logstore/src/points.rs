//! Giving up commits that a rollback could go back to, once what they keep is more than may be wasted.
//!
//! A commit gives up older ones, so a vBucket that is written has a limit. This is for those that are not: what their last
//! commits replaced would stay for ever.

use crate::failure::Failure;
use crate::meta::Edit;
use crate::shard::{Shard, ShardState};

/// A vBucket that was not committed for so many seconds keeps less: its replicas have what it has by then.
const REST_S: u64 = 30;
/// One that was not committed since the store was opened: the node may be about to be taken back, which needs them.
const REST_AFTER_OPENING_S: u64 = 600;
/// Less than this share of all items is not worth a record, in percent.
const LEAST_PERCENT: u64 = 5;
/// The most vBuckets of a step.
const MOST_VBS: usize = 16;

impl Shard {
    /// Gives up commits before the one on record of some vBuckets that rest and waste much. Says whether there were any.
    ///
    /// Without a record any commit may be asked for by the next start: then all stay.
    pub(crate) fn give_up_points(&self) -> Result<bool, Failure> {
        if !self.config.has_record {
            return Ok(false);
        }
        let waste_percent = self.files.tuning.lock().waste_percent;
        let now_s = u64::from(self.files.keeping.clock.unix_s());
        let mut writer = self.writer.lock();
        let edits: Vec<Edit> = {
            let state = self.state.read();
            let resting = state.meta.vbs.iter().filter(|(vb, meta)| {
                let (all, live) = state.sizes.of(**vb);
                is_share(meta.pinned_bytes, all, LEAST_PERCENT)
                    && is_share(all.saturating_sub(live), all, waste_percent)
                    && rests(&state, **vb, self.opened_s, now_s)
            });
            let less = resting.filter_map(|(vb, meta)| {
                let recorded = *state.recorded.get(vb)?;
                let is_needed = meta.is_pending() || state.meta.prepared.contains_key(vb);
                let has_older = meta.points.first().is_some_and(|point| point.commit < recorded);
                if is_needed || !has_older {
                    return None;
                }
                let less = meta.without_points_before(recorded);
                (less.pinned_bytes < meta.pinned_bytes).then_some(Edit::Set { vb: *vb, meta: less })
            });
            less.take(MOST_VBS).collect()
        };
        if edits.is_empty() {
            return Ok(false);
        }
        self.log(&mut writer, &edits, &[]).map(|()| true)
    }
}

/// Whether a vBucket was not committed for so long that its replicas have what it has.
fn rests(state: &ShardState, vb: u16, opened_s: u64, now_s: u64) -> bool {
    let since = match state.touched.get(&vb) {
        Some(at) => at.saturating_add(REST_S),
        None => opened_s.saturating_add(REST_AFTER_OPENING_S),
    };
    since <= now_s
}

/// Whether a part is this share of all, in percent, and there is any.
fn is_share(part: u64, all: u64, percent: u64) -> bool {
    part > 0 && u128::from(part) * 100 >= u128::from(all) * u128::from(percent)
}
