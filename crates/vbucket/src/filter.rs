//! Which keys may have left memory: a filter that grows by layers and never says of a key in it that it is not.
//!
//! A layer is a blocked Bloom filter: a hash chooses one block of 512 bits, one cache line, and some bits of it.
//! When the newest layer holds as many keys as it was made for, another one is added, as large as all before it.
//! Each layer is wrong less often than the one before, so that all of them together stay below what was asked for.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Account;
use base::memory::Part;

#[cfg(test)]
mod tests;

/// Words of a block.
const BLOCK: usize = 8;
/// Keys that the first layer of a filter is made for, if nobody knows better.
const LEAST_KEYS: u64 = 512;
/// The first layer's share of what the filter may be wrong, and how much less each further one has: they sum up to 1.
const FIRST_SHARE: f64 = 0.4;
const SHRINK: f64 = 0.6;
/// No layer is made to be wrong less often.
const LEAST_WRONG: f64 = 1e-5;
/// What a filter is called with is a hash that other structures use too; this makes another one of it.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// A bit of a block takes so many bits of a hash,
const BIT_BITS: u32 = 9;
/// and so many of them are in one word.
const BITS_OF_WORD: u32 = 7;

/// What filters of a bucket are made with; may be changed at any time.
#[derive(Debug, Default)]
pub struct FilterSettings {
    /// Thousandths; 0 if there are to be no filters.
    wrong_per_mille: AtomicU64,
}

impl FilterSettings {
    /// How often of a thousand times filters made from now on may be wrong; nothing for no filters.
    pub fn set(&self, wrong_per_mille: Option<u64>) {
        self.wrong_per_mille.store(wrong_per_mille.map_or(0, |wrong| wrong.clamp(1, 999)), Ordering::Relaxed);
    }

    /// How often filters may be wrong, of 1; nothing if there are to be none.
    pub fn wrong_share(&self) -> Option<f64> {
        match self.wrong_per_mille.load(Ordering::Relaxed) {
            0 => None,
            wrong => Some(wrong as f64 / 1000.0),
        }
    }
}

/// A set of keys that may hold more than was put in, and never less.
pub struct Filter {
    account: Account,
    layers: Vec<Layer>,
    wrong_share: f64,
    keys: u64,
}

struct Layer {
    /// Blocks, from the first cache line on that is wholly in it.
    words: Box<[u64]>,
    first: usize,
    blocks: u64,
    bits_per_key: u32,
    keys: u64,
    room: u64,
}

/// Bits that a layer takes for each key, and how many of them a key sets, so that it is wrong at most so often. The
/// blocks of a layer are not equally full, which costs some bits; the tests hold the formula to the exact sum.
fn shape(wrong_share: f64) -> (f64, u32) {
    let halvings = (1.0 / wrong_share).log2();
    let bits = 1.44 * halvings * (1.0 + halvings / 70.0) + 0.5;
    (bits, (0.95 * halvings).round().max(1.0) as u32)
}

#[inline]
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(MIX);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ word >> 31
}

/// Word and bit in its block of each bit that a key sets.
fn bits(hash: u64, count: u32) -> impl Iterator<Item = (usize, u64)> {
    let (mut word, mut rest) = (hash, 0);
    (0..count).map(move |at| {
        if at % BITS_OF_WORD == 0 {
            word = mix(word);
            rest = word;
        } else {
            rest >>= BIT_BITS;
        }
        (rest as usize >> 6 & (BLOCK - 1), 1 << (rest & 63))
    })
}

impl Layer {
    fn new(room: u64, wrong_share: f64) -> Layer {
        let (bits, bits_per_key) = shape(wrong_share.max(LEAST_WRONG));
        let blocks = ((room as f64 * bits / (BLOCK * 64) as f64).ceil() as u64).max(1);
        // Zeroed memory comes from the system as it is touched, so that a large layer costs nothing at once.
        let words = vec![0; (blocks as usize + 1) * BLOCK].into_boxed_slice();
        let first = words.as_ptr().align_offset(BLOCK * 8).min(BLOCK);
        Layer { words, first, blocks, bits_per_key, keys: 0, room }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Where the block of a hash begins.
    fn block(&self, hash: u64) -> usize {
        let at = (u128::from(hash) * u128::from(self.blocks)) >> 64;
        self.first + at as usize * BLOCK
    }

    fn holds(&self, hash: u64) -> bool {
        let block = self.block(hash);
        bits(hash, self.bits_per_key).all(|(word, bit)| self.words[block + word] & bit != 0)
    }

    fn insert(&mut self, hash: u64) {
        let block = self.block(hash);
        bits(hash, self.bits_per_key).for_each(|(word, bit)| self.words[block + word] |= bit);
        self.keys += 1;
    }
}

impl Filter {
    /// A filter that is wrong at most this often, of 1, with room for so many keys before it has to grow.
    pub fn new(account: &Account, wrong_share: f64, keys: u64) -> Filter {
        let mut filter = Filter { account: account.clone(), layers: Vec::new(), wrong_share, keys: 0 };
        filter.grow(keys);
        filter
    }

    fn grow(&mut self, room: u64) {
        let wrong_share = self.wrong_share * FIRST_SHARE * SHRINK.powi(self.layers.len() as i32);
        let layer = Layer::new(room.max(LEAST_KEYS), wrong_share);
        self.account.charge(Part::Storage, layer.bytes());
        self.layers.push(layer);
    }

    /// Whether a key of this hash may be in it. If not, it is not.
    pub fn may_hold(&self, hash: u64) -> bool {
        let hash = mix(hash);
        self.layers.iter().rev().any(|layer| layer.holds(hash))
    }

    /// Puts a key in.
    pub fn insert(&mut self, hash: u64) {
        let mixed = mix(hash);
        if self.layers.iter().any(|layer| layer.holds(mixed)) {
            return;
        }
        if self.layers.last().is_none_or(|layer| layer.keys >= layer.room) {
            self.grow(self.keys);
        }
        self.layers.last_mut().expect("it has grown").insert(mixed);
        self.keys += 1;
    }

    /// How many different keys were put in, as far as it can tell.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum()
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        self.account.release(Part::Storage, self.bytes());
    }
}
