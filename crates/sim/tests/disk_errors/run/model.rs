//! What was written and promised of each vBucket, and whether what is found follows from it.

use std::collections::BTreeMap;

use base::{CollectionId, DocKey, Seqno, VbId, VbState, Version};
use engine::Bucket;
use sim::Fingerprint;

use super::found::{Doc, Found};

/// What is known of one vBucket.
#[derive(Clone, Debug, Default)]
pub struct Of {
    /// Every version of each document by seqno.
    pub docs: BTreeMap<Box<[u8]>, BTreeMap<Seqno, Doc>>,
    /// The last prepare of each, and the values of all.
    pub prepares: BTreeMap<Box<[u8]>, (Seqno, Fingerprint)>,
    pub prepared: BTreeMap<Box<[u8]>, Vec<Fingerprint>>,
    /// The last seqno that was given.
    pub high: Seqno,
    /// Up to where everything was told to be on disk.
    pub promised: Seqno,
    /// A change of all of it failed half-way: it may be gone as a whole, too.
    pub may_be_gone: bool,
    /// A rollback failed: until something is saved and filed, a kill may show that it went back.
    pub is_undecided: bool,
    /// It was to be deleted: it is dead from then on, and may be gone.
    pub is_retired: bool,
    /// What there was before a removal that failed when it was done: a power loss may bring it back until more is saved.
    pub before: Option<Box<Of>>,
}

/// What is known of all.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub vbuckets: BTreeMap<VbId, Of>,
}

impl Of {
    fn learn(&mut self, version: &Version) {
        let doc = Doc::of(version);
        self.docs.entry(version.stored_key().into()).or_default().insert(doc.seqno, doc);
    }

    /// What came behind `seqno` is taken back.
    pub fn go_back(&mut self, seqno: Seqno) {
        self.docs.values_mut().for_each(|versions| versions.retain(|at, _| *at <= seqno));
        self.docs.retain(|_, versions| !versions.is_empty());
        self.prepares.retain(|_, (at, _)| *at <= seqno);
        self.high = self.high.min(seqno);
        self.promised = self.promised.min(seqno);
    }

    /// Goes on from what a start found: it is on the disk, and as good as promised.
    pub fn goes_on_from(&mut self, found: &Found) {
        self.go_back(found.persisted);
        (self.may_be_gone, self.is_undecided, self.before) = (false, false, None);
        self.is_retired &= found.state == VbState::Dead;
        for (key, doc) in &found.docs {
            self.docs.entry(key.clone()).or_default().insert(doc.seqno, *doc);
        }
        self.high = found.high;
        self.promised = found.persisted;
    }
}

impl Model {
    pub fn of(&mut self, vb: VbId) -> &mut Of {
        self.vbuckets.entry(vb).or_default()
    }

    /// Notes what a bucket has that was not there before, and how far it says that the disk is.
    pub fn note(&mut self, bucket: &Bucket) {
        for vb in (0..bucket.vbuckets()).map(VbId) {
            bucket.inspect(vb, |found| {
                if found.state() == VbState::Dead {
                    return;
                }
                let of = self.of(vb);
                let news = found.table().iter().filter(|version| version.meta().by_seqno > of.high);
                let news: Vec<Version> = news.map(|version| Version::clone(&version)).collect();
                news.iter().for_each(|version| of.learn(version));
                of.high = of.high.max(found.high_seqno());
                of.promised = of.promised.max(found.persisted_seqno());
            });
        }
    }

    /// A clean stop promises all that there is.
    pub fn all_promised(&mut self, bucket: &Bucket) {
        for vb in (0..bucket.vbuckets()).map(VbId) {
            if bucket.inspect(vb, |found| found.state()) != Some(VbState::Dead) {
                let of = self.of(vb);
                of.promised = of.high;
            }
        }
    }

