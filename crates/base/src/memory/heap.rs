//! Where the memory of document versions comes from.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use super::account::{Account, thread_number};
use super::chunks::CHUNKS;
use super::classes::{CLASSES, SIZES, class_of};
use super::part::Part;
use super::process::SYSTEM_PAGES_FROM;
use super::shard::{Emptied, Shard};
use super::slab::{Slab, SlotList, Standing};

#[cfg(test)]
mod tests;

/// Shards a processor: threads share one rarely, and what lies unused in them stays little.
const SHARDS_A_CORE: usize = 2;
const MOST_SHARDS: usize = 64;
/// Before an allocation that is too large for slots: whose it is. Keeps the alignment.
const PREFIX: usize = 16;
/// What the system's allocator needs for itself, and what it rounds to.
const SYSTEM_HEAD: usize = 8;
const SYSTEM_GRAIN: usize = 16;
const PAGE: usize = 4096;

pub(super) struct Inner {
    account: Account,
    /// What its memory is charged as.
    part: Part,
    shards: Box<[Shard]>,
    /// Handles; slabs and large allocations count as references only.
    handles: AtomicUsize,
    /// Bytes of allocations that are too large for slots.
    large_bytes: AtomicU64,
    /// About how many bytes of slots are held and not used.
    slack: Arc<AtomicI64>,
}

/// Allocates the versions of one bucket and charges them to its account; a clone is the same heap.
///
/// Whoever drops the last reference to a version, on whatever thread, gives its memory back to the heap it came from,
/// which lives as long as any of its memory.
pub struct Heap(Arc<Inner>);

/// Slots of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassUsage {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots whose memory is held.
    pub slots: u64,
    /// Slots in use.
    pub used: u64,
}

/// What a heap holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapUsage {
    /// Bytes in use, as charged.
    pub used_bytes: u64,
    /// Bytes held: those in use, and slots that are free for other versions.
    pub held_bytes: u64,
    /// The classes with any slots.
    pub classes: Vec<ClassUsage>,
}

/// Guard of [`Heap::moving`].
#[must_use]
pub struct Moving<'a>(&'a Shard);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.lock().end_bypass();
    }
}

impl HeapUsage {
    /// Bytes held and not used.
    pub fn slack_bytes(&self) -> u64 {
        self.held_bytes - self.used_bytes
    }
}

impl Default for Heap {
    fn default() -> Heap {
        Heap::new(Account::new())
    }
}

impl Clone for Heap {
    fn clone(&self) -> Heap {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        Heap(self.0.clone())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.shards.iter().for_each(|shard| shard.lock().begin_bypass());
            self.trim();
        }
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heap").field(&self.0.account.exact()).finish()
    }
}

/// What an allocation from the system is charged with.
fn large_bytes(bytes: usize) -> usize {
    let with_heads = PREFIX + bytes + SYSTEM_HEAD;
    let grain = if with_heads < SYSTEM_PAGES_FROM { SYSTEM_GRAIN } else { PAGE };
    with_heads.next_multiple_of(grain)
}

fn large_layout(bytes: usize) -> Layout {
    Layout::from_size_align(PREFIX + bytes, PREFIX).expect("far smaller than the address space")
}

impl Heap {
    /// A heap that charges `account`.
    pub fn new(account: Account) -> Heap {
        Heap::of_part(account, Part::Documents)
    }

    /// A heap of something else than documents.
    pub fn of_part(account: Account, part: Part) -> Heap {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shards = (SHARDS_A_CORE * cores).next_power_of_two().min(MOST_SHARDS);
        let slack = Arc::new(AtomicI64::new(0));
        let shards = (0..shards).map(|_| Shard::new(slack.clone())).collect();
        Heap(Arc::new(Inner {
            account,
            part,
            shards,
            handles: AtomicUsize::new(1),
            large_bytes: AtomicU64::new(0),
            slack,
        }))
    }

