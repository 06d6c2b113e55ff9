//! The stores that are put on trial.

use std::path::Path;
use std::time::Duration;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::{Env, SimHandles};
use kvstore::{
    CompactionSteps, Couch, CouchConfig, Failure, FilesConfig, Journaled, JournaledConfig, KvStore, Log,
    LogConfig,
};

use super::Subject;

/// A file for each vBucket; every batch commits in its file. Small nodes, so that small trees are deep; few open
/// files, so that they are opened again.
pub fn couch() -> Subject<'static> {
    Subject {
        name: "couch",
        open: &open_couch,
        open_closed: &open_couch,
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

/// A log-structured store without a journal. Small blocks would change its format; everything else is small, so that
/// files are merged and rewritten after a few batches.
pub fn log() -> Subject<'static> {
    Subject {
        name: "log",
        open: &open_log,
        open_closed: &open_log,
        rolls_back_exactly: false,
        trusts_last_header: false,
        ..couch()
    }
}

fn open_log(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    Ok(Box::new(Log::open(env, dir, log_config())?))
}

/// A log-structured store so small that files are merged and rewritten after a few batches.
pub fn small_log(step_bytes: u64, small_segment_bytes: u64, rewrite_bytes: u64) -> LogConfig {
    LogConfig {
        store: logstore::Config {
            shards: 2,
            most_open_files: 2,
            cache_bytes: 32 << 10,
            kept_points: 5,
            most_superseded: 20,
            manifest_bytes: 2 << 10,
            step_bytes,
            merge_runs: 3,
            small_run_bytes: 600,
            waste_percent: 25,
            small_segment_bytes,
            small_segments: 4,
            rewrite_bytes,
            ..logstore::Config::default()
        },
        ..LogConfig::default()
    }
}

fn log_config() -> LogConfig {
    small_log(300, 1 << 10, 4 << 10)
}

/// The same behind a journal.
pub fn journaled_log() -> Subject<'static> {
    Subject { name: "journaled log", open: &open_journaled_log, ..log() }
}

fn open_journaled_log(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    let config = JournaledConfig {
        files: FilesConfig::Log(log_config()),
        journal_bytes: 128 << 10,
        file_after: Duration::ZERO,
    };
    Ok(Box::new(Journaled::open(env, dir, config)?))
}

/// The same with encrypted files.
pub fn encrypted_journaled_log() -> Subject<'static> {
    let open = &open_encrypted_journaled_log;
    Subject { name: "encrypted journaled log", open, world: encrypted, ..journaled_log() }
}

fn open_encrypted_journaled_log(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    open_journaled_log(encrypted(env), dir)
}

/// All of them.
pub fn all() -> Vec<Subject<'static>> {
    let couch = [couch(), journaled(), encrypted_couch(), encrypted_journaled()];
    couch.into_iter().chain([log(), journaled_log(), encrypted_journaled_log()]).collect()
}
