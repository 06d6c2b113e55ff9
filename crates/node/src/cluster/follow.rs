//! Following the document: read, become what it says, report, lead if elected, wait for the next change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::store::{Commit, MAX_PUTS, Put, Snapshot, Store, Swap, Version};
use ::cluster::{Agent, Command, Leader, LeaderConfig, Stale, Standing, State, Status, View, command, keys};
use engine::BucketKind;

use super::ClusterError;
use super::apply::{Failed, LocalBuckets};
use super::credentials::{self, Known};
use super::document::Document;
use super::ending::Ending;
use super::founding::Founding;
use super::life::Lease;
use super::links_down::links_down;
use super::node_secret::NodeSecrets;
use super::progress::{DocumentProgress, Lost};
use super::stores::StoreReports;
use super::trouble::{Trouble, Troubles};
use super::users::ClusterUsers;
use super::vouched::vouch_all;
use crate::bucket_list;
use crate::bucket_moves::MoveUnderWay;
use crate::config::{BucketSpec, UserSpec};
use crate::naming;
use crate::node::Node;
use crate::user_data::UserData;
use ::cluster::state::{NextIds, Reader};

/// How soon positions are reported again while something is under way.
const REPORT_EVERY: Duration = Duration::from_millis(20);
/// How often it is looked whether files of deleted buckets were kept for long enough.
const ERASE_EVERY: Duration = Duration::from_secs(60);
/// How often all that the store holds is read, whatever was heard of changes.
const READ_EVERY: Duration = Duration::from_secs(60);
/// So much of a report is written at once.
const BATCH_BYTES: usize = 512 << 10;
/// How soon what did not succeed is tried again, and how long a change may be overlooked.
const TRY_AGAIN: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Why a node serves nothing that has lost all but its identity.
const FORGOTTEN: &str = "the cluster has this node with its copies, and of the folder of data nothing is left but the node's \
                         identity: put the folder back, or mount its volume, and start the node again; if the copies are \
                         lost, remove node-uuid and node-uuid.copy there, and the node joins as a new one";

/// What the thread remembers from one look to the next.
struct Memory {
    reader: Reader,
    leader: Leader,
    /// Whether this process has belonged to the cluster: one that was ejected does not come back by itself.
    has_belonged: bool,
    /// What buckets and vBuckets were asked to be last.
    asked: super::apply::Asked,
    /// Buckets that are not what the document says.
    failing: Troubles,
    /// Buckets that may serve what they must not, although this node has tried to have them stop.
    not_let_go: Troubles,
    /// The last life for which the node has become what the document says.
    has_become: Option<u64>,
    /// Whether user and password are known to be the cluster's.
    is_known: bool,
    /// What was reported of buckets that go to another store.
    stores: StoreReports,
}

/// The thread that follows the document.
pub(super) struct Follower {
    pub(super) node: Arc<Node>,
    pub(super) store: Arc<dyn Store>,
    pub(super) config: LeaderConfig,
    pub(super) uuid: String,
    /// Whose password must be the cluster's; `None` if that is not looked at.
    pub(super) user: Option<UserSpec>,
    /// Whether the node had an identity when it was started, and its folder knew of no cluster.
    pub(super) knows_of_no_cluster: bool,
    pub(super) founding: Founding,
    pub(super) secrets: Arc<NodeSecrets>,
    pub(super) document: Arc<Document>,
    pub(super) progress: Arc<DocumentProgress>,
    pub(super) lease: Arc<Lease>,
    pub(super) buckets: Arc<LocalBuckets>,
    pub(super) users: Arc<ClusterUsers>,
    pub(super) ending: Arc<Ending>,
}

/// Whether the cluster has no credentials yet, or no secret of its nodes.
fn lacks_entries(memory: &Memory, snapshot: &Snapshot) -> bool {
    !memory.is_known || NodeSecrets::is_missing(snapshot)
}

