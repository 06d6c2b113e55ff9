//! The collections of a bucket: its manifest, which every active vBucket takes over, and what becomes of those dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::planted::{self, Bug};
use base::{CollectionId, Moment, ScopeId, Seqno, VbId, VbState};
use parking_lot::{Mutex, RwLock};
use vbucket::collections::manifest::SuccessorRefusal;
use vbucket::{Collections, DroppedCollection, Garbage, Manifest, ManifestChange, OpenCollection, OpenScope};

use crate::account_check::limit_free_memory;
use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::collection_sums::CollectionTotals;
use crate::disk_state::FLUSH_TRIES;
use crate::failure::Failure;
use crate::keeper::{ChoreId, Keeper};
use crate::manifest_file;
use crate::shard::Shard;
use crate::shard_guard::Holder;
use crate::starts::{StartNote, Starts};

/// Ids below are reserved.
const FIRST_ID: u32 = 8;

/// Ids that no scope and no collection of a bucket ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextIds {
    /// Of the next scope.
    pub scope: ScopeId,
    /// Of the next collection.
    pub collection: CollectionId,
}

/// Why a manifest was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum ManifestRefusal {
    /// It cannot follow the present one.
    #[error("it cannot follow the present manifest: {0:?}")]
    Successor(SuccessorRefusal),
    /// Too many changes wait for the disk: one of the manifest is as many as there are vBuckets. Nothing was changed.
    #[error(
        "there is no memory for the change now: try again when what waits for the disk is written, or raise the bucket's quota"
    )]
    Full,
    /// Its collections alone would take most of the bucket's quota. Nothing was changed.
    #[error("{collections} collections and {scopes} scopes in {vbuckets} vBuckets take about {} MiB, which is more than the bucket's quota has room for: {} MiB; raise the quota, or make fewer", needed_bytes >> 20, room_bytes >> 20)]
    TooManyForQuota {
        /// Collections of the manifest.
        collections: u64,
        /// Scopes of the manifest.
        scopes: u64,
        /// The bucket's vBuckets.
        vbuckets: u64,
        /// What they would take,
        needed_bytes: u64,
        /// and may take.
        room_bytes: u64,
    },
    /// It could not be saved.
    #[error(transparent)]
    Failure(#[from] Failure),
}

/// A bucket's manifest.
pub(crate) struct BucketManifest {
    present: RwLock<Arc<Manifest>>,
    /// Held while it is changed, from the decision to the last vBucket.
    pub(crate) next_ids: Mutex<NextIds>,
    /// Whether something may be dropped and not erased yet.
    pub(crate) is_dropping: AtomicBool,
    /// What vouches for it; held while it is written.
    pub(crate) starts: Mutex<Starts>,
    /// Whether a change failed, so that it is not known which manifest a restart would find.
    pub(crate) is_undecided: AtomicBool,
}

impl Default for BucketManifest {
    fn default() -> BucketManifest {
        BucketManifest {
            present: RwLock::default(),
            next_ids: Mutex::default(),
            starts: Mutex::default(),
            // A vBucket may have found something.
            is_dropping: AtomicBool::new(true),
            is_undecided: AtomicBool::new(false),
        }
    }
}

impl Default for NextIds {
    fn default() -> NextIds {
        NextIds { scope: ScopeId(FIRST_ID), collection: CollectionId(FIRST_ID) }
    }
}

impl NextIds {
    /// The same, above all that a manifest has.
    pub fn above(self, manifest: &Manifest) -> NextIds {
        // They come by id.
        let scope = manifest.scopes().next_back().map(|scope| scope.id.0.saturating_add(1));
        let collection = manifest.collections().next_back().map(|one| one.id.0.saturating_add(1));
        NextIds {
            scope: self.scope.max(ScopeId(scope.unwrap_or(0))),
            collection: self.collection.max(CollectionId(collection.unwrap_or(0))),
        }
    }
}

