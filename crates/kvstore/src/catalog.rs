//! The catalog of a bucket's folder: which files a start may believe, and at which header.
//!
//! *Guarantee:* after a clean stop the catalog lists the header of each vBucket's file; while a journal is in front of
//! the files it names the journal's newest segment. A change of the catalog is durable before anything is acknowledged
//! that depends on it.
//!
//! It is kept twice, in `catalog` and `catalog.copy`, so that one damaged copy costs nothing. The text is described in
//! docs/catalog_format.md.

pub mod fuzz;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::VbId;
use base::encryption::is_unknown_key;
use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};
use parking_lot::Mutex;

use crate::compaction::FileAt;
use crate::failure::Failure;

/// The two copies, in the order in which they are written.
const NAMES: [&str; 2] = ["catalog.copy", "catalog"];
/// Ends the name of a copy that is being written; such files are removed when the bucket opens.
const UNFINISHED: &str = ".new";
/// No catalog is larger: 1,024 lines of less than 128 bytes, and as much again.
const MAX_BYTES: u64 = 256 << 10;

/// Names a bucket's folder; every file in it carries the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(pub(crate) u128);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a start may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believe {
    /// The files, each at the header that is listed and no other. There is no journal.
    Files,
    /// The journal, which has this segment.
    Journal {
        /// The newest segment that was durable.
        generation: u64,
        /// The salt in its header.
        salt: u64,
    },
    /// The last valid header of each file, which is not before the one that is listed: they are written to without a
    /// journal.
    Headers,
}

/// A vBucket's file as it is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Revision and header; `FileAt::LAST` if the file could not be read and its last header was not known.
    pub at: FileAt,
    /// The highest seqno in the file, if it was read.
    pub high_seqno: Option<u64>,
    /// Whether what stands behind the header is void; otherwise nothing may stand there.
    pub is_tail_void: bool,
}

/// What a catalog says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Whose folder it is.
    pub store: StoreId,
    /// Rises with each write.
    pub sequence: u64,
    /// What a start may believe.
    pub believe: Believe,
    /// Segments of the journal up to this generation are void. Earlier versions put the segment that is believed here, or
    /// a later one; then it says nothing.
    pub generations: u64,
    /// The files, by vBucket; empty while the journal is believed, which has a list of its own.
    pub files: BTreeMap<VbId, Listed>,
}

/// What is found in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No catalog: the folder is new, or an earlier version wrote it.
    None,
    /// A catalog, and what is wrong with its other copy.
    Catalog(Contents, Option<String>),
    /// There is a catalog, and it cannot be used.
    Damaged(String),
}

/// Where the two copies of a folder's catalog are.
pub fn paths(dir: &Path) -> [PathBuf; 2] {
    NAMES.map(|name| dir.join(name))
}

/// Looks for the catalog of a folder.
pub fn find(disk: &dyn Disk, dir: &Path) -> Result<Found, Failure> {
    find_both(disk, dir).map(|(found, _)| found)
}

/// The same, and the sequence that each sound copy has reached.
fn find_both(disk: &dyn Disk, dir: &Path) -> Result<(Found, u64), Failure> {
    let [copy, main] = NAMES.map(|name| read(disk, &dir.join(name)));
    let copy = beside(copy, &main);
    let main = beside(main, &copy)?;
    let copy = copy?;
    let sound = [&copy, &main].into_iter().flatten().flatten();
    let reached = sound.map(|contents| contents.sequence).min().unwrap_or(0);
    Ok((found_in(dir, copy, main), reached))
}

/// One copy, if there is one, or what is wrong with it.
type OneCopy = Option<Result<Contents, String>>;

/// A copy under a key that the folder does not have counts as damaged beside a sound one: with the next write both are under
/// the present key. If neither can be read, it is the key that is missing, and nothing may take their place.
fn beside(one: Result<OneCopy, Failure>, other: &Result<OneCopy, Failure>) -> Result<OneCopy, Failure> {
    match (one, other) {
        (Err(Failure::Disk { source, .. }), Ok(Some(Ok(_)))) if is_unknown_key(&source) => {
            Ok(Some(Err(format!("it cannot be read: {source}"))))
        }
        (one, _) => one,
    }
}

