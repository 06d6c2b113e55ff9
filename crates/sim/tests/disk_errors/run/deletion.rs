//! A bucket that a cluster deletes, and its quarantine: disk errors while its folder goes there and while it is erased, then
//! another try, a kill or a power loss. At every moment all of its files are somewhere, until their time is over, and no
//! other bucket notices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(debug_assertions)]
use base::env::sim::SplitMix64;
use base::env::sim::{Call, SimDisk, Survival};
use base::env::{Disk, Env, SimHandles};
use engine::BucketKind;
use node::bucket_list::BucketList;
use node::config::BucketSpec;
use node::quarantine::Quarantine;

use super::ill::{Harm, IllDisk, Illness};
use super::trial::{Lasts, Much};
use super::world::{Base, DIR};

const DATA: &str = "/data";
const BUCKETS: &str = "/data/buckets";
const QUARANTINE: &str = "/data/quarantine";
const KEEP_S: u64 = 3_600;

/// What the disk fails during.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum During {
    Deletion,
    Erasure,
}

/// What follows when the disk is well again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoesOn,
    Kill,
    PowerLoss,
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What of the table was tried.
#[derive(Debug, Default)]
pub struct Tried {
    pub trials: u64,
    /// Trials in which no call failed.
    pub idle: u64,
    pub wrong: Vec<String>,
}

/// A node that has the buckets `b` and `other`, as far as deletions go.
struct Node {
    disk: SimDisk,
    ill: IllDisk,
    handles: SimHandles,
    list: BucketList,
    quarantine: Quarantine,
}

impl Node {
    fn start(disk: SimDisk, seed: u64) -> Result<Node, String> {
        let (ill, handles) = (IllDisk::new(&disk), SimHandles::new(seed).with_disk(disk.clone()));
        let env = Env { disk: Arc::new(ill.clone()), ..handles.env() };
        let list = BucketList::read(Path::new(DATA), &env).map_err(|error| error.to_string())?;
        let quarantine = Quarantine::new(Path::new(DATA), KEEP_S);
        Ok(Node { disk, ill, handles, list, quarantine })
    }

    fn env(&self) -> Env {
        Env { disk: Arc::new(self.ill.clone()), ..self.handles.env() }
    }

    /// The deletion, or what is left of it.
    fn delete(&mut self) -> Result<(), String> {
        let env = self.env();
        if self.list.has("b") {
            self.list.begin_removal("b", &env).map_err(|error| error.to_string())?;
        }
        self.finish()
    }

    /// What a start does of a deletion that was begun.
    fn finish(&mut self) -> Result<(), String> {
        let env = self.env();
        if self.list.removing().iter().any(|name| name == "b") {
            let removed = self.quarantine.remove_bucket(&env, Path::new(BUCKETS), "b");
            removed.map_err(|error| error.to_string())?;
            self.list.end_removal("b", &env).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn erase(&self) -> Result<(), String> {
        self.quarantine.erase_old(&self.env()).map_err(|error| error.to_string())
    }

    fn pass(&self, seconds: u64) {
        self.handles.clock.advance(Duration::from_secs(seconds));
    }

    /// Files below a folder, by their path in it.
    fn files(&self, folder: &str) -> Files {
        let inside =
            |(path, bytes): (PathBuf, Vec<u8>)| Some((path.strip_prefix(folder).ok()?.to_owned(), bytes));
        self.disk.contents().into_iter().filter_map(inside).collect()
    }

    /// Entries of the quarantine with their files.
    fn entries(&self) -> Vec<Files> {
        let names = self.disk.read_dir(Path::new(QUARANTINE)).unwrap_or_default();
        names.iter().map(|name| self.files(&format!("{QUARANTINE}/{name}"))).collect()
    }
}

/// The disk of a node with both buckets.
fn disk_of(base: &Base) -> SimDisk {
    let disk = base.disk();
    let env = SimHandles::new(1).with_disk(disk.clone()).env();
    disk.create_dir_all_synced(&Path::new(BUCKETS).join("other")).expect("the disk is well");
    let path = Path::new(BUCKETS).join("other/0.couch.1");
    let file = disk.open(&path, base::env::OpenMode::Create).expect("the disk is well");
    file.write_at(b"its documents", 0).expect("the disk is well");
    file.sync_data().expect("the disk is well");
    disk.sync_dir(&Path::new(BUCKETS).join("other")).expect("the disk is well");
    let mut list = BucketList::read(Path::new(DATA), &env).expect("there is none");
    for name in ["b", "other"] {
        let spec = BucketSpec::made(name, 100 << 20, BucketKind::Persistent, &[]);
        list.put(&spec.expect("valid"), &env).expect("the disk is well");
    }
    disk.image(Survival::Everything)
}

/// One trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    during: During,
    illness: Illness,
    then: Then,
}

impl Trial {
    fn beginning_at(self, nth: u64) -> Trial {
        Trial { illness: Illness { nth, ..self.illness }, ..self }
    }

    /// What the disk fails in.
    fn task(&self, node: &mut Node) -> Result<(), String> {
        match self.during {
            During::Deletion => node.delete(),
            During::Erasure => node.erase(),
        }
    }

