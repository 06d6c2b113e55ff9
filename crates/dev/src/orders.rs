//! What can be done to a development cluster and its nodes.

use std::sync::Arc;
use std::time::Duration;

use ::cluster::{Command, Node, NodeId, Refused, Status, View, command};
use ::node::injections::Injection;
use ::node::kept_users::security::SecuritySettings;
use ::node::kept_users::{KeptUsers, UsersRefusal};

use super::config::{DevError, MOST_NODES};
use super::node::moved;
use super::shared::{Shared, is_settled, under_way};

/// From what a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// From the other nodes.
    Nodes,
    /// From the coordination store.
    Store,
    /// From both.
    All,
}

/// Something to be done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Stop,
    Start { wait: Duration },
    Restart { wait: Duration },
    Kill,
    Freeze,
    Thaw { wait: Duration },
    Cut { from: From },
    Join { from: From, wait: Duration },
    FailOver { graceful: bool, force: bool, wait: Duration },
    Recover { delta: bool, rebalance: bool, wait: Duration },
    Remove { rebalance: bool, wait: Duration },
    Inject(Injection),
    Heal,
}

/// What to do with a node that the cluster does not know.
const LEFT: &str = "has left the cluster for good; remove it, and add another one with POST /v1/dev/nodes";

fn settle(shared: &Shared, at_most: Duration) -> Result<(), DevError> {
    if shared.wait(at_most, is_settled)? { Ok(()) } else { shared.not_settled(at_most) }
}

impl Shared {
    /// Does something to a node. Orders that wait do so until nothing is under way any more, and no longer than they are
    /// told to: what comes of them comes then later.
    pub(super) fn carry_out(self: &Arc<Shared>, number: u16, order: Order) -> Result<(), DevError> {
        let node = self.node(number)?;
        match order {
            Order::Stop => match node.stop()? {
                true => Ok(()),
                false => Err(DevError::State { node: number, is: "does not run" }),
            },
            Order::Start { wait } => {
                self.check_has_not_left(number)?;
                node.start(&self.config)?;
                self.wait_for(number, wait)
            }
            Order::Restart { wait } => {
                self.check_has_not_left(number)?;
                node.stop()?;
                node.start(&self.config)?;
                self.wait_for(number, wait)
            }
            Order::Kill => node.kill(),
            Order::Freeze => node.freeze(true),
            Order::Thaw { wait } => {
                node.freeze(false)?;
                self.wait_for(number, wait)
            }
            Order::Cut { from } => self.cut(number, from, true),
            Order::Join { from, wait } => {
                self.cut(number, from, false)?;
                self.wait_for(number, wait)
            }
            Order::FailOver { graceful, force, wait } => self.fail_over(number, graceful, force, wait),
            Order::Recover { delta, rebalance, wait } => self.recover(number, delta, rebalance, wait),
            Order::Remove { rebalance, wait } => self.remove(number, rebalance, wait),
            Order::Inject(injection) => node.inject(Some(injection)),
            Order::Heal => node.inject(None),
        }
    }

    /// Waits until a node that runs and is not cut off has been let in, and nothing is under way.
    fn wait_for(&self, number: u16, at_most: Duration) -> Result<(), DevError> {
        let node = self.node(number)?;
        let Some(member) = node.member() else { return Ok(()) };
        let end = self.env.clock.monotonic() + at_most;
        // What the store holds may still tell of the life before.
        if !member.wait_until_served(at_most) {
            return self.not_settled(at_most);
        }
        // Whoever holds a membership holds its folder: another order may stop it meanwhile.
        let uuid = member.uuid().to_owned();
        drop(member);
        let serves = |view: &View| match view.state.node_of(&uuid) {
            Some((_, Node { status: Status::Active, .. })) => node.look().may_serve,
            Some((id, _)) => view.alive(id).is_some(),
            None => true,
        };
        let left = end.saturating_sub(self.env.clock.monotonic());
        if self.wait(left, |view| serves(view) && is_settled(view))? {
            Ok(())
        } else {
            self.not_settled(at_most)
        }
    }

    /// What was ordered is not at its end; whoever did not want to wait for that did not ask.
    fn not_settled(&self, waited: Duration) -> Result<(), DevError> {
        if waited.is_zero() {
            return Ok(());
        }
        let nobody = || "no node has joined".to_owned();
        let what = self.view()?.map_or_else(nobody, |view| under_way(&view, |id| self.name_of(&view, id)));
        Err(DevError::NotSettled { waited, what })
    }

    fn cut(&self, number: u16, from: From, is_cut: bool) -> Result<(), DevError> {
        if from != From::Store {
            self.wires.cut(number, is_cut);
        }
        if from != From::Nodes {
            self.node(number)?.cut_from_store(is_cut);
        }
        Ok(())
    }

