//! What the node has read of the cluster's document, and how far it has become what that says; and waiting for it.

use std::sync::Arc;
use std::time::Duration;

use ::cluster::promise::Ask;
use ::cluster::tenure::Tenure;
use ::cluster::{Applied, NodeId, State, View, membership};
use base::env::Env;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::ending::Ending;
use super::removals::Removals;

/// What the thread that follows the document shows to all others.
pub(super) struct DocumentProgress {
    env: Env,
    ending: Arc<Ending>,
    followed: Mutex<Followed>,
    changed: Condvar,
    /// What was removed from buckets, as this process has seen it.
    removals: Mutex<Removals>,
}

/// Why the cluster's document is not followed.
#[derive(Clone)]
pub(super) struct Lost {
    /// In words that may name the store's address and user.
    pub(super) why: String,
    /// Whether the coordination store is why.
    pub(super) is_of_store: bool,
}

/// What was read and done.
#[derive(Default)]
pub(super) struct Followed {
    pub(super) view: Option<Arc<View>>,
    /// Why the document is not followed now.
    lost: Option<Lost>,
    /// Why the node does not join.
    pub(super) outside: Option<String>,
    /// Whether it does not join since it has another user or password than the cluster.
    is_stranger: bool,
    /// How far this node has become what the document says.
    pub(super) applied: Applied,
    /// The tenures up to the revision beyond which the node serves nothing.
    let_go: Vec<Tenure>,
}

impl Followed {
    /// The node serves nothing that this document does not let it.
    fn note_let_go(&mut self, state: &State) {
        self.applied.let_go = state.revision;
        self.let_go.clone_from(&state.tenures);
    }
}

impl DocumentProgress {
    pub(super) fn new(env: &Env, ending: &Arc<Ending>) -> DocumentProgress {
        let (followed, changed, removals) = (Mutex::default(), Condvar::new(), Mutex::default());
        DocumentProgress { env: env.clone(), ending: Arc::clone(ending), followed, changed, removals }
    }

