//! Groups about scopes and collections.

use base::{CollectionId, ScopeId, VbId};
use engine::CollectionTotals;
use protocol::Status;
use vbucket::{Collection, Manifest, Scope};

use super::Sheet;
use super::inquiry::{Inquiry, Refused, parse_vbucket};
use super::sheet::Under;
use crate::commands::collections::{find, find_scope};
use crate::privilege::Privilege;

const NO_SCOPE: Refused = Refused::NoCollection(Status::UnknownScope);
const NO_COLLECTION: Refused = Refused::NoCollection(Status::UnknownCollection);

/// The collection that is written as `scope.collection`; an empty name means the default one.
fn of_path<'m>(manifest: &'m Manifest, path: &[u8]) -> Result<&'m Collection, Refused> {
    let mut names = path.split(|byte| *byte == b'.');
    let (Some(scope), Some(collection), None) = (names.next(), names.next(), names.next()) else {
        return Err(Refused::Invalid("The collection must be written as SCOPE.COLLECTION"));
    };
    find(manifest, scope, collection).map_err(Refused::NoCollection)
}

/// A number written like `0x8`.
fn number(text: &[u8]) -> Result<u32, Refused> {
    let hex = text.strip_prefix(b"0x").and_then(|hex| std::str::from_utf8(hex).ok());
    let number = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
    number.ok_or(Refused::Invalid("The number must be hexadecimal, like 0x8"))
}

/// The collection that is written as `scope.collection` or `0xID`.
pub(super) fn named(inquiry: &Inquiry<'_>, name: &[u8]) -> Result<CollectionId, Refused> {
    let manifest = inquiry.bucket.collections().manifest();
    if !name.starts_with(b"0x") {
        return Ok(of_path(&manifest, name)?.id);
    }
    let id = CollectionId(number(name)?);
    manifest.collection(id).map(|one| one.id).ok_or(NO_COLLECTION)
}

/// `collections [SCOPE.COLLECTION]`
pub fn collections(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let manifest = inquiry.bucket.collections().manifest();
    let only = args.first().map(|path| of_path(&manifest, path)).transpose()?;
    only.map_or(Ok(()), |only| inquiry.require_in(only.id, Privilege::SimpleStats))?;
    if only.is_none() {
        sheet.put("manifest_uid", manifest.uid());
    }
    put_collections(inquiry, &manifest, sheet, |one| only.is_none_or(|only| only.id == one.id));
    Ok(())
}

/// `manifest`
pub fn manifest(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    sheet.put("manifest_uid", inquiry.bucket.collections().manifest().uid());
    Ok(())
}

/// `collections-byid 0xID`
pub fn collection_by_id(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let manifest = inquiry.bucket.collections().manifest();
    let id = CollectionId(number(args[0])?);
    let only = manifest.collection(id).ok_or(NO_COLLECTION)?;
    inquiry.require_in(id, Privilege::SimpleStats)?;
    put_collections(inquiry, &manifest, sheet, |one| one.id == only.id);
    Ok(())
}

/// `scopes [SCOPE]`
pub fn scopes(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let manifest = inquiry.bucket.collections().manifest();
    let Some(name) = args.first() else {
        sheet.put("manifest_uid", manifest.uid());
        for one in manifest.collections().filter(|one| inquiry.counts(one.id)) {
            sheet.put(format_args!("{:#x}:{:#x}:name", one.scope.0, one.id.0), &one.name);
        }
        let totals = inquiry.bucket.collections().collection_totals();
        let scopes = manifest.scopes().filter(|scope| is_counted(inquiry, &manifest, scope));
        scopes.for_each(|scope| put_scope(inquiry, &manifest, scope, &totals, sheet));
        return Ok(());
    };
    put_one_scope(inquiry, &manifest, find_scope(&manifest, name).ok_or(NO_SCOPE)?, sheet)
}

/// Whether the client may see counters of anything in a scope.
fn is_counted(inquiry: &Inquiry<'_>, manifest: &Manifest, scope: &Scope) -> bool {
    inquiry.rights.in_scope(scope.id).has(Privilege::SimpleStats)
        || manifest.collections_of(scope.id).any(|one| inquiry.counts(one.id))
}

/// `scopes-byid 0xID`
pub fn scope_by_id(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let manifest = inquiry.bucket.collections().manifest();
    let scope = manifest.scope(ScopeId(number(args[0])?)).ok_or(NO_SCOPE)?;
    put_one_scope(inquiry, &manifest, scope, sheet)
}

fn put_one_scope(
    inquiry: &Inquiry<'_>,
    manifest: &Manifest,
    scope: &Scope,
    sheet: &mut Sheet,
) -> Result<(), Refused> {
    if !is_counted(inquiry, manifest, scope) {
        return Err(NO_SCOPE);
    }
    put_collections(inquiry, manifest, sheet, |one| one.scope == scope.id);
    put_scope(inquiry, manifest, scope, &inquiry.bucket.collections().collection_totals(), sheet);
    Ok(())
}

