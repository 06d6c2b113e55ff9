//! Everything that a bucket has of a vBucket, read through the bucket.

use std::collections::{BTreeMap, BTreeSet};

use base::{CollectionId, DocKey, Seqno, VbId, VbState, Version};
use engine::Bucket;
use sim::Fingerprint;

use super::model::collection;
use super::world::name_of;

/// How often a value is asked for until it is there.
const MOST_LOOKS: usize = 8;

/// One version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doc {
    pub seqno: Seqno,
    pub is_deleted: bool,
    /// Of value and metadata.
    pub whole: Fingerprint,
    pub value: Fingerprint,
}

impl Doc {
    pub fn of(version: &Version) -> Doc {
        Doc {
            seqno: version.meta().by_seqno,
            is_deleted: version.is_deleted(),
            whole: Fingerprint::of(version),
            value: Fingerprint::of_bytes([version.value()]),
        }
    }
}

/// A vBucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub state: VbState,
    pub failover: Vec<(u64, u64)>,
    pub high: Seqno,
    pub persisted: Seqno,
    pub purge: Seqno,
    pub max_cas: u64,
    pub topology: Option<String>,
    pub open: BTreeSet<u32>,
    pub docs: BTreeMap<Box<[u8]>, Doc>,
    pub prepares: BTreeMap<Box<[u8]>, (Seqno, Fingerprint)>,
}

impl Found {
    /// Reads all of it, if there is such a vBucket. `prepared` are keys that may have a prepare.
    pub fn read(bucket: &Bucket, vb: VbId, prepared: &[&str], wrong: &mut Vec<String>) -> Option<Found> {
        bring_values(bucket, vb, wrong);
        let read = |found: &vbucket::VBucket| {
            let entries = found.failover().entries().iter();
            let visible = found.table().iter().filter(|version| !found.collections().hides(version));
            let prepare = |key: &&str| {
                let name = name_of(key);
                let key = DocKey::new(&name);
                let prepare = found.sync_writes().prepared(key)?;
                Some((key.to_stored().0, (prepare.meta().by_seqno, Fingerprint::of(prepare))))
            };
            Found {
                state: found.state(),
                failover: entries.map(|entry| (entry.uuid.0, entry.seqno.0)).collect(),
                high: found.high_seqno(),
                persisted: found.persisted_seqno(),
                purge: found.purge_seqno(),
                max_cas: found.max_cas().0,
                topology: found.topology().map(ToString::to_string),
                open: found.collections().open().map(|one| one.id.0).collect(),
                docs: visible.map(|version| (version.stored_key().into(), Doc::of(&version))).collect(),
                prepares: prepared.iter().filter_map(prepare).collect(),
            }
        };
        bucket.inspect(vb, read)
    }

    /// Whether the collection of a key is there.
    pub fn is_open(&self, key: &[u8]) -> bool {
        collection(key) == CollectionId::DEFAULT || self.open.contains(&collection(key).0)
    }
}

/// Reads the values that are not in memory.
fn bring_values(bucket: &Bucket, vb: VbId, wrong: &mut Vec<String>) {
    for _ in 0..MOST_LOOKS {
        let hollow = bucket.inspect(vb, |found| {
            let hollow = found.table().iter().filter(|version| !version.is_resident());
            hollow.map(|version| version.stored_key().to_vec()).collect::<Vec<_>>()
        });
        let hollow = hollow.unwrap_or_default();
        if hollow.is_empty() {
            return;
        }
        for key in hollow {
            let waiting = bucket.fetching().fetch(vb, DocKey::parse(&key).expect("it was stored"));
            bucket.fetching().fetch_step();
            drop(waiting);
        }
    }
    wrong.push(format!("{vb}: values cannot be read although the disk is well"));
}

/// Brings documents that may have left memory as a whole back into it. Of active vBuckets the filter says first whether
/// they may be on disk.
pub fn bring_whole<'k>(
    bucket: &Bucket,
    vb: VbId,
    keys: impl Iterator<Item = &'k Box<[u8]>>,
    wrong: &mut Vec<String>,
) {
    let state = bucket.inspect(vb, |found| found.state());
    for key in keys {
        let key = DocKey::parse(key).expect("it was stored");
        let is_asked = match state {
            Some(VbState::Active) => {
                matches!(bucket.documents().get(vb, key, bucket.now()), Err(engine::Refusal::NotResident))
            }
            Some(VbState::Replica) => true,
            _ => false,
        };
        if !is_asked {
            continue;
        }
        let waiting = bucket.fetching().fetch(vb, key);
        bucket.fetching().fetch_step();
        if waiting.is_ok_and(|waiting| matches!(waiting.try_take(), Some(engine::Fetched::Failed))) {
            wrong.push(format!("{vb}: a document cannot be read although the disk is well"));
        }
    }
}
