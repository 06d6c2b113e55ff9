//! What is left of a folder that is damaged: of each vBucket a commit, and every item of it that can be read. Nothing is
//! changed.
//!
//! *Guarantee:* an item that is visited is one of the commit, whole. What cannot be read is told as a range of seqnos.
//! The key index is not used: items are read in order of seqno, and the manifest says which of them count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use base::env::Env;

use crate::check::{Look, check_run};
use crate::failure::Failure;
use crate::file::{FileKind, Files, LogFile};
use crate::manifest::{Manifest, manifest_name};
use crate::meta::{SegmentMeta, ShardMeta, VbMeta};
use crate::open::list;
use crate::segment::{Item, Segment};
use crate::view::Commit;

/// What is left of a folder.
pub struct Salvage {
    shards: Vec<LeftShard>,
}

/// A shard as its manifest tells it, up to where that is damaged.
struct LeftShard {
    index: usize,
    meta: ShardMeta,
    segments: BTreeMap<u64, Arc<Segment>>,
    /// Whether commits have numbers that no other folder gives.
    has_identity: bool,
    /// vBuckets with entries in runs that are damaged, and what is wrong with those.
    unindexed: BTreeMap<u16, String>,
}

/// A commit of a vBucket, of which items may be missing.
#[derive(Clone)]
pub struct LeftCommit {
    shard: usize,
    vb: u16,
    meta: Arc<VbMeta>,
}

/// Items that cannot be read.
#[derive(Clone, Debug)]
pub struct Hole {
    /// None has a lower seqno.
    pub first: u64,
    /// None has a higher one.
    pub last: u64,
    /// Whether any of them may count.
    pub has_live: bool,
    /// Why.
    pub failure: Failure,
}

impl LeftCommit {
    /// The name of the manifest that has it.
    pub fn manifest(&self) -> String {
        manifest_name(self.shard)
    }

    /// Its epoch and number.
    pub fn commit(&self) -> Commit {
        Commit { epoch: self.meta.epoch(), number: self.meta.last().commit }
    }

    /// Its highest seqno.
    pub fn high_seqno(&self) -> u64 {
        self.meta.high()
    }

    /// Seqno up to which tombstones may be missing.
    pub fn purge_seqno(&self) -> u64 {
        self.meta.last().purge
    }

    /// What the caller stored with it.
    pub fn state(&self) -> &[u8] {
        &self.meta.last().state
    }
}

