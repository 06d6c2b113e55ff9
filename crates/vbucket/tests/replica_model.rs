//! A replica against a plain map and a list of snapshots: what it has, where it says it stands, what its readers are
//! promised, and what a restart or a promotion in the middle of a snapshot makes of it.

use std::collections::BTreeMap;

use base::{
    Cas, DocKey, Heap, ItemKind, NewVersion, RevSeqno, Seqno, VbId, VbState, VbUuid, Version, VersionMeta,
};
use proptest::prelude::*;
use vbucket::{
    BucketContext, CursorId, IncomingSnapshot, Misplaced, Origin, RangeLimit, Resume, ResumePoint,
    SnapshotBounds, SnapshotKind, VBucket,
};

#[derive(Clone, Debug)]
enum Op {
    /// Changes of the active vBucket: keys, and whether each is deleted.
    Write {
        keys: Vec<(u8, bool)>,
    },
    /// So many of its changes become a snapshot.
    Announce {
        share: f64,
        begins_checkpoint: bool,
        disk: bool,
    },
    /// So many of the announced changes arrive.
    Receive {
        changes: usize,
    },
    Flush {
        max_items: u64,
    },
    Stream {
        max_items: u64,
    },
    Expel,
    /// The connection breaks, and another one goes on.
    Reconnect,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop::collection::vec((0..10_u8, prop::bool::weighted(0.3)), 1..8).prop_map(|keys| Op::Write { keys }),
        4 => (0.1..1.0, any::<bool>(), prop::bool::weighted(0.3))
            .prop_map(|(share, begins_checkpoint, disk)| Op::Announce { share, begins_checkpoint, disk }),
        10 => (1..6_usize).prop_map(|changes| Op::Receive { changes }),
        4 => prop_oneof![Just(u64::MAX), 1..6_u64].prop_map(|max_items| Op::Flush { max_items }),
        4 => prop_oneof![Just(u64::MAX), 1..6_u64].prop_map(|max_items| Op::Stream { max_items }),
        1 => Just(Op::Expel),
        1 => Just(Op::Reconnect),
        1 => Just(Op::Restart),
    ]
}

/// Seqno, and whether it is a document, by key.
type Items = BTreeMap<u8, (u64, bool)>;

/// What was saved last: as a store would have it.
#[derive(Clone)]
struct Saved {
    items: Items,
    high: Seqno,
    snapshot: SnapshotBounds,
}

/// A reader of the replica's memory, as a stream of it would tell its consumer.
struct Reader {
    cursor: CursorId,
    items: Items,
    has: u64,
    /// The end of the snapshot that it was told.
    end: u64,
    /// That snapshot may have become part of a larger one: the replica came back to its producer meanwhile.
    may_break: bool,
}

struct Model {
    context: BucketContext,
    real: VBucket,
    /// The active vBucket's changes in order: key, and whether it is a document.
    active: Vec<(u8, bool)>,
    /// What the announced snapshot still has to bring.
    coming: Vec<u64>,
    announced: Option<u64>,
    /// The end of the last snapshot that came as a whole.
    complete: u64,
    items: Items,
    high: u64,
    saved: Saved,
    reader: Reader,
}

fn state_at(active: &[(u8, bool)], seqno: u64) -> Items {
    let mut items = Items::new();
    for (at, (key, lives)) in active.iter().enumerate().take(seqno as usize) {
        items.insert(*key, (at as u64 + 1, *lives));
    }
    items
}

fn item_of(version: &Version) -> (u8, (u64, bool)) {
    (version.key().key[0], (version.meta().by_seqno.0, !version.is_deleted()))
}

impl Model {
    fn new() -> Model {
        let context = BucketContext::new(1, 2, Heap::default());
        let mut real = VBucket::new(VbId(0), &context, Origin::empty(VbState::Replica, VbUuid(1)));
        let saved = Saved { items: Items::new(), high: Seqno(0), snapshot: SnapshotBounds::at(Seqno(0)) };
        let cursor = real.checkpoints_mut().register_cursor("reader", Seqno(0)).expect("memory begins there");
        let reader = Reader { cursor, items: Items::new(), has: 0, end: 0, may_break: false };
        Model {
            context,
            real,
            active: Vec::new(),
            coming: Vec::new(),
            announced: None,
            complete: 0,
            items: Items::new(),
            high: 0,
            saved,
            reader,
        }
    }

    fn version(&self, seqno: u64) -> NewVersion {
        let (key, lives) = self.active[seqno as usize - 1];
        let kind = if lives { ItemKind::Mutation } else { ItemKind::Deletion };
        let meta = VersionMeta {
            kind,
            by_seqno: Seqno(seqno),
            cas: Cas(seqno << 16),
            rev_seqno: RevSeqno(seqno),
            ..VersionMeta::default()
        };
        NewVersion::new(Heap::shared(), meta, DocKey::new(&[key]), &[b"value"])
    }

