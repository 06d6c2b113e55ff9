//! A `KvStore` on trial: random changes, a crash or a fault at every moment, and a comparison with what was acknowledged.

mod bit_flips;
mod crash_states;
mod fault_points;
mod interleave;
mod lies;
mod linear;
mod model;
mod stops;
pub mod subjects;
mod tally;
mod verify;
mod workload;

use std::path::Path;

use base::env::sim::{SimDisk, SimHandles};
use base::env::{Disk, Env};
use kvstore::{Failure, KvStore};

use workload::{Run, Shape};

pub use bit_flips::{Flips, bit_flips};
pub use crash_states::{Depth, crash_states};
pub use fault_points::fault_points;
pub use interleave::interleave;
pub use lies::Lie;
pub use stops::stops;
pub use tally::{Tally, place};

/// The folder of the bucket on trial.
pub const DIR: &str = "/data/bucket";

/// What is on trial: a way to open a store, again and again.
pub struct Subject<'a> {
    /// Its name in reports.
    pub name: &'a str,
    /// Opens the store on a disk.
    pub open: &'a Open<'a>,
    /// Opens what it leaves when it is closed, without what stood in front of it.
    pub open_closed: &'a Open<'a>,
    /// The world in which its files show what they hold: with their keys, if they are encrypted.
    pub world: fn(Env) -> Env,
    /// Whether every file is trusted at its last valid header, so that this one must be clean wherever the power went.
    pub trusts_last_header: bool,
    /// Whether a rollback goes to the newest commit at or below its seqno, not only to some.
    pub rolls_back_exactly: bool,
}

/// Opens a store.
pub type Open<'a> = dyn Fn(Env, &Path) -> Result<Box<dyn KvStore>, Failure> + Sync + 'a;

impl Subject<'_> {
    fn run<'r>(&self, disk: &'r SimDisk, store: &'r dyn KvStore, shape: Shape) -> Run<'r> {
        Run { disk, store, shape, rolls_back_exactly: self.rolls_back_exactly }
    }

    fn world(&self, disk: &SimDisk) -> Env {
        (self.world)(SimHandles::new(0).with_disk(disk.clone()).env())
    }

    fn open(&self, disk: &SimDisk) -> Result<Box<dyn KvStore>, Failure> {
        (self.open)(SimHandles::new(0).with_disk(disk.clone()).env(), Path::new(DIR))
    }
}

/// A disk with the folder that the bucket's is in, which is its owner's business.
fn prepared() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all_synced(Path::new(DIR)).expect("no fault planned yet");
    disk
}
