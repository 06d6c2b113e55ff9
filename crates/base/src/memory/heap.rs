//! Where the memory of document versions comes from.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use super::account::{Account, Part};

struct Inner {
    account: Account,
}

/// Allocates the versions of one bucket and charges them to its account; a clone is the same heap.
///
/// Whoever drops the last reference to a version, on whatever thread, gives its memory back to the heap it came from,
/// which lives as long as any of its memory.
#[derive(Clone)]
pub struct Heap(Arc<Inner>);

impl Default for Heap {
    fn default() -> Heap {
        Heap::new(Account::new())
    }
}

/// Before each allocation: whose it is.
const PREFIX: usize = 8;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(PREFIX + bytes, 8).expect("far smaller than the address space")
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Heap").field(&self.0.account.exact()).finish()
    }
}

impl Heap {
    /// A heap that charges `account`.
    pub fn new(account: Account) -> Heap {
        Heap(Arc::new(Inner { account }))
    }

    /// The account that it charges.
    pub fn account(&self) -> &Account {
        &self.0.account
    }

    /// What an allocation of so many bytes is charged with.
    #[inline]
    pub fn charged_bytes(bytes: usize) -> usize {
        PREFIX + bytes
    }

    /// Allocates `bytes` bytes, aligned to 8.
    #[inline]
    pub(crate) fn allocate(&self, bytes: usize) -> NonNull<u8> {
        let layout = layout(bytes);
        // SAFETY: the layout is never empty, it holds at least the prefix.
        let raw = unsafe { alloc(layout) };
        let Some(raw) = NonNull::new(raw) else { handle_alloc_error(layout) };
        self.0.account.charge(Part::Documents, layout.size());
        // SAFETY: the prefix is the first 8 of the fresh bytes, aligned to 8.
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
        let layout = layout(bytes);
        // SAFETY: by the caller's promise `at` lies behind the prefix that `allocate` wrote, and this is the only
        // time that its count is taken back.
        unsafe {
            let raw = at.sub(PREFIX);
            let heap = Arc::from_raw(raw.cast::<*const Inner>().read());
            heap.account.release(Part::Documents, layout.size());
            dealloc(raw.as_ptr(), layout);
        }
    }
}
