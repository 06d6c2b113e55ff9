//! `dcp-vbtakeover`: what is left to send of a vBucket.

use dcp::Side;
use protocol::Status;

use super::Sheet;
use super::inquiry::{Inquiry, Refused, parse_vbucket};

/// `dcp-vbtakeover VB [NAME]`: of a connection that reads the vBucket from memory, what is behind its cursor; otherwise
/// all of the vBucket.
pub fn takeover(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let vb = parse_vbucket(args[0])
        .ok_or(Refused::Invalid("The first argument must be the number of a vBucket"))?;
    let stats = inquiry.bucket.vbucket_stats(vb).ok_or(Refused::Status(Status::NotMyVbucket))?;
    let name = args.get(1).map(|name| String::from_utf8_lossy(name));
    let name = name.as_deref().map(|name| name.strip_prefix("eq_dcpq:").unwrap_or(name));
    let bucket = inquiry.bucket.name();
    let handles = inquiry.node.streams().all();
    let is_meant = |handle: &str| name.is_some_and(|name| name == handle);
    let is_connected = handles.iter().any(|handle| {
        handle.side() == Side::Producer && handle.bucket() == bucket && is_meant(&handle.name())
    });
    let behind = inquiry.bucket.inspect(vb, |vb| {
        vb.checkpoints().cursors().find(|cursor| is_meant(&cursor.name)).map(|cursor| cursor.items_behind)
    });
    let behind = behind.flatten().filter(|_| is_connected);
    if let Some(name) = name.filter(|_| is_connected) {
        sheet.put("name", format_args!("eq_dcpq:{name}"));
    }
    // Without a cursor it reads from disk, or has no stream of this vBucket.
    sheet.put(
        "status",
        match behind {
            Some(_) => "in-memory",
            None if is_connected => "no_cursor",
            None => "connection_does_not_exist",
        },
    );
    let on_disk_deletes = inquiry.bucket.disk_counts(vb).map_or(0, |counts| counts.tombstones);
    let chk_items = behind.unwrap_or(stats.checkpoints.open_items);
    sheet.put("on_disk_deletes", on_disk_deletes);
    sheet.put("vb_items", stats.documents);
    sheet.put("chk_items", chk_items);
    sheet.put("estimate", behind.unwrap_or(stats.documents + on_disk_deletes));
    Ok(())
}
