//! Random changes of a store, noted in the model as they begin and as they are acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::env::sim::{DocumentNames, SimDisk, SplitMix64};
use base::{
    Cas, Datatype, DocKey, ItemKind, NewVersion, RevSeqno, Seqno, VbId, VbState, Version, VersionMeta, limits,
};
use kvstore::{Compaction, Expired, FailoverEntry, Failure, KvStore, SaveBatch, VbStateDoc};

use super::model::{Content, Model};
use crate::ledger::Entry;

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub vbuckets: u16,
    pub keys: u64,
    pub most_items: u64,
    pub most_value_bytes: u64,
    /// Whether some versions are so old that a compaction leaves them out.
    pub has_old: bool,
}

impl Shape {
    /// Many documents with values of all lengths.
    pub(super) fn large() -> Shape {
        Shape { vbuckets: 2, keys: 400, most_items: 30, most_value_bytes: 3000, has_old: true }
    }

    /// Small enough that a state is looked at quickly; some have values that span sectors and blocks.
    pub(super) fn choose(rng: &mut SplitMix64) -> Shape {
        Shape {
            vbuckets: rng.between(1, 3) as u16,
            keys: rng.between(3, 14),
            most_items: rng.between(1, 6),
            most_value_bytes: [8, 60, 60, 300, 1500][rng.below(5) as usize],
            has_old: true,
        }
    }
}

/// One change of one vBucket.
struct Change {
    vb: VbId,
    kind: Kind,
    /// One of these will be there.
    outcomes: Vec<Arc<Content>>,
}

enum Kind {
    Save { items: Vec<Version>, state: VbStateDoc },
    Delete,
    Rollback(Seqno),
    Compact,
}

/// What a change was answered.
enum Answer {
    Done,
    /// Seqno and number of the state document that are there now.
    RolledBack(Seqno, Option<u64>),
}

/// What expired or was deleted before this is left out by compactions.
pub(super) const OLD_BEFORE_S: u32 = 50;

/// A compaction that leaves out what is old.
pub(super) fn compaction() -> Compaction<'static> {
    Compaction {
        purge_before_s: Some(OLD_BEFORE_S),
        expired_before_s: Some(OLD_BEFORE_S),
        on_expired: &|_| Expired::LeaveOut,
        ..Compaction::default()
    }
}

/// A state document of this number.
pub(super) fn state(high_seqno: Seqno, mark: u64) -> VbStateDoc {
    VbStateDoc {
        state: VbState::Active,
        max_cas: high_seqno.0 << 16,
        failover_table: vec![FailoverEntry { id: 7, seq: 0 }],
        snap_end: mark,
        ..VbStateDoc::default()
    }
}

/// What is tried next.
enum Op {
    /// Changes of different vBuckets, all of one kind.
    Change(Vec<Change>),
    Get(VbId, Vec<u8>),
    /// A step of what is done behind the saves.
    Background,
}

/// A store that is being changed.
pub(super) struct Run<'a> {
    pub disk: &'a SimDisk,
    pub store: &'a dyn KvStore,
    pub shape: Shape,
    /// Whether a rollback goes to the newest commit that fits.
    pub rolls_back_exactly: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Everything was done.
    Done,
    /// A change failed this often.
    GaveUp,
}

/// How often a change is tried.
const TRIES: u32 = 4;

