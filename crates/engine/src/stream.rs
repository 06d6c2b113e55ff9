//! What streams of changes ask of a bucket: where they may begin, and what comes next.

use std::sync::Arc;

use base::{
    CollectionId, NewVersion, ScopeId, Seqno, SyncWrite, VbId, VbState, VbUuid, Version, VersionMeta,
};
use vbucket::collections::{Collections, ManifestUid};
use vbucket::{
    CursorId, CursorName, Dropped, FailoverEntry, Range, RangeLimit, RegisterRefusal, Resume, ResumePoint,
};

use crate::backfill::{BackfillQueue, Backfills};
use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::fetcher::Fetching;
use crate::follower::Follower;
use crate::refusal::Refusal;
use crate::shard_guard::{Holder, ShardGuard};

/// Why a stream cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRefusal {
    /// The vBucket is not served here, or not in this role.
    NotMyVbucket,
    /// Its documents are not loaded yet.
    Loading,
    /// The consumer has to forget everything after this seqno first.
    RollBack(Seqno),
    /// A collection that is wanted is not there by this manifest.
    UnknownCollection(ManifestUid),
    /// The scope that is wanted is not there by this manifest.
    UnknownScope(ManifestUid),
}

/// What of a vBucket a stream is about, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamWanted<'a> {
    /// Everything.
    Everything,
    /// The default collection, without events.
    Default,
    /// These collections.
    Collections(&'a [CollectionId]),
    /// All collections of a scope, also those that come later.
    Scope(ScopeId),
}

/// A collection beside its vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPart {
    /// The last change of the collection.
    pub high_seqno: Seqno,
    /// Documents of the collection,
    pub documents: u64,
    /// and of the whole vBucket.
    pub all_documents: u64,
}

/// A collection is small beside others if it has at most this part of the documents.
const SMALL_PART: u64 = 50;

impl StreamPart {
    /// Whether most of what the vBucket has belongs to other collections.
    pub fn is_small_beside_others(&self) -> bool {
        self.documents.saturating_mul(SMALL_PART) < self.all_documents
    }
}

impl From<Refusal> for StreamRefusal {
    fn from(refusal: Refusal) -> StreamRefusal {
        match refusal {
            Refusal::Loading => StreamRefusal::Loading,
            _ => StreamRefusal::NotMyVbucket,
        }
    }
}

/// Where a vBucket stands when a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStart {
    /// Its histories, newest first.
    pub failover: Vec<FailoverEntry>,
    /// The last change.
    pub high_seqno: Seqno,
    /// The last change that readers can see.
    pub max_visible: Seqno,
    /// The last change that is on disk.
    pub persisted_seqno: Seqno,
    /// Tombstones up to here may be gone.
    pub purge_seqno: Seqno,
    /// The role it has.
    pub state: VbState,
    /// Which vBucket.
    pub place: StreamPlace,
    /// The collections of the scope that is wanted.
    pub collections: Vec<CollectionId>,
    /// Whether the consumer has all changes of the collections that it wants, so that nothing that was purged is
    /// missing.
    pub has_all_that_is_wanted: bool,
}

/// What comes next from memory.
pub enum Changes {
    /// Nothing yet.
    Nothing,
    /// These, sealed.
    Range(Range),
    /// The cursor is gone: memory was short, or the vBucket was replaced.
    Dropped,
}

/// The vBucket of a stream: with this incarnation it is the one that the stream began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// Its number.
    pub vb: VbId,
    /// Counts up whenever another vBucket takes its place.
    pub incarnation: u64,
}

/// A stream's place in the memory of a vBucket, just registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCursor {
    /// Names it.
    pub id: CursorId,
    /// Everything after this is seen by the cursor.
    pub from: Seqno,
}

/// What streams of changes ask for: where they may begin, what comes next, and reading what memory lacks.
pub struct Streams {
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) fetching: Arc<Fetching>,
    pub(crate) backfills: Arc<BackfillQueue>,
}

impl Streams {
    pub(crate) fn new(core: &Arc<Core>, checkpoints: &Arc<Checkpoints>, fetching: &Arc<Fetching>) -> Streams {
        Streams {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            fetching: Arc::clone(fetching),
            backfills: Arc::default(),
        }
    }

