//! What each vBucket held after every change, and which of these states a restart may find.
//!
//! Moments are positions: the number of disk changes that were done.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use base::{Seqno, VbId, Version};

use crate::ledger::Entry;

/// What a vBucket holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Documents and tombstones by stored key.
    pub docs: BTreeMap<Box<[u8]>, Entry>,
    /// Up to where it holds everything.
    pub high_seqno: Seqno,
    /// Number of its state document; nothing if there is no vBucket.
    pub mark: Option<u64>,
}

/// Stands for all documents of a vBucket, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    pub(super) fn saved(&self, items: &[Version], mark: u64) -> Content {
        let mut after = Content { mark: Some(mark), ..self.clone() };
        for version in items {
            after.high_seqno = after.high_seqno.max(version.meta().by_seqno);
            after.docs.insert(version.stored_key().into(), Entry::of(version));
        }
        after
    }

    pub(super) fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        self.docs.iter().for_each(|(key, entry)| digest.add(key, entry));
        digest
    }

    /// Documents and tombstones.
    pub(super) fn counts(&self) -> (u64, u64) {
        let tombstones = self.docs.values().filter(|entry| entry.is_deleted).count();
        ((self.docs.len() - tombstones) as u64, tombstones as u64)
    }
}

/// One state of a vBucket.
#[derive(Clone, Debug)]
struct Step {
    /// The first position at which it may be found.
    from: u64,
    /// The position from which on nothing older may be found.
    acked: Option<u64>,
    content: Arc<Content>,
    digest: Digest,
}

impl Step {
    fn new(from: u64, acked: Option<u64>, content: Arc<Content>) -> Step {
        Step { from, acked, digest: content.digest(), content }
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
    pub mark: Option<u64>,
    pub docs: Vec<Version>,
}

impl History {
    fn new() -> History {
        History { steps: vec![Step::new(0, Some(0), Arc::default())] }
    }

    /// Where a crash at position `at` may leave it.
    fn allowed(&self, at: u64) -> RangeInclusive<usize> {
        let floor =
            self.steps.iter().rposition(|step| step.acked.is_some_and(|acked| acked <= at)).unwrap_or(0);
        let ceiling = self.steps.iter().rposition(|step| step.from <= at).unwrap_or(0);
        floor..=ceiling.max(floor)
    }

    fn is_at(&self, step: usize, found: &Found) -> bool {
        let Step { digest, content, .. } = &self.steps[step];
        (*digest, content.high_seqno, content.mark) == (found.digest, found.high_seqno, found.mark)
    }

    /// The newest state of those allowed at `at` that was found, or what is wrong with what was.
    fn place(&self, found: &Found, at: u64) -> Result<usize, String> {
        let allowed = self.allowed(at);
        if let Some(step) = allowed.clone().rev().find(|step| self.is_at(*step, found)) {
            return Ok(step);
        }
        let (floor, ceiling) = (*allowed.start(), *allowed.end());
        let elsewhere = (0..self.steps.len()).rev().find(|step| self.is_at(*step, found));
        Err(match elsewhere {
            Some(step) if step < floor => format!("went back to state {step}, {floor} was acknowledged"),
            Some(step) => format!("is at state {step}, only {ceiling} was begun"),
            None => self.differences(found, floor),
        })
    }

    /// How what was found differs from the state nearest to it.
    fn differences(&self, found: &Found, floor: usize) -> String {
        let is_near =
            |step: &Step| step.content.high_seqno == found.high_seqno && step.content.mark == found.mark;
        let near = self.steps.iter().rposition(is_near).unwrap_or(floor);
        let content = &self.steps[near].content;
        let mut what = format!(
            "no state that ever was (acknowledged {floor}): found seqno {}, mark {:?}, {} docs; state {near} has seqno {}, mark {:?}, {} docs",
            found.high_seqno,
            found.mark,
            found.docs.len(),
            content.high_seqno,
            content.mark,
            content.docs.len()
        );
        let entries: BTreeMap<&[u8], Entry> =
            found.docs.iter().map(|v| (v.stored_key(), Entry::of(v))).collect();
        for (key, entry) in &content.docs {
            if entries.get(&**key) != Some(entry) {
                what += &format!("; {}: {entry:?} is {:?}", key.escape_ascii(), entries.get(&**key));
            }
        }
        what
    }
}

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

    /// What a vBucket holds if everything that was begun succeeded.
    pub(super) fn latest(&self, vb: VbId) -> &Arc<Content> {
        &self.histories[&vb].steps.last().expect("there is a first one").content
    }

    /// What a vBucket may hold at position `at`.
    pub(super) fn allowed(&self, vb: VbId, at: u64) -> impl Iterator<Item = &Arc<Content>> {
        let history = &self.histories[&vb];
        history.allowed(at).map(|step| &history.steps[step].content)
    }

    /// A change begins when `at` disk changes are done.
    pub(super) fn begin(&mut self, vb: VbId, content: Content, at: u64) {
        let history = self.histories.get_mut(&vb).expect("it is one of those on trial");
        history.steps.push(Step::new(at + 1, None, Arc::new(content)));
    }

    /// The last change of a vBucket was acknowledged when `at` disk changes were done.
    pub(super) fn ack(&mut self, vb: VbId, at: u64) {
        let history = self.histories.get_mut(&vb).expect("it is one of those on trial");
        let last = history.steps.last_mut().expect("there is a first one");
        last.acked.get_or_insert(at);
    }

    /// Positions at which something was acknowledged.
    pub(super) fn acks(&self) -> std::collections::BTreeSet<u64> {
        self.histories
            .values()
            .flat_map(|history| history.steps.iter().filter_map(|step| step.acked))
            .collect()
    }

    /// Whether what was found is a state that a vBucket was ever in.
    pub(super) fn was_once(&self, vb: VbId, found: &Found) -> Result<(), String> {
        let Some(history) = self.histories.get(&vb) else { return Err("found, never written".into()) };
        let mut all = 0..history.steps.len();
        if all.any(|step| history.is_at(step, found)) { Ok(()) } else { Err(history.differences(found, 0)) }
    }

    /// The states that were found of all vBuckets after a crash at position `at`.
    pub(super) fn place(
        &self,
        found: &BTreeMap<VbId, Found>,
        at: u64,
        wrong: &mut Vec<String>,
    ) -> BTreeMap<VbId, usize> {
        let nothing = Found::default();
        let mut places = BTreeMap::new();
        for (vb, history) in &self.histories {
            match history.place(found.get(vb).unwrap_or(&nothing), at) {
                Ok(step) => {
                    places.insert(*vb, step);
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
    pub(super) fn recovered(&self, at: u64, places: &BTreeMap<VbId, usize>, now: u64) -> Model {
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
            steps.push(Step { from: 0, acked: Some(now), ..history.steps[places[vb]].clone() });
            (*vb, History { steps })
        };
        Model { histories: self.histories.iter().map(recovered).collect(), last_mark: self.last_mark }
    }
}
