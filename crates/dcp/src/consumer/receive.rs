//! What comes from the producer: cut into messages, looked at, and put where it is applied in its turn.

use base::limits::MAX_FRAME_BODY_BYTES;
use base::planted::{self, Bug};
use base::version::MAX_SEQNO;
use base::{Seqno, VbId, VbState, VbUuid};
use protocol::dcp::{FailoverLog, Marker, Message, What};
use protocol::reader::Reader;
use protocol::{
    Limits, Parsed, ParsedResponse, Request, Response, ResponseView, Status, magic, opcode, parse,
    parse_response,
};
use vbucket::{FailoverEntry, IncomingSnapshot, SnapshotKind};

use super::controls::{self, OTHER_OPAQUES};
use super::decode;
use super::track::{Queued, Stage, Trouble, Work};
use super::turn::TURN_MESSAGES;
use super::{Consumer, Disconnect, Mode, SEQNOS_OPAQUE};

/// Bytes of changes that are applied at once, under one lock; what comes behind is another batch.
const BATCH_BYTES: u64 = 512 << 10;
/// The most changes of a batch: no more than a turn has.
const BATCH_CHANGES: usize = TURN_MESSAGES;
/// More histories than this are nobody's; the original keeps 25.
const MOST_HISTORIES: usize = 1024;
/// A vBucket and its last seqno, in an answer that lists them.
const SEQNO_BYTES: usize = 10;

impl Consumer {
    /// Works on what the producer sent, as far as it is whole and a turn allows; how many bytes are done with.
    ///
    /// What is to be applied waits for [`Consumer::settle`], which also says whether the turn ended before the messages
    /// did.
    pub fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Disconnect> {
        self.is_heard |= !bytes.is_empty();
        let mut consumed = 0;
        self.received.begin();
        while let Some(&first) = bytes.get(consumed) {
            if self.received.is_over() {
                break;
            }
            let rest = &bytes[consumed..];
            if matches!(first, magic::REQUEST | magic::ALT_REQUEST) {
                match parse(rest, Limits::AUTHENTICATED) {
                    Parsed::Request { request, total_len } => {
                        self.on_request(&request, total_len as u64, out)?;
                        self.received.count(1, total_len as u64);
                        consumed += total_len;
                    }
                    Parsed::Bad(error) => return Err(Disconnect::Frame(error)),
                    Parsed::Incomplete { .. } | Parsed::Answer { .. } => break,
                }
            } else {
                match parse_response(rest, MAX_FRAME_BODY_BYTES) {
                    ParsedResponse::Response { response, total_len } => {
                        self.on_answer(&response, out)?;
                        self.received.count(1, total_len as u64);
                        consumed += total_len;
                    }
                    ParsedResponse::Bad(error) => return Err(Disconnect::Frame(error)),
                    ParsedResponse::Incomplete { .. } => break,
                }
            }
        }
        Ok(consumed)
    }

    /// A stream of the vBucket to which this opaque belongs.
    fn is_followed(&mut self, vb: VbId, opaque: u32, stage: Stage) -> bool {
        self.track(vb).is_some_and(|track| track.opaque == opaque && track.stage == stage)
    }

    fn queue(&mut self, vb: VbId, work: Work, bytes: u64) {
        let Some(track) = self.track(vb) else { return };
        let queued = Queued { work, bytes };
        let all = queued.bytes();
        track.queue.push_back(queued);
        let is_due = std::mem::replace(&mut track.is_due, true);
        self.held_bytes += all;
        if !is_due {
            self.due.push(vb);
        }
    }

