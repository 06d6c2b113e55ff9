//! What the node has seen of its cluster, kept with its data.
//!
//! The file has two slots of fixed size, which are written in turn, in place and synced: a full disk does not keep a
//! node from following its cluster, and a write that is cut off leaves the slot before.

use std::io;
use std::path::{Path, PathBuf};

use ::cluster::{Membership, Stale, State};
use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use super::{founding, seen_users};

const FILE: &str = "cluster-membership";
/// Written by versions that had no `cluster-membership`, too.
const BUCKETS: &str = "cluster-buckets.json";
const NODE_UUID: &str = "node-uuid";
const FORMAT: u32 = 1;
/// A slot: eight hexadecimal digits of a checksum, a space, JSON, spaces up to the last byte, which ends the line.
const SLOT: usize = 512;

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
    fn bytes(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_string(self)?;
        let mut line = format!("{:08x} {json}", crc32fast::hash(json.as_bytes())).into_bytes();
        if line.len() >= SLOT {
            return Err(io::Error::other("the cluster's identity is too long"));
        }
        line.resize(SLOT - 1, b' ');
        line.push(b'\n');
        Ok(line)
    }

    /// `None` if it is damaged.
    fn parse(bytes: &[u8]) -> Option<Slot> {
        let (sum, json) = std::str::from_utf8(bytes).ok()?.trim_end().split_once(' ')?;
        let is_whole = u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(json.as_bytes());
        serde_json::from_str(json).ok().filter(|slot: &Slot| is_whole && slot.format == FORMAT)
    }
}

/// What is wrong with the file, if there is one. Changes nothing.
pub fn fault(disk: &dyn Disk, folder: &Path) -> Option<(PathBuf, String)> {
    fault_of(disk, folder.join(FILE))
}

/// The same of a file of this form in the folder of a bucket.
pub(super) fn fault_of(disk: &dyn Disk, path: PathBuf) -> Option<(PathBuf, String)> {
    let file = match disk.open(&path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        file => file,
    };
    let mut bytes = vec![0; 2 * SLOT];
    let what = match file.and_then(|file| file.read_at(&mut bytes, 0)) {
        Err(error) => format!("it cannot be read: {error}"),
        Ok(read) => {
            let damaged = bytes[..read].chunks(SLOT).filter(|slot| Slot::parse(slot).is_none()).count();
            match (damaged, read) {
                (0, read) if read == bytes.len() => return None,
                (damaged, _) => format!("{damaged} of its slots are damaged, or it is cut off"),
            }
        }
    };
    Some((path, what))
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
        let path = self.folder.join(self.file);
        let file = match env.disk.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(self)),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; 2 * SLOT];
        let read = file.read_at(&mut bytes, 0)?;
        let newest = bytes[..read].chunks(SLOT).filter_map(Slot::parse).max_by_key(|slot| slot.write);
        let Some(Slot { write, node, seen, .. }) = newest else { return Ok(None) };
        if node != self.node {
            return Ok(Some(self));
        }
        if let Some((path, what)) = fault_of(&*env.disk, path) {
            let (path, revision) = (path.display(), seen.revision);
            tracing::warn!(%path, what, revision, "the node may have seen one state more; a power failure within a write leaves this, too");
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
        let bytes = slot.bytes()?;
        let path = self.folder.join(self.file);
        // Of an encrypted file both slots are one page, which a power failure within a write would take.
        let is_one_page = env.disk.beneath().is_some();
        if self.seen.is_none() || is_one_page {
            // Whole from the start: an empty file is damage.
            let new = self.folder.join(format!("{}.next", self.file));
            let file = env.disk.open(&new, OpenMode::Create)?;
            file.set_len(0)?;
            file.write_at(&[bytes.clone(), bytes].concat(), 0)?;
            file.sync_data()?;
            env.disk.rename(&new, &path)?;
            env.disk.sync_dir(&self.folder)?;
        } else {
            let file = env.disk.open(&path, OpenMode::Create)?;
            file.write_at(&bytes, if slot.write.is_multiple_of(2) { 0 } else { SLOT as u64 })?;
            file.sync_data()?;
        }
        (self.writes, self.seen) = (slot.write, Some(slot.seen));
        Ok(())
    }
}

fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.open(path, OpenMode::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
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
    let twice = [BUCKETS, founding::FILE].into_iter().flat_map(|name| [name.to_owned(), copy_of(name)]);
    let names: Vec<String> = twice.chain([FILE.to_owned()]).collect();
    names.iter().try_fold(false, |any, name| Ok(any || exists(disk, &folder.join(name))?))
}

/// Makes of a folder of data that of a node that never was in a cluster, with the copies that it has. What was noted is
/// kept beside, under other names. The node gets another identity, so that its old cluster does not take it for the node
/// that left.
pub fn leave_cluster(env: &Env, folder: &Path) -> io::Result<()> {
    // Of a small file the copy, too: what is left of it would be read.
    let twice = [NODE_UUID, BUCKETS, seen_users::FILE, founding::FILE];
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
            file.write_at(b"x", slot * SLOT as u64 + 20).expect("written");
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
