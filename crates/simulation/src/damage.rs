//! Files of copies are damaged, while their node is down and while it serves: what damage costs one copy, or one node's
//! bucket, must cost no document.
//!
//! Runs of some seeds have this beside their other faults. What it does is drawn from numbers of its own, so that all
//! other runs are as they were before.
//!
//! A copy that cannot be believed at a start must be dead, with a reason: never older. It must be reported, set aside and
//! filled again before all is well; meanwhile what clients were told of is held against the copies that serve
//! (`promises.rs`, `history.rs`). One copy is damaged at a time: that is fewer than any durable write needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::VbId;
use base::env::sim::{SimDisk, SplitMix64};
use base::env::{Disk as _, OpenMode};
use cluster::command::Command;
use cluster::state::Step;
use engine::{CompactOutcome, CompactRequest, Completion};

use crate::jobs::Fault;
use crate::node::{BUCKET, Node};
use crate::nodes::id_of;
use crate::rules::Rules;
use crate::target::place_of;
use crate::timeline::MOST_DELAY_US;
use crate::world::World;

/// couchstore's headers begin at multiples of this, with a byte that says so.
const BLOCK: usize = 4_096;

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// A bit of the last header is turned over.
    Header,
    /// A bit of what was written last before that header, a root.
    Root,
    /// The last header is cut off.
    Cut,
    /// The file is removed.
    Removed,
    /// The file is what it was earlier.
    Older,
    /// Both copies of the catalog, which all vBuckets need.
    Catalog,
}

const HARMS: [Harm; 6] = [Harm::Header, Harm::Root, Harm::Cut, Harm::Removed, Harm::Older, Harm::Catalog];

/// Damage that is not mended yet.
struct Open {
    at: usize,
    /// The vBucket; `None` for the whole bucket.
    vb: Option<u16>,
    /// The file, if there is one: without it nothing can be found any more.
    path: Option<PathBuf>,
    /// The start of its node which the copy is still served from, if that was so when it was damaged.
    served_since: Option<u64>,
    /// Whether the next start must say so before anything is loaded.
    shows_at_start: bool,
    /// Whether the node has said so.
    is_found: bool,
    /// Of damage that was done while the node served: what reads all of the file.
    compaction: Option<Completion<CompactOutcome>>,
    /// Whether nothing of it can be found any more: all was read and written anew.
    is_void: bool,
}

/// What is damaged in a run.
pub struct Damage {
    rng: SplitMix64,
    /// Files of documents as they were, by node.
    older: BTreeMap<usize, BTreeMap<PathBuf, Vec<u8>>>,
    open: Vec<Open>,
}

impl Damage {
    /// Of runs that have it.
    pub fn new(rules: &Rules) -> Option<Damage> {
        let rng = SplitMix64::new(rules.seed.rotate_left(23) ^ 0xda4a_6ed0);
        rules.damages.then(|| Damage { rng, older: BTreeMap::new(), open: Vec::new() })
    }

    /// Whether a copy at a node is damaged, or was and is not set aside yet.
    pub fn is_at(&self, at: usize) -> bool {
        self.open.iter().any(|open| open.at == at)
    }

    /// Whether every damaged copy is one of this node, or is served by one that has not started again since.
    pub fn leaves_copies_but(&self, at: usize, nodes: &[Node]) -> bool {
        self.open.iter().all(|open| open.at == at || open.served_since == Some(nodes[open.at].boot))
    }

    /// Whether everything that was damaged was set aside.
    pub fn is_over(&self) -> bool {
        self.open.is_empty()
    }
}

/// One look: files are noted, damage is followed, and something may be damaged.
pub fn look(world: &mut World) {
    let Some(mut damage) = world.damage.take() else { return };
    let noted = damage.rng.below(world.nodes.len() as u64) as usize;
    if damage.rng.chance(1, 4) {
        damage.older.insert(noted, files(&world.nodes[noted].handles.disk));
    }
    follow_damage(world, &mut damage);
    let at = damage.rng.below(world.nodes.len() as u64) as usize;
    let is_due = world.time.now_us() < world.rules.faults_us && damage.is_over() && damage.rng.chance(2, 3);
    if is_due && may_be_damaged(world, at) {
        damage_one(world, &mut damage, at);
    }
    world.damage = Some(damage);
}

/// Whether all copies but those of this node are sure to have everything that is safe on a majority.
fn may_be_damaged(world: &World, at: usize) -> bool {
    let Some(bucket) = world.nodes.newest.buckets.get(BUCKET) else { return false };
    let is_sure = |step: &Step| !matches!(step, Step::Choose { .. } | Step::Settle { .. });
    let is_settled =
        bucket.steps.values().all(is_sure) && bucket.missing.is_empty() && bucket.forgot.is_empty();
    let chains: Vec<_> = world.nodes.vbuckets().map(|vb| world.nodes.chain(vb)).collect();
    let is_shared = chains.iter().all(|chain| chain.len() > 1);
    let is_alive = world.nodes.iter().all(Node::may_serve);
    let is_member = chains.iter().any(|chain| chain.contains(&at));
    // A request that a node be failed over is not on its way to the store.
    let is_staying =
        world.failover_asked_us.is_none_or(|asked_us| world.time.now_us() > asked_us + MOST_DELAY_US);
    let calm = world.calm();
    is_settled && is_staying && is_alive && is_shared && is_member && calm.is_calm() && calm.may_forget(at)
}

