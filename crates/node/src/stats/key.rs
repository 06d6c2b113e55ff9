//! The group about one document.

use base::{CollectionId, DocKey, VbId, VbState, Version};
use engine::BucketKind;
use protocol::Status;

use super::Sheet;
use super::collection::named;
use super::inquiry::{Inquiry, Refused, parse_vbucket};
use crate::privilege::Privilege;

/// `key KEY VB [SCOPE.COLLECTION|0xID]`: as it is now, a tombstone counting as no document.
pub fn key(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let (vb, key) = place(inquiry, args)?;
    look(inquiry, vb, key)?.put(sheet);
    Ok(())
}

/// How often a document is looked at that changes while it is read from disk.
const MAX_LOOKS: usize = 8;

/// `vkey KEY VB [SCOPE.COLLECTION|0xID]`: the same, and whether disk and memory have the same.
pub fn vkey(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let (vb, key) = place(inquiry, args)?;
    if inquiry.bucket.config().kind == BucketKind::Ephemeral {
        return Err(Refused::Status(Status::NotSupported));
    }
    for _ in 0..MAX_LOOKS {
        let seen = look(inquiry, vb, key)?;
        if let Some(valid) = seen.compare(inquiry, vb, key)? {
            seen.put(sheet);
            sheet.put("key_valid", valid);
            return Ok(());
        }
    }
    Err(Refused::Status(Status::Etmpfail))
}

/// The document that the arguments name.
fn place<'a>(inquiry: &Inquiry<'_>, args: &[&'a [u8]]) -> Result<(VbId, DocKey<'a>), Refused> {
    let vb = parse_vbucket(args[1])
        .ok_or(Refused::Invalid("The second argument must be the number of a vBucket"))?;
    let collection = args.get(2).map(|name| named(inquiry, name)).transpose()?;
    let key = DocKey { collection: collection.unwrap_or(CollectionId::DEFAULT), key: args[0] };
    inquiry.require_in(key.collection, Privilege::MetaRead)?;
    if !key.is_valid_len() {
        return Err(Refused::Invalid("The key is too long"));
    }
    Ok((vb, key))
}

/// A document as memory has it.
struct InMemory {
    version: Version,
    is_dirty: bool,
    state: VbState,
}

fn look(inquiry: &Inquiry<'_>, vb: VbId, key: DocKey<'_>) -> Result<InMemory, Refused> {
    let refused = |refusal| Refused::Engine(vb, key.to_stored().0, refusal);
    let found = inquiry.bucket.documents().peek(vb, key, inquiry.now).map_err(refused)?;
    let found =
        found.filter(|found| !found.version.is_deleted()).ok_or(Refused::Status(Status::KeyEnoent))?;
    let vbucket = inquiry.bucket.vbucket_stats(vb).ok_or(Refused::Status(Status::NotMyVbucket))?;
    let is_dirty = found.version.meta().by_seqno > vbucket.persisted_seqno;
    Ok(InMemory { version: found.version, is_dirty, state: vbucket.state })
}

impl InMemory {
    fn put(&self, sheet: &mut Sheet) {
        let meta = self.version.meta();
        sheet.put("key_cas", meta.cas);
        sheet.put("key_exptime", meta.expiry);
        sheet.put("key_flags", meta.flags);
        sheet.put("key_is_dirty", self.is_dirty);
        sheet.put("key_is_resident", self.version.is_resident());
        sheet.put("key_vb_state", self.state.name());
    }

    /// What the disk has beside it; `None` if it changed meanwhile.
    fn compare(
        &self,
        inquiry: &Inquiry<'_>,
        vb: VbId,
        key: DocKey<'_>,
    ) -> Result<Option<&'static str>, Refused> {
        if self.is_dirty {
            return Ok(Some("dirty"));
        }
        let stored = engine::read_from_disk(inquiry.bucket, vb, key);
        let stored = stored.map_err(|_| Refused::Status(Status::Einternal))?;
        let verdict = verdict(&self.version, stored.as_ref());
        let still = look(inquiry, vb, key)?;
        let is_same = still.version.meta().by_seqno == self.version.meta().by_seqno;
        Ok(Some(verdict).filter(|_| is_same))
    }
}

/// What the field calls it if the disk has this beside a version in memory that was saved.
pub(super) fn verdict(memory: &Version, disk: Option<&Version>) -> &'static str {
    let Some(disk) = disk else { return "ram_but_not_disk" };
    if disk.is_deleted() {
        return "ram_but_not_disk";
    }
    if disk.meta().flags != memory.meta().flags {
        return "flags_mismatch";
    }
    // Values that are not in memory cannot differ; those that are may be compressed there and not here.
    let plain = |version: &Version| {
        engine::value::plain_of(version.value(), version.meta().datatype).map(|plain| plain.into_owned())
    };
    if disk.meta().cas == memory.meta().cas
        && (!memory.is_resident() || plain(memory).ok() == plain(disk).ok())
    {
        "valid"
    } else {
        "data_mismatch"
    }
}
