//! DCP: what turns a connection into one for streams, and what it is asked then.

use ::dcp::{AcknowledgeRefusal, Agreement, Features, Filter, MOST_FILTER_BYTES, StreamRequestRefusal};
use base::planted::{self, Bug};
use base::{CollectionId, Datatype, Seqno};
use engine::StreamWanted;
use protocol::dcp::{OpenFlags, StreamFlags, StreamRequest};
use protocol::extras::{decode_u32, decode_u64};
use protocol::feature::Feature;
use protocol::{Request, Status};

use super::dcp_consumer as consumer;
use crate::close_reason::CloseReason;
use crate::connection_memory::LARGE_BYTES;
use crate::context::{Context, Outcome};
use crate::dcp::{DcpConnection, Owner};
use crate::privilege::{Privilege, Privileges};
use crate::reply::Answer;

pub(super) const NOT_DCP: &str = "The command can only be sent on a DCP connection";
pub(super) const CONSUMES: CloseReason = CloseReason::Violation("a consumer was asked for changes");

/// What opening with a value says: the name under which the other end takes part in durable writes.
enum Value {
    None,
    ConsumerName(String),
    Empty,
}

fn value_of(request: &Request<'_>) -> Option<Value> {
    if request.value.is_empty() && request.datatype == 0 {
        return Some(Value::None);
    }
    if request.datatype != Datatype::JSON.0 {
        return None;
    }
    if request.value.len() > MOST_FILTER_BYTES {
        return None;
    }
    let value: serde_json::Value = serde_json::from_slice(request.value).ok()?;
    match value.as_object()? {
        fields if fields.is_empty() => Some(Value::Empty),
        fields => {
            let is_known = fields.keys().all(|key| key == "consumer_name");
            let name = fields.get("consumer_name")?.as_str()?;
            is_known.then(|| Value::ConsumerName(name.to_owned()))
        }
    }
}

/// DCP open: from here on the connection streams changes.
pub fn open(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(flags) = OpenFlags::decode(request.extras) else {
        return cx.invalid("Request must include extras of length 8");
    };
    if cx.session.dcp.is_some() {
        return cx.invalid("The connection is a DCP connection already");
    }
    let is_producer = flags.has(OpenFlags::PRODUCER);
    let needed = if is_producer { Privilege::DcpProducer } else { Privilege::DcpConsumer };
    if let Err(denied) = cx.require(needed) {
        return denied;
    }
    let consumer_name = match value_of(request) {
        Some(Value::None) => None,
        Some(Value::Empty) if is_producer => None,
        Some(Value::ConsumerName(name)) if !is_producer => Some(name),
        Some(Value::Empty) => return Outcome::Close(CloseReason::Violation("a consumer without a name")),
        _ => return cx.invalid("The value must be JSON with the name of a consumer"),
    };
    let session = &cx.session;
    let features = Features {
        collections: session.has(Feature::Collections),
        snappy: session.has(Feature::Snappy),
        json: session.has(Feature::Json),
    };
    // Who has not agreed to it speaks to a server that does not know the flag.
    let skips = flags.0 & OpenFlags::SKIP_DELETES != 0;
    if skips && !session.has(Feature::DcpSkipDeletesInInitialBackfill) {
        return cx.status(Status::Einval);
    }
    let agreed = match Agreement::open(flags, request.key, features.snappy) {
        Ok(agreed) => Agreement { consumer_name, ..agreed },
        Err(status) => return cx.status(status),
    };
    let bucket = cx.bucket();
    let owner = match &cx.session.user {
        Some(user) if !cx.may(Privilege::NodeSupervisor) => Owner::User(user.name().to_owned()),
        _ => Owner::Node,
    };
    let connection = DcpConnection::open(cx.node.streams(), &bucket, request.key, owner, agreed, features);
    cx.session.dcp = Some(Box::new(connection));
    cx.status(Status::Success)
}

/// DCP control: agrees on a property.
pub fn control(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    // An acknowledgement by that name says that another node has a copy, which durable writes rely on: a right of nodes.
    if cx.session.dcp.is_some()
        && request.key == b"consumer_name"
        && let Err(denied) = cx.require(Privilege::NodeSupervisor)
    {
        return denied;
    }
    let Some(connection) = &mut cx.session.dcp else { return cx.invalid(NOT_DCP) };
    let Some(producer) = connection.producer() else { return Outcome::Close(CONSUMES) };
    let status = producer.control(request.key, request.value);
    cx.status(status)
}

