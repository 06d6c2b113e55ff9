//! The checkpoint manager against a plain list of changes: every interleaving of what its owner can do.

use std::collections::HashSet;

use base::{DocKey, ItemKind, NewVersion, Seqno, Version, VersionMeta};
use proptest::prelude::*;
use vbucket::{CheckpointLimits, CheckpointManager, CursorId, Range, RegisterRefusal};

/// Closed checkpoints up to which cursors are always exact.
const EXACT: usize = 60;

#[derive(Clone, Debug)]
enum Op {
    Queue { key: u8, event: bool, gap: u64 },
    Take { cursor: usize, max: u64 },
    Advance { cursor: usize, share: f64 },
    Register { share: f64 },
    Drop { cursor: usize },
    DropRange { range: usize },
    Remove,
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    let share = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    let gap = prop_oneof![30 => Just(0_u64), 1 => 1..600_u64];
    prop_oneof![
        20 => (0..12_u8, prop::bool::weighted(0.05), gap)
            .prop_map(|(key, event, gap)| Op::Queue { key, event, gap }),
        5 => (0..4_usize, prop_oneof![Just(u64::MAX), 1..20_u64])
            .prop_map(|(cursor, max)| Op::Take { cursor, max }),
        5 => (0..4_usize, share.clone()).prop_map(|(cursor, share)| Op::Advance { cursor, share }),
        1 => share.prop_map(|share| Op::Register { share }),
        1 => (0..4_usize).prop_map(|cursor| Op::Drop { cursor }),
        3 => (0..4_usize).prop_map(|range| Op::DropRange { range }),
        2 => Just(Op::Remove),
        1 => Just(Op::Close),
    ]
}

/// A change as the model remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    seqno: u64,
    key: u8,
    event: bool,
}

fn change_of(version: &Version) -> Change {
    Change {
        seqno: version.meta().by_seqno.0,
        key: version.key().key[0],
        event: version.meta().kind == ItemKind::SystemEvent,
    }
}

struct ModelCursor {
    id: CursorId,
    position: u64,
    taken: Option<u64>,
}

struct Model {
    real: CheckpointManager,
    limit: usize,
    /// Changes that are in memory and not merged away.
    changes: Vec<Change>,
    high: u64,
    /// Bounds of the closed checkpoints in memory.
    closed: Vec<(u64, u64)>,
    open_start: u64,
    open_slots: usize,
    /// Whether the open checkpoint has slots for seqnos that never came.
    has_gap: bool,
    cursors: Vec<ModelCursor>,
    ranges: Vec<(Range, Vec<Change>)>,
}

impl Model {
    fn new(first: u64, limit: usize) -> Model {
        let limits = CheckpointLimits { max_items: limit as u32, ..CheckpointLimits::default() };
        Model {
            real: CheckpointManager::new(Seqno(first), limits),
            limit,
            changes: Vec::new(),
            high: first,
            closed: Vec::new(),
            open_start: first + 1,
            open_slots: 0,
            has_gap: false,
            cursors: Vec::new(),
            ranges: Vec::new(),
        }
    }

    fn close(&mut self) {
        if self.open_slots > 0 {
            self.closed.push((self.open_start, self.high));
            self.open_start = self.high + 1;
            self.open_slots = 0;
            self.has_gap = false;
        }
    }

    fn memory_start(&self) -> u64 {
        self.closed.first().map_or(self.open_start, |(start, _)| *start)
    }

    fn between(&self, after: u64, until: u64) -> Vec<Change> {
        self.changes.iter().copied().filter(|c| c.seqno > after && c.seqno <= until).collect()
    }

    fn queue(&mut self, key: u8, event: bool, gap: u64) -> Result<(), TestCaseError> {
        let seqno = self.high + 1 + gap;
        let kind = if event { ItemKind::SystemEvent } else { ItemKind::Mutation };
        let meta = VersionMeta { by_seqno: Seqno(seqno), kind, ..VersionMeta::default() };
        let version = NewVersion::new(base::Heap::shared(), meta, DocKey::new(&[key]), &[b"value"]).publish();
        let old = self.changes.iter().rposition(|c| c.key == key && c.event == event);
        let old_seqno = old.map(|at| Seqno(self.changes[at].seqno));
        let open_id = self.real.open_id();
        let merged = if gap == 0 {
            self.real.queue(version, old_seqno)
        } else {
            self.real.queue_received(version, old_seqno)
        };
        let closed = self.real.open_id() > open_id;
        prop_assert!(closed || self.open_slots < self.limit, "a full checkpoint is closed");
        prop_assert!(!closed || self.open_slots == self.limit || self.has_gap, "only a full one is");
        if closed {
            self.close();
        }
        let expected = old.filter(|at| {
            let old = self.changes[*at];
            old.seqno >= self.open_start && !old.event
        });
        let expected = expected.map(|at| self.changes.remove(at));
        prop_assert_eq!(merged.as_ref().map(change_of), expected);
        self.changes.push(Change { seqno, key, event });
        self.open_slots += 1;
        self.has_gap |= gap > 0;
        self.high = seqno;
        Ok(())
    }