    /// A prepare that is in flight.
    pub fn prepared(&mut self, bucket: &Bucket, vb: VbId, key: &[u8]) {
        let seen =
            bucket.inspect(vb, |found| found.sync_writes().prepared(DocKey::new(key)).cloned()).flatten();
        if let Some(prepare) = seen {
            let noted = (prepare.meta().by_seqno, Fingerprint::of(&prepare));
            let (stored_key, of) = (DocKey::new(key).to_stored().0, self.of(vb));
            let value = Fingerprint::of_bytes([prepare.value()]);
            of.prepared.entry(stored_key.clone()).or_default().push(value);
            of.prepares.insert(stored_key, noted);
        }
    }

    /// Whether a vBucket that claims to hold everything up to `claim` does, and no less than was promised.
    pub fn check(&self, vb: VbId, found: &Found, claim: Seqno, wrong: &mut Vec<String>) {
        let none = Of::default();
        let of = self.vbuckets.get(&vb).unwrap_or(&none);
        let mut different = Vec::new();
        of.check(vb, found, claim, &mut different);
        if let Some(before) = of.before.as_ref().filter(|_| !different.is_empty()) {
            different.clear();
            before.check(vb, found, claim, &mut different);
        }
        wrong.append(&mut different);
    }
}

impl Of {
    fn check(&self, vb: VbId, found: &Found, claim: Seqno, wrong: &mut Vec<String>) {
        let of = self;
        if of.is_retired {
            // A kill before it is saved that it is dead brings it back empty.
            if found.state != VbState::Dead && !found.docs.is_empty() {
                wrong.push(format!("{vb}: it is {:?} and was to be deleted", found.state));
            }
            return;
        }
        let is_gone = of.may_be_gone && found.docs.is_empty() && claim == Seqno(0);
        if found.state == VbState::Dead && !of.may_be_gone && of.high > Seqno(0) {
            return wrong.push(format!("{vb}: it is dead"));
        }
        if is_gone || found.state == VbState::Dead {
            return;
        }
        let promised = if of.is_undecided { Seqno(0) } else { of.promised };
        if claim < promised {
            wrong.push(format!("{vb}: promised {promised}, goes to {claim}"));
        }
        if claim > of.high {
            wrong.push(format!("{vb}: written to {}, claims {claim}", of.high));
        }
        let due = claim.max(promised);
        for (key, versions) in &of.docs {
            let expected = versions.range(..=due).next_back().map(|(_, doc)| doc);
            if let Some(expected) = expected.filter(|_| found.is_open(key)) {
                compare(vb, key, expected, found, wrong);
            }
        }
        for (key, doc) in &found.docs {
            let versions = of.docs.get(key);
            let is_written = versions.and_then(|versions| versions.get(&doc.seqno)) == Some(doc);
            if !is_written && !is_commit(of, key, doc, claim) {
                wrong.push(format!("{vb} {}: {doc:?} was never written", key.escape_ascii()));
            }
        }
        for (key, (seqno, print)) in of.prepares.iter().filter(|(_, (seqno, _))| *seqno <= due) {
            let is_decided = found.docs.get(key).is_some_and(|doc| doc.seqno > *seqno);
            if !is_decided && found.prepares.get(key) != Some(&(*seqno, *print)) {
                wrong.push(format!("{vb} {}: its prepare {seqno} is lost", key.escape_ascii()));
            }
        }
    }
}

fn compare(vb: VbId, key: &[u8], expected: &Doc, found: &Found, wrong: &mut Vec<String>) {
    match found.docs.get(key) {
        Some(doc) if doc.seqno >= expected.seqno => {}
        None if expected.is_deleted && expected.seqno <= found.purge => {}
        other => wrong.push(format!("{vb} {}: {other:?} instead of {expected:?}", key.escape_ascii())),
    }
}

/// Whether a start committed what was prepared: it has a seqno that no reader knew, and the prepare's value.
fn is_commit(of: &Of, key: &[u8], doc: &Doc, claim: Seqno) -> bool {
    let known = of.docs.get(key).into_iter().flat_map(|versions| versions.values());
    let is_prepared = of.prepared.get(key).is_some_and(|values| values.contains(&doc.value));
    doc.seqno > claim && (is_prepared || known.into_iter().any(|known| known.value == doc.value))
}

/// The collection of a stored key.
pub fn collection(key: &[u8]) -> CollectionId {
    DocKey::parse(key).map_or(CollectionId::DEFAULT, |key| key.collection)
}
