//! Which vBuckets the frames of a journal have records of. Each frame says so of the frames before it, so that one that
//! is damaged costs only the vBuckets that it had something of (docs/adr/0094-gaps-cost-their-vbuckets.md).
//!
//! *Guarantee:* a directory names at least the vBuckets of the frames that it covers, maybe more. If a whole frame follows
//! in the same segment, or the first frame of the next one is whole, every missing frame is covered.

use std::collections::VecDeque;

use base::VbId;

/// How many frames before it a frame has directories of.
const SPANS: [usize; 3] = [1, 4, 16];
/// Frames that are remembered, as many as the longest span.
const REMEMBERED: usize = 16;
const BITS: usize = u8::BITS as usize;

/// A set of vBuckets, as bits from vBucket 0 on.
#[derive(Debug, Default)]
pub(super) struct VbSet(Vec<u8>);

impl Clone for VbSet {
    fn clone(&self) -> VbSet {
        VbSet(self.0.clone())
    }

    /// Without an allocation if there is room.
    fn clone_from(&mut self, other: &VbSet) {
        self.0.clone_from(&other.0);
    }
}

impl VbSet {
    /// Bytes that hold every vBucket.
    const MAX_BYTES: usize = (u16::MAX as usize + 1) / BITS;

    pub(super) fn insert(&mut self, vb: VbId) {
        let (at, bit) = (usize::from(vb.0) / BITS, usize::from(vb.0) % BITS);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << bit;
    }

    pub(super) fn add(&mut self, other: &VbSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        std::iter::zip(&mut self.0, &other.0).for_each(|(byte, other)| *byte |= other);
    }

    /// Keeps only what is in the other, too.
    pub(super) fn retain(&mut self, other: &VbSet) {
        self.0.truncate(other.0.len());
        std::iter::zip(&mut self.0, &other.0).for_each(|(byte, other)| *byte &= other);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = VbId> + '_ {
        let has = |vb: usize| self.0[vb / BITS] & (1 << (vb % BITS)) != 0;
        (0..self.0.len() * BITS).filter(move |vb| has(*vb)).map(|vb| VbId(vb as u16))
    }

    /// The first vBucket of the bits that are written, a multiple of 8, and the bits from there on.
    pub(super) fn encoded(&self) -> (u16, &[u8]) {
        let skipped = self.0.iter().take_while(|byte| **byte == 0).count();
        if skipped == self.0.len() { (0, &[]) } else { ((skipped * BITS) as u16, &self.0[skipped..]) }
    }

    /// `None` if these are no vBuckets.
    pub(super) fn decoded(first: u16, bits: &[u8]) -> Option<VbSet> {
        let skipped = usize::from(first) / BITS;
        let is_possible = usize::from(first).is_multiple_of(BITS) && skipped + bits.len() <= Self::MAX_BYTES;
        is_possible.then(|| VbSet([vec![0; skipped].as_slice(), bits].concat()))
    }
}

impl FromIterator<VbId> for VbSet {
    fn from_iter<T: IntoIterator<Item = VbId>>(vbs: T) -> VbSet {
        let mut set = VbSet::default();
        vbs.into_iter().for_each(|vb| set.insert(vb));
        set
    }
}

/// What a frame says of frames before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    /// The first frame that it covers; the last is the one before the frame with the directory.
    pub(super) from: u64,
    /// vBuckets with records in these frames; tables do not count.
    pub(super) vbs: VbSet,
}

/// What is remembered of the frames before the next one. Its sets keep their space, so that a frame allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Number and vBuckets of the last frames, without a gap, oldest first.
    frames: VecDeque<(u64, VbSet)>,
    /// Sets that were used in `frames`, for the next ones; together at most `REMEMBERED`.
    unused: Vec<VbSet>,
    /// Frames of the segment before the one that is written to.
    before: Directory,
    /// Frames of the one that is written to.
    current: Directory,
    /// Directories of missing frames that the first frame of the next segment repeats.
    again: Vec<Directory>,
    /// The directory that is being told.
    one: Directory,
}

impl Recent {
    /// A frame was written, or read.
    pub(super) fn note(&mut self, number: u64, vbs: &VbSet) {
        if self.frames.back().is_some_and(|(last, _)| last + 1 != number) {
            self.go_on_with(0);
        }
        let oldest = if self.frames.len() == REMEMBERED { self.frames.pop_front() } else { None };
        let mut set = oldest.map(|(_, set)| set).or_else(|| self.unused.pop()).unwrap_or_default();
        set.clone_from(vbs);
        self.current.vbs.add(vbs);
        self.frames.push_back((number, set));
    }

    /// A segment begins with frame `first`.
    pub(super) fn begin_segment(&mut self, first: u64) {
        // Of one without a durable frame the frames are written again: it is still that one's turn.
        if first > self.current.from {
            self.before = std::mem::take(&mut self.current);
            self.current.from = first;
        }
    }

    /// Frames from `next` on are void: they are written again, or were never told to be durable. What they had stays in
    /// the directory of their segment.
    pub(super) fn go_on_with(&mut self, next: u64) {
        while let Some((_, set)) = self.frames.pop_back_if(|(number, _)| *number >= next) {
            self.unused.push(set);
        }
    }

    /// Frames are missing, in which there may be records of `named`; frames behind `proven` are written again, and with
    /// them what they say of those, `again`.
    pub(super) fn go_around(&mut self, proven: u64, named: &VbSet, again: Vec<Directory>) {
        self.go_on_with(proven + 1);
        self.before.vbs.add(named);
        self.current.vbs.add(named);
        self.again = again;
    }

    /// Tells the directories of frame `number`: of the frame before it, of the last 4 and 16, of its segment so far, and,
    /// if it is the first, of the segment before. No two begin with the same frame.
    pub(super) fn tell(&mut self, number: u64, is_first: bool, mut tell: impl FnMut(&Directory)) {
        let Recent { frames, before, current, again, one, .. } = self;
        let mut told = [0; SPANS.len() + 1];
        if frames.back().is_some_and(|(last, _)| last + 1 == number) {
            one.vbs.clear();
            let mut spans = told.iter_mut();
            for (covered, (from, vbs)) in (1..).zip(frames.iter().rev()) {
                one.from = *from;
                one.vbs.add(vbs);
                if SPANS.contains(&covered) || covered == frames.len() {
                    if let Some(span) = spans.next() {
                        *span = *from;
                    }
                    tell(one);
                }
            }
        }
        let (again, before) = if is_first { (&again[..], Some(&*before)) } else { (&[][..], None) };
        let more = || again.iter().chain(before).chain([&*current]);
        for (at, directory) in more().enumerate() {
            let is_news =
                !told.contains(&directory.from) && more().take(at).all(|it| it.from != directory.from);
            if is_news && (1..number).contains(&directory.from) {
                tell(directory);
            }
        }
    }
}