    /// Whether a node that starts would stay outside: it keeps what it has, and does not join by itself.
    fn check_has_not_left(&self, number: u16) -> Result<(), DevError> {
        let has_belonged = self.node(number)?.look().uuid.is_some() && self.view()?.is_some();
        if has_belonged { self.member(number).map(drop) } else { Ok(()) }
    }

    fn member(&self, number: u16) -> Result<(NodeId, Status), DevError> {
        self.id_of(number)?.ok_or(DevError::State { node: number, is: LEFT })
    }

    fn fail_over(&self, number: u16, graceful: bool, force: bool, wait: Duration) -> Result<(), DevError> {
        let (node, status) = self.member(number)?;
        if status != Status::Active && !(status == Status::FailedOver && force) {
            let instead = match status {
                Status::New => "rebalance, so that it has something to lose",
                _ => "recover it, so that it has something to lose",
            };
            return Err(DevError::Status { node: number, status, instead });
        }
        let command = match graceful {
            true => Command::FailOverGracefully { node },
            false => Command::FailOver { node, force },
        };
        self.ask(&command)?;
        settle(self, wait)
    }

    fn recover(&self, number: u16, delta: bool, rebalance: bool, wait: Duration) -> Result<(), DevError> {
        let (node, status) = self.member(number)?;
        match status {
            Status::Active => {
                let instead = "there is nothing to recover; fail it over first, or rebalance";
                return Err(DevError::Status { node: number, status, instead });
            }
            Status::New => {}
            Status::FailedOver | Status::DeltaRecovery | Status::FullRecovery => {
                if !self.node(number)?.look().is_running {
                    return Err(DevError::State { node: number, is: "does not run; start it first" });
                }
                if rebalance {
                    self.check_others(number)?;
                    self.check_up(|other, status| other == number || status != Status::FailedOver)?;
                }
                self.ask(&Command::Recover { node, delta })?;
                // The rebalance needs to know what copies it has.
                settle(self, wait)?;
            }
        }
        if rebalance { self.rebalance(wait) } else { Ok(()) }
    }

    /// Whether a rebalance for the sake of one node would make another one leave.
    fn check_others(&self, number: u16) -> Result<(), DevError> {
        for other in self.nodes().iter().filter(|other| other.number != number) {
            if let Some((_, Status::FailedOver)) = self.id_of(other.number)? {
                return Err(DevError::WouldLeave(other.number));
            }
        }
        Ok(())
    }

    /// Whether all are there between whom vBuckets would be spread.
    fn check_up(&self, is_needed: impl Fn(u16, Status) -> bool) -> Result<(), DevError> {
        let Some(view) = self.view()? else { return Ok(()) };
        for node in self.nodes() {
            let known = node.look().uuid.and_then(|uuid| view.state.node_of(&uuid));
            if let Some((id, Node { status, .. })) = known
                && is_needed(node.number, *status)
                && view.alive(id).is_none()
            {
                let is = "is down; start, thaw or join it, or fail it over first, or give rebalance=false";
                return Err(DevError::State { node: node.number, is });
            }
        }
        Ok(())
    }

    /// Rebalances. A vBucket that only failed over nodes have begins empty: the test that forced the failover accepted the
    /// loss.
    pub(super) fn rebalance(&self, wait: Duration) -> Result<(), DevError> {
        let eject = self.to_name(&Command::Rebalance { eject: Vec::new() })?;
        self.ask(&Command::Rebalance { eject })?;
        settle(self, wait)
    }

    /// Another node.
    pub(super) fn add(self: &Arc<Shared>, rebalance: bool, wait: Duration) -> Result<u16, DevError> {
        let number = {
            let _counting = self.counting.lock();
            let there: Vec<u16> = self.nodes().iter().map(|node| node.number).collect();
            if there.len() >= usize::from(MOST_NODES) {
                return Err(DevError::TooMany);
            }
            if rebalance {
                self.check_others(0)?;
                self.check_up(|_, status| status != Status::FailedOver)?;
            }
            // The number of one that was removed is free again.
            let number = (1..=MOST_NODES).find(|number| !there.contains(number)).ok_or(DevError::TooMany)?;
            let started = self.add_node(number, false).and_then(|node| node.start(&self.config));
            if started.is_err() {
                self.forget_node(number);
            }
            started?;
            number
        };
        self.wait_for(number, wait)?;
        if rebalance {
            self.rebalance(wait)?;
        }
        Ok(number)
    }

    /// The nodes that a rebalance has to name in the place of this command, because they may have the last copies of vBuckets;
    /// none if the command is not refused for that.
    fn to_name(&self, asked: &Command) -> Result<Vec<NodeId>, DevError> {
        let Some(view) = self.view()? else { return Ok(Vec::new()) };
        Ok(match command::apply(&view, asked) {
            Err(Refused::WouldBeEmpty { nodes, .. }) => with_failed_over(&view, nodes),
            _ => Vec::new(),
        })
    }

