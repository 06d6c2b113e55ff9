//! A vBucket without a disk against a plain map: what range reads deliver, what purges forget, what memory it keeps.

use std::collections::BTreeMap;

use base::{
    Account, Cas, DocKey, Heap, ItemKind, Moment, NewVersion, Part, Seqno, VbId, VbState, VbUuid, Version,
    VersionMeta,
};
use proptest::prelude::*;
use vbucket::{
    Basis, BucketContext, Change, ConflictRule, Existence, Origin, RangeLimit, ReadId, RegisterRefusal,
    Resume, ResumePoint, SliceLimits, TombstoneLimits, VBucket, WithMeta,
};

const NOW: Moment = Moment(1_800_000_000_000_000_000);

#[derive(Clone, Debug)]
enum Op {
    Set { key: u8, value: u8 },
    Delete { key: u8, at_s: u32 },
    WithMeta { key: u8, deleted: bool, at_s: u32, rev: u64 },
    Lock { key: u8 },
    Open { share: f64 },
    Read { read: usize, items: usize },
    Close { read: usize },
    Purge { before_s: u32, most: usize },
    Sweep { most: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..24_u8;
    prop_oneof![
        10 => (key(), any::<u8>()).prop_map(|(key, value)| Op::Set { key, value }),
        6 => (key(), 0..100_u32).prop_map(|(key, at_s)| Op::Delete { key, at_s }),
        2 => (key(), any::<bool>(), 0..100_u32, 0..20_u64)
            .prop_map(|(key, deleted, at_s, rev)| Op::WithMeta { key, deleted, at_s, rev }),
        1 => key().prop_map(|key| Op::Lock { key }),
        2 => prop_oneof![Just(0.0), 0.0..1.0].prop_map(|share| Op::Open { share }),
        4 => (0..4_usize, 1..12_usize).prop_map(|(read, items)| Op::Read { read, items }),
        1 => (0..4_usize).prop_map(|read| Op::Close { read }),
        2 => (0..100_u32, 1..8_usize).prop_map(|(before_s, most)| Op::Purge { before_s, most }),
        2 => (1..8_usize).prop_map(|most| Op::Sweep { most }),
    ]
}

/// What is known of an item: its key, and its value if it is no tombstone.
type Item = (u8, Option<u8>);

fn item_of(version: &Version) -> Item {
    (version.key().key[0], (!version.is_deleted()).then(|| version.value()[0]))
}

struct Model {
    heap: Heap,
    real: VBucket,
    /// Seqno, time of deletion and what is known, by key.
    items: BTreeMap<u8, (u64, u32, Item)>,
    high: u64,
    purge: u64,
    reads: Vec<(ReadId, BTreeMap<u64, Item>)>,
}

fn change(new: NewVersion) -> Change {
    Change { new, existence: Existence::Any, cas: Cas::ANY, basis: Basis::Nothing, preserve_expiry: false }
}

impl Model {
    fn new() -> Model {
        let heap = Heap::new(Account::new());
        let context = BucketContext::ephemeral(1, 2, heap.clone());
        let real = VBucket::new(VbId(0), &context, Origin::empty(VbState::Active, VbUuid(1)));
        Model { heap, real, items: BTreeMap::new(), high: 0, purge: 0, reads: Vec::new() }
    }

    fn new_version(&self, key: u8, value: Option<u8>, at_s: u32) -> NewVersion {
        let kind = if value.is_some() { ItemKind::Mutation } else { ItemKind::Deletion };
        let expiry = if value.is_some() { 0 } else { at_s };
        let meta = VersionMeta { kind, expiry, ..VersionMeta::default() };
        let value: &[u8] = &value.map(|byte| vec![byte]).unwrap_or_default();
        NewVersion::new(&self.heap, meta, DocKey::new(&[key]), &[value])
    }

    fn applied(&mut self, seqno: Seqno, key: u8, value: Option<u8>, at_s: u32) {
        self.high += 1;
        assert_eq!(seqno, Seqno(self.high));
        self.items.insert(key, (self.high, at_s, (key, value)));
    }

    fn write(&mut self, key: u8, value: Option<u8>, at_s: u32) {
        let new = self.new_version(key, value, at_s);
        let hash = self.real.table().hash(DocKey::new(&[key]));
        // whoever changes a locked document needs its CAS
        let cas = self
            .real
            .table()
            .find(hash, DocKey::new(&[key]))
            .filter(|v| v.is_live(NOW))
            .map(|v| v.meta().cas);
        let change = Change { cas: cas.unwrap_or(Cas::ANY), ..change(new) };
        let Ok(stored) = self.real.apply(hash, change, NOW, |_| {}) else {
            panic!("nothing speaks against it")
        };
        self.applied(stored.by_seqno, key, value, at_s);
    }

