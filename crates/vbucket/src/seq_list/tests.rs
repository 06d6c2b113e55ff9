//! The list of items against a plain model: range reads, stale copies, tombstones.

use base::{DocKey, Heap, ItemKind, NewVersion, VersionMeta};
use proptest::prelude::*;

use super::*;

fn item(heap: &Heap, seqno: u64, key: u16, deleted: bool) -> Version {
    let kind = if deleted { ItemKind::Deletion } else { ItemKind::Mutation };
    let meta = VersionMeta { by_seqno: Seqno(seqno), kind, expiry: 1, ..VersionMeta::default() };
    NewVersion::new(heap, meta, DocKey::new(&key.to_be_bytes()), &[b"value"]).publish()
}

#[derive(Clone, Debug)]
enum Op {
    Write { key: u16, gap: u64, deleted: bool },
    Burst { keys: u16, writes: u16 },
    Open { share: f64 },
    Read { read: usize, items: usize, bytes: usize },
    Close { read: usize },
    Purge { most: usize },
    Sweep { most: usize },
    Swap { key: u16 },
}

fn op() -> impl Strategy<Value = Op> {
    let gap = prop_oneof![20 => Just(0_u64), 2 => 1..40_u64, 1 => 200..2000_u64, 1 => Just(1 << 33)];
    prop_oneof![
        10 => (0..60_u16, gap, prop::bool::weighted(0.3))
            .prop_map(|(key, gap, deleted)| Op::Write { key, gap, deleted }),
        3 => (1..400_u16, 1..600_u16).prop_map(|(keys, writes)| Op::Burst { keys, writes }),
        2 => prop_oneof![Just(0.0), 0.0..1.1].prop_map(|share| Op::Open { share }),
        4 => (0..4_usize, 1..200_usize, prop_oneof![Just(usize::MAX), 0..4000_usize])
            .prop_map(|(read, items, bytes)| Op::Read { read, items, bytes }),
        1 => (0..4_usize).prop_map(|read| Op::Close { read }),
        1 => (1..30_usize).prop_map(|most| Op::Purge { most }),
        2 => (1..50_usize).prop_map(|most| Op::Sweep { most }),
        1 => (0..60_u16).prop_map(|key| Op::Swap { key }),
    ]
}

struct ModelRead {
    id: ReadId,
    /// What was there when it was opened and is not delivered yet.
    rest: BTreeMap<u64, u16>,
}

/// A plain map of what there is.
struct Model {
    heap: Heap,
    list: SeqList,
    high: u64,
    by_key: BTreeMap<u16, (u64, bool)>,
    reads: Vec<ModelRead>,
    swept_to: Seqno,
}

impl Model {
    fn new() -> Model {
        let heap = Heap::default();
        let list = SeqList::new(Seqno(0), heap.account());
        let (by_key, reads) = (BTreeMap::new(), Vec::new());
        Model { heap, list, high: 0, by_key, reads, swept_to: Seqno(0) }
    }

    fn write(&mut self, key: u16, gap: u64, deleted: bool) {
        self.high += 1 + gap;
        if let Some((old, _)) = self.by_key.insert(key, (self.high, deleted)) {
            drop(self.list.replaced(Seqno(old)));
        }
        self.list.append(item(&self.heap, self.high, key, deleted));
    }

