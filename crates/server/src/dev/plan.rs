//! Which node of a development cluster shall hold which vBucket.

use std::collections::BTreeMap;

use base::VbState;
use serde::{Deserialize, Serialize};

/// The nodes of each vBucket, the active one first.
pub(super) type Rows = Vec<Vec<u16>>;

/// What the cluster shall look like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Counts the changes.
    pub(super) revision: i64,
    /// Nodes that others took over from, by place.
    pub(super) failed_over: Vec<u16>,
    /// Where each bucket is.
    pub(super) buckets: BTreeMap<String, Placement>,
}

/// Where a bucket is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Placement {
    /// Its identity for clients.
    pub(super) uuid: String,
    /// Whether it has no files.
    pub(super) is_ephemeral: bool,
    /// Copies beside the active one that it shall have.
    pub(super) replicas: u8,
    /// The nodes of each vBucket.
    pub(super) rows: Rows,
}

/// Even rows: each node is active for as many vBuckets, and its replicas are spread over all others.
pub(super) fn even(vbuckets: u16, nodes: u16, replicas: u8) -> Rows {
    let others = nodes - 1;
    let row = |vb: u16| {
        let active = (u32::from(vb) * u32::from(nodes) / u32::from(vbuckets)) as u16;
        let replica = |at: u16| (active + 1 + (vb + at) % others) % nodes;
        std::iter::once(active).chain((0..others.min(u16::from(replicas))).map(replica)).collect()
    };
    (0..vbuckets).map(row).collect()
}

impl Plan {
    /// The role of a node's vBucket.
    pub(super) fn role(row: &[u16], node: u16) -> VbState {
        match row.iter().position(|other| *other == node) {
            Some(0) => VbState::Active,
            Some(_) => VbState::Replica,
            None => VbState::Dead,
        }
    }

    /// Others take over from a node: of the copies of each of its vBuckets the one that `best` prefers. False, and
    /// nothing is changed, if that would lose a vBucket.
    pub(super) fn fail_over(&mut self, node: u16, best: impl Fn(&str, usize, &[u16]) -> Option<u16>) -> bool {
        let mut buckets = self.buckets.clone();
        for (name, bucket) in &mut buckets {
            for (vb, row) in bucket.rows.iter_mut().enumerate() {
                let was_active = row.first() == Some(&node);
                row.retain(|other| *other != node);
                if !was_active {
                    continue;
                }
                let Some(new) = best(name, vb, row) else { return false };
                row.retain(|other| *other != new);
                row.insert(0, new);
            }
        }
        self.buckets = buckets;
        self.failed_over.push(node);
        true
    }

    /// A node that others took over from holds copies again, where there are fewer than there shall be.
    pub(super) fn recover(&mut self, node: u16) {
        self.failed_over.retain(|other| *other != node);
        for bucket in self.buckets.values_mut() {
            let wanted = 1 + usize::from(bucket.replicas);
            for row in bucket.rows.iter_mut().filter(|row| row.len() < wanted && !row.contains(&node)) {
                row.push(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_even_and_without_doubles() {
        for nodes in 1..=5u16 {
            for replicas in 0..=3u8 {
                let rows = even(1024, nodes, replicas);
                let mut copies = vec![(0i32, 0i32); usize::from(nodes)];
                for row in &rows {
                    assert_eq!(row.len(), 1 + usize::from(replicas).min(usize::from(nodes) - 1));
                    for (at, node) in row.iter().enumerate() {
                        assert!(!row[..at].contains(node), "{row:?}");
                        let count = &mut copies[usize::from(*node)];
                        if at == 0 { count.0 += 1 } else { count.1 += 1 }
                    }
                }
                let spread = |of: fn(&(i32, i32)) -> i32| {
                    copies.iter().map(of).max().unwrap_or(0) - copies.iter().map(of).min().unwrap_or(0)
                };
                assert!(spread(|count| count.0) <= 1, "{nodes} {replicas} {copies:?}");
                assert!(spread(|count| count.1) <= 4, "{nodes} {replicas} {copies:?}");
            }
        }
    }

    #[test]
    fn a_node_is_failed_over_if_nothing_is_lost_and_comes_back_as_replica() {
        let plan = |replicas| {
            let (uuid, rows) = ("0".repeat(32), even(8, 3, replicas));
            let bucket = Placement { uuid, is_ephemeral: false, replicas, rows };
            Plan { buckets: BTreeMap::from([("b".to_owned(), bucket)]), ..Plan::default() }
        };
        let last = |_: &str, _: usize, row: &[u16]| row.last().copied();
        let mut alone = plan(0);
        assert!(!alone.fail_over(1, last));
        assert_eq!(alone, plan(0));
        let mut failed = plan(2);
        assert!(failed.fail_over(1, last));
        assert!(failed.buckets["b"].rows.iter().all(|row| row.len() == 2 && !row.contains(&1)));
        failed.recover(1);
        assert!(failed.buckets["b"].rows.iter().all(|row| row[2] == 1) && failed.failed_over.is_empty());
    }
}
