//! `stave cluster`: who is in a cluster and has what, failover, rebalance, nodes that come and go.

mod picture;
mod waiting;

use std::cell::RefCell;
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::http_flags::HttpFlags as To;
use crate::cli::Outcome;
use crate::client::HttpTarget;
use crate::output::print;
use waiting::until;

/// So long an end of a rebalance may wait for a node that is down before it is told.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
/// What no cluster can know of a node that is gone.
const LOST_WITH_IT: &str =
    "; changes without a durability level that it had not sent to a replica yet are lost";

/// Look at a cluster, and change who is in it.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave cluster status --addr 127.0.0.1:8091
  stave cluster rebalance                        after nodes have joined or come back
  stave cluster failover n_3 --graceful
  stave cluster add n_3 && stave cluster rebalance
  stave cluster remove n_2

Nodes are named as `stave cluster status` names them, or by their addresses.")]
pub struct ClusterFlags {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Print the nodes, and a picture of who has which vBucket
    #[command(after_help = "Examples:
  stave cluster status
  stave cluster status --addr 127.0.0.1:8092 --json")]
    Status {
        #[command(flatten)]
        to: To,
    },
    /// Take away from a node what it is active for
    #[command(after_help = "Examples:
  stave cluster failover n_2                     it is down
  stave cluster failover n_2 --graceful          it is up, and is to lose nothing
  stave cluster failover n_2 --unsafe --stopped  its machine is gone, and documents with it")]
    Failover {
        /// The node, such as n_2
        node: String,
        /// Hand over first, so that nothing is lost; the node must be alive
        #[arg(long, conflicts_with = "unsafe_")]
        graceful: bool,
        /// Even if documents are lost by that
        #[arg(long = "unsafe")]
        unsafe_: bool,
        /// The node has stopped for certain: vBuckets of which it has the only copy begin empty at once, not only when
        /// most other nodes have said that they promise it nothing
        #[arg(long, requires = "unsafe_")]
        stopped: bool,
        #[command(flatten)]
        to: To,
    },
    /// Spread the vBuckets over all nodes again
    ///
    /// Nodes that were failed over leave with it, and it is said which; `stave cluster add` keeps one. If --eject names
    /// nodes, it must name these, too.
    #[command(after_help = "Examples:
  stave cluster rebalance
  stave cluster rebalance --eject n_2 --eject n_3
  stave cluster rebalance --stop")]
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
    #[command(after_help = "Examples:
  stave cluster add n_3 && stave cluster rebalance
  stave cluster add 127.0.0.1:8093               it has left, and shall come back")]
    Add {
        /// The node, such as n_2, or HOST:PORT
        node: String,
        /// Fetch all documents again instead of going on with those that it has
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        to: To,
    },
    /// Follow an older state of the cluster, after the coordination store was restored from a backup
    ///
    /// Nodes refuse a state that is older than one that they have seen, and serve no client. This gives up what was changed
    /// since: the node that is asked follows the older state, and so does every node that has seen no more than it; ask
    /// the others, too. Buckets that the older state does not have are kept and serve no client; vBuckets that it gives to
    /// other nodes are dropped: copy the folders of data first if they matter.
    #[command(after_help = "Examples:
  stave cluster adopt --addr 127.0.0.1:8091")]
    Adopt {
        #[command(flatten)]
        to: To,
    },
    /// Give up what damaged copies of a bucket held, where no other copy surely has all of it
    ///
    /// vBuckets whose damaged copies nothing can replace are not served: stave cluster status names them. With this the
    /// best other copy is served, and durable writes may be lost; without another copy the vBucket is empty after the
    /// next rebalance. The damaged files are kept in the quarantine of their nodes for a while.
    #[command(after_help = "Examples:
  stave cluster give-up-damaged default --unsafe")]
    GiveUpDamaged {
        /// The bucket
        bucket: String,
        /// Documents may be lost by this, which has to be said
        #[arg(long = "unsafe", required = true)]
        unsafe_: bool,
        #[command(flatten)]
        to: To,
    },
    /// Let nodes leave: whatever they have goes to the others first
    ///
    /// Refused if nodes that were failed over would leave, too, and are not named.
    #[command(after_help = "Examples:
  stave cluster remove n_2
  stave cluster remove n_2 n_3        n_3 was failed over, and leaves with n_2")]
    Remove {
        /// The nodes, such as n_2
        #[arg(required = true)]
        nodes: Vec<String>,
        #[command(flatten)]
        to: To,
    },
}