fn damage_one(world: &mut World, damage: &mut Damage, at: usize) {
    let vbs: Vec<u16> = world.nodes.vbuckets().filter(|vb| world.nodes.chain(*vb).contains(&at)).collect();
    let vb = vbs[damage.rng.below(vbs.len() as u64) as usize];
    let harm = HARMS[damage.rng.below(HARMS.len() as u64) as usize];
    if world.nodes[at].bucket.is_none() || file_of(&world.nodes[at].handles.disk, vb).is_none() {
        return;
    }
    if damage.rng.chance(1, 3) {
        return damage_served(world, damage, at, vb);
    }
    // What a node alone vouches for its files with is written when it stops.
    let stops = stop(world, at);
    if stops {
        damage_stopped(world, damage, at, vb, harm);
    }
}

/// A node ends as its administrator has it end, and starts again later; whether it could.
fn stop(world: &mut World, at: usize) -> bool {
    world.nodes[at].handles.disk.heal();
    let closed = world.nodes[at].bucket.as_ref().is_some_and(|bucket| bucket.close().is_ok());
    world.crash(at, Fault::Damage);
    closed
}

fn damage_stopped(world: &mut World, damage: &mut Damage, at: usize, vb: u16, harm: Harm) {
    let disk = &world.nodes[at].handles.disk;
    let older = damage.older.get(&at);
    let path = file_of(disk, vb);
    let done = match harm {
        Harm::Catalog => catalogs(disk).iter().all(|path| flip(disk, path, |bytes| Some(bytes.len() / 2))),
        _ => path.as_ref().is_some_and(|path| strike(disk, path, harm, older)),
    };
    if !done {
        return;
    }
    world.time.show(|| format!("node {at}: vBucket {vb} is damaged while it is down: {harm:?}"));
    world.tally.damages += 1;
    damage.open.push(Open {
        at,
        vb: (harm != Harm::Catalog).then_some(vb),
        path: path.filter(|_| harm == Harm::Root),
        served_since: None,
        shows_at_start: harm != Harm::Root,
        is_found: false,
        compaction: None,
        is_void: false,
    });
}

fn damage_served(world: &mut World, damage: &mut Damage, at: usize, vb: u16) {
    let node = &world.nodes[at];
    let Some(bucket) = node.bucket.clone() else { return };
    let request = CompactRequest { purge_before_s: None, purge_through: None };
    let path = file_of(&node.handles.disk, vb);
    if !path.as_ref().is_some_and(|path| strike(&node.handles.disk, path, Harm::Root, None)) {
        return;
    }
    // Whatever reads it finds it: values, streams, and this.
    let compaction = bucket.compaction().compact(VbId(vb), request).ok();
    world.time.show(|| format!("node {at}: vBucket {vb} is damaged while it is served"));
    world.tally.damages += 1;
    (world.forgetful, world.tally.damages_served) = (Some(at), world.tally.damages_served + 1);
    world.strike(at, Fault::Damage, 100_000);
    if damage.rng.chance(1, 2) {
        leave_alone(world, at, vb);
    }
    damage.open.push(Open {
        at,
        vb: Some(vb),
        path,
        served_since: Some(world.nodes[at].boot),
        shows_at_start: false,
        is_found: false,
        compaction,
        is_void: false,
    });
}

/// The only other node of a chain is failed over: the copy that is damaged and served has to do, and others are built of
/// it.
fn leave_alone(world: &mut World, at: usize, vb: u16) {
    let chain = world.nodes.chain(vb);
    let &[active, other] = chain.as_slice() else { return };
    if active == at && world.calm().may_leave(other) {
        world.ask_for(at, &Command::FailOver { node: id_of(other), force: false });
    }
}

/// Which damage was found, and which is set aside.
fn follow_damage(world: &mut World, damage: &mut Damage) {
    for open in &mut damage.open {
        let node = &world.nodes[open.at];
        let is_damaged = node.is_damaged(open.vb);
        let is_there = |path: &PathBuf| files(&node.handles.disk).contains_key(path);
        open.is_void |= open.is_found && !is_damaged;
        open.is_found |= is_damaged;
        open.is_void |= !open.is_found && !open.path.as_ref().is_none_or(is_there);
        let Some(bucket) = node.bucket.as_ref().filter(|_| node.is_up && !open.is_found) else {
            continue;
        };
        let (Some(vb), request) = (open.vb, CompactRequest { purge_before_s: None, purge_through: None })
        else {
            continue;
        };
        match open.compaction.as_ref().map(Completion::try_take) {
            None if !open.shows_at_start => {
                open.compaction = bucket.compaction().compact(VbId(vb), request).ok()
            }
            Some(Some(CompactOutcome::Done)) => open.is_void = true,
            Some(Some(_)) => open.compaction = None,
            _ => {}
        }
    }
    let is_in =
        |at: usize| world.nodes.newest.nodes.keys().any(|id| place_of(&world.nodes.newest, *id) == Some(at));
    let mended = damage.open.iter().filter(|open| open.is_void && open.is_found).count();
    world.tally.refills += mended as u64;
    damage.open.retain(|open| !open.is_void && is_in(open.at));
}

