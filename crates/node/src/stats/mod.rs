//! Stats: what a node tells about itself, as groups of names and values and for Prometheus.
//!
//! Every value is measured or a real setting. Names are those of kv_engine (`engines/ep/docs/stats.org`) where they
//! have the same meaning here; what has none here is left out.

pub mod agent_fields;
pub mod agent_rows;
mod audit;
mod baseline;
mod bucket;
mod checkpoint;
mod chores;
mod collection;
mod config;
mod dcp;
mod disk;
mod eviction;
mod frequency;
pub mod groups;
mod hash;
mod heap;
pub mod history;
pub(crate) mod inquiry;
pub mod kept;
mod key;
pub mod latency;
mod locks;
mod memory;
pub mod metrics;
mod metrics_collections;
mod metrics_connections;
mod metrics_encryption;
mod metrics_field;
mod metrics_memory;
mod metrics_more;
mod metrics_replication;
mod metrics_reporting;
mod metrics_streams;
mod metrics_times;
pub mod monitored;
mod node;
mod ops;
pub mod over_time;
pub mod page;
mod process;
mod resets;
pub mod sheet;
pub mod sync_writes;
mod takeover;
mod tasks;
pub mod timings;
mod told_times;
mod vbucket;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use base::Moment;
use engine::Bucket;
use protocol::Status;

use self::inquiry::{Inquiry, Refused};
use crate::command_rules::Extent;
use crate::node::Node;
use crate::privilege::Privilege;
use crate::roles::{ALL_BUCKETS, Rights, grants_with};

pub use groups::{GROUPS, Group, Producer};
pub use sheet::Sheet;

/// A question before it is known what it is about.
#[derive(Clone)]
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
        return Err(Refused::Denied(group.privilege));
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

/// The roles that open the group that the key of a request names, as they are granted. Each request for stats needs the
/// privilege SimpleStats, whatever its group needs besides.
pub fn grants_for(key: &[u8], bucket: Option<&str>) -> String {
    let name = key.split(|byte| *byte == b' ').find(|word| !word.is_empty()).unwrap_or_default();
    let group = groups::find(name).map(|at| &GROUPS[at]);
    let own = group.map_or(Privilege::SimpleStats, |group| group.privilege);
    let is_of_node = group.is_some_and(|group| group.extent == Extent::Node);
    let place = bucket.filter(|_| !is_of_node).unwrap_or(ALL_BUCKETS);
    grants_with(&[Privilege::SimpleStats, own], place, None)
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
