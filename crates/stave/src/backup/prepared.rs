//! Durable writes in flight: a commit brings no document, so that what was prepared is kept until it is committed or
//! aborted (record 0122).
//!
//! # Guarantees
//!
//! - A commit is told as the document that its prepare brought, or its stream is asked for again from in front of the
//!   prepare: none is passed over.
//! - Memory is bounded: a prepare that does not fit any more is not kept, and is asked for again if it is committed.

use std::collections::{BTreeMap, HashMap};

use anyhow::bail;
use base::{Seqno, VbId};

use super::Version;
use super::block::write_version;

/// Bytes of prepares that are kept, beside one of each vBucket that is waited for.
const MOST_BYTES: usize = 128 << 20;
/// What a prepare takes beside its key and document.
const OVERHEAD_BYTES: usize = 128;

/// A document that is not committed yet.
struct PreparedVersion {
    seqno: u64,
    /// As an entry of the log has it.
    raw: Vec<u8>,
}

/// A stream that goes back because a prepare is missing.
struct Rewind {
    prepared: u64,
    /// The stream has not begun again yet.
    is_asked: bool,
}

/// What was prepared and is not complete, by vBucket and key with the prefix of its collection.
pub(super) struct Prepared {
    kept: HashMap<(u16, Box<[u8]>), PreparedVersion>,
    bytes: usize,
    most_bytes: usize,
    rewinds: BTreeMap<u16, Rewind>,
    /// What the streams are not told yet.
    untold: Vec<(VbId, Seqno)>,
}

impl Default for Prepared {
    fn default() -> Prepared {
        Prepared::within(MOST_BYTES)
    }
}

impl Prepared {
    pub(super) fn within(most_bytes: usize) -> Prepared {
        Prepared { kept: HashMap::new(), bytes: 0, most_bytes, rewinds: BTreeMap::new(), untold: Vec::new() }
    }

    /// Something was prepared.
    pub(super) fn prepare(&mut self, vb: VbId, key: &[u8], version: &Version<'_>) {
        self.take(vb, key);
        let mut raw = Vec::new();
        write_version(&mut raw, version);
        let bytes = bytes_of(key, &raw);
        let is_waited_for = self.rewinds.get(&vb.0).is_some_and(|one| one.prepared == version.seqno);
        if self.bytes + bytes <= self.most_bytes || is_waited_for {
            self.bytes += bytes;
            self.kept.insert((vb.0, key.into()), PreparedVersion { seqno: version.seqno, raw });
        }
    }

    /// The key has another document since a seqno, or what was prepared was aborted there.
    pub(super) fn forget(&mut self, vb: VbId, key: &[u8], seqno: Seqno) {
        // A stream that went back also brings what is in front of it.
        if self.kept.get(&(vb.0, key.into())).is_some_and(|kept| kept.seqno < seqno.0) {
            self.take(vb, key);
        }
    }

    fn take(&mut self, vb: VbId, key: &[u8]) -> Option<PreparedVersion> {
        let taken = self.kept.remove(&(vb.0, key.into()))?;
        self.bytes -= bytes_of(key, &taken.raw);
        Some(taken)
    }

    /// What was prepared at a seqno is committed: the document, as an entry has it. `None` if it is not here: then its stream
    /// goes back.
    pub(super) fn commit(
        &mut self,
        vb: VbId,
        key: &[u8],
        prepared: Seqno,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        if let Some(taken) = self.take(vb, key).filter(|taken| taken.seqno == prepared.0) {
            if self.rewinds.get(&vb.0).is_some_and(|one| one.prepared == prepared.0) {
                self.rewinds.remove(&vb.0);
            }
            return Ok(Some(taken.raw));
        }
        if self.rewinds.get(&vb.0).is_some_and(|one| one.prepared == prepared.0) {
            bail!(
                "vBucket {vb} has a commit of what was prepared at seqno {prepared}, and its stream does not bring that; \
                 begin another log behind a new backup, and keep the node's version and log for a report"
            );
        }
        self.rewinds.insert(vb.0, Rewind { prepared: prepared.0, is_asked: true });
        self.untold.push((vb, Seqno(prepared.0.saturating_sub(1))));
        Ok(None)
    }

