//! Reading a file as of one header. Nothing is ever overwritten, so this stays valid while others write.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::chunk::{Source, inflate, literal};
use crate::failure::Failure;
use crate::header::Header;
use crate::pieces::Pieces;
use crate::record::DocInfo;
use crate::scan::TreeView;
use crate::tree::{Tree, be48};

/// A file as of one header. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) source: Source,
    pub(crate) header: Arc<Header>,
    pub(crate) file_bytes: u64,
}

/// What a header says about its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Version of the format.
    pub version: u8,
    /// Where the header is.
    pub header_offset: u64,
    /// Highest seqno saved.
    pub update_seqno: u64,
    /// Seqno up to which tombstones were purged.
    pub purge_seqno: u64,
    /// When it was committed, nanoseconds since 1970; 0 before version 13.
    pub timestamp_ns: u64,
    /// Documents that are no tombstones.
    pub live_count: u64,
    /// Tombstones.
    pub deleted_count: u64,
    /// Records in the by-seqno tree.
    pub seqno_count: u64,
    /// Bytes of all bodies in use.
    pub body_bytes: u64,
    /// Bytes of all nodes of the by-id tree in use.
    pub by_id_bytes: u64,
    /// Bytes of all nodes of the by-seqno tree in use.
    pub by_seqno_bytes: u64,
    /// Bytes of all nodes of the local tree in use.
    pub local_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
}

impl FileInfo {
    /// Bytes that a compaction would keep.
    pub fn used_bytes(&self) -> u64 {
        self.body_bytes + self.by_id_bytes + self.by_seqno_bytes + self.local_bytes
    }
}

impl Snapshot {
    /// Whether the file is encrypted as a new one would be ([`base::env::File::is_current`]).
    pub fn is_current(&self) -> bool {
        self.source.file.is_current()
    }

    /// How often the key of new files has changed on its disk ([`base::env::Disk::key_changes`]).
    pub fn key_changes(&self) -> u64 {
        self.source.file.key_changes()
    }

    pub(crate) fn new(source: Source, header: Arc<Header>, file_bytes: u64) -> Snapshot {
        Snapshot { source, header, file_bytes }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// What the header says.
    pub fn info(&self) -> FileInfo {
        let h = &*self.header;
        let by_id = h.by_id.map(|root| root.reduce).unwrap_or_default();
        let bytes = |tree| h.root(tree).map_or(0, |root| root.subtree_bytes);
        FileInfo {
            version: h.version,
            header_offset: h.offset,
            update_seqno: h.update_seqno,
            purge_seqno: h.purge_seqno,
            timestamp_ns: h.timestamp_ns,
            live_count: by_id.live,
            deleted_count: by_id.deleted,
            seqno_count: h.by_seqno.map_or(0, |root| root.reduce.live),
            body_bytes: by_id.body_bytes,
            by_id_bytes: bytes(Tree::ById),
            by_seqno_bytes: bytes(Tree::BySeqno),
            local_bytes: bytes(Tree::Local),
            file_bytes: self.file_bytes,
        }
    }

    /// CRC32C of the header.
    pub fn header_checksum(&self) -> u32 {
        self.header.checksum()
    }

    /// Whether the file ends with the header.
    pub fn is_whole_file(&self) -> bool {
        self.file_bytes == self.header.end()
    }

    /// Bytes up to the end of the header: these alone are a file, whose last header this is. They never change.
    pub fn image_bytes(&self) -> u64 {
        self.header.end()
    }

    /// Fills `buf` with bytes of the file as it is stored, from `offset` on.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or has fewer bytes.
    pub fn read_image(&self, buf: &mut [u8], offset: u64) -> Result<(), Failure> {
        let read = self.source.read_raw(buf, offset)?;
        if read == buf.len() { Ok(()) } else { Err(self.source.damaged(offset, "the file ends early")) }
    }

    pub(crate) fn view(&self, tree: Tree) -> TreeView<'_> {
        TreeView { source: &self.source, tree, root: self.header.root(tree), limit: self.header.offset }
    }

    pub(crate) fn malformed(&self) -> Failure {
        self.source.damaged(self.header.offset, "a record of a tree is malformed")
    }

