//! What goes wrong, and what administrators ask for meanwhile.

use base::env::Clock as _;
use base::env::sim::{Call, Effect, Fault as DiskFault, On};
use base::{DocKey, VbId};
use cluster::command::Command;
use cluster::state::{NextIds, Step};
use cluster::{NodeId, Status};
use engine::CompactRequest;
use serde_json::json;

use crate::clients::FIRST_COLLECTION;
use crate::damage;
use crate::gone::Gone;
use crate::jobs::{Fault, Job};
use crate::node::BUCKET;
use crate::ops::Key;
use crate::store::TTL;
use crate::world::{Event, STORE, World};

impl World {
    fn any_node(&mut self) -> usize {
        self.rng.below(self.nodes.len() as u64) as usize
    }

    /// Whether a node is in trouble: durable writes survive that of a minority of each chain, here of one.
    fn is_troubled(&self, at: usize) -> bool {
        let is_cut = self.cut.iter().any(|(from, to)| *from == at || *to == at);
        let node = &self.nodes[at];
        let is_damaged = self.damage.as_ref().is_some_and(|damage| damage.is_at(at));
        !node.is_awake(self.now_us()) || is_cut || node.slow_until_us > self.now_us() || is_damaged
    }

    /// Whether nothing is wrong with any node but this one.
    fn is_calm_but(&self, at: usize) -> bool {
        (0..self.nodes.len()).all(|other| other == at || !self.is_troubled(other))
    }

    /// Whether nothing is wrong with any node.
    pub fn is_calm(&self) -> bool {
        (0..self.nodes.len()).all(|at| !self.is_troubled(at))
    }

    /// Whether something is wrong with one node at most, and all of them run.
    fn is_calm_but_one(&self) -> bool {
        let troubled = (0..self.nodes.len()).filter(|at| self.is_troubled(*at)).count();
        let is_sound = self.damage.as_ref().is_none_or(|damage| damage.is_over());
        troubled <= 1 && is_sound && self.nodes.iter().all(|node| node.is_up)
    }

    /// Whether a node may lose what it has in memory. If clients were told of what is in memory only, nobody else may
    /// have done so since everybody had everything.
    pub fn may_forget(&self, at: usize) -> bool {
        let is_first = self.forgetful.is_none_or(|other| other == at);
        let may_forget =
            (is_first || self.is_level()) && !self.is_alone_with_something(at) && !self.is_one_leaving();
        self.is_calm_but(at) && (!self.rules.all_levels || may_forget)
    }

    /// Whether a node may be failed over: what another one has forgotten, or had in a copy that is damaged, may be nowhere
    /// without it.
    pub fn may_leave(&self, at: usize) -> bool {
        let is_sound = self.damage.as_ref().is_none_or(|damage| damage.leaves_copies_but(at, &self.nodes));
        is_sound && (!self.rules.all_levels || self.forgetful.is_none_or(|forgetful| forgetful == at))
    }

    /// Whether a node may be the only one that has something in memory that clients were told of: nobody else belongs to
    /// the chain, or not all of it have everything.
    fn is_alone_with_something(&self, at: usize) -> bool {
        let bucket = self.newest.buckets.get(BUCKET);
        (0..self.rules.vbuckets).any(|vb| {
            let chain = self.chain(vb);
            let step = bucket.and_then(|bucket| bucket.steps.get(&vb));
            let is_open = matches!(step, Some(Step::Choose { .. } | Step::Settle { .. }));
            let is_single = chain.len() == 1 && (self.rules.is_ephemeral || !self.is_level());
            chain.contains(&at) && (is_open || is_single)
        })
    }

