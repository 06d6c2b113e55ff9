//! What is on disk: observe, observe-seqno, wait for seqno persistence, all vBucket seqnos, failover log.

use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use base::{CollectionId, DocKey, Moment, Seqno, StoredKey, VbId, VbState, VbUuid};
use engine::{Bucket, Completion, Fetched, Refusal};
use protocol::extras::{decode_u32, decode_u64};
use protocol::feature::Feature;
use protocol::reader::Reader;
use protocol::{Request, Status};

use crate::close_reason::CloseReason;
use crate::context::{Context, LaterReply, LaterValue, MAX_LOOKS, Outcome};
use crate::node::Node;
use crate::privilege::Privilege;
use crate::reply::Answer;
use crate::status_map::status_of;
use crate::wake_queue;

/// How long a client may wait for a seqno to be on disk, in milliseconds.
pub(super) const PERSISTENCE_TIMEOUT_MS: u64 = 30_000;

/// The most keys that one observe request may name.
const MAX_OBSERVED_KEYS: usize = 1000;

/// Bytes of a key's state and CAS in an observe reply.
const STATE_BYTES: usize = 9;

/// The state of a key in an observe reply (BinaryProtocol.md, Observe).
#[derive(Clone, Copy)]
#[repr(u8)]
enum KeyState {
    NotPersisted = 0x00,
    Persisted = 0x01,
    NotFound = 0x80,
    LogicallyDeleted = 0x81,
}

fn reply_value(cx: &mut Context<'_>, value: &[u8]) -> Outcome {
    cx.reply.send(&Answer { value, ..Answer::default() });
    Outcome::Done
}

/// Observe seqno: how far a vBucket's history is in memory and on disk.
pub fn observe_seqno(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(uuid) = decode_u64(request.value) else {
        return cx.invalid("Request value must be of length 8");
    };
    let observed = match cx.bucket().documents().observe_seqno(request.vbucket, VbUuid(uuid)) {
        Ok(observed) => observed,
        Err(refusal) => return cx.refuse(refusal),
    };
    let mut value = Vec::with_capacity(43);
    value.push(u8::from(observed.old_history_end.is_some()));
    value.extend_from_slice(&request.vbucket.0.to_be_bytes());
    value.extend_from_slice(&observed.uuid.0.to_be_bytes());
    value.extend_from_slice(&observed.persisted_seqno.0.to_be_bytes());
    value.extend_from_slice(&observed.high_seqno.0.to_be_bytes());
    if let Some(end) = observed.old_history_end {
        value.extend_from_slice(&uuid.to_be_bytes());
        value.extend_from_slice(&end.0.to_be_bytes());
    }
    reply_value(cx, &value)
}

/// Observe: whether keys are on disk.
pub fn observe(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let bucket = cx.bucket();
    let with_collections = cx.session.has(Feature::Collections);
    let mut reader = Reader(request.value);
    let mut value = Vec::new();
    let mut missing = Vec::new();
    let mut keys = 0;
    while !reader.is_empty() {
        keys += 1;
        if keys > MAX_OBSERVED_KEYS {
            return cx.invalid("Request must name at most 1000 keys");
        }
        let header = reader.u16().zip(reader.u16());
        let Some((vb, key)) = header.and_then(|(vb, len)| Some((VbId(vb), reader.bytes(usize::from(len))?)))
        else {
            return cx.invalid("A key is cut off");
        };
        let parsed = if with_collections { DocKey::parse(key) } else { Some(DocKey::new(key)) };
        // No key can be told back for it: as recorded, the connection ends.
        let Some(doc_key) = parsed.filter(|_| !key.is_empty()) else {
            return Outcome::Close(CloseReason::Violation("a key to observe is none"));
        };
        if !doc_key.is_valid_len() {
            return cx.invalid("A key is not valid");
        }
        if let Err(denied) = cx.require_in(doc_key.collection, Privilege::MetaRead) {
            return denied;
        }
        value.extend_from_slice(&vb.0.to_be_bytes());
        value.extend_from_slice(&(key.len() as u16).to_be_bytes());
        value.extend_from_slice(key);
        match observe_key(&bucket, vb, doc_key, cx.now) {
            Ok(state) => value.extend_from_slice(&state),
            Err(Refusal::NotResident) => {
                missing.push(Missing { vb, key: doc_key.to_stored(), at: value.len() });
                value.extend_from_slice(&[0; STATE_BYTES]);
            }
            Err(refusal) => return cx.refuse_key(vb, doc_key, refusal),
        }
    }
    if missing.is_empty() {
        return reply_value(cx, &value);
    }
    let node = cx.node.clone();
    Outcome::Later(Box::pin(async move {
        for missing in missing {
            match observe_on_disk(&node, &bucket, &missing).await {
                Ok(state) => value[missing.at..][..STATE_BYTES].copy_from_slice(&state),
                Err(Status::NotMyVbucket) => {
                    let value = LaterValue::ClusterMap(bucket);
                    return LaterReply { value, ..LaterReply::status(Status::NotMyVbucket) };
                }
                Err(status) => return LaterReply::status(status),
            }
        }
        LaterReply { value: LaterValue::Bytes(value), ..LaterReply::status(Status::Success) }
    }))
}

