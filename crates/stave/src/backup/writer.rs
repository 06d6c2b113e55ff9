//! Writes a backup: blocks first, then the lines of the vBuckets that they are of, at last the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::VbId;
use base::encryption::Sealer;
use base::env::{Disk, File, OpenMode};

use super::BackupError;
use super::block::{BlockBuilder, BlockPlace};
use super::bucket_state::BucketState;
use super::keys::seal_manifest;
use super::lines::{LineSeal, line_of};
use super::manifest::{BackupHead, BackupManifest, VbucketLine, VersionCounts};
use super::repository::{LINES, Unfinished, changes_path, manifest_file, sealed_manifest};

/// What the names of files of changes begin with.
pub(super) const CHANGES: &str = "changes-";
/// A file of changes that is longer than this gets no further block.
const FILE_BYTES: u64 = 1 << 30;

/// A backup that is being made.
pub(super) struct BackupWriter<'e> {
    disk: &'e dyn Disk,
    folder: PathBuf,
    pub(super) head: BackupHead,
    /// Encrypts what is written, if there is a key.
    sealer: Option<Sealer>,
    lines: Arc<dyn File>,
    lines_bytes: Vec<u8>,
    /// Bytes of the list that are written.
    written: usize,
    changes: Option<Arc<dyn File>>,
    /// Bytes of each file of changes.
    files: Vec<u64>,
    encoder: snap::raw::Encoder,
    sealed: Vec<u8>,
    counts: BTreeMap<u32, VersionCounts>,
    /// vBuckets whose lines are written.
    pub(super) done: usize,
}