impl Follower {
    /// Until the membership ends.
    pub(super) fn follow(&self) {
        let mut memory = Memory {
            reader: Reader::default(),
            leader: Leader::new(self.config),
            has_belonged: false,
            asked: super::apply::Asked::default(),
            failing: Troubles::default(),
            not_let_go: Troubles::default(),
            has_become: None,
            is_known: self.user.is_none(),
            stores: StoreReports::default(),
        };
        let (mut trouble, mut not_erased) = (Trouble::default(), Trouble::default());
        let (mut erase_at, mut read_at) = (Duration::ZERO, Duration::ZERO);
        let (mut known, mut patience) = (None, Duration::ZERO);
        while !self.ending.has_come() {
            let now = self.node.env().clock.monotonic();
            if now >= erase_at {
                erase_at = now + ERASE_EVERY;
                self.erase_old(&mut not_erased);
            }
            let looked = self.newest(known.take(), patience, now >= read_at).and_then(|snapshot| {
                patience = self.look(&mut memory, &snapshot)?;
                Ok(snapshot)
            });
            if now >= read_at {
                read_at = now + READ_EVERY;
            }
            match looked {
                Ok(snapshot) => {
                    self.found_again(&mut trouble);
                    known = Some(snapshot);
                }
                Err(error) => {
                    self.has_lost(&error, &mut trouble);
                    self.ending.pause(TRY_AGAIN);
                }
            }
        }
    }

    fn erase_old(&self, trouble: &mut Trouble) {
        let now = self.node.env().clock.monotonic();
        match self.node.host().map_or(Ok(()), |host| host.erase_old(self.node.env())) {
            Err(error) if trouble.failed(now) => {
                tracing::warn!(
                    event = "quarantine_not_cleaned", %error,
                    "files of deleted buckets cannot be erased, and are kept longer than the quarantine lasts"
                );
            }
            Err(_) => {}
            Ok(()) => drop(trouble.is_over(now)),
        }
    }

    /// Notes that the document is not followed, and says so now and then.
    fn has_lost(&self, error: &ClusterError, trouble: &mut Trouble) {
        if trouble.failed(self.node.env().clock.monotonic()) {
            tracing::warn!(
                event = "cluster_state_not_followed", %error,
                "the cluster's state is not followed; this is tried again and again"
            );
        }
        let is_of_store = matches!(error, ClusterError::Store(_));
        self.progress.set_lost(Some(Lost { why: error.to_string(), is_of_store }));
    }

    fn found_again(&self, trouble: &mut Trouble) {
        if let Some(after) = trouble.is_over(self.node.env().clock.monotonic()) {
            tracing::info!(event = "cluster_state_followed", ?after, "the cluster's state is followed again");
        }
        self.progress.set_lost(None);
    }

    /// What the store holds, once something is newer than what is known, or after so long. All of it is read if nothing
    /// is known, and now and then.
    fn newest(
        &self,
        known: Option<Snapshot>,
        patience: Duration,
        is_read: bool,
    ) -> Result<Snapshot, ClusterError> {
        Ok(match known {
            Some(known) if !is_read => self.store.follow(known, patience.min(LOOK_AGAIN))?,
            _ => self.store.read()?,
        })
    }

    /// One look at what the store holds: how long a change may be waited for.
    fn look(&self, memory: &mut Memory, snapshot: &Snapshot) -> Result<Duration, ClusterError> {
        if !self.is_known(memory, snapshot) {
            return Ok(LOOK_AGAIN);
        }
        let Some(view) = View::read(&mut memory.reader, snapshot)? else {
            if let Some(why) = self.may_not_found() {
                self.close();
                self.progress.stay_outside(why);
                return Ok(LOOK_AGAIN);
            }
            // Before anybody can join.
            if lacks_entries(memory, snapshot) {
                return self.write_credentials(memory);
            }
            let mut state = self.found()?;
            self.founding.note(self.node.env(), &state)?;
            self.users.move_users_at_first();
            self.document.write(&mut state, None)?;
            return Ok(Duration::ZERO);
        };
        let view = Arc::new(view);
        if self.has_forgotten(&view.state) {
            self.close();
            self.document.resign(snapshot, &self.uuid)?;
            self.progress.stay_outside(FORGOTTEN.to_owned());
            return Ok(LOOK_AGAIN);
        }
        // Before anything is done that it says.
        if let Err(stale) = self.document.note_seen(&view.state)? {
            return self.refuse(snapshot, &stale);
        }
        self.founding.is_over(self.node.env())?;
        self.note_followed(&view);
        if view.state.node_of(&self.uuid).is_none() {
            return self.look_from_outside(memory, snapshot, view);
        }
        memory.has_belonged = true;
        self.progress.come_inside();
        self.lease.note_admission(&view.state);
        let incarnation = self.lease.incarnation();
        let failed = self.buckets.apply(&view, incarnation, &mut memory.asked);
        let is_held = self.settle_failed(&failed, incarnation, memory);
        let has_become = memory.has_become == Some(incarnation);
        let has_let_go = !has_become || self.let_go_of_failed(&view, &failed, &mut memory.not_let_go);
        // A cluster of a version that did not write them.
        if is_held && lacks_entries(memory, snapshot) && self.may_serve() {
            return self.write_credentials(memory);
        }
        if is_held {
            memory.has_become = Some(incarnation);
            if has_let_go {
                self.lease.authority().note_let_go(&view.state, &self.uuid);
            }
            self.lease.note_become(incarnation);
        }
        self.progress.show(&view, is_held.then(|| failed.keys()));
        if is_held && has_let_go {
            self.progress.note_let_go(&view.state);
        }
        let is_busy = self.report(&view, snapshot, &mut memory.stores)?;
        let now = self.node.env().clock.monotonic();
        let leads = self.lead(snapshot, &view, &mut memory.leader)?;
        let mut patience = if leads { memory.leader.patience(&view, now) } else { LOOK_AGAIN };
        let has_failed_long = is_held && memory.failing.are_long(now);
        if is_busy || !(failed.is_empty() || has_failed_long) {
            self.ending.pause(REPORT_EVERY);
            patience = REPORT_EVERY;
        }
        Ok(patience)
    }

