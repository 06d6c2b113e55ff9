//! `stave replicate` and `stave move-vbuckets`: have a node follow another one, or take vBuckets over from it; and have a
//! bucket of another cluster follow one of this.

mod continuous;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use serde_json::{Value, json};

use self::continuous::ContinuousFlags;
use super::dcp_tail::watch_interrupt;
use super::password::{PasswordFlags, other_password};
use crate::cli::{Outcome, WrongArguments};
use crate::client::{ClientTlsFlags, FlagNames, HTTP_PATIENCE, HttpTarget, Secret, with_http_port};
use crate::output::print;
use crate::units::{bytes, duration, parse_duration, thousands};

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Which vBuckets of which bucket, from where to where.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// KV address of the node whose vBuckets they are
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) from: String,
    /// HTTP address of the node that is to have them
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) to: String,
    /// The bucket, which both nodes have
    #[arg(long, value_name = "NAME", env = "STAVE_BUCKET", default_value = "default")]
    pub(crate) bucket: String,
    /// Numbers and ranges, such as 0-511,600
    #[arg(long, value_name = "RANGES")]
    pub(crate) vbuckets: Option<String>,
    /// Who to log in as, at both nodes
    #[arg(long, value_name = "USER", env = "STAVE_USERNAME", default_value = "Administrator")]
    pub(crate) username: String,
    #[command(flatten)]
    pub(crate) password: PasswordFlags,
    /// The user's password at the node `--from`, if it is another one
    #[arg(long, value_name = "PASSWORD", env = "STAVE_FROM_PASSWORD", hide_env_values = true)]
    pub(crate) from_password: Option<Secret>,
    /// A file whose first line is that password
    #[arg(long, value_name = "FILE")]
    pub(crate) from_password_file: Option<PathBuf>,
    /// Give up after this, such as 90s or 10m; the nodes go on. If not given it waits to the end
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) tls: ClientTlsFlags,
    /// Say nothing while it goes on
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl Flags {
    /// The password at the node `--from`, if it is one of its own.
    fn source_password(&self) -> anyhow::Result<Option<Secret>> {
        let names = ("--from-password", "STAVE_FROM_PASSWORD");
        other_password(&self.from_password, &self.from_password_file, names)
    }
}

/// Have vBuckets of a node follow another node, or a bucket of another cluster one of this.
///
/// Returns when they have caught up; the node goes on following until something else is declared, or it is restarted.
///
/// With --continuous a bucket of the cluster at --to follows one of this, and the command itself is what replicates, until
/// it is interrupted. Documents and tombstones keep CAS,
/// revision, expiry, flags and attributes; the later version of a document stays, by the rule for conflicts that both
/// buckets have. Run it in both directions, and both buckets may be written to.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave replicate --from 10.0.0.1:11210 --to 10.0.0.2:8091 --bucket default --vbuckets 0-1023
  stave replicate --from 10.0.0.1:11210 --to 10.0.0.2:8091 --vbuckets 0-511 --json | jq .seconds
  stave replicate --continuous --from 10.0.0.1:11210 --to couchbase://east.example.org --checkpoint east.checkpoint
  stave replicate --continuous --from 10.0.0.1:11210 --to couchbases://east.example.org --to-tls-ca east.pem \
    --collections app.orders --filter '^eu-' --conflict-log conflicts.json --checkpoint east.checkpoint --json

What the bucket of the node `--to` followed before, it follows no more: the declaration is a whole.
vBuckets that are active there and hold documents are refused; make them dead first.
With --continuous, --from is any node here, and --to the cluster there, as couchbase://HOST or couchbases://HOST. How far it is behind is said on standard error, or every 10 seconds as a line of JSON. What goes wrong is
tried again; what the bucket there loses in a failover is sent again. Collections that are lacking there are made, and none
is dropped there.")]
pub struct ReplicateFlags {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    continuous: ContinuousFlags,
}

/// Move vBuckets from one node to another while clients write.
///
/// They are replicated first; then each is handed over, and writes to it are blocked for a moment only.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave move-vbuckets --from 10.0.0.1:11210 --to 10.0.0.2:8091 --bucket default --vbuckets 0-511
  stave move-vbuckets --from 10.0.0.1:11210 --to 10.0.0.2:8091 --vbuckets 7 --json | jq .blocked_longest_us

