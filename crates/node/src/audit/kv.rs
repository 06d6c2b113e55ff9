//! What of the key-value protocol is recorded: who logged in, which commands were refused, and what was done by those of
//! one table.

use base::DocKey;
use protocol::opcode::*;
use protocol::reader::Reader;
use protocol::{FrameInfos, Request, Status};
use subdoc::request::path_flag;

use super::events::AuditEvent;
use super::record::{AuditRecord, text};
use super::sessions::{in_bucket, invalid_packet, may_log_in, record_of};
use crate::command::{Row, find};
use crate::commands::mutate_with_meta;
use crate::context::{Context, Outcome};
use crate::log_levels;
use crate::node::Node;
use crate::node_login::NODE_USER;
use crate::privilege::Privilege;
use crate::session::Session;

/// What return meta is asked for if the document is to be deleted.
const RETURN_META_DELETES: u8 = 3;

/// What a command that succeeds is recorded as.
fn event_of(opcode: u8) -> Option<AuditEvent> {
    Some(match opcode {
        GET | GETQ | GETK | GETKQ | GET_REPLICA | GET_EX | GET_EX_REPLICA | GET_META | GETQ_META
        | SUBDOC_GET | SUBDOC_EXISTS | SUBDOC_GET_COUNT | SUBDOC_MULTI_LOOKUP => AuditEvent::DocumentRead,
        GET_LOCKED => AuditEvent::DocumentLocked,
        SET
        | SETQ
        | ADD
        | ADDQ
        | REPLACE
        | REPLACEQ
        | APPEND
        | APPENDQ
        | PREPEND
        | PREPENDQ
        | INCREMENT
        | INCREMENTQ
        | DECREMENT
        | DECREMENTQ
        | TOUCH
        | GAT
        | GATQ
        | UNLOCK_KEY
        | SET_WITH_META
        | SETQ_WITH_META
        | ADD_WITH_META
        | ADDQ_WITH_META
        | MUTATE_WITH_META
        | RETURN_META
        | SUBDOC_DICT_ADD
        | SUBDOC_DICT_UPSERT
        | SUBDOC_DELETE
        | SUBDOC_REPLACE
        | SUBDOC_ARRAY_PUSH_LAST
        | SUBDOC_ARRAY_PUSH_FIRST
        | SUBDOC_ARRAY_INSERT
        | SUBDOC_ARRAY_ADD_UNIQUE
        | SUBDOC_COUNTER
        | SUBDOC_REPLACE_BODY_WITH_XATTR
        | SUBDOC_MULTI_MUTATION => AuditEvent::DocumentModified,
        DELETE | DELETEQ | DELETE_WITH_META | DELETEQ_WITH_META => AuditEvent::DocumentDeleted,
        SELECT_BUCKET => AuditEvent::BucketSelected,
        DCP_OPEN => AuditEvent::DcpOpened,
        SET_PARAM => AuditEvent::BucketModified,
        SET_COLLECTIONS_MANIFEST => AuditEvent::ManifestSet,
        SET_VBUCKET | DELETE_VBUCKET | COMPACT_DB | DOWNLOAD_SNAPSHOT => AuditEvent::VbucketChanged,
        STOP_PERSISTENCE | START_PERSISTENCE => AuditEvent::PersistenceSwitched,
        BUCKET_SNAPSHOT | RELEASE_SNAPSHOT => AuditEvent::SnapshotUsed,
        // Where it is not for figures: see `event_for`.
        STAT => AuditEvent::FiguresReset,
        VERBOSITY => AuditEvent::LogLevelsChanged,
        DISABLE_TRAFFIC | ENABLE_TRAFFIC => AuditEvent::TrafficSwitched,
        RANGE_SCAN_CREATE | GET_KEYS | GET_RANDOM_KEY | PREPARE_SNAPSHOT => AuditEvent::KeysRead,
        _ => return None,
    })
}

