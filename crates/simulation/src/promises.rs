//! What an answer at a durable level promises, looked at where it is given, where somebody else begins to serve, and
//! while copies are made: long before a client could read what is lost.

use std::collections::BTreeMap;

use base::{CollectionId, DocKey, DurabilityLevel, VbId, VbState};
use engine::Refusal;
use vbucket::Topology;

use crate::connections::Waiting;
use crate::history::Asked;
use crate::node::Node;
use crate::nodes::Nodes;
use crate::ops::Key;
use crate::rules::Rules;

/// What clients were told of durable writes.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// By document: the highest CAS that a client was told of at a durable level, and whether that was a deletion.
    told: BTreeMap<usize, (u64, bool)>,
    /// By vBucket: who served it last: node, its start, its history.
    served_by: Vec<Option<(usize, u64, u64)>>,
    /// By vBucket and document: what whoever serves it must have, and was not looked at yet.
    open: BTreeMap<(u16, usize), (u64, bool)>,
    /// By node and vBucket: when it may have lost what it had, in microseconds.
    lost_us: BTreeMap<(usize, u16), u64>,
}

impl Promises {
    /// Nobody was told anything yet.
    pub fn new(rules: &Rules) -> Promises {
        Promises { served_by: vec![None; usize::from(rules.vbuckets)], ..Promises::default() }
    }

    /// A client was told that its durable write of a document was done.
    pub fn told(&mut self, key: usize, cas: u64, is_deletion: bool) {
        let told = self.told.entry(key).or_default();
        *told = (*told).max((cas, is_deletion));
    }

    /// A node loses what it has of a vBucket, or some of it: it ends, or goes back in its history.
    pub fn may_lose(&mut self, at: usize, vb: u16, now_us: u64) {
        self.lost_us.insert((at, vb), now_us);
    }

    /// A durable write is about to be answered at a node: a majority of each chain must have it as safe as its level
    /// asks. A node that had it and lost it since it was asked for counts.
    pub fn look_at(
        &self,
        nodes: &Nodes,
        asked: Asked<'_>,
        at: usize,
        number: usize,
        seqno: u64,
    ) -> Result<(), String> {
        let op = asked.op(number);
        let (Some(level), asked_us) = (op.level, op.asked_us) else { return Ok(()) };
        let vb = asked.key(number).vb;
        let Some(bucket) = &nodes[at].bucket else { return Ok(()) };
        let topology = bucket.with_vbucket(VbId(vb), |vb| vb.topology().cloned()).flatten();
        let has = |node: usize| {
            let report = nodes[node].report_of(vb);
            let needs_disk = level == DurabilityLevel::PersistToMajority
                || (node == at && level == DurabilityLevel::MajorityAndPersistOnActive);
            let has_lost = self.lost_us.get(&(node, vb)).is_some_and(|lost| *lost >= asked_us);
            let place = if needs_disk { nodes[node].prepares_saved(vb) } else { report.high_seqno };
            has_lost || report.state.is_none() || place >= seqno
        };
        for chain in topology.iter().flat_map(Topology::chains) {
            let members: Vec<Option<usize>> = chain.members().map(|name| nodes.called(name?)).collect();
            let have = members.iter().flatten().filter(|node| has(**node)).count();
            if have <= members.len() / 2 {
                let what = format!("{number} ({level:?}, seqno {seqno} of vBucket {vb})");
                return Err(format!("node {at} answers {what}, and {have} of {members:?} have it"));
            }
        }
        Ok(())
    }

    /// A node serves a vBucket. If it did not before, it must have all durable writes that clients were told of.
    pub fn note_served(&mut self, node: &Node, keys: &[Key], vb: u16) {
        let Some(bucket) = &node.bucket else { return };
        let uuid = bucket.with_vbucket(VbId(vb), |vb| vb.uuid().0).unwrap_or_default();
        let serves = Some((node.at, node.boot, uuid));
        if std::mem::replace(&mut self.served_by[usize::from(vb)], serves) == serves {
            return;
        }
        for (key, told) in &self.told {
            if keys[*key].vb == vb {
                self.open.insert((vb, *key), *told);
            }
        }
    }

