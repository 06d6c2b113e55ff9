//! Other keys for a node's files while it runs.

use std::io;

use base::encryption::{KeyError, KeyRing, WrappingKeys};

use super::{OF_LOG, wrap_removed_again};
use crate::node::Node;
use crate::node_files::buckets_in;

/// Has each folder of a node encrypt new files with a new key; files that are there follow by and by. Returns how many
/// folders have one now: 0 if the node encrypts nothing. Blocks while the disk works.
///
/// # Errors
///
/// The first failure. The other folders have new keys, and those that failed go on with theirs.
pub fn rotate(node: &Node) -> Result<usize, KeyError> {
    let (Some(host), env) = (node.host(), node.env().beneath()) else { return Ok(0) };
    host.data_dir().keys().each(|ring| ring.rotate(&env).map(drop))
}

/// Has the keys of all folders of a node wrapped with the first of other wrapping keys. Blocks while the disk works.
///
/// # Errors
///
/// What was not wrapped again, and why: the next start needs the earlier wrapping key, too.
pub(crate) fn rewrap(node: &Node, wrapping: &WrappingKeys) -> Result<(), String> {
    let (Some(host), env) = (node.host(), node.env().beneath()) else { return Ok(()) };
    let (keys, data) = (host.data_dir().keys(), host.data_dir().path());
    let _none_is_opened = keys.opening.write();
    let wrapped = keys.each(|ring| ring.rewrap(&env, wrapping));
    // Folders that are made from now on, and those that were wrapped again, are under the new one.
    *keys.wrapping.lock() = Some(wrapping.clone());
    let mut left: Vec<String> = wrapped.err().map(|error| error.to_string()).into_iter().collect();
    // Buckets that are down, or not opened yet, have their keys in their folders alone.
    let buckets = buckets_in(data);
    match env.disk.read_dir(&buckets) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => left.push(format!("{}: {error}", buckets.display())),
        Ok(names) => {
            let closed = names.into_iter().filter(|name| !keys.rings.lock().contains_key(name));
            left.extend(closed.filter_map(|name| {
                let place = format!("the bucket {name}");
                let wrapped = KeyRing::wrap_again(&env, &buckets.join(&name), &place, wrapping);
                wrapped.err().map(|error| error.to_string())
            }));
        }
    }
    left.extend(wrap_removed_again(&env, data, wrapping));
    if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
}

/// Has a node exchange the keys of its process's log with its own.
pub fn add_log(node: &Node, ring: KeyRing) {
    if let Some(host) = node.host() {
        host.data_dir().keys().put(OF_LOG, ring);
    }
}