    fn apply(&mut self, seqno: u64) -> Result<(), Misplaced> {
        let new = self.version(seqno);
        let hash = self.context.seed.hash(new.key());
        self.real
            .apply_replicated(hash, new, base::Moment(1))
            .map(|stored| drop(stored.garbage))
            .map_err(|(why, _)| why)
    }

    /// The snapshot from where the replica stands: what of it later changes replaced does not come.
    fn announce(&mut self, share: f64, begins_checkpoint: bool, disk: bool) {
        // A producer that went on announces as much at least as it did before.
        let least = self.announced.unwrap_or(0).max(self.high + 1);
        let most = self.active.len() as u64;
        if most < least || !self.coming.is_empty() {
            return;
        }
        let end = least + ((most - least) as f64 * share) as u64;
        let mut coming: Vec<u64> =
            state_at(&self.active, end).into_values().map(|(seqno, _)| seqno).collect();
        coming.retain(|seqno| *seqno > self.high);
        coming.sort_unstable();
        let kind = if disk { SnapshotKind::Disk } else { SnapshotKind::Memory };
        let snapshot = IncomingSnapshot {
            start: Seqno(self.high + 1),
            end: Seqno(end),
            kind,
            begins_checkpoint,
            ..IncomingSnapshot::default()
        };
        let backwards = IncomingSnapshot { end: Seqno(self.high.saturating_sub(1)), ..snapshot };
        assert_eq!(self.real.begin_snapshot(&backwards), Err(Misplaced::BadSnapshot));
        self.real.begin_snapshot(&snapshot).expect("it follows");
        self.announced = Some(end);
        self.coming = coming;
    }

    fn receive(&mut self, changes: usize) {
        for _ in 0..changes {
            if self.coming.is_empty() {
                return;
            }
            let seqno = self.coming.remove(0);
            if self.high > 0 {
                assert_eq!(self.apply(self.high), Err(Misplaced::NotRising));
            }
            self.apply(seqno).expect("it is next");
            let (key, lives) = self.active[seqno as usize - 1];
            self.items.insert(key, (seqno, lives));
            self.high = seqno;
            if Some(seqno) == self.announced {
                assert!(self.coming.is_empty(), "the last one is the end");
                (self.complete, self.announced) = (seqno, None);
                assert_eq!(
                    self.items,
                    state_at(&self.active, seqno),
                    "a whole snapshot is the active's state"
                );
                if (self.active.len() as u64) > seqno {
                    assert_eq!(self.apply(seqno + 1), Err(Misplaced::NoSnapshot));
                }
            }
        }
    }

    fn flush(&mut self, max_items: u64) {
        let Some(batch) = self.real.take_flush_batch(RangeLimit::items(max_items)) else { return };
        for version in batch.range.iter().flat_map(|range| range.iter()) {
            let (key, item) = item_of(version);
            self.saved.items.insert(key, item);
        }
        self.saved = Saved { high: batch.high_seqno, snapshot: batch.snapshot, ..self.saved.clone() };
        // What is saved lies in the snapshot that it says, from whose start on everything comes again.
        let SnapshotBounds { start, end, .. } = self.saved.snapshot;
        assert!(start <= self.saved.high && self.saved.high <= end);
        let before = state_at(&self.active, start.0);
        for (key, item) in &before {
            let saved = self.saved.items.get(key);
            assert!(
                saved.is_some_and(|saved| saved.0 >= item.0),
                "{key}: everything up to {start:?} is there"
            );
        }
        if end == self.saved.high {
            assert_eq!(self.saved.items, state_at(&self.active, end.0), "{end:?} is said to be whole");
        }
        drop(self.real.flushed(batch.high_seqno));
    }

    /// What a stream of the replica does: it announces a snapshot, and sends up to its end before it announces another.
    fn stream(&mut self, max_items: u64) {
        let unfinished = (self.reader.end > self.reader.has).then_some(Seqno(self.reader.end));
        let limit = RangeLimit::items(max_items);
        let limit = limit.through(unfinished.unwrap_or(limit.through));
        let range = match self.real.checkpoints_mut().take_range(self.reader.cursor, limit) {
            Ok(Some(range)) => range,
            Ok(None) => return,
            Err(_) => return self.reopen(),
        };
        if unfinished.is_some_and(|end| range.snapshot_end() > end) {
            assert!(self.reader.may_break, "its snapshot is what it was");
            self.real.checkpoints_mut().drop_cursor(self.reader.cursor);
            return self.reopen();
        }
        self.reader.end = range.snapshot_end().0.max(unfinished.map_or(0, |end| end.0));
        for version in range.iter() {
            let (key, item) = item_of(version);
            assert!(item.0 > self.reader.has && item.0 <= self.reader.end);
            self.reader.items.insert(key, item);
        }
        self.reader.has = range.end().0;
        self.real.checkpoints_mut().advance(self.reader.cursor, range.end());
        drop(self.real.checkpoints_mut().remove_closed());
        if self.reader.has == self.reader.end {
            assert_eq!(self.reader.items, state_at(&self.active, self.reader.has), "its snapshot is whole");
        }
    }

