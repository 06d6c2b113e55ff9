//! The first bytes of what a raw Snappy block inflates to, without the rest.
//!
//! Costs as much as it gives, however much the block holds behind that: attributes stand in front of a body of up to
//! 20 MiB.

/// The first `most` bytes, or all if there are fewer; `None` if the block is damaged before that.
pub(super) fn inflate_front(block: &[u8], most: usize) -> Option<Vec<u8>> {
    let declared = snap::raw::decompress_len(block).ok()?;
    let most = most.min(declared);
    let head = block.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let mut rest = block.get(head..)?;
    // The block may be far too short for what it declares: the list grows with what is there.
    let mut out = Vec::with_capacity(most.min(block.len().saturating_mul(super::MOST_INFLATION)));
    while out.len() < most {
        let (&tag, after) = rest.split_first()?;
        rest = if tag & 3 == 0 {
            literal(tag, after, most, &mut out)?
        } else {
            copy(tag, after, most, &mut out)?
        };
    }
    Some(out)
}

/// Appends a literal as far as it is wanted; what follows it.
fn literal<'b>(tag: u8, rest: &'b [u8], most: usize, out: &mut Vec<u8>) -> Option<&'b [u8]> {
    let extra = usize::from(tag >> 2).saturating_sub(59);
    let (bytes, rest) = rest.split_at_checked(extra)?;
    let len = if extra == 0 { usize::from(tag >> 2) + 1 } else { number(bytes).checked_add(1)? };
    let wanted = len.min(most - out.len());
    out.extend_from_slice(rest.get(..wanted)?);
    // If less than all of it was wanted nothing more is.
    Some(rest.get(len..).unwrap_or_default())
}

/// Appends a copy of what is there already as far as it is wanted; what follows it.
fn copy<'b>(tag: u8, rest: &'b [u8], most: usize, out: &mut Vec<u8>) -> Option<&'b [u8]> {
    let (len, offset_bytes) = match tag & 3 {
        1 => (usize::from(tag >> 2 & 7) + 4, 1),
        2 => (usize::from(tag >> 2) + 1, 2),
        _ => (usize::from(tag >> 2) + 1, 4),
    };
    let (bytes, rest) = rest.split_at_checked(offset_bytes)?;
    let high = if offset_bytes == 1 { usize::from(tag >> 5) << 8 } else { 0 };
    let offset = high | number(bytes);
    let from = out.len().checked_sub(offset).filter(|_| offset > 0)?;
    for at in from..from + len.min(most - out.len()) {
        // It may run into what it appends.
        let byte = *out.get(at)?;
        out.push(byte);
    }
    Some(rest)
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_front_of_what_the_block_holds(
            parts in prop::collection::vec((any::<u8>(), 1..300usize), 0..40),
            most in 0..5000usize,
        ) {
            let plain: Vec<u8> = parts.iter().flat_map(|&(byte, len)| (0..len).map(move |n| byte ^ (n as u8 & 3))).collect();
            let block = snap::raw::Encoder::new().compress_vec(&plain).expect("it fits");
            let front = inflate_front(&block, most).expect("the block is sound");
            prop_assert_eq!(&front[..], &plain[..most.min(plain.len())]);
        }

        #[test]
        fn whatever_comes_it_agrees_with_the_whole(mut block in prop::collection::vec(any::<u8>(), 0..64), most in 0..400usize) {
            // Lengths that are worth looking at.
            if let Some(first) = block.first_mut() {
                *first &= 0x7f;
            }
            let whole = snap::raw::Decoder::new().decompress_vec(&block);
            let front = inflate_front(&block, most);
            if let Ok(whole) = whole {
                prop_assert_eq!(front.as_deref(), Some(&whole[..most.min(whole.len())]));
            } else if let Some(front) = front {
                prop_assert!(front.len() <= most);
            }
        }
    }

    #[test]
    fn what_is_declared_and_not_there_takes_no_memory() {
        let block = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
        assert_eq!(inflate_front(&block, usize::MAX), None);
        assert_eq!(inflate_front(&block, 1), None);
        assert_eq!(inflate_front(&[], 1), None);
        assert_eq!(inflate_front(&[4, 1, 0], 4), None, "a copy from nowhere");
    }
}
