//! What passes between a link and the node that it follows: requests for streams with their answers are noted, and a
//! mistake is made now and then, if one is wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Seqno, VbId};
use engine::Bucket;
use protocol::dcp::{FailoverLog, Message, Mutation, StreamRequest, What};
use protocol::response::ParsedResponse;
use protocol::{
    HEADER_BYTES, Limits, Parsed, Request, Response, Status, magic, opcode, parse, parse_response,
};

use crate::mistakes::Mistake;
use crate::rule;

/// One change in so many is treated wrongly.
const ONE_IN: u64 = 20;
/// More than any answer.
const MOST_BYTES: usize = 1 << 20;

/// What a node that follows asked for, and what it was answered.
#[derive(Clone, Copy, Debug)]
pub struct AskedStream {
    /// The vBucket.
    pub vb: VbId,
    /// What was asked for, as the source has heard it.
    pub request: StreamRequest,
    /// Accepted, or to where to roll back.
    pub answer: Result<(), Seqno>,
}

/// Looks at one connection.
pub struct Tap {
    mistake: Mistake,
    source: Arc<Bucket>,
    target: Arc<Bucket>,
    /// By the opaque of their requests: streams that were asked for and not answered.
    open: BTreeMap<u32, (VbId, StreamRequest)>,
    asked: Vec<AskedStream>,
    changes: u64,
    last: Vec<u8>,
}

impl Tap {
    /// Between a bucket and the one that follows it.
    pub fn new(mistake: Mistake, source: Arc<Bucket>, target: Arc<Bucket>) -> Tap {
        let (open, asked) = (BTreeMap::new(), Vec::new());
        Tap { mistake, source, target, open, asked, changes: 0, last: Vec::new() }
    }

    /// Takes what was answered since this was called last.
    pub fn take_asked(&mut self) -> Vec<AskedStream> {
        std::mem::take(&mut self.asked)
    }

    /// Looks at what has arrived at the source, which may hear something else.
    pub fn arrived(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        loop {
            let (request, total_len) = match parse(&bytes[at..], Limits::AUTHENTICATED) {
                Parsed::Request { request, total_len } if request.opcode == opcode::DCP_STREAM_REQ => {
                    (Some(request), total_len)
                }
                Parsed::Request { total_len, .. } | Parsed::Answer { total_len, .. } => (None, total_len),
                Parsed::Incomplete { .. } | Parsed::Bad(_) => return,
            };
            if let Some(request) = request
                && let Some(asked) = StreamRequest::decode(request.extras)
            {
                let heard = self.heard(request.vbucket, asked);
                self.open.insert(request.opaque, (request.vbucket, heard));
                let extras = at + HEADER_BYTES;
                bytes[extras..extras + StreamRequest::BYTES].copy_from_slice(&heard.encode());
            }
            at += total_len;
        }
    }

    /// What the source hears of a request.
    fn heard(&self, vb: VbId, asked: StreamRequest) -> StreamRequest {
        let look = |vb: &vbucket::VBucket| {
            let (log, high, purge) = (vb.failover().to_entries(), vb.high_seqno().0, vb.purge_seqno().0);
            (rule::rollback(&asked, &log, high, purge), vb.uuid(), vb.high_seqno())
        };
        match self.source.with_vbucket(vb, look) {
            Some((Some(_), uuid, high)) if self.mistake == Mistake::NoRollback => {
                let start = asked.start.min(high);
                StreamRequest { start, uuid, snapshot_start: start, snapshot_end: start, ..asked }
            }
            _ => asked,
        }
    }

    /// What the node that follows gets of what the source sends: whole frames.
    pub fn sent(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (mut rest, mut out) = (bytes, Vec::with_capacity(bytes.len()));
        while let Some(first) = rest.first() {
            let is_message = matches!(*first, magic::REQUEST | magic::ALT_REQUEST);
            let total_len = if is_message {
                let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) else {
                    panic!("a node sends whole messages");
                };
                self.message(&rest[..total_len], &request, &mut out);
                total_len
            } else {
                self.answer(rest, &mut out)
            };
            rest = &rest[total_len..];
        }
        out
    }

    fn answer(&mut self, rest: &[u8], out: &mut Vec<u8>) -> usize {
        let ParsedResponse::Response { response, total_len } = parse_response(rest, MOST_BYTES) else {
            panic!("a node sends whole answers");
        };
        let is_of_stream = response.opcode == opcode::DCP_STREAM_REQ;
        let asked = is_of_stream.then(|| self.open.remove(&response.opaque)).flatten();
        let answer = match (response.status(), <[u8; 8]>::try_from(response.value)) {
            (Some(Status::Success), _) => Some(Ok(())),
            (Some(Status::Rollback), Ok(to)) => Some(Err(Seqno(u64::from_be_bytes(to)))),
            _ => None,
        };
        if let (Some((vb, request)), Some(answer)) = (asked, answer) {
            self.asked.push(AskedStream { vb, request, answer });
            let own = self.target.with_vbucket(vb, |vb| vb.failover().to_entries());
            if self.mistake == Mistake::KeepFailover && answer.is_ok() {
                let own = own.unwrap_or_default();
                let value = FailoverLog::encode(own.iter().map(|entry| (entry.uuid, entry.seqno)));
                let (opcode, opaque) = (response.opcode, response.opaque);
                let (status, value) = (Status::Success, &value[..]);
                Response { opcode, opaque, status, value, ..Response::default() }.write(out);
                return total_len;
            }
        }
        out.extend_from_slice(&rest[..total_len]);
        total_len
    }

    /// Hands a message of the source on.
    fn message(&mut self, bytes: &[u8], request: &Request<'_>, out: &mut Vec<u8>) {
        let is_change =
            matches!(request.opcode, opcode::DCP_MUTATION | opcode::DCP_DELETION | opcode::DCP_EXPIRATION);
        self.changes += u64::from(is_change);
        let is_wrong = is_change && self.changes % ONE_IN == ONE_IN / 2;
        let replaced = match self.mistake {
            Mistake::LoseFlags | Mistake::LoseDeletion => {
                Message::read(request).and_then(|message| self.replaced(message))
            }
            _ => None,
        };
        match (self.mistake, replaced) {
            (_, Some(replaced)) => out.extend(replaced),
            (Mistake::SkipMessage, _) if is_wrong => {}
            (Mistake::ReplayMessage, _) if is_wrong => {
                out.extend_from_slice(bytes);
                out.extend_from_slice(&self.last);
            }
            _ => out.extend_from_slice(bytes),
        }
        if is_change && self.mistake == Mistake::ReplayMessage {
            self.last = bytes.to_vec();
        }
    }

    /// What comes in the place of a message.
    fn replaced(&self, message: Message<'_>) -> Option<Vec<u8>> {
        let replaced = match (self.mistake, message.what) {
            (Mistake::LoseFlags, What::Mutation(mutation)) => {
                Message { what: What::Mutation(Mutation { flags: 0, ..mutation }), ..message }
            }
            (Mistake::LoseDeletion, What::Deletion(deletion)) if self.changes.is_multiple_of(3) => {
                let what = What::SeqnoAdvanced(deletion.by_seqno);
                Message { what, key: b"", value: b"", cas: base::Cas(0), datatype: 0, ..message }
            }
            _ => return None,
        };
        let mut out = Vec::new();
        replaced.write(&mut out);
        Some(out)
    }
}
