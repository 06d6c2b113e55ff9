//! The failover table: which histories a vBucket has had, and where a stream may go on.

use std::sync::Arc;

use base::planted::{self, Bug};
use base::{Seqno, VbUuid};

/// Most entries that are kept; the oldest go first.
pub const MAX_ENTRIES: usize = 25;

/// One history: from `seqno` on, changes were made under `uuid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverEntry {
    /// Names the history.
    pub uuid: VbUuid,
    /// The last seqno of the history before it.
    pub seqno: Seqno,
}

/// The histories of a vBucket, newest first; never empty. A clone is a counted pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverTable {
    entries: Arc<[FailoverEntry]>,
}

/// What a client that asks for a stream says about where it stands (BinaryProtocol.md, DCP stream request).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// The last seqno it has.
    pub start: Seqno,
    /// The history it knows; 0 for none.
    pub uuid: VbUuid,
    /// Start of the last snapshot it has a part of.
    pub snapshot_start: Seqno,
    /// End of that snapshot.
    pub snapshot_end: Seqno,
    /// The uuid counts even if it starts at 0.
    pub strict_uuid: bool,
    /// It does not mind tombstones that are gone.
    pub ignore_purged: bool,
    /// The purge seqno that it knows.
    pub purge: Option<Seqno>,
}

/// Whether a stream may start where the client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// It may.
    Accept,
    /// The client must first forget everything after this seqno.
    RollBack(Seqno),
}

impl FailoverTable {
    /// The table of a new vBucket.
    pub fn new(uuid: VbUuid) -> FailoverTable {
        FailoverTable { entries: [FailoverEntry { uuid, seqno: Seqno(0) }].into() }
    }

    /// The table with these entries, newest first; nothing if there are none or they are not in order.
    /// Of more than [`MAX_ENTRIES`] the oldest are left out.
    pub fn from_entries(mut entries: Vec<FailoverEntry>) -> Option<FailoverTable> {
        let ordered = entries.windows(2).all(|pair| pair[0].seqno >= pair[1].seqno);
        entries.truncate(MAX_ENTRIES);
        (ordered && !entries.is_empty()).then(|| FailoverTable { entries: entries.into() })
    }

    /// Its entries, newest first.
    pub fn entries(&self) -> &[FailoverEntry] {
        &self.entries
    }

    /// The entries as a list, newest first.
    pub fn to_entries(&self) -> Vec<FailoverEntry> {
        self.entries.to_vec()
    }

    /// The history that goes on now.
    pub fn newest(&self) -> FailoverEntry {
        self.entries[0]
    }

    /// The history that the change of `seqno` belongs to; the oldest one if all begin later. One that begins right
    /// behind that change, as after a crash, has nothing of it.
    pub fn of(&self, seqno: Seqno) -> FailoverEntry {
        let oldest = self.entries[self.entries.len() - 1];
        self.entries.iter().copied().find(|entry| entry.seqno < seqno).unwrap_or(oldest)
    }

    /// Begins a new history after `seqno`; entries above it describe what is lost and go.
    pub fn new_entry(&mut self, uuid: VbUuid, seqno: Seqno) {
        let before = self.entries.iter().filter(|entry| entry.seqno <= seqno).copied();
        let all = std::iter::once(FailoverEntry { uuid, seqno }).chain(before);
        self.entries = all.take(MAX_ENTRIES).collect();
    }

    /// Drops the entries above `seqno`, as after a rollback; at least the oldest stays.
    pub fn prune_above(&mut self, seqno: Seqno) {
        let oldest = self.entries[self.entries.len() - 1];
        let mut kept: Vec<FailoverEntry> =
            self.entries.iter().filter(|entry| entry.seqno <= seqno).copied().collect();
        if kept.is_empty() {
            kept.push(oldest);
        }
        self.entries = kept.into();
    }

    /// Whether `client` may go on where it stands, given the vBucket's high seqno and purge seqno.
    ///
    /// Its snapshot must lie within the part of its history that we share; if not, it goes back to the last
    /// consistent point before the histories part: its snapshot's start, or the parting itself if that is earlier.
    pub fn rollback_point(&self, client: &ResumePoint, high: Seqno, purge: Seqno) -> Resume {
        if client.start == Seqno(0) && !(client.strict_uuid && client.uuid != VbUuid(0)) {
            return Resume::Accept;
        }
        let purged = client.start != Seqno(0) && client.start < purge;
        if purged && !client.ignore_purged && client.purge != Some(purge) {
            return Resume::RollBack(Seqno(0));
        }
        let Some(at) = self.entries.iter().position(|entry| entry.uuid == client.uuid) else {
            return Resume::RollBack(Seqno(0));
        };
        // A replica has its active node's histories before it has what happened in them.
        let too_many = u64::from(planted::is(Bug::RollbackTooShort));
        let shared = |newer: &FailoverEntry| Seqno(newer.seqno.0 + too_many).min(high);
        let shared_until = if at == 0 { high } else { shared(&self.entries[at - 1]) };
        // a client at a snapshot's edge needs only the part of it that it has
        let needs = if client.start == client.snapshot_start { client.start } else { client.snapshot_end };
        if needs <= shared_until {
            return Resume::Accept;
        }
        let complete = if client.start == client.snapshot_end { client.start } else { client.snapshot_start };
        Resume::RollBack(shared_until.min(complete))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uuid: u64, seqno: u64) -> FailoverEntry {
        FailoverEntry { uuid: VbUuid(uuid), seqno: Seqno(seqno) }
    }

    #[test]
    fn nobody_goes_on_behind_the_end_of_an_old_history_that_is_not_here_yet() {
        let table = FailoverTable::from_entries(vec![entry(2, 44), entry(1, 0)]).expect("in order");
        let at = |start| ResumePoint {
            start: Seqno(start),
            uuid: VbUuid(1),
            snapshot_start: Seqno(start),
            snapshot_end: Seqno(start),
            ..ResumePoint::default()
        };
        assert_eq!(table.rollback_point(&at(9), Seqno(5), Seqno(0)), Resume::RollBack(Seqno(5)));
        assert_eq!(table.rollback_point(&at(5), Seqno(5), Seqno(0)), Resume::Accept);
    }

    #[test]
    fn a_change_belongs_to_the_history_before_those_that_begin_with_it() {
        let table =
            FailoverTable::from_entries(vec![entry(3, 7), entry(2, 7), entry(1, 0)]).expect("in order");
        let of = |seqno| table.of(Seqno(seqno)).uuid.0;
        assert_eq!((of(8), of(7), of(1), of(0)), (3, 1, 1, 1));
    }

    #[test]
    fn entries_from_outside_must_be_in_order() {
        assert_eq!(FailoverTable::from_entries(vec![]), None);
        assert_eq!(FailoverTable::from_entries(vec![entry(2, 5), entry(1, 6)]), None);
        let entries = vec![entry(3, 6), entry(2, 6), entry(1, 0)];
        let table = FailoverTable::from_entries(entries.clone());
        assert_eq!(table.map(|table| table.to_entries()), Some(entries));
        let many = (0..40).rev().map(|n| entry(n, n)).collect();
        let table = FailoverTable::from_entries(many).expect("in order");
        assert_eq!((table.entries().len(), table.newest()), (MAX_ENTRIES, entry(39, 39)));
    }
}
