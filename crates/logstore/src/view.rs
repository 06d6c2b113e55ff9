//! A vBucket at one moment: what is committed, merged or rewritten meanwhile does not show. Files stay until it is dropped.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::cache::BlockCache;
use crate::failure::Failure;
use crate::filter;
use crate::meta::VbMeta;
use crate::run::{Entry, Merged, Run, run_key, split_key};
use crate::segment::{ExtentReader, Item, Segment};

/// A vBucket at one moment.
pub struct View {
    pub(crate) vb: u16,
    pub(crate) meta: Arc<VbMeta>,
    /// The newest first.
    pub(crate) runs: Arc<Vec<Arc<Run>>>,
    pub(crate) segments: Arc<BTreeMap<u64, Arc<Segment>>>,
    pub(crate) cache: Arc<BlockCache>,
}

impl View {
    /// Lets go of the files that have nothing of the vBucket.
    pub(crate) fn narrowed(self) -> View {
        let runs = self.runs.iter().filter(|run| run.has_vb(self.vb)).cloned().collect();
        let used = self.meta.extents.iter().filter_map(|extent| {
            let segment = self.segments.get(&extent.segment)?;
            Some((extent.segment, segment.clone()))
        });
        let segments = used.collect();
        View { runs: Arc::new(runs), segments: Arc::new(segments), ..self }
    }

    /// Highest seqno that was committed.
    pub fn high_seqno(&self) -> u64 {
        self.meta.high()
    }

    /// The purge seqno of the last commit.
    pub fn purge_seqno(&self) -> u64 {
        self.meta.last().purge
    }

    /// What the caller stored with the last commit.
    pub fn state(&self) -> &[u8] {
        &self.meta.last().state
    }

    /// Epoch and number of the last commit.
    pub fn commit(&self) -> Commit {
        Commit { epoch: self.meta.epoch(), number: self.meta.last().commit }
    }

    /// Bytes of all its items, and of those that count.
    pub fn bytes(&self) -> (u64, u64) {
        self.meta.bytes()
    }

    /// The newest version of a key, without its value.
    pub fn find(&self, key: &[u8]) -> Result<Option<Entry>, Failure> {
        let key = run_key(self.vb, key);
        let hash = filter::hash(&key);
        let mut found = None;
        for run in self.runs.iter().filter(|run| run.has_vb(self.vb)) {
            run.versions(&self.cache, &key, hash, &mut |stored| {
                if self.meta.sees(stored.epoch, stored.entry.seqno) {
                    found = Some(*stored);
                }
                found.is_none()
            })?;
            if let Some(stored) = found {
                return Ok((!stored.is_erased).then_some(stored.entry));
            }
        }
        Ok(None)
    }

    /// The newest version of a key, given to `read`.
    pub fn get<T>(&self, key: &[u8], read: impl FnOnce(&Item<'_>) -> T) -> Result<Option<T>, Failure> {
        match self.find(key)? {
            None => Ok(None),
            Some(entry) => self.read(key, entry.seqno, read).map(Some),
        }
    }

    /// The version of a key that has a seqno.
    pub(crate) fn read<T>(
        &self,
        key: &[u8],
        seqno: u64,
        read: impl FnOnce(&Item<'_>) -> T,
    ) -> Result<T, Failure> {
        let missing = |what: &str| Failure::Refused { vb: self.vb, what: what.into() };
        let extent = self.meta.extent_of(seqno).ok_or_else(|| {
            missing(&format!("its index has seqno {seqno}, and no segment has; restore it from a copy"))
        })?;
        let segment = self.segment(extent.segment)?;
        let found =
            segment.get((self.vb, extent.ordinal), seqno, |item| (item.key == key).then(|| read(item)))?;
        let damaged = || Failure::damaged(segment.file.path(), 0, "an item that the index names is missing");
        found.flatten().ok_or_else(damaged)
    }

    fn segment(&self, number: u64) -> Result<&Arc<Segment>, Failure> {
        let missing =
            || Failure::Refused { vb: self.vb, what: format!("segment {number} is not on record").into() };
        self.segments.get(&number).ok_or_else(missing)
    }

    /// Visits what is there from a seqno on, in order of seqno, until `visit` breaks.
    pub fn scan<E: From<Failure>>(
        &self,
        from: u64,
        visit: impl FnMut(&Item<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        self.scan_those(from, |seqno| self.meta.is_live(seqno), visit)
    }

    fn scan_those<E: From<Failure>>(
        &self,
        from: u64,
        is_there: impl Fn(u64) -> bool,
        mut visit: impl FnMut(&Item<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let start = self.meta.extents.partition_point(|extent| extent.last < from);
        for extent in &self.meta.extents[start..] {
            let segment = self.segment(extent.segment)?;
            let mut reader = ExtentReader::new(segment, self.vb, extent.ordinal, from)?;
            while let Some(item) = reader.next()? {
                if item.seqno > extent.last {
                    break;
                }
                if item.seqno < from || !is_there(item.seqno) {
                    continue;
                }
                if visit(&item)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The first seqno of its history; 0 if none is kept.
    pub fn history_start(&self) -> u64 {
        self.meta.history.start
    }

    /// Visits items from a seqno on, in order of seqno, until `visit` breaks: from the history's start on those that were
    /// replaced, too.
    pub fn scan_history<E: From<Failure>>(
        &self,
        from: u64,
        visit: impl FnMut(&Item<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let is_there = |seqno| self.meta.is_live(seqno) || self.meta.history.retained.contains(seqno);
        self.scan_those(from, is_there, visit)
    }

    /// Visits keys from one on, in order, each with what is known of its newest version, until `visit` breaks.
    pub fn entries<E: From<Failure>>(
        &self,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &Entry) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let runs = self.runs.iter().filter(|run| run.has_vb(self.vb));
        let mut merged = Merged::new(runs, &run_key(self.vb, from))?;
        let mut last: Option<Vec<u8>> = None;
        while let Some((run_key, stored)) = merged.current() {
            let Some((vb, key)) = split_key(run_key) else { break };
            if vb != self.vb {
                break;
            }
            let is_newest = self.meta.sees(stored.epoch, stored.entry.seqno) && last.as_deref() != Some(key);
            if is_newest {
                if !stored.is_erased && visit(key, &stored.entry)?.is_break() {
                    return Ok(());
                }
                let mut key_of = last.take().unwrap_or_default();
                key_of.clear();
                key_of.extend_from_slice(key);
                last = Some(key_of);
            }
            merged.advance()?;
        }
        Ok(())
    }

    /// Visits what is there from a key on, in order of key, until `visit` breaks.
    pub fn scan_keys<E: From<Failure>>(
        &self,
        from: &[u8],
        mut visit: impl FnMut(&Item<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        self.entries(from, |key, entry| self.read(key, entry.seqno, |item| visit(item))?)
    }
}

/// A commit of a vBucket, as the caller may put it on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Commit {
    /// Grows when the vBucket is deleted and made again, and with each rollback.
    pub epoch: u64,
    /// No other commit of the shard has this number.
    pub number: u64,
}
