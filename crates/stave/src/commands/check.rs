//! `stave check`: looks for damage in a data directory, a bucket's folder or one file.

pub(super) mod journal;
pub(super) mod place;
mod progress;
mod repair;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base::encryption::{KeyError, KeyRing, WrappingKeys, key_of_file};
use base::env::{Disk, Env};
use clap::Args;
use couchstore::OriginalKeys;
use couchstore::check::{Fault, Findings, Watcher, check_at, check_with};
use kvstore::{StorageBackend, check_catalog, check_log, check_rocks};
use node::data_dir::DataDir;
use node::small_files;
use serde_json::{Value, json};

use super::encryption_flags::{CouchstoreKeyFlags, EncryptionFlags, world_with};
use super::stored_bucket::{hold, refuse_moving, running};
use crate::cli::Outcome;
use crate::units::{bytes, thousands};
use place::{BucketFiles, Place, data_dir_of};
use progress::Progress;

/// Look for damage in files of documents.
///
/// Every file in use is read as of its last valid header, behind a journal as of the header that the journal names:
/// checksums of all nodes and bodies, the order of keys, the
/// counts in the nodes, whether the documents by id and by seqno are the same, and whether headers are sound.
/// The journal is read, too: its segments, frames and records.
/// So are the small files: the list of buckets, identities, manifests, cursors, and what a member notes of its cluster.
/// After a clean stop the catalog says which files there are and at which headers they end; what differs is a fault.
/// Nothing is changed, except with --repair. No node may run on the data directory meanwhile.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave check data
  stave check data/buckets/default
  stave check data/buckets/default/17.couch.3
  stave check --json data | jq 'select(.type == \"fault\")'
  stave check 17.couch.3 --couchstore-key-file keys.json
  stave check data --repair
  stave check data --repair --yes

Of each vBucket the newest file is checked; files that end in .new were never in use and are left out.
After a crash there is a journal: files are checked as of the headers that it names, as what is behind is in the
journal; documents and tombstones are counted as they are in the files, each event of a collection in each vBucket among
them.
A fault is a line with file, offset and what is wrong; tables with a row for each bucket and journal come last.
With --json each line is one object, of the type `fault`, `bucket` or `journal`.

--repair prints a row for each damaged vBucket: the seqno up to which everything is kept, the seqnos that are lost, and
the documents that it has then (`-` if some of them are in the journal and were not counted); and for each damaged small
file what becomes of it. Of a log-structured store it says what each damaged file costs: which vBuckets, and how many
documents. Nothing is changed unless --yes is given. Then DIR is locked, with a new file `lock` if it has
none, so that no node starts on it meanwhile; what is damaged is kept in DIR/quarantine, and an
active vBucket that lost something, or may have, begins a new history, so that readers of its changes roll back.
After a kill the same command finishes the repair. A member of a cluster is not repaired: its other nodes have copies.
The folder of a bucket in a log-structured store is built again beside the old one, which needs the room, and the old one
is kept as a whole. A vBucket that misses documents in its middle begins a history at seqno 0.
With --json it prints objects of the types `fault`, `damage`, `small_file` and `repaired`, or one of the type `clean` if
nothing is damaged.
Exit codes: 0 no faults or all repaired, 3 it could not be done, 4 faults were found, or are left.")]
pub struct CheckFlags {
    /// A data directory, a bucket's folder in it, or one file
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
    /// Say of each damaged vBucket what is kept and what would be lost; changes nothing without --yes
    #[arg(long)]
    repair: bool,
    /// With --repair: repair what is damaged
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encryption: EncryptionFlags,
    #[command(flatten)]
    original: CouchstoreKeyFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &CheckFlags) -> anyhow::Result<Outcome> {
    let (beneath, keys) = (env, flags.encryption.keys(env)?);
    let env = &world_with(env, keys.clone());
    let path = std::path::absolute(&flags.path)?;
    let data_dir = data_dir_around(&*env.disk, &path);
    // held until the check is done, so that no node starts meanwhile
    let _lock = data_dir.as_deref().map(|data_dir| take(data_dir, flags.yes)).transpose()?;
    let mut out = io::stdout().lock();
    if let Some(data_dir) = &data_dir {
        // What was broken off is only gone on with by who has the key.
        if let Ok(place) = Place::find(&*env.disk, &path) {
            fits(beneath, &place, keys.as_ref())?;
        }
        repair::resume(env, data_dir, flags.yes, &mut io::stderr())?;
    }
    let place = Place::find(&*env.disk, &path)?;
    fits(beneath, &place, keys.as_ref())?;
    for bucket in &place.buckets {
        refuse_moving(env, &bucket.folder)?;
    }
    if flags.repair {
        return repair::run(env, &place, flags.json, flags.yes, &mut out);
    }
    let progress = Progress::on_stderr(env.clock.clone(), place.file_count());
    let files = Files { place: &place, keys: flags.original.read(env)? };
    check(env, &files, flags.json, progress, &mut out)
}

