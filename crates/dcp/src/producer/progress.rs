//! How far a connection and its streams are, for threads that look at it from outside.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::{Seqno, VbId};

use crate::agreement::Agreement;
use crate::figures::StreamFigures;

/// What stands for a vBucket without a stream.
const NO_STREAM: u64 = u64::MAX;

/// Which stream of a connection.
pub type StreamKey = (VbId, Option<u16>);

/// Why a connection sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// There is nothing to send.
    NothingReady,
    /// The consumer has as much on its way as it takes.
    BufferFull,
}

impl Pause {
    /// Both, in the order of their counts.
    pub const ALL: [Pause; 2] = [Pause::NothingReady, Pause::BufferFull];

    /// Its name in stats, which is kv_engine's.
    pub fn name(self) -> &'static str {
        match self {
            Pause::NothingReady => "ReadyListEmpty",
            Pause::BufferFull => "BufferLogFull",
        }
    }
}

/// Written by the connection's own thread alone.
#[derive(Debug)]
pub struct Progress {
    vbuckets: u16,
    changes: AtomicU64,
    /// By vBucket, up to which seqno all was sent; made with the first stream: most connections never have one.
    sent: OnceLock<Box<[AtomicU64]>>,
    streams: Mutex<BTreeMap<StreamKey, Arc<StreamFigures>>>,
    agreed: Mutex<Agreement>,
    acknowledged_bytes: AtomicU64,
    /// Streams that read from disk, and vBuckets that wait for their turn to do so.
    backfills: AtomicU64,
    waiting_backfills: AtomicU64,
    waits_for_noop: AtomicBool,
    /// The place of the present pause in [`Pause::ALL`]; behind it if it sends.
    pause: AtomicU8,
    pauses: [AtomicU64; Pause::ALL.len()],
}