    /// Reading for streams of what is no longer in memory.
    pub fn backfills(&self) -> Backfills<'_> {
        Backfills::of(&self.core, &self.fetching.queue, &self.backfills)
    }

    /// Asks whether a stream may begin where its consumer stands, and has `follower` told of what happens from now on.
    pub fn begin_stream(
        &self,
        vb: VbId,
        follower: &Arc<Follower>,
        at: &ResumePoint,
        wanted: StreamWanted<'_>,
        only_active: bool,
    ) -> Result<StreamStart, StreamRefusal> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
        if only_active && shard.vb.state() != VbState::Active {
            return Err(StreamRefusal::NotMyVbucket);
        }
        begin(shard, follower, at, wanted, false)
    }

    /// The same for a stream with which the vBucket is handed over. One that is dead because its handover broke off
    /// goes on being handed over. Any other one that is not active may have less than who would take it over, as after a
    /// restart, and is not handed over.
    pub fn begin_handover(
        &self,
        vb: VbId,
        follower: &Arc<Follower>,
        at: &ResumePoint,
        wanted: StreamWanted<'_>,
    ) -> Result<StreamStart, StreamRefusal> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
        let goes_on = shard.is_half_given;
        if !goes_on && shard.vb.state() != VbState::Active {
            return Err(StreamRefusal::NotMyVbucket);
        }
        begin(shard, follower, at, wanted, goes_on)
    }

    /// Whether a vBucket has what a stream would be about.
    pub fn look_for(&self, vb: VbId, wanted: StreamWanted<'_>) -> Result<(), StreamRefusal> {
        look_for(self.core.vbuckets.find(vb, Holder::FrontEnd)?.vb.collections(), wanted, Seqno(u64::MAX))
            .map(|_| ())
    }

    /// How much of a vBucket a collection is; nothing if either is not there.
    pub fn stream_part(&self, vb: VbId, collection: CollectionId) -> Option<StreamPart> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        let high_seqno = shard.vb.collections().get(collection)?.high_seqno;
        Some(StreamPart {
            high_seqno,
            documents: shard.vb.held_by(collection).documents(),
            all_documents: shard.vb.counts().documents,
        })
    }

    fn stream_shard(&self, place: StreamPlace) -> Option<ShardGuard<'_>> {
        self.core
            .vbuckets
            .find(place.vb, Holder::FrontEnd)
            .ok()
            .filter(|shard| shard.incarnation == place.incarnation)
    }

    /// Gives a stream a place in memory: behind `after` if everything since is in memory, else where memory begins.
    /// Nothing if another vBucket has taken the place of the one that the stream began with.
    pub fn join_memory(&self, place: StreamPlace, name: &CursorName, after: Seqno) -> Option<StreamCursor> {
        let mut shard = self.stream_shard(place)?;
        let checkpoints = shard.vb.checkpoints_mut();
        let (id, from) = match checkpoints.register_cursor(name.clone(), after) {
            Ok(id) => (id, after),
            Err(RegisterRefusal::BelowMemory { memory_start }) => {
                let from = Seqno(memory_start.0 - 1);
                (checkpoints.register_cursor(name.clone(), from).ok()?, from)
            }
            Err(RegisterRefusal::AboveHigh { .. }) => return None,
        };
        Some(StreamCursor { id, from })
    }

    /// What a stream gets next from memory, up to the checkpoint with which the limit is reached; the same again until
    /// [`Streams::advance_stream`] says that it was taken.
    pub fn take_changes(&self, place: StreamPlace, cursor: CursorId, limit: RangeLimit) -> Changes {
        let Some(mut shard) = self.stream_shard(place) else { return Changes::Dropped };
        match shard.vb.take_for_stream(cursor, limit) {
            Ok(range) => range.map_or(Changes::Nothing, Changes::Range),
            Err(Dropped) => Changes::Dropped,
        }
    }

    /// Whether there is something that streams must not see yet, and so what is behind it: [`SyncWrite::Alone`].
    /// Followers are told when it may be seen. Not if another vBucket has taken the place of the one that was meant.
    pub fn holds_back(&self, place: StreamPlace) -> bool {
        self.stream_shard(place).is_some_and(|shard| shard.vb.sync_writes().last_alone().is_some())
    }

    /// Prepare and commit of what was prepared alone ([`SyncWrite::Alone`]), two versions, for those who take part in sync
    /// writes; nothing for any other version.
    pub fn parts_of_alone(&self, version: &Version) -> Option<[Version; 2]> {
        let meta = version.meta();
        let SyncWrite::Alone(level) = meta.sync_write else { return None };
        let (heap, key) = (&self.core.context.heap, version.key());
        let commit = VersionMeta { sync_write: meta.sync_write.stored(meta.by_seqno), ..meta };
        let prepare = VersionMeta { by_seqno: Seqno(meta.by_seqno.0 - 1), ..meta };
        let prepare = NewVersion::prepare_like(heap, level, prepare, key, version);
        Some([prepare.publish(), NewVersion::like(heap, commit, key, version).publish()])
    }

    /// Everything up to `to` of the range taken last was worked on.
    pub fn advance_stream(&self, place: StreamPlace, cursor: CursorId, to: Seqno) {
        let removed = self.stream_shard(place).map(|mut shard| {
            let checkpoints = shard.vb.checkpoints_mut();
            checkpoints.advance(cursor, to);
            checkpoints.remove_closed_but_newest()
        });
        if let Some(removed) = removed {
            self.checkpoints.dispose(removed);
        }
    }

    /// Gives up a stream's place in memory.
    pub fn leave_memory(&self, place: StreamPlace, cursor: CursorId) {
        let removed = self.stream_shard(place).map(|mut shard| {
            let checkpoints = shard.vb.checkpoints_mut();
            checkpoints.drop_cursor(cursor);
            checkpoints.remove_closed_but_newest()
        });
        if let Some(removed) = removed {
            self.checkpoints.dispose(removed);
        }
    }

    /// Drops all streams' places in the memory of a vBucket, as when memory runs short.
    pub fn drop_stream_cursors(&self, vb: VbId) {
        let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::FrontEnd) else { return };
        let checkpoints = shard.vb.checkpoints_mut();
        while checkpoints.drop_slowest_cursor(0).is_some() {}
        let removed = checkpoints.remove_closed();
        drop(shard);
        self.checkpoints.dispose(removed);
    }

    /// `follower` is told of nothing more that happens to this vBucket.
    pub fn unfollow(&self, vb: VbId, follower: &Arc<Follower>) {
        if let Some(mut shard) = self.core.vbuckets.any(vb, Holder::FrontEnd) {
            shard.followers.retain(|other| !Arc::ptr_eq(other, follower));
        }
    }

    /// From where on no change is left out of memory that a later one replaced; 0 if any may be.
    pub fn history_from(&self, place: StreamPlace) -> Seqno {
        self.stream_shard(place).map_or(Seqno(0), |shard| shard.vb.history_from())
    }

    /// Where a vBucket's history stands, for a stream that wants to know whether it is still the one it began with.
    pub fn stream_state(&self, vb: VbId) -> Option<(VbState, u64, VbUuid, Seqno)> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        Some((shard.vb.state(), shard.incarnation, shard.vb.uuid(), shard.vb.high_seqno()))
    }
}

