//! THE table of settings: name, bounds, default and meaning of each.

use super::Kind;

/// Which setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Key {
    /// The most memory the bucket may use, in bytes.
    MaxSize,
    /// Eviction ends when no more than this is in use.
    LowWatermark,
    /// Eviction begins when more than this is in use.
    HighWatermark,
    /// Changes are refused when more than this is in use.
    MutationRatio,
    /// What leaves memory when it runs short.
    EvictionPolicy,
    /// Share of the quota that checkpoints may take.
    CheckpointRatio,
    /// Memory of checkpoints is recovered when more of their share than this is in use.
    CheckpointUpperMark,
    /// and down to this part of their share.
    CheckpointLowerMark,
    /// An open checkpoint is closed when it holds more bytes than this; 0 for one that adapts to the quota.
    CheckpointMaxSize,
    /// An open checkpoint is closed when it holds more changes than this.
    CheckpointMaxItems,
    /// What is left of an access frequency when frequencies decay.
    FreqDecayPercent,
    /// How quickly an access frequency stops rising with more accesses.
    FreqCounterIncrementFactor,
    /// How long the pager rests between two time slices.
    PagerVisitPause,
    /// Whether a filter spares the disk for keys that are not there, under full eviction.
    BfilterEnabled,
    /// How often the filter may be wrong.
    BfilterFpProb,
    /// Whether value eviction becomes full eviction by itself when metadata alone fill the quota.
    AutoEviction,
    /// Whether expired documents are looked for in the background.
    ExpiryPagerEnabled,
    /// Seconds between two passes of the expiry pager.
    ExpiryPagerInterval,
    /// The longest a document may live, in seconds; 0 for no limit.
    MaxTtl,
    /// off: values are held plain; passive: as they came; active: cold values are compressed in the background.
    CompressionMode,
    /// A value is held compressed only if it becomes smaller by this factor.
    MinCompressionRatio,
    /// Milliseconds between two steps of the compressor.
    CompressorInterval,
    /// Seconds after which an ephemeral bucket forgets a tombstone.
    PurgeAge,
    /// Seconds between two passes of the tombstone purger; 0 for none.
    PurgeInterval,
    /// Whether versions are moved together when the heap wastes much.
    DefragmenterEnabled,
    /// Seconds between two passes of the defragmenter.
    DefragmenterInterval,
    /// The defragmenter works when more of the heap than this is wasted.
    DefragmenterThreshold,
    /// Seconds between two comparisons of the account with the heap.
    AccountCheckInterval,
    /// How safe every change is at least before it is told of, as [`base::DurabilityLevel`]; 0: as clients ask.
    DurabilityMinLevel,
    /// What becomes of sync writes that lack replicas on a node that belongs to no cluster: 0: refused; 1: this node is
    /// majority enough.
    DurabilityImpossibleFallback,
    /// How long a range scan may take from its beginning to its end, in seconds.
    RangeScanMaxLifetime,
    /// Which of two versions wins when a change brings its own metadata, as [`vbucket::ConflictRule`] has it: 0: by
    /// revision; 1: by time. A bucket has it from its beginning.
    ConflictResolution,
    /// Operations that take longer are logged, in milliseconds.
    SlowOperationThreshold,
    /// A foreign CAS further ahead of the wall clock is counted, in microseconds.
    DriftAhead,
    /// A foreign CAS further behind the wall clock is counted, in microseconds.
    DriftBehind,
    /// A foreign CAS further ahead of the wall clock is impossible, in microseconds.
    MaxFuture,
    /// What becomes of changes with an impossible CAS: 0: taken, the clock stays; 1: refused; 2: given another CAS.
    ImpossibleCas,
    /// Whether files are encrypted where the node has an encryption key.
    EncryptionAtRest,
    /// Seconds for which every version of a document is kept; 0 for no such limit.
    HistorySeconds,
    /// Bytes of versions that are kept, of all vBuckets; 0 for no such limit.
    HistoryBytes,
    /// Whether collections that are made have a part in the history, unless they say something else.
    HistoryOfCollections,
    /// By how much of the quota the estimate of memory in use may be off, in thousandths of a percent.
    MergeThreshold,
    /// A segment of a log-structured store is rewritten if so much of it is wasted, in percent.
    LogWaste,
    /// Runs of about one size that a log-structured store merges, in number.
    LogMergeRuns,
    /// Whether a log-structured store merges and rewrites only what it must.
    LogCompactionPaused,
    /// How a replica without changes is filled: 0: by documents; 1: with the file of its active; 2: what is faster.
    ReplicaFill,
    /// From so many changes on the file is faster.
    ReplicaFillMinChanges,
    /// Bytes a second in which such a file comes; 0 for no limit.
    ReplicaFillRate,
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub key: Key,
    /// Its name.
    pub name: &'static str,
    /// How it is written.
    pub kind: Kind,
    /// What it is if nobody says.
    pub default: u64,
    /// One line for the reference.
    pub doc: &'static str,
}

