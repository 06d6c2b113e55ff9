//! The folder of a bucket is not what it was: gone, emptied in whole or in part, or swapped with another bucket's. The
//! bucket is refused with its name, or it serves what it had; never nothing, and never what another bucket had. Once the
//! folder is back, all is served. A bucket whose folder goes while it is served keeps no other one from a clean stop.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::Disk;
use base::env::sim::{SimDisk, SimHandles, SplitMix64};
use base::{CollectionId, DocKey, VbId, VbState};
use engine::{Bucket, Progress};
use node::Settings;
use node::config::Config;
use node::data_dir::DataDir;
use node::hosting::{Host, Opened};
use vbucket::Manifest;

use super::log::Log;
use super::start::{Read, Started, read};
use super::tally::Tally;
use super::world::{Contents, VBUCKETS, contents, manifest, names, put, set};

const NAMES: [&str; 2] = ["a", "b"];
const DOCUMENTS: u64 = 20;

/// What is done to the folders.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// The folder of the first bucket is not there.
    Gone,
    /// It is there, and has no file.
    Emptied,
    /// It has nothing but the bucket's identity.
    OnlyUuid,
    /// What the store keeps is missing.
    NoStore,
    /// The two buckets have each other's folder.
    Swapped,
    /// They have each other's identity.
    UuidSwapped,
    /// They have each other's small files.
    SmallSwapped,
    /// They have what each other's store keeps.
    StoreSwapped,
    /// Both copies of the first one's manifest are older than its vBuckets.
    ManifestOlder,
}

impl Damage {
    const ALL: [Damage; 9] = [
        Damage::Gone,
        Damage::Emptied,
        Damage::OnlyUuid,
        Damage::NoStore,
        Damage::Swapped,
        Damage::UuidSwapped,
        Damage::SmallSwapped,
        Damage::StoreSwapped,
        Damage::ManifestOlder,
    ];

    fn name(self) -> &'static str {
        match self {
            Damage::Gone => "gone",
            Damage::Emptied => "emptied",
            Damage::OnlyUuid => "uuid",
            Damage::NoStore => "no store",
            Damage::ManifestOlder => "stale",
            Damage::Swapped | Damage::UuidSwapped | Damage::SmallSwapped | Damage::StoreSwapped => "swapped",
        }
    }

    /// Whether it takes a file away, or swaps it if it swaps.
    fn meets(self, file: &str) -> bool {
        let is_uuid = file.starts_with("uuid");
        let is_of_store =
            file.contains(".couch.") || file.starts_with("journal.") || file.starts_with("catalog");
        match self {
            Damage::Gone | Damage::Emptied | Damage::Swapped => true,
            Damage::OnlyUuid => !is_uuid,
            Damage::NoStore | Damage::StoreSwapped => is_of_store,
            Damage::UuidSwapped => is_uuid,
            Damage::SmallSwapped => !is_of_store,
            Damage::ManifestOlder => file.starts_with("manifest.json"),
        }
    }

    fn swaps(self) -> bool {
        self.name() == "swapped"
    }
}

/// The documents of a bucket.
type Documents = BTreeMap<(VbId, CollectionId, Vec<u8>), Vec<u8>>;

/// A node's two buckets.
struct World {
    data: tempfile::TempDir,
    files: Contents,
    /// The same before the last change of the manifests.
    older: Contents,
    manifest: Arc<Manifest>,
    documents: BTreeMap<&'static str, Documents>,
}

/// Damages folders, and looks at what is served then, in a first start and in a second one, and when they are back.
pub fn run(seed: u64, tally: &mut Tally) {
    let mut rng = SplitMix64::new(seed ^ 0x666f_6c64);
    let mut world = World::build(&mut rng);
    for damage in Damage::ALL {
        let disk = world.damaged(damage);
        let mut started = Started { damage: format!("{damage:?}"), ..Started::default() };
        let (_, told) = Log::listen(|| (0..2).for_each(|_| world.start(&disk, &mut started)));
        if started.is_refused() && told == 0 {
            started.wrong.push("it is refused, and nothing is logged".to_owned());
        }
        if started.wrong.is_empty() && world.is_left(&disk, damage) {
            world.mend(&disk, damage);
            let mut mended = Started::default();
            world.start(&disk, &mut mended);
            started.wrong.append(&mut mended.wrong);
            if mended.is_refused() {
                started.wrong.push("the folders are back, and it is refused".to_owned());
            }
        }
        tally.judge(seed, damage.name(), "folder", &started);
    }
    for name in NAMES {
        tally.judge(seed, "gone", "stop", &world.stopped_without(&mut rng, name));
    }
}

