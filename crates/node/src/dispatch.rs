//! From a request to its handler: who asks, is it well formed, may they, and then the handler.

use std::sync::Arc;

use ::cluster::Pass;
use base::planted::{self, Bug};
use base::{Cas, DocKey, Moment, VbId};
use protocol::feature::Feature;
use protocol::{FrameInfos, Request, Status, opcode};

use crate::audit::{kv, sessions};
use crate::close_reason::CloseReason;
use crate::command::{Row, find};
use crate::command_rules::{Access, Durability, Extent, Key, Leaves, Silence, Thread};
use crate::command_table::RETIRED;
use crate::commands::stats::denied_group;
use crate::context::{Context, Finish, Outcome, denied, has_no_such_collection};
use crate::counters::WorkerCounters;
use crate::injections::apply::apply;
use crate::let_through::{lets_through, tell_let_through};
use crate::long_work::LONG_BYTES;
use crate::node::Node;
use crate::output::Output;
use crate::privilege::{Privilege, Privileges};
use crate::reply::{Envelope, Reply};
use crate::roles::{Permission, Rights};
use crate::session::Session;
use crate::{certificate_login, tally};

/// What a request is handled with.
pub struct Desk<'a> {
    /// The client's session.
    pub session: &'a mut Session,
    /// The node.
    pub node: &'a Arc<Node>,
    /// Where answers go.
    pub out: &'a mut Output,
    /// Where answers are counted.
    pub counters: &'a WorkerCounters,
    /// When this turn of the connection began.
    pub now: Moment,
    /// How often the request was handled before.
    pub looks: u8,
    /// Microseconds the request took so far.
    pub elapsed_us: &'a mut dyn FnMut() -> u64,
    /// What answers it, if it was carried out already.
    pub finish: Option<Finish>,
    /// The thread on which that is.
    pub thread: Thread,
    /// Grows by the bytes of documents that the request has read or written.
    pub work_bytes: &'a mut usize,
}

/// Why a request does not get to its handler.
enum Refused {
    Status(Status),
    Error(Status, String),
    /// The user lacks a privilege, with what is told.
    Denied(Privilege, String),
    /// Neither the user nor the bucket is known (any more), which clients of any age are told.
    NoAccess,
    /// The collection is not there for this user.
    UnknownCollection,
}

impl Refused {
    /// The privilege that the user lacks.
    fn lacks(&self) -> Option<Privilege> {
        if let Refused::Denied(privilege, _) = self { Some(*privilege) } else { None }
    }
}

/// What came of a request.
pub struct Handled {
    /// What the handler said.
    pub outcome: Outcome,
    /// What let it through: an answer that comes later needs it, too.
    pub pass: Option<Pass>,
    /// The status of the answer, sent or kept silent; `None` if that comes later.
    pub answered: Option<Status>,
}

/// Handles one request. What was done while the node's lease ended is not answered: its connection is closed.
pub fn dispatch(desk: Desk<'_>, request: &Request<'_>) -> Handled {
    let Desk { session, node, out, counters, now, looks, elapsed_us, finish, thread, work_bytes } = desk;
    if let Err(reason) = session.follow_users(node, out) {
        return Handled { outcome: Outcome::Close(reason), pass: None, answered: None };
    }
    let (row, mark) = (row_of(session, request.opcode), out.mark());
    let (is_closed, pass) = match row.map_or(Ok(None), |row| let_through(row, node, session)) {
        Ok(pass) => (None, pass),
        Err(closed) => (Some(closed), None),
    };
    // What was begun before clients were kept out is finished.
    let is_closed = is_closed.filter(|closed| !matches!(closed, Closed::NoTraffic) || finish.is_none());
    if is_closed.is_some() && finish.is_some() {
        // What was done is not told by who may not serve any more.
        return Handled { outcome: Outcome::Close(CloseReason::Fenced), pass, answered: None };
    }
    let desk = Desk {
        session: &mut *session,
        out: &mut *out,
        node,
        counters,
        now,
        looks,
        elapsed_us,
        finish,
        thread,
        work_bytes,
    };
    let (outcome, answered) = handle(desk, row, is_closed, request);
    if row.is_some_and(|row| row.brings_changes) {
        note_message(session, request, out);
    }
    let is_over = pass.is_some_and(|pass| !node.fence().still_lets(pass, node.env().clock.monotonic_ns()));
    if is_over && !waits(&outcome) {
        out.cut(mark);
        return Handled { outcome: Outcome::Close(CloseReason::Fenced), pass, answered: None };
    }
    Handled { outcome, pass, answered }
}

