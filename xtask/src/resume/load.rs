//! Changes of documents in random order, as fast as the active node takes them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use base::vbucket_map::vbucket_of;
use protocol::Status;

use crate::client::Client;
use crate::rng::Rng;

/// Connections that write; each has its own documents.
const CONNECTIONS: u64 = 4;
/// Changes on their way on a connection.
const BATCH: u64 = 64;
/// Percent of changes that are deletions.
const DELETES: u64 = 10;
/// vBuckets of the bucket.
pub const VBUCKETS: u16 = 1024;

/// How far the writers are.
pub struct Progress {
    goal: u64,
    done: AtomicU64,
    begun: Instant,
    said: Mutex<Instant>,
}

impl Progress {
    /// Nothing is done yet.
    pub fn new(goal: u64) -> Progress {
        let now = Instant::now();
        Progress { goal, done: AtomicU64::new(0), begun: now, said: Mutex::new(now) }
    }

    /// Changes that were acknowledged.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Prints a line, but not more often than this.
    pub fn say(&self, every: Duration) {
        let mut said = self.said.lock().expect("nobody panics while printing");
        if said.elapsed() >= every {
            *said = Instant::now();
            println!(
                "{:>6.1} s  {} of {} changes",
                self.begun.elapsed().as_secs_f64(),
                self.done(),
                self.goal
            );
        }
    }
}

/// Which documents there are in the end: by number, the version, 0 for those that were deleted or never written.
pub struct Ledger {
    /// Newest acknowledged version of each document.
    pub versions: Vec<u32>,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// The key of a document.
pub fn key(number: u64) -> String {
    format!("document-{number:08}")
}

/// The value of a document in a version: no two are the same.
pub fn value(number: u64, version: u32, bytes: usize) -> Vec<u8> {
    let mut value = format!("{number}:{version}:").into_bytes();
    value.resize(bytes.max(value.len()), b'.');
    value
}

/// Writes until the goal is reached.
pub fn run(kv: &str, documents: u64, value_bytes: usize, seed: u64, progress: &Progress) -> Result<Ledger> {
    let mut versions = vec![0; usize::try_from(documents)?];
    let share = versions.len().div_ceil(CONNECTIONS as usize);
    let mut rng = Rng::new(seed);
    thread::scope(|scope| {
        let writers: Vec<_> = versions
            .chunks_mut(share)
            .enumerate()
            .map(|(at, mine)| {
                let rng = Rng::new(rng.next());
                scope.spawn(move || write(kv, (at * share) as u64, mine, value_bytes, rng, progress))
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| anyhow!("a writer panicked"))?)
    })?;
    Ok(Ledger { versions, value_bytes })
}

fn write(
    kv: &str,
    first: u64,
    mine: &mut [u32],
    value_bytes: usize,
    mut rng: Rng,
    progress: &Progress,
) -> Result<()> {
    let mut client = Client::connect(kv)?;
    let goal = progress.goal / CONNECTIONS;
    let (mut done, mut version) = (0, 0);
    while done < goal {
        let mut batch = Vec::new();
        for _ in 0..BATCH.min(goal - done) {
            let at = rng.below(mine.len() as u64) as usize;
            let key = key(first + at as u64);
            let vb = vbucket_of(key.as_bytes(), VBUCKETS);
            version += 1;
            let new = if rng.chance(DELETES) { 0 } else { version };
            match new {
                0 => client.push_delete(vb, key.as_bytes(), false),
                new => {
                    let value = value(first + at as u64, new, value_bytes);
                    client.push_set(vb, key.as_bytes(), new, &value, false);
                }
            }
            batch.push((at, new));
        }
        client.flush()?;
        for (at, new) in batch {
            let status = client.answer()?.status;
            if status == Status::Etmpfail.code() {
                // Memory is short for a moment: not counted, tried again with another document.
                continue;
            }
            let is_nothing = new == 0 && status == Status::KeyEnoent.code();
            ensure!(status == 0 || is_nothing, "a change was answered 0x{status:02x}");
            mine[at] = new;
            done += u64::from(!is_nothing);
            progress.done.fetch_add(u64::from(!is_nothing), Ordering::Relaxed);
        }
    }
    Ok(())
}
