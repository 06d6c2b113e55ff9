//! How often a bucket of the cluster was emptied here, in the bucket's own folder: a second witness beside what is noted
//! of all buckets, so that documents are not removed again when that file is put back as it was before.

use std::path::Path;

use base::{SmallFile, SmallFileError};
use engine::Bucket;
use serde::{Deserialize, Serialize};

const FILE: &str = "flushes";

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushed {
    /// The bucket's identity in the cluster's document.
    uuid: String,
    /// The flushes of the document that were done here.
    flushes: u64,
}

/// The file, in the folder of a bucket; there is none before the first flush.
pub fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, FILE)
}

/// Understands the file's content.
pub fn parse(bytes: &[u8], _version: u16) -> Result<Flushed, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// How often this bucket was emptied, as its folder says; 0 if it says nothing of it. A damaged file says nothing, which
/// is told.
pub(super) fn done(local: &Bucket, bucket: &::cluster::Bucket) -> Result<u64, SmallFileError> {
    match file(&local.config().dir)
        .open(&*local.env().disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}"))
    {
        Ok(found) => Ok(found.filter(|found| found.uuid == bucket.uuid).map_or(0, |found| found.flushes)),
        Err(error) if error.is_damage() => {
            tracing::error!(
                event = "flush_count_lost", %error,
                "how often the bucket was emptied is only known from cluster-buckets.json"
            );
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

/// Notes durably that all flushes of the document are done, encrypted as the bucket is.
pub(super) fn note(local: &Bucket, bucket: &::cluster::Bucket) -> Result<(), SmallFileError> {
    let flushed = Flushed { uuid: bucket.uuid.clone(), flushes: bucket.flushes };
    let json = serde_json::to_vec(&flushed).expect("numbers and text");
    file(&local.config().dir).write(&*local.env().disk, &json)
}
