//! A vBucket of a RocksDB database at one moment.

use std::cell::OnceCell;
use std::ops::ControlFlow;

use base::leb128::encode_leb128;
use base::{DocKey, Heap, Seqno, VbId, Version};
use logstore::Item;

use super::database::{Database, Family, Moment};
use super::layout::{Head, PREFIX, head_of, key_of, seqno_of, split, start_of, take_entry, take_seqno};
use super::store::item_in;
use crate::change::{Change, ChangesWanted, Reading};
use crate::collections::PREPARES;
use crate::failure::Failure;
use crate::log::item::{GONE, VersionMaker, is_left};
use crate::state::VbStateDoc;
use crate::store::{Snapshot, Values};

/// A vBucket at one moment.
pub(super) struct RocksSnapshot {
    moment: Moment,
    vb: VbId,
    head: Head,
    heap: Heap,
    /// Seqnos in `seqnos` that newer versions replaced, in order: they stay there for rollbacks.
    replaced: OnceCell<Vec<u64>>,
}

fn is_prepare(key: &[u8]) -> bool {
    DocKey::parse(key).is_some_and(|key| key.collection == PREPARES)
}

impl RocksSnapshot {
    /// `None` if there is no such vBucket.
    pub(super) fn of(moment: Moment, vb: VbId, heap: Heap) -> Result<Option<RocksSnapshot>, Failure> {
        let Some(bytes) = moment.get(vb, Family::State, &head_of(vb))? else { return Ok(None) };
        let head = Head::decode(&bytes).map_err(|what| moment.database().damaged(vb, what))?;
        Ok(Some(RocksSnapshot { moment, vb, head, heap, replaced: OnceCell::new() }))
    }

    fn database(&self) -> &Database {
        self.moment.database()
    }

    fn maker(&self) -> VersionMaker<'_> {
        VersionMaker { vb: self.vb, dir: self.database().folder(), heap: &self.heap }
    }

    fn replaced(&self) -> Result<&[u64], Failure> {
        if let Some(replaced) = self.replaced.get() {
            return Ok(replaced);
        }
        let mut replaced = Vec::new();
        if !self.head.kept.is_empty() {
            let mut walk = self.moment.walk(self.vb, Family::Undo, &start_of(self.vb));
            while let Some(value) = walk.value() {
                replaced.extend(take_entry(value).map(|entry| entry.seqno));
                walk.next();
            }
            walk.status().map_err(self.database().failed(self.vb, "read"))?;
            replaced.sort_unstable();
        }
        Ok(self.replaced.get_or_init(|| replaced))
    }

    /// Visits the newest versions from a seqno on.
    fn each(
        &self,
        from: Seqno,
        visit: &mut dyn FnMut(&Item<'_>) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<(), Failure> {
        let (vb, replaced) = (self.vb, self.replaced()?);
        let mut walk = self.moment.walk(vb, Family::Seqnos, &seqno_of(vb, from.0));
        while let Some((key, value)) = walk.item() {
            let seqno = split(key).and_then(|(_, rest)| take_seqno(rest));
            let seqno = seqno.ok_or_else(|| self.database().damaged(vb, "a seqno makes no sense"))?;
            if replaced.binary_search(&seqno).is_err() {
                let item = item_in(self.database(), vb, (seqno, value), None)?;
                if visit(&item)?.is_break() {
                    return Ok(());
                }
            }
            walk.next();
        }
        walk.status().map_err(self.database().failed(vb, "read"))
    }

    fn walk(
        &self,
        (from, prepares): (Seqno, bool),
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let maker = self.maker();
        self.each(from, &mut |item| {
            if !prepares && is_prepare(item.key) {
                return Ok(ControlFlow::Continue(()));
            }
            maker.version(item, values).map(&mut *visit)
        })
    }

    /// The version that an entry of `keys` names.
    fn named(
        &self,
        stored_key: &[u8],
        entry: &[u8],
        work: &mut dyn FnMut(&Item<'_>) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<ControlFlow<()>, Failure> {
        let (database, vb) = (self.database(), self.vb);
        let entry =
            take_entry(entry).ok_or_else(|| database.damaged(vb, "an entry of a key makes no sense"))?;
        let bytes = self.moment.get_pinned(vb, Family::Seqnos, &seqno_of(vb, entry.seqno))?;
        let bytes = bytes.ok_or_else(|| database.damaged(vb, "a version that a key names is not there"))?;
        work(&item_in(database, vb, (entry.seqno, &bytes), Some(stored_key))?)
    }
}

impl Snapshot for RocksSnapshot {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        Ok(self.head.state.state.clone())
    }

    fn high_seqno(&self) -> Seqno {
        Seqno(self.head.high_seqno)
    }

    fn purge_seqno(&self) -> Seqno {
        Seqno(self.head.purge_seqno)
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let stored_key = key.to_stored().0;
        let entry = self.moment.get(self.vb, Family::Keys, &key_of(self.vb, &stored_key))?;
        let Some(entry) = entry else { return Ok(None) };
        let (maker, mut found) = (self.maker(), None);
        self.named(&stored_key, &entry, &mut |item| {
            found = Some(maker.version(item, Values::Read)?);
            Ok(ControlFlow::Break(()))
        })
        .map(|_| found)
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk((from, false), values, visit)
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk((from, true), values, visit)
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        _: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        let (maker, mut bytes, mut next) = (self.maker(), 0, None);
        self.each(wanted.from, &mut |item| {
            if !wanted.prepares && is_prepare(item.key) {
                return Ok(ControlFlow::Continue(()));
            }
            if bytes >= wanted.max_bytes.max(1) {
                next = Some(Seqno(item.seqno));
                return Ok(ControlFlow::Break(()));
            }
            let (key, meta) = maker.meta(item)?;
            let value = (!is_left(wanted.values, item, key)).then_some(item.value);
            let change = Change::stored(meta, item.key, key, value);
            bytes += change.bytes();
            Ok(visit(&change))
        })?;
        Ok(next)
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        let (prefix, len) = encode_leb128(PREPARES.0);
        let prefix = key_of(self.vb, &prefix[..len]);
        let mut sum = 0;
        let mut walk = self.moment.walk(self.vb, Family::Keys, &prefix);
        while let Some((_, value)) = walk.item().filter(|(key, _)| key.starts_with(&prefix)) {
            let entry = take_entry(value).filter(|entry| entry.flags & GONE == 0);
            sum += entry.map_or(0, |entry| u64::from(entry.bytes));
            walk.next();
        }
        walk.status().map_err(self.database().failed(self.vb, "read"))?;
        Ok(sum)
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let maker = self.maker();
        let mut walk = self.moment.walk(self.vb, Family::Keys, &key_of(self.vb, from));
        while let Some((key, entry)) = walk.item() {
            let stored_key = &key[PREFIX..];
            if !is_prepare(stored_key) {
                let each = &mut |item: &Item<'_>| maker.version(item, values).map(&mut *visit);
                if self.named(stored_key, entry, each)?.is_break() {
                    return Ok(());
                }
            }
            walk.next();
        }
        walk.status().map_err(self.database().failed(self.vb, "read"))
    }
}