/// A message of a stream was handled. If something refused it before the stream had it, the stream ends behind the answer.
fn note_message(session: &mut Session, request: &Request<'_>, out: &mut Output) {
    let consumer = session.dcp.as_mut().and_then(|connection| connection.consumer());
    if let Some(consumer) = consumer {
        consumer.note_message(request, out.bytes());
    }
}

/// Whether a request is not answered yet.
fn waits(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Prepared(_)
        | Outcome::Later(_)
        | Outcome::Again(_)
        | Outcome::Elsewhere
        | Outcome::Then(_) => true,
        Outcome::Done | Outcome::Close(_) => false,
    }
}

/// Counts requests for the main group of stats, by the worker: a thread for long work has a session of its own.
fn note_asked(ctx: &mut Context<'_>, thread: Thread, request: &Request<'_>) {
    if request.opcode == opcode::STAT && request.key.is_empty() && thread == Thread::Worker {
        ctx.session.main_group_asked = ctx.session.main_group_asked.saturating_add(1);
    }
}

fn handle(
    desk: Desk<'_>,
    row: Option<&'static Row>,
    closed: Option<Closed>,
    request: &Request<'_>,
) -> (Outcome, Option<Status>) {
    let envelope = Envelope {
        opcode: request.opcode,
        opaque: request.opaque,
        has_cas: request.cas != Cas::ANY,
        silence: row.map_or(Silence::None, |row| row.silence),
        features: desk.session.features,
    };
    let mut reply = Reply::new(desk.out, desk.counters, envelope, desk.elapsed_us);
    desk.session.follow_manifest();
    let (widened, admitted) = admitted(row, desk.node, desk.session, request);
    let (row, infos, key) = match admitted {
        Ok(admitted) => admitted,
        Err(refused) => {
            let lacks = refused.lacks();
            give_back(desk.session, widened);
            refuse(&mut reply, desk.node, desk.session, refused);
            kv::not_admitted(desk.node, desk.session, row, reply.answered(), lacks);
            return (reply.must_close().map_or(Outcome::Done, Outcome::Close), reply.answered());
        }
    };
    let mut ctx = Context {
        session: desk.session,
        node: desk.node,
        row,
        vbucket: request.vbucket,
        may_leave: desk.thread == Thread::Worker && desk.node.lanes().long_work.is_on(),
        looks: desk.looks,
        infos,
        key,
        now: desk.now,
        work_bytes: desk.work_bytes,
        reply,
    };
    let is_first = desk.finish.is_none();
    if let Some(kept) = kept_from(&mut ctx, closed, is_first, request) {
        give_back(ctx.session, widened);
        return (kept, ctx.reply.answered());
    }
    note_asked(&mut ctx, desk.thread, request);
    let outcome = match (desk.finish, infos.impersonate) {
        (Some(finish), _) => finish(&mut ctx),
        (None, _) if is_long(&mut ctx, request) => Outcome::Elsewhere,
        (None, None) => (row.handler)(&mut ctx, request),
        (None, Some(user)) => impersonated(&mut ctx, request, user),
    };
    let outcome = match outcome {
        Outcome::Then(go_on) if desk.thread != Thread::Elsewhere => go_on(&mut ctx),
        outcome => outcome,
    };
    let lacked = give_back(ctx.session, widened);
    // What is finished was told of when it was carried out.
    if !lacked.is_empty() && is_first && is_over(&outcome, desk.thread) {
        tell_let_through(ctx.node, ctx.session, row.name, lacked, ctx.reply.answered());
    }
    note_answer(&ctx, request, &outcome);
    let outcome = ctx.reply.must_close().map_or(outcome, Outcome::Close);
    (outcome, ctx.reply.answered().or(ctx.reply.answered_elsewhere()))
}

