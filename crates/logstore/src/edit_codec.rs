//! Edits as bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::{Decoder, Encoder};
use crate::file::FileKind;
use crate::history::{History, HistoryEdit};
use crate::meta::{CommitEdit, Edit, Extent, Kill, Point, RewriteEdit, RunMeta, SegmentMeta, VbMeta};

const COUNTERS: u8 = 1;
const ADD_RUN: u8 = 2;
const ADD_SEGMENT: u8 = 3;
const REMOVE_RUN: u8 = 4;
const REMOVE_SEGMENT: u8 = 5;
const COMMIT: u8 = 6;
const REWRITE: u8 = 7;
const SET: u8 = 8;
const DROP: u8 = 9;
const PREPARE: u8 = 10;
const ADOPT: u8 = 11;
const FORGET: u8 = 12;
const DAMAGE: u8 = 13;
const RESET: u8 = 14;
const BESIDE: u8 = 15;
const ADD_NAMED_RUN: u8 = 16;
const ADD_NAMED_SEGMENT: u8 = 17;
const COMMIT_WITH_HISTORY: u8 = 18;
const SET_WITH_HISTORY: u8 = 19;
const PREPARE_WITH_HISTORY: u8 = 20;
const HISTORY: u8 = 21;

/// Appends an edit.
pub(crate) fn put(to: &mut Encoder, edit: &Edit) {
    match edit {
        Edit::Counters { file, epoch, commit } => {
            to.u8(COUNTERS);
            [file, epoch, commit].into_iter().for_each(|n| to.number(*n));
        }
        Edit::AddRun(run) => {
            to.u8(if run.nonce == 0 { ADD_RUN } else { ADD_NAMED_RUN });
            [run.number, run.bytes, run.low, run.high, run.entries].into_iter().for_each(|n| to.number(n));
            to.number(run.vbs.len() as u64);
            run.vbs.iter().for_each(|vb| to.number(u64::from(*vb)));
            put_nonce(to, run.nonce);
        }
        Edit::AddSegment { number, segment } => {
            let SegmentMeta { len, bytes, nonce } = segment;
            to.u8(if *nonce == 0 { ADD_SEGMENT } else { ADD_NAMED_SEGMENT });
            [number, len, bytes].into_iter().for_each(|n| to.number(*n));
            put_nonce(to, *nonce);
        }
        Edit::RemoveFile { kind, number } => {
            to.u8(if *kind == FileKind::Run { REMOVE_RUN } else { REMOVE_SEGMENT });
            to.number(*number);
        }
        Edit::Commit(commit) => put_commit(to, commit),
        Edit::Rewrite(rewrite) => put_rewrite(to, rewrite),
        Edit::Set { vb, meta } => put_vb(to, [SET, SET_WITH_HISTORY], *vb, meta),
        Edit::Prepare { vb, meta } => put_vb(to, [PREPARE, PREPARE_WITH_HISTORY], *vb, meta),
        Edit::History { vb, edit } => {
            put_word(to, HISTORY, *vb);
            edit.put(to);
        }
        Edit::Drop { vb } => put_word(to, DROP, *vb),
        Edit::Adopt { vb } => put_word(to, ADOPT, *vb),
        Edit::Forget { vb } => put_word(to, FORGET, *vb),
        Edit::Reset { vb } => put_word(to, RESET, *vb),
        Edit::Beside { number } => {
            to.u8(BESIDE);
            to.number(*number);
        }
        Edit::Damage { vb, what } => {
            put_word(to, DAMAGE, *vb);
            to.bytes(what.as_bytes());
        }
    }
}

/// What a file without an identity does not have.
fn put_nonce(to: &mut Encoder, nonce: u64) {
    if nonce != 0 {
        to.number(nonce);
    }
}

fn take_nonce(from: &mut Decoder<'_>, is_named: bool) -> Option<u64> {
    if is_named { from.number().filter(|nonce| *nonce != 0) } else { Some(0) }
}

fn put_word(to: &mut Encoder, kind: u8, vb: u16) {
    to.u8(kind);
    to.number(u64::from(vb));
}

fn put_point(to: &mut Encoder, point: &Point) {
    [point.commit, point.epoch, point.high, point.purge].into_iter().for_each(|n| to.number(n));
    to.bytes(&point.state);
}

fn take_point(from: &mut Decoder<'_>) -> Option<Point> {
    let (commit, epoch) = (from.number()?, from.number()?);
    let (high, purge) = (from.number()?, from.number()?);
    Some(Point { commit, epoch, high, purge, state: from.bytes()?.into() })
}

