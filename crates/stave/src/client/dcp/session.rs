//! What a consumer says and hears on a connection, without the connection: the same session goes on over many of them.

use std::ops::ControlFlow;

use base::limits::MAX_FRAME_BODY_BYTES;
use base::{Seqno, VbId, VbUuid};
use protocol::dcp::{EndReason, FailoverLog, Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{
    Limits, Parsed, ParsedResponse, RequestParts, Response, ResponseView, Status, magic, opcode, parse,
    parse_response, write_request,
};

use super::Position;
use crate::client::ClientError;
use crate::client::error::context_of;

/// Opaques of what is not about a stream begin here; below they are vBuckets.
const OTHER_OPAQUES: u32 = 0x0100_0000;
/// From here on they are vBuckets whose streams are to end.
const CLOSE_OPAQUES: u32 = 0x0200_0000;
/// A rollback that leads to the next one more often than this will not come to an end.
const MOST_ROLLBACKS: u32 = 64;
const REQUEST: &str = "stream request";
/// The control message that asks for a history of changes.
const CHANGE_STREAMS: &str = "change_streams";

/// What is wanted of every stream.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// The connection's name.
    pub name: String,
    /// What it is opened with, beside that the server is to produce.
    pub flags: OpenFlags,
    /// Bytes that may be on their way.
    pub buffer_bytes: u32,
    /// Seconds between two signs of life of the server.
    pub noop_interval_s: u32,
    /// The value of each stream request: which collections, as JSON; empty for all.
    pub filter: Vec<u8>,
    /// Durable writes come as their prepares, commits and aborts, not as documents.
    pub sync_writes: bool,
    /// Every version of a document comes that the bucket keeps, not the newest of a snapshot alone.
    pub history: bool,
}

/// One vBucket to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which.
    pub vb: VbId,
    /// From where.
    pub position: Position,
    /// Up to where; [`Start::FOR_EVER`] for no end.
    pub end: Seqno,
}

impl Start {
    /// An end that never comes.
    pub const FOR_EVER: Seqno = Seqno(u64::MAX);
}

/// What happened to a vBucket.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A message of its stream: a change, or a snapshot that begins.
    Message(&'a Message<'a>),
    /// Its stream goes on, in this history.
    Began(VbId, VbUuid),
    /// Everything after this is not, or no longer, part of its history, and is to be forgotten.
    RolledBack(VbId, Seqno),
    /// Nothing more comes from it.
    Ended(VbId, EndReason),
}

/// How far the received bytes were worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that are done with.
    pub consumed: usize,
    /// Whether whoever looked on has seen enough.
    pub is_enough: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Streaming,
    /// It is to end, and to be asked for again from an earlier seqno: what still comes of it does not count.
    Closing,
    Done,
}

/// A vBucket as the consumer knows it.
struct Track {
    start: Start,
    phase: Phase,
    snapshot: (Seqno, Seqno),
    rollbacks: u32,
}

/// A consumer's side of what is said.
pub struct Session {
    wishes: Wishes,
    /// By vBucket.
    tracks: Vec<Option<Track>>,
    open: usize,
    unacknowledged_bytes: u32,
    out: Vec<u8>,
}

impl Session {
    /// A consumer of these vBuckets.
    pub fn new(wishes: Wishes, starts: &[Start]) -> Session {
        let count = starts.iter().map(|start| usize::from(start.vb.0) + 1).max().unwrap_or(0);
        let mut tracks: Vec<Option<Track>> = (0..count).map(|_| None).collect();
        let mut open = 0;
        for start in starts {
            let phase = if start.position.seqno >= start.end { Phase::Done } else { Phase::Waiting };
            open += usize::from(phase != Phase::Done);
            let snapshot = (start.position.snapshot_start, start.position.snapshot_end);
            let track = Track { start: *start, phase, snapshot, rollbacks: 0 };
            tracks[usize::from(start.vb.0)] = Some(track);
        }
        Session { wishes, tracks, open, unacknowledged_bytes: 0, out: Vec::new() }
    }

