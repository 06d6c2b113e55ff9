//! The bytes of one simulated file: sparse pages that copies share until they write.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;
type Page = [u8; PAGE as usize];

/// File content. Cloning shares the pages, so that many crash states of one disk stay cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

/// Cuts `len` bytes at `offset` into (page number, start in the page, range of the buffer).
fn cut(offset: u64, len: usize, unit: u64) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % unit) as usize;
        let part = (unit as usize - start).min(len - done);
        let range = done..done + part;
        done += part;
        Some((at / unit, start, range))
    })
}

/// Cuts a write into the sectors it touches.
pub(super) fn sectors(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    cut(offset, len, super::SECTOR_BYTES)
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` as far as the file reaches; holes read as zeros.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let rest = self.len.saturating_sub(offset);
        let len = usize::try_from(rest).unwrap_or(usize::MAX).min(buf.len());
        for (page, start, range) in cut(offset, len, PAGE) {
            let size = range.len();
            match self.pages.get(&page) {
                Some(bytes) => buf[range].copy_from_slice(&bytes[start..start + size]),
                None => buf[range].fill(0),
            }
        }
        len
    }

    /// The bytes of one sector; zeros where the file does not reach.
    pub(super) fn sector(&self, sector: u64) -> [u8; super::SECTOR_BYTES as usize] {
        let mut bytes = [0; super::SECTOR_BYTES as usize];
        self.read_at(&mut bytes, sector * super::SECTOR_BYTES);
        bytes
    }

    /// Writes, growing the file if need be.
    pub(super) fn write_at(&mut self, buf: &[u8], offset: u64) {
        for (page, start, range) in cut(offset, buf.len(), PAGE) {
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(bytes)[start..start + range.len()].copy_from_slice(&buf[range]);
        }
        if !buf.is_empty() {
            self.len = self.len.max(offset + buf.len() as u64);
        }
    }

    /// Cuts, or extends with zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            drop(self.pages.split_off(&len.div_ceil(PAGE)));
            if let Some(last) = self.pages.get_mut(&(len / PAGE)) {
                Arc::make_mut(last)[(len % PAGE) as usize..].fill(0);
            }
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_vector(ops in proptest::collection::vec((0_u64..20_000, 0_usize..9000, any::<u8>(), any::<bool>()), 1..20)) {
            let mut content = Content::default();
            let mut model: Vec<u8> = Vec::new();
            for (offset, len, byte, write) in ops {
                if write {
                    content.write_at(&vec![byte; len], offset);
                    if len > 0 {
                        let end = offset as usize + len;
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].fill(byte);
                    }
                } else {
                    content.set_len(offset);
                    model.resize(offset as usize, 0);
                }
                let mut all = vec![1; model.len() + 10];
                prop_assert_eq!(content.read_at(&mut all, 0), model.len());
                prop_assert_eq!(&all[..model.len()], &model[..]);
            }
        }
    }
}
