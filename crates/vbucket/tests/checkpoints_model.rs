//! The checkpoint manager against a plain list of changes: every interleaving of what its owner can do.

use std::collections::HashSet;

use base::{DocKey, ItemKind, NewVersion, Seqno, Version, VersionMeta};
use proptest::prelude::*;
use vbucket::{
    BucketContext, CheckpointLimits, CheckpointManager, CursorId, Dropped, Range, RangeLimit,
    RegisterRefusal, Removed,
};

/// Slots of a chunk: so much of what all have passed may stay when changes are expelled.
const CHUNK: usize = 256;

#[derive(Clone, Debug)]
enum Op {
    Queue { key: u16, event: bool, gap: u64 },
    QueueMany { keys: u16 },
    Take { cursor: usize, max: u64, max_bytes: u64 },
    Advance { cursor: usize, share: f64 },
    Register { share: f64 },
    Drop { cursor: usize },
    DropSlowest,
    DropRange { range: usize },
    Remove,
    Expel,
    Free { chunks: usize },
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    let share = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    let gap = prop_oneof![30 => Just(0_u64), 1 => 1..600_u64];
    prop_oneof![
        20 => (0..12_u16, prop::bool::weighted(0.05), gap)
            .prop_map(|(key, event, gap)| Op::Queue { key, event, gap }),
        1 => (100..700_u16).prop_map(|keys| Op::QueueMany { keys }),
        5 => (0..4_usize, prop_oneof![Just(u64::MAX), 1..20_u64], prop_oneof![3 => Just(u64::MAX), 1 => 1..9000_u64])
            .prop_map(|(cursor, max, max_bytes)| Op::Take { cursor, max, max_bytes }),
        5 => (0..4_usize, share.clone()).prop_map(|(cursor, share)| Op::Advance { cursor, share }),
        1 => share.prop_map(|share| Op::Register { share }),
        1 => (0..4_usize).prop_map(|cursor| Op::Drop { cursor }),
        3 => (0..4_usize).prop_map(|range| Op::DropRange { range }),
        1 => Just(Op::DropSlowest),
        2 => Just(Op::Remove),
        1 => Just(Op::Expel),
        2 => (0..3_usize).prop_map(|chunks| Op::Free { chunks }),
        1 => Just(Op::Close),
    ]
}

/// A change as the model remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    seqno: u64,
    key: u16,
    event: bool,
    bytes: u64,
}

fn change_of(version: &Version) -> Change {
    Change {
        seqno: version.meta().by_seqno.0,
        key: version.key().key.try_into().map(u16::from_be_bytes).expect("two bytes"),
        event: version.meta().kind == ItemKind::SystemEvent,
        bytes: version.allocated_bytes() as u64,
    }
}

struct ModelCursor {
    id: CursorId,
    lasts: bool,
    position: u64,
    taken: Option<u64>,
}

struct Model {
    context: BucketContext,
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
    /// Everything from here on is in memory.
    memory_start: u64,
    removed: Vec<Removed>,
}

