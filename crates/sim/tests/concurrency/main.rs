//! Many clients at once on few documents, with the flusher running: everything that they were told must follow from
//! one order of events, and what the bucket counts must be what is there.

mod history;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use base::env::sim::SplitMix64;
use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, Moment, Seqno, VbId, VbState};
use engine::{
    Bucket, BucketConfig, Completion, CounterRequest, End, Mutated, Refusal, StoreMode, StoreRequest,
    absolute_expiry,
};
use history::{Event, History, Told, Write};
use kvstore::{Couch, CouchConfig, KvStore};

const VBUCKETS: u16 = 2;
const KEYS: u64 = 5;
const CLIENTS: u64 = 4;
const OPERATIONS: u64 = 25_000;

struct World {
    bucket: Bucket,
    files: Arc<Couch>,
    handles: SimHandles,
    /// Steps of all clients together.
    steps: AtomicU64,
}

impl World {
    fn new(seed: u64) -> World {
        let (env, handles) = Env::sim(seed);
        let mut config = BucketConfig::new("b", "/data/b".into());
        config.vbuckets = VBUCKETS;
        let files =
            Arc::new(Couch::open(env.clone(), &config.dir, CouchConfig::default()).expect("a new disk"));
        let bucket = Bucket::open(config, env, files.clone()).expect("a new disk");
        World { bucket, files, handles, steps: AtomicU64::new(1) }
    }

    fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::SeqCst)
    }
}

fn vb_of(key: u64) -> VbId {
    VbId((key % u64::from(VBUCKETS)) as u16)
}

/// What one client does, and what it was told.
struct Client<'a> {
    world: &'a World,
    rng: SplitMix64,
    told: Vec<(u64, Event)>,
    /// The last CAS seen of each key: a guess that is sometimes right.
    cas: [Cas; KEYS as usize],
    promised: Vec<Completion<()>>,
    begin: Arc<Barrier>,
}

