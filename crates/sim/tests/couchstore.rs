//! A couchstore file keeps exactly a prefix of its commits, and every one that it acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::env::Disk;
use base::env::sim::{Fault, SimDisk, SplitMix64, Survival};
use base::{Seqno, VbId};
use couchstore::{
    Batch, Body, CONTENT_OPAQUE, CouchFile, DocUpdate, Failure, LocalUpdate, RecordSummary, RevMeta, Snapshot,
};
use sim::crash::{every_crash, every_kill, every_kind_of_fault, recorded};
use sim::ledger::Entry;
use sim::{CrashPlan, Fingerprint, Ledger, Restored, Verdict, Violation};

const VB: VbId = VbId(0);
const FILE: &str = "/0.couch.1";
const LOCAL: &[u8] = b"_local/vbstate";

struct Doc {
    key: Vec<u8>,
    seqno: u64,
    deleted: bool,
    value: Vec<u8>,
}

impl Doc {
    fn rev_meta(&self) -> RevMeta {
        RevMeta { cas: self.seqno << 16, datatype: Some(0), ..RevMeta::default() }
    }

    fn entry(&self) -> Entry {
        let (meta, len) = self.rev_meta().encode();
        entry(self.seqno, self.deleted, &meta[..len], &self.value)
    }
}

fn entry(seqno: u64, is_deleted: bool, rev_meta: &[u8], value: &[u8]) -> Entry {
    Entry { seqno: Seqno(seqno), is_deleted, fingerprint: Fingerprint::of_bytes([rev_meta, value]) }
}

#[derive(Default)]
struct Docs(Vec<Doc>);

impl Batch for Docs {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn doc(&self, i: usize) -> DocUpdate<'_> {
        let doc = &self.0[i];
        let body = match doc.value.len() {
            0 => Body::None,
            len if len % 2 == 0 => Body::Compress(&doc.value),
            _ => Body::Plain(&doc.value),
        };
        DocUpdate {
            id: &doc.key,
            seqno: doc.seqno,
            rev_seqno: doc.seqno,
            deleted: doc.deleted,
            content_meta: CONTENT_OPAQUE,
            body,
        }
    }

    fn rev_meta(&self, i: usize, out: &mut Vec<u8>) {
        let (meta, len) = self.0[i].rev_meta().encode();
        out.extend(&meta[..len]);
    }

    fn saved(&mut self, _: usize, _: RecordSummary, _: Option<RecordSummary>) {}
}

/// The last seqno of each batch, and everything written and promised.
#[derive(Default)]
struct Run {
    ledger: Ledger,
    ends: BTreeSet<u64>,
}

struct Workload {
    rng: SplitMix64,
    seqno: u64,
    /// How many keys there are; with many the trees grow deep.
    keys: u64,
}

impl Workload {
    fn batch(&mut self) -> Docs {
        let mut docs = BTreeMap::new();
        for _ in 0..self.rng.between(1, self.keys.min(60)) {
            let key = format!("key-{}", self.rng.below(self.keys)).into_bytes();
            let most = if self.rng.chance(1, 20) { 9000 } else { 300 };
            let deleted = self.rng.chance(1, 6);
            let mut value = vec![b'x'; if deleted { 0 } else { self.rng.between(1, most) as usize }];
            value.iter_mut().step_by(3).for_each(|b| *b = self.rng.next_u64() as u8);
            docs.insert(key.clone(), Doc { key, seqno: 0, deleted, value });
        }
        let mut docs: Vec<Doc> = docs.into_values().collect();
        for doc in &mut docs {
            self.seqno += 1;
            doc.seqno = self.seqno;
        }
        Docs(docs)
    }
}

fn create(disk: &SimDisk) -> Result<CouchFile, Failure> {
    let mut file = CouchFile::create(disk, Path::new(FILE))?;
    file.commit(1)?;
    Ok(file)
}

fn save(file: &mut CouchFile, docs: &mut Docs, end: u64) -> Result<(), Failure> {
    file.save(docs)?;
    file.save_locals(&[LocalUpdate { id: LOCAL, value: Some(end.to_string().as_bytes()) }])?;
    file.commit(end)
}

