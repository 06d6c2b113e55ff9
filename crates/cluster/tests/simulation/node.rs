//! A simulated node: its life, its copies, and its part in leading. What decides is the product's; copies and streams are
//! toys.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use base::VbState;
use base::env::sim::SplitMix64;
use cluster::membership::{self, Fate};
use cluster::store::Version;
use cluster::{
    Address, Agent, Applied, ApplyTarget, Chain, Damaged, Following, Given, Leader, LeaderConfig, Member,
    Membership, NodeId, Refusals, Report, VbReport, View, apply_bucket, let_go,
};

use crate::bugs::Bug;
use crate::data::Copy;
use crate::lease::Held;
use crate::patience::{LONGEST_LOOK, Watch};

pub const BUCKET: &str = "b";
pub const BUCKET_UUID: &str = "00000000000000000000000000000000";

pub struct SimNode {
    pub uuid: String,
    pub up: bool,
    pub frozen_until_us: u64,
    /// Until when it takes long to become what it reads.
    pub slow_until_us: u64,
    /// Until when its bucket cannot be made what it reads.
    pub stuck_until_us: u64,
    /// The life in which it has become what it read, or was held.
    become_in: Option<u64>,
    /// When it could last hear of the store and of the other nodes.
    pub heard_us: BTreeMap<usize, u64>,
    /// Its clock's rate, in parts of 1,000.
    pub rate: u64,
    /// Counts its starts: what was meant for an earlier one is dropped.
    pub boot: u64,
    pub held: Held,
    pub view: Option<Rc<View>>,
    pub read_at: Version,
    pub applied: u64,
    /// The newest revision beyond which it serves nothing.
    pub let_go: u64,
    /// The newest state that it has seen; outlives it.
    pub seen: Membership,
    pub leader: Leader,
    pub watch: Watch,
    pub copies: RefCell<BTreeMap<u16, Copy>>,
    /// vBuckets whose files are damaged. Those that are in `copies`, too, are served from what can be read.
    pub damaged: RefCell<BTreeMap<u16, Copy>>,
    /// vBuckets that were set aside since the world looked.
    pub set_aside: RefCell<Vec<u16>>,
    /// vBuckets that were taken over and not served since.
    pub unchecked: BTreeSet<u16>,
    given: Given<Vec<Chain>>,
}

impl SimNode {
    pub fn new(at: usize, rate: u64, random: u64) -> SimNode {
        SimNode {
            uuid: format!("node-{at}"),
            up: true,
            frozen_until_us: 0,
            slow_until_us: 0,
            stuck_until_us: 0,
            become_in: None,
            heard_us: BTreeMap::new(),
            rate,
            boot: 0,
            held: Held::new(random),
            view: None,
            read_at: Version::ABSENT,
            applied: 0,
            let_go: 0,
            seen: Membership::default(),
            leader: new_leader(),
            watch: Watch::default(),
            copies: RefCell::default(),
            damaged: RefCell::default(),
            set_aside: RefCell::default(),
            unchecked: BTreeSet::new(),
            given: Given::default(),
        }
    }

    pub fn local_ns(&self, now_us: u64) -> u64 {
        now_us * self.rate
    }

    pub fn address(&self) -> Address {
        Address::new(self.uuid.clone(), 1, 2)
    }

    pub fn member(&self) -> Vec<u8> {
        let member = Member {
            incarnation: self.held.life().incarnation(),
            address: self.address(),
            limits: None,
            reads: 2,
            node_login: false,
            timed_proofs: false,
            moves_stores: false,
        };
        serde_json::to_vec(&member).expect("a member is JSON")
    }

    pub fn crash(&mut self) {
        self.up = false;
        self.boot += 1;
        self.copies.get_mut().values_mut().for_each(Copy::crash);
        // What a copy was given while it was served on is in its files like the rest.
        for (vb, damaged) in self.damaged.get_mut() {
            if let Some(served) = self.copies.get_mut().remove(vb) {
                *damaged = served;
            }
        }
        self.view = None;
        self.read_at = Version::ABSENT;
        (self.applied, self.let_go) = (0, 0);
        self.become_in = None;
        self.given = Given::default();
        self.leader = new_leader();
        self.watch = Watch::default();
        self.held.fence().close();
    }