impl Client<'_> {
    fn run(mut self) -> Self {
        self.begin.wait();
        for _ in 0..OPERATIONS {
            let key = self.rng.below(KEYS);
            if self.rng.chance(1, 8) {
                let ms = self.rng.below(400);
                self.world.handles.clock.advance(Duration::from_millis(ms));
            }
            let name = format!("key-{key}");
            let (start, now) = (self.world.step(), self.world.bucket.now());
            // With few processors clients would otherwise run one after the other for long.
            if self.rng.chance(1, 16) {
                std::thread::yield_now();
            }
            let told = self.operate(key, DocKey::new(name.as_bytes()), now);
            let (end, late) = (self.world.step(), self.world.bucket.now());
            if let Some(told) = told {
                self.learn(key, &told);
                self.told.push((key, Event { start, end, now, late, told }));
            }
        }
        self
    }

    fn learn(&mut self, key: u64, told: &Told) {
        if let Told::Saw { cas, .. } | Told::Locked { cas, .. } | Told::Wrote { cas, .. } = told {
            self.cas[key as usize] = *cas;
        }
        if let Told::Wrote { seqno, .. } = told
            && self.rng.chance(1, 50)
        {
            self.promised
                .extend(self.world.bucket.durability().persisted(vb_of(key), *seqno).expect("few wait"));
        }
    }

    /// Does something; nothing if what it was told proves nothing.
    fn operate(&mut self, number: u64, key: DocKey<'_>, now: Moment) -> Option<Told> {
        let (bucket, vb) = (&self.world.bucket, vb_of(number));
        let guess = if self.rng.chance(1, 3) { self.cas[number as usize] } else { Cas::ANY };
        let outcome = match self.rng.below(12) {
            0..=3 => bucket.documents().get(vb, key, now).map(|found| {
                let meta = found.version.meta();
                let value = found.version.value().to_vec();
                assert!(found.cas == meta.cas || found.cas == Cas::LOCKED);
                Told::Saw { seqno: meta.by_seqno, cas: meta.cas, value }
            }),
            4..=6 => self.store(vb, key, guess, now),
            7 => bucket
                .documents()
                .delete(vb, key, guess, now)
                .map(|mutated| wrote(mutated, guess, Some(0), Write::Delete)),
            8 => self.count(vb, key, now),
            9 => {
                let part = self.rng.below(10).to_string().into_bytes();
                let joined = bucket.documents().join(vb, key, &part, Datatype::RAW, End::Back, guess, now);
                joined.map(|mutated| wrote(mutated, guess, None, Write::Append(part)))
            }
            10 => {
                let sent = if self.rng.chance(1, 2) { 0 } else { self.rng.between(1, 3) as u32 };
                bucket.documents().touch(vb, key, sent, now).map(|(mutated, old)| match mutated {
                    Some(mutated) => {
                        let expiry = Some(absolute_expiry(sent, now));
                        wrote(mutated, Cas::ANY, expiry, Write::Touch(old.meta().by_seqno))
                    }
                    None => {
                        let meta = old.meta();
                        Told::Saw { seqno: meta.by_seqno, cas: meta.cas, value: old.value().to_vec() }
                    }
                })
            }
            _ if self.rng.chance(1, 2) => {
                let seconds = self.rng.between(1, 2) as u32;
                let until = Moment(now.0 + u64::from(seconds) * 1_000_000_000);
                bucket.documents().get_and_lock(vb, key, seconds, now).map(|found| {
                    let seqno = found.version.meta().by_seqno;
                    Told::Locked { seqno, cas: found.cas, until }
                })
            }
            _ => {
                let cas = self.cas[number as usize];
                bucket.documents().unlock(vb, key, cas, now).map(|()| Told::Unlocked { cas })
            }
        };
        match outcome {
            Ok(told) => Some(told),
            Err(Refusal::NotFound) => Some(Told::Absent),
            Err(Refusal::Locked) => Some(Told::RefusedAsLocked),
            Err(Refusal::Exists | Refusal::NotANumber | Refusal::NotLocked) => None,
            Err(other) => panic!("nobody should be told {other:?}"),
        }
    }

    fn store(&mut self, vb: VbId, key: DocKey<'_>, cas: Cas, now: Moment) -> Result<Told, Refusal> {
        let body = self.rng.below(1000).to_string().into_bytes();
        let mode =
            [StoreMode::Set, StoreMode::Set, StoreMode::Add, StoreMode::Replace][self.rng.below(4) as usize];
        let cas = if mode == StoreMode::Add { Cas::ANY } else { cas };
        let expiry = if self.rng.chance(1, 6) { self.rng.between(1, 3) as u32 } else { 0 };
        let request = StoreRequest {
            key,
            body: &body,
            datatype: Datatype::RAW,
            flags: 0,
            expiry,
            mode,
            cas,
            preserve_expiry: false,
        };
        let mutated = self.world.bucket.documents().store(vb, &request, now)?;
        let write = match mode {
            StoreMode::Set => Write::Set(body),
            StoreMode::Add => Write::Add(body),
            StoreMode::Replace => Write::Replace(body),
        };
        Ok(wrote(mutated, cas, Some(absolute_expiry(expiry, now)), write))
    }

    fn count(&mut self, vb: VbId, key: DocKey<'_>, now: Moment) -> Result<Told, Refusal> {
        let (delta, initial) = (self.rng.below(5), (1 << 40) + self.rng.below(1 << 20));
        let request = CounterRequest {
            key,
            increment: true,
            delta,
            initial: Some(initial),
            expiry: 0,
            preserve_expiry: false,
        };
        let (mutated, number) = self.world.bucket.documents().count(vb, &request, now)?;
        Ok(wrote(mutated, Cas::ANY, None, Write::Count { delta, initial, number }))
    }
}

fn wrote(mutated: Mutated, expected: Cas, expiry: Option<u32>, write: Write) -> Told {
    Told::Wrote { seqno: mutated.seqno, cas: mutated.cas, expected, expiry, write }
}

/// Lets all clients run at once, beside the flusher.
fn run(world: &World, seed: u64) -> Vec<(u64, Event)> {
    let mut told = Vec::new();
    let begin = Arc::new(Barrier::new(CLIENTS as usize));
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| world.bucket.flushing().run_flusher());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let rng = SplitMix64::new(seed * CLIENTS + client);
                let cas = [Cas(1); KEYS as usize];
                let client =
                    Client { world, rng, told: Vec::new(), cas, promised: Vec::new(), begin: begin.clone() };
                scope.spawn(|| client.run())
            })
            .collect();
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        // Before a client's panic goes on: the scope waits for the flusher, which nothing else ends.
        world.bucket.flushing().stop_flusher();
        flusher.join().expect("it ran");
        let clients: Vec<Client<'_>> = clients.into_iter().map(|client| client.expect("it ran")).collect();
        assert!(world.bucket.flushing().flush_all(), "the disk works");
        for client in clients {
            assert!(client.promised.iter().all(|promise| promise.try_take().is_some()), "a promise is open");
            told.extend(client.told);
        }
    });
    told
}

