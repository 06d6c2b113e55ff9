//! Committing batches of several vBuckets: a segment and a run for each shard that they are in, all synced together, then
//! a record in each manifest, synced together.

use std::sync::Arc;

use base::env::File;
use base::planted::{self, Bug};
use parking_lot::MutexGuard;

use crate::failure::Failure;
use crate::file::{FileKind, NewFile, Purpose};
use crate::history::{HistoryEdit, KEPT};
use crate::identity::FileId;
use crate::meta::{CommitEdit, Edit, Extent, Kill, Point, RunMeta, SegmentMeta, VbMeta};
use crate::run::{Entry, RunWriter, Stored, run_key};
use crate::segment::{Item, SegmentWriter};
use crate::shard::{Shard, Writer};
use crate::store::LogStore;
use crate::view::{Commit, View};

/// What is committed of one vBucket.
pub trait Batch {
    /// Which one.
    fn vb(&self) -> u16;

    /// How many items there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of an item; items are in order of key, and of seqno within a key. All but the last of a key are versions
    /// that were replaced since: with [`KEPT`] they become part of the history, if one is kept.
    fn key(&self, at: usize) -> &[u8];

    /// From here on no version with [`KEPT`] is missing that a later one replaced, if a history is kept; `u64::MAX` if
    /// any may be missing. The history begins no earlier.
    fn history_from(&self) -> u64 {
        0
    }

    /// The seqno of an item.
    fn seqno(&self, at: usize) -> u64;

    /// An item; its metadata may be put into `scratch`.
    fn item<'s>(&'s self, at: usize, scratch: &'s mut Vec<u8>) -> Item<'s>;

    /// What is stored with the commit, and told by [`View::state`]. `before` is what was stored with the commit before.
    /// Items with a seqno at or below its high seqno are there already, and are not among the changes.
    fn seal(&mut self, before: Option<&View>, changes: &[Replaced]) -> Result<Sealed, String>;
}

/// An item that is committed, and what it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its place in the batch.
    pub at: usize,
    /// The version before, if there is one.
    pub old: Option<Entry>,
}

/// What a commit stores beside items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// What the caller wants to find again.
    pub state: Vec<u8>,
    /// Seqno up to which tombstones may be missing.
    pub purge_seqno: u64,
}

/// A batch that is ready to be written.
struct Ready {
    /// Its place in the group.
    at: usize,
    vb: u16,
    changes: Vec<Replaced>,
    /// Places of versions that later ones of the batch replaced, and that are kept.
    past: Vec<usize>,
    edit: CommitEdit,
}

/// What a shard has of a group.
struct Part<'s> {
    shard: &'s Shard,
    writer: MutexGuard<'s, Writer>,
    ready: Vec<Ready>,
    files: Vec<NewFile>,
    edits: Vec<Edit>,
    commit: u64,
}

impl Part<'_> {
    /// The shard, and bytes of the items that are committed.
    fn brought(&self) -> (usize, u64) {
        let extents = self.ready.iter().filter_map(|ready| ready.edit.extent.as_ref());
        (self.shard.index, extents.map(|extent| extent.bytes).sum())
    }

    fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name.clone()).collect()
    }

    fn fail(self, failure: &Failure, answers: &mut [Option<Result<Commit, Failure>>]) {
        for ready in &self.ready {
            answers[ready.at] = Some(Err(failure.clone()));
        }
    }

    /// Fails before any manifest names the files.
    fn abandon(mut self, failure: &Failure, answers: &mut [Option<Result<Commit, Failure>>]) {
        let files = std::mem::take(&mut self.files);
        files.into_iter().for_each(|file| file.abandon(&self.shard.files));
        self.fail(failure, answers);
    }
}

impl LogStore {
    /// Commits batches, each of another vBucket. Answers for each, in order: what succeeded is durable when this returns; of
    /// what failed all or nothing may be found by the next start.
    pub fn commit(&self, group: &mut [&mut dyn Batch]) -> Vec<Result<Commit, Failure>> {
        let mut answers: Vec<Option<Result<Commit, Failure>>> = group.iter().map(|_| None).collect();
        let mut written = Vec::new();
        for shard in &self.shards {
            let mut mine: Vec<usize> =
                (0..group.len()).filter(|at| self.shard_of(group[*at].vb()) == shard.index).collect();
            if mine.is_empty() {
                continue;
            }
            mine.sort_by_key(|at| group[*at].vb());
            let mut part = prepare(shard, group, &mine, &mut answers);
            match write_files(&mut part, group) {
                Ok(()) if part.ready.is_empty() => {}
                Ok(()) => written.push(part),
                Err(failure) => part.abandon(&failure, &mut answers),
            }
        }
        let brought: Vec<(usize, u64)> = written.iter().map(Part::brought).collect();
        self.make_durable(written, &mut answers);
        for (shard, bytes) in brought {
            self.shards[shard].keep_pace(bytes);
        }
        answers.into_iter().map(|answer| answer.expect("each batch has an answer")).collect()
    }

