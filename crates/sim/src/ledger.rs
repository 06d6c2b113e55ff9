//! The acknowledgement ledger: everything that was written, everything that was promised, and whether a restart kept it.
//!
//! Moments are positions: the number of disk changes that were done when something was written or promised,
//! so that the promises that held at any crash are known without running anything again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::{Seqno, VbId, Version};

/// Stands for everything of a version except its place in the vBucket: value and metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// The fingerprint of some bytes (FNV-1a, 64 bits).
    pub fn of_bytes<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for part in parts {
            for byte in part.len().to_le_bytes().iter().chain(part) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        Fingerprint(hash)
    }

    /// The fingerprint of a version.
    pub fn of(version: &Version) -> Fingerprint {
        let meta = version.meta();
        Fingerprint::of_bytes([
            &meta.cas.0.to_le_bytes()[..],
            &meta.rev_seqno.0.to_le_bytes(),
            &meta.flags.to_le_bytes(),
            &meta.expiry.to_le_bytes(),
            &[meta.datatype.0, meta.kind as u8],
            version.value(),
        ])
    }
}

/// One version of a document, as written or as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the vBucket.
    pub seqno: Seqno,
    /// Its value and metadata.
    pub fingerprint: Fingerprint,
    /// Whether it is a tombstone.
    pub is_deleted: bool,
}

impl Entry {
    /// The entry of a version.
    pub fn of(version: &Version) -> Entry {
        Entry {
            seqno: version.meta().by_seqno,
            fingerprint: Fingerprint::of(version),
            is_deleted: version.is_deleted(),
        }
    }
}

/// What a restart found of a vBucket.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Up to where the store says it holds everything.
    pub high_seqno: Seqno,
    /// Tombstones up to here may be gone.
    pub purge_seqno: Seqno,
    docs: BTreeMap<Box<[u8]>, Entry>,
    twice: BTreeSet<Box<[u8]>>,
}

impl Restored {
    /// A vBucket that says it holds everything up to `high_seqno`.
    pub fn new(high_seqno: Seqno) -> Restored {
        Restored { high_seqno, ..Restored::default() }
    }

    /// A document was found.
    pub fn add(&mut self, key: &[u8], entry: Entry) {
        if self.docs.insert(key.into(), entry).is_some() {
            self.twice.insert(key.into());
        }
    }

    /// How many documents and tombstones were found.
    pub fn len(&self) -> usize {
        self.docs.len()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.docs.is_empty()
    }
}

