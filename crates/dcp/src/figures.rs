//! What a stream says of itself to threads that look at it from outside.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use base::{Seqno, VbId, VbUuid};
use protocol::dcp::StreamRequest;

/// Where a stream gets its changes from, and whose turn it is in a handover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamStage {
    /// It has not begun yet.
    #[default]
    Pending,
    /// It reads from disk.
    Backfilling,
    /// It reads from memory.
    InMemory,
    /// The vBucket is handed over, and it is this node's turn.
    TakeoverSend,
    /// The vBucket is handed over, and it is the other node's turn.
    TakeoverWait,
    /// Everything that was asked for is sent.
    Dead,
}

impl StreamStage {
    const ALL: [StreamStage; 6] = [
        StreamStage::Pending,
        StreamStage::Backfilling,
        StreamStage::InMemory,
        StreamStage::TakeoverSend,
        StreamStage::TakeoverWait,
        StreamStage::Dead,
    ];

    /// Its name in stats, which is kv_engine's.
    pub fn name(self) -> &'static str {
        match self {
            StreamStage::Pending => "pending",
            StreamStage::Backfilling => "backfilling",
            StreamStage::InMemory => "in-memory",
            StreamStage::TakeoverSend => "takeover-send",
            StreamStage::TakeoverWait => "takeover-wait",
            StreamStage::Dead => "dead",
        }
    }
}

/// What a stream is at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamMoment {
    /// Where its changes come from.
    pub stage: StreamStage,
    /// Whether a cursor in memory is kept for it.
    pub has_cursor: bool,
    /// Everything up to here was sent, or is not for this consumer. In the order of keys that is the beginning of the
    /// snapshot until the snapshot is sent.
    pub sent: Seqno,
    /// Everything up to here was taken from memory or disk.
    pub read: Seqno,
    /// The end of the snapshot that was announced last; 0 before the first one.
    pub snapshot_end: Seqno,
    /// Changes that were taken from memory and are not sent.
    pub waiting_items: u64,
    /// Bytes that the list of these takes beside the documents.
    pub waiting_list_bytes: u64,
    /// Bytes of messages that were made from disk and are not sent.
    pub backfill_bytes: u64,
}

/// What was asked for, and how far that is: written by the connection's own thread alone, read by any.
#[derive(Debug)]
pub struct StreamFigures {
    /// Of this vBucket.
    pub vb: VbId,
    /// Tells several streams of a vBucket apart.
    pub stream_id: Option<u16>,
    /// Of all of its messages.
    pub opaque: u32,
    /// What the consumer asked for.
    pub request: StreamRequest,
    /// The last change that the consumer wants.
    pub end: Seqno,
    /// The stage, and in the highest bit whether there is a cursor.
    stage: AtomicU8,
    sent: AtomicU64,
    read: AtomicU64,
    snapshot_end: AtomicU64,
    waiting_items: AtomicU64,
    waiting_list_bytes: AtomicU64,
    backfill_bytes: AtomicU64,
    from_disk: AtomicU64,
    from_memory: AtomicU64,
}

const HAS_CURSOR: u8 = 0x80;

