//! Memory from the system for chunks: whole mappings at a multiple of a chunk's size.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes of a chunk, which begins at a multiple of them.
pub(super) const CHUNK_BYTES: usize = 4 << 20;

const LAYOUT: Layout = match Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("a chunk's size is a power of two"),
};

/// Memory of a chunk's size at a multiple of it, zeroed. Ends the process if the system has none.
pub(super) fn map_chunk() -> NonNull<u8> {
    system::map().unwrap_or_else(|| handle_alloc_error(LAYOUT))
}

/// Gives a chunk back.
///
/// # Safety
/// It must come from [`map_chunk`], and its memory is not in use any more.
pub(super) unsafe fn unmap_chunk(chunk: NonNull<u8>) {
    // SAFETY: by the caller's promise.
    unsafe { system::unmap(chunk) }
}

/// Gives the memory of a range back, not its addresses. Its bytes are zero afterwards, or as before.
///
/// # Safety
/// The range must be whole pages of a chunk whose bytes are not in use.
pub(super) unsafe fn give_back_pages(at: NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { system::give_back_pages(at, bytes) }
}

#[cfg(all(unix, not(miri)))]
mod system {
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::CHUNK_BYTES;

    pub(super) fn map() -> Option<NonNull<u8>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that is there.
        let mapped = unsafe { mmap_anonymous(null_mut(), 2 * CHUNK_BYTES, protection, MapFlags::PRIVATE) };
        let raw = mapped.ok()?.cast::<u8>();
        let before = raw.align_offset(CHUNK_BYTES);
        let chunk = raw.wrapping_add(before);
        // SAFETY: what lies before and behind the chunk is ours and not used.
        unsafe {
            unmap_pages(raw, before);
            unmap_pages(chunk.add(CHUNK_BYTES), CHUNK_BYTES - before);
        }
        NonNull::new(chunk)
    }

    pub(super) unsafe fn unmap(chunk: NonNull<u8>) {
        // SAFETY: by the caller's promise the chunk is a mapping of ours that is not in use.
        unsafe { unmap_pages(chunk.as_ptr(), CHUNK_BYTES) }
    }

    /// Drops the content at once on Linux; other systems may leave it until they need the memory.
    #[cfg(target_os = "linux")]
    const NOT_NEEDED: Advice = Advice::LinuxDontNeed;
    #[cfg(not(target_os = "linux"))]
    const NOT_NEEDED: Advice = Advice::DontNeed;

    pub(super) unsafe fn give_back_pages(at: NonNull<u8>, bytes: usize) {
        // SAFETY: by the caller's promise these are whole pages of our mapping that are not in use. A system that does not
        // take them back leaves them to us.
        let _ = unsafe { madvise(at.as_ptr().cast(), bytes, NOT_NEEDED) };
    }

    /// # Safety
    /// The bytes must be whole pages of our mappings that are not in use.
    unsafe fn unmap_pages(at: *mut u8, bytes: usize) {
        if bytes > 0 {
            // SAFETY: by the caller's promise. If the system refuses, addresses are lost, and memory at most.
            let _ = unsafe { munmap(at.cast(), bytes) };
        }
    }
}

/// Miri and Windows cannot give a part of a mapping back, so there a chunk is one allocation.
#[cfg(any(miri, not(unix)))]
mod system {
    use std::alloc::{alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::LAYOUT;

    pub(super) fn map() -> Option<NonNull<u8>> {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(LAYOUT) })
    }

    pub(super) unsafe fn unmap(chunk: NonNull<u8>) {
        // SAFETY: by the caller's promise it is from `map`, with this layout.
        unsafe { dealloc(chunk.as_ptr(), LAYOUT) }
    }

    pub(super) unsafe fn give_back_pages(_: NonNull<u8>, _: usize) {}
}
