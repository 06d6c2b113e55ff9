//! `stave backup --follow`: writes changes as they come, until it is told to end.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::env::Env;
use serde_json::{Value, json};

use crate::backup::{
    BackupPlace, FollowCounts, FollowNews, FollowOptions, HowFar, TakeOptions, follow_bucket,
};
use crate::cli::Outcome;
use crate::client::Target;
use crate::commands::dcp_tail::watch_interrupt;
use crate::commands::status_line::StatusLine;
use crate::units::{duration, moment_text, thousands};

/// Lines for programs come after this.
const REPORT_EVERY: Duration = Duration::from_secs(10);

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
    // A short run prints the summary alone.
    let line = Mutex::new((StatusLine::new(env), env.clock.monotonic() + REPORT_EVERY));
    let show = |text: &dyn Fn(f64) -> String, object: &dyn Fn() -> Value| {
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_json {
            line.0.show(text);
            return;
        }
        let now = env.clock.monotonic();
        if now >= line.1 {
            line.1 = now + REPORT_EVERY;
            // a failure to write progress is no reason to stop
            let _ = super::print(true, &object(), "");
        }
    };
    let bucket = &target.bucket;
    let counts = follow_bucket(env, target, &repository, options, &interrupted, &|news| match news {
        FollowNews::Backup(how_far) => {
            show(&|seconds| super::how_far(how_far, seconds), &|| backup_progress(bucket, how_far));
        }
        FollowNews::Following(counts) => {
            let now = env.clock.unix_ns();
            show(&|_| following(now, counts), &|| progress(bucket, now, counts));
        }
        FollowNews::Trouble(trouble) => eprintln!("stave: {trouble}"),
    })?;
    line.lock().unwrap_or_else(PoisonError::into_inner).0.end();
    let end = if interrupted.load(Ordering::Relaxed) { "interrupted" } else { "caught up" };
    super::print(is_json, &as_json(bucket, end, &counts), &as_text(&counts))?;
    Ok(Outcome::Done)
}

/// How a bucket is followed, as the flags say.
pub(super) fn options(take: TakeOptions, base_every: Duration, once_caught_up: bool) -> FollowOptions {
    FollowOptions { take, base_every, once_caught_up }
}

fn following(now_ns: u64, counts: &FollowCounts) -> String {
    let behind = now_ns.saturating_sub(counts.horizon);
    format!("{} changes, everything up to {} ago", thousands(counts.versions), duration(behind))
}

/// A line of what runs: it has no `end`.
fn progress(bucket: &str, now_ns: u64, counts: &FollowCounts) -> Value {
    let mut object = counts_json(bucket, counts);
    object["behind_ms"] = json!(now_ns.saturating_sub(counts.horizon) / 1_000_000);
    object
}

/// The same while the backup is made behind which the log begins, or another one.
fn backup_progress(bucket: &str, how_far: &HowFar) -> Value {
    json!({ "bucket": bucket, "backup": {
        "complete_vbuckets": how_far.done, "vbuckets": how_far.vbuckets,
        "changes": how_far.versions, "bytes": how_far.bytes,
    }})
}

fn as_text(counts: &FollowCounts) -> String {
    let rows = [
        ("changes", thousands(counts.versions)),
        ("everything up to", moment_text(counts.horizon)),
        ("longest wait of a change for the disk", duration(counts.longest_wait_ns)),
        ("gaps", gaps_text(counts)),
        ("vBuckets that went back", thousands(counts.rollbacks)),
        ("parts of the log begun", thousands(counts.epochs)),
        ("backups made", thousands(counts.backups)),
    ];
    rows.iter().map(|(name, value)| format!("{name:<40}  {value}\n")).collect()
}

/// As `stave backup list` says it of the log.
fn gaps_text(counts: &FollowCounts) -> String {
    let together =
        if counts.gaps > 0 { format!(", together {}", duration(counts.gaps_ns)) } else { String::new() };
    thousands(counts.gaps) + &together
}

fn as_json(bucket: &str, end: &str, counts: &FollowCounts) -> Value {
    let mut object = counts_json(bucket, counts);
    object["end"] = json!(end);
    object
}

fn counts_json(bucket: &str, counts: &FollowCounts) -> Value {
    json!({
        "bucket": bucket,
        "changes": counts.versions,
        "horizon": moment_text(counts.horizon),
        "longest_wait_ms": counts.longest_wait_ns / 1_000_000,
        "gaps": counts.gaps,
        "gap_ms": counts.gaps_ns / 1_000_000,
        "rollbacks": counts.rollbacks,
        "log_parts_begun": counts.epochs,
        "backups": counts.backups,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_what_runs_say_how_far_behind_it_is_and_the_last_one_how_it_ended() {
        let counts = FollowCounts {
            versions: 7,
            gaps: 2,
            gaps_ns: 3_500_000_000,
            horizon: 1_000_000_000,
            ..FollowCounts::default()
        };
        let line = progress("travel", 1_250_000_000, &counts);
        assert_eq!(
            (&line["behind_ms"], &line["horizon"]),
            (&json!(250), &json!("1970-01-01T00:00:01.000000000Z"))
        );
        assert!(line.get("end").is_none() && line["changes"] == 7, "{line}");
        let last = as_json("travel", "interrupted", &counts);
        assert_eq!(
            (&last["end"], &last["gaps"], &last["gap_ms"]),
            (&json!("interrupted"), &json!(2), &json!(3500))
        );
        assert!(last.get("behind_ms").is_none(), "{last}");
        assert!(as_text(&counts).contains("2, together 3.5"), "{}", as_text(&counts));
        let backup = HowFar { done: 1, vbuckets: 4, versions: 9, bytes: 100 };
        assert_eq!(backup_progress("travel", &backup)["backup"]["complete_vbuckets"], 1);
    }
}
