//! A vBucket is filled from the file of another node: what the file has is made into the messages of a stream from disk, and
//! given to a consumer, so that a filled vBucket is one that a producer has filled.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::{Cas, Seqno, VbId, VbUuid};
use engine::{Bucket, Refusal};
use kvstore::{ChangesWanted, Reading, Snapshot, Values};
use protocol::dcp::{FailoverLog, Marker, MarkerMore, Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::frame::ClientAnswer;
use protocol::{Limits, Parsed, Status, opcode, parse};

use crate::agreement::Agreement;
use crate::consumer::{Consumer, ConsumerConfig, Disconnect};
use crate::content::{Features, write_change};

/// Bytes of changes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// More than what is read at once may not be applied.
const BUFFER_BYTES: u32 = 8 << 20;

/// Why a vBucket cannot be filled, or no further.
#[derive(Debug)]
pub enum FillFailure {
    /// The vBucket is no replica, or not an empty one.
    NotEmpty,
    /// The bucket refuses it now.
    Refused(Status),
    /// The file cannot be read.
    Store(kvstore::Failure),
    /// Something in the file is no document.
    Value(Refusal),
    /// What the file has makes no sense.
    Broken(Disconnect),
    /// The vBucket became another one meanwhile.
    Ended,
}

impl fmt::Display for FillFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FillFailure::NotEmpty => f.write_str("the vBucket is not an empty replica"),
            FillFailure::Refused(status) => write!(f, "the vBucket takes nothing now: {}", status.text()),
            FillFailure::Store(failure) => failure.fmt(f),
            FillFailure::Value(refusal) => {
                write!(f, "the file has something that is no document: {refusal:?}")
            }
            FillFailure::Broken(disconnect) => {
                write!(f, "the file cannot be the one of a vBucket: {disconnect}")
            }
            FillFailure::Ended => f.write_str("the vBucket became another one meanwhile"),
        }
    }
}

impl std::error::Error for FillFailure {}

impl From<kvstore::Failure> for FillFailure {
    fn from(failure: kvstore::Failure) -> FillFailure {
        FillFailure::Store(failure)
    }
}

/// What is to happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillStep {
    /// The next step.
    More,
    /// There is no room in memory: the next step when there is ([`engine::Replicas::replica_room`]).
    Full,
    /// Nothing: the vBucket has everything.
    Done,
}

/// A file on its way into a vBucket.
pub struct FileFill {
    consumer: Consumer,
    snapshot: Box<dyn Snapshot>,
    agreed: Agreement,
    head: Message<'static>,
    /// Where the next changes begin; `None` once all were read.
    from: Option<Seqno>,
    end: Seqno,
    last: Seqno,
    reading: Reading,
    frames: Vec<u8>,
    /// What the consumer says; no producer hears it.
    said: Vec<u8>,
}

const FEATURES: Features = Features { collections: true, snappy: true, json: true };

fn agreed() -> Result<Agreement, FillFailure> {
    let flags =
        OpenFlags::PRODUCER | OpenFlags::XATTRS | OpenFlags::DELETE_TIMES | OpenFlags::DELETED_USER_XATTRS;
    let mut agreed =
        Agreement::open(OpenFlags(flags), b"file", FEATURES.snappy).map_err(FillFailure::Refused)?;
    (agreed.expirations, agreed.sync_writes, agreed.marker_2_2) = (true, true, true);
    Ok(agreed)
}