fn found_in(dir: &Path, copy: OneCopy, main: OneCopy) -> Found {
    let said = |name: usize, copy: &Result<Contents, String>| {
        copy.as_ref().err().map(|what| format!("{}: {what}", dir.join(NAMES[name]).display()))
    };
    match (copy, main) {
        (None, None) => Found::None,
        // the first write of all was cut short, or somebody removed one of the two
        (Some(Ok(only)), None) => {
            Found::Catalog(only, Some(format!("{} is missing", dir.join(NAMES[1]).display())))
        }
        (None, Some(Ok(only))) => {
            Found::Catalog(only, Some(format!("{} is missing", dir.join(NAMES[0]).display())))
        }
        (Some(Ok(copy)), Some(Ok(main))) if copy.store != main.store => Found::Damaged(format!(
            "{} is of store {}, {} of store {}: one of them is of another bucket",
            NAMES[0], copy.store, NAMES[1], main.store
        )),
        (Some(Ok(copy)), Some(Ok(main))) => {
            Found::Catalog(if copy.sequence > main.sequence { copy } else { main }, None)
        }
        (Some(copy), Some(main)) => {
            let (of_copy, of_main) = (said(0, &copy), said(1, &main));
            match (copy.ok().or(main.ok()), of_copy.or(of_main)) {
                (Some(sound), what) => Found::Catalog(sound, what),
                (None, what) => Found::Damaged(what.unwrap_or_default()),
            }
        }
        (Some(Err(what)), None) | (None, Some(Err(what))) => Found::Damaged(what),
    }
}

/// One copy; `None` if there is none.
fn read(disk: &dyn Disk, path: &Path) -> Result<OneCopy, Failure> {
    let failed = |operation| {
        let path = path.to_owned();
        move |source| Failure::Disk { operation, path, source }
    };
    let file = match disk.open(path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open")(error)),
    };
    let len = file.len().map_err(failed("measure"))?;
    if len > MAX_BYTES {
        return Ok(Some(Err(format!("it has {len} bytes, at most {MAX_BYTES} are possible"))));
    }
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, 0).map_err(failed("read"))?;
    Ok(Some(Contents::from_text(&bytes[..read])))
}

/// The catalog of a folder that is in use.
///
/// *Thread safety:* one write at a time; its lock is held during I/O and is the last that is taken.
pub(crate) struct Catalog {
    env: Env,
    dir: PathBuf,
    /// What could be believed when it was opened; `None` if there was no catalog.
    found: Option<Believe>,
    /// The sequence that is durable in both copies, or in the only one.
    durable: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    contents: Contents,
    /// Whether `contents` are on disk. After a failed write that is not known.
    is_durable: bool,
    /// Whether there is a catalog on disk.
    exists: bool,
}

impl Catalog {
    /// The catalog of a folder; a folder without one gets it with the first write.
    pub(crate) fn open(env: &Env, dir: &Path) -> Result<Catalog, Failure> {
        let (found, reached) = find_both(&*env.disk, dir)?;
        let (contents, is_durable, exists) = match found {
            Found::Catalog(contents, other) => {
                if let Some(other) = &other {
                    tracing::warn!(
                        event = "catalog_copy_unused", catalog = %other,
                        "one of the two copies of the catalog cannot be used; the other one is whole and is used"
                    );
                }
                // the other copy is written again with the next change
                (contents, other.is_none(), true)
            }
            Found::None => {
                return Ok(Catalog::anew(env, dir, None));
            }
            Found::Damaged(what) => return Err(Failure::Catalog { dir: dir.to_owned(), what }),
        };
        let found = exists.then_some(contents.believe);
        let inner = Mutex::new(Inner { contents, is_durable, exists });
        let durable = AtomicU64::new(reached);
        Ok(Catalog { env: env.clone(), dir: dir.to_owned(), found, durable, inner })
    }

    /// Refuses a folder whose journal is to be believed: what is opened without one would lack what that holds.
    pub(crate) fn refuse_journal(&self, dir: &Path) -> Result<(), Failure> {
        let Some(Believe::Journal { generation, .. }) = self.believe() else { return Ok(()) };
        let what = format!("it names segment {generation} of a journal, which is not read here");
        Err(Failure::Catalog { dir: dir.to_owned(), what })
    }

    /// A catalog in the place of one that cannot be used; it is written with the first change.
    pub(crate) fn anew(env: &Env, dir: &Path, store: Option<StoreId>) -> Catalog {
        let random = || u128::from(env.random.next_u64()) << 64 | u128::from(env.random.next_u64());
        let store = store.unwrap_or_else(|| StoreId(random()));
        let (believe, files) = (Believe::Headers, BTreeMap::new());
        let contents = Contents { store, sequence: 0, believe, generations: 0, files };
        let inner = Mutex::new(Inner { contents, is_durable: false, exists: false });
        Catalog { env: env.clone(), dir: dir.to_owned(), found: None, durable: AtomicU64::new(0), inner }
    }

    /// Writes both copies again if one of them is damaged or missing.
    pub(crate) fn mend(&self) -> Result<(), Failure> {
        self.change(|_| {})
    }

