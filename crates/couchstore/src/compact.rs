//! Copying a file into a new one without what is no longer needed, in bounded steps, while the old one is written.
//!
//! Bodies are copied as they are stored, in order of seqno, with the tree by seqno built beside them.
//! The tree by id follows from the old one, which is in order already, and a list of where each body went.
//! What was saved meanwhile is brought over by ordinary saves.

use std::ops::{ControlFlow, Range};
use std::path::Path;

use base::env::Disk;

use crate::bulk::Bulk;
use crate::failure::Failure;
use crate::file::{CouchFile, Tuning};
use crate::record::DocInfo;
use crate::save::{Batch, Body, DocUpdate, LocalUpdate, RecordSummary};
use crate::snapshot::Snapshot;
use crate::tree::{Tree, be, be48};

/// What becomes of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is copied.
    Keep,
    /// It is left out.
    LeaveOut,
    /// It is left out, and the purge seqno moves up to its seqno.
    Purge,
}

/// Decides what is copied and is told what came later.
pub trait Choice {
    /// What becomes of a document. The one with the highest seqno is kept without asking.
    fn fate(&mut self, info: &DocInfo<'_>) -> Fate;

    /// Whether a document that was saved after the copy began is left out: only what must not be in the new file at
    /// all, as nothing else is decided again.
    fn leaves_out_late(&mut self, info: &DocInfo<'_>) -> bool;

    /// A document that was saved after the copy began is in the new file now, in place of `old` if there was one.
    fn brought_over(&mut self, id: &[u8], new: RecordSummary, old: Option<RecordSummary>);
}

/// How far a compaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the old file that were looked at.
    pub done_bytes: u64,
    /// Bytes of it that are in use.
    pub total_bytes: u64,
    /// Whether the part at hand, copy or catching up, is done.
    pub is_done: bool,
}

/// A compaction under way. Dropped before it is finished, it leaves a file that is none.
pub struct Compaction {
    old: Snapshot,
    new: CouchFile,
    phase: Phase,
    places: Vec<Place>,
    purge_seqno: u64,
    /// Everything up to here has been looked at.
    seqno: u64,
    done_bytes: u64,
    body: Vec<u8>,
    record: Vec<u8>,
    late: Late,
}

enum Phase {
    /// Copying bodies and records by seqno.
    Documents(Bulk),
    /// Copying records by id, those behind this one.
    Ids {
        last: Option<Vec<u8>>,
        count: u64,
        bulk: Bulk,
    },
    Copied,
}

/// Where the body of a document that was kept is in the new file: seqno and offset, 48 bits each.
struct Place([u8; 12]);

impl Place {
    fn new(seqno: u64, offset: u64) -> Place {
        let mut bytes = [0; 12];
        bytes[..6].copy_from_slice(&be48(seqno));
        bytes[6..].copy_from_slice(&be48(offset));
        Place(bytes)
    }

    fn seqno_be(&self) -> &[u8] {
        &self.0[..6]
    }

    fn offset(&self) -> u64 {
        be(&self.0[6..])
    }
}

/// Bytes of a record beyond its id and revision metadata, roughly.
const RECORD_BYTES: u64 = 32;
/// No record by seqno takes less in a file that is not made to deceive.
const LEAST_RECORD_BYTES: u64 = 30;

fn record_bytes(info: &DocInfo<'_>) -> u64 {
    RECORD_BYTES + info.id.len() as u64 + info.rev_meta.len() as u64
}

impl Compaction {
    /// Begins to copy `old` into a new file, which must not exist.
    pub fn start(disk: &dyn Disk, path: &Path, old: Snapshot, tuning: Tuning) -> Result<Compaction, Failure> {
        let mut new = CouchFile::create(disk, path)?;
        new.set_tuning(tuning);
        let info = old.info();
        let most = info.file_bytes / LEAST_RECORD_BYTES;
        Ok(Compaction {
            new,
            phase: Phase::Documents(Bulk::new(Tree::BySeqno, tuning)),
            places: Vec::with_capacity(info.seqno_count.min(most) as usize),
            purge_seqno: info.purge_seqno,
            seqno: 0,
            done_bytes: 0,
            body: Vec::new(),
            record: Vec::new(),
            late: Late::default(),
            old: old.read_ahead(),
        })
    }

    /// Copies about `budget_bytes` more, a document at least.
    pub fn step(&mut self, budget_bytes: u64, choice: &mut dyn Choice) -> Result<Progress, Failure> {
        let phase = std::mem::replace(&mut self.phase, Phase::Copied);
        self.phase = match phase {
            Phase::Documents(bulk) => self.copy_documents(bulk, budget_bytes, choice)?,
            Phase::Ids { last, count, bulk } => self.copy_ids(last, count, bulk, budget_bytes)?,
            Phase::Copied => Phase::Copied,
        };
        Ok(self.progress(matches!(self.phase, Phase::Copied)))
    }

