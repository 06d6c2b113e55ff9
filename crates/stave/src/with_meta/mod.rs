//! Documents that are sent with their metadata, so that they keep CAS, revision and expiry: by imports and restores.
//!
//! # Guarantees
//!
//! - Each record that [`Sender::send`] takes is counted once: as stored, as a conflict or as left out.
//! - A record can be sent again: what is there already is left alone, or replaced by itself.

mod collections;
mod conflicts;
mod sender;

use std::collections::BTreeMap;

use anyhow::Context;
use base::{Datatype, DocKey};
use serde_json::{Value, json};

use crate::client::Client;
use crate::units::thousands;

pub(crate) use collections::{Collections, SourceCollection, create as create_collections};
pub(crate) use conflicts::ConflictLog;
pub(crate) use sender::Sender;

/// What happens to documents that the bucket has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Conflict {
    /// The one that was changed more often stays, as between clusters; also called newest
    #[value(alias = "newest")]
    Resolve,
    /// The bucket's stays; tombstones are left out
    Skip,
    /// The file's replaces it; also called force
    #[value(alias = "force")]
    Overwrite,
}

/// What happens to documents of collections that the bucket lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// They are left out, and the command fails at its end.
    Fail,
    /// They are left out.
    Skip,
    /// The collections are made.
    Create,
}

/// What became of records.
#[derive(Debug, Default)]
pub(crate) struct SentCounts {
    pub(crate) documents: u64,
    pub(crate) tombstones: u64,
    /// The bucket's were kept.
    pub(crate) conflicts: u64,
    /// Of those the bucket had exactly what was sent; only known if conflicts are logged.
    pub(crate) had_already: u64,
    pub(crate) skipped: BTreeMap<Skipped, u64>,
    /// Documents that were skipped because the bucket lacks their collection, by its name.
    pub(crate) unknown: BTreeMap<String, u64>,
}

impl SentCounts {
    /// Adds what was sent in another attempt.
    pub(crate) fn add(&mut self, other: &SentCounts) {
        self.documents += other.documents;
        self.tombstones += other.tombstones;
        self.conflicts += other.conflicts;
        self.had_already += other.had_already;
        other.skipped.iter().for_each(|(why, count)| *self.skipped.entry(*why).or_default() += count);
        other
            .unknown
            .iter()
            .for_each(|(name, count)| *self.unknown.entry(name.clone()).or_default() += count);
    }

    /// Each count with its name, for people.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![
            ("documents", self.documents),
            ("tombstones", self.tombstones),
            ("left as the bucket had them", self.conflicts),
        ];
        if self.had_already > 0 {
            rows.push(("of these, had just that already", self.had_already));
        }
        rows.extend(self.skipped.iter().map(|(why, count)| (why.text(), *count)));
        rows.into_iter().map(|(name, count)| (name, thousands(count))).collect()
    }

    /// The same as a JSON object.
    pub(crate) fn json(&self) -> Value {
        let skipped: serde_json::Map<_, _> =
            self.skipped.iter().map(|(why, count)| (why.name().to_owned(), json!(count))).collect();
        json!({
            "documents": self.documents,
            "tombstones": self.tombstones,
            "conflicts": self.conflicts,
            "had_already": self.had_already,
            "skipped": skipped,
            "unknown_collections": self.unknown,
        })
    }
}

/// Whether the last write wins in a bucket, which it has from its beginning.
pub(crate) fn resolves_by_time(client: &mut Client) -> anyhow::Result<bool> {
    let config = client.stats("config").context("cannot ask how conflicts are resolved")?;
    Ok(config.iter().any(|(name, value)| name == "ep_conflict_resolution_type" && value == "lww"))
}

/// Why a record is not in the bucket afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Skipped {
    Prepare,
    SystemEvent,
    UnknownCollection,
    Tombstone,
    Unreadable,
    DroppedCollection,
    NotAskedFor,
}

impl Skipped {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Skipped::Prepare => "prepares",
            Skipped::SystemEvent => "system_events",
            Skipped::UnknownCollection => "unknown_collections",
            Skipped::Tombstone => "tombstones",
            Skipped::Unreadable => "unknown_forms",
            Skipped::DroppedCollection => "dropped_collections",
            Skipped::NotAskedFor => "not_asked_for",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Skipped::Prepare => "skipped: durable writes not committed",
            Skipped::SystemEvent => "skipped: events of collections",
            Skipped::UnknownCollection => "skipped: collection is not in the bucket",
            Skipped::Tombstone => "skipped: tombstones, because of --conflict",
            Skipped::Unreadable => "skipped: key or metadata of an unknown form",
            Skipped::DroppedCollection => "skipped: collection was dropped before the backup ended",
            Skipped::NotAskedFor => "skipped: not asked for",
        }
    }
}

/// A document or tombstone.
pub(crate) struct Record<'a> {
    pub(crate) key: DocKey<'a>,
    pub(crate) deleted: bool,
    pub(crate) expired: bool,
    pub(crate) cas: u64,
    pub(crate) rev_seqno: u64,
    pub(crate) expiry: u32,
    pub(crate) flags: u32,
    pub(crate) datatype: Datatype,
    pub(crate) value: &'a [u8],
}
