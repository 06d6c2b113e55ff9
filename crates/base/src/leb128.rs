//! Unsigned LEB128: numbers as seven bits a byte, the lowest first.
//!
//! Two forms: prefixes of keys are canonical and have at most 32 bits, everything else has up to 64 bits and may have
//! bytes more than it needs.

/// Encodes a number that takes at most five bytes.
pub fn encode_leb128(mut n: u32) -> ([u8; 5], usize) {
    let mut out = [0; 5];
    let mut len = 0;
    loop {
        let byte = (n & 0x7f) as u8;
        n >>= 7;
        out[len] = if n == 0 { byte } else { byte | 0x80 };
        len += 1;
        if n == 0 {
            return (out, len);
        }
    }
}

/// Decodes an unsigned LEB128 at the start of `bytes`: the number and how many bytes it took.
/// `None` if it is unterminated, longer than five bytes, over 32 bits, or not canonical (a trailing zero byte).
#[inline]
pub fn decode_leb128(bytes: &[u8]) -> Option<(u32, usize)> {
    // As nearly all are.
    if let Some(&byte @ 0..0x80) = bytes.first() {
        return Some((byte.into(), 1));
    }
    decode_long_leb128(bytes)
}

fn decode_long_leb128(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut n: u64 = 0;
    for (i, &byte) in bytes.iter().take(5).enumerate() {
        n |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let canonical = i == 0 || byte != 0;
            return if canonical { u32::try_from(n).ok().map(|n| (n, i + 1)) } else { None };
        }
    }
    None
}

/// Appends a number of up to 64 bits.
pub fn put_leb128(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Takes a number from the front; `None` if it is unterminated or over 64 bits.
pub fn take_leb128(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        n |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn leb128_round_trips(n: u32) {
            let (bytes, len) = encode_leb128(n);
            prop_assert_eq!(decode_leb128(&bytes[..len]), Some((n, len)));
            prop_assert_eq!(decode_leb128(&bytes[..len - 1]), None);
            let mut out = Vec::new();
            put_leb128(&mut out, n.into());
            prop_assert_eq!(&out, &bytes[..len]);
        }

        #[test]
        fn long_numbers_round_trip(n: u64, bits in 0..64u32) {
            let n = n >> bits;
            let mut bytes = Vec::new();
            put_leb128(&mut bytes, n);
            prop_assert_eq!(take_leb128(&mut &bytes[..bytes.len() - 1]), None);
            bytes.push(7);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_leb128(&mut rest), Some(n));
            prop_assert_eq!(rest, &[7][..]);
        }
    }

    #[test]
    fn leb128_must_be_canonical() {
        assert_eq!(decode_leb128(&[0x80, 0x00]), None);
        assert_eq!(decode_leb128(&[0xff, 0xff, 0xff, 0xff, 0x7f]), None);
        assert_eq!(decode_leb128(&[]), None);
    }

    #[test]
    fn long_numbers_have_64_bits() {
        let most = [&[0xff; 9][..], &[0x01]].concat();
        assert_eq!(take_leb128(&mut &most[..]), Some(u64::MAX));
        assert_eq!(take_leb128(&mut &[&[0xff; 9][..], &[0x02]].concat()[..]), None);
        assert_eq!(take_leb128(&mut &[0x80; 11][..]), None);
        assert_eq!(take_leb128(&mut &[0x80, 0x00][..]), Some(0));
    }
}