    fn progress(&self, is_done: bool) -> Progress {
        let total_bytes = self.old.info().used_bytes();
        let done_bytes = if is_done { total_bytes } else { self.done_bytes.min(total_bytes) };
        Progress { done_bytes, total_bytes, is_done }
    }

    fn copy_documents(
        &mut self,
        mut bulk: Bulk,
        budget_bytes: u64,
        choice: &mut dyn Choice,
    ) -> Result<Phase, Failure> {
        let Compaction { old, new, places, body, record, .. } = self;
        let highest = old.header.update_seqno;
        let (mut spent, mut is_done) = (0, true);
        let (seqno, purge_seqno) = (&mut self.seqno, &mut self.purge_seqno);
        old.changes_since(*seqno + 1, |info| {
            if spent >= budget_bytes {
                is_done = false;
                return Ok(ControlFlow::Break(()));
            }
            spent += record_bytes(&info);
            advance(old, seqno, &info)?;
            let fate = if info.seqno == highest { Fate::Keep } else { choice.fate(&info) };
            if fate == Fate::Purge {
                *purge_seqno = info.seqno.max(*purge_seqno);
            }
            if fate != Fate::Keep {
                return Ok(ControlFlow::Continue(()));
            }
            spent += u64::from(info.body_bytes);
            let body_offset = copy_body(old, new, &info, body)?;
            record.clear();
            DocInfo { body_offset, ..info }.encode_by_seqno(record);
            bulk.push(&mut new.writer, &be48(info.seqno), record)?;
            places.push(Place::new(info.seqno, body_offset));
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })?;
        self.done_bytes += spent;
        if !is_done {
            return Ok(Phase::Documents(bulk));
        }
        self.seqno = highest.max(self.seqno);
        new.header.by_seqno = bulk.finish(&mut new.writer)?;
        let bulk = Bulk::new(Tree::ById, new.tuning);
        Ok(Phase::Ids { last: None, count: 0, bulk })
    }

    fn copy_ids(
        &mut self,
        mut last: Option<Vec<u8>>,
        mut count: u64,
        mut bulk: Bulk,
        budget_bytes: u64,
    ) -> Result<Phase, Failure> {
        let Compaction { old, new, places, record, .. } = self;
        let (mut spent, mut is_done) = (0, true);
        // the id that comes right behind the last one
        let from = last.iter().flatten().chain(last.as_ref().map(|_| &0)).copied().collect::<Vec<u8>>();
        old.scan_ids(&from, |info| {
            if spent >= budget_bytes {
                is_done = false;
                return Ok(ControlFlow::Break(()));
            }
            spent += record_bytes(&info);
            if last.as_deref().is_some_and(|last| info.id <= last) {
                return Err(out_of_order(old));
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(info.id);
            let seqno = be48(info.seqno);
            let Ok(at) = places.binary_search_by(|place| place.seqno_be().cmp(&seqno)) else {
                return Ok(ControlFlow::Continue(()));
            };
            record.clear();
            DocInfo { body_offset: places[at].offset(), ..info }.encode_by_id(record);
            bulk.push(&mut new.writer, info.id, record)?;
            count += 1;
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })?;
        self.done_bytes += spent;
        if !is_done {
            return Ok(Phase::Ids { last, count, bulk });
        }
        new.header.by_id = bulk.finish(&mut new.writer)?;
        if count != places.len() as u64 {
            return Err(old.source.damaged(old.header.offset, "the trees by id and by seqno disagree"));
        }
        *places = Vec::new();
        Ok(Phase::Copied)
    }

    /// Makes durable what was copied so far, so that little is left to do for the last commit.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.new.writer.flush()?;
        self.new.writer.sync()
    }

    /// Bytes of the new file so far.
    pub fn written_bytes(&self) -> u64 {
        self.new.writer.next_block()
    }

    /// Documents that were saved into the old file since, as far as a newer snapshot of it tells without looking.
    pub fn seqnos_behind(&self, newer: &Snapshot) -> u64 {
        newer.header.update_seqno.saturating_sub(self.seqno)
    }

    /// Brings over about `budget_bytes` of what was saved into the old file up to a newer snapshot of it, once the
    /// copy is done.
    pub fn catch_up(
        &mut self,
        newer: &Snapshot,
        budget_bytes: u64,
        choice: &mut dyn Choice,
    ) -> Result<Progress, Failure> {
        assert!(matches!(self.phase, Phase::Copied), "catching up comes after the copy");
        self.new.writer.flush()?;
        let mut late = std::mem::take(&mut self.late);
        late.docs.clear();
        late.bytes.clear();
        let present = self.saved_so_far();
        let (mut is_done, highest) = (true, newer.header.update_seqno);
        let seqno = &mut self.seqno;
        newer.changes_since(*seqno + 1, |info| {
            if late.bytes.len() as u64 >= budget_bytes {
                is_done = false;
                return Ok(ControlFlow::Break(()));
            }
            advance(newer, seqno, &info)?;
            // one of which an older version was copied is brought over in any case: nothing else would replace that
            let goes = info.seqno != highest
                && choice.leaves_out_late(&info)
                && present.get(info.id, |_| ())?.is_none();
            if !goes {
                late.push(&info, newer.stored_body(&info, &mut self.body)?);
            }
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })?;
        if is_done {
            self.seqno = highest.max(self.seqno);
        }
        late.docs.sort_unstable_by(|a, b| late.bytes[a.id.clone()].cmp(&late.bytes[b.id.clone()]));
        if !late.docs.is_empty() {
            self.new.save(&mut LateBatch { late: &late, choice })?;
        }
        self.late = late;
        Ok(self.progress(is_done))
    }