    fn on_answer(&mut self, response: &ResponseView<'_>, out: &mut Vec<u8>) -> Result<(), Disconnect> {
        if response.magic == magic::SERVER_REQUEST {
            // A new cluster map, for those who route requests.
            return Ok(());
        }
        match response.opcode {
            opcode::DCP_STREAM_REQ => {
                self.on_stream_answer(response.opaque, response.status_code, response.value, out)
            }
            opcode::DCP_OPEN | opcode::DCP_CONTROL => {
                controls::answered(&self.config, response.opcode, response.opaque, response.status_code)
            }
            opcode::GET_ALL_VB_SEQNOS if response.opaque == SEQNOS_OPAQUE => self.on_seqnos(response),
            // The answer to closing a stream says nothing that we would not know.
            opcode::DCP_CLOSE_STREAM => Ok(()),
            // So does a refusal of what needs no answer.
            opcode::DCP_BUFFER_ACK | opcode::DCP_SEQNO_ACKNOWLEDGED => Ok(()),
            other => Err(Disconnect::Unreadable(other)),
        }
    }

    fn on_seqnos(&mut self, response: &ResponseView<'_>) -> Result<(), Disconnect> {
        if response.status() != Some(Status::Success) {
            return Ok(());
        }
        if response.value.len() > self.tracks.len() * SEQNO_BYTES {
            return Err(Disconnect::Unreadable(response.opcode));
        }
        let mut r = Reader(response.value);
        while !r.is_empty() {
            let pair = r.u16().and_then(|vb| Some((VbId(vb), Seqno(r.u64()?))));
            let (vb, high) = pair.ok_or(Disconnect::Unreadable(response.opcode))?;
            if let Some(track) = self.track(vb) {
                track.source_high = Some(high);
            }
        }
        Ok(())
    }

