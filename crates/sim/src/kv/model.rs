//! What each vBucket held after every change, and which of these states a restart may find.
//!
//! Moments are positions: the number of disk changes that were done.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use base::{Seqno, VbId, Version};

use crate::ledger::Entry;

/// One version as the model knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doc {
    pub entry: Entry,
    /// When it expires or was deleted; 0 for never.
    pub expiry: u32,
}

/// What a vBucket holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Documents and tombstones by stored key.
    pub docs: BTreeMap<Box<[u8]>, Doc>,
    /// Up to where it holds everything.
    pub high_seqno: Seqno,
    /// Up to where tombstones may be gone.
    pub purge_seqno: Seqno,
    /// Number of its state document; nothing if there is no vBucket.
    pub mark: Option<u64>,
    /// What was changed into this; nothing if it began here.
    pub parent: Option<Arc<Content>>,
    /// Whether a compaction made it, which may have taken what was before out of reach.
    pub is_compacted: bool,
}

/// Stands for all documents of a vBucket, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn add(&mut self, key: &[u8], entry: &Entry) {
        let start = entry.fingerprint.0 ^ entry.seqno.0.rotate_left(40) ^ u64::from(entry.is_deleted);
        let hash =
            key.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.0 = self.0.wrapping_add(hash ^ (hash >> 29));
    }
}

impl Content {
    /// The same after some versions were saved with a state document.
    pub(super) fn saved(self: &Arc<Content>, items: &[Version], mark: u64) -> Content {
        let parent = Some(self.clone());
        let mut after = Content { mark: Some(mark), parent, is_compacted: false, ..(**self).clone() };
        for version in items {
            after.high_seqno = after.high_seqno.max(version.meta().by_seqno);
            let doc = Doc { entry: Entry::of(version), expiry: version.meta().expiry };
            after.docs.insert(version.stored_key().into(), doc);
        }
        after
    }

    /// The version of a key.
    pub(super) fn entry(&self, stored_key: &[u8]) -> Option<Entry> {
        self.docs.get(stored_key).map(|doc| doc.entry)
    }

    /// This and everything that became this, newest first.
    pub(super) fn lineage(self: &Arc<Content>) -> impl Iterator<Item = &Arc<Content>> {
        std::iter::successors(Some(self), |content| content.parent.as_ref())
    }

    /// The same after a compaction that leaves out what expired or was deleted before a time.
    pub(super) fn compacted(self: &Arc<Content>, before_s: u32) -> Content {
        let parent = Some(self.clone());
        let mut after = Content { parent, is_compacted: true, ..(**self).clone() };
        after.docs.retain(|_, doc| {
            let goes = doc.expiry != 0 && doc.expiry < before_s && doc.entry.seqno != self.high_seqno;
            if goes && doc.entry.is_deleted {
                after.purge_seqno = after.purge_seqno.max(doc.entry.seqno);
            }
            !goes
        });
        after
    }

    pub(super) fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        self.docs.iter().for_each(|(key, doc)| digest.add(key, &doc.entry));
        digest
    }
}

/// What a vBucket may have become by one change.
#[derive(Clone, Debug)]
struct Step {
    /// The first position at which it may be found.
    from: u64,
    /// The position from which on nothing older may be found.
    acked: Option<u64>,
    /// One of these; which one shows when the change is acknowledged.
    outcomes: Vec<(Arc<Content>, Digest)>,
}

impl Step {
    fn new(from: u64, acked: Option<u64>, outcomes: Vec<Arc<Content>>) -> Step {
        let digested = |content: Arc<Content>| {
            let digest = content.digest();
            (content, digest)
        };
        Step { from, acked, outcomes: outcomes.into_iter().map(digested).collect() }
    }

