//! Repair of a folder of a log-structured store: looking at it.
//!
//! A commit's items are in segments that many commits and vBuckets share, so damage may cost some documents in the middle
//! of a vBucket. What is left of it then is no state that ever was: an active vBucket begins a history of its own, from seqno
//! 0, so that readers begin from nothing; a replica begins empty, so that its active sends all of it.

mod apply;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base::env::Env;
use base::{Seqno, VbId, VbState};
use logstore::{Hole, LeftCommit, Salvage};

use super::survey::{Evidence, anchor_of, evidence_of, follow, lost_collections, marked, unmarked};
use super::{Damaged, Survey};
use crate::catalog::{self, Believe, Catalog, Contents, Found, Listed};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::journal::{Gap, Salvaged, salvage};
use crate::journaled::lost::lost_in;
use crate::journaled::recovery::Save;
use crate::log::{LogState, Recount, place_of, refuse_older, refuse_unlisted};

pub(super) use apply::apply;

/// What a repair of a log-structured store does.
pub(super) struct LogPlan {
    left: Salvage,
    bases: BTreeMap<VbId, LogBase>,
}

/// From what a vBucket goes on.
struct LogBase {
    /// A commit, and what is stored with what is left of it.
    commit: Option<(LeftCommit, LogState)>,
    saves: Vec<Save>,
    history: History,
    kept: Seqno,
}

/// What becomes of a vBucket's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    GoesOn,
    /// A new one begins at the seqno from which the vBucket goes on.
    Begins,
    /// A new one begins at 0, and none of before is known any more.
    BeginsAtZero,
}

/// What can be read of a commit.
struct LeftRead {
    commit: LeftCommit,
    state: LogState,
    /// Documents that it had.
    had: u64,
    holes: Vec<Hole>,
    /// The highest seqno that was read.
    high: Seqno,
}

/// What a damaged file costs.
#[derive(Default)]
struct Cost {
    offset: u64,
    what: String,
    vbs: BTreeSet<VbId>,
    documents: u64,
    /// Whether another file costs the same vBuckets something, too.
    is_shared: bool,
    /// Whether the journal may have some of them.
    is_most: bool,
}

struct LogLook<'a> {
    dir: &'a Path,
    left: Salvage,
    survey: Survey,
    bases: BTreeMap<VbId, LogBase>,
    costs: BTreeMap<PathBuf, Cost>,
    /// Whether anything but copies of the catalog is damaged.
    is_damaged: bool,
}

/// Looks at the folder of a bucket that is kept in a log-structured store. Changes nothing.
///
/// # Errors
///
/// If the disk refuses: that says nothing of what is there. Also if a later version wrote the journal or a manifest.
pub(super) fn survey(env: &Env, dir: &Path) -> Result<Survey, Failure> {
    let mut survey = Survey::default();
    let contents = believed(env, dir, &mut survey)?;
    let is_catalog_lost = contents.is_none();
    let owner = survey.plan.store.map_or(0, |store| store.0);
    let mut found = Vec::new();
    let left = Salvage::open(env, dir, owner, &mut |failure| found.push(failure.clone()));
    let left = left.map_err(|failure| failed(dir, failure))?;
    let (promised, void) = anchor_of(contents.as_ref());
    let journal = salvage(&*env.disk, base::Heap::shared(), dir, promised, void)?;
    survey.plan.segments.clone_from(&journal.segments);
    let is_damaged = is_catalog_lost || !found.is_empty();
    let (bases, costs) = (BTreeMap::new(), BTreeMap::new());
    let mut look = LogLook { dir, left, survey, bases, costs, is_damaged };
    look.note(found);
    match contents {
        Some(contents) if contents.believe == Believe::Files && journal.told.is_empty() => {
            look.by_list(&contents)?;
        }
        contents if journal.told.is_empty() && promised.is_none() => {
            look.by_last_commits(contents.as_ref())?;
        }
        _ => look.by_journal(journal, is_catalog_lost)?,
    }
    Ok(look.end())
}

