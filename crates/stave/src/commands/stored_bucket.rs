//! A bucket's folder as a node would open it, for commands that read it and change nothing.

use std::path::Path;

use anyhow::Context;
use base::VbId;
use base::env::Env;
use kvstore::{Failure, Journaled, KvStore, Snapshot, StoredVb, open_to_read};
use node::data_dir::{DataDir, DataDirError};

use super::check::place::data_dir_of;

/// A bucket's folder that is read, of whichever store it is, with what its journal holds.
pub(super) struct StoredBucket {
    store: Journaled,
    /// vBuckets, lowest first.
    pub(super) vbuckets: Vec<(VbId, StoredVb)>,
    /// Those that a node would refuse, and why.
    pub(super) refused: Vec<(VbId, Failure)>,
    /// Held so that no node starts on the folder meanwhile.
    _lock: Option<DataDir>,
}

impl StoredBucket {
    /// Opens the folder `dir`.
    ///
    /// # Errors
    ///
    /// If a node runs on the folder, or a node would refuse all of it.
    pub(super) fn open(env: &Env, dir: &Path) -> anyhow::Result<StoredBucket> {
        let lock = data_dir_of(dir).map(|data_dir| hold(&data_dir)).transpose()?.flatten();
        let store = open_to_read(env, dir)?;
        let (mut vbuckets, mut refused) = (Vec::new(), Vec::new());
        for (vb, stored) in store.states()? {
            match stored {
                Ok(stored) => vbuckets.push((vb, stored)),
                Err(failure) => refused.push((vb, failure)),
            }
        }
        Ok(StoredBucket { store, vbuckets, refused, _lock: lock })
    }

    /// A vBucket as it is.
    pub(super) fn snapshot(&self, vb: VbId) -> anyhow::Result<Box<dyn Snapshot>> {
        self.store.snapshot(vb)?.with_context(|| format!("vBucket {vb} is not there any more"))
    }
}

/// Keeps nodes from a data directory while it is read; nothing is made in a folder that has no file to lock.
///
/// # Errors
///
/// If a node runs on it.
pub(super) fn hold(data_dir: &Path) -> anyhow::Result<Option<DataDir>> {
    DataDir::take_existing(data_dir).map_err(running)
}

/// Refuses the folder of a bucket whose documents are in two stores.
///
/// # Errors
///
/// If it is one, or if that cannot be told.
pub(super) fn refuse_moving(env: &Env, dir: &Path) -> anyhow::Result<()> {
    if kvstore::is_moving(&*env.disk, dir)? {
        anyhow::bail!(
            "the bucket in {} is being moved to another store, and its documents are in two: start the node, which ends \
             the move, or cancel it there (`stave migrate BUCKET --cancel`)",
            dir.display()
        );
    }
    Ok(())
}

/// Says of a folder that is in use what to do.
pub(super) fn running(error: DataDirError) -> anyhow::Error {
    match error {
        DataDirError::InUse { path } => {
            anyhow::anyhow!("a node runs on {}: stop it first, or use a copy", path.display())
        }
        other => other.into(),
    }
}
