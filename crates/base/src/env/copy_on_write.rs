//! A disk over another one that is only read: what is written is kept in memory, and gone with it. Tools open files with
//! the code that a node opens them with, and change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{Disk, File, FolderAccess, OpenMode, Room};

/// Bytes that are copied together.
const PAGE_BYTES: usize = 4096;

/// A disk that reads from another and writes to memory.
///
/// Nothing below is changed, whatever is called. Folders can be made and emptied, not renamed. More than `most_bytes` of
/// written pages are refused with [`ErrorKind::StorageFull`], and what was written before stays readable.
pub struct CopyOnWriteDisk {
    below: Arc<dyn Disk>,
    names: Mutex<PathTable>,
    pages: Arc<Mutex<PageBudget>>,
}

/// What of the names is not as it is below.
#[derive(Default)]
struct PathTable {
    /// Files that were opened, made or moved; nothing of one that is gone.
    files: BTreeMap<PathBuf, Option<Arc<SharedFile>>>,
    /// Folders that were made.
    folders: BTreeSet<PathBuf>,
    /// Folders that were removed.
    removed: BTreeSet<PathBuf>,
}

/// Pages that may still be written.
struct PageBudget {
    left: u64,
    most_bytes: u64,
}

impl PageBudget {
    fn take(&mut self) -> io::Result<()> {
        let Some(left) = self.left.checked_sub(1) else {
            let what = format!(
                "more than {} MiB would be kept in memory to leave the files as they are",
                self.most_bytes >> 20
            );
            return Err(io::Error::new(ErrorKind::StorageFull, what));
        };
        self.left = left;
        Ok(())
    }
}

/// A file, whatever its name is now.
struct SharedFile {
    /// Where it is below; nothing of one that was made here.
    below: Option<PathBuf>,
    content: Mutex<FilePages>,
}

/// What of a file is not as it is below.
struct FilePages {
    len: u64,
    /// Up to where the file below still counts: it was never cut shorter.
    below_len: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

/// An open file. Its handle on the file below is its own, so that no more files are open than the caller holds.
struct CopyOnWriteFile {
    shared: Arc<SharedFile>,
    below: Option<Arc<dyn File>>,
    pages: Arc<Mutex<PageBudget>>,
}

impl CopyOnWriteDisk {
    /// A disk over `below` that keeps up to `most_bytes` of what is written.
    pub fn new(below: Arc<dyn Disk>, most_bytes: u64) -> CopyOnWriteDisk {
        let left = most_bytes / PAGE_BYTES as u64;
        let pages = Arc::new(Mutex::new(PageBudget { left, most_bytes }));
        CopyOnWriteDisk { below, names: Mutex::default(), pages }
    }

    fn handle(&self, shared: Arc<SharedFile>) -> io::Result<Arc<dyn File>> {
        let below = shared.below.as_ref().map(|path| self.below.open(path, OpenMode::Read)).transpose()?;
        Ok(Arc::new(CopyOnWriteFile { shared, below, pages: self.pages.clone() }))
    }
}

impl PathTable {
    fn is_removed(&self, path: &Path) -> bool {
        path.ancestors().any(|folder| self.removed.contains(folder))
    }

    /// The file of a name, known from now on.
    fn find(&mut self, below: &dyn Disk, path: &Path) -> io::Result<Arc<SharedFile>> {
        if let Some(known) = self.files.get(path) {
            return known.clone().ok_or_else(|| ErrorKind::NotFound.into());
        }
        if self.is_removed(path) {
            return Err(ErrorKind::NotFound.into());
        }
        let len = below.open(path, OpenMode::Read)?.len()?;
        let content = Mutex::new(FilePages { len, below_len: len, pages: BTreeMap::new() });
        let shared = Arc::new(SharedFile { below: Some(path.to_owned()), content });
        self.files.insert(path.to_owned(), Some(shared.clone()));
        Ok(shared)
    }

    fn make(&mut self, path: &Path) -> Arc<SharedFile> {
        let content = Mutex::new(FilePages { len: 0, below_len: 0, pages: BTreeMap::new() });
        let shared = Arc::new(SharedFile { below: None, content });
        self.files.insert(path.to_owned(), Some(shared.clone()));
        shared
    }

