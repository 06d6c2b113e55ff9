//! Why a bucket cannot be run, or its files cannot be removed.

use std::io;
use std::path::PathBuf;

use base::SmallFileError;
use base::encryption::KeyError;

use crate::data_dir::DataDirError;

/// The most buckets that a node may have while more are made: each has its threads.
pub const MOST_BUCKETS: usize = 30;

/// Why a bucket cannot be run, or its files cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum HostFailure {
    /// It cannot be opened or closed.
    #[error("bucket {name}: {source}")]
    Bucket {
        /// The bucket.
        name: String,
        /// What happened.
        source: engine::Failure,
    },
    /// The list of buckets.
    #[error(transparent)]
    List(#[from] SmallFileError),
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The keys that its files are encrypted with.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// Its files are still there.
    #[error("cannot remove {}: {source}; it is tried again at the next start", path.display())]
    Remove {
        /// Its folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There are files of a bucket of which nobody says what it is.
    #[error(
        "the folder of data has a bucket {0} that came from a configuration or a flag: name it in the configuration \
         file, such as buckets = [\"{0}:256MiB\"], so that the node can bring it into its cluster"
    )]
    NotNamed(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// A thread ended in a way it must not.
    #[error("a thread of the bucket panicked")]
    Panicked,
    /// A bucket of the configuration has a larger quota than there is memory.
    #[error(
        "bucket {name}: a quota of {} MiB is more than {of}, {} MiB: give it less, as --bucket {name}:{}MiB",
        .quota_bytes >> 20, .most >> 20, .most >> 21
    )]
    Quota {
        /// The bucket.
        name: String,
        /// Its quota.
        quota_bytes: u64,
        /// The most that it may be.
        most: u64,
        /// What says so.
        of: &'static str,
    },
    /// The buckets of a configuration have more together than there is memory.
    #[error(
        "the quotas of the buckets are {} MiB together ({names}), and {of} {} MiB: give them less, or raise memory-quota",
        .quota_bytes >> 20, .most >> 20
    )]
    Quotas {
        /// The buckets.
        names: String,
        /// Their quotas together.
        quota_bytes: u64,
        /// The most that those may be.
        most: u64,
        /// What says so.
        of: &'static str,
    },
    /// It was opened before, and its files are not in their place.
    #[error(
        "bucket {name}: {what}: mount its volume, or put the folder back from a backup, and start the node again; \
         `stave check --repair` takes what is found there instead, and what is missing is lost"
    )]
    Gone {
        /// The bucket.
        name: String,
        /// What is there instead.
        what: String,
    },
    /// A bucket of this name was deleted, and its files are still there.
    #[error("{} holds files of a deleted bucket that cannot be removed: remove the folder", .0.display())]
    NotRemoved(PathBuf),
    /// More than one bucket failed, or one failed in more than one way.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<HostFailure>),
}

impl HostFailure {
    /// This failure, and that of cleaning up behind it.
    pub(super) fn and(self, cleaned: Result<(), HostFailure>) -> HostFailure {
        match cleaned {
            Ok(()) => self,
            Err(second) => HostFailure::Several(vec![self, second]),
        }
    }
}
