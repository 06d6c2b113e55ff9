//! The store: shards, and what they share.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::env::GroupSync;

use crate::cache::{BlockCache, CacheStats};
use crate::failure::Failure;
use crate::file::{Files, OpenFileStats, WrittenBytes};
use crate::history::{HistoryUsage, Limits, Retention, begin_histories, end_histories};
use crate::meta::VbMeta;
use crate::shard::Shard;
use crate::sizes::Usage;
use crate::tuning::Tuning;
use crate::view::{Commit, View};

/// Choices about a store.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Into how many shards the vBuckets are spread. Fixed when the folder is made: what is on record counts.
    pub shards: usize,
    /// Files that may be open at once for reading.
    pub most_open_files: usize,
    /// Bytes of blocks that may be kept in memory.
    pub cache_bytes: usize,
    /// Commits of a vBucket that a rollback can go back to, 4 at least.
    pub kept_points: usize,
    /// If more versions than these are kept for rollbacks, fewer commits are.
    pub most_superseded: usize,
    /// A manifest is written again when it has this number of bytes and has grown fourfold.
    pub manifest_bytes: u64,
    /// Bytes that a background step reads, about.
    pub step_bytes: u64,
    /// Runs of about the same size that are merged, in number.
    pub merge_runs: usize,
    /// Runs up to this number of bytes count as of the same size.
    pub small_run_bytes: u64,
    /// A segment is rewritten if this share of its items, in percent, does not count any more.
    pub waste_percent: u64,
    /// Segments below this number of bytes are put together.
    pub small_segment_bytes: u64,
    /// Small segments that are put together, in number.
    pub small_segments: usize,
    /// Bytes that count in the segments of one rewrite, about.
    pub rewrite_bytes: u64,
    /// The caller's number for the folder, which no other one has; 0 if there is none. Files say it, and those that say
    /// another one are refused.
    pub owner: u128,
    /// Whether a start is going to be told of commits on record: then these stay, and all that may be on record, until
    /// [`LogStore::recorded`] says which is.
    pub has_record: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            shards: 8,
            most_open_files: 128,
            cache_bytes: 32 << 20,
            kept_points: 8,
            most_superseded: 1 << 16,
            manifest_bytes: 1 << 20,
            step_bytes: 1 << 20,
            merge_runs: Tuning::default().merge_runs,
            small_run_bytes: 64 << 10,
            waste_percent: Tuning::default().waste_percent,
            small_segment_bytes: 4 << 20,
            small_segments: 16,
            rewrite_bytes: 64 << 20,
            owner: 0,
            has_record: false,
        }
    }
}

/// A folder with the documents of many vBuckets.
pub struct LogStore {
    pub(crate) files: Arc<Files>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) sync: Box<dyn GroupSync>,
}

/// A vBucket as of its last commit.
#[derive(Clone, Debug)]
pub struct StoredMeta {
    /// Which commit that is.
    pub commit: Commit,
    /// Highest seqno.
    pub high_seqno: u64,
    /// Seqno up to which tombstones may be missing.
    pub purge_seqno: u64,
    /// What the caller stored with it.
    pub state: Arc<[u8]>,
    /// What it takes.
    pub usage: Usage,
}

/// How a store does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Blocks in memory.
    pub cache: CacheStats,
    /// Files that are open.
    pub open_files: OpenFileStats,
    /// Runs of the key index.
    pub runs: u64,
    /// Bytes of them.
    pub run_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of them.
    pub segment_bytes: u64,
    /// Bytes of items in segments, before compression.
    pub item_bytes: u64,
    /// Bytes of those that count.
    pub live_bytes: u64,
    /// Bytes of replaced versions that are kept for rollbacks alone.
    pub rollback_bytes: u64,
    /// What was written.
    pub written: WrittenBytes,
}

impl LogStats {
    /// Bytes that were written for each byte that commits wrote into segments, since the store was opened; 0 before the
    /// first.
    pub fn write_amplification(&self) -> f64 {
        let written = self.written;
        if written.segments == 0 { 0.0 } else { written.all() as f64 / written.segments as f64 }
    }

    /// Bytes of files for each byte of items that count, as these would take compressed like all; 0 without any.
    pub fn space_amplification(&self) -> f64 {
        if self.item_bytes == 0 || self.live_bytes == 0 || self.segment_bytes == 0 {
            return 0.0;
        }
        let live = self.segment_bytes as f64 * self.live_bytes as f64 / self.item_bytes as f64;
        (self.segment_bytes + self.run_bytes) as f64 / live
    }
}

