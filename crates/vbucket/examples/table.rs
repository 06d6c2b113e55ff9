//! Measures the hash table: `cargo run --release -p vbucket --example table [ITEMS]`.

use std::hint::black_box;

use base::env::{Clock, RealClock};
use base::{DocKey, NewVersion, Seqno, Version, VersionMeta};
use vbucket::{BucketContext, HashTable};

fn key(i: u64) -> [u8; 20] {
    let mut key = *b"key-0000000000000000";
    let mut rest = i;
    for digit in key.iter_mut().rev().take(16) {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn version(i: u64, seqno: u64) -> Version {
    sized(i, seqno, &[b'v'; 512])
}

fn sized(i: u64, seqno: u64, value: &[u8]) -> Version {
    let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
    NewVersion::new(base::Heap::shared(), meta, DocKey::new(&key(i)), &[value]).publish()
}

/// How often the same growing and shrinking is done.
const PASSES: usize = 5;

/// A fixed walk through all numbers below `n` in an order that no cache expects.
fn shuffled(n: u64) -> Vec<u64> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut order: Vec<u64> = (0..n).collect();
    for i in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

struct Bench {
    clock: RealClock,
    n: u64,
}

impl Bench {
    /// Runs `work` once and prints what one of `times` costs.
    fn time<T>(&self, name: &str, times: u64, work: impl FnOnce() -> T) -> T {
        let start = self.clock.monotonic_ns();
        let result = black_box(work());
        let ns = self.clock.monotonic_ns() - start;
        println!("{name:<50} {:>9.1} ns", ns as f64 / times as f64);
        result
    }

    /// Runs `work` for each item and prints the slowest ones.
    fn each<T>(&self, name: &str, items: impl Iterator<Item = T>, mut work: impl FnMut(T)) {
        let mut all: Vec<u64> = Vec::with_capacity(self.n as usize);
        for item in items {
            let start = self.clock.monotonic_ns();
            work(item);
            all.push(self.clock.monotonic_ns() - start);
        }
        all.sort_unstable();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
        let over = all.iter().filter(|ns| **ns > 100_000).count();
        println!(
            "{name:<50} p50 {} p99 {} p99.99 {} p99.999 {} max {} ns, over 100 us: {over}",
            at(0.5),
            at(0.99),
            at(0.9999),
            at(0.99999),
            at(1.0),
        );
    }

    fn table(&self) {
        let n = self.n;
        let context = BucketContext::new(0x1234_5678, 0x9abc_def0, base::Heap::default());
        let mut table = HashTable::new(&context);
        println!("empty table: {} bytes", size_of::<HashTable>() + table.allocated_bytes());
        let order = shuffled(n);
        let versions: Vec<(u64, Version)> = order.iter().copied().map(|i| (i, version(i, i + 1))).collect();
        self.each("nothing, as long (the clock, and who else runs here)", 0..10 * n, |i| _ = black_box(i));
        self.each("insert, growing from empty, each", versions.into_iter(), |(i, version)| {
            insert(&mut table, i, version);
        });
        let (buckets, overflow) = table.bucket_counts();
        println!(
            "{buckets} buckets, {overflow} overflow lines, {:.2} bytes an item",
            table.allocated_bytes() as f64 / table.len() as f64
        );
        let present: Vec<[u8; 20]> = order.iter().map(|i| key(*i)).collect();
        let absent: Vec<[u8; 20]> = (n..2 * n).map(key).collect();
        self.time("hash of a key of 20 bytes", n, || {
            present.iter().fold(0, |sum, key| sum ^ table.hash(DocKey::new(key)))
        });
        self.time("find, present, random order", n, || {
            present.iter().filter(|key| find(&table, key)).count()
        });
        self.time("find, absent", n, || absent.iter().filter(|key| find(&table, key)).count());
        self.prefetched(&table, &present);
        let versions: Vec<(u64, Version)> =
            order.iter().copied().map(|i| (i, version(i, n + i + 1))).collect();
        let old: Vec<Version> = self.time("replace, random order", n, || {
            versions.into_iter().map(|(i, version)| insert(&mut table, i, version).expect("there")).collect()
        });
        drop(old);
        let removed: Vec<Version> = self.time("remove, random order, shrinking to empty", n, || {
            order.iter().copied().map(|i| remove(&mut table, i)).collect()
        });
        println!("after removing all: {} bytes allocated", table.allocated_bytes());
        let removed: Vec<u64> = removed.into_iter().map(|version| version.meta().by_seqno.0).collect();
        let versions: Vec<(u64, Version)> = removed.iter().map(|i| (*i, version(*i, *i))).collect();
        self.time("insert, growing from empty, random order", n, || {
            versions.into_iter().for_each(|(i, version)| _ = insert(&mut table, i, version));
        });
    }

    /// Grows a table to all items and shrinks it to nothing, several times: what an operation took at least is its own,
    /// what it took more now and then is due to who else runs here.
    fn pauses(&self) {
        let order = shuffled(self.n);
        let (mut growing, mut shrinking) = (Vec::new(), Vec::new());
        let mut idle = Vec::new();
        for _ in 0..PASSES {
            let mut table = HashTable::new(&BucketContext::new(1, 2, base::Heap::default()));
            let versions: Vec<(u64, Version)> = order.iter().map(|i| (*i, sized(*i, i + 1, b""))).collect();
            self.least(&mut idle, order.iter(), |i| _ = black_box(i));
            self.least(&mut growing, versions.into_iter(), |(i, version)| {
                insert(&mut table, i, version);
            });
            let mut removed = Vec::with_capacity(order.len());
            self.least(&mut shrinking, order.iter(), |i| removed.push(remove(&mut table, *i)));
        }
        println!("the least of {PASSES} times for each operation, in ns:");
        print_spread("nothing", idle);
        print_spread("insert, growing from empty", growing);
        print_spread("remove, shrinking to empty", shrinking);
    }

    fn least<T>(&self, least: &mut Vec<u64>, items: impl Iterator<Item = T>, mut work: impl FnMut(T)) {
        least.resize(self.n as usize, u64::MAX);
        for (item, least) in items.zip(least) {
            let start = self.clock.monotonic_ns();
            work(item);
            *least = (self.clock.monotonic_ns() - start).min(*least);
        }
    }

    fn prefetched(&self, table: &HashTable, present: &[[u8; 20]]) {
        let found = self.time("find, present, batches of 16 prefetched", self.n, || {
            let mut found = 0;
            for keys in present.chunks(16) {
                let hashes: Vec<u64> = keys.iter().map(|key| table.hash(DocKey::new(key))).collect();
                hashes.iter().for_each(|hash| table.prefetch(*hash));
                hashes.iter().for_each(|hash| table.prefetch_version(*hash));
                let pairs = hashes.iter().zip(keys);
                found += pairs.filter(|(hash, key)| table.find(**hash, DocKey::new(*key)).is_some()).count();
            }
            found
        });
        assert_eq!(found as u64, self.n);
    }
}

/// Prints how many took how long, by powers of two.
fn print_spread(name: &str, ns: Vec<u64>) {
    let longest = ns.iter().copied().max().unwrap_or_default();
    println!("{name}: longest {longest}");
    let mut counts = [0_u64; 64];
    ns.iter().for_each(|ns| counts[(ns | 1).ilog2() as usize] += 1);
    for (power, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        println!("    below {:>9}: {count:>8}", 1_u64 << (power + 1));
    }
}

fn insert(table: &mut HashTable, i: u64, version: Version) -> Option<Version> {
    let key = key(i);
    let hash = table.hash(DocKey::new(&key));
    table.find_slot(hash, DocKey::new(&key)).set(version)
}

fn find(table: &HashTable, key: &[u8; 20]) -> bool {
    table.find(table.hash(DocKey::new(key)), DocKey::new(key)).is_some()
}

fn remove(table: &mut HashTable, i: u64) -> Version {
    let key = key(i);
    let hash = table.hash(DocKey::new(&key));
    table.find_slot(hash, DocKey::new(&key)).remove()
}

fn main() {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let bench = Bench { clock: RealClock::new(), n };
    println!("{n} items, keys of 20 bytes, values of 512 bytes");
    bench.pauses();
    bench.table();
}
