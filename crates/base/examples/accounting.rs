//! What accounts and the heap cost, beside the system's allocator: `accounting [--json]`.
//!
//! Charging: nanoseconds a charge or a release, on one thread and on all processors at once, less the empty loop;
//! reading the estimate and the exact sum; the largest difference of the two while all processors charge.
//! Heap: making and dropping versions of 20-byte keys and 512-byte values; the system's allocator gets the same bytes
//! to copy into what it allocates.
#![allow(clippy::disallowed_methods, reason = "it measures the real world")]

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use base::{Account, DocKey, Heap, NewVersion, Part, Version, VersionMeta};
use rustix::time::{ClockId, clock_gettime};

const CHARGES: u64 = 100_000_000;
const QUOTA: u64 = 256 << 20;
const KEY: &[u8] = b"key-0123456789abcdef";
const VALUE: &[u8] = &[b'v'; 512];
/// Header, collection, key and value.
const VERSION_BYTES: usize = 40 + 1 + 20 + 512;

/// Figures by name, as they will be printed.
#[derive(Default)]
struct Figures(Vec<(String, f64)>);

impl Figures {
    fn add(&mut self, name: &str, value: f64) {
        println!("{name:<52} {value:>10.2}");
        self.0.push((name.to_owned(), value));
    }

    fn json(&self) -> String {
        let fields: Vec<String> =
            self.0.iter().map(|(name, value)| format!("\"{name}\":{value:.3}")).collect();
        format!("{{{}}}", fields.join(","))
    }
}

/// What this thread took of a processor: whoever else runs here does not count.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of each of `times` that `threads` threads do at the same time: processor time of the slowest thread.
fn time(threads: usize, times: u64, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let slowest = AtomicU64::new(0);
    thread::scope(|scope| {
        for at in 0..threads {
            let (barrier, slowest, work) = (&barrier, &slowest, &work);
            scope.spawn(move || {
                barrier.wait();
                let begin = thread_cpu_ns();
                work(at);
                slowest.fetch_max(thread_cpu_ns() - begin, Ordering::Relaxed);
            });
        }
    });
    slowest.into_inner() as f64 / times as f64
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// A loop whose body the compiler must not merge with the next.
fn repeat(times: u64, mut body: impl FnMut(usize)) {
    for n in 0..times {
        body(black_box(n as usize & 1023));
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn charging(figures: &mut Figures) {
    let account = Account::new();
    account.let_deviate(QUOTA / 200);
    for (name, threads) in [("one_core", 1), ("all_cores", cores())] {
        // The best of some runs: whatever else runs here only adds.
        let best = |work: &(dyn Fn(usize) + Sync)| {
            (0..5).map(|_| time(threads, CHARGES, work)).fold(f64::MAX, f64::min)
        };
        let empty = best(&|_| {
            repeat(CHARGES / 2, |bytes| {
                black_box(bytes);
                black_box(bytes);
            });
        });
        let pair = best(&|_| {
            repeat(CHARGES / 2, |bytes| {
                account.charge(Part::Documents, black_box(bytes));
                account.release(Part::Documents, black_box(bytes));
            });
        });
        figures.add(&format!("charge_ns_{name}"), (pair - empty).max(0.0));
    }
    many_ledgers(&account, 16);
    let empty = time(1, CHARGES, |_| repeat(CHARGES, |bytes| _ = black_box(bytes)));
    let estimate = time(1, CHARGES, |_| repeat(CHARGES, |_| _ = black_box(account.estimate())));
    figures.add("estimate_ns", (estimate - empty).max(0.0));
    let exact = time(1, CHARGES / 10, |_| repeat(CHARGES / 10, |_| _ = black_box(account.exact())));
    figures.add("exact_ns_16_threads", exact);
}

/// Threads that are there at the same time, so that each needs a ledger of its own, and charge.
fn many_ledgers(account: &Account, count: usize) {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                account.charge(Part::Other, 1);
                barrier.wait();
                account.release(Part::Other, 1);
            });
        }
    });
}

fn charge_at_random(account: &Account, random: &mut Random, held: &mut usize) {
    let number = random.next();
    let bytes = number as usize % 2000;
    if number >> 40 & 1 == 0 {
        account.charge(Part::Documents, bytes);
        *held += bytes;
    } else {
        let bytes = bytes.min(*held);
        account.release(Part::Documents, bytes);
        *held -= bytes;
    }
}

