//! The world misbehaving: what the engine could not do, and where.

use std::io;
use std::path::{Path, PathBuf};

/// Why a bucket could not be opened, written or closed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file of the bucket itself.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A small file of the bucket itself, or both of its copies.
    #[error(transparent)]
    SmallFile(#[from] base::SmallFileError),
    /// The store of documents.
    #[error(transparent)]
    Store(#[from] kvstore::Failure),
    /// The disk refused the last changes, which are therefore only in memory.
    #[error("bucket {bucket}: the last changes could not be written; see the errors before")]
    NotFlushed {
        /// The bucket.
        bucket: String,
    },
    /// Not all documents of a bucket were removed, since the node stops.
    #[error(
        "bucket {bucket}: {emptied} of {vbuckets} vBuckets are empty, and the others have all of their documents: remove \
         them again"
    )]
    GivenUp {
        /// The bucket.
        bucket: String,
        /// vBuckets of which the documents were removed.
        emptied: u16,
        /// How many it has.
        vbuckets: u16,
    },
    /// More than one vBucket failed.
    #[error("{}", named(.0))]
    Several(Vec<Failure>),
}

/// How many failures a message names; it counts the rest.
const NAMED: usize = 4;

fn named(failures: &[Failure]) -> String {
    let mut parts: Vec<String> = failures.iter().take(NAMED).map(ToString::to_string).collect();
    if failures.len() > NAMED {
        parts.push(format!("and {} more", failures.len() - NAMED));
    }
    parts.join("; ")
}

impl Failure {
    /// Whether what is on disk cannot be believed, whatever the disk does later.
    pub fn is_damage(&self) -> bool {
        match self {
            Failure::SmallFile(error) => error.is_damage(),
            Failure::Store(failure) => failure.is_damage(),
            Failure::Several(failures) => failures.iter().any(Failure::is_damage),
            Failure::Io { .. } | Failure::NotFlushed { .. } | Failure::GivenUp { .. } => false,
        }
    }

    /// What failed of several things that were all tried.
    pub(crate) fn all(outcomes: impl IntoIterator<Item = Result<(), Failure>>) -> Result<(), Failure> {
        let mut failures: Vec<Failure> = outcomes.into_iter().filter_map(Result::err).collect();
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => Err(Failure::Several(failures)),
        }
    }

    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Failure {
        Failure::Io { operation, path: path.to_owned(), source }
    }
}
