//! Whether what several threads were told of one vBucket follows from one order of what they did (Wing and Gong,
//! Testing and verifying concurrent objects, 1993).

use std::collections::HashSet;
use std::sync::Arc;

use base::{Seqno, Version};

use super::model::{Content, Digest};
use super::workload::OLD_BEFORE_S;
use crate::ledger::Entry;

/// What a thread did to a vBucket, and what it was told.
pub(super) enum Did {
    /// It saved versions with a state document of this number.
    Save(Vec<Version>, u64),
    /// It deleted the vBucket.
    Delete,
    /// It went back to a seqno and was told what is there now: seqno and number of the state document.
    RollBack(Seqno, Seqno, Option<u64>),
    /// It compacted.
    Compact,
    /// It looked for keys and was told these entries.
    Get(Vec<(Box<[u8]>, Option<Entry>)>),
    /// It read everything.
    Scan(Digest),
    /// It asked for the state: nothing, or high seqno and number of the state document.
    State(Option<(u64, u64)>),
}

/// One operation, from when it was called until it returned.
pub(super) struct Operation {
    pub start: u64,
    pub end: u64,
    pub did: Did,
}

impl Did {
    /// What the vBucket may hold after it was done to `content`; nothing if it would have been told something else.
    fn apply(&self, content: &Arc<Content>) -> Vec<Arc<Content>> {
        let agrees = match self {
            Did::Save(items, mark) => return vec![Arc::new(content.saved(items, *mark))],
            Did::Delete => return vec![Arc::default()],
            Did::RollBack(to, seqno, mark) => return roll_back(content, *to, *seqno, *mark),
            Did::Compact => {
                // a compaction that catches up keeps older commits, compacted
                let parent = content.parent.clone();
                return vec![Arc::new(Content { parent, ..content.compacted(OLD_BEFORE_S) })];
            }
            Did::Get(told) => told.iter().all(|(key, entry)| content.entry(key) == *entry),
            Did::Scan(digest) => content.digest() == *digest,
            Did::State(state) => content.mark.map(|mark| (content.high_seqno.0, mark)) == *state,
        };
        if agrees { vec![content.clone()] } else { Vec::new() }
    }
}

/// Every earlier state that fits what was told, as it was and as a compaction would have left it.
fn roll_back(content: &Arc<Content>, to: Seqno, seqno: Seqno, mark: Option<u64>) -> Vec<Arc<Content>> {
    let is_it = |content: &&Arc<Content>| content.mark == mark && content.high_seqno == seqno && seqno <= to;
    let mut states: Vec<Arc<Content>> = content.lineage().filter(is_it).cloned().collect();
    for i in 0..states.len() {
        let parent = states[i].parent.clone();
        states.push(Arc::new(Content { parent, ..states[i].compacted(OLD_BEFORE_S) }));
    }
    if mark.is_none() {
        states.push(Arc::default());
    }
    states
}

/// All operations in the order in which they were called, for whoever looks for the reason.
pub(super) fn describe(operations: &[Operation]) -> String {
    let mut sorted: Vec<&Operation> = operations.iter().collect();
    sorted.sort_by_key(|operation| operation.start);
    let told = |operation: &Operation| match &operation.did {
        Did::Save(items, mark) => {
            let keys =
                items.iter().map(|v| format!("{}={}", v.stored_key().escape_ascii(), v.meta().by_seqno));
            format!("save {mark}: {}", keys.collect::<Vec<_>>().join(" "))
        }
        Did::Delete => "delete".to_owned(),
        Did::RollBack(to, seqno, mark) => format!("roll back to {to}: at {seqno}, state {mark:?}"),
        Did::Compact => "compact".to_owned(),
        Did::Get(told) => {
            let of = |(key, entry): &(Box<[u8]>, Option<Entry>)| {
                format!("{}={:?}", key.escape_ascii(), entry.map(|entry| entry.seqno.0))
            };
            format!("get {}", told.iter().map(of).collect::<Vec<_>>().join(" "))
        }
        Did::Scan(digest) => format!("scan {digest:?}"),
        Did::State(state) => format!("state {state:?}"),
    };
    let line =
        |operation: &&Operation| format!("    {}-{} {}", operation.start, operation.end, told(operation));
    sorted.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Looks for an order that explains all operations; answers how many could be explained at most if there is none.
pub(super) fn explain(start: &Arc<Content>, operations: &[Operation]) -> Result<(), usize> {
    assert!(operations.len() <= 128, "operations are numbered by bits");
    let mut search = Search { operations, seen: HashSet::new(), most: 0 };
    if search.from(0, start) { Ok(()) } else { Err(search.most) }
}

struct Search<'a> {
    operations: &'a [Operation],
    /// Sets of operations that were done, with what was there afterwards.
    seen: HashSet<(u128, Digest, Option<u64>)>,
    most: usize,
}

impl Search<'_> {
    fn from(&mut self, done: u128, content: &Arc<Content>) -> bool {
        self.most = self.most.max(done.count_ones() as usize);
        if done.count_ones() as usize == self.operations.len() {
            return true;
        }
        if !self.seen.insert((done, content.digest(), content.mark)) {
            return false;
        }
        let left = |i: &usize| done & (1 << i) == 0;
        // nothing can come before what had returned when it was called
        let first_end = (0..self.operations.len()).filter(left).map(|i| self.operations[i].end).min();
        let next: Vec<usize> = (0..self.operations.len())
            .filter(left)
            .filter(|i| first_end.is_some_and(|end| self.operations[*i].start <= end))
            .collect();
        next.into_iter().any(|i| {
            let outcomes = self.operations[i].did.apply(content);
            outcomes.iter().any(|after| self.from(done | 1 << i, after))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::workload::Shape;
    use base::env::sim::SplitMix64;

    fn save(start: u64, end: u64, seqno: u64) -> Operation {
        let mut rng = SplitMix64::new(seqno);
        let shape = Shape { vbuckets: 1, keys: 1, most_items: 1, most_value_bytes: 9, has_old: false };
        Operation { start, end, did: Did::Save(shape.batch(&mut rng, 1, seqno), seqno) }
    }

    fn state(start: u64, end: u64, seqno: Option<u64>) -> Operation {
        Operation { start, end, did: Did::State(seqno.map(|seqno| (seqno, seqno))) }
    }

    #[test]
    fn what_one_order_explains_holds() {
        let operations = [
            save(0, 9, 1),
            state(1, 2, None),
            state(3, 4, Some(1)),
            Operation { start: 5, end: 12, did: Did::Delete },
            state(10, 11, None),
            save(13, 14, 2),
            state(15, 16, Some(2)),
        ];
        assert_eq!(explain(&Arc::default(), &operations), Ok(()));
    }

    #[test]
    fn what_no_order_explains_is_found() {
        for wrong in [
            // forgotten after it was acknowledged
            [save(0, 1, 1), state(2, 3, None)],
            // seen before it was begun
            [state(0, 1, Some(1)), save(2, 3, 1)],
        ] {
            assert!(explain(&Arc::default(), &wrong).is_err());
        }
        // seen and then not any more
        let wavering = [save(0, 9, 1), state(1, 2, Some(1)), state(3, 4, None)];
        assert_eq!(explain(&Arc::default(), &wavering), Err(2));
    }
}
