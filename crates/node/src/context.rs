//! What a handler gets to work with, and what it can answer.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::{Cas, CollectionId, Datatype, DocKey, Moment, VbId};
use engine::{Bucket, FetchPin, Fetched, Refusal, StepTimes, Whole};
use protocol::feature::Feature;
use protocol::{FrameInfos, Status};

use crate::close_reason::CloseReason;
use crate::command::Row;
use crate::command_rules::Extent;
use crate::let_through::lets_through;
use crate::long_work::LONG_BYTES;
use crate::node::Node;
use crate::privilege::{Privilege, Privileges};
use crate::reply::{Answer, Reply};
use crate::roles::{Permission, roles_with};
use crate::session::{SelectedBucket, Session};
use crate::slow::spans::WaitStep;
use crate::sync_write::Prepared;

/// Everything a handler may use.
pub struct Context<'a> {
    /// The client's session.
    pub session: &'a mut Session,
    /// The node.
    pub node: &'a Arc<Node>,
    /// The command's row of the table.
    pub row: &'static Row,
    /// The request's vBucket.
    pub vbucket: VbId,
    /// Whether it may be handled elsewhere if it takes long.
    pub may_leave: bool,
    /// How often the request was handled before, and had to wait for something that the disk has.
    pub looks: u8,
    /// The framing extras.
    pub infos: FrameInfos<'a>,
    /// The key of a document command, without its collection prefix.
    pub key: DocKey<'a>,
    /// When this turn of the connection began.
    pub now: Moment,
    /// Bytes of documents that requests of this turn have read or written; see [`Context::takes`].
    pub work_bytes: &'a mut usize,
    /// Where the answers go.
    pub reply: Reply<'a>,
}

