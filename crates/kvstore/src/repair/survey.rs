//! Looking at a bucket's folder: from what each vBucket can go on, and what was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::env::{Env, OpenMode};
use base::planted::{self, Bug};
use base::{CollectionId, Seqno, VbId};

use super::{Base, Damaged, Survey};
use crate::catalog::{self, Believe, Contents, Found, Listed};
use crate::collections::SYSTEM;
use crate::compaction::FileAt;
use crate::couch::parse_name;
use crate::couch::whole::{Files, Whole};
use crate::failure::Failure;
use crate::files::StorageBackend;
use crate::journal::{Filed, Frame, Gap, Replayed, Salvaged, salvage};
use crate::journaled::lost::lost_in;
use crate::journaled::recovery::Save;
use crate::log::is_log_file;

/// What a journal says of a vBucket.
#[derive(Default)]
pub(super) struct Track {
    /// Durable states of its file, oldest first.
    filed: Vec<Filed>,
    saves: Vec<Save>,
    /// Whether saves before the first of those states are void.
    is_rolled_back: bool,
}

/// What is known of a vBucket before its files are looked at.
pub(super) struct Evidence {
    /// What is on record, newest first: the first is what was promised. Behind each, the frame through which it goes.
    pub(super) on_record: Vec<(Listed, Frame)>,
    pub(super) saves: Vec<Save>,
    pub(super) promised: Option<Seqno>,
    /// Why more may have been promised than is known.
    pub(super) may_be_more: Option<String>,
    /// Whether what is promised is the least that was, so that it is not known how much a damaged file had.
    is_least: bool,
    /// What the journal has, and cannot be used.
    pub(super) lost: Vec<Save>,
}

impl Evidence {
    /// A vBucket without a journal.
    pub(super) fn of_file(
        on_record: Option<Listed>,
        promised: Option<Seqno>,
        may_be_more: Option<String>,
    ) -> Evidence {
        let on_record = on_record.into_iter().map(|listed| (listed, Frame(0))).collect();
        let (saves, lost) = (Vec::new(), Vec::new());
        Evidence { on_record, saves, promised, may_be_more, is_least: false, lost }
    }
}

/// Why more was promised than a commit has that carries the mark of a start that found the journal damaged.
pub(super) fn marked(at: FileAt) -> Option<String> {
    at.is_lost()
        .then(|| "a start found the journal damaged, and what followed this commit is missing".to_owned())
}

pub(super) fn unmarked(listed: Listed) -> Listed {
    Listed { at: listed.at.unmarked(), ..listed }
}

struct Look<'a> {
    files: Files<'a>,
    revisions: BTreeMap<VbId, BTreeSet<u64>>,
    survey: Survey,
}

/// Looks at the folder of a bucket. Changes nothing.
///
/// # Errors
///
/// If the disk refuses: that says nothing of what is there. Also if a later version wrote the journal.
pub fn survey(env: &Env, dir: &Path) -> Result<Survey, Failure> {
    let disk = &*env.disk;
    let names = disk.read_dir(dir);
    let names = names.map_err(|source| Failure::Disk { operation: "list", path: dir.to_owned(), source })?;
    if names.iter().any(|name| is_log_file(name)) {
        return super::log::survey(env, dir);
    }
    if StorageBackend::of_names(&names) == StorageBackend::RocksDb {
        let what = "what RocksDB keeps is not repaired: fill the bucket from another node, or restore it from a backup";
        return Err(Failure::OtherStore { dir: dir.to_owned(), what: what.to_owned() });
    }
    let mut revisions: BTreeMap<VbId, BTreeSet<u64>> = BTreeMap::new();
    for (vb, revision) in names.iter().filter_map(|name| parse_name(name)) {
        revisions.entry(vb).or_default().insert(revision);
    }
    let mut look = Look { files: Files { disk, dir, store: None }, revisions, survey: Survey::default() };
    let contents = look.catalog()?;
    let believe = contents.as_ref().map(|contents| contents.believe);
    // A folder of a version without catalogs has none, and that is no fault.
    let is_catalog_lost = contents.is_none() && !look.survey.faults.is_empty();
    let (promised, void) = anchor_of(contents.as_ref());
    let journal = salvage(disk, base::Heap::shared(), dir, promised, void)?;
    look.survey.plan.generations =
        journal.generations.max(contents.as_ref().map_or(0, |contents| contents.generations));
    look.survey.plan.segments.clone_from(&journal.segments);
    match (contents, believe) {
        (Some(contents), Some(Believe::Files | Believe::Headers)) => look.by_files(&contents)?,
        (None, _) if journal.told.is_empty() => look.by_last_headers(is_catalog_lost)?,
        _ => look.by_journal(journal, is_catalog_lost)?,
    }
    look.survey.plan.is_copy_only = look.survey.vbuckets.is_empty()
        && look.survey.plan.is_catalog_usable
        && look.survey.plan.unused.is_empty()
        && look.survey.aside.iter().all(|path| is_catalog(path));
    Ok(look.survey)
}