/// With another key, or none, each file would be told as damaged, and repaired as such. `env` has no encryption.
///
/// # Errors
///
/// If files are encrypted under a key that was not given.
fn fits(env: &Env, place: &Place, keys: Option<&WrappingKeys>) -> Result<(), KeyError> {
    for folder in place.data_dir.iter().chain(place.buckets.iter().map(|bucket| &bucket.folder)) {
        match KeyRing::look(env, folder, &folder.display().to_string(), keys) {
            Err(error @ (KeyError::NotGiven(_) | KeyError::Other { .. })) if has_encrypted(env, folder) => {
                return Err(error);
            }
            // What else is wrong with the file of the keys is a fault like any other.
            _ => {}
        }
    }
    Ok(())
}

/// Whether a file in a folder is encrypted: a folder may have keys that no file needs.
fn has_encrypted(env: &Env, folder: &Path) -> bool {
    let names = env.disk.read_dir(folder).unwrap_or_default();
    names.iter().any(|name| matches!(key_of_file(&*env.disk, &folder.join(name)), Ok(Some(_))))
}

/// The data directory that a path is in, or is; also of a bucket whose folder is not in its place.
fn data_dir_around(disk: &dyn Disk, path: &Path) -> Option<PathBuf> {
    let by_place = data_dir_of(path).or_else(|| data_dir_of(path.parent()?));
    let found = by_place.or_else(|| disk.read_dir(&path.join("buckets")).is_ok().then(|| path.to_owned()));
    found.filter(|data_dir| disk.read_dir(data_dir).is_ok())
}

/// Who only looks at a folder without a file to lock makes none.
fn take(data_dir: &Path, is_changed: bool) -> anyhow::Result<Option<DataDir>> {
    match is_changed {
        true => DataDir::take_to_change(data_dir).map(Some).map_err(running),
        false => hold(data_dir),
    }
}

/// What is checked, and the keys of files that the original has encrypted.
struct Files<'a> {
    place: &'a Place,
    keys: OriginalKeys,
}

