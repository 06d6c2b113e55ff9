//! `stave import`: sends the documents of a bucket's files, from wherever they are, to a running node.

mod cluster;
mod lines;
mod record;
mod sources;
mod stored;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base::VbId;
use base::env::Env;
use clap::{Args, Subcommand};
use couchstore::{CouchFile, DocInfo, Failure, OriginalKeys, Snapshot};
use protocol::feature::Feature;
use serde_json::json;

use super::check::place::{Place, is_segment};
use super::encryption_flags::{CouchstoreKeyFlags, EncryptionFlags, said_once};
use super::status_line::StatusLine;
use super::stored_bucket::{StoredBucket, refuse_moving};
use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::{Client, Cluster, Dialect, Target};
use crate::units::thousands;
use crate::with_meta::{
    Collections, Conflict, Sender, SentCounts, SourceCollection, Unknown, resolves_by_time,
};
use record::read_record;
use sources::{manifests, sources};

/// Send the documents of a bucket's files to a running node.
///
/// The folder holds couchstore files, as a node of this or of the original's kind leaves them, or a log-structured store;
/// what a journal in it holds is sent, too. It is only read.
/// Documents and tombstones keep CAS, revision, expiry, flags and attributes; numbers of vBuckets may differ.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  stave import lines travel.jsonl --bucket travel
  stave import csv users.csv --bucket app --key 'user::%id%'
  stave import cluster couchbase://10.0.0.1 --bucket travel --checkpoint travel.checkpoint
  stave import backup/travel --bucket travel
  stave import backup/travel --bucket travel --conflict overwrite --json

  stave import backup/travel --bucket travel --create-collections
  stave import backup/travel --bucket travel --skip-unknown --timeout 1m
  stave import backup/travel --bucket travel --couchstore-key-file keys.json

Of each vBucket the file with the highest revision is read, as of its last valid header. A folder with a journal, as a
killed node leaves it, and one of a log-structured store are read as a node would open them: a vBucket that it would
refuse is left out, named, and the command fails at its end.
Files of version 14 that the original has encrypted need --couchstore-key-file.
Left out and counted: pending durable writes and events of collections.
Documents go to the collection of the same name, whatever its number is. If the bucket lacks it, they are left out, and
the command names the collection and fails at its end, unless --create-collections or --skip-unknown is given.
In a cluster any node may be named: each document is sent where it belongs, also while vBuckets move.
An import that was broken off can be made again: what is there already is left alone."
)]
pub struct ImportFlags {
    /// A bucket's folder, like data/buckets/default
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What happens to documents that the bucket has already
    #[arg(long, value_enum, default_value_t = Conflict::Resolve)]
    conflict: Conflict,
    /// Make scopes and collections that the bucket lacks, with the max TTL that they had
    #[arg(long, conflicts_with = "skip_unknown")]
    create_collections: bool,
    /// Leave out documents of collections that the bucket lacks, and end well
    #[arg(long)]
    skip_unknown: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    encryption: EncryptionFlags,
    #[command(flatten)]
    original: CouchstoreKeyFlags,
    #[command(subcommand)]
    command: Option<ImportCommand>,
}

/// Files that can be sent beside those of a bucket.
#[derive(Clone, Debug, Subcommand)]
enum ImportCommand {
    /// Send documents of a file with a line of JSON for each
    Lines(lines::LinesFlags),
    /// Send documents of a file with a row of CSV for each
    Csv(lines::CsvFlags),
    Cluster(Box<cluster::MoveInFlags>),
}

/// What became of the records of all files.
#[derive(Debug, Default)]
struct Summary {
    files: u64,
    /// What they are: `files`, or `vBuckets` of a folder that was opened as a node opens it.
    what: &'static str,
    counts: SentCounts,
    /// vBuckets that cannot be read, and why.
    refused: Vec<(VbId, String)>,
}

/// Where documents come from.
enum Origin {
    /// Couchstore files, of each vBucket the newest, as of their last headers.
    Files(CouchFiles),
    /// A folder that is read as a node would open it.
    Opened(Box<StoredBucket>),
}

/// Couchstore files, and the keys of those that the original has encrypted.
struct CouchFiles {
    paths: Vec<PathBuf>,
    keys: OriginalKeys,
}

