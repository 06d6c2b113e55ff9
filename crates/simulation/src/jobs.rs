//! What goes wrong during what, counted.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A process ends without a word.
    Crash,
    /// A machine loses its power: what was not synced is lost or torn.
    PowerLoss,
    /// A process stands still for a while.
    Freeze,
    /// A node is cut off from everybody.
    Partition,
    /// Messages get lost in one direction only.
    OneWay,
    /// A node does not reach the coordination store for a short while.
    StoreCut,
    /// A node does not reach the coordination store until its lease is gone.
    LeaseLoss,
    /// A connection between two nodes breaks.
    Disconnect,
    /// A disk does nothing for a while.
    SlowDisk,
    /// A disk is full for a while.
    FullDisk,
    /// A sync fails.
    FailingSync,
    /// A clock changes its rate, or jumps.
    Clock,
    /// Files of a copy are damaged.
    Damage,
}

/// All kinds of faults.
pub const FAULTS: [Fault; 13] = [
    Fault::Crash,
    Fault::PowerLoss,
    Fault::Freeze,
    Fault::Partition,
    Fault::OneWay,
    Fault::StoreCut,
    Fault::LeaseLoss,
    Fault::Disconnect,
    Fault::SlowDisk,
    Fault::FullDisk,
    Fault::FailingSync,
    Fault::Clock,
    Fault::Damage,
];

/// Those that seeds aim with; damage has seeds of its own.
pub const AIMED: &[Fault] = FAULTS.split_at(FAULTS.len() - 1).0;

/// A kind of work that goes on meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// Changes are written to disk.
    Flush,
    /// A file is compacted.
    Compaction,
    /// Documents expire.
    Expiry,
    /// Documents or values leave memory.
    Eviction,
    /// Documents are loaded after a start.
    Warmup,
    /// A stream reads what is not in memory.
    Backfill,
    /// A replica goes back in its history.
    Rollback,
    /// vBuckets are moved.
    Rebalance,
    /// A node hands over what it is active for.
    GracefulFailover,
    /// Active copies are chosen anew because somebody asked, or a life ended.
    HardFailover,
    /// Active copies are chosen anew because a node was missing for long.
    AutoFailover,
    /// A node that was failed over comes back with its copies.
    DeltaRecovery,
}

/// All kinds of work.
pub const JOBS: [Job; 12] = [
    Job::Flush,
    Job::Compaction,
    Job::Expiry,
    Job::Eviction,
    Job::Warmup,
    Job::Backfill,
    Job::Rollback,
    Job::Rebalance,
    Job::GracefulFailover,
    Job::HardFailover,
    Job::AutoFailover,
    Job::DeltaRecovery,
];

/// How often which fault met which job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix(pub [[u64; JOBS.len()]; FAULTS.len()]);

impl Matrix {
    /// The cells in which nothing ever happened.
    pub fn empty_cells(&self) -> impl Iterator<Item = (Fault, Job)> + '_ {
        let all = FAULTS.iter().flat_map(|fault| JOBS.iter().map(move |job| (*fault, *job)));
        all.filter(|(fault, job)| self.0[*fault as usize][*job as usize] == 0)
    }

    /// Faults that met no job at all, and jobs that no fault met: names.
    pub fn unmet(&self) -> Vec<String> {
        let faults = FAULTS.iter().filter(|fault| self.0[**fault as usize].iter().all(|count| *count == 0));
        let is_unmet = |job: &&Job| self.0.iter().all(|counts| counts[**job as usize] == 0);
        let jobs = JOBS.iter().filter(is_unmet).map(|job| format!("{job:?}"));
        faults.map(|fault| format!("{fault:?}")).chain(jobs).collect()
    }

    /// As a table for people.
    pub fn table(&self) -> String {
        let mut text = format!("{:>12}", "");
        for job in JOBS {
            text += &format!(" {:>8.8}", format!("{job:?}"));
        }
        for fault in FAULTS {
            text += &format!("\n{:>12}", format!("{fault:?}"));
            for job in JOBS {
                text += &format!(" {:>8}", self.0[fault as usize][job as usize]);
            }
        }
        text
    }
}

