//! How a vBucket is laid out in the database (docs/adr/0222).
//!
//! Every key begins with the vBucket, so that one is a range in each column family:
//!
//! | family | key behind the vBucket | value |
//! |---|---|---|
//! | `keys` | stored key | [`Entry`]: seqno and what counts need of the newest version |
//! | `seqnos` | seqno, big endian | the version |
//! | `undo` | commit, stored key | the [`Entry`] that the commit replaced; empty if there was none |
//! | `state` | 0 | [`Head`] |
//! | `state` | 1, commit | the head before that commit |
//! | `state` | 2 | [`Intent`] |
//!
//! One key of `state`, [`OWNER`], is of no vBucket.
//!
//! Numbers in values are little endian. RocksDB's blocks have checksums, so values have none.

use base::VbId;
use logstore::{Entry, Item};

use crate::log::LogState;

/// What a head begins with: how the rest is to be read.
const HEAD_VERSION: u8 = 1;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 17;
/// Bytes of a version before its metadata, key and value.
const VERSION_BYTES: usize = 8;

/// Where a vBucket begins.
pub(super) fn start_of(vb: VbId) -> Vec<u8> {
    vb.0.to_be_bytes().to_vec()
}

/// Behind the last key of a vBucket. No vBucket has the last number, which [`OWNER`] begins with.
pub(super) fn end_of(vb: VbId) -> Vec<u8> {
    vb.0.saturating_add(1).to_be_bytes().to_vec()
}

pub(super) fn key_of(vb: VbId, stored_key: &[u8]) -> Vec<u8> {
    [&vb.0.to_be_bytes(), stored_key].concat()
}

pub(super) fn seqno_of(vb: VbId, seqno: u64) -> Vec<u8> {
    [&vb.0.to_be_bytes()[..], &seqno.to_be_bytes()].concat()
}

pub(super) fn undo_of(vb: VbId, commit: u64, stored_key: &[u8]) -> Vec<u8> {
    [&vb.0.to_be_bytes()[..], &commit.to_be_bytes(), stored_key].concat()
}

/// Bytes before the stored key in a key of `undo`.
pub(super) const UNDO_PREFIX: usize = 10;
/// Bytes before the stored key in a key of `keys`, and before the seqno in one of `seqnos`.
pub(super) const PREFIX: usize = 2;

pub(super) fn head_of(vb: VbId) -> Vec<u8> {
    [&vb.0.to_be_bytes()[..], &[0]].concat()
}

pub(super) fn past_head_of(vb: VbId, commit: u64) -> Vec<u8> {
    [&vb.0.to_be_bytes()[..], &[1], &commit.to_be_bytes()].concat()
}

pub(super) fn intent_of(vb: VbId) -> Vec<u8> {
    [&vb.0.to_be_bytes()[..], &[2]].concat()
}

/// Says in `state` whose database it is; no vBucket has that number.
pub(super) const OWNER: &[u8] = b"\xff\xffowner";

/// The vBucket of a key, and what is behind it.
pub(super) fn split(key: &[u8]) -> Option<(VbId, &[u8])> {
    let (vb, rest) = key.split_first_chunk::<PREFIX>()?;
    Some((VbId(u16::from_be_bytes(*vb)), rest))
}

pub(super) fn put_entry(entry: &Entry) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    out[..8].copy_from_slice(&entry.seqno.to_le_bytes());
    out[8] = entry.flags;
    out[9..13].copy_from_slice(&entry.time.to_le_bytes());
    out[13..].copy_from_slice(&entry.bytes.to_le_bytes());
    out
}

pub(super) fn take_entry(bytes: &[u8]) -> Option<Entry> {
    let bytes: &[u8; ENTRY_BYTES] = bytes.try_into().ok()?;
    Some(Entry {
        seqno: u64::from_le_bytes(bytes[..8].try_into().ok()?),
        flags: bytes[8],
        time: u32::from_le_bytes(bytes[9..13].try_into().ok()?),
        bytes: u32::from_le_bytes(bytes[13..].try_into().ok()?),
    })
}

/// What `keys` has of an item.
pub(super) fn entry_of(item: &Item<'_>) -> Entry {
    Entry { seqno: item.seqno, flags: item.flags, time: item.time, bytes: item.bytes() }
}

pub(super) fn put_version(item: &Item<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(VERSION_BYTES + item.bytes() as usize);
    out.push(item.flags);
    out.extend_from_slice(&item.time.to_le_bytes());
    out.push(item.meta.len() as u8);
    out.extend_from_slice(&(item.key.len() as u16).to_le_bytes());
    out.extend_from_slice(item.meta);
    out.extend_from_slice(item.key);
    out.extend_from_slice(item.value);
    out
}

/// The version that `seqnos` has of a seqno.
pub(super) fn take_version(seqno: u64, bytes: &[u8]) -> Option<Item<'_>> {
    let (fixed, rest) = bytes.split_at_checked(VERSION_BYTES)?;
    let (meta, rest) = rest.split_at_checked(usize::from(fixed[5]))?;
    let key_len = u16::from_le_bytes(fixed[6..].try_into().ok()?);
    let (key, value) = rest.split_at_checked(usize::from(key_len))?;
    let time = u32::from_le_bytes(fixed[1..5].try_into().ok()?);
    Some(Item { key, seqno, flags: fixed[0], time, meta, value })
}