impl Salvage {
    /// Reads the manifests of a folder, its runs, and of segments whose they are. `fault` is told of those that are damaged.
    ///
    /// # Errors
    ///
    /// If the disk refuses, which says nothing of what is there, or if another version wrote a manifest.
    pub fn open(
        env: &Env,
        dir: &Path,
        owner: u128,
        fault: &mut dyn FnMut(&Failure),
    ) -> Result<Salvage, Failure> {
        let path: Arc<Path> = dir.into();
        let names = env.disk.read_dir(dir).map_err(|source| Failure::io("list", &path, 0, source))?;
        let files = Arc::new(Files::new(env, dir, owner, 16));
        let listing = list(names);
        let named: BTreeSet<usize> = listing.files.iter().map(|(shard, ..)| *shard).collect();
        for shard in named.difference(&listing.manifests) {
            let path = files.path(&manifest_name(*shard));
            fault(&Failure::damaged(&path, 0, "it is missing, and files of its shard are there"));
        }
        let mut shards = Vec::new();
        for index in listing.manifests {
            let told = match Manifest::look(&files, index) {
                Ok((told, _)) => told,
                Err(failure @ Failure::Unsupported { .. }) => return Err(failure),
                Err(failure) if failure.is_damage() => {
                    fault(&failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            told.damage.iter().for_each(&mut *fault);
            let look = Look { env, files: &files, shard: index, meta: &told.meta };
            let unindexed = unindexed(&look, fault)?;
            let segment = |(number, meta): (&u64, &SegmentMeta)| {
                let file = LogFile::new(&files, (index, FileKind::Segment, *number), meta.nonce, meta.len);
                (*number, Arc::new(Segment::new(file, env.heap.account().clone())))
            };
            let segments: BTreeMap<u64, Arc<Segment>> = told.meta.segments.iter().map(segment).collect();
            for segment in segments.values() {
                match segment.file.identify(FileKind::Segment) {
                    Err(failure) if failure.is_damage() => fault(&failure),
                    identified => identified?,
                }
            }
            let has_identity = told.has_identity;
            shards.push(LeftShard { index, meta: told.meta, segments, has_identity, unindexed });
        }
        Ok(Salvage { shards })
    }

    /// The caller's highest number that was noted: see [`crate::LogStore::note`].
    pub fn beside(&self) -> u64 {
        self.shards.iter().map(|shard| shard.meta.beside).max().unwrap_or(0)
    }

    /// The vBuckets of which a commit is left.
    pub fn vbuckets(&self) -> BTreeSet<u16> {
        self.shards.iter().flat_map(|shard| shard.meta.vbs.keys().copied()).collect()
    }

    /// Why an earlier start did not serve a vBucket, if it noted that.
    pub fn refused(&self, vb: u16) -> Option<&str> {
        self.shards.iter().find_map(|shard| shard.meta.damaged.get(&vb)).map(|what| &**what)
    }

    /// What is wrong with the key index of a vBucket, if anything is.
    pub fn unindexed(&self, vb: u16) -> Option<&str> {
        self.shards.iter().find_map(|shard| shard.unindexed.get(&vb)).map(String::as_str)
    }

    /// The last commit of a vBucket.
    pub fn last(&self, vb: u16) -> Option<LeftCommit> {
        let of = |shard: &LeftShard| Some((shard.index, shard.meta.vbs.get(&vb)?.clone()));
        let (shard, meta) = self.shards.iter().find_map(of)?;
        (!meta.points.is_empty()).then_some(LeftCommit { shard, vb, meta })
    }

    /// The commit of a vBucket with a number, or what the manifest has in its place if it is of an earlier version.
    pub fn at(&self, vb: u16, number: u64) -> Option<LeftCommit> {
        self.shards.iter().find_map(|shard| shard.at(vb, number))
    }

    /// Visits the items of a commit that can be read, in order of seqno, and answers what cannot.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or `visit` fails.
    pub fn scan<E: From<Failure>>(
        &self,
        commit: &LeftCommit,
        visit: &mut dyn FnMut(&Item<'_>) -> Result<(), E>,
    ) -> Result<Vec<Hole>, E> {
        let LeftCommit { vb, meta, .. } = commit;
        let has =
            |shard: &&LeftShard| shard.meta.vbs.contains_key(vb) || shard.meta.prepared.contains_key(vb);
        let shard = self.shards.iter().find(has);
        let mut holes: Vec<Hole> = Vec::new();
        for extent in meta.extents.iter() {
            let mut miss = |first: u64, last: u64, failure: Failure| {
                let (first, last) = (first.max(extent.first), last.min(extent.last));
                let has_live = has_live(meta, first, last);
                holes.push(Hole { first, last, has_live, failure });
            };
            let Some(segment) = shard.and_then(|shard| shard.segments.get(&extent.segment)) else {
                let what = format!("segment {} is not on record", extent.segment).into();
                miss(extent.first, extent.last, Failure::Refused { vb: *vb, what });
                continue;
            };
            let visit = &mut |item: &Item<'_>| {
                if item.seqno <= extent.last && meta.is_live(item.seqno) { visit(item) } else { Ok(()) }
            };
            segment.salvage((*vb, extent.ordinal), visit, &mut miss)?;
        }
        Ok(holes)
    }
}

impl LeftShard {
    fn at(&self, vb: u16, number: u64) -> Option<LeftCommit> {
        let prepared = self.meta.prepared.get(&vb);
        if let Some(meta) = prepared.filter(|meta| meta.last().commit == number) {
            return Some(LeftCommit { shard: self.index, vb, meta: meta.clone() });
        }
        let now = self.meta.vbs.get(&vb).filter(|meta| !meta.points.is_empty())?;
        let found = now.points.iter().position(|point| point.commit == number);
        let meta = match found {
            Some(at) if at + 1 < now.points.len() => {
                Arc::new(now.rolled_back(at, self.meta.next_epoch, number))
            }
            Some(_) => now.clone(),
            None if !self.has_identity && now.last().commit >= number => now.clone(),
            None => return None,
        };
        Some(LeftCommit { shard: self.index, vb, meta })
    }
}

/// Whether a commit may have an item in a range of seqnos.
fn has_live(meta: &VbMeta, first: u64, last: u64) -> bool {
    if first > last {
        return false;
    }
    let gone = meta.dead.range_cardinality(first..=last) + meta.superseded.range(first..=last).count() as u64;
    gone < last - first + 1
}

/// The vBuckets with something in a run that cannot be read.
fn unindexed(look: &Look<'_>, fault: &mut dyn FnMut(&Failure)) -> Result<BTreeMap<u16, String>, Failure> {
    let mut unindexed = BTreeMap::new();
    for run in &look.meta.runs {
        match check_run(look, run) {
            Ok(()) => {}
            Err(failure) if failure.is_damage() => {
                fault(&failure);
                let known = look.meta.vbs.keys().filter(|vb| run.vbs.contains(vb));
                known.for_each(|vb| drop(unindexed.insert(*vb, failure.to_string())));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(unindexed)
}
