//! THE table of stats groups: name, arguments, privilege, doc line, and what makes the stats.

use protocol::Status;

use super::inquiry::{Inquiry, Refused};
use super::timings::STAT_GROUPS;
use super::{
    Sheet, audit, bucket, checkpoint, chores, collection, config, dcp, disk, eviction, frequency, hash, heap,
    key, locks, memory, node, resets, takeover, tasks, vbucket,
};
use crate::command_rules::Extent;
use crate::node::Node;
use crate::privilege::Privilege;

/// Makes the stats of a group that is about the selected bucket.
type OfBucket = fn(&Inquiry<'_>, &[&[u8]], &mut Sheet) -> Result<(), Refused>;
/// Makes the stats of a group that is about the node.
type OfNode = fn(&Node, &[&[u8]], &mut Sheet) -> Result<(), Refused>;

/// What makes the stats of a group.
#[derive(Clone, Copy)]
pub enum Producer {
    /// A bucket has to be selected.
    Bucket(OfBucket),
    /// With a bucket or without.
    Node(OfNode),
}

/// What may follow the name of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// How a person writes them.
    pub usage: &'static str,
    /// The fewest.
    pub least: usize,
    /// The most.
    pub most: usize,
    /// What is answered if there are none, and one is needed.
    pub missing: Status,
    /// What is answered if there are more.
    pub surplus: Status,
}

impl Args {
    /// Arguments that are needed; without any the group is not found.
    const fn needed(usage: &'static str, least: usize, most: usize) -> Args {
        Args { usage, least, most, missing: Status::KeyEnoent, surplus: Status::Einval }
    }

    /// The same group, which is not found if there are too many.
    const fn or_not_found(self) -> Args {
        Args { surplus: Status::KeyEnoent, ..self }
    }

    /// The same group, which answers with another status if there are none.
    const fn or_else(self, missing: Status) -> Args {
        Args { missing, ..self }
    }
}

const NONE: Args = optional("");

/// The group's whole key is its name, so that anything behind it is another key.
const EXACT: Args = NONE.or_not_found();

const fn optional(usage: &'static str) -> Args {
    let most = if usage.is_empty() { 0 } else { 1 };
    Args { usage, least: 0, most, missing: Status::Einval, surplus: Status::Einval }
}

/// A group of stats.
pub struct Group {
    /// The first word of the request's key; empty for what is sent without a key.
    pub name: &'static str,
    /// What may follow it.
    pub args: Args,
    /// What a user must be allowed to do.
    pub privilege: Privilege,
    /// Where: in the whole bucket, or in some collection, and then only those are told of, or in every bucket.
    pub extent: Extent,
    /// One line for the reference.
    pub doc: &'static str,
    /// What makes the stats.
    pub produce: Producer,
}

const fn group(
    name: &'static str,
    args: Args,
    privilege: Privilege,
    produce: OfBucket,
    doc: &'static str,
) -> Group {
    Group { name, args, privilege, extent: Extent::Bucket, doc, produce: Producer::Bucket(produce) }
}

/// A group about collections, of which everybody is told those with the privilege.
const fn of_collections(
    name: &'static str,
    args: Args,
    privilege: Privilege,
    produce: OfBucket,
    doc: &'static str,
) -> Group {
    Group { extent: Extent::Somewhere, ..group(name, args, privilege, produce, doc) }
}

/// A group about the node as a whole, in which all buckets have a part: none has to be selected.
const fn of_node(name: &'static str, privilege: Privilege, produce: OfNode, doc: &'static str) -> Group {
    Group { name, args: NONE, privilege, extent: Extent::Node, doc, produce: Producer::Node(produce) }
}

use Privilege::{MetaRead, NodeSupervisor, SimpleStats, Stats};