    /// One fault or request.
    pub fn fault(&mut self) {
        self.check_accounts();
        self.check_available();
        damage::look(self);
        if self.now_us() >= self.rules.faults_us {
            self.mend();
            return;
        }
        if self.forgetful.is_some() && self.is_level() {
            self.forgetful = None;
        }
        self.go_for_a_rollback();
        let at = self.any_node();
        let is_calm = self.is_calm_but(at) && !self.is_troubled(at);
        // Who stands still or is cut off loses nothing: more than a minority may be, at times.
        let may_stop = is_calm || (!self.is_troubled(at) && self.is_calm_but_one() && self.rng.chance(1, 3));
        match self.rng.below(34) {
            0 | 1 if is_calm && self.may_forget(at) => {
                let is_power = self.rng.chance(1, 2);
                self.crash(at, if is_power { Fault::PowerLoss } else { Fault::Crash });
            }
            2 if may_stop => self.freeze(at),
            3 if may_stop => self.cut_off(at, Fault::Partition),
            4 if may_stop => self.cut_off(at, Fault::OneWay),
            5 if is_calm => self.cut_off(at, Fault::StoreCut),
            6 if is_calm => self.cut_off(at, Fault::LeaseLoss),
            7 | 8 => self.break_a_connection(at),
            9 if is_calm => self.slow_disk_down(at),
            10 if is_calm && self.nodes[at].is_up => self.fill_disk(at),
            11 | 12 if self.nodes[at].is_up => self.fail_sync(at),
            13 => self.change_clock(at),
            14..=17 => self.chore(at),
            18 => self.change_collections(at),
            19 | 20 => self.ask_for_failover(at),
            21..=24 => self.ask_for_rebalance(at),
            25 => {
                self.ask_for(at, &Command::CancelRebalance);
            }
            26 | 27 => self.take_back(at),
            _ => {}
        }
        let delay = self.rng.between(10_000, 200_000);
        self.push(delay, 0, 0, Event::Fault);
    }

    /// A fault strikes a node that is at work, as the seed has decided; whether it may do so now.
    pub fn strike_at_work(&mut self, at: usize, fault: Fault) -> bool {
        let is_calm = self.is_calm_but(at) && !self.is_troubled(at) && self.nodes[at].is_up;
        let forgets = matches!(fault, Fault::Crash | Fault::PowerLoss);
        if self.now_us() >= self.rules.faults_us || !is_calm || (forgets && !self.may_forget(at)) {
            return false;
        }
        match fault {
            Fault::Crash | Fault::PowerLoss => self.crash(at, fault),
            Fault::Freeze => self.freeze(at),
            Fault::Partition | Fault::OneWay | Fault::StoreCut | Fault::LeaseLoss => self.cut_off(at, fault),
            Fault::Disconnect => self.break_a_connection(at),
            Fault::SlowDisk => self.slow_disk_down(at),
            Fault::FullDisk => self.fill_disk(at),
            Fault::FailingSync => self.fail_sync(at),
            Fault::Clock => self.change_clock(at),
            Fault::Damage => return false,
        }
        true
    }

    fn freeze(&mut self, at: usize) {
        let length = self.rng.between(50_000, 2_500_000);
        self.nodes[at].frozen_until_us = self.now_us() + length;
        self.strike(at, Fault::Freeze, length);
    }

    fn slow_disk_down(&mut self, at: usize) {
        let length = self.rng.between(50_000, 1_500_000);
        self.nodes[at].slow_until_us = self.now_us() + length;
        self.strike(at, Fault::SlowDisk, length);
    }

    fn fill_disk(&mut self, at: usize) {
        let length = self.rng.between(20_000, 800_000);
        let full = DiskFault::for_ever(On::Kind(Call::Write), 1, Effect::DISK_FULL);
        self.nodes[at].handles.disk.plan(full);
        self.strike(at, Fault::FullDisk, length);
    }

    fn fail_sync(&mut self, at: usize) {
        let nth = self.rng.between(1, 3);
        let failing = DiskFault::once(On::Kind(Call::Sync), nth, Effect::IO_ERROR);
        self.nodes[at].handles.disk.plan(failing);
        self.strike(at, Fault::FailingSync, 50_000);
    }

    fn change_clock(&mut self, at: usize) {
        // A lease allows for a quarter.
        let by = if self.rng.chance(1, 3) { 150 } else { 50 };
        self.nodes[at].rate = self.rng.between(1_000 - by, 1_000 + by);
        if self.rng.chance(1, 3) {
            let by_ns = self.rng.below(1_500_000_000);
            let unix_ns = self.nodes[at].handles.clock.unix_ns();
            let back = self.rng.chance(1, 2);
            let to_ns = if back { unix_ns - by_ns } else { unix_ns + by_ns };
            self.nodes[at].handles.clock.set_unix_ns(to_ns);
        }
        self.strike(at, Fault::Clock, 100_000);
    }

    /// A fault begins, and lasts so long.
    pub fn strike(&mut self, at: usize, fault: Fault, length_us: u64) {
        let now_us = self.now_us();
        self.show(|| format!("node {at}: {fault:?} for {length_us}"));
        self.crossing.strikes(&mut self.tally, now_us, at, fault, now_us + length_us);
        self.waits.hinder();
        let boot = self.nodes[at].boot;
        self.push(length_us, at, boot, Event::Heal(fault));
    }

