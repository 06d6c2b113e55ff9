//! Readers and writers: threads with a connection each, which count every answer by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use harness::client::Client;
use harness::rng::Rng;
use protocol::Status;

use super::documents::{Documents, Set, Zipf};
use super::latencies::Latencies;

/// Writes of one writer that are outstanding at once.
const WINDOW: u64 = 16;
/// How long a writer whose writes were refused lets the server work.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);
/// A writer that is behind catches up with no more than this.
const CATCH_UP: Duration = Duration::from_secs(1);
/// A hot reader sends so often, if answers come in time.
const HOT_INTERVAL: Duration = Duration::from_micros(250);
const COLD_INTERVAL: Duration = Duration::from_millis(10);

/// What all threads count.
#[derive(Default)]
pub struct Tally {
    /// Writes that succeeded.
    pub written: AtomicU64,
    /// Bytes of their values.
    pub written_bytes: AtomicU64,
    /// Writes that got a temporary failure; they are tried again.
    pub refused: AtomicU64,
    hot: Mutex<Latencies>,
    cold: Mutex<Latencies>,
    odd_writes: Mutex<BTreeMap<String, u64>>,
    odd_reads: Mutex<BTreeMap<String, u64>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(odd: &Mutex<BTreeMap<String, u64>>, name: String) {
    *locked(odd).entry(name).or_default() += 1;
}

fn status_name(code: u16) -> String {
    Status::from_code(code).map_or_else(|| format!("status 0x{code:02x}"), |status| status.name().to_owned())
}

impl Tally {
    /// Latencies of hot reads since this was asked last.
    pub fn take_hot(&self) -> Latencies {
        std::mem::take(&mut *locked(&self.hot))
    }

    /// Latencies of cold reads since this was asked last.
    pub fn take_cold(&self) -> Latencies {
        std::mem::take(&mut *locked(&self.cold))
    }

    /// Answers to writes that are neither success nor a temporary failure.
    pub fn odd_writes(&self) -> BTreeMap<String, u64> {
        locked(&self.odd_writes).clone()
    }

    /// Answers to reads of documents that are there which are not their values.
    pub fn odd_reads(&self) -> BTreeMap<String, u64> {
        locked(&self.odd_reads).clone()
    }
}

/// What writers write, round and round.
pub struct Stream {
    /// Which documents.
    pub set: Set,
    /// How many.
    pub documents: u64,
    /// Bytes a second, of all writers; 0 for as many as the server takes.
    pub bytes_per_s: u64,
    /// How many each writer has stored: numbers `writer`, `writer + writers` and so on.
    pub stored: Vec<AtomicU64>,
}

impl Stream {
    /// A document that was stored, drawn at random.
    fn any_stored(&self, rng: &mut Rng) -> Option<u64> {
        let writers = self.stored.len() as u64;
        let writer = rng.below(writers);
        let stored = self.stored[writer as usize].load(Ordering::Relaxed).min(self.documents / writers);
        (stored > 0).then(|| writer + writers * rng.below(stored))
    }
}

/// A load on a server, as all its threads see it.
pub struct Load<'a> {
    /// HOST:PORT.
    pub address: &'a str,
    /// Makes what is written and checks what is read.
    pub documents: &'a Documents,
    /// Chooses among the hot documents.
    pub hot: &'a Zipf,
    /// What is counted.
    pub tally: &'a Tally,
    /// Set to end it.
    pub is_over: &'a AtomicBool,
}

