//! Saving a batch: bodies first, then the by-id tree, then the by-seqno tree.

use crate::failure::Failure;
use crate::file::CouchFile;
use crate::node::{MAX_KEY, MAX_VALUE};
use crate::record::DocInfo;
use crate::rewrite::{Edits, Rewrite};
use crate::scratch::{NodeScratch, Packing, Scratch};
use crate::tree::Tree;
use crate::writer::Placed;

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
    fn of(info: &DocInfo<'_>) -> RecordSummary {
        RecordSummary {
            seqno: info.seqno,
            deleted: info.deleted,
            body_bytes: info.body_bytes,
            rev_meta_bytes: info.rev_meta.len(),
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
        let Scratch { placed, by_seqno, rev_meta, packing, nodes, .. } = scratch;
        placed.clear();
        by_seqno.clear();
        self.append_bodies(batch, placed, packing)?;
        let edits = ById { batch, placed, by_seqno, rev_meta };
        self.header.by_id = self.rewrite(Tree::ById, edits, nodes)?;
        // of equal seqnos the new record comes first and the removal goes
        by_seqno.sort_unstable_by_key(|edit| (u64::from_be_bytes(edit.seqno_be), edit.index));
        by_seqno.dedup_by_key(|edit| edit.seqno_be);
        if let Some(last) = by_seqno.iter().rev().find(|edit| edit.index != REMOVE) {
            self.header.update_seqno = self.header.update_seqno.max(u64::from_be_bytes(last.seqno_be));
        }
        let edits = BySeqno { batch, placed, edits: by_seqno, rev_meta };
        self.header.by_seqno = self.rewrite(Tree::BySeqno, edits, nodes)?;
        Ok(())
    }

    /// Saves local documents, sorted by id, each id once. They become visible with the next [`CouchFile::commit`].
    pub fn save_locals(&mut self, locals: &[LocalUpdate<'_>]) -> Result<(), Failure> {
        assert!(locals.is_sorted_by(|a, b| a.id < b.id), "local documents are sorted");
        if self.locals_unwritten {
            self.writer.flush()?;
        }
        let mut nodes = std::mem::take(&mut self.scratch.nodes);
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
        Rewrite::new(&source, &mut self.writer, &mut edits, tree, self.tuning, nodes).run(root)
    }

    fn append_bodies<B: Batch>(
        &mut self,
        batch: &B,
        placed: &mut Vec<Placed>,
        packing: &mut Packing,
    ) -> Result<(), Failure> {
        for i in 0..batch.len() {
            placed.push(match batch.doc(i).body {
                Body::None => Placed::default(),
                Body::Plain(body) | Body::Compressed(body) => self.append_body(body)?,
                Body::Compress(body) => match packing.try_pack(body) {
                    Some(block) => Placed { packed: true, ..self.append_body(block)? },
                    None => self.append_body(body)?,
                },
            });
        }
        Ok(())
    }

    fn append_body(&mut self, body: &[u8]) -> Result<Placed, Failure> {
        assert!(body.len() + 8 <= MAX_VALUE, "callers keep to the limit of documents");
        self.writer.append_chunk(body, &[])
    }
}

/// Marks an edit that removes an old seqno.
const REMOVE: u32 = u32::MAX;

/// One edit of the by-seqno tree: 12 bytes an item, as large batches have a million of them.
pub(crate) struct SeqnoEdit {
    seqno_be: [u8; 8],
    /// Document of the batch, or [`REMOVE`].
    index: u32,
}

struct ById<'a, B> {
    batch: &'a mut B,
    placed: &'a [Placed],
    by_seqno: &'a mut Vec<SeqnoEdit>,
    rev_meta: &'a mut Vec<u8>,
}

fn doc_info<'a>(doc: &DocUpdate<'a>, placed: Placed, rev_meta: &'a [u8]) -> DocInfo<'a> {
    let compressed = placed.packed || matches!(doc.body, Body::Compressed(_));
    DocInfo {
        id: doc.id,
        seqno: doc.seqno,
        rev_seqno: doc.rev_seqno,
        deleted: doc.deleted,
        content_meta: doc.content_meta | if compressed { crate::CONTENT_COMPRESSED } else { 0 },
        body_bytes: placed.bytes,
        body_offset: placed.offset,
        rev_meta,
    }
}

impl<B: Batch> Edits for ById<'_, B> {
    fn len(&self) -> usize {
        self.batch.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        self.batch.doc(i).id
    }

    fn apply(&mut self, i: usize, old: Option<&[u8]>, out: &mut Vec<u8>) -> Result<bool, &'static str> {
        self.rev_meta.clear();
        self.batch.rev_meta(i, self.rev_meta);
        let doc = self.batch.doc(i);
        assert!(doc.id.len() <= MAX_KEY, "callers keep to the limit of keys");
        let new = doc_info(&doc, self.placed[i], self.rev_meta);
        new.encode_by_id(out);
        self.by_seqno.push(SeqnoEdit { seqno_be: doc.seqno.to_be_bytes(), index: i as u32 });
        let replaced = match old {
            None => None,
            Some(value) => {
                let old = DocInfo::decode_by_id(doc.id, value).ok_or("a by-id record is malformed")?;
                self.by_seqno.push(SeqnoEdit { seqno_be: old.seqno.to_be_bytes(), index: REMOVE });
                Some(RecordSummary::of(&old))
            }
        };
        let new = RecordSummary::of(&new);
        self.batch.saved(i, new, replaced);
        Ok(true)
    }
}

struct BySeqno<'a, B> {
    batch: &'a B,
    placed: &'a [Placed],
    edits: &'a [SeqnoEdit],
    rev_meta: &'a mut Vec<u8>,
}

impl<B: Batch> Edits for BySeqno<'_, B> {
    fn len(&self) -> usize {
        self.edits.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        &self.edits[i].seqno_be[2..]
    }

    fn apply(&mut self, i: usize, _old: Option<&[u8]>, out: &mut Vec<u8>) -> Result<bool, &'static str> {
        let index = self.edits[i].index;
        if index == REMOVE {
            return Ok(false);
        }
        let index = index as usize;
        self.rev_meta.clear();
        self.batch.rev_meta(index, self.rev_meta);
        doc_info(&self.batch.doc(index), self.placed[index], self.rev_meta).encode_by_seqno(out);
        Ok(true)
    }
}

struct Locals<'a>(&'a [LocalUpdate<'a>]);

impl Edits for Locals<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        self.0[i].id
    }

    fn apply(&mut self, i: usize, _old: Option<&[u8]>, out: &mut Vec<u8>) -> Result<bool, &'static str> {
        match self.0[i].value {
            Some(value) => out.extend_from_slice(value),
            None => return Ok(false),
        }
        Ok(true)
    }
}
