//! Groups about scopes and collections. For now each bucket has the default ones, which own every document.

use base::VbState;
use protocol::Status;

use super::sheet::Under;
use super::{Inquiry, Refused, Sheet};

const DEFAULT: &[u8] = b"_default";
const NO_SCOPE: Refused = Refused::NoCollection(Status::UnknownScope);
const NO_COLLECTION: Refused = Refused::NoCollection(Status::UnknownCollection);

/// An empty name means the default one.
fn is_default(name: &[u8]) -> bool {
    name.is_empty() || name == DEFAULT
}

/// Whether `path` is the default collection as `scope.collection`; else what it is instead.
pub(super) fn check_path(path: &[u8]) -> Result<(), Refused> {
    let mut names = path.split(|byte| *byte == b'.');
    let (Some(scope), Some(collection), None) = (names.next(), names.next(), names.next()) else {
        return Err(Refused::Invalid("The collection must be written as SCOPE.COLLECTION"));
    };
    match (is_default(scope), is_default(collection)) {
        (true, true) => Ok(()),
        (true, false) => Err(NO_COLLECTION),
        (false, _) => Err(NO_SCOPE),
    }
}

/// `collections [SCOPE.COLLECTION]`
pub fn collections(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    match args.first() {
        Some(path) => check_path(path)?,
        None => sheet.put("manifest_uid", 0),
    }
    put_collection(inquiry, sheet);
    Ok(())
}

/// `scopes [SCOPE]`
pub fn scopes(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    match args.first() {
        Some(name) if !is_default(name) => return Err(NO_SCOPE),
        Some(_) => put_collection(inquiry, sheet),
        None => {
            sheet.put("manifest_uid", 0);
            sheet.put("0x0:0x0:name", "_default");
        }
    }
    let mut scope = sheet.under("0x0");
    scope.put("name", "_default");
    scope.put("collections", 1);
    put_numbers(inquiry, &mut scope);
    Ok(())
}

fn put_collection(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    let mut collection = sheet.under("0x0:0x0");
    collection.put("name", "_default");
    collection.put("scope_name", "_default");
    put_numbers(inquiry, &mut collection);
}

/// Items of active vBuckets; memory, operations and disk of all.
fn put_numbers(inquiry: &Inquiry<'_>, sheet: &mut Under<'_>) {
    let stats = inquiry.bucket.stats();
    let all = stats.all();
    sheet.put("items", stats.of(VbState::Active).documents);
    sheet.put("collections_mem_used", all.item_bytes);
    sheet.put("data_size", inquiry.bucket.disk_totals().counts.used_bytes);
    sheet.put("ops_get", all.ops.get_hits + all.ops.get_misses);
    sheet.put("ops_store", all.ops.stores);
    sheet.put("ops_delete", all.ops.deletes);
}