    /// Whether every stream has come to its end.
    pub fn is_done(&self) -> bool {
        self.open == 0
    }

    /// What is wanted.
    pub fn wishes(&self) -> &Wishes {
        &self.wishes
    }

    /// Where a vBucket stands.
    pub fn position(&self, vb: VbId) -> Option<Position> {
        Some(self.tracks.get(usize::from(vb.0))?.as_ref()?.start.position)
    }

    /// Begins anew on a connection that was just made: streams go on from where they stand.
    pub fn connected(&mut self) {
        self.out.clear();
        self.unacknowledged_bytes = 0;
        let flags = OpenFlags(self.wishes.flags.0 | OpenFlags::PRODUCER).encode();
        let name = self.wishes.name.clone();
        self.send(RequestParts {
            opcode: opcode::DCP_OPEN,
            opaque: OTHER_OPAQUES,
            key: name.as_bytes(),
            extras: &flags,
            ..RequestParts::default()
        });
        let on = || "true".to_owned();
        let controls = [
            ("enable_noop", Some(on())),
            ("set_noop_interval", Some(self.wishes.noop_interval_s.to_string())),
            ("connection_buffer_size", Some(self.wishes.buffer_bytes.to_string())),
            ("enable_expiry_opcode", Some(on())),
            ("enable_sync_writes", self.wishes.sync_writes.then(on)),
            (CHANGE_STREAMS, self.wishes.history.then(on)),
        ];
        for (key, value) in controls.iter().filter_map(|(key, value)| Some((*key, value.as_ref()?))) {
            self.send(RequestParts {
                opcode: opcode::DCP_CONTROL,
                opaque: OTHER_OPAQUES,
                key: key.as_bytes(),
                value: value.as_bytes(),
                ..RequestParts::default()
            });
        }
        for vb in 0..self.tracks.len() {
            if let Some(track) = &mut self.tracks[vb]
                && track.phase != Phase::Done
            {
                track.phase = Phase::Waiting;
                self.request(vb);
            }
        }
    }

    /// Bytes for the server, which the caller sends and clears.
    pub fn to_send(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn send(&mut self, parts: RequestParts<'_>) {
        let fits = write_request(&mut self.out, &parts);
        assert!(fits, "names and filters of a consumer are short");
    }

    /// Asks for a stream again from behind `to`, which lies before what came of it.
    pub fn rewind(&mut self, vb: VbId, to: Seqno) {
        let Some(track) = self.track(vb.0.into()).filter(|track| track.phase == Phase::Streaming) else {
            return;
        };
        track.start.position = track.start.position.rolled_back(to);
        track.snapshot = (to, to);
        track.phase = Phase::Closing;
        self.send(RequestParts {
            opcode: opcode::DCP_CLOSE_STREAM,
            opaque: CLOSE_OPAQUES | u32::from(vb.0),
            vbucket: vb,
            ..RequestParts::default()
        });
    }

    /// A stream has ended because it was asked to, or because it was gone by then.
    fn on_closed(&mut self, opaque: u32) {
        let Some(track) = self.track(opaque ^ CLOSE_OPAQUES) else { return };
        if track.phase == Phase::Closing {
            track.phase = Phase::Waiting;
            self.request((opaque ^ CLOSE_OPAQUES) as usize);
        }
    }

    fn request(&mut self, vb: usize) {
        let Some(track) = &self.tracks[vb] else { return };
        let position = track.start.position;
        let extras = StreamRequest {
            flags: StreamFlags::default(),
            start: position.seqno,
            end: track.start.end,
            uuid: position.uuid,
            snapshot_start: position.snapshot_start,
            snapshot_end: position.snapshot_end,
        };
        let (vbucket, filter) = (track.start.vb, self.wishes.filter.clone());
        self.send(RequestParts {
            opcode: opcode::DCP_STREAM_REQ,
            opaque: vbucket.0.into(),
            vbucket,
            extras: &extras.encode(),
            value: &filter,
            ..RequestParts::default()
        });
    }

    /// Works on what the server sent, as far as it is whole, until `look` has seen enough.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        look: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Received, ClientError> {
        let mut consumed = 0;
        while let Some(&first) = bytes.get(consumed) {
            let rest = &bytes[consumed..];
            let is_request = matches!(first, magic::REQUEST | magic::ALT_REQUEST);
            let (len, flow) = if is_request {
                match parse(rest, Limits::AUTHENTICATED) {
                    Parsed::Request { request, total_len } => {
                        (total_len, self.on_request(&request, total_len, look)?)
                    }
                    Parsed::Bad(error) => return Err(ClientError::Frame(error)),
                    Parsed::Incomplete { .. } | Parsed::Answer { .. } => break,
                }
            } else {
                match parse_response(rest, MAX_FRAME_BODY_BYTES) {
                    ParsedResponse::Response { response, total_len } => {
                        (total_len, self.on_answer(&response, look)?)
                    }
                    ParsedResponse::Bad(error) => return Err(ClientError::Frame(error)),
                    ParsedResponse::Incomplete { .. } => break,
                }
            };
            consumed += len;
            if flow.is_break() {
                return Ok(Received { consumed, is_enough: true });
            }
        }
        Ok(Received { consumed, is_enough: false })
    }