/// What a request is recorded as: of some commands the number alone does not tell what they do.
fn event_for(session: &Session, request: &Request<'_>) -> Option<AuditEvent> {
    let event = event_of(request.opcode)?;
    // A node that reads a document for a client looks first how large it is: the request that follows is the record.
    if session.asked_for().is_some() && looks_ahead(request) {
        return None;
    }
    if event == AuditEvent::FiguresReset && !matches!(request.key, b"reset" | b"reset timings") {
        return None;
    }
    // Who waits for a snapshot looks a hundred times a second.
    if request.opcode == BUCKET_SNAPSHOT && matches!(snapshot_step(request), Some(("look" | "list", _))) {
        return None;
    }
    let deletes = event == AuditEvent::DocumentModified && deletes(request);
    Some(if deletes { AuditEvent::DocumentDeleted } else { event })
}

/// Whether a look-up asks for nothing but what is known about a document: attributes whose names begin with `$`.
fn looks_ahead(request: &Request<'_>) -> bool {
    let mut rest = Reader(request.value);
    let is_about = || {
        let (_opcode, flags) = (rest.u8()?, rest.u8()?);
        let path = rest.u16().and_then(|len| rest.bytes(usize::from(len)))?;
        Some(flags & path_flag::XATTR != 0 && path.starts_with(b"$"))
    };
    let mut paths = std::iter::from_fn(is_about).peekable();
    request.opcode == SUBDOC_MULTI_LOOKUP && paths.peek().is_some() && paths.all(|is_about| is_about)
}

/// What is done with which snapshot of a bucket; `None` if the request does not say it.
fn snapshot_step(request: &Request<'_>) -> Option<(&'static str, String)> {
    const MOST_BYTES: usize = 4 << 10;
    let value = Some(request.value).filter(|value| value.len() <= MOST_BYTES)?;
    let wanted: serde_json::Value = serde_json::from_slice(value).ok()?;
    let step = wanted["do"].as_str()?;
    let step =
        ["hold", "take", "release", "look", "drop", "list"].into_iter().find(|known| *known == step)?;
    let id = wanted["id"].as_str().and_then(protocol::uuid::parse).map(protocol::uuid::text);
    Some((step, id.unwrap_or_default()))
}

fn deletes(request: &Request<'_>) -> bool {
    match request.opcode {
        RETURN_META => request.extras.get(..4) == Some(&[0, 0, 0, RETURN_META_DELETES]),
        MUTATE_WITH_META => mutate_with_meta::deletes(request),
        SUBDOC_MULTI_MUTATION => deletes_as_a_whole(request.value),
        _ => false,
    }
}

/// Whether one of several changes of a document is its deletion (kv_engine docs/BinaryProtocol.md, Multi mutation).
fn deletes_as_a_whole(changes: &[u8]) -> bool {
    let mut rest = Reader(changes);
    while let (Some(opcode), Some(_flags), Some(path), Some(value)) =
        (rest.u8(), rest.u8(), rest.u16(), rest.u32())
    {
        if opcode == DELETE {
            return true;
        }
        if rest.bytes(usize::from(path)).is_none() || rest.bytes(value as usize).is_none() {
            return false;
        }
    }
    false
}

/// What else a command is recorded as.
fn also(opcode: u8) -> Option<AuditEvent> {
    matches!(opcode, GAT | GATQ).then_some(AuditEvent::DocumentRead)
}

/// Whether a command must be recorded and cannot be: then it is refused.
#[inline]
pub(crate) fn refused(ctx: &mut Context<'_>, request: &Request<'_>) -> Option<Outcome> {
    if ctx.node.audit.is_on() { refused_now(ctx, request) } else { None }
}

#[cold]
fn refused_now(ctx: &mut Context<'_>, request: &Request<'_>) -> Option<Outcome> {
    let log = &ctx.node.audit;
    let refused = match request.opcode {
        SASL_AUTH | SASL_STEP => may_log_in(ctx.node).err(),
        opcode => event_for(ctx.session, request)
            .into_iter()
            .chain(also(opcode))
            .find_map(|event| log.admit(event).err()),
    }?;
    Some(ctx.error(Status::Etmpfail, &refused.to_string()))
}