    /// What this node has read last; `None` before the first time.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.followed.lock().view.clone()
    }

    /// How far this node has become what the document says.
    pub(super) fn applied(&self) -> Applied {
        self.followed.lock().applied.clone()
    }

    /// What was removed from buckets; nothing else is noted while it is looked at.
    pub(super) fn removals(&self) -> MutexGuard<'_, Removals> {
        self.removals.lock()
    }

    /// What a life asks other nodes with now: the branch and the revision belong to each other.
    pub(super) fn ask(&self, node: &str, incarnation: u64) -> Option<Ask> {
        let followed = self.followed.lock();
        let cluster = followed.view.as_ref()?.state.cluster.clone();
        let (node, applied) = (node.to_owned(), followed.applied.let_go);
        Some(Ask { cluster, node, incarnation, applied, tenures: followed.let_go.clone() })
    }

    /// Waits until what was read and done is as `is_so` wants; false if that takes longer than `at_most`, or the membership
    /// ends.
    pub(super) fn wait_for(&self, at_most: Duration, is_so: impl Fn(&Followed) -> bool) -> bool {
        let clock = &self.env.clock;
        let end = clock.monotonic() + at_most;
        let mut followed = self.followed.lock();
        loop {
            if is_so(&followed) {
                return true;
            }
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() || self.ending.has_come() {
                return false;
            }
            let _ = self.changed.wait_for(&mut followed, left);
        }
    }

    /// Waits until this node is as `is_so` wants the newest document that it follows, and the revision that all its
    /// buckets are as.
    pub(super) fn wait_until(&self, at_most: Duration, is_so: impl Fn(&View, u64) -> bool) -> bool {
        self.wait_for(at_most, |followed| {
            followed.view.as_ref().is_some_and(|view| is_so(view, followed.applied.of_all()))
        })
    }

    /// The same for one bucket: the revision is the one that this bucket is as, whatever became of the others.
    pub(super) fn wait_until_bucket(
        &self,
        bucket: &str,
        at_most: Duration,
        is_so: impl Fn(&View, u64) -> bool,
    ) -> bool {
        self.wait_for(at_most, |followed| {
            followed.view.as_ref().is_some_and(|view| is_so(view, followed.applied.of(bucket)))
        })
    }

    /// Waits until a bucket is what a revision says on all nodes of the cluster that are alive.
    pub(super) fn wait_until_all_have(&self, bucket: &str, revision: u64, at_most: Duration) -> bool {
        self.wait_until_bucket(bucket, at_most, |view, _| {
            let mut nodes = view.state.nodes.keys().filter(|id| view.alive(**id).is_some());
            let has = |id: &NodeId| view.bucket_since(*id, bucket, revision).is_some();
            view.state.revision >= revision && nodes.all(has)
        })
    }

    /// Waits until there is something newer than what this node has read last.
    pub(super) fn wait_for_news(&self, at_most: Duration) {
        let version = |followed: &Followed| followed.view.as_ref().map(|view| view.version);
        let before = version(&self.followed.lock());
        self.wait_for(at_most, |followed| version(followed) != before);
    }

    /// Has all who wait look whether the membership has ended.
    pub(super) fn wake(&self) {
        // Who has looked under this lock that it has not ended sleeps by now, and hears this.
        drop(self.followed.lock());
        self.changed.notify_all();
    }

    /// Why the node does not follow the cluster's document now; `None` if it does.
    pub(super) fn lost(&self) -> Option<Lost> {
        self.followed.lock().lost.clone()
    }

    pub(super) fn set_lost(&self, lost: Option<Lost>) {
        self.followed.lock().lost = lost;
    }

    /// Why the node does not join, which somebody has to decide about; `None` if it belongs to the cluster.
    pub(super) fn outside(&self) -> Option<String> {
        self.followed.lock().outside.clone()
    }

    /// Whether the node does not join since its user or password is not the cluster's, which only another start changes.
    pub(super) fn is_stranger(&self) -> bool {
        self.followed.lock().is_stranger
    }

    pub(super) fn note_stranger(&self) {
        self.followed.lock().is_stranger = true;
    }

    /// Notes that the node belongs to the cluster.
    pub(super) fn come_inside(&self) {
        self.followed.lock().outside = None;
    }

    /// Notes that the node does not belong to the cluster until somebody takes it back.
    pub(super) fn stay_outside(&self, why: String) {
        let mut followed = self.followed.lock();
        if followed.outside.as_ref() != Some(&why) {
            tracing::warn!(event = "node_outside_cluster", "{why}");
            followed.outside = Some(why);
            self.changed.notify_all();
        }
    }

    /// Tells those who wait what was read and done: `failed` are the buckets that have not become what the document
    /// says; `None` if none of them has for certain.
    pub(super) fn show<'n>(&self, view: &Arc<View>, failed: Option<impl Iterator<Item = &'n String>>) {
        self.removals.lock().note(&view.state);
        let mut followed = self.followed.lock();
        let before = followed.view.replace(Arc::clone(view));
        if before.is_some_and(|before| membership::is_other(&before.state.cluster, &view.state.cluster)) {
            // How far the node was along another branch says nothing about this one.
            followed.applied = Applied::default();
            followed.let_go.clear();
        }
        if let Some(failed) = failed {
            followed.applied = followed.applied.after(view.state.revision, failed);
            if followed.applied.let_go == view.state.revision {
                followed.note_let_go(&view.state);
            }
        }
        self.changed.notify_all();
    }

    /// The node serves nothing that this document does not let it.
    pub(super) fn note_let_go(&self, state: &State) {
        self.followed.lock().note_let_go(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_has_looked_sleeps_before_it_is_woken() {
        let (env, ending) = (Env::real(), Arc::new(Ending::default()));
        let progress = Arc::new(DocumentProgress::new(&env, &ending));
        // As one that has seen that the membership has not ended, and does not sleep yet.
        let looking = progress.followed.lock();
        let (woken, is_woken) = mpsc::channel();
        let waker = Arc::clone(&progress);
        let wake = move || {
            waker.wake();
            woken.send(()).expect("the test waits");
        };
        env.spawn.spawn("wake", Box::new(wake)).expect("a thread");
        assert!(is_woken.recv_timeout(Duration::from_millis(100)).is_err(), "no one would hear it");
        drop(looking);
        is_woken.recv_timeout(Duration::from_secs(60)).expect("it goes on");
        ending.come();
        progress.wake();
        assert!(!progress.wait_for(Duration::from_secs(600), |_| false));
    }
}
