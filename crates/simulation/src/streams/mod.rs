//! Two or three nodes that follow each other without a cluster, on whose histories everything is known.
//!
//! An operator gives roles and sources one by one: there are failovers with an old active node that goes on, handovers
//! that are given up, replicas that follow late. What a node has is compared with the history that it says it is in, again
//! and again; each request for a stream must be answered by the rule; in the end all nodes have the same.
//! Nodes, their connections and links, disks, time and events are those of the clusters (`world.rs`).

mod copy;
mod counts;
mod histories;
mod operator;
mod third;
mod writer;

use std::collections::BTreeMap;
use std::time::Duration;

use base::env::sim::{SimDisk, Survival};
use base::{DocKey, VbId, VbState};
use engine::{CompactRequest, Progress};
use protocol::dcp::StreamRequest;

use self::histories::{At, Histories, KEYS, all_of, bucket_of, place, role};
use self::operator::{Field, Operator};
use self::third::Third;
use self::writer::Writer;
use crate::dice::{Dice, show};
use crate::links;
use crate::mistakes::Mistake;
use crate::nodes::Nodes;
use crate::rule;
use crate::rules::Rules;
use crate::tap::{AskedStream, Tap};

pub use counts::{Row, StreamCounts};

/// In one of so many seeds the third party knows of no collections.
const PLAIN_ONE_IN: u64 = 5;
/// All is well if nothing has moved for so many looks.
const QUIET_LOOKS: u64 = 6;
/// Disks work only when a run says so: seldom, so that much is lost with a crash.
const NEVER_US: u64 = u64::MAX;
/// Longer than any document lives.
const EXPIRED: Duration = Duration::from_secs(10);

/// What there is beside the nodes in a run of streams.
pub struct Streams {
    operator: Operator,
    histories: Histories,
    third: Third,
    writer: Writer,
    dice: Dice,
    mistake: Mistake,
    /// By vBucket of a node: to where it was told to roll back since it did last.
    ordered: BTreeMap<At, Vec<u64>>,
    /// By node: what its disk was some time ago, for one that forgets.
    old_disks: BTreeMap<usize, SimDisk>,
    /// Connections carry next to nothing for so many steps.
    slow: u64,
    is_mending: bool,
    quiet: u64,
    has_expired: bool,
}

/// What is known of a node's vBuckets before its links work.
pub struct Before(Vec<(At, Option<VbState>)>);

impl Streams {
    /// Gives the nodes their first roles. `None` if the rules want a cluster.
    pub fn new(rules: &Rules, nodes: &mut Nodes) -> Option<Streams> {
        let mistake = rules.streams?;
        let mut dice = Dice(rules.seed);
        for node in 0..nodes.len() {
            nodes[node].slow_until_us = NEVER_US;
            nodes[node].start_alone(rules).expect("it belongs to no cluster");
            nodes[node].open(rules).expect("the disk works");
            for at in all_of(nodes, node) {
                let role = if node == 0 { VbState::Active } else { VbState::Replica };
                let set = bucket_of(nodes, node).roles().set_vbucket_state(at.vb, role, None);
                set.expect("there is one");
            }
            assert!(bucket_of(nodes, node).flushing().flush_all(), "the disk works");
        }
        let is_plain = rules.seed % PLAIN_ONE_IN == PLAIN_ONE_IN - 1;
        let third = Third::new(dice.below(nodes.len() as u64) as usize, rules.vbuckets, is_plain);
        Some(Streams {
            operator: Operator::new(nodes),
            histories: Histories::new(rules.seed, nodes),
            third,
            writer: Writer::default(),
            dice,
            mistake,
            ordered: BTreeMap::new(),
            old_disks: BTreeMap::new(),
            slow: 0,
            is_mending: false,
            quiet: 0,
            has_expired: false,
        })
    }

    /// What happened.
    pub fn counts(&self) -> &StreamCounts {
        &self.histories.counts
    }

    /// A look at what passes between a node and the one that it follows.
    pub fn tap(&self, nodes: &Nodes, source: usize, target: usize) -> Tap {
        Tap::new(self.mistake, bucket_of(nodes, source).clone(), bucket_of(nodes, target).clone())
    }

