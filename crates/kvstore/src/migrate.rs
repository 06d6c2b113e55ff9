//! Bringing a bucket from one store to the other, while no node runs on its folder.
//!
//! # Guarantees
//!
//! - The new folder takes the place of the old one only after everything was read from both and found to be the same. The old
//!   one is kept beside it until the caller removes it ([`Replacement`]).
//! - vBuckets keep seqnos, CAS, histories, tombstones, prepares and collections, so that readers of changes go on where they
//!   were. The store keeps its number.

use std::path::Path;

use base::env::Env;
use base::{Seqno, VbId, Version};

use crate::catalog::Catalog;
use crate::copying::{CopyFailure, PieceLimits, copy_piece, partial_state, piece, seal, state_of};
use crate::couch::{Couch, CouchConfig};
use crate::failure::Failure;
use crate::files::StorageBackend;
use crate::log::{Log, LogConfig};
use crate::read_only::open_to_read;
use crate::replace::Replacement;
use crate::rocks;
use crate::rocks_config::{RocksConfig, is_rocks_folder};
use crate::store::{Background, KvStore, Snapshot, StoredVb};

/// What is saved at once.
const LIMITS: PieceLimits = PieceLimits { bytes: 8 << 20, items: 16 << 10 };

/// Why a bucket stays in its store. Its folder is as it was.
#[derive(Debug, thiserror::Error)]
pub enum MigrateFailure {
    /// A store refuses.
    #[error(transparent)]
    Store(#[from] Failure),
    /// It is kept there already.
    #[error("the bucket is kept in that store already")]
    IsThere,
    /// A vBucket cannot be read.
    #[error("vBucket {vb} cannot be read: {failure}; repair it first, with `stave check --repair`")]
    Unread {
        /// Which one.
        vb: VbId,
        /// Why.
        failure: Failure,
    },
    /// What was written is not what was read.
    #[error("vBucket {vb} is not the same in the new store: {what}; this is a fault of the program")]
    Differs {
        /// Which one.
        vb: VbId,
        /// In what.
        what: &'static str,
    },
}

/// How far a migration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrateProgress {
    /// vBuckets that are done.
    pub vbuckets: u64,
    /// vBuckets that there are.
    pub of_vbuckets: u64,
    /// Documents, tombstones and other records that were written, or compared.
    pub items: u64,
    /// Whether they are compared, and not written.
    pub is_comparing: bool,
}

/// What a migration came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// vBuckets.
    pub vbuckets: u64,
    /// Documents, tombstones and other records that are the same in both.
    pub items: u64,
    /// Bytes of the files before.
    pub before_bytes: u64,
    /// Bytes of the files now.
    pub after_bytes: u64,
}

/// The store that the files of a folder are of.
///
/// # Errors
///
/// If the disk refuses.
pub fn backend_of(env: &Env, dir: &Path) -> Result<StorageBackend, Failure> {
    let listed = env.disk.read_dir(dir);
    let names = listed.map_err(|source| Failure::Disk { operation: "list", path: dir.to_owned(), source })?;
    Ok(StorageBackend::of_names(&names))
}

/// Brings the bucket in `dir` to another store: the new folder is in its place then, and the old one in
/// [`Replacement::old`].
///
/// # Errors
///
/// If something cannot be read, written, or is not the same then. Up to the switch the folder is as it was; a switch that
/// was cut off is ended by [`Replacement::resume`].
pub fn migrate(
    env: &Env,
    dir: &Path,
    to: StorageBackend,
    observe: &mut dyn FnMut(MigrateProgress),
) -> Result<Migrated, MigrateFailure> {
    if backend_of(env, dir)? == to {
        return Err(MigrateFailure::IsThere);
    }
    let from = open_to_read(env, dir)?;
    let vbuckets = readable(&from)?;
    let replacement = Replacement::of(env, dir);
    let building = replacement.begin()?;
    Catalog::anew(env, &building, from.store_id()?).mend()?;
    let mut progress = MigrateProgress { of_vbuckets: vbuckets.len() as u64, ..MigrateProgress::default() };
    let new = open(env, &building, to)?;
    for (vb, stored) in &vbuckets {
        let snapshot = snapshot(&from, *vb)?;
        copy(&*snapshot, stored, &*new, *vb, &mut |items| {
            progress.items += items;
            observe(progress);
        })?;
        progress.vbuckets += 1;
    }
    while new.background_step()? == Background::Worked {}
    new.close()?;
    drop(new);
    let read = open_to_read(env, &building)?;
    progress = MigrateProgress { is_comparing: true, vbuckets: 0, items: 0, ..progress };
    compare_all(&from, &read, &vbuckets, &mut progress, observe)?;
    let is_filed = from.stats().unfiled_bytes == 0;
    compare_counts(&vbuckets, &readable(&read)?, is_filed)?;
    drop(read);
    replacement.copy_small_files(from.was_closed() == Some(true))?;
    drop(from);
    let (before_bytes, after_bytes) = (bytes_of(env, dir)?, bytes_of(env, &building)?);
    replacement.switch()?;
    Ok(Migrated { vbuckets: progress.vbuckets, items: progress.items, before_bytes, after_bytes })
}

fn open(env: &Env, dir: &Path, backend: StorageBackend) -> Result<Box<dyn KvStore>, Failure> {
    Ok(match backend {
        StorageBackend::Couchstore => Box::new(Couch::open(env.clone(), dir, CouchConfig::default())?),
        StorageBackend::LogStructured => Box::new(Log::open(env.clone(), dir, LogConfig::default())?),
        StorageBackend::RocksDb => rocks::open_alone(env.clone(), dir, RocksConfig::default())?,
    })
}