impl<'e> BackupWriter<'e> {
    /// Begins a backup in a folder that is made for it.
    pub(super) fn begin(
        disk: &'e dyn Disk,
        folder: &Path,
        head: BackupHead,
        sealer: Option<Sealer>,
    ) -> Result<BackupWriter<'e>, BackupError> {
        disk.create_dir_all_synced(folder).map_err(|error| failed("make", folder, error))?;
        let path = folder.join(LINES);
        let lines = disk.open(&path, OpenMode::CreateNew).map_err(|error| failed("make", &path, error))?;
        let mut writer = BackupWriter::over(disk, folder, head.clone(), sealer, lines);
        writer.push_line(&head);
        writer.write_lines()?;
        disk.sync_dir(folder).map_err(|error| failed("sync", folder, error))?;
        Ok(writer)
    }

    fn over(
        disk: &'e dyn Disk,
        folder: &Path,
        head: BackupHead,
        sealer: Option<Sealer>,
        lines: Arc<dyn File>,
    ) -> BackupWriter<'e> {
        BackupWriter {
            disk,
            folder: folder.to_owned(),
            head,
            sealer,
            lines,
            lines_bytes: Vec::new(),
            written: 0,
            changes: None,
            files: Vec::new(),
            encoder: snap::raw::Encoder::new(),
            sealed: Vec::new(),
            counts: BTreeMap::new(),
            done: 0,
        }
    }

    /// Goes on with a backup that was broken off: what is behind its last whole line is cut off.
    pub(super) fn go_on(
        disk: &'e dyn Disk,
        unfinished: &Unfinished,
        sealer: Option<Sealer>,
    ) -> Result<BackupWriter<'e>, BackupError> {
        let Unfinished { folder, head, done, lines_len, .. } = unfinished;
        let path = folder.join(LINES);
        let lines = disk.open(&path, OpenMode::ReadWrite).map_err(|error| failed("open", &path, error))?;
        let mut kept = vec![0; *lines_len as usize];
        lines.read_at(&mut kept, 0).map_err(|error| failed("read", &path, error))?;
        lines.set_len(*lines_len).map_err(|error| failed("cut", &path, error))?;
        let mut writer = BackupWriter::over(disk, folder, head.clone(), sealer, lines);
        (writer.written, writer.lines_bytes) = (kept.len(), kept);
        for line in done {
            writer.count(line);
            for place in &line.blocks {
                let at = place.0 as usize;
                writer.files.resize(writer.files.len().max(at), 0);
                let end = &mut writer.files[at - 1];
                *end = place.range().end.max(*end);
            }
        }
        for (number, len) in (1..).zip(&writer.files) {
            let path = changes_path(folder, number);
            let cut = disk.open(&path, OpenMode::ReadWrite).and_then(|file| file.set_len(*len));
            cut.map_err(|error| failed("cut", &path, error))?;
        }
        // Blocks without a line may have begun further files.
        let names = disk.read_dir(folder).map_err(|error| failed("read", folder, error))?;
        for name in names {
            let number = name.strip_prefix(CHANGES).and_then(|number| number.parse::<usize>().ok());
            if number.is_some_and(|number| number > writer.files.len()) {
                let path = folder.join(&name);
                disk.remove_file(&path).map_err(|error| failed("remove", &path, error))?;
            }
        }
        Ok(writer)
    }

    fn push_line(&mut self, value: &impl serde::Serialize) {
        let seal = LineSeal { sealer: self.sealer.as_ref(), id: &self.head.id };
        self.lines_bytes.extend_from_slice(line_of(value, seal).as_bytes());
    }

    fn count(&mut self, line: &VbucketLine) {
        for (collection, counts) in &line.counts {
            self.counts.entry(*collection).or_default().add(*counts);
        }
        self.done += 1;
    }

    /// Writes a block; it is durable once the line of its vBucket is.
    pub(super) fn block(&mut self, vb: VbId, block: &mut BlockBuilder) -> Result<BlockPlace, BackupError> {
        if self.changes.is_none() || self.files.last().is_none_or(|len| *len >= FILE_BYTES) {
            self.sync_changes()?;
            self.files.push(0);
        }
        let number = self.files.len() as u32;
        let path = changes_path(&self.folder, number);
        let file = match &self.changes {
            Some(file) => file.clone(),
            None => self.disk.open(&path, OpenMode::Create).map_err(|error| failed("open", &path, error))?,
        };
        self.changes = Some(file.clone());
        let (count, (first, last)) = (block.count(), block.seqnos());
        self.sealed.clear();
        let sealer = self.sealer.as_ref();
        block.seal(self.head.number, vb, sealer, &mut self.encoder, &mut self.sealed);
        let end = self.files.last_mut().expect("there is one");
        file.write_at(&self.sealed, *end).map_err(|error| failed("write", &path, error))?;
        let place = BlockPlace(number, *end, self.sealed.len() as u32, count, first, last);
        *end += self.sealed.len() as u64;
        Ok(place)
    }

    /// Makes vBuckets durable that are complete: their blocks, then their lines.
    pub(super) fn complete(&mut self, lines: &[VbucketLine]) -> Result<(), BackupError> {
        self.sync_changes()?;
        for line in lines {
            self.count(line);
            self.push_line(line);
        }
        self.write_lines()
    }

    /// A file that is synced gets no further block: an object could not.
    fn sync_changes(&mut self) -> Result<(), BackupError> {
        let Some(file) = self.changes.take() else { return Ok(()) };
        let path = changes_path(&self.folder, self.files.len() as u32);
        file.sync_data().map_err(|error| failed("sync", &path, error))?;
        self.disk.sync_dir(&self.folder).map_err(|error| failed("sync", &self.folder, error))
    }

    fn write_lines(&mut self) -> Result<(), BackupError> {
        let path = self.folder.join(LINES);
        let new = &self.lines_bytes[self.written..];
        self.lines.write_at(new, self.written as u64).map_err(|error| failed("write", &path, error))?;
        self.lines.sync_data().map_err(|error| failed("sync", &path, error))?;
        self.written = self.lines_bytes.len();
        Ok(())
    }

    /// Writes the manifest: from now on the backup is complete.
    pub(super) fn finish(
        self,
        bucket: &str,
        ended_s: u64,
        snapshot: Option<String>,
        state: BucketState,
    ) -> Result<BackupManifest, BackupError> {
        let BucketState { by_time, collections, settings, users } = state;
        let manifest = BackupManifest {
            id: self.head.id.clone(),
            number: self.head.number,
            bucket: bucket.to_owned(),
            base: self.head.base.clone(),
            begun_s: self.head.begun_s,
            ended_s,
            stave: env!("CARGO_PKG_VERSION").to_owned(),
            vbuckets: self.head.vbuckets,
            snapshot,
            by_time,
            collections,
            settings,
            users,
            counts: self.counts,
            files: self.files,
            lines: (self.lines_bytes.len() as u64, crc32c::crc32c(&self.lines_bytes)),
        };
        let content = serde_json::to_vec_pretty(&manifest).expect("plain data");
        let (folder, id) = (&self.folder, &manifest.id);
        match &self.sealer {
            None => manifest_file(folder, id).write(self.disk, &content)?,
            Some(sealer) => {
                sealed_manifest(folder, id).write(self.disk, &seal_manifest(sealer, id, &content))?;
            }
        }
        Ok(manifest)
    }
}

fn failed(operation: &'static str, path: &Path, source: std::io::Error) -> BackupError {
    BackupError::Io { operation, path: path.to_owned(), source }
}
