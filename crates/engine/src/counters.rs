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
    }
}
