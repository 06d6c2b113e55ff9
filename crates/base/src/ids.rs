//! Newtypes for every number with a meaning.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(n: $inner) -> Self {
                $name(n)
            }
        }
    };
}

number!(
    /// Number of a vBucket in its bucket, from 0.
    VbId(u16)
);
number!(
    /// Position of a change in its vBucket; the first change is 1, 0 means "before everything".
    Seqno(u64)
);
number!(
    /// Compare-and-swap value of a document version: a hybrid logical clock in nanoseconds whose low 16 bits count.
    Cas(u64)
);
number!(
    /// How often a document was changed since its creation; survives deletion.
    RevSeqno(u64)
);
number!(
    /// One history of a vBucket; a new one begins after a failover or an unclean stop.
    VbUuid(u64)
);
number!(
    /// Number of a collection; 0 is the default collection, 1 to 7 are reserved.
    CollectionId(u32)
);
number!(
    /// Number of a scope; 0 is the default scope.
    ScopeId(u32)
);

impl CollectionId {
    /// The collection of keys that name none.
    pub const DEFAULT: CollectionId = CollectionId(0);
    /// Where system events are kept: changes of the collections manifest. No client reaches it.
    pub const SYSTEM: CollectionId = CollectionId(1);
    /// Where prepares are kept, each under its document's whole prefixed key. No client reaches it.
    pub const PREPARES: CollectionId = CollectionId(2);
}

impl Seqno {
    /// The seqno after this one.
    pub fn next(self) -> Seqno {
        Seqno(self.0 + 1)
    }
}

impl Cas {
    /// "No CAS given": matches every version.
    pub const ANY: Cas = Cas(0);
    /// What a locked document shows instead of its CAS.
    pub const LOCKED: Cas = Cas(u64::MAX);
}

/// A reading of the wall clock in nanoseconds since 1970, taken once for a batch of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Whole seconds since 1970, the unit of expiry times.
    pub fn unix_s(self) -> u32 {
        (self.0 / 1_000_000_000) as u32
    }
}

/// What a node does for a vBucket. The numbers are those of the wire (BinaryProtocol.md, Set VBucket).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VbState {
    /// Serves reads and writes.
    Active = 1,
    /// Follows an active vBucket elsewhere.
    Replica = 2,
    /// Is about to become active.
    Pending = 3,
    /// Serves nothing.
    Dead = 4,
}

impl VbState {
    /// The state with this wire number, if there is one.
    pub fn from_wire(n: u8) -> Option<VbState> {
        Some(match n {
            1 => VbState::Active,
            2 => VbState::Replica,
            3 => VbState::Pending,
            4 => VbState::Dead,
            _ => return None,
        })
    }

    /// The name used in stats and in the vBucket state document.
    pub fn name(self) -> &'static str {
        match self {
            VbState::Active => "active",
            VbState::Replica => "replica",
            VbState::Pending => "pending",
            VbState::Dead => "dead",
        }
    }

    /// The state with this name, if there is one.
    pub fn from_name(name: &str) -> Option<VbState> {
        [VbState::Active, VbState::Replica, VbState::Pending, VbState::Dead]
            .into_iter()
            .find(|s| s.name() == name)
    }
}
