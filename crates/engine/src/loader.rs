//! From the disk to memory after a start: metadata of one vBucket a step, then values, those changed last first.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{CollectionId, Seqno, SyncWrite, VbId, Version};
use kvstore::{Counts, Values};
use vbucket::{Collections, Loaded};

use crate::bucket_core::Core;
use crate::completion::Completion;
use crate::durability::Durability;
use crate::failure_log::Failed;
use crate::fetcher::{Brought, Fetching};
use crate::flusher::Flushing;
use crate::progress::Progress;
use crate::shard::{Shard, dead};
use crate::shard_guard::Holder;
use crate::tasks::TaskId;
use crate::warmup::{Slice, Warmup, WarmupStats};

/// Values read before they are put in place, in bytes: what a step holds beyond what the account knows.
const STEP_BYTES: usize = 4 << 20;
/// For how long the values of a vBucket are loaded that was filled with a file.
const WARM_FILLED_FOR: Duration = Duration::from_secs(1);
/// Items between two looks whether the bucket is being closed.
const ITEMS_PER_LOOK: u64 = 4096;
/// No record of a file takes fewer bytes in it.
const LEAST_RECORD_BYTES: u64 = 16;
/// No item takes fewer bytes in memory.
const LEAST_ITEM_BYTES: u64 = 64;

fn load_vbucket(loading: &Loading) -> Progress {
    let Some(vb) = loading.warmup.take_vbucket() else { return Progress::Idle };
    let (incarnation, counts) = {
        let shard = loading.core.vbuckets.hold(vb, Holder::Loader);
        match shard.unloaded {
            Some(counts) => (shard.incarnation, counts),
            None => return loading.load_done(vb, None),
        }
    };
    match loading.read_documents(vb, &counts) {
        Ok(Some(loaded)) => loading.install(vb, incarnation, loaded),
        Ok(None) => loading.load_done(vb, None),
        Err(failure) => {
            loading.give_up(vb, incarnation, &failure);
            loading.load_done(vb, None)
        }
    }
}

/// What was read of a slice.
struct SliceRead {
    /// Where the rest of it begins, if there is any.
    rest: Option<Seqno>,
    has_room: bool,
    values: u64,
}

fn warm_slice(loading: &Loading) -> Progress {
    if loading.core.memory.is_above_low_watermark() {
        loading.warmup.stop_at_watermark(loading.core.env.clock.monotonic());
    }
    let Some(slice) = loading.warmup.take_slice() else { return Progress::Idle };
    let SliceRead { rest, has_room, values } = loading.read_slice(&slice);
    if !has_room {
        loading.warmup.stop_at_watermark(loading.core.env.clock.monotonic());
    }
    loading.warmup.warmed(slice, rest, values, loading.core.env.clock.monotonic());
    Progress::Worked
}

/// From the disk to memory after a start: what is loaded, and what is not yet.
pub struct Loading {
    pub(crate) core: Arc<Core>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) fetching: Arc<Fetching>,
    pub(crate) flushing: Arc<Flushing>,
    pub(crate) warmup: Warmup,
}

impl Loading {
    pub(crate) fn new(
        core: &Arc<Core>,
        durability: &Arc<Durability>,
        fetching: &Arc<Fetching>,
        flushing: &Arc<Flushing>,
    ) -> Loading {
        Loading {
            core: Arc::clone(core),
            durability: Arc::clone(durability),
            fetching: Arc::clone(fetching),
            flushing: Arc::clone(flushing),
            warmup: Warmup::new(core.env.clock.monotonic()),
        }
    }

    /// Waits until a vBucket's documents are loaded; it is then loaded before others. Nothing: they are.
    pub fn loaded(&self, vb: VbId) -> Option<Completion<()>> {
        if vb.0 >= self.core.vbuckets() {
            return None;
        }
        let shard = self.core.vbuckets.hold(vb, Holder::FrontEnd);
        shard.unloaded.as_ref()?;
        Some(self.warmup.want(vb))
    }

    /// How far loading is.
    pub fn warmup_stats(&self) -> WarmupStats {
        self.warmup.stats(self.core.env.clock.monotonic())
    }

    /// Runs steps until everything is loaded that there is room for, or the bucket is closed; for threads of their own.
    pub fn run_loader(&self) {
        while self.load_step() != Progress::Idle || self.warm_step() != Progress::Idle {}
    }

