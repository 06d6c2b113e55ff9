//! A simulated disk whose calls of one kind fail for a while, or answer with wrong bytes, and count how often they did.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::env::sim::{Call, Effect, Fault, On, SimDisk};
use base::env::{Disk, File, OpenMode};
use parking_lot::Mutex;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// The device fails.
    Eio,
    /// There is no room.
    Enospc,
    /// Some bytes are written before there is no room.
    Short,
    /// A read succeeds, with one bit turned over.
    WrongBytes,
}

impl Harm {
    pub const ALL: [Harm; 4] = [Harm::Eio, Harm::Enospc, Harm::Short, Harm::WrongBytes];

    /// Whether a call of this kind can go wrong in this way.
    pub fn applies_to(self, call: Call) -> bool {
        match self {
            Harm::Eio => true,
            Harm::Enospc => call.is_change() && !matches!(call, Call::Remove),
            Harm::Short => call == Call::Write,
            Harm::WrongBytes => call == Call::Read,
        }
    }

    fn effect(self) -> Effect {
        match self {
            Harm::Eio | Harm::WrongBytes => Effect::IO_ERROR,
            Harm::Enospc => Effect::DISK_FULL,
            Harm::Short => Effect::Short { bytes: 100, errno: libc_enospc() },
        }
    }
}

fn libc_enospc() -> i32 {
    let Effect::Errno(errno) = Effect::DISK_FULL else { unreachable!("a full disk is an error number") };
    errno
}

/// Calls of one kind that go wrong: from the `nth` on, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Illness {
    pub call: Call,
    pub nth: u64,
    pub lasts: u64,
    pub harm: Harm,
    /// Only calls on files whose name begins like this.
    pub only: Option<&'static str>,
}

#[derive(Default)]
struct State {
    illness: Option<Illness>,
    seen: u64,
    struck: u64,
    /// Calls of each kind, on the files that matter.
    calls: [u64; Call::ALL.len()],
    only: Option<&'static str>,
}

/// The disk; clones are the same one.
#[derive(Clone)]
pub struct IllDisk {
    disk: SimDisk,
    state: Arc<Mutex<State>>,
}

/// What a call that goes wrong does.
enum Fate {
    Well,
    Fails,
    ReadsWrong,
}

impl IllDisk {
    pub fn new(disk: &SimDisk) -> IllDisk {
        IllDisk { disk: disk.clone(), state: Arc::default() }
    }

    /// From now on calls are counted from 0, those on files whose name begins with `only`.
    pub fn count(&self, only: Option<&'static str>) {
        *self.state.lock() = State { only, ..State::default() };
    }

    /// Calls since then.
    pub fn calls(&self, call: Call) -> u64 {
        self.state.lock().calls[call as usize]
    }

    pub fn fall_ill(&self, illness: Illness) {
        *self.state.lock() = State { illness: Some(illness), only: illness.only, ..State::default() };
    }

    /// The disk works again. Says how many calls went wrong.
    pub fn heal(&self) -> u64 {
        let mut state = self.state.lock();
        state.illness = None;
        state.struck
    }

    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// Counts a call, and decides its fate. If it fails, the simulated disk makes it fail, as such a failure is.
    fn begin(&self, call: Call, path: &Path) -> Fate {
        let mut state = self.state.lock();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if state.only.is_some_and(|only| !name.starts_with(only)) {
            return Fate::Well;
        }
        state.calls[call as usize] += 1;
        let Some(illness) = state.illness.filter(|illness| illness.call == call) else { return Fate::Well };
        state.seen += 1;
        let is_struck = state.seen >= illness.nth && state.seen - illness.nth < illness.lasts;
        if !is_struck {
            return Fate::Well;
        }
        state.struck += 1;
        if illness.harm == Harm::WrongBytes {
            return Fate::ReadsWrong;
        }
        self.disk.plan(Fault::once(On::Kind(call), 1, illness.harm.effect()));
        Fate::Fails
    }

    /// Does a call with its fate. One that was to fail and was refused before it came to that has failed as well.
    fn call<T>(&self, call: Call, path: &Path, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let fate = self.begin(call, path);
        let done = work();
        if matches!(fate, Fate::Fails) {
            self.disk.heal();
        }
        done
    }
}

impl Disk for IllDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.call(Call::Open, path, || self.disk.open(path, mode))?;
        Ok(Arc::new(IllFile { file, path: path.into(), disk: self.clone() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(Call::CreateDir, path, || self.disk.create_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.call(Call::ReadDir, path, || self.disk.read_dir(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Call::Rename, to, || self.disk.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(Call::Remove, path, || self.disk.remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Call::Remove, path, || self.disk.remove_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call(Call::SyncDir, path, || self.disk.sync_dir(path))
    }
}

struct IllFile {
    file: Arc<dyn File>,
    path: Box<Path>,
    disk: IllDisk,
}

impl File for IllFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let fate = self.disk.begin(Call::Read, &self.path);
        let read = self.file.read_at(buf, offset);
        match fate {
            Fate::Well => {}
            Fate::Fails => self.disk.disk.heal(),
            Fate::ReadsWrong => {
                let len = *read.as_ref().unwrap_or(&0);
                if let Some(byte) = buf[..len].get_mut(len / 2) {
                    *byte ^= 0x10;
                }
            }
        }
        read
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.disk.call(Call::Write, &self.path, || self.file.write_at(buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.call(Call::Sync, &self.path, || self.file.sync_data())
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.call(Call::Len, &self.path, || self.file.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.call(Call::SetLen, &self.path, || self.file.set_len(len))
    }
}
