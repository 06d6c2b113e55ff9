//! Measures the checkpoint manager: `cargo run --release -p vbucket --example checkpoints [-- --json]`.

use std::hint::black_box;

use base::env::{Clock, RealClock};
use base::{DocKey, Heap, NewVersion, Seqno, Version, VersionMeta};
use vbucket::{BucketContext, CheckpointLimits, CheckpointManager, CursorId, RangeLimit};

/// How many closed checkpoints there are, or changes in one.
const COUNTS: [u64; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
/// Checkpoints that are built for a row in all, so that each row takes about as long.
const MOST_BUILT: u64 = 2_000_000;
const MOST_ROUNDS: u64 = 401;
/// How many readers have passed the checkpoints that the flusher and streams take out.
const READERS: [u64; 3] = [1, 10, 100];
/// Closed checkpoints that are taken out then.
const PASSED: u64 = 100;
/// Changes that are queued to see what one costs, and different keys among them.
const QUEUED: u64 = 100_000;
const KEYS: u64 = 5_000;
const VALUE: [u8; 512] = [b'v'; 512];

/// What is measured, in nanoseconds an operation: the median of all rounds.
const COLUMNS: [&str; 9] = [
    "extract",
    "free",
    "take",
    "take_half",
    "register",
    "register_mid",
    "advance_mid",
    "behind_mid",
    "expel",
];

struct World {
    context: BucketContext,
    clock: RealClock,
    /// What looking at the clock twice costs.
    clock_ns: f64,
}

/// The rounds of each column.
#[derive(Default)]
struct Rounds([Vec<f64>; COLUMNS.len()]);

impl World {
    fn new() -> World {
        let context = BucketContext::new(1, 2, Heap::default());
        let mut world = World { context, clock: RealClock::new(), clock_ns: 0.0 };
        let mut all: Vec<f64> = (0..10_001).map(|_| world.time(|| ()).0).collect();
        world.clock_ns = median(&mut all);
        world
    }

    fn time<T>(&self, work: impl FnOnce() -> T) -> (f64, T) {
        let begin = self.clock.monotonic_ns();
        let result = black_box(work());
        ((self.clock.monotonic_ns() - begin) as f64 - self.clock_ns, result)
    }

    fn version(&self, seqno: u64, key: u64) -> Version {
        let meta = VersionMeta { by_seqno: Seqno(seqno), ..VersionMeta::default() };
        NewVersion::new(&self.context.heap, meta, DocKey::new(&key.to_be_bytes()), &[&VALUE]).publish()
    }

    fn limit(&self, max_items: u32) {
        self.context.checkpoints.set_limits(CheckpointLimits { max_items, max_bytes: u32::MAX });
    }

    /// A manager with so many changes, one in each checkpoint or all in one, and a cursor before them.
    fn manager(&self, changes: &[Version]) -> (CheckpointManager, CursorId) {
        let mut manager = CheckpointManager::new(&self.context, Seqno(0));
        let reader = manager.register_cursor("reader", Seqno(0)).expect("memory starts there");
        for version in changes {
            drop(manager.queue(version.clone(), None));
        }
        (manager, reader)
    }

    /// A manager whose only reader has read everything.
    fn passed(&self, changes: &[Version]) -> CheckpointManager {
        let (mut manager, reader) = self.manager(changes);
        let range = manager.take_range(reader, RangeLimit::NONE).ok().flatten().expect("there are changes");
        manager.advance(reader, range.end());
        manager
    }

    fn row(&self, count: u64, max_items: u32) -> Vec<f64> {
        self.limit(max_items);
        let changes: Vec<Version> = (1..=count).map(|seqno| self.version(seqno, seqno)).collect();
        let mut rounds = Rounds::default();
        for _ in 0..(MOST_BUILT / count).clamp(11, MOST_ROUNDS) {
            self.round(count, &changes, &mut rounds);
        }
        rounds.0.into_iter().map(|mut all| median(&mut all)).collect()
    }

    fn round(&self, count: u64, changes: &[Version], rounds: &mut Rounds) {
        let (mut manager, reader) = self.manager(changes);
        let there = "the cursor is there";
        let middle = Seqno(count / 2);
        let mut put = |name: &str, ns: f64| {
            let at = COLUMNS.iter().position(|column| *column == name).expect("a column");
            rounds.0[at].push(ns);
        };
        let half = RangeLimit::items(count.div_ceil(2));
        let (ns, range) = self.time(|| manager.take_range(reader, half).expect(there));
        put("take_half", ns);
        drop(range);
        let (ns, range) = self.time(|| manager.take_range(reader, RangeLimit::NONE).expect(there));
        put("take", ns);
        drop(range);
        let (ns, other) = self.time(|| manager.register_cursor("other", Seqno(count)));
        put("register", ns);
        manager.drop_cursor(other.expect("it is in memory"));
        let (ns, other) = self.time(|| manager.register_cursor("other", middle));
        put("register_mid", ns);
        manager.drop_cursor(other.expect("it is in memory"));
        let (ns, _) = self.time(|| manager.advance(reader, middle));
        put("advance_mid", ns);
        let (ns, _) = self.time(|| manager.items_behind(reader));
        put("behind_mid", ns);
        let (ns, removed) = self.time(|| manager.expel());
        put("expel", ns);
        drop(removed);
        drop(manager);

        let mut manager = self.passed(changes);
        // Another vBucket's went just before, so that the code is where the processor is.
        let mut other = self.passed(&changes[..1]);
        drop(black_box(other.remove_closed()));
        let (ns, removed) = self.time(|| manager.remove_closed());
        put("extract", ns);
        assert_eq!(removed.items(), count);
        let (ns, ()) = self.time(|| drop(removed));
        put("free", ns / count as f64);
    }

    /// Nanoseconds to take out what so many readers have passed, by the call that the flusher and streams make.
    fn extract_behind(&self, readers: u64) -> f64 {
        self.limit(1);
        let changes: Vec<Version> = (1..=PASSED).map(|seqno| self.version(seqno, seqno)).collect();
        let mut all: Vec<f64> = (0..MOST_ROUNDS)
            .map(|_| {
                let (mut manager, first) = self.manager(&changes);
                let more = (1..readers).map(|at| {
                    manager.register_cursor(format!("reader {at}"), Seqno(0)).expect("memory starts there")
                });
                let cursors: Vec<CursorId> = std::iter::once(first).chain(more).collect();
                for cursor in cursors {
                    let range = manager.take_range(cursor, RangeLimit::NONE).ok().flatten();
                    manager.advance(cursor, range.expect("there are changes").end());
                }
                let (ns, removed) = self.time(|| manager.remove_closed_but_newest());
                assert!(removed.items() >= PASSED - 2, "{} were taken out", removed.items());
                ns
            })
            .collect();
        median(&mut all)
    }

    /// Nanoseconds to queue a change, behind `count` closed checkpoints: new keys, and keys whose last change is still
    /// in the open checkpoint.
    fn queueing(&self, count: u64) -> [f64; 2] {
        let new = self.queue_behind(count, |_| None);
        let merged = self.queue_behind(count, |i| i.checked_sub(KEYS));
        [new, merged]
    }

    fn queue_behind(&self, count: u64, old: impl Fn(u64) -> Option<u64>) -> f64 {
        self.limit(1);
        let changes: Vec<Version> = (1..=count).map(|seqno| self.version(seqno, seqno)).collect();
        let (mut manager, _) = self.manager(&changes);
        manager.close();
        self.limit(10_000);
        let mut all: Vec<f64> = Vec::new();
        let mut next = count + 1;
        for _ in 0..5 {
            let versions: Vec<Version> =
                (0..QUEUED).map(|i| self.version(next + i, count + i % KEYS)).collect();
            let mut merged = Vec::with_capacity(QUEUED as usize);
            let (ns, ()) = self.time(|| {
                for (i, version) in (0..).zip(versions) {
                    merged.extend(manager.queue(version, old(i).map(|i| Seqno(next + i))));
                }
            });
            all.push(ns / QUEUED as f64);
            next += QUEUED;
        }
        median(&mut all)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn json(name: &str, rows: &[(u64, Vec<(&'static str, f64)>)]) -> String {
    let rows = rows.iter().map(|(count, figures)| {
        let figures = figures.iter().map(|(name, ns)| format!(r#""{name}_ns":{ns:.1}"#));
        format!(r#"{{"count":{count},{}}}"#, figures.collect::<Vec<_>>().join(","))
    });
    format!(r#""{name}":[{}]"#, rows.collect::<Vec<_>>().join(","))
}

fn print(title: &str, rows: &[(u64, Vec<(&'static str, f64)>)]) {
    println!("\n{title}, ns:");
    print!("{:>8}", "count");
    rows[0].1.iter().for_each(|(name, _)| print!(" {name:>12}"));
    println!();
    for (count, figures) in rows {
        print!("{count:>8}");
        figures.iter().for_each(|(_, ns)| print!(" {ns:>12.1}"));
        println!();
    }
}

fn main() {
    let world = World::new();
    let named = |row: Vec<f64>| COLUMNS.into_iter().zip(row).collect::<Vec<_>>();
    let checkpoints: Vec<_> = COUNTS
        .into_iter()
        .map(|count| {
            let mut row = named(world.row(count, 1));
            row.extend(["queue_new", "queue_merged"].into_iter().zip(world.queueing(count)));
            (count, row)
        })
        .collect();
    print("by closed checkpoints, of one change each", &checkpoints);
    let items: Vec<_> =
        COUNTS[..5].iter().map(|count| (*count, named(world.row(*count, u32::MAX)))).collect();
    print("by changes in one checkpoint", &items);
    let readers: Vec<_> = READERS
        .into_iter()
        .map(|count| (count, vec![("extract_but_newest", world.extract_behind(count))]))
        .collect();
    print("by readers that have passed 100 closed checkpoints", &readers);
    if std::env::args().any(|arg| arg == "--json") {
        let tables = [json("checkpoints", &checkpoints), json("items", &items), json("readers", &readers)];
        println!("{{{}}}", tables.join(","));
    }
}