/// DCP stream request: begins a stream.
pub fn stream_request(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if let Err(denied) = may_stream(cx, request.value) {
        return denied;
    }
    if cx.session.dcp.is_some()
        && let Err(denied) = may_take_over(cx, request.extras)
    {
        return denied;
    }
    let Some(connection) = &mut cx.session.dcp else { return cx.invalid(NOT_DCP) };
    let Some(producer) = connection.producer() else { return Outcome::Close(CONSUMES) };
    if producer.held_bytes() >= LARGE_BYTES && cx.node.connection_memory().is_short() {
        return cx.status(Status::Etmpfail);
    }
    let Some(wanted) = StreamRequest::decode(request.extras) else {
        return cx.invalid("Request must include extras of length 48");
    };
    match producer.request(request.vbucket, request.opaque, &wanted, request.value) {
        Ok(log) => {
            cx.reply.send(&Answer { value: &log, ..Answer::default() });
            Outcome::Done
        }
        Err(StreamRequestRefusal::RollBack(to)) => {
            let value = to.0.to_be_bytes();
            cx.reply.send(&Answer { status: Status::Rollback, value: &value, ..Answer::default() });
            Outcome::Done
        }
        Err(StreamRequestRefusal::Unknown(status, manifest)) => {
            cx.reply.unknown_collection(status, manifest.0);
            Outcome::Done
        }
        Err(StreamRequestRefusal::Status(status)) => cx.status(status),
    }
}

/// A stream of everything needs the privilege in the whole bucket, one of a scope in that, one of collections in each. What
/// it is about is for the producer to say, which streams that: the features of the session are those of the last HELLO.
fn may_stream(cx: &mut Context<'_>, filter: &[u8]) -> Result<(), Outcome> {
    let needed = Privileges::of(&[Privilege::DcpStream]);
    if cx.may(Privilege::DcpStream) {
        return Ok(());
    }
    // One that cannot be read is refused for that.
    let Ok(filter) = Filter::parse(filter) else { return Ok(()) };
    // So is a request on a connection that streams nothing.
    let Some(producer) = cx.session.dcp.as_mut().and_then(|dcp| dcp.producer()) else { return Ok(()) };
    let wanted = match producer.wanted(&filter) {
        _ if planted::is(Bug::HelloDecidesStreamRights) && !cx.session.has(Feature::Collections) => {
            StreamWanted::Default
        }
        wanted => wanted,
    };
    match wanted {
        StreamWanted::Everything => cx.require(Privilege::DcpStream),
        StreamWanted::Default => cx.require_in(CollectionId::DEFAULT, Privilege::DcpStream),
        StreamWanted::Collections(collections) => {
            collections.iter().try_for_each(|id| cx.require_in(*id, Privilege::DcpStream))
        }
        StreamWanted::Scope(scope) => {
            let seen = cx.session.rights.check_scope(needed, scope);
            cx.require_seen(seen, Status::UnknownScope)
        }
    }
}

/// A stream that takes its vBucket over ends the service of the vBucket here, whatever the stream is about: a right of nodes.
fn may_take_over(cx: &mut Context<'_>, extras: &[u8]) -> Result<(), Outcome> {
    let wanted = StreamRequest::decode(extras);
    if !wanted.is_some_and(|wanted| wanted.flags.has(StreamFlags::TAKEOVER)) {
        return Ok(());
    }
    cx.require(Privilege::NodeSupervisor)
}

/// DCP close stream: the consumer wants no more of it.
pub fn close_stream(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let stream_id = cx.infos.stream_id;
    let Some(connection) = &mut cx.session.dcp else { return cx.invalid(NOT_DCP) };
    let Some(producer) = connection.producer() else { return consumer::close_stream(cx, request) };
    // The answer comes first, then the end of the stream.
    let mut end = Vec::new();
    let status = producer.close_stream(request.vbucket, stream_id, &mut end);
    let outcome = cx.status(status);
    cx.reply.append(&end);
    outcome
}

/// DCP buffer acknowledgement: so many bytes are worked on. Has no answer.
pub fn buffer_acknowledgement(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(connection) = &mut cx.session.dcp else { return cx.invalid(NOT_DCP) };
    let Some(producer) = connection.producer() else { return Outcome::Close(CONSUMES) };
    match decode_u32(request.extras) {
        Some(bytes) => producer.acknowledge(bytes),
        None => return cx.invalid("Request must include extras of length 4"),
    }
    Outcome::Done
}

/// DCP seqno acknowledged: the consumer has prepares. Has no answer if nothing is wrong with it.
pub fn seqno_acknowledged(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.session.dcp.is_some() && !cx.may(Privilege::NodeSupervisor) {
        // The user was told when it gave its name. An answer would end the link of a node that follows as this user.
        return Outcome::Done;
    }
    let Some(connection) = &mut cx.session.dcp else { return cx.invalid(NOT_DCP) };
    let Some(producer) = connection.producer() else { return Outcome::Close(CONSUMES) };
    let Some(prepared) = decode_u64(request.extras) else {
        return cx.invalid("Request must include extras of length 8");
    };
    match producer.acknowledge_prepares(request.vbucket, Seqno(prepared)) {
        Ok(()) => Outcome::Done,
        Err(AcknowledgeRefusal::Nameless) => cx.invalid("Only a consumer with a name acknowledges prepares"),
        Err(AcknowledgeRefusal::NoStream) if cx.bucket().state_of(request.vbucket).is_none() => {
            cx.not_my_vbucket()
        }
        Err(AcknowledgeRefusal::NoStream) => Outcome::Close(CloseReason::Violation(
            "prepares of a vBucket were acknowledged that is not streamed",
        )),
    }
}

/// DCP get failover log: as on any connection, but only here.
pub fn get_failover_log(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.session.dcp.is_none() {
        return cx.invalid(NOT_DCP);
    }
    super::observe::get_failover_log(cx, request)
}
