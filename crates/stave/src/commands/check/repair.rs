//! `stave check --repair`: says what is damaged and what would be lost, and repairs it if that is wanted.

mod told;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base::env::Env;
use kvstore::repair::{Survey, apply, survey};
use node::cluster::membership::belongs_to_cluster;
use node::small_files::{self, Mending};

use super::place::{BucketFiles, Place};
use crate::cli::Outcome;
use told::{LossReport, repaired_json};

/// Where damaged files are kept, in the data directory.
const QUARANTINE: &str = "quarantine";

/// Surveys, tells, and repairs if `yes`. Whoever calls holds the data directory, so that no node runs on it.
///
/// Buckets are looked at one at a time, as a survey holds what their journals hold; before a repair once more.
pub(super) fn run(
    env: &Env,
    place: &Place,
    json: bool,
    yes: bool,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let Some(data) = place.data_dir.as_deref().filter(|_| place.buckets.iter().all(|one| one.is_whole))
    else {
        bail!("--repair needs a data directory, or the folder of a bucket in one; nothing was changed");
    };
    let of_node = if place.is_whole { small_files::node_mendings(&*env.disk, data) } else { Vec::new() };
    let mut told = LossReport::new(json, out);
    for bucket in &place.buckets {
        let (survey, small) = look(env, bucket)?;
        told.bucket(&bucket.name, &survey, &small)?;
    }
    told.small_files(None, &of_node)?;
    let is_clean = told.end()?;
    if is_clean {
        let said = if json { r#"{"type":"clean"}"# } else { "nothing is damaged" };
        writeln!(out, "{said}")?;
        return Ok(Outcome::Done);
    }
    if !yes {
        return say(json, out, "nothing was changed; --yes repairs this").map(|()| Outcome::Faults);
    }
    may_be_repaired(env, data)?;
    let aside = new_folder(env, &data.join(QUARANTINE));
    let mut is_left = false;
    for bucket in &place.buckets {
        is_left |= !mend(env, data, bucket, &aside.join(&bucket.name), json, out)?;
    }
    is_left |= !mend_small(env, &of_node, &aside)?;
    let outcome = if is_left { "repaired but for what is told above" } else { "repaired" };
    say(json, out, &format!("{outcome}; what was damaged is in {}", aside.display()))?;
    Ok(if is_left { Outcome::Faults } else { Outcome::Done })
}

fn say(json: bool, out: &mut dyn Write, what: &str) -> anyhow::Result<()> {
    if !json {
        writeln!(out, "{what}")?;
    }
    Ok(())
}

fn look(env: &Env, bucket: &BucketFiles) -> anyhow::Result<(Survey, Vec<Mending>)> {
    let survey = survey(env, &bucket.folder);
    let survey = survey.with_context(|| format!("bucket {} cannot be looked at", bucket.name))?;
    Ok((survey, small_files::bucket_mendings(&*env.disk, &bucket.folder)))
}

/// Ends repairs and migrations that were cut off while a folder took the place of another one. Whoever calls holds the data
/// directory.
///
/// # Errors
///
/// If there is one, and it is not to be ended now.
pub(super) fn resume(env: &Env, data: &Path, yes: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let unfinished = kvstore::replace::unfinished(env, data)?;
    if let Some(first) = unfinished.first().filter(|_| !yes) {
        bail!(
            "{} is being replaced, and that was cut off: `stave check {} --repair --yes` ends it; nothing was changed",
            first.display(),
            data.display()
        );
    }
    for dir in unfinished {
        let name = dir.file_name().unwrap_or(dir.as_os_str());
        let aside = new_folder(env, &data.join(QUARANTINE)).join(name);
        kvstore::repair::resume(env, &dir, &aside)?;
        // After a migration it is in another store than the list says. A list that is damaged is repaired later.
        let backend = kvstore::migrate::backend_of(env, &dir)?;
        node::bucket_list::keep_in(env, data, &name.to_string_lossy(), backend).ok();
        writeln!(out, "{} was replaced; what was there is in {}", dir.display(), aside.display())?;
    }
    Ok(())
}

/// A copy that went back would count in its cluster as if it still had what it acknowledged.
fn may_be_repaired(env: &Env, data: &Path) -> anyhow::Result<()> {
    if belongs_to_cluster(&*env.disk, data)? {
        bail!(
            "{} belongs to a node of a cluster, whose other nodes have copies: start the node, and it is given what \
             is damaged (`stave cluster give-up-damaged` if no node has it); nothing was changed",
            data.display()
        );
    }
    Ok(())
}

/// A folder that is not there yet: what an earlier repair has kept stays. The node erases nothing of such a name.
fn new_folder(env: &Env, quarantine: &Path) -> PathBuf {
    let name = format!("repair-{}", env.clock.unix_s());
    let names = (1..).map(|number| if number == 1 { name.clone() } else { format!("{name}-{number}") });
    let mut folders = names.map(|name| quarantine.join(name));
    folders.find(|folder| env.disk.read_dir(folder).is_err()).unwrap_or_default()
}

/// Repairs one bucket; whether all of it is as it should be then.
fn mend(
    env: &Env,
    data: &Path,
    bucket: &BucketFiles,
    aside: &Path,
    json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let (survey, small) = look(env, bucket)?;
    if survey.is_clean() && small.is_empty() {
        return Ok(true);
    }
    let vbuckets = survey.vbuckets.len();
    if !survey.is_clean() {
        if !survey.was_closed {
            // A mark beside files that were not closed is an old one, and would be believed behind the repair.
            engine::forget_clean_stop(env, &bucket.folder)?;
        }
        let repaired = apply(env, &bucket.folder, aside, survey);
        repaired.with_context(|| format!("bucket {} is not repaired; try again", bucket.name))?;
        // The repair may have made its catalog again.
        node::opened::forget(env, data, &bucket.name)?;
    }
    let is_whole = mend_small(env, &small, aside)?;
    if json {
        writeln!(out, "{}", repaired_json(&bucket.name, vbuckets, aside, is_whole))?;
    }
    Ok(is_whole)
}

fn mend_small(env: &Env, all: &[Mending], aside: &Path) -> io::Result<bool> {
    all.iter().try_fold(true, |is_whole, mending| Ok(small_files::mend(env, mending, aside)? && is_whole))
}

#[cfg(test)]
mod tests;
