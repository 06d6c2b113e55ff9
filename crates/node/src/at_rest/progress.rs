//! Looks at how far the files of buckets are encrypted: what is still in clear after encryption was switched on, and what is
//! still under an earlier key.
//!
//! *Guarantee:* the figures are of the files themselves, not of what was asked for: each was opened and its head was read.
//! They are as old as [`last`] allows; [`look`] reads the files again.

use std::io;

use base::encryption::files_by_key;

use crate::encryption_progress::{EncryptionProgress, ProgressLook};
use crate::node::Node;

/// Looks at the files of a bucket now; blocks while the disk works. `None` on a node that encrypts nothing, and if the bucket
/// is not open.
///
/// # Errors
///
/// A file cannot be read.
pub fn look(node: &Node, bucket: &str) -> Option<io::Result<EncryptionProgress>> {
    let (data_dir, env) = (node.host()?.data_dir(), node.env().beneath());
    let known = data_dir.keys();
    let (keys, of_node) = {
        let rings = known.rings.lock();
        let of_node = rings.get(super::OF_NODE).and_then(|ring| ring.keys().active());
        (rings.get(bucket)?.keys().clone(), of_node)
    };
    // Before the files: a change meanwhile is looked for again.
    let (at, key_changes, active) = (env.clock.monotonic(), keys.changes(), keys.active());
    let by_key = match files_by_key(&*env.disk, &data_dir.bucket(bucket)) {
        Ok(by_key) => by_key,
        Err(error) => {
            known.looks.lock().remove(bucket);
            return Some(Err(error));
        }
    };
    let found = EncryptionProgress::of(&by_key, active, of_node, keys.ids().len());
    let rings = known.rings.lock();
    // One that was deleted meanwhile is not remembered.
    if rings.contains_key(bucket) {
        known.looks.lock().insert(bucket.to_owned(), ProgressLook { at, key_changes, found });
    }
    Some(Ok(found))
}

/// What the last look at a bucket's files found; memory alone. `None` as long as there was none.
pub fn last(node: &Node, bucket: &str) -> Option<EncryptionProgress> {
    let data_dir = node.host()?.data_dir();
    let looks = data_dir.keys().looks.lock();
    looks.get(bucket).map(|look| look.found)
}

/// The buckets whose files have to be looked at again; memory alone.
pub fn due(node: &Node) -> Vec<String> {
    let Some(host) = node.host() else { return Vec::new() };
    let (known, now) = (host.data_dir().keys(), node.env().clock.monotonic());
    let rings = known.rings.lock();
    let looks = known.looks.lock();
    let is_due = |name: &str, changes| looks.get(name).is_none_or(|look| look.is_over(now, changes));
    let due = rings.iter().filter(|(name, ring)| is_due(name, ring.keys().changes()));
    let names =
        due.map(|(name, _)| name.clone()).filter(|name| name != super::OF_NODE && name != super::OF_LOG);
    names.collect()
}

/// Looks at the files of these buckets, one after the other; blocks while the disk works.
pub fn look_at(node: &Node, buckets: &[String]) {
    for bucket in buckets {
        if let Some(Err(error)) = look(node, bucket) {
            tracing::debug!(bucket, %error, "how far its files are encrypted cannot be told");
        }
    }
}
