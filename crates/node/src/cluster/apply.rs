//! Becoming what the document says: buckets, roles of vBuckets, links, the map for clients.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use ::cluster::membership::{self, Fate};
use ::cluster::state::Chain;
use ::cluster::{
    Agent, ApplyTarget, Damaged, Following, Given, NodeId, Refusals, State, VbReport, View, apply_bucket,
    let_go,
};
use base::planted::{self, Bug};
use base::{SmallFileError, VbId, VbState};
use dcp::Mode;
use engine::settings::{Key, SETTINGS};
use engine::{Bucket, BucketKind, Refusal};
use parking_lot::Mutex;
use serde_json::Value;
use vbucket::{Manifest, Topology};

use super::document::Document;
use super::ending::Ending;
use super::hold::hold_all;
use super::noted::{Note, Noted};
use super::vouched::{Vouched, vouch, vouch_all};
use super::{flushed, layout, stores};
use crate::bucket_list;
use crate::config::BucketSpec;
use crate::down::Down;
use crate::management::{BucketChange, BucketError};
use crate::node::Node;
use crate::node_login::NODE_USER;
use crate::replication::{Password, Source, Sources, WantError};

/// What buckets and vBuckets were asked to be last, so that only changes are asked for.
#[derive(Default)]
pub(super) struct Asked {
    settings: BTreeMap<String, Value>,
    given: BTreeMap<String, Given<Topology>>,
    /// Buckets of which the state says nothing: that was logged.
    unknown: BTreeSet<String>,
    pub(super) vouched: Vouched,
}

/// The buckets that are not what the document says, each with the reason.
pub(super) type Failed = BTreeMap<String, ApplyError>;

/// Why the node is not as the document says.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error("bucket {0}: {1}")]
    Bucket(String, BucketError),
    #[error("bucket {0}: {1}")]
    Lost(String, &'static str),
    #[error("bucket {0}: this version does not know what it is asked to be")]
    Settings(String),
    #[error("bucket {0}: {1}")]
    Links(String, WantError),
    #[error("bucket {0}: it cannot be noted which one it is: {1}")]
    Note(String, io::Error),
    #[error("bucket {0}: how often it was emptied: {1}")]
    Flushes(String, SmallFileError),
    #[error("bucket {0}, its manifest: {1}")]
    Manifest(String, String),
    #[error("bucket {0}, vBucket {1}: {2}")]
    Vbucket(String, u16, String),
    #[error(transparent)]
    Several(Box<Refusals<ApplyError>>),
}

impl From<Refusals<ApplyError>> for ApplyError {
    fn from(refusals: Refusals<ApplyError>) -> ApplyError {
        ApplyError::Several(Box::new(refusals))
    }
}

/// Has each bucket its turn that has not failed before: what fails for one keeps no other one from it.
fn each<B, E>(
    buckets: &BTreeMap<String, B>,
    failed: &mut BTreeMap<String, E>,
    mut apply: impl FnMut(&str, &B) -> Result<(), E>,
) {
    for (name, bucket) in buckets {
        if failed.contains_key(name) {
            continue;
        }
        if let Err(error) = apply(name, bucket) {
            failed.insert(name.clone(), error);
            if planted::is(Bug::OneBucketEndsApply) {
                return;
            }
        }
    }
}

/// The node's buckets, which become what the document says.
pub(super) struct LocalBuckets {
    pub(super) node: Arc<Node>,
    /// The node's identity.
    pub(super) uuid: String,
    /// What this node has of the cluster's buckets.
    pub(super) noted: Mutex<Noted>,
    /// What the folders of the buckets vouch for.
    pub(super) document: Arc<Document>,
    ending: Arc<Ending>,
}

impl LocalBuckets {
    pub(super) fn new(
        node: &Arc<Node>,
        uuid: &str,
        noted: Noted,
        document: &Arc<Document>,
        ending: &Arc<Ending>,
    ) -> LocalBuckets {
        LocalBuckets {
            node: Arc::clone(node),
            uuid: uuid.to_owned(),
            noted: Mutex::new(noted),
            document: Arc::clone(document),
            ending: Arc::clone(ending),
        }
    }

