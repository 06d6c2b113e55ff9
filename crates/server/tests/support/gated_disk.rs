//! The machine's disk, which can be told to keep those waiting who open a file.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use base::env::{Disk, File, OpenMode, RealDisk};

/// The disk. Clones are the same one.
#[derive(Clone)]
pub struct GatedDisk {
    /// The name of the files.
    name: &'static str,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

#[derive(Default)]
struct Gate {
    is_shut: bool,
    waiting: usize,
}

impl GatedDisk {
    /// One that waits for nothing yet.
    pub fn of(name: &'static str) -> GatedDisk {
        GatedDisk { name, gate: Arc::default() }
    }

    /// From now on who opens such a file waits, or does not wait any more.
    pub fn set_shut(&self, is_shut: bool) {
        self.gate.0.lock().expect("sound").is_shut = is_shut;
        self.gate.1.notify_all();
    }

    /// Waits until this many wait.
    pub fn until_waiting(&self, count: usize) {
        let gate = self.gate.0.lock().expect("sound");
        drop(self.gate.1.wait_while(gate, |gate| gate.waiting < count).expect("sound"));
    }
}

impl Disk for GatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if path.file_name().is_some_and(|name| name == self.name) {
            let mut gate = self.gate.0.lock().expect("sound");
            gate.waiting += 1;
            self.gate.1.notify_all();
            gate = self.gate.1.wait_while(gate, |gate| gate.is_shut).expect("sound");
            gate.waiting -= 1;
        }
        RealDisk.open(path, mode)
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