/// Seqnos are given without gaps: those that nobody was told are of expirations.
fn check_seqnos(world: &World, histories: &[History]) {
    let mut expirations = 0;
    for vb in (0..VBUCKETS).map(VbId) {
        let of_vb = histories.iter().enumerate().filter(|(key, _)| vb_of(*key as u64) == vb);
        let mut seqnos: Vec<Seqno> = of_vb.flat_map(|(_, history)| history.seqnos()).collect();
        let told = seqnos.len() as u64;
        seqnos.sort_unstable();
        seqnos.dedup();
        assert_eq!(seqnos.len() as u64, told, "{vb}: a seqno was given twice");
        let stats = world.bucket.vbucket_stats(vb).expect("it is there");
        assert!(seqnos.last().is_none_or(|last| *last <= stats.high_seqno));
        assert_eq!(stats.high_seqno.0 - told, stats.ops.expirations, "{vb}: a seqno is missing");
        assert_eq!((stats.persisted_seqno, stats.checkpoints.unpersisted_items), (stats.high_seqno, 0));
        expirations += stats.ops.expirations;
    }
    assert!(expirations > 0, "documents expired");
}

/// What is counted is what is there, in memory and on disk.
fn check_counts(world: &World) {
    let mut bytes = 0;
    for vb in (0..VBUCKETS).map(VbId) {
        let mut there = Vec::new();
        let counts = world.bucket.with_vbucket(vb, |vb| {
            there.extend(vb.table().iter().map(|version| (*version).clone()));
            vb.counts()
        });
        let counts = counts.expect("it is there");
        let tombstones = there.iter().filter(|version| version.is_deleted()).count() as u64;
        let item_bytes: u64 = there.iter().map(|version| version.allocated_bytes() as u64).sum();
        assert_eq!((counts.documents, counts.tombstones), (there.len() as u64 - tombstones, tombstones));
        assert_eq!(counts.bytes, item_bytes);
        bytes += item_bytes;
        let mut stored = 0;
        let scan = world.files.scan(vb, Seqno(0), kvstore::Values::Read, &mut |version| {
            let same = there.iter().find(|other| other.stored_key() == version.stored_key());
            let same = same.expect("it is in memory");
            assert_eq!((same.meta().by_seqno, same.value()), (version.meta().by_seqno, version.value()));
            stored += 1;
            std::ops::ControlFlow::Continue(())
        });
        scan.expect("the disk works");
        assert_eq!(stored, there.len());
    }
    // Checkpoints that are on disk are kept a while for streams, unless they are closed by hand.
    for vb in (0..VBUCKETS).map(VbId) {
        world.bucket.roles().create_checkpoint(vb).expect("it is there");
    }
    assert_eq!(documents_bytes(world), bytes as i64, "the memory account");
}

/// What the account knows of versions.
fn documents_bytes(world: &World) -> i64 {
    world.bucket.memory().account().exact()[base::Part::Documents as usize]
}

fn check_nothing_is_left(world: &World) {
    for vb in (0..VBUCKETS).map(VbId) {
        world.bucket.roles().set_vbucket_state(vb, VbState::Dead, None).expect("it is there");
        world.bucket.roles().delete_vbucket(vb).expect("it is dead").expect("the disk works");
    }
    assert_eq!(documents_bytes(world), 0);
}

#[test]
fn what_clients_are_told_follows_from_one_order_of_events() {
    for seed in 0..4 {
        let world = World::new(seed);
        let mut histories: Vec<History> = (0..KEYS).map(|_| History::default()).collect();
        let told = run(&world, seed);
        let events = told.len();
        let overlapping = told.iter().filter(|(_, event)| event.end > event.start + 1).count();
        for (key, event) in told {
            histories[key as usize].add(event);
        }
        for (key, history) in histories.iter().enumerate() {
            let wrong = history.violations();
            assert!(wrong.is_empty(), "seed {seed}, key {key}, {} of them:\n{}", wrong.len(), wrong[0]);
        }
        check_seqnos(&world, &histories);
        check_counts(&world);
        check_nothing_is_left(&world);
        println!(
            "seed {seed}: {events} events of {CLIENTS} clients, {overlapping} of them at the same time as others, {} batches written",
            world.bucket.store_stats().saves
        );
    }
}