    fn reopen(&mut self) {
        let high = self.real.high_seqno();
        let cursor = self.real.checkpoints_mut().register_cursor("reader", high).expect("at the end");
        // As after a backfill from a replica that stands there.
        let end = self.real.snapshot().end.0;
        self.real.checkpoints_mut().promise();
        // Its producer is gone: another one may go on with a larger snapshot.
        let may_break = self.reader.may_break || self.coming.is_empty();
        self.reader = Reader { cursor, items: self.items.clone(), has: self.high, end, may_break };
    }

    fn reconnect(&mut self) {
        // From now on its snapshots may be parts of larger ones.
        self.reader.may_break = true;
        self.coming.clear();
        let histories = self.real.failover().clone();
        self.real.adopt_failover(histories);
        if self.high < self.active.len() as u64 {
            assert_eq!(self.apply(self.high + 1), Err(Misplaced::NoSnapshot));
        }
        if self.high == self.complete {
            self.announced = None;
        }
    }

    fn restart(&mut self) {
        let Saved { items, high, snapshot } = self.saved.clone();
        let origin = Origin {
            high_seqno: high,
            snapshot: Some(snapshot),
            ..Origin::empty(VbState::Replica, VbUuid(1))
        };
        self.real = VBucket::new(VbId(0), &self.context, origin);
        let mut loaded = vbucket::Loaded::new(&self.context, items.len());
        for (seqno, _) in items.values() {
            let version = self.version(*seqno).publish();
            loaded.insert(self.context.seed.hash(version.key()), version);
        }
        drop(self.real.install(loaded));
        (self.items, self.high) = (items, high.0);
        self.coming.clear();
        self.complete = if snapshot.is_inside(high) { snapshot.start.0 } else { high.0 };
        self.announced = snapshot.is_inside(high).then_some(snapshot.end.0);
        self.reopen();
        self.reconnect();
    }

    fn check(&self) {
        let counts = self.real.counts();
        let documents = self.items.values().filter(|(_, lives)| *lives).count() as u64;
        assert_eq!((counts.documents, counts.tombstones), (documents, self.items.len() as u64 - documents));
        assert_eq!(self.real.high_seqno().0, self.high);
        let snapshot = self.real.snapshot();
        if self.high == self.complete {
            assert_eq!(snapshot, SnapshotBounds::at(Seqno(self.high)));
        } else {
            assert!(snapshot.is_inside(Seqno(self.high)), "{snapshot:?}");
            assert!(snapshot.start.0 <= self.complete);
            assert!(snapshot.end.0 >= self.announced.unwrap_or(0));
        }
    }

    /// It becomes active where it stands: whoever has more of the old history, or other parts of the unfinished snapshot,
    /// goes back to where both are the same; whoever then follows ends with the same documents.
    fn promote(mut self, client: u64) {
        let client = client % (self.active.len() as u64 + 1);
        let old = self.real.uuid();
        self.real.set_state(VbState::Active, None, || VbUuid(2));
        assert_eq!(self.real.snapshot(), SnapshotBounds::at(Seqno(self.high)));
        let at = ResumePoint {
            start: Seqno(client),
            uuid: old,
            snapshot_start: Seqno(client),
            snapshot_end: Seqno(client),
            ..ResumePoint::default()
        };
        let from = match self.real.failover().rollback_point(&at, self.real.high_seqno(), Seqno(0)) {
            Resume::Accept => client,
            Resume::RollBack(to) => to.0,
        };
        assert!(from <= self.complete || client == 0, "{from} is beyond {}", self.complete);
        let mut has = state_at(&self.active, from);
        for (key, item) in &self.items {
            if item.0 > from {
                has.insert(*key, *item);
            }
        }
        assert_eq!(has, self.items, "from {from}");
        let batch = self.real.take_flush_batch(RangeLimit::items(1));
        let state = batch.as_ref().map(|batch| (batch.snapshot.end, batch.high_seqno));
        assert!(state.is_none_or(|(end, high)| end == high), "an active vBucket is in no snapshot");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn a_replica_knows_what_it_has(ops in prop::collection::vec(op(), 1..80), client: u64) {
        let mut model = Model::new();
        for op in ops {
            match op {
                Op::Write { keys } => model.active.extend(keys.iter().map(|(key, deleted)| (*key, !deleted))),
                Op::Announce { share, begins_checkpoint, disk } => model.announce(share, begins_checkpoint, disk),
                Op::Receive { changes } => model.receive(changes),
                Op::Flush { max_items } => model.flush(max_items),
                Op::Stream { max_items } => model.stream(max_items),
                Op::Expel => drop(model.real.checkpoints_mut().expel()),
                Op::Reconnect => model.reconnect(),
                Op::Restart => model.restart(),
            }
            model.check();
        }
        model.promote(client);
    }
}