    /// How many bytes a connection carries at most in a turn.
    pub fn most_bytes(&self, most: u64) -> u64 {
        match self.slow {
            0 if self.is_mending => 60_000,
            0 => most,
            _ => 40,
        }
    }

    /// One thing happens, and the operator looks. Returns the node that has started again, if one has.
    pub fn step(&mut self, rules: &Rules, nodes: &mut Nodes, now_us: u64) -> Result<Option<usize>, String> {
        self.slow = self.slow.saturating_sub(1);
        let started = self.happen(rules, nodes, now_us)?;
        self.reconcile(nodes)?;
        Ok(started)
    }

    fn reconcile(&mut self, nodes: &mut Nodes) -> Result<(), String> {
        let Streams { operator, histories, third, dice, is_mending, .. } = self;
        operator.reconcile(&mut Field { nodes, histories, third, dice }, *is_mending)
    }

    fn happen(&mut self, rules: &Rules, nodes: &mut Nodes, now_us: u64) -> Result<Option<usize>, String> {
        let node = self.dice.below(nodes.len() as u64) as usize;
        let at = At { node, vb: VbId(self.dice.below(rules.vbuckets.into()) as u16) };
        match self.dice.below(100) {
            0..35 => (0..self.dice.below(6) + 1).for_each(|_| self.change(rules, nodes)),
            35..50 => {
                bucket_of(nodes, node).flushing().flush_step();
            }
            50..62 => {
                bucket_of(nodes, node).streams().backfills().step();
                bucket_of(nodes, node).fetching().fetch_step();
            }
            62..74 => self.upkeep(nodes, at),
            74..80 => nodes.let_time_pass(now_us, self.dice.below(800_000)),
            80..86 => self.third.act(nodes, &self.histories, &mut self.dice)?,
            86..89 => self.disconnect(nodes, node, now_us),
            89 => {
                self.slow = 10 + self.dice.below(30);
                self.histories.counts.slow += 1;
            }
            90 if self.dice.one_in(2) => {
                self.crash(rules, nodes, node)?;
                return Ok(Some(node));
            }
            91 if self.dice.one_in(2) => {
                let Streams { operator, histories, third, dice, .. } = self;
                operator.fail_over(&mut Field { nodes, histories, third, dice }, at)?;
            }
            92 => {
                let Streams { operator, histories, third, dice, .. } = self;
                operator.hand_over(&mut Field { nodes, histories, third, dice }, at);
            }
            93..96 => self.histories.look(nodes, at)?,
            _ => {}
        }
        self.histories.note_work(nodes, node);
        Ok(None)
    }

    fn change(&mut self, rules: &Rules, nodes: &Nodes) {
        let vb = VbId(self.dice.below(rules.vbuckets.into()) as u16);
        let at = At { node: self.dice.below(nodes.len() as u64) as usize, vb };
        self.writer.change(nodes, &mut self.histories, at, &mut self.dice);
    }

    fn disconnect(&mut self, nodes: &Nodes, node: usize, now_us: u64) {
        let sources = nodes[node].links.sources();
        if !sources.is_empty() {
            let source = sources[self.dice.below(sources.len() as u64) as usize];
            self.histories.counts.disconnects += u64::from(nodes[node].links.break_with(source, now_us));
        }
    }

    /// What only a bucket's upkeep does to it.
    fn upkeep(&mut self, nodes: &Nodes, At { node, vb }: At) {
        let bucket = bucket_of(nodes, node);
        match self.dice.below(9) {
            0 => {
                self.histories.counts.purges += 1;
                show(|| format!("node {node} {vb:?} is compacted"));
                let request = CompactRequest { purge_before_s: Some(u32::MAX), purge_through: None };
                drop(bucket.compaction().compact(vb, request));
                bucket.compaction().compact_step();
            }
            1 => {
                self.histories.counts.dropped_cursors += 1;
                bucket.streams().drop_stream_cursors(vb);
            }
            2 => bucket.roles().create_checkpoint(vb).expect("there is one"),
            3 => {
                let name = self.histories.name(self.dice.below(KEYS));
                // Refused if there is no such value in memory.
                let _ = bucket.eviction().evict_value(vb, DocKey::new(&name));
            }
            4 => self.set_memory(nodes, node, true),
            5 => self.set_memory(nodes, node, false),
            6 => _ = bucket.flushing().file_step(),
            _ => _ = bucket.maintenance().keep_step(),
        }
    }