    pub(super) fn on_stream_answer(
        &mut self,
        opaque: u32,
        status_code: u16,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Disconnect> {
        let unreadable = Disconnect::Unreadable(opcode::DCP_STREAM_REQ);
        // There are at most as many as vBuckets, so nobody keeps an index of opaques.
        let is_asked = |track: &super::Track| {
            track.opaque == opaque && track.stage == Stage::Asked && track.opaque < OTHER_OPAQUES
        };
        let at = self.tracks.iter().position(|track| track.as_deref().is_some_and(is_asked));
        // It was given up meanwhile.
        let Some(vb) = at.map(|at| VbId(at as u16)) else { return Ok(()) };
        match Status::from_code(status_code) {
            Some(Status::Success) => {
                let log = failover_log(value).ok_or(unreadable)?;
                if let Some(track) = self.track(vb) {
                    track.stage = Stage::Streaming;
                    track.trouble = None;
                }
                self.queue(vb, Work::Accepted(log), 0);
                Ok(())
            }
            Some(Status::Rollback) => {
                let to = value.try_into().map(|bytes| Seqno(u64::from_be_bytes(bytes)));
                self.roll_back(vb, to.map_err(|_| unreadable)?, out);
                Ok(())
            }
            _ => {
                self.counts.ends += 1;
                self.pause(vb, Trouble::Status(status_code), out);
                Ok(())
            }
        }
    }

    /// The producer does not send a vBucket's changes.
    pub(super) fn pause(&mut self, vb: VbId, trouble: Trouble, out: &mut Vec<u8>) {
        if planted::is(Bug::RefusedStreamForgotten) {
            let now = self.now();
            self.track(vb).into_iter().for_each(|track| track.pause(now, trouble));
            return;
        }
        self.put_off(vb, trouble, out);
    }

    fn on_request(&mut self, request: &Request<'_>, bytes: u64, out: &mut Vec<u8>) -> Result<(), Disconnect> {
        if request.opcode == opcode::DCP_NOOP {
            let (opcode, opaque) = (request.opcode, request.opaque);
            Response { opcode, opaque, ..Response::default() }.write(out);
            return Ok(());
        }
        let message = Message::read(request).ok_or(Disconnect::Unreadable(request.opcode))?;
        self.counts.bytes += bytes;
        if self.unacknowledged_bytes() + bytes > self.most_unacknowledged_bytes() {
            return Err(Disconnect::Overrun);
        }
        if message.stream_id.is_some() {
            return Err(Disconnect::Violation(
                message.vb,
                "a message with a stream id that was not agreed on",
            ));
        }
        if !self.is_followed(message.vb, message.opaque, Stage::Streaming) {
            // Of a stream that was closed here: it may have been on its way.
            self.counts.strays += 1;
            self.applied_bytes += bytes;
            return Ok(());
        }
        self.on_message(&message, bytes)
    }

    pub(super) fn on_message(&mut self, message: &Message<'_>, bytes: u64) -> Result<(), Disconnect> {
        let vb = message.vb;
        let violation = |what| Disconnect::Violation(vb, what);
        match message.what {
            What::Marker(marker) => {
                self.counts.snapshots += 1;
                let acknowledge = marker.flags & Marker::ACKNOWLEDGE != 0;
                let snapshot = snapshot(&marker, self.is_empty(vb)).map_err(violation)?;
                self.queue(vb, Work::Snapshot(snapshot, acknowledge), bytes);
            }
            What::SeqnoAdvanced(seqno) => self.queue(vb, Work::Advanced(seqno), bytes),
            What::OutOfOrder(_) => return Err(violation("changes out of order, which was not agreed on")),
            What::SetVbucketState(state) => {
                let is_taken_over = self.track(vb).is_some_and(|track| track.mode == Mode::TakeOver);
                if !is_taken_over || !matches!(state, VbState::Pending | VbState::Active) {
                    return Err(violation("a role that was not asked for"));
                }
                self.queue(vb, Work::State(state), bytes);
            }
            What::End(reason) => self.queue(vb, Work::End(reason), bytes),
            _ => match decode::change(&self.bucket, message, self.config.features).map_err(violation)? {
                (change, seqno) if seqno.0 <= MAX_SEQNO => {
                    self.queue_change(vb, change, seqno, bytes);
                }
                _ => return Err(violation("a seqno that no change has")),
            },
        }
        Ok(())
    }

    /// Adds a change to the last batch, if there is one and it has room.
    fn queue_change(&mut self, vb: VbId, change: engine::Incoming, seqno: Seqno, bytes: u64) {
        if let Some(track) = self.track(vb)
            && let Some(Queued { work: Work::Changes(batch, last, batch_bytes), .. }) = track.queue.back_mut()
            && *batch_bytes < BATCH_BYTES
            && batch.len() < BATCH_CHANGES
        {
            batch.push(change);
            *last = seqno;
            *batch_bytes += bytes;
            self.held_bytes += bytes;
            return;
        }
        self.queue(vb, Work::Changes(vec![change], seqno, bytes), 0);
    }

    /// Whether nothing of a vBucket is here, as far as its stream is concerned.
    fn is_empty(&mut self, vb: VbId) -> bool {
        self.track(vb).is_some_and(|track| track.applied == Seqno(0) && track.queue.len() <= 1)
    }
}

fn failover_log(value: &[u8]) -> Option<Vec<FailoverEntry>> {
    if value.len() > MOST_HISTORIES * 16 {
        return None;
    }
    let entries = FailoverLog::decode(value)?;
    Some(
        entries
            .into_iter()
            .map(|(VbUuid(uuid), seqno)| FailoverEntry { uuid: VbUuid(uuid), seqno })
            .collect(),
    )
}

fn snapshot(marker: &Marker, is_first: bool) -> Result<IncomingSnapshot, &'static str> {
    let kind = match (marker.flags & Marker::MEMORY != 0, marker.flags & Marker::DISK != 0) {
        (true, false) => SnapshotKind::Memory,
        (false, true) if is_first => SnapshotKind::InitialDisk,
        (false, true) => SnapshotKind::Disk,
        _ => return Err("a snapshot that is neither from memory nor from disk"),
    };
    if marker.end.0 > MAX_SEQNO {
        return Err("a snapshot that ends where no change can be");
    }
    let last = marker.more.and_then(|more| more.purge_and_high_prepared);
    Ok(IncomingSnapshot {
        start: marker.start,
        end: marker.end,
        kind,
        begins_checkpoint: marker.flags & Marker::CHECKPOINT != 0,
        max_visible: marker.more.map(|more| more.max_visible),
        high_completed: marker.more.map(|more| more.high_completed),
        high_prepared: last.map(|(_, prepared)| prepared),
        purge: last.map(|(purge, _)| purge),
        has_history: marker.flags & Marker::HISTORY != 0,
    })
}
