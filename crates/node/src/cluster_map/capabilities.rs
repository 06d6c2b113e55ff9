//! What clients may rely on in a bucket.

use engine::BucketKind;
use kvstore::StorageBackend;

/// What clients may rely on in a bucket of a kind: each name unlocks something in some client, so only what works there
/// stands here.
pub fn capabilities(kind: BucketKind, backend: StorageBackend) -> Vec<&'static str> {
    let of_disk: &[&str] = match (kind, backend) {
        (BucketKind::Ephemeral, _) => &[],
        (BucketKind::Persistent, StorageBackend::Couchstore | StorageBackend::RocksDb) => &["rangeScan"],
        (BucketKind::Persistent, StorageBackend::LogStructured) => &["nonDedupedHistory", "rangeScan"],
    };
    let mut all = [&CAPABILITIES, of_disk].concat();
    all.sort_unstable();
    all
}

/// Those of every kind.
const CAPABILITIES: [&str; 18] = [
    "cbhello",
    "cccp",
    "collections",
    "dcp",
    "dcp.IgnorePurgedTombstones",
    "durableWrite",
    "nodesExt",
    "preserveExpiry",
    "snappy",
    "subdoc.AccessDeleted",
    "subdoc.BinaryXattr",
    "subdoc.DocumentMacroSupport",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.ReplicaRead",
    "subdoc.ReviveDocument",
    "tombstonedUserXAttrs",
    "touch",
    "xattr",
];