    /// A heap of nobody in particular, for versions that belong to no bucket.
    pub fn shared() -> &'static Heap {
        static SHARED: LazyLock<Heap> = LazyLock::new(Heap::default);
        &SHARED
    }

    /// The account that it charges.
    #[inline]
    pub fn account(&self) -> &Account {
        &self.0.account
    }

    /// What an allocation of so many bytes is charged with.
    #[inline]
    pub fn charged_bytes(bytes: usize) -> usize {
        class_of(bytes).map_or_else(|| large_bytes(bytes), |class| SIZES[class] as usize)
    }

    /// About how many bytes it holds that are not in use: free slots, but for the few in the first list at hand of each
    /// shard. One load, for whoever decides by it.
    #[inline]
    pub fn slack_estimate(&self) -> u64 {
        self.0.slack.load(Ordering::Relaxed).max(0) as u64
    }

    /// What it holds.
    pub fn usage(&self) -> HeapUsage {
        let mut classes = [(0, 0_i64); CLASSES];
        for shard in &self.0.shards {
            let shard = shard.lock();
            for (sum, bin) in classes.iter_mut().zip(shard.bins()) {
                *sum = (sum.0 + bin.begun, sum.1 + bin.used());
            }
        }
        let large = self.0.large_bytes.load(Ordering::Relaxed);
        let mut usage = HeapUsage { used_bytes: large, held_bytes: large, classes: Vec::new() };
        for (size, (slots, used)) in SIZES.iter().zip(classes).filter(|(_, sum)| sum.0 > 0) {
            // Shards are looked at one after the other: what moved between them meanwhile may be seen twice.
            let (slot_bytes, used) = (u64::from(*size), used.clamp(0, slots as i64) as u64);
            usage.used_bytes += used * slot_bytes;
            usage.held_bytes += slots * slot_bytes;
            usage.classes.push(ClassUsage { slot_bytes, slots, used });
        }
        usage
    }

    /// Gives back what lies at hand for threads that may not come back soon, and what is empty by that.
    pub fn trim(&self) {
        let inner = &*self.0;
        for shard in &inner.shards {
            let lists = shard.lock().drain();
            // SAFETY: what lay at hand for the shard's threads are free slots of this heap.
            lists.into_iter().for_each(|list| unsafe { Inner::put_back(inner, list) });
        }
        for shard in &inner.shards {
            let emptied = shard.lock().retire();
            emptied.into_iter().for_each(Inner::give_back);
        }
    }

    /// As long as the guard lives, what this thread frees goes back to its slab, and not to who allocates next: for
    /// moving versions out of sparse slabs.
    pub fn moving(&self) -> Moving<'_> {
        let shard = &self.0.shards[thread_number() & (self.0.shards.len() - 1)];
        shard.lock().begin_bypass();
        Moving(shard)
    }

    /// Allocates `bytes` bytes, aligned to 8.
    #[inline]
    pub(crate) fn allocate(&self, bytes: usize) -> NonNull<u8> {
        let Some(class) = class_of(bytes) else { return self.allocate_large(bytes) };
        self.0.account.charge(self.0.part, SIZES[class] as usize);
        let at = thread_number() & (self.0.shards.len() - 1);
        let slot = self.0.shards[at].lock().take(class);
        slot.unwrap_or_else(|| self.refill(at, class))
    }

    /// Allocates when the shard has nothing at hand: from another slab of its own, of another shard, or a new one.
    #[cold]
    fn refill(&self, at: usize, class: usize) -> NonNull<u8> {
        let shards = &self.0.shards;
        let mut fresh: Option<NonNull<Slab>> = None;
        loop {
            let mut shard = shards[at].lock();
            if let Some(fresh) = fresh.take() {
                // SAFETY: it was made for this heap just now.
                shard.add(unsafe { fresh.as_ref() });
            }
            let others = || shards.iter().enumerate().filter(|(other, _)| *other != at);
            let is_ready = match shard.take(class) {
                Some(slot) => return slot,
                None => {
                    shard.next(class)
                        || others().filter(|(_, other)| other.has_partial(class)).any(|(_, other)| {
                            // Only tried, because its holder may be trying ours.
                            let other = other.try_lock();
                            other.is_some_and(|mut other| shard.take_over(&mut other, class, at as u32))
                        })
                }
            };
            if is_ready {
                let slot = shard.take(class);
                return slot.expect("what is put at hand has a free slot");
            }
            drop(shard);
            let raw = CHUNKS.take();
            let heap = Arc::into_raw(self.0.clone()).cast();
            // SAFETY: the slab is ours alone since `take`.
            fresh = Some(unsafe { Slab::begin(&raw, class, heap, at as u32) });
        }
    }

    #[cold]
    fn allocate_large(&self, bytes: usize) -> NonNull<u8> {
        let layout = large_layout(bytes);
        // SAFETY: the layout is never empty, it holds at least the prefix.
        let raw = unsafe { alloc(layout) };
        let Some(raw) = NonNull::new(raw) else { handle_alloc_error(layout) };
        self.0.account.charge(self.0.part, large_bytes(bytes));
        self.0.large_bytes.fetch_add(large_bytes(bytes) as u64, Ordering::Relaxed);
        // SAFETY: the prefix is the first of the fresh bytes, and aligned.
        unsafe {
            raw.cast::<*const Inner>().write(Arc::into_raw(self.0.clone()));
            raw.add(PREFIX)
        }
    }

    /// Gives memory back to the heap it came from.
    ///
    /// # Safety
    /// `at` must come from `allocate(bytes)` of any heap, and must not be used any more.
    #[inline]
    pub(crate) unsafe fn free(at: NonNull<u8>, bytes: usize) {
        if class_of(bytes).is_none() {
            // SAFETY: by the caller's promise it came from `allocate_large`.
            return unsafe { Heap::free_large(at, bytes) };
        }
        // SAFETY: by the caller's promise `at` is a slot in use, so its slab is in use, too.
        let slab = unsafe { Slab::of(at) };
        let heap = slab.heap().cast::<Inner>();
        // SAFETY: each slab in use counts as a reference to its heap.
        let inner = unsafe { &*heap };
        inner.account.release(inner.part, SIZES[slab.class()] as usize);
        let own = &inner.shards[thread_number() & (inner.shards.len() - 1)];
        // SAFETY: the slot is of this heap, and the caller gives it up.
        let too_much = unsafe { own.lock().keep(slab.class(), at) };
        if too_much.count > 0 {
            // SAFETY: the slots in the list count as used, so their slabs refer to the heap.
            unsafe { Inner::put_back(heap, too_much) };
        }
    }

    /// # Safety
    /// As for `free`, and `bytes` is too large for slots.
    #[cold]
    unsafe fn free_large(at: NonNull<u8>, bytes: usize) {
        // SAFETY: by the caller's promise `at` lies behind the prefix that `allocate_large` wrote, and this is the only
        // time that its count is taken back.
        unsafe {
            let raw = at.sub(PREFIX);
            let inner = Arc::from_raw(raw.cast::<*const Inner>().read());
            inner.account.release(inner.part, large_bytes(bytes));
            inner.large_bytes.fetch_sub(large_bytes(bytes) as u64, Ordering::Relaxed);
            dealloc(raw.as_ptr(), large_layout(bytes));
        }
    }

    /// Whether an allocation lies in a slab of which less than `percent` is used, so that moving it elsewhere helps to
    /// empty the slab. Never for one in a slab that is allocated from just now.
    ///
    /// # Safety
    /// `at` must come from `allocate(bytes)` of any heap, and be in use.
    pub(crate) unsafe fn is_sparse(at: NonNull<u8>, bytes: usize, percent: u32) -> bool {
        if class_of(bytes).is_none() {
            return false;
        }
        // SAFETY: by the caller's promise `at` is a slot in use.
        let slab = unsafe { Slab::of(at) };
        slab.standing() != Standing::Current && slab.used() * 100 < slab.room() * percent
    }
}