    /// Makes the node what the document says to one of its lives; idempotent, and repeated until it succeeds. Returns
    /// the buckets for which it did not: what fails for one bucket keeps no other one from becoming what it is to be.
    pub(super) fn apply(&self, view: &View, incarnation: u64, asked: &mut Asked) -> Failed {
        let Some(agent) = Agent::new(&view.state, &self.uuid, incarnation) else { return Failed::new() };
        let mut failed = vouch_all(self, &view.state, asked);
        self.drop_buckets(&view.state, agent, asked, &mut failed);
        let buckets = &view.state.buckets;
        each(buckets, &mut failed, |name, bucket| self.apply_bucket(view, agent, name, bucket, asked));
        self.tell_clients(view, Some(agent.id()));
        failed
    }

    /// Makes one bucket what the document says.
    fn apply_bucket(
        &self,
        view: &View,
        agent: Agent,
        name: &str,
        bucket: &::cluster::Bucket,
        asked: &mut Asked,
    ) -> Result<(), ApplyError> {
        if self.node.served().is_damaged(name) {
            let is_live = |vb, id| is_live(view, name, vb, id);
            if !agent.may_part_with_all(bucket, is_live) {
                // It serves no client and follows no node, which is what is left of it.
                return Ok(());
            }
            if let Some(left_out) = self.node.events().made_again.admit(self.node.env().clock.monotonic()) {
                tracing::warn!(
                    event = "bucket_begun_again",
                    bucket = name,
                    left_out,
                    "the bucket is damaged as a whole, other nodes have all of it: it is made again, empty"
                );
            }
            // From now on it is one that the node does not have: a crash behind this must not lose it twice.
            self.note(name, Some(Note::of(bucket)))?;
            let deleted = self.node.delete_bucket(name);
            deleted.map_err(|error| ApplyError::Bucket(name.to_owned(), error))?;
            asked.forget(name);
        }
        let mut refused = Vec::new();
        if agent.makes_buckets() {
            // The roles do not wait for settings and a manifest that cannot be.
            let may_go_on = self.make_bucket(name, bucket, asked, &mut refused);
            if !may_go_on {
                return Ok(Refusals::of(refused)?);
            }
        }
        let Some(local) = self.node.bucket(name) else { return Ok(Refusals::of(refused)?) };
        vouch(self, &local, &view.state, asked)?;
        let target = LocalTarget { node: &self.node, view, name, bucket: &local };
        let given = asked.given.entry(name.to_owned()).or_default();
        let applied = apply_bucket(&agent, bucket, &target, given);
        refused.extend(applied.err().into_iter().flatten());
        local.roles().set_emptying(bucket.flushing.is_some());
        Ok(Refusals::of(refused)?)
    }

    /// Has a bucket serve nobody and follow nobody: one that could not be made what the document says to this life may
    /// still be active for what others have taken over since the life before ended.
    pub(super) fn hold(&self, name: &str) -> Result<(), ApplyError> {
        let Some(local) = self.node.bucket(name) else { return Ok(()) };
        let links = follow_nobody(&self.node, &local);
        let held = hold_all(&local).into_iter().map(|(vb, refusal)| refused(name, vb, refusal));
        Ok(Refusals::of(links.into_iter().chain(held))?)
    }

    /// Clients are told by this node, which the cluster calls `this`, who serves what, if that is another than before:
    /// each map that clients are told of costs each of them a request for all of it, and some ask a node that is gone
    /// first, and nobody else before they have given that up.
    pub(super) fn tell_clients(&self, view: &View, this: Option<NodeId>) {
        let Some(layout) = layout::of(view, this) else { return };
        let present = self.node.cluster_map();
        let is_news = present.is_lone() || !present.layout().is_same_but_for_version(&layout);
        if is_news {
            // An older one than the present is none of this node's news.
            let _ = self.node.map().set(layout);
        }
    }

