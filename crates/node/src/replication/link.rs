//! One link: what is wanted of one node for one bucket, and how far that is.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

use base::env::Env;
use base::planted::{self, Bug};
use base::{RateLimit, VbId, VbState, limits};
use dcp::{Consumer, ConsumerCounts, Mode, Stage};
use engine::Bucket;
use parking_lot::Mutex;

use super::download_places::DownloadPlaces;
use super::link_limits::LinkLimits;
use super::login::{LinkError, Login, WANTED};
use super::outage::{LinkDown, Outage};
use super::rollback::{LeftRollbacks, Rollbacks};
use super::source::Password;
use super::status::LinkStatus;
use crate::connection_memory::{ConnectionMemory, Held};
use crate::news::Hearing;
use crate::node_login::{NODE_USER, NodeLogins};
use crate::notify::Notify;

/// The first pause before a connection is made anew, and the longest; each is shortened by chance. Clients wait for sync
/// writes meanwhile, and a try costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How far a link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// It is being connected.
    #[default]
    Connecting,
    /// It is connected and follows.
    Connected,
    /// It waits before it is connected again.
    Waiting,
}

impl LinkState {
    /// Its name in status and stats.
    pub fn name(self) -> &'static str {
        match self {
            LinkState::Connecting => "connecting",
            LinkState::Connected => "connected",
            LinkState::Waiting => "waiting",
        }
    }
}

/// What others see of a link.
#[derive(Default)]
pub(super) struct Inner {
    /// What it is to follow.
    pub(super) wanted: BTreeMap<VbId, Mode>,
    /// Those of them whose streams begin again, because their role here was another one meanwhile.
    pub(super) again: BTreeSet<VbId>,
    /// Counts up whenever that is another one.
    pub(super) declared: u64,
    /// What was taken over, and for how long nobody could write meanwhile.
    pub(super) taken_over: BTreeMap<VbId, Option<Duration>>,
    pub(super) is_closed: bool,
    pub(super) state: LinkState,
    /// While there is a connection. Its lock is held while it works, which never waits for anything but memory.
    pub(super) consumer: Option<Consumer>,
    /// What was counted on the connections before.
    pub(super) before: ConsumerCounts,
    /// Connections that were made.
    pub(super) connections: u64,
    /// Connections that were given up because the source broke the protocol.
    pub(super) violations: u64,
    pub(super) last_error: Option<String>,
    pub(super) outage: Outage,
    /// Why a vBucket was filled by documents the last time that a file was wanted.
    pub(super) file_refused: Option<String>,
    /// How often that was so.
    pub(super) files_refused: u64,
}

/// A link.
pub struct Link {
    pub(super) env: Env,
    pub(super) bucket: Arc<Bucket>,
    /// What this node calls itself.
    pub(super) own_name: String,
    pub(super) node: String,
    /// [`NODE_USER`] is let in with what `logins` says when it connects.
    pub(super) username: String,
    pub(super) password: Password,
    pub(super) logins: Arc<NodeLogins>,
    pub(super) inner: Mutex<Inner>,
    /// What is wanted changed, or prepares are on disk that the source is to know of, or it is closed.
    pub(super) changed: Arc<Notify>,
    pub(super) limits: LinkLimits,
    /// Tells whether this node stands still.
    pub(super) hearing: Hearing,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) told_broken: RateLimit,
    /// Places for files that come.
    pub(super) downloads: DownloadPlaces,
    /// Bytes of files that came.
    pub(super) file_bytes: Arc<AtomicU64>,
    /// Rollbacks and fills under way whose connections have ended.
    pub(super) left: Arc<LeftRollbacks>,
}

/// The name of connections to `node` for a bucket. Of one that is longer than a name may be, which is the key of a request, the end gives way to a number
/// that differs from that of others.
fn connection_name(node: &str, own_name: &str, bucket: &str) -> String {
    let mut name = format!("replication:{node}->{own_name}:{bucket}");
    if name.len() > limits::MAX_KEY_BYTES {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let number = format!(":{:016x}", hasher.finish());
        let front = name.floor_char_boundary(limits::MAX_KEY_BYTES - number.len());
        name.truncate(front);
        name.push_str(&number);
    }
    name
}

impl Link {
    /// What a connection of it holds is charged to that, whether or not there is room: a replica that falls behind costs more.
    pub fn charge(&self) -> Held {
        Held::new(Arc::clone(&self.memory))
    }

    /// The node that it follows.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Who it logs in as.
    pub(super) fn username(&self) -> &str {
        &self.username
    }

    /// The name of its connections, in the field's form.
    pub(super) fn connection_name(&self) -> String {
        connection_name(&self.node, &self.own_name, self.bucket.name())
    }

    /// Whether it follows a vBucket in this way, and the vBucket has a role in which it can.
    pub(super) fn follows(&self, vb: VbId, mode: Mode) -> bool {
        // Held while a role is taken over, so that the role and what is noted of it agree.
        let inner = self.inner.lock();
        let can_follow = match (mode, self.bucket.state_of(vb)) {
            (Mode::Replicate, role) => role == Some(VbState::Replica),
            (Mode::TakeOver, Some(VbState::Pending)) => true,
            // It is done; another node may have taken it over since.
            (Mode::TakeOver, Some(VbState::Active | VbState::Dead)) => inner.taken_over.contains_key(&vb),
            (Mode::TakeOver, _) => false,
        };
        can_follow && inner.wanted.get(&vb) == Some(&mode)
    }

