//! `stave cluster`: who is in a cluster and has what, failover, rebalance, nodes that come and go.

mod picture;

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::dcp_tail::watch_interrupt;
use crate::cli::{Outcome, WrongArguments};
use crate::client::{HttpTarget, Secret};

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 40;

/// Look at a cluster, and change who is in it.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave cluster status --addr 127.0.0.1:8091
  stave cluster failover n_3
  stave cluster add n_3 && stave cluster rebalance
  stave cluster rebalance --eject n_2 --json

Nodes are named as `stave cluster status` names them.")]
pub struct ClusterFlags {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Print the nodes, and a picture of who has which vBucket
    Status {
        #[command(flatten)]
        to: To,
    },
    /// Take away from a node what it is active for
    Failover {
        /// The node, such as n_2
        node: String,
        /// Hand over first, so that nothing is lost; the node must be alive
        #[arg(long, conflicts_with = "unsafe_")]
        graceful: bool,
        /// Even if documents are lost by that
        #[arg(long = "unsafe")]
        unsafe_: bool,
        #[command(flatten)]
        to: To,
    },
    /// Spread the vBuckets over all nodes anew
    Rebalance {
        /// Nodes that leave; may be repeated
        #[arg(long, value_name = "NODE")]
        eject: Vec<String>,
        /// End the one that is running
        #[arg(long, conflicts_with = "eject")]
        stop: bool,
        /// Begin it and return
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        to: To,
    },
    /// Take a node back: one that was failed over, by name, or one that was ejected, by its HTTP address; then rebalance
    Add {
        /// The node, such as n_2, or HOST:PORT
        node: String,
        /// Fetch all documents anew instead of going on with those that it has
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        to: To,
    },
    /// Let a node leave that has no vBuckets
    Remove {
        /// The node, such as n_2
        node: String,
        #[command(flatten)]
        to: To,
    },
}