    /// Before anybody can reach it: whatever it was active for waits until it is admitted.
    pub fn restart(&mut self, random: u64, now_ns: u64, bug: Option<Bug>) {
        self.up = true;
        (self.frozen_until_us, self.slow_until_us, self.stuck_until_us) = (0, 0, 0);
        self.held.restart(random, &self.seen, now_ns);
        if bug != Some(Bug::NotHeld) {
            let copies = self.copies.get_mut().values_mut();
            copies.filter(|copy| copy.state != VbState::Dead).for_each(|copy| copy.stop(VbState::Replica));
        }
    }

    pub fn is_awake(&self, now_us: u64) -> bool {
        self.up && now_us >= self.frozen_until_us
    }

    pub fn role(&self, vb: u16) -> Option<VbState> {
        self.copies.borrow().get(&vb).map(|copy| copy.state)
    }

    pub fn serves(&self, vb: u16, now_us: u64) -> bool {
        self.is_awake(now_us)
            && self.role(vb) == Some(VbState::Active)
            && self.held.fence().may_serve(self.local_ns(now_us))
    }

    /// Makes its copies be what a document says. Returns which have become active.
    pub fn apply(&mut self, view: &View, rng: SplitMix64) -> BTreeSet<u16> {
        let Some(agent) = Agent::new(&view.state, &self.uuid, self.held.life().incarnation()) else {
            // It has left, and keeps what it has.
            self.copies.get_mut().values_mut().for_each(|copy| copy.stop(VbState::Dead));
            self.damaged.get_mut().clear();
            self.has_become(view.state.revision);
            return BTreeSet::new();
        };
        let Some(bucket) = view.state.buckets.get(BUCKET) else {
            // Its identity is what World gives it.
            if membership::fate(&view.state, BUCKET, Some(BUCKET_UUID)) == Fate::Unknown {
                let copies = self.copies.get_mut().values_mut();
                copies.for_each(|copy| copy.stop(VbState::Dead));
            } else {
                self.copies.get_mut().clear();
                self.damaged.get_mut().clear();
            }
            self.given = Given::default();
            self.has_become(view.state.revision);
            return BTreeSet::new();
        };
        let target = Copies { node: self, view, activated: RefCell::default(), rng: RefCell::new(rng) };
        let mut given = self.given.clone();
        let Ok(()) = apply_bucket(&agent, bucket, &target, &mut given);
        let activated = target.activated.take();
        self.given = given;
        self.has_become(view.state.revision);
        self.held.note_become(&view.state, &self.uuid);
        activated
    }

    fn has_become(&mut self, revision: u64) {
        (self.applied, self.let_go) = (revision, revision);
        self.become_in = Some(self.held.life().incarnation());
    }

    /// Its bucket cannot be made what a document says: it lets go of what it must not serve.
    pub fn fail_to_apply(&mut self, view: &View) {
        let incarnation = self.held.life().incarnation();
        let agent = Agent::new(&view.state, &self.uuid, incarnation);
        let is_in_life = self.become_in == Some(incarnation);
        let bucket = view.state.buckets.get(BUCKET).filter(|_| is_in_life);
        let (activated, rng) = (RefCell::default(), RefCell::new(SplitMix64::new(0)));
        let target = Copies { node: self, view, activated, rng };
        if let (Some(agent), Some(bucket)) = (agent, bucket) {
            let Ok(()) = let_go(&agent, bucket, &target);
        } else {
            let Ok(()) = target.follow(&BTreeMap::new());
            let served = |copy: &&mut Copy| matches!(copy.state, VbState::Active | VbState::Pending);
            self.copies.get_mut().values_mut().filter(served).for_each(|copy| copy.stop(VbState::Replica));
        }
        self.let_go = view.state.revision;
        self.become_in = Some(incarnation);
        self.held.note_become(&view.state, &self.uuid);
    }