impl Inner {
    /// Puts slots back into their slabs. The heap may be gone afterwards, which is why it is not borrowed.
    ///
    /// # Safety
    /// `heap` is the heap of all slots in the list, and they are not in use any more.
    #[cold]
    unsafe fn put_back(heap: *const Inner, mut list: SlotList) {
        let mut emptied: Option<Emptied> = None;
        let mut next = list.pop();
        while let Some(first) = next {
            // SAFETY: a slot that is not back in its slab counts as used, so the slab is in use.
            let owner = unsafe { Slab::of(first) }.owner.load(Ordering::Relaxed);
            // SAFETY: a slab in use refers to its heap.
            let mut shard = unsafe { &*heap }.shards[owner as usize].lock();
            while let Some(slot) = next {
                // SAFETY: as above.
                let slab = unsafe { Slab::of(slot) };
                // Only who holds the owner's lock makes another one the owner. The system is told without the lock.
                if slab.owner.load(Ordering::Relaxed) != owner || emptied.is_some() {
                    break;
                }
                next = list.pop();
                // SAFETY: the slot is of this slab, whose owner we hold, and nobody uses it.
                emptied = unsafe { shard.put(slab, slot) };
            }
            // If others remain in their slabs, they may be freed as soon as the lock is, and the heap with them: an
            // emptied slab, or a slot that is not back yet, keeps it.
            drop(shard);
            if let Some(emptied) = emptied.take() {
                if next.is_none() {
                    return Inner::give_back(emptied);
                }
                Inner::give_back(emptied);
            }
        }
    }

    /// Gives an empty slab back, and with it its reference to the heap.
    fn give_back(Emptied(slab): Emptied) {
        // SAFETY: nobody else knows the slab any more; it was begun with a counted reference.
        unsafe {
            let inner = Arc::from_raw(slab.as_ref().heap().cast::<Inner>());
            let raw = slab.as_ref().raw();
            CHUNKS.give_back(&raw);
            drop(inner);
        }
    }
}
