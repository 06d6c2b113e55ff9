//! Making a bucket's folder what a survey said.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use base::VbId;
use base::env::{Disk, Env, OpenMode};

use super::{Base, Survey};
use crate::catalog::Catalog;
use crate::compaction::FileAt;
use crate::couch::whole::{begin_history, copy, rewrite};
use crate::couch::{Couch, CouchConfig, couch_at};
use crate::failure::Failure;
use crate::files::Files;
use crate::journaled::recovery::batches;
use crate::replace::{Replaced, Replacement};
use crate::state::VbStateDoc;
use crate::store::SaveBatch;

/// Makes a folder what its survey said, and copies what was damaged to the folder `aside` first. Nothing else may have
/// changed the folder since the survey.
///
/// # Errors
///
/// If the disk refuses something. Until the catalog is replaced everything that was there is there still, and after that
/// only files are left over that nobody looks at; a repair can be begun again in either case.
pub fn apply(env: &Env, dir: &Path, aside: &Path, survey: Survey) -> Result<(), Failure> {
    if survey.plan.log.is_some() && !survey.plan.is_copy_only {
        return super::log::apply(env, dir, aside, survey);
    }
    let Survey { aside: damaged, plan, .. } = survey;
    keep_aside(&*env.beneath().disk, aside, damaged.iter().map(|path| path.as_path()))?;
    let catalog =
        if plan.is_catalog_usable { Catalog::open(env, dir)? } else { Catalog::anew(env, dir, plan.store) };
    if plan.is_copy_only {
        return catalog.mend();
    }
    let store = catalog.store();
    let mut positions: BTreeMap<VbId, (Option<FileAt>, u64)> = BTreeMap::new();
    let mut bases: Vec<(VbId, Base)> = Vec::new();
    for (vb, base) in plan.bases {
        let mut at = base.file.as_ref().map(|whole| FileAt {
            revision: whole.revision,
            header_offset: whole.header_offset,
            checksum: None,
        });
        let mut highest = base.highest_revision;
        if let Some(whole) = base.file.as_ref().filter(|_| base.is_moved) {
            highest += 1;
            at = Some(rewrite(env, dir, vb, whole, (store, highest), &whole.state)?);
        }
        positions.insert(vb, (at, highest));
        bases.push((vb, base));
    }
    let couch = couch_at(env.clone(), dir, CouchConfig::default(), Arc::new(catalog), &positions)?;
    for (vb, base) in bases {
        file(env, &couch, vb, base)?;
    }
    couch.cut_tails()?;
    couch.promise_files(plan.generations)?;
    drop(couch);
    let unused = plan.unused.iter().chain(&plan.segments);
    unused.map(|path| path.as_path()).try_for_each(|path| remove(&*env.disk, path))?;
    env.disk.sync_dir(dir).map_err(|source| failed("sync folder", dir, source))
}

/// Ends the repair of a log-structured store that was cut off while the new folder took the place of the old one, which is
/// moved to `aside`. Says whether there was one.
///
/// # Errors
///
/// See [`Replacement::stage`].
pub fn resume(env: &Env, dir: &Path, aside: &Path) -> Result<bool, Failure> {
    let replacement = Replacement::of(env, dir);
    if replacement.resume()? == Replaced::NotYet {
        return Ok(false);
    }
    replacement.keep_old(aside).map(|()| true)
}

/// Brings into a vBucket's file what the journal has of it, and its new history.
fn file(env: &Env, couch: &Couch, vb: VbId, base: Base) -> Result<(), Failure> {
    let of_file = || base.file.as_ref().map(|whole| whole.state.clone()).unwrap_or_default();
    let kept = super::survey::kept_seqno(base.file.as_ref(), &base.saves);
    let save = |items: &[base::Version], state: &VbStateDoc| {
        let saved = couch.file_group(&[(vb, SaveBatch { items, state })]);
        saved.into_iter().try_for_each(|saved| saved.map(drop))
    };
    let mut batches = batches(env, base.saves, of_file);
    if batches.is_empty() && base.begins_history && base.file.is_some() {
        batches.push((Vec::new(), of_file()));
    }
    let last = batches.len().saturating_sub(1);
    for (i, (items, mut state)) in batches.into_iter().enumerate() {
        if base.begins_history && i == last {
            begin_history(env, &mut state, kept);
        }
        save(&items, &state)?;
    }
    Ok(())
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> Failure {
    Failure::Disk { operation, path: path.to_owned(), source }
}

/// Copies files to a folder as they are on disk, encrypted or not, durably. What is missing is passed over.
fn keep_aside<'p>(
    disk: &dyn Disk,
    aside: &Path,
    paths: impl Iterator<Item = &'p Path>,
) -> Result<(), Failure> {
    let mut is_made = false;
    for path in paths {
        let len = match disk.open(path, OpenMode::Read).and_then(|file| file.len()) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(failed("open", path, source)),
        };
        if !is_made {
            disk.create_dir_all_synced(aside).map_err(|source| failed("make folder", aside, source))?;
            is_made = true;
        }
        let name = path.file_name().unwrap_or(path.as_os_str());
        copy(disk, path, &aside.join(name), len)?;
    }
    if is_made { disk.sync_dir(aside).map_err(|source| failed("sync folder", aside, source)) } else { Ok(()) }
}

fn remove(disk: &dyn Disk, path: &Path) -> Result<(), Failure> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}
