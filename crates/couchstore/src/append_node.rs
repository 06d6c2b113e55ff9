//! A node as it is written: a Snappy block, compressed or of one literal.

use crate::failure::Failure;
use crate::scratch::Packing;
use crate::writer::{Placed, Writer};

/// Writes a node as a chunk, compressed or not.
pub(crate) fn append_node(
    writer: &mut Writer,
    node: &[u8],
    compress: bool,
    packing: &mut Packing,
) -> Result<Placed, Failure> {
    if compress {
        return writer.append_chunk(packing.pack(node), &[]);
    }
    let (head, len) = literal_block(node.len());
    writer.append_chunk(&head[..len], node)
}

/// What stands in front of `len` bytes to make them a Snappy block of one literal: valid for every reader, and as
/// cheap as a copy.
fn literal_block(len: usize) -> ([u8; 10], usize) {
    let len = u32::try_from(len).expect("nodes are far smaller");
    let (varint, used) = base::leb128::encode_leb128(len);
    let mut out = [0; 10];
    out[..used].copy_from_slice(&varint[..used]);
    let last = len - 1;
    let extra = match last {
        0..60 => {
            out[used] = (last as u8) << 2;
            return (out, used + 1);
        }
        60..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x100_0000 => 3,
        _ => 4,
    };
    out[used] = (59 + extra as u8) << 2;
    out[used + 1..used + 1 + extra].copy_from_slice(&last.to_le_bytes()[..extra]);
    (out, used + 1 + extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_blocks_are_valid_snappy() {
        for len in [1, 59, 60, 61, 255, 256, 257, 65_535, 65_536, 65_537, 1 << 24, (1 << 24) + 1] {
            let node = vec![7; len];
            let (head, n) = literal_block(len);
            let block = [&head[..n], &node].concat();
            assert_eq!(snap::raw::Decoder::new().decompress_vec(&block).ok(), Some(node), "length {len}");
        }
    }
}