    fn take(&mut self, at: usize, max: u64) -> Result<(), TestCaseError> {
        let Some(cursor) = self.cursors.get_mut(at) else { return Ok(()) };
        let position = cursor.position;
        let range = self.real.take_range(cursor.id, max);
        let Some(range) = range else {
            prop_assert_eq!(position, self.high);
            return Ok(());
        };
        cursor.taken = Some(range.end().0);
        prop_assert_eq!(range.start().0, position + 1);
        if range.end().0 >= self.open_start {
            self.close();
        }
        let items: Vec<Change> = range.iter().map(change_of).collect();
        prop_assert_eq!(&items, &self.between(position, range.end().0));
        self.check_bounds(&range, position, max)?;
        self.ranges.push((range, items));
        Ok(())
    }

    fn check_bounds(&self, range: &Range, position: u64, max: u64) -> Result<(), TestCaseError> {
        let views: Vec<_> = range.checkpoints().collect();
        let bounds: Vec<_> = views.iter().map(|c| (c.snapshot_start().0, c.snapshot_end().0)).collect();
        let end = range.end().0;
        let expected: Vec<_> =
            self.closed.iter().copied().filter(|(start, to)| *to > position && *start <= end).collect();
        prop_assert_eq!(&bounds, &expected);
        prop_assert_eq!(range.snapshot_start().0, expected[0].0);
        prop_assert_eq!(end, expected[expected.len() - 1].1);
        for view in &views {
            let mut keys = HashSet::new();
            let twice = view.iter().map(change_of).any(|c| !c.event && !keys.insert(c.key));
            prop_assert!(!twice, "a key is twice in one snapshot");
        }
        prop_assert!(range.items_at_most() >= range.iter().count() as u64);
        if self.closed.len() <= EXACT {
            prop_assert_eq!(range.items_at_most(), range.iter().count() as u64);
            let before_last = self.between(position, expected[expected.len() - 1].0 - 1).len() as u64;
            prop_assert!(before_last < max, "the range goes on although it has enough");
            prop_assert!(end == self.high || range.items_at_most() >= max, "the range ends too early");
        }
        Ok(())
    }

    fn advance(&mut self, at: usize, share: f64) {
        let Some(cursor) = self.cursors.get_mut(at) else { return };
        let Some(end) = cursor.taken else { return };
        if end < cursor.position {
            return;
        }
        let to = cursor.position + ((end - cursor.position) as f64 * share) as u64;
        assert!(self.real.advance(cursor.id, Seqno(to)));
        cursor.position = to;
    }

    fn register(&mut self, share: f64) -> Result<(), TestCaseError> {
        let from = ((self.high + 2) as f64 * share) as u64;
        let registered = self.real.register_cursor("cursor", Seqno(from));
        let memory_start = self.memory_start();
        if from + 1 < memory_start {
            let refusal = RegisterRefusal::BelowMemory { memory_start: Seqno(memory_start) };
            prop_assert_eq!(registered, Err(refusal));
        } else if from > self.high {
            prop_assert_eq!(registered, Err(RegisterRefusal::AboveHigh { high: Seqno(self.high) }));
        } else if let Ok(id) = registered {
            self.cursors.push(ModelCursor { id, position: from, taken: None });
        } else {
            prop_assert!(false, "refused {:?}", registered);
        }
        Ok(())
    }

    fn drop_cursor(&mut self, at: usize) {
        if at < self.cursors.len() {
            let cursor = self.cursors.remove(at);
            assert!(self.real.drop_cursor(cursor.id));
            assert!(!self.real.drop_cursor(cursor.id));
            assert!(!self.real.advance(cursor.id, Seqno(0)));
        }
    }