impl BucketManifest {
    /// Puts what was found on disk in the place of the default, before anybody has seen it.
    pub(crate) fn begin_with(&self, (manifest, next_ids): (Manifest, NextIds)) {
        *self.next_ids.lock() = next_ids;
        *self.present.write() = Arc::new(manifest);
    }

    /// Has the eraser look, if something of a vBucket that took events is dropped.
    pub(crate) fn note_dropped(&self, shard: &mut Shard, keeper: &Arc<Keeper>) {
        if !shard.vb.collections().dropped().is_empty()
            && !self.is_dropping.swap(true, Ordering::Relaxed)
            && keeper.note(ChoreId::Eraser, 0)
        {
            shard.wakes.add(Arc::clone(keeper) as _);
        }
    }
}

/// A change of a manifest with as many events leaves much that is soon free.
const MANY_EVENTS: usize = 16;
/// What a vBucket keeps of a collection without documents, about: measured with 1,170 collections in 1,024 vBuckets.
const COLLECTION_BYTES: u64 = 112;
/// The same with a log-structured store, which has a table of its own.
const COLLECTION_BYTES_IN_LOG: u64 = 216;
/// What a vBucket keeps of a scope, about: measured with 1,190 of them in 1,024 vBuckets.
const SCOPE_BYTES: u64 = 18;
/// The share of the quota that collections without documents may take, in hundredths.
const COLLECTIONS_SHARE: u64 = 75;

/// The manifest of a bucket, and what its vBuckets make of it.
pub struct BucketCollections {
    pub(crate) core: Arc<Core>,
    checkpoints: Arc<Checkpoints>,
    pub(crate) manifest: BucketManifest,
}

impl BucketCollections {
    pub(crate) fn new(core: &Arc<Core>, checkpoints: &Arc<Checkpoints>) -> BucketCollections {
        BucketCollections {
            core: Arc::clone(core),
            checkpoints: Arc::clone(checkpoints),
            manifest: BucketManifest::default(),
        }
    }

