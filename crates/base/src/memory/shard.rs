//! A shard of a heap: the slabs that one thread, or few, allocate from, behind one lock.

use std::ptr::{NonNull, null};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use super::classes::{CLASSES, SIZES};
use super::lock::{Guard, Lock};
use super::slab::{Slab, SlotList, Standing};

/// A slab is allocated from again when one of so many of its slots is free: each visit to a slab then serves many
/// allocations, and what is not used of full slabs is at most this share.
const REUSE_SHARE: u32 = 32;

/// Bytes of slots that a list at hand holds at most, and how many slots at least and at most.
const LIST_BYTES: u32 = 16 << 10;
const LEAST_LISTED: u32 = 2;
const MOST_LISTED: u32 = 64;

/// All shards of a heap are told of free slots when their number in one has changed by so many bytes.
pub(super) const SLACK_DRIFT: i64 = 16 << 10;

/// Slots of a class that a list at hand holds at most.
static LISTED: [u32; CLASSES] = {
    let mut listed = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let fit = LIST_BYTES / SIZES[class];
        listed[class] = if fit < LEAST_LISTED {
            LEAST_LISTED
        } else if fit > MOST_LISTED {
            MOST_LISTED
        } else {
            fit
        };
        class += 1;
    }
    listed
};

/// The slabs of one class, and slots at hand.
///
/// What a thread frees goes to its own shard's lists, whoever owns the slab: only one list in so many slots goes back
/// to the slabs, and so to the lock of another shard. Two lists, so that a thread at the boundary does not empty and
/// fill the same one again and again.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Bin {
    hot: SlotList,
    spare: SlotList,
    current: *const Slab,
    /// A list of slabs with room.
    partial: *const Slab,
    /// Slots that slabs gave away: in use, or in lists at hand, here or in other shards.
    used: u64,
    /// Slots that were handed out at least once.
    pub(super) begun: u64,
}

impl Bin {
    /// Slots that slabs gave away, less those in the lists here.
    pub(super) fn used(&self) -> i64 {
        self.used as i64 - i64::from(self.hot.count + self.spare.count)
    }
}

/// What the lock of a shard guards.
pub(super) struct Bins {
    bins: [Bin; CLASSES],
    /// Nothing is kept at hand while this is not zero.
    bypassing: u32,
    /// Bytes of free slots, in slabs and in spare lists, that `slack` does not know of yet.
    drift: i64,
    /// The sum of all shards.
    slack: Arc<AtomicI64>,
}

impl Bins {
    /// There are so many more free slots of a class.
    #[inline]
    fn add_slack(&mut self, class: usize, slots: u32) {
        self.drift += i64::from(slots) * i64::from(SIZES[class]);
        if self.drift.abs() >= SLACK_DRIFT {
            self.tell_slack();
        }
    }

    /// There are so many fewer.
    #[inline]
    fn take_slack(&mut self, class: usize, slots: u32) {
        self.drift -= i64::from(slots) * i64::from(SIZES[class]);
        if self.drift.abs() >= SLACK_DRIFT {
            self.tell_slack();
        }
    }

    #[cold]
    fn tell_slack(&mut self) {
        self.slack.fetch_add(std::mem::take(&mut self.drift), Relaxed);
    }
}

// SAFETY: slabs are reached through whoever holds the lock of their owner, from any thread.
unsafe impl Send for Bins {}

/// One of a heap's shards; a cache line of its own.
#[repr(align(128))]
pub(super) struct Shard {
    bins: Lock<Bins>,
    /// Slabs in the list of each class: a look from outside, before the lock is taken.
    partials: [AtomicU32; CLASSES],
}

fn has_room(slab: &Slab) -> bool {
    slab.room() - slab.used() > slab.room() / REUSE_SHARE
}

/// A slab that nobody owns any more; it goes back to the chunks when the lock is released.
#[must_use]
pub(super) struct Emptied(pub(super) NonNull<Slab>);

