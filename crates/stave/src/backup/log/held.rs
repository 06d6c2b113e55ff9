//! Frames that are read together, in the order in which they lie in the log, before those of one vBucket after the other are
//! wanted: what a log has of a vBucket is spread over all of it, and would else be read once for each of them.

use std::collections::HashMap;
use std::ops::Range;

use super::index::{EntryReader, FramePlace, ReadFrame};
use crate::backup::BackupError;

/// Bytes of frames that are in memory at once.
const MOST_BYTES: usize = 64 << 20;
/// What a frame takes in memory beside its entries.
const FRAME_BYTES: usize = 128;

/// Frames of vBuckets that follow each other.
pub(super) struct HeldFrames {
    pub(super) most_bytes: usize,
    /// Those of which all wanted frames were read.
    vbuckets: Range<u16>,
    frames: HashMap<(u32, u64), ReadFrame>,
}

impl Default for HeldFrames {
    fn default() -> HeldFrames {
        HeldFrames { most_bytes: MOST_BYTES, vbuckets: 0..0, frames: HashMap::new() }
    }
}

fn bytes_of(place: &FramePlace) -> usize {
    // An entry takes eight bytes at the least, of which four are noted once more.
    place.raw as usize * 3 / 2 + FRAME_BYTES
}

impl HeldFrames {
    /// Whether what is wanted of a vBucket was read with that of others.
    pub(super) fn has(&self, vb: u16) -> bool {
        self.vbuckets.contains(&vb)
    }

    /// Reads what is wanted of a vBucket and of as many behind it as fit; `wanted` tells that of each. One that does not fit
    /// alone is read in parts: see [`HeldFrames::part`].
    pub(super) fn read(
        &mut self,
        reader: &mut EntryReader<'_>,
        vbuckets: Range<u16>,
        wanted: impl Fn(u16) -> Vec<FramePlace>,
    ) -> Result<(), BackupError> {
        self.frames.clear();
        let (begin, mut places, mut bytes) = (vbuckets.start, Vec::new(), 0);
        self.vbuckets = begin..begin;
        for vb in vbuckets {
            let of_vb = wanted(vb);
            bytes += of_vb.iter().map(bytes_of).sum::<usize>();
            if bytes > self.most_bytes {
                break;
            }
            places.extend(of_vb);
            self.vbuckets.end = vb + 1;
        }
        self.read_all(reader, places)
    }

    /// Reads the last of some places that fit together, one at the least; how many these are.
    pub(super) fn part(
        &mut self,
        reader: &mut EntryReader<'_>,
        places: &[FramePlace],
    ) -> Result<usize, BackupError> {
        self.frames.clear();
        self.vbuckets = 0..0;
        let mut bytes = 0;
        let fit = places.iter().rev().take_while(|place| {
            bytes += bytes_of(place);
            bytes <= self.most_bytes
        });
        let count = fit.count().max(1).min(places.len());
        self.read_all(reader, places[places.len() - count..].to_vec())?;
        Ok(count)
    }

    fn read_all(
        &mut self,
        reader: &mut EntryReader<'_>,
        mut places: Vec<FramePlace>,
    ) -> Result<(), BackupError> {
        places.sort_unstable_by_key(|place| (place.segment, place.at));
        for place in places {
            reader.read(place.segment, place.at)?;
            self.frames.insert((place.segment, place.at), reader.take());
        }
        Ok(())
    }

    /// Has the reader go to a frame, which is in memory no longer then.
    pub(super) fn give(
        &mut self,
        reader: &mut EntryReader<'_>,
        place: &FramePlace,
    ) -> Result<(), BackupError> {
        match self.frames.remove(&(place.segment, place.at)) {
            Some(frame) => reader.put(frame),
            None => drop(reader.read(place.segment, place.at)?),
        }
        Ok(())
    }
}