    fn finds(&self, found: &Found) -> Option<&Arc<Content>> {
        let is_it = |(content, digest): &&(Arc<Content>, Digest)| {
            let same = (content.high_seqno, content.purge_seqno, content.mark);
            *digest == found.digest && same == (found.high_seqno, found.purge_seqno, found.mark)
        };
        self.outcomes.iter().find(is_it).map(|(content, _)| content)
    }
}

/// All states of one vBucket, oldest first.
#[derive(Clone, Debug)]
pub(super) struct History {
    steps: Vec<Step>,
}

/// What was found of a vBucket.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub digest: Digest,
    pub high_seqno: Seqno,
    pub purge_seqno: Seqno,
    pub mark: Option<u64>,
    pub docs: Vec<Version>,
}

impl History {
    fn new() -> History {
        History { steps: vec![Step::new(0, Some(0), vec![Arc::default()])] }
    }

    /// Where a crash at position `at` may leave it.
    fn allowed(&self, at: u64) -> RangeInclusive<usize> {
        let floor = self.steps.iter().rposition(|step| step.acked.is_some_and(|acked| acked <= at));
        let ceiling = self.steps.iter().rposition(|step| step.from <= at);
        let floor = floor.unwrap_or(0);
        floor..=ceiling.unwrap_or(0).max(floor)
    }

    /// The newest state of those allowed at `at` that was found, or what is wrong with what was.
    fn place(&self, found: &Found, at: u64) -> Result<&Arc<Content>, String> {
        let allowed = self.allowed(at);
        let (floor, ceiling) = (*allowed.start(), *allowed.end());
        if let Some(content) = self.steps[allowed].iter().rev().find_map(|step| step.finds(found)) {
            return Ok(content);
        }
        let what = if found.mark.is_some() { "" } else { " (nothing is there)" };
        if let Some(step) = self.steps[..floor].iter().rposition(|step| step.finds(found).is_some()) {
            return Err(format!("went back to state {step}{what}, {floor} was acknowledged"));
        }
        Err(match self.steps.iter().position(|step| step.finds(found).is_some()) {
            Some(step) => format!("is at state {step}{what}, only {ceiling} was begun"),
            None => self.differences(found, floor),
        })
    }

    /// How what was found differs from the state nearest to it.
    fn differences(&self, found: &Found, floor: usize) -> String {
        let all = || self.steps.iter().flat_map(|step| &step.outcomes).map(|(content, _)| content).rev();
        let near = all().find(|content| (content.high_seqno, content.mark) == (found.high_seqno, found.mark));
        let near = near
            .or(all().find(|content| content.mark == found.mark))
            .unwrap_or(&self.steps[floor].outcomes[0].0);
        let describe = |seqno, purged, mark, docs| {
            format!("seqno {seqno}, purge seqno {purged}, state document {mark:?}, {docs} documents")
        };
        let mut what = format!(
            "no state that ever was: {}; nearest: {}",
            describe(found.high_seqno, found.purge_seqno, found.mark, found.docs.len()),
            describe(near.high_seqno, near.purge_seqno, near.mark, near.docs.len()),
        );
        let entries: BTreeMap<&[u8], Entry> =
            found.docs.iter().map(|v| (v.stored_key(), Entry::of(v))).collect();
        let keys: BTreeSet<&[u8]> =
            near.docs.keys().map(|key| &**key).chain(entries.keys().copied()).collect();
        for key in keys {
            let (expected, found) = (near.entry(key), entries.get(key).copied());
            if expected != found {
                what += &format!("; {}: {found:?} instead of {expected:?}", key.escape_ascii());
            }
        }
        what
    }
}

/// The state of each vBucket.
pub(super) type Places = BTreeMap<VbId, Arc<Content>>;

/// What was done to every vBucket.
#[derive(Clone, Debug)]
pub(super) struct Model {
    histories: BTreeMap<VbId, History>,
    /// Number of the last state document.
    pub last_mark: u64,
}

impl Model {
    pub(super) fn new(vbuckets: u16) -> Model {
        Model { histories: (0..vbuckets).map(|vb| (VbId(vb), History::new())).collect(), last_mark: 0 }
    }

