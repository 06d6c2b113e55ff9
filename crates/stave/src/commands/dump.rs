//! `stave dump`: what a file of documents or a bucket's folder holds, as a table or as JSON.

mod record;
mod stored;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use couchstore::{CouchFile, DocInfo, Failure, FileInfo, Snapshot};
use serde_json::{Value, json};

use super::check::journal::lies_beside;
use super::check::place::vbucket_and_revision;
use super::encryption_flags::{CouchstoreKeyFlags, EncryptionFlags, said_once};
use super::stored_bucket::refuse_moving;
use crate::cli::{Outcome, WrongArguments};
use crate::units::{bytes, thousands};

/// Print what a file of documents, or a bucket's folder, holds.
///
/// A file is told as of its last valid header. It is only read, and may be in use by a node: what is committed meanwhile
/// does not show.
/// A folder is read as a node would open it, whichever store it is of and with what its journal holds; nothing in it is
/// changed, and no node may run on it meanwhile.
/// Without --header and --locals the documents are printed, tombstones and prepares among them.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave dump data/buckets/default/17.couch.3
  stave dump --header --locals data/buckets/default/17.couch.3
  stave dump --by-seqno --json 17.couch.3 | jq 'select(.deleted)'
  stave dump --values --json 17.couch.3 | jq -r .body
  stave dump data/buckets/default --values --json > default.jsonl
  stave dump data/buckets/default --vbucket 17 --by-seqno
  stave dump data/buckets/default --header
  stave dump 17.couch.3 --couchstore-key-file keys.json

