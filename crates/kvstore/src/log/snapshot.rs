//! A vBucket of a log-structured store at one moment.

use std::ops::ControlFlow;
use std::path::PathBuf;

use base::leb128::encode_leb128;
use base::{DocKey, Heap, Seqno, VbId, Version};
use logstore::{Item, View};

use super::item::{GONE, VersionMaker, is_left};
use super::{decode_state, failed};
use crate::change::{Change, ChangesWanted, Reading, document_key};
use crate::collections::{PREPARES, SYSTEM};
use crate::failure::{Failure, Trouble};
use crate::manifest::StoredManifest;
use crate::state::VbStateDoc;
use crate::store::{Snapshot, Values};

/// A vBucket at one moment.
pub(super) struct LogSnapshot {
    pub(super) vb: VbId,
    pub(super) view: View,
    pub(super) dir: PathBuf,
    pub(super) heap: Heap,
}

fn is_prepare(key: &[u8]) -> bool {
    DocKey::parse(key).is_some_and(|key| key.collection == PREPARES)
}

/// Whether a key is that of a document in a collection that is not there any more: ids are not used again.
fn is_dropped(now: &StoredManifest, key: DocKey<'_>) -> bool {
    let Some(document) = document_key(key).filter(|key| key.collection != SYSTEM) else { return false };
    now.open.binary_search_by_key(&document.collection, |one| one.collection.id).is_err()
}

impl LogSnapshot {
    fn maker(&self) -> VersionMaker<'_> {
        VersionMaker { vb: self.vb, dir: &self.dir, heap: &self.heap }
    }

    fn walk(
        &self,
        from: Seqno,
        prepares: bool,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let maker = self.maker();
        let walked = self.view.scan(from.0, |item| {
            if !prepares && is_prepare(item.key) {
                return Ok(ControlFlow::Continue(()));
            }
            maker.version(item, values).map(&mut *visit).map_err(Trouble::Ours)
        });
        walked.map_err(|trouble: Trouble<logstore::Failure>| trouble.into_failure(failed(self.vb)))
    }
}

impl Snapshot for LogSnapshot {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        decode_state(self.vb, &self.dir, self.view.state()).map(|state| state.state)
    }

    fn high_seqno(&self) -> Seqno {
        Seqno(self.view.high_seqno())
    }

    fn purge_seqno(&self) -> Seqno {
        Seqno(self.view.purge_seqno())
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let maker = self.maker();
        let found = self.view.get(&key.to_stored().0, |item| maker.version(item, Values::Read));
        found.map_err(failed(self.vb))?.transpose()
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk(from, false, values, visit)
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk(from, true, values, visit)
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        _: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        let (maker, mut bytes, mut next) = (self.maker(), 0, None);
        let now = wanted.past.then(|| decode_state(self.vb, &self.dir, self.view.state())).transpose()?;
        let visit = |item: &Item<'_>| {
            if !wanted.prepares && is_prepare(item.key) {
                return Ok(ControlFlow::Continue(()));
            }
            if bytes >= wanted.max_bytes.max(1) {
                next = Some(Seqno(item.seqno));
                return Ok(ControlFlow::Break(()));
            }
            let (key, meta) = maker.meta(item).map_err(Trouble::Ours)?;
            // A compaction leaves older versions of what was dropped to the limits of the history.
            if now.as_ref().is_some_and(|now| is_dropped(&now.manifest, key)) {
                return Ok(ControlFlow::Continue(()));
            }
            let value = (!is_left(wanted.values, item, key)).then_some(item.value);
            let change = Change::stored(meta, item.key, key, value);
            bytes += change.bytes();
            Ok(visit(&change))
        };
        let walked = match wanted.past {
            true => self.view.scan_history(wanted.from.0, visit),
            false => self.view.scan(wanted.from.0, visit),
        };
        walked.map_err(|trouble: Trouble<logstore::Failure>| trouble.into_failure(failed(self.vb)))?;
        Ok(next)
    }

    fn history_start(&self) -> Seqno {
        Seqno(self.view.history_start())
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        let (prefix, len) = encode_leb128(PREPARES.0);
        let mut sum = 0;
        let walked = self.view.entries::<logstore::Failure>(&prefix[..len], |key, entry| {
            if !key.starts_with(&prefix[..len]) {
                return Ok(ControlFlow::Break(()));
            }
            if entry.flags & GONE == 0 {
                sum += u64::from(entry.bytes);
            }
            Ok(ControlFlow::Continue(()))
        });
        walked.map(|()| sum).map_err(failed(self.vb))
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let maker = self.maker();
        let walked = self.view.scan_keys(from, |item| {
            if is_prepare(item.key) {
                return Ok(ControlFlow::Continue(()));
            }
            maker.version(item, values).map(&mut *visit).map_err(Trouble::Ours)
        });
        walked.map_err(|trouble: Trouble<logstore::Failure>| trouble.into_failure(failed(self.vb)))
    }
}
