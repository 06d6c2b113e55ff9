//! Documents of a bucket's folder that is opened as a node opens it, as they are sent.

use std::ops::ControlFlow;

use base::limits::MAX_FRAME_BODY_BYTES;
use base::{Datatype, ItemKind, Seqno, SyncWrite, VbId, Version};
use couchstore::inflate;
use kvstore::Values;

use super::super::stored_bucket::StoredBucket;
use super::record::SYSTEM_EVENTS;
use crate::with_meta::{Record, Sender, SentCounts, Skipped};

/// Sends what a vBucket has.
pub(super) fn send_vbucket(
    bucket: &StoredBucket,
    vb: VbId,
    sender: &mut Sender<'_>,
    step: &mut dyn FnMut(&SentCounts),
) -> anyhow::Result<()> {
    let snapshot = bucket.snapshot(vb)?;
    let completed = Seqno(snapshot.state()?.completed_seqno);
    let (mut inflated, mut failed) = (Vec::new(), None);
    let mut visit = |version: Version| {
        step(&sender.counts);
        let meta = version.meta();
        if matches!(meta.sync_write, SyncWrite::Prepare(_)) && meta.by_seqno <= completed {
            return ControlFlow::Continue(());
        }
        match record_of(&version, sender.takes_snappy(), &mut inflated) {
            Err(skipped) => sender.skip(skipped),
            Ok(record) => {
                if let Err(error) = sender.send(&record) {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    };
    snapshot.scan_all(Seqno(0), Values::Read, &mut visit)?;
    failed.map_or(Ok(()), Err)
}

/// A version as a record; its value stays compressed where the document is and the server takes it so.
fn record_of<'a>(
    version: &'a Version,
    takes_snappy: bool,
    inflated: &'a mut Vec<u8>,
) -> Result<Record<'a>, Skipped> {
    let meta = version.meta();
    if matches!(meta.sync_write, SyncWrite::Prepare(_) | SyncWrite::Abort { .. }) {
        return Err(Skipped::Prepare);
    }
    if version.key().collection.0 == SYSTEM_EVENTS {
        return Err(Skipped::SystemEvent);
    }
    let deleted = meta.kind.is_deleted();
    let (value, datatype) = if !meta.datatype.is_snappy() || (takes_snappy && !deleted) {
        (version.value(), meta.datatype)
    } else {
        let len = inflate(version.value(), MAX_FRAME_BODY_BYTES, inflated).ok_or(Skipped::Unreadable)?;
        (&inflated[..len], meta.datatype.without(Datatype::SNAPPY))
    };
    Ok(Record {
        key: version.key(),
        deleted,
        expired: meta.kind == ItemKind::Expiration,
        cas: meta.cas.0,
        rev_seqno: meta.rev_seqno.0,
        expiry: meta.expiry,
        flags: meta.flags,
        datatype,
        value,
    })
}
