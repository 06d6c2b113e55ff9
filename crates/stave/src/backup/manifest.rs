//! What a backup says of itself: its head and a line for each vBucket while it is made, its manifest when it is complete.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::block::BlockPlace;
use super::bucket_state::BucketSettings;

/// The first line of a backup's list of vBuckets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackupHead {
    /// The name of its folder.
    pub(super) id: String,
    /// In each of its blocks; drawn at random.
    pub(super) number: u64,
    /// The backup that it goes on from.
    pub(super) base: Option<String>,
    /// Seconds since 1970.
    pub(super) begun_s: u64,
    /// How many vBuckets the bucket has.
    pub(super) vbuckets: u16,
    /// The snapshot of the bucket that it is of; without one its vBuckets may be of different moments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<String>,
    /// Whether that was made before, and given to the backup: it does not end with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_given: bool,
}

/// What a backup has of one vBucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VbucketLine {
    /// Which.
    pub(crate) vb: u16,
    /// The history that it was in.
    pub(crate) uuid: u64,
    /// What is before or at this seqno is in the backups that this one goes on from; 0: there is nothing in them.
    pub(crate) from: u64,
    /// The seqno at which the state is consistent.
    pub(crate) to: u64,
    /// In the order of seqnos.
    pub(super) blocks: Vec<BlockPlace>,
    /// By number of the collection.
    pub(crate) counts: BTreeMap<u32, VersionCounts>,
}

/// How many versions of a collection's documents there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VersionCounts {
    pub(crate) documents: u64,
    pub(crate) tombstones: u64,
    /// Keys and values before compression.
    pub(crate) bytes: u64,
}

impl VersionCounts {
    pub(crate) fn add(&mut self, other: VersionCounts) {
        self.documents += other.documents;
        self.tombstones += other.tombstones;
        self.bytes += other.bytes;
    }
}

/// A complete backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupManifest {
    /// The name of its folder.
    pub(crate) id: String,
    pub(super) number: u64,
    /// The bucket's name.
    pub(crate) bucket: String,
    /// The backup that it goes on from; a full one has none.
    pub(crate) base: Option<String>,
    /// Seconds since 1970.
    pub(crate) begun_s: u64,
    /// The same.
    pub(crate) ended_s: u64,
    /// The version of Stave that made it.
    pub(crate) stave: String,
    /// How many vBuckets the bucket has.
    pub(crate) vbuckets: u16,
    /// The snapshot of the bucket that all of them are of; without one they may be of different moments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<String>,
    /// Whether the last write wins in the bucket.
    pub(crate) by_time: bool,
    /// Scopes and collections at the end, as *get collections manifest* answers.
    pub(crate) collections: serde_json::Value,
    /// Settings of the bucket at the end, by the fields of the form that makes one; empty if they could not be read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) settings: BucketSettings,
    /// Users and groups, with what checks passwords, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<serde_json::Value>,
    /// By number of the collection.
    pub(crate) counts: BTreeMap<u32, VersionCounts>,
    /// Bytes of each file of changes, beginning with number 1.
    pub(crate) files: Vec<u64>,
    /// Bytes and CRC-32C of the list of vBuckets.
    pub(super) lines: (u64, u32),
}

impl BackupManifest {
    /// All versions.
    pub(crate) fn total(&self) -> VersionCounts {
        let mut total = VersionCounts::default();
        self.counts.values().for_each(|counts| total.add(*counts));
        total
    }

    /// Bytes of its files of changes.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.files.iter().sum()
    }
}
