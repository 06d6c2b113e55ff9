//! What the checkpoints of one vBucket hold.

use vbucket::CheckpointManager;

/// What a vBucket's checkpoints hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Number of the open checkpoint.
    pub open_id: u64,
    /// Checkpoints in memory, the open one included.
    pub checkpoints: u64,
    /// Changes in memory.
    pub items: u64,
    /// Changes in the open checkpoint.
    pub open_items: u64,
    /// Bytes of the versions queued, which the hash table may hold as well.
    pub item_bytes: u64,
    /// Bytes of everything else that checkpoints and cursors need.
    pub overhead_bytes: u64,
    /// Changes that the flusher has not written yet.
    pub unpersisted_items: u64,
    /// Changes that a later one of the same document replaced there.
    pub merged: u64,
    /// Readers other than the flusher.
    pub other_cursors: u64,
}

impl CheckpointStats {
    pub(crate) fn of(manager: &CheckpointManager) -> CheckpointStats {
        let mut stats = CheckpointStats {
            open_id: manager.open_id(),
            checkpoints: manager.checkpoints(),
            items: manager.items(),
            open_items: manager.open_items(),
            item_bytes: manager.bytes(),
            overhead_bytes: manager.overhead_bytes(),
            merged: manager.merged,
            ..CheckpointStats::default()
        };
        for cursor in manager.cursors() {
            match &*cursor.name {
                "persistence" => stats.unpersisted_items = cursor.items_behind,
                _ => stats.other_cursors += 1,
            }
        }
        stats
    }
}
