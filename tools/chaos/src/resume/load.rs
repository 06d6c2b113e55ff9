//! Changes of documents in random order, as fast as the active node takes them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use base::vbucket_map::vbucket_of;
use harness::client::Client;
use harness::rng::Rng;
use protocol::Status;

/// Connections that write; each has its own documents.
const CONNECTIONS: u64 = 4;
/// Changes on their way on a connection.
const BATCH: u64 = 256;
/// A node that was killed is back within this time.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// Between two attempts to connect.
const TRY_AGAIN: Duration = Duration::from_millis(20);
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

    /// Prints a line, but not more often than this, with what else is counted.
    pub fn say(&self, every: Duration, counts: impl FnOnce() -> String) {
        let mut said = self.said.lock().expect("nobody panics while printing");
        if said.elapsed() >= every {
            *said = Instant::now();
            let seconds = self.begun.elapsed().as_secs_f64();
            let (done, rate) = (self.done(), self.done() as f64 / seconds);
            println!("{seconds:>6.1} s  {done} of {} changes, {rate:.0} a second; {}", self.goal, counts());
        }
    }
}

/// The node that is written to, which may die and come back elsewhere.
pub struct Target {
    kv: Mutex<String>,
    /// Whether it may die: else a connection that breaks is a failure.
    may_die: bool,
    is_given_up: AtomicBool,
}

impl Target {
    /// A node at `HOST:PORT`.
    pub fn new(kv: &str, may_die: bool) -> Target {
        Target { kv: Mutex::new(kv.to_owned()), may_die, is_given_up: AtomicBool::new(false) }
    }

    /// It is here now.
    pub fn moved(&self, kv: &str) {
        kv.clone_into(&mut self.kv.lock().expect("nobody panics while writing a name"));
    }

    /// Nobody needs more changes.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    fn connect(&self) -> Result<Client> {
        let begun = Instant::now();
        loop {
            let kv = self.kv.lock().expect("nobody panics while reading a name").clone();
            match Client::connect(&kv) {
                Err(_) if self.may_die && !self.is_over() && begun.elapsed() < BACK_WITHIN => {
                    thread::sleep(TRY_AGAIN);
                }
                connected => return connected,
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }
}

/// Which documents there are in the end.
pub struct Ledger {
    /// By number, the newest acknowledged version of each document; 0 for those that were deleted or never written.
    pub versions: Vec<u32>,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Whether nothing of it can be lost: else the node that was written to died, and forgot what was not on its disk.
    pub is_exact: bool,
    /// No version is newer.
    pub newest: u32,
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
pub fn run(
    target: &Target,
    documents: u64,
    value_bytes: usize,
    seed: u64,
    progress: &Progress,
) -> Result<Ledger> {
    let mut versions = vec![0; usize::try_from(documents)?];
    let share = versions.len().div_ceil(CONNECTIONS as usize);
    let mut rng = Rng::new(seed);
    let newest = thread::scope(|scope| {
        let writers: Vec<_> = versions
            .chunks_mut(share)
            .enumerate()
            .map(|(at, mine)| {
                let rng = Rng::new(rng.next());
                let first = (at * share) as u64;
                let mut writer = Writer { target, first, mine, value_bytes, rng, progress, version: 0 };
                scope.spawn(move || writer.write())
            })
            .collect();
        writers.into_iter().try_fold(0, |newest: u32, writer| -> Result<u32> {
            Ok(newest.max(writer.join().map_err(|_| anyhow!("a writer panicked"))??))
        })
    })?;
    Ok(Ledger { versions, value_bytes, is_exact: !target.may_die, newest })
}

/// One connection that writes.
struct Writer<'a> {
    target: &'a Target,
    /// The number of the first of its documents.
    first: u64,
    mine: &'a mut [u32],
    value_bytes: usize,
    rng: Rng,
    progress: &'a Progress,
    /// The last version that it wrote.
    version: u32,
}

impl Writer<'_> {
    /// Writes its share; the newest version.
    fn write(&mut self) -> Result<u32> {
        let mut client = self.target.connect()?;
        let goal = self.progress.goal / CONNECTIONS;
        let mut done = 0;
        while done < goal && !self.target.is_over() {
            let batch = self.push(&mut client, BATCH.min(goal - done));
            let sent = client.flush();
            if let Err(broken) = sent.and_then(|()| self.answers(&mut client, &batch, &mut done)) {
                if !self.target.may_die {
                    return Err(broken);
                }
                // What was on its way happened or did not.
                client = self.target.connect()?;
            }
        }
        Ok(self.version)
    }

    /// Queues so many changes: of which document, to which version.
    fn push(&mut self, client: &mut Client, changes: u64) -> Vec<(usize, u32)> {
        let change = |_| {
            let at = self.rng.below(self.mine.len() as u64) as usize;
            let number = self.first + at as u64;
            let key = key(number);
            let vb = vbucket_of(key.as_bytes(), VBUCKETS);
            self.version += 1;
            if self.rng.chance(DELETES) {
                client.push_delete(vb, key.as_bytes(), false);
                return (at, 0);
            }
            let value = value(number, self.version, self.value_bytes);
            client.push_set(vb, key.as_bytes(), self.version, &value, false);
            (at, self.version)
        };
        (0..changes).map(change).collect()
    }

    /// Takes the answers to a batch. Whatever else is answered than must be is no broken connection: nobody goes on.
    fn answers(&mut self, client: &mut Client, batch: &[(usize, u32)], done: &mut u64) -> Result<()> {
        for &(at, new) in batch {
            let status = client.answer()?.status_code;
            if status == Status::Etmpfail.code() {
                // Memory is short for a moment: not counted, tried again with another document.
                continue;
            }
            let is_nothing = new == 0 && status == Status::KeyEnoent.code();
            assert!(status == 0 || is_nothing, "a change was answered 0x{status:02x}");
            self.mine[at] = new;
            *done += u64::from(!is_nothing);
            self.progress.done.fetch_add(u64::from(!is_nothing), Ordering::Relaxed);
        }
        Ok(())
    }
}