/// What the catalog says, if it can be believed.
fn believed(env: &Env, dir: &Path, survey: &mut Survey) -> Result<Option<Contents>, Failure> {
    let path = dir.join("catalog");
    let (contents, other) = match catalog::find(&*env.disk, dir)? {
        Found::Catalog(contents, other) => (contents, other),
        Found::Damaged(what) => {
            survey.faults.push((path, 0, what));
            return Ok(None);
        }
        Found::None => {
            let what = "there is none beside the files of a log-structured store".to_owned();
            survey.faults.push((path, 0, what));
            return Ok(None);
        }
    };
    survey.plan.store = Some(contents.store);
    let catalog = Catalog::open(env, dir)?;
    let is_of_now = refuse_older(env, dir, &catalog).and_then(|()| match contents.believe {
        Believe::Files => refuse_unlisted(env, dir, &catalog),
        Believe::Journal { .. } | Believe::Headers => Ok(()),
    });
    match is_of_now {
        Err(Failure::Catalog { what, .. }) => {
            survey.faults.push((path, 0, what));
            return Ok(None);
        }
        checked => checked?,
    }
    if let Some(what) = other {
        survey.faults.push((path, 0, format!("one of its two copies cannot be used: {what}")));
        survey.aside.extend(catalog::paths(dir));
    }
    survey.plan.is_catalog_usable = true;
    survey.was_closed = contents.believe == Believe::Files;
    Ok(Some(contents))
}

fn failed(dir: &Path, failure: logstore::Failure) -> Failure {
    match failure {
        logstore::Failure::Io { operation, path, source, .. } => {
            Failure::Disk { operation, path: path.to_path_buf(), source: crate::failure::again(&source) }
        }
        other => Failure::OtherStore { dir: dir.to_owned(), what: other.to_string() },
    }
}

