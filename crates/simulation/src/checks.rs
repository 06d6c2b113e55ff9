//! What must hold at every moment, and at the end.

use std::sync::Arc;

use base::{CollectionId, VbId, VbUuid};
use cluster::state::{Step, present};
use engine::{Bucket, Progress};

use crate::copies::{self, Records};
use crate::disks;
use crate::links;
use crate::node::{BUCKET, Node};
use crate::ops::{Class, Kind, Op, Outcome};
use crate::target::place_of;
use crate::world::World;

impl World {
    /// No vBucket is ever served by two nodes.
    pub fn check_exclusive(&mut self) {
        let now_us = self.now_us();
        for vb in 0..self.rules.vbuckets {
            let serving: Vec<usize> =
                self.nodes.iter().filter(|node| node.serves(vb, now_us)).map(|node| node.at).collect();
            if serving.len() > 1 {
                self.violation = Some(format!("vBucket {vb} is served by nodes {serving:?}"));
            }
            let bucket = self.newest.buckets.get(BUCKET);
            let is_choice = bucket.is_some_and(|bucket| {
                let chosen = bucket.active(vb).and_then(|id| place_of(&self.newest, id));
                let is_there = chosen.is_some_and(|at| serving.contains(&at));
                matches!(bucket.steps.get(&vb), Some(Step::Choose { .. })) || !is_there
            });
            if let [at] = serving[..] {
                self.note_served(vb, at);
            }
            if serving.len() == 1 && !is_choice {
                self.history.loses_no_more(vb, now_us);
            }
        }
    }

    /// Changes that were answered from memory may be lost where active copies are chosen.
    pub fn note_losses(&mut self) {
        let now_us = self.now_us();
        let Some(bucket) = self.newest.buckets.get(BUCKET) else { return };
        for (vb, step) in &bucket.steps {
            if matches!(step, Step::Choose { .. }) {
                self.history.may_lose(*vb, now_us);
            }
        }
    }

    /// The same where a node is about to lose what is not on its disk.
    pub fn note_crash(&mut self, at: usize) {
        let now_us = self.now_us();
        for vb in 0..self.rules.vbuckets {
            let bucket = self.newest.buckets.get(BUCKET);
            let active = bucket.and_then(|bucket| bucket.active(vb));
            let is_active = active.and_then(|id| place_of(&self.newest, id)) == Some(at);
            if is_active || self.nodes[at].role(vb) == Some(base::VbState::Active) {
                self.history.may_lose(vb, now_us);
            }
        }
    }

    /// The chain of a vBucket by places of nodes, the active one first.
    pub fn chain(&self, vb: u16) -> Vec<usize> {
        let Some(bucket) = self.newest.buckets.get(BUCKET) else { return Vec::new() };
        let place = |id| place_of(&self.newest, id);
        present(bucket.chain(vb)).filter_map(place).collect()
    }

    /// Whether all members of all chains have everything, on disk too.
    pub fn is_level(&self) -> bool {
        (0..self.rules.vbuckets).all(|vb| {
            let chain = self.chain(vb);
            let reports: Vec<_> = chain.iter().map(|at| self.nodes[*at].report_of(vb)).collect();
            let Some(first) = reports.first().filter(|_| self.nodes[chain[0]].serves(vb, self.now_us()))
            else {
                return false;
            };
            reports.iter().all(|report| {
                let place = (report.high_seqno, report.persisted, report.uuid);
                place == (first.high_seqno, first.high_seqno, first.uuid)
            })
        })
    }

    /// Whether nothing is under way any more and everybody has everything.
    pub fn is_well(&self) -> bool {
        let is_quiet = |node: &Node| {
            node.is_awake(self.now_us())
                && node.waiting.is_empty()
                && links::are_streaming(node.front_end.replication())
        };
        let state = &self.newest;
        state.rebalance.is_none()
            && !state.is_choosing()
            && state.buckets.values().all(|bucket| bucket.steps.is_empty())
            && self.nodes.iter().all(is_quiet)
            && self.nodes.iter().all(|node| node.member.applied == state.revision)
            && self.damage.as_ref().is_none_or(|damage| damage.is_over() && !is_missing(state))
            && self.is_level()
    }