    /// A process ends, by itself, with its power, or so that its files can be damaged.
    pub fn crash(&mut self, at: usize, fault: Fault) {
        self.note_crash(at);
        self.forgetful = Some(at);
        let now_us = self.now_us();
        (0..self.rules.vbuckets).for_each(|vb| self.promises.may_lose(at, vb, now_us));
        self.nodes[at].stood_inside = self.snapshots_of(at);
        let seed = self.rng.next_u64();
        let again_us = self.now_us() + self.rng.between(1_000, 50_000);
        // What was not synced is lost or torn.
        self.nodes[at].crash((fault == Fault::PowerLoss).then_some(seed));
        for other in &self.nodes {
            other.links.break_with(at, again_us);
        }
        let away_us = self.rng.between(5_000, 1_800_000);
        self.strike(at, fault, away_us);
    }

    fn cut_off(&mut self, at: usize, fault: Fault) {
        let is_store_only = matches!(fault, Fault::StoreCut | Fault::LeaseLoss);
        let others: Vec<usize> =
            (0..self.nodes.len()).filter(|other| *other != at && !is_store_only).chain([STORE]).collect();
        let way = if fault == Fault::OneWay { self.rng.below(2) } else { 2 };
        for other in others {
            if way != 0 {
                self.cut.insert((at, other));
            }
            if way != 1 {
                self.cut.insert((other, at));
            }
        }
        let ttl_us = TTL.as_micros() as u64;
        let length = match fault {
            Fault::StoreCut => self.rng.between(50_000, ttl_us / 2),
            Fault::LeaseLoss => self.rng.between(ttl_us * 5 / 4, ttl_us * 5 / 2),
            _ => self.rng.between(50_000, 2_500_000),
        };
        self.strike(at, fault, length);
    }

    fn break_a_connection(&mut self, at: usize) {
        let sources = self.nodes[at].links.sources();
        if sources.is_empty() {
            return;
        }
        let source = sources[self.rng.below(sources.len() as u64) as usize];
        // Some stay away for so long that their copies are far behind.
        let length = if self.rng.chance(1, 4) { 1_500_000 } else { 100_000 };
        let length = self.rng.between(1_000, length);
        let again_us = self.now_us() + length;
        if self.nodes[at].links.break_with(source, again_us) {
            self.strike(at, Fault::Disconnect, length);
        }
    }

    /// A fault is over.
    pub fn heal(&mut self, at: usize, fault: Fault) {
        match fault {
            Fault::Crash | Fault::PowerLoss | Fault::Damage => self.restart(at),
            Fault::Partition | Fault::OneWay | Fault::StoreCut | Fault::LeaseLoss => {
                self.cut.retain(|(from, to)| *from != at && *to != at);
            }
            Fault::FullDisk | Fault::FailingSync => self.nodes[at].handles.disk.heal(),
            _ => {}
        }
    }

    fn restart(&mut self, at: usize) {
        if self.nodes[at].is_up || matches!(self.gone, Gone::Away(gone, _) if gone == at) {
            return;
        }
        if starts_alone(self, at) {
            return;
        }
        let random = self.rng.next_u64();
        self.show(|| format!("node {at} starts"));
        match self.nodes[at].start(&self.rules, random) {
            Ok(()) => {
                let before = std::mem::take(&mut self.nodes[at].stood_inside);
                self.check_inside(at, &before);
                damage::check_start(self, at);
                self.begin(at);
            }
            Err(what) => self.violation = Some(what),
        }
    }

    /// No more faults: everything that is over ends now, and it is looked whether all is well.
    fn mend(&mut self) {
        self.cut.clear();
        for node in &mut self.nodes {
            (node.frozen_until_us, node.slow_until_us) = (0, 0);
            node.handles.disk.heal();
        }
        (0..self.nodes.len()).for_each(|at| self.restart(at));
        let is_one_gone = matches!(self.gone, Gone::Away(..));
        let is_whole = self.newest.nodes.values().all(|node| node.status == Status::Active);
        if !is_whole && !is_one_gone && self.newest.rebalance.is_none() {
            // Whoever was failed over comes back, so that what is undecided can be decided.
            let at = self.any_node();
            self.take_back(at);
            self.ask_for(at, &Command::Rebalance { eject: Vec::new() });
        }
        // The last clients hear of their requests, and what expires does so.
        let is_over = self.now_us() >= self.rules.faults_us + 4_000_000;
        if is_over && !self.is_one_gone() && self.is_well() {
            self.is_done = !self.let_one_go();
        }
        self.push(50_000, 0, 0, Event::Fault);
    }

