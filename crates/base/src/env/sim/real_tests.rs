//! The simulated disk answers what the machine's answers, call by call.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::SimDisk;
use crate::env::{Disk, File, OpenMode, RealDisk};

#[derive(Clone, Debug)]
enum Op {
    Open { name: usize, mode: OpenMode },
    Folder { name: usize },
    List { name: usize },
    Rename { from: usize, to: usize },
    Remove { name: usize },
    SyncDir { name: usize },
    Read { handle: usize, at: u64, len: usize },
    Write { handle: usize, at: u64, len: usize },
    Sync { handle: usize },
    SetLen { handle: usize, len: u64 },
    Len { handle: usize },
}

const NAMES: [&str; 9] = ["", "a", "b", "d", "d/a", "d/b", "d/e", "a/x", "d/e/f"];

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES.len();
    let handle = || 0_usize..6;
    let modes = [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Create, OpenMode::CreateNew];
    prop_oneof![
        4 => (name(), proptest::sample::select(modes.to_vec())).prop_map(|(name, mode)| Op::Open { name, mode }),
        1 => name().prop_map(|name| Op::Folder { name }),
        1 => name().prop_map(|name| Op::List { name }),
        2 => (name(), name()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => name().prop_map(|name| Op::Remove { name }),
        1 => name().prop_map(|name| Op::SyncDir { name }),
        3 => (handle(), 0_u64..9000, 0_usize..5000).prop_map(|(handle, at, len)| Op::Read { handle, at, len }),
        3 => (handle(), 0_u64..9000, 0_usize..5000).prop_map(|(handle, at, len)| Op::Write { handle, at, len }),
        1 => handle().prop_map(|handle| Op::Sync { handle }),
        1 => (handle(), 0_u64..9000).prop_map(|(handle, len)| Op::SetLen { handle, len }),
        1 => handle().prop_map(|handle| Op::Len { handle }),
    ]
}

/// What a call answered: comparable, and without the machine's own words.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    Names(Vec<String>),
    NoHandle,
    Failed,
    FailedAs(ErrorKind),
}

fn failed(e: &io::Error) -> Answer {
    match e.kind() {
        kind @ (ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::NotADirectory) => {
            Answer::FailedAs(kind)
        }
        _ => Answer::Failed,
    }
}

fn answer<T>(result: io::Result<T>, good: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|e| failed(&e), good)
}

struct Player<'a> {
    disk: &'a dyn Disk,
    root: &'a Path,
    handles: Vec<Arc<dyn File>>,
}

impl Player<'_> {
    fn play(&mut self, n: usize, op: &Op) -> Answer {
        let path = |name: usize| match NAMES[name] {
            "" => self.root.to_path_buf(),
            name => self.root.join(name),
        };
        match *op {
            Op::Open { name, mode } => match self.disk.open(&path(name), mode) {
                Ok(file) => {
                    self.handles.push(file);
                    Answer::Done
                }
                Err(e) => failed(&e),
            },
            Op::Folder { name } => answer(self.disk.create_dir_all(&path(name)), |()| Answer::Done),
            Op::List { name } => answer(self.disk.read_dir(&path(name)), |mut names| {
                names.sort();
                Answer::Names(names)
            }),
            Op::Rename { from, to } => answer(self.disk.rename(&path(from), &path(to)), |()| Answer::Done),
            Op::Remove { name } => answer(self.disk.remove_file(&path(name)), |()| Answer::Done),
            Op::SyncDir { name } => answer(self.disk.sync_dir(&path(name)), |()| Answer::Done),
            Op::Read { handle, at, len } => self.with(handle, |file| {
                let mut buf = vec![0; len];
                answer(file.read_at(&mut buf, at), |len| Answer::Bytes(buf[..len].to_vec()))
            }),
            Op::Write { handle, at, len } => {
                self.with(handle, |file| answer(file.write_at(&vec![n as u8; len], at), |()| Answer::Done))
            }
            Op::Sync { handle } => self.with(handle, |file| answer(file.sync_data(), |()| Answer::Done)),
            Op::SetLen { handle, len } => {
                self.with(handle, |file| answer(file.set_len(len), |()| Answer::Done))
            }
            Op::Len { handle } => self.with(handle, |file| answer(file.len(), Answer::Number)),
        }
    }

    fn with(&self, handle: usize, call: impl FnOnce(&dyn File) -> Answer) -> Answer {
        self.handles.get(handle).map_or(Answer::NoHandle, |file| call(&**file))
    }
}

proptest! {
    #[test]
    fn answers_as_the_machine_does(ops in proptest::collection::vec(op(), 1..60)) {
        let folder = tempfile::tempdir().expect("the machine has a disk");
        let sim_disk = SimDisk::new();
        sim_disk.create_dir_all(folder.path()).expect("fresh disk");
        let mut real = Player { disk: &RealDisk, root: folder.path(), handles: Vec::new() };
        let mut sim = Player { disk: &sim_disk, root: folder.path(), handles: Vec::new() };
        for (n, op) in ops.iter().enumerate() {
            let is_folder = |name: usize| sim_disk.read_dir(&folder.path().join(NAMES[name])).is_ok();
            // A folder opens for reading on the machine, but no byte comes out of it.
            if matches!(op, Op::Open { name, .. } if is_folder(*name)) {
                continue;
            }
            // A file can be synced as if it were a folder on the machine.
            if matches!(op, Op::SyncDir { name } if !is_folder(*name)) {
                continue;
            }
            prop_assert_eq!(real.play(n, op), sim.play(n, op), "{:?}", op);
        }
    }
}
