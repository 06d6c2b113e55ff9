//! `stave import`: sends the documents of a bucket's files, from wherever they are, to a running node.

mod record;
mod sources;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::Env;
use clap::Args;
use couchstore::{CouchFile, DocInfo, Failure};
use protocol::feature::Feature;
use serde_json::json;

use super::check::place::{BucketFiles, Place, is_segment};
use crate::cli::{Outcome, ServerFlags};
use crate::client::{Client, Cluster, Dialect, Target};
use crate::units::thousands;
use crate::with_meta::{Collections, Conflict, Sender, SentCounts, Unknown};
use record::read_record;
use sources::sources;

/// Send the documents of a bucket's files to a running node.
///
/// The folder holds couchstore files, as a node of this or of the original's kind leaves them; it is only read.
/// Documents and tombstones keep CAS, revision, expiry, flags and attributes; numbers of vBuckets may differ.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave import backup/travel --bucket travel
  stave import backup/travel --bucket travel --conflict overwrite --json

  stave import backup/travel --bucket travel --create-collections
  stave import backup/travel --bucket travel --skip-unknown --timeout 1m

Of each vBucket the file with the highest revision is read, as of its last valid header.
Left out and counted: pending durable writes and events of collections.
Documents go to the collection of the same name, whatever its number is. If the bucket lacks it, they are left out, and
the command names the collection and fails at its end, unless --create-collections or --skip-unknown is given.
In a cluster any node may be named: each document is sent where it belongs, also while vBuckets move.
An import that was broken off can be made again: what is there already is left alone.")]
pub struct ImportFlags {
    /// A bucket's folder with files like 17.couch.3
    #[arg(value_name = "DIR")]
    dir: PathBuf,
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
}

/// What became of the records of all files.
#[derive(Debug, Default)]
struct Summary {
    files: u64,
    counts: SentCounts,
}

/// Runs the command.
pub fn run(env: &Env, flags: &ImportFlags) -> anyhow::Result<Outcome> {
    let bucket = bucket_at(env, &std::path::absolute(&flags.dir)?)?;
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

/// The one bucket in a folder.
fn bucket_at(env: &Env, dir: &Path) -> anyhow::Result<BucketFiles> {
    let mut place = Place::find(&*env.disk, dir)?;
    let bucket = match (place.buckets.pop(), place.buckets.is_empty()) {
        (Some(bucket), true) if bucket.folder == *dir => bucket,
        _ => bail!("{} is no bucket's folder: give one with files like 0.couch.1", dir.display()),
    };
    let names = env.disk.read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    if let Some(journal) = names.iter().find(|name| is_segment(name)) {
        bail!(
            "{} holds what is not in the files yet: start the node of this folder and stop it cleanly first",
            dir.join(journal).display()
        );
    }
    Ok(bucket)
}

/// Whether the last write wins in a bucket, which it has from its beginning.
pub(super) fn resolves_by_time(env: &Env, target: &Target) -> anyhow::Result<bool> {
    let config =
        Client::open(env, target)?.stats("config").context("cannot ask how conflicts are resolved")?;
    Ok(config.iter().any(|(name, value)| name == "ep_conflict_resolution_type" && value == "lww"))
}

fn import(
    env: &Env,
    bucket: &BucketFiles,
    target: Target,
    conflict: Conflict,
    unknown: Unknown,
) -> anyhow::Result<Summary> {
    let collections = Collections::find(env, sources(env, bucket)?, &target, unknown)?;
    let by_time = resolves_by_time(env, &target)?;
    let cluster = Cluster::open(env, target, &[Feature::Xattr, Feature::Snappy])?;
    let mut sender = Sender::new("import", cluster, collections, conflict, by_time);
    let mut files = 0;
    let mut progress = Progress { env, next: env.clock.monotonic() + FIRST, files: bucket.files.len() };
    for path in &bucket.files {
        send_file(path, env, files, &mut sender, &mut progress)
            .with_context(|| format!("{} documents were sent before", thousands(sender.counts.documents)))?;
        files += 1;
    }
    sender.finish()?;
    Ok(Summary { files, counts: sender.counts })
}

fn send_file(
    path: &Path,
    env: &Env,
    files: u64,
    sender: &mut Sender<'_>,
    progress: &mut Progress<'_>,
) -> anyhow::Result<()> {
    let file = CouchFile::open_read(&*env.disk, path).map_err(said_once)?;
    let (mut stored, mut inflated) = (Vec::new(), Vec::new());
    let visit = |info: DocInfo<'_>| -> Result<ControlFlow<()>, Ended> {
        progress.step(files, &sender.counts);
        match read_record(&file, &info, sender.takes_snappy(), &mut stored, &mut inflated)? {
            Ok(record) => sender.send(&record)?,
            Err(skipped) => sender.skip(skipped),
        }
        Ok(ControlFlow::Continue(()))
    };
    file.changes_since(0, visit).map_err(|ended| match ended {
        Ended::Unreadable(failure) => said_once(failure),
        Ended::Unsent(error) => error,
    })
}

/// A failure names its source itself, so that the chain of sources would say it again.
fn said_once(failure: Failure) -> anyhow::Error {
    anyhow::Error::msg(failure.to_string())
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
    let counts = &summary.counts;
    let mut lines = vec![
        ("files", summary.files),
        ("documents", counts.documents),
        ("tombstones", counts.tombstones),
        ("left as the bucket had them", counts.conflicts),
    ];
    lines.extend(counts.skipped.iter().map(|(why, count)| (why.text(), *count)));
    lines.iter().map(|(name, count)| format!("{name:<46}  {}\n", thousands(*count))).collect()
}

fn as_json(summary: &Summary) -> String {
    let counts = &summary.counts;
    let skipped: serde_json::Map<_, _> =
        counts.skipped.iter().map(|(why, count)| (why.name().to_owned(), json!(count))).collect();
    let line = json!({
        "files": summary.files,
        "documents": counts.documents,
        "tombstones": counts.tombstones,
        "conflicts": counts.conflicts,
        "skipped": skipped,
        "unknown_collections": counts.unknown,
    });
    format!("{line}\n")
}

/// Who waits no longer than this needs no line.
const FIRST: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_secs(1);

/// A line on standard error, once it takes longer than a moment.
struct Progress<'e> {
    env: &'e Env,
    next: Duration,
    files: usize,
}

impl Progress<'_> {
    fn step(&mut self, files: u64, now: &SentCounts) {
        let at = self.env.clock.monotonic();
        if at < self.next {
            return;
        }
        self.next = at + EACH;
        let mut err = std::io::stderr().lock();
        let line = format!(
            "{} of {} files, {} documents",
            thousands(files),
            thousands(self.files as u64),
            thousands(now.documents)
        );
        // a failure to write progress is no reason to stop
        let _ = if err.is_terminal() { write!(err, "\r{line} ") } else { writeln!(err, "{line}") };
    }
}

#[cfg(test)]
mod tests;
