//! What a bucket's folder holds, as a node would find it.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, bail};
use base::env::Env;
use base::limits::MAX_FRAME_BODY_BYTES;
use base::{Seqno, SyncWrite, VbId, Version};
use couchstore::{DocInfo, inflate};
use kvstore::{Snapshot, StoredVb, Values, content_meta_of, is_gone, rev_meta_of};
use serde_json::json;

use super::super::check::place::Place;
use super::super::stored_bucket::StoredBucket;
use super::{DumpFlags, record};
use crate::cli::{Outcome, WrongArguments};
use crate::units::{bytes, thousands};

/// Prints the folder `dir` as the flags say.
pub(super) fn dump(env: &Env, flags: &DumpFlags, dir: &Path, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if flags.locals {
        bail!(WrongArguments(
            "--locals goes with a file: a folder's vBuckets are shown by --header".to_owned()
        ));
    }
    let place = Place::find(&*env.disk, dir)?;
    if !place.buckets.iter().all(|bucket| bucket.folder == *dir) {
        bail!(
            "{} is a data directory: give one of its buckets, like {}/buckets/default",
            dir.display(),
            dir.display()
        );
    }
    let bucket = StoredBucket::open(env, dir)?;
    let is_wanted = |vb: VbId| flags.vbucket.is_none_or(|wanted| wanted == vb.0);
    let wanted: Vec<_> = bucket.vbuckets.iter().filter(|(vb, _)| is_wanted(*vb)).collect();
    let refused: Vec<_> = bucket.refused.iter().filter(|(vb, _)| is_wanted(*vb)).collect();
    if let (Some(vb), true) = (flags.vbucket, wanted.is_empty() && refused.is_empty()) {
        bail!("{} holds no vBucket {vb}", dir.display());
    }
    if flags.header {
        headers(&wanted, flags.json, out)?;
    }
    if flags.by_seqno || flags.values || !flags.header {
        if !flags.json {
            writeln!(out, "{:>5} {}", "vb", record::table_head())?;
        }
        for (vb, _) in &wanted {
            documents(&*bucket.snapshot(*vb)?, *vb, flags, out)?;
        }
    }
    for (vb, failure) in &refused {
        eprintln!("stave: vBucket {vb} cannot be read: {failure}");
    }
    if !refused.is_empty() {
        out.flush()?;
        bail!("{} vBuckets cannot be read; stave check tells what is damaged", refused.len());
    }
    Ok(Outcome::Done)
}

/// A row for each vBucket.
fn headers(vbuckets: &[&(VbId, StoredVb)], json: bool, out: &mut dyn Write) -> std::io::Result<()> {
    if !json {
        writeln!(
            out,
            "{:>5}  {:<8} {:>10} {:>10} {:>12} {:>12} {:>10}  {:<16}",
            "vb", "state", "seqno", "purged", "documents", "tombstones", "bytes", "history"
        )?;
    }
    for (vb, stored) in vbuckets {
        let history = stored.state.failover_table.first().map_or(0, |newest| newest.id);
        let (state, counts) = (stored.state.state, stored.counts);
        if json {
            let line = json!({
                "vb": vb.0,
                "state": state.name(),
                "update_seq": stored.high_seqno.0,
                "purge_seq": stored.purge_seqno.0,
                "doc_count": counts.documents,
                "deleted_doc_count": counts.tombstones,
                "data_size": counts.used_bytes,
                "vb_uuid": history.to_string(),
            });
            writeln!(out, "{line}")?;
            continue;
        }
        writeln!(
            out,
            "{:>5}  {:<8} {:>10} {:>10} {:>12} {:>12} {:>10}  {history:016x}",
            vb.0,
            state.name(),
            stored.high_seqno.0,
            stored.purge_seqno.0,
            thousands(counts.documents),
            thousands(counts.tombstones),
            bytes(counts.used_bytes),
        )?;
    }
    Ok(())
}

fn documents(
    snapshot: &dyn Snapshot,
    vb: VbId,
    flags: &DumpFlags,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let completed = Seqno(snapshot.state()?.completed_seqno);
    let mut written = Ok(());
    let mut print = |version: &Version| {
        written = one(version, vb, flags, out);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    if !flags.by_seqno {
        snapshot.scan_keys(&[], Values::Read, &mut |version| print(&version))?;
    }
    snapshot.scan_all(Seqno(0), Values::Read, &mut |version| {
        // By key, prepares and aborts come last: a scan by key does not visit them.
        let is_shown = match version.meta().sync_write {
            SyncWrite::Prepare(_) => version.meta().by_seqno > completed,
            SyncWrite::Abort { .. } => true,
            _ => flags.by_seqno,
        };
        if is_shown { print(&version) } else { ControlFlow::Continue(()) }
    })?;
    written
}

fn one(version: &Version, vb: VbId, flags: &DumpFlags, out: &mut dyn Write) -> anyhow::Result<()> {
    let (meta, value) = (version.meta(), version.value());
    // As a couchstore file has it, whichever store the bucket is kept in.
    let (rev_meta, len) = rev_meta_of(version).encode();
    let info = DocInfo {
        id: version.stored_key(),
        seqno: meta.by_seqno.0,
        rev_seqno: meta.rev_seqno.0,
        deleted: is_gone(version),
        content_meta: content_meta_of(version),
        body_bytes: version.value_bytes(),
        body_offset: 0,
        rev_meta: &rev_meta[..len],
    };
    let mut inflated = Vec::new();
    let body = match meta.datatype.is_snappy() {
        true if flags.values => {
            let len = inflate(value, MAX_FRAME_BODY_BYTES, &mut inflated);
            let len =
                len.with_context(|| format!("the value at seqno {} cannot be inflated", meta.by_seqno))?;
            &inflated[..len]
        }
        _ => value,
    };
    let body = flags.values.then_some(body);
    if flags.json {
        writeln!(out, "{}", record::json(&info, body, Some(vb)))?;
        return Ok(());
    }
    writeln!(out, "{:>5} {}", vb.0, record::row(&info))?;
    if let Some(body) = body.filter(|body| !body.is_empty()) {
        writeln!(out, "    {}", body.escape_ascii())?;
    }
    Ok(())
}
