//! One append-only, copy-on-write B+tree file in the couchstore format; knows nothing of memory or wire.
//!
//! A file holds three trees: documents by id, documents by seqno, and local documents.
//! The layout is described in `docs/file_format.md`.

mod ahead;
mod append_node;
mod bulk;
pub mod check;
mod chunk;
mod compact;
mod encrypted;
mod failure;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod header;
mod level;
mod node;
mod pieces;
mod reading;
mod record;
mod rev_meta;
mod rewrite;
mod rollback;
mod save;
mod scan;
mod scratch;
mod seqnos;
mod snappy;
mod snapshot;
mod tree;
mod window;
mod writer;

pub use compact::{Choice, Compaction, Fate, Progress};
pub use encrypted::OriginalKeys;
pub use failure::Failure;
pub use file::{Commit, CouchFile, Tuning};
pub use pieces::Pieces;
pub use reading::{Reading, Want};
pub use record::DocInfo;
pub use rev_meta::{Durability, RevMeta};
pub use save::{Batch, Body, DocUpdate, LocalUpdate, RecordSummary};
pub use scratch::Scratch;
pub use snappy::{inflate, is_snappy_block};
pub use snapshot::{FileInfo, Snapshot};

/// The versions of files. One that began with version 11 or 14 goes on as such until it is compacted.
pub const FORMAT: base::FormatVersions = base::FormatVersions {
    written: (header::VERSION as u32, header::VERSION as u32),
    read: (header::OLDEST_VERSION as u32, header::NEWEST_VERSION as u32),
};

/// Bit of `content_meta` that says the stored body is a Snappy block.
pub const CONTENT_COMPRESSED: u8 = 0x80;
/// `content_meta` of a body that is JSON.
pub const CONTENT_JSON: u8 = 0;
/// `content_meta` of a body that was stored in non-JSON mode.
pub const CONTENT_OPAQUE: u8 = 3;
