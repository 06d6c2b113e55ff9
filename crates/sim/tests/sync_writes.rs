//! A sync write that was told to be on disk is there after a power loss at any moment, and so is what was prepared.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{DocumentNames, SimDisk, SimHandles, SplitMix64};
use base::env::{Disk, SimHandles as World};
use base::{DocKey, DurabilityLevel, Seqno, VbId, VbState, limits};
use engine::{
    Bucket, BucketConfig, Changes, Completion, Durable, Failure, Follower, InlineFlushOutcome, StoreRequest,
    StreamPlace, StreamWanted, SyncOutcome, topology_from_json,
};
use kvstore::{Couch, CouchConfig};
use sim::crash::{every_crash, recorded};
use sim::{CrashPlan, Verdict};
use vbucket::{CursorId, RangeLimit, ResumePoint, Topology};

const DIR: &str = "/data/bucket";
const VBUCKETS: u16 = 2;
const KEYS: u64 = 5;
const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::Majority,
    DurabilityLevel::MajorityAndPersistOnActive,
    DurabilityLevel::PersistToMajority,
];

/// Every second one is long.
fn names() -> DocumentNames {
    DocumentNames::of(1, limits::MAX_KEY_BYTES)
}

fn prepare(disk: &SimDisk) {
    disk.create_dir_all_synced(Path::new(DIR)).expect("no fault planned yet");
}

fn world(seed: u64, disk: &SimDisk) -> World {
    SimHandles::new(seed).with_disk(disk.clone())
}

fn open(world: &World) -> Result<Bucket, Failure> {
    let mut config = BucketConfig::new("b", DIR.into());
    config.vbuckets = VBUCKETS;
    let files = Arc::new(Couch::open(world.env(), &config.dir, CouchConfig::default())?);
    Bucket::open(config, world.env(), files)
}

/// A change of one document.
struct Write {
    value: String,
    /// Whether its level asks for the disk: then whoever hears of it, hears that it is there.
    needs_disk: bool,
    /// When it was told to be on disk, in changes of the disk.
    acknowledged_at: Option<u64>,
}

/// What was done.
#[derive(Default)]
struct Run {
    /// All changes of each document in their order.
    writes: BTreeMap<(VbId, Vec<u8>), Vec<Write>>,
    /// How often a writer wrote in the flusher's stead.
    stood_in: u64,
}

/// A sync write that waits, and which one it is.
type Waiting = (Completion<SyncOutcome>, (VbId, Vec<u8>), usize);

fn request<'a>(key: &'a [u8], value: &'a str) -> StoreRequest<'a> {
    StoreRequest::set(DocKey::new(key), value.as_bytes())
}

impl Run {
    fn write(&mut self, rng: &mut SplitMix64, disk: &SimDisk, bucket: &Bucket, waiting: &mut Vec<Waiting>) {
        let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
        let (key, value) = (names().name(rng.below(KEYS)), format!("v{}", rng.next_u64()));
        let level = LEVELS[rng.below(3) as usize];
        let durable = rng.chance(4, 5).then_some(Durable { level, timeout: Duration::from_secs(60) });
        let Ok(mutated) = bucket.documents().durably(durable).store(vb, &request(&key, &value), bucket.now())
        else {
            return;
        };
        let writes = self.writes.entry((vb, key.clone())).or_default();
        // What needs no disk may be told at once; what does need it has been there then.
        let needs_disk = durable.is_some_and(|durable| durable.level != LEVELS[0]);
        let is_told = mutated.pending.is_none() && needs_disk;
        writes.push(Write { value, needs_disk, acknowledged_at: is_told.then(|| disk.changes()) });
        waiting.extend(mutated.pending.map(|pending| (pending, (vb, key), writes.len() - 1)));
    }

    /// The same by somebody who mostly does the flusher's work for it.
    fn write_standing_in(
        &mut self,
        (rng, stands): (&mut SplitMix64, &mut SplitMix64),
        disk: &SimDisk,
        bucket: &Bucket,
        waiting: &mut Vec<Waiting>,
    ) {
        let inline_flush = bucket.flushing().inline_flush().expect("there is a disk");
        self.write(rng, disk, bucket, waiting);
        if stands.chance(1, 4) {
            // The flusher does it later, with whatever else there is by then.
            drop(inline_flush);
            return;
        }
        self.stood_in += u64::from(matches!(inline_flush.finish(), InlineFlushOutcome::Wrote(_)));
        self.acknowledge(disk, waiting);
    }

