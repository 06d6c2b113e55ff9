//! `stave check`: looks for damage in a data directory, a bucket's folder or one file.

pub(super) mod place;
mod progress;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base::env::Env;
use clap::Args;
use couchstore::check::{Fault, Findings, Watcher};
use serde_json::json;
use server::data_dir::{DataDir, DataDirError};

use crate::cli::Outcome;
use crate::units::{bytes, thousands};
use place::{BucketFiles, Place};
use progress::Progress;

/// Look for damage in files of documents.
///
/// Every file in use is read as of its last valid header: checksums of all nodes and bodies, the order of keys, the
/// counts in the nodes, whether the documents by id and by seqno are the same, and whether headers are sound.
/// Nothing is changed. No node may run on the data directory meanwhile.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave check data
  stave check data/buckets/default
  stave check data/buckets/default/17.couch.3
  stave check --json data | jq 'select(.type == \"fault\")'

Of each vBucket the newest file is checked; files that end in .new were never in use and are left out.
A fault is a line with file, offset and what is wrong; a table with a row for each bucket comes last.
With --json each line is one object, of the type `fault` or `bucket`.
Exit codes: 0 no faults, 3 the check could not be made, 4 faults were found.")]
pub struct CheckFlags {
    /// A data directory, a bucket's folder in it, or one file
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(env: &Env, flags: &CheckFlags) -> anyhow::Result<Outcome> {
    let place = Place::find(&*env.disk, &std::path::absolute(&flags.path)?)?;
    // held until the check is done, so that no node starts meanwhile
    let _lock = place.data_dir.as_deref().map(take).transpose()?;
    let mut out = io::stdout().lock();
    let progress = Progress::on_stderr(env.clock.clone(), place.file_count());
    check(env, &place, flags.json, progress, &mut out)
}

fn take(data_dir: &Path) -> anyhow::Result<Option<DataDir>> {
    DataDir::take_existing(data_dir).map_err(|error| match error {
        DataDirError::InUse { path } => {
            anyhow::anyhow!("a node runs on {}: stop it first, or check a copy", path.display())
        }
        other => other.into(),
    })
}

fn check(
    env: &Env,
    place: &Place,
    json: bool,
    progress: Progress,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let mut report = Report { json, progress, out, failed: None };
    let mut rows = Vec::new();
    for bucket in &place.buckets {
        let mut total = Findings::default();
        for file in &bucket.files {
            let found = couchstore::check::check(&*env.disk, file, &mut report);
            report.progress.file_done(found.file_bytes);
            add(&mut total, &found);
            if let Some(error) = report.failed.take() {
                return Err(error.into());
            }
        }
        rows.push((bucket, total));
    }
    report.progress.finish();
    out.write_all(if json { json_rows(&rows) } else { table(&rows) }.as_bytes())?;
    let is_clean = rows.iter().all(|(_, total)| total.faults == 0);
    Ok(if is_clean { Outcome::Done } else { Outcome::Faults })
}

fn add(total: &mut Findings, one: &Findings) {
    total.documents += one.documents;
    total.tombstones += one.tombstones;
    total.file_bytes += one.file_bytes;
    total.faults += one.faults;
}

/// Prints faults as they are found.
struct Report<'o> {
    json: bool,
    progress: Progress,
    out: &'o mut dyn Write,
    /// Why no more can be printed.
    failed: Option<io::Error>,
}

impl Watcher for Report<'_> {
    fn fault(&mut self, fault: Fault) {
        self.progress.fault();
        let Fault { path, offset, what } = fault;
        let file = path.display();
        let written = if self.json {
            let line = json!({ "type": "fault", "file": file.to_string(), "offset": offset, "what": what });
            writeln!(self.out, "{line}")
        } else {
            writeln!(self.out, "{file}: offset {offset}: {what}")
        };
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    fn step(&mut self, documents: u64) {
        self.progress.step(documents);
    }
}

fn table(rows: &[(&BucketFiles, Findings)]) -> String {
    let width = rows.iter().map(|(bucket, _)| bucket.name.chars().count()).max().unwrap_or(0).max(6);
    let mut out = format!(
        "{:width$}  {:>6}  {:>13}  {:>13}  {:>9}  {:>6}\n",
        "bucket", "files", "documents", "tombstones", "bytes", "faults"
    );
    for (bucket, total) in rows {
        out.push_str(&format!(
            "{:width$}  {:>6}  {:>13}  {:>13}  {:>9}  {:>6}\n",
            bucket.name,
            thousands(bucket.files.len() as u64),
            thousands(total.documents),
            thousands(total.tombstones),
            bytes(total.file_bytes),
            thousands(total.faults),
        ));
    }
    out
}

fn json_rows(rows: &[(&BucketFiles, Findings)]) -> String {
    let line = |(bucket, total): &(&BucketFiles, Findings)| {
        let row = json!({
            "type": "bucket",
            "bucket": bucket.name,
            "files": bucket.files.len(),
            "documents": total.documents,
            "tombstones": total.tombstones,
            "bytes": total.file_bytes,
            "faults": total.faults,
        });
        format!("{row}\n")
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
