//! Conflicts between clusters, by seed: changes that bring their own metadata against a model of both rules, and two orders
//! of the same changes, of which many differ in their values alone; both must end in the same.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use base::env::sim::SplitMix64;
use base::{
    Account, Cas, Datatype, DocKey, Heap, ItemKind, Moment, NewVersion, RevSeqno, VbId, VbState, VbUuid,
    VersionMeta,
};
use vbucket::{
    BucketContext, ConflictRule, Existence, Origin, Refusal, TieBreak, VBucket, VersionRef, WithMeta,
};

const NOW: Moment = Moment(1_800_000_000_000_000_000);
const KEYS: u64 = 4;
/// Changes of one seed.
const CHANGES: usize = 60;
/// Seeds of the ordinary test.
const SEEDS: u64 = 400;

/// A version as far as conflicts look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    deleted: bool,
    cas: u64,
    rev: u64,
    expiry: u32,
    flags: u32,
    /// Some bits of [`Datatype`], whatever the value is.
    datatype: u8,
    value: u8,
}

impl Seen {
    /// What two clusters agree on: neither the time of a deletion nor the flags of a tombstone.
    fn agreed(self) -> Seen {
        if self.deleted { Seen { expiry: 0, flags: 0, ..self } } else { self }
    }
}

/// How a change is sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    key: u8,
    seen: Seen,
    rule: ConflictRule,
    add: bool,
    expected: u64,
    regenerate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Stored,
    Refused(Refusal),
}

/// Which of two versions wins by its metadata, field by field, as the documentation of the field has it; of a document and
/// a tombstone with the same CAS and revision the document wins (record 218).
fn model_order(rule: ConflictRule, new: Seen, old: Seen) -> Ordering {
    let cas = new.cas.cmp(&old.cas);
    let revision = new.rev.cmp(&old.rev);
    let order = match rule {
        ConflictRule::Force => return Ordering::Greater,
        ConflictRule::RevisionWins => [revision, cas],
        ConflictRule::TimeWins => [cas, revision],
    };
    for one in order {
        if one != Ordering::Equal {
            return one;
        }
    }
    match (new.deleted, old.deleted) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => new.expiry.cmp(&old.expiry).then(new.flags.cmp(&old.flags)),
    }
}

/// Which of two versions with the same metadata wins by its value: the one with attributes, then the greater one.
fn model_tie(new: Seen, old: Seen) -> Ordering {
    let has_attributes = |seen: Seen| Datatype(seen.datatype).is_xattr();
    if has_attributes(new) != has_attributes(old) {
        return if has_attributes(new) { Ordering::Greater } else { Ordering::Less };
    }
    new.value.cmp(&old.value).then(new.datatype.cmp(&old.datatype))
}

/// What a change comes to where `old` is.
fn model_outcome(sent: &Sent, old: Option<Seen>) -> Outcome {
    let is_live = old.is_some_and(|old| !old.deleted);
    let is_other = sent.expected != 0 && old.is_none_or(|old| old.cas != sent.expected);
    if let Some(old) = old {
        let lost = match (model_order(sent.rule, sent.seen, old), model_tie(sent.seen, old)) {
            (Ordering::Greater, _) => None,
            (Ordering::Less, _) => Some(Refusal::CasMismatch),
            (Ordering::Equal, _) if sent.add && is_live => Some(Refusal::Exists),
            (Ordering::Equal, Ordering::Greater) => None,
            (Ordering::Equal, Ordering::Less) => Some(Refusal::TieLost),
            (Ordering::Equal, Ordering::Equal) => Some(Refusal::CasMismatch),
        };
        if let Some(refusal) = lost {
            return Outcome::Refused(refusal);
        }
    }
    if sent.add && is_live {
        return Outcome::Refused(Refusal::Exists);
    }
    match is_other {
        true if !is_live && !sent.seen.deleted => Outcome::Refused(Refusal::NotFound),
        true => Outcome::Refused(Refusal::CasMismatch),
        false => Outcome::Stored,
    }
}

/// A vBucket of one of the clusters.
struct Side {
    heap: Heap,
    real: VBucket,
}

impl Side {
    fn new() -> Side {
        let heap = Heap::new(Account::new());
        let context = BucketContext::ephemeral(1, 2, heap.clone());
        let real = VBucket::new(VbId(0), &context, Origin::empty(VbState::Active, VbUuid(1)));
        Side { heap, real }
    }

    fn send(&mut self, sent: &Sent) -> Outcome {
        match self.send_with(sent, None) {
            // As the engine does: the values are compared, and the change is sent again.
            Outcome::Refused(Refusal::NeedsTieBreak) => {
                let (meta, value) =
                    self.version(sent.key).map(|found| (found.meta(), found.value()[0])).expect("tied");
                let tie_break =
                    TieBreak::between((&meta_of(sent.seen), &[sent.seen.value]), (&meta, &[value]));
                self.send_with(sent, Some(tie_break))
            }
            outcome => outcome,
        }
    }

    fn send_with(&mut self, sent: &Sent, tie_break: Option<TieBreak>) -> Outcome {
        let meta = meta_of(sent.seen);
        let key = [sent.key];
        let change = WithMeta {
            new: NewVersion::new(&self.heap, meta, DocKey::new(&key), &[&[sent.seen.value]]),
            existence: if sent.add { Existence::Absent } else { Existence::Any },
            expected: Cas(sent.expected),
            attributes_of: None,
            rule: sent.rule,
            tie_break,
            regenerate_cas: sent.regenerate,
        };
        let hash = self.real.table().hash(DocKey::new(&key));
        match self.real.apply_with_meta(hash, change, NOW, |_| ()) {
            Ok(_) => Outcome::Stored,
            Err(refused) => Outcome::Refused(refused.refusal),
        }
    }

