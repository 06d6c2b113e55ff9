//! Writers that follow vBuckets from node to node, and remember what was acknowledged.
//!
//! Each write adds one to a counter, so that in the end a counter says which of them were lost and which happened twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use base::VbId;
use base::vbucket_map::vbucket_of;
use harness::client::Client;
use protocol::extras::CounterExtras;
use protocol::{RequestParts, Status, opcode};

const VBUCKETS: u16 = 1024;
/// Counters of each writer: several of each vBucket.
const COUNTERS: usize = 4096;
/// A write that nobody takes for so long is one too many.
const NOBODY: Duration = Duration::from_secs(60);

/// Writers at work.
pub(super) struct Ledger {
    writers: Vec<JoinHandle<Result<Pages>>>,
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
}

/// What one writer wrote.
struct Pages {
    writer: u32,
    counts: Vec<u64>,
    longest: Duration,
    redirected: u64,
}

/// What all of them wrote.
pub(super) struct Written {
    pages: Vec<Pages>,
    /// Acknowledged writes.
    pub(super) count: u64,
    /// The longest time that a write took.
    pub(super) longest: Duration,
    /// Writes that the first node asked did not take.
    pub(super) redirected: u64,
}

fn key(writer: u32, at: usize) -> (Vec<u8>, VbId) {
    let key = format!("ledger-{writer}-{at}").into_bytes();
    let vb = vbucket_of(&key, VBUCKETS);
    (key, vb)
}

impl Ledger {
    /// Starts them; each knows both nodes, and asks the first one first.
    pub(super) fn start(first: &str, second: &str, writers: u32) -> Result<Ledger> {
        let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = |writer| -> Result<JoinHandle<Result<Pages>>> {
            let nodes = [Client::connect(first)?, Client::connect(second)?];
            let (stop, writes) = (Arc::clone(&stop), Arc::clone(&writes));
            Ok(thread::spawn(move || write(writer, nodes, &stop, &writes)))
        };
        let writers = (0..writers).map(start).collect::<Result<Vec<_>>>()?;
        Ok(Ledger { writers, stop, writes })
    }

    /// How many writes were acknowledged.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Waits until there are so many.
    pub(super) fn await_writes(&self, count: u64) -> Result<()> {
        let begun = Instant::now();
        while self.writes() < count {
            ensure!(begun.elapsed() < NOBODY, "the writers do not get on");
            ensure!(!self.writers.iter().any(JoinHandle::is_finished), "a writer has given up");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends them.
    pub(super) fn stop(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let join =
            |writer: JoinHandle<Result<Pages>>| writer.join().map_err(|_| anyhow!("a writer panicked"))?;
        let pages = self.writers.into_iter().map(join).collect::<Result<Vec<Pages>>>()?;
        Ok(Written {
            count: pages.iter().flat_map(|page| &page.counts).sum(),
            longest: pages.iter().map(|page| page.longest).max().unwrap_or_default(),
            redirected: pages.iter().map(|page| page.redirected).sum(),
            pages,
        })
    }
}

/// Adds one to counter after counter, at whichever node takes it.
fn write(writer: u32, mut nodes: [Client; 2], stop: &AtomicBool, writes: &AtomicU64) -> Result<Pages> {
    let mut page = Pages { writer, counts: vec![0; COUNTERS], longest: Duration::ZERO, redirected: 0 };
    // Where each vBucket was served last.
    let mut home = vec![0; usize::from(VBUCKETS)];
    for at in (0..COUNTERS).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (key, vb) = key(writer, at);
        let home = &mut home[usize::from(vb.0)];
        let begun = Instant::now();
        while !add_one(&mut nodes[*home], vb, &key)? {
            ensure!(begun.elapsed() < NOBODY, "nobody takes writes to vBucket {}", vb.0);
            page.redirected += 1;
            *home = 1 - *home;
        }
        page.longest = page.longest.max(begun.elapsed());
        page.counts[at] += 1;
        writes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(page)
}

/// Whether the node took it.
fn add_one(node: &mut Client, vbucket: VbId, key: &[u8]) -> Result<bool> {
    let extras = CounterExtras { delta: 1, initial: 1, expiry: 0 }.encode();
    node.push(&RequestParts {
        opcode: opcode::INCREMENT,
        vbucket,
        key,
        extras: &extras,
        ..RequestParts::default()
    });
    node.flush()?;
    let answer = node.answer()?;
    match Status::from_code(answer.status_code) {
        Some(Status::Success) => Ok(true),
        Some(Status::NotMyVbucket | Status::Etmpfail | Status::Ebusy) => Ok(false),
        _ => bail!("a counter was answered with status 0x{:02x}", answer.status_code),
    }
}

impl Written {
    /// Looks at every counter where it is served now: how many writes are missing, and how many happened twice.
    pub(super) fn compare(&self, first: &str, second: &str) -> Result<(u64, u64)> {
        let mut nodes = [Client::connect(second)?, Client::connect(first)?];
        let (mut lost, mut repeated) = (0, 0);
        for page in &self.pages {
            for (at, count) in page.counts.iter().enumerate() {
                let (key, vb) = key(page.writer, at);
                let found = find(&mut nodes, vb, &key)?;
                lost += count.saturating_sub(found);
                repeated += found.saturating_sub(*count);
            }
        }
        Ok((lost, repeated))
    }
}

fn find(nodes: &mut [Client], vb: VbId, key: &[u8]) -> Result<u64> {
    for node in nodes {
        node.push_get(vb, key);
        node.flush()?;
        let answer = node.answer()?;
        match Status::from_code(answer.status_code) {
            Some(Status::Success) => return Ok(String::from_utf8(answer.value)?.trim().parse()?),
            Some(Status::KeyEnoent) => return Ok(0),
            Some(Status::NotMyVbucket) => {}
            _ => bail!("a counter cannot be read: status 0x{:02x}", answer.status_code),
        }
    }
    bail!("nobody serves vBucket {}", vb.0)
}
