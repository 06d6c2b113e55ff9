//! Runs with a fault at every call, one kind of fault after the other.

use base::env::sim::{Call, Effect, Fault, On, SimDisk};

use super::{CrashPlan, Verdict};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EMFILE: i32 = 24;

/// One way in which the n-th call of a run goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct FaultKind {
    /// What it is called in reports.
    pub name: &'static str,
    /// The calls that are counted.
    on: On,
    for_ever: bool,
    effect: Effect,
}

const SHORT_WRITE: Effect = Effect::Short { bytes: 700, errno: ENOSPC };

impl FaultKind {
    /// Fails once.
    pub const fn once(name: &'static str, on: On, effect: Effect) -> FaultKind {
        FaultKind { name, on, for_ever: false, effect }
    }

    /// Fails from then on.
    pub const fn for_ever(name: &'static str, on: On, effect: Effect) -> FaultKind {
        FaultKind { name, on, for_ever: true, effect }
    }

    /// All of them.
    pub const ALL: [FaultKind; 13] = [
        FaultKind::once("power off", On::Changes, Effect::PowerOff),
        FaultKind::once("failed sync", On::Kind(Call::Sync), Effect::IO_ERROR),
        FaultKind::once("failed folder sync", On::Kind(Call::SyncDir), Effect::IO_ERROR),
        FaultKind::once("failed read", On::Kind(Call::Read), Effect::IO_ERROR),
        FaultKind::once("failed call", On::Any, Effect::Errno(EIO)),
        FaultKind::once("full disk once", On::Changes, Effect::DISK_FULL),
        FaultKind::once("short write", On::Kind(Call::Write), SHORT_WRITE),
        FaultKind::once("no descriptor once", On::Kind(Call::Open), Effect::Errno(EMFILE)),
        FaultKind::for_ever("no descriptors", On::Kind(Call::Open), Effect::Errno(EMFILE)),
        FaultKind::for_ever("full disk", On::Changes, Effect::DISK_FULL),
        FaultKind::for_ever("short writes", On::Kind(Call::Write), SHORT_WRITE),
        FaultKind::for_ever("broken disk", On::Any, Effect::Errno(EIO)),
        FaultKind::for_ever("disk that cannot be written", On::Changes, Effect::IO_ERROR),
    ];

    /// Whether it lasts until the disk is healed.
    pub fn is_for_ever(&self) -> bool {
        self.for_ever
    }

    /// The fault that strikes the n-th call, from 1.
    pub fn at(&self, nth: u64) -> Fault {
        Fault { on: self.on, nth, for_ever: self.for_ever, effect: self.effect }
    }
}

/// Runs `run` on fresh disks that `prepare` made ready, each time with the fault a few calls later, until it comes too
/// late to strike. After each run the power goes, and `check` restarts from what is left, knowing what the run answered.
pub fn every_fault<T>(
    plan: &CrashPlan,
    kind: &FaultKind,
    prepare: impl Fn(&SimDisk),
    mut run: impl FnMut(&SimDisk) -> T,
    mut check: impl FnMut(&T, &SimDisk, u64) -> Vec<String>,
) -> Verdict {
    let mut verdict = Verdict::default();
    for nth in (1..).step_by(plan.every as usize) {
        let disk = SimDisk::new();
        prepare(&disk);
        disk.plan(kind.at(nth));
        let answer = run(&disk);
        if !disk.was_struck() {
            break;
        }
        verdict.moments += 1;
        for survival in plan.survivals(nth) {
            let violations = check(&answer, &disk.image(survival), disk.changes());
            verdict.count(format_args!("{} at call {nth}, {survival:?}", kind.name), &violations);
        }
    }
    verdict
}

/// Puts the runs of `seeds` through every kind of fault at every call, and reports each kind.
pub fn every_kind_of_fault<T>(
    what: &str,
    seeds: std::ops::Range<u64>,
    prepare: impl Fn(&SimDisk),
    mut run: impl FnMut(u64, &SimDisk) -> T,
    mut check: impl FnMut(&T, &SimDisk, u64) -> Vec<String>,
) {
    for kind in &FaultKind::ALL {
        let mut verdict = Verdict::default();
        for seed in seeds.clone() {
            let plan = CrashPlan::new(seed);
            verdict.add(every_fault(&plan, kind, &prepare, |disk| run(seed, disk), &mut check));
        }
        verdict.report(&format!("{what}, {}", kind.name));
    }
}