    fn set_memory(&mut self, nodes: &Nodes, node: usize, is_short: bool) {
        self.histories.counts.short_of_memory += u64::from(is_short);
        let (quota, share) = if is_short { ("1048576", "0.01") } else { ("268435456", "0.2") };
        let settings = [("max_size", quota), ("checkpoint_memory_ratio", share)];
        bucket_of(nodes, node).set_params(&settings).expect("settings that there are");
    }

    /// A node's process ends without a word, or its power goes, and it starts again.
    fn crash(&mut self, rules: &Rules, nodes: &mut Nodes, node: usize) -> Result<(), String> {
        if self.third.node == node {
            self.third.catch_up(nodes, &self.histories)?;
            self.third.disconnect();
        }
        let before: Vec<u64> = all_of(nodes, node).map(|at| place(nodes, at).uuid).collect();
        let power = self.dice.one_in(2).then(|| self.dice.below(1 << 40));
        show(|| format!("node {node} ends, power {power:?}"));
        let counts = &mut self.histories.counts;
        *if power.is_some() { &mut counts.power_losses } else { &mut counts.kills } += 1;
        self.writer.lose(node);
        self.operator.forget(node);
        self.ordered.retain(|at, _| at.node != node);
        nodes[node].crash(power);
        if self.mistake == Mistake::ForgetSync {
            let now = nodes[node].handles.disk.image(Survival::Synced);
            let old = self.old_disks.insert(node, now);
            if let (Some(_), Some(old)) = (power, old) {
                nodes[node].handles = nodes[node].handles.with_disk(old);
            }
        }
        nodes[node].start_alone(rules)?;
        nodes[node].slow_until_us = NEVER_US;
        let bucket = bucket_of(nodes, node);
        while bucket.loading().load_step() != Progress::Idle {}
        self.histories.came_back(nodes, node, &before)
    }

    /// A node's threads are about to work.
    pub fn before_work(&mut self, nodes: &Nodes, node: usize) -> Result<Before, String> {
        if self.third.node == node {
            self.third.catch_up(nodes, &self.histories)?;
        }
        Ok(Before(all_of(nodes, node).map(|at| (at, role(nodes, at))).collect()))
    }

    /// A node's links have worked.
    pub fn after_links(&mut self, nodes: &Nodes, node: usize, before: Before) -> Result<(), String> {
        self.histories.counts.turns += 1;
        for (at, before) in before.0 {
            let is_active = role(nodes, at) == Some(VbState::Active);
            if before == Some(VbState::Active) || !is_active {
                continue;
            }
            let source = At { node: self.operator.source_of(at), ..at };
            if role(nodes, source) == Some(VbState::Active) {
                return Err(format!("{source:?} is active and was handed over to node {node}"));
            }
            let uuid = place(nodes, source).uuid;
            self.histories.name_branch(nodes, at, uuid)?;
        }
        self.histories.check_rising(nodes, node)
    }

    /// A node's threads have worked.
    pub fn after_work(&mut self, nodes: &Nodes, node: usize) {
        if self.is_mending {
            let bucket = bucket_of(nodes, node);
            bucket.flushing().flush_step();
            bucket.streams().backfills().step();
            bucket.fetching().fetch_step();
        }
        self.writer.go_on(nodes, node);
        self.histories.note_work(nodes, node);
    }

    /// A vBucket of a node went back in its history.
    pub fn rolled_back(&mut self, nodes: &Nodes, node: usize, vb: u16) -> Result<(), String> {
        let at = At { node, vb: VbId(vb) };
        let ordered = self.ordered.entry(at).or_default();
        let most = ordered.iter().copied().max();
        // A younger connection may have asked, too, and its rollback is still to come.
        let last = ordered.pop().filter(|_| !ordered.is_empty());
        ordered.clear();
        ordered.extend(last);
        let most = most.ok_or_else(|| format!("{at:?} went back, and was not told to"))?;
        self.histories.rolled_back(nodes, at, most)
    }

