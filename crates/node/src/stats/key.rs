//! The group about one document.

use base::{CollectionId, DocKey};
use protocol::Status;

use super::collection::named;
use super::{Inquiry, Refused, Sheet, parse_vbucket};
use crate::privilege::Privilege;

/// `key KEY VB [SCOPE.COLLECTION|0xID]`: as it is now, a tombstone counting as no document.
pub fn key(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let vb = args[1];
    let vb =
        parse_vbucket(vb).ok_or(Refused::Invalid("The second argument must be the number of a vBucket"))?;
    let collection = args.get(2).map(|name| named(inquiry, name)).transpose()?;
    let key = DocKey { collection: collection.unwrap_or(CollectionId::DEFAULT), key: args[0] };
    inquiry.require_in(key.collection, Privilege::MetaRead)?;
    if !key.is_valid_len() {
        return Err(Refused::Invalid("The key is too long"));
    }
    let refused = |refusal| Refused::Engine(vb, key.to_stored().0, refusal);
    let found = inquiry.bucket.peek(vb, key, inquiry.now).map_err(refused)?;
    let found =
        found.filter(|found| !found.version.is_deleted()).ok_or(Refused::Status(Status::KeyEnoent))?;
    let meta = found.version.meta();
    let vbucket = inquiry.bucket.vbucket_stats(vb).ok_or(Refused::Status(Status::NotMyVbucket))?;
    sheet.put("key_cas", meta.cas);
    sheet.put("key_exptime", meta.expiry);
    sheet.put("key_flags", meta.flags);
    sheet.put("key_is_dirty", meta.by_seqno > vbucket.persisted_seqno);
    sheet.put("key_is_resident", found.version.is_resident());
    sheet.put("key_vb_state", vbucket.state.name());
    Ok(())
}