impl World {
    fn build(rng: &mut SplitMix64) -> World {
        let data = tempfile::tempdir().expect("a folder for the lock");
        let mut world = World {
            data,
            files: Contents::new(),
            older: Contents::new(),
            manifest: Arc::new(manifest(2, 2)),
            documents: BTreeMap::new(),
        };
        let (disk, is_stopped) = (SimDisk::new(), rng.chance(1, 2));
        let (host, opened) = world.open(&disk);
        assert!(opened.down.is_empty(), "they are new");
        for served in &opened.served {
            let name = *NAMES.iter().find(|name| **name == served.spec.name).expect("one of them");
            served.bucket.collections().set_manifest(manifest(1, 1)).expect("it is the first");
            world.fill(rng, name, &served.bucket, 8);
            assert!(served.bucket.flushing().flush_all(), "no fault is planned");
            let of_bucket =
                contents(&disk).into_iter().filter(|(path, _)| path.starts_with(world.folder(name)));
            let older: Contents = of_bucket.collect();
            world.older.extend(older);
            served.bucket.collections().set_manifest(manifest(2, 2)).expect("it follows");
            world.fill(rng, name, &served.bucket, 9);
            assert!(served.bucket.flushing().flush_all(), "no fault is planned");
            if rng.chance(1, 2) {
                served.bucket.flushing().file_step();
            }
            if is_stopped {
                served.bucket.close().expect("no fault is planned");
            }
        }
        drop((host, opened));
        world.files = contents(&disk);
        world
    }

    /// Writes more, and stops when the folder of one bucket has gone: what is served of the others then.
    fn stopped_without(&mut self, rng: &mut SplitMix64, gone: &str) -> Started {
        let disk = self.empty_disk();
        self.files.iter().for_each(|(path, bytes)| put(&disk, path, bytes));
        let mut started = Started { damage: format!("{gone} goes before a stop"), ..Started::default() };
        let (host, opened) = self.open(&disk);
        assert!(opened.down.is_empty(), "they are sound");
        let kept = self.documents.clone();
        for served in &opened.served {
            let name = *NAMES.iter().find(|name| **name == served.spec.name).expect("one of them");
            self.fill(rng, name, &served.bucket, 9);
        }
        let buckets: Vec<_> = opened.served.into_iter().map(|served| (served.spec, served.bucket)).collect();
        disk.remove_dir_all(&self.folder(gone)).expect("no fault is planned");
        match host.close(&buckets) {
            Ok(()) => started.wrong.push(format!("{gone} was closed cleanly without its folder")),
            Err(failure) if !failure.to_string().contains(&format!("bucket {gone}")) => {
                started.wrong.push(format!("the stop does not name {gone}: {failure}"));
            }
            Err(_) => {}
        }
        drop((host, buckets));
        self.start(&disk, &mut started);
        if started.vbuckets_refused > 0 || started.values_refused > 0 {
            started.wrong.push("the bucket that has its folder does not serve all of it".to_owned());
        }
        self.documents = kept;
        started
    }

    fn open(&self, disk: &SimDisk) -> (Host, Opened) {
        let env = SimHandles::new(7).with_disk(disk.clone()).env();
        let folder = self.data.path();
        disk.create_dir_all_synced(folder).expect("no fault is planned");
        let settings = "password = \"password\"\nvbuckets = 4\nbuckets = [\"a:100MiB\", \"b:100MiB\"]\n";
        let settings = Settings::parse(settings).expect("valid");
        let config = Config::new(settings, folder.to_owned(), 1, String::new).expect("valid");
        let data_dir = Arc::new(DataDir::take(folder, &env).expect("it is free"));
        let opened = Host::open(config, data_dir, &env);
        let (host, opened) = opened.expect("one bucket does not keep a node from starting");
        for served in &opened.served {
            // What the bucket's threads do, which are not started here.
            while served.bucket.loading().load_step() != Progress::Idle {}
        }
        (host, opened)
    }