/// A fault that is going on, or has just been.
#[derive(Clone, Debug)]
pub struct Ongoing {
    /// Which.
    pub fault: Fault,
    /// At which node.
    pub at: usize,
    /// Until when, in microseconds.
    pub until_us: u64,
    met: [bool; JOBS.len()],
}

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Which fault met which job.
    pub matrix: Matrix,
    /// Faults by kind.
    pub faults: [u64; FAULTS.len()],
    /// Simulated time, in microseconds.
    pub simulated_us: u64,
    /// What clients were answered: reads, changes, durable changes.
    pub reads: u64,
    /// Changes that were acknowledged from memory.
    pub changes: u64,
    /// Changes that were acknowledged at a durable level.
    pub durable: u64,
    /// What clients do not know the outcome of.
    pub ambiguous: u64,
    /// Refusals of all kinds.
    pub refused: u64,
    /// Refusals because a lease was not surely alive.
    pub fenced: u64,
    /// Rebalances that ended.
    pub rebalances: u64,
    /// vBuckets that were handed over.
    pub takeovers: u64,
    /// Choices of active copies that were made.
    pub choices: u64,
    /// Rollbacks that were done.
    pub rollbacks: u64,
    /// Nodes that went when all was well, and whose share others served.
    pub gone: u64,
    /// Files that were damaged, or catalogs.
    pub damages: u64,
    /// Files of them that were in use.
    pub damages_served: u64,
    /// Damage that was found, and whose copy was filled again.
    pub refills: u64,
    /// Keys whose history was checked.
    pub histories: u64,
}

impl Tally {
    /// Adds another run.
    pub fn add(&mut self, other: &Tally) {
        for (sums, counts) in self.matrix.0.iter_mut().zip(&other.matrix.0) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, count)| *sum += count);
        self.simulated_us += other.simulated_us;
        for (sum, (_, count)) in self.rows_mut().into_iter().zip(other.rows()) {
            *sum += count;
        }
    }

    fn rows_mut(&mut self) -> [&mut u64; 15] {
        [
            &mut self.reads,
            &mut self.changes,
            &mut self.durable,
            &mut self.ambiguous,
            &mut self.refused,
            &mut self.fenced,
            &mut self.rebalances,
            &mut self.takeovers,
            &mut self.choices,
            &mut self.rollbacks,
            &mut self.gone,
            &mut self.damages,
            &mut self.damages_served,
            &mut self.refills,
            &mut self.histories,
        ]
    }

    /// Names and numbers.
    pub fn rows(&self) -> [(&'static str, u64); 15] {
        [
            ("reads", self.reads),
            ("changes", self.changes),
            ("durable changes", self.durable),
            ("ambiguous", self.ambiguous),
            ("refused", self.refused),
            ("refused by the fence", self.fenced),
            ("rebalances", self.rebalances),
            ("takeovers", self.takeovers),
            ("choices", self.choices),
            ("rollbacks", self.rollbacks),
            ("nodes gone", self.gone),
            ("damages", self.damages),
            ("damages while served", self.damages_served),
            ("refills", self.refills),
            ("histories checked", self.histories),
        ]
    }
}

/// What is going on just now.
#[derive(Clone, Debug, Default)]
pub struct Crossing {
    faults: Vec<Ongoing>,
    /// When each job worked last, by node.
    worked_us: Vec<[Option<u64>; JOBS.len()]>,
}

/// A job that worked so lately is going on.
const RECENT_US: u64 = 100_000;

impl Crossing {
    /// Nothing has happened yet.
    pub fn new(nodes: usize) -> Crossing {
        Crossing { faults: Vec::new(), worked_us: vec![[None; JOBS.len()]; nodes] }
    }

    /// Whether no fault is going on.
    pub fn is_quiet(&self, now_us: u64) -> bool {
        self.faults.iter().all(|fault| fault.until_us < now_us)
    }

    /// Whether a fault of this kind is going on.
    pub fn has(&self, kind: Fault, now_us: u64) -> bool {
        self.faults.iter().any(|fault| fault.fault == kind && fault.until_us >= now_us)
    }

    /// A job does something at a node.
    pub fn works(&mut self, tally: &mut Tally, now_us: u64, at: usize, job: Job) {
        self.worked_us[at][job as usize] = Some(now_us);
        self.faults.retain(|fault| fault.until_us >= now_us);
        for fault in self.faults.iter_mut().filter(|fault| fault.at == at) {
            if !std::mem::replace(&mut fault.met[job as usize], true) {
                tally.matrix.0[fault.fault as usize][job as usize] += 1;
            }
        }
    }

    /// A fault strikes a node, and lasts.
    pub fn strikes(&mut self, tally: &mut Tally, now_us: u64, at: usize, fault: Fault, until_us: u64) {
        tally.faults[fault as usize] += 1;
        let mut met = [false; JOBS.len()];
        for job in JOBS {
            let worked = self.worked_us[at][job as usize];
            if worked.is_some_and(|worked_us| now_us - worked_us <= RECENT_US) {
                met[job as usize] = true;
                tally.matrix.0[fault as usize][job as usize] += 1;
            }
        }
        let until_us = until_us.max(now_us + RECENT_US);
        self.faults.push(Ongoing { fault, at, until_us, met });
    }
}