/// Records what was answered, and counts it.
fn note_answer(ctx: &Context<'_>, request: &Request<'_>, outcome: &Outcome) {
    if let Some(status) = ctx.reply.answered() {
        kv::answered(ctx, request, status);
    }
    // A sync write that is prepared has found its document and its CAS.
    let prepared = matches!(outcome, Outcome::Prepared(_)).then_some(Status::Success);
    if let Some(status) = ctx.reply.answered().or(prepared)
        && let Some(counted) = tally::kind_of(request, status)
    {
        ctx.session.times(ctx.node).of_worker(ctx.reply.worker()).tally.count(counted);
    }
}

/// What a session has for one request that lacks privileges.
struct LetThrough {
    /// Its own rights.
    mine: Rights,
    /// Those and what the request lacks.
    widened: Rights,
}

/// Admits a request. With it comes what the session goes on with, if the request goes on without privileges that it needs.
fn admitted<'a>(
    row: Option<&'static Row>,
    node: &Node,
    session: &mut Session,
    request: &Request<'a>,
) -> (Option<LetThrough>, Result<Admitted<'a>, Refused>) {
    match admit_or_log_in(row, node, session, request) {
        Err(refused @ (Refused::UnknownCollection | Refused::Denied(..))) if node.privilege_debug.is_on() => {
            debugged(row, node, session, request, refused)
        }
        admitted => (None, admitted),
    }
}

/// What becomes of a request that is refused, on a node that lets those through which lack a privilege: it is admitted, and
/// the session has what all requests of this command need; what this one needs beside that, its handler asks for.
#[cold]
fn debugged<'a>(
    row: Option<&'static Row>,
    node: &Node,
    session: &mut Session,
    request: &Request<'a>,
    refused: Refused,
) -> (Option<LetThrough>, Result<Admitted<'a>, Refused>) {
    let Some(row) = row else { return (None, Err(refused)) };
    let widened = session.rights.clone().with(row.privileges);
    let mine = std::mem::replace(&mut session.rights, widened.clone());
    let admitted = admit(Some(row), session, request);
    let lacked = match &admitted {
        Ok((_, infos, key)) if infos.impersonate.is_none() => lacked(row, *key, &mine),
        // It is refused for another reason, too, or asked for another user: whose privilege is missing is not known then.
        _ => Privileges::NONE,
    };
    if lacked.is_empty() || !lacked.iter().all(|privilege| lets_through(node, session, privilege)) {
        session.rights = mine;
        return (None, Err(refused));
    }
    (Some(LetThrough { mine, widened }), admitted)
}

/// What `rights` lack of that which a command needs of all requests.
fn lacked(row: &Row, key: DocKey<'_>, rights: &Rights) -> Privileges {
    row.privileges.less(match row.extent {
        Extent::Bucket | Extent::Node => rights.whole,
        Extent::Collection => rights.in_collection(key.collection),
        Extent::Somewhere => rights.anywhere(),
    })
}

/// Ends what [`debugged`] began, and says which privileges were missing. A handler that has changed what the session may do has
/// done so for good.
fn give_back(session: &mut Session, widened: Option<LetThrough>) -> Privileges {
    if let Some(LetThrough { mine, .. }) = widened.filter(|widened| session.rights.is_same(&widened.widened))
    {
        session.rights = mine;
    }
    session.let_through.take()
}

/// Whether a request that had this outcome is not handled again.
fn is_over(outcome: &Outcome, thread: Thread) -> bool {
    match outcome {
        Outcome::Done | Outcome::Close(_) | Outcome::Prepared(_) | Outcome::Then(_) => true,
        Outcome::Later(_) => thread != Thread::Elsewhere,
        Outcome::Again(_) | Outcome::Elsewhere => false,
    }
}

