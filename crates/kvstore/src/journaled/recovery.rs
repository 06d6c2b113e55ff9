//! From a folder to a store: the files as of their durable headers, and in memory what the journal holds beyond.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use base::env::Env;
use base::{Account, Seqno, VbId, Version};
use parking_lot::{Mutex, RwLock};

use super::{FiledTable, Journaled, JournaledConfig, Oldest, Unfiled, Vb};
use crate::collections::SYSTEM;
use crate::compaction::FileAt;
use crate::couch::Couch;
use crate::failure::Failure;
use crate::journal::{Filed, Frame, Journal, Replayed, ReplayedState};
use crate::manifest::StoredManifest;
use crate::sort::newest_of;
use crate::state::VbStateDoc;
use crate::store::{Counts, KvStore, SaveBatch, StoredVb};

/// A vBucket as the journal tells of it.
#[derive(Default)]
struct Found {
    filed: Option<Filed>,
    saves: Vec<Save>,
}

struct Save {
    frame: Frame,
    state: ReplayedState,
    items: Vec<Version>,
}

impl Found {
    /// The file holds everything up to `filed.through`.
    fn is_filed(&mut self, filed: Filed) {
        self.filed = Some(filed);
        self.saves.retain(|save| save.frame > filed.through);
    }
}

pub(super) fn open(env: Env, dir: &Path, config: JournaledConfig) -> Result<Journaled, Failure> {
    made(&env, dir)?;
    let mut found: BTreeMap<VbId, Found> = BTreeMap::new();
    // A journal that was begun and got no further tells nothing: the files are as their last headers have it.
    let mut tells_of_files = false;
    let take_in = &mut |frame: Frame, replayed: Replayed| {
        tells_of_files = true;
        match replayed {
            Replayed::Save { vb, state, items } => {
                found.entry(vb).or_default().saves.push(Save { frame, state, items });
            }
            // what a rollback kept was saved again behind what it made void
            Replayed::Filed(filed) | Replayed::RolledBack(filed) => {
                found.entry(filed.vb).or_default().is_filed(filed);
            }
            Replayed::Dropped(vb) => drop(found.remove(&vb)),
        }
        Ok(())
    };
    let journal = Journal::recover(env.clone(), dir, config.journal(), take_in)?;
    if tells_of_files {
        let record = found.iter().filter_map(|(vb, found)| on_record(*vb, found)).collect();
        let files = Couch::open_with(env.clone(), dir, config.couch, Some(&record))?;
        return Ok(assemble(env, config, files, journal, found));
    }
    let files = Couch::open(env.clone(), dir, config.couch)?;
    for (vb, at) in files.positions() {
        let FileAt { revision, header_offset } = at;
        let filed = Filed { vb, through: Frame(0), revision, header_offset };
        found.insert(vb, Found { filed: Some(filed), saves: Vec::new() });
    }
    let journaled = assemble(env, config, files, journal, found);
    {
        // The journal may have begun already without them: its next frame puts them on record.
        let mut filed = journaled.filed.lock();
        filed.news = filed.by_vbucket.values().copied().collect();
    }
    Ok(journaled)
}

/// Whether a folder, which may not be there, has a journal.
pub(super) fn exists(env: &Env, dir: &Path) -> Result<bool, Failure> {
    made(env, dir)?;
    Journal::exists(env, dir)
}

fn made(env: &Env, dir: &Path) -> Result<(), Failure> {
    let made = env.disk.create_dir_all_synced(dir);
    made.map_err(|source| Failure::Disk { operation: "make folder", path: dir.to_owned(), source })
}

fn on_record(vb: VbId, found: &Found) -> Option<(VbId, FileAt)> {
    let filed = found.filed.filter(|filed| filed.revision > 0)?;
    Some((vb, FileAt { revision: filed.revision, header_offset: filed.header_offset }))
}

fn assemble(
    env: Env,
    config: JournaledConfig,
    files: Couch,
    journal: Journal,
    found: BTreeMap<VbId, Found>,
) -> Journaled {
    let vbuckets = found.keys().last().map_or(0, |last| usize::from(last.0) + 1);
    let vbuckets: Vec<Arc<Vb>> = std::iter::repeat_with(Arc::default).take(vbuckets).collect();
    let mut filed = FiledTable::default();
    let mut bytes = 0;
    let now = env.clock.monotonic();
    for (vb, found) in found {
        filed.by_vbucket.extend(found.filed.map(|filed| (vb, filed)));
        let mut unfiled = vbuckets[usize::from(vb.0)].unfiled.lock();
        take_in(&mut unfiled, env.heap.account(), found, now, || state_of_file(&files, vb));
        bytes += unfiled.bytes;
    }
    Journaled {
        env,
        config,
        files,
        journal,
        vbuckets: RwLock::new(vbuckets),
        filed: Mutex::new(filed),
        appending: Mutex::new(()),
        filing: Mutex::new(()),
        unfiled_bytes: AtomicU64::new(bytes),
        unfiled_limit: AtomicU64::new(u64::MAX),
        saved_at_ns: AtomicU64::new(now.as_nanos() as u64),
        saves: AtomicU64::new(0),
        items_saved: AtomicU64::new(0),
        failures: AtomicU64::new(0),
    }
}

/// Saves of one vBucket that its file does not hold, oldest first.
fn take_in(
    unfiled: &mut Unfiled,
    account: &Account,
    found: Found,
    now: Duration,
    of_file: impl Fn() -> VbStateDoc,
) {
    let mut state: Option<VbStateDoc> = None;
    let mut high_seqno = Seqno(0);
    let mut gathered: Vec<Version> = Vec::new();
    for save in found.saves {
        let highest = save.items.iter().map(|version| version.meta().by_seqno).max();
        if highest.is_some_and(|highest| highest < high_seqno) {
            // a rollback that was not completed had begun to journal again what it would keep
            continue;
        }
        high_seqno = high_seqno.max(highest.unwrap_or_default());
        let state = match save.state {
            ReplayedState::Whole(whole) => state.insert(whole),
            ReplayedState::Numbers(numbers) => {
                let state = state.get_or_insert_with(&of_file);
                numbers.apply(state);
                state
            }
        };
        let since = Oldest { frame: save.frame, at: now };
        // many saves become one run, but none together with what came before a change of the collections
        let is_end = save.items.iter().any(|version| version.key().collection == SYSTEM);
        gathered.extend(save.items);
        let items = if is_end { newest_of(std::mem::take(&mut gathered).iter()) } else { Vec::new() };
        unfiled.add(account, SaveBatch { items: &items, state }, since, save.frame);
    }
    if let (Some(state), Some(since)) = (&state, unfiled.since) {
        let items = newest_of(gathered.iter());
        unfiled.add(account, SaveBatch { items: &items, state }, since, unfiled.last);
    }
}

/// The state in a vBucket's file. If that is damaged, so is the vBucket, and what stands here is never looked at.
fn state_of_file(files: &Couch, vb: VbId) -> VbStateDoc {
    let snapshot = files.snapshot(vb).ok().flatten();
    snapshot.and_then(|snapshot| snapshot.state().ok()).unwrap_or_default()
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
