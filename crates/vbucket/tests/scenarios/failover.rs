//! Commands on a failover table.

use base::{Seqno, VbUuid};
use vbucket::{FailoverTable, Resume, ResumePoint};

use crate::{Player, number};

/// A failover table and the numbers of its vBucket.
pub struct Failover {
    table: FailoverTable,
    high: Seqno,
    purge: Seqno,
}

impl Failover {
    pub fn new() -> Failover {
        Failover { table: FailoverTable::new(VbUuid(0)), high: Seqno(0), purge: Seqno(0) }
    }

    fn show(&self) -> String {
        let entries = self.table.entries().iter();
        entries.map(|entry| format!("uuid {} after {}\n", entry.uuid, entry.seqno)).collect()
    }

    fn resume(&self, words: &[&str]) -> String {
        let start = number(words, "start").unwrap_or(0);
        let snapshot = words.iter().find_map(|word| word.strip_prefix("snapshot=")).map(|bounds| {
            let (from, to) = bounds.split_once("..").expect("a snapshot's bounds");
            (from.parse().expect("a number"), to.parse().expect("a number"))
        });
        let (from, to) = snapshot.unwrap_or((start, start));
        let client = ResumePoint {
            start: Seqno(start),
            uuid: VbUuid(number(words, "uuid").unwrap_or(0)),
            snapshot_start: Seqno(from),
            snapshot_end: Seqno(to),
            strict_uuid: words.contains(&"strict-uuid"),
            ignore_purged: words.contains(&"ignore-purged"),
            purge: number(words, "knows-purge").map(Seqno),
        };
        match self.table.rollback_point(&client, self.high, self.purge) {
            Resume::Accept => "accepted".to_owned(),
            Resume::RollBack(to) => format!("roll back to {to}"),
        }
    }
}

impl Player for Failover {
    fn play(&mut self, words: &[&str]) -> String {
        let nth = |at: usize| words[at].parse::<u64>().expect("a number");
        match words {
            ["vbucket", ..] => {
                self.table = FailoverTable::new(VbUuid(number(words, "uuid").unwrap_or(0)));
                self.high = Seqno(number(words, "high").unwrap_or(0));
                self.purge = Seqno(number(words, "purge").unwrap_or(0));
                self.show()
            }
            ["entry", _, "after", _] => {
                self.table.new_entry(VbUuid(nth(1)), Seqno(nth(3)));
                self.show()
            }
            ["entries", "after", _, _, _] => {
                (nth(2)..=nth(4)).for_each(|n| self.table.new_entry(VbUuid(n), Seqno(n)));
                let (newest, oldest) = (self.table.newest(), self.table.entries().last());
                let oldest = oldest.expect("a table is never empty");
                format!("{} entries, {} to {}", self.table.entries().len(), newest.uuid, oldest.uuid)
            }
            ["prune", "above", _] => {
                self.table.prune_above(Seqno(nth(2)));
                self.show()
            }
            ["resume", ..] => self.resume(words),
            _ => panic!("unknown command {words:?}"),
        }
    }
}
