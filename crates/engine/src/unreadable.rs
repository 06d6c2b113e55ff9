//! vBuckets whose files cannot be read or believed, and why: dead ones of which nothing is in memory, and ones that are
//! served from what is in memory while another copy takes their place.

use std::collections::BTreeMap;

use base::VbId;
use parking_lot::Mutex;

/// What is known of one vBucket's files.
#[derive(Clone, Debug)]
struct Unreadable {
    /// In words.
    reason: String,
    /// Whether the files cannot be believed, whatever the disk does later.
    is_damage: bool,
    /// Whether nothing of the vBucket is in memory.
    is_dead: bool,
}

/// The vBuckets of a bucket whose files cannot be read or believed.
#[derive(Debug, Default)]
pub(crate) struct Unreadables(Mutex<BTreeMap<VbId, Unreadable>>);

impl Unreadables {
    /// Those of which nothing is in memory, and why.
    pub(crate) fn dead(&self) -> Vec<(VbId, String)> {
        let all = self.0.lock();
        all.iter().filter(|(_, of)| of.is_dead).map(|(vb, of)| (*vb, of.reason.clone())).collect()
    }

    /// Those whose files cannot be believed, whatever the disk does later.
    pub(crate) fn damaged(&self) -> Vec<VbId> {
        self.0.lock().iter().filter(|(_, of)| of.is_damage).map(|(vb, _)| *vb).collect()
    }

    /// Whether nothing of a vBucket is in memory.
    pub(crate) fn is_dead(&self, vb: VbId) -> bool {
        self.0.lock().get(&vb).is_some_and(|of| of.is_dead)
    }

    /// Whether the files of a vBucket cannot be believed.
    pub(crate) fn is_damaged(&self, vb: VbId) -> bool {
        self.0.lock().get(&vb).is_some_and(|of| of.is_damage)
    }

    /// A vBucket is dead because what is stored of it cannot be read.
    pub(crate) fn note_dead(&self, bucket: &str, vb: VbId, failure: &kvstore::Failure) {
        let (reason, is_damage) = (failure.to_string(), failure.is_damage());
        tracing::error!(
            event = "vbucket_not_served", bucket, %vb, %failure, is_damage,
            "the vBucket is not served"
        );
        self.0.lock().insert(vb, Unreadable { reason, is_damage, is_dead: true });
    }

    /// Something stored of a vBucket that is served could not be read. Nothing is noted unless that is damage.
    pub(crate) fn note_served(&self, bucket: &str, vb: VbId, failure: &kvstore::Failure) {
        if failure.is_damage() {
            self.note_damaged(bucket, vb, failure.to_string());
        }
    }

    /// The files of a vBucket that is served are damaged.
    pub(crate) fn note_damaged(&self, bucket: &str, vb: VbId, reason: String) {
        self.0.lock().entry(vb).or_insert_with(|| {
            tracing::error!(
                event = "vbucket_damaged",
                bucket,
                %vb,
                failure = reason,
                "the vBucket's files are damaged: it is served from what can be read, until another copy takes its place"
            );
            Unreadable { reason, is_damage: true, is_dead: false }
        });
    }

    /// A vBucket takes a role: one of which nothing is in memory begins with nothing.
    pub(crate) fn begins(&self, vb: VbId) {
        let mut all = self.0.lock();
        if all.get(&vb).is_some_and(|of| of.is_dead) {
            all.remove(&vb);
        }
    }

    /// A vBucket and its files are gone.
    pub(crate) fn forget(&self, vb: VbId) {
        self.0.lock().remove(&vb);
    }
}
