//! Which vBuckets of this node follow those of other nodes: declared as a whole, brought about by links.
//!
//! A link is one connection to one node for one bucket, and the next one when that breaks: bytes in, bytes out ([`run`]).
//! Who polls the links is outside ([`crate::doors::LinkRunner`]), and so is who connects them ([`Dial`]).
//! What is declared is not kept on disk: whoever declares it does so again after a restart.

pub mod download;
mod download_places;
mod drive;
mod fills;
pub(crate) mod following;
mod link;
mod link_limits;
pub(crate) mod login;
mod outage;
mod rollback;
mod run;
mod source;
mod status;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use base::env::{Env, Task};
use base::{RateLimit, Seqno, VbId, VbState};
use dcp::Mode;
use engine::{Bucket, Refusal};
use parking_lot::Mutex;

use self::link::Inner;
use crate::connection_memory::ConnectionMemory;
use crate::doors::LinkRunner;
use crate::news::Hearing;
use crate::node_login::NodeLogins;
use crate::notify::Notify;

pub use download_places::{DownloadPlace, DownloadPlaces};
pub use drive::Drive;
pub use fills::Fills;
pub use following::{Following, Stepped};
pub use link::{Link, LinkState};
pub use link_limits::LinkLimits;
pub use login::{LinkError, LoggingIn, Login};
pub use outage::{LONG, LinkDown};
pub use rollback::{LeftRollbacks, Rollbacks, RolledBack};
pub use run::run;
pub use source::{Password, Source, Sources};
pub use status::{LinkStatus, TakeOvers, lag_of};
pub use wire::{Dial, Pace, Wire, log_in};

/// The most links of a node.
pub const MAX_LINKS: usize = 256;

/// Why a declaration, or what it says of one vBucket, is refused; nothing of that was changed.
#[derive(Debug, thiserror::Error)]
pub enum WantError {
    /// Some vBuckets are not there.
    #[error("there is no vBucket {0}: the bucket has {1}")]
    NoVbucket(VbId, u16),
    /// A vBucket does not take the role in which it could follow.
    #[error("vBucket {0} does not become {1:?} here: {2:?}")]
    Role(VbId, VbState, Refusal),
    /// What is stored of a vBucket cannot be read.
    #[error("vBucket {0} cannot be read here, so it follows no node")]
    Unreadable(VbId),
    /// Some vBuckets are active here, and not empty.
    #[error(
        "{count} vBuckets are active here and hold documents, vBucket {first} first: make them dead or replica \
         before they follow others"
    )]
    Active {
        /// The first of them.
        first: VbId,
        /// How many.
        count: usize,
    },
    /// One node under two names of users.
    #[error("{node} is named with different users or passwords")]
    TwoUsers {
        /// The node.
        node: String,
    },
    /// There would be more links than a node may have.
    #[error("a node has at most {MAX_LINKS} links")]
    TooManyLinks,
    /// The node is being stopped.
    #[error("the node is being stopped")]
    Stopping,
    /// The thread of the links could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// The links of a node.
pub struct Replication {
    env: Env,
    /// What this node calls itself.
    node: String,
    shared: Arc<Links>,
    runner: Arc<dyn LinkRunner>,
    thread: Mutex<Option<Task>>,
    /// Held while something is declared.
    declaring: Mutex<()>,
    /// Tells whether the node stands still.
    hearing: Hearing,
    /// What waits on the links is charged to it.
    memory: Arc<ConnectionMemory>,
    /// As whom nodes of the same cluster log in.
    logins: Arc<NodeLogins>,
    downloads: DownloadPlaces,
    /// Rollbacks and fills whose links have ended: no other link waits for them.
    left: Arc<LeftRollbacks>,
}

/// What who runs the links shares with others.
#[derive(Default)]
pub struct Links {
    state: Mutex<State>,
    /// Something of it changed.
    changed: Notify,
}

impl Links {
    /// Links that came since this was asked last: each is to be run.
    pub fn take_new(&self) -> Vec<Arc<Link>> {
        std::mem::take(&mut self.state.lock().new)
    }

    /// Whether no more links come, and those that are there are closed.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().is_stopping
    }

    /// Ready when there are new links, or none come any more.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[derive(Default)]
struct State {
    /// By bucket and node.
    links: BTreeMap<(String, String), Arc<Link>>,
    /// Those that are not run yet.
    new: Vec<Arc<Link>>,
    is_stopping: bool,
}