    fn make_durable(&self, parts: Vec<Part<'_>>, answers: &mut [Option<Result<Commit, Failure>>]) {
        if let Err(failure) = self.sync_new_files(&parts) {
            parts.into_iter().for_each(|part| part.abandon(&failure, answers));
            return;
        }
        let mut logged: Vec<(Part<'_>, Arc<dyn File>)> = Vec::new();
        for mut part in parts {
            let (edits, names) = (std::mem::take(&mut part.edits), part.names());
            let wrote = part.shard.write(&mut part.writer, &edits, &names);
            part.edits = edits;
            match wrote {
                Ok(manifest) => logged.push((part, manifest)),
                Err(failure) => part.fail(&failure, answers),
            }
        }
        let manifests: Vec<Arc<dyn File>> = logged.iter().map(|(_, manifest)| manifest.clone()).collect();
        let synced = if manifests.is_empty() || planted::is(Bug::ManifestNotSynced) {
            Ok(())
        } else {
            self.sync.sync_files(&manifests)
        };
        for (mut part, _) in logged {
            if let Err(source) = &synced {
                let source = std::io::Error::new(source.kind(), source.to_string());
                let failure =
                    Failure::io("sync the manifests of", &self.files.dir.as_path().into(), 0, source);
                let names = part.names();
                part.shard.is_in_doubt(&mut part.writer, &names);
                part.fail(&failure, answers);
                continue;
            }
            part.shard.written(&part.edits);
            let state = part.shard.state.read();
            for ready in &part.ready {
                let epoch = state.meta.vbs.get(&ready.vb).map_or(0, |meta| meta.epoch());
                answers[ready.at] = Some(Ok(Commit { epoch, number: part.commit }));
            }
        }
    }

    fn sync_new_files(&self, parts: &[Part<'_>]) -> Result<(), Failure> {
        let files: Vec<Arc<dyn File>> =
            parts.iter().flat_map(|part| &part.files).map(NewFile::to_sync).collect();
        if files.is_empty() {
            return Ok(());
        }
        let path = || self.files.dir.as_path().into();
        self.sync.sync_files(&files).map_err(|source| Failure::io("sync files of", &path(), 0, source))?;
        self.files.sync_dir()
    }
}

fn prepare<'s>(
    shard: &'s Shard,
    group: &mut [&mut dyn Batch],
    mine: &[usize],
    answers: &mut [Option<Result<Commit, Failure>>],
) -> Part<'s> {
    let writer = shard.writer.lock();
    let (commit, mut next_epoch) = {
        let state = shard.state.read();
        (shard.new_commit(&state), state.meta.next_epoch)
    };
    let mut ready = Vec::new();
    for &at in mine {
        match prepare_one(shard, &mut *group[at], commit, next_epoch) {
            Ok((changes, past, edit)) => {
                next_epoch += u64::from(edit.begins);
                ready.push(Ready { at, vb: group[at].vb(), changes, past, edit });
            }
            Err(failure) => answers[at] = Some(Err(failure)),
        }
    }
    Part { shard, writer, ready, files: Vec::new(), edits: Vec::new(), commit }
}

/// What a batch changes.
#[derive(Default)]
struct Changes {
    newest: Vec<Replaced>,
    past: Vec<usize>,
    kills: Vec<Kill>,
    /// Seqnos of versions that are replaced and are to stay in the history.
    kept: Vec<u64>,
    /// The highest seqno.
    last: u64,
}