/// Which node is asked, and as whom.
#[derive(Clone, Debug, Args)]
struct To {
    /// HTTP address of any node of the cluster
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8091")]
    addr: String,
    /// Who to log in as
    #[arg(long, value_name = "USER", env = "STAVE_USERNAME", default_value = "Administrator")]
    username: String,
    /// The user's password; better in the environment, where others do not see it
    #[arg(long, value_name = "PASSWORD", env = "STAVE_PASSWORD", hide_env_values = true)]
    password: Option<Secret>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl To {
    fn target(&self) -> anyhow::Result<HttpTarget> {
        let Some(password) = self.password.clone() else {
            bail!(WrongArguments("a password is needed: set STAVE_PASSWORD or give --password".to_owned()));
        };
        Ok(HttpTarget { addr: self.addr.clone(), username: self.username.clone(), password })
    }
}

/// Runs the command.
pub fn run(env: &Env, flags: &ClusterFlags) -> anyhow::Result<Outcome> {
    let said = match &flags.what {
        What::Status { to } => status(to)?,
        What::Failover { node, graceful, unsafe_, to } => {
            let path = if *graceful { "/controller/startGracefulFailover" } else { "/controller/failOver" };
            let target = to.target()?;
            target.form(
                path,
                &[("otpNode", node.as_str()), ("allowUnsafe", if *unsafe_ { "true" } else { "false" })],
            )?;
            let is_over = |cluster: &Value| cluster["state"]["rebalance"].is_null() && choices(cluster) == 0;
            until(env, &target, &is_over)?;
            done(to, &format!("{node} is failed over"), &target)?
        }
        What::Rebalance { stop: true, to, .. } => {
            let target = to.target()?;
            target.form("/controller/stopRebalance", &[])?;
            until(env, &target, &|cluster| cluster["state"]["rebalance"].is_null())?;
            done(to, "the rebalance has ended", &target)?
        }
        What::Rebalance { eject, no_wait, to, .. } => {
            let target = to.target()?;
            target.form("/controller/rebalance", &[("ejectedNodes", &eject.join(","))])?;
            if !no_wait {
                let cluster = until(env, &target, &|cluster| cluster["state"]["rebalance"].is_null())?;
                let outcome = &cluster["state"]["finished"]["outcome"];
                if outcome != "done" {
                    bail!("the rebalance ended early: {}", outcome.as_str().unwrap_or("nobody knows why"));
                }
            }
            done(to, if *no_wait { "the rebalance runs" } else { "the vBuckets are spread" }, &target)?
        }
        What::Add { node, full, to } => {
            let target = to.target()?;
            if node.contains(':') {
                target.form("/controller/addNode", &[("hostname", node)])?;
            } else {
                let kind = if *full { "full" } else { "delta" };
                target.form(
                    "/controller/setRecoveryType",
                    &[("otpNode", node.as_str()), ("recoveryType", kind)],
                )?;
            }
            done(to, &format!("{node} comes back with the next rebalance"), &target)?
        }
        What::Remove { node, to } => {
            let target = to.target()?;
            target.form("/controller/ejectNode", &[("otpNode", node.as_str())])?;
            done(to, &format!("{node} has left"), &target)?
        }
    };
    print!("{said}");
    Ok(Outcome::Done)
}

fn status(to: &To) -> anyhow::Result<String> {
    let cluster = to.target()?.request("GET", "/v1/cluster", None)?;
    if to.json {
        return Ok(format!("{cluster}\n"));
    }
    Ok(picture::draw(&cluster))
}

fn done(to: &To, what: &str, target: &HttpTarget) -> anyhow::Result<String> {
    if !to.json {
        return Ok(format!("{what}\n"));
    }
    let cluster = target.request("GET", "/v1/cluster", None)?;
    let (epoch, revision) = (&cluster["state"]["epoch"], &cluster["state"]["revision"]);
    Ok(format!("{}\n", json!({ "done": what, "epoch": epoch, "revision": revision })))
}

/// How many vBuckets wait for the choice of their active copy.
fn choices(cluster: &Value) -> usize {
    let buckets = cluster["state"]["buckets"].as_object().into_iter().flatten();
    let steps = buckets.flat_map(|(_, bucket)| bucket["steps"].as_object().into_iter().flatten());
    steps.filter(|(_, step)| step.get("choose").is_some()).count()
}

/// Looks until it is so, and shows how far it is meanwhile.
fn until(env: &Env, target: &HttpTarget, is_so: &dyn Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let interrupted = watch_interrupt(env)?;
    let in_place = std::io::stderr().is_terminal();
    let mut last = String::new();
    loop {
        let cluster = target.request("GET", "/v1/cluster", None)?;
        let line = bar(&cluster);
        if in_place && line != last {
            let mut err = std::io::stderr().lock();
            // Nobody may be there to read it.
            let _ = write!(err, "\r{line}");
            last = line;
        }
        if is_so(&cluster) {
            if in_place && !last.is_empty() {
                eprintln!();
            }
            return Ok(cluster);
        }
        if AtomicBool::load(&interrupted, Ordering::Relaxed) {
            bail!("interrupted, the cluster goes on");
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// One line about how far a rebalance is.
fn bar(cluster: &Value) -> String {
    let progress = cluster["progress"].as_f64().unwrap_or(1.0).clamp(0.0, 1.0);
    let full = (progress * BAR_WIDTH as f64).round() as usize;
    let (full, empty) = ("#".repeat(full), "-".repeat(BAR_WIDTH - full.min(BAR_WIDTH)));
    format!("[{full}{empty}] {:>3.0} %", progress * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_bar() {
        assert_eq!(bar(&json!({ "progress": 0.5 })), format!("[{}{}]  50 %", "#".repeat(20), "-".repeat(20)));
        assert_eq!(bar(&json!({ "progress": null })), format!("[{}] 100 %", "#".repeat(40)));
    }

    #[test]
    fn open_choices_are_counted() {
        let steps =
            json!({ "1": { "choose": { "since": 3 } }, "2": "build", "3": { "both": { "since": 1 } } });
        assert_eq!(choices(&json!({ "state": { "buckets": { "b": { "steps": steps } } } })), 1);
        assert_eq!(choices(&json!({ "state": { "buckets": { "b": {} } } })), 0);
    }
}
