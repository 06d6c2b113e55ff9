//! How far the streams of a connection are, for threads that look at it from outside.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Seqno, VbId};

/// What stands for a vBucket without a stream.
const NO_STREAM: u64 = u64::MAX;

/// Written by the connection's own thread alone.
#[derive(Debug)]
pub struct Progress {
    vbuckets: u16,
    changes: AtomicU64,
    /// By vBucket, up to which seqno all was sent; made with the first stream: most connections never have one.
    sent: OnceLock<Box<[AtomicU64]>>,
}

impl Progress {
    pub(super) fn new(vbuckets: u16) -> Progress {
        Progress { vbuckets, changes: AtomicU64::new(0), sent: OnceLock::new() }
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

    pub(super) fn add_changes(&self, changes: u64) {
        self.changes.fetch_add(changes, Ordering::Relaxed);
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

    /// Bytes that it takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.sent.get().map_or(0, |sent| size_of_val(&**sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_sent_yet_is_counted_where_there_is_a_stream() {
        let progress = Progress::new(4);
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
}