/// What a handler says when it returns.
pub enum Outcome {
    /// Everything that is to be answered was answered.
    Done,
    /// The answer comes when this sync write is committed or given up.
    Prepared(Prepared),
    /// The answer comes when this is ready.
    Later(Pin<Box<dyn Future<Output = LaterReply>>>),
    /// Nothing was done or answered, because something has to come from the disk first: the request is to be handled
    /// again when this is ready.
    Again(Pin<Box<dyn Future<Output = Ready>>>),
    /// Nothing was done or answered, because it takes long: the request is to be handled on a thread for that.
    Elsewhere,
    /// What may take long was done; its worker answers with this.
    Then(fn(&mut Context<'_>) -> Outcome),
    /// Close the connection once everything before it is sent.
    Close(CloseReason),
}

/// What has become of a wait for the disk.
pub enum Ready {
    /// The request can be handled again. A value for which there is no room stays as long as the pin is held.
    Look(Option<FetchPin>),
    /// The same, of a document that was fetched, with when that was.
    Fetched(Option<FetchPin>, StepTimes),
    /// It cannot be handled elsewhere: it is to be handled by its worker.
    Here,
    /// It was carried out elsewhere, at that time: this answers it.
    Finish(Finish, StepTimes),
    /// It cannot be carried out.
    Failed(Status),
}

impl Ready {
    /// What the request has waited for, if it is known when that was.
    pub(crate) fn step(&self) -> Option<WaitStep> {
        match self {
            Ready::Fetched(_, times) => Some(WaitStep::Fetch(*times)),
            Ready::Finish(_, times) => Some(WaitStep::LongWork(*times)),
            Ready::Look(_) | Ready::Here | Ready::Failed(_) => None,
        }
    }
}

/// Answers a request that was carried out elsewhere.
pub type Finish = Box<dyn FnOnce(&mut Context<'_>) -> Outcome>;

/// How often a request is handled again before it is answered with a temporary failure: it is unlucky if each time
/// somebody else changes or evicts what was fetched for it.
pub(crate) const MAX_LOOKS: u8 = 8;

/// The value of an answer that comes later.
pub enum LaterValue {
    /// Bytes.
    Bytes(Vec<u8>),
    /// The value of a version from a byte on.
    Version(Whole, usize),
    /// JSON, marked as such if that was agreed on.
    Json(Vec<u8>),
    /// The cluster map of the bucket: the answer to a request in the wrong place.
    ClusterMap(SelectedBucket),
}

/// An answer that comes later.
pub struct LaterReply {
    /// How it went.
    pub status: Status,
    /// What the value is made of, as the client may see it.
    pub datatype: Datatype,
    /// The document's CAS.
    pub cas: Cas,
    /// Fields of the command.
    pub extras: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: LaterValue,
}

impl LaterReply {
    /// A status without a body.
    pub fn status(status: Status) -> LaterReply {
        LaterReply {
            status,
            datatype: Datatype::RAW,
            cas: Cas(0),
            extras: Vec::new(),
            key: Vec::new(),
            value: LaterValue::Bytes(Vec::new()),
        }
    }

    /// Sends it.
    pub(crate) fn send(&self, reply: &mut Reply<'_>, session: &mut Session, node: &Node) {
        let answer = Answer {
            status: self.status,
            datatype: self.datatype,
            cas: self.cas,
            extras: &self.extras,
            key: &self.key,
            ..Answer::default()
        };
        match &self.value {
            LaterValue::Bytes(value) => reply.send(&Answer { value, ..answer }),
            LaterValue::Version(version, from) => reply.send_version(&answer, version, *from),
            LaterValue::Json(json) => reply.json(self.status, json),
            LaterValue::ClusterMap(bucket) => send_cluster_map(reply, session, node, bucket, self.status),
        }
    }
}

impl Context<'_> {
    /// The selected bucket. The table says which commands need one, and the dispatcher sees to it.
    pub fn bucket(&self) -> SelectedBucket {
        Rc::clone(self.session.bucket.as_ref().expect("the row says that a bucket is needed"))
    }

    /// Whether reading the request's document takes long.
    pub(crate) fn has_large_document(&mut self) -> bool {
        let bytes = self.bucket().documents().plain_bytes(self.vbucket, self.key, false, self.now);
        self.takes(bytes)
    }

    /// Whether work on so many bytes takes long. If not it is done now, and counts against the connection's turn.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        let is_long = bytes >= LONG_BYTES;
        if !is_long {
            *self.work_bytes += bytes;
        }
        is_long
    }

    /// Whether the client may do something beyond what the row asks for, where the request is.
    pub fn may(&self, privilege: Privilege) -> bool {
        let rights = &self.session.rights;
        rights.whole.has(privilege)
            || (self.row.extent == Extent::Collection
                && rights.in_collection(self.key.collection).has(privilege))
    }

    /// Refuses a client that lacks a privilege in a collection, or does not see it.
    pub fn require_in(&mut self, collection: CollectionId, privilege: Privilege) -> Result<(), Outcome> {
        let seen = self.session.rights.check_collection(Privileges::of(&[privilege]), collection);
        // One that is hidden is let through as one that lacks the privilege: whether it is there is seen later.
        let seen = match seen {
            Permission::Hidden if self.node.privilege_debug.is_on() => Permission::Denied(privilege),
            seen => seen,
        };
        self.require_seen(seen, Status::UnknownCollection)
    }

    /// Refuses a client for what its rights come to in a scope or collection.
    pub(crate) fn require_seen(&mut self, seen: Permission, status: Status) -> Result<(), Outcome> {
        match seen {
            Permission::Allowed => Ok(()),
            Permission::Denied(privilege) if self.lets_through(privilege) => Ok(()),
            Permission::Denied(privilege) => {
                let context = denied(self.row, privilege);
                Err(self.error(Status::Eaccess, &context))
            }
            Permission::Hidden => Err(unknown(self, status)),
        }
    }

    /// Whether a user who lacks a privilege goes on all the same (record 223); not one who asks for another user.
    pub(crate) fn lets_through(&self, privilege: Privilege) -> bool {
        self.infos.impersonate.is_none() && lets_through(self.node, self.session, privilege)
    }

    /// Refuses a client that lacks a privilege which this request needs beyond those of its row.
    pub fn require(&mut self, privilege: Privilege) -> Result<(), Outcome> {
        if self.may(privilege) || self.lets_through(privilege) {
            return Ok(());
        }
        let context = denied(self.row, privilege);
        Err(self.error(Status::Eaccess, &context))
    }

    /// Ready after so many milliseconds.
    pub fn timeout(&self, timeout_ms: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        self.node.doors().timer.after(Duration::from_millis(timeout_ms))
    }

    /// Answers with a status and no body.
    pub fn status(&mut self, status: Status) -> Outcome {
        match status {
            Status::NotMyVbucket => return self.not_my_vbucket(),
            status => self.reply.status(status),
        }
        Outcome::Done
    }

    /// Answers with a status and a message.
    pub fn error(&mut self, status: Status, context: &str) -> Outcome {
        self.reply.error(status, context);
        Outcome::Done
    }

    /// Answers "invalid arguments" with a message.
    pub fn invalid(&mut self, context: &str) -> Outcome {
        self.error(Status::Einval, context)
    }

    /// Answers that the engine refused, or waits if it refused because something has to come from the disk first.
    pub fn refuse(&mut self, refusal: Refusal) -> Outcome {
        self.refuse_key(self.vbucket, self.key, refusal)
    }

    /// The same for an operation on another key than that of the request.
    pub fn refuse_key(&mut self, vb: VbId, key: DocKey<'_>, refusal: Refusal) -> Outcome {
        match refusal {
            Refusal::BadSnappy => return self.error(Status::Einval, "Failed to inflate payload"),
            Refusal::Unreadable => self.bucket().fetching().note_unreadable(vb),
            Refusal::UnknownCollection => return self.unknown_collection_in(vb),
            Refusal::NotMyVbucket if has_no_such_collection(&self.bucket(), vb, key) => {
                return self.unknown_collection_in(vb);
            }
            Refusal::NotResident | Refusal::Loading | Refusal::Pending | Refusal::Held
                if self.looks < MAX_LOOKS =>
            {
                return self.look_again(vb, key, refusal);
            }
            _ => {}
        }
        let status = crate::status_map::status_of(refusal);
        match crate::status_map::context_of(refusal) {
            "" => self.status(status),
            context => self.error(status, context),
        }
    }

    /// The bucket may have the collection already, and the vBucket not yet: clients look at the uid, and ask again.
    fn unknown_collection_in(&mut self, vb: VbId) -> Outcome {
        let bucket = self.bucket();
        let uid = bucket.with_vbucket(vb, |vb| vb.collections().uid());
        let uid = uid.unwrap_or_else(|| bucket.collections().manifest().uid());
        self.reply.unknown_collection(Status::UnknownCollection, uid.0);
        Outcome::Done
    }

    /// Waits for a value or for a vBucket's documents. The operation was refused as a whole, so that handling the
    /// request again repeats nothing.
    fn look_again(&mut self, vb: VbId, key: DocKey<'_>, refusal: Refusal) -> Outcome {
        let bucket = self.bucket();
        if refusal == Refusal::Loading {
            let loaded = bucket.loading().loaded(vb);
            return Outcome::Again(Box::pin(async move {
                let loaded = match loaded {
                    Some(loaded) => loaded.await,
                    None => Some(()),
                };
                loaded.map_or(Ready::Failed(Status::Etmpfail), |()| Ready::Look(None))
            }));
        }
        if refusal == Refusal::Held {
            return Outcome::Again(self.changes_released());
        }
        if refusal == Refusal::Pending {
            let changed = bucket.roles().role_change(vb);
            return Outcome::Again(Box::pin(async move {
                let changed = match changed {
                    Some(changed) => changed.await,
                    None => Some(()),
                };
                changed.map_or(Ready::Failed(Status::NotMyVbucket), |()| Ready::Look(None))
            }));
        }
        match bucket.fetching().fetch(vb, key) {
            Ok(mut fetched) => Outcome::Again(Box::pin(async move {
                match (&mut fetched).await {
                    Some(Fetched::Look(pin)) => Ready::Fetched(pin, fetched.times()),
                    Some(Fetched::Failed) => Ready::Failed(Status::Einternal),
                    None => Ready::Failed(Status::Etmpfail),
                }
            })),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Ready when changes are not held any more, at the latest when that ends by itself.
    fn changes_released(&self) -> Pin<Box<dyn Future<Output = Ready>>> {
        let Some((mut released, left)) = self.bucket().snapshots().released() else {
            return Box::pin(std::future::ready(Ready::Look(None)));
        };
        let timer = Arc::clone(&self.node.doors().timer);
        // Made when the connection waits: a thread for long work, which gives the request back, has no timers.
        let mut over = None;
        Box::pin(std::future::poll_fn(move |cx| {
            let over = over.get_or_insert_with(|| timer.after(left + Duration::from_millis(1)));
            let is_released = Pin::new(&mut released).poll(cx).is_ready();
            if is_released || over.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ready::Look(None));
            }
            Poll::Pending
        }))
    }

    /// Answers that another node serves the vBucket, with the map that says which.
    pub fn not_my_vbucket(&mut self) -> Outcome {
        let bucket = self.bucket();
        let session = &mut *self.session;
        send_cluster_map(&mut self.reply, session, self.node, &bucket, Status::NotMyVbucket);
        Outcome::Done
    }
}

/// Whether the collection of a key is unknown to the bucket, and the vBucket is here: as in the original this is found
/// before the vBucket's role, and before what the user may do.
pub(crate) fn has_no_such_collection(bucket: &Bucket, vb: VbId, key: DocKey<'_>) -> bool {
    key.collection != CollectionId::DEFAULT
        && bucket.collections().manifest().collection(key.collection).is_none()
        && bucket.with_vbucket(vb, |_| ()).is_some()
}

/// Sends a bucket's cluster map with a status; nothing but the status if the client has that map and agreed to that.
///
/// With *not my vBucket* nobody gets a map without this node: SDKs close the connection that such an answer came by while
/// they still read from it, and one of them waits for itself for ever (gocbcore 10.8). They ask other nodes for the map.
pub(crate) fn send_cluster_map(
    reply: &mut Reply<'_>,
    session: &mut Session,
    node: &Node,
    bucket: &Bucket,
    status: Status,
) {
    let maps = node.cluster_map();
    let Some(map) = maps.bucket(bucket.name()) else { return reply.status(status) };
    let knows = status == Status::NotMyVbucket
        && session.has(Feature::DedupeNotMyVbucketClustermap)
        && session.sent_map.is_some_and(|sent| sent >= maps.version());
    let is_left = status == Status::NotMyVbucket && !maps.layout().tells_of_this_node();
    if knows || is_left {
        return reply.status(status);
    }
    session.sent_map = Some(maps.version());
    map.send(reply, session, status);
}

/// What is told to a user who lacks a privilege for a command.
pub(crate) fn denied(row: &Row, privilege: Privilege) -> String {
    format!("{} needs the privilege {} (of roles like {})", row.name, privilege.name(), roles_with(privilege))
}

/// Answers that a scope or collection does not exist, with the manifest that says so.
pub fn unknown(ctx: &mut Context<'_>, status: Status) -> Outcome {
    let uid = ctx.bucket().collections().manifest().uid();
    ctx.reply.unknown_collection(status, uid.0);
    Outcome::Done
}