    fn list(&self, below: &dyn Disk, folder: &Path) -> io::Result<BTreeSet<String>> {
        let is_removed = self.is_removed(folder);
        let mut names: BTreeSet<String> = match below.read_dir(folder) {
            Ok(names) if !is_removed => names.into_iter().collect(),
            Err(error) if !is_removed && !self.folders.contains(folder) => return Err(error),
            _ if !self.folders.contains(folder) => return Err(ErrorKind::NotFound.into()),
            _ => BTreeSet::new(),
        };
        let name_in = |path: &Path| {
            let name = path.file_name().filter(|_| path.parent() == Some(folder))?;
            Some(name.to_string_lossy().into_owned())
        };
        for removed in self.removed.iter().filter_map(|path| name_in(path)) {
            names.remove(&removed);
        }
        names.extend(self.folders.iter().filter_map(|path| name_in(path)));
        for (path, shared) in &self.files {
            match (name_in(path), shared) {
                (Some(name), Some(_)) => drop(names.insert(name)),
                (Some(name), None) => drop(names.remove(&name)),
                (None, _) => {}
            }
        }
        Ok(names)
    }
}

impl Disk for CopyOnWriteDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut names = self.names.lock();
        let shared = match (names.find(&*self.below, path), mode) {
            (Ok(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Ok(shared), _) => shared,
            (Err(error), OpenMode::Create | OpenMode::CreateNew) if error.kind() == ErrorKind::NotFound => {
                names.make(path)
            }
            (Err(error), _) => return Err(error),
        };
        drop(names);
        self.handle(shared)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        for folder in path.ancestors().filter(|folder| !folder.as_os_str().is_empty()) {
            if !names.is_removed(folder) && self.below.read_dir(folder).is_ok() {
                break;
            }
            names.folders.insert(folder.to_owned());
        }
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        Ok(self.names.lock().list(&*self.below, path)?.into_iter().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let shared = names.find(&*self.below, from)?;
        names.files.insert(from.to_owned(), None);
        names.files.insert(to.to_owned(), Some(shared));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if names.list(&*self.below, path).is_ok() {
            return Err(ErrorKind::IsADirectory.into());
        }
        names.find(&*self.below, path)?;
        names.files.insert(path.to_owned(), None);
        Ok(())
    }

    fn room(&self, folder: &Path) -> Option<Room> {
        self.below.room(folder)
    }

    fn on_file_system(&self, folder: &Path) -> Option<FolderAccess> {
        match self.below.on_file_system(folder)? {
            FolderAccess::Whole(path) | FolderAccess::ReadOnly(path) => Some(FolderAccess::ReadOnly(path)),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        if !names.list(&*self.below, path)?.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        names.folders.remove(path);
        names.removed.insert(path.to_owned());
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl FilePages {
    /// A page as it reads now, from the file below if it was never written.
    fn page(&self, below: Option<&Arc<dyn File>>, number: u64) -> io::Result<Box<[u8; PAGE_BYTES]>> {
        if let Some(page) = self.pages.get(&number) {
            return Ok(page.clone());
        }
        let mut page = Box::new([0; PAGE_BYTES]);
        let begin = number * PAGE_BYTES as u64;
        let counts = self.below_len.saturating_sub(begin).min(PAGE_BYTES as u64) as usize;
        if let Some(below) = below.filter(|_| counts > 0) {
            below.read_at(&mut page[..counts], begin)?;
        }
        Ok(page)
    }
}

/// The pages that `len` bytes from `offset` on touch: number, offset in it, and where the part begins and ends.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let inside = (at % PAGE_BYTES as u64) as usize;
        let part = (PAGE_BYTES - inside).min(len - done);
        let range = done..done + part;
        done += part;
        Some((at / PAGE_BYTES as u64, inside, range))
    })
}

impl File for CopyOnWriteFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.shared.content.lock();
        let len = usize::try_from(content.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        if content.pages.is_empty() && offset + len as u64 <= content.below_len {
            drop(content);
            return self.below.as_ref().map_or(Ok(0), |below| below.read_at(&mut buf[..len], offset));
        }
        for (number, inside, range) in parts(offset, len) {
            let page = content.page(self.below.as_ref(), number)?;
            let part = range.len();
            buf[range].copy_from_slice(&page[inside..inside + part]);
        }
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.shared.content.lock();
        for (number, inside, range) in parts(offset, buf.len()) {
            let mut page = content.page(self.below.as_ref(), number)?;
            let part = range.len();
            page[inside..inside + part].copy_from_slice(&buf[range]);
            if !content.pages.contains_key(&number) {
                self.pages.lock().take()?;
            }
            content.pages.insert(number, page);
        }
        content.len = content.len.max(offset + buf.len() as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.shared.content.lock().len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.shared.content.lock();
        if len < content.len {
            let kept = len.div_ceil(PAGE_BYTES as u64);
            let gone = content.pages.split_off(&kept);
            self.pages.lock().left += gone.len() as u64;
            if let Some(page) = content.pages.get_mut(&(len / PAGE_BYTES as u64)) {
                page[(len % PAGE_BYTES as u64) as usize..].fill(0);
            }
            content.below_len = content.below_len.min(len);
        }
        content.len = len;
        Ok(())
    }

    fn append_from(&self, end: u64) -> u64 {
        self.below.as_ref().map_or(end, |below| below.append_from(end))
    }

    fn is_current(&self) -> bool {
        self.below.as_ref().is_none_or(|below| below.is_current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;

    fn with_file(content: &[u8]) -> (Arc<dyn Disk>, CopyOnWriteDisk) {
        let (env, _) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/d")).unwrap();
        let file = env.disk.open(Path::new("/d/a"), OpenMode::CreateNew).unwrap();
        file.write_at(content, 0).unwrap();
        file.sync_data().unwrap();
        let over = CopyOnWriteDisk::new(env.disk.clone(), 1 << 20);
        (env.disk, over)
    }

    fn content(disk: &dyn Disk, path: &str) -> Vec<u8> {
        let file = disk.open(Path::new(path), OpenMode::Read).unwrap();
        let mut all = vec![0; file.len().unwrap() as usize];
        assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
        all
    }

    #[test]
    fn what_is_written_is_read_again_and_the_disk_below_stays_as_it_is() {
        let (below, over) = with_file(&[7; 10_000]);
        let file = over.open(Path::new("/d/a"), OpenMode::ReadWrite).unwrap();
        let other = over.open(Path::new("/d/a"), OpenMode::Read).unwrap();
        file.write_at(&[1; 5000], 9000).unwrap();
        file.set_len(12_000).unwrap();
        let mut expected = vec![7; 9000];
        expected.extend([1; 3000]);
        let mut all = vec![0; 20_000];
        assert_eq!(other.read_at(&mut all, 0).unwrap(), 12_000);
        assert_eq!(all[..12_000], expected);
        over.rename(Path::new("/d/a"), Path::new("/d/b")).unwrap();
        over.open(Path::new("/d/c"), OpenMode::CreateNew).unwrap().write_at(b"new", 2).unwrap();
        assert_eq!(over.read_dir(Path::new("/d")).unwrap(), ["b", "c"]);
        assert_eq!(content(&over, "/d/b"), expected);
        assert_eq!(content(&over, "/d/c"), b"\0\0new");
        over.remove_dir_all(Path::new("/d")).unwrap();
        assert_eq!(over.read_dir(Path::new("/d")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(over.open(Path::new("/d/a"), OpenMode::Read).err().unwrap().kind(), ErrorKind::NotFound);
        assert_eq!(below.read_dir(Path::new("/d")).unwrap(), ["a"]);
        assert_eq!(content(&*below, "/d/a"), [7; 10_000]);
    }

    #[test]
    fn a_file_behaves_as_one_that_is_written_in_place() {
        let random = Env::sim(5).0.random;
        for _ in 0..200 {
            let mut model: Vec<u8> = (0..random.next_u64() % 20_000).map(|i| i as u8).collect();
            let (_, over) = with_file(&model);
            let file = over.open(Path::new("/d/a"), OpenMode::ReadWrite).unwrap();
            for step in 0..30u8 {
                let (offset, len) = (random.next_u64() as usize % 24_000, random.next_u64() as usize % 9000);
                match random.next_u64() % 3 {
                    0 => {
                        file.write_at(&vec![step; len], offset as u64).unwrap();
                        model.resize(model.len().max(offset + len), 0);
                        model[offset..offset + len].fill(step);
                    }
                    1 => {
                        file.set_len(offset as u64).unwrap();
                        model.resize(offset, 0);
                    }
                    _ => {
                        let mut buf = vec![9; len];
                        let read = file.read_at(&mut buf, offset as u64).unwrap();
                        let from = offset.min(model.len());
                        assert_eq!(buf[..read], model[from..(from + len).min(model.len())]);
                    }
                }
                assert_eq!(file.len().unwrap(), model.len() as u64);
            }
        }
    }

    #[test]
    fn more_than_may_be_kept_is_refused() {
        let (below, _) = with_file(b"x");
        let over = CopyOnWriteDisk::new(below, 8192);
        let file = over.open(Path::new("/d/a"), OpenMode::ReadWrite).unwrap();
        file.write_at(&[1; 8192], 0).unwrap();
        assert_eq!(file.write_at(&[1], 8192).unwrap_err().kind(), ErrorKind::StorageFull);
        file.write_at(&[2; 8192], 0).unwrap();
        file.set_len(0).unwrap();
        file.write_at(&[3; 8192], 4096 * 7).unwrap();
    }
}
