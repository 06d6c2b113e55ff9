//! What a node knows of its cluster for good: which cluster it belongs to, and the newest state that it has seen.
//!
//! A coordination store that is restored from a backup holds an older state. A node that followed it would serve copies
//! that others have left behind, and delete what was made since. What a node has seen therefore only goes forward.
//!
//! The caller keeps this durably, and notes a state before it does anything that the state says.

use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::state::{MAX_BRANCHES, State};
use crate::tenure::{Place, Relation};

/// The newest state of its cluster that a node has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The cluster's identity and the state's branch; empty if the state never had one.
    pub cluster: String,
    /// The state's epoch.
    pub epoch: u64,
    /// The state's revision.
    pub revision: u64,
    /// The tenure that wrote it; 0 from a version that did not know tenures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tenure: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why a state is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// It is older than one that this node has seen.
    #[error(
        "the coordination store holds revision {is} of the cluster's state, and this node has seen revision {seen}: the \
         store was restored from an older state; restore a newer one, or give up what was changed since with `stave \
         cluster adopt`"
    )]
    Older {
        /// The revision of the state.
        is: u64,
        /// The revision that the node has seen.
        seen: u64,
    },
    /// It was made from an older state than one that this node has seen, and without that.
    #[error(
        "the coordination store holds revision {is} of the cluster's state, which was made without revision {seen} as \
         this node has seen it: the store was restored from an older state and has changed since; restore a newer one, \
         or give up what this node has seen with `stave cluster adopt`"
    )]
    Diverged {
        /// The revision of the state.
        is: u64,
        /// The revision that the node has seen.
        seen: u64,
    },
    /// It is of a branch that goes on without what this node has seen.
    #[error(
        "the coordination store holds revision {is} of a state that was adopted without what this node has seen up to \
         revision {seen}: restore a newer one, or give up what this node has seen with `stave cluster adopt`"
    )]
    Abandoned {
        /// The revision of the state.
        is: u64,
        /// The revision that the node has seen of its own branch.
        seen: u64,
    },
    /// It is that of another cluster.
    #[error(
        "the coordination store holds the state of cluster {is}, and this node belongs to cluster {seen}: see that \
         --join names the right store and cluster, start the node with another --data, or leave the other cluster with \
         --leave-cluster"
    )]
    OtherCluster {
        /// The identity in the state.
        is: String,
        /// The identity that the node has seen.
        seen: String,
    },
}

/// The cluster of an identity, without the branch.
fn root(identity: &str) -> &str {
    identity.split_once('/').map_or(identity, |(root, _)| root)
}

/// Whether two identities name different clusters, or different branches of the state of one: revisions of these say
/// nothing about each other. Versions that did not know identities drop them when they write.
pub fn is_other(one: &str, other: &str) -> bool {
    let (one, other) =
        if planted::is(Bug::BranchesCompared) { (root(one), root(other)) } else { (one, other) };
    !one.is_empty() && !other.is_empty() && one != other
}

impl Membership {
    /// What is noted of a state.
    pub fn of(state: &State) -> Membership {
        let Place { tenure, revision } = state.place();
        Membership { cluster: state.cluster.clone(), epoch: state.epoch, revision, tenure }
    }

    /// Which state it is.
    pub fn place(&self) -> Place {
        Place { tenure: self.tenure, revision: self.revision }
    }

    /// Whether a node that has seen one thing after the other has seen this after `other`: every state that a node
    /// follows has a higher revision than the one before, one of another branch, or of another cluster that it was told
    /// to adopt, included.
    pub fn is_later_than(&self, other: &Membership) -> bool {
        self.revision > other.revision
    }

    /// Whether a node that has seen this may follow a state.
    pub fn check(&self, state: &State) -> Result<(), Stale> {
        if planted::is(Bug::OlderStateFollowed) {
            return Ok(());
        }
        if is_other(root(&self.cluster), root(&state.cluster)) {
            return Err(Stale::OtherCluster { is: state.cluster.clone(), seen: self.cluster.clone() });
        }
        if is_other(&self.cluster, &state.cluster) {
            let goes_on_from = state.branches.get(&self.cluster);
            return match goes_on_from.filter(|last| self.revision <= **last) {
                Some(_) => Ok(()),
                None => Err(Stale::Abandoned { is: state.revision, seen: self.revision }),
            };
        }
        let (is, seen) = (state.revision, self.revision);
        match state.relation_to(self.place()) {
            Relation::Descends => Ok(()),
            Relation::Diverged if is >= seen => Err(Stale::Diverged { is, seen }),
            // What no table says, revisions do, as before there were tables.
            Relation::Forgotten | Relation::Unknown if is >= seen => Ok(()),
            Relation::Diverged | Relation::Forgotten | Relation::Unknown => Err(Stale::Older { is, seen }),
        }
    }