/// Answers a command that does not get to its handler although the client may use it.
fn kept_from(
    ctx: &mut Context<'_>,
    closed: Option<Closed>,
    is_first: bool,
    request: &Request<'_>,
) -> Option<Outcome> {
    if let Some(turned_away) = turned_away(ctx, closed) {
        return Some(turned_away);
    }
    // What was begun has met these.
    if is_first { kv::refused(ctx, request).or_else(|| apply(ctx)) } else { None }
}

/// Answers a command that is not handled here, or not now, although nothing is wrong with it.
fn turned_away(ctx: &mut Context<'_>, closed: Option<Closed>) -> Option<Outcome> {
    match closed {
        None => {}
        Some(Closed::Fenced) => return Some(ctx.not_my_vbucket()),
        Some(Closed::Emptying | Closed::NoTraffic) => return Some(ctx.status(Status::Etmpfail)),
    }
    let why = ctx.row.not_in_cluster.filter(|_| !ctx.node.fence().is_open())?;
    Some(ctx.error(Status::NotSupported, why))
}

/// Admits a request, and logs the client in by its certificate for it, if that was put off when it connected.
fn admit_or_log_in<'a>(
    row: Option<&'static Row>,
    node: &Node,
    session: &mut Session,
    request: &Request<'a>,
) -> Result<Admitted<'a>, Refused> {
    match admit(row, session, request) {
        Err(Refused::NoAccess) if let_in_later(node, session) => admit(row, session, request),
        admitted => admitted,
    }
}

/// Whether the client is logged in by now by a certificate whose user this node did not let in when it connected.
#[cold]
fn let_in_later(node: &Node, session: &mut Session) -> bool {
    if session.is_authenticated() {
        return false;
    }
    let put_off = session.put_off.take();
    put_off.is_some_and(|put_off| certificate_login::log_in(node, session, &put_off.name))
}

fn refuse(reply: &mut Reply<'_>, node: &Node, session: &Session, refused: Refused) {
    match refused {
        Refused::Status(status) => reply.status(status),
        Refused::Error(status, context) => reply.error(status, &context),
        Refused::Denied(_, context) => reply.error(Status::Eaccess, &context),
        Refused::NoAccess => match (session.put_off.as_deref(), session.unknown_certified.as_deref()) {
            _ if session.is_authenticated() => reply.status_for_all(Status::Eaccess),
            (Some(put_off), _) => reply.error_for_all(Status::Etmpfail, put_off.why),
            (None, Some(name)) => {
                let context = node.events().unknown_certified(name, node.env().clock.monotonic());
                sessions::certificate_refused(node, session, name);
                reply.error_for_all(Status::Eaccess, &context);
            }
            (None, None) => reply.status_for_all(Status::Eaccess),
        },
        Refused::UnknownCollection => {
            let uid = session.bucket.as_ref().map_or(0, |bucket| bucket.collections().manifest().uid().0);
            reply.unknown_collection(Status::UnknownCollection, uid);
        }
    }
}

/// Why a command is not handled although nothing is wrong with it.
enum Closed {
    /// Another node may be active by now for what this one is.
    Fenced,
    /// The nodes of the cluster remove all documents of the bucket.
    Emptying,
    /// An administrator keeps clients out of the bucket.
    NoTraffic,
}

/// Whether a command may be answered from what this node has of documents; nothing if nobody decides about that.
fn let_through(row: &Row, node: &Node, session: &Session) -> Result<Option<Pass>, Closed> {
    if !row.is_fenced {
        return Ok(None);
    }
    let (fence, bucket) = (node.fence(), session.bucket.as_ref());
    let has_traffic = bucket.is_none_or(|bucket| bucket.traffic.is_enabled());
    // Of a node alone nothing but these two loads is asked.
    if fence.is_open() {
        return if has_traffic { Ok(None) } else { Err(Closed::NoTraffic) };
    }
    let pass = match row.opcode {
        opcode::GET_REPLICA | opcode::GET_EX_REPLICA => None,
        _ => Some(fence.pass(node.env().clock.monotonic_ns()).ok_or(Closed::Fenced)?),
    };
    match (bucket.is_some_and(|bucket| bucket.roles().is_emptying()), has_traffic) {
        (true, _) => Err(Closed::Emptying),
        (false, false) => Err(Closed::NoTraffic),
        (false, true) => Ok(pass),
    }
}

