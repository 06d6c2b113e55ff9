//! A store that lets something happen in the middle of a compaction, so that there is something to catch up with.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::{DocKey, Seqno, VbId, Version};
use kvstore::{
    Background, Compacted, Compaction, Counts, Failure, HistoryRetention, HistoryUsage, KvStore, RolledBack,
    SaveBatch, Snapshot, States, Stats, StoredVb, Usage, Values, VbStateDoc, VbucketFile, catalog::StoreId,
};
use parking_lot::Mutex;

type Hook = Box<dyn FnOnce() + Send>;

/// The store that a bucket has.
pub struct Hooked {
    inner: Box<dyn KvStore>,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    pub fn new(inner: Box<dyn KvStore>) -> Arc<Hooked> {
        Arc::new(Hooked { inner, hook: Mutex::default() })
    }

    /// Something that happens once, in the middle of the next compaction.
    pub fn amid_compaction(&self, hook: Hook) {
        *self.hook.lock() = Some(hook);
    }
}

impl KvStore for Hooked {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        self.inner.save_group(group)
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        self.inner.get(vb, key)
    }

    fn get_many(&self, vb: VbId, keys: &[DocKey<'_>]) -> Vec<Result<Option<Version>, Failure>> {
        self.inner.get_many(vb, keys)
    }

    fn snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        self.inner.snapshot(vb)
    }

    fn scan(
        &self,
        vb: VbId,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.inner.scan(vb, from, values, visit)
    }

    fn states(&self) -> Result<States, Failure> {
        self.inner.states()
    }

    fn stored_vbucket(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        self.inner.stored_vbucket(vb)
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        self.inner.counts(vb)
    }

    fn usage(&self, vb: VbId) -> Option<Usage> {
        self.inner.usage(vb)
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.inner.delete_vbucket(vb)
    }

    fn set_aside(&self, vb: VbId, to: &std::path::Path) -> Result<(), Failure> {
        self.inner.set_aside(vb, to)
    }

    fn rollback(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        self.inner.rollback(vb, to)
    }

    fn compact(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        let looks = Cell::new(0);
        let observe = |progress| {
            looks.set(looks.get() + 1);
            if looks.get() == 2
                && let Some(hook) = self.hook.lock().take()
            {
                hook();
            }
            (request.observe)(progress)
        };
        self.inner.compact(vb, &Compaction { observe: &observe, ..*request })
    }

    fn keep_history(&self, retention: HistoryRetention) -> Result<(), Failure> {
        self.inner.keep_history(retention)
    }

    fn keeps_history(&self) -> bool {
        self.inner.keeps_history()
    }

    fn history(&self, vb: VbId) -> HistoryUsage {
        self.inner.history(vb)
    }

    fn has_vbucket_files(&self) -> bool {
        self.inner.has_vbucket_files()
    }

    fn vbucket_file(&self, vb: VbId) -> Result<Option<VbucketFile>, Failure> {
        self.inner.vbucket_file(vb)
    }

    fn adopt_file(&self, vb: VbId, file: &Path, state: &VbStateDoc) -> Result<Option<StoredVb>, Failure> {
        self.inner.adopt_file(vb, file, state)
    }

    fn history_snapshot(&self, vb: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        self.inner.history_snapshot(vb)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn background_step(&self) -> Result<Background, Failure> {
        self.inner.background_step()
    }

    fn hold_at_most(&self, bytes: u64) {
        self.inner.hold_at_most(bytes);
    }

    fn is_journaled(&self) -> bool {
        self.inner.is_journaled()
    }

    fn was_closed(&self) -> Option<bool> {
        self.inner.was_closed()
    }

    fn store_id(&self) -> Result<Option<StoreId>, Failure> {
        self.inner.store_id()
    }

    fn close(&self) -> Result<(), Failure> {
        self.inner.close()
    }
}
