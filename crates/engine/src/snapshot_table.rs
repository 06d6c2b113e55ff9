//! What a bucket keeps of its snapshots, and whether changes are held for one: data alone, which the core has.
//!
//! `bucket_snapshot.rs` works on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::env::Clock;
use base::planted::{self, Bug};
use base::{CollectionId, Seqno, VbId, VbUuid};
use parking_lot::Mutex;
use vbucket::Manifest;

use crate::completion::Completer;
use crate::kept_snapshot::KeptSnapshot;
use crate::open_files::OpenScan;

/// A snapshot ends when nothing was read or asked of it for so long.
pub const BUCKET_SNAPSHOT_LEASE: Duration = Duration::from_secs(600);

/// Where a vBucket is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VbMoment {
    /// Which.
    pub vb: VbId,
    /// Its history.
    pub uuid: VbUuid,
    /// Its last change.
    pub seqno: Seqno,
}

/// What there is of a vBucket.
pub(crate) enum Content {
    /// The flusher has not come to it: the place of its file is kept.
    Waits(OpenScan),
    /// Nothing, if the vBucket had no change.
    Kept(Option<KeptSnapshot>),
    Lost,
}

/// A vBucket of one.
pub(crate) struct Part {
    pub(crate) moment: VbMoment,
    /// Collections that were dropped by then and whose documents may still be there.
    pub(crate) dropped: Arc<[(CollectionId, Seqno)]>,
    pub(crate) content: Content,
}

/// A snapshot that is kept.
pub(crate) struct Kept {
    /// On the monotonic clock.
    pub(crate) created: Duration,
    /// The collections that there were.
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) held_ns: AtomicU64,
    pub(crate) used_ns: AtomicU64,
    /// Set by each read.
    pub(crate) was_read: Arc<AtomicBool>,
    pub(crate) parts: Mutex<BTreeMap<VbId, Part>>,
}

impl Kept {
    pub(crate) fn used(&self, now: Duration) {
        self.used_ns.fetch_max(now.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn ends_after(&self, now: Duration) -> Duration {
        if self.was_read.swap(false, Ordering::Relaxed) {
            self.used(now);
        }
        let used = Duration::from_nanos(self.used_ns.load(Ordering::Relaxed));
        (used + BUCKET_SNAPSHOT_LEASE).saturating_sub(now)
    }

    pub(crate) fn waits(&self) -> bool {
        self.parts.lock().values().any(|part| matches!(part.content, Content::Waits(_)))
    }

    /// Has nothing any more of the vBuckets whose store the bucket has left.
    pub(crate) fn lose_cut_off(&self) {
        let is_cut_off = |part: &Part| match &part.content {
            Content::Kept(Some(snapshot)) => snapshot.is_cut_off(),
            _ => false,
        };
        let lost: Vec<VbId> =
            self.parts.lock().iter().filter(|(_, part)| is_cut_off(part)).map(|(vb, _)| *vb).collect();
        lost.into_iter().for_each(|vb| self.lose(vb));
    }

    /// Has nothing of a vBucket any more; its place is free when those who read it have ended.
    pub(crate) fn lose(&self, vb: VbId) {
        let mut parts = self.parts.lock();
        let content = parts.get_mut(&vb).map(|part| std::mem::replace(&mut part.content, Content::Lost));
        drop(parts);
        // Its file is closed outside of the lock.
        drop(content);
    }
}

/// When changes are held; all on the monotonic clock.
#[derive(Default)]
pub(crate) struct ChangeHold {
    pub(crate) id: u128,
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    /// No other one begins before this.
    pub(crate) rest_until_ns: u64,
    pub(crate) waiters: Vec<Completer<()>>,
}

/// What the flusher is to keep of a vBucket: what is saved when this change is the last one that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedSnapshot {
    pub(crate) id: u128,
    pub(crate) seqno: Seqno,
}

/// What a bucket keeps of its snapshots, and whether changes are held for one.
#[derive(Default)]
pub(crate) struct BucketSnapshotTable {
    pub(crate) hold: Mutex<ChangeHold>,
    /// Until when changes are held; 0 if they are not.
    pub(crate) held_until_ns: AtomicU64,
    pub(crate) kept: Mutex<BTreeMap<u128, Arc<Kept>>>,
    /// vBuckets that wait for the flusher, at least.
    pub(crate) waiting: AtomicUsize,
}

impl BucketSnapshotTable {
    pub(crate) fn find(&self, id: u128) -> Option<Arc<Kept>> {
        self.kept.lock().get(&id).cloned()
    }

    /// Whether changes are held. Asked under the lock of the vBucket that is to be changed, so that a thread that has held changes
    /// and had that lock since has seen all that were made.
    #[inline]
    pub(crate) fn holds_changes(&self, clock: &dyn Clock) -> bool {
        let until = self.held_until_ns.load(Ordering::Acquire);
        until > 0 && clock.monotonic_ns() < until && !planted::is(Bug::ChangesNotHeld)
    }
}