/// The words of [`Key::DurabilityMinLevel`], as the original's REST API has them.
const LEVELS: &[&str] = &["none", "majority", "majorityAndPersistActive", "persistToMajority"];
/// The words of [`Key::DurabilityImpossibleFallback`], as the original's configuration has them.
const FALLBACKS: &[&str] = &["disabled", "fallback_to_active_ack"];
/// The words of [`Key::ConflictResolution`], as the original's REST API has them.
const CONFLICT_RULES: &[&str] = &["seqno", "lww"];
/// The words of [`Key::ImpossibleCas`], as the original's configuration has them.
const CAS_STRATEGIES: &[&str] = &["ignore", "error", "replace"];
/// The words of [`Key::ReplicaFill`].
const FILLS: &[&str] = &["documents", "file", "auto"];
/// The words of [`Key::EvictionPolicy`], in the order of [`crate::EvictionPolicy`].
const POLICIES: &[&str] = &["value_only", "full_eviction", "auto_delete", "fail_new_data"];

const fn row(key: Key, name: &'static str, kind: Kind, default: u64, doc: &'static str) -> Setting {
    Setting { key, name, kind, default, doc }
}

/// All settings, in the order of [`Key`].
pub static SETTINGS: &[Setting] = &[
    row(
        Key::MaxSize,
        "max_size",
        Kind::Bytes { least: 1 << 20, most: 1 << 50 },
        256 << 20,
        "The most memory that the bucket may use",
    ),
    row(
        Key::LowWatermark,
        "mem_low_wat_percent",
        Kind::Percent { least: 1, most: 99 },
        75,
        "Eviction ends when no more of the quota than this is in use",
    ),
    row(
        Key::HighWatermark,
        "mem_high_wat_percent",
        Kind::Percent { least: 2, most: 100 },
        85,
        "Eviction begins when more of the quota than this is in use",
    ),
    row(
        Key::MutationRatio,
        "mutation_mem_ratio",
        Kind::Decimal { least: 10, most: 1000 },
        930,
        "Changes are refused with a temporary failure when more of the quota than this is in use",
    ),
    row(
        Key::EvictionPolicy,
        "item_eviction_policy",
        Kind::Choice(POLICIES),
        0,
        "What leaves memory when it runs short; auto_delete and fail_new_data are for ephemeral buckets",
    ),
    row(
        Key::CheckpointRatio,
        "checkpoint_memory_ratio",
        Kind::Decimal { least: 10, most: 1000 },
        200,
        "Share of the quota that checkpoints may take",
    ),
    row(
        Key::CheckpointUpperMark,
        "checkpoint_memory_recovery_upper_mark",
        Kind::Decimal { least: 10, most: 1000 },
        900,
        "Memory of checkpoints is recovered when more of their share than this is in use",
    ),
    row(
        Key::CheckpointLowerMark,
        "checkpoint_memory_recovery_lower_mark",
        Kind::Decimal { least: 0, most: 1000 },
        600,
        "Recovery of checkpoint memory ends at this part of their share",
    ),
    row(
        Key::CheckpointMaxSize,
        "checkpoint_max_size",
        Kind::Bytes { least: 0, most: 1 << 40 },
        0,
        "An open checkpoint is closed when it holds more bytes than this; 0 for one that adapts to the quota",
    ),
    row(
        Key::CheckpointMaxItems,
        "chk_max_items",
        Kind::Count { least: 1, most: 10_000_000 },
        10_000,
        "An open checkpoint is closed when it holds more changes than this",
    ),
    row(
        Key::FreqDecayPercent,
        "item_freq_decayer_percent",
        Kind::Percent { least: 0, most: 100 },
        50,
        "What is left of an access frequency when frequencies decay",
    ),
    row(
        Key::FreqCounterIncrementFactor,
        "freq_counter_increment_factor",
        Kind::Decimal { least: 0, most: 100_000 },
        12,
        "How quickly an access frequency stops rising with more accesses",
    ),
    row(
        Key::PagerVisitPause,
        "paging_visitor_pause_ms",
        Kind::Milliseconds { least: 0, most: 60_000 },
        0,
        "How long the pager rests between two time slices",
    ),
    row(
        Key::BfilterEnabled,
        "bfilter_enabled",
        Kind::Switch,
        1,
        "Whether a filter spares the disk for keys that are not there, under full eviction",
    ),
    row(
        Key::BfilterFpProb,
        "bfilter_fp_prob",
        Kind::Decimal { least: 1, most: 500 },
        10,
        "How often the filter may be wrong",
    ),
    row(
        Key::AutoEviction,
        "auto_eviction_policy",
        Kind::Switch,
        0,
        "Whether value eviction becomes full eviction by itself when metadata alone fill the quota",
    ),
    row(
        Key::ExpiryPagerEnabled,
        "exp_pager_enabled",
        Kind::Switch,
        1,
        "Whether expired documents are looked for in the background",
    ),
    row(
        Key::ExpiryPagerInterval,
        "exp_pager_stime",
        Kind::Seconds { least: 1, most: 30 * 24 * 3600 },
        600,
        "Seconds between two passes of the expiry pager",
    ),
    row(
        Key::MaxTtl,
        "max_ttl",
        Kind::Seconds { least: 0, most: 2_147_483_647 },
        0,
        "The longest a document may live, in seconds; 0 for no limit",
    ),
    row(
        Key::CompressionMode,
        "compression_mode",
        Kind::Choice(&["off", "passive", "active"]),
        1,
        "off: values are held plain; passive: as they came; active: cold values are compressed in the background",
    ),
    row(
        Key::MinCompressionRatio,
        "min_compression_ratio",
        Kind::Decimal { least: 1000, most: 100_000 },
        1200,
        "A value is held compressed only if it becomes smaller by this factor",
    ),
    row(
        Key::CompressorInterval,
        "item_compressor_interval",
        Kind::Milliseconds { least: 1, most: 3_600_000 },
        250,
        "Milliseconds between two steps of the compressor",
    ),
    row(
        Key::PurgeAge,
        "ephemeral_metadata_purge_age",
        Kind::Seconds { least: 0, most: 30 * 24 * 3600 },
        60,
        "Seconds after which an ephemeral bucket forgets a tombstone",
    ),
    row(
        Key::PurgeInterval,
        "ephemeral_metadata_purge_interval",
        Kind::Seconds { least: 0, most: 24 * 3600 },
        60,
        "Seconds between two passes of the tombstone purger; 0 for none",
    ),
    row(
        Key::DefragmenterEnabled,
        "defragmenter_enabled",
        Kind::Switch,
        1,
        "Whether versions are moved together when the heap wastes much",
    ),
    row(
        Key::DefragmenterInterval,
        "defragmenter_interval",
        Kind::Decimal { least: 10, most: 3_600_000 },
        10_000,
        "Seconds between two passes of the defragmenter",
    ),
    row(
        Key::DefragmenterThreshold,
        "defragmenter_threshold_percent",
        Kind::Percent { least: 1, most: 99 },
        15,
        "The defragmenter works when more of the heap than this is wasted",
    ),
    row(
        Key::AccountCheckInterval,
        "mem_used_check_interval",
        Kind::Seconds { least: 1, most: 24 * 3600 },
        60,
        "Seconds between two comparisons of the account with the heap",
    ),
    row(
        Key::DurabilityMinLevel,
        "durability_min_level",
        Kind::Choice(LEVELS),
        0,
        "Every change of a document is a sync write of at least this level",
    ),
    row(
        Key::DurabilityImpossibleFallback,
        "durability_impossible_fallback",
        Kind::Choice(FALLBACKS),
        0,
        "Sync writes of a bucket with replicas on a node outside of a cluster: disabled refuses them as impossible, \
         fallback_to_active_ack is content with this node",
    ),
    row(
        Key::RangeScanMaxLifetime,
        "range_scan_max_lifetime",
        Kind::Seconds { least: 1, most: 86_400 },
        180,
        "How long a range scan may take from its beginning to its end, in seconds; then it is cancelled",
    ),
    row(
        Key::ConflictResolution,
        "conflict_resolution_type",
        Kind::Choice(CONFLICT_RULES),
        0,
        "Which version wins when a change brings its own metadata: the one with the higher revision (seqno) or with the \
         higher CAS (lww); set when the bucket is made",
    ),
    row(
        Key::SlowOperationThreshold,
        "slow_operation_threshold",
        Kind::Milliseconds { least: 1, most: 86_400_000 },
        500,
        "Operations that take more milliseconds than this are logged and kept for the group slow-operations; some commands \
         have limits of their own",
    ),
    row(
        Key::DriftAhead,
        "hlc_drift_ahead_threshold_us",
        Kind::Count { least: 0, most: 1 << 53 },
        5_000_000,
        "A CAS from elsewhere that is more microseconds than this ahead of the clock is counted in ahead exceptions",
    ),
    row(
        Key::DriftBehind,
        "hlc_drift_behind_threshold_us",
        Kind::Count { least: 0, most: 1 << 53 },
        5_000_000,
        "A CAS from elsewhere that is more microseconds than this behind the clock is counted in behind exceptions",
    ),
    row(
        Key::MaxFuture,
        "hlc_max_future_threshold_us",
        Kind::Count { least: 0, most: 1 << 53 },
        3_900_000_000,
        "A CAS from elsewhere that is more microseconds than this ahead of the clock does not move it",
    ),
    row(
        Key::ImpossibleCas,
        "hlc_invalid_strategy",
        Kind::Choice(CAS_STRATEGIES),
        0,
        "A change with metadata whose CAS is beyond hlc_max_future_threshold_us: ignore takes it as it is, error refuses \
         it, replace gives it a CAS of this node",
    ),
    row(
        Key::EncryptionAtRest,
        "encryption_at_rest",
        Kind::Switch,
        1,
        "Whether the bucket's files are encrypted, on a node with an encryption key; after a change new files are, and \
         compaction brings the others over",
    ),
    row(
        Key::HistorySeconds,
        "history_retention_seconds",
        Kind::Seconds { least: 0, most: 1 << 32 },
        0,
        "Seconds for which a log-structured bucket keeps every version of its documents; 0 for no limit in time. Without \
         either limit no history is kept",
    ),
    row(
        Key::HistoryBytes,
        "history_retention_bytes",
        Kind::Bytes { least: 0, most: 1 << 50 },
        0,
        "Bytes of replaced versions that a log-structured bucket keeps, before compression, each vBucket its share; 0 for \
         no limit in size. Without either limit no history is kept",
    ),
    row(
        Key::HistoryOfCollections,
        "history_retention_collection_default",
        Kind::Switch,
        1,
        "Whether collections of a log-structured bucket that are made without the field history have a part in the \
         history; those that are there stay as they are",
    ),
    row(
        Key::MergeThreshold,
        "mem_used_merge_threshold_percent",
        Kind::Decimal { least: 10, most: 10_000 },
        500,
        "By how much of the quota the estimate of memory in use may be off, in percent",
    ),
    row(
        Key::LogWaste,
        "log_waste_percent",
        Kind::Percent { least: 5, most: 90 },
        25,
        "A log-structured bucket rewrites a segment when this share of it does not count any more: less saves space, and \
         writes more",
    ),
    row(
        Key::LogMergeRuns,
        "log_merge_runs",
        Kind::Count { least: 2, most: 8 },
        4,
        "A log-structured bucket merges so many runs of its key index that are about as large: more writes less, and \
         reads look into more runs",
    ),
    row(
        Key::LogCompactionPaused,
        "log_compaction_paused",
        Kind::Switch,
        0,
        "Whether a log-structured bucket merges and rewrites nothing in the background; writes still do what keeps the \
         debt in bounds (record 179)",
    ),
    row(
        Key::ReplicaFill,
        "replica_fill",
        Kind::Choice(FILLS),
        0,
        "How a replica without changes is filled: documents streams them, file copies the file of the active vBucket where the \
         source can give one, auto does that from replica_fill_min_changes on",
    ),
    row(
        Key::ReplicaFillMinChanges,
        "replica_fill_min_changes",
        Kind::Count { least: 1, most: 1 << 53 },
        50_000,
        "With replica_fill=auto, a replica without changes is filled with a file if its source has at least so many changes on \
         disk",
    ),
    row(
        Key::ReplicaFillRate,
        "replica_fill_max_rate",
        Kind::Bytes { least: 0, most: 1 << 40 },
        0,
        "Bytes a second in which the file of one vBucket comes at most when a replica is filled with it; 0 for no limit",
    ),
];
