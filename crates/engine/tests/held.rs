//! What is held counts, not only what is used: free slots of the heap are memory, too.

mod common;

use std::time::Duration;

use base::env::Env;
use common::wait::wait;
use common::{VB, Watched, doc};
use engine::Refusal;

const QUOTA: u64 = 16 << 20;
/// What a bucket may hold at most, whatever happens.
const LIMIT: u64 = QUOTA + QUOTA / 20;

fn world(seed: u64) -> Watched {
    let (env, handles) = Env::sim(seed);
    let world = Watched::open(env, handles, QUOTA);
    world.bucket.maintenance().keep_step();
    world
}

fn key(n: usize) -> String {
    format!("key-{n:05}")
}

/// Exactly what is taken from the system.
fn held(world: &Watched) -> u64 {
    let figures = world.bucket.account_check();
    figures.charged.iter().sum::<i64>() as u64 + figures.heap.slack_bytes()
}

/// Saves what is there, and lets the housekeeper do what is due.
fn work(world: &Watched) {
    assert!(world.bucket.flushing().flush_all());
    world.handles.clock.advance(Duration::from_millis(20));
    (0..8).for_each(|_| _ = world.bucket.maintenance().keep_step());
}

/// A value of some size: most are small, few are so large that the heap has no slots for them.
fn mixed(n: usize) -> String {
    let random = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let bytes = match random % 500 {
        0 => 100 << 10,
        1..25 => 4 << 10,
        _ => 24 + random % 976,
    };
    format!("{n:06}").repeat(bytes / 6 + 1)
}

/// Writes documents of mixed sizes, and says how often one was refused.
fn write_mixed(world: &Watched, documents: usize) -> u64 {
    let mut refused = 0;
    for n in 0..documents {
        let mut tries = 0;
        let mut pin = None;
        while let Err(refusal) = world.set_in(VB, &key(n), &mixed(n)) {
            tries += 1;
            if refusal == Refusal::NotResident {
                // The filter of evicted keys is not sure.
                let fetched = world.bucket.fetching().fetch(VB, doc(&key(n))).expect("few wait");
                world.bucket.fetching().fetch_step();
                pin = Some(wait(fetched));
                continue;
            }
            assert_eq!(refusal, Refusal::OverQuota);
            refused += 1;
            assert!(tries < 200, "refused for ever: {:?}", world.bucket.account_check());
            work(world);
        }
        drop(pin);
        if n % 32 == 0 {
            work(world);
        }
        if n % 16 == 0 {
            let held = held(world);
            assert!(held <= LIMIT, "{held} of {QUOTA} after {n}");
        }
    }
    refused
}

fn written_bytes(documents: usize) -> u64 {
    (0..documents).map(|n| mixed(n).len() as u64).sum()
}

#[test]
fn mixed_sizes_beyond_the_quota_stay_within_it() {
    for policy in ["value_only", "full_eviction"] {
        let world = world(1);
        world.bucket.set_param("item_eviction_policy", policy).expect("a policy");
        let documents = 48_000;
        assert!(written_bytes(documents) > 2 * QUOTA);
        let refused = write_mixed(&world, documents);
        assert!(refused < documents as u64, "{refused}");
        let stats = world.bucket.eviction().eviction_stats();
        assert!(stats.evicted_values + stats.evicted_documents > 0, "{stats:?}");
        world.end();
    }
}

#[test]
fn slack_refuses_changes_until_the_defragmenter_has_taken_it_away() {
    let world = world(2);
    let value = "v".repeat(1000);
    let mut documents = 0;
    while world.set_in(VB, &key(documents), &value).is_ok() {
        documents += 1;
        if documents % 64 == 0 {
            assert!(world.bucket.flushing().flush_all());
        }
    }
    assert!(world.bucket.flushing().flush_all());
    let memory = world.bucket.memory();
    let out = (0..documents).filter(|n| n % 4 != 0);
    let evicted = out.filter(|n| world.bucket.eviction().evict_value(VB, doc(&key(*n))) == Ok(true)).count();
    assert!(evicted > documents / 2, "{evicted} of {documents}");
    assert!(memory.used_bytes() < memory.low_watermark_bytes(), "{}", memory.used_bytes());
    assert!(held(&world) > QUOTA / 100 * 92, "{}", held(&world));
    assert!(memory.held_bytes() > QUOTA / 100 * 90 && memory.is_slack_in_the_way());
    let before = memory.used_bytes();
    // What was freed serves as it is; what needs another class has no room.
    let refused = (0..2000).find_map(|n| world.set_in(VB, &format!("other-{n}"), &"o".repeat(700)).err());
    assert_eq!(refused, Some(Refusal::OverQuota));
    assert!(memory.used_bytes() < before + QUOTA / 10);
    work(&world);
    assert!(!memory.is_slack_in_the_way(), "{} held, {} used", memory.held_bytes(), memory.used_bytes());
    assert!(held(&world) < QUOTA / 2, "{}", held(&world));
    assert!(world.set_in(VB, "another", &value).is_ok());
    assert!(memory.used_bytes() < memory.low_watermark_bytes(), "nothing was evicted because of slack");
    assert_eq!(world.bucket.eviction().eviction_stats().passes, 0, "the pager had nothing to do with it");
    world.end();
}

#[test]
fn a_little_slack_does_not_count() {
    let world = world(3);
    let memory = world.bucket.memory();
    (0..200).for_each(|n| _ = world.set_in(VB, &key(n), &"v".repeat(1000)).expect("there is room"));
    assert!(world.bucket.flushing().flush_all());
    (0..200).for_each(|n| _ = world.bucket.eviction().evict_value(VB, doc(&key(n))));
    assert!((1..256 << 10).contains(&memory.slack_bytes()), "{}", memory.slack_bytes());
    assert_eq!(memory.held_bytes(), memory.used_bytes());
}
