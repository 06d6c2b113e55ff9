//! The end of a move: the files of the store that is given up go, and those of the other one take their place.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, Env};

use super::record::{MoveRecord, RecordStage, elsewhere};
use super::{
    LONGEST_WAIT, Movable, MovePlan, MoveStep, Side, Sides, disk_failed, has_other, remove_elsewhere,
};
use crate::failure::Failure;
use crate::log::is_log_file;
use crate::rocks_config::is_rocks_folder;

/// What a name ends with until its file is whole.
const UNFINISHED: &str = ".new";

/// Whether a file is a store's own. Catalogs are, too, but a folder without one is taken for none: those of the other store
/// replace them.
pub(super) fn is_of_store(name: &str) -> bool {
    let whole = name.strip_suffix(UNFINISHED).unwrap_or(name);
    whole.contains(".couch.") || is_log_file(whole) || is_rocks_folder(name) || name.starts_with("journal.")
}

/// Ends a move at the start of a bucket, as far as that needs no store. One that never began is over.
pub(super) fn complete(env: &Env, dir: &Path, mut record: MoveRecord) -> Result<MoveRecord, Failure> {
    match record.stage {
        RecordStage::Moving if record.moved.is_empty() && !has_other(env, dir)? => {
            record = record.back();
            record.write(&*env.disk, dir)?;
            return Ok(record);
        }
        RecordStage::Moving if !has_other(env, dir)? => {
            let what = format!("{} has no catalog, and vBuckets are in it", elsewhere(dir).display());
            return Err(Failure::Catalog { dir: dir.to_owned(), what });
        }
        RecordStage::Moving | RecordStage::Done => return Ok(record),
        RecordStage::Clearing => {
            remove_files(env, dir)?;
            record.stage = RecordStage::Bringing;
            record.write(&*env.disk, dir)?;
        }
        RecordStage::Bringing => {}
    }
    let from = elsewhere(dir);
    let names = match env.disk.read_dir(&from) {
        // All was brought, and the folder was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(disk_failed("list", &from))?,
    };
    for name in names {
        let path = from.join(&name);
        env.disk.rename(&path, &dir.join(&name)).map_err(disk_failed("rename", &path))?;
    }
    end(env, dir)?;
    record.stage = RecordStage::Done;
    record.write(&*env.disk, dir)?;
    Ok(record)
}

/// All files are in their place: that is made durable, and the folder in which they were goes.
fn end(env: &Env, dir: &Path) -> Result<(), Failure> {
    let (disk, from) = (&*env.disk, elsewhere(dir));
    disk.sync_dir(dir).map_err(disk_failed("sync", dir))?;
    match disk.sync_dir(&from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        synced => synced.map_err(disk_failed("sync", &from))?,
    }
    disk.remove_dir_all(&from).map_err(disk_failed("remove", &from))?;
    disk.sync_dir(dir).map_err(disk_failed("sync", dir))
}

/// Removes the files of the store that is given up, durably.
fn remove_files(env: &Env, dir: &Path) -> Result<(), Failure> {
    let names = env.disk.read_dir(dir).map_err(disk_failed("list", dir))?;
    for name in names.iter().filter(|name| is_of_store(name)) {
        let path = dir.join(name);
        let removed = match is_rocks_folder(name) {
            true => env.disk.remove_dir_all(&path),
            false => env.disk.remove_file(&path),
        };
        removed.map_err(disk_failed("remove", &path))?;
    }
    env.disk.sync_dir(dir).map_err(disk_failed("sync", dir))
}

impl Movable {
    /// Every vBucket is where it is to be.
    pub(super) fn end_move(&self, plan: &mut MovePlan) -> Result<MoveStep, Failure> {
        if plan.record.goes_elsewhere() {
            // From here on it cannot be cancelled, whether or not this reaches the disk now.
            plan.record.stage = RecordStage::Clearing;
            plan.is_recorded = false;
            self.settle_record(plan)?;
            return Ok(MoveStep::Worked);
        }
        if !self.leave(plan, |first, other| (first, other)) {
            return Ok(MoveStep::Waiting);
        }
        plan.record = plan.record.back();
        plan.is_recorded = false;
        self.settle_record(plan)?;
        // What stays of it is removed by the next start, or the next move.
        let _ = remove_elsewhere(&self.env, &self.dir);
        Ok(MoveStep::Moved(plan.record.to))
    }

    /// Removes the files of the first store.
    pub(super) fn clear(&self, plan: &mut MovePlan) -> Result<MoveStep, Failure> {
        if !self.leave(plan, |first, other| (other, first)) {
            return Ok(MoveStep::Waiting);
        }
        remove_files(&self.env, &self.dir)?;
        plan.record.stage = RecordStage::Bringing;
        plan.is_recorded = false;
        self.settle_record(plan)?;
        Ok(MoveStep::Worked)
    }

    /// Brings the files of the other store to the bucket's folder. The store is used meanwhile.
    pub(super) fn bring(&self, plan: &mut MovePlan) -> Result<MoveStep, Failure> {
        let relocated = &plan.relocated;
        relocated.begin_to_bring().map_err(disk_failed("list", &elsewhere(&self.dir)))?;
        while relocated.bring_one().map_err(disk_failed("rename a file of", &elsewhere(&self.dir)))? {}
        relocated.sync_dir(&self.dir).map_err(disk_failed("sync", &self.dir))?;
        end(&self.env, &self.dir)?;
        plan.record.stage = RecordStage::Done;
        plan.is_recorded = false;
        self.settle_record(plan)?;
        Ok(MoveStep::Moved(plan.record.to))
    }

    /// Leaves one of the stores; `which` says which one stays and which one goes. Says whether nothing reads from that one
    /// any more.
    fn leave(
        &self,
        plan: &mut MovePlan,
        which: impl Fn(Arc<Side>, Arc<Side>) -> (Arc<Side>, Arc<Side>),
    ) -> bool {
        plan.current = None;
        {
            let mut sides = self.sides.write();
            if let Sides::Two { first, other } = sides.clone() {
                let (stays, goes) = which(first, other);
                *sides = Sides::One(stays);
                plan.leaving = Some((goes, self.env.clock.monotonic()));
            }
        }
        if let Some((leaving, since)) = &plan.leaving {
            // A reader that has been ended has let go by now, except one that is reading at this moment.
            if self.env.clock.monotonic().saturating_sub(*since) >= LONGEST_WAIT {
                leaving.readers.end_all();
            }
            if Arc::strong_count(leaving) > 1 {
                return false;
            }
        }
        plan.leaving = None;
        true
    }
}