    /// A node without a share leaves, even if it may have the last copies of vBuckets: these begin empty.
    fn eject(&self, node: NodeId) -> Result<(), DevError> {
        let asked = Command::Eject { node };
        let eject = self.to_name(&asked)?;
        self.ask(&if eject.is_empty() { asked } else { Command::Rebalance { eject } })
    }

    /// A node leaves, and its documents with it.
    fn remove(&self, number: u16, rebalance: bool, wait: Duration) -> Result<(), DevError> {
        if let Some((node, status)) = self.id_of(number)? {
            match status {
                Status::Active => {
                    self.check_others(number)?;
                    self.ask(&Command::Rebalance { eject: vec![node] })?;
                }
                _ => {
                    if rebalance {
                        self.check_others(number)?;
                        self.check_up(|other, status| other != number && status != Status::FailedOver)?;
                    }
                    self.eject(node)?;
                }
            }
            let is_gone =
                self.wait(wait, |view| !view.state.nodes.contains_key(&node) && is_settled(view))?;
            if !is_gone {
                let is = "has not left yet; remove it again when the rebalance is over";
                return Err(DevError::State { node: number, is });
            }
            if status != Status::Active && rebalance {
                self.rebalance(wait)?;
            }
        }
        let _counting = self.counting.lock();
        let node = self.node(number)?;
        node.stop()?;
        let data = node.look().data;
        self.forget_node(number);
        let failed = |source| DevError::Io { what: "cannot remove the folder of the node", source };
        self.env.disk.remove_dir_all(&data).map_err(failed)
    }

    /// Moves the wall clock of a node, or of all.
    pub(super) fn advance_clock(&self, number: Option<u16>, seconds: i64) -> Result<(), DevError> {
        if let Some(number) = number {
            return self.node(number)?.advance_clock(seconds);
        }
        let mut offset_s = self.offset_s.lock();
        let nodes = self.nodes();
        // All or none.
        nodes.iter().try_for_each(|node| node.clock_after(seconds).map(drop))?;
        *offset_s = moved(*offset_s, seconds)?;
        nodes.iter().try_for_each(|node| node.advance_clock(seconds))
    }

    /// Injects something into all nodes that run, or takes back from them what was injected.
    pub(super) fn inject(&self, injection: Option<Injection>) -> Result<(), DevError> {
        let running = self.nodes().into_iter().filter(|node| node.look().is_running);
        running.into_iter().try_for_each(|node| node.inject(injection))
    }

    /// Brings the cluster back to where a test begins: all nodes serve, without injections, and all buckets are empty but
    /// for the documents of the seed.
    /// Nodes that were added, buckets, collections and clocks stay as they are.
    pub(super) fn reset(self: &Arc<Shared>, wait: Duration) -> Result<(), DevError> {
        for node in self.nodes() {
            self.cut(node.number, From::All, false)?;
            let look = node.look();
            if !look.is_running {
                self.check_has_not_left(node.number)?;
                node.start(&self.config)?;
            } else if look.is_frozen {
                node.freeze(false)?;
            }
            node.inject(None)?;
        }
        let nodes = self.nodes();
        nodes.iter().try_for_each(|node| self.wait_for(node.number, wait))?;
        for node in nodes {
            if self.member(node.number)?.1 != Status::Active {
                self.recover(node.number, true, false, wait)?;
            }
        }
        // Also a node that came back in the middle of its failover may have lost what it was active for.
        self.rebalance(wait)?;
        reset_security(self)?;
        self.empty_buckets()?;
        settle(self, wait)?;
        self.sow()
    }

    fn empty_buckets(&self) -> Result<(), DevError> {
        let Some(view) = self.view()? else { return Ok(()) };
        let node = self.nodes().iter().find_map(|node| node.node()).ok_or(DevError::Nobody)?;
        for name in view.state.buckets.keys() {
            let failed = |source| DevError::Bucket { name: name.clone(), source };
            node.management().flush(name).map_err(failed)?;
        }
        Ok(())
    }
}

/// Settings of security that a test has set go: what nodes were started with counts again.
fn reset_security(shared: &Shared) -> Result<(), DevError> {
    let node = shared.nodes().iter().find_map(|node| node.node()).ok_or(DevError::Nobody)?;
    node.accounts().refresh(&node);
    if node.accounts().security().is_unset() {
        return Ok(());
    }
    let unset = |kept: &mut KeptUsers| {
        kept.set_security(SecuritySettings::default());
        Ok(())
    };
    let refused = |refusal: UsersRefusal| {
        DevError::Refused(format!("the settings of security cannot be reset: {refusal:?}"))
    };
    node.accounts().change_kept(&node, unset).map_err(refused)
}

/// These nodes and all that were failed over: a rebalance that names some has to name those, too.
fn with_failed_over(view: &View, nodes: Vec<NodeId>) -> Vec<NodeId> {
    let failed = view.state.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver);
    let failed = failed.map(|(id, _)| *id).filter(|id| !nodes.contains(id)).collect::<Vec<_>>();
    nodes.into_iter().chain(failed).collect()
}
