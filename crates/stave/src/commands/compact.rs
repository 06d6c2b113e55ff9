//! `stave compact`: copies what a file of documents still needs into its next revision, or rewrites what is garbage in a
//! log-structured store.

mod folder;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::Env;
use base::{CollectionId, Seqno, VbId};
use clap::Args;
use kvstore::{Compacted, Compaction, CompactionProgress, Couch, CouchConfig, KvStore};
use node::data_dir::{DataDir, DataDirError};
use serde_json::json;

use super::check::place::data_dir_of;
use super::encryption_flags::EncryptionFlags;
use super::stored_bucket::refuse_moving;
use crate::cli::{Outcome, WrongArguments};
use crate::units::{bytes, parse_moment, thousands};

/// Make a file of documents, or all files of a bucket, smaller.
///
/// What is in use is copied into the file's next revision, which takes its place when it is complete and safe on disk;
/// what was overwritten goes, and so does what dropped collections held.
/// Of a bucket in a log-structured store, segments with garbage are rewritten and runs merged.
/// No node may run on the data directory meanwhile.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave compact data/buckets/default/17.couch.3
  stave compact --purge-before 3d data/buckets/default/17.couch.3
  stave compact --json 17.couch.3 | jq .after_bytes
  stave compact data/buckets/default

From 17.couch.3 comes 17.couch.4, and 17.couch.3 is removed. If anything fails, 17.couch.3 stays as it was.
Of a folder all vBuckets are compacted, one after the other; a failure ends the command, and those before it are done.
What holds little may be larger afterwards, an encrypted log-structured store by some tens of KiB.
Whoever streams changes and has not seen a tombstone that is purged must begin from nothing: purge only what all of
them have seen. The document or tombstone with the highest seqno always stays.")]
pub struct CompactFlags {
    /// A file like 17.couch.3, the newest of its vBucket, or a bucket's folder
    #[arg(value_name = "FILE|DIR")]
    file: PathBuf,
    /// Leave out tombstones that were deleted before this: an age like 3d, 12h, 15m or 90s, or seconds since 1970
    #[arg(long, value_name = "TIME")]
    purge_before: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encryption: EncryptionFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &CompactFlags) -> anyhow::Result<Outcome> {
    let env = &flags.encryption.world(env)?;
    let err = std::io::stderr();
    let in_place = err.is_terminal();
    let progress = Progress::new(env, Box::new(err), in_place);
    let file = std::path::absolute(&flags.file)?;
    // held until all is done, so that no node starts meanwhile
    let data_dir = data_dir_of(&file).or_else(|| data_dir_of(folder_of(&file)));
    let _lock = data_dir.map(|data_dir| take(&data_dir)).transpose()?;
    compact(env, flags, progress, &mut std::io::stdout().lock())
}

fn compact(
    env: &Env,
    flags: &CompactFlags,
    progress: Progress<'_>,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let purge_before_s = flags
        .purge_before
        .as_deref()
        .map(|text| parse_moment(text, env.clock.unix_s()))
        .transpose()
        .map_err(|what| WrongArguments(format!("--purge-before: {what}")))?;
    let path = std::path::absolute(&flags.file)?;
    let progress = RefCell::new(progress);
    let is_folder = env.disk.read_dir(&path).is_ok();
    let folder = if is_folder { &path } else { folder_of(&path) };
    refuse_moving(env, folder)?;
    refuse_journal(env, folder)?;
    let (place, compacted) = match is_folder {
        true => (path.clone(), folder::compact(env, &path, purge_before_s, &progress)?),
        false => compact_file(env, &path, purge_before_s, &progress)?,
    };
    progress.borrow_mut().finish();
    out.write_all(said(is_folder, &place, &compacted, flags.json).as_bytes())?;
    Ok(Outcome::Done)
}

/// Compacts one file; answers which one is in its place.
fn compact_file(
    env: &Env,
    file: &Path,
    purge_before_s: Option<u32>,
    progress: &RefCell<Progress<'_>>,
) -> anyhow::Result<(PathBuf, Compacted)> {
    let (couch, vb) = Couch::open_file(env.clone(), file, CouchConfig::default())?;
    let dropped: BTreeMap<CollectionId, Seqno> = couch.dropped_collections(vb)?;
    let compacted = compact_vb(&couch, vb, purge_before_s, &dropped, (progress, false))?;
    Ok((couch.file_of(vb).unwrap_or(file.to_owned()), compacted))
}