/// Looks up what the items replace. What is there already is passed over, as is a version that a later one of the batch
/// replaces, unless it belongs to the history.
fn look_up(batch: &dyn Batch, view: Option<&View>, keeps_history: bool) -> Result<Changes, Failure> {
    let high = view.map_or(0, View::high_seqno);
    let mut all = Changes { last: high, ..Changes::default() };
    let mut scratch = Vec::new();
    for at in 0..batch.len() {
        let is_after = at == 0 || (batch.key(at - 1), batch.seqno(at - 1)) < (batch.key(at), batch.seqno(at));
        assert!(is_after, "a batch is sorted by key, and by seqno within a key");
        let seqno = batch.seqno(at);
        if seqno <= high {
            continue;
        }
        all.last = all.last.max(seqno);
        if at + 1 < batch.len() && batch.key(at) == batch.key(at + 1) {
            let item = batch.item(at, &mut scratch);
            if keeps_history && seqno >= batch.history_from() && item.flags & KEPT != 0 {
                all.past.push(at);
                all.kept.push(seqno);
                all.kills.push(Kill { seqno, bytes: item.bytes() });
            }
            continue;
        }
        let old = view.map_or(Ok(None), |view| view.find(batch.key(at)))?;
        if let Some(old) = old {
            all.kills.push(Kill { seqno: old.seqno, bytes: old.bytes });
            all.kept.extend((old.flags & KEPT != 0).then_some(old.seqno));
        }
        all.newest.push(Replaced { at, old });
    }
    Ok(all)
}

/// Looks up what the items replace, and lets the caller decide what is stored with them.
fn prepare_one(
    shard: &Shard,
    batch: &mut dyn Batch,
    commit: u64,
    next_epoch: u64,
) -> Result<(Vec<Replaced>, Vec<usize>, CommitEdit), Failure> {
    let vb = batch.vb();
    let view = shard.view(vb)?;
    let keeping = shard.files.keeping.now();
    let all = look_up(batch, view.as_ref(), keeping.retention.is_on())?;
    let Changes { newest, past, kills, kept, last } = all;
    let sealed = batch.seal(view.as_ref(), &newest).map_err(|what| Failure::Batch { vb, what })?;
    let epoch = view.as_ref().map_or(next_epoch, |view| view.meta.epoch());
    let point = Point { commit, epoch, high: last, purge: sealed.purge_seqno, state: sealed.state.into() };
    let (is_pinned, recorded) = {
        let state = shard.state.read();
        (state.meta.prepared.contains_key(&vb), state.recorded.get(&vb).copied().unwrap_or(0))
    };
    // Without a record a start asks for the last commit.
    let recorded = if shard.config.has_record { recorded } else { u64::MAX };
    let forgets = match &view {
        Some(view) if !is_pinned => {
            let waste_percent = shard.files.tuning.lock().waste_percent;
            forgotten(&view.meta, last, recorded, (&shard.config, waste_percent))
        }
        _ => Vec::new(),
    };
    let is_unrecorded = |point: &&Point| point.commit > recorded;
    let unrecorded = view.as_ref().map_or(0, |view| view.meta.points.iter().filter(is_unrecorded).count());
    if unrecorded >= MOST_POINTS {
        let what = format!("{unrecorded} commits before it are not on record");
        return Err(Failure::Batch { vb, what });
    }
    let begins = view.is_none();
    let meta = view.as_ref().map(|view| &*view.meta);
    let history = HistoryEdit::of_commit(keeping, meta, (last, is_pinned), (batch.history_from(), kept));
    let edit = CommitEdit { vb, begins, point, extent: None, kills, forgets, is_purge: false, history };
    Ok((newest, past, edit))
}

/// Which points are given up for a new one with a seqno: so that those that stay lie the closer the newer they are. The
/// commit on record stays, and what came behind it: a record that failed may be there nevertheless. If what they keep is
/// more than may be wasted, and it is known which one is on record, only the newest few stay.
fn forgotten(
    meta: &VbMeta,
    high: u64,
    recorded: u64,
    (config, waste_percent): (&crate::Config, u64),
) -> Vec<u64> {
    let mut kept: Vec<(u64, u64)> = meta.points.iter().map(|point| (point.commit, point.high)).collect();
    let mut forgets = Vec::new();
    if meta.is_pending() && kept.len() < MOST_POINTS {
        // The caller may have one of before the purge on record.
        return forgets;
    }
    let is_much = config.has_record && meta.pins_more_than(waste_percent);
    let near = if is_much { FEW_POINTS } else { NEAR_POINTS };
    let is_many = is_much || meta.superseded.len() > config.most_superseded;
    let most = if is_many { near } else { config.kept_points };
    while kept.len() + 1 > most.max(near) {
        // The newest stay: the caller may have one of them on record.
        let candidates = 0..(kept.len() + 1 - near).max(1);
        let cost = |at: usize| {
            let next = kept.get(at + 1).map_or(high, |(_, high)| *high);
            let before = at.checked_sub(1).map_or(0, |before| kept[before].1);
            let distance = high.saturating_sub(kept[at].1) + 1;
            u128::from(next.saturating_sub(before)) * 1_000_000 / u128::from(distance)
        };
        let candidates = candidates.filter(|at| kept[*at].0 < recorded);
        let Some(least) = candidates.min_by_key(|at| cost(*at)) else { break };
        forgets.push(kept.remove(least).0);
    }
    forgets
}

