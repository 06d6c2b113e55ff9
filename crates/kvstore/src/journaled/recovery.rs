//! From a folder to a store: the files as of their durable headers, and in memory what the journal holds beyond.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use base::env::Env;
use base::planted::{self, Bug};
use base::{Account, RateLimit, Seqno, VbId, Version};
use parking_lot::{Mutex, RwLock};

use super::lost::{Lost, lost_in};
use super::runs::merged;
use super::{FiledTable, Journaled, JournaledConfig, Oldest, Unfiled, Vb};
use crate::catalog::{Believe, Catalog};
use crate::collections::SYSTEM;
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::files::{Files, OnRecord, make_folder};
use crate::journal::{self, Anchor, Filed, Frame, Journal, Missing, Replayed, ReplayedState, ToldSeqnos};
use crate::manifest::StoredManifest;
use crate::sort::{newest_of, sort_with_past};
use crate::state::VbStateDoc;
use crate::store::{Counts, SaveBatch, StoredVb};

/// A vBucket as the journal tells of it.
#[derive(Default)]
struct Found {
    filed: Option<Filed>,
    saves: Vec<Save>,
}

pub(crate) struct Save {
    /// In which it ends.
    pub(crate) frame: Frame,
    /// In which it begins.
    pub(crate) begun: Frame,
    pub(crate) state: ReplayedState,
    pub(crate) items: Vec<Version>,
}

/// What is to be filed of a vBucket, one batch after the other, so that its file holds what these saves hold.
pub(crate) fn batches(
    env: &Env,
    saves: Vec<Save>,
    of_file: impl Fn() -> VbStateDoc,
) -> Vec<(Vec<Version>, VbStateDoc)> {
    let (account, mut unfiled, mut batches) = (env.heap.account(), Unfiled::default(), Vec::new());
    take_in(&mut unfiled, (account, false), Found { filed: None, saves }, Duration::ZERO, of_file);
    let Some(state) = unfiled.state.clone() else { return batches };
    loop {
        let (runs, barrier) = unfiled.runs.freeze(account);
        batches.push((merged(&runs), VbStateDoc::clone(&state)));
        drop(unfiled.runs.thaw(true));
        if barrier.is_none() {
            return batches;
        }
    }
}

impl Found {
    /// The file holds everything up to `filed.through`.
    fn is_filed(&mut self, filed: Filed) {
        self.filed = Some(filed);
        self.saves.retain(|save| save.frame > filed.through);
    }
}