impl StoredMeta {
    fn of(meta: &VbMeta, usage: Usage) -> StoredMeta {
        let last = meta.last();
        StoredMeta {
            commit: Commit { epoch: meta.epoch(), number: last.commit },
            high_seqno: last.high,
            purge_seqno: last.purge,
            state: last.state.clone(),
            usage,
        }
    }
}

impl LogStore {
    pub(crate) fn shard_of(&self, vb: u16) -> usize {
        usize::from(vb) % self.shards.len()
    }

    pub(crate) fn shard(&self, vb: u16) -> &Shard {
        &self.shards[self.shard_of(vb)]
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.files.dir
    }

    /// From now on what is written notes this number: one of the caller's, which rises with each list of commits that the
    /// caller keeps. A list with a lower number is known to be older then: see [`crate::heads`].
    pub fn note(&self, number: u64) {
        self.files.beside.fetch_max(number, Ordering::Relaxed);
    }

    /// From now on new files are those of this folder, if it had no number before.
    pub fn owned(&self, owner: u128) {
        self.files.has_owner(owner);
    }

    /// From now on files are merged and rewritten as this says.
    pub fn tune(&self, tuning: Tuning) {
        *self.files.tuning.lock() = tuning;
    }

    /// From now on so much history is kept, and every vBucket has one that begins behind its last commit if it had none:
    /// that is durable when this returns. What is more than the limits goes with the next commits, and with the next steps;
    /// without a limit all of it goes at once.
    ///
    /// A caller that keeps its choice on record puts it there behind this if history is to be kept, and before this if not.
    ///
    /// # Errors
    ///
    /// If that fails, or a rollback is not decided. It is to be called again then: some histories may be gone, or begun.
    pub fn retain(&self, retention: Retention) -> Result<(), Failure> {
        let set = |retention| {
            std::mem::replace(&mut *self.files.keeping.limits.lock(), Limits { retention, now_s: 0 })
        };
        let before = *self.files.keeping.limits.lock();
        if !before.retention.is_on() || !retention.is_on() {
            set(Retention::default());
            // What is switched on later must not take these for its beginning.
            self.shards.iter().try_for_each(end_histories)?;
        }
        set(retention);
        if retention.is_on() { self.shards.iter().try_for_each(begin_histories) } else { Ok(()) }
    }

    /// The same for a store that was opened just now, of which [`LogStore::retain`] was told this before.
    pub fn retain_as_before(&self, retention: Retention) {
        *self.files.keeping.limits.lock() = Limits { retention, now_s: 0 };
    }

    /// How much history is kept.
    pub fn retention(&self) -> Retention {
        self.files.keeping.limits.lock().retention
    }

    /// How far a vBucket's history reaches back; `None` if there is no such vBucket.
    pub fn history(&self, vb: u16) -> Option<HistoryUsage> {
        Some(self.shard(vb).state.read().meta.vbs.get(&vb)?.history_usage())
    }

    /// This commit of a vBucket is on record: a start will not ask for an earlier one.
    pub fn recorded(&self, vb: u16, commit: u64) {
        self.shard(vb).state.write().recorded.insert(vb, commit);
    }

    /// A vBucket as it is now, for one read; `None` if there is none. It holds on to files of others, too.
    pub fn view(&self, vb: u16) -> Result<Option<View>, Failure> {
        self.shard(vb).view(vb)
    }

    /// A vBucket as it is now, to be read at leisure; `None` if there is none.
    pub fn snapshot(&self, vb: u16) -> Result<Option<View>, Failure> {
        Ok(self.view(vb)?.map(View::narrowed))
    }

    /// A vBucket as of its last commit; `None` if there is none.
    pub fn stored(&self, vb: u16) -> Result<Option<StoredMeta>, Failure> {
        let shard = self.shard(vb);
        let state = shard.state.read();
        shard.check(&state, vb)?;
        let usage = state.sizes.usage(vb).unwrap_or_default();
        Ok(state.meta.vbs.get(&vb).map(|meta| StoredMeta::of(meta, usage)))
    }

    /// The vBuckets that are stored, or that are refused.
    pub fn known(&self) -> Vec<u16> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let state = shard.state.read();
            all.extend(state.meta.vbs.keys().copied());
            all.extend(state.refused.keys().copied());
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Forgets a vBucket, durably; fine if there is none.
    pub fn delete(&self, vb: u16) -> Result<(), Failure> {
        self.shard(vb).delete(vb)
    }

    /// Refuses a vBucket until the next start, because what was worked out without it must not be used.
    pub fn refuse(&self, vb: u16, what: &str) {
        self.shard(vb).refuse(vb, what.into());
    }