/// A key of which nothing is in memory, and where its state belongs in the answer.
struct Missing {
    vb: VbId,
    key: StoredKey,
    at: usize,
}

/// Observes a key that has to come from the disk first. One after the other, because a request that waits for one
/// while it holds what came of another could wait for itself.
async fn observe_on_disk(
    node: &Node,
    bucket: &Bucket,
    missing: &Missing,
) -> Result<[u8; STATE_BYTES], Status> {
    let key = DocKey::parse(&missing.key.0).ok_or(Status::Einternal)?;
    for _ in 0..MAX_LOOKS {
        let fetch = bucket.fetching().fetch(missing.vb, key).map_err(status_of)?;
        let _pin = match fetch.await {
            Some(Fetched::Look(pin)) => pin,
            Some(Fetched::Failed) => return Err(Status::Einternal),
            None => return Err(Status::Etmpfail),
        };
        match observe_key(bucket, missing.vb, key, Moment(node.env().clock.unix_ns())) {
            Err(Refusal::NotResident) => {}
            observed => return observed.map_err(status_of),
        }
    }
    Err(Status::Etmpfail)
}

/// State and CAS of a key, as they stand in the answer.
fn observe_key(
    bucket: &Bucket,
    vb: VbId,
    key: DocKey<'_>,
    now: Moment,
) -> Result<[u8; STATE_BYTES], Refusal> {
    let mut encoded = [0; STATE_BYTES];
    let (state, cas) = state_of(bucket, vb, key, now)?;
    encoded[0] = state as u8;
    encoded[1..].copy_from_slice(&cas.to_be_bytes());
    Ok(encoded)
}