/// The segment of the journal that a catalog names, with its salt, and up to which generation segments are void.
pub(super) fn anchor_of(contents: Option<&Contents>) -> (Option<(u64, u64)>, u64) {
    let Some(contents) = contents else { return (None, 0) };
    match contents.believe {
        Believe::Journal { generation, salt } => {
            let void = contents.generations;
            (Some((generation, salt)), if void < generation { void } else { 0 })
        }
        Believe::Files | Believe::Headers => (None, contents.generations),
    }
}

fn is_catalog(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("catalog"))
}

impl Look<'_> {
    /// What the catalog says, if it can be used.
    fn catalog(&mut self) -> Result<Option<Contents>, Failure> {
        let dir = self.files.dir;
        let found = catalog::find(self.files.disk, dir)?;
        let path = dir.join("catalog");
        let copies = || ["catalog", "catalog.copy"].map(|name| dir.join(name));
        match found {
            Found::Catalog(contents, other) => {
                if let Some(what) = other {
                    let what = format!("one of its two copies cannot be used: {what}");
                    self.survey.faults.push((path, 0, what));
                    self.survey.aside.extend(copies());
                }
                self.survey.plan.is_catalog_usable = true;
                self.survey.plan.store = Some(contents.store);
                self.survey.was_closed = contents.believe == Believe::Files;
                self.files.store = Some(contents.store);
                return Ok(Some(contents));
            }
            Found::Damaged(what) => {
                self.survey.faults.push((path, 0, what));
                self.survey.aside.extend(copies());
            }
            Found::None => {}
        }
        let mut stores: BTreeMap<u128, usize> = BTreeMap::new();
        for (vb, revisions) in &self.revisions {
            let store = revisions.last().and_then(|revision| self.files.store_of(*vb, *revision));
            store.into_iter().for_each(|store| *stores.entry(store.0).or_default() += 1);
        }
        let most = stores.iter().max_by_key(|(_, files)| **files).map(|(store, _)| catalog::StoreId(*store));
        if most.is_some() && self.survey.faults.is_empty() {
            let what = "it and its copy are missing, and files say that they belong to one".to_owned();
            self.survey.faults.push((dir.join("catalog"), 0, what));
        }
        self.survey.plan.store = most;
        self.files.store = most;
        Ok(None)
    }

    /// The catalog lists the files.
    fn by_files(&mut self, contents: &Contents) -> Result<(), Failure> {
        let is_exact = contents.believe == Believe::Files;
        let mut all: BTreeSet<VbId> = contents.files.keys().copied().collect();
        if !is_exact {
            all.extend(self.revisions.keys());
        }
        let strays: Vec<VbId> = self.revisions.keys().filter(|vb| !all.contains(vb)).copied().collect();
        strays.into_iter().for_each(|vb| self.stray(vb, "the catalog does not list the vBucket"));
        for vb in all {
            let listed = contents.files.get(&vb).copied();
            if is_exact {
                let promised = listed.and_then(|listed| listed.high_seqno).map(Seqno);
                let may_be_more = listed.and_then(|listed| marked(listed.at));
                self.vbucket(vb, Evidence::of_file(listed.map(unmarked), promised, may_be_more))?;
            } else {
                self.by_headers(vb, listed)?;
            }
        }
        Ok(())
    }

    /// Files were written to without a journal: the last header counts, which is not before the listed one.
    fn by_headers(&mut self, vb: VbId, listed: Option<Listed>) -> Result<(), Failure> {
        if let Some(lost) = listed.filter(|listed| listed.at.is_lost()) {
            let promised = lost.high_seqno.map(Seqno);
            return self.vbucket(vb, Evidence::of_file(Some(unmarked(lost)), promised, marked(lost.at)));
        }
        let highest = self.revisions.get(&vb).and_then(|revisions| revisions.last().copied());
        let revision = highest.max(listed.map(|listed| listed.at.revision)).unwrap_or_default();
        let last = Listed { at: FileAt::last_of(revision), high_seqno: None, is_tail_void: true };
        let is_there = match listed.filter(|listed| listed.at.revision == revision) {
            Some(listed) => self.files.at(vb, &listed)?.map(drop),
            None => Ok(()),
        };
        let promised = listed.and_then(|listed| listed.high_seqno).map(Seqno);
        let (on_record, may_be_more) = match is_there {
            Ok(()) => (Some(last), None),
            Err(what) => (None, Some(what)),
        };
        // Without a journal nothing says which header is the last that was written.
        self.vbucket(vb, Evidence { is_least: true, ..Evidence::of_file(on_record, promised, may_be_more) })
    }

    /// Nothing says which files are in use: no catalog, and no journal.
    fn by_last_headers(&mut self, is_damaged: bool) -> Result<(), Failure> {
        let all: Vec<(VbId, u64)> =
            self.revisions.iter().filter_map(|(vb, revisions)| Some((*vb, *revisions.last()?))).collect();
        for (vb, revision) in all {
            let last = Listed { at: FileAt::last_of(revision), high_seqno: None, is_tail_void: true };
            let may_be_more = is_damaged.then(|| "no catalog says which commit is the last".to_owned());
            self.vbucket(vb, Evidence::of_file(Some(last), None, may_be_more))?;
        }
        Ok(())
    }

    /// The journal says which files are in use, and holds what they do not.
    fn by_journal(&mut self, journal: Salvaged, is_catalog_lost: bool) -> Result<(), Failure> {
        let Salvaged { told, gaps, oldest, segments, headless, .. } = journal;
        for gap in &gaps {
            self.survey.faults.push((gap.path.clone(), gap.offset, gap.what.clone()));
        }
        let is_damaged = !gaps.is_empty() || !headless.is_empty();
        for path in headless {
            self.survey.faults.push((path, 0, "both copies of its header are damaged".to_owned()));
        }
        if is_damaged || is_catalog_lost {
            self.survey.aside.extend(segments);
        }
        // Gaps of which nothing says whose they are may be anybody's.
        let is_known = gaps.iter().all(|gap| gap.vbs.is_some());
        let missing = lost_in(&gaps, told.iter().map(|(frame, told)| (*frame, told)));
        let mut tracks: BTreeMap<VbId, Track> = BTreeMap::new();
        for (frame, replayed) in told {
            follow(&mut tracks, frame, replayed);
        }
        for vb in missing.keys() {
            tracks.entry(*vb).or_default();
        }
        let unlisted: Vec<VbId> =
            self.revisions.keys().filter(|vb| !tracks.contains_key(vb)).copied().collect();
        for vb in unlisted {
            if is_known && !is_catalog_lost {
                // Made shortly before a crash: what is in it is in the journal.
                self.keep_aside(vb, None, true);
            } else {
                tracks.entry(vb).or_default();
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
        let Evidence { on_record, mut saves, promised, may_be_more, is_least, mut lost } = evidence;
        let mut why: Vec<String> = may_be_more.iter().cloned().collect();
        let (mut file, mut is_moved, mut is_found) = (None, false, on_record.is_empty() && !saves.is_empty());
        for (i, (listed, through)) in on_record.iter().enumerate() {
            let at_once =
                if listed.at.revision == 0 { Ok(None) } else { self.files.at(vb, listed)?.map(Some) };
            match at_once {
                Ok(whole) => {
                    why.extend(
                        whole.as_ref().filter(|_| !listed.is_tail_void).and_then(|whole| self.tail_of(whole)),
                    );
                    saves.retain(|save| save.frame > *through);
                    (file, is_moved, is_found) = (whole, i > 0, true);
                    break;
                }
                Err(what) if i == 0 => why.push(what),
                Err(_) => {}
            }
        }
        if !is_found {
            lost.append(&mut saves);
            (file, is_moved) = (self.newest(vb)?, true);
        } else if may_be_more.is_some()
            && let Some(newer) = self.newest(vb)?
            && newer.high_seqno > kept_seqno(file.as_ref(), &saves)
        {
            // What is on record is behind, as its record is in a gap.
            lost.append(&mut saves);
            (file, is_moved) = (Some(newer), true);
        }
        let highest_revision =
            self.revisions.get(&vb).and_then(|all| all.last().copied()).unwrap_or_default();
        let kept = kept_seqno(file.as_ref(), &saves);
        let may_be_more = may_be_more.is_some() || promised.is_none() || (is_least && is_moved);
        let loses = !why.is_empty() && (may_be_more || promised.is_some_and(|promised| promised > kept));
        if why.is_empty() {
            self.survey.sound += 1;
        } else {
            let damaged = Damaged {
                what: why.join("; "),
                committed_ns: file.as_ref().map_or(0, |whole| whole.timestamp_ns),
                kept,
                documents: saves.is_empty().then(|| file.as_ref().map_or(0, |whole| whole.documents)),
                promised,
                may_be_more,
                collections: lost_collections(&lost, kept),
                file: file.as_ref().map(|whole| whole.path.clone()),
                holes: Vec::new(),
                lost_documents: None,
            };
            self.survey.vbuckets.insert(vb, damaged);
        }
        let in_use = file.as_ref().filter(|_| !is_moved).map(|whole| whole.revision);
        self.keep_aside(vb, in_use, why.is_empty());
        let base = Base { file, is_moved, saves, begins_history: loses, highest_revision };
        self.survey.plan.bases.insert(vb, base);
        Ok(())
    }

    /// What stands behind the last header, if nothing may.
    fn tail_of(&self, whole: &Whole) -> Option<String> {
        let len = self.files.disk.open(&whole.path, OpenMode::Read).and_then(|file| file.len()).ok()?;
        (len > whole.end).then(|| "it goes on behind the header that the catalog lists".to_owned())
    }

    /// The newest commit of any revision that can be used.
    fn newest(&self, vb: VbId) -> Result<Option<Whole>, Failure> {
        let mut best: Option<Whole> = None;
        for revision in self.revisions.get(&vb).into_iter().flatten().rev() {
            let whole = self.files.newest(vb, *revision)?;
            if let Some(whole) = whole
                && best.as_ref().is_none_or(|best| best.high_seqno < whole.high_seqno)
            {
                best = Some(whole);
            }
        }
        Ok(best)
    }

    /// A vBucket's files that are not in use afterwards; those of a damaged one are kept aside.
    fn keep_aside(&mut self, vb: VbId, in_use: Option<u64>, is_sound: bool) {
        for revision in self.revisions.get(&vb).into_iter().flatten() {
            let path = self.files.dir.join(crate::couch::file_name(vb, *revision));
            if !is_sound {
                self.survey.aside.insert(path.clone());
            }
            if Some(*revision) != in_use {
                self.survey.plan.unused.insert(path);
            }
        }
    }

    /// Files that belong to no vBucket.
    fn stray(&mut self, vb: VbId, what: &str) {
        let revisions = self.revisions.get(&vb).into_iter().flatten();
        let paths = revisions.map(|revision| self.files.dir.join(crate::couch::file_name(vb, *revision)));
        let faults: Vec<_> = paths.map(|path| (path, 0, what.to_owned())).collect();
        self.survey.faults.extend(faults);
        self.keep_aside(vb, None, false);
    }
}

/// Takes in what a journal tells.
pub(super) fn follow(tracks: &mut BTreeMap<VbId, Track>, frame: Frame, replayed: Replayed) {
    match replayed {
        Replayed::Save { vb, state, items, begun, .. } => {
            tracks.entry(vb).or_default().saves.push(Save { frame, begun, state, items });
        }
        Replayed::Filed(filed) => {
            let track = tracks.entry(filed.vb).or_default();
            if track.filed.last() != Some(&filed) {
                track.filed.push(filed);
            }
        }
        Replayed::RolledBack(filed) => {
            *tracks.entry(filed.vb).or_default() =
                Track { filed: vec![filed], saves: Vec::new(), is_rolled_back: true };
        }
        Replayed::Dropped(vb) => drop(tracks.remove(&vb)),
    }
}

pub(super) fn evidence_of(
    track: Track,
    gaps: &[Gap],
    is_its: &dyn Fn(&Gap) -> bool,
    oldest: Option<Frame>,
    is_catalog_lost: bool,
) -> Evidence {
    let Track { filed, mut saves, is_rolled_back } = track;
    let through = filed.last().map_or(Frame(0), |filed| filed.through);
    let gap = gaps.iter().find(|gap| gap.last > through && is_its(gap));
    let before = filed.last().and_then(|filed| marked(filed.at()));
    let promised = saves.iter().flat_map(|save| &save.items).map(|item| item.meta().by_seqno).max();
    let mut on_record: Vec<(Listed, Frame)> = Vec::new();
    for filed in filed.iter().rev() {
        let listed = Listed { at: filed.at().unmarked(), high_seqno: None, is_tail_void: true };
        // What followed an earlier state must be there, too.
        let follows = on_record.is_empty()
            || oldest.is_some_and(|oldest| oldest.0 <= filed.through.0 + 1)
                && gaps.iter().all(|gap| gap.last <= filed.through);
        if follows {
            on_record.push((listed, filed.through));
        }
    }
    // A file that was made behind the journal's first frame is in the journal as a whole.
    let is_made_here = filed.first().is_some_and(|first| first.through > Frame(0)) && !is_rolled_back;
    if is_made_here && gaps.is_empty() && oldest == Some(Frame(1)) {
        let at = FileAt::default();
        on_record.push((Listed { at, high_seqno: None, is_tail_void: true }, Frame(0)));
    }
    let is_kept = |save: &mut Save| {
        let is_before = |gap: &Gap| save.frame < gap.first || save.frame <= through;
        gap.is_none_or(is_before) || planted::is(Bug::RepairPassesGap)
    };
    let lost = saves.extract_if(.., |save| !is_kept(save)).collect();
    let may_be_more = match gap {
        Some(gap) => Some(format!(
            "the journal is damaged from frame {} on ({}: offset {}: {}), and what of the vBucket stood there cannot be told",
            gap.first.0.max(through.0 + 1),
            gap.path.display(),
            gap.offset,
            gap.what
        )),
        None if before.is_some() => before,
        None if is_catalog_lost => Some("no catalog says with which segment the journal ends".to_owned()),
        None => None,
    };
    Evidence { on_record, saves, promised, may_be_more, is_least: false, lost }
}

pub(super) fn kept_seqno(file: Option<&Whole>, saves: &[Save]) -> Seqno {
    let of_saves = saves.iter().flat_map(|save| &save.items).map(|item| item.meta().by_seqno).max();
    let of_file = file.map(|whole| whole.high_seqno);
    of_saves.max(of_file).unwrap_or_default()
}

/// Collections of which the journal has something that is not kept; `None` if it has nothing.
pub(super) fn lost_collections(saves: &[Save], kept: Seqno) -> Option<BTreeSet<CollectionId>> {
    let items = saves.iter().flat_map(|save| &save.items).filter(|item| item.meta().by_seqno > kept);
    let ids = items.map(|item| item.document_key().collection);
    let ids: BTreeSet<CollectionId> = ids.filter(|id| *id != SYSTEM).collect();
    (!ids.is_empty()).then_some(ids)
}
