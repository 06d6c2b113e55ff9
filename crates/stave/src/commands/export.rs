//! `stave export`: writes a bucket's documents as lines of JSON or rows of CSV, from a cluster or from a backup.

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

use super::backup::parse_rate;
use super::dcp_tail::watch_interrupt;
use super::restore::{collection_names, wanted};
use super::status_line::StatusLine;
use crate::backup::{BackupPlace, ChainReader, ObjectStoreFlags, Repository, TakeOptions, Version, take};
use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::Dialect;
use crate::lines::{Body, Line, MemberPath, row, whole_head};
use crate::new_file::NewFile;
use crate::units::thousands;
use crate::with_meta::Record;

/// Write a bucket's documents as lines of JSON or rows of CSV.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave export --to travel.jsonl --bucket travel
  stave export --to hotels.jsonl --bucket travel --collections inventory.hotel
  stave export --to - --bucket travel | jq -c 'select(.value.city == \"Bern\")'
  stave export --to travel.jsonl --bucket travel --backup /backups --id 20261127T003000Z
  stave export --to travel.csv --bucket travel
  stave export --to hotels.csv --bucket travel --columns name,address.city
  stave export --to travel.jsonl --bucket travel --dry-run --json | jq .bytes

Each line has key, collection, flags, expiry and attributes beside the document:
  {\"key\":\"hotel_1\",\"collection\":\"inventory.hotel\",\"flags\":33554432,\"value\":{\"name\":\"Sun\"}}
What is no JSON is written as value_base64. `stave import lines` sends such a file to any bucket.
Rows of CSV have the same as columns, and `stave import csv` sends them; with --columns they have the key and these members
of the documents, text as it is and everything else as JSON, and what is no JSON object is left out and counted.
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
    /// How documents are written [default: csv if the file's name ends with .csv, else jsonl]
    #[arg(long, value_name = "FORMAT")]
    format: Option<ExportFormat>,
    /// Of CSV: these members of the documents as columns behind the key, such as name,address.city
    #[arg(long, value_name = "MEMBER", value_delimiter = ',')]
    columns: Vec<MemberPath>,
    /// The most that is read from the cluster in a second, before compression: 512KiB, 50MiB; at least 128KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_rate, conflicts_with = "backup")]
    max_rate: Option<u64>,
    /// Count the documents and the bytes of the file, but write none
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    store: ObjectStoreFlags,
}

/// What a document becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    /// A line with a JSON object.
    Jsonl,
    /// A row of CSV.
    Csv,
}

impl ExportFlags {
    fn format(&self) -> anyhow::Result<ExportFormat> {
        let is_table = self.to.extension().is_some_and(|name| name.eq_ignore_ascii_case("csv"));
        let by_name = if is_table { ExportFormat::Csv } else { ExportFormat::Jsonl };
        let format = self.format.unwrap_or(by_name);
        if format != ExportFormat::Csv && !self.columns.is_empty() {
            bail!(WrongArguments("--columns are those of a table: give --format csv, too".to_owned()));
        }
        Ok(format)
    }
}

/// Where documents go, and how many bytes they were.
struct Counted<'w> {
    /// `None` keeps nothing.
    out: Option<&'w mut dyn Write>,
    bytes: u64,
}

impl Counted<'_> {
    fn put(&mut self, text: &str) -> anyhow::Result<()> {
        self.bytes += text.len() as u64;
        let Some(out) = &mut self.out else { return Ok(()) };
        out.write_all(text.as_bytes()).context("cannot write")
    }
}

/// What was written.
#[derive(Debug, Default)]
struct Exported {
    documents: u64,
    bytes: u64,
    /// Documents that are no row with the columns that were asked for.
    left_out: u64,
    /// Documents whose attributes could not be read, which are written without these.
    without_xattrs: u64,
}

