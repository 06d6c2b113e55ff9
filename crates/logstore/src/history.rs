//! The history of changes: versions that stay although newer ones replaced them, until they are too old or too many.
//!
//! *Guarantee:* from a vBucket's history start on, every version is there of items with [`KEPT`]. The start only rises, but
//! for rollbacks.

use base::env::Clock;
use parking_lot::Mutex;
use roaring::RoaringTreemap;

use crate::codec::{Decoder, Encoder};
use crate::failure::Failure;
use crate::meta::{Edit, Extent, VbMeta};
use crate::shard::Shard;

/// Bit of an item's flags: replaced versions of it stay in the history.
pub const KEPT: u8 = 0x80;

/// If there are more marks than these, every second one goes.
const MOST_MARKS: usize = 256;
/// A background step lets go of versions if they are at least this part of what is kept.
const LEAST_SHARE: u64 = 16;

/// What limits the history. Without any limit none is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Seconds after which a version goes; 0 if they do not matter.
    pub seconds: u64,
    /// Bytes of replaced versions of one vBucket, before compression; 0 if they do not matter.
    pub bytes: u64,
}

impl Retention {
    /// Whether a history is kept.
    pub fn is_on(self) -> bool {
        self.seconds > 0 || self.bytes > 0
    }
}

/// What a store's vBuckets go by.
pub(crate) struct Keeping {
    pub(crate) clock: std::sync::Arc<dyn Clock>,
    pub(crate) limits: Mutex<Limits>,
}

/// How much is kept, and of what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) retention: Retention,
    /// Seconds since 1970.
    pub(crate) now_s: u64,
}

impl Keeping {
    /// What limits the history now. One change of a vBucket asks once.
    pub(crate) fn now(&self) -> Limits {
        Limits { now_s: u64::from(self.clock.unix_s()), ..*self.limits.lock() }
    }
}

/// How far a vBucket's history reaches back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryUsage {
    /// Its first seqno; 0 if no history is kept.
    pub start: u64,
    /// Replaced versions that are kept.
    pub versions: u64,
    /// Their bytes, about.
    pub bytes: u64,
    /// Seconds since 1970 of the oldest commit that is told apart from others; 0 if there is none.
    pub since_s: u64,
}

/// The history of a vBucket.
///
/// *Invariants:* without a start the rest is empty. `retained` has no seqno below `start`, and none that is in
/// [`VbMeta::dead`]; one that is in [`VbMeta::superseded`], too, is needed by a point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Its first seqno; 0 if there is none.
    pub(crate) start: u64,
    /// Seqnos of replaced versions that are kept.
    pub(crate) retained: RoaringTreemap,
    /// Seqnos, and when all up to them had been committed, in seconds since 1970. Both rise.
    pub(crate) marks: Vec<(u64, u64)>,
}

/// How a history changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HistoryEdit {
    /// Its first seqno from now on; 0 if there is none any more.
    pub(crate) start: u64,
    /// Versions that are replaced now and stay.
    pub(crate) retained: RoaringTreemap,
    /// The vBucket's high seqno, and when it was committed.
    pub(crate) mark: Option<(u64, u64)>,
}

impl HistoryEdit {
    pub(crate) fn put(&self, to: &mut Encoder) {
        to.number(self.start);
        put_marks(to, self.mark.as_slice());
        to.set(&self.retained);
    }

    pub(crate) fn take(from: &mut Decoder<'_>) -> Option<HistoryEdit> {
        let start = from.number()?;
        let marks = take_marks(from)?;
        let mark = marks.first().copied();
        (marks.len() < 2).then_some(())?;
        Some(HistoryEdit { start, retained: from.set()?, mark })
    }
}

fn put_marks(to: &mut Encoder, marks: &[(u64, u64)]) {
    to.number(marks.len() as u64);
    for (seqno, at_s) in marks {
        to.number(*seqno);
        to.number(*at_s);
    }
}

fn take_marks(from: &mut Decoder<'_>) -> Option<Vec<(u64, u64)>> {
    (0..from.count()?).map(|_| Some((from.number()?, from.number()?))).collect()
}

impl History {
    pub(crate) fn put(&self, to: &mut Encoder) {
        to.number(self.start);
        put_marks(to, &self.marks);
        to.set(&self.retained);
    }

    pub(crate) fn take(from: &mut Decoder<'_>) -> Option<History> {
        let (start, marks) = (from.number()?, take_marks(from)?);
        Some(History { start, marks, retained: from.set()? })
    }