/// A promise that was not kept, or something that nobody wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The store forgot changes that it had promised to keep.
    Forgotten {
        /// What was promised.
        promised: Seqno,
        /// Up to where the restart goes.
        found: Seqno,
    },
    /// The restart claims changes that were never made.
    OverClaimed {
        /// The last change that was made.
        written: Seqno,
        /// Up to where the restart claims to go.
        found: Seqno,
    },
    /// A document that should be there is not.
    Lost {
        /// Its key.
        key: Box<[u8]>,
        /// The version that should be there.
        seqno: Seqno,
    },
    /// An older version of a document is there than should be.
    Stale {
        /// Its key.
        key: Box<[u8]>,
        /// The version that should be there.
        seqno: Seqno,
        /// The one that is.
        found: Seqno,
    },
    /// A version is there that lies beyond what the restart claims to hold.
    BeyondClaim {
        /// Its key.
        key: Box<[u8]>,
        /// The version.
        found: Seqno,
        /// What is claimed.
        claimed: Seqno,
    },
    /// A version is there that was never written like this.
    Invented {
        /// Its key.
        key: Box<[u8]>,
        /// Where it claims to be from.
        found: Seqno,
    },
    /// A key was found twice.
    Twice {
        /// The key.
        key: Box<[u8]>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Forgotten { promised, found } => write!(f, "promised {promised}, goes to {found}"),
            Violation::OverClaimed { written, found } => write!(f, "written to {written}, claims {found}"),
            Violation::Lost { key, seqno } => write!(f, "{}: {seqno} is lost", key.escape_ascii()),
            Violation::Stale { key, seqno, found } => {
                write!(f, "{}: {seqno} is lost, an older {found} is there", key.escape_ascii())
            }
            Violation::BeyondClaim { key, found, claimed } => {
                write!(f, "{}: {found} is there, but only {claimed} is claimed", key.escape_ascii())
            }
            Violation::Invented { key, found } => {
                write!(f, "{}: {found} was never written like this", key.escape_ascii())
            }
            Violation::Twice { key } => write!(f, "{}: found twice", key.escape_ascii()),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct History {
    /// Versions of each key in the order of their seqnos, with the position at which each was written.
    keys: BTreeMap<Box<[u8]>, Vec<(u64, Entry)>>,
    /// Highest seqno written by a position.
    written: Vec<(u64, Seqno)>,
    /// Seqno promised by a position.
    promised: Vec<(u64, Seqno)>,
}

/// The last seqno noted at or before a position.
fn upto(notes: &[(u64, Seqno)], at: u64) -> Seqno {
    let count = notes.partition_point(|(noted_at, _)| *noted_at <= at);
    count.checked_sub(1).map_or(Seqno(0), |last| notes[last].1)
}

/// What was written and promised, vBucket by vBucket.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    histories: BTreeMap<VbId, History>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// A version was made, when `at` disk changes were done. Seqnos only grow.
    pub fn wrote(&mut self, vb: VbId, key: &[u8], entry: Entry, at: u64) {
        let history = self.histories.entry(vb).or_default();
        let last = history.written.last().map_or(Seqno(0), |(_, seqno)| *seqno);
        assert!(entry.seqno > last, "seqno {} of {vb} follows {last}", entry.seqno);
        history.written.push((at, entry.seqno));
        history.keys.entry(key.into()).or_default().push((at, entry));
    }

    /// The store promised, when `at` disk changes were done, to keep everything up to `seqno`.
    pub fn promised(&mut self, vb: VbId, seqno: Seqno, at: u64) {
        let history = self.histories.entry(vb).or_default();
        let before = history.promised.last().map_or(Seqno(0), |(_, seqno)| *seqno);
        assert!(seqno >= before, "the persisted seqno of {vb} went back from {before} to {seqno}");
        history.promised.push((at, seqno));
    }

    /// The vBuckets that anything is known about.
    pub fn vbuckets(&self) -> impl Iterator<Item = VbId> {
        self.histories.keys().copied()
    }

    /// What had been promised when `at` disk changes were done.
    pub fn promised_at(&self, vb: VbId, at: u64) -> Seqno {
        self.histories.get(&vb).map_or(Seqno(0), |history| upto(&history.promised, at))
    }

    /// Compares what a restart found, after a crash at position `at`, with what was written and promised by then.
    ///
    /// Everything up to the promised seqno must be there, whatever is there must be exactly the state at the seqno
    /// that the restart claims, and nothing may be there that was never written.
    pub fn check(&self, vb: VbId, found: &Restored, at: u64) -> Vec<Violation> {
        let empty = History::default();
        let history = self.histories.get(&vb).unwrap_or(&empty);
        let mut violations: Vec<Violation> =
            found.twice.iter().map(|key| Violation::Twice { key: key.clone() }).collect();
        let (promised, written) = (upto(&history.promised, at), upto(&history.written, at));
        if found.high_seqno < promised {
            violations.push(Violation::Forgotten { promised, found: found.high_seqno });
        }
        if found.high_seqno > written {
            violations.push(Violation::OverClaimed { written, found: found.high_seqno });
        }
        // What was promised is due even if the restart does not claim to hold it.
        let due = found.high_seqno.max(promised);
        for (key, versions) in &history.keys {
            let expected = versions.iter().rev().map(|(_, e)| e).find(|e| e.seqno <= due);
            violations.extend(compare(key, expected, found.docs.get(key), found.purge_seqno));
        }
        for (key, entry) in &found.docs {
            let versions = history.keys.get(key).map_or(&[][..], Vec::as_slice);
            if !versions.iter().any(|(written_at, e)| e == entry && *written_at <= at) {
                violations.push(Violation::Invented { key: key.clone(), found: entry.seqno });
            } else if entry.seqno > found.high_seqno {
                let claimed = found.high_seqno;
                violations.push(Violation::BeyondClaim { key: key.clone(), found: entry.seqno, claimed });
            }
        }
        violations
    }

    /// A restart went back to `seqno`, the one it was checked at; history goes on from there, on a disk whose
    /// changes are counted from 0 again.
    pub fn restarted(&mut self, vb: VbId, seqno: Seqno) {
        let Some(history) = self.histories.get_mut(&vb) else { return };
        for versions in history.keys.values_mut() {
            versions.retain(|(_, entry)| entry.seqno <= seqno);
            versions.iter_mut().for_each(|(at, _)| *at = 0);
        }
        history.keys.retain(|_, versions| !versions.is_empty());
        history.written = vec![(0, seqno)];
        // What a restart found is on the disk, hence as good as promised.
        history.promised = vec![(0, seqno)];
    }
}

fn compare(key: &[u8], expected: Option<&Entry>, found: Option<&Entry>, purged: Seqno) -> Option<Violation> {
    let expected = expected?;
    match found {
        None if expected.is_deleted && expected.seqno <= purged => None,
        None => Some(Violation::Lost { key: key.into(), seqno: expected.seqno }),
        Some(found) if found.seqno < expected.seqno => {
            Some(Violation::Stale { key: key.into(), seqno: expected.seqno, found: found.seqno })
        }
        Some(_) => None,
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