    fn fill(&mut self, rng: &mut SplitMix64, name: &'static str, bucket: &Bucket, collection: u32) {
        let documents = self.documents.entry(name).or_default();
        for number in 0..DOCUMENTS {
            let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
            let collection = CollectionId([0, collection][rng.below(2) as usize]);
            let (name_of_key, value) = (names().name(number), format!("{number} of {name}").into_bytes());
            let key = DocKey { collection, key: &name_of_key };
            bucket.documents().store(vb, &set(key, &value), bucket.now()).expect("it is active");
            documents.insert((vb, collection, name_of_key), value);
        }
    }

    fn folder(&self, bucket: &str) -> PathBuf {
        self.data.path().join("buckets").join(bucket)
    }

    /// The bucket of which a file is, if it is of one, and its name.
    fn part<'p>(&self, path: &'p Path) -> Option<(&'static str, &'p str)> {
        let bucket = NAMES.into_iter().find(|name| path.starts_with(self.folder(name)))?;
        Some((bucket, path.file_name()?.to_str()?))
    }

    /// Has the buckets' folders, and no file.
    fn empty_disk(&self) -> SimDisk {
        let disk = SimDisk::new();
        for name in NAMES {
            disk.create_dir_all_synced(&self.folder(name)).expect("no fault is planned");
        }
        disk
    }

    fn damaged(&self, damage: Damage) -> SimDisk {
        let disk = self.empty_disk();
        for (path, bytes) in &self.files {
            match self.part(path).filter(|(_, file)| damage.meets(file)) {
                None => put(&disk, path, bytes),
                Some((bucket, file)) if damage.swaps() => {
                    let other = NAMES.into_iter().find(|name| *name != bucket).expect("there are two");
                    put(&disk, &self.folder(other).join(file), bytes);
                }
                Some(("a", _)) if matches!(damage, Damage::ManifestOlder) => {
                    put(&disk, path, &self.older[path]);
                }
                Some(("a", _)) => {}
                Some(_) => put(&disk, path, bytes),
            }
        }
        if matches!(damage, Damage::Gone) {
            disk.remove_dir_all(&self.folder("a")).expect("no fault is planned");
        }
        disk
    }

    /// Whether a file that was not in its place can be put there: nothing was made in its stead.
    fn is_left(&self, disk: &SimDisk, damage: Damage) -> bool {
        let there = contents(disk);
        damage.swaps()
            || self.files.keys().all(|path| {
                self.part(path).is_none_or(|(bucket, file)| {
                    bucket != "a" || !damage.meets(file) || !there.contains_key(path)
                })
            })
    }

    fn mend(&self, disk: &SimDisk, damage: Damage) {
        for name in NAMES.into_iter().filter(|name| damage.swaps() || *name == "a") {
            let folder = self.folder(name);
            disk.create_dir_all_synced(&folder).expect("no fault is planned");
            for file in disk.read_dir(&folder).expect("no fault is planned") {
                disk.remove_file(&folder.join(file)).expect("no fault is planned");
            }
            let of_bucket = self.files.iter().filter(|(path, _)| path.starts_with(&folder));
            of_bucket.for_each(|(path, bytes)| put(disk, path, bytes));
        }
    }

    fn start(&self, disk: &SimDisk, started: &mut Started) {
        let (_host, opened) = self.open(disk);
        for (name, documents) in &self.documents {
            if let Some(down) = opened.down.get(*name) {
                started.bucket_refused = true;
                if !down.reason.contains(name) {
                    started.wrong.push(format!("{name} is refused without its name: {}", down.reason));
                }
                continue;
            }
            let Some(served) = opened.served.iter().find(|served| served.spec.name == *name) else {
                started.wrong.push(format!("{name} is neither served nor refused"));
                continue;
            };
            if *served.bucket.collections().manifest() != *self.manifest {
                started
                    .wrong
                    .push(format!("{name} has manifest {:?}", served.bucket.collections().manifest().uid()));
            }
            for ((vb, collection, key), expected) in documents {
                if served.bucket.with_vbucket(*vb, |vb| vb.state()) != Some(VbState::Active) {
                    started.vbuckets_refused += 1;
                    continue;
                }
                match read(&served.bucket, *vb, *collection, key) {
                    Read::Value(found) if found == *expected => {}
                    Read::Refused => started.values_refused += 1,
                    Read::Nothing => started.wrong.push(format!("{name}: {} is absent", key.escape_ascii())),
                    Read::Value(_) => {
                        started.wrong.push(format!("{name}: {} is another's", key.escape_ascii()))
                    }
                }
            }
        }
    }
}