    /// A stream begins only where the histories are one, and a rollback goes to where the rule says.
    pub fn check_answer(
        &mut self,
        nodes: &Nodes,
        source: usize,
        target: usize,
        asked: &AskedStream,
    ) -> Result<(), String> {
        let AskedStream { vb, request, answer } = *asked;
        let (from, to) = (At { node: source, vb }, At { node: target, vb });
        show(|| format!("{source} answers {target} {vb:?} {request:?}: {answer:?}"));
        let StreamRequest { start, snapshot_start, snapshot_end, .. } = request;
        let is_inside = snapshot_start < start && start < snapshot_end;
        let there = place(nodes, from);
        let log = bucket_of(nodes, source).with_vbucket(vb, |vb| vb.failover().to_entries());
        let wanted = rule::rollback(&request, &log.unwrap_or_default(), there.high, there.purge);
        if wanted != answer.err().map(|to| to.0) {
            return Err(format!("{request:?} of {target} was answered {answer:?}, not {wanted:?}"));
        }
        match answer {
            Err(back) => self.ordered.entry(to).or_default().push(back.0),
            // Orders before it are over.
            Ok(()) => drop(self.ordered.remove(&to)),
        }
        let (theirs, ours) = (self.histories.branch(nodes, from)?, self.histories.branch(nodes, to)?);
        // What counts is where the node stands, not where it says.
        let here = place(nodes, to);
        let needed = if here.start == here.high { here.high } else { here.end };
        let shared = answer.err().map_or(needed, |to| to.0);
        // It may have been on its way when the node was told something else.
        let is_meant = self.operator.follows(to, source);
        if start.0 > 0 && is_meant && here.high == start.0 && !copy::agree(theirs, ours, shared) {
            return Err(format!(
                "{request:?} of {target} was answered {answer:?}: not the same up to {shared}"
            ));
        }
        if answer.is_ok() {
            self.histories.counts.streams += 1;
            self.histories.counts.inside += u64::from(is_inside);
        }
        Ok(())
    }

    /// Nothing goes wrong any more: all nodes come to have the same. Whether they have.
    pub fn mend(&mut self, nodes: &mut Nodes, now_us: u64) -> Result<bool, String> {
        if !std::mem::replace(&mut self.is_mending, true) {
            self.slow = 0;
            for node in 0..nodes.len() {
                self.set_memory(nodes, node, false);
            }
        }
        self.reconcile(nodes)?;
        self.quiet = if self.is_level(nodes) { self.quiet + 1 } else { 0 };
        if self.quiet <= QUIET_LOOKS {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.has_expired, true) {
            // Documents that are still to expire do so while others follow.
            nodes.let_time_pass(now_us, EXPIRED.as_micros() as u64);
            self.quiet = 0;
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether all replicas stream and have got as far as their active node.
    fn is_level(&self, nodes: &Nodes) -> bool {
        let is_level = |vb: VbId| {
            let plan = self.operator.plan(vb);
            let high = |node: usize| place(nodes, At { node, vb }).high;
            plan.heir.is_none() && (0..nodes.len()).all(|node| high(node) == high(plan.active))
        };
        nodes.vbuckets().all(|vb| is_level(VbId(vb)))
            && nodes.iter().all(|node| links::are_streaming(node.front_end.replication()))
    }

    /// All nodes have the same, and clients read it.
    pub fn check_end(&mut self, nodes: &Nodes) -> Result<(), String> {
        for vb in nodes.vbuckets().map(VbId) {
            let active = At { node: self.operator.plan(vb).active, vb };
            let log = |at: At| bucket_of(nodes, at.node).with_vbucket(vb, |vb| vb.failover().to_entries());
            let (wanted, histories) = (place(nodes, active), log(active));
            for at in (0..nodes.len()).map(|node| At { node, vb }) {
                let place = place(nodes, at);
                if place.high != wanted.high || log(at) != histories {
                    let (has, wants) = (log(at), &histories);
                    return Err(format!("{at:?}: {place:?} {has:?}, active: {wanted:?} {wants:?}"));
                }
                self.histories.look(nodes, at)?;
                self.histories.check_reads(nodes, at)?;
            }
        }
        let mut counts = self.histories.counts.clone();
        self.third.finish(nodes, &self.histories, &mut self.dice, &mut counts)?;
        self.histories.counts = counts;
        self.writer = Writer::default();
        Ok(())
    }
}