    /// Brings a node to where its disk falls ill.
    fn prepare(&self, node: &mut Node) -> Result<(), String> {
        if self.during == During::Deletion {
            return Ok(());
        }
        node.delete()?;
        node.erase()?;
        node.handles.clock.set_unix_ns(node.env().clock.unix_ns() + 1_000 * 86_400 * 1_000_000_000);
        node.erase()?;
        if node.entries().len() != 1 {
            return Err("files are erased because the wall clock jumps ahead".to_owned());
        }
        node.pass(KEEP_S);
        Ok(())
    }

    /// Tries it; the answer is how many calls failed.
    fn run(&self, base: &SimDisk, seed: u64) -> Result<u64, String> {
        let mut node = Node::start(base.image(Survival::Everything), seed)?;
        let (whole, other) = (node.files(DIR), node.files("/data/buckets/other"));
        self.prepare(&mut node)?;
        node.ill.fall_ill(self.illness);
        let done = self.task(&mut node);
        let is_noted = !node.list.has("b");
        let struck = node.ill.heal();
        let survival = match self.then {
            Then::GoesOn => None,
            Then::Kill => Some(Survival::Everything),
            Then::PowerLoss => Some(Survival::Synced),
        };
        if let Some(survival) = survival {
            node = Node::start(node.disk.image(survival), seed ^ 1)?;
            if is_noted && node.list.has("b") {
                return Err("a bucket that was deleted is listed again".to_owned());
            }
        }
        if self.during == During::Deletion {
            let copies = node.entries().into_iter().chain([node.files(DIR)]);
            if copies.filter(|files| *files == whole).count() != 1 {
                return Err(format!("its files are not whole in one place after {done:?}"));
            }
            if done.is_ok() && (node.list.has("b") || !node.list.removing().is_empty()) {
                return Err("it was deleted, and is in the list".to_owned());
            }
            node.delete()?;
            if node.entries() != [whole] || node.disk.read_dir(Path::new(DIR)).is_ok() {
                return Err("it is deleted, and its files are not in quarantine".to_owned());
            }
        }
        node.erase()?;
        node.pass(KEEP_S);
        node.erase()?;
        if !node.entries().is_empty() {
            return Err("its files stay in quarantine".to_owned());
        }
        let is_listed = node.list.specs().iter().map(|spec| &*spec.name).eq(["other"]);
        if !is_listed || node.files("/data/buckets/other") != other {
            return Err("another bucket is not as it was".to_owned());
        }
        Ok(struck)
    }
}

/// All trials of a disk, each with how many calls there are to choose from.
fn all_of(base: &SimDisk) -> Vec<(Trial, u64)> {
    let mut all = Vec::new();
    for during in [During::Deletion, During::Erasure] {
        let mut node = Node::start(base.image(Survival::Everything), 1).expect("the disk is well");
        let illness = Illness { call: Call::Read, nth: 0, lasts: 0, harm: Harm::Eio, only: None };
        let trial = Trial { during, illness, then: Then::GoesOn };
        trial.prepare(&mut node).expect("the disk is well");
        node.ill.count(None);
        trial.task(&mut node).expect("the disk is well");
        for call in Call::ALL {
            let calls = node.ill.calls(call);
            // A read of wrong bytes is damage of the list, which is kept twice.
            let harms = [Harm::Eio, Harm::Enospc, Harm::Short].into_iter();
            for harm in harms.filter(|harm| calls > 0 && harm.applies_to(call)) {
                for (lasts, then) in Lasts::ALL
                    .into_iter()
                    .flat_map(|lasts| [Then::GoesOn, Then::Kill, Then::PowerLoss].map(|then| (lasts, then)))
                {
                    let illness = Illness { call, nth: 0, lasts: lasts.calls(), harm, only: None };
                    all.push((Trial { during, illness, then }, calls));
                }
            }
        }
    }
    all
}

/// The table: a disk with both buckets, and what is tried on it.
pub struct Deletions {
    disk: SimDisk,
    trials: Vec<(Trial, u64)>,
}

impl Deletions {
    pub fn of(base: &Base) -> Deletions {
        let disk = disk_of(base);
        Deletions { trials: all_of(&disk), disk }
    }

    pub fn try_all(&self, much: Much) -> Tried {
        let mut tried = Tried::default();
        for (seed, (trial, calls)) in (0..).zip(&self.trials) {
            for nth in much.choose(seed, *calls) {
                let trial = trial.beginning_at(nth);
                tried.trials += 1;
                match trial.run(&self.disk, seed) {
                    Ok(struck) => tried.idle += u64::from(struck == 0),
                    Err(what) => tried.wrong.push(format!("{trial:?}: {what}")),
                }
            }
        }
        tried
    }

    /// One trial that a seed chooses.
    #[cfg(debug_assertions)]
    pub fn try_one(&self, seed: u64) -> Result<(), String> {
        let mut rng = SplitMix64::new(seed);
        let (trial, calls) = &self.trials[rng.below(self.trials.len() as u64) as usize];
        let trial = trial.beginning_at(rng.between(1, *calls));
        trial.run(&self.disk, seed).map(drop).map_err(|what| format!("{trial:?}: {what}"))
    }
}
