//! `stave replicate --continuous`: sends what changes in a bucket to a bucket of another cluster, for as long as it runs.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use serde_json::{Value, json};

use super::Flags;
use crate::between_clusters::{MoveCounts, MoveNews, MoveOptions, Moved, move_in, parse_url};
use crate::cli::{Outcome, WrongArguments};
use crate::client::{Client, ClientTlsFlags, Dialect, FlagNames, Patience, Secret, Target};
use crate::commands::dcp_tail::watch_interrupt;
use crate::commands::password::other_password;
use crate::commands::restore::DocumentChoice;
use crate::commands::status_line::StatusLine;
use crate::output::print;
use crate::units::{duration, thousands};
use crate::with_meta::SentCounts;

/// What must be said beside the usual flags to follow a bucket into another cluster.
#[derive(Clone, Debug, Args)]
pub struct ContinuousFlags {
    /// Send what changes in the bucket to the cluster at --to, until the command is interrupted
    #[arg(long, requires = "checkpoint", conflicts_with_all = ["vbuckets", "timeout"])]
    pub(super) continuous: bool,
    /// The bucket there, if it has another name
    #[arg(long, value_name = "NAME", requires = "continuous")]
    to_bucket: Option<String>,
    /// Who to log in as there, if it is another user
    #[arg(long, value_name = "USER", env = "STAVE_TO_USERNAME", requires = "continuous")]
    to_username: Option<String>,
    /// That user's password; better in the environment, where others do not see it
    #[arg(long, value_name = "PASSWORD", env = "STAVE_TO_PASSWORD", hide_env_values = true)]
    to_password: Option<Secret>,
    /// A file whose first line is that password
    #[arg(long, value_name = "FILE", requires = "continuous")]
    to_password_file: Option<PathBuf>,
    /// The CA that has signed the certificates there, if it is not the one of --tls-ca
    #[arg(long, value_name = "FILE.pem", requires = "continuous")]
    to_tls_ca: Option<PathBuf>,
    /// A file that says how far it is: given again, the command goes on there
    #[arg(long, value_name = "FILE", requires = "continuous")]
    checkpoint: Option<PathBuf>,
    /// A file to which a line of JSON is added for each document that was left as the bucket there had it
    #[arg(long, value_name = "FILE", requires = "continuous")]
    conflict_log: Option<PathBuf>,
    #[command(flatten)]
    choice: DocumentChoice,
}

impl ContinuousFlags {
    /// What would be left out is refused: a node follows whole vBuckets.
    pub(super) fn is_not_used(&self) -> Result<(), WrongArguments> {
        if self.choice.is_everything() {
            return Ok(());
        }
        let what = "--collections, --filter, --map, --conflict and --skip-unknown need --continuous";
        Err(WrongArguments(what.to_owned()))
    }
}

/// How long an answer of either cluster is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Waits behind a failure: from the first, doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two lines of JSON.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Both ends.
struct Ends {
    source: Target,
    target: Target,
}

fn ends(env: &Env, flags: &Flags, more: &ContinuousFlags) -> anyhow::Result<Ends> {
    let Some(password) = flags.password.given()? else { bail!(flags.password.needed()) };
    let url = parse_url(&flags.to).map_err(|why| WrongArguments(format!("--to: {why}")))?;
    let trust = flags.tls.trust()?;
    let like = |username: &Option<String>, password: Secret, bucket: &str| Target {
        dialect: Dialect::Couchbase,
        username: username.clone().unwrap_or_else(|| flags.username.clone()),
        password,
        bucket: bucket.to_owned(),
        patience: Patience(PATIENCE),
        ..Target::default()
    };
    let from = flags.source_password()?.unwrap_or_else(|| password.clone());
    let names = ("--to-password", "STAVE_TO_PASSWORD");
    let to_password = other_password(&more.to_password, &more.to_password_file, names)?.unwrap_or(password);
    let source = Target { addr: flags.from.clone(), tls: trust.clone(), ..like(&None, from, &flags.bucket) };
    // Who may not log in hears of it before anything is begun.
    Client::open(env, &source).map_err(|error| FlagNames::REPLICATE_SOURCE.told(error))?;
    let there = match &more.to_tls_ca {
        None => trust,
        ca => ClientTlsFlags { tls_ca: ca.clone(), ..flags.tls.clone() }.trust()?,
    };
    let bucket = more.to_bucket.as_ref().unwrap_or(&flags.bucket);
    let to = like(&more.to_username, to_password, bucket);
    let target = url.find(env, &to, there, "--to-tls-ca", FlagNames::REPLICATE_TARGET)?;
    Ok(Ends { source, target })
}

/// What came of all attempts.
#[derive(Default)]
pub(super) struct Total {
    pub(super) changes: u64,
    pub(super) attempts: u64,
    pub(super) sent_again: u64,
    pub(super) sent: SentCounts,
}

