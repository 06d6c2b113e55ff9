//! The history of changes behind a journal: every version that was saved, in order, whatever was filed, merged and started
//! again meanwhile.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use base::env::SimHandles;
use base::env::sim::{SimDisk, SplitMix64, Survival};
use base::{Seqno, VbId, Version};
use kvstore::{
    Change, ChangesWanted, FilesConfig, HistoryRetention, Journaled, JournaledConfig, KvStore, LogConfig,
    Reading, SaveBatch, Values, VbStateDoc, sort_newest, sort_with_past,
};
use store_suite::version;

const DIR: &str = "/data/bucket";
const VBS: u16 = 3;
const FOR_EVER: HistoryRetention = HistoryRetention { seconds: 1_000_000, bytes: 0 };

fn config(history: HistoryRetention) -> JournaledConfig {
    let store = logstore::Config {
        shards: 2,
        step_bytes: 500,
        small_run_bytes: 600,
        small_segment_bytes: 2 << 10,
        small_segments: 3,
        manifest_bytes: 4 << 10,
        ..logstore::Config::default()
    };
    let files = FilesConfig::Log(LogConfig { store, history });
    JournaledConfig { files, journal_bytes: 256 << 10, file_after: Duration::from_secs(1) }
}

struct Bench {
    world: SimHandles,
    store: Option<Journaled>,
    rng: SplitMix64,
    history: HistoryRetention,
    /// Of each vBucket every version that was saved, and from where on its history must have them.
    model: BTreeMap<u16, (Vec<(u64, String)>, u64)>,
    /// Of each vBucket, from where on no save lacked a version.
    whole_from: BTreeMap<u16, u64>,
    /// Whether some saves lack versions, as those of a replica do.
    has_gaps: bool,
}

impl Bench {
    fn new(seed: u64, history: HistoryRetention) -> Bench {
        let world = SimHandles::new(seed);
        let store = Bench::open(&world, HistoryRetention::default());
        store.keep_history(history).expect("no fault is planned");
        Bench {
            world,
            store: Some(store),
            rng: SplitMix64::new(seed),
            history,
            model: BTreeMap::new(),
            whole_from: BTreeMap::new(),
            has_gaps: false,
        }
    }

    fn open(world: &SimHandles, history: HistoryRetention) -> Journaled {
        Journaled::open(world.env(), Path::new(DIR), config(history)).expect("the bucket opens")
    }

    fn store(&self) -> &Journaled {
        self.store.as_ref().expect("it is open")
    }

    fn save(&mut self) {
        let vb = self.rng.below(u64::from(VBS)) as u16;
        let (saved, start) = self.model.entry(vb).or_default();
        let mut seqno = saved.last().map_or(0, |(seqno, _)| *seqno);
        let mut items: Vec<Version> = Vec::new();
        for _ in 0..self.rng.below(6) + 1 {
            seqno += 1;
            let key = format!("key{}", self.rng.below(8));
            items.push(version(0, &key, seqno, b"a value"));
            saved.push((seqno, key));
        }
        let whole_from = self.whole_from.entry(vb).or_default();
        let first = seqno + 1 - items.len() as u64;
        if self.has_gaps && self.rng.chance(1, 8) {
            (*start, *whole_from) = (seqno + 1, 0);
            sort_newest(&mut items);
        } else if self.history.is_on() {
            if *start == 0 {
                *start = first;
            }
            if *whole_from == 0 {
                *whole_from = first;
            }
            sort_with_past(&mut items);
        } else {
            *whole_from = 0;
            sort_newest(&mut items);
        }
        let state = VbStateDoc { history_from: *whole_from, ..VbStateDoc::default() };
        let batch = SaveBatch { items: &items, state: &state };
        self.store().save(VbId(vb), batch).expect("no fault is planned");
    }

    fn limit(&mut self, history: HistoryRetention) {
        self.store().keep_history(history).expect("no fault is planned");
        self.history = history;
        if !history.is_on() {
            self.model.values_mut().for_each(|(_, start)| *start = 0);
            self.whole_from.clear();
        }
    }

    fn restart(&mut self, disk: SimDisk) {
        self.store = None;
        self.world = self.world.with_disk(disk);
        self.store = Some(Bench::open(&self.world, self.history));
    }

