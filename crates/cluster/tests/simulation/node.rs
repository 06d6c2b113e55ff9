//! A simulated node: its lease, its fence, its copies, and its part in leading.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::VbState;
use cluster::store::{LeaseId, Version};
use cluster::{Address, Agent, Fence, Leader, LeaderConfig, Member, Report, View, Want};

use crate::bugs::Bug;
use crate::data::Copy;

pub const BUCKET: &str = "b";
/// How long a lease lives without being renewed.
pub const TTL: Duration = Duration::from_secs(1);

pub struct SimNode {
    pub uuid: String,
    pub up: bool,
    pub frozen_until_us: u64,
    /// Its clock's rate, in parts of 1,000.
    pub rate: u64,
    /// Counts its starts: what was meant for an earlier one is dropped.
    pub boot: u64,
    pub incarnation: u64,
    pub lease: Option<LeaseId>,
    /// The last renewal that was answered, by its own clock.
    pub renewed_ns: Option<u64>,
    pub fence: Fence,
    pub view: Option<Rc<View>>,
    pub read_at: Version,
    pub leads: bool,
    pub applied: u64,
    pub leader: Leader,
    pub copies: BTreeMap<u16, Copy>,
    pub reported: Option<Report>,
}

impl SimNode {
    pub fn new(at: usize, rate: u64) -> SimNode {
        SimNode {
            uuid: format!("node-{at}"),
            up: true,
            frozen_until_us: 0,
            rate,
            boot: 0,
            incarnation: 0,
            lease: None,
            renewed_ns: None,
            fence: Fence::closed(),
            view: None,
            read_at: Version::ABSENT,
            leads: false,
            applied: 0,
            leader: new_leader(),
            copies: BTreeMap::new(),
            reported: None,
        }
    }

    pub fn local_ns(&self, now_us: u64) -> u64 {
        now_us * self.rate
    }

    pub fn address(&self) -> Address {
        Address { host: self.uuid.clone(), kv: 1, http: 2 }
    }

    pub fn member(&self) -> Vec<u8> {
        let member = Member { incarnation: self.incarnation, address: self.address() };
        serde_json::to_vec(&member).expect("a member is JSON")
    }

    pub fn begin_life(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
        self.lease = None;
        self.renewed_ns = None;
        self.leads = false;
        self.fence.close();
    }

    pub fn crash(&mut self) {
        self.up = false;
        self.boot += 1;
        self.copies.values_mut().for_each(Copy::crash);
        self.view = None;
        self.read_at = Version::ABSENT;
        self.applied = 0;
        self.reported = None;
        self.leader = new_leader();
        self.fence.close();
    }

    /// Before anybody can reach it: whatever it was active for waits until it is admitted.
    pub fn restart(&mut self, incarnation: u64, bug: Option<Bug>) {
        self.up = true;
        self.begin_life(incarnation);
        if bug != Some(Bug::StreamFirst) {
            for copy in self.copies.values_mut().filter(|copy| copy.state != VbState::Dead) {
                copy.stop(VbState::Replica);
            }
        }
    }

    /// Opens the fence as far as lease and document allow.
    pub fn move_fence(&self, now_us: u64, bug: Option<Bug>) {
        let agent = self.view.as_ref().and_then(|view| Agent::new(&view.state, &self.uuid, self.incarnation));
        match (agent, self.renewed_ns) {
            (Some(agent), Some(_)) if agent.may_serve() && bug == Some(Bug::SkipFence) => {
                self.fence.renewed(self.local_ns(now_us), TTL * 1_000);
            }
            (Some(agent), Some(renewed_ns)) if agent.may_serve() => {
                let ttl = if bug == Some(Bug::FenceFromAnswer) { TTL * 5 / 4 } else { TTL };
                self.fence.renewed(renewed_ns, ttl);
            }
            _ => self.fence.close(),
        }
    }

    pub fn is_awake(&self, now_us: u64) -> bool {
        self.up && now_us >= self.frozen_until_us
    }

    pub fn serves(&self, vb: u16, now_us: u64) -> bool {
        self.is_awake(now_us)
            && self.copies.get(&vb).is_some_and(|copy| copy.state == VbState::Active)
            && self.fence.may_serve(self.local_ns(now_us))
    }

    /// Makes its copies be what a document says. Returns which have become active.
    pub fn apply(
        &mut self,
        view: &View,
        mut new_uuid: impl FnMut() -> u64,
        bug: Option<Bug>,
    ) -> BTreeSet<u16> {
        let mut activated = BTreeSet::new();
        let Some(agent) = Agent::new(&view.state, &self.uuid, self.incarnation) else {
            self.copies.clear();
            self.applied = view.state.revision;
            return activated;
        };
        let Some(bucket) = view.state.buckets.get(BUCKET) else { return activated };
        for vb in bucket.vbuckets() {
            let is = self.copies.get(&vb).map(|copy| copy.state);
            let want = agent.want(bucket, vb, is);
            if want == Want::Gone {
                self.copies.remove(&vb);
                continue;
            }
            if want == Want::HandedOver {
                if let Some(copy) = self.copies.get_mut(&vb) {
                    copy.source = None;
                }
                continue;
            }
            let copy = self.copies.entry(vb).or_insert_with(Copy::new);
            match want {
                Want::Active { topology } => {
                    if copy.state != VbState::Active {
                        copy.activate(new_uuid());
                        activated.insert(vb);
                    }
                    copy.topology = topology;
                }
                Want::Replica { source } => {
                    copy.stop(VbState::Replica);
                    copy.source = Some(source);
                }
                Want::TakeOver { source } => {
                    copy.stop(VbState::Pending);
                    copy.source = Some(source);
                    copy.takes_over = true;
                }
                Want::Hold => {
                    let source = copy.source.filter(|_| bug == Some(Bug::FollowOn));
                    copy.stop(VbState::Replica);
                    copy.source = source;
                }
                Want::Keep => copy.stop(VbState::Dead),
                Want::HandedOver | Want::Gone => {}
            }
        }
        self.applied = view.state.revision;
        activated
    }

    /// What it reports, `applied` being what it says that it has become as.
    pub fn report(&self, applied: u64, bug: Option<Bug>) -> Option<Report> {
        let view = self.view.as_ref()?;
        let agent = Agent::new(&view.state, &self.uuid, self.incarnation)?;
        let mut report = Report { incarnation: self.incarnation, applied, ..Report::default() };
        if let Some(bucket) = view.state.buckets.get(BUCKET) {
            let nothing =
                cluster::VbReport { state: None, high_seqno: 0, persisted: 0, high_prepared: 0, uuid: 0 };
            let of = |vb: u16| {
                let mut of = self.copies.get(&vb).map_or(nothing, Copy::report);
                if bug == Some(Bug::ForgetPrepared) {
                    of.high_prepared = 0;
                    of.high_seqno = of.high_seqno.min(of.uuid % 3);
                }
                (vb, of)
            };
            report.vbuckets.insert(BUCKET.to_owned(), agent.to_report(bucket).map(of).collect());
        }
        if agent.reports_kept() && !self.copies.is_empty() {
            report.kept.insert(BUCKET.to_owned(), self.copies.keys().copied().collect());
        }
        Some(report)
    }
}

fn new_leader() -> Leader {
    Leader::new(LeaderConfig { moves_per_node: 2, choice_patience: Duration::from_millis(300) })
}