    fn remove(&mut self) -> Result<(), TestCaseError> {
        let passed = self.cursors.iter().map(|c| c.position).min().unwrap_or(u64::MAX);
        let most = self.closed.iter().take_while(|(_, end)| *end <= passed).count();
        let removed = self.real.remove_closed();
        let count = removed.checkpoints() as usize;
        prop_assert!(count <= most);
        prop_assert!(count == most || self.closed.len() > EXACT);
        prop_assert_eq!(removed.is_empty(), count == 0);
        let gone: Vec<_> = self.closed.drain(..count).collect();
        let until = gone.last().map_or(0, |(_, end)| *end);
        prop_assert_eq!(removed.items(), self.between(0, until).len() as u64);
        self.changes.retain(|c| c.seqno > until);
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.real.high_seqno().0, self.high);
        prop_assert_eq!(self.real.memory_start().0, self.memory_start());
        prop_assert_eq!(self.real.checkpoints() as usize, self.closed.len() + 1);
        prop_assert_eq!(self.real.items() as usize, self.changes.len());
        prop_assert_eq!(self.real.open_items() as usize, self.between(self.open_start - 1, self.high).len());
        for cursor in &self.cursors {
            prop_assert_eq!(self.real.position(cursor.id), Some(Seqno(cursor.position)));
            let exact = self.between(cursor.position, self.high).len() as u64;
            let behind = self.real.items_behind(cursor.id).unwrap_or(0);
            prop_assert!(behind >= exact);
            prop_assert!(behind == exact || self.closed.len() > EXACT, "{} is not {}", behind, exact);
        }
        for (range, items) in &self.ranges {
            prop_assert!(range.iter().map(change_of).eq(items.iter().copied()), "a promised range changed");
        }
        Ok(())
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Queue { key, event, gap } => self.queue(key, event, gap)?,
            Op::Take { cursor, max } => self.take(cursor, max)?,
            Op::Advance { cursor, share } => self.advance(cursor, share),
            Op::Register { share } => self.register(share)?,
            Op::Drop { cursor } => self.drop_cursor(cursor),
            Op::DropRange { range } if range < self.ranges.len() => _ = self.ranges.remove(range),
            Op::DropRange { .. } => {}
            Op::Remove => self.remove()?,
            Op::Close => {
                self.real.close();
                self.close();
            }
        }
        self.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_list(
        first in prop_oneof![Just(0_u64), 0..1000_u64],
        limit in prop_oneof![1..20_usize, Just(250_usize)],
        ops in proptest::collection::vec(op(), 1..300),
    ) {
        let mut model = Model::new(first, limit);
        model.register(first as f64 / (first + 2) as f64 + 1e-9)?;
        for op in ops {
            model.apply(op)?;
        }
    }
}

#[test]
fn a_large_checkpoint_merges_and_counts_right() {
    let mut manager = CheckpointManager::new(Seqno(0), CheckpointLimits::default());
    let id = manager.register_cursor("c", Seqno(0)).expect("everything is in memory");
    let mut last = [None; 251];
    for seqno in 1..=5000_u64 {
        let key = (seqno * seqno % 251) as usize;
        let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
        let version = NewVersion::new(base::Heap::shared(), meta, DocKey::new(&[key as u8]), &[]).publish();
        let merged = manager.queue(version, last[key]);
        assert_eq!(merged.map(|version| version.meta().by_seqno), last[key]);
        last[key] = Some(Seqno(seqno));
    }
    let mut expected: Vec<u64> = last.iter().flatten().map(|seqno| seqno.0).collect();
    expected.sort_unstable();
    assert_eq!(manager.items(), expected.len() as u64);
    let range = manager.take_range(id, u64::MAX).expect("there are changes");
    assert!(range.iter().map(|version| version.meta().by_seqno.0).eq(expected.iter().copied()));
    for seqno in 1..=5000 {
        manager.advance(id, Seqno(seqno));
        let left = expected.iter().filter(|s| **s > seqno).count() as u64;
        assert_eq!(manager.items_behind(id), Some(left));
    }
    assert_eq!(manager.remove_closed().checkpoints(), 1);
}

#[test]
fn many_checkpoints_are_freed_without_recursion_and_found_again() {
    let mut manager = CheckpointManager::new(Seqno(0), CheckpointLimits::default());
    let slow = manager.register_cursor("slow", Seqno(0)).expect("everything is in memory");
    let n = 100_000_u64;
    for seqno in 1..=n {
        let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
        manager.queue(
            NewVersion::new(base::Heap::shared(), meta, DocKey::new(b"k"), &[]).publish(),
            Some(Seqno(seqno - 1)),
        );
        manager.close();
    }
    assert_eq!(manager.items_behind(slow), Some(n));
    let late = manager.register_cursor("late", Seqno(n / 2)).expect("everything is in memory");
    assert_eq!(manager.items_behind(late), Some(n / 2), "no more than there are seqnos");
    let range = manager.take_range(late, 10).expect("there are changes");
    assert_eq!((range.start(), range.end()), (Seqno(n / 2 + 1), Seqno(n)));
    assert_eq!(range.iter().count() as u64, n / 2);
    assert_eq!(range.snapshot_start(), Seqno(n / 2 + 1));
    assert!(manager.advance(late, range.end()));
    assert!(manager.remove_closed().is_empty());
    let all = manager.take_range(slow, u64::MAX).expect("there are changes");
    assert!(manager.advance(slow, all.end()));
    let removed = manager.remove_closed();
    assert_eq!((removed.checkpoints(), removed.items()), (n, n));
    drop((all, range, removed));
    assert_eq!(manager.items(), 0);
}