    fn acknowledge(&mut self, disk: &SimDisk, waiting: &mut Vec<Waiting>) {
        waiting.retain(|(pending, document, at)| {
            let outcome = pending.try_take();
            if outcome == Some(SyncOutcome::Committed) {
                let writes = self.writes.get_mut(document).expect("it was written");
                writes[*at].acknowledged_at = Some(disk.changes());
            }
            outcome.is_none()
        });
    }

    /// Somebody reads a document, or is sent it: a sync write that needs the disk is told of by that, too.
    fn hears(&mut self, disk: &SimDisk, vb: VbId, key: &[u8], value: &[u8]) {
        let document = (vb, key.to_vec());
        let write = self.writes.get_mut(&document).and_then(|writes| {
            writes.iter_mut().find(|write| write.needs_disk && write.value.as_bytes() == value)
        });
        if let Some(write) = write {
            write.acknowledged_at.get_or_insert(disk.changes());
        }
    }

    fn read(&mut self, rng: &mut SplitMix64, disk: &SimDisk, bucket: &Bucket) {
        let (vb, key) = (VbId(rng.below(u64::from(VBUCKETS)) as u16), names().name(rng.below(KEYS)));
        if let Ok(found) = bucket.documents().get(vb, DocKey::new(&key), bucket.now()) {
            self.hears(disk, vb, &key, found.version.value());
        }
    }

    /// A vBucket gets a topology. When that is answered, all that was told of or is on its way is on disk.
    fn give_topology(&mut self, disk: &SimDisk, bucket: &Bucket, vb: VbId) {
        bucket
            .roles()
            .set_vbucket_state(vb, VbState::Active, Some(chain_of_one()))
            .expect("there is such a vBucket");
        let waits = bucket.durability().alone_committed(vb).expect("there is a disk");
        if waits.is_some() {
            bucket.flushing().flush_step();
        }
        let is_answered = waits.is_none_or(|waits| waits.try_take().is_some());
        let writes = self.writes.iter_mut().filter(|((of, _), _)| *of == vb && is_answered);
        for write in writes.flat_map(|(_, writes)| writes).filter(|write| write.needs_disk) {
            write.acknowledged_at.get_or_insert(disk.changes());
        }
    }

    fn check(&self, disk: &SimDisk, at: u64) -> Vec<String> {
        let bucket = match open(&world(!at, disk)) {
            Ok(bucket) => bucket,
            Err(failure) => return vec![format!("does not open: {failure}")],
        };
        let mut wrong = Vec::new();
        for vb in (0..VBUCKETS).map(VbId) {
            let in_flight = bucket
                .with_vbucket(vb, |vb| vb.sync_writes().prepares_in_flight())
                .expect("it has this many");
            if in_flight > 0 {
                wrong.push(format!("{vb}: {in_flight} prepares, and nobody else to wait for"));
            }
        }
        for ((vb, key), writes) in &self.writes {
            let found = bucket.documents().get(*vb, DocKey::new(key), bucket.now()).ok();
            let key = key.escape_ascii();
            let found = found.map(|found| String::from_utf8_lossy(found.version.value()).into_owned());
            let is_told = |write: &Write| write.acknowledged_at.is_some_and(|told_at| told_at <= at);
            let least = writes.iter().rposition(is_told);
            let there = found.as_ref().map(|found| writes.iter().position(|write| write.value == *found));
            match there {
                Some(None) => wrong.push(format!("{vb} {key}: {found:?} was never written")),
                Some(there) if there >= least => {}
                None if least.is_none() => {}
                _ => wrong.push(format!("{vb} {key}: has {there:?}, was told of {least:?}")),
            }
        }
        wrong
    }
}

fn chain_of_one() -> Topology {
    topology_from_json(&serde_json::json!([["n_0"]])).expect("it is a topology")
}

/// Somebody who is sent what changes in a vBucket.
struct Stream {
    place: StreamPlace,
    cursor: CursorId,
}