/// Runs the command.
pub fn run(env: &Env, flags: &ClusterFlags) -> anyhow::Result<Outcome> {
    let said = match &flags.what {
        What::Status { to } => status(to)?,
        What::Failover { node, graceful, unsafe_, stopped, to } => {
            let path = if *graceful { "/controller/startGracefulFailover" } else { "/controller/failOver" };
            let flags = [("allowUnsafe", *unsafe_), ("nodeStopped", *stopped)];
            fail_over(env, to, node, path, &flags)?
        }
        What::Rebalance { stop: true, to, .. } => stop_rebalance(env, to)?,
        What::Rebalance { eject, no_wait, to, .. } => {
            let target = to.target()?;
            // A node without a cluster says so at once, and is not asked again as one that does not answer.
            target.request("GET", "/v1/cluster", None)?;
            until(env, &target, &is_no_repair)?;
            target.form("/controller/rebalance", &[("ejectedNodes", &eject.join(","))])?;
            if *no_wait {
                let leave = leavers(&target.request("GET", "/v1/cluster", None)?);
                done(to, &with_leavers("the rebalance runs", &leave, "leave with it"), &target)?
            } else {
                let cluster = until(env, &target, &is_quiet)?;
                rebalanced(&cluster)?;
                done(to, &with_leavers("the vBuckets are spread", &leavers(&cluster), "have left"), &target)?
            }
        }
        What::Add { node, full, to } => add(to, node, *full)?,
        What::Adopt { to } => {
            let target = to.target()?;
            let revision = target.form("/controller/adoptState", &[])?["revision"].clone();
            done(
                to,
                &format!("the state of the coordination store is followed, as revision {revision}"),
                &target,
            )?
        }
        What::GiveUpDamaged { bucket, to, .. } => {
            let target = to.target()?;
            target.form("/controller/giveUpDamaged", &[("bucket", bucket)])?;
            done(to, &format!("what damaged copies of bucket {bucket} held is given up"), &target)?
        }
        What::Remove { nodes, to } => remove(env, to, nodes)?,
    };
    print(&said)?;
    Ok(Outcome::Done)
}

/// Whether nothing is being moved, and no vBucket waits for its active copy.
fn is_quiet(cluster: &Value) -> bool {
    cluster["state"]["rebalance"].is_null() && choices(cluster) == 0
}

/// Whether no node gets its copies back by itself at the moment: that is waited for.
fn is_no_repair(cluster: &Value) -> bool {
    cluster["state"]["rebalance"]["purpose"] != "repair"
}

/// An end that waits for a node which is down is told: it may never come back.
fn stop_rebalance(env: &Env, to: &To) -> anyhow::Result<String> {
    let target = to.target()?;
    target.form("/controller/stopRebalance", &[])?;
    let went_on = RefCell::new((Value::Null, env.clock.monotonic()));
    let is_still = |cluster: &Value| {
        let (mut went_on, now) = (went_on.borrow_mut(), env.clock.monotonic());
        if went_on.0 != cluster["state"]["revision"] {
            *went_on = (cluster["state"]["revision"].clone(), now);
        }
        now - went_on.1 >= STOPS_WITHIN && !down(cluster).is_empty()
    };
    let cluster = until(env, &target, &|cluster| is_quiet(cluster) || is_still(cluster))?;
    if !is_quiet(&cluster) {
        let nodes = down(&cluster);
        bail!(
            "nothing new is begun, and the rebalance has not ended: vBuckets wait for {}, which the cluster does not reach; \
             start each of them, or fail it over (stave cluster failover {})",
            nodes.join(", "),
            nodes[0]
        );
    }
    done(to, "the rebalance has ended", &target)
}