impl Run<'_> {
    /// Does `ops` things; what reads wrongly goes to `wrong`. `on_failure` is called whenever a change failed again
    /// and again, and says whether to go on trying.
    pub(super) fn go_on(
        &self,
        model: &mut Model,
        rng: &mut SplitMix64,
        ops: u64,
        wrong: &mut Vec<String>,
        on_failure: &mut dyn FnMut(&Model) -> bool,
    ) -> End {
        for _ in 0..ops {
            match self.choose(model, rng) {
                Op::Get(vb, key) => self.get(model, vb, &key, wrong),
                // what failed is tried again in a later one
                Op::Background => drop(self.store.background_step()),
                Op::Change(changes) => {
                    for change in &changes {
                        model.begin(change.vb, change.outcomes.clone(), self.disk.changes());
                    }
                    if !self.change(model, changes, wrong, on_failure) {
                        return End::GaveUp;
                    }
                }
            }
        }
        End::Done
    }

    /// Tries changes until all are acknowledged; false if it was given up.
    fn change(
        &self,
        model: &mut Model,
        mut left: Vec<Change>,
        wrong: &mut Vec<String>,
        on_failure: &mut dyn FnMut(&Model) -> bool,
    ) -> bool {
        let mut tries = 0;
        loop {
            left = self.attempt(model, left, wrong);
            if left.is_empty() {
                return true;
            }
            tries += 1;
            if tries % TRIES == 0 && !on_failure(model) {
                return false;
            }
        }
    }

    /// Does changes of one kind; answers those that failed.
    fn attempt(&self, model: &mut Model, changes: Vec<Change>, wrong: &mut Vec<String>) -> Vec<Change> {
        let mut left = Vec::new();
        let answers = self.apply(&changes);
        for (change, answer) in changes.into_iter().zip(answers) {
            let at = self.disk.changes();
            let is_expected = match answer {
                Ok(Answer::Done) => model.ack(change.vb, at, |_| true),
                Ok(Answer::RolledBack(seqno, mark)) => {
                    model.ack(change.vb, at, |content| (content.high_seqno, content.mark) == (seqno, mark))
                }
                Err(_) => {
                    left.push(change);
                    continue;
                }
            };
            if !is_expected {
                wrong.push(format!("{}: rolled back to what was never there", change.vb));
            }
        }
        left
    }

    fn apply(&self, changes: &[Change]) -> Vec<Result<Answer, Failure>> {
        let done = |result: Result<(), Failure>| result.map(|()| Answer::Done);
        let mut group = Vec::new();
        for Change { vb, kind, .. } in changes {
            match kind {
                Kind::Save { items, state } if items.is_empty() && changes.len() == 1 => {
                    return vec![done(self.store.save_state(*vb, state))];
                }
                Kind::Save { items, state } => group.push((*vb, SaveBatch { items, state })),
                Kind::Delete => return vec![done(self.store.delete_vbucket(*vb))],
                Kind::Rollback(to) => {
                    return vec![self.store.rollback(*vb, *to).map(|back| {
                        Answer::RolledBack(back.seqno, back.stored.map(|stored| stored.state.snap_end))
                    })];
                }
                Kind::Compact => return vec![done(self.store.compact(*vb, &compaction()).map(|_| ()))],
            }
        }
        self.store.save_group(&group).into_iter().map(|saved| done(saved.map(|_| ()))).collect()
    }

    /// A version that is read is one that may be there; a failure is fine.
    fn get(&self, model: &Model, vb: VbId, key: &[u8], wrong: &mut Vec<String>) {
        let key = DocKey::new(key);
        let Ok(got) = self.store.get(vb, key) else { return };
        let got = got.map(|version| Entry::of(&version));
        let stored = key.to_stored();
        let mut allowed = model.allowed(vb, self.disk.changes() + 1);
        if !allowed.any(|content| content.entry(&stored.0) == got) {
            wrong.push(format!("{vb}: {key:?} reads as {got:?}"));
        }
    }

    fn choose(&self, model: &mut Model, rng: &mut SplitMix64) -> Op {
        let vb = VbId(rng.below(u64::from(self.shape.vbuckets)) as u16);
        match rng.below(20) {
            4..=7 => Op::Background,
            0..=1 => Op::Get(vb, self.shape.key(rng)),
            2 if model.latest(vb).mark.is_some() => {
                Op::Change(vec![Change { vb, kind: Kind::Delete, outcomes: vec![Arc::default()] }])
            }
            8..=9 if model.latest(vb).mark.is_some() => Op::Change(vec![self.roll_back(model, rng, vb)]),
            10..=11 if model.latest(vb).mark.is_some() => {
                let after = Arc::new(model.latest(vb).compacted(OLD_BEFORE_S));
                Op::Change(vec![Change { vb, kind: Kind::Compact, outcomes: vec![after] }])
            }
            3 => Op::Change(vec![self.shape.save(model, rng, vb, 0)]),
            _ => {
                let size =
                    if rng.chance(1, 3) { 1 } else { rng.between(1, u64::from(self.shape.vbuckets)) as u16 };
                let members = (vb.0..vb.0 + size).map(|vb| VbId(vb % self.shape.vbuckets));
                let save = |vb| {
                    let items = rng.between(1, self.shape.most_items);
                    self.shape.save(model, rng, vb, items)
                };
                Op::Change(members.map(save).collect())
            }
        }
    }
}