    /// The document with this id, as `found` makes of it. Tombstones are documents too.
    pub fn get<T>(&self, id: &[u8], found: impl FnOnce(DocInfo<'_>) -> T) -> Result<Option<T>, Failure> {
        let result = self.view(Tree::ById).find(id, |value| DocInfo::decode_by_id(id, value).map(found))?;
        result.map(|info| info.ok_or_else(|| self.malformed())).transpose()
    }

    /// The stored body of a document, as it lies in the file, in `buf`. Empty where there is none.
    pub fn stored_body<'b>(&self, info: &DocInfo<'_>, buf: &'b mut Vec<u8>) -> Result<&'b [u8], Failure> {
        if info.body_offset == 0 {
            return Ok(&[]);
        }
        let (hint, limit) = (self.body_hint(info), self.header.offset);
        let body = self.source.read_chunk(info.body_offset, hint, limit, buf)?;
        self.whole_body(info, body)
    }

    /// The same while many bodies are looked at: what lies close together is read together.
    pub fn stored_body_in_pieces<'b>(
        &self,
        info: &DocInfo<'_>,
        buf: &'b mut Vec<u8>,
        pieces: &mut Pieces,
    ) -> Result<&'b [u8], Failure> {
        if info.body_offset == 0 {
            return Ok(&[]);
        }
        let (hint, limit) = (self.body_hint(info), self.header.offset);
        let body = self.source.read_chunk_in_pieces(info.body_offset, hint, limit, buf, pieces)?;
        self.whole_body(info, body)
    }

    /// How long a body is: its record counts what its chunk has beside it, too.
    fn body_hint(&self, info: &DocInfo<'_>) -> usize {
        (info.body_bytes as usize).saturating_sub(self.source.overhead())
    }

    fn whole_body<'b>(&self, info: &DocInfo<'_>, body: &'b [u8]) -> Result<&'b [u8], Failure> {
        if body.len() == self.body_hint(info) {
            return Ok(body);
        }
        Err(self.source.damaged(info.body_offset, "a body has another length than its record says"))
    }

    /// The body of a document in `buf`, inflated where it is stored compressed; `stored` is scratch space.
    pub fn body<'b>(
        &self,
        info: &DocInfo<'_>,
        stored: &'b mut Vec<u8>,
        buf: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Failure> {
        self.inflated(info, self.stored_body(info, stored)?, buf)
    }

    /// The same while many bodies are looked at.
    pub fn body_in_pieces<'b>(
        &self,
        info: &DocInfo<'_>,
        stored: &'b mut Vec<u8>,
        buf: &'b mut Vec<u8>,
        pieces: &mut Pieces,
    ) -> Result<&'b [u8], Failure> {
        self.inflated(info, self.stored_body_in_pieces(info, stored, pieces)?, buf)
    }

    /// What a stored body holds: in `buf`, if it is stored compressed.
    pub fn inflated<'b>(
        &self,
        info: &DocInfo<'_>,
        block: &'b [u8],
        buf: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Failure> {
        if !info.is_compressed() || block.is_empty() {
            return Ok(block);
        }
        if let Some(plain) = literal(block) {
            return Ok(plain);
        }
        match inflate(block, buf) {
            Some(len) => Ok(&buf[..len]),
            None => Err(self.source.damaged(info.body_offset, "a body cannot be inflated")),
        }
    }

    /// Visits the documents changed at `seqno` or later, in order of seqno, until `visit` breaks or fails.
    pub fn changes_since<E: From<Failure>>(
        &self,
        seqno: u64,
        mut visit: impl FnMut(DocInfo<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let mut failed = None;
        self.view(Tree::BySeqno).walk(&be48(seqno), &mut |key, value| {
            let info = DocInfo::decode_by_seqno(key, value).ok_or_else(|| self.malformed())?;
            Ok(visit(info).unwrap_or_else(|e| {
                failed = Some(e);
                ControlFlow::Break(())
            }))
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Visits the documents with ids from `from` on, in order of id, until `visit` breaks or fails.
    pub fn scan_ids<E: From<Failure>>(
        &self,
        from: &[u8],
        mut visit: impl FnMut(DocInfo<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let mut failed = None;
        self.view(Tree::ById).walk(from, &mut |key, value| {
            let info = DocInfo::decode_by_id(key, value).ok_or_else(|| self.malformed())?;
            Ok(visit(info).unwrap_or_else(|e| {
                failed = Some(e);
                ControlFlow::Break(())
            }))
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// The value of a local document.
    pub fn local(&self, id: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        self.view(Tree::Local).find(id, <[u8]>::to_vec)
    }

    /// Visits all local documents, in order of id.
    pub fn scan_locals(&self, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), Failure> {
        self.view(Tree::Local).walk(&[], &mut |key, value| {
            visit(key, value);
            Ok(ControlFlow::Continue(()))
        })
    }
}
