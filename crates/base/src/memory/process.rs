//! What the whole process has from the system.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::chunks::CHUNKS;

/// From here on the system's allocator hands out pages of their own, which it gives back when they are freed.
pub(super) const SYSTEM_PAGES_FROM: usize = 64 << 10;

/// What the whole process has from the system, all buckets together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Bytes of slabs that heaps hold; those of which nothing was used yet take no memory.
    pub slab_bytes: u64,
    /// Addresses set aside for slabs, in bytes.
    pub chunk_bytes: u64,
    /// Bytes that the system's allocator has handed out, if it says so.
    pub system_used_bytes: Option<u64>,
    /// Addresses that it holds for that. What it gave back from between its allocations still counts.
    pub system_held_bytes: Option<u64>,
}

impl ProcessMemory {
    /// As it is now. The system's allocator counts all that is free in it, under its locks: milliseconds, more as more is
    /// free. It is for requests that ask for it, not for figures of each bucket.
    pub fn now() -> ProcessMemory {
        let (chunk_bytes, slab_bytes) = CHUNKS.bytes();
        let system = system_bytes();
        ProcessMemory {
            slab_bytes,
            chunk_bytes,
            system_used_bytes: system.map(|(used, _)| used),
            system_held_bytes: system.map(|(_, held)| held),
        }
    }
}

/// Tells the system's allocator how to be used by a process that must not pass a limit. To be called before threads are
/// begun.
///
/// By default it has eight arenas a core, each with free memory that the others cannot use, and once something large
/// was freed it keeps what is as large for the next one, between others that stay. With fewer than threads that allocate
/// all the time these wait for each other (docs/adr/0050-what-a-save-costs.md).
pub fn settle_system() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let arenas = i32::try_from(2 * cores.max(2) + 2).unwrap_or(i32::MAX);
        // SAFETY: it may be called at any time. What is refused stays as it was.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, arenas);
            libc::mallopt(libc::M_MMAP_THRESHOLD, SYSTEM_PAGES_FROM as i32);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MOST_FREE_ON_TOP);
        }
    }
}

/// What an arena keeps at its end, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MOST_FREE_ON_TOP: i32 = 512 << 10;

/// When the buckets of this process asked the system's allocator what is free in it.
static QUESTIONS: Mutex<Questions> = Mutex::new(Questions::new());

/// When the system's allocator is asked again.
struct Questions {
    /// On the clock of the bucket that asked; `None` before the first question.
    asked: Option<Duration>,
    /// The most that the process had taken from the system by then.
    peak_bytes: u64,
    /// The least that a bucket has named since.
    most: u64,
}

/// All buckets together ask once in this time,
const ASK_AFTER: Duration = Duration::from_secs(1);
/// and while the process takes no more than it ever did, once in this time.
const ASK_CALM_AFTER: Duration = Duration::from_secs(10);
/// It takes more if it has grown by such a part of what may be free.
const GROWN_ONE_IN: u64 = 4;

impl Questions {
    const fn new() -> Questions {
        Questions { asked: None, peak_bytes: 0, most: u64::MAX }
    }

    /// How much may be free, if the allocator is to be asked now. Clocks of several simulated nodes may be far apart.
    fn due(&mut self, now: Duration, peak_bytes: u64, most: u64) -> Option<u64> {
        self.most = self.most.min(most);
        let has_grown = peak_bytes > self.peak_bytes.saturating_add(self.most / GROWN_ONE_IN);
        let pause = if has_grown { ASK_AFTER } else { ASK_CALM_AFTER };
        if self.asked.is_some_and(|asked| asked.abs_diff(now) < pause) {
            return None;
        }
        (self.asked, self.peak_bytes) = (Some(now), peak_bytes);
        Some(std::mem::replace(&mut self.most, u64::MAX))
    }
}

/// Makes the system's allocator give free pages back if it keeps more than `most` bytes that are free. Says whether it did.
/// Each bucket may call this every second: the allocator is asked seldom, because it walks all that is free under its locks.
/// The question is about the least `most` of the calls since the last question.
pub fn trim_system_in_time(now: Duration, most: u64) -> bool {
    // The question takes milliseconds: the lock is not held meanwhile.
    let due = QUESTIONS.lock().due(now, peak_bytes(), most);
    due.is_some_and(trim_system_above)
}

/// The most that the process ever had in memory; 0 if the system does not say.
fn peak_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: all zeros are a value of it, and the call only writes to it.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } == 0 {
            return u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10;
        }
    }
    0
}

/// Free bytes that the system's allocator gave back to the system, and from which nothing was allocated since. They still
/// count as free there, so this is the least that was free since.
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);

/// Makes the system's allocator give free pages back to the system, wherever they lie. Takes milliseconds, and who
/// allocates meanwhile waits: for quiet moments, or if there are many.
pub fn trim_system() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
    GIVEN_BACK.store(free_bytes(), Ordering::Relaxed);
}

/// Does the same if the system's allocator keeps more than `most` bytes that are free. Says whether it did. To be called
/// every few seconds, so that what was allocated in between is noticed; it walks what is free, so not by each bucket.
///
/// The allocator keeps what was freed for the next allocation of the same arena. Short-lived threads use one arena after
/// the other, so that each keeps as much as the busiest of them needed.
pub fn trim_system_above(most: u64) -> bool {
    let free = free_bytes();
    let given_back = GIVEN_BACK.fetch_min(free, Ordering::Relaxed).min(free);
    let is_above = free - given_back > most;
    if is_above {
        trim_system();
    }
    is_above
}

/// Bytes that the system's allocator has in its arenas, and that are not handed out.
fn free_bytes() -> u64 {
    system_bytes().map_or(0, |(used, held)| held.saturating_sub(used))
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn system_bytes() -> Option<(u64, u64)> {
    // SAFETY: it only reads the allocator's own figures, under its locks.
    let info = unsafe { libc::mallinfo2() };
    Some(((info.uordblks + info.hblkhd) as u64, (info.arena + info.hblkhd) as u64))
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn system_bytes() -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn the_allocator_is_asked_seldom_and_for_the_least_that_is_named() {
        let (mut questions, s) = (Questions::new(), Duration::from_secs);
        assert_eq!(questions.due(s(5), 1_000, 80), Some(80));
        // Thirty buckets that look in the same second, and a process that takes no more.
        (0..30).for_each(|n| assert_eq!(questions.due(s(6), 1_000, 100 + n), None));
        assert_eq!(questions.due(s(14), 1_010, 40), None, "it has grown by a quarter of that, and no more");
        assert_eq!(questions.due(s(15), 1_010, 200), Some(40), "the least since the last time");
        assert_eq!(questions.due(s(16), 1_010 + 25, 100), None);
        assert_eq!(questions.due(s(16), 1_010 + 26, 100), Some(100), "it has grown");
        assert_eq!(questions.due(s(16), 2_000, 100), None, "a second has to pass");
        assert_eq!(questions.due(s(3), 1_000, 100), Some(100), "the clock of another world");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_tells_the_most_that_was_taken() {
        assert!(peak_bytes() > 1 << 20);
    }

    #[test]
    fn a_heap_shows_in_the_process() {
        let heap = Heap::default();
        let block = heap.allocate(100);
        let now = ProcessMemory::now();
        assert!(now.slab_bytes > 0 && now.chunk_bytes > now.slab_bytes, "{now:?}");
        // SAFETY: it was allocated with this size, and is not used.
        unsafe { Heap::free(block, 100) };
    }
}