fn put_collections(
    inquiry: &Inquiry<'_>,
    manifest: &Manifest,
    sheet: &mut Sheet,
    is_wanted: impl Fn(&Collection) -> bool,
) {
    let totals = inquiry.bucket.collections().collection_totals();
    for one in manifest.collections().filter(|one| is_wanted(one) && inquiry.counts(one.id)) {
        let mut under = sheet.under(format_args!("{:#x}:{:#x}", one.scope.0, one.id.0));
        under.put("name", &one.name);
        under.put("scope_name", manifest.scope(one.scope).map_or("", |scope| &scope.name));
        if let Some(max_ttl_s) = one.max_ttl_s {
            under.put("maxTTL", max_ttl_s);
        }
        if let Some(history) = one.history {
            under.put("history", history);
        }
        put_numbers(&mut under, &sum(&totals, |id| id == one.id));
    }
}

fn put_scope(
    inquiry: &Inquiry<'_>,
    manifest: &Manifest,
    scope: &Scope,
    totals: &[(CollectionId, CollectionTotals)],
    sheet: &mut Sheet,
) {
    let mut under = sheet.under(format_args!("{:#x}", scope.id.0));
    under.put("name", &scope.name);
    under.put("collections", manifest.collections_of(scope.id).filter(|one| inquiry.counts(one.id)).count());
    let is_in = |id| inquiry.counts(id) && manifest.collection(id).is_some_and(|one| one.scope == scope.id);
    put_numbers(&mut under, &sum(totals, is_in));
}

fn sum(
    totals: &[(CollectionId, CollectionTotals)],
    is_wanted: impl Fn(CollectionId) -> bool,
) -> CollectionTotals {
    let mut sum = CollectionTotals::default();
    totals.iter().filter(|(id, _)| is_wanted(*id)).for_each(|(_, totals)| sum.add(totals));
    sum
}

/// Items of active vBuckets; memory, operations and disk of all.
fn put_numbers(sheet: &mut Under<'_>, totals: &CollectionTotals) {
    sheet.put("items", totals.documents);
    sheet.put("collections_mem_used", totals.memory_bytes);
    sheet.put("data_size", totals.disk_bytes);
    sheet.put("ops_get", totals.ops.gets);
    sheet.put("ops_store", totals.ops.stores);
    sheet.put("ops_delete", totals.ops.deletes);
}

/// `collections-details [VB]`
pub fn details(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    each_vbucket(inquiry, args, |vbucket| put_vbucket(vbucket, sheet))
}

/// `scopes-details [VB]`
pub fn scopes_details(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    each_vbucket(inquiry, args, |vbucket| put_scopes(vbucket, sheet))
}

fn each_vbucket(
    inquiry: &Inquiry<'_>,
    args: &[&[u8]],
    mut put: impl FnMut(&vbucket::VBucket),
) -> Result<(), Refused> {
    let wrong = Refused::Invalid("The argument must be the number of a vBucket");
    let only = args.first().map(|vb| parse_vbucket(vb).ok_or(wrong)).transpose()?;
    let vbuckets = match only {
        Some(vb) if vb.0 >= inquiry.bucket.vbuckets() => return Err(Refused::Status(Status::NotMyVbucket)),
        Some(vb) => vb.0..vb.0 + 1,
        None => 0..inquiry.bucket.vbuckets(),
    };
    for vb in vbuckets.map(VbId) {
        inquiry.bucket.inspect(vb, &mut put);
    }
    Ok(())
}

/// The value of a scope is its place among them.
fn put_scopes(vbucket: &vbucket::VBucket, sheet: &mut Sheet) {
    let (collections, vb) = (vbucket.collections(), vbucket.id());
    sheet.put(format_args!("vb_{vb}:manifest_uid"), collections.uid());
    sheet.put(format_args!("vb_{vb}:scopes"), collections.scopes().len());
    for (at, scope) in collections.scopes().iter().enumerate() {
        sheet.put(format_args!("vb_{vb}:{:#x}", scope.id.0), at);
        for one in collections.open().filter(|one| one.scope == scope.id) {
            let items = vbucket.held_by(one.id).documents();
            sheet.put(format_args!("vb_{vb}:{:#x}:{:#x}:items", scope.id.0, one.id.0), items);
        }
    }
}

fn put_vbucket(vbucket: &vbucket::VBucket, sheet: &mut Sheet) {
    let collections = vbucket.collections();
    let vb = vbucket.id();
    sheet.put(format_args!("vb_{vb}:manifest:uid"), collections.uid());
    sheet.put(format_args!("vb_{vb}:manifest:collections"), collections.open().count());
    for one in collections.open() {
        let mut under = sheet.under(format_args!("vb_{vb}:{:#x}", one.id.0));
        under.put("scope", format_args!("{:#x}", one.scope.0));
        under.put("start_seqno", one.start);
        under.put("high_seqno", one.high_seqno);
        under.put("items", vbucket.held_by(one.id).documents());
        if let Some(max_ttl_s) = one.max_ttl_s {
            under.put("maxTTL", max_ttl_s);
        }
        if let Some(history) = one.history {
            under.put("history", history);
        }
    }
    for one in collections.dropped() {
        let mut under = sheet.under(format_args!("vb_{vb}:dropped:{:#x}", one.id.0));
        under.put("end_seqno", one.end);
        under.put("in_memory", !one.is_out_of_memory());
        under.put("on_disk", one.is_on_disk());
    }
}