    /// Looks at what a node must have since it serves, as far as that can be read now.
    pub fn check_served(&mut self, node: &Node, asked: Asked<'_>, now_us: u64) -> Result<(), String> {
        let Some(bucket) = &node.bucket else { return Ok(()) };
        let (at, mut checked) = (node.at, Ok(()));
        let open: Vec<(u16, usize)> = self.open.keys().copied().collect();
        for (vb, key) in open {
            let is_its = self.served_by[usize::from(vb)].is_some_and(|(node, ..)| node == at);
            if !is_its || !node.serves(vb, now_us) {
                continue;
            }
            let (told, is_deletion) = self.open[&(vb, key)];
            let name = &asked.keys[key].name;
            let doc = DocKey { collection: CollectionId(0), key: name };
            let has = match bucket.documents().get(VbId(vb), doc, bucket.now()) {
                Ok(found) => found.cas.0,
                // A client may have deleted it since.
                Err(Refusal::NotFound) if is_deletion || asked.history.is_deleted_after(key, told) => told,
                Err(Refusal::NotFound) => 0,
                // It is prepared, or not in memory: looked at again when it is.
                Err(_) => continue,
            };
            if has < told {
                checked = Err(format!(
                    "{} of vBucket {vb} has CAS {has:x} at node {at}, which serves it, after {told:x} was told",
                    name.escape_ascii()
                ));
            }
            self.open.remove(&(vb, key));
        }
        checked
    }
}

impl Node {
    /// Whatever was prepared before a write that was committed is decided, too. What was committed just now: vBucket
    /// and seqno of the prepare.
    pub fn check_commit_order(&self, asked: Asked<'_>, committed: &[(u16, u64)]) -> Result<(), String> {
        let at = self.at;
        for Waiting { op, made } in &self.waiting {
            let Some(waits) = made else { continue };
            let vb = asked.key(*op).vb;
            let is_passed = |(of, seqno): &&(u16, u64)| *of == vb && *seqno > waits.seqno;
            if let Some((_, seqno)) = committed.iter().find(is_passed) {
                let earlier = waits.seqno;
                return Err(format!(
                    "node {at} committed prepare {seqno} of vBucket {vb}, and prepare {earlier} is not decided"
                ));
            }
        }
        Ok(())
    }

    /// No client reads what is prepared and not decided.
    pub fn check_undecided(&self, asked: Asked<'_>, number: usize, cas: u64) -> Result<(), String> {
        let key = asked.op(number).key;
        let is_it = |waiting: &&Waiting| {
            let has_made_it = waiting.made.as_ref().is_some_and(|made| made.cas == cas);
            // What is decided may not have been told yet.
            has_made_it && asked.op(waiting.op).key == key && self.is_undecided(asked, waiting.op, cas)
        };
        match self.waiting.iter().find(is_it) {
            Some(waiting) => {
                Err(format!("node {} lets {number} read {}, which is not decided", self.at, waiting.op))
            }
            None => Ok(()),
        }
    }

    /// What copies say of prepares lies in whole snapshots: in the middle of one something older may still be missing.
    pub fn check_prepared(&self) -> Result<(), String> {
        let Some(bucket) = &self.bucket else { return Ok(()) };
        let (at, mut checked) = (self.at, Ok(()));
        for vb in 0..bucket.vbuckets() {
            let look = |vb: &vbucket::VBucket| {
                let (snapshot, high) = (vb.snapshot(), vb.high_seqno());
                let is_inside = vb.state() == VbState::Replica && high < snapshot.end;
                (is_inside && vb.sync_writes().high_prepared_seqno() > snapshot.start)
                    .then(|| (vb.sync_writes().high_prepared_seqno(), high, snapshot.start, snapshot.end))
            };
            if let Some(found) = bucket.with_vbucket(VbId(vb), look).flatten() {
                checked = Err(format!(
                    "node {at} says of vBucket {vb} what is prepared in half a snapshot: {found:?}"
                ));
            }
        }
        checked
    }
}

impl Nodes {
    /// When all is well no prepare is in flight at any of them, unless there is none to decide it.
    pub fn check_prepares_decided(&self) -> Result<(), String> {
        for vb in self.vbuckets().filter(|vb| self.has_majority(*vb)) {
            for at in self.chain(vb) {
                let Some(bucket) = &self[at].bucket else { continue };
                let in_flight =
                    bucket.with_vbucket(VbId(vb), |vb| vb.sync_writes().prepares_in_flight()).unwrap_or(0);
                if in_flight > 0 {
                    return Err(format!(
                        "node {at} has {in_flight} prepares of vBucket {vb} that nobody decides"
                    ));
                }
            }
        }
        Ok(())
    }
}
