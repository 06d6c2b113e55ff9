//! A bucket that was written to, filed, compacted, stopped and killed, what its folder held then and some time before, and
//! what was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{DocumentNames, SimDisk, SimHandles, SplitMix64};
use base::env::{Disk, OpenMode};
use base::{Cas, CollectionId, DocKey, ScopeId, Seqno, VbId, VbUuid, limits};
use engine::{Bucket, BucketConfig, CompactRequest, Failure, StoreRequest};
use kvstore::{CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore};
use sim::kv::subjects::small_log;
use vbucket::{Collection, Manifest, ManifestUid, Scope};

pub const DIR: &str = "/data/buckets/b";
pub const VBUCKETS: u16 = 4;
const KEYS: u64 = 12;
/// Lives of the bucket, each ended by a stop or by being killed.
const MOST_LIVES: u64 = 4;
const MOST_OPS: u64 = 60;
const MOST_VALUE_BYTES: u64 = 2500;
/// So small that it has several segments, and fills.
const JOURNAL_BYTES: u64 = 128 << 10;
/// Versions of the folder that stale files come from.
const MOST_OLDER: usize = 8;

pub type Contents = BTreeMap<PathBuf, Vec<u8>>;

/// What keeps the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Couchstore files alone.
    Files,
    /// The same behind a journal.
    Journaled,
    /// A log-structured store, which is always behind a journal.
    Log,
}

/// How the bucket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Stopped,
    Killed,
}

/// Values of a document, each with its seqno.
pub type Values = Vec<(Seqno, Option<Vec<u8>>)>;

/// What is known of a vBucket.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    pub uuid: VbUuid,
    pub high_seqno: Seqno,
    /// All values that each document had, oldest first, each with its seqno; `None` where it was deleted.
    pub documents: BTreeMap<(CollectionId, Vec<u8>), Values>,
    /// What was given to a change.
    pub given: BTreeSet<(u64, u64)>,
}

impl Promised {
    pub fn live(&self) -> usize {
        self.documents
            .values()
            .filter(|values| values.last().is_some_and(|(_, value)| value.is_some()))
            .count()
    }
}

pub struct World {
    pub keeper: Keeper,
    pub end: End,
    pub files: Contents,
    pub older: Vec<Contents>,
    /// The folder when its last life began.
    pub at_last: Contents,
    /// What its values and random numbers are mixed with.
    pub salt: u8,
    pub bucket_uuid: String,
    pub manifest: Arc<Manifest>,
    pub promised: BTreeMap<VbId, Promised>,
}

pub fn open(seed: u64, disk: &SimDisk, keeper: Keeper) -> Result<(Bucket, SimHandles), Failure> {
    let handles = SimHandles::new(seed).with_disk(disk.clone());
    let mut config = BucketConfig::new("b", DIR.into());
    config.vbuckets = VBUCKETS;
    let couch = CouchConfig { max_open_files: 2, ..CouchConfig::default() };
    let files = if keeper == Keeper::Log {
        FilesConfig::Log(small_log(2 << 10, 8 << 10, 16 << 10))
    } else {
        FilesConfig::Couch(couch)
    };
    let store = JournaledConfig { files, journal_bytes: JOURNAL_BYTES, ..JournaledConfig::default() };
    let store: Arc<dyn KvStore> = match keeper {
        Keeper::Journaled | Keeper::Log => Arc::new(Journaled::open(handles.env(), &config.dir, store)?),
        Keeper::Files => Arc::new(Journaled::without_journal(handles.env(), &config.dir, store)?),
    };
    let bucket = Bucket::open(config, handles.env(), store)?;
    Ok((bucket, handles))
}

/// Every second one is long.
pub fn names() -> DocumentNames {
    DocumentNames::of(1, limits::MAX_KEY_BYTES)
}

pub fn set<'a>(key: DocKey<'a>, body: &'a [u8]) -> StoreRequest<'a> {
    StoreRequest::set(key, body)
}

pub fn manifest(uid: u64, collections: u32) -> Manifest {
    let scopes = [(0, "_default"), (8, "s")].map(|(id, name)| Scope { id: ScopeId(id), name: name.into() });
    let named = (8..8 + collections).map(|id| (id, 8, format!("c{id}")));
    let all = [(0, 0, "_default".to_owned())].into_iter().chain(named);
    let all = all.map(|(id, scope, name)| Collection {
        id: CollectionId(id),
        scope: ScopeId(scope),
        name,
        max_ttl_s: None,
        history: None,
    });
    Manifest::new(ManifestUid(uid), scopes, all).expect("it is valid")
}

pub fn contents(disk: &SimDisk) -> Contents {
    disk.contents().into_iter().collect()
}

impl World {
    /// Decided by `rng`. Without a journal the last end is a stop: after a crash nothing vouches for the last header then.
    pub fn build(rng: &mut SplitMix64) -> World {
        let keeper = if rng.chance(3, 4) { Keeper::Journaled } else { Keeper::Files };
        World::build_in(keeper, rng)
    }

    /// The same in this store.
    pub fn build_in(keeper: Keeper, rng: &mut SplitMix64) -> World {
        World::build_salted(keeper, rng, 0)
    }

    /// The folder of another bucket, to which the same happens with the same `rng`: its files have other values and random
    /// numbers, of the same lengths.
    pub fn twin(keeper: Keeper, rng: &mut SplitMix64) -> Contents {
        World::build_salted(keeper, rng, 0x55).files
    }