fn compact_vb(
    store: &dyn KvStore,
    vb: VbId,
    purge_before_s: Option<u32>,
    dropped: &BTreeMap<CollectionId, Seqno>,
    (progress, others_wait): (&RefCell<Progress<'_>>, bool),
) -> anyhow::Result<Compacted> {
    let request = Compaction {
        purge_before_s,
        is_dropped: &|collection, seqno| dropped.get(&collection).is_some_and(|drop| seqno < *drop),
        observe: &|now| {
            progress.borrow_mut().step(now);
            ControlFlow::Continue(())
        },
        others_wait: &|| others_wait,
        ..Compaction::default()
    };
    Ok(store.compact(vb, &request)?)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

fn take(data_dir: &Path) -> anyhow::Result<DataDir> {
    DataDir::take_to_change(data_dir).map_err(|error| match error {
        DataDirError::InUse { path } => {
            anyhow::anyhow!("a node runs on {}: stop it first; nothing was changed", path.display())
        }
        other => other.into(),
    })
}

/// A journal names the revision and the header of each file that it goes with.
fn refuse_journal(env: &Env, folder: &Path) -> anyhow::Result<()> {
    let names = env.disk.read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    if let Some(journal) = names.iter().find(|name| name.starts_with("journal.")) {
        bail!(
            "{} holds what is not in the files yet: start the node and stop it cleanly first; nothing was changed",
            folder.join(journal).display()
        );
    }
    Ok(())
}

fn said(is_folder: bool, new: &Path, compacted: &Compacted, json: bool) -> String {
    let (what, new) = (if is_folder { "folder" } else { "file" }, new.display().to_string());
    let Compacted { before_bytes, after_bytes, purge_seqno, .. } = *compacted;
    if json {
        let line = json!({
            what: new,
            "before_bytes": before_bytes,
            "after_bytes": after_bytes,
            "tombstones_purged": compacted.tombstones_purged,
            "documents_dropped": compacted.documents_dropped,
            "purge_seqno": purge_seqno.0,
        });
        return format!("{line}\n");
    }
    let lines = [
        (what, new),
        ("before", bytes(before_bytes)),
        ("after", bytes(after_bytes)),
        ("tombstones purged", thousands(compacted.tombstones_purged)),
        ("documents of dropped collections", thousands(compacted.documents_dropped)),
        ("purge seqno", purge_seqno.0.to_string()),
    ];
    lines.map(|(name, value)| format!("{name:<32}  {value}\n")).concat()
}

/// Who waits no longer than this needs no line.
const FIRST: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_secs(1);

/// A line on standard error, once it takes longer than a moment.
struct Progress<'e> {
    env: &'e Env,
    next: Duration,
    err: Box<dyn Write>,
    in_place: bool,
    /// Width of the line that stands on the terminal.
    width: usize,
    /// Which vBucket it is, from 1, and of how many, if a whole bucket is compacted.
    vbucket: Option<(u64, u64)>,
}

impl<'e> Progress<'e> {
    fn new(env: &'e Env, err: Box<dyn Write>, in_place: bool) -> Progress<'e> {
        Progress { env, next: env.clock.monotonic() + FIRST, err, in_place, width: 0, vbucket: None }
    }

    fn step(&mut self, now: CompactionProgress) {
        let at = self.env.clock.monotonic();
        if at < self.next {
            return;
        }
        self.next = at + EACH;
        let line = self.line(now);
        // a failure to write progress is no reason to stop
        let _ = if self.in_place {
            let width = self.width;
            write!(self.err, "\r{line:<width$}")
        } else {
            writeln!(self.err, "{line}")
        };
        self.width = line.len();
    }

    /// The next vBucket of a bucket begins.
    fn begin(&mut self, at: usize, of: usize) {
        self.vbucket = Some((at as u64 + 1, of as u64));
    }

    fn line(&self, now: CompactionProgress) -> String {
        let copied = format!("{} of {} copied", bytes(now.done_bytes), bytes(now.total_bytes));
        match self.vbucket {
            Some((at, of)) => format!("vBucket {} of {}: {copied}", thousands(at), thousands(of)),
            None => copied,
        }
    }

    fn finish(&mut self) {
        if self.in_place && self.width > 0 {
            let _ = write!(self.err, "\r{:width$}\r", "", width = self.width);
        }
        self.width = 0;
    }
}

#[cfg(test)]
mod tests;
