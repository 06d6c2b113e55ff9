//! Where the small files of a node are that other files of it tell of.

use std::path::{Path, PathBuf};

use base::SmallFile;

const BUCKET_LIST: &str = "buckets.json";
/// More than this is no list of ours.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Version 2 has what was opened.
const LIST_VERSION: u16 = 2;
const IDENTITY: &str = "node-uuid";
const REVISION: &str = "cluster-revision";

/// In a bucket's folder: what the bucket is, so that the list of buckets can be put together again. It is encrypted under the
/// keys of the folder of data, as the node writes it before it opens the bucket's.
pub const BUCKET: &str = "bucket.json";
/// In the folder of data: the cluster that the node founds.
pub(crate) const FOUNDING: &str = "cluster-founding";
/// In the folder of data: the users of the cluster, as the node has seen them.
pub(crate) const CLUSTER_USERS: &str = "cluster-users.json";

/// Where all buckets live in a data directory.
pub(crate) fn buckets_in(data: &Path) -> PathBuf {
    data.join("buckets")
}

/// The file that holds the list of a data directory.
pub fn bucket_list(folder: &Path) -> SmallFile {
    SmallFile::new(folder, BUCKET_LIST).of_version(LIST_VERSION).at_most(MAX_LIST_BYTES)
}

/// The file that says what the bucket of a folder is.
pub fn bucket(folder: &Path) -> SmallFile {
    SmallFile::new(folder, BUCKET)
}

/// The file that holds a node's identity.
pub fn identity(folder: &Path) -> SmallFile {
    SmallFile::new(folder, IDENTITY)
}

/// Counts starts, and changes of the cluster map.
pub fn revision(folder: &Path) -> SmallFile {
    SmallFile::new(folder, REVISION)
}
