//! A log-structured store: values once, in order of seqno, in segments; a key index of sorted runs beside them; a manifest that
//! says which files count. Nothing is overwritten.
//!
//! *Guarantee:* what was committed is durable and is found again, whole or not at all; a value whose checksum does not fit is
//! never given out; damage shows at the vBuckets that have something in what is damaged.
//!
//! It knows nothing of documents, collections, memory or wire: an item has a key, a seqno, and bytes that are not looked
//! at. vBuckets are spread over shards, which share files. The layout is described in `docs/log_format.md`, the reasons
//! in `docs/adr/0129-the-log-structured-store.md`.

mod block;
mod cache;
mod check;
mod codec;
mod commit;
mod edit_codec;
mod failure;
mod file;
mod filter;
#[doc(hidden)]
pub mod fuzz;
mod history;
mod identity;
mod manifest;
mod merge;
mod meta;
mod open;
mod points;
mod purge;
mod rewrite;
mod run;
mod salvage;
mod segment;
mod shard;
mod sizes;
mod store;
mod tuning;
mod view;
mod work;

pub use block::Packer;
pub use cache::CacheStats;
pub use check::{Checked, Head, Heads, check, heads};
pub use commit::{Batch, Replaced, Sealed};
pub use failure::Failure;
pub use file::{OpenFileStats, WrittenBytes};
pub use history::{HistoryUsage, KEPT, Retention};
pub use open::Trust;
pub use purge::{Erased, Purged, Purger};
pub use run::Entry;
pub use salvage::{Hole, LeftCommit, Salvage};
pub use segment::Item;
pub use sizes::Usage;
pub use store::{Config, LogStats, LogStore, StoredMeta};
pub use tuning::Tuning;
pub use view::{Commit, View};

/// The versions of manifests.
pub const MANIFEST_FORMAT: base::FormatVersions = base::FormatVersions::since(1, manifest::VERSION as u32);
/// The versions of segments and runs.
pub const SEGMENT_FORMAT: base::FormatVersions = base::FormatVersions::since(1, segment::VERSION as u32);

/// Whether a file in a folder is a store's, by its name.
pub fn is_file(name: &str) -> bool {
    file::parse_name(name).is_some() || manifest::parse_manifest_name(name).is_some()
}