    /// What is noted after a state that may be followed; `None` if that is what is noted already.
    pub fn after(&self, state: &State) -> Option<Membership> {
        let mut next = Membership::of(state);
        if next.cluster.is_empty() {
            next.cluster.clone_from(&self.cluster);
        }
        (next != *self).then_some(next)
    }

    /// The state of the store, accepted although it is older than what this node has seen: newer than both, so that
    /// every node which has seen no more than this one follows it, and clients take its map for newer. It begins a branch
    /// that `random` names.
    pub fn adopt(&self, state: &State, random: u64) -> State {
        let mut next = state.clone();
        // Revisions of the branch that it begins are higher than all before.
        next.tenures.clear();
        next.cluster = format!("{}/{random:016x}", root(&state.cluster));
        for (branch, revision) in [(&state.cluster, state.revision), (&self.cluster, self.revision)] {
            if root(branch) == root(&state.cluster) && !branch.is_empty() {
                let last = next.branches.entry(branch.clone()).or_default();
                *last = revision.max(*last);
            }
        }
        while next.branches.len() > MAX_BRANCHES {
            let first = next.branches.iter().min_by_key(|(_, last)| **last);
            let Some(first) = first.map(|(branch, _)| branch.clone()) else { break };
            next.branches.remove(&first);
        }
        next.revision = next.revision.max(self.revision) + 1;
        next.epoch = next.epoch.max(self.epoch) + 1;
        next
    }
}

/// What becomes of a bucket that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is the one that the state names.
    Stays,
    /// The state names another bucket of this name: this one goes.
    Replaced,
    /// The state says that this bucket was deleted: it goes.
    Deleted,
    /// The state says nothing about it: it is kept, and serves nobody.
    Unknown,
}

/// What becomes of a node's bucket, `uuid` being its identity as the node has noted it; `None` if it has not.
pub fn fate(state: &State, name: &str, uuid: Option<&str>) -> Fate {
    match (state.buckets.get(name), uuid) {
        (Some(bucket), Some(uuid)) if bucket.uuid != uuid => Fate::Replaced,
        (Some(_), _) => Fate::Stays,
        (None, Some(uuid)) if state.deleted.contains_key(uuid) => Fate::Deleted,
        (None, _) if planted::is(Bug::AbsentMeansDeleted) => Fate::Deleted,
        (None, _) => Fate::Unknown,
    }
}

