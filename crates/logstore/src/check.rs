//! Reading all that a folder's manifests name, to see whether it is sound. Nothing is changed.

use std::path::Path;
use std::sync::Arc;

use base::env::Env;

use crate::failure::Failure;
use crate::file::{FileKind, Files, LogFile};
use crate::manifest::Manifest;
use crate::meta::{Point, RunMeta, SegmentMeta, ShardMeta, VbMeta};
use crate::open::list;
use crate::run::{Merged, Run};
use crate::segment::{ExtentReader, Segment};
use crate::view::Commit;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Runs, segments and manifests.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last commit of each vBucket, and what the caller stored with it.
    pub vbuckets: Vec<(u16, Commit, Arc<[u8]>)>,
    /// The caller's highest number that was noted: see [`crate::LogStore::note`].
    pub beside: u64,
}

/// What the manifests of a folder say of its last commits.
#[derive(Clone, Debug, Default)]
pub struct Heads {
    /// The caller's highest number that was noted: see [`crate::LogStore::note`].
    pub beside: u64,
    /// vBuckets that are not damaged.
    pub vbuckets: Vec<Head>,
}

/// The last commit of a vBucket.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Which vBucket.
    pub vb: u16,
    /// The number of its last commit.
    pub commit: u64,
    /// The number of an earlier one that has the same items, but for those that a purge left out since which may not be on
    /// record; else the same number.
    pub since: u64,
}

/// Looks at the manifests of a folder, and changes nothing. What is damaged, or of another folder
/// than `owner`'s, is passed over: opening the folder tells of it.
///
/// # Errors
///
/// If the disk refuses.
pub fn heads(env: &Env, dir: &Path, owner: u128) -> Result<Heads, Failure> {
    let path: Arc<Path> = dir.into();
    let names = env.disk.read_dir(dir).map_err(|source| Failure::io("list", &path, 0, source))?;
    let files = Files::new(env, dir, owner, 1);
    let mut heads = Heads::default();
    for shard in list(names).manifests {
        let meta = match Manifest::look(&files, shard) {
            Ok((told, _)) => told.meta,
            Err(failure) if failure.is_damage() => continue,
            Err(failure) => return Err(failure),
        };
        heads.beside = heads.beside.max(meta.beside);
        let known = meta.vbs.iter().filter(|(vb, _)| !meta.damaged.contains_key(vb));
        heads.vbuckets.extend(known.map(|(vb, meta)| head(*vb, meta)));
    }
    Ok(heads)
}

fn head(vb: u16, meta: &VbMeta) -> Head {
    let last = meta.last();
    let is_purge = meta.is_pending() && meta.barrier == last.commit;
    let is_as_high = |point: &&Point| point.high == last.high;
    let first = meta.points.iter().find(is_as_high).filter(|_| is_purge);
    Head { vb, commit: last.commit, since: first.unwrap_or(last).commit }
}

/// Reads everything, to the end whatever is wrong, and tells `fault` of what is. `step` is told of items that were read
/// since it was told last.
///
/// # Errors
///
/// If the folder cannot be listed.
pub fn check(
    env: &Env,
    dir: &Path,
    owner: u128,
    fault: &mut dyn FnMut(&Failure),
    step: &mut dyn FnMut(u64),
) -> Result<Checked, Failure> {
    let path: Arc<Path> = dir.into();
    let names = env.disk.read_dir(dir).map_err(|source| Failure::io("list", &path, 0, source))?;
    let files = Arc::new(Files::new(env, dir, owner, 16));
    let mut checked = Checked::default();
    for shard in list(names).manifests {
        let told = match Manifest::look(&files, shard) {
            Ok((told, len)) => {
                checked.files += 1;
                checked.bytes += len;
                told
            }
            Err(failure) => {
                fault(&failure);
                continue;
            }
        };
        told.damage.iter().for_each(&mut *fault);
        checked.beside = checked.beside.max(told.meta.beside);
        let look = Look { env, files: &files, shard, meta: &told.meta };
        look.check_files(&mut checked, fault, step);
        for (vb, what) in &told.meta.damaged {
            fault(&Failure::Refused { vb: *vb, what: what.clone() });
        }
        for (vb, meta) in &told.meta.vbs {
            if let Some(last) = meta.points.last() {
                let commit = Commit { epoch: last.epoch, number: last.commit };
                checked.vbuckets.push((*vb, commit, last.state.clone()));
            }
        }
    }
    checked.vbuckets.sort_unstable_by_key(|(vb, ..)| *vb);
    Ok(checked)
}

/// A shard that is looked at.
pub(crate) struct Look<'l> {
    pub(crate) env: &'l Env,
    pub(crate) files: &'l Arc<Files>,
    pub(crate) shard: usize,
    pub(crate) meta: &'l ShardMeta,
}

/// Reads all entries of a run.
pub(crate) fn check_run(look: &Look<'_>, meta: &RunMeta) -> Result<(), Failure> {
    let file = look.file(FileKind::Run, (meta.number, meta.nonce), meta.bytes);
    let account = look.env.heap.account().clone();
    let run = Arc::new(Run::new(file, (meta.low, meta.high), meta.vbs.clone(), account));
    let mut entries = Merged::new(std::iter::once(&run), &[])?;
    while entries.current().is_some() {
        entries.advance()?;
    }
    Ok(())
}

impl Look<'_> {
    fn check_files(&self, checked: &mut Checked, fault: &mut dyn FnMut(&Failure), step: &mut dyn FnMut(u64)) {
        for run in &self.meta.runs {
            checked.files += 1;
            checked.bytes += run.bytes;
            check_run(self, run).err().iter().for_each(&mut *fault);
        }
        for (number, segment) in &self.meta.segments {
            checked.files += 1;
            checked.bytes += segment.len;
            self.check_segment(*number, segment, step).err().iter().for_each(&mut *fault);
        }
    }

    fn file(&self, kind: FileKind, (number, nonce): (u64, u64), len: u64) -> LogFile {
        LogFile::new(self.files, (self.shard, kind, number), nonce, len)
    }

    /// Each vBucket's items in the segment, as its extents have them.
    fn check_segment(
        &self,
        number: u64,
        meta: &SegmentMeta,
        step: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let file = self.file(FileKind::Segment, (number, meta.nonce), meta.len);
        let segment = Arc::new(Segment::new(file, self.env.heap.account().clone()));
        segment.file.identify(FileKind::Segment)?;
        for (vb, meta) in &self.meta.vbs {
            for extent in meta.extents.iter().filter(|extent| extent.segment == number) {
                let mut reader = ExtentReader::new(&segment, *vb, extent.ordinal, extent.first)?;
                let (mut items, mut last) = (0, 0);
                while let Some(item) = reader.next()? {
                    (items, last) = (items + 1, item.seqno);
                }
                step(items);
                // A rollback may have cut off what follows.
                if last < extent.last || items < u64::from(extent.items) {
                    return Err(Failure::damaged(
                        segment.file.path(),
                        0,
                        "items that the manifest names are missing",
                    ));
                }
            }
        }
        Ok(())
    }
}
