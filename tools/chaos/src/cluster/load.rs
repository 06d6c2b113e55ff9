//! Clients that write durably while nodes come, go and die, and remember what was acknowledged.
//!
//! Each key belongs to one writer and holds a version that only rises: what is read in the end must not be below the
//! last version that was acknowledged, nor above the last one that was tried.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use base::vbucket_map::vbucket_of;
use harness::client::{Answer, Client};
use protocol::extras::StoreExtras;
use protocol::{RequestParts, Status, opcode};

use super::map::Maps;

const VBUCKETS: u16 = 1024;
/// Keys of each writer.
const KEYS: usize = 2048;
/// Bytes of a value.
const VALUE_BYTES: usize = 256;
/// A majority in memory, within two seconds (frame info 1: level, timeout in milliseconds).
const MAJORITY: [u8; 4] = [0x13, 0x01, 0x07, 0xd0];
/// Between two tries of a write that was not taken.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// How often somebody asks for a newer map, beside those that come with refusals.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// A write that nobody takes for so long is one too many.
const NOBODY: Duration = Duration::from_secs(90);

/// What clients saw during one part of the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// From the first try until the acknowledgement of each write, in microseconds.
    pub(super) took_us: Vec<u64>,
    /// Answers other than success, by name, and connections that failed.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Tally {
    fn take(&mut self, other: Tally) {
        self.took_us.extend(other.took_us);
        for (name, count) in other.errors {
            *self.errors.entry(name).or_default() += count;
        }
    }
}

/// Writers at work.
pub(super) struct Load {
    writers: Vec<JoinHandle<Result<Page>>>,
    asker: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    part: Arc<AtomicUsize>,
    maps: Maps,
}

/// What one writer wrote.
struct Page {
    writer: usize,
    tried: Vec<u64>,
    acknowledged: Vec<u64>,
    parts: Vec<Tally>,
}

/// What all of them wrote.
pub(super) struct Written {
    pages: Vec<Page>,
    maps: Maps,
    /// What clients saw, part by part.
    pub(super) parts: Vec<Tally>,
}

fn key(writer: usize, at: usize) -> Vec<u8> {
    format!("cluster-{writer}-{at}").into_bytes()
}

impl Load {
    /// Starts them.
    pub(super) fn start(maps: &Maps, writers: usize) -> Load {
        let (stop, part) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let spawn = |writer| {
            let (maps, stop, part) = (maps.clone(), Arc::clone(&stop), Arc::clone(&part));
            thread::spawn(move || Writer::new(writer, maps).run(&stop, &part))
        };
        let writers = (0..writers).map(spawn).collect();
        let asker = {
            let (maps, stop) = (maps.clone(), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    maps.ask();
                    thread::sleep(ASK_EVERY);
                }
            })
        };
        Load { writers, asker, stop, part, maps: maps.clone() }
    }

    /// What happens from now on counts for another part of the run.
    pub(super) fn next_part(&self) {
        self.part.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a writer has given up.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(!self.writers.iter().any(JoinHandle::is_finished), "a writer has given up");
        Ok(())
    }

    /// Ends them.
    pub(super) fn stop(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let join =
            |writer: JoinHandle<Result<Page>>| writer.join().map_err(|_| anyhow!("a writer panicked"))?;
        let mut pages = self.writers.into_iter().map(join).collect::<Result<Vec<Page>>>()?;
        self.asker.join().map_err(|_| anyhow!("whoever asks for maps panicked"))?;
        let mut parts: Vec<Tally> = Vec::new();
        for page in &mut pages {
            for (at, tally) in std::mem::take(&mut page.parts).into_iter().enumerate() {
                if parts.len() <= at {
                    parts.push(Tally::default());
                }
                parts[at].take(tally);
            }
        }
        Ok(Written { pages, maps: self.maps, parts })
    }
}

struct Writer {
    page: Page,
    maps: Maps,
    connections: HashMap<String, Client>,
}

impl Writer {
    fn new(writer: usize, maps: Maps) -> Writer {
        let page = Page { writer, tried: vec![0; KEYS], acknowledged: vec![0; KEYS], parts: Vec::new() };
        Writer { page, maps, connections: HashMap::new() }
    }

