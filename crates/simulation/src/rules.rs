//! What a seed makes of a cluster: how large it is, what its nodes are, how much may go wrong.

use base::env::sim::SplitMix64;

use crate::jobs::{AIMED, Fault, Job};
use crate::mistakes::Mistake;
use crate::ops::Class;

/// Of so many seeds one aims.
const AIMS_ONE_IN: u64 = 5;

/// What a seed aims at: one kind of fault at each of the jobs that are over soon.
fn aimed(seed: u64) -> Vec<(Fault, Job)> {
    if seed % AIMS_ONE_IN != AIMS_ONE_IN - 1 {
        return Vec::new();
    }
    let fault = AIMED[(seed / AIMS_ONE_IN) as usize % AIMED.len()];
    [Job::Rollback, Job::Warmup, Job::Eviction].map(|job| (fault, job)).to_vec()
}

/// The properties of one run.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What decided them, and decides everything that happens.
    pub seed: u64,
    /// Nodes, from 3 to 5.
    pub nodes: usize,
    /// Replicas of each vBucket, from 0 to 3.
    pub replicas: u8,
    /// vBuckets: 4 or 8.
    pub vbuckets: u16,
    /// Documents are in memory only.
    pub is_ephemeral: bool,
    /// Whole documents leave memory, not only values.
    pub full_eviction: bool,
    /// Memory is so short that the pager has to work.
    pub is_tight: bool,
    /// Whether clients ask for all levels. Then nobody loses what it had in memory before everybody has everything
    /// again; else durable writes are on the disks of a majority, and one node after the other may fail.
    pub all_levels: bool,
    /// Faults that strike whoever is at such a job, once each: chance alone seldom brings that about.
    pub aimed: Vec<(Fault, Job)>,
    /// Whether a node whose bucket does not become what the document says lets go of what it must not serve; else it does
    /// nothing, as one whose disk stands still.
    pub lets_go: bool,
    /// Whether files of copies are damaged.
    pub damages: bool,
    /// Whether nodes follow each other without a cluster (`streams`), and what is done wrong between them.
    pub streams: Option<Mistake>,
    /// When faults end, in microseconds.
    pub faults_us: u64,
    /// When everything must be well again.
    pub end_us: u64,
}

impl Rules {
    /// The rules that a seed decides.
    pub fn of(seed: u64) -> Rules {
        let mut rng = SplitMix64::new(seed ^ 0x5eed);
        let nodes = rng.between(3, 5) as usize;
        let replicas = [1, 1, 1, 2, 2, 2, 3, 0][rng.below(8) as usize];
        let is_ephemeral = rng.chance(1, 10);
        Rules {
            seed,
            nodes,
            replicas,
            vbuckets: if rng.chance(1, 3) { 8 } else { 4 },
            is_ephemeral,
            full_eviction: rng.chance(1, 2) && !is_ephemeral,
            is_tight: rng.chance(1, 3) && !is_ephemeral,
            all_levels: is_ephemeral || rng.chance(1, 2),
            aimed: aimed(seed),
            lets_go: seed % 8 == 7,
            damages: seed % 8 == 6 && replicas > 0 && !is_ephemeral,
            streams: None,
            faults_us: 6_000_000,
            end_us: 20_000_000,
        }
    }

    /// Two or three nodes with two vBuckets, without a cluster.
    pub fn of_streams(seed: u64, mistake: Mistake) -> Rules {
        let nodes = 2 + usize::from(SplitMix64::new(seed ^ 0x57ea).chance(1, 3));
        Rules {
            seed,
            nodes,
            replicas: nodes as u8 - 1,
            vbuckets: 2,
            is_ephemeral: false,
            full_eviction: false,
            is_tight: false,
            all_levels: false,
            aimed: Vec::new(),
            lets_go: false,
            damages: false,
            streams: Some(mistake),
            faults_us: 2_000_000,
            end_us: 12_000_000,
        }
    }

    /// How much longer than its number a value is.
    pub fn padding(&self, number: usize, class: Class) -> usize {
        match class {
            Class::Plain | Class::Expiring if self.is_tight => number % 7 * 6_000,
            Class::Register | Class::Plain => number % 5 * 40,
            _ => 0,
        }
    }
}
