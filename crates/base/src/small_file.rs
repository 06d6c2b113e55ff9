//! Small files that decide about data: kept twice, with a checksum, and replaced as a whole (docs/adr/0057-small-files.md).
//!
//! # Guarantees
//!
//! - After [`SmallFile::write`] has returned, `NAME` and `NAME.copy` both hold the new content, durably. After a crash or
//!   an error each holds the old or the new content, whole.
//! - A reader notices every changed bit, every missing byte, a file of another name, of another owner, and an older
//!   version of either file. It uses the other file then, which holds the same content, and says so. If neither can be
//!   used it refuses.
//! - A file that a newer version wrote is refused, and nothing takes its place.
//! - Files without a header, as versions before this one wrote them, are read, and get a header.

mod header;
mod mend;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use crate::env::{Disk, OpenMode};
use header::{Header, Sealed};

/// What the second file's name ends with.
const COPY: &str = ".copy";
/// What the name of a file ends with until it is whole.
const UNFINISHED: &str = ".new";
/// The largest content, unless [`SmallFile::at_most`] says otherwise, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Why a small file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    /// The disk refused.
    #[error("cannot {operation} {}: {source}{}", path.display(), what_to_do(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A newer version wrote at least one of the two files: nothing is lost, and nothing is written in their place.
    #[error("{} cannot be used: {what}; start that version, or put back what was there before the update", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format, and what this version reads.
        what: String,
    },
    /// Neither of the two files can be used.
    #[error("{} cannot be used: {what}; put it back from a backup", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and with its copy.
        what: String,
    },
}

/// What to do about an error of the disk, if that is known.
fn what_to_do(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; the disk is full: make room on it",
        _ => "",
    }
}

impl SmallFileError {
    /// Whether what the file held is lost, as opposed to a disk that refuses just now, or a file of a newer version.
    pub fn is_damage(&self) -> bool {
        matches!(self, SmallFileError::Damaged { .. })
    }

    /// Whether the disk has no room.
    pub fn is_disk_full(&self) -> bool {
        let SmallFileError::Io { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// What to do about it if the disk refused, for answers that name no path; empty if that is not known.
    pub fn advice(&self) -> &'static str {
        match self {
            SmallFileError::Io { source, .. } => what_to_do(source),
            SmallFileError::Newer { .. } | SmallFileError::Damaged { .. } => "",
        }
    }
}

/// A small file: where it is, and what it must be.
#[derive(Clone, Debug)]
pub struct SmallFile {
    folder: PathBuf,
    name: String,
    owner: String,
    version: u16,
    max_bytes: u64,
}

/// What was read.
#[derive(Debug)]
pub struct Found<T> {
    /// What the owner's function made of it.
    pub content: T,
    /// What is wrong with one of the two files, in words.
    pub fault: Option<String>,
    bytes: Vec<u8>,
    is_uneven: bool,
}

impl<T> Found<T> {
    /// Whether both files should be written again: they differ, or have no header.
    pub fn is_uneven(&self) -> bool {
        self.is_uneven
    }
}

/// One of the two files, if it can be used.
struct One<T> {
    /// 0 for a file without header.
    generation: u64,
    content: T,
    bytes: Vec<u8>,
}

/// Why one of the two files cannot be used.
enum Unusable {
    Missing,
    Fault(String),
    /// It is of a newer version, and whole.
    Newer(String),
    /// The disk refused, which says nothing of what is there.
    Unreadable(io::Error),
}

impl From<String> for Unusable {
    fn from(fault: String) -> Unusable {
        Unusable::Fault(fault)
    }
}

impl SmallFile {
    /// A file of a folder, whose content has format version 1.
    pub fn new(folder: &Path, name: &str) -> SmallFile {
        SmallFile {
            folder: folder.to_owned(),
            name: name.to_owned(),
            owner: String::new(),
            version: 1,
            max_bytes: MAX_BYTES,
        }
    }

    /// The same, belonging to something whose name has no white space: a file of another owner in its place is damage.
    #[must_use]
    pub fn owned_by(self, owner: &str) -> SmallFile {
        SmallFile { owner: owner.to_owned(), ..self }
    }

    /// The same with content of a later format version. Content of earlier ones is read, too.
    #[must_use]
    pub fn of_version(self, version: u16) -> SmallFile {
        SmallFile { version, ..self }
    }