impl Stream {
    fn new(bucket: &Bucket, vb: VbId) -> Stream {
        let (at, wanted) = (ResumePoint::default(), StreamWanted::Everything);
        let follower = Follower::new(VBUCKETS, || {});
        let start = bucket.streams().begin_stream(vb, &follower, &at, wanted, true).expect("it is active");
        let cursor =
            bucket.streams().join_memory(start.place, &"s".into(), Seqno(0)).expect("all is in memory");
        Stream { place: start.place, cursor: cursor.id }
    }

    /// Takes what there is.
    fn take(&self, run: &mut Run, disk: &SimDisk, bucket: &Bucket) {
        if let Changes::Range(range) =
            bucket.streams().take_changes(self.place, self.cursor, RangeLimit::NONE)
        {
            for version in range.iter().filter(|version| !version.meta().sync_write.is_hidden()) {
                run.hears(disk, self.place.vb, version.document_key().key, version.value());
            }
            bucket.streams().advance_stream(self.place, self.cursor, range.end());
        }
    }
}

fn run(seed: u64, steps: u64, disk: &SimDisk) -> Run {
    let mut run = Run::default();
    let mut rng = SplitMix64::new(seed);
    // Decides who looks when: what is written is what the seed decides.
    let mut looks = SplitMix64::new(!seed);
    // In some runs writers write in the flusher's stead; in others what they wait for is long on its way.
    let stands_in = seed % 3 == 2;
    let mut stands = SplitMix64::new(!seed.rotate_left(32));
    let world = world(seed, disk);
    let bucket = open(&world).expect("no fault planned");
    // Without a topology prepare and commit are one version.
    let chained = if seed.is_multiple_of(2) { VBUCKETS } else { 0 };
    for vb in (0..chained).map(VbId) {
        let active = bucket.roles().set_vbucket_state(vb, VbState::Active, Some(chain_of_one()));
        active.expect("there is such a vBucket");
    }
    // Some get one while there are such versions.
    let gets_chain = (chained == 0 && looks.chance(1, 2)).then(|| looks.below(steps));
    let streams: Vec<Stream> = (0..VBUCKETS).map(|vb| Stream::new(&bucket, VbId(vb))).collect();
    let mut waiting = Vec::new();
    for step in 0..steps {
        world.clock.advance(Duration::from_micros(rng.below(3000)));
        if stands_in && stands.chance(1, 4) {
            run.write_standing_in((&mut rng, &mut stands), disk, &bucket, &mut waiting);
        } else {
            run.write(&mut rng, disk, &bucket, &mut waiting);
        }
        run.read(&mut looks, disk, &bucket);
        for stream in streams.iter().filter(|_| looks.chance(1, 4)) {
            stream.take(&mut run, disk, &bucket);
        }
        if gets_chain == Some(step) {
            run.give_topology(disk, &bucket, VbId(looks.below(u64::from(VBUCKETS)) as u16));
            run.acknowledge(disk, &mut waiting);
        }
        if rng.chance(1, 4) {
            bucket.flushing().flush_step();
            run.acknowledge(disk, &mut waiting);
        }
    }
    run
}

#[test]
fn power_loss_at_every_moment() {
    let mut verdict = Verdict::default();
    let mut stood_in = 0;
    for seed in 0..16 {
        let (run, recording) = recorded(prepare, |disk| run(seed, 100, disk));
        stood_in += run.stood_in;
        let told = run.writes.values().flatten().filter(|write| write.acknowledged_at.is_some()).count();
        assert!(told > 10, "{told} were told of");
        verdict.add(every_crash(&CrashPlan::new(seed), &recording, |disk, at| run.check(disk, at)));
    }
    assert!(stood_in > 20, "writers wrote {stood_in} times in the flusher's stead");
    verdict.report("sync writes, power loss");
}

/// Mistakes in the product that a power loss shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::SyncWriteCrashes, |seed| {
        let (run, recording) = recorded(prepare, |disk| run(seed, 100, disk));
        let verdict = every_crash(&CrashPlan::new(seed), &recording, |disk, at| run.check(disk, at));
        verdict.examples.first().map_or(Ok(()), |example| Err(example.clone()))
    });
}
