//! Changing the cluster's document: read, decide, write if no other node has written meanwhile.
//!
//! *Guarantee:* what is written was decided by a document that is no older than any that this node has seen, durably.

use std::sync::Arc;

use ::cluster::store::{Commit, Snapshot, Store, Swap, Swapped, Version};
use ::cluster::tenure::Writer;
use ::cluster::{Command, Stale, Standing, State, View, command, keys};
use base::env::Env;
use parking_lot::{Mutex, MutexGuard};

use super::ClusterError;
use super::membership::Seen;

/// How often a command is tried again when the document has changed meanwhile.
pub(super) const TRIES: usize = 20;

/// A node's way to the document.
pub(super) struct Document {
    env: Env,
    store: Arc<dyn Store>,
    /// What this process has written of the cluster's state.
    writer: Mutex<Writer>,
    /// The newest state that this node has seen, durably.
    seen: Mutex<Seen>,
}

impl Document {
    pub(super) fn new(env: &Env, store: &Arc<dyn Store>, seen: Seen) -> Document {
        let (writer, seen) = (Mutex::default(), Mutex::new(seen));
        Document { env: env.clone(), store: Arc::clone(store), writer, seen }
    }

    /// The newest state that this node has seen; nothing newer is noted while it is looked at.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    /// Notes durably that a state was seen, if it may be followed.
    pub(super) fn note_seen(&self, state: &State) -> Result<Result<(), Stale>, ClusterError> {
        let mut seen = self.seen.lock();
        if let Err(stale) = seen.check(state) {
            return Ok(Err(stale));
        }
        let noted = seen.note(&self.env, state);
        noted.map(Ok).map_err(|error| ClusterError::Io("what is noted of the cluster", error))
    }

    /// Asks something that depends on how things are: `what` sees them, and again whenever the document was changed by
    /// others before this could write. Blocks.
    pub(super) fn ask_for<E: From<ClusterError>>(
        &self,
        what: impl Fn(&View) -> Result<Command, E>,
    ) -> Result<Arc<View>, E> {
        for _ in 0..TRIES {
            // What was seen before the read: the thread that follows the state may note a newer one meanwhile, and then
            // the write conflicts.
            let seen = self.seen.lock().get().cloned().unwrap_or_default();
            let snapshot = self.store.read().map_err(ClusterError::from)?;
            let view = View::of(&snapshot).map_err(ClusterError::from)?.ok_or(ClusterError::NoCluster)?;
            seen.check(&view.state).map_err(ClusterError::from)?;
            let mut next = command::apply(&view, &what(&view)?).map_err(ClusterError::from)?;
            if next.revision == view.state.revision {
                return Ok(Arc::new(view));
            }
            if let Some(version) = self.write(&mut next, Some(&view))? {
                return Ok(Arc::new(View { state: next, version, ..view }));
            }
        }
        Err(ClusterError::Busy.into())
    }

    /// Follows the state that the store holds, although it is older than one that this node has seen, or that of another
    /// cluster: writes it again, newer than what this node has seen, with what `go_forward` puts into it. What was changed
    /// since is given up. Blocks.
    pub(super) fn adopt(&self, go_forward: impl Fn(&mut State)) -> Result<u64, ClusterError> {
        for _ in 0..TRIES {
            let snapshot = self.store.read()?;
            let view = View::of(&snapshot)?.ok_or(ClusterError::NoCluster)?;
            let mut present = self.seen.lock();
            let seen = present.get().cloned().unwrap_or_default();
            if seen.check(&view.state).is_ok() {
                return Err(ClusterError::NothingToAdopt);
            }
            let mut next = seen.adopt(&view.state, self.env.random.next_u64());
            go_forward(&mut next);
            if self.write(&mut next, Some(&view))?.is_none() {
                continue;
            }
            tracing::warn!(
                event = "cluster_state_older",
                seen = seen.revision,
                adopted = view.state.revision,
                as_revision = next.revision,
                "an older state of the cluster was adopted"
            );
            let noted = present.put(&self.env, ::cluster::Membership::of(&next));
            noted.map_err(|error| ClusterError::Io("what is noted of the cluster", error))?;
            return Ok(next.revision);
        }
        Err(ClusterError::Busy)
    }

    /// Writes a state in the place of another one, or as the first, in a tenure of this process; `None` if that is not the
    /// one in the store.
    pub(super) fn write(
        &self,
        state: &mut State,
        instead_of: Option<&View>,
    ) -> Result<Option<Version>, ClusterError> {
        let before = instead_of.map_or(0, |view| view.state.revision);
        self.writer.lock().sign(state, before, self.env.random.next_u64());
        let puts = state.changes(instead_of.map(|view| &view.state))?;
        let version = instead_of.map_or(Version::ABSENT, |view| view.version);
        let commit = Commit { guard: Some((keys::STATE, version)), puts: &puts, lease: None };
        match self.store.commit(commit)? {
            Swapped::Done(version) => Ok(Some(version)),
            Swapped::Conflict | Swapped::NoLease => Ok(None),
        }
    }

    /// Leads no more, if the node of this identity leads.
    pub(super) fn resign(&self, snapshot: &Snapshot, uuid: &str) -> Result<(), ClusterError> {
        if Standing::of(snapshot, uuid) == Standing::Leads {
            let expected = Some(snapshot.version_of(keys::LEADER));
            self.store.swap(Swap { key: keys::LEADER, expected, value: None, lease: None })?;
        }
        Ok(())
    }
}