    fn run(mut self, stop: &AtomicBool, part: &AtomicUsize) -> Result<Page> {
        for at in (0..KEYS).cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let version = self.page.tried[at] + 1;
            self.page.tried[at] = version;
            let value = format!("{version:<VALUE_BYTES$}");
            let (key, begun) = (key(self.page.writer, at), Instant::now());
            let mut errors = BTreeMap::new();
            loop {
                match self.try_to_write(&key, value.as_bytes()) {
                    Ok(Outcome::Done) => break,
                    Ok(Outcome::Again(name)) | Err(name) => *errors.entry(name).or_insert(0) += 1,
                    Ok(Outcome::Wrong(status)) => bail!("a write was answered with status 0x{status:02x}"),
                }
                ensure!(begun.elapsed() < NOBODY, "nobody takes a write for {NOBODY:?}: {errors:?}");
                thread::sleep(TRY_AGAIN);
            }
            self.page.acknowledged[at] = version;
            let part = part.load(Ordering::Relaxed);
            if self.page.parts.len() <= part {
                self.page.parts.resize(part + 1, Tally::default());
            }
            let took_us = vec![begun.elapsed().as_micros() as u64];
            self.page.parts[part].take(Tally { took_us, errors });
        }
        Ok(self.page)
    }

    /// One try; an error names what happened to the connection.
    fn try_to_write(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome, String> {
        let extras = StoreExtras { flags: 0, expiry: 0 }.encode();
        let vbucket = vbucket_of(key, VBUCKETS);
        let parts = RequestParts {
            opcode: opcode::SET,
            vbucket,
            key,
            value,
            extras: &extras,
            frame_infos: &MAJORITY,
            ..RequestParts::default()
        };
        let Some(answer) = ask(&self.maps, &mut self.connections, vbucket.0, &parts)? else {
            return Ok(Outcome::Again("nobody is active".to_owned()));
        };
        match Status::from_code(answer.status_code) {
            Some(Status::Success) => Ok(Outcome::Done),
            Some(
                status @ (Status::NotMyVbucket
                | Status::Etmpfail
                | Status::Ebusy
                | Status::DurabilityImpossible
                | Status::SyncWriteInProgress
                | Status::SyncWriteAmbiguous
                | Status::SyncWriteReCommitInProgress),
            ) => Ok(Outcome::Again(status.name().to_owned())),
            _ => Ok(Outcome::Wrong(answer.status_code)),
        }
    }
}

enum Outcome {
    Done,
    Again(String),
    Wrong(u16),
}

/// Sends a request to whoever is active for a vBucket; nothing if nobody is. A newer map that comes back is kept.
fn ask(
    maps: &Maps,
    connections: &mut HashMap<String, Client>,
    vb: u16,
    parts: &RequestParts<'_>,
) -> Result<Option<Answer>, String> {
    let map = maps.newest();
    let Some(address) = map.active(vb) else { return Ok(None) };
    if !connections.contains_key(address) {
        let client = Client::connect(address).map_err(|_| "no connection".to_owned())?;
        connections.insert(address.to_owned(), client);
    }
    let Some(client) = connections.get_mut(address) else { return Ok(None) };
    client.push(parts);
    match client.flush().and_then(|()| client.answer()) {
        Ok(answer) => {
            if Status::from_code(answer.status_code) == Some(Status::NotMyVbucket) {
                maps.offer(&answer.value);
            }
            Ok(Some(answer))
        }
        Err(_) => {
            connections.remove(address);
            Err("connection closed".to_owned())
        }
    }
}

/// What became of what was acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verdict {
    /// Keys that were read.
    pub(super) keys: u64,
    /// Writes that were acknowledged.
    pub(super) acknowledged: u64,
    /// Keys whose last acknowledged write is gone.
    pub(super) lost: u64,
    /// Keys that hold what nobody has written.
    pub(super) invented: u64,
}

impl Written {
    /// Reads every key back from whoever is active for it.
    pub(super) fn verify(&self) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let mut connections = HashMap::new();
        for page in &self.pages {
            for at in (0..KEYS).filter(|at| page.tried[*at] > 0) {
                let key = key(page.writer, at);
                let found = self.read(&mut connections, &key)?;
                verdict.keys += 1;
                verdict.acknowledged += page.acknowledged[at];
                verdict.lost += u64::from(found < page.acknowledged[at]);
                verdict.invented += u64::from(found > page.tried[at]);
            }
        }
        Ok(verdict)
    }

    fn read(&self, connections: &mut HashMap<String, Client>, key: &[u8]) -> Result<u64> {
        let vbucket = vbucket_of(key, VBUCKETS);
        let parts = RequestParts { opcode: opcode::GET, vbucket, key, ..RequestParts::default() };
        let begun = Instant::now();
        loop {
            let answer = ask(&self.maps, connections, vbucket.0, &parts);
            let status = answer.as_ref().ok().and_then(Option::as_ref).map(|answer| answer.status_code);
            match (status.and_then(Status::from_code), answer) {
                (Some(Status::Success), Ok(Some(answer))) => {
                    return Ok(String::from_utf8(answer.value)?.trim().parse()?);
                }
                (Some(Status::KeyEnoent), _) => return Ok(0),
                (status, _) if begun.elapsed() > NOBODY => {
                    bail!("{} cannot be read: {status:?}", key.escape_ascii())
                }
                _ => {
                    self.maps.ask();
                    thread::sleep(TRY_AGAIN);
                }
            }
        }
    }
}
