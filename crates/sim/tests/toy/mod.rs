//! A toy store, one log file, that is correct unless a bug is planted: it shows that the crash tests can fail.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::env::sim::{SimDisk, SplitMix64};
use base::env::{Disk, File, OpenMode};
use base::{Seqno, VbId};
use sim::ledger::Entry;
use sim::{Fingerprint, Ledger, Restored};

pub const VB: VbId = VbId(0);
const FOLDER: &str = "/toy";
const LOG: &str = "/toy/log";

/// What is wrong with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// Never syncs the log.
    NoSync,
    /// Promises before it syncs.
    PromiseBeforeSync,
    /// Never syncs the folder that the log is in.
    NoFolderSync,
    /// Believes what it reads without looking at the checksum.
    NoChecksum,
    /// After a failed sync it syncs again and promises.
    RetriesSync,
    /// After a failed write it goes on behind whatever the write left.
    LeavesTornWrite,
    /// Overwrites its first record in place.
    OverwritesInPlace,
    /// Counts a batch as held although it lost part of it.
    OverClaims,
}

type Doc = (u8, Seqno, Vec<u8>);

struct Store {
    bug: Bug,
    disk: SimDisk,
    log: Arc<dyn File>,
    end: u64,
}

/// `length, checksum, payload`; the payload is `key, seqno, value length, value` again and again.
fn encode(docs: &[Doc]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (key, seqno, value) in docs {
        payload.push(*key);
        payload.extend(seqno.0.to_le_bytes());
        payload.extend((value.len() as u32).to_le_bytes());
        payload.extend(value);
    }
    let mut record = (payload.len() as u32).to_le_bytes().to_vec();
    record.extend(crc32fast::hash(&payload).to_le_bytes());
    record.extend(payload);
    record
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = bytes.split_at_checked(len)?;
    *bytes = tail;
    Some(head)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes, 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes were taken")))
}

fn decode(bug: Bug, bytes: &mut &[u8]) -> Option<Vec<Doc>> {
    let len = take_u32(bytes)? as usize;
    let checksum = take_u32(bytes)?;
    let mut payload = take(bytes, len)?;
    if len == 0 || (bug != Bug::NoChecksum && crc32fast::hash(payload) != checksum) {
        return None;
    }
    let mut docs = Vec::new();
    while !payload.is_empty() {
        let key = take(&mut payload, 1)?[0];
        let seqno = take(&mut payload, 8)?;
        let seqno = Seqno(u64::from_le_bytes(seqno.try_into().expect("eight bytes were taken")));
        let len = take_u32(&mut payload)? as usize;
        docs.push((key, seqno, take(&mut payload, len)?.to_vec()));
    }
    Some(docs)
}

fn entry(seqno: Seqno, value: &[u8]) -> Entry {
    Entry { seqno, fingerprint: Fingerprint::of_bytes([value]), is_deleted: false }
}

impl Store {
    fn create(bug: Bug, disk: &SimDisk) -> io::Result<Store> {
        disk.create_dir_all(Path::new(FOLDER))?;
        disk.sync_dir(Path::new("/"))?;
        let log = disk.open(Path::new(LOG), OpenMode::CreateNew)?;
        if bug != Bug::NoFolderSync {
            disk.sync_dir(Path::new(FOLDER))?;
        }
        Ok(Store { bug, disk: disk.clone(), log, end: 0 })
    }

    fn save(&mut self, docs: &[Doc], ledger: &mut Ledger) -> io::Result<()> {
        let record = encode(docs);
        let at = if self.bug == Bug::OverwritesInPlace && self.end > 1500 { 0 } else { self.end };
        if let Err(e) = self.log.write_at(&record, at) {
            if self.bug == Bug::LeavesTornWrite {
                self.end = self.log.len()?;
            }
            return Err(e);
        }
        self.end = at + record.len() as u64;
        let promise = docs[docs.len() - 1].1;
        if self.bug == Bug::PromiseBeforeSync {
            ledger.promised(VB, promise, self.disk.changes());
        }
        self.sync()?;
        ledger.promised(VB, promise, self.disk.changes());
        Ok(())
    }

    /// A failed sync leaves the end where it was: the same place is written again, which makes its pages dirty again.
    fn sync(&mut self) -> io::Result<()> {
        match self.bug {
            Bug::NoSync => Ok(()),
            Bug::RetriesSync => self.log.sync_data().or_else(|_| self.log.sync_data()),
            _ => self.log.sync_data(),
        }
    }
}

/// Makes a store and saves some batches, with what goes into the ledger. A batch that fails is tried again once.
pub fn run(bug: Bug, seed: u64, batches: u64, disk: &SimDisk) -> Ledger {
    let mut ledger = Ledger::new();
    let mut rng = SplitMix64::new(seed);
    let Ok(mut store) = Store::create(bug, disk) else { return ledger };
    let mut seqno = Seqno(0);
    for _ in 0..batches {
        let mut docs = Vec::new();
        let first_key = rng.below(5) as u8;
        for n in 0..rng.between(1, 4) as u8 {
            seqno = seqno.next();
            let mut value = vec![0; rng.between(1, 700) as usize];
            value.fill_with(|| rng.next_u64() as u8);
            ledger.wrote(VB, &[first_key + n], entry(seqno, &value), disk.changes());
            docs.push((first_key + n, seqno, value));
        }
        let before = store.end;
        if store.save(&docs, &mut ledger).is_err() {
            if bug != Bug::LeavesTornWrite {
                store.end = before;
            }
            if store.save(&docs, &mut ledger).is_err() {
                break;
            }
        }
    }
    ledger
}

/// Reads the store as a restart does.
pub fn restore(bug: Bug, disk: &SimDisk) -> Restored {
    let mut bytes = Vec::new();
    if let Ok(log) = disk.open(Path::new(LOG), OpenMode::Read) {
        bytes.resize(log.len().expect("no fault planned") as usize, 0);
        log.read_at(&mut bytes, 0).expect("no fault planned");
    }
    let mut rest = &bytes[..];
    let mut newest = std::collections::BTreeMap::new();
    let mut high = Seqno(0);
    while let Some(docs) = decode(bug, &mut rest) {
        for (key, seqno, value) in docs {
            high = high.max(seqno);
            newest.insert(key, entry(seqno, &value));
        }
    }
    if bug == Bug::OverClaims && !rest.is_empty() {
        high = high.next();
    }
    let mut restored = Restored::new(high);
    newest.iter().for_each(|(key, entry)| restored.add(&[*key], *entry));
    restored
}
