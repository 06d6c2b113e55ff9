//! What a path stands for: a data directory, a bucket's folder, or one file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base::env::{Disk, OpenMode};
use kvstore::StorageBackend;

use crate::cli::WrongArguments;

/// The folder in a data directory that holds a folder for each bucket.
const BUCKETS: &str = "buckets";

/// What is to be checked.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) struct Place {
    /// The data directory that it is in, if it is in one.
    pub(in crate::commands) data_dir: Option<PathBuf>,
    pub(in crate::commands) buckets: Vec<BucketFiles>,
    /// Whether it is the whole data directory.
    pub(super) is_whole: bool,
}

/// The files of a bucket that are in use.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) struct BucketFiles {
    pub(in crate::commands) name: String,
    pub(in crate::commands) folder: PathBuf,
    /// Of each vBucket the newest.
    pub(in crate::commands) files: Vec<PathBuf>,
    /// Whether it is the whole bucket, and not one file of it.
    pub(super) is_whole: bool,
    /// The store that its files are of.
    pub(in crate::commands) backend: StorageBackend,
}

impl Place {
    /// Looks at what is there.
    pub(in crate::commands) fn find(disk: &dyn Disk, path: &Path) -> anyhow::Result<Place> {
        let names = match disk.read_dir(path) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Place::of_file(disk, path),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let (files, data_dir) = (newest(path, &names), data_dir_of(path));
        // by its place, as nothing may have been written into it yet
        let backend = StorageBackend::of_names(&names);
        let is_bucket = backend != StorageBackend::Couchstore || names.iter().any(|name| is_segment(name));
        if !files.is_empty() || is_bucket || data_dir.is_some() {
            let bucket = BucketFiles {
                name: last_name(path),
                folder: path.to_owned(),
                files,
                is_whole: true,
                backend,
            };
            return Ok(Place { data_dir, buckets: vec![bucket], is_whole: false });
        }
        if !names.iter().any(|name| name == BUCKETS) {
            bail!(
                "{} is no data directory (it holds no `{BUCKETS}`) and no bucket's folder (it holds no file like \
                 0.couch.1)",
                path.display()
            );
        }
        let buckets = Place::all_buckets(disk, &path.join(BUCKETS))?;
        Ok(Place { data_dir: Some(path.to_owned()), buckets, is_whole: true })
    }

    fn of_file(disk: &dyn Disk, path: &Path) -> anyhow::Result<Place> {
        disk.open(path, OpenMode::Read).with_context(|| format!("cannot read {}", path.display()))?;
        if vbucket_and_revision(&last_name(path)).is_none() {
            bail!(WrongArguments(format!(
                "{} is no file of documents, by its name: give one like 17.couch.3, a bucket's folder or a data directory",
                path.display()
            )));
        }
        let folder = path.parent().unwrap_or(path);
        let bucket = BucketFiles {
            name: last_name(folder),
            folder: folder.to_owned(),
            files: vec![path.to_owned()],
            is_whole: false,
            backend: StorageBackend::Couchstore,
        };
        Ok(Place { data_dir: data_dir_of(folder), buckets: vec![bucket], is_whole: false })
    }

    fn all_buckets(disk: &dyn Disk, folder: &Path) -> anyhow::Result<Vec<BucketFiles>> {
        let list =
            |path: &Path| disk.read_dir(path).with_context(|| format!("cannot read {}", path.display()));
        let mut names = list(folder)?;
        names.sort();
        let bucket = |name: String| {
            let path = folder.join(&name);
            let names = list(&path)?;
            let (files, backend) = (newest(&path, &names), StorageBackend::of_names(&names));
            Ok(BucketFiles { name, folder: path, files, is_whole: true, backend })
        };
        names.into_iter().map(bucket).collect()
    }

    pub(in crate::commands) fn file_count(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.files.len()).sum()
    }
}

/// The data directory that a bucket's folder is in, by its place.
pub(in crate::commands) fn data_dir_of(bucket: &Path) -> Option<PathBuf> {
    let buckets = bucket.parent()?;
    (buckets.file_name()? == BUCKETS).then(|| buckets.parent().map(Path::to_owned))?
}

/// Whether a file's name is that of a segment of a journal (docs/journal_format.md).
pub(in crate::commands) fn is_segment(name: &str) -> bool {
    let number = name.strip_prefix("journal.").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

fn last_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Of each vBucket the file with the highest revision, in order of vBuckets.
fn newest(folder: &Path, names: &[String]) -> Vec<PathBuf> {
    let mut revisions: BTreeMap<u16, u64> = BTreeMap::new();
    for (vb, revision) in names.iter().filter_map(|name| vbucket_and_revision(name)) {
        let newest = revisions.entry(vb).or_default();
        *newest = revision.max(*newest);
    }
    revisions.into_iter().map(|(vb, revision)| folder.join(format!("{vb}.couch.{revision}"))).collect()
}

pub(in crate::commands) fn vbucket_and_revision(name: &str) -> Option<(u16, u64)> {
    let (vb, revision) = name.split_once(".couch.")?;
    Some((vb.parse().ok()?, revision.parse().ok()?))
}
