//! Stats: what a node tells about itself, as groups of names and values and for Prometheus.
//!
//! Every value is measured or a real setting. Names are those of kv_engine (`engines/ep/docs/stats.org`) where they
//! have the same meaning here; what has none here is left out.

mod audit;
mod baseline;
mod bucket;
mod checkpoint;
mod chores;
mod collection;
mod config;
mod disk;
mod eviction;
mod frequency;
pub mod groups;
mod hash;
mod heap;
pub mod history;
pub mod kept;
mod key;
pub mod latency;
mod locks;
mod memory;
pub mod metrics;
mod metrics_collections;
mod metrics_connections;
mod metrics_field;
mod metrics_memory;
mod metrics_replication;
mod metrics_reporting;
mod metrics_times;
pub mod monitored;
mod node;
pub mod over_time;
mod process;
pub mod sheet;
pub mod sync_writes;
mod takeover;
mod tasks;
pub mod timings;
mod vbucket;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use base::{CollectionId, Moment, VbId};
use engine::{Bucket, Refusal};
use protocol::Status;

use crate::command::Extent;
use crate::node::Node;
use crate::privilege::{Privilege, Privileges};
use crate::roles::{Permission, Rights};

pub use groups::{GROUPS, Group, Producer};
pub use sheet::Sheet;

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
    fn require_in(&self, id: CollectionId, privilege: Privilege) -> Result<(), Refused> {
        match self.rights.check_collection(Privileges::of(&[privilege]), id) {
            Permission::Allowed => Ok(()),
            Permission::Denied(privilege) => Err(Refused::Denied(privilege.name())),
            Permission::Hidden => Err(Refused::NoCollection(Status::UnknownCollection)),
        }
    }

    /// Whether the client may see counters of the node that other buckets have a part in.
    fn counts_node(&self) -> bool {
        self.rights.node.has(Privilege::SimpleStats)
    }

    /// Whether the client may see the counters of a collection.
    fn counts(&self, id: CollectionId) -> bool {
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
    Denied(&'static str),
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

/// A question before it is known what it is about.
pub struct Question<'a> {
    /// The node.
    pub node: &'a Node,
    /// The selected bucket.
    pub bucket: Option<&'a Arc<Bucket>>,
    /// What the client may do.
    pub rights: Rights,
    /// When it asks.
    pub now: Moment,
}

/// The stats that the key of a request asks for: a group and its arguments, separated by spaces.
pub fn produce(question: Question<'_>, key: &[u8]) -> Result<Sheet, Refused> {
    let Question { node, bucket, rights, now } = question;
    let mut words = key.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let at = groups::find(words.next().unwrap_or_default()).ok_or(Refused::Status(Status::KeyEnoent))?;
    let group = &GROUPS[at];
    let args: Vec<&[u8]> = words.collect();
    let granted = match group.extent {
        Extent::Somewhere => rights.anywhere(),
        Extent::Node => rights.node,
        Extent::Bucket | Extent::Collection => rights.whole,
    };
    if !granted.has(group.privilege) {
        return Err(Refused::Denied(group.privilege.name()));
    }
    check_count(&group.args, args.len())?;
    let mut sheet = Sheet::default();
    let clock = &node.env().clock;
    let began_ns = clock.monotonic_ns();
    match (group.produce, bucket) {
        (Producer::Node(produce), _) => produce(node, &args, &mut sheet)?,
        (Producer::Bucket(produce), Some(bucket)) => {
            produce(&Inquiry { node, bucket, rights, now }, &args, &mut sheet)?;
        }
        (Producer::Bucket(_), None) => return Err(Refused::Status(Status::NoBucket)),
    }
    let took_ns = clock.monotonic_ns().saturating_sub(began_ns);
    let times = bucket.map_or_else(|| Arc::clone(node.times.none()), |bucket| node.times.of(bucket));
    times.stat_group(at).record(took_ns);
    Ok(sheet)
}

/// Refuses too few and too many arguments.
fn check_count(args: &groups::Args, count: usize) -> Result<(), Refused> {
    match count {
        0 if args.least > 0 => Err(Refused::Status(args.missing)),
        _ if count < args.least => Err(Refused::Invalid("The stat group takes more arguments")),
        _ if count <= args.most => Ok(()),
        _ if args.surplus == Status::Einval => {
            Err(Refused::Invalid("The stat group does not take so many arguments"))
        }
        _ => Err(Refused::Status(args.surplus)),
    }
}

/// The number of a vBucket, as text.
fn parse_vbucket(text: &[u8]) -> Option<VbId> {
    parse_number(text).map(VbId)
}

fn parse_number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    // `from_str` would also take a sign.
    let digits =
        std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}