    /// The same with another bound of its content, in bytes.
    #[must_use]
    pub fn at_most(self, max_bytes: u64) -> SmallFile {
        SmallFile { max_bytes, ..self }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Where its copy is.
    pub fn copy_path(&self) -> PathBuf {
        self.folder.join(format!("{}{COPY}", self.name))
    }

    /// Reads the file, and makes both files whole again if one is damaged, missing or without header: `say` is told.
    /// `None` if there is neither of them.
    ///
    /// `parse` gets the content and its format version, 0 for a file without header, and refuses what it does not
    /// understand to the last byte.
    pub fn open<T>(
        &self,
        disk: &dyn Disk,
        parse: impl Fn(&[u8], u16) -> Result<T, String>,
        mut say: impl FnMut(&str),
    ) -> Result<Option<T>, SmallFileError> {
        let Some(found) = self.look(disk, parse)? else { return Ok(None) };
        if let Some(fault) = &found.fault {
            say(&format!("{fault}; the other of its two files is whole and is used"));
        }
        if found.is_uneven
            && let Err(error) = self.write(disk, &found.bytes)
        {
            say(&format!("the two files of {} stay different: {error}", self.path().display()));
        }
        Ok(Some(found.content))
    }

    /// What is wrong with the file or its copy, if anything is; changes nothing.
    pub fn fault<T>(
        &self,
        disk: &dyn Disk,
        parse: impl Fn(&[u8], u16) -> Result<T, String>,
    ) -> Option<String> {
        match self.look(disk, parse) {
            Ok(found) => found.and_then(|found| found.fault),
            Err(error) => Some(error.to_string()),
        }
    }

    /// The same as [`SmallFile::open`], and changes nothing.
    pub fn look<T>(
        &self,
        disk: &dyn Disk,
        parse: impl Fn(&[u8], u16) -> Result<T, String>,
    ) -> Result<Option<Found<T>>, SmallFileError> {
        let first = self.read_one(disk, &self.path(), &parse);
        let copy = self.read_one(disk, &self.copy_path(), &parse);
        let damaged = |what| SmallFileError::Damaged { path: self.path(), what };
        match (first, copy) {
            (Err(Unusable::Newer(what)), _) | (_, Err(Unusable::Newer(what))) => {
                Err(SmallFileError::Newer { path: self.path(), what })
            }
            (Err(Unusable::Missing), Err(Unusable::Missing)) => Ok(None),
            (Err(Unusable::Unreadable(source)), Err(_)) => Err(self.failed("read", self.path(), source)),
            (Err(_), Err(Unusable::Unreadable(source))) => Err(self.failed("read", self.copy_path(), source)),
            (Err(first), Err(copy)) => {
                let what = |unusable| match unusable {
                    Unusable::Missing => "it is missing".to_owned(),
                    Unusable::Fault(what) | Unusable::Newer(what) => what,
                    Unusable::Unreadable(error) => error.to_string(),
                };
                let (first, copy) = (what(first), what(copy));
                Err(damaged(format!("{first}; and its copy {}: {copy}", self.copy_path().display())))
            }
            (Ok(one), Err(unusable)) => Ok(Some(self.single(one, unusable, &self.copy_path()))),
            (Err(unusable), Ok(one)) => Ok(Some(self.single(one, unusable, &self.path()))),
            (Ok(first), Ok(copy)) => self.newer_of(first, copy).map(Some).map_err(damaged),
        }
    }

    /// Only one of the two can be used.
    fn single<T>(&self, one: One<T>, other: Unusable, other_path: &Path) -> Found<T> {
        let other_path_says = |what: &str| Some(format!("{}: {what}", other_path.display()));
        let fault = match other {
            // A file of a version that kept no copy.
            Unusable::Missing if one.generation == 0 => None,
            Unusable::Missing => other_path_says("it is missing"),
            Unusable::Fault(what) | Unusable::Newer(what) => other_path_says(&what),
            Unusable::Unreadable(error) => other_path_says(&format!("it cannot be read: {error}")),
        };
        Found { content: one.content, fault, bytes: one.bytes, is_uneven: true }
    }

    /// Both can be used. They differ in their generation if a write was interrupted, or if one of them is an old one.
    fn newer_of<T>(&self, first: One<T>, copy: One<T>) -> Result<Found<T>, String> {
        if first.generation == copy.generation {
            return if first.bytes == copy.bytes {
                Ok(Found { content: first.content, fault: None, bytes: first.bytes, is_uneven: false })
            } else {
                Err(format!("{} has the same generation and other content", self.copy_path().display()))
            };
        }
        let (newer, older, path) = if first.generation > copy.generation {
            (first, copy, self.copy_path())
        } else {
            (copy, first, self.path())
        };
        let is_step = older.generation + 1 == newer.generation;
        // One step apart is what an interrupted write leaves.
        let fault = (!is_step).then(|| {
            format!("{}: it is of generation {} of {}", path.display(), older.generation, newer.generation)
        });
        Ok(Found { content: newer.content, fault, bytes: newer.bytes, is_uneven: true })
    }

    fn read_one<T>(
        &self,
        disk: &dyn Disk,
        path: &Path,
        parse: &impl Fn(&[u8], u16) -> Result<T, String>,
    ) -> Result<One<T>, Unusable> {
        let bytes = match self.read_bytes(disk, path) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(len)) => {
                return Err(Unusable::Fault(format!("its {len} bytes are more than such a file has")));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unusable::Missing),
            Err(error) => return Err(Unusable::Unreadable(error)),
        };
        let expected = self.header(0, &[]);
        match header::unseal(&bytes, &expected)? {
            Sealed::With(header, content) => Ok(One {
                generation: header.generation,
                content: parse(content, header.version).map_err(Unusable::Fault)?,
                bytes: content.to_vec(),
            }),
            Sealed::Without => {
                Ok(One { generation: 0, content: parse(&bytes, 0).map_err(Unusable::Fault)?, bytes })
            }
        }
    }