    /// Why it is not well, for whoever looks for the reason.
    pub fn why_not_well(&self) -> String {
        let mut text = format!("{:?} {:?}", self.newest.buckets.get(BUCKET), self.newest.rebalance);
        for node in &self.nodes {
            text += &format!("\nnode {}: up {} applied {}", node.at, node.is_up, node.member.applied);
            text += &format!(" damaged {:?}", node.damaged());
            for vb in 0..self.rules.vbuckets {
                text += &format!(" {:?}", node.report_of(vb));
            }
            text += &format!(
                " waiting {} streaming {}",
                node.waiting.len(),
                links::are_streaming(node.front_end.replication())
            );
            text += &links::describe(node.front_end.replication());
        }
        text
    }

    /// When all faults are over.
    pub fn check_end(&mut self) -> Result<(), String> {
        if !self.is_done {
            return Err(format!("it does not become well: {}", self.why_not_well()));
        }
        self.check_accounts();
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        self.check_prepares_decided()?;
        self.read_everything()?;
        self.tally.histories = self.history.check(&self.clients.keys)?;
        let before = self.check_copies()?;
        self.check_restart(&before)?;
        self.check_all_closed()
    }

    /// Whether the chain of a vBucket has so many members that prepares can be committed.
    pub fn has_majority(&self, vb: u16) -> bool {
        let bucket = self.newest.buckets.get(BUCKET);
        bucket.is_some_and(|bucket| {
            let chain = bucket.chain(vb);
            present(chain).count() >= cluster::state::majority(chain)
        })
    }

    /// What clients would read now belongs to the history.
    fn read_everything(&mut self) -> Result<(), String> {
        for key in 0..self.clients.keys.len() {
            let wanted = self.clients.keys[key].clone();
            if matches!(wanted.class, Class::Expiring | Class::Collection) {
                // Looking at them may change them.
                continue;
            }
            let now_us = self.now_us();
            let op = Op {
                client: 0,
                key,
                kind: Kind::Read,
                level: None,
                collection: 0,
                asked_us: now_us,
                answered_us: Some(now_us),
                outcome: None,
                cas: None,
            };
            let at = *self.chain(wanted.vb).first().ok_or("a vBucket without an active node")?;
            let number = self.history.ask(op);
            let outcome = self.front_end(at).read_at(number)?;
            if matches!(outcome, Outcome::Refused(_)) {
                if !self.has_majority(wanted.vb) {
                    // What an earlier active node may have committed is not decided before there is a majority.
                    continue;
                }
                return Err(format!(
                    "{} cannot be read at node {at}: {outcome:?}",
                    wanted.name.escape_ascii()
                ));
            }
            self.history.ops[number].outcome = Some(outcome);
        }
        Ok(())
    }

    /// All copies of a vBucket are the same; what each active node has.
    fn check_copies(&self) -> Result<Vec<Records>, String> {
        let mut all = Vec::new();
        for vb in (0..self.rules.vbuckets).map(VbId) {
            let mut first: Option<(usize, Records, Vec<_>)> = None;
            for at in self.chain(vb.0) {
                let Some(bucket) = &self.nodes[at].bucket else { return Err("no bucket".to_owned()) };
                let records = copies::read(bucket, vb).map_err(|what| format!("node {at}: {what}"))?;
                let log = bucket.with_vbucket(vb, |vb| vb.failover().to_entries()).unwrap_or_default();
                let Some((other, wanted, histories)) = &first else {
                    first = Some((at, records, log));
                    continue;
                };
                copies::compare(wanted, &records, self.purged(vb))
                    .map_err(|what| format!("vBucket {vb}, nodes {other} and {at}: {what}"))?;
                if *histories != log {
                    return Err(format!("vBucket {vb}, nodes {other} and {at}: {histories:?} and {log:?}"));
                }
            }
            let (at, records, _) = first.ok_or("a vBucket without copies")?;
            if let Some(bucket) = &self.nodes[at].bucket {
                check_counts(bucket, vb, &records).map_err(|what| format!("node {at}, {vb:?}: {what}"))?;
            }
            all.push(records);
        }
        Ok(all)
    }

    /// Tombstones up to here may be gone somewhere.
    fn purged(&self, vb: VbId) -> u64 {
        let of = |bucket: Arc<Bucket>| bucket.with_vbucket(vb, |vb| vb.purge_seqno().0);
        self.buckets().into_iter().filter_map(|(_, bucket)| of(bucket)).max().unwrap_or(0)
    }

