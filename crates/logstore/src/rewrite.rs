//! Rewriting segments that waste much, or that are small: what counts goes to a new segment, where the extents of a vBucket
//! that follow each other become one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::planted::{self, Bug};
use roaring::RoaringTreemap;

use crate::failure::Failure;
use crate::file::{FileKind, Purpose};
use crate::identity::FileId;
use crate::meta::{Edit, Extent, RewriteEdit, SegmentMeta, VbMeta};
use crate::segment::{ExtentReader, MOST_SEGMENT_BYTES, Segment, SegmentWriter};
use crate::shard::Shard;
use crate::work::Progress;

/// Extents of a vBucket that follow each other.
struct Stretch {
    vb: u16,
    meta: Arc<VbMeta>,
    extents: Vec<Extent>,
    dropped: RoaringTreemap,
    /// The next of the extents.
    next: usize,
}

/// A rewrite under way.
pub(crate) struct Rewrite {
    segments: BTreeMap<u64, Arc<Segment>>,
    stretches: Vec<Stretch>,
    /// The stretch that it is at.
    at: usize,
    is_begun: bool,
    reader: Option<ExtentReader>,
    writer: SegmentWriter,
    edits: Vec<Edit>,
    bytes: u64,
}

impl Rewrite {
    /// Begins to rewrite segments.
    pub(crate) fn begin(shard: &Shard, chosen: &BTreeSet<u64>) -> Result<Rewrite, Failure> {
        let (segments, stretches) = {
            let state = shard.state.read();
            let segments: BTreeMap<u64, Arc<Segment>> = chosen
                .iter()
                .filter_map(|number| Some((*number, state.segments.get(number)?.clone())))
                .collect();
            let mut stretches = Vec::new();
            for (vb, meta) in &state.meta.vbs {
                let is_in = |extent: &Extent| segments.contains_key(&extent.segment);
                let mut was_in = false;
                for extent in meta.extents.iter() {
                    if is_in(extent) && !was_in {
                        let (meta, dropped) = (meta.clone(), RoaringTreemap::new());
                        stretches.push(Stretch { vb: *vb, meta, extents: Vec::new(), dropped, next: 0 });
                    }
                    was_in = is_in(extent);
                    if was_in {
                        stretches.last_mut().expect("it was begun").extents.push(extent.clone());
                    }
                }
            }
            (segments, stretches)
        };
        let writer = SegmentWriter::new(shard.new_file(FileKind::Segment)?);
        Ok(Rewrite {
            segments,
            stretches,
            at: 0,
            is_begun: false,
            reader: None,
            writer,
            edits: Vec::new(),
            bytes: 0,
        })
    }

    /// Reads about `bytes`.
    pub(crate) fn step(&mut self, bytes: u64) -> Result<Progress, Failure> {
        let mut done = 0;
        while self.at < self.stretches.len() {
            if done >= bytes {
                return Ok(Progress::More);
            }
            done += self.step_in_stretch(bytes - done)?;
        }
        if !self.writer.is_empty() {
            self.writer.finish()?;
            self.writer.file.sync()?;
        }
        Ok(Progress::Done)
    }

    fn step_in_stretch(&mut self, bytes: u64) -> Result<u64, Failure> {
        let stretch = &mut self.stretches[self.at];
        if !self.is_begun {
            self.writer.begin(stretch.vb);
            self.is_begun = true;
        }
        let Some(extent) = stretch.extents.get(stretch.next) else {
            self.end_stretch()?;
            return Ok(1);
        };
        if self.reader.is_none() {
            let segment = &self.segments[&extent.segment];
            self.reader = Some(ExtentReader::new(segment, stretch.vb, extent.ordinal, extent.first)?);
        }
        let reader = self.reader.as_mut().expect("it was begun");
        let mut done = 1;
        while let Some(item) = reader.next()? {
            if item.seqno > extent.last {
                break;
            }
            if item.seqno < extent.first {
                continue;
            }
            done += u64::from(item.bytes()) + 16;
            let is_superseded =
                planted::is(Bug::RewriteForgetsPoints) && stretch.meta.superseded.contains_key(&item.seqno);
            if stretch.meta.dead.contains(item.seqno) || is_superseded {
                stretch.dropped.insert(item.seqno);
            } else {
                self.writer.add(&item)?;
            }
            if done >= bytes {
                return Ok(done);
            }
        }
        self.reader = None;
        stretch.next += 1;
        Ok(done)
    }

