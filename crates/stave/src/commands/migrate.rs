//! `stave migrate`: brings a bucket of a stopped node from one store to the other.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
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
use super::encryption_flags::{EncryptionFlags, node_world_with, world_with};
use crate::cli::{Outcome, WrongArguments};
use crate::units::{bytes, thousands};

/// Keep a bucket of a stopped node in the other store from now on.
///
/// Everything is written into a new folder beside the bucket's, read from both and compared, and only then does the new
/// folder take the place of the old one, which is removed.
/// vBuckets keep their seqnos, CAS, histories, tombstones, prepares and collections.
/// No node may run on the data directory meanwhile.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave migrate data/buckets/default --backend magma
  stave migrate data/buckets/default --backend couchstore --json | jq .items

The disk needs room for the bucket twice. If anything fails, the bucket stays as it was; after a kill the same command
ends what was begun, or begins again. What the journal has is brought along.
A bucket that was made over HTTP is in the new store with the next start. One of the command line or of a configuration
file needs its type there: --bucket default:1GiB:magma.
Settings of the bucket stay: one that comes from couchstore keeps its eviction policy.
A vBucket that cannot be read ends the command: `stave check --repair` comes first.
A member of a cluster is refused: move its bucket with `stave backup` and `stave restore`, or make another bucket and
`stave replicate` into it.")]
pub struct MigrateFlags {
    /// A bucket's folder in a data directory, like data/buckets/default
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The store that the bucket is to be kept in
    #[arg(long, value_name = "couchstore|magma")]
    backend: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encryption: EncryptionFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &MigrateFlags) -> anyhow::Result<Outcome> {
    let keys = flags.encryption.keys(env)?;
    let dir = std::path::absolute(&flags.dir)?;
    let backend = naming::backend_from(&flags.backend)
        .ok_or_else(|| WrongArguments("--backend: couchstore or magma".to_owned()))?;
    let Some(data) = data_dir_of(&dir) else {
        bail!("{} is not in the `buckets` of a data directory; nothing was changed", dir.display());
    };
    // held until all is done, so that no node starts meanwhile
    let _lock = take(&data)?;
    let of_node = node_world_with(env, &data, keys.as_ref())?;
    let env = &world_with(env, keys);
    if belongs_to_cluster(&*env.disk, &data)? {
        bail!(
            "{} belongs to a node of a cluster, in which all nodes keep a bucket in the same store; nothing was changed",
            data.display()
        );
    }
    let err = std::io::stderr();
    let in_place = err.is_terminal();
    let mut progress = MigrateLine { env, next: env.clock.monotonic() + EACH, err: Box::new(err), in_place };
    let said = bring((env, &of_node), (&data, &dir), backend, flags.json, &mut |now| progress.step(now))?;
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

/// Migrates, or ends what was begun; answers what is to be printed. Whoever calls holds the data directory. The second
/// world is the one in which the node notes what its buckets are.
fn bring(
    (env, of_node): (&Env, &Env),
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
    let is_listed = bucket_list::keep_in(of_node, data, &name, backend)?;
    replacement.remove_old()?;
    Ok(said(&name, backend, migrated.as_ref(), is_listed, json))
}

fn word(backend: StorageBackend) -> &'static str {
    match backend {
        StorageBackend::Couchstore => "couchstore",
        StorageBackend::LogStructured => "magma",
    }
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