/// All processors charge and release at random while this thread compares.
fn deviation(figures: &mut Figures) {
    let account = Account::new();
    account.let_deviate(QUOTA / 200);
    account.charge(Part::Documents, QUOTA as usize / 2);
    let stop = AtomicBool::new(false);
    let worst = thread::scope(|scope| {
        for at in 0..cores() + 2 {
            let (account, stop) = (&account, &stop);
            scope.spawn(move || {
                let (mut random, mut held) = (Random(at as u64 + 88_172_645_463_325_252), 0);
                while !stop.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| charge_at_random(account, &mut random, &mut held));
                }
            });
        }
        let mut worst = 0;
        for _ in 0..2_000_000 {
            // Between two readings of the estimate, so that a pause of this thread is not taken for a deviation.
            let before = account.estimate();
            let exact = account.exact().iter().sum::<i64>().max(0) as u64;
            let after = account.estimate();
            let (least, most) = (before.min(after), before.max(after));
            worst = worst.max(least.saturating_sub(exact)).max(exact.saturating_sub(most));
        }
        stop.store(true, Ordering::Relaxed);
        worst
    });
    figures.add("worst_deviation_percent_of_quota", worst as f64 * 100.0 / QUOTA as f64);
    let allowed = account.deviation_bytes();
    figures.add("allowed_deviation_percent_of_quota", allowed as f64 * 100.0 / QUOTA as f64);
}

/// What a version is to the system's allocator.
struct Plain(*mut u8);

// SAFETY: the only owner of its allocation.
unsafe impl Send for Plain {}

const LAYOUT: Layout = Layout::new::<[u64; VERSION_BYTES.div_ceil(8)]>();

impl Plain {
    fn new() -> Plain {
        // SAFETY: the layout is not empty; the three copies stay within it.
        unsafe {
            let at = alloc(LAYOUT);
            assert!(!at.is_null(), "out of memory");
            at.write_bytes(0, 41);
            at.add(41).copy_from_nonoverlapping(black_box(KEY).as_ptr(), KEY.len());
            at.add(61).copy_from_nonoverlapping(black_box(VALUE).as_ptr(), VALUE.len());
            Plain(at)
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: it came from `alloc` with this layout.
        unsafe { dealloc(self.0, LAYOUT) }
    }
}

fn version(heap: &Heap) -> Version {
    NewVersion::new(heap, VersionMeta::default(), DocKey::new(black_box(KEY)), &[black_box(VALUE)]).publish()
}

const LIVE: u64 = 500_000;
const TIMES: u64 = 3_000_000;

/// The patterns, for one way to make a version.
fn patterns<T: Send>(figures: &mut Figures, name: &str, make: impl Fn() -> T + Sync) {
    for threads in [1, cores()] {
        let hot = time(threads, TIMES, |_| repeat(TIMES, |_| drop(black_box(make()))));
        figures.add(&format!("{name}_hot_ns_{threads}_threads"), hot);
        let random = time(threads, TIMES, |at| {
            let mut live: Vec<T> = (0..LIVE).map(|_| make()).collect();
            let mut random = Random(at as u64 + 88_172_645_463_325_252);
            for _ in 0..TIMES - LIVE {
                live[(random.next() % LIVE) as usize] = make();
            }
        });
        figures.add(&format!("{name}_replace_ns_{threads}_threads"), random);
    }
    // Both ends together.
    let (sender, receiver) = mpsc::sync_channel::<Vec<T>>(64);
    let freeing = thread::scope(|scope| {
        let freeing = scope.spawn(move || {
            let begin = thread_cpu_ns();
            receiver.into_iter().for_each(drop);
            thread_cpu_ns() - begin
        });
        let begin = thread_cpu_ns();
        for _ in 0..TIMES / 100 {
            sender.send((0..100).map(|_| make()).collect()).expect("the other end lives");
        }
        drop(sender);
        let making = thread_cpu_ns() - begin;
        making + freeing.join().expect("it only drops")
    });
    figures.add(&format!("{name}_handed_over_ns"), freeing as f64 / TIMES as f64);
}

fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = text.and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0
}

/// Resident bytes of a version beyond key and value.
fn bytes_an_item<T>(make: impl Fn() -> T) -> f64 {
    const ITEMS: usize = 1_000_000;
    // The list of versions is not what is measured: its pages are touched before.
    let mut all: Vec<Option<T>> = (0..ITEMS).map(|_| None).collect();
    // SAFETY: a plain write through a reference; only that it must happen is special.
    all.iter_mut().for_each(|item| unsafe { std::ptr::write_volatile(item, None) });
    let before = resident_bytes();
    all.iter_mut().for_each(|item| *item = Some(make()));
    (resident_bytes() - before) / ITEMS as f64 - (KEY.len() + VALUE.len()) as f64
}

fn main() {
    let mut figures = Figures::default();
    let heap = Heap::default();
    figures.add("slabs_bytes_an_item", bytes_an_item(|| version(&heap)));
    figures.add("system_bytes_an_item", bytes_an_item(Plain::new));
    charging(&mut figures);
    deviation(&mut figures);
    for round in 0..2 {
        println!("round {round}");
        patterns(&mut figures, &format!("system_{round}"), Plain::new);
        patterns(&mut figures, &format!("slabs_{round}"), || version(&heap));
    }
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", figures.json());
    }
}