    /// A node that has left serves nobody and follows nobody; its documents stay where they are. Returns the buckets of
    /// which it has not let go.
    pub(super) fn serve_nobody(&self) -> Failed {
        let names = self.node.bucket_names().into_iter();
        names.filter_map(|name| self.let_go(&name).err().map(|error| (name, error))).collect()
    }

    /// A bucket serves nobody and follows nobody; its documents stay where they are.
    fn let_go(&self, name: &str) -> Result<(), ApplyError> {
        let Some(bucket) = self.node.bucket(name) else { return Ok(()) };
        let links = follow_nobody(&self.node, &bucket);
        let lives = |vb: &u16| role(&bucket, *vb).is_some_and(|is| is != VbState::Dead);
        let living = (0..bucket.vbuckets()).filter(lives);
        let dead = living.filter_map(|vb| {
            let dead = bucket.roles().set_vbucket_state(VbId(vb), VbState::Dead, None);
            Some(refused(name, VbId(vb), dead.err()?))
        });
        Ok(Refusals::of(links.into_iter().chain(dead))?)
    }

    /// Deletes the buckets that the state says were deleted, or are others now. One of which the state says nothing is
    /// kept: whoever lost the state must not lose the documents, too.
    fn drop_buckets(&self, state: &State, agent: Agent, asked: &mut Asked, failed: &mut Failed) {
        let down = self.node.served().down().into_keys();
        for name in self.node.bucket_names().into_iter().chain(down) {
            let uuid = self.noted.lock().get(&name).map(|note| note.uuid.clone());
            let fate = membership::fate(state, &name, uuid.as_deref());
            let outcome = match fate {
                // What a new node has of this bucket from an earlier membership stays until a rebalance has begun. A bucket
                // of its own, which only has the name, goes.
                Fate::Stays if agent.makes_buckets() || uuid.is_some() => continue,
                Fate::Unknown => self.keep_unknown(&name, asked),
                Fate::Stays | Fate::Replaced | Fate::Deleted => self.drop_bucket(&name, asked),
            };
            outcome.unwrap_or_else(|error| drop(failed.insert(name, error)));
        }
    }

    fn drop_bucket(&self, name: &str, asked: &mut Asked) -> Result<(), ApplyError> {
        // Should this end before the end, the node has not lost it.
        let noted = self.noted.lock().get(name).cloned();
        noted.map_or(Ok(()), |note| self.note(name, Some(Note { had: false, ..note })))?;
        let deleted = self.node.delete_bucket(name);
        deleted.map_err(|error| ApplyError::Bucket(name.to_owned(), error))?;
        asked.forget(name);
        self.note(name, None)
    }

    fn keep_unknown(&self, name: &str, asked: &mut Asked) -> Result<(), ApplyError> {
        if asked.unknown.insert(name.to_owned()) {
            tracing::warn!(
                event = "bucket_unknown_to_cluster",
                bucket = name,
                "the cluster's state neither has the bucket nor says that it was deleted: this node keeps its copies \
                 and serves no client; if they are not needed, make a bucket of this name in the cluster and delete it"
            );
        }
        self.let_go(name)
    }

    /// Makes a bucket that is not there, and changes its settings, flushes and manifest to those of the document; what is
    /// refused goes to `refused`. Whether the vBuckets may get their roles: not before the bucket is there, and not while
    /// documents are left that the cluster has removed.
    fn make_bucket(
        &self,
        name: &str,
        bucket: &::cluster::Bucket,
        asked: &mut Asked,
        refused: &mut Vec<ApplyError>,
    ) -> bool {
        let set = match self.node.served().find(name) {
            Err(_) => self.create(name, bucket).map(|()| bucket.settings.clone()),
            // A life that has just begun has what was noted before, which the cluster may have changed meanwhile.
            Ok((spec, _)) => {
                let before = asked.settings.get(name).cloned();
                let before = before.unwrap_or_else(|| bucket_list::to_json(&spec));
                let wanted = stores::settings_by_now(&self.node, &bucket.settings, &spec);
                let is_same = before == wanted;
                if is_same { Ok(wanted) } else { self.change_settings(name, wanted, &before) }
            }
        };
        match set {
            Ok(settings) => drop(asked.settings.insert(name.to_owned(), settings)),
            Err(error) => refused.push(error),
        }
        stores::bring(&self.node, name, bucket);
        refused.extend(self.note_had(name, bucket).err());
        let flushed = self.apply_flush(name, bucket, asked);
        let is_flushed = flushed.is_ok();
        refused.extend(flushed.err());
        refused.extend(self.apply_manifest(name, &bucket.manifest).err());
        is_flushed
    }