    /// The folder as it is after a last life that is another one.
    pub fn branch(&self, rng: &mut SplitMix64) -> Contents {
        let disk = disk_with(&self.at_last);
        let mut other = World {
            keeper: self.keeper,
            end: self.end,
            files: Contents::new(),
            older: Vec::new(),
            at_last: Contents::new(),
            salt: 0x2a,
            bucket_uuid: String::new(),
            manifest: self.manifest.clone(),
            promised: self.promised.clone(),
        };
        let (bucket, handles) = open(rng.next_u64(), &disk, self.keeper).expect("no fault is planned");
        other.live(rng, &bucket, &handles, &disk);
        assert!(bucket.flushing().flush_all(), "no fault is planned");
        if self.keeper == Keeper::Files || rng.chance(1, 2) {
            bucket.close().expect("no fault is planned");
        }
        drop(bucket);
        contents(&disk)
    }

    fn build_salted(keeper: Keeper, rng: &mut SplitMix64, salt: u8) -> World {
        let has_journal = keeper != Keeper::Files;
        let disk = SimDisk::new();
        disk.create_dir_all_synced(Path::new(DIR)).expect("no fault is planned");
        let mut world = World {
            keeper,
            end: if has_journal && rng.chance(1, 2) { End::Killed } else { End::Stopped },
            files: Contents::new(),
            older: Vec::new(),
            at_last: Contents::new(),
            salt,
            bucket_uuid: String::new(),
            manifest: Arc::default(),
            promised: (0..VBUCKETS).map(|vb| (VbId(vb), Promised::default())).collect(),
        };
        let lives = rng.between(2, MOST_LIVES);
        for life in 1..=lives {
            if life == lives {
                world.at_last = contents(&disk);
            }
            let seed = rng.next_u64() ^ u64::from(salt);
            let (bucket, handles) = open(seed, &disk, keeper).expect("no fault is planned");
            world.look(&bucket);
            if life <= 2 {
                bucket.collections().set_manifest(manifest(life, life as u32)).expect("it follows");
            }
            world.live(rng, &bucket, &handles, &disk);
            assert!(bucket.flushing().flush_all(), "no fault is planned");
            world.look(&bucket);
            let is_stopped =
                if life == lives { world.end == End::Stopped } else { !has_journal || rng.chance(1, 2) };
            if is_stopped {
                bucket.close().expect("no fault is planned");
            }
            drop(bucket);
            if life < lives {
                world.keep(rng, &disk);
            }
        }
        world.files = contents(&disk);
        world
    }

    /// The folder as the node left it.
    pub fn disk(&self) -> SimDisk {
        disk_with(&self.files)
    }

    fn look(&mut self, bucket: &Bucket) {
        bucket.uuid().clone_into(&mut self.bucket_uuid);
        self.manifest = bucket.collections().manifest();
        for (vb, promised) in &mut self.promised {
            (promised.uuid, promised.high_seqno) =
                bucket.with_vbucket(*vb, |vb| (vb.uuid(), vb.high_seqno())).expect("it has this many");
        }
    }

    fn keep(&mut self, rng: &mut SplitMix64, disk: &SimDisk) {
        if self.older.len() == MOST_OLDER {
            self.older.swap_remove(rng.below(MOST_OLDER as u64) as usize);
        }
        self.older.push(contents(disk));
    }

    fn live(&mut self, rng: &mut SplitMix64, bucket: &Bucket, handles: &SimHandles, disk: &SimDisk) {
        for _ in 0..rng.between(MOST_OPS / 2, MOST_OPS) {
            handles.clock.advance(Duration::from_millis(rng.below(900)));
            match rng.below(24) {
                0..=14 => self.change(rng, bucket),
                15..=18 => drop(bucket.flushing().flush_step()),
                19..=20 => drop(bucket.flushing().file_step()),
                21 => {
                    let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
                    drop(bucket.compaction().compact(vb, CompactRequest::default()));
                    bucket.compaction().compact_step();
                }
                22 => self.keep(rng, disk),
                _ => {
                    bucket.flushing().flush_all();
                }
            }
        }
    }

    fn change(&mut self, rng: &mut SplitMix64, bucket: &Bucket) {
        let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
        let promised = self.promised.get_mut(&vb).expect("it is one of them");
        let collection = CollectionId([0, 0, 8][rng.below(3) as usize]);
        let number = rng.below(KEYS);
        let name = names().name(number);
        let key = DocKey { collection, key: &name };
        let deletes = rng.chance(1, 6);
        let mut value = format!("{vb} k{number} {} ", promised.given.len()).into_bytes();
        let padding = rng.below(MOST_VALUE_BYTES) as usize;
        value.extend(
            std::iter::repeat_with(|| rng.next_u64() as u8).take(padding).map(|byte| byte ^ self.salt),
        );
        let changed = match deletes {
            true => bucket.documents().delete(vb, key, Cas::ANY, bucket.now()),
            false => bucket.documents().store(vb, &set(key, &value), bucket.now()),
        };
        let Ok(changed) = changed else { return };
        promised.given.insert((changed.uuid.0, changed.seqno.0));
        let values = promised.documents.entry((collection, name)).or_default();
        values.push((changed.seqno, (!deletes).then_some(value)));
    }
}

fn disk_with(files: &Contents) -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all_synced(Path::new(DIR)).expect("no fault is planned");
    files.iter().for_each(|(path, bytes)| put(&disk, path, bytes));
    disk.sync_dir(Path::new(DIR)).expect("no fault is planned");
    disk
}

pub fn put(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Create).expect("no fault is planned");
    let written = file.set_len(0).and_then(|()| file.write_at(bytes, 0)).and_then(|()| file.sync_data());
    written.expect("no fault is planned");
}
