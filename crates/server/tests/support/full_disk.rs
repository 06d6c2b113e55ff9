//! The machine's disk, which can be told that it is full, and which waits where a test has it wait.
#![allow(dead_code, reason = "each test uses a part")]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use base::env::{Disk, File, OpenMode, RealDisk};

/// The disk. Clones are the same one.
#[derive(Clone, Default)]
pub struct FullDisk {
    /// Whether it is full now.
    pub is_full: Arc<AtomicBool>,
    /// The name of the files that have no room then; `None` for all of them.
    pub only: Option<&'static str>,
    /// Called before each file is opened.
    pub on_open: Option<OpenHook>,
    /// Called before each sync of a file.
    pub on_sync: Option<Hook>,
}

/// What a test has done in the thread that syncs.
pub type Hook = Arc<dyn Fn() + Send + Sync>;
/// What a test has done in the thread that opens a file.
pub type OpenHook = Arc<dyn Fn(&Path) + Send + Sync>;

impl FullDisk {
    /// One that never is full, and opens files of this name when the gate is open.
    pub fn gated(name: &'static str, gate: &Gate) -> FullDisk {
        let gate = gate.clone();
        let hook = move |path: &Path| {
            if path.file_name().is_some_and(|file| file == name) {
                gate.pass();
            }
        };
        FullDisk { on_open: Some(Arc::new(hook)), ..FullDisk::default() }
    }
}

/// Keeps threads waiting while it is shut; at first it is open. Clones are the same one.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
}

impl Gate {
    fn state(&self) -> std::sync::MutexGuard<'_, GateState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts it until what is returned is dropped, also if the test fails.
    pub fn shut(&self) -> Shut {
        self.state().is_shut = true;
        Shut(self.clone())
    }

    pub fn is_shut(&self) -> bool {
        self.state().is_shut
    }

    /// Waits while it is shut.
    pub fn pass(&self) {
        let mut state = self.state();
        state.waiting += 1;
        self.0.1.notify_all();
        state = self.0.1.wait_while(state, |state| state.is_shut).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
    }

    /// Waits until this many wait.
    pub fn until_waiting(&self, count: usize) {
        let state = self.state();
        let waited = self.0.1.wait_while(state, |state| state.waiting < count);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A gate that is shut.
pub struct Shut(Gate);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.state().is_shut = false;
        self.0.0.1.notify_all();
    }
}

struct FullFile {
    file: Arc<dyn File>,
    /// `None` if there is always room for the file.
    is_full: Option<Arc<AtomicBool>>,
    on_sync: Option<Hook>,
}

impl FullFile {
    fn room(&self) -> io::Result<()> {
        let is_full = self.is_full.as_ref().is_some_and(|is_full| is_full.load(Ordering::SeqCst));
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Disk for FullDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let has_limit = self.only.is_none_or(|only| path.file_name().is_some_and(|name| name == only));
        let is_full = has_limit.then(|| Arc::clone(&self.is_full));
        self.on_open.iter().for_each(|hook| hook(path));
        let (file, on_sync) = (RealDisk.open(path, mode)?, self.on_sync.clone());
        Ok(Arc::new(FullFile { file, is_full, on_sync }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }
}

impl File for FullFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.room()?;
        self.file.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.on_sync.iter().for_each(|hook| hook());
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }
}