    /// Whether the state has this node with copies of which the node's folder knows nothing, as if all of the folder but the
    /// node's identity was lost. Its copies do not begin empty, as those of a member; the lease is given up, so that the
    /// cluster fails the node over.
    fn has_forgotten(&self, state: &State) -> bool {
        let has_forgotten = self.knows_of_no_cluster
            && self.document.seen().get().is_none()
            && state.node_of(&self.uuid).is_some()
            && !self.founding.is_of(self.node.env(), &self.uuid, state);
        if has_forgotten {
            self.lease.give_up();
        }
        has_forgotten
    }

    /// Has the failed buckets serve nothing that the document does not let them; whether they do so. In a life that has become
    /// nothing yet they are held instead, which is more.
    fn let_go_of_failed(&self, view: &View, failed: &Failed, not_let_go: &mut Troubles) -> bool {
        let now = self.node.env().clock.monotonic();
        let outcomes =
            failed.keys().map(|name| (name, self.buckets.let_go_of(view, self.lease.incarnation(), name)));
        let refused = outcomes.filter_map(|(name, outcome)| Some((name, outcome.err()?)));
        let refused = refused.inspect(|(bucket, error)| {
            if not_let_go.failed(bucket, now) {
                tracing::warn!(
                    event = "promises_not_counted", bucket, %error,
                    "the bucket cannot let go of vBuckets that others are to take over: promises of others do not count for this node"
                );
            }
        });
        refused.count() == 0
    }

    /// Logs what failed, and has the failed buckets serve nobody if this life has not become what the document says
    /// before: each of them may still be active for what others have taken over. Whether that is done, so that the
    /// node may serve the other buckets.
    fn settle_failed(&self, failed: &Failed, incarnation: u64, memory: &mut Memory) -> bool {
        let now = self.node.env().clock.monotonic();
        for (name, after) in memory.failing.keep(|name| failed.contains_key(name), now) {
            tracing::info!(
                event = "bucket_as_wanted",
                bucket = name,
                ?after,
                "the bucket is what the cluster wants again"
            );
        }
        memory.not_let_go.keep(|name| failed.contains_key(name), now);
        for (name, error) in failed {
            if memory.failing.failed(name, now) {
                tracing::warn!(
                    event = "bucket_not_as_wanted", bucket = name, %error,
                    "the bucket is not what the cluster wants on this node"
                );
            }
        }
        let mut is_held = true;
        for name in failed.keys().filter(|_| memory.has_become != Some(incarnation)) {
            if let Err(error) = self.buckets.hold(name) {
                if memory.not_let_go.failed(name, now) {
                    tracing::warn!(
                        event = "bucket_not_held", bucket = name, %error,
                        "the node serves nothing before the bucket is held"
                    );
                }
                is_held = false;
            }
        }
        is_held
    }