    fn note(&self, name: &str, note: Option<Note>) -> Result<(), ApplyError> {
        let noted = self.noted.lock().put(self.node.env(), name, note);
        noted.map_err(|error| ApplyError::Note(name.to_owned(), error))
    }

    /// All documents of a bucket go, if the cluster has removed them more often than this node has. Nobody is served
    /// then, and nobody followed, before all of it is done.
    fn apply_flush(
        &self,
        name: &str,
        bucket: &::cluster::Bucket,
        asked: &mut Asked,
    ) -> Result<(), ApplyError> {
        let Some(local) = self.node.bucket(name) else { return Ok(()) };
        let done = self.noted.lock().get(name).map(|note| note.flushes);
        if done.is_some_and(|done| done >= bucket.flushes) {
            return Ok(());
        }
        let failed = |error: SmallFileError| ApplyError::Flushes(name.to_owned(), error);
        // Of what is not noted yet nothing has been served.
        if done.is_some() {
            if flushed::done(&local, bucket).map_err(failed)? >= bucket.flushes {
                tracing::warn!(
                    event = "flush_not_repeated",
                    bucket = name,
                    "cluster-buckets.json does not say that all documents were removed, as the bucket's folder does: that is not done again"
                );
                return self.note(name, Some(Note { had: true, ..Note::of(bucket) }));
            }
            local.roles().set_emptying(true);
            // What is still followed could bring the documents back.
            Refusals::of(follow_nobody(&self.node, &local))?;
            tracing::info!(
                event = "bucket_flushed",
                bucket = name,
                "all documents of the bucket are removed"
            );
            // What is given up is not noted, and done by the next start before the node serves the bucket.
            let removed = local.roles().remove_documents_while(|| !self.ending.has_come());
            removed.map_err(|failure| ApplyError::Bucket(name.to_owned(), failure.into()))?;
            asked.given.remove(name);
            flushed::note(&local, bucket).map_err(failed)?;
        }
        self.note(name, Some(Note { had: true, ..Note::of(bucket) }))
    }

    /// A bucket's manifest becomes the cluster's, if that is newer.
    fn apply_manifest(&self, name: &str, manifest: &Value) -> Result<(), ApplyError> {
        let Some(bucket) = self.node.bucket(name) else { return Ok(()) };
        // What begins with nothing but a number is the manifest that every bucket begins with.
        if manifest.get("scopes").is_none() {
            return Ok(());
        }
        let failed = |what: String| ApplyError::Manifest(name.to_owned(), what);
        let uid = Manifest::uid_in(manifest).map_err(|error| failed(error.to_string()))?;
        let present = bucket.collections().manifest();
        if uid < present.uid() {
            return Ok(());
        }
        let new = Manifest::from_json(manifest).map_err(|error| failed(error.to_string()))?;
        if uid == present.uid() {
            let other = "another manifest of this node has the same number: an older state was adopted where a newer \
                         one was not known; it goes on with its own until the cluster's has a higher one";
            return if new == *present { Ok(()) } else { Err(failed(other.to_owned())) };
        }
        bucket.collections().set_manifest(new).map_err(|refusal| failed(refusal.to_string()))
    }

