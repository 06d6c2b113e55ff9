//! Opening a folder: manifests are read, and files that none of them names are removed. No other file is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use base::env::Env;
use base::planted::{self, Bug};

use crate::cache::BlockCache;
use crate::failure::Failure;
use crate::file::{FileKind, Files, LogFile, file_name, parse_name};
use crate::manifest::{Manifest, Told, parse_manifest_name, read_shards};
use crate::meta::{Edit, Point, ShardMeta, VbMeta};
use crate::shard::Shard;
use crate::store::{Config, LogStore};
use crate::tuning::Tuning;

/// More shards than these make no sense.
const MOST_SHARDS: usize = 1024;

/// Which commits count.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// The last one of each vBucket.
    Last,
    /// For each vBucket the one with the number that is on record, or later ones if that cannot be gone back to; other
    /// vBuckets are forgotten, except those in `missing`, of which the record may have been lost.
    Record {
        /// Numbers of commits.
        commits: &'a BTreeMap<u16, u64>,
        /// vBuckets that stay as they are.
        missing: &'a BTreeSet<u16>,
    },
}

/// What is in a folder.
#[derive(Default)]
pub(crate) struct Listing {
    pub(crate) manifests: BTreeSet<usize>,
    pub(crate) files: BTreeSet<(usize, FileKind, u64)>,
    /// Names of manifests that were not finished.
    unfinished: Vec<String>,
}

impl LogStore {
    /// Opens a folder, made if missing.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or if the folder cannot be understood at all. What is damaged of a shard or a vBucket shows
    /// there.
    pub fn open(env: &Env, dir: &Path, config: Config, trust: &Trust<'_>) -> Result<LogStore, Failure> {
        let path: Arc<Path> = dir.into();
        let failed = |operation| {
            let path = path.clone();
            move |source| Failure::io(operation, &path, 0, source)
        };
        env.disk.create_dir_all_synced(dir).map_err(failed("make folder"))?;
        env.disk.sync_dir(dir).map_err(failed("sync"))?;
        let names = env.disk.read_dir(dir).map_err(failed("list"))?;
        let files = Arc::new(Files::new(env, dir, config.owner, config.most_open_files));
        let Config { waste_percent, merge_runs, .. } = config;
        *files.tuning.lock() = Tuning { waste_percent, merge_runs, is_paused: false };
        let listing = list(names);
        for name in &listing.unfinished {
            env.disk.remove_file(&files.path(name)).map_err(failed("remove an unfinished manifest of"))?;
        }
        let shards = shards_on_record(&files, &listing, config.shards)?;
        let config = Config { shards, ..config };
        let cache = Arc::new(BlockCache::new(config.cache_bytes, env.heap.account().clone()));
        let shared = || (files.clone(), cache.clone(), env.heap.account().clone(), config);
        let opened = (0..shards).map(|index| open_shard(index, shared(), &listing, trust));
        let shards = opened.collect::<Result<Vec<_>, Failure>>()?;
        let sync = env.disk.group_sync(dir).map_err(failed("open"))?;
        Ok(LogStore { files, cache, shards, sync })
    }
}

pub(crate) fn list(names: Vec<String>) -> Listing {
    let mut listing = Listing::default();
    for name in names {
        match (parse_manifest_name(&name), parse_name(&name)) {
            (Some((_, true)), _) => listing.unfinished.push(name),
            (Some((shard, false)), _) => drop(listing.manifests.insert(shard)),
            (None, Some(file)) => drop(listing.files.insert(file)),
            (None, None) => {}
        }
    }
    listing
}

