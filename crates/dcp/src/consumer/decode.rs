//! From a message that brings a change to what can be applied: everything in it is checked.

use base::{CollectionId, Datatype, DocKey, ItemKind, Seqno, SyncWrite, VersionMeta};
use base::{DurabilityLevel, NewVersion};
use engine::{Bucket, Incoming};
use protocol::dcp::{Deletion, Message, Mutation, Prepare, What};

use crate::content::Features;
use crate::system_event::read_event;

/// What is wrong with a message; the connection ends.
pub(super) type Wrong = &'static str;

/// Reads a change, and its seqno.
pub(super) fn change(
    bucket: &Bucket,
    message: &Message<'_>,
    features: Features,
) -> Result<(Incoming, Seqno), Wrong> {
    let now_s = bucket.now().unix_s();
    let meta = match message.what {
        What::Mutation(mutation) => stored(&mutation),
        What::Deletion(deletion) => deleted(&deletion, ItemKind::Deletion, now_s),
        What::Expiration(deletion) => deleted(&deletion, ItemKind::Expiration, now_s),
        What::Prepare(prepare) => prepared(&prepare)?,
        What::Commit(prepared, seqno) => {
            let key = key(message, features)?.to_stored();
            return Ok((Incoming::Commit { key, prepared, seqno }, seqno));
        }
        What::Abort(prepared, seqno) => {
            let key = key(message, features)?.to_stored();
            return Ok((Incoming::Abort { key, prepared, seqno }, seqno));
        }
        What::SystemEvent(seqno, ..) => {
            let event = read_event(message).ok_or("an event of collections that makes no sense")?;
            let version = bucket.replicas().received_event(&event, seqno, message.cas);
            let version = version.map_err(|_| "a number that no event has")?;
            return Ok((Incoming::Version(version), seqno));
        }
        What::Marker(_)
        | What::SeqnoAdvanced(_)
        | What::OutOfOrder(_)
        | What::SetVbucketState(_)
        | What::End(_) => return Err("it is no change"),
    };
    let version = version(bucket, message, meta, features)?;
    Ok((Incoming::Version(version), meta.by_seqno))
}

/// The key of a message, as was agreed on.
fn key<'a>(message: &Message<'a>, features: Features) -> Result<DocKey<'a>, Wrong> {
    let key = if features.collections {
        DocKey::parse(message.key).ok_or("a key without a valid collection")?
    } else {
        DocKey::new(message.key)
    };
    if matches!(key.collection, CollectionId::SYSTEM | CollectionId::PREPARES) {
        return Err("a key in a collection that is not for documents");
    }
    if key.is_valid_len() { Ok(key) } else { Err("a key of a length that no document has") }
}

fn stored(mutation: &Mutation) -> VersionMeta {
    VersionMeta {
        by_seqno: mutation.by_seqno,
        rev_seqno: mutation.rev_seqno,
        flags: mutation.flags,
        expiry: mutation.expiry,
        ..VersionMeta::default()
    }
}

fn deleted(deletion: &Deletion, kind: ItemKind, now_s: u32) -> VersionMeta {
    VersionMeta {
        by_seqno: deletion.by_seqno,
        rev_seqno: deletion.rev_seqno,
        // A producer that does not say when: then it is as old as it is here.
        expiry: deletion.delete_time.unwrap_or(now_s),
        kind,
        ..VersionMeta::default()
    }
}

fn prepared(prepare: &Prepare) -> Result<VersionMeta, Wrong> {
    let level = DurabilityLevel::from_wire(prepare.level).ok_or("a prepare of an unknown level")?;
    let kind = if prepare.is_deletion { ItemKind::Deletion } else { ItemKind::Mutation };
    Ok(VersionMeta { kind, sync_write: SyncWrite::Prepare(level), ..stored(&prepare.mutation) })
}

fn version(
    bucket: &Bucket,
    message: &Message<'_>,
    meta: VersionMeta,
    features: Features,
) -> Result<NewVersion, Wrong> {
    let key = key(message, features)?;
    let datatype = Datatype::from_wire(message.datatype).ok_or("a datatype that is not known")?;
    if datatype.is_snappy() && !features.snappy {
        return Err("a compressed value that was not agreed on");
    }
    let meta = VersionMeta { cas: message.cas, datatype, ..meta };
    bucket
        .replicas()
        .received(meta, key, message.value)
        .map_err(|_| "a key, value or number that no document has")
}