    fn by_seqno(&self) -> BTreeMap<u64, u16> {
        self.by_key.iter().map(|(key, (seqno, _))| (*seqno, *key)).collect()
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Write { key, gap, deleted } => self.write(key, gap, deleted),
            Op::Burst { keys, writes } => {
                (0..writes).for_each(|n| self.write(1000 + (n * 7) % keys, 0, n % 5 == 0));
            }
            Op::Open { share } => {
                let from = (self.high as f64 * share) as u64;
                if self.reads.len() < 4 {
                    let id = self.list.open_range(Seqno(from)).expect("few are open");
                    self.reads.push(ModelRead { id, rest: self.by_seqno().split_off(&from) });
                }
            }
            Op::Read { read, items, bytes } => self.read(read, items, bytes),
            Op::Close { read } => {
                if read < self.reads.len() {
                    self.list.close_range(self.reads.swap_remove(read).id);
                }
            }
            Op::Purge { most } => self.purge(most),
            Op::Sweep { most } => {
                let next = self.list.sweep(self.swept_to, most, &mut Vec::new());
                self.swept_to = next.unwrap_or(Seqno(0));
            }
            Op::Swap { key } => {
                if let Some((seqno, deleted)) = self.by_key.get(&key).copied() {
                    let copy = item(&self.heap, seqno, key, deleted);
                    assert_eq!(self.list.swap(copy).meta().by_seqno, Seqno(seqno));
                }
            }
        }
    }

    fn read(&mut self, read: usize, items: usize, bytes: usize) {
        let Some(at) = (read < self.reads.len()).then_some(read) else { return };
        let ModelRead { id, rest } = &mut self.reads[at];
        let mut out = Vec::new();
        let more = self.list.read(*id, SliceLimits { items, bytes }, &mut out).expect("it is open");
        assert!(out.len() <= items);
        for version in &out {
            let (seqno, key) = rest.pop_first().expect("no more is delivered than was there");
            assert_eq!(version.meta().by_seqno, Seqno(seqno));
            assert_eq!(version.key().key, key.to_be_bytes());
        }
        if !more {
            assert!(rest.is_empty(), "{rest:?} was there when the read was opened");
            self.list.close_range(*id);
            self.reads.swap_remove(at);
        }
    }

    fn purge(&mut self, most: usize) {
        let mut found = Vec::new();
        let limits = TombstoneLimits { looked: 10 * most, found: most };
        let mut from = Seqno(0);
        loop {
            let next = self.list.old_tombstones(from, 2, limits, &mut found);
            for tombstone in found.drain(..) {
                let key = u16::from_be_bytes(tombstone.key().key.try_into().expect("two bytes"));
                let seqno = tombstone.meta().by_seqno;
                assert_eq!(self.by_key.remove(&key), Some((seqno.0, true)), "only tombstones are purged");
                self.list.retire(seqno);
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let high = self.high;
        assert!(self.by_key.values().all(|(seqno, deleted)| !deleted || *seqno == high));
    }

    fn check(&self) {
        let counts = self.list.counts();
        assert_eq!(counts.items, self.by_key.len() as u64);
        let held: usize = self.list.chunks_from(0).map(Chunk::held).sum();
        assert_eq!(held as u64, counts.items + counts.stale_items);
        let bytes: usize = self.list.chunks.values().map(|chunk| chunk.bytes() + CHUNK_BYTES).sum();
        let reads = self.list.reads.capacity() * size_of::<Read>();
        let stale = self.list.stale.len() * STALE_BYTES;
        assert_eq!(counts.bytes as usize, bytes + self.list.last.bytes() + reads + stale);
        assert_eq!(self.heap.account().exact()[base::Part::Other as usize], counts.bytes as i64);
    }

    /// Ends all reads: then nothing is left but what there is.
    fn end(mut self) {
        while let Some(ModelRead { id, .. }) = self.reads.pop() {
            self.list.close_range(id);
        }
        assert_eq!(self.list.sweep(Seqno(0), usize::MAX, &mut Vec::new()), None);
        assert!(!self.list.needs_sweep());
        let counts = self.list.counts();
        assert_eq!((counts.stale_items, counts.stale_bytes), (0, 0));
        self.check();
        let Model { heap, list, .. } = self;
        drop(list);
        assert!(heap.account().exact().iter().all(|bytes| *bytes == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_read_delivers_what_was_there_when_it_was_opened(ops in prop::collection::vec(op(), 1..120)) {
        let mut model = Model::new();
        for op in &ops {
            model.run(op);
            model.check();
        }
        while !model.reads.is_empty() {
            model.read(0, 7, usize::MAX);
        }
        model.end();
    }
}

#[test]
fn memory_follows_the_items_however_many_changes_there_were() {
    let mut model = Model::new();
    let mut random = 1_u64;
    let keys = 5000;
    for n in 0..400_000_u64 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // a tenth is never changed again, the rest by chance
        let key = if n < 500 { n } else { 500 + (random >> 33) % (keys - 500) };
        model.write(key as u16, 0, false);
        if n % 20_000 == 0 {
            let counts = model.list.counts();
            assert!(counts.bytes <= 20 * counts.items + 4096, "{counts:?} after {n}");
        }
    }
    let counts = model.list.counts();
    assert_eq!((counts.items, counts.stale_items), (keys, 0));
    model.check();
    model.end();
}

#[test]
fn gaps_take_no_memory() {
    let mut model = Model::new();
    for key in 0..20_000 {
        model.write(key, 100 + u64::from(key) % 500, false);
    }
    let counts = model.list.counts();
    assert!(counts.bytes <= 24 * counts.items + 4096, "{counts:?}");
    model.end();
}

#[test]
fn a_copy_that_no_read_needs_is_not_kept() {
    let mut model = Model::new();
    (0..10).for_each(|key| model.write(key, 0, false));
    let id = model.list.open_range(Seqno(4)).expect("none is open");
    model.write(0, 0, false);
    assert_eq!(model.list.counts().stale_items, 0, "it lies before the range");
    model.write(9, 0, false);
    model.write(9, 0, false);
    assert_eq!(model.list.counts().stale_items, 1, "the second lies behind it");
    let mut out = Vec::new();
    let limits = SliceLimits { items: 3, bytes: usize::MAX };
    assert_eq!(model.list.read(id, limits, &mut out), Some(true));
    model.write(4, 0, false);
    assert_eq!(model.list.counts().stale_items, 1, "the read has passed it");
    assert_eq!(out.iter().map(|version| version.meta().by_seqno.0).collect::<Vec<_>>(), [4, 5, 6]);
    model.list.close_range(id);
    assert!(model.list.needs_sweep());
    assert_eq!(model.list.read(id, limits, &mut out), None);
    drop(out);
    model.end();
}

#[test]
fn there_is_a_limit_to_reads() {
    let mut list = SeqList::new(Seqno(0), &Account::new());
    let reads: Vec<ReadId> = std::iter::from_fn(|| list.open_range(Seqno(0))).collect();
    assert_eq!(reads.len(), MAX_READS);
    list.close_range(reads[0]);
    assert!(list.open_range(Seqno(0)).is_some());
}
