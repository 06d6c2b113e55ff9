//! Buffers in which a batch is put together, to be used again for the next one.

use crate::node::NodeBuf;
use crate::rewrite::Level;
use crate::save::SeqnoEdit;
use crate::writer::Placed;

/// Buffers for saving, whichever file it is to. They grow to what the largest batch needed.
#[derive(Default)]
pub struct Scratch {
    /// What is to be written.
    pub(crate) written: Vec<u8>,
    pub(crate) placed: Vec<Placed>,
    pub(crate) by_seqno: Vec<SeqnoEdit>,
    pub(crate) rev_meta: Vec<u8>,
    pub(crate) packing: Packing,
    pub(crate) nodes: NodeScratch,
}

/// Buffers for rewriting a tree.
#[derive(Default)]
pub(crate) struct NodeScratch {
    /// Nodes under construction; cleared before use.
    pub(crate) levels: Vec<Level>,
    /// Nodes that were read.
    pub(crate) buffers: Vec<NodeBuf>,
    pub(crate) packing: Packing,
}

/// What compression needs.
#[derive(Default)]
pub(crate) struct Packing {
    encoder: Option<Box<snap::raw::Encoder>>,
    out: Vec<u8>,
}

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
}
