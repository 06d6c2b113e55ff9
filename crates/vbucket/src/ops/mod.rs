//! The changes that a vBucket accepts, one family a file.

mod change;
mod collections;
mod ephemeral;
mod expiry;
mod flush;
mod lock;
mod on_disk;
mod prepare;
mod prepare_dropped;
mod prepare_received;
mod recode;
mod recount;
mod relocation;
mod replicated;
mod residency;
mod with_meta;

pub use change::{Basis, Change, Existence, Refusal, Refused, Stored};
pub(crate) use flush::Taken;
pub use flush::{FlushBatch, SavedSyncWrites};
pub use lock::UnlockRefusal;
pub use on_disk::Look;
pub use prepare::{Completed, OverdueLook, Prepared, SyncWriteState, SyncWrites};
pub use replicated::{IncomingSnapshot, Misplaced, SnapshotKind};
pub use residency::{Loaded, Placed};
pub use with_meta::{ConflictRule, MAX_FOREIGN_CAS, MAX_REV_SEQNO, TieBreak, WithMeta};
