//! What the system's allocator keeps of memory that was freed. In a process of its own, because it is about all of it.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::disallowed_methods, reason = "this asks the system, not the product's doors")]

use base::memory::{ProcessMemory, settle_system, trim_system_above};

/// Each thread uses an arena of the allocator, which keeps what is freed.
const THREADS: usize = 6;
const BLOCKS: usize = 200_000;
const BLOCK_BYTES: usize = 240;
/// One of so many blocks stays, so that the others are free between them.
const STAYS_ONE_IN: usize = 1000;
const MOST_FREE: u64 = 32 << 20;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the system tells");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

#[expect(clippy::vec_box, reason = "each block is an allocation of its own")]
fn allocate_and_free() -> Vec<Box<[u8; BLOCK_BYTES]>> {
    let blocks: Vec<_> = (0..BLOCKS).map(|n| Box::new([n as u8; BLOCK_BYTES])).collect();
    blocks.into_iter().step_by(STAYS_ONE_IN).collect()
}

#[test]
fn free_memory_beyond_a_limit_goes_back_to_the_system() {
    settle_system();
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(allocate_and_free)).collect();
    let stay: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it ends")).collect();
    let before = resident_bytes();
    assert!(before > 4 * MOST_FREE, "the allocator keeps it: {before}");
    assert!(trim_system_above(MOST_FREE));
    let after = resident_bytes();
    let used = ProcessMemory::now().system_used_bytes.expect("the allocator tells");
    assert!(after < used + MOST_FREE, "{after} resident of {before}, {used} in use");
    // It still counts as free for the allocator, and there is nothing left to give back.
    assert!(!trim_system_above(MOST_FREE));
    // What is used again, seen so, and freed again is noticed.
    let mut more: Vec<_> = (0..BLOCKS).map(|n| Box::new([n as u8; BLOCK_BYTES])).collect();
    assert!(!trim_system_above(MOST_FREE));
    let mut n = 0;
    more.retain(|_| {
        n += 1;
        n % STAYS_ONE_IN == 0
    });
    assert!(trim_system_above(MOST_FREE));
    drop((stay, more));
}
