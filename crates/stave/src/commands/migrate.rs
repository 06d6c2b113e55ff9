//! `stave migrate`: brings a bucket from one store to the other, of a running node or of a stopped one.

mod live;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use kvstore::StorageBackend;
use kvstore::migrate::{MigrateProgress, Migrated, backend_of, migrate};
use kvstore::replace::{Replaced, Replacement};
use node::cluster::membership::belongs_to_cluster;
use node::data_dir::{DataDir, DataDirError};
use node::{bucket_list, naming};
use serde_json::json;

use super::check::place::data_dir_of;
use super::encryption_flags::EncryptionFlags;
use super::http_flags::HttpFlags;
use super::stored_bucket::refuse_moving;
use crate::cli::{Outcome, WrongArguments};
use crate::units::{bytes, thousands};

/// Keep a bucket in the other store from now on.
///
/// BUCKET is a bucket of a running node, which serves it meanwhile and goes on after a stop or a kill. DIR is a bucket's
/// folder of a stopped node: a path with a slash in it, or a folder that is there.
/// vBuckets keep their seqnos, CAS, failover tables, tombstones, prepares and collections.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave migrate orders --backend magma
  stave migrate orders --cancel
  stave migrate data/buckets/orders --backend magma           # the node is stopped
  stave migrate data/buckets/orders --backend couchstore --json | jq .items

A running node moves one vBucket after the other: it copies what is there, then what was changed meanwhile, and then the
vBucket is in the other store. The disk needs room for the largest vBucket, and for a second journal. The command waits for
the end and says how far it is; if it is interrupted, the node goes on, and the same command with --cancel brings back what
was moved. In a cluster any node may be asked, and every node moves what it has; a node that is away moves it when it is back.
A vBucket that cannot be read stays where it is, and is named. The end waits 15 minutes at the most for streams, scans and kept
snapshots that read the old store, which then end. A bucket that keeps a history of changes is
refused: set history_retention_seconds and history_retention_bytes to 0 first.
Of a stopped node everything is written into a new folder beside the bucket's, read from both and compared, and only then
does the new folder take the place of the old one, which is removed. The disk needs room for the bucket twice. If anything
fails, the bucket stays as it was; after a kill the same command ends what was begun, or begins again. What the journal has
is brought along. A vBucket that cannot be read ends the command: `stave check --repair` comes first.
A bucket that was made over HTTP is listed with its new type. One of the command line or of a configuration file needs its
type there: --bucket default:1GiB:magma. A bucket that a running node has moved is served without that, too.
Settings of the bucket stay: one that comes from couchstore keeps its eviction policy.
The folder of a member of a cluster is refused: start the node, and move the bucket there.")]
pub struct MigrateFlags {
    /// A bucket of a running node, or a bucket's folder in a data directory, like data/buckets/default
    #[arg(value_name = "BUCKET|DIR")]
    place: String,
    /// The store that the bucket is to be kept in
    #[arg(long, value_name = "couchstore|magma|rocksdb", required_unless_present = "cancel")]
    backend: Option<String>,
    /// Have a bucket that a running node moves go back to the store in which it was
    #[arg(long, conflicts_with = "backend")]
    cancel: bool,
    /// Whom to ask to move a bucket.
    #[command(flatten)]
    http: HttpFlags,
    /// The key of the files of a stopped node.
    #[command(flatten)]
    encryption: EncryptionFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &MigrateFlags) -> anyhow::Result<Outcome> {
    let place = Path::new(&flags.place);
    let is_folder = flags.place.contains(std::path::MAIN_SEPARATOR) || env.disk.read_dir(place).is_ok();
    if !is_folder {
        return live::run(env, &flags.place, flags);
    }
    let word = flags.backend.as_deref().filter(|_| !flags.cancel);
    let word = word.ok_or_else(|| WrongArguments("--cancel is for a bucket of a running node".to_owned()))?;
    let backend = naming::backend_from(word)
        .ok_or_else(|| WrongArguments("--backend: couchstore, magma or rocksdb".to_owned()))?;
    if !backend.is_built_in() {
        bail!(WrongArguments(format!("--backend: {}", naming::NOT_BUILT_IN)));
    }
    of_stopped_node(env, place, backend, flags)
}