fn check(
    env: &Env,
    files: &Files<'_>,
    json: bool,
    progress: Progress,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let Files { place, keys } = files;
    let mut report = Report { json, progress, out, failed: None };
    let mut rows = Vec::new();
    let mut journals = Vec::new();
    let of_node = place.data_dir.as_deref().filter(|_| place.is_whole);
    let of_node = of_node.map(|folder| small_files::node_faults(&*env.disk, folder)).unwrap_or_default();
    let node_faults = of_node.len();
    of_node.into_iter().for_each(|fault| report.fault(small(fault)));
    for bucket in &place.buckets {
        let mut total = Findings::default();
        let journal = journal::read(&*env.disk, bucket)?;
        for fault in journal.iter().filter(|_| bucket.is_whole).flat_map(journal::faults) {
            total.faults += 1;
            report.fault(fault);
        }
        if bucket.is_whole {
            for fault in small_files::bucket_faults(&*env.disk, &bucket.folder) {
                total.faults += 1;
                report.fault(small(fault));
            }
        }
        if bucket.backend != StorageBackend::Couchstore && bucket.is_whole {
            let files = check_shared_files(env, bucket, &mut total, &mut report)?;
            rows.push(Row { bucket: &bucket.name, files, total });
            journals.extend(journal.map(|journal| (&*bucket.name, journal)));
            continue;
        }
        let catalog = check_catalog(&*env.disk, &bucket.folder)?;
        for fault in journal::of_files(&*env.disk, bucket, &catalog, journal.as_ref()) {
            total.faults += 1;
            report.fault(fault);
        }
        let files = journal::files_in_use(bucket, &catalog, journal.as_ref());
        for (file, header) in &files {
            let found = match header {
                Some(offset) => check_at(&*env.disk, file, *offset, &mut report),
                None => check_with(&*env.disk, file, keys, &mut report),
            };
            report.progress.file_done(found.file_bytes);
            add(&mut total, &found);
            if let Some(error) = report.failed.take() {
                return Err(error.into());
            }
        }
        rows.push(Row { bucket: &bucket.name, files: files.len() as u64, total });
        journals.extend(journal.filter(|_| bucket.is_whole).map(|journal| (&*bucket.name, journal)));
    }
    report.progress.finish();
    let said = if json {
        rows.iter()
            .map(Row::json)
            .chain(journals.iter().map(|(of, journal)| journal::json_row(of, journal)))
            .map(|row| format!("{row}\n"))
            .collect()
    } else {
        table(&rows) + &journal::table(&journals)
    };
    out.write_all(said.as_bytes())?;
    let is_clean = node_faults == 0 && rows.iter().all(|row| row.total.faults == 0);
    Ok(if is_clean { Outcome::Done } else { Outcome::Faults })
}

/// Checks a bucket whose vBuckets share files; answers how many files it has.
fn check_shared_files(
    env: &Env,
    bucket: &BucketFiles,
    total: &mut Findings,
    report: &mut Report<'_>,
) -> anyhow::Result<u64> {
    let step = &mut |items| report.progress.step(items);
    let found = match bucket.backend {
        StorageBackend::RocksDb => check_rocks(env, &bucket.folder, step)?,
        StorageBackend::LogStructured | StorageBackend::Couchstore => check_log(env, &bucket.folder, step)?,
    };
    for (path, offset, what) in found.faults {
        total.faults += 1;
        report.fault(Fault { path: path.as_path().into(), offset, what });
    }
    total.documents += found.documents;
    total.tombstones += found.tombstones;
    total.file_bytes += found.bytes;
    report.failed.take().map_or(Ok(found.files), |error| Err(error.into()))
}

/// A fault of a small file (record 57), which has no place in it.
fn small((path, what): small_files::Fault) -> Fault {
    Fault { path: path.as_path().into(), offset: 0, what }
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

/// What was found in a bucket.
struct Row<'b> {
    bucket: &'b str,
    files: u64,
    total: Findings,
}

impl Row<'_> {
    fn json(&self) -> Value {
        json!({
            "type": "bucket",
            "bucket": self.bucket,
            "files": self.files,
            "documents": self.total.documents,
            "tombstones": self.total.tombstones,
            "bytes": self.total.file_bytes,
            "faults": self.total.faults,
        })
    }
}

fn table(rows: &[Row<'_>]) -> String {
    let width = rows.iter().map(|row| row.bucket.chars().count()).max().unwrap_or(0).max(6);
    let mut out = format!(
        "{:width$}  {:>6}  {:>13}  {:>13}  {:>9}  {:>6}\n",
        "bucket", "files", "documents", "tombstones", "bytes", "faults"
    );
    for Row { bucket, files, total } in rows {
        out.push_str(&format!(
            "{bucket:width$}  {:>6}  {:>13}  {:>13}  {:>9}  {:>6}\n",
            thousands(*files),
            thousands(total.documents),
            thousands(total.tombstones),
            bytes(total.file_bytes),
            thousands(total.faults),
        ));
    }
    out
}

#[cfg(test)]
pub(super) mod tests;
