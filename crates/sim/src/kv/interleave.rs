//! Threads that change and read the same vBucket in seeded turns: what they are told must follow from one order.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::Env;
use base::env::sim::{SimDisk, SimHandles, SplitMix64, Survival};
use base::{DocKey, Seqno, VbId};
use kvstore::{Failure, KvStore, SaveBatch, Values};
use parking_lot::Mutex;

use super::linear::{Did, Operation, describe, explain};
use super::model::Digest;
use super::tally::{Tally, Trying};
use super::workload::{Shape, compaction, state};
use super::{DIR, Subject, prepared};
use crate::ledger::Entry;
use crate::turns::{TurnsDisk, run_in_turns, take_turn};

const VBUCKETS: u16 = 2;
/// Operations of each thread.
const OPERATIONS: u64 = 5;

/// What a thread does again and again.
#[derive(Clone, Copy, Debug)]
enum Role {
    Saver,
    Deleter,
    RollerBack,
    Compactor,
    Getter,
    Scanner,
}

/// Who takes part: more than one of each kind that reads.
const ROLES: [Role; 8] = [
    Role::Saver,
    Role::Deleter,
    Role::RollerBack,
    Role::Compactor,
    Role::Compactor,
    Role::Getter,
    Role::Scanner,
    Role::Scanner,
];

struct World<'a> {
    store: &'a dyn KvStore,
    shape: Shape,
    /// Counts calls and returns of all threads.
    moment: AtomicU64,
    /// Number of the last state document, and the last seqno.
    last: AtomicU64,
    told: Mutex<Vec<(VbId, Operation)>>,
    wrong: Mutex<Vec<String>>,
}

/// Interleaves what threads do to the vBuckets of one store, as `seed` decides.
pub fn interleave(subject: &Subject<'_>, seed: u64) -> Tally {
    let _trying = Trying::new(format_args!("interleavings of {} with seed {seed}", subject.name));
    let mut tally = Tally { interleavings: 1, ..Tally::default() };
    let mut rng = SplitMix64::new(seed);
    let disk = prepared();
    let store = match open_in_turns(subject, &disk) {
        Ok(store) => store,
        Err(failure) => {
            tally.judge(&[format!("does not open: {failure}")]);
            return tally;
        }
    };
    let world = World {
        store: &*store,
        shape: Shape { has_old: false, ..Shape::choose(&mut rng) },
        moment: AtomicU64::new(0),
        last: AtomicU64::new(0),
        told: Mutex::default(),
        wrong: Mutex::default(),
    };
    // something old that a compaction leaves out, and something newer behind it
    let with_old = Shape { has_old: true, ..world.shape };
    for shape in [with_old, world.shape, world.shape] {
        (0..VBUCKETS).for_each(|vb| world.save(VbId(vb), &shape, &mut rng));
    }
    let jobs = ROLES.iter().map(|role| world.job(*role, rng.fork())).collect();
    run_in_turns(&mut rng, jobs);
    world.read_all(&*store);
    // what is durable is what was told last
    match (subject.open)(SimHandles::new(0).with_disk(disk.image(Survival::Synced)).env(), Path::new(DIR)) {
        Ok(after) => world.read_all(&*after),
        Err(failure) => world.wrong.lock().push(format!("does not open: {failure}")),
    }
    tally.judge(&world.verdict());
    tally
}

fn open_in_turns(subject: &Subject<'_>, disk: &SimDisk) -> Result<Box<dyn KvStore>, Failure> {
    let env = SimHandles::new(0).with_disk(disk.clone()).env();
    let env = Env { disk: Arc::new(TurnsDisk(env.disk.clone())), ..env };
    (subject.open)(env, Path::new(DIR))
}

