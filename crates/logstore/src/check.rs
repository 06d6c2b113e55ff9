//! Reading all that a folder's manifests name, to see whether it is sound. Nothing is changed.

use std::path::Path;
use std::sync::Arc;

use base::env::Env;

use crate::failure::Failure;
use crate::file::{FileKind, Files, LogFile, file_name};
use crate::manifest::Manifest;
use crate::meta::{RunMeta, ShardMeta};
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
    fault: &mut dyn FnMut(&Failure),
    step: &mut dyn FnMut(u64),
) -> Result<Checked, Failure> {
    let path: Arc<Path> = dir.into();
    let names = env.disk.read_dir(dir).map_err(|source| Failure::io("list", &path, 0, source))?;
    let files = Arc::new(Files::new(env.disk.clone(), dir.to_owned(), 16));
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
struct Look<'l> {
    env: &'l Env,
    files: &'l Arc<Files>,
    shard: usize,
    meta: &'l ShardMeta,
}

impl Look<'_> {
    fn check_files(&self, checked: &mut Checked, fault: &mut dyn FnMut(&Failure), step: &mut dyn FnMut(u64)) {
        for run in &self.meta.runs {
            checked.files += 1;
            checked.bytes += run.bytes;
            self.check_run(run).err().iter().for_each(&mut *fault);
        }
        for (number, (len, _)) in &self.meta.segments {
            checked.files += 1;
            checked.bytes += len;
            self.check_segment(*number, *len, step).err().iter().for_each(&mut *fault);
        }
    }

    fn file(&self, kind: FileKind, number: u64, len: u64) -> LogFile {
        LogFile::new(self.files, &file_name(self.shard, kind, number), number, len)
    }

    fn check_run(&self, meta: &RunMeta) -> Result<(), Failure> {
        let file = self.file(FileKind::Run, meta.number, meta.bytes);
        let account = self.env.heap.account().clone();
        let run = Arc::new(Run::new(file, (meta.low, meta.high), meta.vbs.clone(), account));
        let mut entries = Merged::new(std::iter::once(&run), &[])?;
        while entries.current().is_some() {
            entries.advance()?;
        }
        Ok(())
    }

    /// Each vBucket's items in the segment, as its extents have them.
    fn check_segment(&self, number: u64, len: u64, step: &mut dyn FnMut(u64)) -> Result<(), Failure> {
        let file = self.file(FileKind::Segment, number, len);
        let segment = Arc::new(Segment::new(file, self.env.heap.account().clone()));
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
