//! What clients ask, and how that ends for them.

use base::DurabilityLevel;

/// The first id of a collection that is made.
pub const FIRST_COLLECTION: u32 = 8;

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
    /// Its name, which need not be text.
    pub name: Vec<u8>,
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
