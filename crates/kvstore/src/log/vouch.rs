//! Whether the catalog of a folder is as new as what is in it. An older one, put back with its copy, lists commits that were
//! the last ones once: a start that believed it would go back to them.
//!
//! What is written notes the sequence of the catalog that is durable then, so that an older one is known by its own. It
//! is refused before anything is changed, and the folder opens again once the newer one is back.

use std::path::Path;

use base::VbId;
use base::env::Env;
use base::planted::{self, Bug};

use crate::catalog::Catalog;
use crate::compaction::FileAt;
use crate::failure::Failure;

/// Why a catalog with a sequence is not the one that was there when documents were written; `None` if it may be.
pub(super) fn older(sequence: u64, beside: u64) -> Option<String> {
    let is_known = sequence < beside && !planted::is(Bug::OlderCatalogBelieved);
    is_known.then(|| {
        format!(
            "its sequence is {sequence}, and documents were written when it was {beside}: an older catalog is in its \
             place; put the newer one back, or restore the bucket from a copy"
        )
    })
}

/// Refuses a folder whose manifests were written beside a newer catalog.
pub(crate) fn refuse_older(env: &Env, dir: &Path, catalog: &Catalog) -> Result<(), Failure> {
    let what = older(catalog.sequence(), heads(env, dir, catalog)?.beside);
    what.map_or(Ok(()), |what| Err(Failure::Catalog { dir: dir.to_owned(), what }))
}

/// The number that the files of a folder have in them; 0 if there is no catalog that says it.
pub(super) fn owner(catalog: &Catalog) -> u128 {
    catalog.believe().map_or(0, |_| catalog.store().0)
}

/// Refuses a folder that has more than its catalog lists after a clean stop: nothing was written since then, but for a
/// purge that did not get on record.
pub(crate) fn refuse_unlisted(env: &Env, dir: &Path, catalog: &Catalog) -> Result<(), Failure> {
    if planted::is(Bug::OlderCatalogBelieved) {
        return Ok(());
    }
    let listed = catalog.files();
    for head in heads(env, dir, catalog)?.vbuckets {
        let (vb, commit) = (head.vb, head.commit);
        let what = match listed.get(&VbId(vb)).map(|listed| listed.at.unmarked().header_offset) {
            Some(at) if at == FileAt::LAST || at >= head.since => continue,
            Some(at) => {
                format!("it lists commit {at} as the last one of vBucket {vb}, which has commit {commit}")
            }
            None => format!("it does not list vBucket {vb}, which has commit {commit}"),
        };
        let what = format!(
            "{what}: it is older than the documents; put the newer catalog back, or restore the bucket from a copy"
        );
        return Err(Failure::Catalog { dir: dir.to_owned(), what });
    }
    Ok(())
}

fn heads(env: &Env, dir: &Path, catalog: &Catalog) -> Result<logstore::Heads, Failure> {
    logstore::heads(env, dir, owner(catalog)).map_err(|failure| match failure {
        logstore::Failure::Io { operation, path, source, .. } => {
            Failure::Disk { operation, path: path.to_path_buf(), source: crate::failure::again(&source) }
        }
        other => Failure::Catalog { dir: dir.to_owned(), what: other.to_string() },
    })
}
