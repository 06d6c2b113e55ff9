//! What the checkpoints of a bucket take together, the limits they are held to, and how pressing it is.
//!
//! Bytes of versions count here when they are queued and until they leave the checkpoints, although the hash table
//! may hold the same versions: this is a bound on the queues, not an account.
//! What checkpoints allocate themselves is charged to the bucket's account as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use base::{Account, Part};

/// When an open checkpoint is closed although nobody takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointLimits {
    /// Changes in it, de-duplicated ones included.
    pub max_items: u32,
    /// Bytes of the versions in it.
    pub max_bytes: u32,
}

impl Default for CheckpointLimits {
    fn default() -> Self {
        CheckpointLimits { max_items: 10_000, max_bytes: 16 << 20 }
    }
}

/// From how many bytes in all checkpoints of a bucket on something is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointMarks {
    /// The flusher gathers no longer.
    pub hurry_bytes: u64,
    /// Memory is recovered.
    pub recover_bytes: u64,
    /// Changes are refused if memory is short.
    pub full_bytes: u64,
}

impl Default for CheckpointMarks {
    fn default() -> Self {
        CheckpointMarks { hurry_bytes: u64::MAX, recover_bytes: u64::MAX, full_bytes: u64::MAX }
    }
}

/// How close the checkpoints of a bucket are to their share of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Pressure {
    /// Nothing is to be done.
    Calm,
    /// The flusher gathers no longer.
    Hurry,
    /// Memory is recovered.
    Recover,
    /// Changes are refused if memory is short.
    Full,
}

/// Of the limits changing while they are read, each by itself is enough.
struct Limits {
    max_items: AtomicU32,
    max_bytes: AtomicU32,
    drift_bytes: AtomicU64,
    hurry_bytes: AtomicU64,
    recover_bytes: AtomicU64,
    full_bytes: AtomicU64,
    pressure: AtomicU8,
}

/// Apart from what is mostly read: every vBucket writes it.
#[repr(align(128))]
#[derive(Default)]
struct Used(AtomicI64);

/// What all checkpoints of a bucket share. Each manager tells it what it has when that has drifted far enough.
pub struct CheckpointMemory {
    account: Account,
    limits: Limits,
    used: Used,
    kept: Kept,
}

/// What is kept although it is on disk and nobody needs it at the moment.
#[derive(Default)]
struct Kept {
    most_bytes: AtomicU64,
    bytes: AtomicI64,
    epoch: AtomicU16,
}

/// One vBucket may keep this part of what all may keep,
const KEPT_BY_ONE: u64 = 16;
/// and no more than this.
const MOST_KEPT_BY_ONE: u64 = 32 << 20;

impl CheckpointMemory {
    /// No checkpoints yet, no marks, and `account` for what they allocate.
    pub fn new(account: Account) -> CheckpointMemory {
        let memory = CheckpointMemory {
            account,
            limits: Limits {
                max_items: AtomicU32::new(0),
                max_bytes: AtomicU32::new(0),
                drift_bytes: AtomicU64::new(0),
                hurry_bytes: AtomicU64::new(0),
                recover_bytes: AtomicU64::new(0),
                full_bytes: AtomicU64::new(0),
                pressure: AtomicU8::new(0),
            },
            used: Used::default(),
            kept: Kept::default(),
        };
        memory.set_limits(CheckpointLimits::default());
        memory.set_marks(CheckpointMarks::default(), 1);
        memory
    }

    /// Changes when open checkpoints are closed, from the next queued change on.
    pub fn set_limits(&self, limits: CheckpointLimits) {
        self.limits.max_items.store(limits.max_items, Ordering::Relaxed);
        self.limits.max_bytes.store(limits.max_bytes, Ordering::Relaxed);
    }

    /// When open checkpoints are closed.
    #[inline]
    pub fn limits(&self) -> CheckpointLimits {
        CheckpointLimits {
            max_items: self.limits.max_items.load(Ordering::Relaxed),
            max_bytes: self.limits.max_bytes.load(Ordering::Relaxed),
        }
    }

    /// Changes the marks of a bucket of so many vBuckets.
    pub fn set_marks(&self, marks: CheckpointMarks, vbuckets: u64) {
        self.limits.hurry_bytes.store(marks.hurry_bytes, Ordering::Relaxed);
        self.limits.recover_bytes.store(marks.recover_bytes, Ordering::Relaxed);
        self.limits.full_bytes.store(marks.full_bytes, Ordering::Relaxed);
        // All together are wrong by a thirty-second of the share at most.
        let drift = (marks.full_bytes / 32 / vbuckets.max(1)).clamp(64, 64 << 10);
        self.limits.drift_bytes.store(drift, Ordering::Relaxed);
        self.judge();
    }

    /// Changes how many bytes may be kept for streams that come back soon; none at first.
    pub fn set_most_kept(&self, bytes: u64) {
        self.kept.most_bytes.store(bytes, Ordering::Relaxed);
    }

