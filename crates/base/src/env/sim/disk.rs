//! A file system in memory that loses, tears and reorders what was not synced, as a real one does with its power.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::crash::Survival;
use super::fault::{Call, Effect, Fault, FaultPlan, On, off};
use super::names::{InodeId, NameChange, Node, normal};
use super::trace::{Event, Recording, State};
use crate::env::{Disk, File, OpenMode, Room};

/// A simulated disk. Clones are the same disk.
///
/// Written bytes survive a power loss only if they were synced, names only if their folder was.
#[derive(Clone, Debug, Default)]
pub struct SimDisk(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    state: State,
    plan: FaultPlan,
    recording: Option<Recording>,
    changes: u64,
    /// What it says of its room.
    free_bytes: Option<u64>,
}

impl Inner {
    fn apply(&mut self, event: Event) {
        self.state.apply(&event);
        self.changes += 1;
        if let Some(recording) = &mut self.recording {
            recording.events.push(event);
        }
    }

    /// Counts a call; fails it if it should fail. A change under which the power goes is done first, unsynced.
    fn change(&mut self, call: Call, event: Option<Event>) -> io::Result<()> {
        let effect = self.plan.begin(call)?;
        match effect {
            None => {
                if let Some(event) = event {
                    self.apply(event);
                }
                Ok(())
            }
            Some(Effect::PowerOff) => {
                let makes_durable = matches!(event, Some(Event::Sync { .. } | Event::SyncDir { .. }));
                if let Some(event) = event.filter(|_| !makes_durable) {
                    self.apply(event);
                }
                self.plan.power_off();
                Err(off())
            }
            Some(Effect::Errno(errno)) => {
                self.fail(event);
                Err(io::Error::from_raw_os_error(errno))
            }
            Some(Effect::Short { bytes, errno }) => {
                match event {
                    Some(Event::Write { file, buf, offset }) => {
                        let buf = buf[..bytes.min(buf.len())].into();
                        self.apply(Event::Write { file, buf, offset });
                    }
                    other => self.fail(other),
                }
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    fn fail(&mut self, event: Option<Event>) {
        if let Some(Event::Sync { file }) = event {
            self.apply(Event::FailedSync { file });
        }
    }

    fn read(&mut self, call: Call) -> io::Result<()> {
        self.change(call, None)
    }

    fn require_folder_of(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(folder) if self.state.names.is_folder(folder) => Ok(()),
            _ => Err(self.missing(path)),
        }
    }

    /// Why there is nothing at a path: it leads through a file, or is just not there.
    fn missing(&self, path: &Path) -> io::Error {
        let is_file = |folder| matches!(self.state.names.get(folder), Some(Node::File(_)));
        let kind = if path.ancestors().skip(1).any(is_file) {
            io::ErrorKind::NotADirectory
        } else {
            io::ErrorKind::NotFound
        };
        kind.into()
    }

    fn file_at(&self, path: &Path) -> io::Result<InodeId> {
        match self.state.names.get(path) {
            Some(Node::File(id)) => Ok(id),
            Some(Node::Folder) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(self.missing(path)),
        }
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    pub(super) fn from_state(state: State) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(Inner { state, ..Inner::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Plans a fault.
    pub fn plan(&self, fault: Fault) {
        self.lock().plan.add(fault);
    }

    /// Forgets all planned faults.
    pub fn heal(&self) {
        self.lock().plan.clear();
    }

    /// Sets the free bytes that it reports from now on, whatever is written. It reports none at first.
    pub fn set_free(&self, bytes: u64) {
        self.lock().free_bytes = Some(bytes);
    }

    /// How many calls there were.
    pub fn calls(&self, on: On) -> u64 {
        self.lock().plan.calls(on)
    }

    /// How many changes (writes, syncs, names) there were: a position in a [`Recording`] begun on the fresh disk.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Whether a planned fault has struck.
    pub fn was_struck(&self) -> bool {
        self.lock().plan.was_struck()
    }

    /// Whether the power is off, by [`Effect::PowerOff`] or [`SimDisk::crash`].
    pub fn is_off(&self) -> bool {
        self.lock().plan.is_off()
    }

    /// From now on records every change; forgets what was recorded before.
    pub fn record(&self) {
        let mut inner = self.lock();
        inner.changes = 0;
        inner.recording = Some(Recording { base: inner.state.clone(), events: Vec::new() });
    }

    /// What was recorded; nothing if [`SimDisk::record`] was not called.
    pub fn recording(&self) -> Option<Recording> {
        self.lock().recording.clone()
    }

    /// The disk as a restart would find it if the power went now. This one goes on.
    pub fn image(&self, survival: Survival) -> SimDisk {
        SimDisk::from_state(self.lock().state.after_power_loss(survival))
    }

    /// The power goes: this disk and all its files are dead, the answer is the disk after the restart.
    pub fn crash(&self, seed: u64) -> SimDisk {
        let after = self.image(Survival::Seeded(seed));
        self.lock().plan.power_off();
        after
    }

    /// Turns bits of a stored byte over, as a rotting disk does; false if the file has no such byte.
    pub fn rot(&self, path: &Path, offset: u64, mask: u8) -> io::Result<bool> {
        let mut inner = self.lock();
        let file = inner.file_at(&checked(path)?)?;
        let mut byte = [0];
        if inner.state.inode(file).current().read_at(&mut byte, offset) == 0 {
            return Ok(false);
        }
        inner.apply(Event::Write { file, buf: Arc::new([byte[0] ^ mask]), offset });
        inner.apply(Event::Sync { file });
        Ok(true)
    }

    /// Every file with its content, by path.
    pub fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let inner = self.lock();
        let read = |(path, id): (&PathBuf, InodeId)| {
            let content = inner.state.inode(id).current();
            let mut bytes = vec![0; content.len() as usize];
            content.read_at(&mut bytes, 0);
            (path.clone(), bytes)
        };
        inner.state.names.files().map(read).collect()
    }

    fn change_names(&self, call: Call, change: NameChange) -> io::Result<()> {
        self.lock().change(call, Some(Event::Names(change)))
    }
}

fn checked(path: &Path) -> io::Result<PathBuf> {
    normal(path).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Disk for SimDisk {
    fn room(&self, _: &Path) -> Option<Room> {
        let free_bytes = self.lock().free_bytes?;
        Some(Room { total_bytes: free_bytes, free_bytes, used_bytes: 0 })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let path = checked(path)?;
        let mut inner = self.lock();
        let found = inner.state.names.get(&path);
        let id = match (found, mode) {
            (Some(Node::Folder), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Some(Node::File(_)), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(Node::File(id)), _) => {
                inner.change(Call::Open, None)?;
                id
            }
            (None, OpenMode::Create | OpenMode::CreateNew) => {
                inner.require_folder_of(&path)?;
                let id = inner.state.next_inode();
                inner.change(Call::Open, Some(Event::Names(vec![(path, Some(Node::File(id)))])))?;
                id
            }
            (None, OpenMode::Read | OpenMode::ReadWrite) => {
                inner.change(Call::Open, None)?;
                return Err(inner.missing(&path));
            }
        };
        drop(inner);
        Ok(Arc::new(SimFile { disk: self.clone(), id, is_writable: mode != OpenMode::Read }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let path = checked(path)?;
        let mut missing: NameChange = Vec::new();
        {
            let inner = self.lock();
            for folder in path.ancestors() {
                match inner.state.names.get(folder) {
                    Some(Node::Folder) => break,
                    Some(Node::File(_)) if missing.is_empty() => {
                        return Err(io::ErrorKind::AlreadyExists.into());
                    }
                    Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                    None => missing.push((folder.to_path_buf(), Some(Node::Folder))),
                }
            }
        }
        if missing.is_empty() {
            return self.lock().read(Call::CreateDir);
        }
        missing.into_iter().rev().try_for_each(|folder| self.change_names(Call::CreateDir, vec![folder]))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let path = checked(path)?;
        let mut inner = self.lock();
        inner.read(Call::ReadDir)?;
        match inner.state.names.get(&path) {
            Some(Node::Folder) => Ok(inner.state.names.children(&path)),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(inner.missing(&path)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (checked(from)?, checked(to)?);
        let mut inner = self.lock();
        inner.require_folder_of(&from)?;
        inner.require_folder_of(&to)?;
        let names = &inner.state.names;
        let node = names.get(&from).ok_or_else(|| inner.missing(&from))?;
        if from == to {
            return inner.read(Call::Rename);
        }
        let refused = match (node, names.get(&to)) {
            _ if to.starts_with(&from) => Some(io::ErrorKind::InvalidInput),
            _ if from.starts_with(&to) => Some(io::ErrorKind::DirectoryNotEmpty),
            (Node::File(_), Some(Node::Folder)) => Some(io::ErrorKind::IsADirectory),
            (Node::Folder, Some(Node::File(_))) => Some(io::ErrorKind::NotADirectory),
            (Node::Folder, Some(Node::Folder)) if !names.children(&to).is_empty() => {
                Some(io::ErrorKind::DirectoryNotEmpty)
            }
            _ => None,
        };
        if let Some(kind) = refused {
            return Err(kind.into());
        }
        let change = names.moved(&from, &to);
        inner.change(Call::Rename, Some(Event::Names(change)))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let path = checked(path)?;
        let mut inner = self.lock();
        inner.file_at(&path)?;
        inner.change(Call::Remove, Some(Event::Names(vec![(path, None)])))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let path = checked(path)?;
        let mut inner = self.lock();
        match inner.state.names.get(&path) {
            Some(Node::Folder) if inner.state.names.children(&path).is_empty() => {
                inner.change(Call::Remove, Some(Event::Names(vec![(path, None)])))
            }
            Some(Node::Folder) => Err(io::ErrorKind::DirectoryNotEmpty.into()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(inner.missing(&path)),
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let folder = checked(path)?;
        let mut inner = self.lock();
        match inner.state.names.get(&folder) {
            Some(Node::Folder) => inner.change(Call::SyncDir, Some(Event::SyncDir { folder })),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(inner.missing(&folder)),
        }
    }
}

/// An open file; lives on without its name, dies with the power.
struct SimFile {
    disk: SimDisk,
    id: InodeId,
    is_writable: bool,
}

impl SimFile {
    fn require_writable(&self) -> io::Result<()> {
        if self.is_writable { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut inner = self.disk.lock();
        inner.read(Call::Read)?;
        Ok(inner.state.inode(self.id).current().read_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.require_writable()?;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let event = Event::Write { file: self.id, buf: buf.into(), offset };
        self.disk.lock().change(Call::Write, Some(event))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.lock().change(Call::Sync, Some(Event::Sync { file: self.id }))
    }

    fn len(&self) -> io::Result<u64> {
        let mut inner = self.disk.lock();
        inner.read(Call::Len)?;
        Ok(inner.state.inode(self.id).current().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.require_writable()?;
        if len > i64::MAX as u64 {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        self.disk.lock().change(Call::SetLen, Some(Event::SetLen { file: self.id, len }))
    }
}