/// All vBuckets of a store.
fn readable(store: &dyn KvStore) -> Result<Vec<(VbId, StoredVb)>, MigrateFailure> {
    let one = |(vb, stored): (VbId, Result<StoredVb, Failure>)| match stored {
        Ok(stored) => Ok((vb, stored)),
        Err(failure) => Err(MigrateFailure::Unread { vb, failure }),
    };
    store.states()?.into_iter().map(one).collect()
}

fn snapshot(store: &dyn KvStore, vb: VbId) -> Result<Box<dyn Snapshot>, MigrateFailure> {
    store.snapshot(vb)?.ok_or(MigrateFailure::Differs { vb, what: "it is not there" })
}

fn copy(
    from: &dyn Snapshot,
    stored: &StoredVb,
    to: &dyn KvStore,
    vb: VbId,
    wrote: &mut dyn FnMut(u64),
) -> Result<(), MigrateFailure> {
    let partial = partial_state(&state_of(stored));
    let mut next = Seqno(0);
    loop {
        let copied =
            copy_piece((from, next), (to, vb), &partial, LIMITS).map_err(|failure| match failure {
                CopyFailure::Unread(failure) => MigrateFailure::Unread { vb, failure },
                CopyFailure::Unwritten(failure) => failure.into(),
            })?;
        match copied {
            (0, _) => return Ok(seal(to, vb, stored)?),
            (items, further) => {
                next = further;
                wrote(items);
            }
        }
    }
}

fn compare_all(
    from: &dyn KvStore,
    to: &dyn KvStore,
    vbuckets: &[(VbId, StoredVb)],
    progress: &mut MigrateProgress,
    observe: &mut dyn FnMut(MigrateProgress),
) -> Result<(), MigrateFailure> {
    for (vb, _) in vbuckets {
        let (old, new) = (snapshot(from, *vb)?, snapshot(to, *vb)?);
        let unread = |failure| MigrateFailure::Unread { vb: *vb, failure };
        let mut next = Seqno(0);
        loop {
            let (expected, found) =
                (piece(&*old, next, LIMITS).map_err(unread)?, piece(&*new, next, LIMITS).map_err(unread)?);
            if expected.len() != found.len() || !expected.iter().zip(&found).all(|(a, b)| is_same(a, b)) {
                return Err(MigrateFailure::Differs { vb: *vb, what: "a document" });
            }
            let Some(last) = expected.last() else { break };
            next = Seqno(last.meta().by_seqno.0 + 1);
            progress.items += expected.len() as u64;
            observe(*progress);
        }
        progress.vbuckets += 1;
    }
    Ok(())
}

fn is_same(a: &Version, b: &Version) -> bool {
    let stored = |version: &Version| {
        let meta = version.meta();
        let part = meta.sync_write.stored(meta.by_seqno).to_parts();
        (meta.cas, meta.by_seqno, meta.rev_seqno, meta.flags, meta.expiry, meta.datatype, meta.kind, part)
    };
    stored(a) == stored(b) && a.stored_key() == b.stored_key() && a.value() == b.value()
}

/// What is stored of each vBucket beside its documents. What the journal has is not counted before it is filed.
fn compare_counts(
    old: &[(VbId, StoredVb)],
    new: &[(VbId, StoredVb)],
    is_filed: bool,
) -> Result<(), MigrateFailure> {
    let differs = |vb: VbId, what| Err(MigrateFailure::Differs { vb, what });
    for (vb, stored) in old {
        let Ok(at) = new.binary_search_by_key(vb, |(vb, _)| *vb) else {
            return differs(*vb, "it is not there");
        };
        let found = &new[at].1;
        let items = |stored: &StoredVb| {
            let items = stored.collections.iter().map(|(id, stats)| (*id, stats.item_count));
            items.filter(|(_, items)| *items > 0).collect::<Vec<_>>()
        };
        let counted = |stored: &StoredVb| (stored.counts.documents, stored.counts.tombstones);
        let what = if found.high_seqno != stored.high_seqno {
            "its highest seqno"
        } else if state_of(found) != state_of(stored) {
            "its state"
        } else if (&found.manifest.scopes, &found.manifest.open)
            != (&stored.manifest.scopes, &stored.manifest.open)
        {
            "its collections"
        } else if is_filed && (counted(found) != counted(stored) || items(found) != items(stored)) {
            "the number of documents"
        } else {
            continue;
        };
        return differs(*vb, what);
    }
    match new.iter().find(|(vb, _)| old.binary_search_by_key(vb, |(vb, _)| *vb).is_err()) {
        Some((vb, _)) => differs(*vb, "it was not there before"),
        None => Ok(()),
    }
}

/// Bytes of the files in a folder.
fn bytes_of(env: &Env, dir: &Path) -> Result<u64, Failure> {
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| Failure::Disk { operation, path, source }
    };
    let mut bytes = 0;
    for name in env.disk.read_dir(dir).map_err(failed("list", dir))? {
        let path = dir.join(name);
        if is_rocks_folder(&path.file_name().unwrap_or_default().to_string_lossy()) {
            bytes += bytes_of(env, &path)?;
        } else if env.disk.read_dir(&path).is_err() {
            let file = env.disk.open(&path, base::env::OpenMode::Read).map_err(failed("open", &path))?;
            bytes += file.len().map_err(failed("measure", &path))?;
        }
    }
    Ok(bytes)
}
