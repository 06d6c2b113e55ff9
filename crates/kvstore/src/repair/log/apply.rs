//! Making a folder of a log-structured store again from what a survey found.

use std::path::Path;

use base::env::Env;
use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use logstore::{Salvage, Sealed};

use super::super::Survey;
use super::{History, LogBase, LogPlan, failed};
use crate::catalog::Catalog;
use crate::couch::whole::begin_history;
use crate::failure::{Failure, Trouble};
use crate::journaled::recovery::batches;
use crate::log::{Log, LogConfig, LogState, OwnedItem, check_log};
use crate::replace::Replacement;
use crate::state::VbStateDoc;
use crate::store::{KvStore, SaveBatch};

/// Bytes of items that are committed at once.
const PIECE_BYTES: usize = 8 << 20;

/// Builds another folder with all that is left, and puts it in the place of the bucket's, which is moved to `aside`.
pub(in super::super) fn apply(env: &Env, dir: &Path, aside: &Path, survey: Survey) -> Result<(), Failure> {
    let Survey { plan, was_closed, .. } = survey;
    let Some(LogPlan { left, bases }) = plan.log else { return Ok(()) };
    let replacement = Replacement::of(env, dir);
    let building = replacement.begin()?;
    Catalog::anew(env, &building, plan.store).mend()?;
    let log = Log::open(env.clone(), &building, LogConfig::default())?;
    for (vb, base) in bases {
        rebuild(env, &log, &left, vb, base).map_err(|failure| of(dir, failure))?;
    }
    log.close()?;
    drop(log);
    let found = check_log(env, &building, &mut |_| ())?;
    if let Some((path, _, what)) = found.faults.into_iter().next() {
        let what = format!("what was built from it is not sound: {}: {what}", path.display());
        return Err(Failure::OtherStore { dir: dir.to_owned(), what });
    }
    replacement.copy_small_files(was_closed)?;
    drop(left);
    replacement.switch()?;
    replacement.keep_old(aside)
}

fn of(dir: &Path, failure: Failure) -> Failure {
    match failure {
        Failure::Log { source, .. } => failed(dir, source),
        other => other,
    }
}

fn rebuild(env: &Env, log: &Log, left: &Salvage, vb: VbId, base: LogBase) -> Result<(), Failure> {
    let LogBase { commit, saves, history, kept } = base;
    let of_commit = || commit.as_ref().map(|(_, state)| state.state.clone()).unwrap_or_default();
    let mut batches = batches(env, saves, of_commit);
    if let Some((commit, state)) = &commit {
        let mut state = LogState::clone(state);
        if batches.is_empty() {
            begin(env, &mut state.state, history, kept);
        }
        let sealed = Sealed { state: state.encode(), purge_seqno: commit.purge_seqno() };
        let mut piece: Vec<OwnedItem> = Vec::new();
        let (mut bytes, mut is_empty) = (0, true);
        let scanned = left.scan(commit, &mut |item| {
            bytes += item.bytes() as usize;
            piece.push(OwnedItem::of(item));
            if bytes < PIECE_BYTES {
                return Ok(());
            }
            (bytes, is_empty) = (0, false);
            log.commit_items(vb, std::mem::take(&mut piece), &sealed).map_err(Trouble::Ours)
        });
        scanned.map_err(|trouble: Trouble<logstore::Failure>| {
            trouble.into_failure(|source| Failure::Log { vb, source })
        })?;
        if is_empty || !piece.is_empty() {
            log.commit_items(vb, piece, &sealed)?;
        }
    }
    if let Some((_, state)) = batches.last_mut() {
        begin(env, state, history, kept);
    }
    for (items, state) in &batches {
        log.save(vb, SaveBatch { items, state })?;
    }
    Ok(())
}

/// Begins a history, if that is to be, of an active vBucket: a replica takes its active's.
fn begin(env: &Env, state: &mut VbStateDoc, history: History, kept: Seqno) {
    let at = match history {
        History::GoesOn => return,
        History::Begins => kept,
        History::BeginsAtZero => Seqno(0),
    };
    if history == History::BeginsAtZero
        && state.state == VbState::Active
        && !planted::is(Bug::RepairKeepsHistory)
    {
        state.failover_table.clear();
        (state.snap_start, state.snap_end) = (kept.0, kept.0);
    }
    begin_history(env, state, at);
}
