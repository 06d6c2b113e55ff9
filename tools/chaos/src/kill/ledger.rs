//! The ledger of one writer: what it sent, what was acknowledged, what was acknowledged as persisted.
//!
//! Each document belongs to one writer, so its versions have one order.
//! A document must be found in a version that was sent, and no older than the newest that was acknowledged as
//! persisted: that is its floor.

use std::collections::{BTreeMap, VecDeque};

use base::{Seqno, VbId};
use harness::rng::Rng;

use super::document;

/// A change that was sent and not refused, and that the floor has not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Counts the document's changes from 1.
    pub version: u32,
    /// A deletion.
    pub deleted: bool,
}

/// One document.
pub struct Document {
    /// Its key.
    pub key: Vec<u8>,
    /// The key's vBucket.
    pub vbucket: VbId,
    /// What must be there at least; nothing if nothing was promised.
    pub floor: Option<Change>,
    /// What may be there instead, oldest first.
    pub newer: Vec<Change>,
    last_version: u32,
}

impl Document {
    /// Its newest state as far as the writer knows.
    pub fn latest(&self) -> Option<Change> {
        self.newer.last().copied().or(self.floor)
    }

    /// Whether finding `found` (nothing: no document) is what was promised; if so, the change that it is.
    pub fn explain(&self, found: Option<u32>) -> Option<Option<Change>> {
        let candidates = || self.floor.iter().chain(&self.newer);
        match found {
            Some(version) => {
                candidates().find(|change| !change.deleted && change.version == version).map(|c| Some(*c))
            }
            // The newest deletion, because it allows least afterwards.
            None => match candidates().rfind(|change| change.deleted) {
                Some(change) => Some(Some(*change)),
                None => self.floor.is_none().then_some(None),
            },
        }
    }

    /// What was found after a restart is on disk, and whatever else was sent will never come.
    pub fn settle(&mut self, found: Option<Change>) {
        self.floor = found;
        self.newer.clear();
    }

    fn raise_floor(&mut self, version: u32) {
        if let Some(at) = self.newer.iter().position(|change| change.version == version) {
            self.floor = Some(self.newer[at]);
            self.newer.drain(..=at);
        }
    }
}

/// An acknowledged change that is not known to be on disk.
struct Waiting {
    seqno: Seqno,
    document: usize,
    version: u32,
}

/// The ledger.
pub struct Ledger {
    writer: u32,
    documents: Vec<Document>,
    waiting: BTreeMap<VbId, VecDeque<Waiting>>,
    persisted_seqnos: BTreeMap<VbId, Seqno>,
    acknowledged: u64,
    persisted: u64,
    /// What the writer decides by.
    pub rng: Rng,
}

impl Ledger {
    /// An empty one.
    pub fn new(writer: u32, seed: u64) -> Ledger {
        Ledger {
            writer,
            documents: Vec::new(),
            waiting: BTreeMap::new(),
            persisted_seqnos: BTreeMap::new(),
            acknowledged: 0,
            persisted: 0,
            rng: Rng::new(seed),
        }
    }

    /// Changes that the server acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Changes that the server acknowledged as persisted.
    pub fn persisted(&self) -> u64 {
        self.persisted
    }

    /// Documents that were ever written.
    pub fn documents(&self) -> u64 {
        self.documents.len() as u64
    }

    /// A new document; its number.
    pub fn add_document(&mut self) -> usize {
        let key = document::key(self.writer, self.documents.len());
        let vbucket = document::vbucket(&key);
        self.documents.push(Document { key, vbucket, floor: None, newer: Vec::new(), last_version: 0 });
        self.documents.len() - 1
    }

    /// One of the documents.
    pub fn document(&self, index: usize) -> &Document {
        &self.documents[index]
    }

    /// All of them.
    pub fn documents_mut(&mut self) -> &mut [Document] {
        &mut self.documents
    }

    /// Notes a change before it is sent; its version.
    pub fn sent(&mut self, index: usize, deleted: bool) -> u32 {
        let document = &mut self.documents[index];
        document.last_version += 1;
        document.newer.push(Change { version: document.last_version, deleted });
        document.last_version
    }

    /// The server said that it did not do it.
    pub fn refused(&mut self, index: usize, version: u32) {
        self.documents[index].newer.retain(|change| change.version != version);
    }

