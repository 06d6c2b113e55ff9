//! Holds the checkpoints to their share of the memory, and frees what has left them.
//!
//! Above the upper mark it recovers memory down to the lower one, from the vBuckets with the most first: closed
//! checkpoints that nobody needs any more, then changes that every cursor has passed, then what only the slowest
//! streams need, which go on from the disk.
//!
//! What the flusher needs stays. While the bucket is above its low watermark, it gathers no longer when half of the
//! share is taken, and above the share changes are refused until it has caught up. Below the low watermark what is
//! queued is in nobody's way: most of it are versions that the hash table holds anyway, and a flusher that hurries
//! writes more, because less is de-duplicated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::VbId;
use vbucket::{CheckpointLimits, CheckpointMarks, Pressure, Removed, VBucket};

use crate::bucket_core::Core;
use crate::disposal::Disposal;
use crate::keeper::{Chore, ChoreId, Next, Slice};
use crate::settings::Key;
use crate::shard_guard::Holder;

/// Between two passes while checkpoints take more than their share.
const PRESSED_PAUSE: Duration = Duration::from_millis(10);
/// Bounds of the size of a checkpoint that adapts to the quota.
/// One that is closed early de-duplicates less, however large a part of the share its vBucket has; a larger one is
/// much for a reader to take at once.
const ADAPTED_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=16 << 20;

/// This part of the quota may hold checkpoints that are on disk already, for streams that come back soon,
const KEPT_PART: u64 = 100;
/// and no longer than between one and two of these.
const KEPT_TIME: Duration = Duration::from_secs(5);

/// What of the checkpoints is no vBucket's own business.
#[derive(Default)]
pub(crate) struct CheckpointRelief {
    disposal: Disposal,
    is_called: AtomicBool,
    removed_items: AtomicU64,
    expelled_items: AtomicU64,
    dropped_streams: AtomicU64,
    refused: AtomicU64,
}

/// The checkpoints of a bucket and their share of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointMemoryStats {
    /// About how much they take, the versions included.
    pub used_bytes: u64,
    /// How much they may take.
    pub share_bytes: u64,
    /// Above this memory is recovered,
    pub upper_mark_bytes: u64,
    /// down to this.
    pub lower_mark_bytes: u64,
    /// How pressing it is.
    pub pressure: Pressure,
    /// When an open checkpoint is closed.
    pub limits: CheckpointLimits,
    /// Changes that the recovery took out in whole checkpoints.
    pub removed_items: u64,
    /// Changes that were given up before their checkpoint was done.
    pub expelled_items: u64,
    /// Streams whose cursor was dropped.
    pub dropped_streams: u64,
    /// Changes that were refused because the checkpoints were above their share while memory was short.
    pub refused: u64,
    /// Changes that have left the checkpoints and wait to be freed.
    pub unfreed_items: u64,
}

/// The checkpoints' share of the memory, and what has left them.
pub struct Checkpoints {
    pub(crate) core: Arc<Core>,
    pub(crate) relief: CheckpointRelief,
}

impl Checkpoints {
    pub(crate) fn new(core: &Arc<Core>) -> Checkpoints {
        let checkpoints = Checkpoints { core: Arc::clone(core), relief: CheckpointRelief::default() };
        checkpoints.set_checkpoint_limits();
        checkpoints
    }

    /// The checkpoints of the bucket and their share of the memory.
    pub fn checkpoint_memory(&self) -> CheckpointMemoryStats {
        let (memory, relief) = (&self.core.context.checkpoints, &self.relief);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CheckpointMemoryStats {
            used_bytes: memory.used_bytes(),
            share_bytes: self.checkpoint_share(1000),
            upper_mark_bytes: self.checkpoint_share(self.core.settings.get(Key::CheckpointUpperMark)),
            lower_mark_bytes: self.checkpoint_share(self.core.settings.get(Key::CheckpointLowerMark)),
            pressure: memory.pressure(),
            limits: memory.limits(),
            removed_items: count(&relief.removed_items),
            expelled_items: count(&relief.expelled_items),
            dropped_streams: count(&relief.dropped_streams),
            refused: count(&relief.refused),
            unfreed_items: relief.disposal.items(),
        }
    }