    /// Applies all of an edit but for what is not kept any more, which is returned.
    pub(crate) fn apply(&mut self, edit: &HistoryEdit) -> RoaringTreemap {
        let mut gone = RoaringTreemap::new();
        if edit.start == 0 {
            return std::mem::take(self).retained;
        }
        if edit.start > self.start {
            if let Some(first) = self.retained.min().filter(|first| *first < edit.start) {
                gone.extend(self.retained.iter().take_while(|seqno| *seqno < edit.start));
                self.retained.remove_range(first..edit.start);
            }
            self.start = edit.start;
            self.marks.retain(|(seqno, _)| *seqno >= edit.start);
        }
        self.retained |= &edit.retained;
        if let Some((seqno, at_s)) = edit.mark {
            self.mark(seqno, at_s);
        }
        gone
    }

    fn mark(&mut self, seqno: u64, at_s: u64) {
        // A clock that is set back makes nothing older.
        let at_s = at_s.max(self.marks.last().map_or(0, |(_, last)| *last));
        self.marks.retain(|(known, at)| *known < seqno && *at < at_s);
        if self.marks.len() >= MOST_MARKS {
            let mut is_even = false;
            self.marks.retain(|_| {
                is_even = !is_even;
                !is_even
            });
        }
        self.marks.push((seqno, at_s));
    }

    /// As it was when the high seqno was `high`; `revived` are versions that were replaced since.
    pub(crate) fn rolled_back(&self, high: u64, revived: impl Iterator<Item = u64>) -> History {
        let mut back = self.clone();
        revived.for_each(|seqno| {
            back.retained.remove(seqno);
        });
        if high < u64::MAX {
            back.retained.remove_range(high + 1..);
            back.start = back.start.min(high + 1);
        }
        back.marks.retain(|(seqno, _)| *seqno <= high);
        back
    }
}

impl VbMeta {
    /// Applies an edit of the history: what it lets go of is dead, unless a point needs it.
    pub(crate) fn change_history(&mut self, edit: &HistoryEdit) {
        let added = &edit.retained - &self.history.retained;
        let gone = std::sync::Arc::make_mut(&mut self.history).apply(edit);
        if edit.start > 0 {
            self.history_bytes = self.history_bytes.saturating_add(self.bytes_of(&added));
            self.history_bytes = self.history_bytes.saturating_sub(self.bytes_of(&gone));
        } else {
            self.history_bytes = 0;
        }
        let gone: Vec<u64> = gone.into_iter().filter(|seqno| !self.superseded.contains_key(seqno)).collect();
        if let (Some(first), Some(last)) = (gone.first(), gone.last()) {
            self.die(&gone, *first..=*last);
        }
    }

    /// Bytes of items, about: each has the mean of its extent. Looks at the extents of the items alone.
    fn bytes_of(&self, seqnos: &RoaringTreemap) -> u64 {
        let (Some(first), Some(last)) = (seqnos.min(), seqnos.max()) else { return 0 };
        let from = self.extents.partition_point(|extent| extent.last < first);
        let extents = self.extents[from..].iter().take_while(|extent| extent.first <= last);
        extents.fold(0, |sum: u64, extent| sum.saturating_add(extent.bytes_of(count_in(seqnos, extent))))
    }

    /// Bytes of the replaced versions that are kept, about, added up anew: the cost is that of all extents.
    pub(crate) fn sum_history(&self) -> u64 {
        self.bytes_of(&self.history.retained)
    }

    /// Bytes of the replaced versions in an extent that are kept, about.
    pub(crate) fn history_bytes_in(&self, extent: &Extent) -> u64 {
        extent.bytes_of(count_in(&self.history.retained, extent))
    }

    pub(crate) fn history_usage(&self) -> HistoryUsage {
        debug_assert_eq!(self.history_bytes, self.sum_history(), "the sum follows each change");
        HistoryUsage {
            start: self.history.start,
            versions: self.history.retained.len(),
            bytes: self.history_bytes,
            since_s: self.history.marks.first().map_or(0, |(_, at_s)| *at_s),
        }
    }

    /// Where the history begins now: 0 if none is kept.
    fn history_start(&self, retention: Retention, now_s: u64) -> u64 {
        if !retention.is_on() || self.history.start == 0 {
            return 0;
        }
        let mut start = self.history.start;
        if retention.seconds > 0 {
            let old =
                self.history.marks.iter().rev().find(|(_, at)| at.saturating_add(retention.seconds) < now_s);
            start = old.map_or(start, |(seqno, _)| start.max(seqno.saturating_add(1)));
        }
        if retention.bytes > 0 {
            start = start.max(self.start_within(retention.bytes));
        }
        start
    }