pub(super) fn open(env: Env, dir: &Path, config: JournaledConfig) -> Result<Journaled, Failure> {
    make_folder(&env, dir)?;
    let catalog = Arc::new(Catalog::open(&env, dir)?);
    // Before the journal is read: that changes the catalog.
    config.files.refuse_older(&env, dir, &catalog)?;
    let promised = match catalog.believe() {
        Some(Believe::Journal { generation, salt }) => Some((generation, salt)),
        Some(Believe::Files | Believe::Headers) | None => None,
    };
    if let Some(void) = catalog.void_generations() {
        journal::remove_void(&env, dir, void)?;
    }
    let anchor = || {
        let noted = catalog.clone();
        Anchor {
            generations: catalog.generations().max(promised.map_or(0, |(generation, _)| generation)),
            segment: promised,
            makes_void: true,
            begun: Box::new(move |generation, salt| noted.believe_journal(generation, salt)),
        }
    };
    let (mut found, mut seqnos) = (BTreeMap::<VbId, Found>::new(), Some(ToldSeqnos::default()));
    // A journal that was begun and got no further tells nothing: the files are as their last headers have it.
    let mut tells_of_files = promised.is_some();
    let mut lost = BTreeMap::new();
    let recovered =
        Journal::recover_anchored(env.clone(), dir, config.journal(), anchor(), &mut |frame, told| {
            tells_of_files = true;
            seqnos.iter_mut().for_each(|seqnos| seqnos.told(&told));
            take_told(&mut found, frame, told);
            Ok(())
        });
    let journal = match recovered {
        Err(damage) if damage.is_damage() => {
            tells_of_files = true;
            let damage = Damage { failure: damage, anchor: anchor() };
            let (journal, around, missing) = recover_around(&env, dir, &config, damage)?;
            (found, lost, seqnos) = (around, missing, None);
            journal
        }
        recovered => recovered?,
    };
    // Nothing is brought into a file that misses changes: what follows them in the journal is void.
    let is_lost = |found: &Found| found.filed.is_some_and(|filed| filed.at().is_lost());
    found.values_mut().filter(|found| is_lost(found)).for_each(|found| found.saves.clear());
    if tells_of_files {
        let record = found.iter().filter_map(|(vb, found)| on_record(*vb, found)).collect();
        let missing = lost.keys().copied().collect();
        let record = OnRecord { commits: &record, missing: &missing, told: seqnos.as_ref() };
        let files = config.files.open(env.clone(), dir, catalog, Some(&record))?;
        // Before anything opens a file: what is behind the header on record may be what is missing a record.
        lost.iter().for_each(|(vb, lost)| files.miss(*vb, lost.what.clone()));
        let journaled = Journaled { was_told: true, ..assemble(env, config, files, journal, found) };
        journaled.miss(lost);
        return Ok(journaled);
    }
    let files = config.files.open(env.clone(), dir, catalog, None)?;
    for (vb, at) in files.positions() {
        let filed = Filed::of(vb, Frame(0), at);
        found.insert(vb, Found { filed: Some(filed), saves: Vec::new() });
    }
    let journaled = assemble(env, config, files, journal, found);
    if journaled.journal.stats().segments > 0 {
        // The journal has begun already without them: its next frame puts them on record. The table of one that begins
        // later has them.
        let mut filed = journaled.filed.lock();
        filed.news = filed.by_vbucket.values().copied().collect();
    }
    Ok(journaled)
}

/// A journal that is damaged.
struct Damage {
    failure: Failure,
    anchor: Anchor,
}

/// A journal that is read around its gaps, what it has by vBucket, and which vBuckets are lost.
type Around = (Journal, BTreeMap<VbId, Found>, BTreeMap<VbId, Lost>);

/// What a damaged journal has, if it is known which vBuckets are missing something.
fn recover_around(
    env: &Env,
    dir: &Path,
    config: &JournaledConfig,
    damage: Damage,
) -> Result<Around, Failure> {
    let Damage { failure, anchor } = damage;
    tracing::error!(event = "journal_damaged", %failure, "the journal is damaged");
    let lost_of =
        |missing: &Missing| lost_in(&missing.gaps, missing.told.iter().map(|(frame, told)| (*frame, told)));
    let missing_of = |missing: &Missing| lost_of(missing).into_keys().collect();
    let around = Journal::recover_around(env.clone(), dir, config.journal(), anchor, failure, &missing_of);
    let (journal, missing) = around?;
    let (lost, all) = (lost_of(&missing), missing.told);
    let mut found: BTreeMap<VbId, Found> = BTreeMap::new();
    for (frame, told) in all {
        // A state with a hole never was.
        if !matches!(&told, Replayed::Save { vb, .. } if lost.contains_key(vb)) {
            take_told(&mut found, frame, told);
        }
    }
    Ok((journal, found, lost))
}

fn take_told(found: &mut BTreeMap<VbId, Found>, frame: Frame, told: Replayed) {
    match told {
        Replayed::Save { vb, state, items, begun, .. } => {
            found.entry(vb).or_default().saves.push(Save { frame, begun, state, items });
        }
        // What a rollback kept was saved again behind what it made void.
        Replayed::Filed(filed) | Replayed::RolledBack(filed) => {
            found.entry(filed.vb).or_default().is_filed(filed);
        }
        Replayed::Dropped(vb) => drop(found.remove(&vb)),
    }
}