    fn version(&self, key: u8) -> Option<VersionRef<'_>> {
        let key = [key];
        let hash = self.real.table().hash(DocKey::new(&key));
        self.real.table().find(hash, DocKey::new(&key))
    }

    fn seen(&self, key: u8) -> Option<Seen> {
        let found = self.version(key)?;
        let meta = found.meta();
        Some(Seen {
            deleted: meta.kind.is_deleted(),
            cas: meta.cas.0,
            rev: meta.rev_seqno.0,
            expiry: meta.expiry,
            flags: meta.flags,
            datatype: meta.datatype.0,
            value: found.value()[0],
        })
    }
}

fn meta_of(seen: Seen) -> VersionMeta {
    let Seen { deleted, cas, rev, expiry, flags, datatype, value: _ } = seen;
    let kind = if deleted { ItemKind::Deletion } else { ItemKind::Mutation };
    let (cas, rev_seqno, datatype) = (Cas(cas), RevSeqno(rev), Datatype(datatype));
    VersionMeta { kind, cas, rev_seqno, expiry, flags, datatype, ..VersionMeta::default() }
}

/// Few values of each field, so that ties are common.
fn version(random: &mut SplitMix64) -> Seen {
    let deleted = random.below(3) == 0;
    Seen {
        deleted,
        cas: 1 + random.below(4),
        rev: 1 + random.below(4),
        // Of a tombstone it is the time of the deletion; documents do not expire within the test.
        expiry: if deleted {
            random.below(3) as u32
        } else {
            [0, 2_000_000_000, 2_100_000_000][random.below(3) as usize]
        },
        flags: random.below(3) as u32,
        datatype: [Datatype::RAW, Datatype::JSON, Datatype::XATTR][random.below(3) as usize].0,
        value: random.below(3) as u8,
    }
}

/// One change after the other: what is answered and what is there are as the model has it.
fn steps(seed: u64, rule: ConflictRule) -> Result<(), String> {
    let mut random = SplitMix64::new(seed);
    let (mut side, mut model) = (Side::new(), BTreeMap::<u8, Seen>::new());
    for at in 0..CHANGES {
        let key = random.below(KEYS) as u8;
        let old = model.get(&key).copied();
        let expected = match random.below(6) {
            0 => old.map_or(7, |old| old.cas),
            1 => 1 + random.below(4),
            _ => 0,
        };
        let sent = Sent {
            key,
            seen: version(&mut random),
            rule: if random.below(8) == 0 { ConflictRule::Force } else { rule },
            add: random.below(6) == 0,
            expected,
            regenerate: random.below(10) == 0,
        };
        let (outcome, wanted) = (side.send(&sent), model_outcome(&sent, old));
        if outcome != wanted {
            return Err(format!("change {at}, {sent:?} onto {old:?}: {outcome:?}, not {wanted:?}"));
        }
        let found = side.seen(key);
        if outcome == Outcome::Stored {
            let mut seen = sent.seen;
            if sent.regenerate {
                let given = found.map_or(0, |found| found.cas);
                if given <= old.map_or(0, |old| old.cas) {
                    return Err(format!("change {at}, {sent:?} onto {old:?} got the CAS {given}"));
                }
                seen.cas = given;
            }
            model.insert(key, seen);
        }
        if found != model.get(&key).copied() {
            return Err(format!("change {at}, {sent:?} onto {old:?}: {found:?} is there"));
        }
    }
    Ok(())
}

/// The same changes in two orders, some of them twice: both sides end in the same, which is the one that wins over all
/// others.
fn orders(seed: u64, rule: ConflictRule) -> Result<(), String> {
    let mut random = SplitMix64::new(seed ^ 0x5eed);
    let mut changes: Vec<(u8, Seen)> =
        (0..CHANGES).map(|_| (random.below(KEYS) as u8, version(&mut random))).collect();
    let mut sides = [Side::new(), Side::new()];
    for side in &mut sides {
        for at in (1..changes.len()).rev() {
            changes.swap(at, random.below(at as u64 + 1) as usize);
        }
        for (key, seen) in &changes {
            let (key, seen) = (*key, *seen);
            let sent = Sent { key, seen, rule, add: false, expected: 0, regenerate: false };
            let times = 1 + random.below(2);
            for _ in 0..times {
                side.send(&sent);
            }
        }
    }
    for key in 0..KEYS as u8 {
        let of_key = changes.iter().filter(|(of, _)| *of == key).map(|(_, seen)| *seen);
        let wins = |one, best| model_order(rule, one, best).then(model_tie(one, best)).is_gt();
        let winner = of_key.reduce(|best, one| if wins(one, best) { one } else { best }).map(Seen::agreed);
        let found = sides.each_ref().map(|side| side.seen(key).map(Seen::agreed));
        if found != [winner, winner] {
            return Err(format!("key {key}: the sides have {found:?}, and {winner:?} wins"));
        }
    }
    Ok(())
}

fn run(seed: u64) -> Result<(), String> {
    for rule in [ConflictRule::RevisionWins, ConflictRule::TimeWins] {
        steps(seed, rule).and_then(|()| orders(seed, rule)).map_err(|what| format!("{rule:?}: {what}"))?;
    }
    Ok(())
}

#[test]
fn conflicts_end_as_the_model_has_it_in_any_order() {
    for seed in 0..SEEDS {
        run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Conflicts, run);
}
