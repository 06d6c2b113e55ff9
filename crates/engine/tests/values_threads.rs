//! Readers, writers, evictions, the flusher, fetchers at once: no reader ever sees an older or another value.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::Env;
use common::wait::wait;
use common::{VB, Watched, doc};
use engine::Refusal;

const KEYS: usize = 40;
const WRITES: u64 = 3_000;
const READS: u64 = 10_000;

fn name(key: usize) -> String {
    format!("key{key}")
}

fn value(key: usize, number: u64) -> String {
    format!("{key}:{number}:{}", "x".repeat(500 + key * 50))
}

/// The number in a value, all of which must be what was written.
fn number_in(key: usize, text: &str) -> u64 {
    let number = text.split(':').nth(1).and_then(|number| number.parse().ok()).expect("a number");
    assert_eq!(text, value(key, number));
    number
}

fn read(world: &Watched, key: usize) -> u64 {
    let name = name(key);
    loop {
        match world.get(&name) {
            Ok(text) => return number_in(key, &text),
            Err(Refusal::NotResident) => {
                // What it brings is held until it was looked at.
                let fetched = wait(world.bucket.fetching().fetch(VB, doc(&name)).expect("few wait"));
                if let Ok(text) = world.get(&name) {
                    return number_in(key, &text);
                }
                drop(fetched);
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

/// Stores a value as soon as there is room for it.
fn write(world: &Watched, key: usize, number: u64) {
    loop {
        match world.set_in(VB, &name(key), &value(key, number)) {
            Ok(_) => return,
            Err(Refusal::OverQuota) => {
                // The housekeeper gives back what the heap holds and nobody uses.
                world.handles.clock.advance(Duration::from_millis(20));
                world.bucket.maintenance().keep_step();
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

fn race(quota_bytes: u64) {
    let (env, handles) = Env::sim(quota_bytes);
    let world = Watched::open(env, handles, quota_bytes);
    for key in 0..KEYS {
        write(&world, key, 0);
        assert!(world.bucket.flushing().flush_all());
        assert_eq!(world.bucket.eviction().evict_value(VB, doc(&name(key))), Ok(true));
    }
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fetchers = [(); 2].map(|()| scope.spawn(|| world.bucket.fetching().run_fetcher()));
        let evicting = scope.spawn(|| {
            let mut key = 0;
            while !written.load(Ordering::Acquire) {
                assert!(world.bucket.flushing().flush_all());
                key = (key + 7) % KEYS;
                world.bucket.eviction().evict_value(VB, doc(&name(key))).expect("it is there");
                std::thread::yield_now();
            }
        });
        let readers = [1, 3].map(|stride| {
            let world = &world;
            scope.spawn(move || {
                let mut seen = [0; KEYS];
                for n in 0..READS {
                    let key = (n as usize * stride) % KEYS;
                    let number = read(world, key);
                    assert!(number >= seen[key], "{number} after {} of {key}", seen[key]);
                    seen[key] = number;
                }
            })
        });
        for number in 1..=WRITES {
            let key = number as usize % KEYS;
            write(&world, key, number);
            if number.is_multiple_of(8) {
                std::thread::yield_now();
            }
        }
        readers.into_iter().for_each(|reader| reader.join().expect("no reader is surprised"));
        written.store(true, Ordering::Release);
        evicting.join().expect("evictions go on to the end");
        for key in 0..KEYS {
            assert_eq!(
                read(&world, key),
                (0..=WRITES).rev().find(|n| *n as usize % KEYS == key).expect("written")
            );
        }
        world.bucket.fetching().stop_fetchers();
        fetchers.into_iter().for_each(|fetcher| fetcher.join().expect("fetchers end"));
    });
    assert!(world.bucket.fetching().fetch_stats().fetched > 0, "some values had to be read");
    world.check_account();
}

#[test]
fn with_room_for_everything() {
    race(1 << 20);
}

#[test]
fn with_room_for_hardly_anything() {
    race(40_000);
}