    /// So many thousandths of the checkpoints' share of the quota.
    fn checkpoint_share(&self, thousandths: u64) -> u64 {
        let ratio = self.core.settings.get(Key::CheckpointRatio);
        let share = u128::from(self.core.memory.quota_bytes()) * u128::from(ratio * thousandths) / 1_000_000;
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Brings limits and marks of the checkpoints up to date with the settings.
    pub(crate) fn set_checkpoint_limits(&self) {
        let share = self.checkpoint_share(1000);
        let vbuckets = u64::from(self.core.vbuckets());
        let max_bytes = match self.core.settings.get(Key::CheckpointMaxSize) {
            0 => (share / 16).clamp(*ADAPTED_BYTES.start(), *ADAPTED_BYTES.end()),
            fixed => fixed,
        };
        let whole = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        self.core.context.checkpoints.set_limits(CheckpointLimits {
            max_items: whole(self.core.settings.get(Key::CheckpointMaxItems)),
            max_bytes: whole(max_bytes),
        });
        let marks = CheckpointMarks {
            hurry_bytes: share / 2,
            recover_bytes: self.checkpoint_share(self.core.settings.get(Key::CheckpointUpperMark)),
            full_bytes: share,
        };
        self.core.context.checkpoints.set_marks(marks, vbuckets);
        // While memory is short everything that can go goes.
        let kept = if self.core.memory.is_above_low_watermark() {
            0
        } else {
            self.core.memory.quota_bytes() / KEPT_PART
        };
        self.core.context.checkpoints.set_most_kept(kept);
    }

    /// Whether the checkpoints have room for another change; if it gets tight, those are called who can do something
    /// about it.
    #[inline]
    pub(crate) fn have_checkpoints_room(&self) -> bool {
        let pressure = self.core.context.checkpoints.pressure();
        pressure == Pressure::Calm || self.relieve(pressure)
    }

    #[cold]
    fn relieve(&self, pressure: Pressure) -> bool {
        let is_short = self.core.memory.is_above_low_watermark();
        if is_short {
            self.core.flush.hurry_all();
        }
        let called = &self.relief.is_called;
        if pressure >= Pressure::Recover
            && !called.load(Ordering::Relaxed)
            && !called.swap(true, Ordering::Relaxed)
        {
            self.core.keeper.wake(ChoreId::CheckpointRecovery);
        }
        let has_room = pressure < Pressure::Full || !is_short;
        if !has_room {
            self.relief.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Frees what has left the checkpoints, now if it is little. Not to be called under a vBucket's lock.
    pub(crate) fn dispose(&self, removed: Removed) {
        if self.relief.disposal.put(removed) {
            self.core.keeper.wake(ChoreId::CheckpointRecovery);
        }
    }
}

/// The ways to recover memory, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    RemoveClosed,
    Expel,
    DropSlowest,
}

impl Stage {
    fn next(self) -> Option<Stage> {
        match self {
            Stage::RemoveClosed => Some(Stage::Expel),
            Stage::Expel => Some(Stage::DropSlowest),
            Stage::DropSlowest => None,
        }
    }
}

/// One way through all vBuckets.
struct Pass {
    stage: Stage,
    /// Those left to visit, those with the most last.
    left: Vec<(u64, VbId)>,
}

impl Pass {
    fn begin(checkpoints: &Checkpoints, stage: Stage) -> Pass {
        let mut left = Vec::with_capacity(usize::from(checkpoints.core.vbuckets()));
        checkpoints.core.each_vbucket(|vb| left.push((vb.checkpoints().bytes(), vb.id())));
        left.sort_unstable();
        Pass { stage, left }
    }

    fn visit(&self, checkpoints: &Checkpoints, vb: VbId) {
        let relief = &checkpoints.relief;
        match self.stage {
            Stage::RemoveClosed => take_out(checkpoints, vb, &relief.removed_items, |vb| {
                Some(vb.checkpoints_mut().remove_closed())
            }),
            Stage::Expel => {
                take_out(checkpoints, vb, &relief.expelled_items, |vb| Some(vb.checkpoints_mut().expel()))
            }
            Stage::DropSlowest => drop_slowest(checkpoints, vb),
        }
    }
}

fn take_out(
    checkpoints: &Checkpoints,
    vb: VbId,
    count: &AtomicU64,
    take: impl FnOnce(&mut VBucket) -> Option<Removed>,
) {
    let Ok(mut shard) = checkpoints.core.vbuckets.find(vb, Holder::CheckpointRecovery) else { return };
    let removed = take(&mut shard.vb);
    drop(shard);
    if let Some(removed) = removed.filter(|removed| !removed.is_empty()) {
        count.fetch_add(removed.items(), Ordering::Relaxed);
        checkpoints.dispose(removed);
    }
}

/// Drops streams of `vb` from the slowest on, as long as each holds its part of what is too much: one that is only a
/// little behind the flusher is not what memory is short of.
fn drop_slowest(checkpoints: &Checkpoints, vb: VbId) {
    loop {
        let stats = checkpoints.checkpoint_memory();
        let too_much = stats.used_bytes.saturating_sub(stats.lower_mark_bytes);
        if too_much == 0 {
            return;
        }
        let least_bytes = too_much / u64::from(checkpoints.core.vbuckets());
        let mut name = None;
        take_out(checkpoints, vb, &checkpoints.relief.removed_items, |vb| {
            let (_, dropped) = vb.checkpoints_mut().drop_slowest_cursor(least_bytes)?;
            name = Some(dropped);
            Some(vb.checkpoints_mut().expel())
        });
        let Some(name) = name else { return };
        checkpoints.relief.dropped_streams.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            event = "stream_from_disk", bucket = checkpoints.core.name(), %vb, %name,
            "the slowest stream goes on from the disk"
        );
    }
}

/// Holds the checkpoints to their share of the memory, and frees what has left them.
#[derive(Default)]
pub(crate) struct CheckpointRecovery {
    pass: Option<Pass>,
    /// When what is kept is looked at next, on the monotonic clock.
    kept_until: Duration,
    /// What is kept for so many stretches of time goes, and the next vBucket where it does.
    ageing: Option<(u16, u16)>,
}

impl CheckpointRecovery {
    /// Recovers memory down to the lower mark, or as much as there is. Whether it has come to an end.
    fn recover(&mut self, checkpoints: &Checkpoints, slice: &Slice<'_>) -> bool {
        let memory = &checkpoints.core.context.checkpoints;
        if self.pass.is_none() && memory.pressure() >= Pressure::Recover {
            self.pass = Some(Pass::begin(checkpoints, Stage::RemoveClosed));
        }
        let lower_mark = checkpoints.checkpoint_memory().lower_mark_bytes;
        while let Some(pass) = &mut self.pass {
            if memory.used_bytes() <= lower_mark {
                self.pass = None;
            } else if let Some((_, vb)) = pass.left.pop() {
                pass.visit(checkpoints, vb);
                if slice.is_over() {
                    return false;
                }
            } else {
                self.pass = pass.stage.next().map(|stage| Pass::begin(checkpoints, stage));
            }
        }
        true
    }
}

impl CheckpointRecovery {
    /// Lets go of what was kept for long enough, or of all of it if memory is short. Whether it has come to an end.
    fn age(&mut self, checkpoints: &Checkpoints, slice: &Slice<'_>) -> bool {
        let memory = &checkpoints.core.context.checkpoints;
        let now = checkpoints.core.env.clock.monotonic();
        let is_short = checkpoints.core.memory.is_above_low_watermark();
        if self.ageing.is_none() && memory.kept_bytes() > 0 && (is_short || now >= self.kept_until) {
            self.kept_until = now + KEPT_TIME;
            memory.begin_epoch();
            self.ageing = Some((if is_short { 0 } else { 2 }, 0));
        }
        let Some((epochs, first)) = self.ageing.take() else { return true };
        for vb in first..checkpoints.core.vbuckets() {
            if slice.is_over() {
                self.ageing = Some((epochs, vb));
                return false;
            }
            take_out(checkpoints, VbId(vb), &checkpoints.relief.removed_items, |vb| {
                Some(vb.checkpoints_mut().remove_kept(epochs))
            });
        }
        true
    }
}

impl Chore for CheckpointRecovery {
    type Of = Checkpoints;

    fn step(&mut self, checkpoints: &Checkpoints, slice: &Slice<'_>) -> Next {
        checkpoints.set_checkpoint_limits();
        let has_recovered = self.recover(checkpoints, slice) && self.age(checkpoints, slice);
        if !checkpoints.relief.disposal.free(|| slice.is_over()) || !has_recovered {
            return Next::Again;
        }
        let is_pressed = || checkpoints.core.context.checkpoints.pressure() >= Pressure::Recover;
        if is_pressed() {
            return Next::After(PRESSED_PAUSE);
        }
        // Whoever found it called until now has woken nobody: it looks again.
        checkpoints.relief.is_called.swap(false, Ordering::SeqCst);
        if is_pressed() {
            return Next::After(PRESSED_PAUSE);
        }
        Next::After(checkpoints.core.keeper.look_again_after())
    }
}

#[cfg(test)]
mod tests;
