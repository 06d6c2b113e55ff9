//! A bucket on a disk that may fall ill: its vBuckets' roles, what clients and another node do to it, and what is known.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{DocumentNames, SimDisk, Survival};
use base::env::{Disk, Env, SimHandles};
use base::{
    Cas, CollectionId, DocKey, DurabilityLevel, ItemKind, RevSeqno, ScopeId, Seqno, VbId, VbState, VbUuid,
    VersionMeta, limits,
};
use engine::settings::Key;
use engine::{
    Bucket, BucketConfig, BucketKind, Durable, EvictionPolicy, Failure, Incoming, Progress, StoreRequest,
    Topology, topology_from_json,
};
use kvstore::{
    CompactionSteps, CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, Nothing, StorageBackend,
};
use sim::kv::subjects::small_log;
use vbucket::{Collection, FailoverEntry, IncomingSnapshot, Manifest, ManifestUid, Scope};

use super::hooked::Hooked;
use super::ill::IllDisk;
use super::model::Model;

pub const DIR: &str = "/data/buckets/b";
/// Where damaged files are kept.
pub const QUARANTINE: &str = "/data/quarantine/1-0-b-vbucket-3";
pub const VBUCKETS: u16 = 4;
/// Active, and its own majority.
pub const ALONE: VbId = VbId(0);
/// Active, with a replica that never answers: its prepares stay in flight.
pub const CHAINED: VbId = VbId(1);
/// Follows another node.
pub const REPLICA: VbId = VbId(2);
/// Active, without a topology.
pub const PLAIN: VbId = VbId(3);
/// Keys that may have a prepare in flight: the first two stay so.
pub const PREPARED: [&str; 4] = ["prepared", "prepared-later", "durable", "stood-in"];
/// So small that it has several segments, and fills.
const JOURNAL_BYTES: u64 = 128 << 10;
/// Steps that a task, or what follows it, takes at most until it is idle.
pub const MOST_STEPS: usize = 64;
/// Identity of the history that the replica follows.
const PRODUCER: u64 = 0xfeed;

/// Where documents are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Journaled,
    Files,
    /// Behind a journal; whole documents leave memory, and a filter says which may be on disk.
    Full,
    /// In memory alone; the disk has what the bucket is.
    Ephemeral,
    /// In a log-structured store behind a journal; whole documents leave memory.
    Log,
}

impl Kind {
    /// Those in whose trials planted mistakes are looked for.
    pub const FORMER: [Kind; 4] = [Kind::Journaled, Kind::Files, Kind::Full, Kind::Ephemeral];
    pub const ALL: [Kind; 5] = [Kind::Journaled, Kind::Files, Kind::Full, Kind::Ephemeral, Kind::Log];

    /// Whether whole documents leave memory.
    pub fn is_full(self) -> bool {
        matches!(self, Kind::Full | Kind::Log)
    }
}

/// A folder, and what is known of it.
#[derive(Clone)]
pub struct Base {
    kind: Kind,
    disk: SimDisk,
    model: Model,
    replicated: u64,
    written: u64,
}

impl Base {
    /// A disk of its own with the folder.
    pub fn disk(&self) -> SimDisk {
        self.disk.image(Survival::Everything)
    }
}

/// A bucket, running or not.
pub struct World {
    pub kind: Kind,
    pub disk: SimDisk,
    pub ill: IllDisk,
    pub handles: SimHandles,
    pub bucket: Option<Arc<Bucket>>,
    pub store: Option<Arc<Hooked>>,
    pub model: Model,
    pub wrong: RefCell<Vec<String>>,
    /// The last seqno that the other node sent.
    pub replicated: u64,
    /// Changes so far: each value names its own.
    pub written: u64,
    /// Manifests that may be in use: a change that failed may have come to be all the same.
    pub manifests: Vec<u64>,
    seed: u64,
}

impl World {
    fn new(kind: Kind, disk: SimDisk, seed: u64) -> World {
        let ill = IllDisk::new(&disk);
        let handles = SimHandles::new(seed).with_disk(disk.clone());
        World {
            kind,
            disk,
            ill,
            handles,
            bucket: None,
            store: None,
            model: Model::default(),
            wrong: RefCell::default(),
            replicated: 0,
            written: 0,
            manifests: vec![1],
            seed,
        }
    }

    /// Starts from a folder that was left by a kill.
    pub fn on(base: &Base, seed: u64) -> World {
        let mut world = World::new(base.kind, base.disk.image(Survival::Everything), seed);
        (world.replicated, world.written) = (base.replicated, base.written);
        world.model = base.model.clone();
        world
    }

    fn env(&self) -> Env {
        Env { disk: Arc::new(self.ill.clone()), ..self.handles.env() }
    }

    /// Another disk is found, as after the power went.
    pub fn change_disk(&mut self, disk: SimDisk) {
        self.disk = disk;
        self.ill = IllDisk::new(&self.disk);
    }