/// Opens the file again after a failure, as the rules for failed syncs want it: from its last good header.
fn reopen(disk: &SimDisk) -> Option<CouchFile> {
    if let Ok(file) = CouchFile::open(disk, Path::new(FILE)) {
        return Some(file);
    }
    disk.remove_file(Path::new(FILE)).ok();
    create(disk).ok()
}

/// Saves batches in a fresh file.
fn run(seed: u64, keys: u64, batches: u64, disk: &SimDisk) -> Run {
    let mut run = Run { ends: BTreeSet::from([0]), ..Run::default() };
    let mut workload = Workload { rng: SplitMix64::new(seed), seqno: 0, keys };
    let Some(file) = create(disk).ok().or_else(|| reopen(disk)) else { return run };
    if disk.sync_dir(Path::new("/")).or_else(|_| disk.sync_dir(Path::new("/"))).is_ok() {
        go_on(&mut run, &mut workload, file, batches, disk);
    }
    run
}

/// Saves batches; one that fails is saved again in a reopened file, up to twice.
fn go_on(run: &mut Run, workload: &mut Workload, mut file: CouchFile, batches: u64, disk: &SimDisk) {
    for _ in 0..batches {
        let mut docs = workload.batch();
        for doc in &docs.0 {
            run.ledger.wrote(VB, &doc.key, doc.entry(), disk.changes());
        }
        run.ends.insert(workload.seqno);
        let mut tries = 0;
        while save(&mut file, &mut docs, workload.seqno).is_err() {
            tries += 1;
            let Some(reopened) = reopen(disk).filter(|_| tries < 3) else { return };
            file = reopened;
        }
        run.ledger.promised(VB, Seqno(workload.seqno), disk.changes());
    }
}

