//! A stream request: what is looked at before a stream begins, and why one may be refused.

use std::sync::Arc;

use base::{Seqno, VbId, VbState, VbUuid};
use engine::{Bucket, BucketSnapshotRefusal, KeptVbucket, StreamRefusal, StreamStart, StreamWanted};
use protocol::Status;
use protocol::dcp::{FailoverLog, OpenFlags, StreamFlags, StreamRequest};
use vbucket::ResumePoint;
use vbucket::collections::ManifestUid;

use super::Producer;
use crate::filter::Filter;
use crate::interest::Interest;
use crate::stream::{Stream, read_kept};

/// Why a stream request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRequestRefusal {
    /// With this status.
    Status(Status),
    /// The consumer has to roll back to this seqno first.
    RollBack(Seqno),
    /// What it wants is unknown: with this status, by the manifest that is named.
    Unknown(Status, ManifestUid),
}

impl From<Status> for StreamRequestRefusal {
    fn from(status: Status) -> StreamRequestRefusal {
        StreamRequestRefusal::Status(status)
    }
}

impl From<StreamRefusal> for StreamRequestRefusal {
    fn from(refusal: StreamRefusal) -> StreamRequestRefusal {
        match refusal {
            StreamRefusal::RollBack(to) => StreamRequestRefusal::RollBack(to),
            StreamRefusal::UnknownCollection(uid) => {
                StreamRequestRefusal::Unknown(Status::UnknownCollection, uid)
            }
            StreamRefusal::UnknownScope(uid) => StreamRequestRefusal::Unknown(Status::UnknownScope, uid),
            StreamRefusal::NotMyVbucket => Status::NotMyVbucket.into(),
            StreamRefusal::Loading => Status::Etmpfail.into(),
        }
    }
}

