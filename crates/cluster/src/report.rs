//! What nodes say of themselves: soft state, under their leases.

use std::collections::BTreeMap;

use base::VbState;
use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::state::Address;

/// A node that is alive, as it says itself; goes when its lease runs out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which of its lives this is: another one with every lease.
    pub incarnation: u64,
    /// Where it is reached.
    pub address: Address,
}

/// What a node has of a vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct VbReport {
    /// Its role; nothing if the node does not have it.
    pub state: Option<VbState>,
    /// Its last change.
    pub high_seqno: u64,
    /// The last of its changes that is as safe as the bucket's disk makes it, or the last one if there is no disk; of a
    /// snapshot that has not come as a whole none is.
    pub persisted: u64,
    /// The last prepare that is as safe as its level asks.
    pub high_prepared: u64,
    /// Its history.
    pub uuid: u64,
}

impl VbReport {
    /// Of a vBucket that is not there.
    pub const NOTHING: VbReport =
        VbReport { state: None, high_seqno: 0, persisted: 0, high_prepared: 0, uuid: 0 };

    /// Of a vBucket that has everything up to `whole`, and behind that a part of a snapshot. What was replaced within
    /// that snapshot is not in it, and what replaced it has not come yet: whoever has a part of it up to a seqno does not
    /// have what there was at that seqno.
    pub fn whole_up_to(self, whole: u64) -> VbReport {
        if planted::is(Bug::PartOfSnapshotCounts) {
            return self;
        }
        VbReport { persisted: self.persisted.min(whole), ..self }
    }
}

/// As it stands in a report: role, last change, last persisted, last prepare, history.
type Written = (u8, u64, u64, u64, u64);

impl From<Written> for VbReport {
    fn from((state, high_seqno, persisted, high_prepared, uuid): Written) -> Self {
        VbReport { state: VbState::from_wire(state), high_seqno, persisted, high_prepared, uuid }
    }
}

impl From<VbReport> for Written {
    fn from(report: VbReport) -> Self {
        let state = report.state.map_or(0, |state| state as u8);
        let is_told = !planted::is(Bug::ReportWithoutPrepares);
        let high_prepared = if is_told { report.high_prepared } else { 0 };
        (state, report.high_seqno, report.persisted, high_prepared, report.uuid)
    }
}

/// What a node reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Which of its lives reports.
    pub incarnation: u64,
    /// The newest revision of the document that its vBuckets are as: it serves nothing that this does not let it.
    pub applied: u64,
    /// vBuckets of which something is under way, by bucket and number.
    pub vbuckets: BTreeMap<String, BTreeMap<u16, VbReport>>,
    /// Copies that a node without a share in the buckets has kept, by bucket.
    pub kept: BTreeMap<String, Vec<u16>>,
}

impl Report {
    /// What it says of a vBucket.
    pub fn of(&self, bucket: &str, vb: u16) -> Option<&VbReport> {
        self.vbuckets.get(bucket)?.get(&vb)
    }
}
