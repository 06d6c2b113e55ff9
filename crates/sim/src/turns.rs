//! Threads that take turns: each waits at every call to its disk until a seeded scheduler lets it go on, so that a seed
//! decides how their work is interleaved.
//!
//! One thread runs at a time, and with it those that it frees by giving back a lock. A thread that waits for a lock
//! instead of a turn is told by what the kernel says of it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "threads take turns in the real world, and only the kernel knows which of them wait for a lock"
)]

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};

use base::env::sim::SplitMix64;
use base::env::{Disk, File, GroupSync, OpenMode};

const STARTING: u8 = 0;
const RUNNING: u8 = 1;
const WAITING: u8 = 2;
const GRANTED: u8 = 3;
const DONE: u8 = 4;

/// One thread that takes turns.
#[derive(Default)]
struct Player {
    state: AtomicU8,
    thread: OnceLock<(Thread, PathBuf)>,
}

impl Player {
    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::SeqCst) == state
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }

    /// Runs, or is about to: it will be heard of again without anybody's help.
    fn is_active(&self) -> bool {
        match self.state.load(Ordering::SeqCst) {
            STARTING | GRANTED => true,
            RUNNING => !self.is_asleep(),
            _ => false,
        }
    }

    /// Whether the kernel has it asleep, which outside of a turn means that it waits for a lock (proc_pid_stat(5)).
    fn is_asleep(&self) -> bool {
        let stat = self.thread.get().and_then(|(_, stat)| fs::read_to_string(stat).ok());
        let state =
            stat.as_ref().and_then(|stat| stat.rsplit_once(") ")).and_then(|(_, rest)| rest.chars().next());
        // it may have come to its next turn since
        state == Some('S') && self.is(RUNNING)
    }

    fn take_turn(&self) {
        self.set(WAITING);
        while !self.is(GRANTED) {
            thread::park();
        }
        self.set(RUNNING);
    }
}

thread_local! {
    static PLAYER: RefCell<Option<Arc<Player>>> = const { RefCell::new(None) };
}

/// Waits for a turn, if this thread is one that takes turns.
pub fn take_turn() {
    let player = PLAYER.with_borrow(Clone::clone);
    if let Some(player) = player {
        player.take_turn();
    }
}

/// Leaves the game even if its thread panics.
struct Playing(Arc<Player>);

impl Drop for Playing {
    fn drop(&mut self) {
        PLAYER.with_borrow_mut(Option::take);
        self.0.set(DONE);
    }
}

/// Runs jobs side by side, in turns that `rng` gives, to their end.
pub fn run_in_turns<'a>(rng: &mut SplitMix64, jobs: Vec<Box<dyn FnOnce() + Send + 'a>>) {
    let players: Vec<Arc<Player>> = jobs.iter().map(|_| Arc::default()).collect();
    thread::scope(|scope| {
        for (player, job) in players.iter().zip(jobs) {
            let player = player.clone();
            scope.spawn(move || {
                let playing = Playing(player.clone());
                // a link to the folder of this very thread
                let stat = Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap_or_default());
                player.thread.get_or_init(|| (thread::current(), stat.join("stat")));
                PLAYER.with_borrow_mut(|own| *own = Some(player.clone()));
                player.take_turn();
                job();
                drop(playing);
            });
        }
        give_turns(rng, &players);
    });
}

/// So often everybody is asleep and nobody waits for a turn before that counts as a deadlock.
const PATIENCE: u32 = 100_000;

fn give_turns(rng: &mut SplitMix64, players: &[Arc<Player>]) {
    let mut stuck = 0;
    while !players.iter().all(|player| player.is(DONE)) {
        if players.iter().any(|player| player.is_active()) {
            thread::yield_now();
            continue;
        }
        let waiting: Vec<_> = players.iter().filter(|player| player.is(WAITING)).collect();
        let Some(chosen) = waiting.get(rng.below(waiting.len() as u64) as usize) else {
            stuck += 1;
            if stuck > PATIENCE {
                eprintln!("deadlock while trying {}: all threads wait for locks", crate::kv::place());
                std::process::abort();
            }
            thread::yield_now();
            continue;
        };
        stuck = 0;
        chosen.set(GRANTED);
        if let Some((thread, _)) = chosen.thread.get() {
            thread.unpark();
        }
    }
}

/// A disk at each call of which a thread waits for its turn.
pub struct TurnsDisk(pub Arc<dyn Disk>);

impl Disk for TurnsDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        take_turn();
        Ok(Arc::new(TurnsFile(self.0.open(path, mode)?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        take_turn();
        self.0.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        take_turn();
        self.0.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        take_turn();
        self.0.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        take_turn();
        self.0.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        take_turn();
        self.0.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        take_turn();
        self.0.sync_dir(path)
    }

    fn group_sync(&self, _folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        Ok(Box::new(base::env::SyncEach))
    }
}

struct TurnsFile(Arc<dyn File>);

impl File for TurnsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        take_turn();
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        take_turn();
        self.0.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        take_turn();
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        take_turn();
        self.0.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        take_turn();
        self.0.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// In what order three threads take notes, two of them under a lock that they hold over their turns.
    fn order(seed: u64) -> Vec<u32> {
        let (notes, lock) = (Mutex::new(Vec::new()), Mutex::new(()));
        let note = |who| notes.lock().expect("nobody panics").push(who);
        let job = |who: u32, locks: bool| -> Box<dyn FnOnce() + Send + '_> {
            let (note, lock) = (&note, &lock);
            Box::new(move || {
                for _ in 0..5 {
                    let _held = locks.then(|| lock.lock().expect("nobody panics"));
                    take_turn();
                    note(who);
                    take_turn();
                    note(who);
                }
            })
        };
        run_in_turns(&mut SplitMix64::new(seed), vec![job(0, true), job(1, true), job(2, false)]);
        notes.into_inner().expect("nobody panics")
    }

    #[test]
    fn a_seed_decides_the_order() {
        let orders: Vec<Vec<u32>> = (0..10).map(order).collect();
        for (seed, order_of_seed) in orders.iter().enumerate() {
            assert_eq!(order_of_seed.len(), 30);
            // who holds the lock notes twice before the other one does
            let locked: Vec<u32> = order_of_seed.iter().copied().filter(|who| *who < 2).collect();
            assert!(locked.chunks(2).all(|two| two[0] == two[1]), "{seed}: {locked:?}");
        }
        assert!(orders.iter().any(|other| *other != orders[0]));
    }
}