With --json each line is one object. Documents have the fields of couch_dbdump: id, seq, rev, cas, expiry, flags,
content_meta, datatype, datatype_as_text, physical_size, body, and where they apply deleted, sync_write, level,
isDelete, prepared_seqno. A body or value that is not text, as one with xattrs,
is given as body_base64 or value_base64. Those of a folder have vb, and no content_meta; their physical_size is the bytes
of the stored value.
--header of a folder prints a row for each vBucket; one that a node would refuse is named on standard error, and the
command fails at its end.")]
pub struct DumpFlags {
    /// A file like 17.couch.3, or a bucket's folder
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Of a folder, print this vBucket alone
    #[arg(long, value_name = "N")]
    vbucket: Option<u16>,
    /// Documents in the order they were changed in, not by id
    #[arg(long)]
    by_seqno: bool,
    /// Print what the header says
    #[arg(long)]
    header: bool,
    /// Print local documents: the state of the vBucket, its collections and their counts
    #[arg(long)]
    locals: bool,
    /// Print the documents' values, too
    #[arg(long)]
    values: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encryption: EncryptionFlags,
    #[command(flatten)]
    original: CouchstoreKeyFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &DumpFlags) -> anyhow::Result<Outcome> {
    let env = &flags.encryption.world(env)?;
    let path = std::path::absolute(&flags.path)?;
    let is_folder = env.disk.read_dir(&path).is_ok();
    if !is_folder && flags.vbucket.is_some() {
        bail!(WrongArguments("--vbucket goes with a bucket's folder: a file holds one vBucket".to_owned()));
    }
    let bucket = path.parent().filter(|_| !is_folder);
    let bucket = bucket.map(|dir| dir.parent().filter(|_| dir.ends_with(kvstore::MIGRATION)).unwrap_or(dir));
    bucket.map_or(Ok(()), |dir| refuse_moving(env, dir))?;
    if !is_folder && lies_beside(&*env.disk, &path) {
        eprintln!(
            "stave: newer changes may be in the journal beside the file; stave dump of the folder reads them, too"
        );
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let dumped = match is_folder {
        true => stored::dump(env, flags, &path, &mut out),
        false => dump(env, flags, &mut out),
    };
    // what was read before a failure is worth to be seen
    out.flush()?;
    dumped
}

fn dump(env: &Env, flags: &DumpFlags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let name = flags.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let keys = flags.original.read(env)?;
    let opened = CouchFile::open_read_with(&*env.disk, &flags.path, &keys);
    let file = opened.map_err(said_once).map_err(|error| match vbucket_and_revision(name) {
        Some(_) => error,
        None => error.context("stave dump takes a couchstore file like 17.couch.3, or a bucket's folder"),
    })?;
    if flags.header {
        header(&file, flags, out)?;
    }
    if flags.locals {
        locals(&file, flags, out)?;
    }
    if flags.by_seqno || flags.values || !(flags.header || flags.locals) {
        documents(&file, flags, out)?;
    }
    Ok(Outcome::Done)
}

fn header(file: &Snapshot, flags: &DumpFlags, out: &mut dyn Write) -> anyhow::Result<()> {
    let info = file.info();
    if flags.json {
        writeln!(out, "{}", header_json(file, &info))?;
        return Ok(());
    }
    let tree_bytes = info.by_id_bytes + info.by_seqno_bytes + info.local_bytes;
    let lines = [
        ("file", file.path().display().to_string()),
        ("file size", bytes(info.file_bytes)),
        ("header at offset", info.header_offset.to_string()),
        ("file format version", info.version.to_string()),
        ("update seqno", info.update_seqno.to_string()),
        ("purge seqno", info.purge_seqno.to_string()),
        ("timestamp", info.timestamp_ns.to_string()),
        ("documents", thousands(info.live_count)),
        ("tombstones", thousands(info.deleted_count)),
        ("data in use", bytes(info.used_bytes())),
        ("  bodies", bytes(info.body_bytes)),
        ("  trees", bytes(tree_bytes)),
        ("    by id", bytes(info.by_id_bytes)),
        ("    by seqno", bytes(info.by_seqno_bytes)),
        ("    local", bytes(info.local_bytes)),
    ];
    for (name, value) in lines {
        writeln!(out, "{name:<19}  {value}")?;
    }
    Ok(())
}

fn header_json(file: &Snapshot, info: &FileInfo) -> Value {
    json!({
        "file": file.path().display().to_string(),
        "file_size": info.file_bytes,
        "header_offset": info.header_offset,
        "file_format_version": info.version,
        "update_seq": info.update_seqno,
        "purge_seq": info.purge_seqno,
        "timestamp": info.timestamp_ns,
        "doc_count": info.live_count,
        "deleted_doc_count": info.deleted_count,
        "data_size": info.used_bytes(),
        "body_size": info.body_bytes,
        "by_id_size": info.by_id_bytes,
        "by_seqno_size": info.by_seqno_bytes,
        "local_size": info.local_bytes,
    })
}

fn locals(file: &Snapshot, flags: &DumpFlags, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut written = Ok(());
    file.scan_locals(|id, value| {
        if written.is_err() {
            return;
        }
        let value = record::local_value(id, value);
        let id = id.escape_ascii().to_string();
        written = if flags.json {
            let mut line = json!({ "id": id });
            value.put(&mut line, "value");
            writeln!(out, "{line}")
        } else {
            writeln!(out, "{id}  {value}")
        };
    })
    .map_err(said_once)?;
    Ok(written?)
}

fn documents(file: &Snapshot, flags: &DumpFlags, out: &mut dyn Write) -> anyhow::Result<()> {
    if !flags.json {
        writeln!(out, "{}", record::table_head())?;
    }
    let (mut stored, mut inflated) = (Vec::new(), Vec::new());
    let visit = |info: DocInfo<'_>| -> Result<ControlFlow<()>, Ended> {
        let body = match flags.values {
            true => Some(file.body(&info, &mut stored, &mut inflated)?),
            false => None,
        };
        if flags.json {
            writeln!(out, "{}", record::json(&info, body, None))?;
        } else {
            writeln!(out, "{}", record::row(&info))?;
            if let Some(body) = body.filter(|body| !body.is_empty()) {
                writeln!(out, "    {}", body.escape_ascii())?;
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    let done = if flags.by_seqno { file.changes_since(0, visit) } else { file.scan_ids(&[], visit) };
    done.map_err(|ended| match ended {
        Ended::Unreadable(failure) => said_once(failure),
        Ended::Unwritable(error) => error.into(),
    })
}

/// Why not all documents were printed.
enum Ended {
    Unreadable(Failure),
    Unwritable(std::io::Error),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Unreadable(failure)
    }
}

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Ended {
        Ended::Unwritable(error)
    }
}

#[cfg(test)]
mod tests;
