//! Saving a batch: bodies first, then the by-id tree, then the by-seqno tree.

use std::cmp::Ordering;

use crate::failure::Failure;
use crate::file::CouchFile;
use crate::node::{ENTRY_PREFIX, MAX_KEY, MAX_VALUE, entry_prefix};
use crate::record::{BY_ID_FIXED, BY_SEQNO_FIXED, DocInfo};
use crate::rewrite::{Edits, Rewrite};
use crate::scratch::{NodeScratch, Packing, Scratch};
use crate::seqnos::SeqnoEdits;
use crate::tree::{Tree, be, be48, weight};
use crate::writer::Placed;

/// So many documents ahead of the one that is worked on are asked for.
const AHEAD: usize = 8;

/// The body of a document that is to be saved.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// No body: a tombstone that keeps nothing.
    None,
    /// Stored as it is.
    Plain(&'a [u8]),
    /// A Snappy block, stored as it is and marked compressed.
    Compressed(&'a [u8]),
    /// Compressed on the way and marked so, unless the bodies before gained nothing by it.
    Compress(&'a [u8]),
}

/// A document that is to be saved.
#[derive(Clone, Copy, Debug)]
pub struct DocUpdate<'a> {
    /// Its id.
    pub id: &'a [u8],
    /// Its new seqno.
    pub seqno: u64,
    /// How often it was changed.
    pub rev_seqno: u64,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// What the body is, without the bit for compression.
    pub content_meta: u8,
    /// Its body.
    pub body: Body<'a>,
}

/// Documents to save together, sorted by id, each id and each seqno once.
///
/// Documents are asked for several times; nothing of them is kept.
pub trait Batch {
    /// How many documents.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Document `i`.
    fn doc(&self, i: usize) -> DocUpdate<'_>;
    /// Appends the revision metadata of document `i`.
    fn rev_meta(&self, i: usize, out: &mut Vec<u8>);
    /// Document `i` will be asked for soon: whoever keeps it in slow memory may bring it closer.
    fn prefetch(&self, i: usize) {
        let _ = i;
    }
    /// Told once for each document, in order: the document as it is now, and the one it replaces, if there was one.
    fn saved(&mut self, i: usize, new: RecordSummary, old: Option<RecordSummary>);
}

/// What remains of a record for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    /// Its seqno.
    pub seqno: u64,
    /// Whether it was a tombstone.
    pub deleted: bool,
    /// Bytes of its body's chunk.
    pub body_bytes: u32,
    /// Length of its revision metadata.
    pub rev_meta_bytes: usize,
}

impl RecordSummary {
    fn of(info: &DocInfo<'_>, rev_meta_bytes: usize) -> RecordSummary {
        RecordSummary {
            seqno: info.seqno,
            deleted: info.deleted,
            body_bytes: info.body_bytes,
            rev_meta_bytes,
        }
    }
}

/// A local document to write or, without value, to remove.
#[derive(Clone, Copy, Debug)]
pub struct LocalUpdate<'a> {
    /// Its id, with the `_local/` prefix where it has one.
    pub id: &'a [u8],
    /// Its new value.
    pub value: Option<&'a [u8]>,
}

