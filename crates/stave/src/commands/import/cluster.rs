//! `stave import cluster`: moves a bucket in from a running cluster, follows it, and says when applications may switch.
//!
//! # Guarantees
//!
//! - A change is in the checkpoint only when the bucket here has it, or has a later one by the rule for conflicts.
//! - "Switched" is said only if the bucket here has everything that the cluster there had when it was asked last, and that
//!   had not changed for a second.
//! - Memory is bounded: what is not answered yet has a limit, and the cluster there waits meanwhile.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use base::env::Env;
use clap::Args;
use serde_json::{Value, json};

use super::complete;
use crate::between_clusters::{
    ClusterUrl, MoveCounts, MoveEnd, MoveNews, MoveOptions, Moved, move_in, parse_url,
};
use crate::cli::{Outcome, ServerFlags};
use crate::client::{Client, ClientTlsFlags, Dialect, FlagNames, Secret, Target};
use crate::commands::dcp_tail::watch_interrupt;
use crate::commands::password::other_password;
use crate::commands::restore::DocumentChoice;
use crate::commands::status_line::StatusLine;
use crate::units::{duration, thousands};
use crate::with_meta::SentCounts;

/// What is to be typed, or sent to standard input, to switch.
const ORDER: &str = "switch";

/// Move a bucket in from a running cluster, and follow it until applications switch.
///
/// Documents and tombstones keep CAS, revision, expiry, flags and attributes; numbers of vBuckets may differ. Scopes and
/// collections that the bucket lacks are made.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave import cluster couchbase://10.0.0.1 --bucket travel --checkpoint travel.checkpoint
  stave import cluster couchbase://10.0.0.1,10.0.0.2 --bucket travel --to-bucket travel2 --until-caught-up
  stave import cluster couchbases://10.0.0.1 --from-tls-ca ca.pem --bucket travel --collections inventory.hotel --json

First what the bucket there holds is sent, then every change as it comes; on standard error a line says how far it is
behind. To switch: let applications stop writing there, then type `switch` (or send that line to standard input, or the
signal SIGUSR1). The command then says `switched`, with the time that this took, as soon as everything is here and nothing
has changed there for a second. With --switch this order is given from the beginning.
Writes to the bucket here are merged meanwhile: with --conflict newest the later version of a document stays, by the rule
for conflicts of the bucket.
With --checkpoint a command that was broken off goes on where it was. What a failover there lost may be here already: the
command names it and ends with 4. A collection that is dropped there stays here, and is named.")]
pub(super) struct MoveInFlags {
    /// The cluster there: couchbase://HOST[:PORT][,HOST[:PORT]], or couchbases:// to speak TLS
    #[arg(value_name = "URL", value_parser = parse_url)]
    url: ClusterUrl,
    /// The bucket here, if it has another name than the one there
    #[arg(long, value_name = "NAME")]
    to_bucket: Option<String>,
    /// Who to log in as there, if it is another user
    #[arg(long, value_name = "USER", env = "STAVE_FROM_USERNAME")]
    from_username: Option<String>,
    /// That user's password; better in the environment, where others do not see it
    #[arg(long, value_name = "PASSWORD", env = "STAVE_FROM_PASSWORD", hide_env_values = true)]
    from_password: Option<Secret>,
    /// A file whose first line is that password
    #[arg(long, value_name = "FILE")]
    from_password_file: Option<PathBuf>,
    /// The CA that has signed the certificates there, if it is not the one of --tls-ca
    #[arg(long, value_name = "FILE.pem")]
    from_tls_ca: Option<PathBuf>,
    /// A file that says how far it is: given again, the command goes on there
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// End as soon as everything is here that was there when the command began
    #[arg(long, conflicts_with = "switch")]
    until_caught_up: bool,
    /// Switch as soon as everything is here and nothing changes there: applications have stopped writing
    #[arg(long)]
    switch: bool,
    #[command(flatten)]
    choice: DocumentChoice,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
}

impl MoveInFlags {
    /// The first node there that answers.
    fn source(&self, env: &Env) -> anyhow::Result<Target> {
        let own = self.server.target(Dialect::Couchbase)?;
        let trust = match &self.from_tls_ca {
            None => self.server.node.tls.trust()?,
            ca => ClientTlsFlags { tls_ca: ca.clone(), ..self.server.node.tls.clone() }.trust()?,
        };
        let names = ("--from-password", "STAVE_FROM_PASSWORD");
        let from = other_password(&self.from_password, &self.from_password_file, names)?;
        let like = Target {
            username: self.from_username.clone().unwrap_or_else(|| own.username.clone()),
            password: from.unwrap_or_else(|| own.password.clone()),
            ..own
        };
        self.url.find(env, &like, trust, "--from-tls-ca", FlagNames::IMPORT_SOURCE)
    }

    /// The bucket here. A user who may not log in hears of it before anything is begun.
    fn target(&self, env: &Env) -> anyhow::Result<Target> {
        let own = self.server.target(Dialect::Couchbase)?;
        let target = Target { bucket: self.to_bucket.clone().unwrap_or_else(|| own.bucket.clone()), ..own };
        Client::open(env, &target).map_err(|error| FlagNames::IMPORT_TARGET.told(error))?;
        Ok(target)
    }
}

