//! What this node itself may say of prepares: up to where it has all of them as safe as their levels ask.

use std::collections::VecDeque;

use base::Seqno;

/// A prepare that has to be on disk first.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Up to here the disk must be.
    until: Seqno,
    /// The prepare before it.
    before: Seqno,
}

/// The high prepared seqno of a vBucket: rises over prepares of complete snapshots, in order, as the disk follows.
///
/// A replica acknowledges it; the active vBucket has one, too, in which each change is a snapshot.
#[derive(Debug)]
pub struct PassiveMonitor {
    /// The last prepare that came.
    last: Seqno,
    /// The last prepare that is in a complete snapshot.
    complete: Seqno,
    /// In seqno order; empty if nothing waits for the disk.
    needs: VecDeque<Need>,
    high_prepared: Seqno,
}

impl PassiveMonitor {
    /// One that has everything up to `high_prepared`, and prepares of a snapshot that is not complete up to `last`.
    pub fn new(high_prepared: Seqno, last: Seqno) -> PassiveMonitor {
        PassiveMonitor {
            last: high_prepared.max(last),
            complete: high_prepared,
            needs: VecDeque::new(),
            high_prepared,
        }
    }

    /// A prepare came, later than all before. `until`: how far the disk must be before it counts, if it must.
    pub fn prepared(&mut self, prepared: Seqno, until: Option<Seqno>) {
        assert!(prepared > self.last, "prepares come in seqno order");
        if let Some(until) = until {
            self.needs.push_back(Need { until, before: self.last });
        }
        self.last = prepared;
    }

    /// All that came belongs to complete snapshots.
    pub fn snapshot_complete(&mut self) {
        self.complete = self.last;
        self.advance();
    }

    /// The disk has everything up to `persisted`.
    pub fn persisted(&mut self, persisted: Seqno) {
        if self.needs.is_empty() {
            return;
        }
        while self.needs.pop_front_if(|need| need.until <= persisted).is_some() {}
        self.advance();
    }

    /// Up to here all prepares are as safe as their levels ask.
    pub fn high_prepared(&self) -> Seqno {
        self.high_prepared
    }

    /// The last prepare of complete snapshots: where [`PassiveMonitor::high_prepared`] will be when all is on disk.
    pub fn complete(&self) -> Seqno {
        self.complete
    }

    /// The last prepare that came.
    pub fn last(&self) -> Seqno {
        self.last
    }

    fn advance(&mut self) {
        let safe = self.needs.front().map_or(self.last, |need| need.before);
        self.high_prepared = self.high_prepared.max(safe.min(self.complete));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor() -> PassiveMonitor {
        PassiveMonitor::new(Seqno(0), Seqno(0))
    }

    #[test]
    fn a_prepare_in_memory_counts_when_its_snapshot_is_complete() {
        let mut monitor = monitor();
        monitor.prepared(Seqno(3), None);
        monitor.prepared(Seqno(5), None);
        assert_eq!(monitor.high_prepared(), Seqno(0));
        monitor.snapshot_complete();
        assert_eq!(monitor.high_prepared(), Seqno(5));
        monitor.prepared(Seqno(7), None);
        assert_eq!(monitor.high_prepared(), Seqno(5));
    }

    #[test]
    fn one_that_must_be_on_disk_holds_up_those_behind_it() {
        let mut monitor = monitor();
        monitor.prepared(Seqno(1), None);
        monitor.prepared(Seqno(2), Some(Seqno(2)));
        monitor.prepared(Seqno(3), None);
        monitor.prepared(Seqno(4), Some(Seqno(4)));
        monitor.snapshot_complete();
        assert_eq!(monitor.high_prepared(), Seqno(1));
        monitor.persisted(Seqno(1));
        assert_eq!(monitor.high_prepared(), Seqno(1));
        monitor.persisted(Seqno(3));
        assert_eq!(monitor.high_prepared(), Seqno(3));
        monitor.persisted(Seqno(9));
        assert_eq!(monitor.high_prepared(), Seqno(4));
    }

    #[test]
    fn what_is_on_disk_counts_no_sooner_than_its_snapshot() {
        let mut monitor = monitor();
        monitor.prepared(Seqno(1), Some(Seqno(1)));
        monitor.persisted(Seqno(1));
        assert_eq!(monitor.high_prepared(), Seqno(0));
        monitor.snapshot_complete();
        assert_eq!(monitor.high_prepared(), Seqno(1));
    }

    #[test]
    fn what_came_from_a_disk_counts_when_all_of_its_snapshot_is_on_this_one() {
        let mut monitor = monitor();
        monitor.prepared(Seqno(1), Some(Seqno(9)));
        monitor.prepared(Seqno(4), Some(Seqno(9)));
        monitor.snapshot_complete();
        monitor.persisted(Seqno(8));
        assert_eq!(monitor.high_prepared(), Seqno(0));
        monitor.persisted(Seqno(9));
        assert_eq!((monitor.high_prepared(), monitor.last()), (Seqno(4), Seqno(4)));
    }
}