impl CouchFiles {
    fn open(&self, env: &Env, path: &Path) -> anyhow::Result<Snapshot> {
        CouchFile::open_read_with(&*env.disk, path, &self.keys).map_err(said_once)
    }
}

impl Origin {
    fn with_keys(mut self, keys: OriginalKeys) -> Origin {
        if let Origin::Files(files) = &mut self {
            files.keys = keys;
        }
        self
    }

    fn collections(&self, env: &Env) -> anyhow::Result<BTreeMap<u32, SourceCollection>> {
        Ok(match self {
            Origin::Files(files) => sources(&manifests(env, files)?),
            Origin::Opened(bucket) => sources(bucket.vbuckets.iter().map(|(_, stored)| &stored.manifest)),
        })
    }

    fn len(&self) -> usize {
        match self {
            Origin::Files(files) => files.paths.len(),
            Origin::Opened(bucket) => bucket.vbuckets.len(),
        }
    }

    /// What [`Origin::len`] counts.
    fn unit(&self) -> &'static str {
        match self {
            Origin::Files(_) => "files",
            Origin::Opened(_) => "vBuckets",
        }
    }

    /// Sends what the file or vBucket at a place holds.
    fn send(
        &self,
        at: usize,
        env: &Env,
        sender: &mut Sender<'_>,
        step: &mut dyn FnMut(&SentCounts),
    ) -> anyhow::Result<()> {
        match self {
            Origin::Files(files) => send_file(&files.open(env, &files.paths[at])?, sender, step),
            Origin::Opened(bucket) => stored::send_vbucket(bucket, bucket.vbuckets[at].0, sender, step),
        }
    }

    fn refused(&self) -> Vec<(VbId, String)> {
        match self {
            Origin::Files(_) => Vec::new(),
            Origin::Opened(bucket) => {
                bucket.refused.iter().map(|(vb, failure)| (*vb, failure.to_string())).collect()
            }
        }
    }
}

/// Runs the command.
pub fn run(env: &Env, flags: &ImportFlags) -> anyhow::Result<Outcome> {
    let dir = match (&flags.command, &flags.dir) {
        (Some(ImportCommand::Lines(flags)), _) => return lines::run_lines(env, flags),
        (Some(ImportCommand::Csv(flags)), _) => return lines::run_csv(env, flags),
        (Some(ImportCommand::Cluster(flags)), _) => return cluster::run(env, flags),
        (None, Some(dir)) => dir,
        (None, None) => {
            let what = "what is to be sent? give a bucket's folder, or a subcommand: lines, csv, cluster";
            bail!(WrongArguments(what.to_owned()));
        }
    };
    let env = &flags.encryption.world(env)?;
    let bucket = bucket_at(env, &std::path::absolute(dir)?)?.with_keys(flags.original.read(env)?);
    let target = flags.server.target(Dialect::Couchbase)?;
    let unknown = match (flags.create_collections, flags.skip_unknown) {
        (true, _) => Unknown::Create,
        (_, true) => Unknown::Skip,
        _ => Unknown::Fail,
    };
    let summary = import(env, &bucket, target, flags.conflict, unknown)?;
    let mut out = std::io::stdout().lock();
    out.write_all(if flags.json { as_json(&summary) } else { as_text(&summary) }.as_bytes())?;
    complete(&summary.counts, unknown)?;
    readable(&summary.refused)?;
    Ok(Outcome::Done)
}

/// An error if documents were left out that should not have been.
pub(super) fn complete(counts: &SentCounts, unknown: Unknown) -> anyhow::Result<()> {
    if counts.unknown.is_empty() || unknown == Unknown::Skip {
        return Ok(());
    }
    let name = |(name, count): (&String, &u64)| format!("{name} ({})", thousands(*count));
    let names: Vec<_> = counts.unknown.iter().map(name).collect();
    bail!(
        "{} documents were not sent, because the bucket lacks their collections: {}; \
         --create-collections makes those whose names the files know, --skip-unknown leaves the documents out",
        thousands(counts.unknown.values().sum()),
        names.join(", ")
    )
}