impl Total {
    fn add(&mut self, counts: &MoveCounts, sent: &SentCounts) {
        self.changes += counts.changes;
        self.sent_again += counts.lost_here;
        self.sent.add(sent);
    }
}

/// Runs the command.
pub(super) fn run(env: &Env, flags: &Flags, more: &ContinuousFlags) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let Ends { source, target } = ends(env, flags, more)?;
    let line = Mutex::new((StatusLine::new(env), Duration::ZERO));
    let tell = |news: MoveNews<'_>| match news {
        MoveNews::Trouble(trouble) => eprintln!("stave: {trouble}"),
        MoveNews::Following(_) if flags.quiet => {}
        MoveNews::Following(counts) => {
            let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
            let now = env.clock.monotonic();
            let is_rewritten = !flags.json && std::io::stderr().is_terminal();
            if is_rewritten {
                line.0.show(|_| how_far(counts));
            } else if now >= line.1 {
                line.1 = now + REPORT_EVERY;
                match flags.json {
                    // a failure to write progress is no reason to stop
                    true => drop(print(&format!("{}\n", progress(counts)))),
                    false => eprintln!("{}", how_far(counts)),
                }
            }
        }
    };
    let total = replicate(env, &source, &target, more, &interrupted, &tell)?;
    line.lock().unwrap_or_else(PoisonError::into_inner).0.end();
    print(&said(flags, &total))?;
    Ok(Outcome::Done)
}

/// Goes on until it is interrupted, whatever becomes of either cluster meanwhile.
///
/// # Errors
///
/// It could not begin: the buckets do not go together, or the checkpoint is another's.
pub(super) fn replicate(
    env: &Env,
    source: &Target,
    target: &Target,
    more: &ContinuousFlags,
    interrupted: &AtomicBool,
    tell: &(dyn Fn(MoveNews<'_>) + Sync),
) -> anyhow::Result<Total> {
    let options = MoveOptions {
        command: "replicate",
        choice: &more.choice,
        checkpoint: more.checkpoint.as_deref(),
        conflicts: more.conflict_log.as_deref(),
        source_flags: FlagNames::REPLICATE_SOURCE,
        target_flags: FlagNames::REPLICATE_TARGET,
        until_caught_up: false,
    };
    let (mut total, mut pause) = (Total::default(), FIRST_PAUSE);
    while !interrupted.load(Ordering::Relaxed) {
        total.attempts += 1;
        let begun = env.clock.monotonic();
        let target = target.at(target.addr.clone());
        let moved = move_in(env, source, target, &options, interrupted, &AtomicBool::new(false), tell);
        let why = match moved {
            Ok(Moved { counts, sent, failed }) => {
                total.add(&counts, &sent);
                failed
            }
            Err(error) if total.attempts == 1 => return Err(error),
            Err(error) => Some(error),
        };
        let Some(why) = why else { break };
        if env.clock.monotonic() - begun > LAST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tell(MoveNews::Trouble(format!(
            "{why:#}; it is tried again in {}",
            duration(pause.as_nanos() as u64)
        )));
        let until = env.clock.monotonic() + pause;
        while env.clock.monotonic() < until && !interrupted.load(Ordering::Relaxed) {
            std::thread::park_timeout(LOOK_EVERY);
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
    Ok(total)
}

fn how_far(counts: &MoveCounts) -> String {
    let lag = match (counts.behind, counts.behind_ns) {
        (Some(0), _) => "everything is there".to_owned(),
        (Some(changes), Some(ns)) => format!("{} changes and {} behind", thousands(changes), duration(ns)),
        (Some(changes), None) => format!("{} changes behind", thousands(changes)),
        (None, _) => "the cluster here does not say how far it is".to_owned(),
    };
    format!("{} changes, {lag}", thousands(counts.changes))
}

/// `lag_seconds` is nothing until everything was there once.
fn progress(counts: &MoveCounts) -> Value {
    let lag_s = match (counts.behind, counts.behind_ns) {
        (Some(0), _) => Some(0.0),
        (_, ns) => ns.map(|ns| ns as f64 / 1e9),
    };
    json!({ "changes": counts.changes, "behind": counts.behind, "lag_seconds": lag_s })
}

fn said(flags: &Flags, total: &Total) -> String {
    if flags.json {
        let mut object = total.sent.json();
        object["end"] = "interrupted".into();
        object["changes"] = total.changes.into();
        object["attempts"] = total.attempts.into();
        object["sent_again"] = total.sent_again.into();
        return format!("{object}\n");
    }
    let mut rows = vec![("changes", thousands(total.changes))];
    rows.extend(total.sent.rows());
    rows.push(("vBuckets there that were sent again behind a failover", thousands(total.sent_again)));
    rows.push(("attempts", thousands(total.attempts)));
    let text: String = rows.iter().map(|(name, value)| format!("{name:<56}  {value}\n")).collect();
    format!("{text}interrupted: given again with its checkpoint, the command goes on\n")
}