    /// Follows a state no further: the node serves nobody and leads nobody. It keeps its lease, and reports nothing, so
    /// that nodes which follow the state do not take what it may have served.
    fn refuse(&self, snapshot: &Snapshot, stale: &Stale) -> Result<Duration, ClusterError> {
        self.close();
        self.lease.authority().note_stale();
        self.document.resign(snapshot, &self.uuid)?;
        self.progress.stay_outside(stale.to_string());
        Ok(LOOK_AGAIN)
    }

    /// Serves nobody until a state is followed again.
    fn close(&self) {
        self.lease.note_admission(&State::empty());
    }

    /// The state of a cluster whose first node this is, with the buckets that the node has.
    fn found(&self) -> Result<State, ClusterError> {
        let incarnation = self.lease.incarnation();
        let mut state = command::found(&self.uuid, &self.lease.told_address(), incarnation);
        for (spec, bucket) in self.node.buckets() {
            // The configuration may still name the store in which the bucket was before it moved.
            let spec = BucketSpec { backend: bucket.backend(), ..spec };
            let random = &self.node.env().random;
            let create = Command::CreateBucket {
                name: spec.name.clone(),
                uuid: format!("{:016x}{:016x}", random.next_u64(), random.next_u64()),
                settings: bucket_list::to_json(&spec),
                replicas: spec.replicas,
                vbuckets: bucket.vbuckets(),
                manifest: bucket.collections().manifest().to_json(),
            };
            let view = View { state, version: Version::ABSENT, ..View::default() };
            state = command::apply(&view, &create)?;
            let ids = bucket.collections().next_ids();
            if let Some(bucket) = state.buckets.get_mut(&spec.name) {
                bucket.next_ids = NextIds { scope: ids.scope.0, collection: ids.collection.0 };
            }
        }
        Ok(state)
    }

    /// Why a node founds no cluster in an empty store: it belongs to one. The buckets of a node that never was in a
    /// cluster are the first of a new one.
    fn may_not_found(&self) -> Option<String> {
        let seen = self.document.seen().get().map(|seen| seen.revision);
        if let Some(revision) = seen {
            return Some(format!(
                "the coordination store holds no cluster of this name, and this node has seen revision {revision} of \
                 one: see that --join names the right store and cluster, and restore the store if its entries are \
                 lost; or leave the cluster with --leave-cluster, and found another one"
            ));
        }
        let was_member = !self.buckets.noted.lock().is_empty();
        let kept = was_member.then(|| self.keeps_what_it_has("etcd holds no cluster of this name")).flatten();
        kept.or_else(|| self.node.host()?.moves().under_way().map(|what| waits_for(&what)))
    }

    /// A state was read that is followed: before the node does or reports anything that it says.
    fn note_followed(&self, view: &View) {
        self.secrets.note_nodes(view);
        self.lease.authority().note_state(view, &self.uuid, self.lease.now_ns());
    }

    fn may_serve(&self) -> bool {
        self.node.fence().may_serve(self.lease.now_ns())
    }

    /// Whether nothing speaks against this node, which has the secret of the cluster's nodes from then on.
    fn is_known(&self, memory: &mut Memory, snapshot: &Snapshot) -> bool {
        let is_known = self.has_credentials(memory, snapshot);
        if is_known {
            self.secrets.take(snapshot);
        }
        is_known
    }

    /// What is in the store is looked at until it is known to be this node's.
    fn has_credentials(&self, memory: &mut Memory, snapshot: &Snapshot) -> bool {
        let Some(user) = self.user.as_ref().filter(|_| !memory.is_known) else { return true };
        match credentials::compare(snapshot, user) {
            Known::Ours => memory.is_known = true,
            Known::Nothing => {}
            // It serves already, from before anybody wrote them: nobody loses a node by that.
            Known::Others if memory.has_belonged => {
                let user = UserData(&user.name);
                tracing::warn!(
                    event = "user_not_of_cluster", %user,
                    "this user or its password is not the cluster's: the node serves on, and is kept out after its next \
                     start"
                );
                memory.is_known = true;
            }
            Known::Others => {
                self.node.fence().close();
                self.progress.note_stranger();
                self.progress.stay_outside(format!(
                    "user {} or its password is not the cluster's: all nodes of a cluster have the same (--username, \
                     and STAVE_PASSWORD or --password); another one is given to nodes that run, by their configuration \
                     files and SIGHUP, before they are started with it",
                    user.name
                ));
                return false;
            }
        }
        true
    }

