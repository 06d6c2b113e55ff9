//! The nouns that every floor shares, and the only door to clock, randomness, disk and network.
//!
//! Nothing here knows a protocol, a thread, or a file format but that of small files.

pub mod datatype;
pub mod doc_key;
pub mod encryption;
pub mod env;
pub mod format_versions;
pub mod frequency;
#[doc(hidden)]
pub mod fuzz;
pub mod histogram;
pub mod ids;
pub mod leb128;
pub mod limits;
pub mod memory;
pub mod planted;
pub mod rate_limit;
pub mod size;
pub mod small_file;
pub mod sync_write;
pub mod two_slots;
pub mod vbucket_map;
pub mod version;

pub use datatype::Datatype;
pub use doc_key::{DocKey, StoredKey};

pub use format_versions::FormatVersions;
pub use frequency::{FrequencyFactor, INITIAL_FREQUENCY};
pub use histogram::{Histogram, HistogramCounts, TimeRange};
pub use ids::{Cas, CollectionId, Moment, RevSeqno, ScopeId, Seqno, VbId, VbState, VbUuid};
pub use memory::{Account, Heap, Part};
pub use rate_limit::RateLimit;
pub use small_file::{SmallFile, SmallFileError};
pub use sync_write::{DurabilityLevel, SyncWrite};
pub use two_slots::{Slots, TwoSlots};
pub use version::{ItemKind, NewVersion, Version, VersionContents, VersionMeta};
