//! What commands ask of their requests and of who sends them, where requests are handled, and which answers are sent.

use protocol::Status;
use protocol::feature::{Feature, Features};

/// Which lengths the extras may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extras {
    /// No extras.
    None,
    /// Exactly so many bytes.
    Exactly(u8),
    /// One of these lengths.
    OneOf(&'static [u8]),
    /// The handler looks at them.
    Any,
}

/// What the key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// No key.
    Forbidden,
    /// A key, or none; not that of a document.
    Optional,
    /// A key; not that of a document.
    Required,
    /// The key of a document: starts with a collection if that was agreed on.
    Document,
}

/// What the value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRule {
    /// No value.
    Forbidden,
    /// Any, or none.
    Optional,
    /// At least a byte.
    Required,
    /// Exactly so many bytes.
    Exactly(u8),
    /// Any, or none; none if there is a key, which is an older form of the same.
    InsteadOfKey,
}

/// What the CAS may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasRule {
    /// Must be zero.
    Forbidden,
    /// Zero or not.
    Optional,
    /// Must not be zero.
    Required,
}

/// Who may use a command at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody who can connect.
    Anybody,
    /// Those who logged in.
    User,
    /// Those who logged in and selected a bucket; without one they get this status.
    Bucket(Status),
}

/// Where a user must have the privileges of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// In the whole bucket.
    Bucket,
    /// In the collection of the request's key.
    Collection,
    /// In some collection: its handler looks at those that the request names, or nothing of a collection is told.
    Somewhere,
    /// In every bucket: it is about the node as a whole. Of groups of stats alone, not of commands.
    Node,
}

/// What a durability requirement makes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Its change is a sync write.
    Carried,
    /// It is well formed, and refused as not supported where the document would be changed.
    NotSupported,
    /// It is malformed.
    Invalid,
}

/// Which answers are not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// All are sent.
    None,
    /// "Not found" is not sent: the quiet variants of reads.
    Misses,
    /// Success is not sent: the quiet variants of changes.
    Success,
    /// Success is not sent unless it brings the client a token: the quiet variants of append and prepend, as recorded.
    SuccessWithoutToken,
}

impl Silence {
    /// Whether an answer with this status is not sent to a client that agreed to these features.
    pub fn hides(self, status: Status, features: Features) -> bool {
        match self {
            Silence::None => false,
            Silence::Misses => status == Status::KeyEnoent,
            Silence::Success => status == Status::Success,
            Silence::SuccessWithoutToken => {
                status == Status::Success && !features.has(Feature::MutationSeqno)
            }
        }
    }
}

/// When a command leaves its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Never by itself: what it does has a small bound, it changes its session, or its handler decides.
    Never,
    /// If its value is large.
    LargeValue,
    /// If its value or its document is large.
    LargeDocument,
    /// Always: it waits for the disk or for another thread.
    Always,
    /// Always, to a thread beside that of other long work: it looks at all vBuckets, which takes milliseconds.
    Overview,
}

/// The thread on which a request is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Its worker, which it may leave.
    Worker,
    /// Its worker, where it stays.
    WorkerOnly,
    /// A thread for long work.
    Elsewhere,
}
