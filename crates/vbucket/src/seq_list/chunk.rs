//! A run of the list: versions with neighbouring seqnos, eight bytes a slot while most of them are there.

use base::{Seqno, Version};

/// Seqnos that a dense chunk spans.
pub(super) const SPAN: usize = 256;
/// Versions that a sparse chunk holds at most.
pub(super) const MOST_SPARSE: usize = SPAN / 2;
/// A chunk with fewer slots is left as it is.
const LEAST_SLOTS: usize = 8;

/// Versions in seqno order.
///
/// While it is dense a slot's place is its seqno's distance from the first one. Once half of the slots are empty they
/// go, and each of the others gets its distance beside it.
pub(super) struct Chunk {
    /// No seqno in it is lower.
    first: u64,
    /// Distances of the slots from the first seqno; none while it is dense.
    distances: Vec<u32>,
    slots: Vec<Option<Version>>,
    held: u32,
    tombstones: u32,
}

impl Chunk {
    pub(super) fn new(first: Seqno, slots: usize) -> Chunk {
        let slots = Vec::with_capacity(slots);
        Chunk { first: first.0, distances: Vec::new(), slots, held: 0, tombstones: 0 }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Versions in it, stale ones included.
    pub(super) fn held(&self) -> usize {
        self.held as usize
    }

    /// Tombstones in it, stale ones included.
    pub(super) fn has_tombstones(&self) -> bool {
        self.tombstones > 0
    }

    /// Bytes allocated for it.
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Version>>() + self.distances.capacity() * size_of::<u32>()
    }

    fn is_dense(&self) -> bool {
        self.distances.is_empty()
    }

    /// Whether a dense chunk has a slot for a seqno that is higher than all in it.
    pub(super) fn spans(&self, seqno: Seqno) -> bool {
        self.slots.is_empty() || seqno.0 - self.first < SPAN as u64
    }

    /// Appends to a dense chunk that spans the version's seqno.
    pub(super) fn push(&mut self, version: Version) {
        let seqno = version.meta().by_seqno.0;
        if self.slots.is_empty() {
            self.first = seqno;
        }
        let at = (seqno - self.first) as usize;
        if at >= self.slots.capacity() {
            let room = (self.slots.capacity() * 2).max(LEAST_SLOTS).max(at + 1).min(SPAN);
            self.slots.reserve_exact(room - self.slots.len());
        }
        self.slots.resize_with(at, || None);
        self.enter(&version);
        self.slots.push(Some(version));
    }

    fn enter(&mut self, version: &Version) {
        self.held += 1;
        self.tombstones += u32::from(version.is_deleted());
    }

    fn place(&self, seqno: Seqno) -> Option<usize> {
        let distance = seqno.0.checked_sub(self.first)?;
        if self.is_dense() {
            return usize::try_from(distance).ok().filter(|at| *at < self.slots.len());
        }
        self.distances.binary_search(&u32::try_from(distance).ok()?).ok()
    }

    /// The slot of a seqno, if there is a version in it.
    pub(super) fn get_mut(&mut self, seqno: Seqno) -> Option<&mut Version> {
        let at = self.place(seqno)?;
        self.slots[at].as_mut()
    }

    /// Empties the slot of a seqno.
    pub(super) fn take(&mut self, seqno: Seqno) -> Option<Version> {
        let at = self.place(seqno)?;
        let version = self.slots[at].take()?;
        self.held -= 1;
        self.tombstones -= u32::from(version.is_deleted());
        Some(version)
    }

    /// Its versions from a seqno on.
    pub(super) fn from(&self, seqno: Seqno) -> impl Iterator<Item = &Version> {
        let distance = seqno.0.saturating_sub(self.first);
        let at = if self.is_dense() {
            usize::try_from(distance).unwrap_or(usize::MAX).min(self.slots.len())
        } else {
            self.distances.partition_point(|there| u64::from(*there) < distance)
        };
        self.slots[at..].iter().flatten()
    }

    /// Whether half of its slots are empty.
    pub(super) fn is_loose(&self) -> bool {
        self.slots.len() > LEAST_SLOTS && self.held() * 2 <= self.slots.len()
    }

    /// Lets go of empty slots; it is sparse from now on.
    pub(super) fn tighten(&mut self) {
        let mut distances = Vec::with_capacity(self.held());
        let mut slots = Vec::with_capacity(self.held());
        for version in self.slots.drain(..).flatten() {
            let distance = version.meta().by_seqno.0 - self.first;
            distances.push(u32::try_from(distance).expect("as checked when chunks were joined"));
            slots.push(Some(version));
        }
        (self.distances, self.slots) = (distances, slots);
    }

    /// Whether the chunk after this one can be joined to it.
    pub(super) fn can_absorb(&self, next: &Chunk) -> bool {
        self.held() + next.held() <= MOST_SPARSE
            && next.first + next.reach() - self.first <= u64::from(u32::MAX)
    }

    /// The distance of the last slot.
    fn reach(&self) -> u64 {
        self.distances.last().map_or(self.slots.len() as u64, |last| u64::from(*last))
    }

    /// Joins the chunk after this one to it.
    pub(super) fn absorb(&mut self, mut next: Chunk) {
        if self.is_dense() || self.is_loose() {
            self.tighten();
        }
        for version in next.slots.drain(..).flatten() {
            self.distances.push((version.meta().by_seqno.0 - self.first) as u32);
            self.enter(&version);
            self.slots.push(Some(version));
        }
    }
}
