//! What the node has seen of its cluster, kept with its data.
//!
//! The file has two slots, which are written in place: a full disk does not keep a node from following its cluster.

use std::io;
use std::path::{Path, PathBuf};

use ::cluster::{Membership, Stale, State};
use base::TwoSlots;
use base::encryption::is_unknown_key;
use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::node_files;

const FILE: &str = "cluster-membership";
/// Written by versions that had no `cluster-membership`, too.
const BUCKETS: &str = "cluster-buckets.json";
const NODE_UUID: &str = "node-uuid";
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Slot {
    format: u32,
    /// Rises with every write.
    write: u64,
    /// Whose it is, in the folder of a bucket; empty in the folder of the node's data.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    node: String,
    #[serde(flatten)]
    seen: Membership,
}

impl Slot {
    /// `None` if this version does not understand it.
    fn parse(json: &str) -> Option<Slot> {
        serde_json::from_str(json).ok().filter(|slot: &Slot| slot.format == FORMAT)
    }
}

/// What is wrong with the file, if there is one. Changes nothing.
pub fn fault(disk: &dyn Disk, folder: &Path) -> Option<(PathBuf, String)> {
    fault_of(disk, folder, FILE)
}

/// The same of a file of this form in the folder of a bucket.
pub(super) fn fault_of(disk: &dyn Disk, folder: &Path, name: &'static str) -> Option<(PathBuf, String)> {
    let file = TwoSlots::new(folder, name);
    file.fault(disk, Slot::parse).map(|what| (file.path(), what))
}

/// What the node has seen. What is in memory is what is in the file.
pub struct Seen {
    folder: PathBuf,
    file: &'static str,
    /// Whose it is, in the folder of a bucket.
    node: String,
    writes: u64,
    /// `None` before the node has seen any state.
    seen: Option<Membership>,
}

impl Seen {
    /// Reads it from the folder of the node's data.
    pub fn read(env: &Env, folder: PathBuf) -> io::Result<Seen> {
        let none = Seen::nothing(folder, FILE, "");
        none.read_again(env)?.ok_or_else(|| {
            io::Error::other(format!(
                "{FILE} is damaged: without it this node could follow an older state of its cluster; start it with \
                 another --data, or leave the cluster with --leave-cluster"
            ))
        })
    }

    /// One that says nothing yet: the next write makes the whole file.
    pub(super) fn nothing(folder: PathBuf, file: &'static str, node: &str) -> Seen {
        Seen { folder, file, node: node.to_owned(), writes: 0, seen: None }
    }

    /// What the file says; `None` if it is damaged. A file of another node says nothing.
    pub(super) fn read_again(self, env: &Env) -> io::Result<Option<Seen>> {
        let file = TwoSlots::new(&self.folder, self.file);
        let Some(slots) = file.read(&*env.disk, Slot::parse)? else { return Ok(Some(self)) };
        let newest = slots.whole.into_iter().max_by_key(|slot| slot.write);
        let Some(Slot { write, node, seen, .. }) = newest else { return Ok(None) };
        if node != self.node {
            return Ok(Some(self));
        }
        if let Some(what) = slots.fault {
            let (path, revision) = (file.path(), seen.revision);
            tracing::warn!(
                event = "state_maybe_unseen", path = %path.display(), what, revision,
                "the node may have seen one state more; a power failure within a write leaves this, too"
            );
        }
        Ok(Some(Seen { writes: write, seen: Some(seen), ..self }))
    }

    /// What was seen; `None` before the node has seen any state.
    pub fn get(&self) -> Option<&Membership> {
        self.seen.as_ref()
    }

    /// Whether a state may be followed.
    pub(super) fn check(&self, state: &State) -> Result<(), Stale> {
        self.seen.as_ref().map_or(Ok(()), |seen| seen.check(state))
    }

    /// Notes durably that a state was seen, which may be followed.
    pub fn note(&mut self, env: &Env, state: &State) -> io::Result<()> {
        match self.seen.clone().unwrap_or_default().after(state) {
            Some(next) => self.put(env, next),
            None => Ok(()),
        }
    }

    /// Notes something else, whatever was noted before.
    pub(super) fn put(&mut self, env: &Env, next: Membership) -> io::Result<()> {
        let slot = Slot { format: FORMAT, write: self.writes + 1, node: self.node.clone(), seen: next };
        let file = TwoSlots::new(&self.folder, self.file);
        file.write(&*env.disk, &serde_json::to_string(&slot)?, slot.write, self.seen.is_none())?;
        (self.writes, self.seen) = (slot.write, Some(slot.seen));
        Ok(())
    }
}

fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.open(path, OpenMode::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // It is there: whether its copy can be read is for those to find out who read it.
        Err(error) if is_unknown_key(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The other file of a small file (record 57).
fn copy_of(name: &str) -> String {
    format!("{name}.copy")
}

/// Whether a node with this folder of data may be started as one that decides itself what it serves: not if it belongs to
/// a cluster, whose other nodes may serve what it has.
pub fn may_start_alone(env: &Env, folder: &Path) -> io::Result<bool> {
    Ok(!belongs_to_cluster(&*env.disk, folder)? || planted::is(Bug::MemberStartsAlone))
}

/// Whether a folder of data belongs to a node of a cluster.
pub fn belongs_to_cluster(disk: &dyn Disk, folder: &Path) -> io::Result<bool> {
    let twice = [BUCKETS, node_files::FOUNDING].into_iter().flat_map(|name| [name.to_owned(), copy_of(name)]);
    let names: Vec<String> = twice.chain([FILE.to_owned()]).collect();
    names.iter().try_fold(false, |any, name| Ok(any || exists(disk, &folder.join(name))?))
}

/// Makes of a folder of data that of a node that never was in a cluster, with the copies that it has. What was noted is
/// kept beside, under other names. The node gets another identity, so that its old cluster does not take it for the node
/// that left.
pub fn leave_cluster(env: &Env, folder: &Path) -> io::Result<()> {
    // Of a small file the copy, too: what is left of it would be read.
    let twice = [NODE_UUID, BUCKETS, node_files::CLUSTER_USERS, node_files::FOUNDING];
    let twice = twice.into_iter().flat_map(|name| [name.to_owned(), copy_of(name)]);
    for name in twice.chain([FILE.to_owned()]) {
        let path = folder.join(&name);
        if exists(&*env.disk, &path)? {
            env.disk.rename(&path, &folder.join(format!("{name}.left")))?;
            env.disk.sync_dir(folder)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ::cluster::{Address, command};
    use base::SmallFile;

    use super::*;

    fn folder() -> (Env, PathBuf) {
        let (env, _) = Env::sim(1);
        let folder = PathBuf::from("/data");
        env.disk.create_dir_all(&folder).expect("a folder");
        (env, folder)
    }

    fn state(revisions: u64) -> State {
        let address = Address::new("h".to_owned(), 1, 2);
        let found = command::found("u", &address, 7);
        (0..revisions).fold(found, |state, _| state.next())
    }

    #[test]
    fn what_was_seen_is_read_again_and_outlives_a_damaged_slot() {
        let (env, folder) = folder();
        let mut seen = Seen::read(&env, folder.clone()).expect("there is none");
        assert_eq!((seen.get(), seen.check(&state(0))), (None, Ok(())));
        assert!(!belongs_to_cluster(&*env.disk, &folder).expect("it is read"));
        for revisions in 0..5 {
            seen.note(&env, &state(revisions)).expect("written");
            let again = Seen::read(&env, folder.clone()).expect("sound");
            assert_eq!(again.get(), Some(&Membership::of(&state(revisions))));
            assert!(again.check(&state(revisions)).is_ok());
            assert!(revisions == 0 || again.check(&state(revisions - 1)).is_err());
        }
        assert!(belongs_to_cluster(&*env.disk, &folder).expect("it is read"));
        let file = env.disk.open(&folder.join(FILE), OpenMode::Create).expect("a file");
        for (slot, left) in [(0, Some(())), (1, None)] {
            file.write_at(b"x", slot * 512 + 20).expect("written");
            assert_eq!(Seen::read(&env, folder.clone()).ok().map(drop), left, "slot {slot}");
        }
    }

    #[test]
    fn a_node_that_left_is_another_one() {
        let (env, folder) = folder();
        let mut seen = Seen::read(&env, folder.clone()).expect("there is none");
        seen.note(&env, &state(1)).expect("written");
        for name in [NODE_UUID, BUCKETS] {
            SmallFile::new(&folder, name).write(&*env.disk, b"what is noted").expect("written");
        }
        leave_cluster(&env, &folder).expect("it leaves");
        leave_cluster(&env, &folder).expect("again");
        assert!(!belongs_to_cluster(&*env.disk, &folder).expect("it is read"));
        let look = |name| SmallFile::new(&folder, name).look(&*env.disk, |_, _| Ok(())).expect("it is read");
        assert!(look(NODE_UUID).is_none() && look(BUCKETS).is_none(), "no copy is left");
        assert_eq!(Seen::read(&env, folder).expect("there is none").get(), None);
    }
}
