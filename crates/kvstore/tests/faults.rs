//! The n-th operation on the disk fails, for each n, once and for ever: what was acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use base::env::{Disk, Env, File, OpenMode, RealDisk};
use base::{Seqno, VbId, Version};
use kvstore::{Couch, CouchConfig, Failure, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

/// Counts down with each change to the disk and fails at zero, once or from then on.
#[derive(Clone)]
struct Fuse {
    left: Arc<AtomicI64>,
    once: bool,
}

impl Fuse {
    fn new(left: i64, once: bool) -> Fuse {
        Fuse { left: Arc::new(AtomicI64::new(left)), once }
    }

    fn burn(&self) -> io::Result<()> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        let fails = if self.once { left == 0 } else { left <= 0 };
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn burnt(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }
}

struct FaultyDisk(Fuse);
struct FaultyFile(Arc<dyn File>, Fuse);

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.0.burn()?;
        Ok(Arc::new(FaultyFile(RealDisk.open(path, mode)?, self.0.clone())))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.burn()?;
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.burn()?;
        RealDisk.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.burn()?;
        RealDisk.sync_dir(path)
    }
}

impl File for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.burn()?;
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        // a failing write leaves half of its bytes behind
        self.1.burn().inspect_err(|_| {
            let _ = self.0.write_at(&buf[..buf.len() / 2], offset);
        })?;
        self.0.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.1.burn()?;
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
const VB: VbId = VbId(0);

fn batch(round: u64) -> Vec<Version> {
    let mut items: Vec<Version> = (0..12)
        .map(|i| version(0, &format!("k{}", (round * 5 + i) % 30), round * 12 + i + 1, &[round as u8; 100]))
        .collect();
    items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
    items
}

fn save(store: &Couch, items: &[Version], model: &mut Model) -> Result<(), Failure> {
    store.save(VB, SaveBatch { items, state: &VbStateDoc::default() })?;
    model.extend(items.iter().map(|v| (v.stored_key().to_vec(), v.value().to_vec())));
    Ok(())
}

fn contents(dir: &Path) -> Model {
    let store = Couch::open(Env::real(), dir, CouchConfig::default()).expect("the bucket opens");
    let mut all = Model::new();
    store
        .scan(VB, Seqno(0), kvstore::Values::Read, &mut |v| {
            all.insert(v.stored_key().to_vec(), v.value().to_vec());
            ControlFlow::Continue(())
        })
        .expect("a scan");
    let counts = store.counts(VB).expect("counts");
    assert_eq!(counts.documents, all.len() as u64);
    all
}

fn open(dir: &Path, fuse: &Fuse) -> Couch {
    let env = Env { disk: Arc::new(FaultyDisk(fuse.clone())), ..Env::real() };
    // a bucket that does not open promises nothing: what follows is counted
    let left = fuse.left.swap(i64::MAX, Ordering::Relaxed);
    let store = Couch::open(env, dir, CouchConfig::default()).expect("the bucket opens");
    fuse.left.store(left, Ordering::Relaxed);
    store
}

#[test]
fn one_failure_is_healed_by_saving_again() {
    for n in 0.. {
        let dir = tempfile::tempdir().expect("a folder");
        let fuse = Fuse::new(n, true);
        let store = open(dir.path(), &fuse);
        let mut model = Model::new();
        for round in 0..4 {
            let items = batch(round);
            let first = save(&store, &items, &mut model);
            if first.is_err() {
                assert_eq!(store.stats().failures, 1, "one failure is reported");
                save(&store, &items, &mut model).expect("the second try");
            }
        }
        assert_eq!(contents(dir.path()), model, "failure at operation {n}");
        if !fuse.burnt() {
            assert!(n > 30, "the test reaches {n} operations");
            return;
        }
    }
}

#[test]
fn what_was_acknowledged_before_the_disk_failed_is_there() {
    for n in 0.. {
        let dir = tempfile::tempdir().expect("a folder");
        let fuse = Fuse::new(n, false);
        let store = open(dir.path(), &fuse);
        let mut acknowledged = Model::new();
        let mut tried = Model::new();
        for round in 0..4 {
            let items = batch(round);
            tried = acknowledged.clone();
            tried.extend(items.iter().map(|v| (v.stored_key().to_vec(), v.value().to_vec())));
            if save(&store, &items, &mut acknowledged).is_err() {
                assert!(save(&store, &items, &mut acknowledged).is_err(), "the disk stays broken");
                break;
            }
        }
        drop(store);
        let found = contents(dir.path());
        assert!(found == acknowledged || found == tried, "failure from operation {n} on");
        if !fuse.burnt() {
            return;
        }
    }
}
