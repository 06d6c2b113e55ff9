//! A node's part in the cluster: its life, its fence, the document that it follows, and leading if it is elected. What a
//! server's two threads do, as answers to what the store said.

use std::rc::Rc;
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command};
use cluster::store::{Snapshot, Version};
use cluster::{
    Address, Agent, Applied, Given, Leader, LeaderConfig, Member, Report, Standing, View, apply_bucket, keys,
    let_go,
};
use vbucket::{Manifest, Topology};

use crate::lease::Held;
use crate::node::{BUCKET, Node};
use crate::rules::Rules;
use crate::store::Request;
use crate::target::{NotDone, SimSeat, is_live};

/// What a node knows and is in its cluster.
pub struct Membership {
    /// Its identity.
    pub uuid: String,
    /// Its life, and whether it may serve.
    pub held: Held,
    /// What it read last.
    pub view: Option<Rc<View>>,
    /// The newest revision that it is as.
    pub applied: u64,
    /// The newest revision that it has seen; outlives its processes.
    pub seen: u64,
    /// As of when that was.
    pub read_at: Version,
    /// Whether it does not come to be what it reads this time.
    pub is_slow: bool,
    leader: Leader,
    /// The newest revision beyond which it serves nothing.
    let_go: u64,
    /// The life in which it has become what it read, or was held.
    become_in: Option<u64>,
    given: Given<Topology>,
    has_belonged: bool,
}

fn new_leader() -> Leader {
    Leader::new(LeaderConfig {
        moves_per_node: 3,
        choice_patience: Duration::from_millis(400),
        longest_look: Duration::from_secs(1),
        stall_patience: Duration::from_secs(2),
    })
}

impl Membership {
    /// Of a node that was never in a cluster.
    pub fn new(at: usize, random: u64) -> Membership {
        Membership {
            uuid: format!("{:032x}", at + 1),
            held: Held::new(random),
            view: None,
            applied: 0,
            seen: 0,
            read_at: Version::ABSENT,
            is_slow: false,
            leader: new_leader(),
            let_go: 0,
            become_in: None,
            given: Given::default(),
            has_belonged: false,
        }
    }

    /// Where the node is reached; the name that topologies have for it comes of this.
    pub fn address(&self) -> Address {
        Address::new(self.uuid.clone(), 1, 2)
    }

    /// The process is gone with what it knew.
    pub fn crash(&mut self) {
        self.held.fence().close();
        self.view = None;
        (self.applied, self.let_go, self.become_in) = (0, 0, None);
        self.read_at = Version::ABSENT;
        self.leader = new_leader();
        self.given = Given::default();
        self.has_belonged = false;
    }

    /// What stands for it in the store.
    pub fn member_json(&self) -> Vec<u8> {
        let member = Member {
            incarnation: self.held.life().incarnation(),
            address: self.address(),
            limits: None,
            reads: 2,
            node_login: false,
            timed_proofs: false,
            moves_stores: false,
        };
        serde_json::to_vec(&member).unwrap_or_default()
    }
}

impl Node {
    /// One look at what the store holds; what is asked of it then.
    pub fn look(&mut self, snapshot: &Snapshot, rules: &Rules) -> Result<Vec<Request>, String> {
        let view = View::of(snapshot).map_err(|invalid| format!("an unsound document: {invalid}"))?;
        let Some(view) = view.map(Rc::new) else { return Ok(Vec::new()) };
        let seen = self.member.view.as_ref().map_or(0, |view| view.state.revision);
        if seen > view.state.revision {
            return Err(format!("node {} reads revision {} after {seen}", self.at, view.state.revision));
        }
        self.member.view = Some(Rc::clone(&view));
        self.member.seen = view.state.revision.max(self.member.seen);
        let now_ns = self.clock_ns();
        self.member.held.note_state(&view, &self.member.uuid, now_ns);
        let mut requests = Vec::new();
        if view.state.node_of(&self.member.uuid).is_none() {
            self.look_from_outside(snapshot, &view, &mut requests);
            return Ok(requests);
        }
        if !self.member.has_belonged {
            self.note_cluster(&view.state)?;
        }
        self.member.has_belonged = true;
        // Becoming is another thing than reading, and may take until the next look.
        let (revision, life) = (view.state.revision, self.member.held.life().incarnation());
        if !self.member.is_slow && self.become_as(&view, rules)? {
            self.member.applied = revision;
        } else if !rules.lets_go || self.let_go_of(&view).is_err() {
            self.report(&view, &mut requests);
            self.lead(snapshot, &view, &mut requests);
            return Ok(requests);
        }
        (self.member.let_go, self.member.become_in) = (revision, Some(life));
        self.member.held.note_become(&view.state, &self.member.uuid);
        self.report(&view, &mut requests);
        self.lead(snapshot, &view, &mut requests);
        Ok(requests)
    }