/// The seqno in a key of `seqnos` from which the vBucket was taken.
pub(super) fn take_seqno(rest: &[u8]) -> Option<u64> {
    rest.try_into().ok().map(u64::from_be_bytes)
}

/// A commit that a rollback can go back over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptCommit {
    pub(super) commit: u64,
    /// Items that it brought.
    pub(super) items: u64,
    /// Bytes of the versions that it replaced, which are still in `seqnos`.
    pub(super) bytes: u64,
}

/// A vBucket as of its last commit.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Rises with each rollback.
    pub(super) epoch: u64,
    /// Rises with each commit and rollback; no number comes twice.
    pub(super) commit: u64,
    pub(super) high_seqno: u64,
    pub(super) purge_seqno: u64,
    /// Bytes of the newest versions.
    pub(super) live_bytes: u64,
    /// Oldest first.
    pub(super) kept: Vec<KeptCommit>,
    pub(super) state: LogState,
}

impl Head {
    /// Of a vBucket that has nothing yet.
    pub(super) fn new() -> Head {
        Head {
            epoch: 1,
            commit: 0,
            high_seqno: 0,
            purge_seqno: 0,
            live_bytes: 0,
            kept: Vec::new(),
            state: LogState::default(),
        }
    }

    /// Bytes of replaced versions that stay for rollbacks.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![HEAD_VERSION];
        let numbers = [self.epoch, self.commit, self.high_seqno, self.purge_seqno, self.live_bytes];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&(self.kept.len() as u32).to_le_bytes());
        for kept in &self.kept {
            [kept.commit, kept.items, kept.bytes]
                .iter()
                .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        }
        out.extend_from_slice(&self.state.encode());
        out
    }

    /// Says what is wrong if the bytes make no sense.
    pub(super) fn decode(bytes: &[u8]) -> Result<Head, String> {
        let (version, mut rest) = bytes.split_first().ok_or("it is empty")?;
        if *version != HEAD_VERSION {
            return Err(format!("it has version {version}, and this binary reads version {HEAD_VERSION}"));
        }
        let mut next = || {
            let (number, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            Some(u64::from_le_bytes(*number))
        };
        let mut number = || next().ok_or("it is too short");
        let (epoch, commit, high_seqno) = (number()?, number()?, number()?);
        let (purge_seqno, live_bytes) = (number()?, number()?);
        let (count, behind) = rest.split_first_chunk::<4>().ok_or("it is too short")?;
        rest = behind;
        let mut kept = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (fields, behind) = rest.split_first_chunk::<24>().ok_or("it is too short")?;
            rest = behind;
            let at = |from: usize| u64::from_le_bytes(fields[from..from + 8].try_into().expect("8 bytes"));
            kept.push(KeptCommit { commit: at(0), items: at(8), bytes: at(16) });
        }
        let state = LogState::decode(rest)?;
        Ok(Head { epoch, commit, high_seqno, purge_seqno, live_bytes, kept, state })
    }
}

/// A rollback that is about to go on record, durable before it does: if a start finds it there, it ends the rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    /// The oldest commit that it goes back over.
    pub(super) over: u64,
    /// What the commit is called that it makes.
    pub(super) epoch: u64,
    pub(super) commit: u64,
}

impl Intent {
    pub(super) fn encode(self) -> Vec<u8> {
        [self.over, self.epoch, self.commit].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Intent> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let at = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("8 bytes"));
        Some(Intent { over: at(0), epoch: at(8), commit: at(16) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again() {
        let item = Item { key: b"\x00key", seqno: 7, flags: 3, time: 9, meta: b"meta", value: b"value" };
        let entry = entry_of(&item);
        assert_eq!(take_entry(&put_entry(&entry)), Some(entry));
        let bytes = put_version(&item);
        let read = take_version(7, &bytes).expect("it is whole");
        assert_eq!(
            (read.key, read.meta, read.value, read.flags, read.time),
            (item.key, item.meta, item.value, item.flags, item.time)
        );
        // One that is cut off is told, whatever is missing before the value.
        assert!((0..bytes.len() - item.value.len()).all(|len| take_version(7, &bytes[..len]).is_none()));
        let mut head = Head::new();
        head.kept.push(KeptCommit { commit: 1, items: 2, bytes: 3 });
        (head.commit, head.high_seqno, head.live_bytes) = (5, 6, 7);
        let bytes = head.encode();
        let read = Head::decode(&bytes).expect("it is whole");
        assert_eq!((read.kept, read.commit, read.high_seqno, read.live_bytes), (head.kept, 5, 6, 7));
        assert!((0..bytes.len()).all(|len| Head::decode(&bytes[..len]).is_err()));
        let intent = Intent { over: 1, epoch: 2, commit: 3 };
        assert_eq!(Intent::decode(&intent.encode()), Some(intent));
    }

    #[test]
    fn a_vbucket_is_a_range() {
        for vb in [VbId(0), VbId(255), VbId(1023), VbId(u16::MAX - 1)] {
            let (start, end) = (start_of(vb), end_of(vb));
            for key in [key_of(vb, b""), key_of(vb, &[0xff; 200]), seqno_of(vb, u64::MAX)] {
                assert!(start <= key && key < end, "{vb}");
                assert_eq!(split(&key).map(|(vb, _)| vb), Some(vb));
            }
        }
    }
}