    /// All bytes of a file, or how many there are if those are too many.
    fn read_bytes(&self, disk: &dyn Disk, path: &Path) -> io::Result<Result<Vec<u8>, u64>> {
        let file = disk.open(path, OpenMode::Read)?;
        let len = file.len()?;
        if len > self.max_bytes + header::MAX_BYTES as u64 {
            return Ok(Err(len));
        }
        let mut bytes = vec![0; len as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(Ok(bytes))
    }

    fn header(&self, generation: u64, content: &[u8]) -> Header {
        Header {
            name: self.name.clone(),
            owner: self.owner.clone(),
            version: self.version,
            generation,
            len: content.len() as u64,
        }
    }

    /// Puts other content in the place of the present one, durably. The caller sees to it that there is one writer.
    pub fn write(&self, disk: &dyn Disk, content: &[u8]) -> Result<(), SmallFileError> {
        assert!(!self.owner.contains(char::is_whitespace), "an owner's name is one word");
        if content.len() as u64 > self.max_bytes {
            let what =
                format!("{} bytes are more than the {} that it may have", content.len(), self.max_bytes);
            return Err(self.failed("write", self.path(), io::Error::other(what)));
        }
        let generation = self.generation(disk) + 1;
        let bytes = self.header(generation, content).seal(content);
        let places = [self.copy_path(), self.path()];
        let unfinished = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(UNFINISHED);
            PathBuf::from(name)
        };
        // What may fail for want of room comes before anything is replaced.
        for path in &places {
            let new = unfinished(path);
            let write = || {
                let file = disk.open(&new, OpenMode::Create)?;
                file.set_len(0)?;
                file.write_at(&bytes, 0)?;
                file.sync_data()
            };
            write().map_err(|source| self.failed("write", new.clone(), source))?;
        }
        for path in &places {
            disk.rename(&unfinished(path), path)
                .map_err(|source| self.failed("replace", path.clone(), source))?;
        }
        disk.sync_dir(&self.folder).map_err(|source| self.failed("sync", self.folder.clone(), source))
    }

    /// The same on a disk that has no room for other files: content of the present length is written over the present
    /// one, the copy first. A crash damages at most one of the two.
    pub fn write_over(&self, disk: &dyn Disk, content: &[u8]) -> Result<(), SmallFileError> {
        let generation = self.generation(disk) + 1;
        let bytes = self.header(generation, content).seal(content);
        for path in [self.copy_path(), self.path()] {
            let write = || {
                let file = disk.open(&path, OpenMode::ReadWrite)?;
                if file.len()? != bytes.len() as u64 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                file.write_at(&bytes, 0)?;
                file.sync_data()
            };
            write().map_err(|source| self.failed("write", path.clone(), source))?;
        }
        Ok(())
    }

    /// Removes both files, durably. Fine if there is none.
    pub fn remove(&self, disk: &dyn Disk) -> Result<(), SmallFileError> {
        // The copy last: as long as one is there, a reader finds what was there.
        for path in [self.path(), self.copy_path()] {
            match disk.remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.failed("remove", path, error));
                }
                _ => {}
            }
        }
        disk.sync_dir(&self.folder).map_err(|source| self.failed("sync", self.folder.clone(), source))
    }

    /// The generation of the newer of the two files, as far as they can be used.
    fn generation(&self, disk: &dyn Disk) -> u64 {
        let of = |path: PathBuf| {
            let one = self.read_one(disk, &path, &|_, _| Ok(()));
            one.map_or(0, |one| one.generation)
        };
        of(self.path()).max(of(self.copy_path()))
    }

    fn failed(&self, operation: &'static str, path: PathBuf, source: io::Error) -> SmallFileError {
        SmallFileError::Io { operation, path, source }
    }
}