/// The row of a command, if there is such a command on this connection. Where nothing is fed, a seqno that advances is as
/// unknown as it is to the original that was recorded.
fn row_of(session: &mut Session, code: u8) -> Option<&'static Row> {
    let mut is_fed = || session.dcp.as_mut().is_some_and(|connection| connection.consumer().is_some());
    find(code).filter(|_| code != opcode::DCP_SEQNO_ADVANCED || is_fed())
}

type Admitted<'a> = (&'static Row, FrameInfos<'a>, DocKey<'a>);

fn admit<'a>(
    row: Option<&'static Row>,
    session: &Session,
    request: &Request<'a>,
) -> Result<Admitted<'a>, Refused> {
    if !session.is_authenticated() && row.is_none_or(|row| row.access != Access::Anybody) {
        return Err(Refused::NoAccess);
    }
    let Some(row) = row else {
        let retired = RETIRED.contains(&request.opcode);
        return Err(Refused::Status(if retired { Status::NotSupported } else { Status::UnknownCommand }));
    };
    let infos = frame_infos(row, request)?;
    let key = crate::layout::check(row, session, request)
        .map_err(|context| Refused::Error(Status::Einval, context))?;
    if let (Access::Bucket(status), None) = (row.access, &session.bucket) {
        let is_lost = session.lost_bucket.is_some();
        return Err(if is_lost { Refused::NoAccess } else { Refused::Status(status) });
    }
    if row.is_ordered && session.has(Feature::UnorderedExecution) {
        let context = "DCP on connections with unordered execution is not supported";
        return Err(Refused::Error(Status::NotSupported, context.to_owned()));
    }
    match missing(row, key, &session.rights) {
        Permission::Denied(_) if lacks_collection(row, session, request.vbucket, key) => {
            Err(Refused::UnknownCollection)
        }
        Permission::Denied(privilege) if infos.impersonate.is_none() => {
            let bucket = session.bucket.as_ref().map(|bucket| bucket.name());
            let context = match row.opcode {
                // The group may need more than the command.
                opcode::STAT => denied_group(privilege, request.key, bucket),
                _ => denied(row, privilege),
            };
            Err(Refused::Denied(privilege, context))
        }
        Permission::Hidden if infos.impersonate.is_none() => Err(Refused::UnknownCollection),
        _ => Ok((row, infos, key)),
    }
}

/// Whether a command is about a document of a collection that there is not.
fn lacks_collection(row: &Row, session: &Session, vb: VbId, key: DocKey<'_>) -> bool {
    let bucket = session.bucket.as_ref().filter(|_| row.key == Key::Document);
    bucket.is_some_and(|bucket| has_no_such_collection(bucket, vb, key))
}

/// Whether `rights` are enough for what a command needs of all requests.
#[inline]
fn missing(row: &Row, key: DocKey<'_>, rights: &Rights) -> Permission {
    if row.opcode == opcode::GAT && planted::is(Bug::ReaderTouches) && rights.whole.has(Privilege::Read) {
        return Permission::Allowed;
    }
    match row.privileges.missing_in(rights.whole) {
        None => Permission::Allowed,
        Some(privilege) if rights.narrow.is_none() => Permission::Denied(privilege),
        Some(privilege) => match row.extent {
            Extent::Bucket | Extent::Node => Permission::Denied(privilege),
            Extent::Collection => rights.check_collection(row.privileges, key.collection),
            Extent::Somewhere => {
                row.privileges.missing_in(rights.anywhere()).map_or(Permission::Allowed, Permission::Denied)
            }
        },
    }
}

