//! Who asks for stats, about what, and why there are none.

use std::sync::Arc;

use base::{CollectionId, Moment, VbId};
use engine::{Bucket, Refusal};
use protocol::Status;

use crate::node::Node;
use crate::privilege::{Privilege, Privileges};
use crate::roles::{Permission, Rights};

/// Who asks, and about which bucket.
pub struct Inquiry<'a> {
    /// The node.
    pub node: &'a Node,
    /// The selected bucket.
    pub bucket: &'a Arc<Bucket>,
    /// What the client may do.
    pub rights: Rights,
    /// When it asks.
    pub now: Moment,
}

impl Inquiry<'_> {
    /// Refuses a client that lacks a privilege in a collection, or does not see it.
    pub(super) fn require_in(&self, id: CollectionId, privilege: Privilege) -> Result<(), Refused> {
        match self.rights.check_collection(Privileges::of(&[privilege]), id) {
            Permission::Allowed => Ok(()),
            Permission::Denied(privilege) => Err(Refused::Denied(privilege)),
            Permission::Hidden => Err(Refused::NoCollection(Status::UnknownCollection)),
        }
    }

    /// Whether the client may see counters of the node that other buckets have a part in.
    pub(super) fn counts_node(&self) -> bool {
        self.rights.node.has(Privilege::SimpleStats)
    }

    /// Whether the client may see the counters of a collection.
    pub(super) fn counts(&self, id: CollectionId) -> bool {
        self.rights.in_collection(id).has(Privilege::SimpleStats)
    }
}

/// Why there are no stats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A status says it all.
    Status(Status),
    /// The arguments are not valid.
    Invalid(&'static str),
    /// The engine refused, asked for a key of a vBucket.
    Engine(VbId, Box<[u8]>, Refusal),
    /// There is no such scope or collection; the status says which of them.
    NoCollection(Status),
    /// The client lacks the privilege for this group.
    Denied(Privilege),
}

impl Refused {
    /// The status to answer with.
    pub fn status(self) -> Status {
        match self {
            Refused::Engine(_, _, refusal) => crate::status_map::status_of(refusal),
            Refused::Status(status) | Refused::NoCollection(status) => status,
            Refused::Invalid(_) => Status::Einval,
            Refused::Denied(_) => Status::Eaccess,
        }
    }
}

/// The number of a vBucket, as text.
pub(super) fn parse_vbucket(text: &[u8]) -> Option<VbId> {
    parse_number(text).map(VbId)
}

pub(super) fn parse_number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    // `from_str` would also take a sign.
    let digits =
        std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}