    fn look_from_outside(&mut self, snapshot: &Snapshot, view: &View, requests: &mut Vec<Request>) {
        let (uuid, address) = (self.member.uuid.clone(), self.member.address());
        // One that keeps copies, which nobody else may have, waits for somebody to take it back.
        if !self.member.has_belonged && self.bucket.is_none() {
            let incarnation = self.member.held.life().incarnation();
            let join = Command::Join { uuid, address, incarnation };
            if let Ok(mut state) = command::apply(view, &join) {
                self.member.held.sign(&mut state, view.state.revision);
                requests.push(Request::Write(view.version, Box::new(state)));
            }
            return;
        }
        if Standing::of(snapshot, &uuid) == Standing::Leads {
            requests.push(Request::Resign(snapshot.version_of(keys::LEADER)));
        }
        // It follows nobody and serves nobody.
        self.follow_nobody();
        (self.member.applied, self.member.let_go) = (view.state.revision, view.state.revision);
        let Some(bucket) = self.bucket.clone() else { return };
        for vb in (0..bucket.vbuckets()).filter(|vb| self.role(*vb).is_some_and(|is| is != VbState::Dead)) {
            let _ = bucket.roles().set_vbucket_state(base::VbId(vb), VbState::Dead, None);
        }
    }

    /// Becomes what the document says; whether it has.
    fn become_as(&mut self, view: &View, rules: &Rules) -> Result<bool, String> {
        let state = &view.state;
        let incarnation = self.member.held.life().incarnation();
        let Some(agent) = Agent::new(state, &self.member.uuid, incarnation) else { return Ok(false) };
        let Some(bucket) = state.buckets.get(BUCKET) else { return Ok(true) };
        if !agent.makes_buckets() && (self.bucket.is_none() || self.is_down) {
            if self.is_down {
                self.drop_bucket();
                self.member.given = Given::default();
            }
            return Ok(true);
        }
        if self.is_down {
            if !agent.may_part_with_all(bucket, |vb, id| is_live(view, vb, id)) {
                return Ok(true);
            }
            self.drop_bucket();
            self.member.given = Given::default();
        }
        if self.bucket.is_none() {
            // The disk may be full.
            if self.open(rules).is_err() {
                return Ok(false);
            }
        }
        let Some(local) = self.bucket.clone() else { return Ok(false) };
        if bucket.manifest.get("scopes").is_some() {
            let text = bucket.manifest.to_string();
            let new = Manifest::parse(text.as_bytes()).map_err(|error| format!("a manifest: {error}"))?;
            if new.uid() > local.collections().manifest().uid()
                && local.collections().set_manifest(new).is_err()
            {
                return Ok(false);
            }
        }
        let target = SimSeat { at: self.at, view, bucket: &local, replication: self.front_end.replication() };
        Ok(apply_bucket(&agent, bucket, &target, &mut self.member.given).is_ok())
    }

    /// Its bucket could not be made what the document says: it serves nothing that the document does not let it.
    fn let_go_of(&self, view: &View) -> Result<(), NotDone> {
        let state = &view.state;
        let Some(local) = &self.bucket else { return Ok(()) };
        let incarnation = self.member.held.life().incarnation();
        let agent = Agent::new(state, &self.member.uuid, incarnation).filter(Agent::makes_buckets);
        let is_in_life = self.member.become_in == Some(incarnation);
        if let (Some(agent), Some(bucket), true) = (agent, state.buckets.get(BUCKET), is_in_life) {
            let target =
                SimSeat { at: self.at, view, bucket: local, replication: self.front_end.replication() };
            return let_go(&agent, bucket, &target).map_err(|_| NotDone);
        }
        self.follow_nobody();
        self.hold_all();
        Ok(())
    }

    fn report(&self, view: &View, requests: &mut Vec<Request>) {
        let life = self.member.held.life();
        let Some(agent) = Agent::new(&view.state, &self.member.uuid, life.incarnation()) else { return };
        let failed = (self.member.applied < self.member.let_go).then(|| BUCKET.to_owned());
        let applied = Applied::from(self.member.applied).after(self.member.let_go, &failed);
        let applied = Applied { let_go: self.member.let_go, ..applied };
        let mut report = agent.report(&view.state, &applied, |_, vb| self.report_of(vb));
        report.note_damaged(BUCKET, self.damaged());
        let bound = self.member.held.authority.bound(&view.state, self.clock_ns());
        let report = Report { bound, ..report };
        let Some(lease) = life.lease() else { return };
        // What the store has may also be an older one that came late.
        if view.reports.get(&self.member.uuid) != Some(&report) {
            requests.push(Request::Report(lease, serde_json::to_vec(&report).unwrap_or_default()));
        }
    }

    fn lead(&mut self, snapshot: &Snapshot, view: &View, requests: &mut Vec<Request>) {
        match (Standing::of(snapshot, &self.member.uuid), self.member.held.life().lease()) {
            (Standing::Vacant, Some(lease)) => requests.push(Request::Lead(lease)),
            (Standing::Leads, _) => {
                let now = Duration::from_nanos(self.clock_ns());
                if let Some(mut next) = self.member.leader.step(view, now) {
                    self.member.held.sign(&mut next, view.state.revision);
                    requests.push(Request::Write(view.version, Box::new(next)));
                }
            }
            _ => {}
        }
    }
}
