//! Whose file a file is: a local document that the original passes over.

use std::path::Path;

use base::VbId;
use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::catalog::StoreId;
use crate::failure::Failure;

/// Name of the local document.
pub(super) const IDENTITY_ID: &[u8] = b"_local/stave_identity";

/// Which file of which folder a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The folder; `None` if it has no catalog, and nothing is known about its files.
    pub(super) store: Option<StoreId>,
    pub(super) vb: VbId,
    pub(super) revision: u64,
}

/// The local document.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    store: String,
    vbucket: u16,
    revision: u64,
}

impl Identity {
    /// The local document; `None` if files of this folder carry none.
    pub(super) fn to_json(self) -> Option<Vec<u8>> {
        let store = self.store?.to_string();
        let document = Document { store, vbucket: self.vb.0, revision: self.revision };
        serde_json::to_vec(&document).ok()
    }

    /// The store that a local document names.
    pub(super) fn store_in(found: &[u8]) -> Option<StoreId> {
        let found: Document = serde_json::from_slice(found).ok()?;
        u128::from_str_radix(&found.store, 16).ok().map(StoreId)
    }

    /// Compares with what a file carries, `None` being a file of an earlier version, or of the original.
    pub(super) fn check(self, path: &Path, found: Option<&[u8]>) -> Result<(), Failure> {
        let (Some(store), Some(found)) = (self.store, found) else { return Ok(()) };
        if planted::is(Bug::IdentityIgnored) {
            return Ok(());
        }
        let Identity { vb, revision, .. } = self;
        let mismatch = |what: String| Err(Failure::Mismatch { vb, path: path.to_owned(), what });
        let Ok(found) = serde_json::from_slice::<Document>(found) else {
            return mismatch("it says in an unknown form whose file it is".to_owned());
        };
        if (found.vbucket, found.revision) != (vb.0, revision) {
            let Document { vbucket, revision: of, .. } = found;
            return mismatch(format!(
                "it is revision {of} of vBucket {vbucket}, not revision {revision} of {vb}"
            ));
        }
        if found.store != store.to_string() {
            return mismatch(format!("it is of store {}, this folder is store {store}", found.store));
        }
        Ok(())
    }
}
