//! One vBucket with all items: what its list costs, and how long each bounded piece of work takes.

use std::time::Instant;

use base::{
    Account, Cas, DocKey, Heap, ItemKind, Moment, NewVersion, Part, Seqno, VbId, VbState, VbUuid, VersionMeta,
};
use vbucket::{Basis, BucketContext, Change, Existence, Origin, SliceLimits, TombstoneLimits, VBucket};

const NOW: Moment = Moment(1_800_000_000_000_000_000);
/// As the tombstone purger and range reads have them.
const PURGED: TombstoneLimits = TombstoneLimits { looked: 128, found: 32 };
const SWEPT: usize = 64;
const READ: SliceLimits = SliceLimits { items: 256, bytes: usize::MAX };

struct One {
    heap: Heap,
    vb: VBucket,
}

/// Times of pieces of work, in nanoseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        self.0.push(begin.elapsed().as_nanos() as u64);
        done
    }

    fn print(mut self, name: &str, items: u64) {
        self.0.sort_unstable();
        let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
        let total: u64 = self.0.iter().sum();
        let each = total as f64 / items as f64;
        let (p50, p99, p999, longest) = (at(0.5), at(0.99), at(0.999), at(1.0));
        let pieces = self.0.len();
        println!(
            "| {name} | {items} | {each:.0} | {pieces} | {p50:.1} | {p99:.1} | {p999:.1} | {longest:.1} |"
        );
    }
}

impl One {
    fn write(&mut self, key: u64, kind: ItemKind) {
        let name = format!("key-{key:016}");
        let body: &[u8] = if kind.is_deleted() { b"" } else { &[b'v'; 100] };
        let expiry = if kind.is_deleted() { 1 } else { 0 };
        let meta = VersionMeta { kind, expiry, ..VersionMeta::default() };
        let new = NewVersion::new(&self.heap, meta, DocKey::new(name.as_bytes()), &[body]);
        let (existence, basis) = (Existence::Any, Basis::Nothing);
        let change = Change { new, existence, cas: Cas::ANY, basis, preserve_expiry: false };
        let hash = self.vb.table().hash(DocKey::new(name.as_bytes()));
        assert!(self.vb.apply(hash, change, NOW, |_| {}).is_ok());
    }

    fn list_bytes_per_item(&self) -> f64 {
        let counts = self.vb.seq_list().expect("it has no disk").counts();
        counts.bytes as f64 / counts.items as f64
    }
}

/// Numbers below `below` by chance.
pub fn random(below: u64) -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

/// Shows what the list costs for so many items.
pub fn run(keys: u64) {
    let heap = Heap::new(Account::new());
    let context = BucketContext::ephemeral(1, 2, heap.clone());
    let mut one =
        One { heap, vb: VBucket::new(VbId(0), &context, Origin::empty(VbState::Active, VbUuid(1))) };
    println!("One vBucket, {keys} items of 20 + 100 bytes; pieces are what happens under one lock.\n");
    println!("| work | items | ns each | pieces | p50 us | p99 us | p99.9 us | longest us |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut random = random(keys);
    let mut times = Times::default();
    (0..keys).for_each(|key| times.time(|| one.write(key, ItemKind::Mutation)));
    times.print("insert", keys);
    let in_order = one.list_bytes_per_item();
    let mut times = Times::default();
    (0..3 * keys).for_each(|_| {
        let key = random();
        times.time(|| one.write(key, ItemKind::Mutation));
    });
    times.print("replace, by chance", 3 * keys);
    let by_chance = one.list_bytes_per_item();
    read(&mut one, "range read");
    let range = one.vb.open_range(Seqno(0)).expect("none is open");
    let mut times = Times::default();
    (0..keys).for_each(|_| {
        let key = random();
        times.time(|| one.write(key, ItemKind::Mutation));
    });
    times.print("replace under a range read", keys);
    let stale = one.vb.seq_list().expect("it has no disk").counts().stale_items;
    read(&mut one, "range read past stale copies");
    one.vb.close_range(range);
    sweep(&mut one, "freeing stale copies", stale);
    (0..keys / 2).for_each(|key| one.write(2 * key, ItemKind::Deletion));
    one.write(1, ItemKind::Mutation);
    purge(&mut one);
    sweep(&mut one, "purge, second stage", keys / 2);
    let counts = one.vb.seq_list().expect("it has no disk").counts();
    println!(
        "\nBytes of the list per item: {in_order:.1} in order, {by_chance:.1} after three changes by chance of each."
    );
    println!(
        "Left: {} items, {} stale, purge seqno {}.",
        counts.items,
        counts.stale_items,
        one.vb.purge_seqno().0
    );
    let account = one.heap.account().clone();
    drop(one);
    let left = account.exact();
    assert_eq!((left[Part::Documents as usize], left[Part::Other as usize]), (0, 0));
    println!("After dropping it {} bytes are charged.\n", left.iter().sum::<i64>());
}

fn read(one: &mut One, name: &str) {
    let id = one.vb.open_range(Seqno(0)).expect("few are open");
    let (mut times, mut items, mut more) = (Times::default(), 0, true);
    while more {
        let mut out = Vec::with_capacity(READ.items);
        more = times.time(|| one.vb.read_range(id, READ, &mut out)).expect("it is open");
        items += out.len() as u64;
    }
    one.vb.close_range(id);
    times.print(name, items);
}

fn sweep(one: &mut One, name: &str, items: u64) {
    let (mut times, mut next) = (Times::default(), Some(Seqno(0)));
    while let Some(from) = next {
        let mut out = Vec::new();
        next = times.time(|| one.vb.sweep_stale(from, SWEPT, &mut out));
    }
    times.print(name, items);
}

fn purge(one: &mut One) {
    let (mut times, mut items, mut next) = (Times::default(), 0, Some(Seqno(0)));
    while let Some(from) = next {
        let mut out = Vec::new();
        next = times.time(|| one.vb.purge_tombstones(from, 2, PURGED, &mut out));
        items += out.len() as u64;
    }
    times.print("purge, first stage", items);
}