impl Shard {
    /// A shard without slabs, which tells `slack` how many bytes of its slots are free.
    pub(super) fn new(slack: Arc<AtomicI64>) -> Shard {
        let (hot, spare) = (SlotList::EMPTY, SlotList::EMPTY);
        let bin = Bin { hot, spare, current: null(), partial: null(), used: 0, begun: 0 };
        Shard {
            bins: Lock::new(Bins { bins: [bin; CLASSES], bypassing: 0, drift: 0, slack }),
            partials: [const { AtomicU32::new(0) }; CLASSES],
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { shard: self, bins: self.bins.lock() }
    }

    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked { shard: self, bins: self.bins.try_lock()? })
    }

    /// Whether there are slabs of a class that others could take.
    pub(super) fn has_partial(&self, class: usize) -> bool {
        self.partials[class].load(Relaxed) > 0
    }
}

/// A shard whose lock is held.
pub(super) struct Locked<'a> {
    shard: &'a Shard,
    bins: Guard<'a, Bins>,
}

impl Locked<'_> {
    /// A slot from what is at hand.
    #[inline]
    pub(super) fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let slot = self.bins.bins[class].hot.pop();
        slot.or_else(|| self.take_from_slab(class))
    }

    fn take_from_slab(&mut self, class: usize) -> Option<NonNull<u8>> {
        let spare = std::mem::replace(&mut self.bins.bins[class].spare, SlotList::EMPTY);
        self.bins.take_slack(class, spare.count);
        let bin = &mut self.bins.bins[class];
        bin.hot = spare;
        if let Some(slot) = bin.hot.pop() {
            return Some(slot);
        }
        // SAFETY: slabs in a bin are in use, and we hold their lock.
        let slab = unsafe { bin.current.as_ref() }?;
        // SAFETY: as above.
        if let Some(slot) = unsafe { slab.take_fresh() } {
            bin.used += 1;
            bin.begun += 1;
            return Some(slot);
        }
        // SAFETY: as above.
        bin.hot = unsafe { slab.take_freed() };
        bin.used += u64::from(bin.hot.count);
        let (slot, taken) = (bin.hot.pop(), bin.hot.count + 1);
        if slot.is_some() {
            self.bins.take_slack(class, taken);
        }
        slot
    }

    /// Keeps a freed slot at hand. Returns what is too much: to be put back into slabs after the lock is released.
    ///
    /// # Safety
    /// The slot is of a slab of this heap and class, and is not used any more.
    #[inline]
    pub(super) unsafe fn keep(&mut self, class: usize, slot: NonNull<u8>) -> SlotList {
        let bins = &mut *self.bins;
        let bin = &mut bins.bins[class];
        // SAFETY: the caller's promise.
        unsafe { bin.hot.push(slot) };
        if bins.bypassing > 0 {
            return std::mem::replace(&mut bin.hot, SlotList::EMPTY);
        }
        if bin.hot.count < LISTED[class] {
            return SlotList::EMPTY;
        }
        let full = std::mem::replace(&mut bin.hot, SlotList::EMPTY);
        let count = full.count;
        let too_much = std::mem::replace(&mut bin.spare, full);
        bins.add_slack(class, count);
        bins.take_slack(class, too_much.count);
        too_much
    }

    /// All slots at hand, to be put back into slabs after the lock is released.
    pub(super) fn drain(&mut self) -> Vec<SlotList> {
        for class in 0..CLASSES {
            let spare = self.bins.bins[class].spare.count;
            self.bins.take_slack(class, spare);
        }
        let bins = self.bins.bins.iter_mut();
        let lists = bins.flat_map(|bin| [&mut bin.hot, &mut bin.spare]).filter(|list| list.count > 0);
        lists.map(|list| std::mem::replace(list, SlotList::EMPTY)).collect()
    }

    /// Puts another slab of the list at hand, in the place of one that is full. False if the list is empty.
    pub(super) fn next(&mut self, class: usize) -> bool {
        // SAFETY: slabs in a bin are in use.
        if let Some(full) = unsafe { self.bins.bins[class].current.as_ref() } {
            full.set_standing(Standing::Full);
            self.bins.bins[class].current = null();
        }
        // SAFETY: as above.
        let Some(slab) = (unsafe { self.bins.bins[class].partial.as_ref() }) else { return false };
        self.unlink(slab);
        self.make_current(slab);
        true
    }

    /// Takes a slab of a class over from another shard, if there is none at hand.
    pub(super) fn take_over(&mut self, from: &mut Locked<'_>, class: usize, owner: u32) -> bool {
        // SAFETY: slabs in a bin are in use.
        let Some(slab) = (unsafe { from.bins.bins[class].partial.as_ref() }) else { return false };
        from.unlink(slab);
        let (used, begun) = (u64::from(slab.used()), u64::from(slab.begun()));
        let theirs = &mut from.bins.bins[class];
        (theirs.used, theirs.begun) = (theirs.used - used, theirs.begun - begun);
        let ours = &mut self.bins.bins[class];
        (ours.used, ours.begun) = (ours.used + used, ours.begun + begun);
        slab.owner.store(owner, Relaxed);
        self.make_current(slab);
        true
    }

    /// Adds a slab that was never used.
    pub(super) fn add(&mut self, slab: &Slab) {
        if self.bins.bins[slab.class()].current.is_null() {
            self.make_current(slab);
        } else {
            // Another thread of the shard was faster.
            self.link(slab);
        }
    }

    /// Takes a slot back. If its slab is empty by that and should go, returns it.
    ///
    /// # Safety
    /// The slot is of `slab`, which this shard owns, and is not used any more.
    #[inline]
    pub(super) unsafe fn put(&mut self, slab: &Slab, slot: NonNull<u8>) -> Option<Emptied> {
        // SAFETY: we hold the lock of the owner; the rest is the caller's promise.
        let used = unsafe { slab.put(slot) };
        self.bins.bins[slab.class()].used -= 1;
        self.bins.add_slack(slab.class(), 1);
        match slab.standing() {
            Standing::Current => None,
            standing if used == 0 => Some(self.remove(slab, standing)),
            Standing::Full if has_room(slab) => {
                self.link(slab);
                None
            }
            _ => None,
        }
    }

    /// From now on nothing is kept at hand: nobody will allocate, or not from where it was freed.
    pub(super) fn begin_bypass(&mut self) {
        self.bins.bypassing += 1;
    }

    /// From now on slots are kept at hand again.
    pub(super) fn end_bypass(&mut self) {
        self.bins.bypassing -= 1;
    }

    /// Takes the slabs at hand away. Returns those that are empty.
    pub(super) fn retire(&mut self) -> Vec<Emptied> {
        let mut emptied = Vec::new();
        for class in 0..CLASSES {
            let bin = &mut self.bins.bins[class];
            // SAFETY: slabs in a bin are in use.
            let Some(slab) = (unsafe { std::mem::replace(&mut bin.current, null()).as_ref() }) else {
                continue;
            };
            slab.set_standing(Standing::Full);
            if slab.used() == 0 {
                emptied.push(self.remove(slab, Standing::Full));
            } else if has_room(slab) {
                self.link(slab);
            }
        }
        emptied
    }

    /// What is in use of each class.
    pub(super) fn bins(&self) -> &[Bin; CLASSES] {
        &self.bins.bins
    }

    fn make_current(&mut self, slab: &Slab) {
        slab.set_standing(Standing::Current);
        self.bins.bins[slab.class()].current = slab;
    }

    fn remove(&mut self, slab: &Slab, standing: Standing) -> Emptied {
        if standing == Standing::Partial {
            self.unlink(slab);
        }
        self.bins.bins[slab.class()].begun -= u64::from(slab.begun());
        // It was free to the last slot.
        self.bins.take_slack(slab.class(), slab.begun());
        Emptied(NonNull::from(slab))
    }

    fn link(&mut self, slab: &Slab) {
        slab.set_standing(Standing::Partial);
        let head = &mut self.bins.bins[slab.class()].partial;
        slab.before.set(null());
        slab.behind.set(*head);
        // SAFETY: slabs in a list are in use, and we hold their lock.
        if let Some(behind) = unsafe { head.as_ref() } {
            behind.before.set(slab);
        }
        *head = slab;
        self.shard.partials[slab.class()].fetch_add(1, Relaxed);
    }

    fn unlink(&mut self, slab: &Slab) {
        let (before, behind) = (slab.before.get(), slab.behind.get());
        // SAFETY: slabs in a list are in use, and we hold their lock.
        match unsafe { before.as_ref() } {
            Some(before) => before.behind.set(behind),
            None => self.bins.bins[slab.class()].partial = behind,
        }
        // SAFETY: as above.
        if let Some(behind) = unsafe { behind.as_ref() } {
            behind.before.set(before);
        }
        self.shard.partials[slab.class()].fetch_sub(1, Relaxed);
    }
}