    fn write_with_meta(&mut self, key: u8, value: Option<u8>, at_s: u32, rev: u64) {
        let mut new = self.new_version(key, value, at_s);
        new.meta_mut().rev_seqno = base::RevSeqno(rev);
        new.meta_mut().cas = Cas(rev + 1);
        let hash = self.real.table().hash(DocKey::new(&[key]));
        let change = WithMeta {
            new,
            existence: Existence::Any,
            expected: Cas::ANY,
            attributes_of: None,
            rule: ConflictRule::RevisionWins,
            tie_break: None,
            regenerate_cas: false,
        };
        if let Ok(stored) = self.real.apply_with_meta(hash, change, NOW, |_| ()) {
            self.applied(stored.by_seqno, key, value, at_s);
        }
    }

    fn lock(&mut self, key: u8) {
        let hash = self.real.table().hash(DocKey::new(&[key]));
        let Some(version) = self.real.table().find(hash, DocKey::new(&[key])).map(|version| version.clone())
        else {
            return;
        };
        let copy = NewVersion::new(&self.heap, version.meta(), version.key(), &[version.value()]);
        let _ = self.real.lock(hash, copy, Basis::of(Some(&version)), Moment(NOW.0 + 1), NOW);
    }

    fn read(&mut self, read: usize, items: usize) {
        let Some((id, rest)) = self.reads.get_mut(read) else { return };
        let mut out = Vec::new();
        let limits = SliceLimits { items, bytes: usize::MAX };
        let more = self.real.read_range(*id, limits, &mut out).expect("it is open");
        for version in &out {
            let expected = rest.pop_first().expect("no more is delivered than was there");
            assert_eq!((version.meta().by_seqno.0, item_of(version)), expected);
        }
        if !more {
            assert!(rest.is_empty(), "{rest:?} was there when the read was opened");
            self.close(read);
        }
    }

    fn close(&mut self, read: usize) {
        if read < self.reads.len() {
            self.real.close_range(self.reads.swap_remove(read).0);
        }
    }

    fn purge(&mut self, before_s: u32, most: usize) {
        let mut next = Some(Seqno(0));
        while let Some(from) = next {
            let mut forgotten = Vec::new();
            let limits = TombstoneLimits { looked: 3 * most, found: most };
            next = self.real.purge_tombstones(from, before_s, limits, &mut forgotten);
            assert!(forgotten.len() <= most);
        }
        let (high, purge) = (self.high, &mut self.purge);
        self.items.retain(|_, (seqno, at_s, (_, value))| {
            let goes = value.is_none() && *at_s < before_s && *seqno != high;
            if goes {
                *purge = (*purge).max(*seqno);
            }
            !goes
        });
    }

    fn sweep(&mut self, most: usize) {
        let mut next = Some(Seqno(0));
        while let Some(from) = next {
            let mut out = Vec::new();
            next = self.real.sweep_stale(from, most, &mut out);
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Set { key, value } => self.write(key, Some(value), 0),
            Op::Delete { key, at_s } => self.write(key, None, at_s),
            Op::WithMeta { key, deleted, at_s, rev } => {
                self.write_with_meta(key, (!deleted).then_some(7), at_s, rev);
            }
            Op::Lock { key } => self.lock(key),
            Op::Open { share } => {
                let from = (self.high as f64 * share) as u64;
                let id = self.real.open_range(Seqno(from)).expect("few are open");
                let all: BTreeMap<u64, Item> =
                    self.items.values().map(|(seqno, _, item)| (*seqno, *item)).collect();
                self.reads.push((id, all.range(from..).map(|(seqno, item)| (*seqno, *item)).collect()));
            }
            Op::Read { read, items } => self.read(read, items),
            Op::Close { read } => self.close(read),
            Op::Purge { before_s, most } => self.purge(before_s, most),
            Op::Sweep { most } => self.sweep(most),
        }
    }