    /// The new file as it stands, though nothing of it is committed.
    fn saved_so_far(&self) -> Snapshot {
        let end = self.new.writer.written_end();
        let header = crate::header::Header { offset: end, ..self.new.header.clone() };
        Snapshot::new(self.new.writer.source().clone(), header.into(), end)
    }

    /// Brings over the local documents of a snapshot that was caught up with, with `changes` to them, which are
    /// sorted. The new file is complete with its first commit, which is the caller's to make.
    pub fn finish(mut self, newest: &Snapshot, changes: &[LocalUpdate<'_>]) -> Result<CouchFile, Failure> {
        assert!(self.seqnos_behind(newest) == 0, "everything is brought over");
        let mut locals = std::collections::BTreeMap::new();
        newest.scan_locals(|id, value| {
            locals.insert(id.to_vec(), Some(value.to_vec()));
        })?;
        for change in changes {
            locals.insert(change.id.to_vec(), change.value.map(<[u8]>::to_vec));
        }
        let locals: Vec<_> =
            locals.iter().map(|(id, value)| LocalUpdate { id, value: value.as_deref() }).collect();
        self.new.save_locals(&locals)?;
        let header = &mut self.new.header;
        header.update_seqno = newest.header.update_seqno;
        header.purge_seqno = self.purge_seqno.max(newest.header.purge_seqno);
        Ok(self.new)
    }
}

fn advance(file: &Snapshot, seqno: &mut u64, info: &DocInfo<'_>) -> Result<(), Failure> {
    if info.seqno <= *seqno {
        return Err(out_of_order(file));
    }
    *seqno = info.seqno;
    Ok(())
}

fn out_of_order(file: &Snapshot) -> Failure {
    file.source.damaged(file.header.offset, "keys of a tree are out of order")
}

/// Copies a body as it is stored and returns where it is now; 0 without one.
fn copy_body(
    old: &Snapshot,
    new: &mut CouchFile,
    info: &DocInfo<'_>,
    buf: &mut Vec<u8>,
) -> Result<u64, Failure> {
    if info.body_offset == 0 {
        return match info.body_bytes {
            0 => Ok(0),
            _ => Err(old.source.damaged(old.header.offset, "a record has a body that is nowhere")),
        };
    }
    let body = old.stored_body(info, buf)?;
    Ok(new.writer.append_chunk(body, &[])?.offset)
}

/// Documents that were saved after the copy began.
#[derive(Default)]
struct Late {
    docs: Vec<LateDoc>,
    bytes: Vec<u8>,
}

/// One of them; ranges are of [`Late::bytes`].
struct LateDoc {
    id: Range<usize>,
    rev_meta: Range<usize>,
    /// Nothing if it has no body, which is not the same as an empty one.
    body: Option<Range<usize>>,
    seqno: u64,
    rev_seqno: u64,
    deleted: bool,
    content_meta: u8,
}

impl Late {
    fn put(&mut self, bytes: &[u8]) -> Range<usize> {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        from..self.bytes.len()
    }

    fn push(&mut self, info: &DocInfo<'_>, body: &[u8]) {
        let doc = LateDoc {
            id: self.put(info.id),
            rev_meta: self.put(info.rev_meta),
            body: (info.body_offset != 0).then(|| self.put(body)),
            seqno: info.seqno,
            rev_seqno: info.rev_seqno,
            deleted: info.deleted,
            content_meta: info.content_meta,
        };
        self.docs.push(doc);
    }
}

struct LateBatch<'a> {
    late: &'a Late,
    choice: &'a mut dyn Choice,
}

impl Batch for LateBatch<'_> {
    fn len(&self) -> usize {
        self.late.docs.len()
    }

    fn doc(&self, i: usize) -> DocUpdate<'_> {
        let doc = &self.late.docs[i];
        DocUpdate {
            id: &self.late.bytes[doc.id.clone()],
            seqno: doc.seqno,
            rev_seqno: doc.rev_seqno,
            deleted: doc.deleted,
            // with the bit for compression, as the body is what is stored
            content_meta: doc.content_meta,
            body: doc.body.clone().map_or(Body::None, |body| Body::Plain(&self.late.bytes[body])),
        }
    }

    fn rev_meta(&self, i: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.late.bytes[self.late.docs[i].rev_meta.clone()]);
    }

    fn saved(&mut self, i: usize, new: RecordSummary, old: Option<RecordSummary>) {
        self.choice.brought_over(&self.late.bytes[self.late.docs[i].id.clone()], new, old);
    }
}