impl CouchFile {
    /// Saves documents. They become visible with the next [`CouchFile::commit`].
    pub fn save<B: Batch>(&mut self, batch: &mut B) -> Result<(), Failure> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.save_with(batch, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn save_with<B: Batch>(&mut self, batch: &mut B, scratch: &mut Scratch) -> Result<(), Failure> {
        self.writer.flush()?;
        if batch.is_empty() {
            return Ok(());
        }
        let Scratch { placed, seqnos, packing, nodes, .. } = scratch;
        let start = self.writer.end();
        let (lowest, highest) = self.append_bodies(batch, placed, packing)?;
        self.body_bytes = (self.writer.end() - start) / batch.len() as u64;
        seqnos.begin(batch.len(), lowest, highest);
        self.header.by_id = self.rewrite(Tree::ById, ById { batch, placed, seqnos }, nodes)?;
        seqnos.finish();
        self.header.update_seqno = self.header.update_seqno.max(seqnos.highest());
        let (removed, order) = (seqnos.removed(), seqnos.order());
        let edits = |removed, order| BySeqno { batch, placed, removed, order };
        if seqnos.is_apart() {
            self.header.by_seqno = self.rewrite(Tree::BySeqno, edits(removed, order), nodes)?;
        } else {
            self.header.by_seqno = self.rewrite(Tree::BySeqno, edits(removed, &[]), nodes)?;
            // the second time round the tree is read as the first has left it
            self.writer.flush()?;
            self.header.by_seqno = self.rewrite(Tree::BySeqno, edits(&[], order), nodes)?;
        }
        scratch.trim();
        Ok(())
    }

    /// Saves local documents, sorted by id, each id once. They become visible with the next [`CouchFile::commit`].
    pub fn save_locals(&mut self, locals: &[LocalUpdate<'_>]) -> Result<(), Failure> {
        assert!(locals.is_sorted_by(|a, b| a.id < b.id), "local documents are sorted");
        if self.locals_unwritten {
            self.writer.flush()?;
        }
        let mut nodes = std::mem::take(&mut self.scratch.nodes);
        self.body_bytes = 0;
        let root = self.rewrite(Tree::Local, Locals(locals), &mut nodes);
        self.scratch.nodes = nodes;
        self.header.local = root?;
        self.locals_unwritten = true;
        Ok(())
    }

    fn rewrite<E: Edits>(
        &mut self,
        tree: Tree,
        mut edits: E,
        nodes: &mut NodeScratch,
    ) -> Result<Option<crate::node::Pointer>, Failure> {
        self.writer.check()?;
        let root = self.header.root(tree);
        if edits.len() == 0 {
            return Ok(root);
        }
        let source = self.writer.source().clone();
        let records = root.map_or(0, |root| root.reduce.live.saturating_add(root.reduce.deleted));
        let tuning = self.tuning.fit(edits.len() as u64, records, self.body_bytes);
        Rewrite::new(&source, &mut self.writer, &mut edits, tree, tuning, nodes).run(root)
    }

    /// Writes the bodies; returns the lowest and the highest seqno of the batch.
    fn append_bodies<B: Batch>(
        &mut self,
        batch: &B,
        placed: &mut Vec<Placed>,
        packing: &mut Packing,
    ) -> Result<(u64, u64), Failure> {
        placed.clear();
        placed.reserve_exact(batch.len());
        let (mut lowest, mut highest) = (u64::MAX, 0);
        let mut before: Option<&[u8]> = None;
        for i in 0..batch.len() {
            if i + AHEAD < batch.len() {
                batch.prefetch(i + AHEAD);
            }
            let doc = batch.doc(i);
            // an unsorted batch would make a tree that cannot be searched
            assert!(before.is_none_or(|id| id < doc.id), "a batch is sorted by id, each id once");
            before = Some(doc.id);
            (lowest, highest) = (lowest.min(doc.seqno), highest.max(doc.seqno));
            placed.push(match doc.body {
                Body::None => Placed::default(),
                Body::Plain(body) | Body::Compressed(body) => self.append_body(body)?,
                Body::Compress(body) => match packing.try_pack(body) {
                    Some(block) => Placed { packed: true, ..self.append_body(block)? },
                    None => self.append_body(body)?,
                },
            });
        }
        Ok((lowest, highest))
    }

    fn append_body(&mut self, body: &[u8]) -> Result<Placed, Failure> {
        assert!(body.len() + 8 <= MAX_VALUE, "callers keep to the limit of documents");
        self.writer.append_chunk(body, &[])
    }
}

/// What a record says of a document, except for its revision metadata, which is appended behind.
fn doc_info<'a>(doc: &DocUpdate<'a>, placed: Placed) -> DocInfo<'a> {
    let compressed = placed.packed || matches!(doc.body, Body::Compressed(_));
    DocInfo {
        id: doc.id,
        seqno: doc.seqno,
        rev_seqno: doc.rev_seqno,
        deleted: doc.deleted,
        content_meta: doc.content_meta | if compressed { crate::CONTENT_COMPRESSED } else { 0 },
        body_bytes: placed.bytes,
        body_offset: placed.offset,
        rev_meta: &[],
    }
}

/// Fills in the sizes in front of an entry that begins at `start` and ends where `out` does.
fn set_sizes(out: &mut [u8], start: usize, key_len: usize) {
    let value_len = out.len() - start - ENTRY_PREFIX - key_len;
    out[start..start + ENTRY_PREFIX].copy_from_slice(&entry_prefix(key_len, value_len));
}

struct ById<'a, B> {
    batch: &'a mut B,
    placed: &'a [Placed],
    seqnos: &'a mut SeqnoEdits,
}

