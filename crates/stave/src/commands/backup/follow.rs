//! `stave backup --follow`: writes changes as they come, until it is told to end.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::env::Env;
use serde_json::{Value, json};

use crate::backup::{BackupPlace, FollowCounts, FollowNews, FollowOptions, TakeOptions, follow_bucket};
use crate::cli::Outcome;
use crate::client::Target;
use crate::commands::dcp_tail::watch_interrupt;
use crate::commands::status_line::StatusLine;
use crate::units::{duration, moment_text, thousands};

/// Follows a bucket and prints what came of it.
pub(super) fn follow(
    env: &Env,
    target: &Target,
    place: &BackupPlace,
    options: &FollowOptions,
    is_json: bool,
) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let (env, repository) = (place.env(), place.repository());
    let line = Mutex::new(StatusLine::new(env));
    let show = |text: &dyn Fn(f64) -> String| line.lock().unwrap_or_else(PoisonError::into_inner).show(text);
    let counts = follow_bucket(env, target, &repository, options, &interrupted, &|news| match news {
        FollowNews::Backup(how_far) => show(&|seconds| super::how_far(how_far, seconds)),
        FollowNews::Following(counts) => show(&|_| following(env, counts)),
        FollowNews::Trouble(trouble) => eprintln!("stave: {trouble}"),
    })?;
    line.lock().unwrap_or_else(PoisonError::into_inner).end();
    super::print(is_json, &as_json(&target.bucket, &counts), &as_text(&counts))?;
    Ok(Outcome::Done)
}

/// How a bucket is followed, as the flags say.
pub(super) fn options(take: TakeOptions, base_every: Duration, once_caught_up: bool) -> FollowOptions {
    FollowOptions { take, base_every, once_caught_up }
}

fn following(env: &Env, counts: &FollowCounts) -> String {
    let behind = env.clock.unix_ns().saturating_sub(counts.horizon);
    format!("{} changes, everything up to {} ago", thousands(counts.versions), duration(behind))
}

fn as_text(counts: &FollowCounts) -> String {
    let rows = [
        ("changes", thousands(counts.versions)),
        ("everything up to", moment_text(counts.horizon)),
        ("longest wait of a change for the disk", duration(counts.longest_wait_ns)),
        ("gaps", thousands(counts.gaps)),
        ("vBuckets that went back", thousands(counts.rollbacks)),
        ("parts of the log begun", thousands(counts.epochs)),
        ("backups made", thousands(counts.backups)),
    ];
    rows.iter().map(|(name, value)| format!("{name:<40}  {value}\n")).collect()
}

fn as_json(bucket: &str, counts: &FollowCounts) -> Value {
    json!({
        "bucket": bucket,
        "changes": counts.versions,
        "horizon": moment_text(counts.horizon),
        "longest_wait_ms": counts.longest_wait_ns / 1_000_000,
        "gaps": counts.gaps,
        "rollbacks": counts.rollbacks,
        "log_parts_begun": counts.epochs,
        "backups": counts.backups,
    })
}
