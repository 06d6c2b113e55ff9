//! What the coordination store holds, read: the document, who is alive, what they report.

use std::collections::BTreeMap;

use base::planted::{self, Bug};

use crate::keys;
use crate::report::{Member, Report};
use crate::state::{Bucket, Invalid, Limits, NodeId, Reader, State, Step};
use crate::store::{Snapshot, Version};

/// One consistent look at the store.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The document.
    pub state: State,
    /// The document's version in the store, for compare-and-swap.
    pub version: Version,
    /// Who is alive, by identity.
    pub members: BTreeMap<String, Member>,
    /// What they report, by identity.
    pub reports: BTreeMap<String, Report>,
}

impl View {
    /// Reads a snapshot; nothing if there is no document yet. Soft state that cannot be read counts as missing.
    pub fn of(snapshot: &Snapshot) -> Result<Option<View>, Invalid> {
        View::read(&mut Reader::default(), snapshot)
    }

    /// The same with a reader that remembers what it has read before.
    pub fn read(reader: &mut Reader, snapshot: &Snapshot) -> Result<Option<View>, Invalid> {
        let Some(state) = reader.read(snapshot)? else { return Ok(None) };
        let mut reports: BTreeMap<String, Report> = BTreeMap::new();
        // What is reported of a bucket comes behind what is reported of all, in the order of keys.
        for (name, report) in read_all::<Report>(snapshot, keys::REPORTS) {
            match name.split_once('/') {
                None => drop(reports.insert(name, report)),
                Some((uuid, bucket)) => {
                    let Some(whole) = reports.get_mut(uuid) else { continue };
                    if report.incarnation == whole.incarnation && !report.is_of(&state) {
                        // The node goes by another state by now: what it is bound to is not known.
                        reports.remove(uuid);
                    } else {
                        whole.take_in(bucket, report);
                    }
                }
            }
        }
        let (version, members) = (snapshot.version_of(keys::STATE), read_all(snapshot, keys::MEMBERS));
        Ok(Some(View { state, version, members, reports }))
    }

    /// The member that stands for a node, if it is the life that the document lets serve.
    pub fn alive(&self, id: NodeId) -> Option<&Member> {
        let node = self.state.nodes.get(&id)?;
        self.members.get(&node.uuid).filter(|member| member.incarnation == node.incarnation)
    }

    /// Whether a node says that it has kept its copy of a vBucket although the document gives it none.
    pub fn has_kept(&self, id: NodeId, bucket: &str, vb: u16) -> bool {
        let report = self.report(id);
        report.and_then(|report| report.kept.get(bucket)).is_some_and(|kept| kept.contains(&vb))
    }

    /// vBuckets of a bucket that no node serves: none is active, or the one that is does not answer.
    pub fn unserved(&self, bucket: &Bucket) -> usize {
        let serves = |vb: u16| {
            let active =
                bucket.active(vb).filter(|_| !matches!(bucket.steps.get(&vb), Some(Step::Choose { .. })));
            active.is_some_and(|id| self.alive(id).is_some())
        };
        bucket.vbuckets().filter(|vb| !serves(*vb)).count()
    }

    /// What a node's admitted life reports of this state and those that it was made from, while it is alive.
    pub fn report(&self, id: NodeId) -> Option<&Report> {
        let member = self.alive(id)?;
        let uuid = &self.state.nodes.get(&id)?.uuid;
        let is_of_it = |report: &&Report| report.is_of(&self.state);
        self.reports.get(uuid).filter(|report| report.incarnation == member.incarnation).filter(is_of_it)
    }

    /// What a node has reported after all its buckets had become as `revision` says.
    pub fn report_since(&self, id: NodeId, revision: u64) -> Option<&Report> {
        self.report(id).filter(|report| report.applied >= revision)
    }

    /// What a node has reported after one of its buckets had become as `revision` says; others may not have.
    pub fn bucket_since(&self, id: NodeId, bucket: &str, revision: u64) -> Option<&Report> {
        self.report(id).filter(|report| report.applied_of(bucket) >= revision)
    }

    /// Whether a node says that it serves nothing of a bucket that the document of `revision` does not let it, although
    /// the bucket may not be what that document says.
    fn has_let_go(&self, id: NodeId, bucket: &str, revision: u64) -> bool {
        self.report(id).is_some_and(|report| report.applied_of(bucket).max(report.let_go) >= revision)
    }

    /// Whether a node serves nothing of a bucket that the document of `revision` does not let it, unless others have
    /// promised not to take over from it: its lease is over, or it said so.
    pub fn has_stopped(&self, id: NodeId, bucket: &str, revision: u64) -> bool {
        let is_gone = self.alive(id).is_none() && !planted::is(Bug::GoneMustReport);
        is_gone || self.has_let_go(id, bucket, revision)
    }

    /// Why a node has had no connection for long to another one that is alive, whose copies of a bucket it follows, as it
    /// says; `None` if it does not say so.
    pub fn link_down(&self, bucket: &str, follower: NodeId, source: NodeId) -> Option<&str> {
        self.alive(source)?;
        Some(self.report(follower)?.links_down.get(bucket)?.get(&source)?.as_str())
    }

    /// Whether a node says that its copy of a vBucket is damaged.
    pub fn is_damaged(&self, id: NodeId, bucket: &str, vb: u16) -> bool {
        let damaged = self.report(id).and_then(|report| report.damaged.get(bucket));
        damaged.is_some_and(|damaged| damaged.contains(vb))
    }

    /// Whether a node says that it cannot read its copy of a vBucket now, whatever the reason.
    pub fn is_unusable(&self, id: NodeId, bucket: &str, vb: u16) -> bool {
        let damaged = self.report(id).and_then(|report| report.damaged.get(bucket));
        damaged.is_some_and(|damaged| damaged.is_unusable(vb))
    }

    /// Whether a node surely serves nothing of a bucket that the document of `revision` does not let it, whatever others
    /// have promised: it said so, or its next life did by being there.
    pub fn has_ended(&self, id: NodeId, bucket: &str, revision: u64) -> bool {
        let Some(node) = self.state.nodes.get(&id) else { return true };
        let member = self.members.get(&node.uuid);
        member.is_some_and(|member| member.incarnation != node.incarnation)
            || self.has_let_go(id, bucket, revision)
    }

    /// What a node can hold: as it says itself, or as it said last if it does not answer.
    pub fn limits(&self, id: NodeId) -> Option<Limits> {
        let node = self.state.nodes.get(&id)?;
        self.members.get(&node.uuid).and_then(|member| member.limits).or(node.limits)
    }
}

fn read_all<T: serde::de::DeserializeOwned>(snapshot: &Snapshot, prefix: &str) -> BTreeMap<String, T> {
    let entries = snapshot.entries.iter().filter_map(|(key, entry)| {
        let name = key.strip_prefix(prefix)?;
        Some((name.to_owned(), serde_json::from_slice(&entry.value).ok()?))
    });
    entries.collect()
}