    /// Something that a bucket's own background work, or somebody who asks for it, does to it.
    fn chore(&mut self, at: usize) {
        let Some(bucket) = self.nodes[at].bucket.clone() else { return };
        let vb = VbId(self.rng.below(self.rules.vbuckets.into()) as u16);
        match self.rng.below(5) {
            0 | 1 => {
                let purge_before_s = self.rng.chance(1, 2).then(|| bucket.now().unix_s());
                // Nothing to do if the vBucket is not there.
                let _ =
                    bucket.compaction().compact(vb, CompactRequest { purge_before_s, purge_through: None });
            }
            2 => bucket.streams().drop_stream_cursors(vb),
            3 => {
                // Refused for what is not there.
                let _ = bucket.roles().create_checkpoint(vb);
            }
            _ => {
                let evict = |key: &Key| {
                    bucket.eviction().evict_value(VbId(key.vb), DocKey::new(&key.name)) == Ok(true)
                };
                if self.clients.keys.iter().filter(|key| evict(key)).count() > 0 {
                    self.works(at, Job::Eviction);
                }
            }
        }
    }

    /// A collection is made or dropped.
    fn change_collections(&mut self, at: usize) {
        let Some(view) = self.nodes[at].member.view.clone() else { return };
        let Some(bucket) = view.state.buckets.get(BUCKET) else { return };
        let uid = bucket.manifest.get("uid").and_then(|uid| uid.as_str()?.parse().ok()).unwrap_or(0u32) + 1;
        let mut collections = vec![json!({ "name": "_default", "uid": "0" })];
        let id = FIRST_COLLECTION + uid;
        // Every other manifest has one.
        if uid % 2 == 1 {
            collections.push(json!({ "name": format!("c{uid}"), "uid": format!("{id:x}") }));
        }
        let scopes = json!([{ "name": "_default", "uid": "0", "collections": collections }]);
        let command = Command::ChangeManifest {
            name: BUCKET.to_owned(),
            manifest: json!({ "uid": format!("{uid}"), "scopes": scopes }),
            next_ids: NextIds { scope: 8, collection: id + 1 },
        };
        if uid < 10 && self.ask_for(at, &command) {
            self.history.collection = if uid % 2 == 1 { id } else { 0 };
        }
    }

    fn ask_for_failover(&mut self, at: usize) {
        // Mostly one that is in trouble, if there is any.
        let troubled =
            (0..self.nodes.len()).find(|at| self.is_troubled(*at)).filter(|_| self.rng.chance(2, 3));
        let any = self.any_node();
        let other = troubled.unwrap_or(any);
        let node = NodeId(other as u32 + 1);
        let command = if self.rng.chance(1, 2) {
            Command::FailOver { node, force: false }
        } else {
            Command::FailOverGracefully { node }
        };
        if self.may_leave(other) {
            self.ask_for(at, &command);
        }
    }

    fn ask_for_rebalance(&mut self, at: usize) {
        let eject = NodeId(self.any_node() as u32 + 1);
        // At least two nodes stay, so that there is somebody to fail over to.
        let stay = self.nodes[at].member.view.as_ref().map_or(0, |view| {
            let stays = |id: &NodeId| *id != eject && view.state.is_active(*id);
            view.state.nodes.keys().filter(|id| stays(id)).count()
        });
        let eject = if stay >= 3 && self.rng.chance(1, 4) { vec![eject] } else { Vec::new() };
        self.ask_for(at, &Command::Rebalance { eject });
    }

    /// Nodes that were failed over come back.
    fn take_back(&mut self, at: usize) {
        let Some(view) = self.nodes[at].member.view.clone() else { return };
        let failed = view.state.nodes.iter().find(|(_, node)| node.status == Status::FailedOver);
        if let Some((node, _)) = failed {
            let delta = self.rng.chance(2, 3);
            self.ask_for(at, &Command::Recover { node: *node, delta });
        }
    }
}

/// Starts the node without its cluster first, at every fourth boot; whether it runs like that.
fn starts_alone(world: &mut World, at: usize) -> bool {
    if !(world.rules.seed + world.nodes[at].boot).is_multiple_of(4) || world.damage.is_some() {
        return false;
    }
    match world.nodes[at].start_alone(&world.rules) {
        Ok(false) => return false,
        Ok(true) => {
            world.show(|| format!("node {at} starts without its cluster"));
            let boot = world.nodes[at].boot;
            world.push(1_000, at, boot, Event::Work);
        }
        Err(what) => world.violation = Some(what),
    }
    true
}
