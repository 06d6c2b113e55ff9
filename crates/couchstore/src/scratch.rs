//! Buffers in which a batch is put together, to be used again for the next one.

use crate::level::Level;
use crate::node::NodeBuf;
use crate::seqnos::SeqnoEdits;
use crate::window::Window;
use crate::writer::Placed;

/// What is kept for the next batch: room for so many documents.
const KEPT_DOCUMENTS: usize = 1 << 14;

/// Buffers for saving, whichever file it is to. They grow to what usual batches need; a large one gives back the rest.
#[derive(Default)]
pub struct Scratch {
    /// What is to be written.
    pub(crate) written: Vec<u8>,
    pub(crate) placed: Vec<Placed>,
    pub(crate) seqnos: SeqnoEdits,
    pub(crate) packing: Packing,
    pub(crate) nodes: NodeScratch,
}

impl Scratch {
    pub(crate) fn trim(&mut self) {
        self.placed.clear();
        self.placed.shrink_to(KEPT_DOCUMENTS);
        self.seqnos.trim(KEPT_DOCUMENTS);
    }
}

/// Buffers for rewriting a tree.
#[derive(Default)]
pub(crate) struct NodeScratch {
    /// Nodes under construction; cleared before use.
    pub(crate) levels: Vec<Level>,
    /// Nodes that were read.
    pub(crate) buffers: Vec<NodeBuf>,
    /// What was read ahead, by depth; cleared before use.
    pub(crate) windows: Vec<Window>,
    pub(crate) packing: Packing,
}

/// What compression needs.
#[derive(Default)]
pub(crate) struct Packing {
    encoder: Option<Box<snap::raw::Encoder>>,
    out: Vec<u8>,
    /// Bodies in a row, tried or not, since one gained by being compressed.
    in_vain: usize,
}

/// After so many bodies in a row that gained nothing, only every so many one is tried.
const IN_VAIN: usize = 16;

impl Packing {
    /// The Snappy block of `bytes`.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> &[u8] {
        let most = snap::raw::max_compress_len(bytes.len());
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        let encoder = self.encoder.get_or_insert_with(|| Box::new(snap::raw::Encoder::new()));
        let len =
            encoder.compress(bytes, &mut self.out).expect("the buffer holds the longest possible result");
        &self.out[..len]
    }

    /// The Snappy block of a body; nothing if it is likely not to be smaller, as those before it were not.
    pub(crate) fn try_pack(&mut self, body: &[u8]) -> Option<&[u8]> {
        self.in_vain += 1;
        if self.in_vain > IN_VAIN && !self.in_vain.is_multiple_of(IN_VAIN) {
            return None;
        }
        let len = self.pack(body).len();
        if len < body.len() {
            self.in_vain = 0;
        }
        Some(&self.out[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_tried_again_after_many_in_vain() {
        let mut packing = Packing::default();
        let tried = (0..100).filter(|_| packing.try_pack(b"short").is_some()).count();
        assert_eq!(tried, IN_VAIN + 100 / IN_VAIN - 1);
        while packing.try_pack(&[b'a'; 1000]).is_none() {}
        assert_eq!((0..IN_VAIN).filter(|_| packing.try_pack(b"short").is_some()).count(), IN_VAIN);
    }
}
