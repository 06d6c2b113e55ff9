//! Whether all that a folder of a log-structured store has is sound, and what its catalog promises. Nothing is changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::VbId;
use base::env::Env;

use super::compact::at_of;
use super::state::LogState;
use super::vouch;
use crate::catalog::{self, Believe, Contents, Found};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::journal;

/// What is in a folder, and what is wrong.
#[derive(Debug, Default)]
pub struct LogReport {
    /// File, offset in it, and what is wrong.
    pub faults: Vec<(PathBuf, u64, String)>,
    /// Files of the store.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Documents, as of the last commits: what is in the journal only is not counted.
    pub documents: u64,
    /// Tombstones.
    pub tombstones: u64,
}

/// Whether a file's name is that of a file of a log-structured store (docs/log_format.md).
pub fn is_log_file(name: &str) -> bool {
    logstore::is_file(name)
}

/// The file that a failure is of, and the offset in it; the folder if it is of none.
pub(crate) fn place_of(failure: &logstore::Failure, dir: &Path) -> (PathBuf, u64) {
    match failure {
        logstore::Failure::Io { path, offset, .. } | logstore::Failure::Damaged { path, offset, .. } => {
            (path.to_path_buf(), *offset)
        }
        logstore::Failure::Unsupported { path, .. } | logstore::Failure::Foreign { path, .. } => {
            (path.to_path_buf(), 0)
        }
        _ => (dir.to_owned(), 0),
    }
}

/// Reads all files of the store in a folder, to the end whatever is wrong; `step` is told of items that were read.
///
/// # Errors
///
/// If the disk refuses to list the folder, or to read the catalog.
pub fn check_log(env: &Env, dir: &Path, step: &mut dyn FnMut(u64)) -> Result<LogReport, Failure> {
    let mut report = LogReport::default();
    let fault = &mut |failure: &logstore::Failure| {
        let (path, offset) = place_of(failure, dir);
        report.faults.push((path, offset, failure.to_string()));
    };
    let found = catalog::find(&*env.disk, dir)?;
    let owner = if let Found::Catalog(contents, _) = &found { contents.store.0 } else { 0 };
    let checked = logstore::check(env, dir, owner, fault, step).map_err(|failure| Failure::Disk {
        operation: "list",
        path: dir.to_owned(),
        source: std::io::Error::other(failure.to_string()),
    })?;
    (report.files, report.bytes) = (checked.files, checked.bytes);
    let mut commits = BTreeMap::new();
    for (vb, commit, state) in checked.vbuckets {
        commits.insert(VbId(vb), at_of(commit));
        match LogState::decode(&state) {
            Ok(state) => {
                report.documents += state.tally.documents();
                report.tombstones += state.tombstones;
            }
            Err(what) => report.faults.push((dir.to_owned(), 0, format!("vBucket {vb}: {what}"))),
        }
    }
    let found = (found, "the files of a log-structured store");
    let older = |contents: &Contents| vouch::older(contents.sequence, checked.beside);
    check_promised(env, dir, found, older, &commits, &mut report)?;
    Ok(report)
}

/// What the catalog beside a store's files promises: after a clean stop the last commit of each vBucket, else a journal.
/// `older` says why it is older than what is beside it, if it is.
pub(crate) fn check_promised(
    env: &Env,
    dir: &Path,
    (found, beside): (Found, &str),
    older: impl FnOnce(&Contents) -> Option<String>,
    commits: &BTreeMap<VbId, FileAt>,
    report: &mut LogReport,
) -> Result<(), Failure> {
    let mut fault = |what: String| report.faults.push((dir.join("catalog"), 0, what));
    let contents: Contents = match found {
        Found::None => {
            fault(format!("there is none beside {beside}"));
            return Ok(());
        }
        Found::Damaged(what) => {
            fault(what);
            return Ok(());
        }
        Found::Catalog(contents, other) => {
            other.into_iter().for_each(|what| fault(format!("one of its two copies cannot be used: {what}")));
            contents
        }
    };
    if let Some(what) = older(&contents) {
        fault(what);
        return Ok(());
    }
    match contents.believe {
        Believe::Journal { generation, salt } => {
            match journal::check_promised(&*env.disk, dir, (generation, salt)) {
                Err(Failure::Journal { path, offset, what }) => {
                    report.faults.push((path, offset, what.to_owned()))
                }
                other => other?,
            }
        }
        Believe::Headers => {}
        Believe::Files => {
            for (vb, listed) in &contents.files {
                if listed.at.is_lost() {
                    fault(format!("vBucket {vb}: {}", FileAt::MISSES_CHANGES));
                } else if commits.get(vb) != Some(&listed.at) {
                    fault(format!("vBucket {vb}: the commit that it lists is not the last one"));
                }
            }
            for vb in commits.keys().filter(|vb| !contents.files.contains_key(vb)) {
                fault(format!("it does not list vBucket {vb}"));
            }
        }
    }
    Ok(())
}