/// Whether a folder, which may not be there, has a journal.
pub(super) fn exists(env: &Env, dir: &Path) -> Result<bool, Failure> {
    make_folder(env, dir)?;
    let catalog = Catalog::open(env, dir)?;
    match catalog.believe() {
        Some(Believe::Journal { .. }) => Ok(true),
        Some(Believe::Files | Believe::Headers) => Journal::exists_behind(env, dir, catalog.generations()),
        None => Journal::exists(env, dir),
    }
}

/// Removes segments that the catalog makes void: a stop was interrupted before it had.
pub(super) fn remove_void(env: &Env, dir: &Path) -> Result<(), Failure> {
    journal::remove_void(env, dir, Catalog::open(env, dir)?.generations())
}

fn on_record(vb: VbId, found: &Found) -> Option<(VbId, FileAt)> {
    let filed = found.filed.filter(|filed| filed.revision > 0)?;
    Some((vb, filed.at()))
}

fn assemble(
    env: Env,
    config: JournaledConfig,
    files: Box<dyn Files>,
    journal: Journal,
    found: BTreeMap<VbId, Found>,
) -> Journaled {
    let vbuckets = found.keys().last().map_or(0, |last| usize::from(last.0) + 1);
    let vbuckets: Vec<Arc<Vb>> = std::iter::repeat_with(Arc::default).take(vbuckets).collect();
    let mut filed = FiledTable::default();
    let mut bytes = 0;
    let now = env.clock.monotonic();
    let keeps_history = config.files.keeps_history();
    for (vb, found) in found {
        filed.by_vbucket.extend(found.filed.map(|filed| (vb, filed)));
        let mut unfiled = vbuckets[usize::from(vb.0)].unfiled.lock();
        take_in(&mut unfiled, (env.heap.account(), keeps_history), found, now, || state_of_file(&*files, vb));
        bytes += unfiled.bytes;
    }
    Journaled {
        env,
        config,
        files,
        journal,
        vbuckets: RwLock::new(vbuckets),
        filed: Mutex::new(filed),
        was_told: false,
        appending: Mutex::new(()),
        filing: Mutex::new(()),
        keeps_history: AtomicBool::new(keeps_history),
        damage: Mutex::default(),
        lost: Mutex::default(),
        may_wait: AtomicBool::new(true),
        unfiled_bytes: AtomicU64::new(bytes),
        unfiled_limit: AtomicU64::new(u64::MAX),
        saved_at_ns: AtomicU64::new(now.as_nanos() as u64),
        saves: AtomicU64::new(0),
        items_saved: AtomicU64::new(0),
        failures: AtomicU64::new(0),
        not_released: RateLimit::new(),
        not_filed: RateLimit::new(),
    }
}