    /// Starts the bucket, without its documents if it is to be loaded later.
    pub fn open(&mut self, is_cold: bool) -> Result<(), Failure> {
        self.seed = self.seed.wrapping_mul(31).wrapping_add(1);
        self.handles = SimHandles::new(self.seed).with_disk(self.disk.clone());
        self.handles.clock.advance(Duration::from_secs(3600 + self.written));
        let mut config = BucketConfig::new("b", DIR.into());
        config.vbuckets = VBUCKETS;
        if self.kind.is_full() {
            config.settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
        }
        if self.kind == Kind::Ephemeral {
            config.kind = BucketKind::Ephemeral;
        }
        if self.kind == Kind::Log {
            config.backend = StorageBackend::LogStructured;
        }
        let tuning = couchstore::Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true };
        let compaction = CompactionSteps { step_bytes: 300, last_changes: 2 };
        let couch = CouchConfig { max_open_files: 2, tuning, compaction };
        let files = match self.kind {
            Kind::Log => FilesConfig::Log(small_log(1 << 10, 2 << 10, 8 << 10)),
            _ => FilesConfig::Couch(couch),
        };
        let of = JournaledConfig { files, journal_bytes: JOURNAL_BYTES, file_after: Duration::ZERO };
        let dir = Path::new(DIR);
        let inner: Box<dyn KvStore> = match self.kind {
            Kind::Journaled | Kind::Full | Kind::Log => Box::new(Journaled::open(self.env(), dir, of)?),
            Kind::Files => Box::new(Journaled::without_journal(self.env(), dir, of)?),
            Kind::Ephemeral => Box::new(Nothing),
        };
        let store = Hooked::new(inner);
        let bucket = if is_cold {
            Bucket::open_cold(config, self.env(), store.clone())?
        } else {
            Bucket::open(config, self.env(), store.clone())?
        };
        // As a node does before it serves a bucket.
        store.store_id()?;
        (self.bucket, self.store) = (Some(Arc::new(bucket)), Some(store));
        Ok(())
    }

    /// The process ends without a word.
    pub fn kill(&mut self) {
        (self.bucket, self.store) = (None, None);
        self.forget();
    }

    /// What was in memory alone is gone.
    fn forget(&mut self) {
        if self.kind == Kind::Ephemeral {
            self.model = Model::default();
        }
    }

    /// Living documents that are on disk leave the memory of a bucket with full eviction.
    pub fn evict_all(&self) {
        let Some(bucket) = self.bucket.as_ref().filter(|_| self.kind.is_full()) else { return };
        for vb in (0..VBUCKETS).map(VbId) {
            let living = bucket.inspect(vb, |found| {
                let living = found.table().iter().filter(|version| !version.is_deleted());
                living.map(|version| version.stored_key().to_vec()).collect::<Vec<_>>()
            });
            for key in living.unwrap_or_default() {
                let _ = bucket.eviction().evict_whole(vb, DocKey::parse(&key).expect("it was stored"));
            }
        }
    }

    /// Stops. After a clean stop all that was served is promised.
    pub fn close(&mut self) -> Result<(), Failure> {
        let Some(bucket) = self.bucket.take() else { return Ok(()) };
        self.store = None;
        let closed = bucket.close();
        self.model.note(&bucket);
        if closed.is_ok() {
            self.model.all_promised(&bucket);
        }
        self.forget();
        closed
    }

    pub fn bucket(&self) -> Arc<Bucket> {
        Arc::clone(self.bucket.as_ref().expect("it runs"))
    }

    pub fn note(&mut self) {
        if let Some(bucket) = &self.bucket {
            self.model.note(bucket);
        }
    }

    /// Sets a document whose value names this change. Refused where the vBucket takes no changes.
    pub fn set(&mut self, vb: VbId, collection: u32, key: &str, pad: usize) -> bool {
        self.set_durably(vb, collection, key, pad, None)
    }

    pub fn set_durably(
        &mut self,
        vb: VbId,
        of: u32,
        key: &str,
        pad: usize,
        level: Option<DurabilityLevel>,
    ) -> bool {
        self.written += 1;
        let value = format!("{vb} {key} {} {}", self.written, "x".repeat(pad));
        let name = name_of(key);
        let key = DocKey { collection: CollectionId(of), key: &name };
        let durable = level.map(|level| Durable { level, timeout: Duration::from_secs(3600) });
        let bucket = self.bucket();
        let stored =
            bucket.documents().durably(durable).store(vb, &request(key, value.as_bytes()), bucket.now());
        self.model.note(&bucket);
        if stored.is_ok() && level.is_some() {
            self.model.prepared(&bucket, vb, key.key);
        }
        stored.is_ok()
    }

    pub fn delete(&mut self, vb: VbId, key: &str) {
        let bucket = self.bucket();
        let _ = bucket.documents().delete(vb, DocKey::new(&name_of(key)), Cas::ANY, bucket.now());
        self.model.note(&bucket);
    }

    /// One flush step, and what is known then.
    pub fn flush(&mut self) -> Progress {
        let done = self.bucket().flushing().flush_step();
        self.note();
        done
    }

    /// Files until there is nothing to do, or it fails.
    pub fn file(&mut self) -> Progress {
        let mut done = Progress::Worked;
        for _ in 0..MOST_STEPS {
            done = self.bucket().flushing().file_step();
            if done != Progress::Worked {
                break;
            }
        }
        done
    }

    /// The other node sends a snapshot of changes to the replica.
    pub fn replicate(&mut self, changes: u64) {
        let bucket = self.bucket();
        let Ok(position) = bucket.replicas().replica_position(REPLICA) else { return };
        let log = vec![FailoverEntry { uuid: VbUuid(PRODUCER), seqno: Seqno(0) }];
        let Ok(stream) = bucket.replicas().adopt_failover(&position, log) else { return };
        let from = position.start.0;
        let end = Seqno(from + changes);
        let snapshot = IncomingSnapshot { start: Seqno(from), end, ..IncomingSnapshot::default() };
        if bucket.replicas().begin_snapshot(stream, &snapshot).is_err() {
            return;
        }
        let mut all = Vec::new();
        for seqno in from + 1..=end.0 {
            self.written += 1;
            let is_new = seqno.is_multiple_of(2);
            let key = if is_new { format!("r{seqno}") } else { format!("r{}", seqno % 5) };
            let meta = VersionMeta {
                cas: Cas(self.written << 16),
                by_seqno: Seqno(seqno),
                rev_seqno: RevSeqno(self.written),
                kind: if seqno.is_multiple_of(7) { ItemKind::Deletion } else { ItemKind::Mutation },
                ..VersionMeta::default()
            };
            let value = format!("sent {}", self.written);
            let value = if meta.kind.is_deleted() { &b""[..] } else { value.as_bytes() };
            let new = bucket
                .replicas()
                .received(meta, DocKey::new(&name_of(&key)), value)
                .expect("it is well formed");
            all.push(Incoming::Version(new));
        }
        let _ = bucket.replicas().apply_replicated(stream, &mut all);
        self.replicated = end.0;
        self.note();
    }

    /// Some changes of every vBucket: half of the keys are new.
    pub fn change(&mut self, count: usize, pad: usize) {
        for n in 0..count {
            for vb in [ALONE, CHAINED, PLAIN] {
                let is_new = n % 2 == 0;
                let name = if is_new { format!("n{}", self.written) } else { format!("k{}", n % 5) };
                let collection = [0, 8, 9][n % 3];
                if !self.set(vb, collection, &name, pad) {
                    self.set(vb, 0, &name, pad);
                }
            }
        }
        self.delete(ALONE, "k1");
        self.delete(PLAIN, "k3");
    }

    pub fn into_base(mut self) -> Base {
        self.kill();
        let disk = self.disk.image(Survival::Everything);
        let World { kind, model, replicated, written, .. } = self;
        Base { kind, disk, model, replicated, written }
    }

    /// A folder that has everything: files and journal, roles, collections, tombstones, a prepare in flight.
    pub fn base(kind: Kind) -> Base {
        let disk = SimDisk::new();
        disk.create_dir_all_synced(Path::new(DIR)).expect("the disk is well");
        let mut world = World::new(kind, disk, 7);
        world.open(false).expect("the disk is well");
        let bucket = world.bucket();
        bucket.collections().set_manifest(manifest(1, &[8, 9])).expect("it follows");
        let roles = [
            (ALONE, VbState::Active, Some(topology(&["n_0"]))),
            (CHAINED, VbState::Active, Some(topology(&["n_0", "n_1"]))),
            (REPLICA, VbState::Replica, None),
        ];
        for (vb, state, topology) in roles {
            bucket.roles().set_vbucket_state(vb, state, topology).expect("there is such a vBucket");
        }
        drop(bucket);
        for round in 0..4 {
            world.change(5, 40);
            world.replicate(4);
            if round == 1 {
                world.set_durably(CHAINED, 0, PREPARED[0], 0, Some(DurabilityLevel::PersistToMajority));
            }
            let level = DurabilityLevel::MajorityAndPersistOnActive;
            world.set_durably(ALONE, 0, "durable", 0, Some(level));
            assert!(world.bucket().flushing().flush_all(), "the disk is well");
            world.note();
            if round < 2 {
                assert_eq!(world.file(), Progress::Idle, "the disk is well");
            }
        }
        world.into_base()
    }
}

/// A document's name: that of about every second one is long.
pub fn name_of(key: &str) -> Vec<u8> {
    let number = key.bytes().map(u64::from).sum();
    DocumentNames::of(1, limits::MAX_KEY_BYTES).with_text(number, key)
}

pub fn request<'a>(key: DocKey<'a>, body: &'a [u8]) -> StoreRequest<'a> {
    StoreRequest::set(key, body)
}

pub fn topology(nodes: &[&str]) -> Topology {
    topology_from_json(&serde_json::json!([nodes])).expect("it is a topology")
}

pub fn manifest(uid: u64, collections: &[u32]) -> Manifest {
    let scope = Scope { id: ScopeId(0), name: "_default".into() };
    let all = [0].iter().chain(collections).map(|id| Collection {
        id: CollectionId(*id),
        scope: ScopeId(0),
        name: if *id == 0 { "_default".into() } else { format!("c{id}") },
        max_ttl_s: None,
        history: None,
    });
    Manifest::new(ManifestUid(uid), [scope], all).expect("it is valid")
}