impl Replication {
    /// No links yet; `node` is this node's HOST:PORT. While `hearing` says that the node stands still its links do.
    pub fn new(
        env: Env,
        node: String,
        hearing: Hearing,
        memory: Arc<ConnectionMemory>,
        runner: Arc<dyn LinkRunner>,
        logins: Arc<NodeLogins>,
    ) -> Replication {
        Replication {
            env,
            node,
            shared: Arc::default(),
            thread: Mutex::default(),
            declaring: Mutex::default(),
            hearing,
            memory,
            runner,
            logins,
            downloads: DownloadPlaces::default(),
            left: Arc::default(),
        }
    }

    /// Places for files of vBuckets that come from other nodes.
    pub fn downloads(&self) -> &DownloadPlaces {
        &self.downloads
    }

    /// The same with another runner of links.
    pub(crate) fn run_by(self, runner: Arc<dyn LinkRunner>) -> Replication {
        Replication { runner, ..self }
    }

    /// From now on these vBuckets of `bucket` follow these sources, and no others do. If one is refused, nothing changes.
    ///
    /// Those that are missing or dead become replicas, as do active ones without a document; those that are taken over
    /// become pending, whatever they were. What was declared before and is the same goes on undisturbed, also a vBucket
    /// that was taken over already. One that follows nobody any more stays what it is.
    pub fn want(&self, bucket: &Arc<Bucket>, sources: &Sources) -> Result<(), WantError> {
        let _declaring = self.declaring.lock();
        let (by_node, refused) = by_node(sources);
        if let Some(refusal) = refused.into_iter().next() {
            return Err(refusal);
        }
        let fresh = self.fresh(bucket, sources);
        check(bucket, &fresh)?;
        self.check_links(bucket.name(), by_node.len())?;
        if !by_node.is_empty() {
            self.start_thread()?;
        }
        take_roles(bucket, &fresh)?;
        self.declare(bucket, by_node, &fresh)
    }

    /// The same, but each vBucket is refused alone: the others follow their sources, and what is not wanted any more ends
    /// whatever is refused. A vBucket that is refused follows no source. Returns the refusals.
    pub fn want_each(&self, bucket: &Arc<Bucket>, sources: &Sources) -> Vec<WantError> {
        let _declaring = self.declaring.lock();
        let (mut by_node, mut refused) = by_node(sources);
        refused.extend(self.keep_to_limit(bucket.name(), &mut by_node));
        if !by_node.is_empty()
            && let Err(refusal) = self.start_thread()
        {
            refused.push(refusal);
            by_node.clear();
        }
        let mut fresh = self.fresh(bucket, sources);
        for wanted in by_node.values_mut() {
            wanted.vbuckets.retain(|vb, mode| {
                let taken = if fresh.contains_key(vb) { take_role(bucket, *vb, *mode) } else { Ok(()) };
                taken.map_err(|refusal| refused.push(refusal)).is_ok()
            });
        }
        by_node.retain(|_, wanted| !wanted.vbuckets.is_empty());
        fresh.retain(|vb, _| by_node.values().any(|wanted| wanted.vbuckets.contains_key(vb)));
        refused.extend(self.declare(bucket, by_node, &fresh).err());
        refused
    }