/// Runs the command.
pub fn run(env: &Env, flags: &ExportFlags) -> anyhow::Result<Outcome> {
    flags.format()?;
    let is_stdout = flags.to.as_os_str() == "-";
    let to = std::path::absolute(&flags.to)?;
    let beside = (!is_stdout).then_some(&*to);
    let exported = if flags.dry_run {
        write(env, flags, beside, None)?
    } else if is_stdout {
        let mut out = BufWriter::new(io::stdout());
        let exported = write(env, flags, beside, Some(&mut out))?;
        out.flush().context("cannot write")?;
        exported
    } else {
        let mut out = BufWriter::with_capacity(1 << 20, NewFile::create(env, &to)?);
        let exported = write(env, flags, beside, Some(&mut out))?;
        out.into_inner().map_err(io::IntoInnerError::into_error).context("cannot write")?.keep()?;
        exported
    };
    // Standard output may be the documents.
    let told: Box<dyn Write> = if is_stdout { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    tell(flags, &exported, told)?;
    Ok(Outcome::Done)
}

fn tell(flags: &ExportFlags, exported: &Exported, mut out: Box<dyn Write>) -> io::Result<()> {
    let Exported { documents, bytes, left_out, without_xattrs } = *exported;
    if flags.json {
        let told = json!({
            "documents": documents, "bytes": bytes, "left_out": left_out, "unreadable_xattrs": without_xattrs,
            "dry_run": flags.dry_run,
        });
        return writeln!(out, "{told}");
    }
    let would = if flags.dry_run { " that would be written" } else { "" };
    writeln!(out, "documents{would}  {}", thousands(documents))?;
    writeln!(out, "size  {}", crate::units::bytes(bytes))?;
    if left_out > 0 {
        writeln!(out, "left out, as they are no JSON objects  {}", thousands(left_out))?;
    }
    if without_xattrs > 0 {
        writeln!(out, "written without attributes, which could not be read  {}", thousands(without_xattrs))?;
    }
    Ok(())
}

/// Writes the documents of a backup, or of a copy of the bucket that is removed afterwards.
fn write(
    env: &Env,
    flags: &ExportFlags,
    beside: Option<&Path>,
    out: Option<&mut dyn Write>,
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
    let options = TakeOptions { max_rate: flags.max_rate, documents_only: true, ..TakeOptions::default() };
    let taken = take(env, &target, &repository, &options, &interrupted, &mut |now| {
        line.show(|seconds| {
            format!(
                "copying: {} of {} vBuckets, {} documents, {}/s",
                thousands(now.done as u64),
                thousands(now.vbuckets as u64),
                thousands(now.versions),
                crate::units::bytes((now.bytes as f64 / seconds) as u64)
            )
        });
    });
    line.end();
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted: nothing is exported, and nothing is kept; the same command begins again");
    }
    if let Some(why) = taken?.without_moment {
        eprintln!("stave: documents of different vBuckets may be of different moments: {why}");
    }
    Ok(())
}

fn write_backup(
    env: &Env,
    flags: &ExportFlags,
    dir: &Path,
    out: Option<&mut dyn Write>,
) -> anyhow::Result<Exported> {
    let place = BackupPlace::open(env, dir, &flags.store)?;
    let repository = place.repository();
    let chain = repository.chain(&flags.server.bucket, flags.id.as_deref())?;
    let manifest = &chain.newest().manifest;
    let named = collection_names(&manifest.collections);
    let wanted = wanted(&named, &flags.collections)?;
    let mut reader = ChainReader::open(&repository, &chain)?;
    let (format, mut exported) = (flags.format()?, Exported::default());
    let mut out = Counted { out, bytes: 0 };
    out.put(&head(flags, format))?;
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
            let Some(text) = text_of(&document, flags, format)? else {
                exported.left_out += 1;
                return Ok(());
            };
            out.put(&text)?;
            exported.documents += 1;
            exported.without_xattrs += u64::from(!is_whole);
            line.show(|seconds| {
                let (done, all) = (thousands(vb.into()), thousands(manifest.vbuckets.into()));
                let rate = thousands((exported.documents as f64 / seconds) as u64);
                format!("{done} of {all} vBuckets, {} documents, {rate}/s", thousands(exported.documents))
            });
            Ok(())
        };
        reader
            .newest(VbId(vb), &mut visit)
            .with_context(|| format!("vBucket {vb} of backup {}", manifest.id))?;
    }
    line.end();
    exported.bytes = out.bytes;
    Ok(exported)
}

/// What is in front of all documents: the names of columns, if there are any.
fn head(flags: &ExportFlags, format: ExportFormat) -> String {
    match format {
        ExportFormat::Jsonl => String::new(),
        ExportFormat::Csv if flags.columns.is_empty() => whole_head(),
        ExportFormat::Csv => row(std::iter::once("key").chain(flags.columns.iter().map(MemberPath::name))),
    }
}

/// A document as it is written, with the end of its line; `None` if it has no columns.
fn text_of(document: &Line, flags: &ExportFlags, format: ExportFormat) -> anyhow::Result<Option<String>> {
    if format == ExportFormat::Csv && !flags.columns.is_empty() {
        return Ok(document.encode_members(&flags.columns));
    }
    let text = match format {
        ExportFormat::Jsonl => document.encode().map(|line| line + "\n"),
        ExportFormat::Csv => document.encode_row(),
    };
    text.map(Some).context("a document cannot be written as a line")
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