    /// Lets the loader threads end soon; whoever still waits is told that nobody comes.
    pub fn stop_loaders(&self) {
        self.warmup.stop();
    }

    /// Loads the metadata of one vBucket, of one that somebody waits for if there is any.
    pub fn load_step(&self) -> Progress {
        self.core.tasks.step(TaskId::Loader, || load_vbucket(self))
    }

    /// The documents of a vBucket without their values; nothing if the bucket is being closed.
    pub(crate) fn read_documents(
        &self,
        vb: VbId,
        counts: &Counts,
    ) -> Result<Option<Loaded>, kvstore::Failure> {
        let mut loaded = Loaded::new(&self.core.context, self.room(counts));
        let collections = self.core.vbuckets.hold(vb, Holder::Loader).vb.collections().clone();
        loaded.expect(items_in(counts));
        let mut until_look = ITEMS_PER_LOOK;
        let mut stopped = false;
        let Some(snapshot) = self.core.store.snapshot(vb)? else { return Ok(Some(loaded)) };
        let prepared = self.load_prepares(&*snapshot, &collections, &mut loaded)?;
        snapshot.scan(Seqno(0), Values::Leave, &mut |version| {
            let hash = self.core.hash(version.key());
            let is_prepared = !prepared.is_empty() && prepared.contains(version.stored_key());
            if version.key().collection == CollectionId::SYSTEM || collections.hides(&version) {
                // Events are in no table, and what is dropped comes back no more.
            } else if !is_prepared && self.core.evicts_whole() && self.core.memory.is_above_low_watermark() {
                loaded.leave_out(hash, &version);
            } else {
                loaded.insert(hash, version);
            }
            until_look -= 1;
            if until_look == 0 {
                until_look = ITEMS_PER_LOOK;
                stopped = self.warmup.is_stopping();
            }
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok((!stopped).then_some(loaded))
    }

    /// Loads the prepares that are neither committed nor aborted; returns the keys of their documents.
    fn load_prepares(
        &self,
        snapshot: &dyn kvstore::Snapshot,
        collections: &Collections,
        loaded: &mut Loaded,
    ) -> Result<HashSet<Box<[u8]>>, kvstore::Failure> {
        let mut documents = HashSet::new();
        let state = snapshot.state()?;
        if state.prepared_seqno <= state.completed_seqno || planted::is(Bug::WarmupForgetsPrepares) {
            return Ok(documents);
        }
        let mut prepares = Vec::new();
        snapshot.scan_all(Seqno(state.completed_seqno).next(), Values::Read, &mut |version| {
            let is_prepare = matches!(version.meta().sync_write, SyncWrite::Prepare(_));
            if is_prepare && !collections.has_dropped(&version) {
                prepares.push(version);
            }
            ControlFlow::Continue(())
        })?;
        for prepare in prepares {
            // What follows a prepare ends it: a document does not change while it has one.
            let document = snapshot.get(prepare.document_key())?;
            let is_over = document.is_some_and(|there| there.meta().by_seqno > prepare.meta().by_seqno);
            if !is_over {
                documents.insert(prepare.document_key().to_stored().0);
                loaded.insert_prepare(prepare);
            }
        }
        Ok(documents)
    }

    /// Items that there will be in memory: not more than fit into it, if not all have to be there.
    fn room(&self, counts: &Counts) -> usize {
        let items = items_in(counts);
        let left = self.core.memory.low_watermark_bytes().saturating_sub(self.core.memory.used_bytes());
        let fit = if self.core.evicts_whole() { left / LEAST_ITEM_BYTES } else { u64::MAX };
        items.min(fit) as usize
    }

    /// Reads values of a slice, as long as there is room for them.
    fn read_slice(&self, slice: &Slice) -> SliceRead {
        let mut read: Vec<Version> = Vec::new();
        let mut bytes = 0;
        let (mut rest, mut has_room) = (None, true);
        let scanned = self.core.store.scan(slice.vb, slice.from, Values::Read, &mut |version| {
            let seqno = version.meta().by_seqno;
            if seqno > slice.end {
                return ControlFlow::Break(());
            }
            // What was read is charged already.
            has_room = !self.core.memory.is_above_low_watermark();
            if !has_room || bytes >= STEP_BYTES || self.warmup.is_stopping() {
                rest = Some(seqno);
                return ControlFlow::Break(());
            }
            if version.value_bytes() > 0 {
                bytes += version.allocated_bytes();
                read.push(version);
            }
            ControlFlow::Continue(())
        });
        if let Err(failure) = scanned {
            // Whoever asks for one of these values is told about its own.
            self.core.failure_log.failed(self.core.name(), slice.vb, Failed::LoadAhead, &failure);
        }
        let mut values = 0;
        for version in read {
            let brought = self.fetching.bring(slice.vb, slice.incarnation, version);
            values += u64::from(matches!(brought, Brought::Placed(_)));
        }
        SliceRead { rest, has_room, values }
    }

    /// Loads the values of a vBucket that was filled with a file, those changed last first, while there is room, for no longer
    /// than [`WARM_FILLED_FOR`]: its stream waits behind this, and other vBuckets of its link.
    pub(crate) fn warm_filled(&self, vb: VbId, high_seqno: Seqno, items: u64) {
        let incarnation = self.core.vbuckets.hold(vb, Holder::Loader).incarnation;
        let mut next = Some(Slice::newest(vb, incarnation, high_seqno, items));
        let until = self.core.env.clock.monotonic() + WARM_FILLED_FOR;
        while let Some(slice) = next.filter(|_| !self.warmup.is_stopping()) {
            let SliceRead { rest, has_room, .. } = self.read_slice(&slice);
            if !has_room || self.core.env.clock.monotonic() >= until {
                return;
            }
            next = match rest {
                Some(from) => Some(slice.rest(from)),
                None => slice.below(),
            };
        }
    }

    fn install(&self, vb: VbId, incarnation: u64, loaded: Loaded) -> Progress {
        let counts = loaded.counts();
        let (old, high_seqno) = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Loader);
            if shard.incarnation != incarnation {
                drop(shard);
                return self.load_done(vb, None);
            }
            shard.unloaded = None;
            (shard.vb.install(loaded), shard.vb.high_seqno())
        };
        drop(old);
        // Prepares that were in flight when the bucket was closed.
        self.durability.settle(vb);
        let items = counts.documents + counts.tombstones;
        if counts.evicted_documents + counts.evicted_tombstones > 0 {
            self.warmup.found_no_room();
        }
        let slice = (counts.without_value > 0).then(|| Slice::newest(vb, incarnation, high_seqno, items));
        self.load_done(vb, Some((counts, slice)))
    }

