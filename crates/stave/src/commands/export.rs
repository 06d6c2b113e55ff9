//! `stave export`: writes a bucket's documents as lines of JSON, from a cluster or from a backup.

#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use base::VbId;
use base::env::Env;
use clap::Args;
use serde_json::json;

use super::dcp_tail::watch_interrupt;
use super::restore::{collection_names, wanted};
use super::status_line::StatusLine;
use crate::backup::{BackupPlace, ChainReader, ObjectStoreFlags, Repository, TakeOptions, Version, take};
use crate::cli::{Outcome, ServerFlags};
use crate::client::Dialect;
use crate::lines::{Body, Line};
use crate::new_file::NewFile;
use crate::units::thousands;
use crate::with_meta::Record;

/// Write a bucket's documents as lines of JSON.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave export --to travel.jsonl --bucket travel
  stave export --to hotels.jsonl --bucket travel --collections inventory.hotel
  stave export --to - --bucket travel | jq -c 'select(.value.city == \"Bern\")'
  stave export --to travel.jsonl --bucket travel --backup /backups --id 20261127T003000Z

Each line has key, collection, flags, expiry and attributes beside the document:
  {\"key\":\"hotel_1\",\"collection\":\"inventory.hotel\",\"flags\":33554432,\"value\":{\"name\":\"Sun\"}}
What is no JSON is written as value_base64. `stave import lines` sends such a file to any bucket.
A cluster's documents are copied as a backup does it, into a folder beside the file that is removed afterwards: of each
vBucket one state that it had. With --backup no cluster is asked. CAS and revisions are kept by backups alone.")]
pub struct ExportFlags {
    /// The file, which must not be there yet, or - for standard output
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Read a backup in this folder, or at s3://BUCKET/PATH, instead of a cluster
    #[arg(long, value_name = "DIR")]
    backup: Option<PathBuf>,
    /// Which backup; the newest one if not given
    #[arg(long, value_name = "ID", requires = "backup")]
    id: Option<String>,
    /// Only these collections: scope.collection
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    collections: Vec<String>,
    /// Leave attributes out
    #[arg(long)]
    no_xattrs: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    store: ObjectStoreFlags,
}

/// What was written.
#[derive(Debug, Default)]
struct Exported {
    documents: u64,
    /// Documents whose attributes could not be read, which are written without these.
    without_xattrs: u64,
}

/// Runs the command.
pub fn run(env: &Env, flags: &ExportFlags) -> anyhow::Result<Outcome> {
    let is_stdout = flags.to.as_os_str() == "-";
    let to = std::path::absolute(&flags.to)?;
    let exported = if is_stdout {
        let mut out = BufWriter::new(io::stdout());
        let exported = write(env, flags, None, &mut out)?;
        out.flush().context("cannot write")?;
        exported
    } else {
        let mut out = BufWriter::with_capacity(1 << 20, NewFile::create(env, &to)?);
        let exported = write(env, flags, Some(&to), &mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error).context("cannot write")?.keep()?;
        exported
    };
    // Standard output may be the documents.
    let mut told: Box<dyn Write> = if is_stdout { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let Exported { documents, without_xattrs } = exported;
    if flags.json {
        writeln!(told, "{}", json!({"documents": documents, "unreadable_xattrs": without_xattrs}))?;
    } else {
        writeln!(told, "documents  {}", thousands(documents))?;
        if without_xattrs > 0 {
            writeln!(
                told,
                "written without attributes, which could not be read  {}",
                thousands(without_xattrs)
            )?;
        }
    }
    Ok(Outcome::Done)
}

/// Writes the documents of a backup, or of a copy of the bucket that is removed afterwards.
fn write(
    env: &Env,
    flags: &ExportFlags,
    beside: Option<&Path>,
    out: &mut dyn Write,
) -> anyhow::Result<Exported> {
    if let Some(dir) = &flags.backup {
        return write_backup(env, flags, dir, out);
    }
    let folder = temporary_folder(env, beside);
    let exported = copy(env, flags, &folder).and_then(|()| write_backup(env, flags, &folder, out));
    let removed = env.disk.remove_dir_all(&folder);
    let exported = exported?;
    removed.with_context(|| format!("cannot remove {}", folder.display()))?;
    Ok(exported)
}

/// A folder beside the file, so that it is on the disk that has room for the file, too.
fn temporary_folder(env: &Env, beside: Option<&Path>) -> PathBuf {
    let name = format!(".stave-export-{:016x}", env.random.next_u64());
    match beside.and_then(Path::parent) {
        Some(folder) => folder.join(name),
        None => std::env::temp_dir().join(name),
    }
}

fn copy(env: &Env, flags: &ExportFlags, folder: &Path) -> anyhow::Result<()> {
    let interrupted = watch_interrupt(env)?;
    let target = flags.server.target(Dialect::Couchbase)?;
    let mut line = StatusLine::new(env);
    let repository = Repository::new(env, folder);
    let taken = take(env, &target, &repository, &TakeOptions::default(), &interrupted, &mut |now| {
        line.show(|_| {
            format!(
                "copying: {} of {} vBuckets, {} documents",
                thousands(now.done as u64),
                thousands(now.vbuckets as u64),
                thousands(now.versions)
            )
        });
    });
    line.end();
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted: nothing is exported, and nothing is kept; the same command begins again");
    }
    taken.map(drop)
}

fn write_backup(env: &Env, flags: &ExportFlags, dir: &Path, out: &mut dyn Write) -> anyhow::Result<Exported> {
    let place = BackupPlace::open(env, dir, &flags.store)?;
    let repository = place.repository();
    let chain = repository.chain(&flags.server.bucket, flags.id.as_deref())?;
    let manifest = &chain.newest().manifest;
    let named = collection_names(&manifest.collections);
    let wanted = wanted(&named, &flags.collections)?;
    let mut reader = ChainReader::open(&repository, &chain)?;
    let mut exported = Exported::default();
    let mut line = StatusLine::new(env);
    let now_s = env.clock.unix_s();
    for vb in 0..manifest.vbuckets {
        let mut visit = |version: &Version<'_>| -> anyhow::Result<()> {
            let record = &version.record;
            let collection = named.get(&record.key.collection.0);
            let is_expired = record.expiry != 0 && record.expiry <= now_s;
            let Some(collection) = collection.filter(|_| wanted.contains(&record.key.collection.0)) else {
                return Ok(());
            };
            if record.deleted || is_expired {
                return Ok(());
            }
            let (document, is_whole) = line_of(record, collection.path(), flags.no_xattrs)?;
            let text = document.encode().context("a document cannot be written as a line")?;
            out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).context("cannot write")?;
            exported.documents += 1;
            exported.without_xattrs += u64::from(!is_whole);
            line.show(|_| {
                let (done, all) = (thousands(vb.into()), thousands(manifest.vbuckets.into()));
                format!("{done} of {all} vBuckets, {} documents", thousands(exported.documents))
            });
            Ok(())
        };
        reader
            .newest(VbId(vb), &mut visit)
            .with_context(|| format!("vBucket {vb} of backup {}", manifest.id))?;
    }
    line.end();
    Ok(exported)
}

