//! What must hold at every moment, and at the end.

use base::{CollectionId, VbId, VbUuid};
use cluster::state::Step;
use engine::{Bucket, Progress};

use crate::copies::{self, Records};
use crate::damage::Damage;
use crate::disks;
use crate::node::BUCKET;
use crate::nodes::Nodes;
use crate::ops::{Class, Kind, Op, Outcome};
use crate::rules::Rules;
use crate::world::World;

impl World {
    /// No vBucket is ever served by two nodes.
    pub fn check_exclusive(&mut self) {
        if self.streams.is_some() {
            // Without a cluster an old active node may go on.
            return;
        }
        let now_us = self.time.now_us();
        for vb in self.nodes.vbuckets() {
            let serving: Vec<usize> =
                self.nodes.iter().filter(|node| node.serves(vb, now_us)).map(|node| node.at).collect();
            if serving.len() > 1 {
                self.violation = Some(format!("vBucket {vb} is served by nodes {serving:?}"));
            }
            let bucket = self.nodes.newest.buckets.get(BUCKET);
            let is_choice = bucket.is_some_and(|bucket| {
                let is_there = self.nodes.active(vb).is_some_and(|at| serving.contains(&at));
                matches!(bucket.steps.get(&vb), Some(Step::Choose { .. })) || !is_there
            });
            if let [at] = serving[..] {
                self.promises.note_served(&self.nodes[at], &self.clients.keys, vb);
            }
            if serving.len() == 1 && !is_choice {
                self.history.loses_no_more(vb, now_us);
            }
        }
    }

    /// Whether nothing is under way any more and everybody has everything.
    pub fn is_well(&self) -> bool {
        let is_sound = |damage: &Damage| damage.is_over() && !is_missing(&self.nodes.newest);
        self.nodes.are_well(self.time.now_us()) && self.damage.as_ref().is_none_or(is_sound)
    }

    /// When all faults are over.
    pub fn check_end(&mut self) -> Result<(), String> {
        if !self.is_done {
            return Err(format!("it does not become well: {}", self.nodes.describe()));
        }
        self.nodes.check_accounts()?;
        if let Some(streams) = &mut self.streams {
            streams.check_end(&self.nodes)?;
            return self.nodes.check_all_closed();
        }
        self.nodes.check_prepares_decided()?;
        self.read_everything()?;
        self.tally.histories = self.history.check(&self.clients.keys)?;
        let before = self.nodes.check_copies()?;
        self.nodes.check_restart(&self.rules, &before)?;
        self.nodes.check_all_closed()
    }

    /// What clients would read now belongs to the history.
    fn read_everything(&mut self) -> Result<(), String> {
        for key in 0..self.clients.keys.len() {
            let wanted = self.clients.keys[key].clone();
            if matches!(wanted.class, Class::Expiring | Class::Collection) {
                // Looking at them may change them.
                continue;
            }
            let now_us = self.time.now_us();
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
            let at = *self.nodes.chain(wanted.vb).first().ok_or("a vBucket without an active node")?;
            let number = self.history.ask(op);
            let outcome = self.front_end(at).read_at(number)?;
            if matches!(outcome, Outcome::Refused(_)) {
                if !self.nodes.has_majority(wanted.vb) {
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
}

impl Nodes {
    /// All copies of a vBucket are the same; what each active node has.
    pub fn check_copies(&self) -> Result<Vec<Records>, String> {
        let mut all = Vec::new();
        for vb in self.vbuckets().map(VbId) {
            let mut first: Option<(usize, Records, Vec<_>)> = None;
            for at in self.chain(vb.0) {
                let Some(bucket) = &self[at].bucket else { return Err("no bucket".to_owned()) };
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
            if let Some(bucket) = &self[at].bucket {
                check_counts(bucket, vb, &records).map_err(|what| format!("node {at}, {vb:?}: {what}"))?;
            }
            all.push(records);
        }
        Ok(all)
    }

    /// A process that is killed now finds on its disk what it had.
    pub fn check_restart(&mut self, rules: &Rules, before: &[Records]) -> Result<(), String> {
        if rules.is_ephemeral {
            return Ok(());
        }
        for at in 0..self.len() {
            let Some(bucket) = self[at].bucket.clone() else { continue };
            let has: Vec<VbId> =
                self.vbuckets().filter(|vb| self.chain(*vb).contains(&at)).map(VbId).collect();
            let purged: Vec<u64> = has.iter().map(|vb| self.purged(*vb)).collect();
            let histories: Vec<Option<VbUuid>> = has.iter().map(|vb| newest_history(&bucket, *vb)).collect();
            // A copy that no chain has any more, and that turns out to be damaged, need not be saved.
            let is_excused =
                |damaged: &[VbId]| !damaged.is_empty() && !damaged.iter().any(|vb| has.contains(vb));
            if !bucket.flushing().flush_all() && !is_excused(&bucket.damaged()) {
                return Err(format!("node {at} cannot save what it has"));
            }
            drop(bucket);
            self[at].crash(None);
            self[at].is_up = true;
            self[at].open(rules)?;
            let Some(bucket) = self[at].bucket.clone() else { continue };
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
            if let Some(store) = self[at].store.clone() {
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