    /// Its manifest as it is now.
    pub fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.manifest.present.read())
    }

    /// Changes the manifest: `change` sees the present one and ids that were never used, and makes the next one, or
    /// says why not. It is durable, and all active vBuckets have taken it over, when this returns. Blocks while the disk
    /// works.
    ///
    /// A manifest that equals the present one changes nothing.
    pub fn change_manifest<E: From<ManifestRefusal>>(
        &self,
        change: impl FnOnce(&Manifest, NextIds) -> Result<Manifest, E>,
    ) -> Result<Arc<Manifest>, E> {
        let mut next_ids = self.manifest.next_ids.lock();
        let present = self.manifest();
        let new = change(&present, *next_ids)?;
        if new == *present {
            return Ok(present);
        }
        let change = ManifestChange::between(&present, &new);
        if !change.only_drops() && !self.has_room_for_events() {
            return Err(ManifestRefusal::Full.into());
        }
        present.check_successor(&new).map_err(ManifestRefusal::Successor)?;
        let ids = next_ids.above(&new);
        if let Err(failure) = self.save(&new, ids).and_then(|()| self.note(&new, ids)) {
            // A restart may find it: then it would drop collections that go on being served here.
            self.manifest.is_undecided.store(!planted::is(Bug::FailedManifestLeft), Ordering::Relaxed);
            let _ = self.settle_manifest(&next_ids);
            return Err(ManifestRefusal::Failure(failure).into());
        }
        self.manifest.is_undecided.store(false, Ordering::Relaxed);
        *next_ids = ids;
        let new = Arc::new(new);
        *self.manifest.present.write() = Arc::clone(&new);
        let now = self.core.now();
        for vb in (0..self.core.vbuckets()).map(VbId) {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Roles);
            let left = self.take_over_manifest(&mut shard, &new, Some(&change), now);
            drop(shard);
            drop(left);
        }
        if change.events() >= MANY_EVENTS {
            limit_free_memory(&self.core.memory);
        }
        Ok(new)
    }

    /// Puts the present manifest on record once more if a change of it failed half-way, so that a restart finds what is
    /// served. Tried at once, by the eraser, and by a stop, which is not clean before that.
    pub(crate) fn settle_manifest(&self, next_ids: &NextIds) -> Result<(), Failure> {
        if !self.manifest.is_undecided.load(Ordering::Relaxed) {
            return Ok(());
        }
        // What vouches first: it must not say more than what is there.
        let present = self.manifest();
        self.note(&present, *next_ids).and_then(|()| self.save(&present, *next_ids))?;
        self.manifest.is_undecided.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn save(&self, manifest: &Manifest, ids: NextIds) -> Result<(), Failure> {
        manifest_file::save(&self.core.env, &self.core.config.dir, &self.core.uuid, manifest, ids)
    }

    /// Has `starts` vouch for a manifest.
    fn note(&self, manifest: &Manifest, ids: NextIds) -> Result<(), Failure> {
        let mut starts = self.manifest.starts.lock();
        starts.note_manifest(self.start_note(manifest, ids))
    }

    fn start_note(&self, manifest: &Manifest, ids: NextIds) -> StartNote<'_> {
        let Core { env, config, uuid, .. } = &*self.core;
        StartNote { env, dir: &config.dir, bucket: uuid, manifest: manifest.uid(), ids }
    }

    /// The number of this start of the bucket, which is on disk.
    pub(crate) fn start_number(&self) -> Result<u64, Failure> {
        if let Some(number) = self.manifest.starts.lock().number() {
            return Ok(number);
        }
        // It could not be written when the bucket was opened: now it must be, and may be another one.
        let (next_ids, present) = (self.manifest.next_ids.lock(), self.manifest());
        let mut starts = self.manifest.starts.lock();
        starts.count(self.start_note(&present, *next_ids))?;
        Ok(starts.number().unwrap_or_default())
    }

    /// The same before a stop, after which an ephemeral bucket has its manifest, too: tried a few times.
    pub(crate) fn close_manifest(&self) -> Result<(), Failure> {
        let next_ids = self.manifest.next_ids.lock();
        let again = |settled: Result<(), Failure>, _| settled.or_else(|_| self.settle_manifest(&next_ids));
        (1..FLUSH_TRIES).fold(self.settle_manifest(&next_ids), again)
    }

    /// For who decides on a manifest: refuses one with more collections if they would leave no room for documents, after
    /// which nothing but a larger quota would help. What was decided elsewhere is taken over by `change_manifest` anyway.
    pub fn check_quota(&self, present: &Manifest, new: &Manifest) -> Result<(), ManifestRefusal> {
        if has_more(new, present) { self.fits(new, self.core.memory.quota_bytes()) } else { Ok(()) }
    }

    /// For who gives the bucket another quota: refuses one in which its collections would leave no room for documents.
    pub fn check_other_quota(&self, quota_bytes: u64) -> Result<(), ManifestRefusal> {
        self.fits(&self.manifest(), quota_bytes)
    }

    fn fits(&self, manifest: &Manifest, quota_bytes: u64) -> Result<(), ManifestRefusal> {
        let is_log = self.core.backend() == kvstore::StorageBackend::LogStructured;
        let each = if is_log { COLLECTION_BYTES_IN_LOG } else { COLLECTION_BYTES };
        let vbuckets = u64::from(self.core.vbuckets());
        let (collections, scopes) = (manifest.collections().count() as u64, manifest.scopes().count() as u64);
        let of_a_vbucket =
            collections.saturating_mul(each).saturating_add(scopes.saturating_mul(SCOPE_BYTES));
        let needed_bytes = of_a_vbucket.saturating_mul(vbuckets);
        let room_bytes = quota_bytes / 100 * COLLECTIONS_SHARE;
        if needed_bytes <= room_bytes {
            return Ok(());
        }
        Err(ManifestRefusal::TooManyForQuota { collections, scopes, vbuckets, needed_bytes, room_bytes })
    }

    /// Whether the quota has room for system events, and what waits for the disk has not filled its share.
    fn has_room_for_events(&self) -> bool {
        self.core.memory.admits(self.core.memory.held_bytes()) && self.checkpoints.have_checkpoints_room()
    }

    /// Ids that no scope and no collection of the bucket ever had.
    pub fn next_ids(&self) -> NextIds {
        *self.manifest.next_ids.lock()
    }

    /// Puts a manifest in the place of the present one, as [`BucketCollections::change_manifest`] does.
    pub fn set_manifest(&self, new: Manifest) -> Result<(), ManifestRefusal> {
        self.change_manifest(|_, _| Ok(new)).map(drop)
    }

    /// An active vBucket takes over a manifest that is newer than its own.
    pub(crate) fn take_over_manifest(
        &self,
        shard: &mut Shard,
        manifest: &Manifest,
        change: Option<&ManifestChange>,
        now: Moment,
    ) -> Option<Vec<Garbage>> {
        shard.collection_ops_before.retain(|id, _| manifest.collection(*id).is_some());
        if !shard.exists || shard.vb.state() != VbState::Active {
            return None;
        }
        let left = shard.vb.apply_manifest(manifest, change, now)?;
        self.manifest.note_dropped(shard, &self.core.keeper);
        self.core.queue_flush(shard);
        Some(left)
    }

    /// The last change of a collection in a vBucket; nothing if there is no such vBucket, or it has no such collection.
    pub fn collection_seqno(&self, vb: VbId, id: CollectionId) -> Option<Seqno> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        shard.vb.collections().get(id).map(|one| one.high_seqno)
    }

    /// What the bucket has of each collection of its manifest, in the manifest's order.
    pub fn collection_totals(&self) -> Vec<(CollectionId, CollectionTotals)> {
        let (core, manifest) = (&self.core, self.manifest());
        core.figures.of_collections(&core.vbuckets, &*core.store, &manifest)
    }

    /// What a compaction that begins now may leave out of a vBucket's file: collections with the seqnos at which they
    /// were dropped, durably.
    pub(crate) fn dropped_on_disk(&self, vb: VbId) -> Vec<(CollectionId, Seqno)> {
        let shard = self.core.vbuckets.hold(vb, Holder::Compactor);
        let persisted = shard.vb.persisted_seqno();
        let dropped = shard.vb.collections().dropped().iter();
        dropped.filter(|one| one.end <= persisted).map(|one| (one.id, one.end)).collect()
    }

    /// A compaction has left these out.
    pub(crate) fn erased_from_disk(&self, vb: VbId, incarnation: u64, erased: &[(CollectionId, Seqno)]) {
        let mut shard = self.core.vbuckets.hold(vb, Holder::Compactor);
        if shard.incarnation == incarnation {
            shard.vb.erased_from_disk(erased);
        }
    }
}

