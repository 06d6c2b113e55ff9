//! The eight bytes of a key that tell most keys apart.

use std::borrow::Borrow;
use std::cmp::Ordering;

use base::Version;

use super::{AHEAD, key, prefetch};

/// How many bytes of a key a part holds; one less with the length.
const PART: usize = 8;
/// So many keys are looked at to guess what all of them are like.
const SAMPLES: usize = 64;

/// How parts are taken from the keys of a batch.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// Bytes that all keys begin with.
    shared: usize,
    /// Whether a part holds all of the rest of its key, with the rest's length in the last byte: equal parts then mean
    /// equal keys.
    pub(super) exact: bool,
    /// Whether versions stand in order of their seqnos, once all were looked at.
    pub(super) in_order: bool,
}

impl Parts {
    /// What some of the keys look like.
    pub(super) fn guess<V: Borrow<Version>>(items: &[V]) -> Parts {
        let some = || items.iter().step_by(items.len().div_ceil(SAMPLES)).map(key);
        let shared = common_prefix(some());
        let exact = some().all(|key| key.len() - shared < PART);
        Parts { shared, exact, in_order: true }
    }

    /// Visits the part of each key, in order, until `visit` returns false. Another way to take parts is returned if
    /// this one does not fit all keys.
    pub(super) fn each<V: Borrow<Version>>(
        &mut self,
        items: &[V],
        mut visit: impl FnMut(&Parts, usize, u64) -> bool,
    ) -> Result<bool, Parts> {
        let prefix = &key(&items[0])[..self.shared];
        let mut seqno = None;
        self.in_order = true;
        for (i, item) in items.iter().enumerate() {
            prefetch(items, i + AHEAD);
            let key = key(item);
            if !key.starts_with(prefix) {
                let shared = common_prefix([prefix, key].into_iter());
                return Err(Parts { shared, exact: false, ..*self });
            }
            let rest = &key[self.shared..];
            if self.exact && rest.len() >= PART {
                return Err(Parts { exact: false, ..*self });
            }
            let part = first_eight(rest) | if self.exact { rest.len() as u64 } else { 0 };
            let next = Some(item.borrow().meta().by_seqno);
            self.in_order &= seqno < next;
            seqno = next;
            if !visit(self, i, part) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares two keys with their parts.
    pub(super) fn compare(&self, a: (u64, &[u8]), b: (u64, &[u8])) -> Ordering {
        a.0.cmp(&b.0).then_with(|| if self.exact { Ordering::Equal } else { self.behind(a.1, b.1) })
    }

    /// Compares two keys whose parts are the same.
    pub(super) fn behind(&self, a: &[u8], b: &[u8]) -> Ordering {
        let behind = self.shared + PART;
        if a.len() > behind && b.len() > behind {
            return a[behind..].cmp(&b[behind..]);
        }
        // what one has and the other has not is zeros, or lies behind
        a.len().cmp(&b.len())
    }
}

/// How many bytes all of `keys` begin with in common.
fn common_prefix<'a>(mut keys: impl Iterator<Item = &'a [u8]>) -> usize {
    let Some(first) = keys.next() else { return 0 };
    keys.fold(first.len(), |len, key| first[..len].iter().zip(key).take_while(|(a, b)| a == b).count())
}

/// The first eight bytes as a number that compares as they do; behind the end come zeros.
fn first_eight(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => bytes.iter().rev().fold(0, |n, &byte| n >> 8 | u64::from(byte) << 56),
    }
}