    /// What it follows from now on; the streams of the `fresh` ones begin now, also if they were followed before.
    pub(super) fn want(&self, vbuckets: BTreeMap<VbId, Mode>, fresh: &BTreeMap<VbId, Mode>) {
        let mut inner = self.inner.lock();
        let Inner { wanted, again, taken_over, .. } = &mut *inner;
        let stays = |vb: &VbId| wanted.contains_key(vb) && wanted.get(vb) == vbuckets.get(vb);
        taken_over.retain(|vb, _| stays(vb) && !fresh.contains_key(vb));
        again.extend(fresh.keys().filter(|vb| vbuckets.contains_key(vb)));
        *wanted = vbuckets;
        inner.declared += u64::from(!planted::is(Bug::DeclarationNotHeard));
        drop(inner);
        self.changed.notify_one();
    }

    /// Nothing is wanted of it any more.
    pub(super) fn close(&self) {
        self.inner.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Where it stands.
    pub(super) fn status(&self) -> LinkStatus {
        let inner = self.inner.lock();
        LinkStatus::of(self, &inner)
    }

    /// Connections that were given up because the source broke the protocol, and why the last one broke.
    pub fn violations(&self) -> (u64, Option<String>) {
        let inner = self.inner.lock();
        (inner.violations, inner.last_error.clone())
    }

    /// What goes back in history for it: nothing yet.
    pub fn rollbacks(self: &Arc<Self>) -> Rollbacks {
        let link = Arc::downgrade(self);
        let refused = move |vb: VbId, why: &str| {
            link.upgrade().iter().for_each(|link| link.note_refused_file(vb, why));
        };
        Rollbacks::new(self.env.clone(), Arc::clone(&self.bucket)).leaving(&self.left).noting(refused)
    }

    /// The outside world.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The bucket whose vBuckets follow.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// A connection is being made.
    pub fn connecting(&self) {
        self.inner.lock().state = LinkState::Connecting;
    }

    /// What is said to the other node first.
    pub fn login(&self) -> Login<'_> {
        let (username, password) = if self.username == NODE_USER {
            let (username, password) = self.logins.at(&self.node);
            (Cow::Owned(username), Cow::Owned(password))
        } else {
            (Cow::Borrowed(self.username.as_str()), Cow::Borrowed(&self.password))
        };
        Login {
            env: &self.env,
            username,
            password,
            bucket: self.bucket.name(),
            vbuckets: self.bucket.vbuckets(),
            wanted: WANTED,
            asks_for: None,
        }
    }

    /// Notes that a connection broke; whether anything was streamed on it.
    pub fn broken(&self, error: &LinkError) -> bool {
        let now = self.env.clock.monotonic();
        if let Some(left_out) = self.told_broken.admit(now) {
            tracing::warn!(
                event = "link_down", bucket = self.bucket.name(), source = self.node, %error, left_out,
                "a link to another node is down"
            );
        }
        let mut inner = self.inner.lock();
        inner.state = LinkState::Waiting;
        inner.violations += u64::from(error.is_violation());
        inner.last_error = Some(error.to_string());
        let Some(consumer) = inner.consumer.take() else {
            inner.outage.broke(now, false);
            return false;
        };
        // Also what was taken over with the last bytes before it broke.
        let taken_over = consumer.progress().filter(|progress| progress.stage == Stage::TakenOver);
        inner.taken_over.extend(taken_over.map(|progress| (progress.vb, progress.blocked_for)));
        let counts = consumer.counts();
        inner.before.add(&counts);
        inner.outage.broke(now, counts.changes > 0);
        counts.bytes > 0
    }

    /// Why it has been down for long, if it has.
    pub(super) fn long_down(&self) -> Option<LinkDown> {
        let now = self.env.clock.monotonic();
        let mut inner = self.inner.lock();
        let Inner { outage, last_error, .. } = &mut *inner;
        let why = outage.is_long(now, last_error.as_deref())?.to_owned();
        Some(LinkDown { bucket: self.bucket.name().to_owned(), node: self.node.clone(), why })
    }

    /// Grows with each failure, and is another one for each link: not all come back at once.
    pub fn pause(&self, failures: u32) -> Duration {
        let most = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
        let share = 512 + (self.env.random.next_u64() % 512) as u32;
        most * share / 1024
    }

    /// Whether nothing is wanted of it any more.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().is_closed
    }

    /// Ready when something else is wanted, prepares are on disk that the source is to know of, or it was closed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Ready when this node does not stand still, or the link is closed.
    pub async fn thawed(&self) {
        if !self.hearing.is_frozen() {
            return;
        }
        let mut hearing = self.hearing.clone();
        let (mut thawed, mut closed) = (pin!(hearing.thawed()), pin!(self.closed()));
        std::future::poll_fn(|cx| {
            if thawed.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { closed.as_mut().poll(cx) }
        })
        .await;
        // Looking whether it is closed has used up what was told meanwhile, for which no one looks yet.
        self.changed.notify_one();
    }

    /// Ready when it is closed.
    pub async fn closed(&self) {
        while !self.is_closed() {
            self.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_connections_are_no_longer_than_they_may_be() {
        assert_eq!(connection_name("a:1", "2", "b"), "replication:a:1->2:b");
        let (node, bucket) = ("ä".repeat(200), "b".repeat(100));
        let (one, other) = (connection_name(&node, "1", &bucket), connection_name(&node, "2", &bucket));
        assert!(one.len() <= limits::MAX_KEY_BYTES && one.starts_with("replication:ä"), "{one}");
        assert_ne!(one, other);
        assert_eq!(one, connection_name(&node, "1", &bucket));
    }
}