/// A document as a line, and whether its attributes, if it has any, are in it.
fn line_of(record: &Record<'_>, collection: String, no_xattrs: bool) -> anyhow::Result<(Line, bool)> {
    let plain = engine::value::plain_of(record.value, record.datatype)
        .map_err(|_| anyhow::anyhow!("document {} is no Snappy block", record.key.key.escape_ascii()))?;
    let (section, body) = match engine::value::split(&plain, record.datatype) {
        Ok((xattrs, body)) => (Some(xattrs), body),
        Err(_) => bail!("document {} has no sound attributes", record.key.key.escape_ascii()),
    };
    let mut is_whole = true;
    let mut xattrs = Vec::new();
    for (name, value) in section.filter(|_| !no_xattrs).into_iter().flat_map(|xattrs| xattrs.iter()) {
        let (name, value) = (std::str::from_utf8(name), std::str::from_utf8(value));
        match (name, value) {
            // Binary attributes are no JSON.
            (Ok(name), Ok(json)) if serde_json::from_str::<&serde_json::value::RawValue>(json).is_ok() => {
                xattrs.push((name.to_owned(), json.to_owned()));
            }
            _ => is_whole = false,
        }
    }
    let json = std::str::from_utf8(body).ok();
    let json = json.filter(|text| serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok());
    let body = match json {
        // Space around it would not be told from the line's own.
        Some(text) if text.trim() == text => Body::Json(text.to_owned()),
        _ => Body::Bytes(body.to_vec()),
    };
    let (flags, expiry) = (record.flags, record.expiry);
    let line =
        Line { key: record.key.key.to_vec(), collection: Some(collection), flags, expiry, xattrs, body };
    Ok((line, is_whole))
}
