//! The account beside the heap, and versions that are moved together.

mod common;

use std::time::Duration;

use base::memory::{PARTS, ProcessMemory};
use common::World;

const KEYS: usize = 20_000;

fn large(n: usize) -> String {
    format!("{n:0500}")
}

/// A bucket in which three of four large values became small ones.
fn churned(seed: u64) -> World {
    let world = World::new(seed);
    for n in 0..KEYS {
        world.set(&format!("key-{n}"), &large(n)).expect("stored");
    }
    for n in (0..KEYS).filter(|n| n % 4 != 0) {
        world.set(&format!("key-{n}"), "small").expect("stored");
    }
    assert!(world.bucket.flushing().flush_all());
    world
}

/// Lets everything that is due run, again and again, for so many passes.
fn keep(world: &World, passes: u32) {
    for _ in 0..passes {
        world.handles.clock.advance(Duration::from_secs(20));
        world.bucket.maintenance().keep_step();
    }
}

fn check_answers(world: &World) {
    for n in 0..KEYS {
        let expected = if n % 4 == 0 { large(n) } else { "small".to_owned() };
        assert_eq!(world.get(&format!("key-{n}")), Ok(expected), "{n}");
    }
}

#[test]
fn the_account_says_what_the_heap_says() {
    let world = churned(1);
    let figures = world.bucket.account_check();
    assert_eq!(figures.difference_bytes(), 0);
    let total = figures.charged.iter().sum::<i64>() as u64;
    assert!(figures.estimate_bytes.abs_diff(total) <= world.bucket.memory().account().deviation_bytes());
    assert!(figures.heap.used_bytes > 3 << 20 && ProcessMemory::now().slab_bytes >= figures.heap.held_bytes);
    let account = world.bucket.memory().account().clone();
    drop(world);
    assert_eq!(account.exact(), [0; PARTS], "a bucket that is gone holds nothing");
}

#[test]
fn sparse_slabs_are_emptied_and_answers_stay() {
    let world = churned(2);
    let held = world.bucket.account_check().heap.held_bytes;
    world.bucket.set_param("defragmenter_enabled", "false").expect("a switch");
    keep(&world, 3);
    assert!(world.bucket.account_check().heap.held_bytes > held / 10 * 9, "nothing moves while it is off");
    assert_eq!(world.bucket.defragmentation().defragmenter_stats().moved, 0);
    world.bucket.set_param("defragmenter_enabled", "true").expect("a switch");
    keep(&world, 3);
    let usage = world.bucket.account_check().heap;
    assert!(usage.held_bytes < held / 2, "{held} became {}", usage.held_bytes);
    assert!(usage.slack_bytes() <= usage.held_bytes / 5, "{usage:?}");
    let stats = world.bucket.defragmentation().defragmenter_stats();
    assert!(stats.moved > 0 && stats.visited > stats.moved, "{stats:?}");
    assert_eq!(world.bucket.account_check().difference_bytes(), 0);
    check_answers(&world);
    let world = world.restart();
    while world.bucket.loading().load_step() != engine::Progress::Idle {}
    while world.bucket.loading().warm_step() != engine::Progress::Idle {}
    check_answers(&world);
}
