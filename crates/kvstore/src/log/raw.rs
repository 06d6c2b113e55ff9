//! Items as they are stored, which a repair takes from one store to another without looking at them.

use base::VbId;
use logstore::{Batch, Item, Replaced, Sealed, View};

use super::{Log, failed};
use crate::failure::Failure;

/// An item that was read.
pub(crate) struct OwnedItem {
    key: Box<[u8]>,
    seqno: u64,
    flags: u8,
    time: u32,
    meta: Box<[u8]>,
    value: Box<[u8]>,
}

impl OwnedItem {
    pub(crate) fn of(item: &Item<'_>) -> OwnedItem {
        OwnedItem {
            key: item.key.into(),
            seqno: item.seqno,
            flags: item.flags,
            time: item.time,
            meta: item.meta.into(),
            value: item.value.into(),
        }
    }
}

/// Items with what is stored beside them.
struct RawBatch<'a> {
    vb: VbId,
    items: Vec<OwnedItem>,
    sealed: &'a Sealed,
}

impl Batch for RawBatch<'_> {
    fn vb(&self) -> u16 {
        self.vb.0
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    fn key(&self, at: usize) -> &[u8] {
        &self.items[at].key
    }

    fn seqno(&self, at: usize) -> u64 {
        self.items[at].seqno
    }

    fn item<'s>(&'s self, at: usize, _: &'s mut Vec<u8>) -> Item<'s> {
        let OwnedItem { key, seqno, flags, time, meta, value } = &self.items[at];
        Item { key, seqno: *seqno, flags: *flags, time: *time, meta, value }
    }

    fn seal(&mut self, _: Option<&View>, _: &[Replaced]) -> Result<Sealed, String> {
        Ok(self.sealed.clone())
    }
}

impl Log {
    /// Commits items of a vBucket, which have higher seqnos than all before, with what is stored beside them.
    pub(crate) fn commit_items(
        &self,
        vb: VbId,
        mut items: Vec<OwnedItem>,
        sealed: &Sealed,
    ) -> Result<(), Failure> {
        self.begin_writing()?;
        items.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(b.seqno.cmp(&a.seqno)));
        items.dedup_by(|later, first| later.key == first.key);
        let mut batch = RawBatch { vb, items, sealed };
        let mut committed = self.store.commit(&mut [&mut batch]);
        committed.pop().expect("an answer for each batch").map(drop).map_err(failed(vb))
    }
}