/// Nodes with a share whose leases are out.
fn down(cluster: &Value) -> Vec<String> {
    let nodes = cluster["state"]["nodes"].as_object().into_iter().flatten();
    let active = nodes.filter(|(_, node)| node["status"] == "active").map(|(id, _)| format!("n_{id}"));
    active.filter(|id| !is_up(cluster, id)).collect()
}

/// An error if the last rebalance did not come to its end.
fn rebalanced(cluster: &Value) -> anyhow::Result<()> {
    if let Some(why) = cluster["state"]["finished"]["why"].as_str() {
        bail!(
            "it could not go on and has ended; what was moved stays where it is: {why}; mend that, and ask for it again"
        );
    }
    match cluster["state"]["finished"]["outcome"].as_str() {
        Some("done") => Ok(()),
        Some("cancelled") => bail!("somebody has stopped it; what was moved stays where it is"),
        Some("interrupted") => bail!("a node was failed over meanwhile; see `stave cluster status`"),
        other => bail!("it ended early: {}", other.unwrap_or("nobody knows why")),
    }
}

fn fail_over(env: &Env, to: &To, node: &str, path: &str, flags: &[(&str, bool)]) -> anyhow::Result<String> {
    let target = to.target()?;
    let set = flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (*name, "true"));
    let fields: Vec<(&str, &str)> = std::iter::once(("otpNode", node)).chain(set).collect();
    target.form(path, &fields)?;
    let is_graceful = path.ends_with("startGracefulFailover");
    let is_over = |cluster: &Value| is_quiet(cluster) || (is_graceful && is_gone(cluster, node));
    let cluster = until(env, &target, &is_over)?;
    if !is_quiet(&cluster) {
        // It was taken for alive while its lease ran. What runs may be another one's by now, which goes on.
        if hands_over(&cluster, node) {
            let _ = target.form("/controller/stopRebalance", &[]);
        }
        bail!(
            "{node} is down, and can hand nothing over: fail it over without --graceful (stave cluster failover {node})"
        );
    }
    if is_graceful {
        rebalanced(&cluster)?;
    }
    let lost = if is_graceful { "" } else { LOST_WITH_IT };
    done(to, &format!("{node} is failed over{lost}"), &target)
}

/// Whether what is being moved is what this node hands over.
fn hands_over(cluster: &Value, node: &str) -> bool {
    let of = cluster["state"]["rebalance"]["purpose"]["graceful_failover"]["node"].as_u64();
    find(cluster, node).zip(of).is_some_and(|((name, _), of)| name == format!("n_{of}"))
}

/// Whether the lease of a node that the cluster has is out.
fn is_gone(cluster: &Value, node: &str) -> bool {
    find(cluster, node).is_some_and(|(id, _)| !is_up(cluster, &id))
}

/// Whether a node answers, as the cluster knows.
fn is_up(cluster: &Value, id: &str) -> bool {
    let alive = cluster["alive"].as_array().into_iter().flatten();
    alive.map(ToString::to_string).any(|number| format!("n_{number}") == id)
}

/// The number and the status of a node that is given by its name or one of its addresses. Of two at one address it is the
/// one that answers: the other one has lost its folder.
fn find(cluster: &Value, name: &str) -> Option<(String, String)> {
    let nodes = cluster["state"]["nodes"].as_object().into_iter().flatten();
    let is_it = |(id, node): &(&String, &Value)| {
        let address = &node["address"];
        let host = address["host"].as_str().unwrap_or_default();
        let at = |port: &Value| name == format!("{host}:{port}");
        name == format!("n_{id}") || at(&address["http"]) || at(&address["kv"])
    };
    let found: Vec<_> = nodes.filter(is_it).collect();
    let answers = found.iter().find(|(id, _)| is_up(cluster, &format!("n_{id}")));
    let (id, node) = answers.or(found.first())?;
    Some((format!("n_{id}"), node["status"].as_str().unwrap_or_default().to_owned()))
}

