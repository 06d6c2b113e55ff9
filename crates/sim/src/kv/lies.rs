//! A disk that lies: what it does wrong, a store that did the same by mistake would get wrong, too.
//! It shows that the trials can fail.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::{Disk, Env, File, GroupSync, OpenMode};

/// What the disk does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// No sync of a file does anything.
    SyncsNothing,
    /// The first of each two syncs does nothing: data are not durable when the header is written.
    SkipsFirstSync,
    /// The second of each two syncs does nothing: a header is acknowledged that is not durable.
    SkipsSecondSync,
    /// Of a group of files only the first is synced.
    SyncsFirstOfGroup,
    /// No sync of a folder does anything.
    SkipsFolderSync,
    /// A failed sync is taken for a good one.
    HidesFailedSync,
    /// A failed sync is tried again, and that is taken for an answer.
    RetriesSync,
    /// A failed write is taken for a good one.
    HidesFailedWrite,
    /// A failed removal of a name is taken for a good one.
    HidesFailedRemoval,
    /// What should be appended overwrites the block before.
    WritesOneBlockEarlier,
}

impl Lie {
    /// All of them.
    pub const ALL: [Lie; 10] = [
        Lie::SyncsNothing,
        Lie::SkipsFirstSync,
        Lie::SkipsSecondSync,
        Lie::SyncsFirstOfGroup,
        Lie::SkipsFolderSync,
        Lie::HidesFailedSync,
        Lie::RetriesSync,
        Lie::HidesFailedWrite,
        Lie::HidesFailedRemoval,
        Lie::WritesOneBlockEarlier,
    ];

    /// The same world with a disk that lies.
    pub fn told_to(self, env: Env) -> Env {
        let disk = Liar { honest: env.disk.clone(), lie: self, syncs: Arc::default() };
        Env { disk: Arc::new(disk), ..env }
    }
}

struct Liar {
    honest: Arc<dyn Disk>,
    lie: Lie,
    syncs: Arc<AtomicU64>,
}

impl Disk for Liar {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let honest = self.honest.open(path, mode)?;
        Ok(Arc::new(LyingFile { honest, lie: self.lie, syncs: self.syncs.clone() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.honest.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.honest.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.honest.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        match self.honest.remove_file(path) {
            Err(_) if self.lie == Lie::HidesFailedRemoval => Ok(()),
            result => result,
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.lie == Lie::SkipsFolderSync { Ok(()) } else { self.honest.sync_dir(path) }
    }

    fn group_sync(&self, _folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        Ok(Box::new(LyingGroup(self.lie)))
    }
}

struct LyingGroup(Lie);

impl GroupSync for LyingGroup {
    fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()> {
        let count = if self.0 == Lie::SyncsFirstOfGroup { 1 } else { files.len() };
        files.iter().take(count).try_for_each(|file| file.sync_data())
    }
}

const BLOCK: u64 = 4096;

struct LyingFile {
    honest: Arc<dyn File>,
    lie: Lie,
    syncs: Arc<AtomicU64>,
}

impl File for LyingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.honest.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let early = self.lie == Lie::WritesOneBlockEarlier && offset > BLOCK;
        match self.honest.write_at(buf, if early { offset - BLOCK } else { offset }) {
            Err(_) if self.lie == Lie::HidesFailedWrite => Ok(()),
            result => result,
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let is_first = self.syncs.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        match self.lie {
            Lie::SyncsNothing => Ok(()),
            Lie::SkipsFirstSync if is_first => Ok(()),
            Lie::SkipsSecondSync if !is_first => Ok(()),
            Lie::HidesFailedSync => self.honest.sync_data().or(Ok(())),
            Lie::RetriesSync => self.honest.sync_data().or_else(|_| self.honest.sync_data()),
            _ => self.honest.sync_data(),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.honest.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.honest.set_len(len)
    }
}