/// Runs the command.
pub(super) fn run(env: &Env, flags: &MoveInFlags) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let ordered = Arc::new(AtomicBool::new(flags.switch));
    if !flags.switch && !flags.until_caught_up {
        watch_order(env, &ordered)?;
    }
    let (source, target) = (flags.source(env)?, flags.target(env)?);
    let options = MoveOptions {
        command: "import cluster",
        choice: &flags.choice,
        checkpoint: flags.checkpoint.as_deref(),
        conflicts: None,
        source_flags: FlagNames::IMPORT_SOURCE,
        target_flags: FlagNames::IMPORT_TARGET,
        until_caught_up: flags.until_caught_up,
    };
    let line = Mutex::new(StatusLine::new(env));
    let moved = move_in(env, &source, target, &options, &interrupted, &ordered, &|news| match news {
        MoveNews::Following(counts) => {
            line.lock().unwrap_or_else(PoisonError::into_inner).show(|_| how_far(counts));
        }
        MoveNews::Trouble(trouble) => eprintln!("stave: {trouble}"),
    })?;
    let Moved { counts, sent, failed } = moved;
    failed.map_or(Ok(()), Err)?;
    line.lock().unwrap_or_else(PoisonError::into_inner).end();
    print(flags.json, &counts, &sent)?;
    complete(&sent, flags.choice.at_end())?;
    Ok(if counts.went_back.is_empty() { Outcome::Done } else { Outcome::Faults })
}

/// Takes the order to switch from standard input and from SIGUSR1.
fn watch_order(env: &Env, ordered: &Arc<AtomicBool>) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut told = {
        let _inside = runtime.enter();
        signal(SignalKind::user_defined1())?
    };
    let by_signal = ordered.clone();
    // Both end with the process.
    let listen = move || {
        runtime.block_on(told.recv());
        by_signal.store(true, Ordering::Relaxed);
    };
    env.spawn.spawn("signals", Box::new(listen))?;
    let by_line = ordered.clone();
    let read = move || {
        let lines = std::io::stdin().lock().lines();
        if lines.map_while(Result::ok).any(|line| is_order(&line)) {
            by_line.store(true, Ordering::Relaxed);
        }
    };
    env.spawn.spawn("orders", Box::new(read))?;
    Ok(())
}

/// Whether a line is the order to switch; another one is told on standard error.
fn is_order(line: &str) -> bool {
    let line = line.trim();
    if line != ORDER && !line.is_empty() {
        eprintln!("stave: `{line}` is passed over: write {ORDER}");
    }
    line == ORDER
}

fn how_far(counts: &MoveCounts) -> String {
    let behind = match (counts.behind, counts.behind_ns) {
        (Some(0), _) => "caught up".to_owned(),
        (Some(changes), Some(ns)) => format!("{} changes and {} behind", thousands(changes), duration(ns)),
        (Some(changes), None) => format!("{} changes behind", thousands(changes)),
        (None, _) => "the cluster there does not say how far it is".to_owned(),
    };
    let waiting = if counts.is_ordered { ", to be switched" } else { "" };
    format!("{} changes, {behind}{waiting}", thousands(counts.changes))
}

fn print(is_json: bool, counts: &MoveCounts, sent: &SentCounts) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    if is_json {
        writeln!(out, "{}", as_json(counts, sent))?;
    } else {
        out.write_all(as_text(counts, sent).as_bytes())?;
    }
    Ok(())
}

fn as_text(counts: &MoveCounts, sent: &SentCounts) -> String {
    let mut rows = vec![("changes", thousands(counts.changes))];
    rows.extend(sent.rows());
    rows.push(("connections that ended", thousands(counts.connections_lost)));
    rows.push(("collections dropped there and kept here", thousands(counts.dropped.len() as u64)));
    rows.push(("vBuckets that went back there", thousands(counts.went_back.len() as u64)));
    if counts.lost_here > 0 {
        rows.push(("vBuckets here that were sent again behind a failover", thousands(counts.lost_here)));
    }
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:<56}  {value}\n")).collect();
    counts.dropped.iter().for_each(|name| text.push_str(&format!("dropped there, kept here: {name}\n")));
    for (vb, to) in &counts.went_back {
        text.push_str(&format!(
            "vBucket {vb} there went back to seqno {to}: documents that it lost may be here; move the bucket in again, into \
             an empty one\n"
        ));
    }
    text.push_str(&match counts.end {
        MoveEnd::Interrupted => {
            "interrupted: given again with its checkpoint, the command goes on\n".to_owned()
        }
        MoveEnd::CaughtUp => {
            "caught up: everything is here that was there when the command began\n".to_owned()
        }
        MoveEnd::Switched(ns) => format!("switched, {} after the order: everything is here\n", duration(ns)),
    });
    text
}

fn as_json(counts: &MoveCounts, sent: &SentCounts) -> Value {
    let mut object = sent.json();
    object["changes"] = counts.changes.into();
    object["sent_again"] = counts.lost_here.into();
    object["connections_lost"] = counts.connections_lost.into();
    object["dropped_collections_there"] = json!(counts.dropped);
    object["went_back"] =
        counts.went_back.iter().map(|(vb, to)| json!({"vbucket": vb, "seqno": to})).collect();
    object["end"] = match counts.end {
        MoveEnd::Interrupted => "interrupted".into(),
        MoveEnd::CaughtUp => "caught_up".into(),
        MoveEnd::Switched(ns) => {
            object["switch_seconds"] = json!(ns as f64 / 1e9);
            "switched".into()
        }
    };
    object
}