    fn write_credentials(&self, memory: &Memory) -> Result<Duration, ClusterError> {
        if let Some(user) = self.user.as_ref().filter(|_| !memory.is_known) {
            credentials::write(&*self.store, user, self.node.env())?;
        }
        self.secrets.write()?;
        Ok(Duration::ZERO)
    }

    /// What a node does that does not belong to the cluster: it joins, or if it was ejected it lets go of everything.
    fn look_from_outside(
        &self,
        memory: &mut Memory,
        snapshot: &Snapshot,
        view: Arc<View>,
    ) -> Result<Duration, ClusterError> {
        self.lease.note_admission(&view.state);
        let why = if self.knows_of_no_cluster && !memory.has_belonged {
            "this node has buckets of its own, and the cluster is there already"
        } else {
            "this node does not belong to its cluster any more"
        };
        let kept = self.keeps_what_it_has(why);
        if !memory.has_belonged && kept.is_none() {
            let incarnation = self.lease.incarnation();
            let (uuid, address) = (self.uuid.clone(), self.lease.told_address());
            let join = Command::Join { uuid, address, incarnation };
            self.document.ask_for(|_| Ok::<_, ClusterError>(join.clone()))?;
            return Ok(Duration::ZERO);
        }
        self.document.resign(snapshot, &self.uuid)?;
        let mut failed = vouch_all(&self.buckets, &view.state, &mut memory.asked);
        failed.extend(self.buckets.serve_nobody());
        let now = self.node.env().clock.monotonic();
        memory.not_let_go.keep(|name| failed.contains_key(name), now);
        for (name, error) in &failed {
            if memory.not_let_go.failed(name, now) {
                tracing::warn!(
                    event = "bucket_not_let_go", bucket = name, %error,
                    "this node has left its cluster, and cannot let go of the bucket"
                );
            }
        }
        // Clients that still ask here must not stay with an older map: some ask nobody else before there is news.
        self.buckets.tell_clients(&view, None);
        self.progress.show(&view, Some(failed.keys()));
        let ejected = || "this node was ejected; `stave cluster add` takes it back".to_owned();
        self.progress.stay_outside(kept.unwrap_or_else(ejected));
        Ok(if failed.is_empty() { LOOK_AGAIN } else { TRY_AGAIN })
    }

    /// Why a node does not join by itself: it would have to drop documents that nobody else may have.
    fn keeps_what_it_has(&self, why: &str) -> Option<String> {
        let names = self.node.bucket_names();
        (!names.is_empty()).then(|| {
            format!(
                "{why}, and it keeps its copies of {}: start it with another --data to join as a new node, or take it \
                 back by `stave cluster add {}`: the next rebalance drops those of these copies that the cluster does \
                 not need",
                names.join(", "),
                self.lease.told_address().http()
            )
        })
    }

    /// Leads, if this node is the leader, or becomes it if there is none.
    fn lead(&self, snapshot: &Snapshot, view: &View, leader: &mut Leader) -> Result<bool, ClusterError> {
        let lease = self.lease.authority().life().lease();
        match Standing::of(snapshot, &self.uuid) {
            Standing::Vacant if lease.is_some() => {
                let value = Some(self.uuid.as_bytes());
                self.store.swap(Swap { key: keys::LEADER, expected: Some(Version::ABSENT), value, lease })?;
                return Ok(true);
            }
            Standing::Vacant | Standing::Follows => return Ok(false),
            Standing::Leads => {}
        }
        if let Some(mut next) = leader.step(view, self.node.env().clock.monotonic()) {
            log(&view.state, &next);
            self.document.write(&mut next, Some(view))?;
        }
        Ok(true)
    }

