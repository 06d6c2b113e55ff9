//! One link: what is wanted of one node for one bucket, and the task that brings it about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::VbId;
use base::env::Env;
use dcp::{Consumer, ConsumerCounts, Mode, Stage};
use engine::Bucket;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Wanted;
use super::drive::Drive;
use super::login::{self, LinkError, Login};
use super::rollback::Rollbacks;
use super::source::Password;
use super::status::LinkStatus;
use super::wire::Wire;
use crate::news::Hearing;
use crate::sasl::client::SaltedPassword;

/// How long it may take until the other node has let us in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
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
}

/// A link.
pub(super) struct Link {
    pub(super) env: Env,
    pub(super) bucket: Arc<Bucket>,
    /// What this node calls itself.
    pub(super) own_name: String,
    node: String,
    username: String,
    password: Password,
    pub(super) inner: Mutex<Inner>,
    /// What is wanted changed, or prepares are on disk that the source is to know of, or it is closed.
    pub(super) changed: Arc<Notify>,
    /// Tells whether this node stands still.
    hearing: Hearing,
}

impl Link {
    pub(super) fn new(
        env: Env,
        bucket: &Arc<Bucket>,
        own_name: &str,
        node: String,
        wanted: Wanted,
        hearing: Hearing,
    ) -> Link {
        let inner = Inner { wanted: wanted.vbuckets, declared: 1, ..Inner::default() };
        Link {
            env,
            bucket: Arc::clone(bucket),
            own_name: own_name.to_owned(),
            node,
            username: wanted.username,
            password: wanted.password,
            inner: Mutex::new(inner),
            changed: Arc::default(),
            hearing,
        }
    }

    /// The node that it follows.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Who it logs in as.
    pub(super) fn username(&self) -> &str {
        &self.username
    }

    /// The name of its connections, in the field's form.
    pub(super) fn connection_name(&self) -> String {
        format!("replication:{}->{}:{}", self.node, self.own_name, self.bucket.name())
    }

    /// Whether it is of the same user, so that it can go on.
    pub(super) fn is_same(&self, wanted: &Wanted) -> bool {
        self.username == wanted.username && self.password == wanted.password
    }

    /// How it follows a vBucket, if it does.
    pub(super) fn wants(&self, vb: VbId) -> Option<Mode> {
        self.inner.lock().wanted.get(&vb).copied()
    }

    /// What it follows from now on.
    pub(super) fn want(&self, vbuckets: BTreeMap<VbId, Mode>) {
        let mut inner = self.inner.lock();
        let Inner { wanted, taken_over, .. } = &mut *inner;
        taken_over.retain(|vb, _| wanted.get(vb).is_some() && wanted.get(vb) == vbuckets.get(vb));
        *wanted = vbuckets;
        inner.declared += 1;
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

    /// Follows until it is closed: each connection until it breaks, then the next one after a pause.
    pub(super) async fn run(self: Arc<Link>) {
        let mut rollbacks = Rollbacks::new(self.env.clone(), Arc::clone(&self.bucket));
        let mut known = None;
        let mut failures = 0;
        loop {
            let Err(error) = self.follow(&mut rollbacks, &mut known).await else { return };
            let had_streams = self.broken(&error);
            // Who breaks the protocol does so again.
            if had_streams && !error.is_violation() {
                failures = 0;
            }
            let pause = self.pause(failures);
            failures = failures.saturating_add(1);
            if self.sleep(pause).await {
                return;
            }
        }
    }

    /// One connection; returns without an error when the link is closed.
    async fn follow(
        &self,
        rollbacks: &mut Rollbacks,
        known: &mut Option<SaltedPassword>,
    ) -> Result<(), LinkError> {
        self.inner.lock().state = LinkState::Connecting;
        let opening = async {
            let mut wire = Wire::connect(&self.env, &self.node).await?;
            let login = Login {
                env: &self.env,
                username: &self.username,
                password: &self.password,
                bucket: self.bucket.name(),
                vbuckets: self.bucket.vbuckets(),
                wanted: login::WANTED,
            };
            let agreed = login.run(&mut wire, known).await?;
            Ok::<_, LinkError>((wire, agreed))
        };
        let (wire, agreed) = tokio::select! {
            opened = tokio::time::timeout(LOGIN_TIMEOUT, opening) => {
                opened.map_err(|_| LinkError::TimeOut)??
            }
            () = self.closed() => return Ok(()),
        };
        Drive::new(self, wire, agreed, rollbacks).run().await
    }

    /// Notes that a connection broke; whether anything was streamed on it.
    fn broken(&self, error: &LinkError) -> bool {
        tracing::warn!(bucket = self.bucket.name(), source = self.node, %error, "a link to another node is down");
        let mut inner = self.inner.lock();
        inner.state = LinkState::Waiting;
        inner.violations += u64::from(error.is_violation());
        inner.last_error = Some(error.to_string());
        let Some(consumer) = inner.consumer.take() else { return false };
        // Also what was taken over with the last bytes before it broke.
        let taken_over = consumer.progress().filter(|progress| progress.stage == Stage::TakenOver);
        inner.taken_over.extend(taken_over.map(|progress| (progress.vb, progress.blocked_for)));
        let counts = consumer.counts();
        inner.before.add(&counts);
        counts.bytes > 0
    }

    /// Grows with each failure, and is another one for each link: not all come back at once.
    fn pause(&self, failures: u32) -> Duration {
        let most = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
        let share = 512 + (self.env.random.next_u64() % 512) as u32;
        most * share / 1024
    }

    /// Waits, or until something else is wanted: mostly somebody has come back. True if it was closed meanwhile.
    async fn sleep(&self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.changed.notified() => {}
        }
        self.inner.lock().is_closed
    }

    /// Ready when this node does not stand still, or the link is closed.
    pub(super) async fn thawed(&self) {
        if self.hearing.is_frozen() {
            let mut hearing = self.hearing.clone();
            tokio::select! {
                () = hearing.thawed() => {}
                () = self.closed() => {}
            }
        }
    }

    /// Ready when it is closed.
    async fn closed(&self) {
        while !self.inner.lock().is_closed {
            self.changed.notified().await;
        }
    }
}
