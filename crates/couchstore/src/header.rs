//! The file header: roots of the trees and counters (couchstore file_format.md, "File Header").

use crate::chunk::{BLOCK, Checksum, HEADER_BLOCK, Source};
use crate::failure::Failure;
use crate::node::{NodeBuf, Pointer};
use crate::tree::{Tree, be, be48};

/// The version that is written, except into files that began with version 11 and keep its checksum, and into those
/// of version 14, which keep their links.
pub(crate) const VERSION: u8 = 13;
pub(crate) const OLDEST_VERSION: u8 = 11;
pub(crate) const NEWEST_VERSION: u8 = 14;
const FIXED: usize = 25;
const TIMESTAMP: usize = 8;
/// 47 bits for the position of the header before, all ones without one, and a bit for the metadata header.
const LINK: usize = 6;
const NO_LINK: u64 = (1 << 47) - 1;
/// Headers are small: three roots of at most 28 bytes.
pub(crate) const MAX_HEADER: usize = 1024;
/// How many blocks a search looks at in one read.
const SEARCH_BLOCKS: u64 = 16;

/// A header that was read or is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u8,
    pub(crate) update_seqno: u64,
    pub(crate) purge_seqno: u64,
    pub(crate) timestamp_ns: u64,
    pub(crate) by_seqno: Option<Pointer>,
    pub(crate) by_id: Option<Pointer>,
    pub(crate) local: Option<Pointer>,
    /// Where its block starts.
    pub(crate) offset: u64,
    /// Where the header before is; only headers of version 14 say so.
    pub(crate) previous: Option<u64>,
    /// Whether the first block of the file says where its key comes from; only in version 14.
    pub(crate) has_metadata: bool,
}

impl Header {
    pub(crate) fn new() -> Header {
        Header {
            version: VERSION,
            update_seqno: 0,
            purge_seqno: 0,
            timestamp_ns: 0,
            by_seqno: None,
            by_id: None,
            local: None,
            offset: 0,
            previous: None,
            has_metadata: false,
        }
    }

    pub(crate) fn root(&self, tree: Tree) -> Option<Pointer> {
        match tree {
            Tree::BySeqno => self.by_seqno,
            Tree::ById => self.by_id,
            Tree::Local => self.local,
        }
    }

