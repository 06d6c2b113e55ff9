//! Repair of a bucket's folder while no node runs on it: what can be believed, what would be lost, and making it so.
//!
//! # Guarantees
//!
//! - [`survey`] changes nothing, and says of each vBucket up to which seqno it goes on and what was promised beyond that.
//! - After [`apply`] the folder is like one that was stopped: each vBucket goes on from what the survey said, and never
//!   from less. What was damaged is in the folder that is given for it. An active vBucket that lost something, or may have,
//!   begins a new history at the seqno from which it goes on. One that misses documents in its middle, as may be in a
//!   log-structured store, begins one at 0.
//! - Until the catalog is replaced, which happens in one step, a crash leaves what was there, and a repair can be begun
//!   again. The folder of a log-structured store is built again beside the old one and takes its place
//!   ([`crate::replace`]): a crash in between is ended by [`resume`].

mod apply;
mod log;
mod survey;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use base::{CollectionId, Seqno, VbId};

pub use apply::{apply, resume};
pub use survey::survey;

use crate::catalog::StoreId;
use crate::couch::whole::Whole;
use crate::journaled::recovery::Save;

/// What was found in a bucket's folder.
#[derive(Default)]
pub struct Survey {
    /// Faults of the catalog, the journal and files that belong to nobody: path, offset, and what is wrong.
    pub faults: Vec<(PathBuf, u64, String)>,
    /// vBuckets that do not go on from what was promised, or of which that is not known.
    pub vbuckets: BTreeMap<VbId, Damaged>,
    /// vBuckets of which nothing is lost.
    pub sound: u64,
    /// Whether the last stop was a clean one, as the catalog has it.
    pub was_closed: bool,
    /// What is copied to the folder for damaged files before anything is changed.
    pub aside: BTreeSet<PathBuf>,
    plan: Plan,
}

impl Survey {
    /// Whether there is nothing to repair.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.vbuckets.is_empty()
    }
}

/// A vBucket that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// What is wrong, in words.
    pub what: String,
    /// The file from which it goes on; `None`: from the journal alone, or empty.
    pub file: Option<PathBuf>,
    /// When the commit was made from which it goes on, nanoseconds since 1970; 0 if that is not known.
    pub committed_ns: u64,
    /// It goes on from this seqno: all up to it is there, but for what is in holes.
    pub kept: Seqno,
    /// Documents that are there then; `None` if some come from the journal and were not counted.
    pub documents: Option<u64>,
    /// The highest seqno that is known to have been promised; `None` if none is known.
    pub promised: Option<Seqno>,
    /// Whether more than that may have been promised.
    pub may_be_more: bool,
    /// Collections of which something is known to be lost; `None` if that cannot be told.
    pub collections: Option<BTreeSet<CollectionId>>,
    /// Ranges of seqnos below `kept` in which something cannot be read: in a log-structured store alone.
    pub holes: Vec<(Seqno, Seqno)>,
    /// Documents that are lost; `None` if they cannot be counted.
    pub lost_documents: Option<u64>,
}

impl Damaged {
    /// Whether nothing that was promised is lost.
    pub fn loses_nothing(&self) -> bool {
        !self.may_be_more
            && self.holes.is_empty()
            && self.promised.is_some_and(|promised| promised <= self.kept)
    }
}

/// What a repair does.
#[derive(Default)]
struct Plan {
    store: Option<StoreId>,
    is_catalog_usable: bool,
    /// The highest generation of the journal, and its segments.
    generations: u64,
    segments: Vec<PathBuf>,
    bases: BTreeMap<VbId, Base>,
    /// Files that are not in use afterwards.
    unused: BTreeSet<PathBuf>,
    /// Whether only a copy of the catalog has to be written again.
    is_copy_only: bool,
    /// Of a folder of a log-structured store.
    log: Option<log::LogPlan>,
}

/// From what a vBucket goes on.
struct Base {
    file: Option<Whole>,
    /// Whether that file is not the one that is listed.
    is_moved: bool,
    saves: Vec<Save>,
    begins_history: bool,
    highest_revision: u64,
}
