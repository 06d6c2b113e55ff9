//! One slab: slots of one class, handed out in order first, then as they were freed.

use std::cell::Cell;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::chunks::{HEAD_BYTES, Raw, head_of};
use super::classes::{SIZES, SLAB_BYTES};
use crate::version::prefetch;

/// Where a slab stands with the shard that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Standing {
    /// Too full to allocate from; in no list.
    Full,
    /// Waits in the list of its class.
    Partial,
    /// Allocated from.
    Current,
}

/// The head of a slab. Cells are for the holder of the owner's lock; atomics may be looked at by anybody.
#[repr(C, align(64))]
pub(super) struct Slab {
    /// The shard whose lock guards it; changes under that lock.
    pub(super) owner: AtomicU32,
    used: AtomicU32,
    standing: AtomicU8,
    /// This and what is no cell stays as they are while the slab is in use.
    class: u8,
    room: u32,
    heap: *const (),
    /// Slots that were handed out at least once.
    begun: Cell<u32>,
    free: Cell<*mut FreeSlot>,
    begin: NonNull<u8>,
    pub(super) before: Cell<*const Slab>,
    pub(super) behind: Cell<*const Slab>,
}

const _: () = assert!(size_of::<Slab>() == HEAD_BYTES);

/// What is in a free slot.
struct FreeSlot {
    next: *mut FreeSlot,
}

/// Free slots of one class, each with a link to the next.
#[derive(Clone, Copy)]
pub(super) struct SlotList {
    head: *mut FreeSlot,
    pub(super) count: u32,
}

impl SlotList {
    pub(super) const EMPTY: SlotList = SlotList { head: null_mut(), count: 0 };

    /// Adds a slot.
    ///
    /// # Safety
    /// The slot is nobody else's.
    #[inline]
    pub(super) unsafe fn push(&mut self, slot: NonNull<u8>) {
        let link = slot.cast::<FreeSlot>();
        // SAFETY: by the caller's promise the slot is ours; it is large enough, and aligned, for a link.
        unsafe { link.write(FreeSlot { next: self.head }) };
        self.head = link.as_ptr();
        self.count += 1;
    }

    /// Takes out the slot that was added last.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        let slot = NonNull::new(self.head)?;
        // SAFETY: a slot in the list is free, and begins with a link.
        self.head = unsafe { slot.as_ref() }.next;
        self.count -= 1;
        // The next one will be wanted soon, and may not have been touched for long.
        prefetch(self.head.cast());
        Some(slot.cast())
    }
}

impl Slab {
    /// Begins to use a slab for slots of a class.
    ///
    /// # Safety
    /// Nobody else may use the slab.
    pub(super) unsafe fn begin(raw: &Raw, class: usize, heap: *const (), owner: u32) -> NonNull<Slab> {
        let slab = raw.head.cast::<Slab>();
        let head = Slab {
            owner: AtomicU32::new(owner),
            used: AtomicU32::new(0),
            standing: AtomicU8::new(Standing::Full as u8),
            class: class as u8,
            room: (raw.bytes / SIZES[class] as usize) as u32,
            heap,
            begun: Cell::new(0),
            free: Cell::new(null_mut()),
            begin: raw.begin,
            before: Cell::new(null()),
            behind: Cell::new(null()),
        };
        // SAFETY: the head is aligned, as large as this, and ours alone.
        unsafe { slab.write(head) };
        slab
    }

    /// The slab that a slot lies in.
    ///
    /// # Safety
    /// `at` must lie in a slab that is in use for as long as `'a`.
    #[inline]
    pub(super) unsafe fn of<'a>(at: NonNull<u8>) -> &'a Slab {
        // SAFETY: by the caller's promise there is a head, written before the slot was handed out.
        unsafe { &*head_of(at.as_ptr()).cast::<Slab>() }
    }

    /// What it was taken from the chunks as.
    pub(super) fn raw(&self) -> Raw {
        let bytes = SLAB_BYTES - self.begin.addr().get() % SLAB_BYTES;
        Raw { head: NonNull::from(self).cast(), begin: self.begin, bytes }
    }

    /// All slots that were freed, which count as used from now on.
    ///
    /// # Safety
    /// The caller holds the lock of the owner.
    pub(super) unsafe fn take_freed(&self) -> SlotList {
        let count = self.begun.get() - self.used();
        self.used.store(self.begun.get(), Relaxed);
        SlotList { head: self.free.replace(null_mut()), count }
    }

    /// A slot that was never used, if there is one.
    ///
    /// # Safety
    /// The caller holds the lock of the owner.
    #[inline]
    pub(super) unsafe fn take_fresh(&self) -> Option<NonNull<u8>> {
        let begun = self.begun.get();
        if begun == self.room {
            return None;
        }
        self.begun.set(begun + 1);
        self.used.store(self.used() + 1, Relaxed);
        let offset = begun as usize * SIZES[self.class()] as usize;
        // SAFETY: slots below `room` lie within the slab.
        Some(unsafe { self.begin.add(offset) })
    }

    /// Takes a slot back. Returns how many are still used.
    ///
    /// # Safety
    /// The caller holds the lock of the owner, and the slot came from `take` and is not used any more.
    #[inline]
    pub(super) unsafe fn put(&self, slot: NonNull<u8>) -> u32 {
        let link = slot.cast::<FreeSlot>();
        // SAFETY: by the caller's promise the slot is ours; it is large enough, and aligned, for a link.
        unsafe { link.write(FreeSlot { next: self.free.get() }) };
        self.free.set(link.as_ptr());
        let used = self.used.load(Relaxed) - 1;
        self.used.store(used, Relaxed);
        used
    }

    #[inline]
    pub(super) fn class(&self) -> usize {
        self.class.into()
    }

    #[inline]
    pub(super) fn heap(&self) -> *const () {
        self.heap
    }

    /// Slots it has.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.room
    }

    #[inline]
    pub(super) fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Slots that were handed out at least once: their memory is the system's no more.
    pub(super) fn begun(&self) -> u32 {
        self.begun.get()
    }

    #[inline]
    pub(super) fn standing(&self) -> Standing {
        match self.standing.load(Relaxed) {
            0 => Standing::Full,
            1 => Standing::Partial,
            _ => Standing::Current,
        }
    }

    pub(super) fn set_standing(&self, standing: Standing) {
        self.standing.store(standing as u8, Relaxed);
    }
}