fn state_of(bucket: &Bucket, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<(KeyState, u64), Refusal> {
    // Copies in every role answer: that is how clients wait for those that nothing else vouches for.
    let found = bucket.documents().peek_in_any_state(vb, key, now)?;
    let Some(found) = found else { return Ok((KeyState::NotFound, 0)) };
    let meta = found.version.meta();
    let persisted = bucket.with_vbucket(vb, |vb| vb.persisted_seqno()).is_some_and(|p| p >= meta.by_seqno);
    let state = match (found.version.is_deleted(), persisted) {
        // Once it is on disk a tombstone is as good as gone; without a disk it stays.
        (true, true) if !bucket.is_ephemeral() => return Ok((KeyState::NotFound, 0)),
        (true, _) => KeyState::LogicallyDeleted,
        (false, true) => KeyState::Persisted,
        (false, false) => KeyState::NotPersisted,
    };
    Ok((state, meta.cas.0))
}

/// Seqno persistence: answers once a seqno of a vBucket is on disk, synced.
pub fn seqno_persistence(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(seqno) = decode_u64(request.extras) else {
        return cx.invalid("Request must include extras of length 8");
    };
    match cx.bucket().durability().persisted(request.vbucket, Seqno(seqno)) {
        Ok(None) => {
            cx.reply.ok();
            Outcome::Done
        }
        Ok(Some(waiting)) => {
            let timeout = cx.timeout(PERSISTENCE_TIMEOUT_MS);
            Outcome::Later(Box::pin(async move {
                let persisted = first_of(waiting, timeout).await.is_some();
                LaterReply::status(if persisted { Status::Success } else { Status::Etmpfail })
            }))
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// What is waited for, or nothing if it was given up or the time is over.
pub(super) async fn first_of<T>(
    waiting: Completion<T>,
    timeout: Pin<Box<dyn Future<Output = ()>>>,
) -> Option<T> {
    let (mut waiting, mut timeout) = (waiting, timeout);
    std::future::poll_fn(move |cx| {
        let waker = wake_queue::through(cx.waker());
        if let Poll::Ready(value) = Pin::new(&mut waiting).poll(&mut task::Context::from_waker(&waker)) {
            return Poll::Ready(value);
        }
        timeout.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Get all vBucket seqnos: the high seqno of every vBucket, or of those in one state.
pub fn get_all_vb_seqnos(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let (state, collection) = match request.extras {
        [] => (0, None),
        state if state.len() == 4 => (decode_u32(state).unwrap_or(0), None),
        both if both.len() == 8 => (decode_u32(&both[..4]).unwrap_or(0), decode_u32(&both[4..])),
        _ => return cx.invalid("Request extras must be of length 0 or 4 or 8"),
    };
    let wanted = match u8::try_from(state).ok().map(|n| (n, VbState::from_wire(n))) {
        Some((0, _)) => None,
        Some((_, Some(state))) => Some(state),
        _ => return cx.invalid("Request vbucket state invalid"),
    };
    if collection.is_some() && !cx.session.has(Feature::Collections) {
        return cx.invalid("Collections were not agreed on");
    }
    // Who asks for active vBuckets reads what others have written: another node may be active by now for what this one is.
    let now_ns = |cx: &Context<'_>| cx.node.env().clock.monotonic_ns();
    let pass = cx.node.fence().pass(now_ns(cx));
    let is_of_owner = wanted == Some(VbState::Active);
    let bucket = cx.bucket();
    let collection = match collection.map(|id| super::collections::check(&bucket, id)) {
        Some(None) => return super::collections::unknown_collection(cx),
        Some(Some(id)) => Some(id),
        // Who knows of no collections asks about the default one.
        None if !cx.session.has(Feature::Collections) => Some(CollectionId::DEFAULT),
        None => None,
    };
    if let Some(id) = collection
        && let Err(denied) = cx.require_in(id, Privilege::MetaRead)
    {
        return denied;
    }
    let mut value = Vec::new();
    let with_hidden = cx.session.has(Feature::Collections);
    bucket.each_vbucket(|vb| {
        let listed = wanted.map_or(vb.state() != VbState::Dead, |state| vb.state() == state);
        // Whoever knows nothing of collections is told of what readers can see.
        let most = if with_hidden { vb.high_seqno() } else { vb.max_visible_seqno() };
        let seqno = match collection {
            None => Some(vb.high_seqno()),
            Some(id) => vb.collections().get(id).map(|one| one.high_seqno.min(most)),
        };
        if let Some(seqno) = seqno.filter(|_| listed) {
            value.extend_from_slice(&vb.id().0.to_be_bytes());
            value.extend_from_slice(&seqno.0.to_be_bytes());
        }
    });
    if is_of_owner && !pass.is_some_and(|pass| cx.node.fence().still_lets(pass, now_ns(cx))) {
        return cx.not_my_vbucket();
    }
    reply_value(cx, &value)
}

/// Get failover log: the histories of a vBucket, newest first.
pub fn get_failover_log(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.session.dcp.as_mut().is_some_and(|connection| connection.producer().is_none()) {
        return Outcome::Close(super::dcp::CONSUMES);
    }
    let log = cx.bucket().with_vbucket(request.vbucket, |vb| vb.failover().to_entries());
    let Some(entries) = log else { return cx.not_my_vbucket() };
    let mut value = Vec::with_capacity(entries.len() * 16);
    for entry in entries {
        value.extend_from_slice(&entry.uuid.0.to_be_bytes());
        value.extend_from_slice(&entry.seqno.0.to_be_bytes());
    }
    reply_value(cx, &value)
}