    /// Which copies of a bucket this node says are damaged.
    pub(super) fn damaged(&self, name: &str) -> Damaged {
        match self.node.bucket(name) {
            Some(bucket) => {
                let (damaged, unreadable) = (bucket.damaged(), bucket.unreadable());
                let is_served = |vb: &VbId| {
                    bucket.state_of(*vb) == Some(VbState::Active) && unreadable.iter().all(|(of, _)| of != vb)
                };
                let served: Vec<u16> = damaged.iter().copied().filter(is_served).map(|vb| vb.0).collect();
                let refused = unreadable.iter().map(|(vb, _)| *vb).filter(|vb| !damaged.contains(vb));
                let refused: Vec<u16> = refused.map(|vb| vb.0).collect();
                Damaged::of(damaged.into_iter().map(|vb| vb.0)).and_refused(refused).and_served(served)
            }
            None if self.node.served().is_damaged(name) => Damaged::down(),
            None => Damaged::default(),
        }
    }

    /// What this node reports of a vBucket.
    pub(super) fn report_of(&self, name: &str, vb: u16) -> VbReport {
        let standing = self.node.bucket(name).and_then(|bucket| bucket.standing(VbId(vb)));
        let Some(at) = standing else { return VbReport::NOTHING };
        let report = VbReport {
            state: Some(at.role),
            high_seqno: at.high_seqno.0,
            persisted: at.saved.0,
            high_prepared: at.high_prepared.0,
            uuid: at.uuid.0,
        };
        report.whole_up_to(at.whole.0)
    }

    /// Has a bucket that could not be made what the document says serve nothing that the document does not let this life.
    pub(super) fn let_go_of(&self, view: &View, incarnation: u64, name: &str) -> Result<(), ApplyError> {
        let Some(local) = self.node.bucket(name) else { return Ok(()) };
        let agent = Agent::new(&view.state, &self.uuid, incarnation).filter(Agent::makes_buckets);
        let uuid = self.noted.lock().get(name).map(|note| note.uuid.clone());
        let stays = membership::fate(&view.state, name, uuid.as_deref()) == Fate::Stays;
        match (agent, view.state.buckets.get(name).filter(|_| stays)) {
            (Some(agent), Some(bucket)) => {
                Ok(let_go(&agent, bucket, &LocalTarget { node: &self.node, view, name, bucket: &local })?)
            }
            _ => self.hold(name),
        }
    }

    /// Notes that the node has a bucket, once it is there.
    fn note_had(&self, name: &str, bucket: &::cluster::Bucket) -> Result<(), ApplyError> {
        if self.node.bucket(name).is_none() {
            return Ok(());
        }
        let noted = self.noted.lock().get(name).filter(|note| note.uuid == bucket.uuid && !note.had).cloned();
        noted.map_or(Ok(()), |note| self.note(name, Some(Note { had: true, ..note })))
    }

    /// Makes a bucket that is not there.
    fn create(&self, name: &str, bucket: &::cluster::Bucket) -> Result<(), ApplyError> {
        let spec = bucket_list::from_json(&bucket.settings);
        let spec = spec.ok_or_else(|| ApplyError::Settings(name.to_owned()))?;
        // An ephemeral one begins empty whenever its node is started; one that is down has a reason already.
        let may_be_lost = spec.kind == BucketKind::Persistent && self.node.served().why_down(name).is_none();
        if may_be_lost && self.noted.lock().had(name, &bucket.uuid) {
            let down = Down { reason: LOST.to_owned(), is_damage: true, quota_bytes: spec.quota_bytes };
            self.node.served().put_down(name, down);
            return Err(ApplyError::Lost(name.to_owned(), LOST));
        }
        // First, so that a bucket that is there is never without its identity.
        self.note(name, Some(Note::of(bucket)))?;
        let created = self.node.create_bucket(spec);
        created.map_err(|error| ApplyError::Bucket(name.to_owned(), error))
    }

    /// Changes what the document changes, so that what Set Param set here stays beside it; all of it, if that does not fit
    /// what Set Param set.
    fn change_settings(&self, name: &str, wanted: Value, before: &Value) -> Result<Value, ApplyError> {
        let unknown = || ApplyError::Settings(name.to_owned());
        let change = change_to(&wanted, bucket_list::from_json(before).as_ref());
        let changed = match self.node.change_bucket(name, change.ok_or_else(unknown)?) {
            Err(BucketError::Settings(_)) => {
                let whole = change_to(&wanted, None).ok_or_else(unknown)?;
                self.node.change_bucket(name, whole)
            }
            changed => changed,
        };
        changed.map(|()| wanted).map_err(|error| ApplyError::Bucket(name.to_owned(), error))
    }
}

