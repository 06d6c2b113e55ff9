//! Everything that changed a simulated disk, in order, so that the disk can be rebuilt as of every moment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::crash::Survival;
use super::disk::SimDisk;
use super::inode::Inode;
use super::names::{InodeId, NameChange, Names};
use super::random::SplitMix64;

/// One change of a disk. All of its bytes are shared, never copied.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Names changed; files that appear in it for the first time are new and empty.
    Names(NameChange),
    Write {
        file: InodeId,
        buf: Arc<[u8]>,
        offset: u64,
    },
    SetLen {
        file: InodeId,
        len: u64,
    },
    Sync {
        file: InodeId,
    },
    FailedSync {
        file: InodeId,
    },
    SyncDir {
        folder: PathBuf,
    },
}

/// Everything on a disk, durable or not.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) names: Names,
    inodes: BTreeMap<InodeId, Inode>,
    next_inode: InodeId,
}

impl State {
    pub(super) fn inode(&self, id: InodeId) -> &Inode {
        self.inodes.get(&id).expect("a file lives as long as its disk")
    }

    fn inode_mut(&mut self, id: InodeId) -> &mut Inode {
        self.inodes.get_mut(&id).expect("a file lives as long as its disk")
    }

    /// Number for the next new file.
    pub(super) fn next_inode(&self) -> InodeId {
        self.next_inode
    }

    /// The only way a disk changes, live or replayed.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Names(change) => {
                self.names.change(change.clone());
                for (_, node) in change {
                    if let Some(super::names::Node::File(id)) = node {
                        self.inodes.entry(*id).or_default();
                        self.next_inode = self.next_inode.max(id + 1);
                    }
                }
            }
            Event::Write { file, buf, offset } => self.inode_mut(*file).write_at(buf, *offset),
            Event::SetLen { file, len } => self.inode_mut(*file).set_len(*len),
            Event::Sync { file } => self.inode_mut(*file).sync(),
            Event::FailedSync { file } => self.inode_mut(*file).fail_sync(),
            Event::SyncDir { folder } => self.names.sync(folder),
        }
    }

    /// What is there after the power went, all of it durable.
    pub(super) fn after_power_loss(&self, survival: Survival) -> State {
        self.after_power_loss_marked(survival).0
    }

    /// The same, and a number that tells states apart which differ in what is durable now.
    fn after_power_loss_marked(&self, survival: Survival) -> (State, u64) {
        let mut rng = SplitMix64::new(survival.seed());
        let names = self.names.after_power_loss(survival, &mut rng);
        let mut mark = names.mark();
        let mut inodes = BTreeMap::new();
        for (_, id) in names.files() {
            let mut own = rng.fork();
            let mut content = || {
                let content = self.inode(id).after_power_loss(survival, &mut own);
                mark = mark.wrapping_add(self.inode(id).mark_of(&content).wrapping_mul(2 * id + 1));
                Inode::durable(content)
            };
            inodes.entry(id).or_insert_with(&mut content);
        }
        (State { names, inodes, next_inode: self.next_inode }, mark)
    }

    /// Whether a power loss now could leave more than one state.
    fn is_unsynced(&self) -> bool {
        self.names.is_unsynced() || self.inodes.values().any(Inode::is_unsynced)
    }
}

/// All changes of a disk since the recording began.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(super) base: State,
    pub(super) events: Vec<Event>,
}

impl Recording {
    /// How many changes (writes, syncs, names) were recorded.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Goes through the changes again from the start.
    pub fn replay(&self) -> Replay<'_> {
        Replay { events: &self.events, done: 0, state: self.base.clone() }
    }
}

/// A disk on its way through a [`Recording`].
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    events: &'a [Event],
    done: usize,
    state: State,
}

impl Replay<'_> {
    /// How many changes were done.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Does the next change; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.get(self.done) else { return false };
        self.state.apply(event);
        self.done += 1;
        true
    }

    /// The disk as a restart finds it if only the process dies now: what was unsynced is there, and still unsynced.
    pub fn killed(&self) -> SimDisk {
        SimDisk::from_state(self.state.clone())
    }

    /// The disk as a restart finds it if the power goes now.
    pub fn image(&self, survival: Survival) -> SimDisk {
        self.image_marked(survival).0
    }

    /// The same, and a number for what is on it: until the next sync, images with the same number are the same.
    pub fn image_marked(&self, survival: Survival) -> (SimDisk, u64) {
        let (state, mark) = self.state.after_power_loss_marked(survival);
        (SimDisk::from_state(state), mark)
    }

    /// Whether the power loss now could leave more than one state.
    pub fn is_unsynced(&self) -> bool {
        self.state.is_unsynced()
    }

    /// Whether the next change makes something durable, or fails to.
    pub fn next_is_sync(&self) -> bool {
        let next = self.events.get(self.done);
        matches!(next, Some(Event::Sync { .. } | Event::FailedSync { .. } | Event::SyncDir { .. }))
    }
}