/// Whether this is what a cluster calls a node, and no host.
fn is_name(node: &str) -> bool {
    node.strip_prefix("n_").is_some_and(|number| number.parse::<u32>().is_ok())
}

fn add(to: &To, node: &str, full: bool) -> anyhow::Result<String> {
    let target = to.target()?;
    let cluster = target.request("GET", "/v1/cluster", None)?;
    let said = match find(&cluster, node) {
        Some((id, status)) if status == "active" => format!("{id} belongs to the cluster already"),
        Some((id, status)) if status == "new" => {
            format!("{id} has joined; it has its share after the next rebalance: stave cluster rebalance")
        }
        Some((id, _)) => {
            let kind = if full { "full" } else { "delta" };
            let fields = [("otpNode", id.as_str()), ("recoveryType", kind)];
            target.form("/controller/setRecoveryType", &fields)?;
            let is_down = !is_up(&cluster, &id);
            let first = if is_down { ", and is down: start it before that" } else { "" };
            format!("{id} comes back with the next rebalance{first}: stave cluster rebalance")
        }
        None if is_name(node) => bail!(
            "the cluster has no node {node}: it has left, or was never there; give the HTTP address of a node that \
             runs (HOST:PORT), and see `stave cluster status`"
        ),
        None => {
            let added = target.form("/controller/addNode", &[("hostname", node)])?;
            let name = added["otpNode"].as_str().and_then(|name| name.split('@').next()).unwrap_or(node);
            format!("{name} has its share after the next rebalance: stave cluster rebalance")
        }
    };
    done(to, &said, &target)
}

/// A node that has a share hands it over first.
fn remove(env: &Env, to: &To, nodes: &[String]) -> anyhow::Result<String> {
    let target = to.target()?;
    let cluster = target.request("GET", "/v1/cluster", None)?;
    all_known(&cluster, nodes)?;
    let has_share = |node: &&String| find(&cluster, node).is_some_and(|(_, status)| status == "active");
    let (with_share, without): (Vec<&String>, Vec<&String>) = nodes.iter().partition(has_share);
    // One by one and first: the cluster refuses this of a node that may have the last copies of vBuckets. A rebalance that
    // names the node would give them up.
    for node in without {
        target.form("/controller/ejectNode", &[("otpNode", node)])?;
    }
    if !with_share.is_empty() {
        until(env, &target, &is_no_repair)?;
        let names: Vec<&str> = with_share.into_iter().map(String::as_str).collect();
        target.form("/controller/rebalance", &[("ejectedNodes", &names.join(","))])?;
        rebalanced(&until(env, &target, &is_quiet)?)?;
    }
    let said = match nodes {
        [node] => format!("{node} has left; its folder of data stays where it is"),
        nodes => format!("{} have left; their folders of data stay where they are", nodes.join(", ")),
    };
    done(to, &said, &target)
}

/// Refuses names of nodes that the cluster does not have, before anything is done with the others.
fn all_known(cluster: &Value, nodes: &[String]) -> anyhow::Result<()> {
    let is_unknown = |node: &&String| is_name(node) && find(cluster, node).is_none();
    if let Some(node) = nodes.iter().find(is_unknown) {
        bail!("the cluster has no node {node}, and nothing was done: `stave cluster status` lists its nodes");
    }
    Ok(())
}

/// Who leaves with the rebalance that runs, or left with the last one.
fn leavers(cluster: &Value) -> Vec<String> {
    let state = &cluster["state"];
    let what = if state["rebalance"].is_null() { &state["finished"] } else { &state["rebalance"] };
    let eject = what["purpose"]["rebalance"]["eject"].as_array().into_iter().flatten();
    eject.map(|id| format!("n_{id}")).collect()
}

/// What is said of a rebalance: those that were failed over leave with it without being named.
fn with_leavers(what: &str, leavers: &[String], verb: &str) -> String {
    if leavers.is_empty() { what.to_owned() } else { format!("{what}; {verb}: {}", leavers.join(", ")) }
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

#[cfg(test)]
mod tests;