impl Model {
    fn new(first: u64, limit: usize) -> Model {
        let context = BucketContext::new(1, 2, base::Heap::default());
        let limits = CheckpointLimits { max_items: limit as u32, ..CheckpointLimits::default() };
        context.checkpoints.set_limits(limits);
        Model {
            real: CheckpointManager::new(&context, Seqno(first)),
            context,
            limit,
            changes: Vec::new(),
            high: first,
            closed: Vec::new(),
            open_start: first + 1,
            open_slots: 0,
            has_gap: false,
            cursors: Vec::new(),
            ranges: Vec::new(),
            memory_start: first + 1,
            removed: Vec::new(),
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

    fn between(&self, after: u64, until: u64) -> Vec<Change> {
        self.changes.iter().copied().filter(|c| c.seqno > after && c.seqno <= until).collect()
    }

    fn queue(&mut self, key: u16, event: bool, gap: u64) -> Result<(), TestCaseError> {
        let seqno = self.high + 1 + gap;
        let kind = if event { ItemKind::SystemEvent } else { ItemKind::Mutation };
        let meta = VersionMeta { by_seqno: Seqno(seqno), kind, ..VersionMeta::default() };
        let version =
            NewVersion::new(&self.context.heap, meta, DocKey::new(&key.to_be_bytes()), &[b"value"]).publish();
        let bytes = version.allocated_bytes() as u64;
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
        self.changes.push(Change { seqno, key, event, bytes });
        self.open_slots += 1;
        self.has_gap |= gap > 0;
        self.high = seqno;
        Ok(())
    }

    fn take(&mut self, at: usize, limit: RangeLimit) -> Result<(), TestCaseError> {
        let Some(cursor) = self.cursors.get_mut(at) else { return Ok(()) };
        let position = cursor.position;
        let Some(range) = self.real.take_range(cursor.id, limit).expect("it was not dropped") else {
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
        self.check_bounds(&range, position, limit)?;
        self.ranges.push((range, items));
        Ok(())
    }

    fn check_bounds(&self, range: &Range, position: u64, limit: RangeLimit) -> Result<(), TestCaseError> {
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
        prop_assert_eq!(range.items(), range.iter().count() as u64);
        let before_last = self.between(position, expected[expected.len() - 1].0 - 1);
        let bytes = |changes: &[Change]| changes.iter().map(|c| c.bytes).sum::<u64>();
        prop_assert!((before_last.len() as u64) < limit.items, "the range goes on although it has enough");
        prop_assert!(bytes(&before_last) < limit.bytes, "the range goes on although it has enough");
        // of the first chunk all bytes count, those before the position, too
        let in_first = self.between(position.saturating_sub(4096), end);
        let is_enough = range.items() >= limit.items || bytes(&in_first) >= limit.bytes;
        prop_assert!(end == self.high || is_enough, "the range ends too early");
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

    fn register(&mut self, share: f64, lasts: bool) -> Result<(), TestCaseError> {
        let from = ((self.high + 2) as f64 * share) as u64;
        let registered = if lasts {
            self.real.register_lasting_cursor("cursor", Seqno(from))
        } else {
            self.real.register_cursor("cursor", Seqno(from))
        };
        if from + 1 < self.memory_start {
            let refusal = RegisterRefusal::BelowMemory { memory_start: Seqno(self.memory_start) };
            prop_assert_eq!(registered, Err(refusal));
        } else if from > self.high {
            prop_assert_eq!(registered, Err(RegisterRefusal::AboveHigh { high: Seqno(self.high) }));
        } else if let Ok(id) = registered {
            self.cursors.push(ModelCursor { id, lasts, position: from, taken: None });
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
            self.assert_gone(cursor.id);
        }
    }

    fn assert_gone(&mut self, id: CursorId) {
        assert!(!self.real.advance(id, Seqno(0)));
        assert_eq!(self.real.take_range(id, RangeLimit::NONE).err(), Some(Dropped));
        assert_eq!((self.real.position(id), self.real.items_behind(id)), (None, None));
    }

    fn drop_slowest(&mut self) -> Result<(), TestCaseError> {
        let dropped = self.real.drop_slowest_cursor(1);
        let slowest = self.cursors.iter().filter(|c| !c.lasts).map(|c| c.position).min();
        let lasting = self.cursors.iter().filter(|c| c.lasts).map(|c| c.position).min();
        let Some((id, _)) = dropped else {
            let Some(slowest) = slowest else { return Ok(()) };
            let between = self.between(slowest, lasting.unwrap_or(u64::MAX).min(self.open_start - 1));
            prop_assert!(between.len() <= CHUNK, "it keeps memory that nobody else needs");
            return Ok(());
        };
        let at = self.cursors.iter().position(|c| c.id == id).expect("it was there");
        prop_assert!(!self.cursors[at].lasts);
        prop_assert_eq!(Some(self.cursors[at].position), slowest);
        prop_assert!(lasting.is_none_or(|lasting| Some(lasting) > slowest), "nothing was won");
        self.cursors.remove(at);
        self.assert_gone(id);
        Ok(())
    }

    /// Up to where all cursors have come.
    fn passed(&self) -> u64 {
        self.cursors.iter().map(|c| c.position).min().unwrap_or(u64::MAX)
    }

    fn took_out(&mut self, removed: Removed, memory_start: u64) -> Result<(), TestCaseError> {
        prop_assert_eq!(removed.is_empty(), memory_start == self.memory_start);
        prop_assert_eq!(removed.items(), self.between(0, memory_start - 1).len() as u64);
        let closed = self.closed.len();
        self.closed.retain(|(_, end)| *end >= memory_start);
        prop_assert_eq!(removed.checkpoints() as usize, closed - self.closed.len());
        self.changes.retain(|c| c.seqno >= memory_start);
        self.memory_start = memory_start;
        self.removed.push(removed);
        Ok(())
    }

    fn remove(&mut self) -> Result<(), TestCaseError> {
        let passed = self.passed();
        let gone = self.closed.iter().take_while(|(_, end)| *end <= passed).last();
        let memory_start = gone.map_or(self.memory_start, |(_, end)| *end + 1);
        let removed = self.real.remove_closed();
        self.took_out(removed, memory_start)
    }

    fn expel(&mut self) -> Result<(), TestCaseError> {
        let passed = self.passed();
        if self.cursors.iter().all(|c| c.position == self.high) {
            self.close();
        }
        let removed = self.real.expel();
        let memory_start = self.real.memory_start().0;
        let needed = (passed.min(self.high) + 1).min(self.open_start);
        prop_assert!(memory_start >= self.memory_start && memory_start <= needed);
        let left = self.between(memory_start - 1, needed - 1).len();
        prop_assert!(left <= CHUNK, "{} that all have passed are left", left);
        let at_border = self.closed.iter().any(|(_, end)| *end + 1 == needed);
        prop_assert!(!at_border || memory_start == needed, "a whole checkpoint is left");
        self.took_out(removed, memory_start)
    }

    fn free(&mut self, chunks: usize) {
        let is_more = self.removed.last_mut().is_some_and(|removed| removed.free(chunks));
        if !is_more {
            self.removed.pop();
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.real.high_seqno().0, self.high);
        prop_assert_eq!(self.real.memory_start().0, self.memory_start);
        prop_assert_eq!(self.real.checkpoints() as usize, self.closed.len() + 1);
        prop_assert_eq!(self.real.items() as usize, self.changes.len());
        prop_assert_eq!(self.real.bytes(), self.changes.iter().map(|c| c.bytes).sum::<u64>());
        prop_assert_eq!(self.real.open_items() as usize, self.between(self.open_start - 1, self.high).len());
        for cursor in &self.cursors {
            prop_assert_eq!(self.real.position(cursor.id), Some(Seqno(cursor.position)));
            let exact = self.between(cursor.position, self.high).len() as u64;
            prop_assert_eq!(self.real.items_behind(cursor.id), Some(exact));
        }
        for (range, items) in &self.ranges {
            prop_assert!(range.iter().map(change_of).eq(items.iter().copied()), "a promised range changed");
        }
        Ok(())
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Queue { key, event, gap } => self.queue(key, event, gap)?,
            Op::QueueMany { keys } => {
                for key in 0..keys {
                    self.queue(1000 + key, false, 0)?;
                }
            }
            Op::Take { cursor, max, max_bytes } => {
                self.take(cursor, RangeLimit { items: max, bytes: max_bytes, ..RangeLimit::NONE })?;
            }
            Op::Advance { cursor, share } => self.advance(cursor, share),
            Op::Register { share } => self.register(share, false)?,
            Op::Drop { cursor } => self.drop_cursor(cursor),
            Op::DropRange { range } if range < self.ranges.len() => _ = self.ranges.remove(range),
            Op::DropRange { .. } => {}
            Op::DropSlowest => self.drop_slowest()?,
            Op::Remove => self.remove()?,
            Op::Expel => self.expel()?,
            Op::Free { chunks } => self.free(chunks),
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
        limit in prop_oneof![1..20_usize, Just(250_usize), Just(1500_usize)],
        lasts in prop::bool::ANY,
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        let mut model = Model::new(first, limit);
        let context = model.context.clone();
        model.register(first as f64 / (first + 2) as f64 + 1e-9, lasts)?;
        for op in ops {
            model.apply(op)?;
        }
        drop(model);
        prop_assert_eq!(context.account().exact(), [0; base::memory::PARTS]);
        prop_assert_eq!(context.checkpoints.used_bytes(), 0);
    }
}

fn change(context: &BucketContext, seqno: u64, key: &[u8]) -> Version {
    let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
    NewVersion::new(&context.heap, meta, DocKey::new(key), &[]).publish()
}

#[test]
fn a_large_checkpoint_merges_and_counts_right() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    let mut manager = CheckpointManager::new(&context, Seqno(0));
    let id = manager.register_cursor("c", Seqno(0)).expect("everything is in memory");
    let mut last = [None; 251];
    for seqno in 1..=5000_u64 {
        let key = (seqno * seqno % 251) as usize;
        let merged = manager.queue(change(&context, seqno, &[key as u8]), last[key]);
        assert_eq!(merged.map(|version| version.meta().by_seqno), last[key]);
        last[key] = Some(Seqno(seqno));
    }
    let mut expected: Vec<u64> = last.iter().flatten().map(|seqno| seqno.0).collect();
    expected.sort_unstable();
    assert_eq!(manager.items(), expected.len() as u64);
    let range = manager.take_range(id, RangeLimit::NONE).expect("it is there").expect("there are changes");
    assert!(range.iter().map(|version| version.meta().by_seqno.0).eq(expected.iter().copied()));
    for seqno in 1..=5000 {
        manager.advance(id, Seqno(seqno));
        let left = expected.iter().filter(|s| **s > seqno).count() as u64;
        assert_eq!(manager.items_behind(id), Some(left));
        if seqno == 3000 {
            drop(manager.expel());
            assert!(manager.memory_start() > Seqno(3000 - 256) && manager.memory_start() <= Seqno(3001));
        }
    }
    assert_eq!(manager.remove_closed().checkpoints(), 1);
}

#[test]
fn many_checkpoints_are_freed_without_recursion_and_found_again() {
    let context = BucketContext::new(1, 2, base::Heap::default());
    let mut manager = CheckpointManager::new(&context, Seqno(0));
    let slow = manager.register_cursor("slow", Seqno(0)).expect("everything is in memory");
    let n = 100_000_u64;
    for seqno in 1..=n {
        manager.queue(change(&context, seqno, b"k"), Some(Seqno(seqno - 1)));
        manager.close();
    }
    assert_eq!(manager.items_behind(slow), Some(n));
    let late = manager.register_cursor("late", Seqno(n / 2)).expect("everything is in memory");
    assert_eq!(manager.items_behind(late), Some(n / 2));
    let few = manager.take_range(late, RangeLimit::items(10)).expect("it is there").expect("changes");
    assert_eq!((few.start(), few.end(), few.items()), (Seqno(n / 2 + 1), Seqno(n / 2 + 10), 10));
    let rest = manager.take_range(late, RangeLimit::NONE).expect("it is there").expect("changes");
    assert_eq!((rest.start(), rest.end(), rest.items()), (Seqno(n / 2 + 1), Seqno(n), n / 2));
    assert_eq!(rest.iter().count() as u64, n / 2);
    assert!(manager.advance(late, Seqno(n / 2 + 12_345)));
    assert_eq!(manager.items_behind(late), Some(n / 2 - 12_345));
    assert!(manager.remove_closed().is_empty());
    assert_eq!(manager.drop_slowest_cursor(1).map(|(id, _)| id), Some(slow));
    let mut removed = manager.remove_closed();
    assert_eq!((removed.checkpoints(), removed.items()), (n / 2 + 12_345, n / 2 + 12_345));
    let mut steps = 1;
    while removed.free(100) {
        steps += 1;
    }
    // from the middle on the range holds them
    assert_eq!(steps, n / 2 / 100 + 1);
    assert_eq!(rest.iter().count() as u64, n / 2);
    drop((few, rest, removed));
    assert!(manager.advance(late, Seqno(n)));
    assert_eq!(manager.remove_closed().items(), n / 2 - 12_345);
    assert_eq!((manager.items(), manager.bytes()), (0, 0));
    drop(manager);
    assert_eq!(context.account().exact(), [0; base::memory::PARTS]);
}