/// Takes in the saves of one vBucket that its file does not hold.
///
/// *Invariant:* every version that was synced and not made void is in a run afterwards, and of two runs that hold the
/// same key the later one holds the newer version. What was journaled again because it could not be filed follows what
/// was saved after it, so saves are ordered by their seqnos, and a change that is in the journal twice counts once.
fn take_in(
    unfiled: &mut Unfiled,
    of: (&Account, bool),
    found: Found,
    now: Duration,
    of_file: impl Fn() -> VbStateDoc,
) {
    let mut saves = found.saves;
    let Some(state) = last_state(&mut saves, of_file) else { return };
    if planted::is(Bug::OlderSavesSkipped) {
        let mut seen = Seqno(0);
        saves.retain(|save| {
            let is_behind = highest(save) < seen;
            seen = seen.max(highest(save));
            !is_behind
        });
    }
    if !in_order_of_seqnos(&saves) {
        saves.sort_by_key(highest);
        let mut taken: HashSet<Seqno> = HashSet::new();
        saves.iter_mut().for_each(|save| save.items.retain(|item| taken.insert(item.meta().by_seqno)));
    }
    let needs = |save: &Save| if planted::is(Bug::BeginningNotNeeded) { save.frame } else { save.begun };
    let Some(first) = saves.iter().map(needs).min() else { return };
    let last = saves.iter().map(|save| save.frame).max().unwrap_or(first);
    let since = Oldest { frame: first, at: now };
    let behind = frames_behind(&saves);
    let mut gathered: Vec<Version> = Vec::new();
    for (save, behind) in saves.into_iter().zip(behind) {
        // Many saves become one run, but a drop of a collection and what follows it do not.
        let is_drop = |version: &Version| version.is_deleted() && version.key().collection == SYSTEM;
        let is_end = save.items.iter().any(is_drop);
        gathered.extend(save.items);
        if is_end {
            let items = versions_of(std::mem::take(&mut gathered), of.1);
            // filing through this run must not vouch for a frame with something that is filed later
            let through = behind.map_or(save.frame, |behind| save.frame.min(Frame(behind.0 - 1)));
            unfiled.add(of, SaveBatch { items: &items, state: &state }, since, through);
        }
    }
    let items = versions_of(gathered, of.1);
    unfiled.add(of, SaveBatch { items: &items, state: &state }, since, last);
}

/// The newest version of each key, or all that belong to the history, too.
fn versions_of(mut gathered: Vec<Version>, keeps_history: bool) -> Vec<Version> {
    if keeps_history {
        sort_with_past(&mut gathered);
        return gathered;
    }
    newest_of(gathered.iter())
}

/// The state after the last save; each save tells a whole one or what changed of the one before. `None` if there is no
/// save.
fn last_state(saves: &mut [Save], of_file: impl Fn() -> VbStateDoc) -> Option<VbStateDoc> {
    let mut last: Option<VbStateDoc> = None;
    for save in saves {
        match &save.state {
            ReplayedState::Whole(whole) => last = Some(whole.clone()),
            ReplayedState::Numbers(numbers) => numbers.apply(last.get_or_insert_with(&of_file)),
        }
    }
    last
}

fn highest(save: &Save) -> Seqno {
    save.items.iter().map(|version| version.meta().by_seqno).max().unwrap_or_default()
}

/// Whether each save with versions has higher seqnos than all before.
fn in_order_of_seqnos(saves: &[Save]) -> bool {
    saves
        .iter()
        .map(highest)
        .filter(|highest| *highest > Seqno(0))
        .is_sorted_by(|before, after| before < after)
}

/// For each save the lowest frame of those behind it, in which they begin.
fn frames_behind(saves: &[Save]) -> Vec<Option<Frame>> {
    let mut lowest: Option<Frame> = None;
    let mut behind: Vec<Option<Frame>> = Vec::with_capacity(saves.len());
    for save in saves.iter().rev() {
        behind.push(lowest);
        lowest = Some(lowest.map_or(save.begun, |lowest| lowest.min(save.begun)));
    }
    behind.reverse();
    behind
}

/// The state in a vBucket's file. If that cannot be read, nothing of the vBucket is, until the next start: what stands
/// here instead is never looked at, even if the disk refused only once.
fn state_of_file(files: &dyn Files, vb: VbId) -> VbStateDoc {
    let read = files.snapshot(vb).and_then(|snapshot| snapshot.map(|snapshot| snapshot.state()).transpose());
    match read {
        Ok(state) => state.unwrap_or_default(),
        Err(failure) => {
            if !planted::is(Bug::UnreadStateBelieved) {
                files.refuse(vb, &failure);
            }
            VbStateDoc::default()
        }
    }
}

/// A vBucket of which nothing is filed yet.
pub(super) fn without_file(state: &VbStateDoc) -> StoredVb {
    StoredVb {
        state: state.clone(),
        high_seqno: Seqno(0),
        purge_seqno: Seqno(0),
        counts: Counts::default(),
        collections: Vec::new(),
        manifest: StoredManifest::default(),
    }
}
