//! What a node says of a bucket that goes to another store: each node moves what it has itself, and the cluster's state says
//! where to (docs/adr/0210-a-cluster-changes-the-store-of-a-bucket.md).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a node does with its part of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreStage {
    /// It has not begun, and `failure` may say why.
    Waiting,
    /// vBuckets are copied to the store that the bucket goes to.
    Copying,
    /// vBuckets go back, because the node had begun to move them to the other store.
    Returning,
    /// All are in one store, and the files of the other one go.
    Ending,
    /// All are in the store that the bucket goes to, and the node's list of buckets says so.
    Done,
    /// What a later version says; it is not over.
    #[serde(other)]
    Unknown,
}

/// How far a node is with a bucket that goes to another store. It is the same text as long as nothing has changed, and short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// What it does.
    pub stage: StoreStage,
    /// vBuckets that are where they are to be.
    #[serde(default)]
    pub vbuckets: u64,
    /// vBuckets that there are.
    #[serde(default)]
    pub of_vbuckets: u64,
    /// Records that were copied since the move began, or the node started.
    #[serde(default)]
    pub items: u64,
    /// For how long, in milliseconds.
    #[serde(default)]
    pub millis: u64,
    /// vBuckets that cannot be moved, and why: the first ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<u16, String>,
    /// vBuckets of which something still reads the store that is given up: the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<u16>,
    /// For how long the node waits for them at the most, in seconds.
    #[serde(default)]
    pub waits_s: u64,
    /// Why it does not go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl StoreReport {
    /// Of a node that has done nothing yet.
    pub fn waiting(of_vbuckets: u64, failure: Option<String>) -> StoreReport {
        StoreReport {
            stage: StoreStage::Waiting,
            vbuckets: 0,
            of_vbuckets,
            items: 0,
            millis: 0,
            left: BTreeMap::new(),
            waits_for: Vec::new(),
            waits_s: 0,
            failure,
        }
    }
}