    fn check(&self) {
        let tombstones = self.items.values().filter(|(_, _, (_, value))| value.is_none()).count() as u64;
        let counts = self.real.counts();
        assert_eq!(counts.tombstones, tombstones);
        assert_eq!(counts.documents, self.items.len() as u64 - tombstones);
        assert_eq!(self.real.purge_seqno(), Seqno(self.purge));
        let list = self.real.seq_list().expect("it has no disk").counts();
        assert_eq!(list.items, self.items.len() as u64);
        // the table and the list hold the same versions, and nobody else holds any
        let documents = self.heap.account().exact()[Part::Documents as usize] as u64;
        assert_eq!(documents, counts.bytes + list.stale_bytes);
        assert_eq!((self.real.checkpoints().items(), self.real.checkpoints().checkpoints()), (0, 1));
        for (key, (seqno, _, item)) in &self.items {
            let key = DocKey::new(std::slice::from_ref(key));
            let found = self.real.table().find(self.real.table().hash(key), key).expect("it was not purged");
            assert_eq!((found.meta().by_seqno.0, item_of(&found)), (*seqno, *item));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_map(ops in prop::collection::vec(op(), 1..150)) {
        let mut model = Model::new();
        for op in &ops {
            model.run(op);
            model.check();
        }
        while !model.reads.is_empty() {
            model.read(0, 5);
        }
        model.sweep(100);
        model.check();
        assert_eq!(model.real.seq_list().map(|list| list.counts().stale_items), Some(0));
        let Model { heap, real, .. } = model;
        drop(real);
        assert!(heap.account().exact().iter().all(|bytes| *bytes == 0));
    }
}

/// A stream that knows what comes before a purged tombstone has to begin again, even if it knows the history.
#[test]
fn whoever_missed_a_purged_tombstone_goes_back() {
    let mut model = Model::new();
    model.write(1, Some(1), 0);
    model.write(1, None, 10);
    model.write(2, Some(2), 0);
    model.purge(11, 10);
    assert_eq!(model.real.purge_seqno(), Seqno(2));
    let at = |seqno| ResumePoint {
        start: Seqno(seqno),
        uuid: VbUuid(1),
        snapshot_start: Seqno(seqno),
        snapshot_end: Seqno(seqno),
        ..ResumePoint::default()
    };
    let verdict = |seqno| {
        let vb = &model.real;
        vb.failover().rollback_point(&at(seqno), vb.high_seqno(), vb.purge_seqno())
    };
    assert_eq!(verdict(1), Resume::RollBack(Seqno(0)));
    assert_eq!([verdict(0), verdict(2), verdict(3)], [Resume::Accept; 3]);
}

/// A key whose tombstone is gone goes on with a higher revision than any tombstone had.
#[test]
fn a_purged_key_is_not_taken_for_an_older_one() {
    let mut model = Model::new();
    (0..5).for_each(|value| model.write(1, Some(value), 0));
    model.write(1, None, 10);
    model.write(2, Some(2), 0);
    model.purge(11, 10);
    model.write(1, Some(9), 0);
    let key = DocKey::new(&[1]);
    let found = model.real.table().find(model.real.table().hash(key), key).expect("it was stored");
    assert_eq!(found.meta().rev_seqno.0, 7);
}

/// While nobody reads, changes are not queued; a stream that comes then begins behind them, and misses none from there.
#[test]
fn changes_that_nobody_reads_are_not_queued() {
    let mut model = Model::new();
    let held = |model: &Model| {
        let checkpoints = model.real.checkpoints();
        (checkpoints.items(), checkpoints.checkpoints(), checkpoints.memory_start().0)
    };
    for round in 0..3 {
        (0..20).for_each(|key| model.write(key, Some(1), 0));
        let high = model.high;
        assert_eq!(held(&model), (0, 1, high + 1));
        let checkpoints = model.real.checkpoints_mut();
        let below = checkpoints.register_cursor("stream", Seqno(high - 1));
        assert_eq!(below, Err(RegisterRefusal::BelowMemory { memory_start: Seqno(high + 1) }));
        let id = checkpoints.register_cursor("stream", Seqno(high)).expect("memory begins there");
        let ids = checkpoints.open_id();
        [1, 2, 1].into_iter().for_each(|key| model.write(key, Some(2), 0));
        let checkpoints = model.real.checkpoints_mut();
        let range = checkpoints
            .take_range(id, RangeLimit::items(u64::MAX))
            .expect("it was not dropped")
            .expect("there is something");
        let seqnos: Vec<u64> = range.iter().map(|version| version.meta().by_seqno.0).collect();
        assert_eq!(
            (seqnos, range.snapshot_start(), range.end()),
            (vec![high + 2, high + 3], Seqno(high + 1), Seqno(high + 3))
        );
        assert!(checkpoints.advance(id, range.end()) && checkpoints.open_id() > ids);
        model.write(3, Some(3), 0);
        model.real.checkpoints_mut().drop_cursor(id);
        assert!(held(&model).0 > 0, "round {round}");
    }
    model.write(4, Some(4), 0);
    assert_eq!(held(&model), (0, 1, model.high + 1));
    model.check();
}
