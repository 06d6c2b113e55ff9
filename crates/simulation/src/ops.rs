//! What clients ask of a node, how it is done there, and who waits for the outcome.

use std::time::Duration;

use base::{Cas, CollectionId, Datatype, DocKey, DurabilityLevel, Moment, VbId};
use engine::{
    Bucket, Completion, CounterRequest, Durable, End, Fetched, Mutated, Refusal, StoreMode, StoreRequest,
    SyncOutcome, Whole,
};

/// What documents are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Changed by durable writes only: the last one counts.
    Register,
    /// Counted up by durable writes only.
    Counter,
    /// Grows by durable appends only.
    Set,
    /// Changed by writes that are answered from memory.
    Plain,
    /// The same, and expires.
    Expiring,
    /// The same, in a collection that comes and goes.
    Collection,
}

/// A document that clients use.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// Its vBucket.
    pub vb: u16,
    /// What it is used for.
    pub class: Class,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Set to a value that nobody else writes.
    Set,
    /// The same, if it is still the version with this CAS.
    Replace(u64),
    /// Deleted.
    Delete,
    /// Counted up by one, from one on.
    Count,
    /// A mark of 6 digits is appended; what is not there yet is set to it.
    Append,
}

/// How it ended for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done, or read: CAS, and what was read or counted.
    Done(u64, Vec<u8>),
    /// There is nothing.
    NotFound,
    /// It may have been done, or may still be.
    Ambiguous,
    /// It was not done. Whether the node is the wrong one.
    Refused(bool),
}

/// What is asked, and what became of it.
#[derive(Clone, Debug)]
pub struct Op {
    /// Who asks.
    pub client: usize,
    /// Of which document.
    pub key: usize,
    /// What.
    pub kind: Kind,
    /// How safe it must be.
    pub level: Option<DurabilityLevel>,
    /// In which collection, beside the default one.
    pub collection: u32,
    /// When it was asked, in microseconds.
    pub asked_us: u64,
    /// When it was answered.
    pub answered_us: Option<u64>,
    /// How.
    pub outcome: Option<Outcome>,
    /// The CAS that a node gave it, whether or not anybody was told, and whether it may stand.
    pub cas: Option<u64>,
}

/// A change that a node has made or prepared.
pub struct Changed {
    /// Its CAS.
    pub cas: u64,
    /// Its seqno, or that of its prepare.
    pub seqno: u64,
    /// What was counted.
    pub counted: Vec<u8>,
    /// Of a sync write that is not decided yet: what becomes of it.
    pub pending: Option<Completion<SyncOutcome>>,
    /// What became of it, if that is known and nobody was told yet.
    pub decided: Option<SyncOutcome>,
}

/// Who waits at a node.
pub struct Waiting {
    /// For which op.
    pub op: usize,
    /// For what.
    pub wait: Wait,
}

/// What is waited for.
pub enum Wait {
    /// That something is loaded, fetched or decided; then it is tried again. What was fetched stays until then.
    Again(Option<Completion<Fetched>>),
    /// That a sync write is decided.
    Durable(Changed),
}

/// What a node made of a request.
pub enum Executed {
    /// This.
    Outcome(Outcome),
    /// It is done, or it is when it is decided.
    Changed(Changed),
    /// It cannot be done just now, or not before this was fetched.
    Wait(Option<Completion<Fetched>>),
}

/// How long a sync write may take.
const DURABLE_TIMEOUT: Duration = Duration::from_millis(1_200);

fn changed(mutated: Mutated, counted: Vec<u8>) -> Executed {
    let Mutated { cas, seqno, pending, .. } = mutated;
    Executed::Changed(Changed { cas: cas.0, seqno: seqno.0, counted, pending, decided: None })
}

/// The value that a write of this number has; longer for some.
pub fn body(number: usize, padding: usize) -> Vec<u8> {
    let mut body = format!("{number:06}:").into_bytes();
    body.resize(body.len() + padding, b'x');
    body
}

/// The mark that an append of this number leaves.
pub fn mark(number: usize) -> String {
    format!("{number:06}")
}

/// The number of the write that left this value.
pub fn number_of(body: &[u8]) -> Option<usize> {
    std::str::from_utf8(body.get(..6)?).ok()?.parse().ok()
}

/// Does what was asked.
pub fn execute(bucket: &Bucket, number: usize, op: &Op, key: &Key, padding: usize) -> Executed {
    let (vb, now) = (VbId(key.vb), bucket.now());
    let doc = DocKey { collection: CollectionId(op.collection), key: key.name.as_bytes() };
    let durable = op.level.map(|level| Durable { level, timeout: DURABLE_TIMEOUT });
    let done = attempt(bucket, vb, doc, number, op, key.class, padding, durable, now);
    match done {
        Ok(executed) => executed,
        Err(Refusal::NotResident) => Executed::Wait(bucket.fetch(vb, doc).ok()),
        Err(Refusal::Pending | Refusal::Loading) => Executed::Wait(None),
        Err(Refusal::NotFound) => Executed::Outcome(Outcome::NotFound),
        Err(refusal) => Executed::Outcome(Outcome::Refused(refusal == Refusal::NotMyVbucket)),
    }
}

#[expect(clippy::too_many_arguments, reason = "what an operation is")]
fn attempt(
    bucket: &Bucket,
    vb: VbId,
    doc: DocKey<'_>,
    number: usize,
    op: &Op,
    class: Class,
    padding: usize,
    durable: Option<Durable>,
    now: Moment,
) -> Result<Executed, Refusal> {
    let writer = bucket.durably(durable);
    let store = |body: &[u8], mode, cas| {
        let request = StoreRequest {
            key: doc,
            body,
            datatype: Datatype::RAW,
            flags: number as u32,
            expiry: if class == Class::Expiring { 1 + number as u32 % 3 } else { 0 },
            mode,
            cas,
            preserve_expiry: false,
        };
        writer.store(vb, &request, now).map(|mutated| changed(mutated, Vec::new()))
    };
    match op.kind {
        Kind::Read => {
            let found = bucket.get(vb, doc, now)?;
            let whole: &Whole = &found.version;
            let body = engine::value::plain(whole)?.into_owned();
            Ok(Executed::Outcome(Outcome::Done(found.cas.0, body)))
        }
        Kind::Set => store(&body(number, padding), StoreMode::Set, Cas::ANY),
        Kind::Replace(cas) => store(&body(number, padding), StoreMode::Replace, Cas(cas)),
        Kind::Delete => writer.delete(vb, doc, Cas::ANY, now).map(|mutated| changed(mutated, Vec::new())),
        Kind::Count => {
            let request = CounterRequest {
                key: doc,
                increment: true,
                delta: 1,
                initial: Some(1),
                expiry: 0,
                preserve_expiry: false,
            };
            let (mutated, value) = writer.count(vb, &request, now)?;
            Ok(changed(mutated, value.to_string().into_bytes()))
        }
        Kind::Append => {
            let mark = mark(number);
            let joined = writer.join(vb, doc, mark.as_bytes(), Datatype::RAW, End::Back, Cas::ANY, now);
            match joined {
                // The first one; somebody else may be the first meanwhile.
                Err(Refusal::NotFound) => store(mark.as_bytes(), StoreMode::Add, Cas::ANY),
                joined => joined.map(|mutated| changed(mutated, Vec::new())),
            }
        }
    }
}