    /// The server did it.
    pub fn acked(&mut self, index: usize, version: u32, seqno: Seqno) {
        self.acknowledged += 1;
        let vbucket = self.documents[index].vbucket;
        self.waiting.entry(vbucket).or_default().push_back(Waiting { seqno, document: index, version });
    }

    /// The server did it and says that it is on disk.
    pub fn acked_persisted(&mut self, index: usize, version: u32, seqno: Seqno) {
        self.acked(index, version, seqno);
        let vbucket = self.documents[index].vbucket;
        // A durable write says nothing of other documents, but a vBucket is written in the order of its seqnos.
        self.persisted_up_to(vbucket, seqno);
    }

    /// The newest seqno of a vBucket that waits.
    pub fn waiting_for(&self, vbucket: VbId) -> Option<Seqno> {
        self.waiting.get(&vbucket)?.back().map(|waiting| waiting.seqno)
    }

    /// vBuckets in which changes wait.
    pub fn waiting_vbuckets(&self) -> Vec<VbId> {
        self.waiting.keys().copied().collect()
    }

    /// The server says that a vBucket is on disk up to `seqno`.
    pub fn persisted_up_to(&mut self, vbucket: VbId, seqno: Seqno) {
        let highest = self.persisted_seqnos.entry(vbucket).or_default();
        *highest = seqno.max(*highest);
        let Some(waiting) = self.waiting.get_mut(&vbucket) else { return };
        while let Some(first) = waiting.front() {
            if first.seqno > seqno {
                return;
            }
            self.documents[first.document].raise_floor(first.version);
            self.persisted += 1;
            waiting.pop_front();
        }
        self.waiting.remove(&vbucket);
    }

    /// How far the server said each vBucket is on disk.
    pub fn persisted_seqnos(&self) -> &BTreeMap<VbId, Seqno> {
        &self.persisted_seqnos
    }

    /// After a kill nothing waits any more: seqnos may begin again from what was on disk.
    pub fn forget_waiting(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_document() -> Ledger {
        let mut ledger = Ledger::new(0, 1);
        ledger.add_document();
        ledger
    }

    #[test]
    fn nothing_promised_allows_nothing_and_what_was_sent() {
        let mut ledger = one_document();
        assert_eq!(ledger.document(0).explain(None), Some(None));
        let version = ledger.sent(0, false);
        assert_eq!(ledger.document(0).explain(None), Some(None));
        assert_eq!(ledger.document(0).explain(Some(version)), Some(Some(Change { version, deleted: false })));
        assert_eq!(ledger.document(0).explain(Some(version + 1)), None);
    }

    #[test]
    fn what_was_persisted_must_be_there_or_something_newer() {
        let mut ledger = one_document();
        let old = ledger.sent(0, false);
        ledger.acked(0, old, Seqno(1));
        let kept = ledger.sent(0, false);
        ledger.acked(0, kept, Seqno(2));
        let newer = ledger.sent(0, false);
        let vbucket = ledger.document(0).vbucket;
        ledger.persisted_up_to(vbucket, Seqno(2));
        assert_eq!(ledger.persisted(), 2);
        assert_eq!(ledger.document(0).explain(None), None);
        assert_eq!(ledger.document(0).explain(Some(old)), None);
        assert!(ledger.document(0).explain(Some(kept)).is_some());
        assert!(ledger.document(0).explain(Some(newer)).is_some());
    }

    #[test]
    fn a_persisted_deletion_must_not_be_undone() {
        let mut ledger = one_document();
        let stored = ledger.sent(0, false);
        ledger.acked(0, stored, Seqno(1));
        let deleted = ledger.sent(0, true);
        ledger.acked_persisted(0, deleted, Seqno(2));
        assert_eq!(ledger.document(0).explain(Some(stored)), None);
        assert_eq!(ledger.document(0).explain(None), Some(Some(Change { version: deleted, deleted: true })));
    }

    #[test]
    fn a_refused_change_must_not_appear() {
        let mut ledger = one_document();
        let version = ledger.sent(0, false);
        ledger.refused(0, version);
        assert_eq!(ledger.document(0).explain(Some(version)), None);
    }
}
