//! The stores that are put on trial.

use std::path::Path;

use base::env::Env;
use kvstore::{Couch, CouchConfig, Failure, KvStore};

use super::Subject;

/// A file for each vBucket; every batch commits in its file. Small nodes, so that small trees are deep; few open
/// files, so that they are opened again.
pub fn couch() -> Subject<'static> {
    Subject { name: "couch", open: &open_couch, trusts_last_header: true }
}

fn open_couch(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    let tuning = couchstore::Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true };
    Ok(Box::new(Couch::open(env, dir, CouchConfig { max_open_files: 2, tuning })?))
}

/// All of them.
pub fn all() -> Vec<Subject<'static>> {
    vec![couch()]
}