/// How many shards the folder was made with.
fn shards_on_record(files: &Files, listing: &Listing, wanted: usize) -> Result<usize, Failure> {
    let mut damage = None;
    for shard in &listing.manifests {
        match read_shards(files, *shard) {
            Ok(shards) if shards > *shard && shards <= MOST_SHARDS => return Ok(shards),
            Ok(_) => {}
            Err(failure @ (Failure::Damaged { .. } | Failure::Foreign { .. })) => damage = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    damage.map_or(Ok(wanted.clamp(1, MOST_SHARDS)), Err)
}

fn open_shard(
    index: usize,
    shared: (Arc<Files>, Arc<BlockCache>, base::Account, Config),
    listing: &Listing,
    trust: &Trust<'_>,
) -> Result<Shard, Failure> {
    let files = shared.0.clone();
    let shards = shared.3.shards;
    let mut told =
        if listing.manifests.contains(&index) { Manifest::open(&files, index)? } else { Told::nothing(None) };
    let is_mine = |vb: u16| usize::from(vb) % shards == index;
    // What is there may stay, and is not written over.
    let mine = listing.files.iter().filter(|(shard, ..)| *shard == index);
    told.meta.skip_files(mine.map(|(.., number)| *number).max().unwrap_or(0));
    if let Some(damage) = &told.damage {
        // What is not told may be about any vBucket, and any file may be named there.
        let what: Arc<str> = damage.to_string().into();
        let named = match trust {
            Trust::Last => BTreeSet::new(),
            Trust::Record { commits, missing } => {
                commits.keys().chain(*missing).copied().filter(|vb| is_mine(*vb)).collect()
            }
        };
        let known: BTreeSet<u16> = told.meta.vbs.keys().copied().chain(named).collect();
        let vbuckets = list_of(known.iter().copied());
        tracing::error!(
            event = "log_manifest_damaged", shard = index, damage = %what, vbuckets,
            "a manifest is damaged; its vBuckets are not served"
        );
        known.into_iter().for_each(|vb| told.meta.apply(&Edit::Damage { vb, what: what.clone() }));
    }
    let edits = match trust {
        Trust::Record { commits, missing } => {
            settle(&mut told.meta, is_mine, (commits, missing), told.has_identity)
        }
        Trust::Last => settle_last(&told.meta),
    };
    let missed: Vec<u16> = edits.iter().filter_map(Edit::damaged).collect();
    if !missed.is_empty() && told.damage.is_none() {
        let vbuckets = list_of(missed.iter().copied());
        tracing::error!(
            event = "log_manifest_incomplete",
            shard = index,
            vbuckets,
            "a manifest is without what is on record; these vBuckets are not served"
        );
    }
    // If what is on record is missing, the disk may have read the manifest wrong: as long as nothing else is to be
    // written, all stays as it is, and the next start decides again.
    let is_whole = told.damage.is_none() && missed.is_empty();
    let strays = if is_whole { strays_of(&files, index, listing, &told.meta) } else { Vec::new() };
    edits.iter().for_each(|edit| told.meta.apply(edit));
    let has_tail = listing.manifests.contains(&index) && told.manifest.is_none();
    // If a sync of it failed in this life of the machine, what was read may be in the cache alone, and another sync would
    // not tell: another manifest says the same before a file goes that one of before may name.
    let is_unsettled = is_whole && (!edits.is_empty() || has_tail || !strays.is_empty());
    let manifest = if edits.is_empty() && strays.is_empty() { told.manifest } else { None };
    let shard = Shard::new(index, shared, told.meta, manifest, is_unsettled);
    shard.writer.lock().strays = strays;
    if let Trust::Record { commits, .. } = trust {
        let mine = commits.iter().filter(|(vb, _)| is_mine(**vb)).map(|(vb, commit)| (*vb, *commit));
        shard.state.write().recorded.extend(mine);
    }
    if let (Some(damage), Trust::Last) = (told.damage, trust) {
        // There may have been vBuckets that are not told of.
        shard.refuse_all(damage.to_string().into());
    }
    Ok(shard)
}

/// Numbers of vBuckets, for a message.
fn list_of(vbs: impl Iterator<Item = u16>) -> String {
    vbs.map(|vb| vb.to_string()).collect::<Vec<_>>().join(", ")
}

/// Names of files that a manifest does not name, if all that it names is there: they are to be removed.
fn strays_of(files: &Arc<Files>, index: usize, listing: &Listing, meta: &ShardMeta) -> Vec<String> {
    let strays = strays(index, listing, meta);
    if strays.is_empty() {
        return Vec::new();
    }
    match look_at_named(files, index, listing, meta) {
        Ok(()) => strays.into_iter().map(|(shard, kind, number)| file_name(shard, kind, number)).collect(),
        Err(failure) => {
            tracing::error!(
                event = "log_files_unnamed", shard = index, %failure,
                "files that no manifest names stay, as one that is named is missing"
            );
            Vec::new()
        }
    }
}

/// Files of a shard that its manifest does not name.
fn strays(index: usize, listing: &Listing, meta: &ShardMeta) -> Vec<(usize, FileKind, u64)> {
    let is_stray = |(shard, kind, number): &&(usize, FileKind, u64)| {
        let is_named = match kind {
            FileKind::Run => meta.runs.iter().any(|run| run.number == *number),
            FileKind::Segment => meta.segments.contains_key(number),
        };
        *shard == index && !is_named
    };
    listing.files.iter().filter(is_stray).copied().collect()
}

/// Fails if one of the files that a manifest names is not there, or is another one: then the manifest may be that of
/// another copy of the folder, and what it does not name may be what counts.
fn look_at_named(
    files: &Arc<Files>,
    index: usize,
    listing: &Listing,
    meta: &ShardMeta,
) -> Result<(), Failure> {
    let runs = meta.runs.iter().map(|run| (FileKind::Run, run.number, run.nonce, run.bytes));
    let segments = meta.segments.iter();
    let segments = segments.map(|(number, one)| (FileKind::Segment, *number, one.nonce, one.len));
    for (kind, number, nonce, len) in runs.chain(segments) {
        let name = (index, kind, number);
        if !listing.files.contains(&name) {
            let path = files.path(&file_name(index, kind, number));
            return Err(Failure::damaged(&path, 0, "it is missing"));
        }
        LogFile::new(files, name, nonce, len).identify(kind)?;
    }
    Ok(())
}

/// What brings a shard to its last commits.
fn settle_last(meta: &ShardMeta) -> Vec<Edit> {
    let forgets = meta.prepared.keys().map(|vb| Edit::Forget { vb: *vb });
    let pending = meta.vbs.iter().filter(|(_, now)| now.is_pending());
    forgets.chain(pending.map(|(vb, _)| Edit::Reset { vb: *vb })).collect()
}

/// What brings a shard to the commits that are on record. vBuckets of which a commit is missing are damaged. A manifest
/// without identity may have given up the commit, and has a later one then.
fn settle(
    meta: &mut ShardMeta,
    is_mine: impl Fn(u16) -> bool,
    (commits, missing): (&BTreeMap<u16, u64>, &BTreeSet<u16>),
    has_identity: bool,
) -> Vec<Edit> {
    let mut edits = Vec::new();
    let known: BTreeSet<u16> =
        meta.vbs.keys().chain(meta.prepared.keys()).chain(meta.damaged.keys()).copied().collect();
    let gone = known.iter().filter(|vb| !commits.contains_key(vb) && !missing.contains(vb));
    edits.extend(gone.map(|vb| Edit::Drop { vb: *vb }));
    let mut epoch = meta.next_epoch;
    for (vb, commit) in commits.iter().filter(|(vb, _)| is_mine(**vb) && !missing.contains(vb)) {
        if meta.damaged.contains_key(vb) {
            continue;
        }
        let is_it = |point: &Point| point.commit == *commit;
        if meta.prepared.get(vb).is_some_and(|prepared| is_it(prepared.last())) {
            edits.push(Edit::Adopt { vb: *vb });
            continue;
        }
        if meta.prepared.contains_key(vb) {
            edits.push(Edit::Forget { vb: *vb });
        }
        let has_it = |now: &VbMeta| {
            let is_exact = has_identity && !planted::is(Bug::LogIdentityIgnored);
            if is_exact { now.points.iter().any(is_it) } else { now.last().commit >= *commit }
        };
        let Some(now) = meta.vbs.get(vb).filter(|now| has_it(now)) else {
            let what = format!(
                "its manifest does not have commit {commit}, which is on record: it is an older one, or that of a copy of \
                 the folder that went on by itself; put the right one back, or restore the vBucket from a copy"
            );
            edits.push(Edit::Damage { vb: *vb, what: what.into() });
            continue;
        };
        // What is behind the commit on record will be committed again, or is void.
        if let Some(at) = now.points.iter().position(is_it).filter(|at| at + 1 < now.points.len())
            && !planted::is(Bug::LaterCommitsStay)
        {
            edits.push(Edit::Set { vb: *vb, meta: now.rolled_back(at, epoch, *commit) });
            epoch += 1;
        } else if *commit >= now.barrier && now.is_pending() {
            edits.push(Edit::Reset { vb: *vb });
        }
    }
    edits
}
