//! Snappy blocks: inflated within bounds, and whether bytes are one, found out without inflating it.

use base::leb128::take_leb128;

/// Longest length that a block may declare, in bytes of its variable-length number.
const MOST_LENGTH_BYTES: usize = 5;
/// No element makes more bytes out of one: a copy of three bytes makes at most 64.
const MOST_INFLATION: usize = 22;

/// Inflates a block of at most `most` bytes into the front of `out`, which becomes longer if it has to; how many bytes
/// these are. `None` if it is no block, or declares a length that is greater or that it cannot have.
pub fn inflate(block: &[u8], most: usize, out: &mut Vec<u8>) -> Option<usize> {
    let len = snap::raw::decompress_len(block).ok()?;
    if len > most || len > block.len().saturating_mul(MOST_INFLATION) + 64 {
        return None;
    }
    if out.len() < len {
        out.resize(len, 0);
    }
    let inflated = snap::raw::Decoder::new().decompress(block, &mut out[..len]).ok()?;
    (inflated == len).then_some(len)
}

/// Whether `block` inflates to the length that it declares. Costs a step for each of its elements and allocates nothing
/// (Snappy format description, "Grammar").
pub fn is_snappy_block(block: &[u8]) -> bool {
    let Some((declared, mut rest)) = declared_length(block) else { return false };
    let mut made: u64 = 0;
    while let Some((&tag, after)) = rest.split_first() {
        let Some((len, after)) = (if tag & 3 == 0 { literal(tag, after) } else { copy(tag, after, made) })
        else {
            return false;
        };
        made += len;
        if made > declared {
            return false;
        }
        rest = after;
    }
    made == declared
}

fn declared_length(block: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = block;
    let len = take_leb128(&mut rest)?;
    let is_short = block.len() - rest.len() <= MOST_LENGTH_BYTES;
    (is_short && len <= u64::from(u32::MAX)).then_some((len, rest))
}

/// Bytes that a literal makes, and what follows it.
fn literal(tag: u8, rest: &[u8]) -> Option<(u64, &[u8])> {
    let extra = usize::from(tag >> 2).saturating_sub(59);
    let (bytes, rest) = rest.split_at_checked(extra)?;
    let len = match extra {
        0 => u64::from(tag >> 2) + 1,
        _ => number(bytes) + 1,
    };
    Some((len, rest.get(usize::try_from(len).ok()?..)?))
}

/// Bytes that a copy of what is `made` already makes, and what follows it.
fn copy(tag: u8, rest: &[u8], made: u64) -> Option<(u64, &[u8])> {
    let (len, offset_bytes) = match tag & 3 {
        1 => (u64::from(tag >> 2 & 7) + 4, 1),
        2 => (u64::from(tag >> 2) + 1, 2),
        _ => (u64::from(tag >> 2) + 1, 4),
    };
    let (bytes, rest) = rest.split_at_checked(offset_bytes)?;
    let high = if offset_bytes == 1 { u64::from(tag >> 5) << 8 } else { 0 };
    let offset = high | number(bytes);
    (1..=made).contains(&offset).then_some((len, rest))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inflates(block: &[u8]) -> bool {
        snap::raw::decompress_len(block).is_ok_and(|len| len <= 1 << 20)
            && snap::raw::Decoder::new().decompress_vec(block).is_ok()
    }

    fn pack(plain: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(plain).expect("it is short")
    }

    #[test]
    fn long_literals_and_far_copies_are_read() {
        let noise: Vec<u8> =
            (0..70_000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        for plain in [&noise[..], &noise[..61], &noise[..300], &noise.repeat(2), b"", b"a", &[7; 100_000]] {
            assert!(is_snappy_block(&pack(plain)), "{} bytes", plain.len());
        }
        assert!(!is_snappy_block(&[]) && is_snappy_block(&[0]));
        // A copy from before the beginning, and one from nowhere.
        assert!(!is_snappy_block(&[4, 0, b'a', 0x01, 5]) && !is_snappy_block(&[5, 0, b'a', 0x01, 0]));
    }

    proptest! {
        #[test]
        fn it_says_what_the_decoder_says(
            plain in prop::collection::vec(0u8..4, 0..600),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut block = pack(&plain);
            prop_assert!(is_snappy_block(&block));
            let at = at.index(block.len());
            block[at] = byte;
            prop_assert_eq!(is_snappy_block(&block), inflates(&block), "changed: {:?}", &block);
            block.truncate(cut.index(block.len()));
            prop_assert_eq!(is_snappy_block(&block), inflates(&block), "cut: {:?}", &block);
        }
    }
}