/// A request did not get to its handler: it is malformed, or the user lacks a privilege.
pub(crate) fn not_admitted(
    node: &Node,
    session: &Session,
    row: Option<&Row>,
    status: Option<Status>,
    lacks: Option<Privilege>,
) {
    if !node.audit.is_on() {
        return;
    }
    let command = row.map_or("an unknown command", |row| row.name);
    match status {
        Some(Status::Einval) => invalid_packet(node, session, command),
        Some(Status::Eaccess) if session.is_authenticated() => {
            let record = forbidden(session, None, command);
            node.audit.record(match lacks {
                Some(privilege) => record.with("privilege", privilege.name()),
                None => record,
            });
        }
        _ => {}
    }
}

fn forbidden(session: &Session, acting_for: Option<&[u8]>, command: &str) -> AuditRecord {
    let record = record_of(AuditEvent::CommandForbidden, session).acting_for(acting_for);
    in_bucket(record, session).with("command", command)
}

/// A command was answered with this status.
#[inline]
pub(crate) fn answered(ctx: &Context<'_>, request: &Request<'_>, status: Status) {
    if ctx.node.audit.is_on() {
        note(ctx, request, status);
    }
}

#[cold]
fn note(ctx: &Context<'_>, request: &Request<'_>, status: Status) {
    let is_login = matches!(request.opcode, SASL_AUTH | SASL_STEP);
    match status {
        Status::Eaccess if asks_for_what_is_to_come(ctx, request) => {}
        Status::Eaccess if !is_login => {
            let record = forbidden(ctx.session, ctx.infos.impersonate, ctx.row.name);
            ctx.node.audit.record(match request.opcode {
                // What is selected is not what was asked for.
                SELECT_BUCKET => record.with("bucket", text(request.key)),
                _ => record,
            });
        }
        Status::Success
        | Status::SubdocMultiPathFailure
        | Status::SubdocSuccessDeleted
        | Status::SubdocMultiPathFailureDeleted => {
            let deed = Deed { session: ctx.session, row: ctx.row, infos: ctx.infos, key: ctx.key };
            let events = event_for(ctx.session, request).into_iter().chain(also(request.opcode));
            let wanted = events.filter(|event| ctx.node.audit.wants(*event));
            wanted.for_each(|event| ctx.node.audit.record(deed.record(request, event)));
        }
        _ => {}
    }
}

/// Whether another node selects a bucket that this one does not have yet: it may do so, and each bucket that is made brings
/// that about.
fn asks_for_what_is_to_come(ctx: &Context<'_>, request: &Request<'_>) -> bool {
    let is_node = ctx.session.user.as_ref().is_some_and(|user| user.name() == NODE_USER);
    let name = std::str::from_utf8(request.key).unwrap_or_default();
    request.opcode == SELECT_BUCKET && is_node && ctx.node.bucket(name).is_none()
}

/// What is recorded of a request that is answered later; `None` if nothing is. Its status comes with the answer.
#[inline]
pub(crate) fn begun(node: &Node, session: &Session, request: &Request<'_>) -> Option<Box<AuditRecord>> {
    if node.audit.is_on() { begun_now(node, session, request) } else { None }
}

#[cold]
fn begun_now(node: &Node, session: &Session, request: &Request<'_>) -> Option<Box<AuditRecord>> {
    let event = event_for(session, request).filter(|event| node.audit.wants(*event))?;
    let row = find(request.opcode)?;
    let key = crate::layout::check(row, session, request).ok()?;
    let infos = request.decode_frame_infos().ok()?;
    Some(Box::new(Deed { session, row, infos, key }.record(request, event)))
}