fn put_extent(to: &mut Encoder, extent: &Extent) {
    to.number(extent.segment);
    to.number(u64::from(extent.ordinal));
    to.number(extent.first);
    to.number(extent.last.saturating_sub(extent.first));
    to.number(u64::from(extent.items));
    to.number(extent.bytes);
    to.number(extent.dead_bytes);
}

fn take_extent(from: &mut Decoder<'_>) -> Option<Extent> {
    let (segment, ordinal, first) = (from.number()?, from.small()?, from.number()?);
    let last = first.checked_add(from.number()?)?;
    let (items, bytes, dead_bytes) = (from.small()?, from.number()?, from.number()?);
    Some(Extent { segment, ordinal, first, last, items, bytes, dead_bytes })
}

fn put_extent_if_any(to: &mut Encoder, extent: Option<&Extent>) {
    to.u8(u8::from(extent.is_some()));
    if let Some(extent) = extent {
        put_extent(to, extent);
    }
}

fn take_extent_if_any(from: &mut Decoder<'_>) -> Option<Option<Extent>> {
    match from.u8()? {
        0 => Some(None),
        1 => take_extent(from).map(Some),
        _ => None,
    }
}

fn put_commit(to: &mut Encoder, commit: &CommitEdit) {
    let kind = if commit.history.is_some() { COMMIT_WITH_HISTORY } else { COMMIT };
    put_word(to, kind, commit.vb);
    to.u8(u8::from(commit.begins));
    put_point(to, &commit.point);
    put_extent_if_any(to, commit.extent.as_ref());
    to.number(commit.kills.len() as u64);
    for Kill { seqno, bytes } in &commit.kills {
        to.number(*seqno);
        to.number(u64::from(*bytes));
    }
    to.number(commit.forgets.len() as u64);
    commit.forgets.iter().for_each(|commit| to.number(*commit));
    to.u8(u8::from(commit.is_purge));
    commit.history.iter().for_each(|history| history.put(to));
}

fn take_commit(from: &mut Decoder<'_>, has_history: bool) -> Option<Edit> {
    let vb = from.small()?;
    let begins = from.u8()? != 0;
    let point = take_point(from)?;
    let extent = take_extent_if_any(from)?;
    let mut kills = Vec::new();
    for _ in 0..from.count()? {
        let seqno = from.number()?;
        kills.push(Kill { seqno, bytes: from.small()? });
    }
    let forgets = (0..from.count()?).map(|_| from.number()).collect::<Option<Vec<_>>>()?;
    let is_purge = from.u8()? != 0;
    let history = if has_history { Some(HistoryEdit::take(from)?) } else { None };
    Some(Edit::Commit(CommitEdit { vb, begins, point, extent, kills, forgets, is_purge, history }))
}

fn put_rewrite(to: &mut Encoder, rewrite: &RewriteEdit) {
    put_word(to, REWRITE, rewrite.vb);
    to.number(rewrite.old.len() as u64);
    for (segment, ordinal) in &rewrite.old {
        to.number(*segment);
        to.number(u64::from(*ordinal));
    }
    put_extent_if_any(to, rewrite.new.as_ref());
    to.set(&rewrite.dropped);
}

fn take_rewrite(from: &mut Decoder<'_>) -> Option<Edit> {
    let vb = from.small()?;
    let old =
        (0..from.count()?).map(|_| Some((from.number()?, from.small()?))).collect::<Option<Vec<_>>>()?;
    let new = take_extent_if_any(from)?;
    Some(Edit::Rewrite(RewriteEdit { vb, old, new, dropped: from.set()? }))
}

/// The second kind is that of one with a history.
fn put_vb(to: &mut Encoder, [without, with]: [u8; 2], vb: u16, meta: &VbMeta) {
    let has_history = meta.history.start > 0;
    put_word(to, if has_history { with } else { without }, vb);
    to.number(meta.epochs.len() as u64);
    for (epoch, limit) in &meta.epochs {
        to.number(*epoch);
        to.number(*limit);
    }
    to.number(meta.points.len() as u64);
    meta.points.iter().for_each(|point| put_point(to, point));
    to.number(meta.extents.len() as u64);
    meta.extents.iter().for_each(|extent| put_extent(to, extent));
    to.set(&meta.dead);
    to.number(meta.barrier);
    to.number(meta.superseded.len() as u64);
    for (seqno, (by, bytes)) in meta.superseded.iter() {
        to.number(*seqno);
        to.number(*by);
        to.number(u64::from(*bytes));
    }
    if has_history {
        meta.history.put(to);
    }
}