impl Load<'_> {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Stores all documents of a set; a load begins with them.
    pub fn fill(&self, set: Set, documents: u64) -> Result<()> {
        let mut client = Client::connect(self.address)?;
        let numbers: Vec<u64> = (0..documents).collect();
        for some in numbers.chunks(WINDOW as usize) {
            anyhow::ensure!(
                self.store(&mut client, set, some)?.is_empty(),
                "an empty node refuses documents"
            );
        }
        client.await_persisted()
    }

    /// Reads hot documents at an even pace.
    pub fn read_hot(&self, seed: u64) -> Result<()> {
        let mut rng = Rng::new(seed);
        let next = |rng: &mut Rng| Some(self.hot.next(rng));
        self.read(Set::Hot, HOT_INTERVAL, &self.tally.hot, || next(&mut rng))
    }

    /// Reads documents that writers have stored, most of which are on disk only.
    pub fn read_cold(&self, stream: &Stream, seed: u64) -> Result<()> {
        let mut rng = Rng::new(seed);
        self.read(stream.set, COLD_INTERVAL, &self.tally.cold, || stream.any_stored(&mut rng))
    }

    fn read(
        &self,
        set: Set,
        interval: Duration,
        latencies: &Mutex<Latencies>,
        mut next: impl FnMut() -> Option<u64>,
    ) -> Result<()> {
        let mut client = Client::connect(self.address)?;
        let interval_ns = interval.as_nanos() as u64;
        let mut due = Instant::now();
        while self.goes_on() {
            due += interval;
            if let Some(number) = next() {
                let (vbucket, key) = set.key(number);
                client.push_get(vbucket, key.as_bytes());
                let sent = Instant::now();
                client.flush()?;
                let answer = client.answer()?;
                let took_ns = sent.elapsed().as_nanos() as u64;
                locked(latencies).add_with_missed(took_ns, interval_ns);
                if !answer.is_ok() {
                    count(&self.tally.odd_reads, status_name(answer.status_code));
                } else if !self.documents.is_value(set, number, &answer.value) {
                    count(&self.tally.odd_reads, "another value".to_owned());
                }
            }
            let now = Instant::now();
            thread::sleep(due.saturating_duration_since(now));
            due = due.max(now);
        }
        Ok(())
    }

    /// Writes a writer's share of a stream, round and round, until the load is over.
    pub fn write(&self, stream: &Stream, writer: u64) -> Result<()> {
        let mut client = Client::connect(self.address)?;
        let writers = stream.stored.len() as u64;
        let share = (stream.documents / writers).max(1);
        let mut pace = Pace::new(stream.bytes_per_s / writers);
        for round in 0.. {
            let first = round * WINDOW;
            let mut waiting: Vec<u64> =
                (first..first + WINDOW).map(|at| writer + writers * (at % share)).collect();
            while !waiting.is_empty() {
                if !self.goes_on() {
                    return Ok(());
                }
                let before = waiting.len();
                waiting = self.store(&mut client, stream.set, &waiting)?;
                if !waiting.is_empty() {
                    thread::sleep(REFUSED_PAUSE);
                }
                pace.sent((before - waiting.len()) as u64 * super::documents::MEAN_BYTES);
            }
            stream.stored[writer as usize].fetch_add(WINDOW, Ordering::Relaxed);
            pace.keep();
        }
        Ok(())
    }

    /// Writes some documents; returns those that were refused for now.
    fn store(&self, client: &mut Client, set: Set, numbers: &[u64]) -> Result<Vec<u64>> {
        let mut bytes = Vec::with_capacity(numbers.len());
        for number in numbers {
            let (vbucket, key) = set.key(*number);
            let value = self.documents.value(set, *number);
            client.push_set(vbucket, key.as_bytes(), 0, &value, false);
            bytes.push(value.len() as u64);
        }
        client.flush()?;
        let mut refused = Vec::new();
        for (number, bytes) in numbers.iter().zip(bytes) {
            let status = client.answer()?.status_code;
            match Status::from_code(status) {
                Some(Status::Success) => {
                    self.tally.written.fetch_add(1, Ordering::Relaxed);
                    self.tally.written_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Some(Status::Etmpfail) => {
                    self.tally.refused.fetch_add(1, Ordering::Relaxed);
                    refused.push(*number);
                }
                _ => {
                    // tried again too: readers count on what is stored
                    count(&self.tally.odd_writes, status_name(status));
                    refused.push(*number);
                }
            }
        }
        Ok(refused)
    }
}

/// Keeps a writer to its rate.
struct Pace {
    bytes_per_s: u64,
    due: Instant,
}

impl Pace {
    fn new(bytes_per_s: u64) -> Pace {
        Pace { bytes_per_s, due: Instant::now() }
    }

    fn sent(&mut self, bytes: u64) {
        if self.bytes_per_s > 0 {
            self.due += Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        }
    }

    fn keep(&mut self) {
        let now = Instant::now();
        thread::sleep(self.due.saturating_duration_since(now));
        self.due = self.due.max(now.checked_sub(CATCH_UP).unwrap_or(now));
    }
}
