//! All vBuckets of a bucket's folder.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use base::env::{Env, OpenMode};
use base::{CollectionId, Seqno};
use kvstore::{Background, Compacted, KvStore, Log, LogConfig, StorageBackend, StoredVb};

use super::super::check::place::Place;
use super::{Progress, compact_file, compact_vb};

/// Compacts each vBucket in a folder, and sums up what came of it.
pub(super) fn compact(
    env: &Env,
    dir: &Path,
    purge_before_s: Option<u32>,
    progress: &RefCell<Progress<'_>>,
) -> anyhow::Result<Compacted> {
    let place = Place::find(&*env.disk, dir)?;
    let [bucket] = &place.buckets[..] else { bail!("{}", no_bucket(dir)) };
    if bucket.folder != *dir {
        bail!("{}", no_bucket(dir));
    }
    match bucket.backend {
        StorageBackend::LogStructured => return compact_log(env, dir, purge_before_s, progress),
        StorageBackend::RocksDb => return compact_rocks(env, dir, purge_before_s, progress),
        StorageBackend::Couchstore => {}
    }
    let mut all = Compacted::default();
    for (at, file) in bucket.files.iter().enumerate() {
        progress.borrow_mut().begin(at, bucket.files.len());
        let (_, one) = compact_file(env, file, purge_before_s, progress)?;
        all.before_bytes += one.before_bytes;
        all.after_bytes += one.after_bytes;
        add(&mut all, &one);
    }
    Ok(all)
}

fn no_bucket(dir: &Path) -> String {
    let dir = dir.display();
    format!("{dir} is not the folder of one bucket: give one like {dir}/buckets/default; nothing was changed")
}

/// The sizes are those of all files, as vBuckets share them.
fn compact_log(
    env: &Env,
    dir: &Path,
    purge_before_s: Option<u32>,
    progress: &RefCell<Progress<'_>>,
) -> anyhow::Result<Compacted> {
    let mut all = Compacted { before_bytes: bytes_of(env, dir)?, ..Compacted::default() };
    let log = Log::open(env.clone(), dir, LogConfig::default())?;
    // How much of them is kept is the node's to say.
    log.leave_histories();
    let done = compact_each(&log as &dyn KvStore, purge_before_s, progress, &mut all);
    // What was done stays, and the next start finds a store that was closed.
    log.close()?;
    drop(log);
    done?;
    all.after_bytes = bytes_of(env, dir)?;
    Ok(all)
}

/// Leaves out what need not stay. RocksDB gives back the room of it when it merges its tables.
fn compact_rocks(
    env: &Env,
    dir: &Path,
    purge_before_s: Option<u32>,
    progress: &RefCell<Progress<'_>>,
) -> anyhow::Result<Compacted> {
    let store = kvstore::open_rocks(env.clone(), dir)?;
    let used = || {
        store
            .states()
            .map(|all| all.iter().flat_map(|(_, one)| one).map(|one| one.counts.used_bytes).sum::<u64>())
    };
    let mut all = Compacted { before_bytes: used()?, ..Compacted::default() };
    let done = compact_each(&*store, purge_before_s, progress, &mut all);
    all.after_bytes = used()?;
    store.close()?;
    done.map(|()| all)
}

fn compact_each(
    log: &dyn KvStore,
    purge_before_s: Option<u32>,
    progress: &RefCell<Progress<'_>>,
    all: &mut Compacted,
) -> anyhow::Result<()> {
    let states = log.states()?;
    let count = states.len();
    for (at, (vb, stored)) in states.into_iter().enumerate() {
        progress.borrow_mut().begin(at, count);
        let dropped = dropped(&stored.with_context(|| format!("vBucket {vb} cannot be read"))?);
        let one = compact_vb(log, vb, purge_before_s, &dropped, (progress, at + 1 < count))?;
        add(all, &one);
    }
    while log.background_step()? == Background::Worked {}
    Ok(())
}

fn dropped(stored: &StoredVb) -> BTreeMap<CollectionId, Seqno> {
    let mut dropped: BTreeMap<CollectionId, Seqno> = BTreeMap::new();
    for drop in &stored.manifest.dropped {
        let end = dropped.entry(drop.id).or_default();
        *end = drop.end.max(*end);
    }
    dropped
}

fn add(all: &mut Compacted, one: &Compacted) {
    all.tombstones_purged += one.tombstones_purged;
    all.documents_dropped += one.documents_dropped;
    all.purge_seqno = all.purge_seqno.max(one.purge_seqno);
}

/// Bytes of the files of a log-structured store.
fn bytes_of(env: &Env, dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for name in env.disk.read_dir(dir)?.into_iter().filter(|name| kvstore::is_log_file(name)) {
        let path = dir.join(name);
        let len = env.disk.open(&path, OpenMode::Read).and_then(|file| file.len());
        bytes += len.with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(bytes)
}