impl Run<'_> {
    /// Back to some seqno: to the newest commit at or below it, or to one of those before if the store promises no
    /// more; to nothing if there is none.
    fn roll_back(&self, model: &Model, rng: &mut SplitMix64, vb: VbId) -> Change {
        let now = model.latest(vb);
        let to = Seqno(rng.between(0, now.high_seqno.0 + 1));
        let mut outcomes: Vec<Arc<Content>> = now
            .lineage()
            .filter(|content| content.mark.is_some() && content.high_seqno <= to)
            .cloned()
            .collect();
        if self.rolls_back_exactly {
            outcomes.truncate(1);
        }
        let is_out_of_reach =
            now.lineage().take_while(|content| content.high_seqno > to).any(|c| c.is_compacted);
        if !self.rolls_back_exactly || outcomes.is_empty() || is_out_of_reach {
            outcomes.push(Arc::default());
        }
        Change { vb, kind: Kind::Rollback(to), outcomes }
    }
}

impl Shape {
    pub(super) fn key(&self, rng: &mut SplitMix64) -> Vec<u8> {
        // As the seed has it, from which the number of keys comes, too.
        DocumentNames::of(self.keys, limits::MAX_KEY_BYTES).name(rng.below(self.keys))
    }

    /// Saves versions of up to `items` keys.
    fn save(&self, model: &mut Model, rng: &mut SplitMix64, vb: VbId, items: u64) -> Change {
        let before = model.latest(vb).clone();
        let items = self.batch(rng, items, before.high_seqno.0 + 1);
        model.last_mark += 1;
        let after = before.saved(&items, model.last_mark);
        let state = state(after.high_seqno, model.last_mark);
        Change { vb, kind: Kind::Save { items, state }, outcomes: vec![Arc::new(after)] }
    }

    /// One version a key, sorted by key, with seqnos in another order.
    pub(super) fn batch(&self, rng: &mut SplitMix64, items: u64, first_seqno: u64) -> Vec<Version> {
        let keys: BTreeSet<Vec<u8>> = (0..items).map(|_| self.key(rng)).collect();
        let mut seqnos: Vec<u64> = (first_seqno..).take(keys.len()).collect();
        let turn = rng.below(seqnos.len() as u64) as usize;
        seqnos.rotate_left(turn);
        keys.iter().zip(seqnos).map(|(key, seqno)| self.version(rng, key, seqno)).collect()
    }

    fn version(&self, rng: &mut SplitMix64, key: &[u8], seqno: u64) -> Version {
        let deleted = rng.chance(1, 6);
        let mut value = vec![b'v'; if deleted { 0 } else { rng.between(0, self.most_value_bytes) as usize }];
        value.iter_mut().step_by(2).for_each(|b| *b = rng.next_u64() as u8);
        let meta = VersionMeta {
            cas: Cas(rng.next_u64() | 1),
            by_seqno: Seqno(seqno),
            rev_seqno: RevSeqno(seqno),
            flags: rng.next_u64() as u32,
            expiry: if self.has_old { rng.below(100) as u32 } else { OLD_BEFORE_S + 1 },
            datatype: if deleted {
                Datatype::RAW
            } else {
                [Datatype::RAW, Datatype::JSON][rng.below(2) as usize]
            },
            kind: match (deleted, rng.chance(1, 2)) {
                (false, _) => ItemKind::Mutation,
                (true, false) => ItemKind::Deletion,
                (true, true) => ItemKind::Expiration,
            },
            ..VersionMeta::default()
        };
        NewVersion::new(base::Heap::shared(), meta, DocKey::new(key), &[&value]).publish()
    }
}
