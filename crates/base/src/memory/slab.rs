//! One slab: slots of one class, handed out in order first, then as they were freed.

use std::cell::Cell;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::chunks::{HEAD_BYTES, Raw, head_of};
use super::classes::{SIZES, SLAB_BYTES};

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
    begin: *mut u8,
    pub(super) before: Cell<*const Slab>,
    pub(super) behind: Cell<*const Slab>,
}

const _: () = assert!(size_of::<Slab>() == HEAD_BYTES);

/// What is in a free slot.
struct FreeSlot {
    next: *mut FreeSlot,
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
        let bytes = SLAB_BYTES - self.begin as usize % SLAB_BYTES;
        Raw { head: NonNull::from(self).cast(), begin: self.begin, bytes }
    }

    /// A free slot, if there is one.
    ///
    /// # Safety
    /// The caller holds the lock of the owner.
    #[inline]
    pub(super) unsafe fn take(&self) -> Option<NonNull<u8>> {
        let slot = if let Some(slot) = NonNull::new(self.free.get()) {
            // SAFETY: a slot in the list is free, and begins with a link.
            self.free.set(unsafe { slot.as_ref() }.next);
            slot.cast()
        } else {
            let begun = self.begun.get();
            if begun == self.room {
                return None;
            }
            self.begun.set(begun + 1);
            let offset = begun as usize * SIZES[self.class()] as usize;
            // SAFETY: slots below `room` lie within the slab.
            unsafe { NonNull::new_unchecked(self.begin.add(offset)) }
        };
        self.used.store(self.used.load(Relaxed) + 1, Relaxed);
        Some(slot)
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
