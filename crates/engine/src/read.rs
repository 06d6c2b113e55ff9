//! Reading documents.

use base::{Cas, DocKey, Moment, Seqno, VbId, VbState, VbUuid, Version};
use vbucket::{Basis, Change, Existence};

use crate::bucket::Bucket;
use crate::refusal::Refusal;

/// A document as a reader sees it.
pub struct Found {
    /// The version; hold it as long as needed, it never changes.
    pub version: Version,
    /// The CAS to show: all ones while it is locked.
    pub cas: Cas,
}

/// Where a vBucket's history stands (observe seqno).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The present history.
    pub uuid: VbUuid,
    /// What is on disk, synced.
    pub persisted_seqno: Seqno,
    /// The last change.
    pub high_seqno: Seqno,
    /// If the history asked about is an older one: where it ended.
    pub old_history_end: Option<Seqno>,
}

impl Bucket {
    /// Reads a living document of an active vBucket.
    pub fn get(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Found, Refusal> {
        self.get_in_state(vb, key, VbState::Active, now)
    }

    /// Reads a living document of a replica vBucket.
    pub fn get_replica(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Found, Refusal> {
        self.get_in_state(vb, key, VbState::Replica, now)
    }

    fn get_in_state(&self, vb: VbId, key: DocKey<'_>, state: VbState, now: Moment) -> Result<Found, Refusal> {
        let hash = self.hash(key);
        let found = {
            let mut shard = self.shard(vb)?;
            if shard.vb.state() != state {
                return Err(Refusal::NotMyVbucket);
            }
            let found = shard.vb.find(hash, key).filter(|v| !v.is_deleted()).map(|version| {
                version.prefetch_value();
                Found { cas: shard.vb.visible_cas(key, &version, now), version: version.clone() }
            });
            match &found {
                Some(_) => shard.ops.get_hits += 1,
                None => shard.ops.get_misses += 1,
            }
            found
        };
        match found {
            Some(found) if !found.version.is_expired(now) => Ok(found),
            Some(expired) => {
                self.expire(vb, hash, &expired.version, now);
                Err(Refusal::NotFound)
            }
            None => Err(Refusal::NotFound),
        }
    }

    /// Reads whatever there is for a key of an active vBucket: document, tombstone, or nothing.
    /// A document whose expiry time has passed is made a tombstone first.
    pub fn peek(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Option<Found>, Refusal> {
        self.peek_in_state(vb, key, VbState::Active, now)
    }

    /// Reads whatever there is for a key of an active vBucket as it is, expired or not.
    pub fn peek_as_is(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Option<Found>, Refusal> {
        let hash = self.hash(key);
        let shard = self.active(vb)?;
        Ok(shard
            .vb
            .find(hash, key)
            .map(|version| Found { cas: shard.vb.visible_cas(key, &version, now), version: version.clone() }))
    }

    pub(crate) fn peek_in_state(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        state: VbState,
        now: Moment,
    ) -> Result<Option<Found>, Refusal> {
        let hash = self.hash(key);
        for _ in 0..2 {
            let found = {
                let shard = self.shard(vb)?;
                if shard.vb.state() != state {
                    return Err(Refusal::NotMyVbucket);
                }
                shard.vb.find(hash, key).map(|version| Found {
                    cas: shard.vb.visible_cas(key, &version, now),
                    version: version.clone(),
                })
            };
            match found {
                Some(found) if found.version.is_expired(now) && state == VbState::Active => {
                    self.expire(vb, hash, &found.version, now)
                }
                found => return Ok(found),
            }
        }
        Err(Refusal::Busy)
    }

    /// Turns an expired document into a tombstone that keeps its system xattrs, unless somebody changed it since.
    pub(crate) fn expire(&self, vb: VbId, hash: u64, version: &Version, now: Moment) {
        let new = crate::write::tombstone_of(version, base::ItemKind::Expiration, now);
        let change = Change {
            new,
            existence: Existence::Any,
            cas: Cas::ANY,
            basis: Basis::of(Some(version)),
            preserve_expiry: false,
        };
        // Whoever changed it meanwhile has replaced the expired version: then there is nothing left to do.
        let _ = self.apply(vb, hash, change, now, |ops| ops.expirations += 1, |_| {});
    }

    /// Where the vBucket's history stands, asked by one that saw history `uuid`.
    pub fn observe_seqno(&self, vb: VbId, uuid: VbUuid) -> Result<Observed, Refusal> {
        let shard = self.shard(vb)?;
        if shard.vb.state() == VbState::Dead {
            return Err(Refusal::NotMyVbucket);
        }
        let entries = shard.vb.failover().entries();
        let position = entries.iter().position(|entry| entry.uuid == uuid).ok_or(Refusal::OtherHistory)?;
        Ok(Observed {
            uuid: entries[0].uuid,
            persisted_seqno: shard.vb.persisted_seqno(),
            high_seqno: shard.vb.high_seqno(),
            old_history_end: (position > 0).then(|| entries[position - 1].seqno),
        })
    }

    /// A document chosen by chance, if there is any in an active vBucket.
    pub fn random_key(&self, now: Moment) -> Option<Found> {
        let random = self.env.random.next_u64();
        let (before, from) = self.shards.split_at(random as usize % self.shards.len());
        from.iter().chain(before).find_map(|shard| {
            let shard = shard.lock();
            if !shard.exists || shard.vb.state() != VbState::Active {
                return None;
            }
            let version = shard.vb.table().random(random.rotate_left(32), |v| v.is_live(now))?;
            let cas = shard.vb.visible_cas(version.key(), &version, now);
            Some(Found { cas, version: version.clone() })
        })
    }
}
