//! What makes the document sound.

use std::collections::BTreeSet;

use super::bucket::{MAX_REPLICAS, present};
use super::{Bucket, Chain, FORMAT, MAX_BRANCHES, MAX_BUCKETS, MAX_DELETED, MAX_NODES, SINGLE, State, Step};
use crate::tenure::MAX_TENURES;

/// Why a document is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It is larger than it may be.
    #[error("a change of the cluster's state has {0} bytes, more than the coordination store takes at once")]
    TooLarge(usize),
    /// It cannot be read.
    #[error("the state is no document of a cluster: {0}")]
    Json(String),
    /// Another version of this program wrote it.
    #[error(
        "the cluster's state has format {0}, and this version of stave reads formats up to {FORMAT}: its nodes need one version"
    )]
    Format(u32),
    /// Too many of something.
    #[error("too many {0}")]
    TooMany(&'static str),
    /// Two nodes have one identity.
    #[error("two nodes have the identity {0}")]
    NodeTwice(String),
    /// A vBucket's row is wrong.
    #[error("bucket {bucket}, vBucket {vb}: {what}")]
    Row {
        /// The bucket.
        bucket: String,
        /// The vBucket.
        vb: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A bucket is wrong.
    #[error("bucket {0}: {1}")]
    Bucket(String, &'static str),
}

impl State {
    /// Whether everything fits together.
    pub fn check(&self) -> Result<(), Invalid> {
        if !(SINGLE..=FORMAT).contains(&self.format) {
            return Err(Invalid::Format(self.format));
        }
        if self.nodes.len() > MAX_NODES {
            return Err(Invalid::TooMany("nodes"));
        }
        if self.buckets.len() > MAX_BUCKETS {
            return Err(Invalid::TooMany("buckets"));
        }
        if self.deleted.len() > MAX_DELETED {
            return Err(Invalid::TooMany("deleted buckets"));
        }
        if self.branches.len() > MAX_BRANCHES {
            return Err(Invalid::TooMany("branches of the state"));
        }
        if self.tenures.len() > MAX_TENURES {
            return Err(Invalid::TooMany("tenures of the state"));
        }
        let mut uuids = BTreeSet::new();
        for node in self.nodes.values() {
            if !uuids.insert(&node.uuid) {
                return Err(Invalid::NodeTwice(node.uuid.clone()));
            }
        }
        self.buckets.iter().try_for_each(|(name, bucket)| self.check_bucket(name, bucket))
    }

    fn check_bucket(&self, name: &str, bucket: &Bucket) -> Result<(), Invalid> {
        let wrong = |what| Err(Invalid::Bucket(name.to_owned(), what));
        if !bucket.map.len().is_power_of_two() || bucket.map.len() > 1024 {
            return wrong("a power of two up to 1,024 of vBuckets is needed");
        }
        if usize::from(bucket.replicas) > MAX_REPLICAS {
            return wrong("more than three replicas");
        }
        if !bucket.target.is_empty() && bucket.target.len() != bucket.map.len() {
            return wrong("the target has another number of vBuckets than the map");
        }
        for (vb, chain) in bucket.map.iter().chain(&bucket.target).enumerate() {
            if let Some(what) = self.wrong_chain(chain) {
                let vb = vb % bucket.map.len();
                return Err(Invalid::Row { bucket: name.to_owned(), vb, what });
            }
        }
        let missing = bucket.missing.values().flatten();
        if missing.into_iter().any(|id| !self.nodes.contains_key(id)) {
            return wrong("a node that there is not is missing");
        }
        for (vb, step) in &bucket.steps {
            if usize::from(*vb) >= bucket.map.len() {
                return wrong("a step of a vBucket that there is not");
            }
            let is_move = !matches!(step, Step::Choose { .. } | Step::Settle { .. });
            if bucket.target.is_empty() && is_move {
                return wrong("a move without a target");
            }
        }
        Ok(())
    }

    fn wrong_chain(&self, chain: &Chain) -> Option<&'static str> {
        if chain.is_empty() || chain.len() > MAX_REPLICAS + 1 {
            return Some("a chain has one to four places");
        }
        // Of 30 buckets there are 30,000 chains: nothing is allocated here.
        if present(chain).any(|id| !self.nodes.contains_key(&id)) {
            return Some("a node that there is not");
        }
        let is_again = |at: usize| chain[at].is_some() && chain[..at].contains(&chain[at]);
        if (1..chain.len()).any(is_again) {
            return Some("two copies on one node");
        }
        if chain[0].is_none() && present(chain).next().is_some() {
            Some("replicas without an active node")
        } else {
            None
        }
    }
}