    fn end_stretch(&mut self) -> Result<(), Failure> {
        let stretch = &mut self.stretches[self.at];
        let written = self.writer.end()?;
        let new = written.map(|written| {
            self.bytes += written.bytes;
            Extent {
                segment: self.writer.file.id.number,
                ordinal: written.ordinal,
                first: written.first,
                last: written.last,
                items: written.items,
                bytes: written.bytes,
                dead_bytes: 0,
            }
        });
        let old = stretch.extents.iter().map(Extent::id).collect();
        let dropped = std::mem::take(&mut stretch.dropped);
        self.edits.push(Edit::Rewrite(RewriteEdit { vb: stretch.vb, old, new, dropped }));
        self.at += 1;
        self.is_begun = false;
        Ok(())
    }

    /// Puts the new segment in the place of the old ones.
    pub(crate) fn install(self, shard: &Shard) -> Result<(), Failure> {
        let mut edits = Vec::new();
        let mut names = Vec::new();
        if self.writer.is_empty() {
            self.writer.file.abandon(&shard.files);
        } else {
            if let Err(failure) = shard.files.sync_dir() {
                self.writer.file.abandon(&shard.files);
                return Err(failure);
            }
            names.push(self.writer.file.name.clone());
            let (FileId { number, nonce, .. }, len) = (self.writer.file.id, self.writer.file.len());
            shard.files.count(Purpose::Rewrites, len);
            let segment = SegmentMeta { len, bytes: self.bytes, nonce };
            edits.push(Edit::AddSegment { number, segment });
        }
        edits.extend(self.edits);
        let old = self.segments.keys();
        edits.extend(old.map(|number| Edit::RemoveFile { kind: FileKind::Segment, number: *number }));
        shard.log(&mut shard.writer.lock(), &edits, &names)
    }

    /// It cannot be done; segments that cannot be read are left alone from now on.
    pub(crate) fn abandon(self, shard: &Shard, failure: &Failure) {
        if let Some(path) = failure.damaged_file() {
            self.segments.values().filter(|one| one.file.path() == path).for_each(|one| one.file.make_bad());
        }
        self.writer.file.abandon(&shard.files);
    }
}

impl Shard {
    /// The segments that are to be rewritten next, if any are worth it.
    pub(crate) fn wasteful(&self) -> Option<BTreeSet<u64>> {
        let state = self.state.read();
        let live = state.meta.live_bytes();
        let waste_percent = self.files.tuning.lock().waste_percent;
        let is_good = |number: &u64| state.segments.get(number).is_some_and(|segment| !segment.file.is_bad());
        let mut worst: Vec<(u64, u64, u64)> = Vec::new();
        let mut small: Vec<u64> = Vec::new();
        for (number, SegmentMeta { len, bytes, .. }) in
            state.meta.segments.iter().filter(|(number, _)| is_good(number))
        {
            let live = live.get(number).copied().unwrap_or(0);
            let waste = 100 - 100 * live.min(*bytes) / (*bytes).max(1);
            if waste >= waste_percent || live == 0 {
                worst.push((waste, *number, live));
            }
            if *len < self.config.small_segment_bytes {
                small.push(*number);
            }
        }
        if !worst.is_empty() {
            worst.sort_unstable_by(|a, b| b.cmp(a));
            let mut chosen = BTreeSet::new();
            let mut sum = 0;
            for (_, number, live) in worst {
                if !chosen.is_empty() && sum + live > self.config.rewrite_bytes {
                    break;
                }
                sum += live;
                chosen.insert(number);
            }
            return Some(chosen);
        }
        let most = self.config.small_segments.max(2);
        (small.len() >= most).then(|| small.into_iter().take(2 * most).collect())
    }

    /// Segments in which items of these vBuckets do not count any more.
    pub(crate) fn wasted_by(&self, vbs: &BTreeSet<u16>) -> BTreeSet<u64> {
        let state = self.state.read();
        let metas = vbs.iter().filter_map(|vb| state.meta.vbs.get(vb));
        let wasted = metas.flat_map(|meta| meta.extents.iter()).filter(|extent| extent.dead_bytes > 0);
        let is_good = |number: &u64| state.segments.get(number).is_some_and(|one| !one.file.is_bad());
        wasted.map(|extent| extent.segment).filter(is_good).collect()
    }

    /// Some of these segments, with not too much that counts.
    pub(crate) fn some_of(&self, chosen: &BTreeSet<u64>) -> BTreeSet<u64> {
        let live = self.state.read().meta.live_bytes();
        let mut some = BTreeSet::new();
        let mut sum = 0;
        for number in chosen {
            sum += live.get(number).copied().unwrap_or(0);
            if !some.is_empty() && sum > self.config.rewrite_bytes.min(MOST_SEGMENT_BYTES / 2) {
                break;
            }
            some.insert(*number);
        }
        some
    }
}