    /// Reports where this node stands, if the store has something else; whether something is under way of which more is
    /// to be reported soon.
    fn report(
        &self,
        view: &View,
        snapshot: &Snapshot,
        stores: &mut StoreReports,
    ) -> Result<bool, ClusterError> {
        let (incarnation, lease) = {
            let authority = self.lease.authority();
            (authority.life().incarnation(), authority.life().lease())
        };
        let Some(agent) = Agent::new(&view.state, &self.uuid, incarnation) else { return Ok(false) };
        let applied = self.progress.applied();
        let mut report = agent.report(&view.state, &applied, |name, vb| self.buckets.report_of(name, vb));
        view.state.buckets.keys().for_each(|name| report.note_damaged(name, self.buckets.damaged(name)));
        report.links_down = links_down(&self.node, view);
        if agent.makes_buckets() {
            report.stores = stores.of(&self.node, &view.state);
        }
        report.bound = self.lease.authority().bound(&view.state, self.lease.now_ns());
        let is_busy = !report.vbuckets.is_empty();
        if lease.is_some() {
            // What the store has may also be an older one that came late.
            let puts = changed(snapshot, report.entries(&self.uuid, view.state.is_single()), &self.uuid);
            for puts in batches(&puts) {
                self.store.commit(Commit { guard: None, puts, lease })?;
            }
        }
        Ok(is_busy)
    }
}

/// What makes of a node's reports in the store these ones.
fn changed(snapshot: &Snapshot, entries: BTreeMap<String, Vec<u8>>, uuid: &str) -> Vec<Put> {
    let whole = keys::report(uuid);
    let is_own =
        |key: &str| key.strip_prefix(&whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let there = snapshot.entries.range(whole.clone()..).take_while(|(key, _)| key.starts_with(&whole));
    let gone = there.filter(|(key, _)| is_own(key) && !entries.contains_key(*key));
    let gone: Vec<Put> = gone.map(|(key, _)| Put { key: key.clone(), value: None }).collect();
    let is_there =
        |key: &str, value: &[u8]| snapshot.entries.get(key).is_some_and(|entry| entry.value == value);
    let new = entries.into_iter().filter(|(key, value)| !is_there(key, value));
    let put = |(key, value)| Put { key, value: Some(value) };
    // Behind all others what says how far the node is: a bucket without an entry of its own is one of which nothing is
    // to be said.
    let (last, first): (Vec<_>, Vec<_>) = new.partition(|(key, _)| *key == whole);
    first.into_iter().chain(last).map(put).chain(gone).collect()
}

/// As many at once as a store takes easily. Each says itself what it holds for, so that they need not come together.
fn batches(mut puts: &[Put]) -> impl Iterator<Item = &[Put]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |put: &&Put| {
            bytes += put.bytes();
            bytes <= BATCH_BYTES
        };
        let count = puts.iter().take(MAX_PUTS).take_while(fits).count();
        let (batch, rest) = puts.split_at(count.max(1).min(puts.len()));
        puts = rest;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Says in the log what the leader decided.
fn log(before: &State, after: &State) {
    let (epoch, revision) = (after.epoch, after.revision);
    if after.epoch != before.epoch {
        tracing::info!(event = "vbuckets_moved", epoch, revision, "vBuckets change hands");
    }
    let is_automatic = after.auto_failover.count > before.auto_failover.count;
    for (id, node) in after.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver) {
        if before.nodes.get(id).is_some_and(|node| node.status != Status::FailedOver) {
            tracing::warn!(
                event = "node_failed_over",
                node = id.0,
                host = node.address.host,
                is_automatic,
                "a node was failed over"
            );
        }
    }
    for (name, bucket) in after.buckets.iter().filter(|(_, bucket)| bucket.store_move.is_none()) {
        if before.buckets.get(name).is_some_and(|before| before.store_move.is_some()) {
            let store = bucket.store().unwrap_or_default();
            tracing::info!(
                event = "cluster_bucket_move_ended",
                bucket = name,
                store,
                "all nodes have the bucket in one store"
            );
        }
    }
    if let Some(finished) = after.finished.as_ref().filter(|_| after.finished != before.finished) {
        tracing::info!(
            event = "rebalance_ended", epoch, revision, outcome = ?finished.outcome,
            "a rebalance has ended"
        );
    }
}

/// Why a node founds no cluster yet: its nodes keep a bucket in the same store, and one of this node's buckets is in two.
fn waits_for(what: &MoveUnderWay) -> String {
    let MoveUnderWay { bucket, to, vbuckets, of_vbuckets } = what;
    let to = naming::storage_backend(BucketKind::Persistent, *to);
    format!(
        "this node founds the cluster when bucket {bucket} is in one store: it is being moved to {to}, where {vbuckets} of \
         {of_vbuckets} vBuckets are; wait, or end the move with `stave migrate {bucket} --cancel`"
    )
}
