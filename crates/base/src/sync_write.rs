//! What a version says about a sync write: one that is prepared first, and committed once enough nodes have it.

use crate::ids::Seqno;

/// How safe a write must be before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DurabilityLevel {
    /// In the memory of a majority of nodes.
    Majority = 1,
    /// In the memory of a majority, on disk on the active node.
    MajorityAndPersistOnActive = 2,
    /// On the disks of a majority.
    PersistToMajority = 3,
}

impl DurabilityLevel {
    /// The level with this wire number, if there is one.
    pub fn from_wire(level: u8) -> Option<DurabilityLevel> {
        Some(match level {
            1 => DurabilityLevel::Majority,
            2 => DurabilityLevel::MajorityAndPersistOnActive,
            3 => DurabilityLevel::PersistToMajority,
            _ => return None,
        })
    }
}

/// The part that a version plays in a sync write.
///
/// Prepares and aborts carry the key under which they are stored ([`crate::DocKey::to_prepared`]), so that they never
/// meet the committed document; a commit carries the document's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyncWrite {
    /// None: it was changed at once.
    #[default]
    No,
    /// It is to become the document (or its deletion, by the version's kind) once enough nodes have it.
    Prepare(DurabilityLevel),
    /// The document, as it was prepared.
    Commit {
        /// Seqno of the prepare.
        prepared: Seqno,
    },
    /// The document, prepared with the seqno before its own and committed with its own, by a node that is a majority
    /// alone. On disk it is a [`SyncWrite::Commit`]: [`SyncWrite::stored`].
    Alone(DurabilityLevel),
    /// The prepare came to nothing.
    Abort {
        /// Seqno of the prepare.
        prepared: Seqno,
    },
}

/// Where the rest of a [`SyncWrite::Alone`] has its level, above all seqnos.
const LEVEL_SHIFT: u32 = 56;

impl SyncWrite {
    /// Two bits and the rest, as headers of versions hold them, and records of the journal those of what is
    /// [`SyncWrite::stored`].
    pub fn to_parts(self) -> (u8, u64) {
        match self {
            SyncWrite::No => (0, 0),
            SyncWrite::Prepare(level) => (1, level as u64),
            SyncWrite::Commit { prepared } => (2, prepared.0),
            SyncWrite::Alone(level) => (2, (level as u64) << LEVEL_SHIFT),
            SyncWrite::Abort { prepared } => (3, prepared.0),
        }
    }

    /// What [`SyncWrite::to_parts`] was given; nothing if there is no such part or level.
    pub fn from_parts(bits: u8, rest: u64) -> Option<SyncWrite> {
        Some(match bits {
            0 => SyncWrite::No,
            1 => SyncWrite::Prepare(DurabilityLevel::from_wire(u8::try_from(rest).ok()?)?),
            2 => match DurabilityLevel::from_wire((rest >> LEVEL_SHIFT) as u8) {
                Some(level) => SyncWrite::Alone(level),
                None => SyncWrite::Commit { prepared: Seqno(rest) },
            },
            3 => SyncWrite::Abort { prepared: Seqno(rest) },
            _ => return None,
        })
    }

    /// What is written of a version with this seqno.
    pub fn stored(self, by_seqno: Seqno) -> SyncWrite {
        match self {
            SyncWrite::Alone(_) => SyncWrite::Commit { prepared: Seqno(by_seqno.0 - 1) },
            _ => self,
        }
    }

    /// Whether a reader of documents never sees it.
    pub fn is_hidden(self) -> bool {
        matches!(self, SyncWrite::Prepare(_) | SyncWrite::Abort { .. })
    }
}
