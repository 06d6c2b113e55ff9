//! What a consumer that takes part in sync writes says about prepares: up to where it has them, as safe as their
//! levels ask. At most one message for each vBucket and look, however many prepares there are.

use std::sync::Arc;

use base::{Seqno, VbId};
use engine::Follower;
use protocol::{RequestParts, opcode};

use super::track::Stage;
use super::{Consumer, send};

impl Consumer {
    /// Has `wake` called, from any thread, when prepares have become safer without anything
    /// having come, because they are on disk now: then [`Consumer::settle`] has something to say.
    pub fn on_prepared(&mut self, wake: impl Fn() + Send + Sync + 'static) {
        self.prepared = Some(Follower::new(self.bucket.vbuckets(), wake));
    }

    /// Has it told when prepares of a vBucket are on disk.
    pub(super) fn follow_prepares(&self, vb: VbId) {
        if let (Some(prepared), Some(_)) = (&self.prepared, &self.config.consumer_name) {
            self.bucket.durability().follow_prepares(vb, prepared);
        }
    }

    pub(super) fn unfollow_prepares(&self, vb: VbId) {
        if let Some(prepared) = &self.prepared {
            self.bucket.durability().unfollow_prepares(vb, prepared);
        }
    }

    /// Acknowledges the prepares of those vBuckets where something happened on disk.
    pub(super) fn acknowledge_persisted(&mut self, out: &mut Vec<u8>) {
        if let Some(prepared) = self.prepared.clone() {
            prepared.take(|vb| self.acknowledge_prepares(vb, out));
        }
    }

    /// Says up to where there are prepares of a vBucket, if that is news for its stream.
    pub(super) fn acknowledge_prepares(&mut self, vb: VbId, out: &mut Vec<u8>) {
        if self.config.consumer_name.is_none() {
            return;
        }
        let bucket = Arc::clone(&self.bucket);
        let is_streaming =
            |track: &&mut super::Track| track.stage == Stage::Streaming && track.stream.is_some();
        let Some(track) = self.track(vb).filter(is_streaming) else { return };
        let Some(prepared) =
            bucket.durability().replica_prepared(vb).filter(|seqno| *seqno > track.acknowledged)
        else {
            return;
        };
        // Looked at behind the prepares: those of another stream are not this producer's.
        if track.stream.is_none_or(|stream| !bucket.replicas().is_followed(stream)) {
            return;
        }
        track.acknowledged = prepared;
        let (opaque, Seqno(prepared)) = (track.opaque, prepared);
        let extras = prepared.to_be_bytes();
        let parts = RequestParts {
            opcode: opcode::DCP_SEQNO_ACKNOWLEDGED,
            vbucket: vb,
            opaque,
            extras: &extras,
            ..RequestParts::default()
        };
        send(out, &parts);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        for vb in (0..self.bucket.vbuckets()).map(VbId) {
            if self.tracks[usize::from(vb.0)].is_some() {
                self.unfollow_prepares(vb);
            }
        }
    }
}
