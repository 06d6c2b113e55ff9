//! Whether two nodes have the same documents, and those that were written.

use anyhow::{Result, ensure};
use base::vbucket_map::vbucket_of;
use harness::client::{Answer, Client};
use protocol::Status;

use super::load::{self, Ledger, VBUCKETS};

/// Documents that are asked for in one batch.
const BATCH: usize = 256;
/// Differences that are printed.
const SHOWN: usize = 10;

/// What was found.
#[derive(Default)]
pub struct Compared {
    documents: u64,
    deleted: u64,
    extra: i64,
    differences: Vec<String>,
}

impl Compared {
    /// Whether there is no difference.
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty() && self.extra == 0
    }

    /// The counts, for a table.
    pub fn rows(&self) -> [(&'static str, i64); 4] {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        [
            ("documents compared", count(self.documents)),
            ("  of them deleted or never written", count(self.deleted)),
            ("documents that only the replica has", self.extra),
            ("differences", count(self.differences.len() as u64)),
        ]
    }

    /// Prints the first differences.
    pub fn print_differences(&self) {
        for difference in self.differences.iter().take(SHOWN) {
            println!("FAIL {difference}");
        }
    }
}

/// Looks at every document that was ever written, on both nodes.
pub fn all(active: &str, replica: &str, ledger: &Ledger) -> Result<Compared> {
    let (mut active, mut replica) = (Client::connect(active)?, Client::connect(replica)?);
    let mut compared = Compared::default();
    for (chunk, versions) in ledger.versions.chunks(BATCH).enumerate() {
        let first = (chunk * BATCH) as u64;
        let keys: Vec<String> = (0..versions.len() as u64).map(|at| load::key(first + at)).collect();
        for key in &keys {
            let vb = vbucket_of(key.as_bytes(), VBUCKETS);
            active.push_get(vb, key.as_bytes());
            replica.push_get_replica(vb, key.as_bytes());
        }
        active.flush()?;
        replica.flush()?;
        for (at, (key, version)) in keys.iter().zip(versions).enumerate() {
            let (ours, theirs) = (active.answer()?, replica.answer()?);
            let is_there = ours.status_code != Status::KeyEnoent.code();
            let as_written = if is_there || *version > 0 && ledger.is_exact {
                ours.is_ok() && is_of_ledger(ledger, first + at as u64, *version, &ours)
            } else {
                true
            };
            let of = |answer: &Answer| (answer.status_code, answer.cas, answer.extras.clone());
            if !as_written {
                compared
                    .differences
                    .push(format!("{key}: the active node answers 0x{:02x}", ours.status_code));
            } else if of(&ours) != of(&theirs) || (ours.is_ok() && ours.value != theirs.value) {
                compared.differences.push(format!(
                    "{key}: active {:?}, replica {:?}",
                    of(&ours),
                    of(&theirs)
                ));
            }
            compared.documents += 1;
            compared.deleted += u64::from(!is_there);
        }
    }
    let written = compared.documents - compared.deleted;
    compared.extra = count(&mut replica, "vb_replica_curr_items")? - i64::try_from(written)?;
    Ok(compared)
}

/// Whether a document that is there is one that was written: the newest version, or any if some may be lost.
fn is_of_ledger(ledger: &Ledger, number: u64, version: u32, found: &Answer) -> bool {
    let Ok(flags) = <[u8; 4]>::try_from(&found.extras[..]) else { return false };
    let has = u32::from_be_bytes(flags);
    let is_right = if ledger.is_exact { has == version } else { has <= ledger.newest };
    has > 0 && is_right && found.value == load::value(number, has, ledger.value_bytes)
}

fn count(client: &mut Client, name: &str) -> Result<i64> {
    let figures = client.stats("")?.unwrap_or_default();
    let found = figures.iter().find(|(figure, _)| figure == name);
    ensure!(found.is_some(), "there is no figure {name}");
    Ok(found.map_or(0, |(_, value)| value.parse().unwrap_or(-1)))
}