impl LogLook<'_> {
    /// Notes files that are damaged.
    fn note(&mut self, found: Vec<logstore::Failure>) {
        for failure in found {
            let (path, offset) = place_of(&failure, self.dir);
            let costs = match path.extension().and_then(|ending| ending.to_str()) {
                // It costs what vBuckets have in it.
                Some("seg") => {
                    let cost = Cost { offset, what: failure.to_string(), ..Cost::default() };
                    self.costs.entry(path).or_insert(cost);
                    continue;
                }
                Some("run") => {
                    "a repair makes the key index again from the segments, and nothing is lost by this"
                }
                _ => "its vBuckets go on from the commits that are left of it",
            };
            self.survey.faults.push((path, offset, format!("{failure}; {costs}")));
        }
    }

    /// The catalog lists the commits.
    fn by_list(&mut self, contents: &Contents) -> Result<(), Failure> {
        let mut all: BTreeSet<VbId> = contents.files.keys().copied().collect();
        all.extend(self.left.vbuckets().into_iter().map(VbId));
        for vb in all {
            let listed = contents.files.get(&vb).copied();
            let promised = listed.and_then(|listed| listed.high_seqno).map(Seqno);
            let may_be_more = listed.and_then(|listed| marked(listed.at));
            self.vbucket(vb, Evidence::of_file(listed.map(unmarked), promised, may_be_more))?;
        }
        Ok(())
    }

    /// Nothing says which commits are the last: no journal, and no list that counts.
    fn by_last_commits(&mut self, contents: Option<&Contents>) -> Result<(), Failure> {
        let mut all: BTreeSet<VbId> = self.left.vbuckets().into_iter().map(VbId).collect();
        all.extend(contents.iter().flat_map(|contents| contents.files.keys()));
        for vb in all {
            let at = FileAt { revision: 1, header_offset: FileAt::LAST, checksum: None };
            let last = Listed { at, high_seqno: None, is_tail_void: true };
            let may_be_more =
                contents.is_none().then(|| "no catalog says which commit is the last".to_owned());
            self.vbucket(vb, Evidence::of_file(Some(last), None, may_be_more))?;
        }
        Ok(())
    }

    /// The journal says which commits count, and holds what they do not.
    fn by_journal(&mut self, journal: Salvaged, is_catalog_lost: bool) -> Result<(), Failure> {
        let Salvaged { told, gaps, oldest, headless, .. } = journal;
        self.is_damaged |= !gaps.is_empty() || !headless.is_empty();
        for gap in &gaps {
            self.survey.faults.push((gap.path.clone(), gap.offset, gap.what.clone()));
        }
        for path in headless {
            self.survey.faults.push((path, 0, "both copies of its header are damaged".to_owned()));
        }
        // Gaps of which nothing says whose they are may be anybody's.
        let is_known = gaps.iter().all(|gap| gap.vbs.is_some());
        let missing = lost_in(&gaps, told.iter().map(|(frame, told)| (*frame, told)));
        let mut tracks = BTreeMap::new();
        told.into_iter().for_each(|(frame, replayed)| follow(&mut tracks, frame, replayed));
        for vb in missing.keys() {
            tracks.entry(*vb).or_default();
        }
        if !is_known || is_catalog_lost {
            for vb in self.left.vbuckets() {
                tracks.entry(VbId(vb)).or_default();
            }
        }
        for (vb, track) in tracks {
            let is_its = |gap: &Gap| {
                let named = gap.vbs.as_ref().is_some_and(|vbs| vbs.contains(&vb));
                !is_known || named && missing.contains_key(&vb)
            };
            let evidence = evidence_of(track, &gaps, &is_its, oldest, is_catalog_lost);
            self.vbucket(vb, evidence)?;
        }
        Ok(())
    }

    /// Chooses from what a vBucket goes on.
    fn vbucket(&mut self, vb: VbId, evidence: Evidence) -> Result<(), Failure> {
        let Evidence { on_record, mut saves, mut promised, may_be_more, mut lost, .. } = evidence;
        let mut why: Vec<String> = may_be_more.iter().cloned().collect();
        why.extend(self.left.refused(vb.0).map(str::to_owned));
        why.extend(self.left.unindexed(vb.0).map(str::to_owned));
        let (mut read, mut is_moved, mut is_found) = (None, false, on_record.is_empty() && !saves.is_empty());
        for (i, (listed, through)) in on_record.iter().enumerate() {
            match self.at(vb, listed)? {
                Ok(found) => {
                    saves.retain(|save| save.frame > *through);
                    promised = promised.max(found.as_ref().filter(|_| i == 0).map(LeftRead::had_seqno));
                    (read, is_moved, is_found) = (found, i > 0, true);
                    break;
                }
                Err(what) if i == 0 => why.push(what),
                Err(_) => {}
            }
        }
        if !is_found {
            lost.append(&mut saves);
            (read, is_moved) = (self.last(vb)?.ok(), true);
        } else if may_be_more.is_some()
            && let Ok(newer) = self.last(vb)?
            && newer.had_seqno() > kept_seqno(read.as_ref(), &saves)
        {
            // What is on record is behind, as its record is in a gap.
            lost.append(&mut saves);
            (read, is_moved) = (Some(newer), true);
        }
        why.extend(read.iter().flat_map(|read| &read.holes).map(|hole| hole.failure.to_string()));
        let may_be_more = may_be_more.is_some() || promised.is_none();
        let found = Chosen { vb, read, is_moved, saves, lost, promised, may_be_more };
        self.choose(found, why);
        Ok(())
    }

    /// The commit on record, or why it cannot be used; `Ok(None)` if nothing was filed yet.
    fn at(&self, vb: VbId, listed: &Listed) -> Result<Result<Option<LeftRead>, String>, Failure> {
        let number = listed.at.unmarked().header_offset;
        if listed.at.revision == 0 {
            return Ok(Ok(None));
        }
        if number == FileAt::LAST {
            return Ok(self.last(vb)?.map(Some));
        }
        match self.left.at(vb.0, number) {
            Some(commit) => Ok(self.read(commit)?.map(Some)),
            None => Ok(Err(format!("no manifest has commit {number}, which is on record"))),
        }
    }

    fn last(&self, vb: VbId) -> Result<Result<LeftRead, String>, Failure> {
        match self.left.last(vb.0) {
            Some(commit) => self.read(commit),
            None => Ok(Err("no manifest has a commit of it".to_owned())),
        }
    }

    /// Reads all that can be read of a commit, and counts it.
    fn read(&self, commit: LeftCommit) -> Result<Result<LeftRead, String>, Failure> {
        let state = match LogState::decode(commit.state()) {
            Ok(state) => state,
            Err(what) => return Ok(Err(format!("what is stored with its commit makes no sense: {what}"))),
        };
        let (had, mut high) = (state.tally.documents(), Seqno(0));
        let mut recount = Recount::new(state);
        let scanned = self.left.scan::<logstore::Failure>(&commit, &mut |item| {
            high = high.max(Seqno(item.seqno));
            recount.add(item);
            Ok(())
        });
        let holes = scanned.map_err(|failure| failed(self.dir, failure))?;
        let state =
            if !holes.iter().any(|hole| hole.has_live) { recount.into_before() } else { recount.end() };
        Ok(Ok(LeftRead { commit, state, had, holes, high }))
    }

    fn choose(&mut self, chosen: Chosen, mut why: Vec<String>) {
        let Chosen { vb, mut read, is_moved, saves, lost, promised, may_be_more } = chosen;
        why.dedup();
        let has_holes = read.as_ref().is_some_and(LeftRead::has_holes);
        let lost_documents = self.cost(vb, read.as_ref(), !saves.is_empty());
        let is_partial =
            has_holes && read.as_ref().is_some_and(|read| read.state.state.state != VbState::Active);
        let mut saves = saves;
        if is_partial {
            // Its active would go on behind its highest seqno, and never send what is missing.
            why.push("a replica with documents missing is made again by its active".to_owned());
            (read, saves) = (None, Vec::new());
        }
        let kept = kept_seqno(read.as_ref(), &saves);
        // What a hole has at the end is told as such.
        let reached = kept.max(read.as_ref().map_or(Seqno(0), LeftRead::had_seqno));
        let is_short = may_be_more || promised.is_some_and(|promised| promised > reached);
        let loses = !why.is_empty() && (is_short || has_holes);
        let history = match (loses, has_holes) {
            (false, _) => History::GoesOn,
            (true, false) => History::Begins,
            (true, true) => History::BeginsAtZero,
        };
        if why.is_empty() {
            self.survey.sound += 1;
        } else {
            self.is_damaged = true;
            let holes = read.iter().flat_map(|read| &read.holes).filter(|hole| hole.has_live);
            let damaged = Damaged {
                what: why.join("; "),
                committed_ns: 0,
                kept,
                documents: saves.is_empty().then(|| read.as_ref().map_or(0, LeftRead::documents)),
                promised,
                may_be_more,
                collections: lost_collections(&lost, kept),
                file: read.as_ref().map(|read| self.dir.join(read.commit.manifest())),
                holes: holes.map(|hole| (Seqno(hole.first), Seqno(hole.last))).collect(),
                lost_documents: lost_documents.filter(|_| !is_moved && !is_short),
            };
            self.survey.vbuckets.insert(vb, damaged);
        }
        let commit = read.map(|read| (read.commit, read.state));
        self.bases.insert(vb, LogBase { commit, saves, history, kept });
    }

    /// Notes what damaged segments cost a vBucket; answers how many documents.
    fn cost(&mut self, vb: VbId, read: Option<&LeftRead>, has_saves: bool) -> Option<u64> {
        let read = read?;
        let lost = read.had.saturating_sub(read.documents());
        let places: BTreeMap<PathBuf, (u64, String)> = read
            .holes
            .iter()
            .rev()
            .map(|hole| {
                let (path, offset) = place_of(&hole.failure, self.dir);
                (path, (offset, hole.failure.to_string()))
            })
            .collect();
        let (is_shared, is_most) = (places.len() > 1, has_saves && lost > 0);
        for (path, (offset, what)) in places {
            let cost = self.costs.entry(path).or_insert_with(|| Cost { offset, what, ..Cost::default() });
            cost.vbs.insert(vb);
            cost.documents += lost;
            cost.is_shared |= is_shared;
            cost.is_most |= is_most;
        }
        Some(lost).filter(|_| !is_most)
    }

    fn end(mut self) -> Survey {
        self.survey.faults.extend(self.costs.into_iter().map(|(path, cost)| {
            let said = cost.said();
            (path, cost.offset, said)
        }));
        self.survey.plan.is_copy_only = !self.is_damaged && self.survey.plan.is_catalog_usable;
        self.survey.plan.log = Some(LogPlan { left: self.left, bases: self.bases });
        self.survey
    }
}