/// An error if vBuckets could not be read.
fn readable(refused: &[(VbId, String)]) -> anyhow::Result<()> {
    let Some((first, why)) = refused.first() else { return Ok(()) };
    bail!(
        "{} vBuckets were not sent, because they cannot be read; the first is {first}: {why}; stave check tells what is \
         damaged",
        refused.len()
    )
}

/// The one bucket in a folder.
fn bucket_at(env: &Env, dir: &Path) -> anyhow::Result<Origin> {
    let mut place = Place::find(&*env.disk, dir)?;
    let bucket = match (place.buckets.pop(), place.buckets.is_empty()) {
        (Some(bucket), true) if bucket.folder == *dir => bucket,
        _ => bail!("{} is no bucket's folder: give one with files like 0.couch.1", dir.display()),
    };
    refuse_moving(env, dir)?;
    let names = env.disk.read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(
        match bucket.backend != kvstore::StorageBackend::Couchstore
            || names.iter().any(|name| is_segment(name))
        {
            true => Origin::Opened(Box::new(StoredBucket::open(env, dir)?)),
            false => Origin::Files(CouchFiles { paths: bucket.files, keys: OriginalKeys::default() }),
        },
    )
}

fn import(
    env: &Env,
    source: &Origin,
    target: Target,
    conflict: Conflict,
    unknown: Unknown,
) -> anyhow::Result<Summary> {
    let collections = Collections::find(env, source.collections(env)?, &target, unknown)?;
    let by_time = resolves_by_time(&mut Client::open(env, &target)?)?;
    let cluster = Cluster::open(env, target, &[Feature::Xattr, Feature::Snappy])?;
    let mut sender = Sender::new("import", cluster, collections, conflict, by_time);
    let mut line = StatusLine::new(env);
    let (all, what) = (source.len() as u64, source.unit());
    for at in 0..source.len() {
        let mut step = |counts: &SentCounts| {
            line.show(|_| {
                let (done, sent) = (thousands(at as u64), thousands(counts.documents));
                format!("{done} of {} {what}, {sent} documents", thousands(all))
            });
        };
        source
            .send(at, env, &mut sender, &mut step)
            .with_context(|| format!("{} documents were sent before", thousands(sender.counts.documents)))?;
    }
    sender.finish()?;
    line.end();
    Ok(Summary { files: all, what, counts: sender.counts, refused: source.refused() })
}

fn send_file(
    file: &Snapshot,
    sender: &mut Sender<'_>,
    step: &mut dyn FnMut(&SentCounts),
) -> anyhow::Result<()> {
    let (mut stored, mut inflated) = (Vec::new(), Vec::new());
    let visit = |info: DocInfo<'_>| -> Result<ControlFlow<()>, Ended> {
        step(&sender.counts);
        match read_record(file, &info, sender.takes_snappy(), &mut stored, &mut inflated)? {
            Ok(record) => drop(sender.send(&record)?),
            Err(skipped) => sender.skip(skipped),
        }
        Ok(ControlFlow::Continue(()))
    };
    file.changes_since(0, visit).map_err(|ended| match ended {
        Ended::Unreadable(failure) => said_once(failure),
        Ended::Unsent(error) => error,
    })
}

/// Why a file was not sent to its end.
enum Ended {
    Unreadable(Failure),
    Unsent(anyhow::Error),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Unreadable(failure)
    }
}

impl From<anyhow::Error> for Ended {
    fn from(error: anyhow::Error) -> Ended {
        Ended::Unsent(error)
    }
}

fn as_text(summary: &Summary) -> String {
    let mut rows = vec![(summary.what, thousands(summary.files))];
    rows.extend(summary.counts.rows());
    if !summary.refused.is_empty() {
        rows.push(("vBuckets that cannot be read", thousands(summary.refused.len() as u64)));
    }
    rows.iter().map(|(name, count)| format!("{name:<46}  {count}\n")).collect()
}

fn as_json(summary: &Summary) -> String {
    let mut line = summary.counts.json();
    line[summary.what.to_lowercase()] = summary.files.into();
    let refused = summary.refused.iter().map(|(vb, why)| json!({ "vbucket": vb.0, "why": why }));
    line["refused"] = refused.collect();
    format!("{line}\n")
}

#[cfg(test)]
mod tests;