/// A thread that panicked leaves what is behind a lock whole: nothing is changed there in two steps.
fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    pub(super) fn new(vbuckets: u16, agreed: &Agreement) -> Progress {
        Progress {
            vbuckets,
            changes: AtomicU64::new(0),
            sent: OnceLock::new(),
            streams: Mutex::default(),
            agreed: Mutex::new(agreed.clone()),
            acknowledged_bytes: AtomicU64::new(0),
            backfills: AtomicU64::new(0),
            waiting_backfills: AtomicU64::new(0),
            waits_for_noop: AtomicBool::new(false),
            pause: AtomicU8::new(Pause::NothingReady as u8),
            pauses: Default::default(),
        }
    }

    /// Changes that were sent.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Seqnos that were not sent yet, of vBuckets with a stream, where `high` is the last one of a vBucket.
    pub fn remaining(&self, high: impl Fn(VbId) -> Seqno) -> u64 {
        let Some(sent) = self.sent.get() else { return 0 };
        let of = |(vb, sent): (u16, &AtomicU64)| match sent.load(Ordering::Relaxed) {
            NO_STREAM => 0,
            sent => high(VbId(vb)).0.saturating_sub(sent),
        };
        (0..self.vbuckets).zip(sent).map(of).sum()
    }

    /// The next streams behind `after` in the order of their keys, at most `most`: the lock is held for so many.
    pub fn streams_behind(&self, after: Option<StreamKey>, most: usize) -> Vec<Arc<StreamFigures>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        lock(&self.streams).range((from, Bound::Unbounded)).take(most).map(|(_, of)| Arc::clone(of)).collect()
    }

    /// What was agreed on.
    pub fn agreed(&self) -> Agreement {
        lock(&self.agreed).clone()
    }

    /// Bytes that the consumer has acknowledged.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged_bytes.load(Ordering::Relaxed)
    }

    /// Streams that read from disk, and vBuckets whose streams wait for their turn to do so.
    pub fn backfills(&self) -> (u64, u64) {
        (self.backfills.load(Ordering::Relaxed), self.waiting_backfills.load(Ordering::Relaxed))
    }

    /// Whether a noop is not answered yet.
    pub fn waits_for_noop(&self) -> bool {
        self.waits_for_noop.load(Ordering::Relaxed)
    }

    /// Why it sends nothing; `None` while it sends.
    pub fn pause(&self) -> Option<Pause> {
        Pause::ALL.get(usize::from(self.pause.load(Ordering::Relaxed))).copied()
    }

    /// How often it paused for this reason, the present pause included.
    pub fn pauses(&self, why: Pause) -> u64 {
        self.pauses[why as usize].load(Ordering::Relaxed)
    }

    pub(super) fn add_changes(&self, changes: u64) {
        self.changes.fetch_add(changes, Ordering::Relaxed);
    }

    pub(super) fn add_acknowledged(&self, bytes: u64) {
        self.acknowledged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn note_agreed(&self, agreed: &Agreement) {
        lock(&self.agreed).clone_from(agreed);
    }

    pub(super) fn note_noop(&self, waits: bool) {
        self.waits_for_noop.store(waits, Ordering::Relaxed);
    }

    /// What it came to when the connection had its turn: the pause that begins, or goes on if nothing was sent, or
    /// `None` if it sends; and how many streams read from disk, and how many vBuckets wait for that.
    pub(super) fn note_turn(
        &self,
        pause: Option<Pause>,
        has_sent: bool,
        (backfills, waiting): (usize, usize),
    ) {
        self.backfills.store(backfills as u64, Ordering::Relaxed);
        self.waiting_backfills.store(waiting as u64, Ordering::Relaxed);
        let place = pause.map_or(Pause::ALL.len() as u8, |pause| pause as u8);
        let is_new = self.pause.swap(place, Ordering::Relaxed) != place || has_sent;
        if is_new && let Some(pause) = pause {
            self.pauses[pause as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn enter(&self, stream: &Arc<StreamFigures>) {
        lock(&self.streams).insert((stream.vb, stream.stream_id), Arc::clone(stream));
    }

    pub(super) fn leave(&self, stream: &StreamFigures) {
        lock(&self.streams).remove(&(stream.vb, stream.stream_id));
    }

    /// How far the stream of a vBucket is that is least far; `None` if it has none.
    pub(super) fn note(&self, vb: VbId, sent: Option<Seqno>) {
        let all = match sent {
            Some(_) => Some(
                self.sent.get_or_init(|| (0..self.vbuckets).map(|_| AtomicU64::new(NO_STREAM)).collect()),
            ),
            None => self.sent.get(),
        };
        if let Some(place) = all.and_then(|all| all.get(usize::from(vb.0))) {
            place.store(sent.map_or(NO_STREAM, |sent| sent.0), Ordering::Relaxed);
        }
    }

    /// Bytes that it takes beside its streams.
    pub(super) fn held_bytes(&self) -> usize {
        self.sent.get().map_or(0, |sent| size_of_val(&**sent))
    }
}

#[cfg(test)]
mod tests {
    use base::VbUuid;
    use protocol::dcp::{OpenFlags, StreamFlags, StreamRequest};

    use super::*;

    fn progress(vbuckets: u16) -> Progress {
        let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"name", false).expect("a producer");
        Progress::new(vbuckets, &agreed)
    }

    #[test]
    fn what_is_not_sent_yet_is_counted_where_there_is_a_stream() {
        let progress = progress(4);
        let high = |vb: VbId| Seqno(u64::from(vb.0) * 10);
        assert_eq!((progress.remaining(high), progress.held_bytes()), (0, 0));
        progress.note(VbId(1), None);
        assert_eq!(progress.held_bytes(), 0, "nothing is kept for a connection without a stream");
        progress.note(VbId(2), Some(Seqno(5)));
        progress.note(VbId(3), Some(Seqno(40)));
        assert_eq!(progress.remaining(high), 15, "a vBucket that went back counts as 0");
        progress.note(VbId(2), None);
        progress.note(VbId(9), Some(Seqno(0)));
        assert_eq!((progress.remaining(high), progress.held_bytes()), (0, 32));
        progress.add_changes(3);
        assert_eq!(progress.changes(), 3);
    }

    #[test]
    fn streams_are_listed_in_parts_in_the_order_of_their_keys() {
        let progress = progress(4);
        let request = StreamRequest {
            flags: StreamFlags(0),
            start: Seqno(0),
            end: Seqno(u64::MAX),
            uuid: VbUuid(0),
            snapshot_start: Seqno(0),
            snapshot_end: Seqno(0),
        };
        for (vb, id) in [(2, Some(7)), (2, Some(1)), (0, None), (3, None)] {
            progress.enter(&Arc::new(StreamFigures::new(VbId(vb), id, 0, &request, Seqno(u64::MAX))));
        }
        let keys = |after, most| -> Vec<StreamKey> {
            let part = progress.streams_behind(after, most);
            part.iter().map(|of| (of.vb, of.stream_id)).collect()
        };
        assert_eq!(keys(None, 2), [(VbId(0), None), (VbId(2), Some(1))]);
        assert_eq!(keys(Some((VbId(2), Some(1))), 9), [(VbId(2), Some(7)), (VbId(3), None)]);
        let first = progress.streams_behind(None, 1);
        progress.leave(&first[0]);
        assert_eq!(keys(None, 1), [(VbId(2), Some(1))]);
    }

    #[test]
    fn a_pause_counts_once_until_it_ends() {
        let progress = progress(1);
        let full = Some(Pause::BufferFull);
        for pause in [full, full, None, full, Some(Pause::NothingReady), Some(Pause::NothingReady)] {
            progress.note_turn(pause, false, (1, 2));
        }
        assert_eq!((progress.pauses(Pause::BufferFull), progress.pauses(Pause::NothingReady)), (2, 1));
        assert_eq!((progress.pause(), progress.backfills()), (Some(Pause::NothingReady), (1, 2)));
        progress.note_turn(Some(Pause::NothingReady), true, (0, 0));
        assert_eq!(progress.pauses(Pause::NothingReady), 2, "something was sent in between");
        progress.note_turn(None, true, (0, 0));
        assert_eq!(progress.pause(), None);
    }
}
