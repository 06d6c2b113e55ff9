//! The way of one node to the coordination store, which can be cut; and what stands still while the node is frozen.

use std::sync::Arc;
use std::time::Duration;

use ::cluster::store::{Commit, LeaseId, Snapshot, Store, StoreFailure, Swap, Swapped, Version};
use parking_lot::{Condvar, Mutex};

/// How long a lease lives that is there to be revoked.
const MOMENT: Duration = Duration::from_secs(1);
const WAKE: &str = "wake";

#[derive(Clone, Copy, Default)]
struct Standing {
    is_frozen: bool,
    is_cut: bool,
    is_killed: bool,
}

/// The coordination store as one node sees it.
///
/// A frozen node neither asks nor hears what it was answered; one that is cut off or was killed is answered nothing.
pub(super) struct Gate {
    store: Arc<dyn Store>,
    /// Shared with the gates to the stores beside this one.
    bar: Arc<Bar>,
}

/// How the node stands to its stores.
#[derive(Default)]
struct Bar {
    standing: Mutex<Standing>,
    changed: Condvar,
}

impl Gate {
    /// An open one.
    pub(super) fn new(store: Arc<dyn Store>) -> Gate {
        Gate { store, bar: Arc::default() }
    }

    /// Lets the node stand still, or go on.
    pub(super) fn freeze(&self, is_frozen: bool) {
        self.change(|standing| standing.is_frozen = is_frozen);
    }

    /// Cuts the node off from the store, or lets it ask again.
    pub(super) fn cut(&self, is_cut: bool) {
        self.change(|standing| standing.is_cut = is_cut);
        if is_cut {
            self.wake_all();
        }
    }

    /// Nothing that the node still does reaches the store.
    pub(super) fn kill(&self) {
        self.change(|standing| *standing = Standing { is_killed: true, is_frozen: false, ..*standing });
        self.wake_all();
    }

    /// Whether the node is cut off from the store.
    pub(super) fn is_cut(&self) -> bool {
        self.bar.standing.lock().is_cut
    }

    /// Whether the node stands still.
    pub(super) fn is_frozen(&self) -> bool {
        self.bar.standing.lock().is_frozen
    }

    fn change(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut self.bar.standing.lock());
        self.bar.changed.notify_all();
    }

    /// Lets everybody look again who waits for a change: among them are those of this node.
    fn wake_all(&self) {
        let wake = || {
            let lease = self.store.grant(MOMENT)?;
            self.store.swap(Swap { key: WAKE, expected: None, value: Some(b""), lease: Some(lease) })?;
            self.store.revoke(lease)
        };
        if let Err(failure) = wake() {
            tracing::warn!(event = "dev_wake_late", %failure, "requests that wait for a change of the cluster cannot be woken when a node is cut off or killed: they see it later");
        }
    }

    /// Waits while the node is frozen; fails if there is no way to the store.
    fn pass(&self, operation: &'static str) -> Result<(), StoreFailure> {
        let mut standing = self.bar.standing.lock();
        while standing.is_frozen {
            self.bar.changed.wait(&mut standing);
        }
        if standing.is_cut || standing.is_killed {
            return Err(StoreFailure { operation, reason: "the node is cut off from it".to_owned() });
        }
        Ok(())
    }

    fn ask<T>(
        &self,
        operation: &'static str,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreFailure>,
    ) -> Result<T, StoreFailure> {
        self.pass(operation)?;
        let answer = ask(&*self.store)?;
        self.pass(operation)?;
        Ok(answer)
    }
}

impl Store for Gate {
    fn place(&self) -> String {
        self.store.place()
    }

    fn sibling(&self, name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        let gated = |store| Arc::new(Gate { store, bar: Arc::clone(&self.bar) }) as Arc<dyn Store>;
        Ok(self.store.sibling(name)?.map(gated))
    }

    fn read(&self) -> Result<Snapshot, StoreFailure> {
        self.ask("read", |store| store.read())
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        self.ask("swap", |store| store.swap(swap))
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        self.ask("swap", |store| store.commit(commit))
    }

    fn version_of(&self, key: &str) -> Result<Version, StoreFailure> {
        self.ask("read", |store| store.version_of(key))
    }

    fn follow(&self, known: Snapshot, at_most: Duration) -> Result<Snapshot, StoreFailure> {
        self.ask("wait", |store| store.follow(known, at_most))
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        self.ask("wait", |store| store.wait(after, at_most))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        self.ask("grant", |store| store.grant(ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.ask("keep_alive", |store| store.keep_alive(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        self.ask("revoke", |store| store.revoke(lease))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use ::cluster::MemoryStore;
    use base::env::Env;

    use super::*;

    fn gates() -> (Arc<Gate>, Arc<Gate>, base::env::SimHandles) {
        let (env, handles) = Env::sim(1);
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(env.clock));
        (Arc::new(Gate::new(Arc::clone(&store))), Arc::new(Gate::new(store)), handles)
    }

    fn put(gate: &Gate, lease: Option<LeaseId>) -> Result<Swapped, StoreFailure> {
        gate.swap(Swap { key: "k", expected: None, value: Some(b"v"), lease })
    }

    #[test]
    fn who_is_cut_off_is_answered_nothing_and_others_are() {
        let (one, other, _) = gates();
        one.cut(true);
        assert!(put(&one, None).is_err() && one.read().is_err() && one.is_cut());
        assert!(put(&other, None).is_ok());
        one.cut(false);
        assert_eq!(one.read().expect("it is asked again").entries.len(), 1);
    }

    #[test]
    fn a_frozen_node_hears_what_it_asked_when_it_goes_on() {
        let (one, other, handles) = gates();
        let lease = one.grant(Duration::from_secs(2)).expect("a lease");
        put(&one, Some(lease)).expect("an entry");
        one.freeze(true);
        let (asked, answer) = mpsc::channel();
        let asks = {
            let one = Arc::clone(&one);
            move || {
                asked.send(one.keep_alive(lease)).expect("somebody waits");
            }
        };
        let task = Env::real().spawn.spawn("asks", Box::new(asks)).expect("a thread");
        handles.clock.advance(Duration::from_secs(3));
        assert!(other.read().expect("read").entries.is_empty(), "its lease has run out");
        assert_eq!(answer.try_recv().err(), Some(mpsc::TryRecvError::Empty));
        one.freeze(false);
        assert!(!answer.recv().expect("it goes on").expect("an answer"), "the lease is gone");
        assert!(task.join());
    }

    #[test]
    fn the_lease_of_a_killed_node_is_not_revoked_and_nothing_waits() {
        let (one, other, handles) = gates();
        let lease = one.grant(Duration::from_secs(2)).expect("a lease");
        put(&one, Some(lease)).expect("an entry");
        let seen = one.read().expect("read").version;
        one.freeze(true);
        one.kill();
        assert!(one.revoke(lease).is_err());
        assert_eq!(other.read().expect("read").entries.len(), 1);
        assert!(other.read().expect("read").version > seen, "whoever waits looks again");
        handles.clock.advance(Duration::from_secs(2));
        assert!(other.read().expect("read").entries.is_empty());
    }
}
