//! A blocked Bloom filter: a look at one key costs one cache line.

/// Bits for each key.
const BITS_A_KEY: usize = 10;
/// Bytes of a block: a cache line.
const BLOCK: usize = 64;
/// Bits that are set for each key, all in one block.
const PROBES: u32 = 6;

/// The hash of a key as filters use it: part of the format.
pub(crate) fn hash(key: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |state: u64, word: u64| {
        let wide = u128::from(state ^ word) * u128::from(MULTIPLIER | 1);
        (wide as u64) ^ ((wide >> 64) as u64).rotate_left(32)
    };
    let mut state = 0x2545_f491_4f6c_dd1d ^ key.len() as u64;
    let mut words = key.chunks_exact(8);
    for word in &mut words {
        state = mix(state, u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let mut last = [0; 8];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    state = mix(state, u64::from_le_bytes(last));
    state ^= state >> 32;
    state = state.wrapping_mul(0xd6e8_feb8_6659_fd93);
    state ^ (state >> 32)
}

/// Makes the filter of keys with these hashes.
pub(crate) fn build(hashes: &[u64]) -> Vec<u8> {
    let blocks = (hashes.len() * BITS_A_KEY).div_ceil(BLOCK * 8).max(1);
    let mut bits = vec![0; blocks * BLOCK];
    for hash in hashes {
        let block = place(*hash, blocks);
        for bit in probes(*hash) {
            bits[block + bit / 8] |= 1 << (bit % 8);
        }
    }
    bits
}

/// Whether a key with this hash may be there.
pub(crate) fn may_hold(bits: &[u8], hash: u64) -> bool {
    let blocks = bits.len() / BLOCK;
    if blocks == 0 {
        return true;
    }
    let block = place(hash, blocks);
    probes(hash).all(|bit| bits[block + bit / 8] & (1 << (bit % 8)) != 0)
}

fn place(hash: u64, blocks: usize) -> usize {
    ((u128::from(hash) * blocks as u128) >> 64) as usize * BLOCK
}

fn probes(hash: u64) -> impl Iterator<Item = usize> {
    let mixed = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    (0..PROBES).map(move |n| (mixed >> (9 * n)) as usize % (BLOCK * 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_missed_and_few_others_are_found() {
        let key = |n: u32| format!("user{n:012}");
        let hashes: Vec<u64> = (0..20_000).map(|n| hash(key(n).as_bytes())).collect();
        let bits = build(&hashes);
        assert!(bits.len() * 8 <= 20_000 * (BITS_A_KEY + 1));
        assert!(hashes.iter().all(|hash| may_hold(&bits, *hash)));
        let wrong = (20_000..120_000).filter(|n| may_hold(&bits, hash(key(*n).as_bytes()))).count();
        // Measured: 1.3 %. Independent bits would give 0.85 %.
        assert!(wrong < 2_000, "{wrong} of 100,000 are found that are not there");
    }

    #[test]
    fn the_hash_is_part_of_the_format() {
        assert_eq!(hash(b""), hash(&[]));
        assert_ne!(hash(b"a"), hash(b"a\0"));
        let all: std::collections::BTreeSet<u64> = (0..1000u32).map(|n| hash(&n.to_be_bytes())).collect();
        assert_eq!(all.len(), 1000);
    }
}