    /// What it reports.
    pub fn report(&self, now_ns: u64) -> Option<Report> {
        let view = self.view.as_ref()?;
        let agent = Agent::new(&view.state, &self.uuid, self.held.life().incarnation())?;
        let copies = self.copies.borrow();
        let of = |_: &str, vb: u16| copies.get(&vb).map_or(VbReport::NOTHING, Copy::report);
        let failed = (self.applied < self.let_go).then(|| BUCKET.to_owned());
        let applied = Applied::from(self.applied).after(self.let_go, &failed);
        let applied = Applied { let_go: self.let_go, ..applied };
        let mut report = agent.report(&view.state, &applied, of);
        report.note_damaged(BUCKET, Damaged::of(self.damaged.borrow().keys().copied()));
        Some(Report { bound: self.held.authority.bound(&view.state, now_ns), ..report })
    }
}

/// The copies of one look.
struct Copies<'a> {
    node: &'a SimNode,
    view: &'a View,
    activated: RefCell<BTreeSet<u16>>,
    rng: RefCell<SplitMix64>,
}

impl Copies<'_> {
    fn change(&self, vb: u16, change: impl FnOnce(&mut Copy)) {
        change(self.node.copies.borrow_mut().entry(vb).or_insert_with(Copy::new));
    }
}

impl ApplyTarget for Copies<'_> {
    type Topology = Vec<Chain>;
    type Error = Infallible;

    fn role(&self, vb: u16) -> Option<VbState> {
        self.node.copies.borrow().get(&vb).map(|copy| copy.state)
    }

    fn is_unreadable(&self, vb: u16) -> bool {
        self.is_damaged(vb) && self.role(vb).is_none()
    }

    fn is_damaged(&self, vb: u16) -> bool {
        self.node.damaged.borrow().contains_key(&vb)
    }

    fn is_live(&self, vb: u16, id: NodeId) -> bool {
        let has_said = self.view.alive(id).is_some() && self.view.report(id).is_some();
        has_said && !self.view.is_unusable(id, BUCKET, vb)
    }

    fn set_aside(&self, vb: u16) -> Result<(), Infallible> {
        assert!(self.role(vb).is_none_or(|is| is == VbState::Dead), "vBucket {vb} is in use");
        self.node.copies.borrow_mut().remove(&vb);
        self.node.damaged.borrow_mut().remove(&vb);
        self.node.set_aside.borrow_mut().push(vb);
        Ok(())
    }

    fn topology(&self, _: u16, chains: &[Chain]) -> Result<Vec<Chain>, Infallible> {
        Ok(chains.to_vec())
    }

    fn set_role(&self, vb: u16, role: VbState) -> Result<(), Infallible> {
        self.change(vb, |copy| copy.stop(role));
        Ok(())
    }

    fn activate(&self, vb: u16, topology: Vec<Chain>) -> Result<(), Infallible> {
        let uuid = self.rng.borrow_mut().next_u64();
        self.change(vb, |copy| {
            if copy.state != VbState::Active {
                copy.activate(uuid);
                self.activated.borrow_mut().insert(vb);
            }
            copy.topology = topology;
        });
        Ok(())
    }

    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<Infallible>> {
        for (_, copy) in
            self.node.copies.borrow_mut().iter_mut().filter(|(vb, _)| !following.contains_key(vb))
        {
            (copy.source, copy.takes_over) = (None, false);
        }
        for (vb, of) in following {
            self.change(*vb, |copy| {
                if (copy.source, copy.takes_over) != (Some(of.source), of.takes_over) {
                    copy.stop(if of.takes_over { VbState::Pending } else { VbState::Replica });
                    (copy.source, copy.takes_over) = (Some(of.source), of.takes_over);
                }
            });
        }
        Ok(())
    }

    fn remove(&self, vb: u16) -> Result<(), Infallible> {
        self.node.copies.borrow_mut().remove(&vb);
        Ok(())
    }
}

fn new_leader() -> Leader {
    Leader::new(LeaderConfig {
        moves_per_node: 2,
        choice_patience: Duration::from_millis(300),
        longest_look: LONGEST_LOOK,
        stall_patience: Duration::from_secs(1),
    })
}