    /// Ends what is not wanted any more of a bucket's links, and begins what is new. `fresh` are the vBuckets that begin to
    /// follow.
    fn declare(
        &self,
        bucket: &Arc<Bucket>,
        by_node: BTreeMap<String, Wanted>,
        fresh: &BTreeMap<VbId, Mode>,
    ) -> Result<(), WantError> {
        let mut state = self.shared.state.lock();
        if state.is_stopping {
            return Err(WantError::Stopping);
        }
        let State { links, new, .. } = &mut *state;
        links.retain(|(of, node), link| {
            let keeps = of != bucket.name() || by_node.get(node).is_some_and(|wanted| link.is_same(wanted));
            if !keeps {
                link.close();
            }
            keeps
        });
        for (node, wanted) in by_node {
            let key = (bucket.name().to_owned(), node);
            match links.get(&key) {
                Some(link) => link.want(wanted.vbuckets, fresh),
                None => {
                    let link = Arc::new(Link::new(self, bucket, key.1.clone(), wanted));
                    links.insert(key, Arc::clone(&link));
                    new.push(link);
                }
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// The bucket goes: none of its vBuckets follows anybody any more.
    pub fn forget(&self, bucket: &str) {
        let _declaring = self.declaring.lock();
        self.shared.state.lock().links.retain(|(of, _), link| {
            if of == bucket {
                link.close();
            }
            of != bucket
        });
        self.shared.changed.notify_one();
    }

    /// Where the links stand; of one bucket, if it is named.
    pub fn status(&self, bucket: Option<&str>) -> Vec<LinkStatus> {
        self.links(bucket).iter().map(|link| link.status()).collect()
    }

    /// Links that have been down for long, and why.
    pub fn long_down(&self) -> Vec<LinkDown> {
        self.links(None).iter().filter_map(|link| link.long_down()).collect()
    }

    /// Whether a vBucket follows another node over a link.
    pub fn follows(&self, bucket: &str, vb: VbId) -> bool {
        self.links(Some(bucket)).iter().any(|link| link.inner.lock().wanted.contains_key(&vb))
    }

    fn links(&self, bucket: Option<&str>) -> Vec<Arc<Link>> {
        let state = self.shared.state.lock();
        let all = state.links.iter().filter(|((of, _), _)| bucket.is_none_or(|name| of == name));
        all.map(|(_, link)| Arc::clone(link)).collect()
    }

    /// Ends all links; returns when none of them works on a bucket any more. False if their thread panicked.
    pub fn stop(&self) -> bool {
        let links = {
            let mut state = self.shared.state.lock();
            state.is_stopping = true;
            std::mem::take(&mut state.links)
        };
        links.values().for_each(|link| link.close());
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        let links_sound = thread.is_none_or(Task::join);
        self.left.join() && links_sound
    }

    fn start_thread(&self) -> Result<(), WantError> {
        let mut thread = self.thread.lock();
        if self.shared.state.lock().is_stopping {
            return Err(WantError::Stopping);
        }
        if thread.is_none() {
            *thread = Some(self.runner.start(&self.env, Arc::clone(&self.shared))?);
        }
        Ok(())
    }

    /// Those of `sources` that are not followed in this way already, or whose role here is not one in which they can
    /// follow any more: their streams are refused until they have it again.
    fn fresh(&self, bucket: &Bucket, sources: &Sources) -> BTreeMap<VbId, Mode> {
        let links = self.links(Some(bucket.name()));
        let is_known = |vb: VbId, source: &Source| {
            links.iter().any(|link| link.node() == source.node && link.follows(vb, source.mode))
        };
        let fresh = sources.iter().filter(|(vb, source)| !is_known(**vb, source));
        fresh.map(|(vb, source)| (*vb, source.mode)).collect()
    }

    fn check_links(&self, bucket: &str, wanted: usize) -> Result<(), WantError> {
        if wanted > self.room(bucket) { Err(WantError::TooManyLinks) } else { Ok(()) }
    }

    /// How many links a bucket may have beside those of other buckets.
    fn room(&self, bucket: &str) -> usize {
        let state = self.shared.state.lock();
        let others = state.links.keys().filter(|(of, _)| of != bucket).count();
        MAX_LINKS.saturating_sub(others)
    }

    /// Leaves out nodes to which there would be more links than there may be, those without a link first.
    fn keep_to_limit(&self, bucket: &str, by_node: &mut BTreeMap<String, Wanted>) -> Vec<WantError> {
        let excess = by_node.len().saturating_sub(self.room(bucket));
        let has_link = |node: &str| self.links(Some(bucket)).iter().any(|link| link.node() == node);
        let mut nodes: Vec<String> = if excess == 0 { Vec::new() } else { by_node.keys().cloned().collect() };
        nodes.sort_by_key(|node| has_link(node));
        nodes.iter().take(excess).for_each(|node| drop(by_node.remove(node)));
        nodes.iter().take(excess).map(|_| WantError::TooManyLinks).collect()
    }
}

/// What is wanted of one node.
pub(crate) struct Wanted {
    username: String,
    password: Password,
    vbuckets: BTreeMap<VbId, Mode>,
}

/// What is wanted of each node, and what is refused because it names a node with another user.
fn by_node(sources: &Sources) -> (BTreeMap<String, Wanted>, Vec<WantError>) {
    let mut refused = Vec::new();
    let mut all: BTreeMap<String, Wanted> = BTreeMap::new();
    for (vb, source) in sources {
        let wanted = all.entry(source.node.clone()).or_insert_with(|| Wanted {
            username: source.username.clone(),
            password: source.password.clone(),
            vbuckets: BTreeMap::new(),
        });
        if wanted.username != source.username || wanted.password != source.password {
            refused.push(WantError::TwoUsers { node: source.node.clone() });
            continue;
        }
        wanted.vbuckets.insert(*vb, source.mode);
    }
    (all, refused)
}

/// Whether all of them may follow others.
fn check(bucket: &Bucket, fresh: &BTreeMap<VbId, Mode>) -> Result<(), WantError> {
    if let Some((vb, _)) = fresh.iter().next_back().filter(|(vb, _)| vb.0 >= bucket.vbuckets()) {
        return Err(WantError::NoVbucket(*vb, bucket.vbuckets()));
    }
    let is_in_use = |(vb, mode): &(&VbId, &Mode)| {
        let state = bucket.streams().stream_state(**vb);
        **mode == Mode::Replicate
            && state.is_some_and(|(state, _, _, high)| state == VbState::Active && high > Seqno(0))
    };
    let mut in_use = fresh.iter().filter(is_in_use).map(|(vb, _)| *vb);
    match in_use.next() {
        Some(first) => Err(WantError::Active { first, count: 1 + in_use.count() }),
        None => Ok(()),
    }
}

/// Gives all of them the roles in which they can follow.
fn take_roles(bucket: &Bucket, fresh: &BTreeMap<VbId, Mode>) -> Result<(), WantError> {
    for (at, (vb, mode)) in fresh.iter().enumerate() {
        if let Err(refusal) = take_role(bucket, *vb, *mode) {
            if let Some(left_out) = engine::admit_log(bucket, "replicas without a source") {
                let name = bucket.name();
                tracing::warn!(
                    event = "replicas_without_source",
                    bucket = name,
                    vbuckets = at,
                    left_out,
                    "some became replicas and have no source"
                );
            }
            return Err(refusal);
        }
    }
    Ok(())
}

/// Gives a vBucket the role in which it can follow.
fn take_role(bucket: &Bucket, vb: VbId, mode: Mode) -> Result<(), WantError> {
    let role = match mode {
        Mode::Replicate => VbState::Replica,
        Mode::TakeOver => VbState::Pending,
    };
    check(bucket, &BTreeMap::from([(vb, mode)]))?;
    let before = bucket.state_of(vb);
    if before == Some(role) {
        return Ok(());
    }
    bucket.roles().set_vbucket_state(vb, role, None).map_err(|refusal| refused_role(vb, role, refusal))?;
    // Somebody may have written between the look and the change; from the change on nobody does.
    let is_in_use = bucket.streams().stream_state(vb).is_some_and(|(_, _, _, high)| high > Seqno(0));
    if before == Some(VbState::Active) && mode == Mode::Replicate && is_in_use {
        let again = bucket.roles().set_vbucket_state(vb, VbState::Active, None);
        again.map_err(|refusal| refused_role(vb, VbState::Active, refusal))?;
        return Err(WantError::Active { first: vb, count: 1 });
    }
    Ok(())
}

fn refused_role(vb: VbId, role: VbState, refusal: Refusal) -> WantError {
    match refusal {
        Refusal::Unreadable => WantError::Unreadable(vb),
        refusal => WantError::Role(vb, role, refusal),
    }
}

impl Link {
    /// One of `of`, not run yet.
    pub(super) fn new(of: &Replication, bucket: &Arc<Bucket>, node: String, wanted: Wanted) -> Link {
        let inner = Inner { wanted: wanted.vbuckets, declared: 1, ..Inner::default() };
        Link {
            env: of.env.clone(),
            bucket: Arc::clone(bucket),
            own_name: of.node.clone(),
            node,
            username: wanted.username,
            password: wanted.password,
            logins: Arc::clone(&of.logins),
            inner: Mutex::new(inner),
            changed: Arc::default(),
            limits: of.runner.limits(),
            hearing: of.hearing.clone(),
            memory: Arc::clone(&of.memory),
            told_broken: RateLimit::new(),
            downloads: of.downloads.clone(),
            file_bytes: Arc::default(),
            left: Arc::clone(&of.left),
        }
    }

    /// Whether it is of the same user, so that it can go on.
    pub(super) fn is_same(&self, wanted: &Wanted) -> bool {
        self.username == wanted.username && self.password == wanted.password
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_role_is_told_with_its_reason() {
        let told = |refusal| refused_role(VbId(3), VbState::Replica, refusal).to_string();
        assert_eq!(told(Refusal::Pending), "vBucket 3 does not become Replica here: Pending");
        assert_eq!(told(Refusal::Unreadable), "vBucket 3 cannot be read here, so it follows no node");
    }
}