impl FileFill {
    /// Begins to fill a vBucket, which must be an empty replica, with what a snapshot of its file has.
    ///
    /// # Errors
    ///
    /// If the vBucket or the file are not such.
    pub fn begin(
        bucket: Arc<Bucket>,
        vb: VbId,
        snapshot: Box<dyn Snapshot>,
    ) -> Result<FileFill, FillFailure> {
        let state = snapshot.state()?;
        let config = ConsumerConfig {
            name: "file".to_owned(),
            consumer_name: None,
            buffer_bytes: BUFFER_BYTES,
            noop_interval_s: 1,
            features: FEATURES,
            takes_files: false,
            change_streams: false,
        };
        let mut consumer = Consumer::led(bucket, config);
        let mut said = Vec::new();
        consumer.add_stream(vb, 0, StreamFlags(0), &mut said).map_err(|_| FillFailure::NotEmpty)?;
        let asked = match parse(&said, Limits::AUTHENTICATED) {
            Parsed::Request { request, .. } if request.opcode == opcode::DCP_STREAM_REQ => {
                StreamRequest::decode(request.extras).map(|wanted| (request.opaque, wanted.start))
            }
            _ => None,
        };
        let (opaque, start) = asked.ok_or(FillFailure::Refused(Status::Etmpfail))?;
        if start != Seqno(0) {
            return Err(FillFailure::NotEmpty);
        }
        let log = state.failover_table.iter().map(|entry| (VbUuid(entry.id), Seqno(entry.seq)));
        let log = FailoverLog::encode(log);
        let answer = ClientAnswer {
            opcode: opcode::DCP_STREAM_REQ,
            status: Status::Success.code(),
            opaque,
            value: &log,
        };
        consumer.answered(&answer, &mut said).map_err(FillFailure::Broken)?;
        let end = snapshot.high_seqno();
        let more = MarkerMore {
            max_visible: Seqno(state.max_visible_seqno),
            high_completed: Seqno(state.completed_seqno),
            purge_and_high_prepared: Some((snapshot.purge_seqno(), Seqno(state.high_prepared_seqno))),
        };
        let flags = Marker::DISK | Marker::CHECKPOINT;
        let marker = Marker { start: Seqno(0), end, flags, more: Some(more) };
        let head = Message {
            vb,
            opaque,
            stream_id: None,
            cas: Cas(0),
            datatype: 0,
            key: b"",
            value: b"",
            what: What::Marker(marker),
        };
        let mut frames = Vec::new();
        if end > Seqno(0) {
            head.write(&mut frames);
        }
        let agreed = agreed()?;
        let (from, last, reading) = (Some(Seqno(1)), Seqno(0), Reading::default());
        let mut fill = FileFill { consumer, snapshot, agreed, head, from, end, last, reading, frames, said };
        fill.give()?;
        Ok(fill)
    }

    /// The last seqno of the file.
    pub fn end(&self) -> Seqno {
        self.end
    }

    /// Reads some of the file, and applies it.
    ///
    /// # Errors
    ///
    /// If the vBucket cannot be filled. It has a part of the file then, as one whose stream broke off.
    pub fn step(&mut self) -> Result<FillStep, FillFailure> {
        // What is there is applied first, so that no more waits than one read brings.
        let settled = self.consumer.settle(&mut self.said).map_err(FillFailure::Broken)?;
        self.said.clear();
        if self.consumer.streams() == 0 {
            return Err(FillFailure::Ended);
        }
        if settled.is_full {
            return Ok(FillStep::Full);
        }
        if settled.has_more {
            return Ok(FillStep::More);
        }
        if let Some(from) = self.from {
            self.read(from)?;
            self.give()?;
            return Ok(FillStep::More);
        }
        let vb = self.head.vb;
        self.consumer.remove_stream(vb, &mut self.said).map_err(FillFailure::Refused)?;
        Ok(FillStep::Done)
    }

    /// Makes messages of the next changes; behind the last of them, that there are none up to the end.
    fn read(&mut self, from: Seqno) -> Result<(), FillFailure> {
        let wanted =
            ChangesWanted { from, values: Values::Read, prepares: true, past: false, max_bytes: READ_BYTES };
        let (head, agreed, frames, last) = (self.head, &self.agreed, &mut self.frames, &mut self.last);
        let mut wrong = None;
        self.from = self.snapshot.changes(&wanted, &mut self.reading, &mut |change| {
            *last = change.meta.by_seqno;
            match write_change(frames, head, change, agreed, FEATURES) {
                Ok(_) => ControlFlow::Continue(()),
                Err(refusal) => {
                    wrong = Some(refusal);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(refusal) = wrong {
            return Err(FillFailure::Value(refusal));
        }
        if self.from.is_none() && self.last < self.end {
            Message { what: What::SeqnoAdvanced(self.end), ..self.head }.write(&mut self.frames);
        }
        Ok(())
    }

    /// Gives the consumer what was made.
    fn give(&mut self) -> Result<(), FillFailure> {
        let mut rest = &self.frames[..];
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            self.consumer.take(&request, &mut self.said).map_err(|status| match status {
                Status::Etmpfail => FillFailure::Refused(status),
                _ => FillFailure::Broken(Disconnect::Unreadable(request.opcode)),
            })?;
            rest = rest.get(total_len..).unwrap_or_default();
        }
        self.frames.clear();
        Ok(())
    }
}