    /// A process that is killed now finds on its disk what it had.
    fn check_restart(&mut self, before: &[Records]) -> Result<(), String> {
        if self.rules.is_ephemeral {
            return Ok(());
        }
        for at in 0..self.nodes.len() {
            let Some(bucket) = self.nodes[at].bucket.clone() else { continue };
            let has: Vec<VbId> =
                (0..self.rules.vbuckets).filter(|vb| self.chain(*vb).contains(&at)).map(VbId).collect();
            let purged: Vec<u64> = has.iter().map(|vb| self.purged(*vb)).collect();
            let histories: Vec<Option<VbUuid>> = has.iter().map(|vb| newest_history(&bucket, *vb)).collect();
            // A copy that no chain has any more, and that turns out to be damaged, need not be saved.
            let is_excused =
                |damaged: &[VbId]| !damaged.is_empty() && !damaged.iter().any(|vb| has.contains(vb));
            if !bucket.flushing().flush_all() && !is_excused(&bucket.damaged()) {
                return Err(format!("node {at} cannot save what it has"));
            }
            drop(bucket);
            self.nodes[at].crash(None);
            self.nodes[at].is_up = true;
            self.nodes[at].open(&self.rules)?;
            let Some(bucket) = self.nodes[at].bucket.clone() else { continue };
            while bucket.loading().load_step() != Progress::Idle {}
            for (vb, purged) in has.iter().zip(purged) {
                let records = copies::read(&bucket, *vb);
                let records = records.map_err(|what| format!("node {at} after a restart: {what}"))?;
                copies::compare(&before[usize::from(vb.0)], &records, purged)
                    .map_err(|what| format!("node {at} after a restart, {vb:?}: {what}"))?;
                check_counts(&bucket, *vb, &records)
                    .map_err(|what| format!("node {at} after a restart, {vb:?}: {what}"))?;
            }
            for (vb, history) in has.iter().zip(histories) {
                check_history(&bucket, *vb, history)
                    .map_err(|what| format!("node {at} after a restart, {vb:?}: {what}"))?;
            }
            if let Some(store) = self.nodes[at].store.clone() {
                disks::check_erased(&bucket, &*store, &has).map_err(|what| format!("node {at}: {what}"))?;
            }
        }
        Ok(())
    }
}

/// Whether copies are missing that nobody fills.
fn is_missing(state: &cluster::State) -> bool {
    state.buckets.values().any(|bucket| !bucket.missing.is_empty())
}

/// The history that a vBucket goes on with.
fn newest_history(bucket: &Bucket, vb: VbId) -> Option<VbUuid> {
    bucket.with_vbucket(vb, |vb| vb.failover().newest().uuid)
}

/// A vBucket still knows the history that it went on with when all was saved.
fn check_history(bucket: &Bucket, vb: VbId, history: Option<VbUuid>) -> Result<(), String> {
    let log = bucket.with_vbucket(vb, |vb| vb.failover().to_entries()).unwrap_or_default();
    match history {
        Some(uuid) if log.iter().all(|entry| entry.uuid != uuid) => {
            Err(format!("history {uuid:?} was saved, and it has {log:?}"))
        }
        _ => Ok(()),
    }
}

/// A vBucket counts as many documents of each collection as it has.
fn check_counts(bucket: &Bucket, vb: VbId, records: &Records) -> Result<(), String> {
    let open: Vec<CollectionId> = bucket.collections().manifest().collections().map(|one| one.id).collect();
    for id in open {
        let is_document = |(key, record): &(&Vec<u8>, &copies::Record)| {
            record.kind == base::ItemKind::Mutation && key.first().copied() == u8::try_from(id.0).ok()
        };
        let has = records.iter().filter(is_document).count() as u64;
        let count = |vb: &vbucket::VBucket| vb.collections().is_open(id).then(|| vb.held_by(id).documents());
        let counted = bucket.with_vbucket(vb, count).flatten();
        if counted.is_some_and(|counted| counted != has) {
            return Err(format!("it counts {counted:?} documents of collection {id:?}, and has {has}"));
        }
    }
    Ok(())
}