    /// From where on replaced versions have no more bytes than these. Looks at the extents of what goes alone.
    fn start_within(&self, most: u64) -> u64 {
        let mut over = self.history_bytes.saturating_sub(most);
        let mut start = 0;
        let first = self.extents.partition_point(|extent| extent.last < self.history.start);
        for extent in &self.extents[first..] {
            if over == 0 {
                break;
            }
            let (count, each) = (count_in(&self.history.retained, extent), extent.mean_bytes());
            let go = over.div_ceil(each).min(count);
            over = over.saturating_sub(go * each);
            if go > 0 {
                let before = self.history.retained.rank(extent.first.saturating_sub(1));
                let last = self.history.retained.select(before + go - 1);
                start = last.map_or(start, |last| last.saturating_add(1));
            }
        }
        start
    }
}

/// How many of the items are in an extent.
fn count_in(seqnos: &RoaringTreemap, extent: &Extent) -> u64 {
    seqnos.range_cardinality(extent.first..=extent.last)
}

impl HistoryEdit {
    /// How the history changes with a commit that makes `high` the highest seqno. Of what it replaces, `kept` is to stay;
    /// before `from` versions may be missing. `None` if no history is kept and none was.
    pub(crate) fn of_commit(
        Limits { retention, now_s }: Limits,
        meta: Option<&VbMeta>,
        (high, is_pinned): (u64, bool),
        (from, kept): (u64, impl IntoIterator<Item = u64>),
    ) -> Option<HistoryEdit> {
        let known = meta.map_or(0, |meta| meta.history.start);
        if !retention.is_on() && (known == 0 || !is_pinned) {
            return (known > 0).then(HistoryEdit::default);
        }
        let from = from.min(high.saturating_add(1));
        let start = match meta {
            // A rollback that is prepared has the same versions; what is missing counts with the next commit.
            _ if is_pinned && known > 0 => known,
            Some(meta) if known > 0 => meta.history_start(retention, now_s).max(from),
            _ => meta.map_or(0, VbMeta::high).saturating_add(1).max(from),
        };
        let retained = kept.into_iter().filter(|seqno| *seqno >= start).collect();
        Some(HistoryEdit { start, retained, mark: Some((high, now_s)) })
    }
}

impl Shard {
    /// Lets go of versions that are too old or too many, if they are worth a record. Says whether there were any.
    pub(crate) fn age_history(&self) -> Result<bool, Failure> {
        let Limits { retention, now_s, .. } = self.files.keeping.now();
        let mut edits = Vec::new();
        let mut writer = self.writer.lock();
        {
            let state = self.state.read();
            let known = state
                .meta
                .vbs
                .iter()
                .filter(|(vb, meta)| meta.history.start > 0 && !state.meta.prepared.contains_key(vb));
            for (vb, meta) in known {
                let start = meta.history_start(retention, now_s);
                let all = meta.history.retained.len();
                let goes = if start == 0 { all } else { meta.history.retained.rank(start - 1) };
                if start == 0 || goes > 0 && goes >= all / LEAST_SHARE {
                    edits.push(Edit::History {
                        vb: *vb,
                        edit: HistoryEdit { start, ..HistoryEdit::default() },
                    });
                }
            }
        }
        if edits.is_empty() {
            return Ok(false);
        }
        self.log(&mut writer, &edits, &[]).map(|()| true)
    }
}

/// Has every vBucket that has no history begin one behind its last commit.
pub(crate) fn begin_histories(shard: &Shard) -> Result<(), Failure> {
    let now_s = shard.files.keeping.now().now_s;
    let mut writer = shard.writer.lock();
    let edit = |(vb, meta): (&u16, &std::sync::Arc<VbMeta>)| {
        let (start, mark) = (meta.high().saturating_add(1), Some((meta.high(), now_s)));
        let edit = HistoryEdit { start, mark, ..HistoryEdit::default() };
        (meta.history.start == 0).then_some(Edit::History { vb: *vb, edit })
    };
    let edits: Vec<Edit> = shard.state.read().meta.vbs.iter().filter_map(edit).collect();
    if edits.is_empty() { Ok(()) } else { shard.log(&mut writer, &edits, &[]) }
}

/// Lets go of all histories, as none is kept any more.
pub(crate) fn end_histories(shard: &Shard) -> Result<(), Failure> {
    shard.age_history()?;
    let state = shard.state.read();
    let left = state.meta.vbs.iter().find(|(_, meta)| meta.history.start > 0);
    let undecided = |vb| Failure::Ended { vb, why: "a rollback is not decided; try again" };
    left.map_or(Ok(()), |(vb, _)| Err(undecided(*vb)))
}