#[cfg(all(test, debug_assertions))]
#[path = "../../simulation/src/known.rs"]
mod known;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{self, Command};
    use crate::report::Report;
    use crate::state::Address;
    use crate::store::Version;
    use crate::tenure::Writer;
    use crate::view::View;

    fn address() -> Address {
        Address::new("h".to_owned(), 1, 2)
    }

    fn after(state: &State, command: &Command) -> State {
        let (members, reports) = Default::default();
        let view = View { state: state.clone(), version: Version(1), members, reports };
        command::apply(&view, command).expect("it is done")
    }

    fn create(name: &str, uuid: &str) -> Command {
        Command::CreateBucket {
            name: name.to_owned(),
            uuid: uuid.to_owned(),
            settings: serde_json::json!({}),
            replicas: 0,
            vbuckets: 1,
            manifest: serde_json::json!({}),
        }
    }

    #[test]
    fn an_older_state_and_that_of_another_cluster_are_not_followed() {
        let old = command::found("u", &address(), 7);
        let new = after(&old, &create("b", "1"));
        let seen = Membership::of(&new);
        assert_eq!(seen.check(&new), Ok(()));
        assert_eq!(seen.check(&old), Err(Stale::Older { is: old.revision, seen: new.revision }));
        let other = command::found("u", &address(), 8);
        assert!(matches!(Membership::of(&old).check(&other), Err(Stale::OtherCluster { .. })));
        assert_eq!(Membership::default().check(&other), Ok(()), "nothing was seen yet");
        assert_eq!((seen.after(&new), seen.after(&new.next()).is_some()), (None, true));
        let adopted = seen.adopt(&old, 1);
        assert!(adopted.epoch > new.epoch && seen.check(&adopted).is_ok());
        assert!(Membership::of(&old).check(&adopted).is_ok(), "it has seen no more");
    }

    #[test]
    fn revisions_of_different_branches_say_nothing_about_each_other() {
        let old = command::found("u", &address(), 7);
        let seen = Membership::of(&old.next());
        let ahead = Membership::of(&old.next().next().next());
        let adopted = seen.adopt(&old, 1);
        // However far the branch goes, what one has seen who was away is not in it.
        let later = (0..9).fold(adopted.clone(), |state, _| state.next());
        assert_eq!(
            ahead.check(&adopted),
            Err(Stale::Abandoned { is: adopted.revision, seen: ahead.revision })
        );
        assert_eq!(ahead.check(&later), Err(Stale::Abandoned { is: later.revision, seen: ahead.revision }));
        let again = (0..20).fold(old, |state, _| state.next());
        let followed = Membership::of(&later);
        assert_eq!(
            followed.check(&again),
            Err(Stale::Abandoned { is: again.revision, seen: later.revision })
        );
        // Asked, it follows, and so does whoever has followed before.
        let joined = ahead.adopt(&later, 2);
        assert!(
            ahead.check(&joined).is_ok() && followed.check(&joined).is_ok() && seen.check(&joined).is_ok()
        );
        let many = (0..40).fold(joined, |state, at| Membership::of(&state).adopt(&state, at));
        assert!(many.check().is_ok(), "those that are remembered have a limit");
    }

    /// Mistakes in the product that these tests show (`base::planted`).
    #[test]
    #[cfg(debug_assertions)]
    fn mistakes_in_the_product_are_found() {
        known::must_find(known::Simulator::Branches, |seed| {
            // Nothing depends on it.
            if seed == 0 {
                a_state_that_was_made_without_what_was_seen_is_not_followed();
            }
            Ok(())
        });
    }

    #[test]
    fn a_state_that_was_made_without_what_was_seen_is_not_followed() {
        let (mut one, mut two) = (Writer::default(), Writer::default());
        let next = |state: &State, writer: &mut Writer, random: u64| {
            let mut next = state.next();
            writer.sign(&mut next, state.revision, random << 11);
            next
        };
        let backup = next(&command::found("u", &address(), 7), &mut one, 1);
        let seen = Membership::of(&next(&backup, &mut two, 2));
        let again = (0..5).fold(backup.clone(), |state, _| next(&state, &mut one, 3));
        let diverged = Stale::Diverged { is: again.revision, seen: seen.revision };
        assert_eq!(seen.check(&again), Err(diverged));
        assert_eq!(seen.check(&backup), Err(Stale::Older { is: backup.revision, seen: seen.revision }));
        assert_eq!(Membership::of(&backup).check(&again), Ok(()), "it has seen no more");
        let report = Report { tenure: seen.tenure, seen: seen.revision, ..Report::default() };
        assert!(!report.is_of(&again) && Report::default().is_of(&again));
        let adopted = seen.adopt(&again, 4);
        assert!(seen.check(&adopted).is_ok() && Membership::of(&again).check(&adopted).is_ok());
        // A version without tenures dropped them, or noted none: revisions are compared.
        let mut without = again.clone();
        without.tenures.clear();
        assert_eq!(seen.check(&without), Ok(()));
        assert_eq!(Membership { tenure: 0, ..seen }.check(&again), Ok(()));
    }

    #[test]
    fn a_bucket_goes_when_the_state_says_that_it_was_deleted() {
        let empty = command::found("u", &address(), 7);
        let made = after(&empty, &create("b", "1"));
        assert_eq!(fate(&made, "b", Some("1")), Fate::Stays);
        assert_eq!(fate(&made, "b", None), Fate::Stays);
        assert_eq!(fate(&made, "b", Some("2")), Fate::Replaced);
        assert_eq!(fate(&empty, "b", Some("1")), Fate::Unknown);
        let deleted = after(&made, &Command::DropBucket { name: "b".to_owned() });
        assert_eq!(fate(&deleted, "b", Some("1")), Fate::Deleted);
        assert_eq!(fate(&deleted, "b", Some("2")), Fate::Unknown, "another one was deleted");
    }

    #[test]
    fn what_was_deleted_is_remembered_within_bounds() {
        let mut state = command::found("u", &address(), 7);
        for at in 0..crate::state::MAX_DELETED + 3 {
            state = after(&state, &create("b", &format!("{at}")));
            state = after(&state, &Command::DropBucket { name: "b".to_owned() });
        }
        assert_eq!(state.deleted.len(), crate::state::MAX_DELETED);
        assert!(!state.deleted.contains_key("2") && state.deleted.contains_key("3"));
    }
}