Afterwards the node `--from` answers requests for them with `not my vbucket`.
The cluster map that clients have is none of this command's business.")]
pub struct MoveFlags {
    #[command(flatten)]
    flags: Flags,
}

/// Runs `stave replicate`.
pub fn replicate(env: &Env, flags: &ReplicateFlags) -> anyhow::Result<Outcome> {
    if flags.continuous.continuous {
        return continuous::run(env, &flags.flags, &flags.continuous);
    }
    flags.continuous.is_not_used()?;
    let interrupted = watch_interrupt(env)?;
    let done = replicate_until_caught_up(env, &flags.flags, &interrupted)?;
    print(&done.said(&flags.flags))?;
    Ok(Outcome::Done)
}

/// Runs `stave move-vbuckets`.
pub fn move_vbuckets(env: &Env, flags: &MoveFlags) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let done = move_over(env, &flags.flags, &interrupted)?;
    print(&done.said(&flags.flags))?;
    Ok(Outcome::Done)
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) link: Value,
    pub(crate) moved: Option<u64>,
    seconds: f64,
}

pub(crate) fn replicate_until_caught_up(
    env: &Env,
    flags: &Flags,
    interrupted: &AtomicBool,
) -> anyhow::Result<Done> {
    let work = Work::new(env, flags, interrupted)?;
    work.declare("replicate")?;
    let link = work.until(&|link| link["caught_up"] == true)?;
    Ok(Done { link, moved: None, seconds: work.seconds() })
}

pub(crate) fn move_over(env: &Env, flags: &Flags, interrupted: &AtomicBool) -> anyhow::Result<Done> {
    let work = Work::new(env, flags, interrupted)?;
    work.declare("replicate")?;
    let link = work.until(&|link| link["caught_up"] == true)?;
    let count = link["following"].as_u64().unwrap_or(0);
    work.declare("takeover")?;
    let link = work.until(&|link| link["taken_over"] == count)?;
    let seconds = work.seconds();
    // They are there for good: nothing is to be followed any more.
    work.request("PUT", Some(&json!({ "sources": [] })))?;
    Ok(Done { link, moved: Some(count), seconds })
}

/// A declaration, and the node that brings it about.
struct Work<'a> {
    env: &'a Env,
    flags: &'a Flags,
    interrupted: &'a AtomicBool,
    target: HttpTarget,
    from_password: Secret,
    vbuckets: &'a str,
    path: String,
    begun_ns: u64,
}