impl Asked {
    fn forget(&mut self, name: &str) {
        self.settings.remove(name);
        self.given.remove(name);
        self.unknown.remove(name);
        self.vouched.forget(name);
    }
}

/// Ends all links of a bucket; what is left of them is told.
fn follow_nobody(node: &Node, bucket: &Arc<Bucket>) -> Vec<ApplyError> {
    let refused = node.replication().want_each(bucket, &Sources::new()).into_iter();
    refused.map(|error| ApplyError::Links(bucket.name().to_owned(), error)).collect()
}

fn refused(bucket: &str, vb: VbId, refusal: Refusal) -> ApplyError {
    ApplyError::Vbucket(bucket.to_owned(), vb.0, format!("{refusal:?}"))
}

/// A vBucket's role; nothing if there is nothing to say of it.
fn role(bucket: &Bucket, vb: u16) -> Option<VbState> {
    bucket.standing(VbId(vb)).map(|standing| standing.role)
}

/// Whether a node is alive, has reported, and does not say that its copy of a vBucket cannot be read: one that has just
/// started has not looked at its files yet.
fn is_live(view: &View, name: &str, vb: u16, id: NodeId) -> bool {
    view.alive(id).is_some() && view.report(id).is_some() && !view.is_unusable(id, name, vb)
}

/// This node's copies of a bucket, and its links.
struct LocalTarget<'a> {
    node: &'a Node,
    view: &'a View,
    name: &'a str,
    bucket: &'a Arc<Bucket>,
}

impl LocalTarget<'_> {
    fn failed(&self, vb: u16, what: String) -> ApplyError {
        ApplyError::Vbucket(self.name.to_owned(), vb, what)
    }

    fn set(&self, vb: u16, role: VbState, topology: Option<Topology>) -> Result<(), ApplyError> {
        let set = self.bucket.roles().set_vbucket_state(VbId(vb), role, topology);
        set.map_err(|refusal| refused(self.name, VbId(vb), refusal))
    }

    /// Where a vBucket's changes come from.
    fn source(&self, following: Following) -> Option<Source> {
        let node = self.view.state.nodes.get(&following.source)?;
        let mode = if following.takes_over { Mode::TakeOver } else { Mode::Replicate };
        let address = node.address.kv_by(self.node.doors().links.is_encrypted());
        let (username, password) = (NODE_USER.to_owned(), Password::default());
        Some(Source { node: address, username, password, mode })
    }
}