/// All groups.
pub static GROUPS: &[Group] = &[
    group(
        "",
        NONE,
        SimpleStats,
        bucket::everything,
        "The bucket's main numbers; with the privilege in every bucket those of the node around it, too",
    ),
    of_node(
        "aggregate",
        SimpleStats,
        node::aggregate,
        "What clients asked of all buckets of the node together",
    ),
    of_node(
        "allocator",
        Stats,
        heap::allocator,
        "What the process has from the system for the memory of all buckets, in bytes",
    ),
    of_node("audit", Stats, audit::audit, "Whether events are audited, and what came of the records"),
    Group {
        args: optional("[NAME]"),
        ..of_node(
            "bucket_details",
            NodeSupervisor,
            node::bucket_details,
            "All buckets of the node, or one of them, as JSON",
        )
    },
    group(
        "checkpoint",
        optional("[VB]"),
        Stats,
        checkpoint::checkpoint,
        "The share of memory that checkpoints take; checkpoints and cursors of each vBucket",
    ),
    group(
        "chores",
        EXACT,
        Stats,
        chores::chores,
        "How often each background step over memory ran, and how long",
    ),
    of_node(
        "client_connection_details",
        NodeSupervisor,
        node::client_connections,
        "The addresses that clients come from, each with its connections as JSON; the last 1,024",
    ),
    of_node(
        "clocks",
        Stats,
        node::clocks,
        "What a look at the clock costs and can tell apart, in nanoseconds",
    ),
    of_collections(
        "collections",
        optional("[SCOPE.COLLECTION]"),
        SimpleStats,
        collection::collections,
        "Each collection",
    ),
    of_collections(
        "collections-byid",
        Args::needed("0xID", 1, 1).or_else(Status::Einval),
        SimpleStats,
        collection::collection_by_id,
        "One collection, by its number",
    ),
    group(
        "collections-details",
        optional("[VB]"),
        Stats,
        collection::details,
        "The collections of each vBucket, and those that are dropped and not erased yet",
    ),
    group(
        "compaction",
        NONE,
        Stats,
        disk::compaction,
        "What compactions came to, and how far the one under way is",
    ),
    group("compression", NONE, Stats, eviction::compression, "How values are compressed"),
    group("config", EXACT, SimpleStats, config::config, "The settings that can be changed, as they are now"),
    of_node("connections", NodeSupervisor, node::connections, "How many connections the node has"),
    group(
        "dcp",
        optional("[skip]").or_not_found(),
        Stats,
        dcp::connections,
        "Connections for streams and their streams, at most 4,096 of these; others are counted; `skip` for connections alone",
    ),
    group(
        "dcp-vbtakeover",
        Args::needed("VB [NAME]", 1, 2),
        Stats,
        takeover::takeover,
        "What is left to send of a vBucket, to anybody or by the connection of this name",
    ),
    group(
        "dcpagg",
        Args::needed("SEPARATOR", 1, 1),
        Stats,
        dcp::by_name,
        "Connections for streams, summed by the beginning of their names",
    ),
    group("disk-failures", NONE, Stats, disk::failures, "Operations of the store that failed"),
    group(
        "disk-slowness",
        Args::needed("SECONDS", 1, 1).or_else(Status::Einval),
        Stats,
        tasks::disk_slowness,
        "Reads and writes of the disk that are under way, and those that take this long already",
    ),
    group(
        "diskinfo",
        optional("[detail]"),
        Stats,
        disk::diskinfo,
        "Sizes of the files, and how often one was open already; `detail` for each vBucket",
    ),
    group(
        "dispatcher",
        EXACT,
        Stats,
        tasks::dispatcher,
        "What the bucket's background threads do at the moment, and since when, in microseconds",
    ),
    group(
        "durability-monitor",
        Args::needed("VB", 1, 1).or_else(Status::NotSupported),
        Stats,
        vbucket::durability_monitor,
        "Durable writes under way in a vBucket",
    ),
    group(
        "encryption",
        NONE,
        Stats,
        disk::encryption,
        "Whether new files of the bucket are encrypted, and how many files are in clear, or not as new ones would be; each file is opened",
    ),
    group(
        "ephemeral",
        NONE,
        Stats,
        heap::ephemeral,
        "The items of an ephemeral bucket in their order, stale copies, and what was purged",
    ),
    group(
        "eviction",
        EXACT,
        Stats,
        eviction::eviction,
        "How often a sample of the documents in memory is used, as histograms",
    ),
    group(
        "eviction-details",
        NONE,
        Stats,
        eviction::details,
        "How much is in memory, how much had to be read from disk, what the pager did",
    ),
    group("expiry", NONE, Stats, eviction::expiry, "How expired documents are found"),
    of_node(
        "external-auth-timings",
        Stats,
        nothing_of_the_node,
        "How long an outside service took to log users in; there is none",
    ),
    group("failovers", optional("[VB]"), SimpleStats, vbucket::failovers, "The histories of each vBucket"),
    group(
        "frequency-counters",
        EXACT,
        Stats,
        frequency::frequencies,
        "How often documents are used whose value could leave memory, as histograms by state; of at most 1,048,576",
    ),
    group(
        "hash",
        optional("[detail]").or_not_found(),
        Stats,
        hash::hash,
        "Hash tables: sums, then each vBucket; `detail` says the same",
    ),
    group(
        "heap",
        NONE,
        Stats,
        heap::heap,
        "What the heap of versions holds by size, what of it is not in use, what moves versions together",
    ),
    group("info", NONE, SimpleStats, node::info, "The node's version and process, as JSON"),
    group(
        "journal",
        NONE,
        Stats,
        disk::journal,
        "What is in the journal and not in the files yet, and what the journal did",
    ),
    group(
        "json_validate",
        NONE,
        SimpleStats,
        node::json_validate,
        "How long it took to find out whether values are JSON, as Get Command Timer tells; one in 64 is measured",
    ),
    of_collections(
        "key",
        Args::needed("KEY VB [SCOPE.COLLECTION|0xID]", 2, 3),
        MetaRead,
        key::key,
        "The state of one document",
    ),
    of_collections(
        "key-byid",
        Args::needed("KEY VB 0xID", 2, 3),
        MetaRead,
        key::key,
        "The state of one document of a collection that is named by its number",
    ),
    group(
        "kvstore",
        optional("[rw]"),
        Stats,
        disk::kvstore,
        "What the store read, saved and failed to do; an argument changes nothing",
    ),
    group("kvtimings", EXACT, Stats, tasks::kvtimings, "How long operations of the store took"),
    group(
        "locks",
        optional("[histogram]"),
        Stats,
        locks::locks,
        "Who held the locks of vBuckets and waited for them, and how long; `histogram` for holds by time, in nanoseconds",
    ),
    of_collections(
        "manifest",
        EXACT,
        SimpleStats,
        collection::manifest,
        "The number of the manifest of scopes and collections",
    ),
    group("memory", EXACT, SimpleStats, memory::memory, "What the bucket's memory is used for"),
    group(
        "prev-vbucket",
        EXACT,
        SimpleStats,
        vbucket::first_roles,
        "The state with which each vBucket came into memory: as it was last saved, or as it was made",
    ),
    group(
        "range-scans",
        optional("[VB]"),
        Stats,
        vbucket::range_scans,
        "Scans of ranges of keys that are under way",
    ),
    group(
        "reset",
        optional("[timings]"),
        Stats,
        resets::reset,
        "Has times and some counters begin again, in stats and not in `/metrics`; `timings`: those of commands",
    ),
    of_node("responses", Stats, node::responses, "Answers sent by status, as JSON"),
    group("runtimes", NONE, Stats, tasks::runtimes, "How long steps of background tasks ran"),
    group(
        "scheduler",
        NONE,
        Stats,
        tasks::scheduler,
        "How long background tasks were due before they ran, or were waited for",
    ),
    of_collections("scopes", optional("[SCOPE]"), SimpleStats, collection::scopes, "Each scope"),
    of_collections(
        "scopes-byid",
        Args::needed("0xID", 1, 1).or_else(Status::Einval),
        SimpleStats,
        collection::scope_by_id,
        "One scope, by its number",
    ),
    group(
        "scopes-details",
        optional("[VB]"),
        Stats,
        collection::scopes_details,
        "The scopes of each vBucket, and the documents of their collections",
    ),
    of_node(
        "settings",
        NodeSupervisor,
        node::settings,
        "What the node was started with: limits, addresses, folders; not its buckets, users and keys",
    ),
    group(
        "slow-operations",
        NONE,
        Stats,
        node::slow_operations,
        "The last operations of the bucket that took longer than they may; keys for users who may read metadata",
    ),
    group(
        "snappy_decompress",
        NONE,
        SimpleStats,
        node::snappy_decompress,
        "How long requests took to inflate values, as Get Command Timer tells; one in 64 is measured",
    ),
    group(
        "snapshot-details",
        NONE,
        Stats,
        vbucket::file_snapshots,
        "Snapshots by file that are kept, with their bytes, what was read of them and when they end",
    ),
    group(
        "stat-timings",
        NONE,
        Stats,
        resets::stat_timings,
        "How long groups of stats took, in microseconds",
    ),
    group(
        "subdoc_execute",
        NONE,
        SimpleStats,
        node::subdoc_execute,
        "How long sub-document commands took, all together, as Get Command Timer tells of one",
    ),
    group("tasks", EXACT, Stats, tasks::tasks, "The bucket's background tasks, as JSON"),
    of_node("tasks-all", Stats, tasks::all_tasks, "The background tasks of all buckets, as JSON"),
    of_node("threads", Stats, node::threads, "Threads by what they are for"),
    group(
        "timings",
        EXACT,
        Stats,
        node::timings,
        "How long commands, sync writes, waits of requests in queues, and reads for clients took, in microseconds; of commands one turn of a connection in 64 is measured",
    ),
    group("uuid", EXACT, SimpleStats, bucket::uuid, "The bucket's identity"),
    group(
        "vbucket",
        optional("[VB]").or_not_found(),
        SimpleStats,
        vbucket::states,
        "The state of each vBucket",
    ),
    group("vbucket-details", optional("[VB]"), Stats, vbucket::details, "Everything about each vBucket"),
    group(
        "vbucket-durability-state",
        optional("[VB]"),
        Stats,
        vbucket::durability_states,
        "How far durable writes of each vBucket are",
    ),
    group("vbucket-seqno", optional("[VB]"), SimpleStats, vbucket::seqnos, "How far each vBucket has come"),
    of_collections(
        "vkey",
        Args::needed("KEY VB [SCOPE.COLLECTION|0xID]", 2, 3),
        MetaRead,
        key::vkey,
        "The state of one document, and whether memory and disk have the same",
    ),
    of_collections(
        "vkey-byid",
        Args::needed("KEY VB 0xID", 2, 3),
        MetaRead,
        key::vkey,
        "The same of a collection that is named by its number",
    ),
    group(
        "warmup",
        EXACT,
        Stats,
        bucket::warmup,
        "How far documents and their values are loaded after a start",
    ),
    of_node("worker_thread_info", NodeSupervisor, node::workers, "What each worker did, as JSON"),
    group("workload", EXACT, Stats, node::workload, "Threads that work in the background for the bucket"),
];

// `timings` has a histogram for each.
const _: () = assert!(GROUPS.len() == STAT_GROUPS);

/// The place in the table of the group with this name.
pub(super) fn find(name: &[u8]) -> Option<usize> {
    GROUPS.iter().position(|group| group.name.as_bytes() == name)
}

/// For groups of which nothing is measured: an empty list is the truth.
fn nothing_of_the_node(_: &Node, _: &[&[u8]], _: &mut Sheet) -> Result<(), Refused> {
    Ok(())
}