fn of_stopped_node(
    env: &Env,
    place: &Path,
    backend: StorageBackend,
    flags: &MigrateFlags,
) -> anyhow::Result<Outcome> {
    let env = &flags.encryption.world(env)?;
    let dir = std::path::absolute(place)?;
    let Some(data) = data_dir_of(&dir) else {
        bail!("{} is not in the `buckets` of a data directory; nothing was changed", dir.display());
    };
    if env.disk.read_dir(&data).is_err() {
        bail!(WrongArguments(format!("{} is not there", data.display())));
    }
    // held until all is done, so that no node starts meanwhile
    let _lock = take(&data)?;
    if belongs_to_cluster(&*env.disk, &data)? {
        bail!(
            "{} belongs to a node of a cluster, in which all nodes move a bucket: start the node, and ask any of them with \
             `stave migrate BUCKET --backend {}`; nothing was changed",
            data.display(),
            word(backend)
        );
    }
    refuse_moving(env, &dir)?;
    let err = std::io::stderr();
    let in_place = err.is_terminal();
    let mut progress = MigrateLine { env, next: env.clock.monotonic() + EACH, err: Box::new(err), in_place };
    let said = bring(env, (&data, &dir), backend, flags.http.json, &mut |now| progress.step(now))?;
    progress.finish();
    std::io::stdout().lock().write_all(said.as_bytes())?;
    Ok(Outcome::Done)
}

fn take(data: &Path) -> anyhow::Result<DataDir> {
    DataDir::take_to_change(data).map_err(|error| match error {
        DataDirError::InUse { path } => {
            anyhow::anyhow!("a node runs on {}: stop it first; nothing was changed", path.display())
        }
        other => other.into(),
    })
}

/// Migrates, or ends what was begun; answers what is to be printed. Whoever calls holds the data directory.
fn bring(
    env: &Env,
    (data, dir): (&Path, &Path),
    backend: StorageBackend,
    json: bool,
    observe: &mut dyn FnMut(MigrateProgress),
) -> anyhow::Result<String> {
    let replacement = Replacement::of(env, dir);
    let was_begun = replacement.resume()? == Replaced::Done;
    if was_begun && backend_of(env, &replacement.old())? == backend_of(env, dir)? {
        bail!("a repair of {} was cut off: `stave check --repair --yes` ends it", dir.display());
    }
    let migrated = if was_begun {
        let now = backend_of(env, dir)?;
        if now != backend {
            bail!(
                "a migration of {} was cut off when it was all but done, and the bucket is in the other store: \
                 `stave migrate {} --backend {}` ends it",
                dir.display(),
                dir.display(),
                word(now)
            );
        }
        None
    } else {
        Some(migrate(env, dir, backend, observe)?)
    };
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
    let is_listed = bucket_list::keep_in(env, data, &name, backend)?;
    replacement.remove_old()?;
    Ok(said(&name, backend, migrated.as_ref(), is_listed, json))
}

fn word(backend: StorageBackend) -> &'static str {
    backend.word()
}

fn said(
    name: &str,
    backend: StorageBackend,
    migrated: Option<&Migrated>,
    is_listed: bool,
    json: bool,
) -> String {
    let backend = word(backend);
    if json {
        let line = json!({
            "bucket": name,
            "backend": backend,
            "vbuckets": migrated.map(|migrated| migrated.vbuckets),
            "items": migrated.map(|migrated| migrated.items),
            "before_bytes": migrated.map(|migrated| migrated.before_bytes),
            "after_bytes": migrated.map(|migrated| migrated.after_bytes),
            "is_listed": is_listed,
        });
        return format!("{line}\n");
    }
    let mut lines = vec![("bucket", name.to_owned()), ("store", backend.to_owned())];
    if let Some(Migrated { vbuckets, items, before_bytes, after_bytes }) = migrated {
        lines.extend([
            ("vBuckets", thousands(*vbuckets)),
            ("records written and compared", thousands(*items)),
            ("before", bytes(*before_bytes)),
            ("after", bytes(*after_bytes)),
        ]);
    } else {
        lines.push(("state", "a migration that was cut off is ended".to_owned()));
    }
    let table = lines.into_iter().map(|(name, value)| format!("{name:<32}  {value}\n")).collect::<String>();
    if is_listed {
        table
    } else {
        format!("{table}start the node with this bucket's type: --bucket {name}:QUOTA:{backend}\n")
    }
}

const EACH: Duration = Duration::from_secs(1);

/// A line on standard error, each second.
struct MigrateLine<'e> {
    env: &'e Env,
    next: Duration,
    err: Box<dyn Write>,
    in_place: bool,
}

impl MigrateLine<'_> {
    fn step(&mut self, now: MigrateProgress) {
        let at = self.env.clock.monotonic();
        if at < self.next {
            return;
        }
        self.next = at + EACH;
        let MigrateProgress { vbuckets, of_vbuckets, items, is_comparing } = now;
        let does = if is_comparing { "compared" } else { "written" };
        let line = format!("{vbuckets} of {of_vbuckets} vBuckets, {} records {does}", thousands(items));
        // a failure to write progress is no reason to stop
        let _ = if self.in_place { write!(self.err, "\r{line:<72}") } else { writeln!(self.err, "{line}") };
    }

    fn finish(&mut self) {
        if self.in_place {
            let _ = write!(self.err, "\r{:72}\r", "");
        }
    }
}

#[cfg(test)]
mod tests;