/// Whether there is what is wanted: the collections of the scope that changes after `after` may be of, and the last change of the collections.
fn look_for(
    there: &Collections,
    wanted: StreamWanted<'_>,
    after: Seqno,
) -> Result<(Vec<CollectionId>, Option<Seqno>), StreamRefusal> {
    let uid = there.uid();
    let high = |id: &CollectionId| {
        let found = there.get(*id).ok_or(StreamRefusal::UnknownCollection(uid))?;
        Ok(found.high_seqno)
    };
    match wanted {
        StreamWanted::Everything => Ok((Vec::new(), None)),
        StreamWanted::Default => high(&CollectionId::DEFAULT).map(|_| (Vec::new(), None)),
        StreamWanted::Collections(collections) => {
            let seqnos: Result<Vec<Seqno>, StreamRefusal> = collections.iter().map(high).collect();
            Ok((Vec::new(), seqnos?.into_iter().max()))
        }
        StreamWanted::Scope(scope) if !there.has_scope(scope) => Err(StreamRefusal::UnknownScope(uid)),
        StreamWanted::Scope(scope) => {
            let inside = there.open().filter(|one| one.scope == scope).map(|one| one.id);
            // What is read next may be of before these were dropped.
            let gone = there.dropped().iter().filter(|one| one.scope == Some(scope) && one.end > after);
            Ok((inside.chain(gone.map(|one| one.id)).collect(), None))
        }
    }
}

fn begin(
    mut shard: ShardGuard<'_>,
    follower: &Arc<Follower>,
    at: &ResumePoint,
    wanted: StreamWanted<'_>,
    may_be_dead: bool,
) -> Result<StreamStart, StreamRefusal> {
    let (collections, last_wanted) = look_for(shard.vb.collections(), wanted, at.start)?;
    let has_all_that_is_wanted = last_wanted.is_some_and(|last| last <= at.start);
    let at = ResumePoint { ignore_purged: at.ignore_purged || has_all_that_is_wanted, ..*at };
    let state = shard.vb.state();
    let (high_seqno, purge_seqno) = (shard.vb.high_seqno(), shard.vb.purge_seqno());
    match shard.vb.failover().rollback_point(&at, high_seqno, purge_seqno) {
        Resume::RollBack(to) => return Err(StreamRefusal::RollBack(to)),
        Resume::Accept if state == VbState::Dead && !may_be_dead => return Err(StreamRefusal::NotMyVbucket),
        Resume::Accept => {}
    }
    shard.follow(follower);
    Ok(StreamStart {
        failover: shard.vb.failover().to_entries(),
        high_seqno,
        max_visible: shard.vb.max_visible_seqno(),
        persisted_seqno: shard.vb.persisted_seqno(),
        purge_seqno,
        state,
        place: StreamPlace { vb: shard.vb.id(), incarnation: shard.incarnation },
        collections,
        has_all_that_is_wanted,
    })
}