    pub(crate) fn store(&self) -> StoreId {
        self.inner.lock().contents.store
    }

    /// Whose folder it is, which is on disk then.
    pub(crate) fn store_on_disk(&self) -> Result<StoreId, Failure> {
        let exists = { self.inner.lock().exists };
        if !exists {
            self.change(|_| {})?;
        }
        Ok(self.store())
    }

    /// Whether it was left by a clean stop; `None` if there was no catalog.
    pub(crate) fn was_closed(&self) -> Option<bool> {
        self.found.map(|believe| believe == Believe::Files)
    }

    /// The sequence of what was found or written last; 0 if there is no catalog.
    pub(crate) fn sequence(&self) -> u64 {
        self.inner.lock().contents.sequence
    }

    /// The sequence that no start can find behind any more, whichever copy it reads. Of what was found it is durable once
    /// the folder is synced.
    pub(crate) fn durable_sequence(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    /// What may be believed; `None` if there is no catalog.
    pub(crate) fn believe(&self) -> Option<Believe> {
        let inner = self.inner.lock();
        inner.exists.then_some(inner.contents.believe)
    }

    pub(crate) fn files(&self) -> BTreeMap<VbId, Listed> {
        self.inner.lock().contents.files.clone()
    }

    /// No segment up to this generation is of a journal that is to come.
    pub(crate) fn generations(&self) -> u64 {
        self.inner.lock().contents.generations
    }

    /// Segments up to this generation are void, whatever is believed; `None` if nothing says which are.
    pub(crate) fn void_generations(&self) -> Option<u64> {
        let inner = self.inner.lock();
        let void = inner.contents.generations;
        let is_known = match inner.contents.believe {
            Believe::Files | Believe::Headers => true,
            Believe::Journal { generation, .. } => void < generation,
        };
        (inner.exists && is_known && !planted::is(Bug::VoidSegmentBelieved)).then_some(void)
    }

    /// Changes what the catalog says, durably. Writes nothing if that is what it says already.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Contents)) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        let mut new = inner.contents.clone();
        change(&mut new);
        if inner.is_durable && new == inner.contents {
            return Ok(());
        }
        inner.is_durable = false;
        // counted even if the write fails: no two catalogs have the same sequence
        inner.contents.sequence += 1;
        new.sequence = inner.contents.sequence;
        self.write(&new)?;
        self.durable.store(new.sequence, Ordering::Relaxed);
        *inner = Inner { contents: new, is_durable: true, exists: true };
        Ok(())
    }

    fn write(&self, contents: &Contents) -> Result<(), Failure> {
        let disk = &*self.env.disk;
        let text = contents.to_text();
        for name in NAMES {
            let unfinished = self.dir.join(format!("{name}{UNFINISHED}"));
            let write = || {
                let file = disk.open(&unfinished, OpenMode::Create)?;
                file.set_len(0)?;
                file.write_at(text.as_bytes(), 0)?;
                file.sync_data()?;
                disk.rename(&unfinished, &self.dir.join(name))
            };
            write().map_err(|source| Failure::Disk {
                operation: "write",
                path: unfinished.clone(),
                source,
            })?;
        }
        let synced = disk.sync_dir(&self.dir);
        synced.map_err(|source| Failure::Disk { operation: "sync folder", path: self.dir.clone(), source })
    }

    /// From now on the files are written to without a journal.
    pub(crate) fn believe_headers(&self) -> Result<(), Failure> {
        {
            let inner = self.inner.lock();
            if inner.is_durable && inner.contents.believe == Believe::Headers {
                return Ok(());
            }
        }
        self.change(|contents| contents.believe = Believe::Headers)
    }

    /// From now on a segment of the journal has to be there, and tells of the files.
    pub(crate) fn believe_journal(&self, generation: u64, salt: u64) -> Result<(), Failure> {
        self.change(|contents| {
            contents.believe = Believe::Journal { generation, salt };
            contents.files.clear();
        })
    }

    /// From now on each file is believed at the header that is listed; `generations` of the journal are void.
    pub(crate) fn believe_files(
        &self,
        files: BTreeMap<VbId, Listed>,
        generations: u64,
    ) -> Result<(), Failure> {
        self.change(|contents| {
            contents.believe = Believe::Files;
            contents.generations = contents.generations.max(generations);
            contents.files = files;
        })
    }

    /// Nothing is promised of a vBucket any more: its file is about to be removed.
    pub(crate) fn forget(&self, vb: VbId) -> Result<(), Failure> {
        self.change(|contents| {
            contents.files.remove(&vb);
        })
    }
}

#[cfg(test)]
mod tests;
