//! The disk as one life of a node sees it: when that is killed, what it has written stays, and nothing is added.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::env::{Disk, File, GroupSync, OpenMode, Room};

/// Whether the life has ended.
#[derive(Clone, Default)]
pub(super) struct Death(Arc<AtomicBool>);

impl Death {
    /// From now on the disk answers nothing.
    pub(super) fn comes(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::SeqCst) { Err(io::Error::other("the node was killed")) } else { Ok(()) }
    }
}

/// A disk for one life.
pub(super) struct MortalDisk {
    real: Arc<dyn Disk>,
    death: Death,
}

impl MortalDisk {
    /// The same disk until `death` comes.
    pub(super) fn new(real: Arc<dyn Disk>, death: Death) -> MortalDisk {
        MortalDisk { real, death }
    }
}

impl Disk for MortalDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.death.check()?;
        let file = self.real.open(path, mode)?;
        Ok(Arc::new(MortalFile { file, death: self.death.clone() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.death.check()?;
        self.real.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.death.check()?;
        self.real.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.death.check()?;
        self.real.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.death.check()?;
        self.real.remove_file(path)
    }

    fn room(&self, folder: &Path) -> Option<Room> {
        self.real.room(folder)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.death.check()?;
        self.real.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.death.check()?;
        self.real.sync_dir(path)
    }

    fn group_sync(&self, folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        self.death.check()?;
        Ok(Box::new(MortalSync { group: self.real.group_sync(folder)?, death: self.death.clone() }))
    }
}

struct MortalFile {
    file: Arc<dyn File>,
    death: Death,
}

impl File for MortalFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.death.check()?;
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.death.check()?;
        self.file.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.death.check()?;
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.death.check()?;
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.death.check()?;
        self.file.set_len(len)
    }

    fn append_from(&self, end: u64) -> u64 {
        self.file.append_from(end)
    }

    fn is_current(&self) -> bool {
        self.file.is_current()
    }
}

struct MortalSync {
    group: Box<dyn GroupSync>,
    death: Death,
}

impl GroupSync for MortalSync {
    fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()> {
        self.death.check()?;
        self.group.sync_files(files)
    }
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;

    #[test]
    fn what_was_written_stays_and_nothing_is_added() {
        let (env, _) = Env::sim(1);
        let death = Death::default();
        let mortal = MortalDisk::new(Arc::clone(&env.disk), death.clone());
        let (folder, path) = (Path::new("/data"), Path::new("/data/file"));
        mortal.create_dir_all(folder).expect("a folder");
        let file = mortal.open(path, OpenMode::Create).expect("a file");
        file.write_at(b"before", 0).expect("written");
        let group = mortal.group_sync(folder).expect("a group");
        group.sync_files(&[Arc::clone(&file)]).expect("synced");
        death.comes();
        assert!(
            file.write_at(b"after!", 0).is_err() && file.sync_data().is_err() && file.set_len(0).is_err()
        );
        assert!(group.sync_files(&[file]).is_err());
        assert!(mortal.open(path, OpenMode::Read).is_err() && mortal.remove_file(path).is_err());
        let left = env.disk.open(path, OpenMode::Read).expect("it is there");
        let mut bytes = [0; 8];
        let read = left.read_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes[..read], b"before");
    }
}