    fn load_done(&self, vb: VbId, loaded: Option<(vbucket::Counts, Option<Slice>)>) -> Progress {
        let (counts, slice) = loaded.unwrap_or_default();
        let keys = counts.documents + counts.tombstones;
        let values = counts.documents - counts.without_value - counts.evicted_documents;
        self.warmup.loaded(vb, keys, values, slice, self.core.env.clock.monotonic());
        Progress::Worked
    }

    /// The documents of a vBucket cannot be read: it is dead until somebody mends it.
    fn give_up(&self, vb: VbId, incarnation: u64, failure: &kvstore::Failure) {
        // Nothing of it may be on its way to disk while it is replaced.
        let (_roles, _flushing) = (self.flushing.roles_of(vb), self.flushing.space.lock());
        let old = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Loader);
            if shard.incarnation != incarnation {
                return;
            }
            let old = shard.replace(dead(vb, &self.core.context, &self.core.env));
            (old, shard.sync_waiters.give_up())
        };
        drop(old);
        self.durability.waiters.forget(vb);
        self.warmup.count_failed();
        self.core.unreadable.note_dead(self.core.name(), vb, failure);
    }

    /// Loads a slice of values of one vBucket that nobody waits for, while there is room.
    pub fn warm_step(&self) -> Progress {
        self.core.tasks.step(TaskId::Loader, || warm_slice(self))
    }
}

impl Shard {
    /// Documents and tombstones: in memory, or on disk while they are not loaded.
    pub(crate) fn item_counts(&self) -> (u64, u64) {
        match &self.unloaded {
            Some(stored) => (stored.documents, stored.tombstones),
            None => (self.vb.documents(), self.vb.counts().tombstones),
        }
    }
}

/// Items that there will be, as the file says, but not more than fit into it.
fn items_in(counts: &Counts) -> u64 {
    counts.documents.saturating_add(counts.tombstones).min(counts.file_bytes / LEAST_RECORD_BYTES)
}
