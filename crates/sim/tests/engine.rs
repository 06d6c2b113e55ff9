//! A bucket keeps what it said was persisted, wherever it is stopped, and says after a restart how far it goes.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{DocumentNames, Fault, SimDisk, SimHandles, SplitMix64};
use base::env::{Clock as _, Disk, OpenMode, SimHandles as World};
use base::{Cas, Datatype, DocKey, RevSeqno, Seqno, VbId, VbUuid, VersionMeta, limits};
use engine::{
    Bucket, BucketConfig, Failure, Mutated, Progress, Refusal, StoreMode, StoreRequest, WithMetaRequest,
};
use kvstore::{Couch, CouchConfig, KvStore};
use sim::crash::{every_crash, every_kill, every_kind_of_fault, recorded};
use sim::ledger::Entry;
use sim::{CrashPlan, Ledger, Restored, Verdict};

const DIR: &str = "/data/bucket";
const VBUCKETS: u16 = 4;
const KEYS: u64 = 30;

/// Every second one is long.
fn names() -> DocumentNames {
    DocumentNames::of(1, limits::MAX_KEY_BYTES)
}

/// The folder that the bucket's is in must be there durably; that is its owner's business.
fn prepare(disk: &SimDisk) {
    disk.create_dir_all_synced(Path::new(DIR)).expect("no fault planned yet");
}

fn world(seed: u64, disk: &SimDisk) -> World {
    SimHandles::new(seed).with_disk(disk.clone())
}

/// A bucket, and the files that it is on.
struct Node {
    bucket: Bucket,
    files: Arc<Couch>,
}

fn open(world: &World) -> Result<Node, Failure> {
    let mut config = BucketConfig::new("b", DIR.into());
    config.vbuckets = VBUCKETS;
    let few = CouchConfig { max_open_files: 2, ..CouchConfig::default() };
    let files = Arc::new(Couch::open(world.env(), &config.dir, few)?);
    let bucket = Bucket::open(config, world.env(), files.clone())?;
    Ok(Node { bucket, files })
}

/// Everything that was acknowledged, and how far each vBucket's history was known to be on disk.
#[derive(Clone, Default)]
struct Run {
    ledger: Ledger,
    /// Histories under which something was promised.
    uuids: BTreeMap<VbId, Vec<(u64, VbUuid)>>,
}

impl Run {
    fn wrote(&mut self, bucket: &Bucket, vb: VbId, key: DocKey<'_>, mutated: Mutated, at: u64) {
        let found =
            bucket.documents().peek(vb, key, bucket.now()).expect("active").expect("just written").version;
        assert_eq!(
            (found.meta().by_seqno, found.meta().cas),
            (mutated.seqno, mutated.cas),
            "the receipt is right"
        );
        self.ledger.wrote(vb, found.stored_key(), Entry::of(&found), at);
    }

    /// Notes what the bucket tells everybody who asks.
    fn promised(&mut self, bucket: &Bucket, at: u64) {
        for vb in (0..VBUCKETS).map(VbId) {
            let Some(uuid) = bucket.with_vbucket(vb, |vb| vb.uuid()) else { continue };
            let Ok(observed) = bucket.documents().observe_seqno(vb, uuid) else { continue };
            if observed.persisted_seqno > self.ledger.promised_at(vb, at) {
                self.ledger.promised(vb, observed.persisted_seqno, at);
                self.uuids.entry(vb).or_default().push((at, uuid));
            }
        }
    }

    fn restarted(&mut self, found: &BTreeMap<VbId, Restored>) {
        for vb in (0..VBUCKETS).map(VbId) {
            self.ledger.restarted(vb, found.get(&vb).map_or(Seqno(0), |found| found.high_seqno));
        }
        self.uuids.clear();
    }
}