fn take_vb(from: &mut Decoder<'_>, has_history: bool) -> Option<(u16, VbMeta)> {
    let vb = from.small()?;
    let epochs = (0..from.count()?).map(|_| Some((from.number()?, from.number()?)));
    let epochs = epochs.collect::<Option<Vec<_>>>()?;
    let points = (0..from.count()?).map(|_| take_point(from)).collect::<Option<Vec<_>>>()?;
    let extents = (0..from.count()?).map(|_| take_extent(from)).collect::<Option<Vec<_>>>()?;
    let dead = from.set()?;
    let barrier = from.number()?;
    let mut superseded = BTreeMap::new();
    for _ in 0..from.count()? {
        let seqno = from.number()?;
        let by = from.number()?;
        superseded.insert(seqno, (by, from.small()?));
    }
    let history = if has_history { History::take(from)? } else { History::default() };
    if epochs.is_empty() || points.is_empty() {
        return None;
    }
    let (extents, dead, superseded) = (Arc::new(extents), Arc::new(dead), Arc::new(superseded));
    let history = Arc::new(history);
    let mut meta = VbMeta {
        epochs,
        points,
        extents,
        dead,
        barrier,
        superseded,
        pinned_bytes: 0,
        history,
        history_bytes: 0,
    };
    meta.pinned_bytes = meta.sum_pinned();
    meta.history_bytes = meta.sum_history();
    Some((vb, meta))
}

/// Takes an edit; `None` if the bytes make no sense.
pub(crate) fn take(from: &mut Decoder<'_>) -> Option<Edit> {
    Some(match from.u8()? {
        COUNTERS => Edit::Counters { file: from.number()?, epoch: from.number()?, commit: from.number()? },
        kind @ (ADD_RUN | ADD_NAMED_RUN) => {
            let (number, bytes, low) = (from.number()?, from.number()?, from.number()?);
            let (high, entries) = (from.number()?, from.number()?);
            let vbs = (0..from.count()?).map(|_| from.small()).collect::<Option<Vec<u16>>>()?;
            let nonce = take_nonce(from, kind == ADD_NAMED_RUN)?;
            Edit::AddRun(RunMeta { number, nonce, bytes, low, high, entries, vbs })
        }
        kind @ (ADD_SEGMENT | ADD_NAMED_SEGMENT) => {
            let (number, len, bytes) = (from.number()?, from.number()?, from.number()?);
            let nonce = take_nonce(from, kind == ADD_NAMED_SEGMENT)?;
            Edit::AddSegment { number, segment: SegmentMeta { len, bytes, nonce } }
        }
        REMOVE_RUN => Edit::RemoveFile { kind: FileKind::Run, number: from.number()? },
        REMOVE_SEGMENT => Edit::RemoveFile { kind: FileKind::Segment, number: from.number()? },
        kind @ (COMMIT | COMMIT_WITH_HISTORY) => take_commit(from, kind == COMMIT_WITH_HISTORY)?,
        REWRITE => take_rewrite(from)?,
        kind @ (SET | SET_WITH_HISTORY) => {
            let (vb, meta) = take_vb(from, kind == SET_WITH_HISTORY)?;
            Edit::Set { vb, meta }
        }
        kind @ (PREPARE | PREPARE_WITH_HISTORY) => {
            let (vb, meta) = take_vb(from, kind == PREPARE_WITH_HISTORY)?;
            Edit::Prepare { vb, meta }
        }
        HISTORY => Edit::History { vb: from.small()?, edit: HistoryEdit::take(from)? },
        DROP => Edit::Drop { vb: from.small()? },
        ADOPT => Edit::Adopt { vb: from.small()? },
        FORGET => Edit::Forget { vb: from.small()? },
        BESIDE => Edit::Beside { number: from.number()? },
        RESET => Edit::Reset { vb: from.small()? },
        DAMAGE => {
            let vb = from.small()?;
            Edit::Damage { vb, what: std::str::from_utf8(from.bytes()?).ok()?.into() }
        }
        _ => return None,
    })
}

/// A list of edits.
pub(crate) fn encode(edits: &[Edit]) -> Vec<u8> {
    let mut to = Encoder::default();
    to.number(edits.len() as u64);
    edits.iter().for_each(|edit| put(&mut to, edit));
    to.0
}

/// The same as edits.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Edit>> {
    let mut from = Decoder(bytes);
    let count = from.count()?;
    let edits = (0..count).map(|_| take(&mut from)).collect::<Option<Vec<_>>>()?;
    from.is_empty().then_some(edits)
}
