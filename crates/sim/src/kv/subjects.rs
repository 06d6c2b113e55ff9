//! The stores that are put on trial.

use std::path::Path;
use std::time::Duration;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::{Env, SimHandles};
use kvstore::{
    CompactionSteps, Couch, CouchConfig, Failure, FilesConfig, Journaled, JournaledConfig, KvStore,
};

use super::Subject;

/// A file for each vBucket; every batch commits in its file. Small nodes, so that small trees are deep; few open
/// files, so that they are opened again.
pub fn couch() -> Subject<'static> {
    Subject {
        name: "couch",
        open: &open_couch,
        world: |env| env,
        trusts_last_header: true,
        rolls_back_exactly: true,
    }
}

pub(super) fn open_couch(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    Ok(Box::new(Couch::open(env, dir, couch_config())?))
}

fn couch_config() -> CouchConfig {
    let tuning = couchstore::Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true };
    let compaction = CompactionSteps { step_bytes: 300, last_changes: 2 };
    CouchConfig { max_open_files: 2, tuning, compaction }
}

/// The same behind a journal of small segments, which are recycled after a few batches. Whatever is in the journal may
/// be filed at once, in any background step.
pub fn journaled() -> Subject<'static> {
    Subject {
        name: "journaled",
        open: &open_journaled,
        trusts_last_header: false,
        rolls_back_exactly: false,
        ..couch()
    }
}

fn open_journaled(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    let config = JournaledConfig {
        files: FilesConfig::Couch(couch_config()),
        journal_bytes: 128 << 10,
        file_after: Duration::ZERO,
    };
    Ok(Box::new(Journaled::open(env, dir, config)?))
}

/// The first one with encrypted files.
pub fn encrypted_couch() -> Subject<'static> {
    Subject { name: "encrypted couch", open: &open_encrypted_couch, world: encrypted, ..couch() }
}

fn open_encrypted_couch(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    open_couch(encrypted(env), dir)
}

/// The second one with encrypted files.
pub fn encrypted_journaled() -> Subject<'static> {
    Subject { name: "encrypted journaled", open: &open_encrypted_journaled, world: encrypted, ..journaled() }
}

fn open_encrypted_journaled(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    open_journaled(encrypted(env), dir)
}

/// The same key after every restart.
fn encrypted(env: Env) -> Env {
    EncryptedDisk::env(&env, DataKeys::ephemeral(&SimHandles::new(0).env()))
}

/// All of them.
pub fn all() -> Vec<Subject<'static>> {
    vec![couch(), journaled(), encrypted_couch(), encrypted_journaled()]
}