/// A node has started: what it must not believe it does not serve.
pub fn check_start(world: &mut World, at: usize) {
    let Some(damage) = &mut world.damage else { return };
    for open in damage.open.iter_mut().filter(|open| open.at == at && open.shows_at_start) {
        let node = &world.nodes[at];
        let is_dead = open.vb.is_none_or(|vb| {
            let bucket = node.bucket.as_ref();
            let told = bucket.map(|bucket| bucket.unreadable()).unwrap_or_default();
            told.iter().any(|(of, reason)| of.0 == vb && !reason.is_empty()) && node.role(vb).is_none()
        });
        open.is_found = node.is_damaged(open.vb) && is_dead;
        if !open.is_found {
            let what = open.vb.map_or("its bucket".to_owned(), |vb| format!("vBucket {vb}"));
            world.violation = Some(format!("node {at} starts with {what} as if its files were whole"));
        }
    }
}

impl Node {
    /// Whether a vBucket, or the whole bucket, is known to be damaged.
    pub fn is_damaged(&self, vb: Option<u16>) -> bool {
        let Some(vb) = vb else { return self.is_down };
        self.is_down || self.bucket.as_ref().is_some_and(|bucket| bucket.is_damaged(VbId(vb)))
    }
}

/// Files of documents.
fn files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_of_documents =
        |path: &Path| path.starts_with("/data/b") && name(path).is_some_and(|name| name.contains(".couch."));
    disk.contents().into_iter().filter(|(path, _)| is_of_documents(path)).collect()
}

/// The newest file of a vBucket, if it has one with a header.
fn file_of(disk: &SimDisk, vb: u16) -> Option<PathBuf> {
    let revision = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix(&format!("{vb}.couch."))?.parse::<u64>().ok()
    };
    let mut all: Vec<_> = files(disk).into_iter().filter(|(_, bytes)| last_header(bytes).is_some()).collect();
    all.retain(|(path, _)| revision(path).is_some());
    all.into_iter().map(|(path, _)| path).max_by_key(|path| revision(path))
}

fn catalogs(disk: &SimDisk) -> Vec<PathBuf> {
    let is_catalog = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("catalog"))
    };
    disk.contents().into_iter().map(|(path, _)| path).filter(|path| is_catalog(path)).collect()
}

/// Where the last header begins.
fn last_header(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).step_by(BLOCK).rfind(|at| bytes[*at] == 1 && *at > 0)
}

/// Where what was written before the last header ends.
fn last_root(bytes: &[u8]) -> Option<usize> {
    bytes[..last_header(bytes)?].iter().rposition(|byte| *byte != 0).filter(|at| at % BLOCK > 8)
}

/// Turns over a bit; whether there was one.
fn flip(disk: &SimDisk, path: &Path, place: impl Fn(&[u8]) -> Option<usize>) -> bool {
    let bytes = disk.contents().into_iter().find(|(of, _)| of == path).map(|(_, bytes)| bytes);
    let at = bytes.as_deref().and_then(place);
    at.is_some_and(|at| disk.rot(path, at as u64, 4).unwrap_or(false))
}

/// Damages a file; whether it is another one now.
fn strike(disk: &SimDisk, path: &Path, harm: Harm, older: Option<&BTreeMap<PathBuf, Vec<u8>>>) -> bool {
    match harm {
        // Behind its length and checksum.
        Harm::Header => flip(disk, path, |bytes| last_header(bytes).map(|at| at + 12)),
        Harm::Root | Harm::Catalog => flip(disk, path, last_root),
        Harm::Cut => {
            let header = files(disk).get(path).and_then(|bytes| last_header(bytes));
            header.is_some_and(|header| write(disk, path, header, &[]).is_ok())
        }
        Harm::Removed => disk.remove_file(path).is_ok(),
        Harm::Older => {
            let now = files(disk).remove(path);
            let was = older.and_then(|older| older.get(path)).filter(|was| now.as_ref() != Some(*was));
            // One that only grew behind its last header is as good as it is.
            let is_other = |was: &&Vec<u8>| last_header(was) != now.as_deref().and_then(last_header);
            was.filter(is_other).is_some_and(|was| write(disk, path, 0, was).is_ok())
        }
    }
}

fn write(disk: &SimDisk, path: &Path, len: usize, bytes: &[u8]) -> std::io::Result<()> {
    let file = disk.open(path, OpenMode::ReadWrite)?;
    file.set_len(len as u64)?;
    file.write_at(bytes, 0)?;
    file.sync_data()
}