/// What was begun was answered with a status, or was not answered.
pub(crate) fn ended(node: &Node, begun: Option<Box<AuditRecord>>, status: Option<Status>) {
    if let Some(begun) = begun {
        node.audit.record(begun.with("status", status.map_or("not answered", Status::name)));
    }
}

/// A request that did something, or began to.
struct Deed<'a> {
    session: &'a Session,
    row: &'a Row,
    infos: FrameInfos<'a>,
    key: DocKey<'a>,
}

impl Deed<'_> {
    fn record(&self, request: &Request<'_>, event: AuditEvent) -> AuditRecord {
        let record = record_of(event, self.session).acting_for(self.infos.impersonate);
        match event {
            AuditEvent::BucketModified => {
                let mut props = serde_json::Map::new();
                props.insert(text(request.key), text(request.value).into());
                let name = self.session.bucket.as_ref().map_or("", |bucket| bucket.name());
                record.with("bucket_name", name).with("props", props)
            }
            AuditEvent::ManifestSet => {
                let bucket = self.session.bucket.as_ref();
                let uid = bucket.map_or(0, |bucket| bucket.collections().manifest().uid().0);
                let name = bucket.map_or("", |bucket| bucket.name());
                record.with("bucket_name", name).with("new_manifest_uid", format!("{uid:x}"))
            }
            AuditEvent::LogLevelsChanged => {
                record.with("log_levels", log_levels::of_verbosity(request.extras).unwrap_or("default"))
            }
            AuditEvent::SnapshotUsed if request.opcode == BUCKET_SNAPSHOT => {
                let (step, id) = snapshot_step(request).unwrap_or_default();
                let record = in_bucket(record, self.session).with("command", self.row.name);
                record.with("do", step).with("snapshot", id)
            }
            AuditEvent::TrafficSwitched | AuditEvent::PersistenceSwitched | AuditEvent::SnapshotUsed => {
                in_bucket(record, self.session).with("command", self.row.name)
            }
            // Which ones comes with the answers: a record says where they are from.
            AuditEvent::KeysRead if request.opcode == GET_RANDOM_KEY => {
                in_bucket(record, self.session).with("command", self.row.name)
            }
            AuditEvent::VbucketChanged | AuditEvent::KeysRead => in_bucket(record, self.session)
                .with("vbucket", request.vbucket.0)
                .with("command", self.row.name),
            AuditEvent::DocumentRead
            | AuditEvent::DocumentLocked
            | AuditEvent::DocumentModified
            | AuditEvent::DocumentDeleted => in_bucket(record, self.session)
                .with("key", text(self.key.key))
                .with("collection_id", format!("{:#x}", self.key.collection.0)),
            AuditEvent::DcpOpened => in_bucket(record, self.session).with("stream_name", text(request.key)),
            _ => in_bucket(record, self.session),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ROWS;
    use crate::privilege::Privileges;

    /// Commands of administrators that are not recorded, and why.
    const NOT_RECORDED: &[(u8, &str)] = &[
        (CREATE_CHECKPOINT, "changes no document, and nothing of what is kept"),
        (EVICT_KEY, "changes no document: its value is read from disk again"),
        (GET_CTRL_TOKEN, "reads a number"),
        (SET_CTRL_TOKEN, "what the token guards is recorded"),
        (GET_FILE_FRAGMENT, "reads of a snapshot whose making is recorded"),
    ];

    #[test]
    fn each_command_of_administrators_is_recorded_or_is_not_for_a_reason() {
        let administrators =
            Privileges::of(&[Privilege::Settings, Privilege::NodeSupervisor, Privilege::Administrator]);
        let of_administrators = |row: &&Row| !row.privileges.and(administrators).is_empty();
        for row in ROWS.iter().filter(of_administrators).filter(|row| row.refused.is_none()) {
            let reason = NOT_RECORDED.iter().find(|(opcode, _)| *opcode == row.opcode);
            assert_ne!(event_of(row.opcode).is_some(), reason.is_some(), "{}", row.name);
        }
    }
}