impl<'a> Work<'a> {
    fn new(env: &'a Env, flags: &'a Flags, interrupted: &'a AtomicBool) -> anyhow::Result<Work<'a>> {
        let Some(password) = flags.password.given()? else { bail!(flags.password.needed()) };
        let Some(vbuckets) = flags.vbuckets.as_deref() else {
            bail!(WrongArguments("--vbuckets is needed: which vBuckets, such as 0-1023".to_owned()));
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.%".contains(c);
        if flags.bucket.is_empty() || !flags.bucket.chars().all(is_plain) {
            bail!(WrongArguments(format!("{:?} is no name of a bucket", flags.bucket)));
        }
        let from_password = flags.source_password()?.unwrap_or_else(|| password.clone());
        let tls = flags.tls.trust()?;
        let (addr, username) = (with_http_port(&flags.to, tls.is_some()), flags.username.clone());
        Ok(Work {
            env,
            flags,
            interrupted,
            target: HttpTarget { addr, username, password, patience: HTTP_PATIENCE, tls },
            from_password,
            vbuckets,
            path: format!("/v1/buckets/{}/replication", flags.bucket),
            begun_ns: env.clock.monotonic_ns(),
        })
    }

    fn request(&self, method: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        self.target.request(method, &self.path, body).map_err(|error| FlagNames::FOLLOWER.told(error))
    }

    fn declare(&self, mode: &str) -> anyhow::Result<()> {
        let source = json!({
            "node": self.flags.from,
            "username": self.flags.username,
            "password": self.from_password.0,
            "vbuckets": self.vbuckets,
            "mode": mode,
        });
        self.request("PUT", Some(&json!({ "sources": [source] }))).map(drop)
    }

    fn seconds(&self) -> f64 {
        (self.env.clock.monotonic_ns() - self.begun_ns) as f64 / 1e9
    }

    /// Looks at the link until it is as far as that; what it says of itself then.
    fn until(&self, is_done: &dyn Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let mut progress = Progress::new(self.flags.quiet);
        loop {
            let status = self.request("GET", None)?;
            let Some(link) = status["links"].as_array().and_then(|links| links.first()) else {
                bail!("somebody else declared what {} follows", self.flags.to);
            };
            progress.say(link);
            if is_done(link) {
                progress.end();
                return Ok(link.clone());
            }
            let is_overdue =
                self.flags.timeout.is_some_and(|timeout| self.seconds() >= timeout.as_secs_f64());
            if is_overdue || self.interrupted.load(Ordering::Relaxed) {
                progress.end();
                let why = if is_overdue { "not done in time" } else { "interrupted" };
                bail!("{why}, the node {} goes on: {}", self.flags.to, standing(link));
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }
}

/// One line about a link.
fn standing(link: &Value) -> String {
    let number = |name: &str| link[name].as_u64().unwrap_or(0);
    let mut line = format!(
        "{} of {} vBuckets streaming, {} taken over, {} changes behind, {} received",
        number("streaming"),
        number("following"),
        number("taken_over"),
        link["lag"].as_u64().map_or("?".to_owned(), thousands),
        bytes(number("received_bytes")),
    );
    let is_connected = link["state"] == "connected";
    for (name, matters) in [("last_error", !is_connected), ("trouble", is_connected)] {
        if let Some(what) = link[name].as_str().filter(|_| matters) {
            line.push_str("; ");
            line.push_str(what);
        }
    }
    line
}

/// A line on standard error whenever something changed, rewritten in place on a terminal.
struct Progress {
    quiet: bool,
    in_place: bool,
    last: String,
}

impl Progress {
    fn new(quiet: bool) -> Progress {
        Progress { quiet, in_place: std::io::stderr().is_terminal(), last: String::new() }
    }

    fn say(&mut self, link: &Value) {
        let line = standing(link);
        if self.quiet || line == self.last {
            return;
        }
        let mut err = std::io::stderr().lock();
        // Nobody may be there to read it.
        let _ = if self.in_place { write!(err, "\r{line:<100}") } else { writeln!(err, "{line}") };
        self.last = line;
    }

    fn end(&self) {
        if self.in_place && !self.last.is_empty() {
            eprintln!();
        }
    }
}

impl Done {
    fn said(&self, flags: &Flags) -> String {
        if flags.json { self.json(flags) } else { self.text(flags) }
    }

    fn number(&self, name: &str) -> u64 {
        self.link[name].as_u64().unwrap_or(0)
    }

    fn text(&self, flags: &Flags) -> String {
        let took = format!("{:.2} s", self.seconds);
        match self.moved {
            None => format!(
                "{} vBuckets of {} follow {} and have caught up: {} changes, {}, {took}\n",
                self.number("following"),
                flags.bucket,
                flags.from,
                thousands(self.number("changes")),
                bytes(self.number("received_bytes")),
            ),
            Some(moved) => format!(
                "{moved} vBuckets of {} moved from {} to {} in {took}\n\
                 writes to a vBucket were blocked for at most {}, all together {}\n",
                flags.bucket,
                flags.from,
                flags.to,
                duration(self.number("blocked_longest_us") * 1000),
                duration(self.number("blocked_total_us") * 1000),
            ),
        }
    }

    fn json(&self, flags: &Flags) -> String {
        let mut object = json!({
            "bucket": flags.bucket,
            "from": flags.from,
            "to": flags.to,
            "changes": self.number("changes"),
            "received_bytes": self.number("received_bytes"),
            "rollbacks": self.number("rollbacks"),
            "connections": self.number("connections"),
            "seconds": self.seconds,
        });
        match self.moved {
            None => object["vbuckets"] = self.number("following").into(),
            Some(moved) => {
                object["vbuckets"] = moved.into();
                object["blocked_longest_us"] = self.number("blocked_longest_us").into();
                object["blocked_total_us"] = self.number("blocked_total_us").into();
            }
        }
        format!("{object}\n")
    }
}
