//! What memory is held for.

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Part {
    /// Versions: metadata, keys and values, whoever holds them.
    Documents,
    /// Hash tables, without the versions.
    HashTables,
    /// Checkpoints and cursors, without the versions.
    Checkpoints,
    /// Buffers of streams, without the versions.
    Streams,
    /// What the store keeps: batches on their way to the files, filters, buffers.
    Storage,
    /// Everything else: failover tables, locks, waiting readers.
    Other,
}

/// How many parts there are.
pub const PARTS: usize = 6;

impl Part {
    /// All of them, in the order of [`Parts`].
    pub const ALL: [Part; PARTS] =
        [Part::Documents, Part::HashTables, Part::Checkpoints, Part::Streams, Part::Storage, Part::Other];

    /// Its name in stats.
    pub fn name(self) -> &'static str {
        match self {
            Part::Documents => "documents",
            Part::HashTables => "hash_tables",
            Part::Checkpoints => "checkpoints",
            Part::Streams => "streams",
            Part::Storage => "storage",
            Part::Other => "other",
        }
    }
}

/// Bytes by part.
pub type Parts = [i64; PARTS];
