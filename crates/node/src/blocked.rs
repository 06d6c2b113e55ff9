//! Threads of the node's buckets that do not go on, and calls of the disk that do not end (record 0216).

use std::sync::Arc;

use engine::{Blocked, Bucket, blocked_threads, tell_blocked};

use crate::node::Node;

/// Looks at the threads of all buckets, and logs what begins and what is over. To be called every few seconds.
///
/// While a call of the disk does not end, threads of any bucket may wait for what that call is part of: the call is told
/// alone.
pub fn look(node: &Node) -> Vec<(Arc<Bucket>, Vec<Blocked>)> {
    let of = |bucket: &Arc<Bucket>| (Arc::clone(bucket), blocked_threads(bucket));
    let mut found: Vec<_> = node.buckets().iter().map(|(_, bucket)| of(bucket)).collect();
    let is_disk = found.iter().flat_map(|(_, blocked)| blocked).any(|one| one.call.is_some());
    for (bucket, blocked) in &mut found {
        blocked.retain(|one| !is_disk || one.call.is_some());
        tell_blocked(bucket, blocked, is_disk);
    }
    found
}

/// What an operator has to know of it, a line for each bucket and kind.
pub(crate) fn lines(node: &Node) -> Vec<String> {
    let line = |bucket: &Bucket, one: &Blocked| {
        let (name, Blocked { task, does, for_s, .. }) = (bucket.name(), one);
        match one.call {
            Some(call) => format!(
                "bucket {name}: the disk has not ended {} for {for_s} s, for which the {task} waits: changes may stay in \
                 memory alone meanwhile; look at the disk",
                call.name()
            ),
            None => format!(
                "bucket {name}: the {task} (\"{does}\") has not gone on for {for_s} s, and waits for no disk: report it with \
                 `stave collect`, then restart the node"
            ),
        }
    };
    let found = look(node);
    let firsts = found.iter().filter_map(|(bucket, blocked)| Some(line(bucket, blocked.first()?)));
    firsts.collect()
}
