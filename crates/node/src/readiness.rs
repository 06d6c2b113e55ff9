//! What a node does not serve of what the cluster map gives it, and what is wrong with it.

use std::sync::Arc;

use base::{VbId, VbState};
use engine::Bucket;

use crate::blocked;
use crate::cluster_map::BucketLayout;
use crate::node::Node;

/// This number of vBuckets is named in one line; of the others their number is told.
const NAMED: usize = 8;

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The node's operator: all of it.
    Operator,
    /// Clients that nobody knows: what is wrong, and no paths and names of keys, which reasons have.
    Everybody,
}

impl Audience {
    fn why(self, reason: &str) -> &str {
        if self == Audience::Operator { reason } else { "the log of the node says why" }
    }
}

/// What the node should serve and does not, a line for each bucket.
pub fn unserved(node: &Node, told: Audience) -> Vec<String> {
    let mut lines = down(node, told);
    let maps = node.cluster_map();
    let layout = maps.layout();
    for (_, bucket) in node.buckets() {
        let of_bucket = layout.buckets.iter().find(|of| of.name == bucket.name());
        let missing: Vec<VbId> = match (of_bucket, layout.this_node) {
            (Some(of), Some(this)) => missing(&bucket, of, this),
            _ => Vec::new(),
        };
        if missing.is_empty() {
            continue;
        }
        let unreadable = bucket.unreadable();
        let reason = unreadable.iter().find(|(vb, _)| missing.contains(vb));
        let reason = reason.map_or(without_reason(node), |(_, reason)| told.why(reason));
        lines.push(format!("bucket {}: {} not served: {reason}", bucket.name(), list(&missing)));
    }
    lines
}

/// Why vBuckets are not served whose files are not to blame: only a cluster makes them active later.
fn without_reason(node: &Node) -> &'static str {
    let is_member = node.host().is_some_and(|host| host.config().is_member);
    if is_member {
        "they are not active here yet"
    } else {
        "they are not active here, and the node is in no cluster"
    }
}

/// Whether the node does not serve something yet that may come without anybody doing anything about it.
pub fn may_come(node: &Node) -> bool {
    let maps = node.cluster_map();
    let layout = maps.layout();
    let Some(this) = layout.this_node else { return false };
    node.buckets().iter().any(|(_, bucket)| {
        let Some(of) = layout.buckets.iter().find(|of| of.name == bucket.name()) else { return false };
        let missing = missing(bucket, of, this);
        let unreadable = if missing.is_empty() { Vec::new() } else { bucket.unreadable() };
        missing.iter().any(|vb| unreadable.iter().all(|(of, _)| of != vb))
    })
}

/// vBuckets for which the map names this node, and which are not active.
fn missing(bucket: &Bucket, of: &BucketLayout, this: u16) -> Vec<VbId> {
    let ours = of.rows.iter().enumerate().filter(|(_, row)| row.first() == Some(&Some(this)));
    let ours = ours.filter_map(|(vb, _)| u16::try_from(vb).ok()).map(VbId);
    ours.filter(|vb| bucket.state_of(*vb) != Some(VbState::Active)).collect()
}

/// What an operator has to mend, a line each.
pub fn problems(node: &Node, told: Audience) -> Vec<String> {
    let mut lines = down(node, told);
    lines.extend(node.buckets().iter().flat_map(|(_, bucket)| of_bucket(bucket, told)));
    lines.extend(blocked::lines(node));
    let audit = node.audit.figures();
    if audit.is_on && audit.is_failing {
        lines.push(
            "the audit log cannot be written, and with failurePolicy=refuse no client logs in: make room on its disk, or mend \
             its folder"
                .to_owned(),
        );
    }
    lines
}

fn of_bucket(bucket: &Arc<Bucket>, told: Audience) -> Vec<String> {
    let mut lines = Vec::new();
    let name = bucket.name();
    if bucket.flushing().save_stats().is_disk_full {
        lines.push(format!("bucket {name}: the disk is full, and changes are refused: make room"));
    }
    if bucket.eviction().is_full_of_metadata() {
        lines.push(format!(
            "bucket {name}: metadata alone fill the memory, and changes are refused when the quota is reached: raise the \
             bucket's memory quota, or set item_eviction_policy to full_eviction"
        ));
    }
    let unreadable = bucket.unreadable();
    if let Some((_, reason)) = unreadable.first() {
        let vbuckets: Vec<VbId> = unreadable.iter().map(|(vb, _)| *vb).collect();
        lines.push(format!("bucket {name}: {} dead: {}", list(&vbuckets), told.why(reason)));
    }
    lines
}

fn down(node: &Node, told: Audience) -> Vec<String> {
    let line = |(name, down): (String, crate::down::Down)| {
        format!("bucket {name} is down: {}", told.why(&down.reason))
    };
    node.served().down().into_iter().map(line).collect()
}

/// vBuckets in words.
fn list(vbuckets: &[VbId]) -> String {
    let named: Vec<String> = vbuckets.iter().take(NAMED).map(ToString::to_string).collect();
    let more = vbuckets.len() - named.len();
    let (word, is) = if vbuckets.len() == 1 { ("vBucket", "is") } else { ("vBuckets", "are") };
    let and_more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{word} {}{and_more} {is}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_named_and_many_counted() {
        let ids = |count: u16| (0..count).map(VbId).collect::<Vec<_>>();
        assert_eq!(list(&ids(1)), "vBucket 0 is");
        assert_eq!(list(&ids(3)), "vBuckets 0, 1, 2 are");
        assert_eq!(list(&ids(1024)), "vBuckets 0, 1, 2, 3, 4, 5, 6, 7 and 1016 more are");
    }
}
