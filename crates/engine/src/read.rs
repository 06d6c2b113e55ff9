//! Reading documents.

use base::planted::{self, Bug};
use base::{Cas, CollectionId, DocKey, Moment, Seqno, VbId, VbState, VbUuid, Version};
use vbucket::{Basis, Change, Existence};

use crate::documents::Documents;
use crate::expiry::ExpiredBy;
use crate::refusal::Refusal;
use crate::shard::Shard;
use crate::shard_guard::{Holder, ShardGuard};
use crate::whole::Whole;
use crate::write::MAX_TRIES;

/// A document as a reader sees it.
pub struct Found {
    /// The version with its value; hold it as long as needed, it never changes.
    pub version: Whole,
    /// The CAS to show: all ones while it is locked.
    pub cas: Cas,
}

/// Whatever there is for a key, as one sees it who may need no more than the metadata.
pub struct Seen {
    /// The version, with or without its value.
    pub version: Version,
    /// The CAS to show: all ones while it is locked.
    pub cas: Cas,
}

impl Seen {
    /// The version with its value, if that is in memory.
    pub fn whole(&self) -> Result<Whole, Refusal> {
        Whole::of(self.version.clone())
    }
}

/// A document chosen by chance.
pub enum ByChance {
    /// It is this one.
    Found(Found),
    /// There is none.
    None,
    /// There are only such whose value has to be fetched first, like this one.
    NotResident(VbId, Version),
    /// There are only such of which nothing is in memory, in this vBucket: fetch an empty key of the collection, which
    /// no document has, and look again.
    Evicted(VbId),
    /// None was found, but this vBucket is not loaded yet.
    Loading(VbId),
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

/// Refuses a document whose prepare was inherited by promotion: the node before may have committed it and told so, so
/// that what is there now must not be read any more.
fn is_decided(shard: &Shard, key: DocKey<'_>) -> Result<(), Refusal> {
    let is_active = shard.vb.state() == VbState::Active;
    match shard.vb.sync_writes().sync_write_in_the_way(key).filter(|_| is_active) {
        Some(vbucket::Refusal::ReCommitInProgress) => Err(Refusal::ReCommitInProgress),
        _ => Ok(()),
    }
}

impl Documents {
    /// Reads a living document of an active vBucket.
    pub fn get(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Found, Refusal> {
        self.get_in_state(vb, key, VbState::Active, now)
    }

    /// Reads a living document of a replica vBucket.
    pub fn get_replica(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Found, Refusal> {
        self.get_in_state(vb, key, VbState::Replica, now)
    }

    /// Reads a living document for a change of it. One that is not there, but prepared, is refused as in progress.
    pub(crate) fn get_unprepared(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Found, Refusal> {
        match self.get(vb, key, now) {
            Err(Refusal::NotFound) => {
                let in_the_way = self
                    .core
                    .vbuckets
                    .active(vb, Holder::FrontEnd)?
                    .vb
                    .sync_writes()
                    .sync_write_in_the_way(key);
                Err(in_the_way.map_or(Refusal::NotFound, Refusal::from))
            }
            found => found,
        }
    }

    fn get_in_state(&self, vb: VbId, key: DocKey<'_>, state: VbState, now: Moment) -> Result<Found, Refusal> {
        let hash = self.core.hash(key);
        let found = {
            let mut shard = self.in_state(vb, state, key.collection)?;
            is_decided(&shard, key)?;
            let found = shard.vb.find(hash, key)?.filter(|v| !v.is_deleted()).map(|version| {
                version.prefetch_value();
                Seen { cas: shard.vb.visible_cas(key, &version, now), version: version.clone() }
            });
            let seen = |version: &Version| Seen { cas: version.meta().cas, version: version.clone() };
            let found = match planted::is(Bug::ReadSeesPrepare) {
                true => shard.vb.sync_writes().prepared(key).map(seen).or(found),
                false => found,
            };
            match &found {
                Some(seen) if seen.version.is_expired(now) => shard.ops.get_misses += 1,
                Some(seen) if seen.version.is_resident() => shard.ops.get_hits += 1,
                // It is a hit when its reader comes again.
                Some(_) => shard.ops.get_not_resident += 1,
                None => shard.ops.get_misses += 1,
            }
            if found.as_ref().is_none_or(|seen| seen.version.is_resident()) {
                shard.vb.collections_mut().count_op(key.collection, |ops| ops.gets += 1);
            }
            found
        };
        match found {
            Some(seen) if !seen.version.is_expired(now) => {
                let version = Whole::of(seen.version)?;
                self.core.context.frequency.raise(&version);
                Ok(Found { version, cas: seen.cas })
            }
            Some(expired) => {
                self.expire(vb, hash, &expired.version, now)?;
                Err(Refusal::NotFound)
            }
            None => Err(Refusal::NotFound),
        }
    }

    #[inline]
    fn in_state(&self, vb: VbId, state: VbState, id: CollectionId) -> Result<ShardGuard<'_>, Refusal> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
        match shard.vb.state() == state {
            true if shard.unloaded.is_some() => Err(Refusal::Loading),
            true if shard.vb.collections().is_open(id) => Ok(shard),
            true => Err(Refusal::UnknownCollection),
            false if state == VbState::Active && shard.vb.state() == VbState::Pending => {
                Err(Refusal::Pending)
            }
            false => Err(Refusal::NotMyVbucket),
        }
    }

    /// Reads whatever there is for a key of an active vBucket: document, tombstone, or nothing.
    /// A document whose expiry time has passed is made a tombstone first.
    pub fn peek(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Option<Seen>, Refusal> {
        self.peek_in_state(vb, key, VbState::Active, now)
    }

    /// Reads whatever a vBucket has for a key, whatever its role is.
    pub fn peek_in_any_state(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Option<Seen>, Refusal> {
        let state = self.core.state_of(vb).ok_or(Refusal::NotMyVbucket)?;
        self.peek_in_state(vb, key, state, now)
    }

    /// Reads whatever there is for a key of an active vBucket as it is, expired or not.
    pub fn peek_as_is(&self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Option<Seen>, Refusal> {
        let hash = self.core.hash(key);
        let shard = self.core.active_with(vb, key.collection)?;
        Ok(shard
            .vb
            .find(hash, key)?
            .map(|version| Seen { cas: shard.vb.visible_cas(key, &version, now), version: version.clone() }))
    }

    pub(crate) fn peek_in_state(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        state: VbState,
        now: Moment,
    ) -> Result<Option<Seen>, Refusal> {
        let hash = self.core.hash(key);
        // Somebody may have replaced the expired document by another one that has expired since `now`, too.
        for _ in 0..MAX_TRIES {
            let found = {
                let shard = self.in_state(vb, state, key.collection)?;
                is_decided(&shard, key)?;
                shard.vb.find(hash, key)?.map(|version| Seen {
                    cas: shard.vb.visible_cas(key, &version, now),
                    version: version.clone(),
                })
            };
            match found {
                Some(found) if found.version.is_expired(now) && state == VbState::Active => {
                    self.expire(vb, hash, &found.version, now)?;
                    if self
                        .core
                        .vbuckets
                        .active(vb, Holder::FrontEnd)?
                        .vb
                        .sync_writes()
                        .sync_write_in_the_way(key)
                        .is_some()
                    {
                        // It stays as it is until that is decided; nobody sees it.
                        return Ok(None);
                    }
                }
                found => return Ok(found),
            }
        }
        Err(Refusal::Busy)
    }

    /// Turns an expired document into a tombstone that keeps its system xattrs, unless somebody changed it since.
    /// Refused if it has xattrs that are not in memory.
    pub(crate) fn expire(&self, vb: VbId, hash: u64, version: &Version, now: Moment) -> Result<(), Refusal> {
        self.expire_as(vb, hash, version, version, ExpiredBy::Access, now).map(drop)
    }

    /// The same with the value of `whole`, which is that version as the disk has it. Says whether it did.
    pub(crate) fn expire_as(
        &self,
        vb: VbId,
        hash: u64,
        version: &Version,
        whole: &Version,
        by: ExpiredBy,
        now: Moment,
    ) -> Result<bool, Refusal> {
        let writer = self.at_once();
        let new = writer.tombstone_of(whole, base::ItemKind::Expiration, now)?;
        let change = Change {
            new,
            existence: Existence::Any,
            cas: Cas::ANY,
            basis: Basis::of(Some(version)),
            preserve_expiry: false,
        };
        // Whoever changed it meanwhile has replaced the expired version: then there is nothing left to do.
        let expired = match writer.apply(vb, hash, change, now, |ops| ops.expirations += 1, |_| {}) {
            Err(Refusal::NotResident) => return Err(Refusal::NotResident),
            applied => applied.is_ok(),
        };
        if expired {
            self.expiry.count(by);
        }
        Ok(expired)
    }

    /// Where the vBucket's history stands, asked by one that saw history `uuid`.
    pub fn observe_seqno(&self, vb: VbId, uuid: VbUuid) -> Result<Observed, Refusal> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
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

    /// A document of a collection chosen by chance among those of active vBuckets, one whose value is in memory if there
    /// is any.
    pub fn random_key(&self, collection: CollectionId, now: Moment) -> ByChance {
        let random = self.core.env.random.next_u64();
        let from = (random % u64::from(self.core.vbuckets())) as u16;
        let mut fallback = ByChance::None;
        for vb in (from..self.core.vbuckets()).chain(0..from).map(VbId) {
            let shard = self.core.vbuckets.hold(vb, Holder::FrontEnd);
            if !shard.exists || shard.vb.state() != VbState::Active {
                continue;
            }
            if shard.unloaded.is_some() {
                if matches!(fallback, ByChance::None) {
                    fallback = ByChance::Loading(shard.vb.id());
                }
                continue;
            }
            let choose = |resident: bool| {
                let collections = shard.vb.collections();
                let fits = |v: &Version| {
                    v.is_live(now)
                        && v.key().collection == collection
                        && !collections.hides(v)
                        && (!resident || v.is_resident())
                };
                shard.vb.table().random(random.rotate_left(32), fits)
            };
            if let Some(version) = choose(true) {
                let cas = shard.vb.visible_cas(version.key(), &version, now);
                if let Ok(version) = Whole::of(version.clone()) {
                    return ByChance::Found(Found { cas, version });
                }
            }
            if shard.vb.held_by(collection).evicted > 0 && !matches!(fallback, ByChance::NotResident(..)) {
                fallback = ByChance::Evicted(shard.vb.id());
            }
            if !matches!(fallback, ByChance::NotResident(..))
                && shard.vb.counts().without_value > 0
                && let Some(version) = choose(false)
            {
                fallback = ByChance::NotResident(shard.vb.id(), version.clone());
            }
        }
        fallback
    }
}
