//! The names of a simulated disk: which lead to files now, and which would after a power loss.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::crash::Survival;
use super::random::{SplitMix64, mix};

/// Number of a file, whatever its name.
pub(super) type InodeId = u64;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Folder,
    File(InodeId),
}

/// One atomic change: names and what they stand for from now on.
pub(super) type NameChange = Vec<(PathBuf, Option<Node>)>;

/// All names of a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    live: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<NameChange>,
}

/// A path without `.`; nothing if it has `..`, which the simulated disk does not follow.
pub(super) fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => return None,
            other => out.push(other),
        }
    }
    Some(out)
}

fn is_root(path: &Path) -> bool {
    path.parent().is_none()
}

fn set(map: &mut BTreeMap<PathBuf, Node>, change: &NameChange) {
    for (path, node) in change {
        match node {
            Some(node) => map.insert(path.clone(), *node),
            None => map.remove(path),
        };
    }
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<Node> {
        if is_root(path) { Some(Node::Folder) } else { self.live.get(path).copied() }
    }

    pub(super) fn is_folder(&self, path: &Path) -> bool {
        self.get(path) == Some(Node::Folder)
    }

    pub(super) fn children(&self, folder: &Path) -> Vec<String> {
        let inside = |path: &&PathBuf| path.parent() == Some(folder);
        let name = |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned());
        self.live.keys().filter(inside).filter_map(name).collect()
    }

    /// The change after which a file, or a folder with all that is in it, has another name.
    pub(super) fn moved(&self, from: &Path, to: &Path) -> NameChange {
        let mut change = NameChange::new();
        for (path, node) in &self.live {
            let Ok(inside) = path.strip_prefix(from) else { continue };
            // Joined with an empty path, a name of a file would end with a separator.
            let new = if path == from { to.to_path_buf() } else { to.join(inside) };
            change.extend([(path.clone(), None), (new, Some(*node))]);
        }
        change
    }

    pub(super) fn change(&mut self, change: NameChange) {
        set(&mut self.live, &change);
        self.pending.push(change);
    }

    /// Makes the names in `folder` durable, with every earlier change of the same names:
    /// a file moved in from elsewhere must also have left there.
    pub(super) fn sync(&mut self, folder: &Path) {
        let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
        let mut due = Vec::new();
        let mut rest = Vec::new();
        for change in std::mem::take(&mut self.pending).into_iter().rev() {
            let is_due = change.iter().any(|(path, _)| path.parent() == Some(folder) || paths.contains(path));
            if is_due {
                paths.extend(change.iter().map(|(path, _)| path.clone()));
                due.push(change);
            } else {
                rest.push(change);
            }
        }
        due.iter().rev().for_each(|change| set(&mut self.durable, change));
        rest.reverse();
        self.pending = rest;
    }

    /// The names after the power went: the durable ones, and those unsynced changes that happened to be written.
    /// Changes of one name keep their order, as they do in the journal of a file system.
    pub(super) fn after_power_loss(&self, survival: Survival, rng: &mut SplitMix64) -> Names {
        let mut names = self.durable.clone();
        let kept_of_8 = match survival {
            Survival::Synced => 0,
            Survival::Everything => 8,
            Survival::Seeded(_) => [0, 1, 4, 7, 8][rng.below(5) as usize],
        };
        let mut lost: BTreeSet<&PathBuf> = BTreeSet::new();
        for change in &self.pending {
            let paths = change.iter().map(|(path, _)| path);
            if rng.chance(kept_of_8, 8) && !paths.clone().any(|path| lost.contains(path)) {
                set(&mut names, change);
            } else {
                lost.extend(paths);
            }
        }
        let names = without_orphans(names);
        Names { live: names.clone(), durable: names, pending: Vec::new() }
    }

    /// Whether any name waits for a sync of its folder.
    pub(super) fn is_unsynced(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A number for all names and what they stand for.
    pub(super) fn mark(&self) -> u64 {
        let mut mark = 0;
        for (path, node) in &self.live {
            let start = match node {
                Node::Folder => u64::MAX,
                Node::File(id) => *id,
            };
            let bytes = path.as_os_str().as_encoded_bytes();
            mark = bytes.iter().fold(mix(mark ^ start), |sum, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        }
        mark
    }

    /// Every file that a name leads to.
    pub(super) fn files(&self) -> impl Iterator<Item = (&PathBuf, InodeId)> {
        self.live.iter().filter_map(|(path, node)| match node {
            Node::File(id) => Some((path, *id)),
            Node::Folder => None,
        })
    }
}

/// A name in a folder that did not survive is gone with it. Parents sort before what is in them.
fn without_orphans(names: BTreeMap<PathBuf, Node>) -> BTreeMap<PathBuf, Node> {
    let mut out: BTreeMap<PathBuf, Node> = BTreeMap::new();
    for (path, node) in names {
        let parent = path.parent().expect("roots are not named");
        if is_root(parent) || out.get(parent) == Some(&Node::Folder) {
            out.insert(path, node);
        }
    }
    out
}
