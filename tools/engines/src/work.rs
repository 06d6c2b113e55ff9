//! The work: keys and values that are the same for every engine.

/// A document that is to be saved.
pub struct Item {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Where values are cut from; larger than any cache of the processor, so that copying costs what it costs.
const POOL_BYTES: usize = 32 << 20;
/// The golden ratio, with which Weyl sequences are made.
const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number; different numbers stay different (Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", with the constants of David Stafford's mix 13).
fn mix(number: u64) -> u64 {
    let a = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

/// A small generator: the same numbers in each run.
pub struct Numbers(u64);

impl Numbers {
    /// Another sequence for each seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(mix(seed.wrapping_add(1)))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(WEYL);
        mix(self.0)
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

/// Random keys with random values, in batches: first all of them new, then each once more in another order.
pub struct Random {
    order: Vec<u32>,
    next: usize,
    values: Values,
}

/// Random values of one size.
struct Values {
    pool: Vec<u8>,
    numbers: Numbers,
    size_bytes: usize,
}

impl Values {
    fn new(seed: u64, size_bytes: usize) -> Values {
        let mut numbers = Numbers::new(seed);
        let pool = (0..POOL_BYTES / 8).flat_map(|_| numbers.next().to_le_bytes()).collect();
        Values { pool, numbers, size_bytes }
    }

    fn next(&mut self) -> Vec<u8> {
        let start = self.numbers.below(self.pool.len() - self.size_bytes);
        self.pool[start..start + self.size_bytes].to_vec()
    }
}

impl Random {
    /// `items` documents with values of `value_bytes` bytes.
    pub fn new(items: u32, value_bytes: usize, seed: u64) -> Random {
        Random { order: (0..items).collect(), next: 0, values: Values::new(seed, value_bytes) }
    }

    /// From now on the same keys come again, in an order that is drawn anew.
    pub fn again(&mut self) {
        assert_eq!(self.next, self.order.len(), "all keys were inserted");
        self.next = 0;
        for at in (1..self.order.len()).rev() {
            let other = self.values.numbers.below(at + 1);
            self.order.swap(at, other);
        }
    }

    /// The next `count` documents; their keys are in no order.
    pub fn batch(&mut self, count: usize) -> Vec<Item> {
        let numbers = &self.order[self.next..self.next + count];
        self.next += count;
        let values = &mut self.values;
        // Mixed, so that neighbours in the order are no neighbours in the key space.
        let key = |number: u32| format!("key-{:016x}", mix(u64::from(number))).into_bytes();
        numbers.iter().map(|number| Item { key: key(*number), value: values.next() }).collect()
    }
}

/// The shape that the original measures with: keys in order, values of one byte.
pub fn shape(items: usize, value: u8) -> Vec<Item> {
    (0..items).map(|i| Item { key: format!("key{i}").into_bytes(), value: vec![value] }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_second_half_brings_the_same_keys_in_another_order() {
        let mut random = Random::new(1_000, 16, 1);
        let keys = |items: Vec<Item>| items.into_iter().map(|item| item.key).collect::<Vec<_>>();
        let first = keys(random.batch(1_000));
        random.again();
        let second = keys(random.batch(1_000));
        assert_ne!(first, second);
        let set: BTreeSet<_> = first.iter().collect();
        assert_eq!(set.len(), 1_000);
        assert_eq!(set, second.iter().collect());
    }

    #[test]
    fn the_same_seed_gives_the_same_documents() {
        let batch = || Random::new(10, 512, 7).batch(10);
        assert!(batch().iter().zip(batch()).all(|(a, b)| a.key == b.key && a.value == b.value));
        assert!(batch().iter().all(|item| item.value.len() == 512 && item.key.len() == 20));
    }

    #[test]
    fn numbers_below_stay_below() {
        let mut numbers = Numbers::new(3);
        assert!((0..10_000).all(|_| numbers.below(7) < 7));
    }
}