    fn change(&mut self) {
        match self.rng.below(20) {
            0 => self.restart(self.world.disk.clone()),
            1 => {
                let seed = self.rng.next_u64();
                self.restart(self.world.disk.image(Survival::Seeded(seed)));
            }
            2..=6 => {
                self.world.clock.advance(Duration::from_millis(self.rng.below(2000)));
                self.store().background_step().expect("no fault is planned");
            }
            _ => self.save(),
        }
    }

    fn check(&self) {
        for (vb, (saved, start)) in &self.model {
            let snapshot =
                self.store().history_snapshot(VbId(*vb)).expect("it is read").expect("it is there");
            let began = snapshot.history_start().0;
            assert!(*start == 0 || (1..=*start).contains(&began), "vBucket {vb}: {began}, not {start}");
            assert!(self.history.is_on() || began == 0, "vBucket {vb}: it was switched off");
            let mut seen = Vec::new();
            let visit = &mut |change: &Change<'_>| {
                let key = String::from_utf8_lossy(change.key().key).into_owned();
                seen.push((change.meta.by_seqno.0, key));
                ControlFlow::Continue(())
            };
            let wanted = ChangesWanted {
                from: Seqno(began),
                values: Values::Read,
                prepares: false,
                past: began > 0,
                max_bytes: usize::MAX,
            };
            if began > 0 {
                snapshot.changes(&wanted, &mut Reading::default(), visit).expect("it is read");
            }
            let wanted: Vec<_> =
                saved.iter().filter(|(seqno, _)| began > 0 && *seqno >= began).cloned().collect();
            assert_eq!(seen, wanted, "vBucket {vb} from {began} on");
            let newest: BTreeMap<String, u64> =
                saved.iter().map(|(seqno, key)| (key.clone(), *seqno)).collect();
            let mut now = BTreeMap::new();
            let visit = &mut |version: Version| {
                let key = String::from_utf8_lossy(version.key().key).into_owned();
                assert!(now.insert(key, version.meta().by_seqno.0).is_none(), "each key once");
                ControlFlow::Continue(())
            };
            self.store().scan(VbId(*vb), Seqno(0), Values::Read, visit).expect("it is read");
            assert_eq!(now, newest, "vBucket {vb}: the newest of each key");
        }
    }
}

fn change_and_check(mut bench: Bench) {
    for step in 0..150 {
        bench.change();
        if step % 10 == 0 {
            bench.check();
        }
    }
    bench.check();
}

/// What was saved is durable at once, so the history is whole after each loss of power.
#[test]
fn every_version_that_was_saved_is_in_the_history() {
    for seed in 0..40 {
        change_and_check(Bench::new(seed, FOR_EVER));
    }
}

/// A vBucket that is not active lacks versions: its history begins behind them, whatever was filed with what.
#[test]
fn a_history_begins_behind_the_saves_that_lack_versions() {
    for seed in 0..40 {
        let mut bench = Bench::new(seed, FOR_EVER);
        bench.has_gaps = true;
        change_and_check(bench);
    }
}

#[test]
fn a_history_begins_with_what_is_saved_behind_the_switch() {
    for seed in 0..40 {
        let mut bench = Bench::new(seed, HistoryRetention::default());
        for step in 0..200 {
            if bench.rng.chance(1, 25) {
                let is_on = bench.history.is_on();
                bench.limit(if is_on { HistoryRetention::default() } else { FOR_EVER });
            }
            bench.change();
            if step % 10 == 0 {
                bench.check();
            }
        }
        bench.check();
    }
}

#[test]
fn a_rollback_inside_the_journal_keeps_the_versions_before_it() {
    let mut bench = Bench::new(1, FOR_EVER);
    let state = VbStateDoc { history_from: 1, ..VbStateDoc::default() };
    for save in 0..3 {
        let mut items: Vec<Version> =
            (1..=2).map(|at| version(0, "key", save * 2 + at, b"a value")).collect();
        sort_with_past(&mut items);
        let batch = SaveBatch { items: &items, state: &state };
        bench.store().save(VbId(0), batch).expect("no fault is planned");
    }
    let back = bench.store().rollback(VbId(0), Seqno(4)).expect("no fault is planned");
    assert_eq!(back.seqno, Seqno(4));
    let saved = (1..=4).map(|seqno| (seqno, "key".to_owned())).collect();
    bench.model.insert(0, (saved, 1));
    bench.check();
    bench.restart(bench.world.disk.clone());
    bench.check();
}