fn frame_infos<'a>(row: &Row, request: &Request<'a>) -> Result<FrameInfos<'a>, Refused> {
    if request.frame_infos.is_empty() {
        return Ok(FrameInfos::default());
    }
    let infos = request.decode_frame_infos().map_err(|error| match error.status() {
        Status::UnknownFrameInfo => Refused::Status(Status::UnknownFrameInfo),
        status => Refused::Error(status, error.context()),
    })?;
    if infos.durability.is_some() && row.durability == Durability::Invalid {
        let context = "The requested command does not support durability requirements";
        return Err(Refused::Error(Status::Einval, context.to_owned()));
    }
    if infos.preserve_ttl && !row.preserve_ttl {
        return Err(Refused::Error(
            Status::NotSupported,
            "This command does not support PreserveTtl".to_owned(),
        ));
    }
    if infos.extra_privilege.is_some_and(|name| Privilege::from_name(name).is_none()) {
        return Err(Refused::Error(Status::Einval, "Failed to look up the privilege".to_owned()));
    }
    Ok(infos)
}

/// Runs the handler with another user's rights, which only those who may impersonate can ask for.
fn impersonated(ctx: &mut Context<'_>, request: &Request<'_>, name: &[u8]) -> Outcome {
    if !ctx.may(Privilege::Impersonate) {
        ctx.reply.error_for_all(Status::Eaccess, "Impersonate needs the privilege Impersonate");
        return Outcome::Done;
    }
    if name.first() == Some(&b'^') {
        return ctx.error(Status::NotSupported, "External authentication service not configured");
    }
    let Some(user) = ctx.node.accounts().users().get(name).cloned() else {
        let context = format!("User \"{}\" is not a Couchbase user", name.escape_ascii());
        ctx.reply.error_for_all(Status::Eaccess, &context);
        return Outcome::Done;
    };
    let extra = ctx.infos.extra_privilege.and_then(Privilege::from_name);
    let mine = ctx.session.rights.clone();
    // What the client itself may not do, it may not do for others either.
    let mut theirs = ctx.session.rights_as(&user).within(mine.whole);
    theirs.node = theirs.node.and(mine.node);
    if let Some(extra) = extra.filter(|extra| mine.whole.has(*extra)) {
        theirs.whole = theirs.whole.with(extra);
    }
    if let Some(extra) = extra.filter(|extra| mine.node.has(*extra)) {
        theirs.node = theirs.node.with(extra);
    }
    let selectable = ctx.session.bucket.as_ref().is_none_or(|bucket| user.may_select(bucket.name()));
    match missing(ctx.row, ctx.key, &theirs) {
        Permission::Allowed if selectable => {}
        Permission::Hidden if selectable => return crate::commands::collections::unknown_collection(ctx),
        _ => {
            let context = format!("{} is not allowed to the user acted for", ctx.row.name);
            return ctx.error(Status::Eaccess, &context);
        }
    }
    ctx.session.rights = theirs.clone();
    let outcome = (ctx.row.handler)(ctx, request);
    // A handler that logs in or gives up a privilege changes the session's own rights, which then stay changed.
    if ctx.session.rights.is_same(&theirs) {
        ctx.session.rights = mine;
    }
    outcome
}

/// Whether a request may overtake others that were agreed to be unordered.
pub fn may_reorder(session: &Session, opcode: u8) -> bool {
    let has_agreed = session.has(Feature::UnorderedExecution) || planted::is(Bug::AnswersOutOfOrder);
    has_agreed && find(opcode).is_some_and(|row| row.reorder)
}

/// Whether a request is to be handled elsewhere.
pub(crate) fn is_long(cx: &mut Context<'_>, request: &Request<'_>) -> bool {
    cx.may_leave
        && !planted::is(Bug::LongWorkStays)
        && match cx.row.leaves {
            Leaves::Never => false,
            Leaves::LargeValue => has_large_value(request),
            Leaves::LargeDocument => has_large_value(request) || cx.has_large_document(),
            Leaves::Always | Leaves::Overview => true,
        }
}

fn has_large_value(request: &Request<'_>) -> bool {
    let len = request.value.len();
    let inflated = || engine::value::inflated_len(request.value);
    let is_snappy = base::Datatype(request.datatype).is_snappy();
    len >= LONG_BYTES
        || (is_snappy && len >= LONG_BYTES / engine::value::MOST_INFLATION && inflated() >= LONG_BYTES)
}