fn change(rng: &mut SplitMix64, bucket: &Bucket, vb: VbId, key: DocKey<'_>) -> Result<Mutated, Refusal> {
    let now = bucket.now();
    if rng.chance(1, 5) {
        return bucket.documents().delete(vb, key, Cas::ANY, now);
    }
    let most = if rng.chance(1, 20) { 9000 } else { 150 };
    let mut body = vec![b'b'; rng.between(0, most) as usize];
    body.iter_mut().step_by(3).for_each(|b| *b = rng.next_u64() as u8);
    let json = rng.chance(1, 3);
    let request = StoreRequest {
        key,
        body: if json { b"{\"a\":[1,2,3]}" } else { &body },
        datatype: Datatype::RAW,
        flags: rng.next_u64() as u32,
        expiry: 0,
        mode: [StoreMode::Set, StoreMode::Add, StoreMode::Replace][rng.below(3) as usize],
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    bucket.documents().store(vb, &request, now)
}

/// Changes documents and runs flush steps in between, until `steps` are done or the disk failed four times in a row.
fn go_on(run: &mut Run, rng: &mut SplitMix64, world: &World, bucket: &Bucket, steps: u64) {
    let mut failures = 0;
    for _ in 0..steps {
        world.clock.advance(Duration::from_micros(rng.below(3000)));
        let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
        let key = names().name(rng.below(KEYS));
        let key = DocKey::new(&key);
        if let Ok(mutated) = change(rng, bucket, vb, key) {
            run.wrote(bucket, vb, key, mutated, world.disk.changes());
        }
        if rng.chance(1, 6) {
            match bucket.flushing().flush_step() {
                Progress::Failed => failures += 1,
                Progress::Worked | Progress::Idle => failures = 0,
            }
            run.promised(bucket, world.disk.changes());
        }
        if failures == 4 {
            return;
        }
    }
}

fn run(seed: u64, steps: u64, disk: &SimDisk) -> Run {
    let mut run = Run::default();
    let world = world(seed, disk);
    if let Ok(node) = open(&world) {
        go_on(&mut run, &mut SplitMix64::new(seed), &world, &node.bucket, steps);
    }
    run
}

/// What a bucket serves after a restart, compared with what its store holds.
fn restore(Node { bucket, files }: &Node, wrong: &mut Vec<String>) -> BTreeMap<VbId, Restored> {
    let mut all = BTreeMap::new();
    for vb in (0..VBUCKETS).map(VbId) {
        let served = bucket.with_vbucket(vb, |vb| {
            let mut restored = Restored::new(vb.persisted_seqno());
            restored.purge_seqno = vb.purge_seqno();
            vb.table().iter().for_each(|version| restored.add(version.stored_key(), Entry::of(&version)));
            (restored, vb.high_seqno(), vb.state())
        });
        let (restored, high_seqno, state) = served.expect("it has this many");
        if high_seqno != restored.high_seqno || state != base::VbState::Active {
            wrong.push(format!("{vb}: {state:?}, high {high_seqno}, persisted {}", restored.high_seqno));
        }
        let mut stored = 0;
        let scanned = files.scan(vb, Seqno(0), kvstore::Values::Read, &mut |_| {
            stored += 1;
            ControlFlow::Continue(())
        });
        if scanned.is_err() || stored != restored.len() {
            wrong.push(format!("{vb}: {stored} stored, {} in memory", restored.len()));
        }
        all.insert(vb, restored);
    }
    all
}

/// A client that saw an older history is told where it ended; one whose writes were promised is not sent away.
fn check_history(run: &Run, bucket: &Bucket, vb: VbId, at: u64, wrong: &mut Vec<String>) {
    let seen =
        run.uuids.get(&vb).and_then(|seen| seen.iter().rev().find(|(promised_at, _)| *promised_at <= at));
    let Some(&(_, uuid)) = seen else { return };
    let promised = run.ledger.promised_at(vb, at);
    match bucket.documents().observe_seqno(vb, uuid) {
        Ok(observed) if observed.uuid == uuid => {
            wrong.push(format!("{vb}: the history goes on after a crash"))
        }
        Ok(observed) => match observed.old_history_end {
            Some(end) if end >= promised => {}
            end => wrong.push(format!("{vb}: promised {promised}, the old history ended at {end:?}")),
        },
        Err(refusal) => wrong.push(format!("{vb}: history {uuid} is unknown: {refusal:?}")),
    }
}

/// The first change after a restart follows all others in seqno and CAS.
fn check_next_change(bucket: &Bucket, vb: VbId, wrong: &mut Vec<String>) {
    let look = |vb: &vbucket::VBucket| {
        let max_cas = vb.table().iter().map(|version| version.meta().cas).max();
        (vb.high_seqno(), max_cas.unwrap_or(Cas(0)))
    };
    let (high_seqno, max_cas) = bucket.with_vbucket(vb, look).expect("it has this many");
    let request = StoreRequest {
        key: DocKey::new(b"next"),
        body: b"1",
        datatype: Datatype::RAW,
        flags: 0,
        expiry: 0,
        mode: StoreMode::Add,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    match bucket.documents().store(vb, &request, bucket.now()) {
        Ok(next) if next.seqno == high_seqno.next() && next.cas > max_cas => {}
        other => wrong.push(format!("{vb}: after seqno {high_seqno}, CAS {max_cas}: {other:?}")),
    }
}

fn check(run: &Run, disk: &SimDisk, at: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    // Another seed: the restarted process draws other random numbers. Its clock is behind, as after a jump back.
    let world = world(!at, disk);
    let node = match open(&world) {
        Ok(node) => node,
        Err(failure) => return vec![format!("does not open: {failure}")],
    };
    for (vb, restored) in restore(&node, &mut wrong) {
        wrong
            .extend(run.ledger.check(vb, &restored, at).iter().map(|violation| format!("{vb}: {violation}")));
        check_history(run, &node.bucket, vb, at, &mut wrong);
        check_next_change(&node.bucket, vb, &mut wrong);
    }
    wrong
}

#[test]
fn power_loss_at_every_moment() {
    let mut verdict = Verdict::default();
    for seed in 0..4 {
        let (run, recording) = recorded(prepare, |disk| run(seed, 150, disk));
        verdict.add(every_crash(&CrashPlan::new(seed), &recording, |disk, at| check(&run, disk, at)));
    }
    verdict.report("engine, power loss");
}

#[test]
fn power_loss_after_a_fault_at_every_call() {
    every_kind_of_fault("engine", 1..2, prepare, |seed, disk| run(seed, 120, disk), check);
}

#[test]
fn what_a_restart_claims_is_durable() {
    let mut verdict = Verdict::default();
    for seed in 0..3 {
        let (first, recording) = recorded(prepare, |disk| run(seed, 100, disk));
        let restart = |disk: &SimDisk, at: u64| {
            let mut second = first.clone();
            let world = world(at, disk);
            let node = open(&world).expect("only the process died");
            second.restarted(&restore(&node, &mut Vec::new()));
            second.promised(&node.bucket, 0);
            second
        };
        let plan = CrashPlan::new(seed);
        verdict.add(every_kill(&plan, &recording, restart, |run, disk, _| check(run, disk, 0)));
    }
    verdict.report("engine, kill, then power loss");
}

#[test]
fn crash_after_crash() {
    let mut verdict = Verdict::default();
    for seed in 0..20 {
        let mut rng = SplitMix64::new(seed);
        let mut disk = SimDisk::new();
        prepare(&disk);
        let mut run = run(seed, 60, &disk);
        for generation in 0..10 {
            let at = disk.changes();
            disk = disk.crash(rng.next_u64());
            // The check changes documents, so it has a copy to itself.
            let copy = disk.image(base::env::sim::Survival::Everything);
            verdict.tally(format_args!("seed {seed}, generation {generation}"), &check(&run, &copy, at));
            let world = world(rng.next_u64(), &disk);
            let Ok(node) = open(&world) else { break };
            run.restarted(&restore(&node, &mut Vec::new()));
            disk.plan(Fault::power_off_at(rng.between(1, 60)));
            go_on(&mut run, &mut rng, &world, &node.bucket, 120);
        }
    }
    verdict.report("engine, crash after crash");
}

#[test]
fn a_clean_stop_keeps_everything() {
    let mut verdict = Verdict::default();
    for seed in 0..10 {
        let disk = SimDisk::new();
        prepare(&disk);
        let mut run = Run::default();
        let first = world(seed, &disk);
        let bucket = open(&first).expect("no fault planned").bucket;
        go_on(&mut run, &mut SplitMix64::new(seed), &first, &bucket, 100);
        bucket.close().expect("no fault planned");
        run.promised(&bucket, disk.changes());
        let at = disk.changes();
        let after = world(!seed, &disk.crash(seed));
        let node = open(&after).expect("no fault planned");
        let mut wrong = Vec::new();
        for (vb, restored) in restore(&node, &mut wrong) {
            wrong.extend(
                run.ledger.check(vb, &restored, at).iter().map(|violation| format!("{vb}: {violation}")),
            );
            let goes_on = run.uuids[&vb]
                .iter()
                .any(|(_, uuid)| node.bucket.with_vbucket(vb, |vb| vb.uuid()) == Some(*uuid));
            if !goes_on {
                wrong.push(format!("{vb}: a new history after a clean stop"));
            }
        }
        verdict.tally(format_args!("seed {seed}"), &wrong);
    }
    verdict.report("engine, clean stop");
}

/// A vBucket cannot be read in the start after a crash, and can in a later one, with a clean stop between them.
fn unread_after_a_crash(seed: u64) -> Vec<String> {
    let mut rng = SplitMix64::new(seed);
    let disk = SimDisk::new();
    prepare(&disk);
    let first = world(seed, &disk);
    let bucket = open(&first).expect("no fault planned").bucket;
    go_on(&mut Run::default(), &mut rng, &first, &bucket, 100);
    let uuid = |bucket: &Bucket, vb| bucket.with_vbucket(vb, |vb| (vb.state(), vb.uuid()));
    let seen: BTreeMap<VbId, _> = (0..VBUCKETS).map(|vb| (VbId(vb), uuid(&bucket, VbId(vb)))).collect();
    drop(bucket);
    let disk = disk.crash(seed);
    let vbucket = |path: &Path| path.file_name()?.to_str()?.split_once(".couch.")?.0.parse().ok().map(VbId);
    let files = disk.contents().into_iter().filter_map(|(path, bytes)| Some((vbucket(&path)?, path, bytes)));
    let mut files: Vec<_> = files.collect();
    if files.is_empty() {
        return Vec::new();
    }
    let (vb, path, bytes) = files.swap_remove(rng.below(files.len() as u64) as usize);
    let put = |bytes: &[u8]| {
        let file = disk.open(&path, OpenMode::ReadWrite).expect("it is there");
        file.write_at(bytes, 0).and_then(|()| file.sync_data()).expect("no fault planned");
    };
    put(&vec![0xee; bytes.len()]);
    open(&world(!seed, &disk)).expect("no fault planned").bucket.close().expect("no fault planned");
    put(&bytes);
    let bucket = open(&world(seed ^ 1, &disk)).expect("no fault planned").bucket;
    match (seen[&vb], uuid(&bucket, vb)) {
        (before, after) if before == after => vec![format!("{vb}: the crash is forgotten: {after:?}")],
        (_, Some((base::VbState::Active, _))) => Vec::new(),
        (_, after) => vec![format!("{vb}: not read although it is mended: {after:?}")],
    }
}

#[test]
fn a_crash_is_remembered_for_what_could_not_be_read() {
    let mut verdict = Verdict::default();
    (0..20).for_each(|seed| verdict.tally(format_args!("seed {seed}"), &unread_after_a_crash(seed)));
    verdict.report("engine, not read after a crash");
}

/// How far ahead of the wall clock a CAS may lie that was made here, or followed (record 61): 65 minutes, and the counter.
const MOST_AHEAD: Duration = Duration::from_secs(3_901);

/// A document comes with a CAS from the far future: the CAS values of all others stay near the wall clock, before and
/// after a restart.
fn after_a_far_cas(seed: u64) -> Vec<String> {
    let mut rng = SplitMix64::new(seed);
    let disk = SimDisk::new();
    prepare(&disk);
    let mut wrong = Vec::new();
    let first = world(seed, &disk);
    let bucket = open(&first).expect("no fault planned").bucket;
    go_on(&mut Run::default(), &mut rng, &first, &bucket, 30);
    for vb in (0..VBUCKETS).map(VbId) {
        let now = bucket.now();
        let far = Cas((first.clock.unix_ns() + rng.between(1 << 44, 1 << 61)) & !0xffff);
        let request = WithMetaRequest {
            key: DocKey::new(b"far"),
            value: b"1",
            datatype: Datatype::RAW,
            meta: VersionMeta { cas: far, rev_seqno: RevSeqno(1), ..VersionMeta::default() },
            add: false,
            expected: Cas::ANY,
            force: true,
            regenerate_cas: false,
            late: None,
        };
        match bucket.documents().apply_with_meta(vb, &request, now) {
            Ok(mutated) if mutated.cas == far => {}
            other => wrong.push(format!("{vb}: a document with CAS {far}: {other:?}")),
        }
    }
    let mut look = |world: &World, bucket: &Bucket, when: &str, rng: &mut SplitMix64| {
        for _ in 0..20 {
            world.clock.advance(Duration::from_micros(rng.below(3000)));
            let vb = VbId(rng.below(u64::from(VBUCKETS)) as u16);
            let key = names().name(rng.below(KEYS));
            let Ok(mutated) = change(rng, bucket, vb, DocKey::new(&key)) else { continue };
            let ahead = Duration::from_nanos(mutated.cas.0.saturating_sub(world.clock.unix_ns()));
            if ahead > MOST_AHEAD {
                wrong.push(format!("{vb}: {when} a CAS lies {ahead:?} ahead of the clock"));
            }
        }
    };
    look(&first, &bucket, "before a restart", &mut rng);
    assert!(bucket.flushing().flush_all(), "no fault planned");
    drop(bucket);
    let after = world(!seed, &disk);
    let bucket = open(&after).expect("no fault planned").bucket;
    look(&after, &bucket, "after a restart", &mut rng);
    wrong
}

#[test]
fn a_cas_from_the_far_future_carries_no_clock_away() {
    let mut verdict = Verdict::default();
    (0..20).for_each(|seed| verdict.tally(format_args!("seed {seed}"), &after_a_far_cas(seed)));
    verdict.report("engine, CAS from the far future");
}

#[test]
fn a_bucket_on_a_fresh_disk_makes_its_folders_durable() {
    let (run, recording) = recorded(|_| {}, |disk| run(1, 60, disk));
    let verdict = every_crash(&CrashPlan::new(1), &recording, |disk, at| check(&run, disk, at));
    verdict.report("engine, fresh disk");
}

/// Mistakes in the product that a power loss shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Crashes, |seed| {
        let (run, recording) = recorded(prepare, |disk| run(seed, 100, disk));
        let verdict = every_crash(&CrashPlan::new(seed), &recording, |disk, at| check(&run, disk, at));
        let unread = unread_after_a_crash(seed);
        let far = after_a_far_cas(seed);
        verdict
            .examples
            .first()
            .or(unread.first())
            .or(far.first())
            .map_or(Ok(()), |example| Err(example.clone()))
    });
}
