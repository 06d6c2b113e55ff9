//! What the catalog promises a restart of a bucket's files, and how that changes before the files do.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::VbId;

use super::identity::Identity;
use crate::catalog::{Believe, Catalog, Listed, StoreId};
use crate::compaction::FileAt;
use crate::failure::Failure;

/// A bucket's part in the catalog of its folder.
///
/// # Invariants
///
/// - Without a journal in front of the files, nothing is written behind a header that is promised to be the last, and no
///   file goes that is promised to be there: each step that does so asks here first.
#[derive(Default)]
pub(super) struct Promises {
    /// What a start may believe; `None` if the folder is not opened as a whole.
    catalog: Option<Arc<Catalog>>,
    /// Whether there is no journal in front of the files, so that the catalog changes before they do.
    is_alone: bool,
}

impl Promises {
    pub(super) fn new(catalog: Arc<Catalog>) -> Promises {
        Promises { catalog: Some(catalog), is_alone: false }
    }

    /// The same, for files that have no journal in front of them.
    pub(super) fn alone(self) -> Promises {
        Promises { is_alone: true, ..self }
    }

    /// Which file a revision of a vBucket's file is.
    pub(super) fn identity(&self, vb: VbId, revision: u64) -> Identity {
        Identity { store: self.catalog.as_ref().map(|catalog| catalog.store()), vb, revision }
    }

    /// Before anything is written: without a journal the catalog has to say first that more may follow what it lists.
    pub(super) fn begin_writing(&self) -> Result<(), Failure> {
        match &self.catalog {
            Some(catalog) if self.is_alone => catalog.believe_headers(),
            _ => Ok(()),
        }
    }

    /// Before a vBucket's file goes: nothing is promised of it any more.
    pub(super) fn forget(&self, vb: VbId) -> Result<(), Failure> {
        match &self.catalog {
            Some(catalog) if self.is_alone => catalog.forget(vb),
            _ => Ok(()),
        }
    }

    /// Whether the catalog lists the last header of each file.
    pub(super) fn are_listed(&self) -> bool {
        self.catalog.as_ref().is_some_and(|catalog| catalog.believe() == Some(Believe::Files))
    }

    /// A compaction is about to put a revision in the place of one that the catalog lists.
    pub(super) fn switch(&self, vb: VbId, at: FileAt) -> Result<(), Failure> {
        let Some(catalog) = self.catalog.as_ref().filter(|_| self.are_listed()) else { return Ok(()) };
        catalog.change(|contents| {
            let listed = Listed { at, high_seqno: None, is_tail_void: false };
            contents.files.insert(vb, listed);
        })
    }

    /// Puts into the catalog, durably, which header of each file is the last; segments of the journal up to
    /// `generations` are void then. Without a catalog no file is looked at.
    pub(super) fn list(
        &self,
        generations: u64,
        files: impl FnOnce() -> BTreeMap<VbId, Listed>,
    ) -> Result<(), Failure> {
        let Some(catalog) = &self.catalog else { return Ok(()) };
        catalog.believe_files(files(), generations)
    }

    pub(super) fn was_closed(&self) -> Option<bool> {
        self.catalog.as_ref()?.was_closed()
    }

    pub(super) fn store_on_disk(&self) -> Result<Option<StoreId>, Failure> {
        self.catalog.as_ref().map(|catalog| catalog.store_on_disk()).transpose()
    }
}