/// Reads the whole file, both trees, and says what does not fit together.
fn read(snapshot: &Snapshot, wrong: &mut Vec<String>) -> Result<Restored, Failure> {
    let info = snapshot.info();
    let mut restored = Restored::new(Seqno(info.update_seqno));
    let (mut by_id, mut by_seqno) = (BTreeMap::new(), BTreeMap::new());
    let (mut stored, mut body) = (Vec::new(), Vec::new());
    snapshot.scan_ids(b"", |doc| -> Result<_, Failure> {
        let value = snapshot.body(&doc, &mut stored, &mut body)?;
        restored.add(doc.id, entry(doc.seqno, doc.deleted, doc.rev_meta, value));
        by_id.insert(doc.seqno, (doc.id.to_vec(), doc.body_offset));
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    snapshot.changes_since(0, |doc| -> Result<_, Failure> {
        by_seqno.insert(doc.seqno, (doc.id.to_vec(), doc.body_offset));
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    if by_id != by_seqno {
        wrong.push("by-id and by-seqno trees differ".into());
    }
    if info.live_count + info.deleted_count != by_id.len() as u64 || info.seqno_count != by_id.len() as u64 {
        wrong.push(format!("counts are wrong: {info:?}, {} documents", by_id.len()));
    }
    let local = snapshot.local(LOCAL)?;
    let expected = info.update_seqno.to_string().into_bytes();
    if local.as_ref() != Some(&expected) && info.update_seqno > 0 {
        wrong.push(format!("the local document is {local:?}"));
    }
    Ok(restored)
}

fn restore(disk: &SimDisk, wrong: &mut Vec<String>) -> Restored {
    let restored = CouchFile::open_read(disk, Path::new(FILE)).and_then(|snapshot| read(&snapshot, wrong));
    restored.unwrap_or_else(|failure| {
        // Without a first commit there is no file to speak of; the ledger knows whether there should be one.
        if !matches!(failure, Failure::NoHeader { .. } | Failure::Io { .. }) {
            wrong.push(failure.to_string());
        }
        Restored::default()
    })
}

fn check(run: &Run, disk: &SimDisk, at: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let restored = restore(disk, &mut wrong);
    wrong.extend(run.ledger.check(VB, &restored, at).iter().map(ToString::to_string));
    if !run.ends.contains(&restored.high_seqno.0) {
        wrong.push(format!("{} is inside a batch", restored.high_seqno));
    }
    wrong
}

#[test]
fn power_loss_at_every_moment() {
    let mut verdict = Verdict::default();
    for seed in 0..6 {
        let keys = [5, 40, 400][seed as usize % 3];
        let (run, recording) = recorded(|_| {}, |disk| run(seed, keys, 20, disk));
        verdict.add(every_crash(&CrashPlan::new(seed), &recording, |disk, at| check(&run, disk, at)));
    }
    verdict.report("couchstore, power loss");
}

#[test]
fn power_loss_after_a_fault_at_every_call() {
    every_kind_of_fault("couchstore", 0..3, |_| {}, |seed, disk| run(seed, 40, 12, disk), check);
}

#[test]
fn a_process_that_restarts_before_the_power_goes_builds_on_durable_ground() {
    let mut verdict = Verdict::default();
    for seed in 0..4 {
        let (first, recording) = recorded(|_| {}, |disk| run(seed, 40, 12, disk));
        let restart = |disk: &SimDisk, at: u64| {
            let restored = restore(disk, &mut Vec::new());
            let mut second = Run { ledger: first.ledger.clone(), ends: first.ends.clone() };
            let Some(mut file) = reopen(disk) else { return second };
            disk.sync_dir(Path::new("/")).expect("no fault planned");
            second.ledger.restarted(VB, restored.high_seqno);
            let mut workload = Workload { rng: SplitMix64::new(at), seqno: restored.high_seqno.0, keys: 40 };
            let mut docs = workload.batch();
            for doc in &docs.0 {
                second.ledger.wrote(VB, &doc.key, doc.entry(), 0);
            }
            second.ends.insert(workload.seqno);
            save(&mut file, &mut docs, workload.seqno).expect("no fault planned");
            second.ledger.promised(VB, Seqno(workload.seqno), 0);
            second
        };
        let plan = CrashPlan::new(seed);
        verdict.add(every_kill(&plan, &recording, restart, |run, disk, _| check(run, disk, 0)));
    }
    verdict.report("couchstore, kill, then power loss");
}

#[test]
fn crash_after_crash() {
    let mut verdict = Verdict::default();
    for seed in 0..40 {
        let mut rng = SplitMix64::new(seed);
        let mut disk = SimDisk::new();
        let mut run = run(seed, 40, 3, &disk);
        let mut workload = Workload { rng: rng.fork(), seqno: 0, keys: 40 };
        for generation in 0..12 {
            let at = disk.changes();
            disk = disk.crash(rng.next_u64());
            let violations = check(&run, &disk, at);
            verdict.tally(format_args!("seed {seed}, generation {generation}"), &violations);
            let restored = restore(&disk, &mut Vec::new());
            run.ledger.restarted(VB, restored.high_seqno);
            workload.seqno = restored.high_seqno.0;
            let file = CouchFile::open(&disk, Path::new(FILE)).expect("it was read just before");
            disk.plan(Fault::power_off_at(rng.between(1, 30)));
            go_on(&mut run, &mut workload, file, 10, &disk);
        }
    }
    verdict.report("couchstore, crash after crash");
}

#[test]
fn rotten_bits_never_turn_into_documents() {
    let disk = SimDisk::new();
    let run = run(7, 40, 10, &disk);
    let at = disk.changes();
    let bytes = disk.contents()[0].1.len() as u64;
    let mut rng = SplitMix64::new(1);
    let mut verdict = Verdict::default();
    for offset in (0..bytes).step_by(7) {
        let disk = disk.image(Survival::Synced);
        disk.rot(Path::new(FILE), offset, 1 << rng.below(8)).expect("the file is there");
        // An older header may be what is left, and some documents unreadable; none may come out changed.
        let restored = restore(&disk, &mut Vec::new());
        let mut violations = run.ledger.check(VB, &restored, at);
        violations.retain(|v| matches!(v, Violation::Invented { .. } | Violation::OverClaimed { .. }));
        let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
        verdict.tally(format_args!("bit at {offset}"), &violations);
    }
    verdict.report("couchstore, rotten bits");
}
