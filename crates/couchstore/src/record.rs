//! Values of the by-id and by-seqno trees (couchstore file_format.md, "Indexes").
//!
//! The document puts compression and content type before the revision number; in files of the original they come
//! behind it.

use crate::tree::{be48, from_be40, from_be48};

const DELETED: u64 = 1 << 47;
/// Bytes of a by-id value in front of the revision metadata.
pub(crate) const BY_ID_FIXED: usize = 23;
/// Bytes of a by-seqno value in front of the id.
pub(crate) const BY_SEQNO_FIXED: usize = 18;

/// What the trees know about one document, body excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocInfo<'a> {
    /// Its id.
    pub id: &'a [u8],
    /// The seqno it was last changed at.
    pub seqno: u64,
    /// How often it was changed.
    pub rev_seqno: u64,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// What the body is, and whether it is compressed.
    pub content_meta: u8,
    /// Bytes of the body's chunk, length and checksum included; 0 without a body.
    pub body_bytes: u32,
    /// Where the body's chunk is; 0 without a body.
    pub body_offset: u64,
    /// Revision metadata; see [`crate::RevMeta`].
    pub rev_meta: &'a [u8],
}

impl<'a> DocInfo<'a> {
    /// Whether the stored body is a Snappy block.
    pub fn is_compressed(&self) -> bool {
        self.content_meta & crate::CONTENT_COMPRESSED != 0
    }

    fn position(&self) -> [u8; 6] {
        be48(self.body_offset | if self.deleted { DELETED } else { 0 })
    }

    /// A by-id value in front of the revision metadata.
    pub(crate) fn by_id_fixed(&self) -> [u8; BY_ID_FIXED] {
        let mut fixed = [0; BY_ID_FIXED];
        fixed[..6].copy_from_slice(&be48(self.seqno));
        fixed[6..10].copy_from_slice(&self.body_bytes.to_be_bytes());
        fixed[10..16].copy_from_slice(&self.position());
        fixed[16..22].copy_from_slice(&be48(self.rev_seqno));
        fixed[22] = self.content_meta;
        fixed
    }

    /// A whole by-id value.
    #[allow(dead_code, reason = "what copies records from file to file calls it")]
    pub(crate) fn encode_by_id(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.by_id_fixed());
        out.extend_from_slice(self.rev_meta);
    }

    pub(crate) fn decode_by_id(id: &'a [u8], value: &'a [u8]) -> Option<DocInfo<'a>> {
        let (seqno, rest) = value.split_first_chunk()?;
        let (body_bytes, rest) = rest.split_first_chunk()?;
        let (position, rest) = rest.split_first_chunk()?;
        let (rev_seqno, rest) = rest.split_first_chunk()?;
        let (&content_meta, rev_meta) = rest.split_first()?;
        let position = from_be48(*position);
        Some(DocInfo {
            id,
            seqno: from_be48(*seqno),
            rev_seqno: from_be48(*rev_seqno),
            deleted: position & DELETED != 0,
            content_meta,
            body_bytes: u32::from_be_bytes(*body_bytes),
            body_offset: position & !DELETED,
            rev_meta,
        })
    }

    /// A by-seqno value in front of the id.
    pub(crate) fn by_seqno_fixed(&self) -> [u8; BY_SEQNO_FIXED] {
        let mut fixed = [0; BY_SEQNO_FIXED];
        let sizes = ((self.id.len() as u64) << 28 | u64::from(self.body_bytes)).to_be_bytes();
        fixed[..5].copy_from_slice(&sizes[3..]);
        fixed[5..11].copy_from_slice(&self.position());
        fixed[11..17].copy_from_slice(&be48(self.rev_seqno));
        fixed[17] = self.content_meta;
        fixed
    }

    /// A whole by-seqno value.
    #[allow(dead_code, reason = "what copies records from file to file calls it")]
    pub(crate) fn encode_by_seqno(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.by_seqno_fixed());
        out.extend_from_slice(self.id);
        out.extend_from_slice(self.rev_meta);
    }

    #[inline]
    pub(crate) fn decode_by_seqno(key: &[u8], value: &'a [u8]) -> Option<DocInfo<'a>> {
        let (sizes, rest) = value.split_first_chunk()?;
        let (position, rest) = rest.split_first_chunk()?;
        let (rev_seqno, rest) = rest.split_first_chunk()?;
        let (&content_meta, rest) = rest.split_first()?;
        let (sizes, position) = (from_be40(*sizes), from_be48(*position));
        let (id, rev_meta) = rest.split_at_checked((sizes >> 28) as usize)?;
        Some(DocInfo {
            id,
            seqno: from_be48(*key.as_array()?),
            rev_seqno: from_be48(*rev_seqno),
            deleted: position & DELETED != 0,
            content_meta,
            body_bytes: (sizes & 0xfff_ffff) as u32,
            body_offset: position & !DELETED,
            rev_meta,
        })
    }
}
