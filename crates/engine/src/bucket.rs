//! One bucket: its vBuckets in memory, its store on disk, and what joins them.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use base::VbId;
use parking_lot::Mutex;

use crate::bucket_core::Core;
use crate::bucket_snapshot::BucketSnapshots;
use crate::checkpoint_recovery::Checkpoints;
use crate::collections::BucketCollections;
use crate::compactor::Compaction;
use crate::compression::Compression;
use crate::defragmenter::Defragmentation;
use crate::documents::Documents;
use crate::durability::Durability;
use crate::evict::Eviction;
use crate::fetcher::Fetching;
use crate::file_snapshot::FileSnapshots;
use crate::flusher::Flushing;
use crate::loader::Loading;
use crate::maintenance::Maintenance;
use crate::range_scan::{RangeScans, Scans};
use crate::replica::Replicas;
use crate::roles::Roles;
use crate::stream::Streams;
use crate::tombstone_purger::Tombstones;
use crate::traffic::Traffic;

/// One bucket. All methods may be called from any thread.
pub struct Bucket {
    /// What every part may use; who has the bucket may, too.
    pub(crate) core: Arc<Core>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) collections: Arc<BucketCollections>,
    pub(crate) documents: Arc<Documents>,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) flushing: Arc<Flushing>,
    pub(crate) fetching: Arc<Fetching>,
    pub(crate) loading: Arc<Loading>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) compaction: Arc<Compaction>,
    pub(crate) roles: Roles,
    pub(crate) scans: Arc<Scans>,
    pub(crate) compression: Arc<Compression>,
    pub(crate) defragmentation: Arc<Defragmentation>,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) maintenance: Maintenance,
    /// Whether clients may use documents.
    pub traffic: Traffic,
    /// vBuckets that were found after a crash: their histories begin anew, and that is not on disk before they are saved.
    pub(crate) crashed: Mutex<BTreeSet<VbId>>,
}

impl Deref for Bucket {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Bucket {
    /// Reading and changing documents.
    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    /// Compactions of files.
    pub fn compaction(&self) -> &Compaction {
        &self.compaction
    }

    /// Roles of vBuckets, and what goes with them.
    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    /// Compressing values that are cold.
    pub fn compression(&self) -> &Compression {
        &self.compression
    }

    /// Moving versions together.
    pub fn defragmentation(&self) -> &Defragmentation {
        &self.defragmentation
    }

    /// Old tombstones in memory.
    pub fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    /// The chores.
    pub fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }

    /// Scans of ranges of keys.
    pub fn range_scans(&self) -> RangeScans<'_> {
        self.scans.range_scans()
    }

    /// Snapshots by file.
    pub fn file_snapshots(&self) -> FileSnapshots<'_> {
        self.scans.file_snapshots()
    }

    /// Snapshots of all vBuckets that are active here, of one moment.
    pub fn snapshots(&self) -> BucketSnapshots<'_> {
        BucketSnapshots::of(&self.core)
    }

    /// The checkpoints' share of the memory.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Sync writes, and waiting for the disk.
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// What leaves memory when it runs short.
    pub fn eviction(&self) -> &Eviction {
        &self.eviction
    }

    /// The manifest and what vBuckets make of it.
    pub fn collections(&self) -> &BucketCollections {
        &self.collections
    }

    /// What replicas are sent.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// From memory to the disk.
    pub fn flushing(&self) -> &Flushing {
        &self.flushing
    }

    /// From the disk to a reader.
    pub fn fetching(&self) -> &Fetching {
        &self.fetching
    }

    /// From the disk to memory after a start.
    pub fn loading(&self) -> &Loading {
        &self.loading
    }

    /// What streams of changes ask for.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }
}
