//! Writes the answers to one request, or keeps quiet where the protocol wants silence.

use base::{Cas, Datatype};
use engine::Whole;
use protocol::feature::{Feature, Features};
use protocol::{Response, Status, server_duration};

use crate::close_reason::CloseReason;
use crate::command_rules::Silence;
use crate::counters::WorkerCounters;
use crate::output::Output;
use crate::status_map;

/// One answer.
#[derive(Clone, Copy, Default)]
pub struct Answer<'a> {
    /// How it went.
    pub status: Status,
    /// What the value is made of, as the client may see it.
    pub datatype: Datatype,
    /// The document's CAS.
    pub cas: Cas,
    /// Fields of the command.
    pub extras: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether the status is one that clients without extended errors are told, too.
    pub is_for_all: bool,
}

/// What of a request is needed to answer it, whenever that is.
#[derive(Clone, Copy)]
pub struct Envelope {
    /// The request's opcode.
    pub opcode: u8,
    /// The request's opaque.
    pub opaque: u32,
    /// Whether the request names a CAS.
    pub has_cas: bool,
    /// Which answers are not sent.
    pub silence: Silence,
    /// What was agreed on when it came.
    pub features: Features,
}

/// Writes answers to one request.
pub struct Reply<'a> {
    out: &'a mut Output,
    counters: &'a WorkerCounters,
    envelope: Envelope,
    /// Microseconds the request took so far; asked only if the client wants to know.
    elapsed_us: &'a mut dyn FnMut() -> u64,
    close: Option<CloseReason>,
    answered: Option<Status>,
    answered_elsewhere: Option<Status>,
}

impl<'a> Reply<'a> {
    /// For one request.
    pub fn new(
        out: &'a mut Output,
        counters: &'a WorkerCounters,
        envelope: Envelope,
        elapsed_us: &'a mut dyn FnMut() -> u64,
    ) -> Reply<'a> {
        Reply { out, counters, envelope, elapsed_us, close: None, answered: None, answered_elsewhere: None }
    }

    /// What is answered.
    pub fn envelope(&self) -> Envelope {
        self.envelope
    }

    /// The number of the worker where answers are counted.
    pub fn worker(&self) -> usize {
        self.counters.number()
    }

    /// What is answered keeps to what was agreed on before and is again (HELLO).
    pub fn set_features(&mut self, features: Features) {
        self.envelope.features = features;
    }

    /// The status of the last answer, sent or kept silent.
    pub fn answered(&self) -> Option<Status> {
        self.answered
    }

    /// Why the connection must be closed after this, if it must.
    pub fn must_close(&self) -> Option<CloseReason> {
        self.close
    }

    fn response<'b>(&mut self, answer: &Answer<'b>) -> Option<Response<'b>> {
        self.answered = Some(answer.status);
        let has_xerror = self.envelope.features.has(Feature::Xerror);
        let Envelope { opcode, has_cas, .. } = self.envelope;
        let understands = has_xerror || answer.is_for_all;
        let Some(status) = status_map::visible(answer.status, opcode, has_cas, understands) else {
            self.close = Some(CloseReason::StatusNotUnderstood(answer.status));
            return None;
        };
        if self.envelope.silence.hides(status, self.envelope.features) {
            return None;
        }
        self.counters.count_answer(status);
        let wants_duration = self.envelope.features.has(Feature::Tracing);
        Some(Response {
            opcode: self.envelope.opcode,
            status,
            datatype: answer.datatype.0,
            opaque: self.envelope.opaque,
            cas: answer.cas,
            server_duration: wants_duration.then(|| server_duration::encode((self.elapsed_us)())),
            extras: answer.extras,
            key: answer.key,
            value: answer.value,
        })
    }

    /// Sends an answer.
    pub fn send(&mut self, answer: &Answer<'_>) {
        if !self.has_room(answer.value.len()) {
            return self.status(Status::Etmpfail);
        }
        if let Some(response) = self.response(answer) {
            response.write(self.out.bytes());
        }
    }

    /// Sends an answer whose value is that of `version` from byte `from` on; `answer.value` is ignored.
    pub fn send_version(&mut self, answer: &Answer<'_>, version: &Whole, from: usize) {
        let len = version.value().len() - from;
        if let Some(response) = self.response(answer) {
            response.write_before_value(len, self.out.bytes());
            self.out.value(version, from);
        }
    }

    /// Sends an answer whose value is `value` from byte `from` on; `answer.value` is ignored.
    pub fn send_made(&mut self, answer: &Answer<'_>, value: Vec<u8>, from: usize) {
        if !self.has_room(value.len()) {
            return self.status(Status::Etmpfail);
        }
        let len = value.len() - from;
        if let Some(response) = self.response(answer) {
            response.write_before_value(len, self.out.bytes());
            self.out.made(value, from);
        }
    }

    /// Whether an answer of this size may be made: if not, a temporary failure is answered.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.out.has_room(bytes)
    }

    /// Sends success and nothing else.
    pub fn ok(&mut self) {
        self.send(&Answer::default());
    }

    /// Sends a status without a body to clients of any age.
    pub fn status_for_all(&mut self, status: Status) {
        self.send(&Answer { status, is_for_all: true, ..Answer::default() });
    }

    /// Sends a status without a body.
    pub fn status(&mut self, status: Status) {
        self.send(&Answer { status, ..Answer::default() });
    }

    /// Appends messages that follow what was answered.
    pub fn append(&mut self, messages: &[u8]) {
        self.out.bytes().extend_from_slice(messages);
    }

    /// The status of answers that were put together, and counted, elsewhere.
    pub fn answered_elsewhere(&self) -> Option<Status> {
        self.answered_elsewhere
    }

    /// Sends answers that were put together, and counted, elsewhere; the last one's status.
    pub fn append_output(&mut self, answers: Output, status: Option<Status>) {
        self.answered_elsewhere = status;
        self.out.append(answers);
    }

    /// Sends JSON, marked as such if that was agreed on.
    pub fn json(&mut self, status: Status, json: &[u8]) {
        self.send(&self.of_json(status, json));
    }

    fn of_json<'j>(&self, status: Status, json: &'j [u8]) -> Answer<'j> {
        let datatype = if self.envelope.features.has(Feature::Json) { Datatype::JSON } else { Datatype::RAW };
        Answer { status, datatype, value: json, ..Answer::default() }
    }

    /// Sends an error with a message for whoever debugs the client.
    pub fn error(&mut self, status: Status, context: &str) {
        let body = serde_json::json!({ "error": { "context": context } });
        self.json(status, body.to_string().as_bytes());
    }

    /// The same to clients of any age.
    pub fn error_for_all(&mut self, status: Status, context: &str) {
        let body = serde_json::json!({ "error": { "context": context } }).to_string();
        self.send(&Answer { is_for_all: true, ..self.of_json(status, body.as_bytes()) });
    }

    /// Sends an error with a reference that also stands in the log.
    pub fn error_ref(&mut self, status: Status, reference: &str) {
        let body = serde_json::json!({ "error": { "ref": reference } });
        self.json(status, body.to_string().as_bytes());
    }

    /// Sends "no such collection" or "no such scope", with the manifest that says so.
    pub fn unknown_collection(&mut self, status: Status, manifest_uid: u64) {
        let context = "Unknown scope or collection in operation";
        let body = serde_json::json!({ "error": { "context": context }, "manifest_uid": format!("{manifest_uid:x}") });
        self.json(status, body.to_string().as_bytes());
    }
}