    fn on_answer(
        &mut self,
        response: &ResponseView<'_>,
        look: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ClientError> {
        let refused = |operation| ClientError::Refused {
            operation,
            status_code: response.status_code,
            context: context_of(response.value),
        };
        let status = response.status();
        let operation = match response.opcode {
            opcode::DCP_STREAM_REQ => return self.on_stream_answer(response, look),
            opcode::DCP_CLOSE_STREAM => {
                self.on_closed(response.opaque);
                return Ok(ControlFlow::Continue(()));
            }
            opcode::DCP_OPEN => "DCP open",
            opcode::DCP_CONTROL => "DCP control",
            // Requests of the server's own, and answers to nothing of ours.
            _ => return Ok(ControlFlow::Continue(())),
        };
        if status == Some(Status::Success) { Ok(ControlFlow::Continue(())) } else { Err(refused(operation)) }
    }

    fn track(&mut self, opaque: u32) -> Option<&mut Track> {
        self.tracks.get_mut(usize::try_from(opaque).ok()?)?.as_mut()
    }

    fn on_stream_answer(
        &mut self,
        response: &ResponseView<'_>,
        look: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ClientError> {
        let unreadable = |what| ClientError::Answer { operation: REQUEST, what };
        let opaque = response.opaque;
        let Some(track) = self.track(opaque).filter(|track| track.phase == Phase::Waiting) else {
            return Err(unreadable("it is about a stream that was not asked for"));
        };
        let vb = track.start.vb;
        match response.status() {
            Some(Status::Success) => {
                let log = FailoverLog::decode(response.value).ok_or(unreadable("the failover log"))?;
                let uuid = log.first().map_or(VbUuid(0), |(uuid, _)| *uuid);
                // From 0 on there is no history to name.
                track.start.position.uuid = uuid;
                track.phase = Phase::Streaming;
                track.rollbacks = 0;
                Ok(look(Event::Began(vb, uuid)))
            }
            Some(Status::Rollback) => {
                let to = response.value.try_into().map(u64::from_be_bytes);
                let to = Seqno(to.map_err(|_| unreadable("the seqno to roll back to"))?);
                track.rollbacks += 1;
                if to > track.start.position.seqno || track.rollbacks > MOST_ROLLBACKS {
                    return Err(unreadable("it wants to roll back for ever"));
                }
                track.start.position = track.start.position.rolled_back(to);
                track.snapshot = (to, to);
                self.request(vb.0.into());
                Ok(look(Event::RolledBack(vb, to)))
            }
            Some(Status::NotMyVbucket) => Ok(self.ended(vb, EndReason::StateChanged, look)),
            _ => Err(ClientError::Refused {
                operation: REQUEST,
                status_code: response.status_code,
                context: String::from_utf8_lossy(response.value).into_owned(),
            }),
        }
    }

    fn ended(
        &mut self,
        vb: VbId,
        reason: EndReason,
        look: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if let Some(track) = self.track(vb.0.into())
            && std::mem::replace(&mut track.phase, Phase::Done) != Phase::Done
        {
            self.open -= 1;
        }
        look(Event::Ended(vb, reason))
    }

    fn on_request(
        &mut self,
        request: &protocol::Request<'_>,
        bytes: usize,
        look: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ClientError> {
        if request.opcode == opcode::DCP_NOOP {
            let (opcode, opaque) = (request.opcode, request.opaque);
            Response { opcode, opaque, ..Response::default() }.write(&mut self.out);
            return Ok(ControlFlow::Continue(()));
        }
        let unreadable = |what| ClientError::Answer { operation: "stream", what };
        let message = Message::read(request).ok_or(unreadable("a message"))?;
        let is_there = |track: &&mut Track| matches!(track.phase, Phase::Streaming | Phase::Closing);
        let track = self.track(message.opaque).filter(is_there);
        let track = track.ok_or(unreadable("it belongs to no stream"))?;
        if track.phase == Phase::Closing && !matches!(message.what, What::End(_)) {
            self.acknowledge(bytes);
            return Ok(ControlFlow::Continue(()));
        }
        let flow = match message.what {
            What::End(reason) => self.on_end(message.vb, reason, look),
            What::Marker(marker) => {
                track.snapshot = (marker.start, marker.end);
                look(Event::Message(&message))
            }
            what => {
                let seqno = seqno_of(&what);
                if seqno.is_some_and(|seqno| seqno <= track.start.position.seqno) {
                    return Err(unreadable("it goes back in history"));
                }
                let flow = look(Event::Message(&message));
                let snapshot = track.snapshot;
                seqno.into_iter().for_each(|seqno| track.start.position.advance(seqno, snapshot));
                flow
            }
        };
        self.acknowledge(bytes);
        Ok(flow)
    }

    /// What ends for a reason that passes is asked for again; the rest is over.
    fn on_end(
        &mut self,
        vb: VbId,
        reason: EndReason,
        look: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(track) = self.track(vb.0.into()) else { return ControlFlow::Continue(()) };
        match reason {
            EndReason::Rollback | EndReason::TooSlow | EndReason::Disconnected => {
                track.phase = Phase::Waiting;
                self.request(vb.0.into());
                ControlFlow::Continue(())
            }
            _ => self.ended(vb, reason, look),
        }
    }

    /// Says that bytes are worked on when that is worth a message.
    fn acknowledge(&mut self, bytes: usize) {
        self.unacknowledged_bytes += u32::try_from(bytes).expect("a message is smaller than 4 GiB");
        if self.unacknowledged_bytes >= self.wishes.buffer_bytes / 2 {
            let extras = std::mem::take(&mut self.unacknowledged_bytes).to_be_bytes();
            let parts =
                RequestParts { opcode: opcode::DCP_BUFFER_ACK, extras: &extras, ..RequestParts::default() };
            self.send(parts);
        }
    }
}

/// The place of what a message brings.
pub(crate) fn seqno_of(what: &What) -> Option<Seqno> {
    match *what {
        What::Mutation(mutation) => Some(mutation.by_seqno),
        What::Deletion(deletion) | What::Expiration(deletion) => Some(deletion.by_seqno),
        What::Prepare(prepare) => Some(prepare.mutation.by_seqno),
        What::Commit(_, at) | What::Abort(_, at) => Some(at),
        What::SystemEvent(seqno, ..) | What::SeqnoAdvanced(seqno) => Some(seqno),
        What::Marker(_) | What::OutOfOrder(_) | What::SetVbucketState(_) | What::End(_) => None,
    }
}