/// What was chosen for a vBucket.
struct Chosen {
    vb: VbId,
    read: Option<LeftRead>,
    /// Whether it is not what is on record.
    is_moved: bool,
    saves: Vec<Save>,
    /// Saves that cannot be used.
    lost: Vec<Save>,
    promised: Option<Seqno>,
    may_be_more: bool,
}

impl Cost {
    fn said(&self) -> String {
        let Cost { what, vbs, documents, .. } = self;
        if *documents == 0 {
            return format!("{what}; it costs nothing: no document that counts is in it");
        }
        let vbs: Vec<String> = vbs.iter().map(VbId::to_string).collect();
        let number = match (self.is_shared, self.is_most) {
            (true, _) => "some of ",
            (false, true) => "at most ",
            (false, false) => "",
        };
        format!("{what}; it costs {number}{documents} documents of vBuckets {}", vbs.join(", "))
    }
}

impl LeftRead {
    /// Whether something that counts cannot be read.
    fn has_holes(&self) -> bool {
        self.holes.iter().any(|hole| hole.has_live)
    }

    fn had_seqno(&self) -> Seqno {
        Seqno(self.commit.high_seqno())
    }

    fn documents(&self) -> u64 {
        self.state.tally.documents()
    }
}

fn kept_seqno(read: Option<&LeftRead>, saves: &[Save]) -> Seqno {
    let of_saves = saves.iter().flat_map(|save| &save.items).map(|item| item.meta().by_seqno).max();
    // The highest may be missing.
    let of_commit = read.map(|read| if !read.has_holes() { read.had_seqno() } else { read.high });
    of_saves.max(of_commit).unwrap_or_default()
}