    /// What a vBucket holds, of which no change is open.
    pub(super) fn latest(&self, vb: VbId) -> &Arc<Content> {
        let last = self.histories[&vb].steps.last().expect("there is a first one");
        &last.outcomes[0].0
    }

    /// What a vBucket may hold at position `at`.
    pub(super) fn allowed(&self, vb: VbId, at: u64) -> impl Iterator<Item = &Arc<Content>> {
        let history = &self.histories[&vb];
        history.steps[history.allowed(at)].iter().flat_map(|step| &step.outcomes).map(|(content, _)| content)
    }

    fn history(&mut self, vb: VbId) -> &mut History {
        self.histories.get_mut(&vb).expect("it is one of those on trial")
    }

    /// A change begins when `at` disk changes are done, after which the vBucket will hold one of `outcomes`.
    pub(super) fn begin(&mut self, vb: VbId, outcomes: Vec<Arc<Content>>, at: u64) {
        self.history(vb).steps.push(Step::new(at + 1, None, outcomes));
    }

    /// The last change of a vBucket was acknowledged when `at` disk changes were done. False if no outcome that was
    /// expected is one that `is_outcome` takes.
    pub(super) fn ack(&mut self, vb: VbId, at: u64, is_outcome: impl Fn(&Content) -> bool) -> bool {
        let last = self.history(vb).steps.last_mut().expect("there is a first one");
        last.acked.get_or_insert(at);
        let outcome = last.outcomes.iter().find(|(content, _)| is_outcome(content)).cloned();
        let is_expected = outcome.is_some();
        last.outcomes.splice(.., outcome.or(last.outcomes.first().cloned()));
        is_expected
    }

    /// Positions at which something was acknowledged.
    pub(super) fn acks(&self) -> BTreeSet<u64> {
        self.histories
            .values()
            .flat_map(|history| history.steps.iter().filter_map(|step| step.acked))
            .collect()
    }

    /// Whether what was found is a state that a vBucket was ever in.
    pub(super) fn was_once(&self, vb: VbId, found: &Found) -> Result<(), String> {
        let Some(history) = self.histories.get(&vb) else { return Err("found, never written".into()) };
        let is_known = history.steps.iter().any(|step| step.finds(found).is_some());
        if is_known { Ok(()) } else { Err(history.differences(found, 0)) }
    }

    /// The states that were found of all vBuckets after a crash at position `at`.
    pub(super) fn place(&self, found: &BTreeMap<VbId, Found>, at: u64, wrong: &mut Vec<String>) -> Places {
        let nothing = Found::default();
        let mut places = Places::new();
        for (vb, history) in &self.histories {
            match history.place(found.get(vb).unwrap_or(&nothing), at) {
                Ok(content) => {
                    places.insert(*vb, content.clone());
                }
                Err(what) => wrong.push(format!("{vb}: {what}")),
            }
        }
        let unknown = found.keys().filter(|vb| !self.histories.contains_key(vb));
        wrong.extend(unknown.map(|vb| format!("{vb}: found, never written")));
        places
    }

    /// After a crash at position `at` a recovery found `places` and reported them when `now` changes of its own were
    /// done. Until then whatever the crash allowed may be found.
    pub(super) fn recovered(&self, at: u64, places: &Places, now: u64) -> Model {
        let recovered = |(vb, history): (&VbId, &History)| {
            let allowed = history.allowed(at);
            let floor = *allowed.start();
            let mut steps: Vec<Step> = allowed
                .map(|step| Step {
                    from: 0,
                    acked: (step == floor).then_some(0),
                    ..history.steps[step].clone()
                })
                .collect();
            steps.push(Step::new(0, Some(now), vec![places[vb].clone()]));
            (*vb, History { steps })
        };
        Model { histories: self.histories.iter().map(recovered).collect(), last_mark: self.last_mark }
    }
}