/// One thread writes: a load and a store are enough.
fn add(it: &AtomicU64, more: u64) {
    it.store(it.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

fn raise(it: &AtomicU64, to: u64) {
    if it.load(Ordering::Relaxed) < to {
        it.store(to, Ordering::Relaxed);
    }
}

impl StreamFigures {
    pub(crate) fn new(
        vb: VbId,
        stream_id: Option<u16>,
        opaque: u32,
        request: &StreamRequest,
        end: Seqno,
    ) -> StreamFigures {
        StreamFigures {
            vb,
            stream_id,
            opaque,
            request: *request,
            end,
            stage: AtomicU8::new(StreamStage::Pending as u8),
            sent: AtomicU64::new(request.start.0),
            read: AtomicU64::new(request.start.0),
            snapshot_end: AtomicU64::new(0),
            waiting_items: AtomicU64::new(0),
            waiting_list_bytes: AtomicU64::new(0),
            backfill_bytes: AtomicU64::new(0),
            from_disk: AtomicU64::new(0),
            from_memory: AtomicU64::new(0),
        }
    }

    /// The history that the consumer asked for.
    pub fn uuid(&self) -> VbUuid {
        self.request.uuid
    }

    /// How far it is. The parts were not written at once, so that they may differ by a turn.
    pub fn moment(&self) -> StreamMoment {
        let of = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let stage = self.stage.load(Ordering::Relaxed);
        StreamMoment {
            stage: StreamStage::ALL.get(usize::from(stage & !HAS_CURSOR)).copied().unwrap_or_default(),
            has_cursor: stage & HAS_CURSOR != 0,
            sent: Seqno(of(&self.sent)),
            read: Seqno(of(&self.read)),
            snapshot_end: Seqno(of(&self.snapshot_end)),
            waiting_items: of(&self.waiting_items),
            waiting_list_bytes: of(&self.waiting_list_bytes),
            backfill_bytes: of(&self.backfill_bytes),
        }
    }

    /// Changes that were sent from disk.
    pub fn from_disk(&self) -> u64 {
        self.from_disk.load(Ordering::Relaxed)
    }

    /// Changes that were sent from memory.
    pub fn from_memory(&self) -> u64 {
        self.from_memory.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, moment: &StreamMoment) {
        let put = |it: &AtomicU64, value: u64| it.store(value, Ordering::Relaxed);
        let cursor = if moment.has_cursor { HAS_CURSOR } else { 0 };
        self.stage.store(moment.stage as u8 | cursor, Ordering::Relaxed);
        // What was sent in the middle of a snapshot was noted already.
        raise(&self.sent, moment.sent.0);
        raise(&self.read, moment.read.0);
        put(&self.snapshot_end, moment.snapshot_end.0);
        put(&self.waiting_items, moment.waiting_items);
        put(&self.waiting_list_bytes, moment.waiting_list_bytes);
        put(&self.backfill_bytes, moment.backfill_bytes);
    }

    /// Everything up to here was sent, in the middle of a snapshot.
    pub(crate) fn note_sent(&self, to: Seqno) {
        raise(&self.sent, to.0);
    }

    pub(crate) fn add_from_disk(&self, changes: u64) {
        add(&self.from_disk, changes);
    }

    pub(crate) fn add_from_memory(&self, changes: u64) {
        add(&self.from_memory, changes);
    }
}

#[cfg(test)]
mod tests {
    use protocol::dcp::StreamFlags;

    use super::*;

    #[test]
    fn a_moment_is_read_as_it_was_written() {
        let request = StreamRequest {
            flags: StreamFlags(0),
            start: Seqno(5),
            end: Seqno(u64::MAX),
            uuid: VbUuid(7),
            snapshot_start: Seqno(5),
            snapshot_end: Seqno(5),
        };
        let figures = StreamFigures::new(VbId(3), None, 9, &request, Seqno(100));
        assert_eq!((figures.moment().sent, figures.moment().stage), (Seqno(5), StreamStage::Pending));
        for stage in StreamStage::ALL {
            let moment = StreamMoment {
                stage,
                has_cursor: stage == StreamStage::InMemory,
                sent: Seqno(20),
                read: Seqno(30),
                snapshot_end: Seqno(40),
                waiting_items: 1,
                waiting_list_bytes: 2,
                backfill_bytes: 3,
            };
            figures.note(&moment);
            assert_eq!(figures.moment(), moment);
        }
        figures.note_sent(Seqno(25));
        figures.note(&StreamMoment { sent: Seqno(20), ..StreamMoment::default() });
        assert_eq!(figures.moment().sent, Seqno(25), "it never goes back");
        figures.add_from_disk(2);
        figures.add_from_memory(3);
        assert_eq!((figures.from_disk(), figures.from_memory()), (2, 3));
    }
}