impl<'a> World<'a> {
    fn job(&'a self, role: Role, mut rng: SplitMix64) -> Box<dyn FnOnce() + Send + 'a> {
        Box::new(move || {
            for _ in 0..OPERATIONS {
                take_turn();
                self.act(role, &mut rng);
            }
        })
    }

    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes what an operation that began at `start` was told.
    fn note(&self, vb: VbId, start: u64, told: Result<Did, Failure>) {
        let end = self.now();
        match told {
            Ok(did) => self.told.lock().push((vb, Operation { start, end, did })),
            Err(failure) => self.wrong.lock().push(format!("{vb}: {failure}")),
        }
    }

    fn act(&self, role: Role, rng: &mut SplitMix64) {
        let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
        match role {
            Role::Saver => self.save(vb, &self.shape, rng),
            Role::Deleter if rng.chance(1, 4) => {
                let start = self.now();
                self.note(vb, start, self.store.delete_vbucket(vb).map(|()| Did::Delete));
            }
            Role::Deleter => self.state(self.store, vb),
            Role::RollerBack => self.roll_back(vb, rng),
            Role::Compactor => self.compact(vb),
            Role::Getter => self.get(vb, rng),
            Role::Scanner => self.scan(self.store, vb),
        }
    }

    /// Saves a batch for one vBucket or one for each.
    fn save(&self, vb: VbId, shape: &Shape, rng: &mut SplitMix64) {
        let all = rng.chance(1, 2);
        let members = (0..VBUCKETS).map(VbId).filter(|other| all || *other == vb);
        let batches: Vec<_> = members
            .map(|vb| {
                // seqnos of all vBuckets from one counter: each grows
                let items = rng.between(1, shape.most_items);
                let first = self.last.fetch_add(items + 1, Ordering::SeqCst) + 1;
                let items = shape.batch(rng, items, first);
                let high_seqno = Seqno(first + items.len() as u64 - 1);
                (vb, items, state(high_seqno, first))
            })
            .collect();
        let group: Vec<_> =
            batches.iter().map(|(vb, items, state)| (*vb, SaveBatch { items, state })).collect();
        let start = self.now();
        let saved = self.store.save_group(&group);
        for ((vb, items, state), saved) in batches.iter().zip(saved) {
            self.note(*vb, start, saved.map(|_| Did::Save(items.clone(), state.snap_end)));
        }
    }

    fn roll_back(&self, vb: VbId, rng: &mut SplitMix64) {
        let to = Seqno(rng.between(self.last.load(Ordering::SeqCst) / 2, self.last.load(Ordering::SeqCst)));
        let start = self.now();
        let told = self
            .store
            .rollback(vb, to)
            .map(|back| Did::RollBack(to, back.seqno, back.stored.map(|stored| stored.state.snap_end)));
        self.note(vb, start, told);
    }

    /// A compaction may be told that there is nothing to compact, or that it is not alone.
    fn compact(&self, vb: VbId) {
        let start = self.now();
        match self.store.compact(vb, &compaction()) {
            Ok(_) => self.note(vb, start, Ok(Did::Compact)),
            Err(
                Failure::NoVbucket { .. } | Failure::CompactionRuns { .. } | Failure::CompactionEnded { .. },
            ) => {}
            Err(failure) => self.note(vb, start, Err(failure)),
        }
    }

    fn get(&self, vb: VbId, rng: &mut SplitMix64) {
        let names: Vec<Vec<u8>> = (0..rng.between(1, 3)).map(|_| self.shape.key(rng)).collect();
        let keys: Vec<DocKey<'_>> = names.iter().map(|name| DocKey::new(name)).collect();
        let start = self.now();
        let got =
            if keys.len() == 1 { vec![self.store.get(vb, keys[0])] } else { self.store.get_many(vb, &keys) };
        // each key for itself: several need not be of one moment
        for (key, got) in keys.iter().zip(got) {
            let entry = got.map(|got| got.map(|version| Entry::of(&version)));
            self.note(vb, start, entry.map(|entry| Did::Get(vec![(key.to_stored().0, entry)])));
        }
    }

    fn scan(&self, store: &dyn KvStore, vb: VbId) {
        let start = self.now();
        let mut digest = Digest::default();
        let scanned = store.scan(vb, Seqno(0), Values::Read, &mut |version| {
            digest.add(version.stored_key(), &Entry::of(&version));
            ControlFlow::Continue(())
        });
        self.note(vb, start, scanned.map(|()| Did::Scan(digest)));
    }

    fn state(&self, store: &dyn KvStore, vb: VbId) {
        let start = self.now();
        let told = store.states().and_then(|all| {
            let stored =
                all.into_iter().find(|(other, _)| *other == vb).map(|(_, stored)| stored).transpose()?;
            Ok(Did::State(stored.map(|stored| (stored.high_seqno.0, stored.state.snap_end))))
        });
        self.note(vb, start, told);
    }

    fn read_all(&self, store: &dyn KvStore) {
        for vb in (0..VBUCKETS).map(VbId) {
            self.scan(store, vb);
            self.state(store, vb);
        }
    }

    fn verdict(self) -> Vec<String> {
        let mut wrong = self.wrong.into_inner();
        let told = self.told.into_inner();
        let mut by_vb: Vec<Vec<Operation>> = (0..VBUCKETS).map(|_| Vec::new()).collect();
        told.into_iter().for_each(|(vb, operation)| by_vb[usize::from(vb.0)].push(operation));
        for (vb, operations) in by_vb.iter().enumerate() {
            if let Err(most) = explain(&Arc::default(), operations) {
                wrong.push(format!(
                    "{vb}: no order explains more than {most} of {} operations:\n{}",
                    operations.len(),
                    describe(operations)
                ));
            }
        }
        wrong
    }
}