    /// About how many bytes are kept so.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Begins another stretch of time, by which the age of what is kept is told.
    pub fn begin_epoch(&self) {
        self.kept.epoch.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> u16 {
        self.kept.epoch.load(Ordering::Relaxed)
    }

    /// How many bytes a manager may keep that keeps `own` now.
    pub(crate) fn may_keep(&self, own: u64) -> u64 {
        if self.pressure() >= Pressure::Recover {
            return 0;
        }
        let most = self.kept.most_bytes.load(Ordering::Relaxed);
        let others = self.kept_bytes().saturating_sub(own);
        most.saturating_sub(others).min(most / KEPT_BY_ONE).min(MOST_KEPT_BY_ONE)
    }

    pub(crate) fn keep(&self, bytes: i64) {
        if bytes != 0 {
            self.kept.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// How far a manager may drift before it says so.
    #[inline]
    pub(crate) fn drift_bytes(&self) -> u64 {
        self.limits.drift_bytes.load(Ordering::Relaxed)
    }

    /// About how many bytes all checkpoints of the bucket take, the versions included.
    pub fn used_bytes(&self) -> u64 {
        self.used.0.load(Ordering::Relaxed).max(0) as u64
    }

    /// How pressing it is.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        match self.limits.pressure.load(Ordering::Relaxed) {
            0 => Pressure::Calm,
            1 => Pressure::Hurry,
            2 => Pressure::Recover,
            _ => Pressure::Full,
        }
    }

    pub(crate) fn add(&self, bytes: i64) {
        let used = self.used.0.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if self.level(used) as u8 != self.limits.pressure.load(Ordering::SeqCst) {
            self.judge();
        }
    }

    fn level(&self, used: i64) -> Pressure {
        let used = used.max(0) as u64;
        let is_above = |mark: &AtomicU64| used > mark.load(Ordering::Relaxed);
        if is_above(&self.limits.full_bytes) {
            Pressure::Full
        } else if is_above(&self.limits.recover_bytes) {
            Pressure::Recover
        } else if is_above(&self.limits.hurry_bytes) {
            Pressure::Hurry
        } else {
            Pressure::Calm
        }
    }

    /// Writes down how pressing it is. Whoever writes last has looked after the others wrote, so that nothing stale
    /// stays.
    pub fn judge(&self) {
        loop {
            let level = self.level(self.used.0.load(Ordering::SeqCst));
            self.limits.pressure.store(level as u8, Ordering::SeqCst);
            if level == self.level(self.used.0.load(Ordering::SeqCst)) {
                return;
            }
        }
    }
}

/// Bytes charged to the account for as long as this lives.
pub(crate) struct Charge {
    memory: Arc<CheckpointMemory>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(memory: &Arc<CheckpointMemory>, bytes: usize) -> Charge {
        memory.account.charge(Part::Checkpoints, bytes);
        Charge { memory: memory.clone(), bytes }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn resize(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.memory.account.charge(Part::Checkpoints, bytes - self.bytes);
        } else {
            self.memory.account.release(Part::Checkpoints, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.account.release(Part::Checkpoints, self.bytes);
    }
}

/// What an allocation of so many bytes takes: the allocator's classes are 16 bytes apart, and from 256 bytes on an
/// eighth.
pub(crate) const fn rounded(bytes: usize) -> usize {
    let step = bytes.next_power_of_two() / 16;
    let step = if step < 16 { 16 } else { step };
    bytes.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_follows_what_is_used_and_the_marks() {
        let memory = CheckpointMemory::new(Account::new());
        memory.add(1 << 40);
        assert_eq!(memory.pressure(), Pressure::Calm, "without marks");
        memory.add(-(1 << 40));
        let marks = CheckpointMarks { hurry_bytes: 50, recover_bytes: 90, full_bytes: 100 };
        memory.set_marks(marks, 4);
        for (add, pressure) in [
            (50, Pressure::Calm),
            (1, Pressure::Hurry),
            (40, Pressure::Recover),
            (10, Pressure::Full),
            (-1, Pressure::Recover),
            (-100, Pressure::Calm),
        ] {
            memory.add(add);
            assert_eq!(memory.pressure(), pressure, "{}", memory.used_bytes());
        }
        memory.add(75);
        memory.set_marks(CheckpointMarks { full_bytes: 70, ..marks }, 4);
        assert_eq!(memory.pressure(), Pressure::Full);
    }

    #[test]
    fn a_charge_is_given_back() {
        let account = Account::new();
        let memory = Arc::new(CheckpointMemory::new(account.clone()));
        let mut charge = Charge::new(&memory, 100);
        let other = Charge::new(&memory, 7);
        charge.resize(50);
        charge.resize(300);
        assert_eq!(account.exact()[Part::Checkpoints as usize], 307);
        drop((charge, other));
        assert_eq!(account.exact(), [0; base::memory::PARTS]);
    }

    #[test]
    fn sizes_are_rounded_as_the_allocator_does() {
        for (bytes, takes) in
            [(1, 16), (64, 64), (160, 160), (250, 256), (257, 288), (2048, 2048), (2100, 2304)]
        {
            assert_eq!(rounded(bytes), takes, "{bytes}");
        }
    }
}
