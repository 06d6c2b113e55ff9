//! What clients did, counted under the vBucket locks that the operations hold anyway.

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpCounts {
    /// Reads that found a document.
    pub get_hits: u64,
    /// Reads that found a document whose value had to come from the disk first; each comes again and is a hit then.
    pub get_not_resident: u64,
    /// Reads that found none.
    pub get_misses: u64,
    /// Documents stored.
    pub stores: u64,
    /// Documents deleted.
    pub deletes: u64,
    /// Documents that were found expired.
    pub expirations: u64,
    /// Changes refused because of CAS or existence.
    pub conflicts: u64,
    /// Values or whole documents that the pager took out of memory.
    pub ejects: u64,
    /// Changes that the flusher took from memory and made durable.
    pub drained: u64,
    /// Changes that a later one of the same document replaced in memory, before this vBucket was put in another's place.
    pub(crate) merged_before: u64,
    /// Changes that still waited for the flusher when another vBucket was put in this one's place.
    pub(crate) discarded: u64,
    /// Times that it went back to an earlier commit.
    pub rollbacks: u64,
    /// Changes that it forgot by that.
    pub rolled_back: u64,
    /// Sync writes that were prepared: here, or elsewhere and then here, too.
    pub sync_accepted: u64,
    /// Those that were committed.
    pub sync_committed: u64,
    /// Those that were aborted.
    pub sync_aborted: u64,
}

impl OpCounts {
    /// Adds another set of counts.
    pub fn add(&mut self, other: &OpCounts) {
        self.get_hits += other.get_hits;
        self.get_not_resident += other.get_not_resident;
        self.get_misses += other.get_misses;
        self.stores += other.stores;
        self.deletes += other.deletes;
        self.expirations += other.expirations;
        self.conflicts += other.conflicts;
        self.ejects += other.ejects;
        self.drained += other.drained;
        self.merged_before += other.merged_before;
        self.discarded += other.discarded;
        self.rollbacks += other.rollbacks;
        self.rolled_back += other.rolled_back;
        self.sync_accepted += other.sync_accepted;
        self.sync_committed += other.sync_committed;
        self.sync_aborted += other.sync_aborted;
    }
}