    /// Goes back, durably, to the newest commit that is kept and has no seqno above `to`; without one the vBucket is
    /// forgotten. Says which commit is the last one now.
    pub fn rollback(&self, vb: u16, to: u64) -> Result<Option<Commit>, Failure> {
        self.shard(vb).rollback(vb, to, None)
    }

    /// The same in two steps: `before` is told of the commit when it is durable and not yet in force, or that the vBucket
    /// will be forgotten. If it fails the rollback is undecided: see [`LogStore::undecided`].
    pub fn rollback_with<E: From<Failure>>(
        &self,
        vb: u16,
        to: u64,
        before: &dyn Fn(Option<Commit>) -> Result<(), E>,
    ) -> Result<Option<Commit>, E> {
        self.shard(vb).rollback(vb, to, Some(before))
    }

    /// Shows `look` the last commit of a vBucket, if there is one, while no other can happen.
    pub fn with_last<E>(
        &self,
        vb: u16,
        look: &mut dyn FnMut(Commit) -> Result<(), E>,
        failed: impl Fn(Failure) -> E,
    ) -> Result<(), E> {
        let shard = self.shard(vb);
        let _writer = shard.writer.lock();
        let last = self.stored(vb).map_err(failed)?.map(|stored| stored.commit);
        last.map_or(Ok(()), look)
    }

    /// Copies the files that have something of a vBucket to another folder, durably. Says how many there are.
    pub fn copy_files(&self, vb: u16, to: &Path) -> Result<usize, Failure> {
        self.shard(vb).copy_files(vb, to)
    }

    /// vBuckets with a rollback that the caller could not put on record: a start adopts it if it is on record then.
    pub fn undecided(&self) -> Vec<u16> {
        let prepared = |shard: &Shard| shard.state.read().meta.prepared.keys().copied().collect::<Vec<_>>();
        self.shards.iter().flat_map(prepared).collect()
    }

    /// Such a rollback is not on record, and will not be.
    pub fn forget_rollback(&self, vb: u16) -> Result<(), Failure> {
        self.shard(vb).forget_rollback(vb)
    }

    /// Does a bounded piece of merging and rewriting. Says whether there was something to do. What fails is tried again
    /// later.
    pub fn step(&self) -> Result<bool, Failure> {
        let mut worked = false;
        let mut failed = None;
        for shard in &self.shards {
            match shard.step() {
                Ok(did) => worked |= did,
                Err(failure) => failed = Some(failure),
            }
        }
        failed.map_or(Ok(worked), Err)
    }

    /// Puts on record what is decided in memory only, so that a start that trusts the last commits finds it.
    pub fn settle(&self) -> Result<(), Failure> {
        self.shards.iter().try_for_each(|shard| shard.settle().map(drop))
    }

    /// Rewrites what a vBucket shares segments with, until its own items waste little. `observe` may end it between two
    /// steps.
    pub fn reclaim(&self, vb: u16, observe: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), Failure> {
        self.reclaim_all(&[vb].into(), observe)
    }

    /// The same for several vBuckets: what they share is rewritten once.
    pub fn reclaim_all(
        &self,
        vbs: &BTreeSet<u16>,
        observe: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        for shard in &self.shards {
            let mine = vbs.iter().copied().filter(|vb| self.shard_of(*vb) == shard.index);
            let mine: BTreeSet<u16> = mine.collect();
            if !mine.is_empty() {
                shard.reclaim(&mine, observe)?;
            }
        }
        Ok(())
    }

    /// What a vBucket takes; `None` if there is none.
    pub fn usage(&self, vb: u16) -> Option<Usage> {
        self.shard(vb).state.read().sizes.usage(vb)
    }

    /// How the store does.
    pub fn stats(&self) -> LogStats {
        let mut stats = LogStats {
            cache: self.cache.stats(),
            open_files: self.files.stats(),
            written: self.files.written(),
            ..LogStats::default()
        };
        for shard in &self.shards {
            let state = shard.state.read();
            stats.runs += state.meta.runs.len() as u64;
            stats.run_bytes += state.meta.runs.iter().map(|run| run.bytes).sum::<u64>();
            stats.segments += state.meta.segments.len() as u64;
            for segment in state.meta.segments.values() {
                stats.segment_bytes += segment.len;
                stats.item_bytes += segment.bytes;
            }
            stats.live_bytes += state.sizes.live_bytes();
            stats.rollback_bytes += state.meta.vbs.values().map(|meta| meta.pinned_bytes).sum::<u64>();
        }
        stats
    }
}
