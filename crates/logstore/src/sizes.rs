//! What vBuckets take, kept from one change to the next.
//!
//! *Guarantee:* the shares of all vBuckets of a shard add up to the bytes of its files, but for rounding.

use std::collections::BTreeMap;

/// What a vBucket takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of its items in all segments, before compression.
    pub bytes: u64,
    /// Bytes of those that count.
    pub live_bytes: u64,
    /// Its share of the bytes of all files of its shard, in proportion to its items.
    pub file_bytes: u64,
    /// Bytes of them for the items that count.
    pub used_bytes: u64,
}

/// Bytes of a shard's vBuckets and files.
#[derive(Default)]
pub(crate) struct Sizes {
    /// Bytes of the items of each vBucket, and of those that count.
    of_vbs: BTreeMap<u16, (u64, u64)>,
    /// Bytes of the items of all of them.
    all: u64,
    /// Bytes of all files.
    files: u64,
}

impl Sizes {
    /// What a vBucket has from now on; `None` if it is not there.
    pub(crate) fn set(&mut self, vb: u16, bytes: Option<(u64, u64)>) {
        let before = match bytes {
            Some(bytes) => self.of_vbs.insert(vb, bytes),
            None => self.of_vbs.remove(&vb),
        };
        let items = |bytes: Option<(u64, u64)>| bytes.map_or(0, |(all, _)| all);
        self.all = (self.all + items(bytes)).saturating_sub(items(before));
    }

    /// Bytes of a vBucket's items, and of those that count.
    pub(crate) fn of(&self, vb: u16) -> (u64, u64) {
        self.of_vbs.get(&vb).copied().unwrap_or_default()
    }

    /// Bytes of items that count, of all vBuckets.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.of_vbs.values().map(|(_, live)| live).sum()
    }

    /// The files have so many bytes: segments and runs, and the manifest.
    pub(crate) fn set_files(&mut self, files: u64, manifest: u64) {
        self.files = files + manifest;
    }

    /// What a vBucket takes; `None` if there is none.
    pub(crate) fn usage(&self, vb: u16) -> Option<Usage> {
        let (bytes, live_bytes) = *self.of_vbs.get(&vb)?;
        // One without items has a part of the manifest.
        let (part, all) = (u128::from(bytes) + 1, u128::from(self.all) + self.of_vbs.len() as u128);
        let file_bytes = (u128::from(self.files) * part / all) as u64;
        let live = u128::from(live_bytes.min(bytes)) + 1;
        let used_bytes = (u128::from(file_bytes) * live / part) as u64;
        Some(Usage { bytes, live_bytes, file_bytes, used_bytes })
    }
}