    /// The whole header with block byte, length and checksum.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = vec![self.version];
        body.extend_from_slice(&be48(self.update_seqno));
        body.extend_from_slice(&be48(self.purge_seqno));
        body.extend_from_slice(&be48(0));
        let roots = [Tree::BySeqno, Tree::ById, Tree::Local].map(|tree| self.encode_root(tree));
        for root in &roots {
            body.extend_from_slice(&(root.len() as u16).to_be_bytes());
        }
        if self.version >= 13 {
            body.extend_from_slice(&self.timestamp_ns.to_be_bytes());
        }
        if self.version >= 14 {
            body.extend_from_slice(&be48(
                self.previous.unwrap_or(NO_LINK) << 1 | u64::from(self.has_metadata),
            ));
        }
        for root in &roots {
            body.extend_from_slice(root);
        }
        let mut out = vec![HEADER_BLOCK];
        // unlike those of data chunks, this length includes the checksum
        out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        out.extend_from_slice(&Checksum::of_version(self.version).of(&body).to_be_bytes());
        out.extend_from_slice(&body);
        out
    }

    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.encode().len() as u64
    }

    /// CRC32C of all of it, whatever checksum its version has.
    pub(crate) fn checksum(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }

    fn encode_root(&self, tree: Tree) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(root) = self.root(tree) {
            out.extend_from_slice(&be48(root.offset));
            out.extend_from_slice(&be48(root.subtree_bytes));
            tree.encode_reduce(root.reduce, &mut out);
        }
        out
    }

    fn decode(block: &[u8], offset: u64) -> Result<Header, Undecodable> {
        let (&kind, rest) = block.split_first().ok_or(Undecodable::Damaged)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(Undecodable::Damaged)?;
        let (crc, rest) = rest.split_first_chunk::<4>().ok_or(Undecodable::Damaged)?;
        let len = (u32::from_be_bytes(*length) as usize).checked_sub(4).ok_or(Undecodable::Damaged)?;
        let body = rest.get(..len).ok_or(Undecodable::Damaged)?;
        let &version = body.first().ok_or(Undecodable::Damaged)?;
        if kind != HEADER_BLOCK || Checksum::of_version(version).of(body) != u32::from_be_bytes(*crc) {
            return Err(Undecodable::Damaged);
        }
        if !(OLDEST_VERSION..=NEWEST_VERSION).contains(&version) {
            return Err(Undecodable::Version(version));
        }
        Header::decode_body(body, version, offset)
    }

    /// Why a block that is marked as a header holds no valid one. One of another version is none of ours to judge;
    /// with `roots` what it points to is looked at, too.
    pub(crate) fn fault_of(block: &[u8], offset: u64, source: &Source, roots: bool) -> Option<Failure> {
        match Header::decode(block, offset) {
            Err(Undecodable::Damaged) => Some(source.damaged(offset, "a header is damaged")),
            Err(Undecodable::Version(_)) => None,
            Ok(header) if roots => {
                let mut source = source.clone();
                header.fits(&mut source).and_then(|()| header.vouches(&source)).err()
            }
            Ok(_) => None,
        }
    }

    fn decode_body(body: &[u8], version: u8, offset: u64) -> Result<Header, Undecodable> {
        let (fixed, rest) = body.split_at_checked(FIXED).ok_or(Undecodable::Damaged)?;
        let timestamp = if version >= 13 { TIMESTAMP } else { 0 };
        let (timestamp, rest) = rest.split_at_checked(timestamp).ok_or(Undecodable::Damaged)?;
        let link = if version >= 14 { LINK } else { 0 };
        let (link, roots) = rest.split_at_checked(link).ok_or(Undecodable::Damaged)?;
        let previous = Some(be(link) >> 1).filter(|at| !link.is_empty() && *at != NO_LINK);
        let [by_seqno, by_id, local] = Header::decode_roots(fixed, roots).ok_or(Undecodable::Damaged)?;
        Ok(Header {
            version,
            update_seqno: be(&fixed[1..7]),
            purge_seqno: be(&fixed[7..13]),
            timestamp_ns: be(timestamp),
            by_seqno,
            by_id,
            local,
            offset,
            previous,
            has_metadata: be(link) & 1 != 0,
        })
    }

    fn decode_roots(fixed: &[u8], roots: &[u8]) -> Option<[Option<Pointer>; 3]> {
        let sizes = [19, 21, 23].map(|at| be(&fixed[at..at + 2]) as usize);
        let (by_seqno, rest) = roots.split_at_checked(sizes[0])?;
        let (by_id, local) = rest.split_at_checked(sizes[1])?;
        if local.len() != sizes[2] {
            return None;
        }
        let root = |tree, bytes: &[u8]| {
            if bytes.is_empty() { Some(None) } else { Pointer::decode_root(tree, bytes).map(Some) }
        };
        Some([root(Tree::BySeqno, by_seqno)?, root(Tree::ById, by_id)?, root(Tree::Local, local)?])
    }

    /// Whether every root can be read and lies before the header. A header whose trees did not reach the disk is the
    /// mark of a torn write.
    fn vouches(&self, source: &Source) -> Result<(), Failure> {
        let mut node = NodeBuf::default();
        for root in [self.by_seqno, self.by_id, self.local].into_iter().flatten() {
            node.read(source, root, self.offset)?;
        }
        Ok(())
    }

    /// The header at `offset`, which must be there and vouch for its roots, and where it ends.
    pub(crate) fn read_at(source: &mut Source, offset: u64) -> Result<(Header, u64), Failure> {
        let mut block = vec![0; MAX_HEADER];
        let n = source.read_raw(&mut block, offset)?;
        match Header::decode(&block[..n], offset) {
            Ok(header) => {
                header.fits(source)?;
                header.vouches(source)?;
                let end = header.end();
                Ok((header, end))
            }
            Err(Undecodable::Version(version)) => {
                Err(Failure::UnsupportedVersion { path: source.path.clone(), version })
            }
            Err(Undecodable::Damaged) => Err(source.damaged(offset, "there is no valid header")),
        }
    }

    /// The last header that vouches for its roots among the first `end` bytes.
    pub(crate) fn find_last(source: &mut Source, end: u64) -> Result<Header, Failure> {
        let mut why = None;
        let mut accept = |header: &Header, source: &Source| {
            header.vouches(source).inspect_err(|_| {
                let kept = source
                    .damaged(header.offset, "no header vouches for its trees: the key may be another one");
                why = source.encryption.is_on().then_some(kept);
            })
        };
        let found = Header::search(source, end, &mut accept)?;
        let has_roots =
            |header: &Header| [header.by_seqno, header.by_id, header.local].iter().any(Option::is_some);
        // With another key no tree can be read: an early header without trees must not stand for the file.
        let found = found.filter(|header| why.is_none() || has_roots(header));
        let no_header = || why.take().unwrap_or_else(|| Failure::NoHeader { path: source.path.clone() });
        let header = found.ok_or_else(no_header)?;
        header.fits(source)?;
        Ok(header)
    }

    /// Prepares a file for what the header points to: its checksum, and the cipher of an encrypted one.
    fn fits(&self, source: &mut Source) -> Result<(), Failure> {
        source.checksum = Checksum::of_version(self.version);
        if self.has_metadata { source.unlock() } else { Ok(()) }
    }

    /// The last header among the first `end` bytes that `accept` finds no fault with. It is given the file with the
    /// checksum that goes with the header.
    pub(crate) fn search(
        source: &Source,
        end: u64,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Header>, Failure> {
        let mut source = source.clone();
        let mut blocks = end.div_ceil(BLOCK);
        let mut slab = Vec::new();
        while blocks > 0 {
            let first = blocks.saturating_sub(SEARCH_BLOCKS);
            let from = first * BLOCK;
            slab.resize((end.min(blocks * BLOCK) - from) as usize, 0);
            let n = source.read_raw(&mut slab, from)?;
            for (i, block) in slab[..n].chunks(BLOCK as usize).enumerate().rev() {
                let Some(header) = Header::in_block(block, from + i as u64 * BLOCK, &source)? else {
                    continue;
                };
                header.fits(&mut source)?;
                match accept(&header, &source) {
                    Ok(()) => return Ok(Some(header)),
                    Err(io @ Failure::Io { .. }) => return Err(io),
                    Err(_) => {}
                }
            }
            blocks = first;
        }
        Ok(None)
    }

    fn in_block(block: &[u8], offset: u64, source: &Source) -> Result<Option<Header>, Failure> {
        if block.first() != Some(&HEADER_BLOCK) {
            return Ok(None);
        }
        let path = || source.path.clone();
        match Header::decode(&block[..block.len().min(MAX_HEADER)], offset) {
            Ok(header) => Ok(Some(header)),
            Err(Undecodable::Damaged) => Ok(None),
            Err(Undecodable::Version(version)) => Err(Failure::UnsupportedVersion { path: path(), version }),
        }
    }
}

/// Says what is wrong with a header that was found.
pub(crate) type Accept<'a> = dyn FnMut(&Header, &Source) -> Result<(), Failure> + 'a;

enum Undecodable {
    Damaged,
    Version(u8),
}

#[cfg(test)]
mod tests;
