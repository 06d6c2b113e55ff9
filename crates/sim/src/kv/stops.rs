//! Disk errors that come and go, then a stop, then a file that is not what it was, then a start: what is served is what
//! was promised, or is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::VbId;
use base::env::sim::{Call, Effect, Fault, On, SimDisk, SplitMix64};
use base::env::{Disk, OpenMode};
use kvstore::KvStore;

use super::model::Model;
use super::tally::{Tally, Trying};
use super::verify::{file_names, read_vbucket};
use super::workload::{End, Shape};
use super::{DIR, Subject, prepared};

/// Changes and reads before the disk errors, during them, and at most behind them.
const OPS_BEFORE: u64 = 14;
const OPS_DURING: u64 = 4;
const MOST_OPS_BEHIND: u64 = 6;
/// At most so many calls of a kind go well before one fails.
const MOST_CALLS: u64 = 12;
const CALLS: [Call; 8] = [
    Call::Open,
    Call::Read,
    Call::Write,
    Call::Sync,
    Call::SyncDir,
    Call::Rename,
    Call::Remove,
    Call::SetLen,
];

/// How a file is changed while no process has it open.
#[derive(Clone, Copy, Debug)]
enum Mutation {
    FlippedBit,
    ZeroedBlock,
    Cut,
    Emptied,
    Removed,
    /// As it was some time before.
    Stale,
    /// Another vBucket's.
    Swapped,
}

/// Runs the workload of `seed`, lets the disk fail for a while, stops, changes a file in half of the runs, and starts.
pub fn stops(subject: &Subject<'_>, seed: u64) -> Tally {
    let _trying = Trying::new(format_args!("stops of {} with seed {seed}", subject.name));
    let mut rng = SplitMix64::new(seed);
    let disk = prepared();
    let shape = Shape::choose(&mut rng);
    let mut model = Model::new(shape.vbuckets);
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut wrong = Vec::new();
    let stale = contents(&disk);
    let stopped = Trial { subject, disk: &disk, shape }.run(&mut model, &mut rng, stale, &mut wrong);
    if let Some((is_clean, stale)) = stopped {
        let mutated = if rng.chance(1, 2) { mutate(&disk, &mut rng, is_clean, &stale) } else { None };
        let _trying = Trying::new(format_args!("clean: {is_clean}, changed: {mutated:?}"));
        start(subject, &disk, &model, mutated.is_some(), &mut wrong);
        tally.states += 1;
    }
    tally.judge(&wrong);
    tally
}

type Contents = BTreeMap<PathBuf, Vec<u8>>;

fn contents(disk: &SimDisk) -> Contents {
    disk.contents().into_iter().collect()
}

struct Trial<'a> {
    subject: &'a Subject<'a>,
    disk: &'a SimDisk,
    shape: Shape,
}

impl Trial<'_> {
    /// Whether the stop was clean, and what the files held some time before; `None` if it cannot be gone on with.
    fn run(
        &self,
        model: &mut Model,
        rng: &mut SplitMix64,
        mut stale: Contents,
        wrong: &mut Vec<String>,
    ) -> Option<(bool, Contents)> {
        let mut store = self.open(wrong)?;
        self.go_on(&*store, model, rng, OPS_BEFORE, wrong)?;
        if rng.chance(1, 2) {
            store.close().map_err(|failure| wrong.push(format!("does not close: {failure}"))).ok()?;
            drop(store);
            store = self.open(wrong)?;
        }
        for _ in 0..rng.between(1, 3) {
            if rng.chance(1, 2) {
                stale = contents(self.disk);
            }
            let on = On::Kind(CALLS[rng.below(CALLS.len() as u64) as usize]);
            let (nth, for_ever) = (rng.between(1, MOST_CALLS), rng.chance(1, 3));
            let effect = [Effect::IO_ERROR, Effect::DISK_FULL][rng.below(2) as usize];
            self.disk.plan(Fault { on, nth, for_ever, effect });
            self.go_on(&*store, model, rng, OPS_DURING, wrong)?;
            self.disk.heal();
        }
        let behind = rng.below(MOST_OPS_BEHIND);
        self.go_on(&*store, model, rng, behind, wrong)?;
        if rng.chance(1, 3) {
            return Some((false, stale));
        }
        // one that fails is as if the process was killed
        let closed = store.close();
        Some((closed.is_ok(), stale))
    }

    fn open(&self, wrong: &mut Vec<String>) -> Option<Box<dyn KvStore>> {
        let opened = self.subject.open(self.disk);
        opened.map_err(|failure| wrong.push(format!("does not open: {failure}"))).ok()
    }

    fn go_on(
        &self,
        store: &dyn KvStore,
        model: &mut Model,
        rng: &mut SplitMix64,
        ops: u64,
        wrong: &mut Vec<String>,
    ) -> Option<()> {
        let run = self.subject.run(self.disk, store, self.shape);
        let mut is_healed = false;
        let end = run.go_on(model, rng, ops, wrong, &mut |_| {
            self.disk.heal();
            !std::mem::replace(&mut is_healed, true)
        });
        if end == End::GaveUp {
            wrong.push("does not go on although the disk works again".into());
            return None;
        }
        Some(())
    }
}