    /// Whether a vBucket's stream is to go back, so that what comes of it does not count.
    pub(super) fn goes_back(&self, vb: VbId) -> bool {
        self.rewinds.get(&vb.0).is_some_and(|one| one.is_asked)
    }

    /// A vBucket's stream begins.
    pub(super) fn began(&mut self, vb: VbId) {
        if let Some(one) = self.rewinds.get_mut(&vb.0) {
            one.is_asked = false;
        }
    }

    /// All streams are asked for from where the log is.
    pub(super) fn begin_again(&mut self) {
        self.rewinds.clear();
        self.untold.clear();
    }

    /// Streams that are to go back, and behind which seqno they are to go on.
    pub(super) fn rewinds(&mut self) -> Vec<(VbId, Seqno)> {
        std::mem::take(&mut self.untold)
    }

    /// What a vBucket has behind a seqno is not part of its history.
    pub(super) fn roll_back(&mut self, vb: VbId, to: Seqno) {
        let bytes = &mut self.bytes;
        self.kept.retain(|(of, key), version| {
            let is_kept = *of != vb.0 || version.seqno <= to.0;
            if !is_kept {
                *bytes -= bytes_of(key, &version.raw);
            }
            is_kept
        });
    }
}

fn bytes_of(key: &[u8], raw: &[u8]) -> usize {
    key.len() + raw.len() + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use base::{Datatype, DocKey};

    use super::*;
    use crate::backup::block::read_version;
    use crate::with_meta::Record;

    const VB: VbId = VbId(2);

    fn prepare(prepared: &mut Prepared, key: &str, seqno: u64) {
        let record = Record {
            key: DocKey::new(key.as_bytes()),
            deleted: false,
            expired: false,
            cas: seqno,
            rev_seqno: 1,
            expiry: 0,
            flags: 0,
            datatype: Datatype::RAW,
            value: b"value",
        };
        prepared.prepare(VB, key.as_bytes(), &Version { seqno, record });
    }

    /// The seqno of the prepare whose document is told; `None` if the stream goes back.
    fn commit(prepared: &mut Prepared, key: &str, seqno: u64) -> anyhow::Result<Option<u64>> {
        let raw = prepared.commit(VB, key.as_bytes(), Seqno(seqno))?;
        Ok(raw.map(|raw| read_version(&raw).expect("a version").0.seqno))
    }

    #[test]
    fn a_commit_is_told_as_what_was_prepared_there() {
        let mut prepared = Prepared::default();
        ["a", "b", "c", "d"].into_iter().zip(4..).for_each(|(key, seqno)| prepare(&mut prepared, key, seqno));
        assert_eq!(commit(&mut prepared, "a", 4).unwrap(), Some(4));
        // An older change of a key leaves what is prepared; a newer one, and an abort, end it.
        prepared.forget(VB, b"b", Seqno(3));
        assert_eq!(commit(&mut prepared, "b", 5).unwrap(), Some(5));
        prepared.forget(VB, b"c", Seqno(8));
        prepared.roll_back(VB, Seqno(6));
        assert!(prepared.kept.is_empty() && prepared.bytes == 0);
        assert!(prepared.rewinds().is_empty() && !prepared.goes_back(VB));
    }

    #[test]
    fn a_missing_prepare_is_asked_for_again_and_then_kept_whatever_the_limit() {
        let mut prepared = Prepared::within(0);
        prepare(&mut prepared, "a", 4);
        assert!(prepared.kept.is_empty(), "it does not fit");
        assert_eq!(commit(&mut prepared, "a", 4).unwrap(), None);
        assert!(prepared.goes_back(VB) && !prepared.goes_back(VbId(1)));
        assert_eq!(prepared.rewinds(), [(VB, Seqno(3))]);
        prepared.began(VB);
        prepare(&mut prepared, "a", 4);
        prepare(&mut prepared, "b", 5);
        assert_eq!(commit(&mut prepared, "a", 4).unwrap(), Some(4));
        assert_eq!(commit(&mut prepared, "b", 5).unwrap(), None, "another one goes back for itself");
        prepared.began(VB);
        let said = commit(&mut prepared, "b", 5).expect_err("it never comes").to_string();
        assert!(said.contains("vBucket 2") && said.contains("seqno 5"), "{said}");
        prepared.begin_again();
        assert_eq!(commit(&mut prepared, "b", 5).unwrap(), None);
    }
}
