//! Numbers and bytes of the store's files: unsigned LEB128 and little-endian words.

use base::leb128::{put_leb128, take_leb128};
use roaring::RoaringTreemap;

/// Bytes that are put together.
#[derive(Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn u8(&mut self, n: u8) {
        self.0.push(n);
    }

    pub(crate) fn number(&mut self, n: u64) {
        put_leb128(&mut self.0, n);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A set, as the ranges between its members.
    pub(crate) fn set(&mut self, set: &RoaringTreemap) {
        self.number(set.len());
        let mut last = 0;
        for seqno in set {
            self.number(seqno - last);
            last = seqno;
        }
    }
}

/// Bytes that are taken apart; `None` where they end too early or make no sense.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        take_leb128(&mut self.0)
    }

    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.small()?;
        self.take(len)
    }

    /// A count of things that take a byte each at least, so that no length asks for more room than there are bytes.
    pub(crate) fn count(&mut self) -> Option<usize> {
        let count: usize = self.small()?;
        (count <= self.0.len()).then_some(count)
    }

    pub(crate) fn set(&mut self) -> Option<RoaringTreemap> {
        let count = self.count()?;
        let mut set = RoaringTreemap::new();
        let mut last = 0u64;
        for _ in 0..count {
            last = last.checked_add(self.number()?)?;
            set.insert(last);
        }
        Some(set)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