/// This number of the newest commits is kept, unless what they keep is more than may be wasted:
const NEAR_POINTS: usize = 4;
/// then it is this number.
const FEW_POINTS: usize = 2;
/// The most that are kept, whatever the caller may have on record.
const MOST_POINTS: usize = 64;

/// Writes the files of a part, and completes its edits.
fn write_files(part: &mut Part<'_>, group: &[&mut dyn Batch]) -> Result<(), Failure> {
    if part.ready.iter().any(|ready| !ready.changes.is_empty()) {
        write_segment(part, group)?;
        write_run(part, group)?;
    }
    let edits: Vec<Edit> = part.ready.iter().map(|ready| Edit::Commit(ready.edit.clone())).collect();
    part.edits.extend(edits);
    Ok(())
}

fn write_segment(part: &mut Part<'_>, group: &[&mut dyn Batch]) -> Result<(), Failure> {
    let mut writer = SegmentWriter::new(part.shard.new_file(FileKind::Segment)?);
    let FileId { number, nonce, .. } = writer.file.id;
    let written = write_extents(&mut writer, &mut part.ready, group);
    let len = writer.file.len();
    part.files.push(writer.file);
    let bytes = written?;
    part.shard.files.count(Purpose::Segments, len);
    part.edits.push(Edit::AddSegment { number, segment: SegmentMeta { len, bytes, nonce } });
    Ok(())
}

fn write_extents(
    writer: &mut SegmentWriter,
    ready: &mut [Ready],
    group: &[&mut dyn Batch],
) -> Result<u64, Failure> {
    let (mut scratch, mut all) = (Vec::new(), 0);
    for Ready { at, vb, changes, past, edit } in ready {
        let batch = &*group[*at];
        let mut order: Vec<usize> = changes.iter().map(|change| change.at).collect();
        order.extend_from_slice(past);
        order.sort_unstable_by_key(|at| batch.seqno(*at));
        writer.begin(*vb);
        for at in order {
            writer.add(&batch.item(at, &mut scratch))?;
        }
        let Some(written) = writer.end()? else { continue };
        all += written.bytes;
        edit.extent = Some(Extent {
            segment: writer.file.id.number,
            ordinal: written.ordinal,
            first: written.first,
            last: written.last,
            items: written.items,
            bytes: written.bytes,
            dead_bytes: 0,
        });
    }
    writer.finish()?;
    Ok(all)
}

fn write_run(part: &mut Part<'_>, group: &[&mut dyn Batch]) -> Result<(), Failure> {
    let mut writer = RunWriter::new(part.shard.new_file(FileKind::Run)?);
    let written = write_entries(part, &mut writer, group);
    let meta = RunMeta {
        number: writer.file.id.number,
        nonce: writer.file.id.nonce,
        bytes: writer.file.len(),
        low: part.commit,
        high: part.commit,
        entries: writer.entries,
        vbs: std::mem::take(&mut writer.vbs),
    };
    part.files.push(writer.file);
    written?;
    part.shard.files.count(Purpose::Runs, meta.bytes);
    part.edits.push(Edit::AddRun(meta));
    Ok(())
}

fn write_entries(part: &Part<'_>, writer: &mut RunWriter, group: &[&mut dyn Batch]) -> Result<(), Failure> {
    let mut scratch = Vec::new();
    for Ready { at, vb, changes, edit, .. } in &part.ready {
        let batch = &*group[*at];
        let epoch = edit.point.epoch;
        for change in changes {
            let item = batch.item(change.at, &mut scratch);
            let entry = Entry { seqno: item.seqno, flags: item.flags, time: item.time, bytes: item.bytes() };
            writer.add(&run_key(*vb, item.key), &Stored { epoch, entry, is_erased: false })?;
        }
    }
    writer.finish()
}