impl ApplyTarget for LocalTarget<'_> {
    type Topology = Topology;
    type Error = ApplyError;

    fn role(&self, vb: u16) -> Option<VbState> {
        role(self.bucket, vb)
    }

    fn is_damaged(&self, vb: u16) -> bool {
        self.bucket.is_damaged(VbId(vb))
    }

    fn is_live(&self, vb: u16, id: NodeId) -> bool {
        is_live(self.view, self.name, vb, id)
    }

    fn set_aside(&self, vb: u16) -> Result<(), ApplyError> {
        let Some(host) = self.node.host() else { return Ok(()) };
        // It stays out all the same, because it cannot be read, and keeps nothing else from being applied.
        if let Err(failure) = host.set_aside(self.bucket, VbId(vb), self.node.env())
            && let Some(left_out) = self.node.events().not_set_aside.admit(self.node.env().clock.monotonic())
        {
            let bucket = self.name;
            tracing::warn!(
                event = "damaged_copy_not_set_aside", bucket, vb, %failure, left_out,
                "a damaged copy cannot be set aside; it is tried again"
            );
        }
        Ok(())
    }

    fn is_unreadable(&self, vb: u16) -> bool {
        self.bucket.is_unreadable(VbId(vb))
    }

    fn topology(&self, vb: u16, chains: &[Chain]) -> Result<Topology, ApplyError> {
        let cannot_be = || self.failed(vb, "the document has a chain that cannot be".to_owned());
        topology_of(&self.view.state, chains).ok_or_else(cannot_be)
    }

    fn set_role(&self, vb: u16, role: VbState) -> Result<(), ApplyError> {
        self.set(vb, role, None)
    }

    fn activate(&self, vb: u16, topology: Topology) -> Result<(), ApplyError> {
        self.set(vb, VbState::Active, Some(topology))
    }

    fn lead_on(&self, vb: u16, topology: Topology) -> Result<bool, ApplyError> {
        let led = self.bucket.roles().lead_on(VbId(vb), topology);
        led.map_err(|refusal| refused(self.name, VbId(vb), refusal))
    }

    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<ApplyError>> {
        let source = |(vb, of): (&u16, &Following)| Some((VbId(*vb), self.source(*of)?));
        let sources: Sources = following.iter().filter_map(source).collect();
        let refused = self.node.replication().want_each(self.bucket, &sources).into_iter();
        Refusals::of(refused.map(|error| ApplyError::Links(self.name.to_owned(), error)))
    }

    fn remove(&self, vb: u16) -> Result<(), ApplyError> {
        match self.bucket.roles().delete_vbucket(VbId(vb)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failure)) => Err(self.failed(vb, failure.to_string())),
            Err(refusal) => Err(refused(self.name, VbId(vb), refusal)),
        }
    }
}

/// Chains of nodes as vBuckets keep them: by the names under which replicas introduce themselves.
///
/// Nothing if a chain is longer than any may be, or names a node twice.
fn topology_of(state: &State, chains: &[Chain]) -> Option<Topology> {
    let name = |place: &Option<NodeId>| {
        let node = place.and_then(|id| state.nodes.get(&id));
        node.map(|node| format!("{}:{}", node.address.host, node.address.kv).into_boxed_str())
    };
    let chain = |chain: &Chain| vbucket::Chain::new(chain.iter().map(name).collect()).ok();
    Topology::of(chains.iter().map(chain).collect::<Option<Vec<_>>>()?).ok()
}

/// Why a bucket is down that the node has had, and does not know any more.
const LOST: &str = "this node has had the bucket, and has neither its entry in buckets.json nor its folder: put both back, \
                    or mount their volume, and start the node again; as soon as other nodes have all of the bucket, they \
                    fill this node's copies";

/// What makes a bucket what its settings in the document say: of its settings those that are others than before, if that
/// is known.
fn change_to(settings: &Value, before: Option<&BucketSpec>) -> Option<BucketChange> {
    let spec = bucket_list::from_json(settings)?;
    let is_asked_for = |key: Key| match before {
        Some(before) => before.settings.get(key) != spec.settings.get(key),
        // A node may have gone over to full eviction by itself.
        None => key != Key::EvictionPolicy,
    };
    let settings = SETTINGS.iter().filter(|setting| is_asked_for(setting.key));
    let durability_min = before.is_none_or(|before| before.durability_min != spec.durability_min);
    Some(BucketChange {
        settings: settings.map(|setting| (setting.name, spec.settings.show(setting.key))).collect(),
        replicas: Some(spec.replicas),
        flush_enabled: Some(spec.flush_enabled),
        durability_min: durability_min.then_some(spec.durability_min),
        hints: spec.hints,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    pub(crate) fn what_fails_for_one_bucket_keeps_no_other_one_from_its_turn() {
        let buckets = BTreeMap::from(["a", "b", "c", "d"].map(|name| (name.to_owned(), ())));
        let mut failed = BTreeMap::from([("b".to_owned(), "could not be dropped")]);
        let mut applied = Vec::new();
        each(&buckets, &mut failed, |name, ()| {
            applied.push(name.to_owned());
            if name == "a" { Err("could not be made") } else { Ok(()) }
        });
        assert_eq!(applied, ["a", "c", "d"]);
        let told = [("a".to_owned(), "could not be made"), ("b".to_owned(), "could not be dropped")];
        assert_eq!(failed, BTreeMap::from(told));
    }
}