/// Changes one file; answers how, and which. After a kill only what can be told from what a power loss leaves.
fn mutate(
    disk: &SimDisk,
    rng: &mut SplitMix64,
    is_clean: bool,
    stale: &Contents,
) -> Option<(Mutation, PathBuf)> {
    let names = file_names(disk);
    let all: Vec<PathBuf> = contents(disk).into_keys().collect();
    let segments = all.iter().filter(|path| generation(path).is_some()).cloned();
    let last_segment = segments.max_by_key(|path| generation(path));
    let (mutation, path) = if is_clean {
        let kinds = [
            Mutation::FlippedBit,
            Mutation::ZeroedBlock,
            Mutation::Cut,
            Mutation::Emptied,
            Mutation::Removed,
            Mutation::Stale,
            Mutation::Swapped,
        ];
        let mutation = kinds[rng.below(kinds.len() as u64) as usize];
        let path = match mutation {
            Mutation::Swapped => {
                any(rng, &names.iter().map(|name| Path::new(DIR).join(name)).collect::<Vec<_>>())?
            }
            _ => any(rng, &all)?,
        };
        (mutation, path)
    } else if let Some(segment) = last_segment.filter(|_| rng.chance(1, 2)) {
        ([Mutation::Emptied, Mutation::Removed][rng.below(2) as usize], segment)
    } else {
        let names: Vec<PathBuf> = names.iter().map(|name| Path::new(DIR).join(name)).collect();
        (Mutation::Swapped, any(rng, &names)?)
    };
    let bytes = contents(disk).remove(&path)?;
    apply(disk, rng, mutation, &path, &bytes, stale)?;
    Some((mutation, path))
}

fn any(rng: &mut SplitMix64, paths: &[PathBuf]) -> Option<PathBuf> {
    if paths.is_empty() { None } else { Some(paths[rng.below(paths.len() as u64) as usize].clone()) }
}

fn generation(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("journal.")?.parse().ok()
}

fn apply(
    disk: &SimDisk,
    rng: &mut SplitMix64,
    mutation: Mutation,
    path: &Path,
    bytes: &[u8],
    stale: &Contents,
) -> Option<()> {
    let mut new = bytes.to_vec();
    match mutation {
        Mutation::Removed => {
            disk.remove_file(path).ok()?;
            return Some(());
        }
        // mostly the end: what is there was written last
        Mutation::FlippedBit | Mutation::ZeroedBlock | Mutation::Cut if new.is_empty() => return None,
        Mutation::FlippedBit => {
            let from = if rng.chance(1, 2) { bytes.len().saturating_sub(200) } else { 0 };
            let at = from + rng.below((bytes.len() - from) as u64) as usize;
            new[at] ^= 1 << rng.below(8);
        }
        Mutation::ZeroedBlock => {
            let block = rng.below(bytes.len().div_ceil(4096) as u64) as usize * 4096;
            let end = bytes.len().min(block + 4096);
            new[block..end].fill(0);
        }
        Mutation::Cut => new.truncate(rng.below(bytes.len() as u64) as usize),
        Mutation::Emptied => new.clear(),
        Mutation::Stale => new.clone_from(stale.get(path)?),
        Mutation::Swapped => {
            let files = contents(disk);
            let of_vbucket = |path: &Path| path.file_name()?.to_str()?.split('.').next()?.parse::<u16>().ok();
            let others = files.keys().filter(|other| of_vbucket(other).is_some() && *other != path);
            new.clone_from(&files[&any(rng, &others.cloned().collect::<Vec<_>>())?]);
        }
    }
    if new == bytes {
        return None;
    }
    let file = disk.open(path, OpenMode::ReadWrite).ok()?;
    file.set_len(0).and_then(|()| file.write_at(&new, 0)).and_then(|()| file.sync_data()).ok()
}

/// Starts, and compares everything that is served with what was promised last. Only if a file was changed may anything
/// be refused.
fn start(subject: &Subject<'_>, disk: &SimDisk, model: &Model, is_mutated: bool, wrong: &mut Vec<String>) {
    let store = match subject.open(disk) {
        Ok(store) => store,
        Err(_) if is_mutated => return,
        Err(failure) => return wrong.push(format!("does not open: {failure}")),
    };
    let states = match store.states() {
        Ok(states) => states,
        Err(_) if is_mutated => return,
        Err(failure) => return wrong.push(format!("does not tell its states: {failure}")),
    };
    let (mut found, mut refused) = (BTreeMap::new(), Vec::new());
    for (vb, stored) in states {
        let mut of_one = Vec::new();
        match stored.and_then(|stored| read_vbucket(&*store, vb, &stored, &mut of_one)) {
            Ok(one) => {
                found.insert(vb, one);
                wrong.append(&mut of_one);
            }
            Err(_) if is_mutated => refused.push(vb),
            Err(failure) => wrong.push(format!("{vb}: {failure}")),
        }
    }
    let mut differences = Vec::new();
    model.place(&found, u64::MAX, &mut differences);
    let is_refused = |what: &String| refused.iter().any(|vb: &VbId| what.starts_with(&format!("{vb}: ")));
    wrong.extend(differences.into_iter().filter(|what| !is_refused(what)));
}
