//! What nodes say of themselves: soft state, under their leases.

use std::collections::{BTreeMap, BTreeSet};

use base::VbState;
use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::damage::Damaged;
use crate::keys;
use crate::membership::is_other;
use crate::state::{Address, Limits, NodeId, State};
use crate::store_report::StoreReport;
use crate::tenure::{Place, Relation};

/// A node that is alive, as it says itself; goes when its lease runs out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which of its lives this is: another one with every lease.
    pub incarnation: u64,
    /// Where it is reached.
    pub address: Address,
    /// The newest format of the state that it reads; 0 from a version that read the first one alone.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub reads: u32,
    /// What it can hold; `None` from a version that did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Whether it lets nodes in that have the secret of the cluster's nodes, and has it: a version before did not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub node_login: bool,
    /// Whether it takes proofs over HTTP that tell when they were made, and sends no others: the last version did not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed_proofs: bool,
    /// Whether it brings buckets to the store that the state names: a version before did not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub moves_stores: bool,
}

/// How far a node has become what the document says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The newest revision that every bucket is as, except those in `behind`.
    pub revision: u64,
    /// Buckets that could not be made what `revision` says, and the newest revision that each of them is as.
    pub behind: BTreeMap<String, u64>,
    /// The newest revision beyond which no bucket serves anything, those in `behind` included.
    pub let_go: u64,
}

impl Applied {
    /// The newest revision that a bucket is as.
    pub fn of(&self, bucket: &str) -> u64 {
        self.behind.get(bucket).copied().unwrap_or(self.revision)
    }

    /// The newest revision that every bucket is as.
    pub fn of_all(&self) -> u64 {
        self.behind.values().copied().min().unwrap_or(self.revision)
    }

    /// After an attempt to become what `revision` says that succeeded for every bucket except `failed`.
    pub fn after<'n>(&self, revision: u64, failed: impl IntoIterator<Item = &'n String>) -> Applied {
        let behind: BTreeMap<_, _> = failed.into_iter().map(|name| (name.clone(), self.of(name))).collect();
        let let_go = if behind.is_empty() { revision } else { self.let_go };
        Applied { revision, behind, let_go }
    }
}

impl From<u64> for Applied {
    fn from(revision: u64) -> Applied {
        Applied { revision, behind: BTreeMap::new(), let_go: revision }
    }
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
    /// The identity of the cluster and of the state's branch, of which the revisions are; empty from a version that did
    /// not report it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// The tenure that wrote the newest document that the node had read, of which all revisions here are; 0 from a version
    /// that did not report it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tenure: u64,
    /// The revision of that document.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seen: u64,
    /// The newest revision of the document that all its vBuckets are as: it serves nothing that this does not let it.
    pub applied: u64,
    /// The newest revision that the buckets outside `behind` are as; 0 if that is `applied`. Versions before this field
    /// read `applied` alone, which is never more than what holds for every bucket.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reached: u64,
    /// Buckets that the node could not make what `reached` says, and the newest revision that each of them is as.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub behind: BTreeMap<String, u64>,
    /// The newest revision beyond which the node serves nothing, whatever its buckets could be made; 0 if that is
    /// `applied`. Versions before this field wait for a bucket that cannot be made what the document says.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub let_go: u64,
    /// vBuckets of which something is under way, by bucket and number.
    pub vbuckets: BTreeMap<String, BTreeMap<u16, VbReport>>,
    /// Copies that a node without a share in the buckets has kept, by bucket.
    pub kept: BTreeMap<String, Vec<u16>>,
    /// Copies whose files cannot be believed, by bucket. Versions before this field do not look at it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub damaged: BTreeMap<String, Damaged>,
    /// Nodes whose place is in question, by bucket, and from which the node has promised not to take over before a time
    /// that is not over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bound: BTreeMap<String, BTreeSet<NodeId>>,
    /// Nodes that this one has had no connection to for long, by bucket, and why: its copies miss what changes there.
    /// Versions before this field do not look at it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links_down: BTreeMap<String, BTreeMap<NodeId, String>>,
    /// How far the node is with buckets that go to another store. Versions before this field do not look at it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stores: BTreeMap<String, StoreReport>,
    /// The newest revision that each bucket is as of which something was read from an entry of its own.
    #[serde(skip)]
    pub own: BTreeMap<String, u64>,
}

fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Report {
    /// Whether its revisions are those of a document, or of documents that this one was made from.
    pub fn is_of(&self, state: &State) -> bool {
        let place = Place { tenure: self.tenure, revision: self.seen };
        let is_of_line = matches!(state.relation_to(place), Relation::Descends | Relation::Unknown);
        is_of_line && !is_other(&self.cluster, &state.cluster)
    }

    /// The newest revision that a bucket of the node is as.
    pub fn applied_of(&self, bucket: &str) -> u64 {
        let own = self.own.get(bucket).or_else(|| self.behind.get(bucket));
        own.copied().unwrap_or(self.applied.max(self.reached))
    }

    /// The entries of the store that hold it: one, or with `is_single` false one more for each bucket of which there is
    /// something to say. Each says itself which revision its bucket is as, so that they need not be written at once.
    pub fn entries(&self, uuid: &str, is_single: bool) -> BTreeMap<String, Vec<u8>> {
        let json = |report: &Report| serde_json::to_vec(report).unwrap_or_default();
        if is_single {
            return BTreeMap::from([(keys::report(uuid), json(self))]);
        }
        let whole = Report {
            vbuckets: BTreeMap::new(),
            kept: BTreeMap::new(),
            damaged: BTreeMap::new(),
            bound: BTreeMap::new(),
            stores: BTreeMap::new(),
            ..self.clone()
        };
        let mut entries = BTreeMap::from([(keys::report(uuid), json(&whole))]);
        let copies = self.vbuckets.keys().chain(self.kept.keys());
        let names: BTreeSet<&String> =
            copies.chain(self.damaged.keys()).chain(self.bound.keys()).chain(self.stores.keys()).collect();
        for name in names {
            let only = |of: Option<&BTreeMap<u16, VbReport>>| {
                of.map(|of| (name.clone(), of.clone())).into_iter().collect()
            };
            let own = Report {
                incarnation: self.incarnation,
                cluster: self.cluster.clone(),
                tenure: self.tenure,
                seen: self.seen,
                applied: self.applied_of(name),
                vbuckets: only(self.vbuckets.get(name)),
                kept: self.kept.get(name).map(|kept| (name.clone(), kept.clone())).into_iter().collect(),
                damaged: self.damaged.get(name).map(|of| (name.clone(), of.clone())).into_iter().collect(),
                bound: self.bound.get(name).map(|bound| (name.clone(), bound.clone())).into_iter().collect(),
                stores: self.stores.get(name).map(|of| (name.clone(), of.clone())).into_iter().collect(),
                ..Report::default()
            };
            entries.insert(keys::bucket_report(uuid, name), json(&own));
        }
        entries
    }

    /// Takes in what an entry of its own says of a bucket, if the same life wrote it.
    pub(crate) fn take_in(&mut self, bucket: &str, own: Report) {
        if own.incarnation == self.incarnation && own.cluster == self.cluster {
            self.own.insert(bucket.to_owned(), own.applied);
            self.vbuckets.extend(own.vbuckets);
            self.kept.extend(own.kept);
            self.bound.extend(own.bound);
            self.damaged.extend(own.damaged);
            self.stores.extend(own.stores);
        }
    }

    /// Notes what of a bucket is damaged, if anything is.
    pub fn note_damaged(&mut self, bucket: &str, damaged: Damaged) {
        if !damaged.is_empty() {
            self.damaged.insert(bucket.to_owned(), damaged);
        }
    }

    /// Whether the node has promised not to take over vBuckets of a bucket from another one yet.
    pub fn is_bound(&self, bucket: &str, to: NodeId) -> bool {
        self.bound.get(bucket).is_some_and(|bound| bound.contains(&to))
    }

    /// What it says of a vBucket.
    pub fn of(&self, bucket: &str, vb: u16) -> Option<&VbReport> {
        self.vbuckets.get(bucket)?.get(&vb)
    }
}