impl Producer {
    /// What a stream with this filter is about. Decided from what the connection agreed on when it was opened: a later
    /// HELLO changes neither what is streamed nor the right that is needed for it, so both have to be asked of this.
    pub fn wanted<'f>(&self, filter: &'f Filter) -> StreamWanted<'f> {
        match (&filter.collections, filter.scope) {
            // A filter is refused then.
            _ if !self.features.collections => StreamWanted::Default,
            (Some(collections), _) => StreamWanted::Collections(collections),
            (None, Some(scope)) => StreamWanted::Scope(scope),
            (None, None) => StreamWanted::Everything,
        }
    }

    /// A stream request; the value of the answer is the failover log.
    pub fn request(
        &mut self,
        vb: VbId,
        opaque: u32,
        request: &StreamRequest,
        value: &[u8],
    ) -> Result<Vec<u8>, StreamRequestRefusal> {
        self.is_heard = true;
        self.check_request(vb, request)?;
        let only_active = request.flags.has(StreamFlags::ACTIVE_ONLY);
        if !value.is_empty() && !self.features.collections {
            return Err(Status::Einval.into());
        }
        let filter = Filter::parse(value).map_err(Status::from)?;
        let wanted = self.wanted(&filter);
        self.bucket.streams().look_for(vb, wanted)?;
        self.check_filter(&filter)?;
        if self.streams_of(vb).any(|stream| stream.figures.stream_id == filter.stream_id) {
            return Err(Status::KeyEexists.into());
        }
        let mut request = *request;
        if request.flags.has(StreamFlags::FROM_LATEST)
            && let Some((_, _, uuid, high)) = self.bucket.streams().stream_state(vb)
        {
            (request.start, request.snapshot_start, request.snapshot_end) = (high, high, high);
            request.uuid = uuid;
        }
        let kept = kept_of(&self.bucket, vb, &filter, &mut request)?;
        let at = resume_point(&request, &filter);
        let mut start = if request.flags.has(StreamFlags::TAKEOVER) && !only_active {
            self.hands_over = true;
            self.bucket.streams().begin_handover(vb, &self.follower, &at, wanted)?
        } else {
            self.bucket.streams().begin_stream(vb, &self.follower, &at, wanted, only_active)?
        };
        if let Some(kept) = &kept {
            start.persisted_seqno = kept.moment.seqno;
        }
        if request.flags.has(StreamFlags::DISK_ONLY) && request.start > start.persisted_seqno {
            self.forget_if_empty(vb);
            return Err(Status::Erange.into());
        }
        if let (true, Some(node)) = (self.agreed.sync_writes, &self.agreed.consumer_name) {
            self.bucket.durability().replica_resumes(vb, node, request.start);
        }
        let log = FailoverLog::encode(start.failover.iter().map(|entry| (VbUuid(entry.uuid.0), entry.seqno)));
        let interest = self.interest_in(wanted, &start, request.start);
        let hears_of_prepares = self.agreed.sync_writes || self.features.collections;
        let mut stream =
            Box::new(Stream::new(opaque, &request, filter.stream_id, interest, &start, hears_of_prepares));
        if let Some(kept) = kept {
            read_kept(&mut stream, kept.snapshot);
        }
        let interest_bytes = Interest::bytes_of(stream.interest_size);
        self.progress.enter(&stream.figures);
        let slot = &mut self.slots[usize::from(vb.0)];
        stream.next = slot.take();
        *slot = Some(stream);
        self.was_streamed[usize::from(vb.0)] = true;
        self.streams += 1;
        self.interest_bytes += interest_bytes;
        self.note_progress(vb);
        self.enqueue(vb);
        Ok(log)
    }

    /// What a stream that begins behind `after` is about.
    fn interest_in(
        &self,
        wanted: StreamWanted<'_>,
        start: &StreamStart,
        after: Seqno,
    ) -> Option<Arc<Interest>> {
        match wanted {
            StreamWanted::Everything => None,
            StreamWanted::Default => Some(Arc::clone(&self.default_interest)),
            StreamWanted::Collections(collections) => {
                let complete_to = if start.has_all_that_is_wanted { start.high_seqno } else { after };
                Some(Arc::new(Interest::Collections(collections.to_vec(), complete_to)))
            }
            StreamWanted::Scope(scope) => Some(Arc::new(Interest::Scope(scope, start.collections.clone()))),
        }
    }

    /// What is looked at before the filter and the history.
    fn check_request(&self, vb: VbId, request: &StreamRequest) -> Result<(), Status> {
        if !request.flags.are_known() || is_contradictory(request.flags) {
            return Err(Status::Einval);
        }
        if self.slots.get(usize::from(vb.0)).is_none() || self.bucket.state_of(vb).is_none() {
            return Err(Status::NotMyVbucket);
        }
        let knows_much = self.features.collections || self.agreed.flags.has(OpenFlags::XATTRS);
        if knows_much && !self.agreed.noop {
            // Whoever knows of collections or xattrs has to show that it lives.
            return Err(Status::NotSupported);
        }
        let only_active = request.flags.has(StreamFlags::ACTIVE_ONLY);
        if only_active && self.bucket.state_of(vb) != Some(VbState::Active) {
            return Err(Status::NotMyVbucket);
        }
        let in_order = request.start <= request.end
            && request.snapshot_start <= request.start
            && request.start <= request.snapshot_end;
        if in_order { Ok(()) } else { Err(Status::Erange) }
    }

    fn check_filter(&self, filter: &Filter) -> Result<(), Status> {
        if filter.stream_id.is_some() != self.agreed.stream_ids {
            return Err(Status::DcpStreamIdInvalid);
        }
        if !filter.is_everything() && self.agreed.sync_writes {
            return Err(Status::NotSupported);
        }
        Ok(())
    }
}

fn resume_point(request: &StreamRequest, filter: &Filter) -> ResumePoint {
    ResumePoint {
        start: request.start,
        uuid: request.uuid,
        snapshot_start: request.snapshot_start,
        snapshot_end: request.snapshot_end,
        strict_uuid: request.flags.has(StreamFlags::STRICT_UUID),
        ignore_purged: request.flags.has(StreamFlags::IGNORE_PURGED),
        purge: filter.purge_seqno.map(Seqno),
    }
}

/// What a stream of a snapshot of the bucket reads: it ends where that does, as one from disk alone.
fn kept_of(
    bucket: &Bucket,
    vb: VbId,
    filter: &Filter,
    request: &mut StreamRequest,
) -> Result<Option<KeptVbucket>, Status> {
    let Some(id) = filter.snapshot else { return Ok(None) };
    if request.flags.has(StreamFlags::TAKEOVER) {
        return Err(Status::Einval);
    }
    request.flags.0 |= StreamFlags::DISK_ONLY;
    match bucket.snapshots().open(id, vb) {
        Ok(kept) => Ok(Some(kept)),
        Err(BucketSnapshotRefusal::NotReady) => Err(Status::Etmpfail),
        Err(_) => Err(Status::KeyEnoent),
    }
}

/// Flags that cannot be meant: a vBucket is not handed over without its latest changes.
fn is_contradictory(flags: StreamFlags) -> bool {
    flags.has(StreamFlags::TAKEOVER | StreamFlags::DISK_ONLY)
}