impl<B: Batch> Edits for ById<'_, B> {
    fn len(&self) -> usize {
        self.batch.len()
    }

    fn compare(&self, i: usize, key: &[u8]) -> Ordering {
        self.batch.doc(i).id.cmp(key)
    }

    fn apply(
        &mut self,
        i: usize,
        old: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<Option<u32>, &'static str> {
        let left = self.batch.len() - 1 - i;
        if left >= AHEAD {
            self.batch.prefetch(i + AHEAD);
        }
        let doc = self.batch.doc(i);
        assert!(doc.id.len() <= MAX_KEY, "callers keep to the limit of keys");
        let info = doc_info(&doc, self.placed[i]);
        let start = out.len();
        out.extend_from_slice(&[0; ENTRY_PREFIX]);
        out.extend_from_slice(doc.id);
        out.extend_from_slice(&info.by_id_fixed());
        let fixed_end = out.len();
        self.batch.rev_meta(i, out);
        set_sizes(out, start, doc.id.len());
        self.seqnos.add(doc.seqno, i as u32);
        let replaced = match old {
            None => None,
            Some(value) => {
                let old = DocInfo::decode_by_id(doc.id, value).ok_or("a by-id record is malformed")?;
                self.seqnos.remove(old.seqno, left);
                Some(RecordSummary::of(&old, value.len() - BY_ID_FIXED))
            }
        };
        let new = RecordSummary::of(&info, out.len() - fixed_end);
        self.batch.saved(i, new, replaced);
        Ok(Some(weight(new.body_bytes, new.deleted)))
    }
}

/// First the seqnos that go, then the documents that come, all of which lie behind.
struct BySeqno<'a, B> {
    batch: &'a B,
    placed: &'a [Placed],
    removed: &'a [u64],
    order: &'a [u32],
}

impl<B: Batch> BySeqno<'_, B> {
    fn seqno(&self, i: usize) -> u64 {
        match self.removed.get(i) {
            Some(seqno) => *seqno,
            None => self.batch.doc(self.order[i - self.removed.len()] as usize).seqno,
        }
    }
}

impl<B: Batch> Edits for BySeqno<'_, B> {
    fn len(&self) -> usize {
        self.removed.len() + self.order.len()
    }

    fn compare(&self, i: usize, key: &[u8]) -> Ordering {
        let seqno = self.seqno(i);
        if key.len() == SEQNO_KEY { seqno.cmp(&be(key)) } else { be48(seqno)[..].cmp(key) }
    }

    fn apply(&mut self, i: usize, _: Option<&[u8]>, out: &mut Vec<u8>) -> Result<Option<u32>, &'static str> {
        let Some(at) = i.checked_sub(self.removed.len()) else { return Ok(None) };
        if let Some(&soon) = self.order.get(at + AHEAD) {
            self.batch.prefetch(soon as usize);
        }
        let index = self.order[at] as usize;
        let doc = self.batch.doc(index);
        let start = out.len();
        let mut head = [0; ENTRY_PREFIX + SEQNO_KEY + BY_SEQNO_FIXED];
        head[ENTRY_PREFIX..][..SEQNO_KEY].copy_from_slice(&be48(doc.seqno));
        head[ENTRY_PREFIX + SEQNO_KEY..]
            .copy_from_slice(&doc_info(&doc, self.placed[index]).by_seqno_fixed());
        out.extend_from_slice(&head);
        out.extend_from_slice(doc.id);
        self.batch.rev_meta(index, out);
        set_sizes(out, start, SEQNO_KEY);
        Ok(Some(0))
    }

    /// Both trees hold the same documents, so every seqno that is to go is there, and each once: if they are as many
    /// as a subtree has records, they are its records.
    fn removes_all(&self, from: usize, to: usize, records: u64) -> bool {
        to <= self.removed.len() && (to - from) as u64 == records
    }
}

/// Bytes of a key of the by-seqno tree.
const SEQNO_KEY: usize = 6;

struct Locals<'a>(&'a [LocalUpdate<'a>]);

impl Edits for Locals<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn compare(&self, i: usize, key: &[u8]) -> Ordering {
        self.0[i].id.cmp(key)
    }

    fn apply(&mut self, i: usize, _: Option<&[u8]>, out: &mut Vec<u8>) -> Result<Option<u32>, &'static str> {
        let LocalUpdate { id, value } = self.0[i];
        let Some(value) = value else { return Ok(None) };
        out.extend_from_slice(&entry_prefix(id.len(), value.len()));
        out.extend_from_slice(id);
        out.extend_from_slice(value);
        Ok(Some(0))
    }
}
