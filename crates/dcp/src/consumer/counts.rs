//! What a consumer counts.

/// What a consumer counted since its connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerCounts {
    /// Bytes of messages of streams.
    pub bytes: u64,
    /// Bytes that were acknowledged.
    pub acknowledged_bytes: u64,
    /// Changes that were applied.
    pub changes: u64,
    /// Snapshots that began.
    pub snapshots: u64,
    /// Times that a vBucket had to roll back.
    pub rollbacks: u64,
    /// Streams that ended, or were refused.
    pub ends: u64,
    /// Messages of streams that are not followed any more.
    pub strays: u64,
    /// Messages that this node cannot take, each of which ended its stream.
    pub unsupported: u64,
    /// Times that memory was too short to go on.
    pub full: u64,
    /// vBuckets that were taken over.
    pub taken_over: u64,
    /// vBuckets without changes that were filled with a file.
    pub filled_by_file: u64,
    /// vBuckets without changes that were sent documents from the producer's disk.
    pub filled_by_documents: u64,
}

impl ConsumerCounts {
    /// Adds what another consumer counted.
    pub fn add(&mut self, other: &ConsumerCounts) {
        self.bytes += other.bytes;
        self.acknowledged_bytes += other.acknowledged_bytes;
        self.changes += other.changes;
        self.snapshots += other.snapshots;
        self.rollbacks += other.rollbacks;
        self.ends += other.ends;
        self.strays += other.strays;
        self.unsupported += other.unsupported;
        self.full += other.full;
        self.taken_over += other.taken_over;
        self.filled_by_file += other.filled_by_file;
        self.filled_by_documents += other.filled_by_documents;
    }
}
