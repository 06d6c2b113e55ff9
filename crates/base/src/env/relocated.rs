//! A disk on which the files of a folder are in another folder, until they are brought to their place one by one.
//!
//! *Guarantee:* whoever uses the disk finds each file under its name in the folder, wherever it is. No name is looked up
//! while a file is being moved.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use super::disk::{Disk, File, FolderAccess, GroupSync, OpenMode, Room};

/// Where the files of the folder are.
#[derive(Debug)]
enum Place {
    /// All in the other folder.
    Elsewhere,
    /// Those with these names are in the other folder, all others in their place.
    Partly(BTreeSet<String>),
}

/// A disk on which the content of `folder` is in the folder `elsewhere`.
#[derive(Clone)]
pub struct RelocatedDisk {
    under: Arc<dyn Disk>,
    folder: PathBuf,
    elsewhere: PathBuf,
    place: Arc<RwLock<Place>>,
}

impl RelocatedDisk {
    /// On top of another disk.
    pub fn new(under: Arc<dyn Disk>, folder: &Path, elsewhere: &Path) -> RelocatedDisk {
        RelocatedDisk {
            under,
            folder: folder.to_owned(),
            elsewhere: elsewhere.to_owned(),
            place: Arc::new(RwLock::new(Place::Elsewhere)),
        }
    }

    /// From now on new files are made in the folder itself; those that are elsewhere follow with
    /// [`RelocatedDisk::bring_one`].
    ///
    /// # Errors
    ///
    /// If the other folder cannot be listed; then all stays as it was.
    pub fn begin_to_bring(&self) -> io::Result<()> {
        let mut place = self.place.write();
        if matches!(*place, Place::Elsewhere) {
            *place = Place::Partly(self.under.read_dir(&self.elsewhere)?.into_iter().collect());
        }
        Ok(())
    }

    /// Moves one file to its place, over the one that is there; says whether there was one to move. Durable after
    /// [`Disk::sync_dir`] of the folder.
    ///
    /// # Errors
    ///
    /// If the disk refuses; the file is where it was.
    pub fn bring_one(&self) -> io::Result<bool> {
        let mut place = self.place.write();
        let Place::Partly(left) = &mut *place else { return Ok(false) };
        let Some(name) = left.first().cloned() else { return Ok(false) };
        match self.under.rename(&self.elsewhere.join(&name), &self.folder.join(&name)) {
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        left.remove(&name);
        Ok(true)
    }

    /// Does something with the place of a path, while no file is moved.
    fn at<T>(&self, path: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let place = self.place.read();
        work(&self.place_of(&place, path))
    }

    fn place_of(&self, place: &Place, path: &Path) -> PathBuf {
        let Ok(inside) = path.strip_prefix(&self.folder) else { return path.to_owned() };
        let is_elsewhere = match place {
            Place::Elsewhere => true,
            Place::Partly(left) => {
                let first = inside.components().next();
                first.is_some_and(|first| left.contains(&*first.as_os_str().to_string_lossy()))
            }
        };
        if !is_elsewhere {
            return path.to_owned();
        }
        // Joined to an empty path, a folder's own would end with a slash.
        if inside.as_os_str().is_empty() { self.elsewhere.clone() } else { self.elsewhere.join(inside) }
    }

    fn is_the_folder(&self, path: &Path) -> bool {
        path == self.folder
    }
}

impl Disk for RelocatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.at(path, |path| self.under.open(path, mode))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.at(path, |path| self.under.create_dir_all(path))
    }

    fn create_dir_all_synced(&self, path: &Path) -> io::Result<()> {
        self.at(path, |path| self.under.create_dir_all_synced(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let place = self.place.read();
        let mut names = self.under.read_dir(&self.place_of(&place, path))?;
        if let Place::Partly(left) = &*place
            && self.is_the_folder(path)
        {
            names.retain(|name| !left.contains(name));
            names.extend(left.iter().cloned());
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let place = self.place.read();
        self.under.rename(&self.place_of(&place, from), &self.place_of(&place, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.at(path, |path| self.under.remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.at(path, |path| self.under.remove_dir(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.at(path, |path| self.under.remove_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let place = self.place.read();
        self.under.sync_dir(&self.place_of(&place, path))?;
        match &*place {
            // What was moved is durable in the folder before it is durably gone elsewhere.
            Place::Partly(_) if self.is_the_folder(path) => match self.under.sync_dir(&self.elsewhere) {
                // All was brought, and the other folder was removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                synced => synced,
            },
            _ => Ok(()),
        }
    }

    fn group_sync(&self, folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        self.at(folder, |folder| self.under.group_sync(folder))
    }

    fn room(&self, folder: &Path) -> Option<Room> {
        self.at(folder, |folder| Ok(self.under.room(folder))).ok().flatten()
    }

    fn on_file_system(&self, folder: &Path) -> Option<FolderAccess> {
        let place = self.place.read();
        self.under.on_file_system(&self.place_of(&place, folder))
    }

    fn beneath(&self) -> Option<Arc<dyn Disk>> {
        let under = self.under.beneath()?;
        Some(Arc::new(RelocatedDisk { under, ..self.clone() }))
    }

    fn set_encrypting(&self, is_on: bool) {
        self.under.set_encrypting(is_on);
    }

    fn key_changes(&self) -> u64 {
        self.under.key_changes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;

    #[test]
    fn files_are_under_their_names_before_meanwhile_and_after() {
        let (env, _) = Env::sim(1);
        let (folder, elsewhere) = (Path::new("/data/b"), Path::new("/data/b/other"));
        env.disk.create_dir_all(elsewhere).expect("a folder");
        let disk = RelocatedDisk::new(env.disk.clone(), folder, elsewhere);
        let write = |name: &str, mode| {
            let file = disk.open(&folder.join(name), mode).expect("it opens");
            file.write_at(name.as_bytes(), 0).expect("it is written");
            file
        };
        let open = write("one", OpenMode::CreateNew);
        write("two", OpenMode::CreateNew);
        env.disk.open(&folder.join("small"), OpenMode::CreateNew).expect("it is made");
        let names = |path: &Path| {
            let mut names = disk.read_dir(path).expect("a list");
            names.sort();
            names
        };
        assert_eq!(names(folder), ["one", "two"]);
        disk.begin_to_bring().expect("it begins");
        assert!(disk.bring_one().expect("one is brought"));
        assert!(env.disk.open(&folder.join("one"), OpenMode::Read).is_ok());
        assert!(env.disk.open(&elsewhere.join("two"), OpenMode::Read).is_ok());
        write("three", OpenMode::CreateNew);
        assert!(env.disk.open(&folder.join("three"), OpenMode::Read).is_ok());
        assert_eq!(names(folder), ["one", "other", "small", "three", "two"]);
        // A new version of one that is still elsewhere takes its place there.
        write("two.new", OpenMode::CreateNew);
        disk.rename(&folder.join("two.new"), &folder.join("two")).expect("renamed");
        disk.sync_dir(folder).expect("synced");
        assert!(disk.bring_one().expect("the other is brought") && !disk.bring_one().expect("that was all"));
        let two = env.disk.open(&folder.join("two"), OpenMode::Read).expect("it is in its place");
        assert_eq!(two.len().expect("a length"), "two.new".len() as u64);
        assert_eq!(env.disk.read_dir(elsewhere).expect("a list"), [""; 0]);
        open.write_at(b"still open", 0).expect("a file that was open stays so");
        env.disk.remove_dir_all(elsewhere).expect("removed");
        disk.sync_dir(folder).expect("the folder alone");
    }
}