/// Whether a manifest has a scope or a collection that another one lacks.
fn has_more(new: &Manifest, present: &Manifest) -> bool {
    new.scopes().any(|scope| present.scope(scope.id).is_none())
        || new.collections().any(|one| present.collection(one.id).is_none())
}

/// What is stored of one collection; `all` is by id.
fn stats_of(
    all: &[(CollectionId, kvstore::CollectionStats)],
    of: CollectionId,
) -> Option<&kvstore::CollectionStats> {
    all.binary_search_by_key(&of, |(id, _)| *id).ok().map(|at| &all[at].1)
}

/// The collections of a vBucket as they are stored.
pub(crate) fn collections_of(
    stored: &kvstore::StoredManifest,
    stats: &[(CollectionId, kvstore::CollectionStats)],
) -> Collections {
    let scopes = stored.scopes.iter().map(|one| OpenScope { id: one.scope.id, start: one.start });
    let open = stored.open.iter().map(|one| {
        let of = &one.collection;
        let counted = stats_of(stats, of.id).map(|stats| stats.high_seqno);
        let open = OpenCollection::new(of.id, of.scope, of.max_ttl_s, one.start).with_history(of.history);
        open.on_disk(counted.unwrap_or_default())
    });
    let dropped = stored.dropped.iter().map(|one| DroppedCollection::on_disk(one.id, one.end));
    Collections::new(stored.uid, scopes.collect(), open.collect(), dropped.collect())
}
