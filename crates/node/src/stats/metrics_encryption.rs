//! The metrics of encryption at rest: what of a bucket's files is in clear, or under an earlier key.

use std::fmt;

use super::page::{Kind, Page};
use crate::at_rest::progress;
use crate::encryption_progress::EncryptionProgress;
use crate::node::Node;

type ProgressFamily = (&'static str, &'static str, fn(&EncryptionProgress) -> u64);

const FAMILIES: [ProgressFamily; 6] = [
    ("stave_encryption_files", "Files of a bucket on a node that encrypts.", |of| of.all.files),
    ("stave_encryption_bytes", "Bytes of these files.", |of| of.all.bytes),
    ("stave_encryption_clear_files", "Those of them that are in clear.", |of| of.in_clear.files),
    ("stave_encryption_clear_bytes", "Bytes of those in clear.", |of| of.in_clear.bytes),
    (
        "stave_encryption_outdated_files",
        "Those that are not as new ones would be: in clear, under an earlier key, or encrypted in a bucket that is plain now.",
        |of| of.outdated.files,
    ),
    ("stave_encryption_outdated_bytes", "Bytes of these.", |of| of.outdated.bytes),
];

/// A bucket has a sample once its files were looked at.
pub(super) fn put(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    let buckets = node.buckets();
    let found: Vec<(&str, EncryptionProgress)> = buckets
        .iter()
        .filter_map(|(spec, _)| Some((&*spec.name, progress::last(node, &spec.name)?)))
        .collect();
    for (name, help, value) in FAMILIES {
        page.head(name, Kind::Gauge, help)?;
        for (bucket, of) in &found {
            page.sample(name, &[("bucket", bucket)], value(of))?;
        }
    }
    Ok(())
}
