//! `stave collect`: one archive with what a report of a fault needs, from every node of a cluster (record 0115).

mod archive;
mod redact;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use base::env::Env;
use clap::Args;
use node::form::escaped;
use node::stats::groups::GROUPS;
use serde_json::{Value, json};

use super::http_flags::HttpFlags;
use super::status_line::StatusLine;
use crate::cli::Outcome;
use crate::client::{Client, Dialect, HttpTarget, Patience, Target};
use crate::output::print;
use crate::units::{bytes, counted};
use archive::Archive;
use redact::Redaction;

/// What each node is asked for over HTTP: the address, and the name of the file that its answer becomes.
const PAGES: [(&str, &str); 16] = [
    ("/metrics", "metrics.txt"),
    ("/healthz", "healthz.json"),
    ("/readyz", "readyz.json"),
    ("/pools", "pools.json"),
    ("/pools/default", "pools_default.json"),
    ("/pools/default/buckets", "buckets.json"),
    ("/pools/default/nodeServices", "node_services.json"),
    ("/pools/default/tasks", "tasks.json"),
    ("/nodes/self", "nodes_self.json"),
    ("/settings/autoFailover", "auto_failover.json"),
    ("/settings/audit", "audit.json"),
    ("/settings/security", "security.json"),
    ("/settings/clientCertAuth", "client_cert_auth.json"),
    ("/node/settings/slowOperations", "slow_operations.json"),
    ("/v1/cluster", "cluster.json"),
    ("/logs", "log.json"),
];
/// What each node is asked for of a bucket, behind the bucket's address.
const PAGES_OF_BUCKET: [(&str, &str); 3] =
    [("settings", "settings.json"), ("samples", "samples.json"), ("replication", "replication.json")];
/// Groups of stats that the command does not ask for, because asking changes something.
const LEFT_OUT: [&str; 1] = ["reset"];
/// The most of a log that is taken, from its end.
const MOST_OF_A_LOG: u64 = 64 << 20;

/// Collect stats, settings, maps, times and logs of all nodes into one archive.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave collect
  stave collect --out report.tar.gz --log /var/log/stave/stave.log
  journalctl -u stave > stave.log; stave collect --log stave.log

Each node is asked for its figures, settings and state, its part of the cluster, the last 1,000 lines of its log and, of
each bucket, stats with slow operations, samples and replication. The command reads no documents. Unless --no-redact is given, hashes replace the text between <ud> and </ud>, names of
users and addresses of clients: the same hash for the same name within one archive. A node that does not answer
is named in collect.json, and the archive has what the others say.")]
pub struct CollectFlags {
    /// The archive; it must not be there yet [default: stave-collect-TIME.tar.gz in this folder]
    #[arg(long, value_name = "FILE.tar.gz")]
    out: Option<PathBuf>,
    /// A log of a node, to go with it, at most its last 64 MiB; may be repeated
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// Leave names of users, addresses of clients and keys as they are
    #[arg(long)]
    no_redact: bool,
    #[command(flatten)]
    http: HttpFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &CollectFlags) -> anyhow::Result<Outcome> {
    let target = flags.http.target()?;
    let nodes = nodes(&target)?;
    let made_at = node::calendar::timestamp(env.clock.unix_ns());
    let folder = format!("stave-collect-{}", in_a_name(&made_at));
    let out = flags.out.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
    let redaction = if flags.no_redact { Redaction::none() } else { Redaction::new(env) };
    let archive = Archive::create(env, &out, folder)?;
    let mut collection = Collection { env, archive, redaction, failures: Vec::new() };
    // What a node does not say is left out: whatever fails is the archive.
    let unwritten = || format!("cannot write {}", out.display());
    let mut line = StatusLine::new(env);
    let count = nodes.len();
    for (at, node) in nodes.iter().enumerate() {
        line.show(|seconds| format!("node {} of {count}, {} ({seconds:.0} s)", at + 1, node.http.addr));
        collection.take_node(node).with_context(unwritten)?;
    }
    line.end();
    flags.log.iter().try_for_each(|path| collection.take_log(path)).with_context(unwritten)?;
    let failures = collection.failures;
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "made_at": made_at,
        "nodes": nodes.iter().map(|node| node.http.addr.as_str()).collect::<Vec<_>>(),
        "redacted": !flags.no_redact,
        "failures": failures,
    });
    collection.archive.put("collect.json", format!("{about:#}\n").as_bytes()).with_context(unwritten)?;
    let (files, size) = collection.archive.finish().with_context(unwritten)?;
    tell(flags, &out, (files, size), &nodes, &failures)?;
    Ok(Outcome::Done)
}

fn tell(
    flags: &CollectFlags,
    out: &std::path::Path,
    (files, size): (usize, u64),
    nodes: &[NodeOf],
    failures: &[String],
) -> std::io::Result<()> {
    if flags.http.json {
        let made = json!({
            "file": out, "bytes": size, "files": files, "nodes": nodes.len(), "redacted": !flags.no_redact,
            "failures": failures,
        });
        return print(&format!("{made}\n"));
    }
    for failure in grouped(failures) {
        eprintln!("stave: left out: {failure}");
    }
    let mut said = format!(
        "{}: {} of {}, {}\n",
        out.display(),
        counted(files as u64, "file", "files"),
        counted(nodes.len() as u64, "node", "nodes"),
        bytes(size)
    );
    if flags.no_redact {
        said.push_str("it has names of users, addresses of clients and keys: treat it like these\n");
    }
    print(&said)
}

/// How many of several things that failed for the same reason are named.
const MOST_NAMED: usize = 3;

/// What is left out, in one line for each node and reason: a user without a right lacks dozens of pages for it.
fn grouped(failures: &[String]) -> Vec<String> {
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for failure in failures {
        let parts = failure.split_once(", ").and_then(|(node, rest)| Some((node, rest.split_once(": ")?)));
        // What is wrong with a log has no node.
        let (node, (what, why)) = parts.unwrap_or((failure, ("", "")));
        match groups.iter_mut().find(|(of, because, _)| (*of, *because) == (node, why)) {
            Some((_, _, all)) => all.push(what),
            None => groups.push((node, why, vec![what])),
        }
    }
    let line = |(node, why, all): (&str, &str, Vec<&str>)| {
        let named = all.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join("; ");
        match all.len().saturating_sub(MOST_NAMED) {
            _ if why.is_empty() => node.to_owned(),
            0 => format!("{node}, {named}: {why}"),
            more => format!("{node}, {named} and {more} more: {why}"),
        }
    };
    groups.into_iter().map(line).collect()
}

/// A node of the cluster.
struct NodeOf {
    http: HttpTarget,
    /// Where it speaks the key-value protocol.
    kv: String,
}

/// All nodes, as the one that is asked knows them.
fn nodes(target: &HttpTarget) -> anyhow::Result<Vec<NodeOf>> {
    let services = target.request("GET", "/pools/default/nodeServices", None)?;
    let asked_host = target.addr.rsplit_once(':').map_or(target.addr.as_str(), |(host, _)| host);
    let node = |node: &Value| {
        let host = node["hostname"].as_str().unwrap_or(asked_host);
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
        let port = |service: &str| node["services"][service].as_u64();
        // The one that is asked is reached as it was.
        let is_asked = node["thisNode"] == true;
        let (mgmt, kv) = if target.tls.is_some() { ("mgmtSSL", "kvSSL") } else { ("mgmt", "kv") };
        let addr = if is_asked { target.addr.clone() } else { format!("{host}:{}", port(mgmt)?) };
        let kv_host = if is_asked { asked_host } else { host.as_str() };
        Some(NodeOf { http: HttpTarget { addr, ..target.clone() }, kv: format!("{kv_host}:{}", port(kv)?) })
    };
    let nodes: Vec<NodeOf> =
        services["nodesExt"].as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(node).collect();
    if nodes.is_empty() {
        bail!("{} names no node: is it one of Stave?", target.addr);
    }
    Ok(nodes)
}

/// An archive in the making.
struct Collection<'e> {
    env: &'e Env,
    archive: Archive,
    redaction: Redaction,
    /// What is not in it, and why.
    failures: Vec<String>,
}

impl Collection<'_> {
    /// Takes what a node says; only an archive that cannot be written is an error.
    fn take_node(&mut self, node: &NodeOf) -> anyhow::Result<()> {
        let folder = format!("nodes/{}", in_a_name(&node.http.addr));
        for (path, file) in PAGES {
            let answer = node.http.exchange("GET", path, String::new());
            match answer {
                // Health that is bad is what is looked for, and a node without a cluster says so.
                Ok((status, body)) if !matches!(status, 401 | 403) => {
                    let text = self.redaction.text(&body);
                    self.archive.put(&format!("{folder}/{file}"), text.as_bytes())?;
                }
                Ok((status, body)) => self.miss(node, path, &anyhow!("status {status}: {}", body.trim())),
                Err(error) => {
                    self.miss(node, path, &error);
                    // The node is away: each further request would take the whole timeout, too.
                    if path == PAGES[0].0 {
                        return Ok(());
                    }
                }
            }
        }
        let buckets = node.http.request("GET", "/pools/default/buckets", None);
        let buckets = buckets.as_ref().ok().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let names: Vec<&str> = buckets.iter().filter_map(|bucket| bucket["name"].as_str()).collect();
        for name in names {
            self.take_bucket(node, &folder, name)?;
        }
        Ok(())
    }

    fn take_bucket(&mut self, node: &NodeOf, folder: &str, bucket: &str) -> anyhow::Result<()> {
        for (page, file) in PAGES_OF_BUCKET {
            let path = format!("/v1/buckets/{}/{page}", escaped(bucket));
            match node.http.request("GET", &path, None) {
                Ok(answer) => {
                    let text = self.redaction.text(&format!("{answer:#}\n"));
                    self.archive.put(&format!("{folder}/buckets/{bucket}/{file}"), text.as_bytes())?;
                }
                Err(error) => self.miss(node, &path, &error),
            }
        }
        let target = Target {
            addr: node.kv.clone(),
            dialect: Dialect::Couchbase,
            username: node.http.username.clone(),
            password: node.http.password.clone(),
            bucket: bucket.to_owned(),
            patience: Patience(node.http.patience),
            tls: node.http.tls.clone(),
            ..Target::default()
        };
        let mut client = match Client::open(self.env, &target) {
            Ok(client) => client,
            Err(error) => {
                self.miss(node, &format!("bucket {bucket}"), &error.into());
                return Ok(());
            }
        };
        let groups = GROUPS.iter().filter(|group| group.args.least == 0 && !LEFT_OUT.contains(&group.name));
        let names: BTreeSet<&str> = groups.map(|group| group.name).collect();
        for group in names {
            let shown = if group.is_empty() { "all" } else { group };
            match client.stats(group) {
                Ok(stats) => {
                    let text = self.redaction.stats(&stats);
                    let name = format!("{folder}/buckets/{bucket}/stats/{}.txt", in_a_name(shown));
                    self.archive.put(&name, text.as_bytes())?;
                }
                Err(error) => self.miss(node, &format!("bucket {bucket}, stats {shown}"), &error.into()),
            }
        }
        Ok(())
    }

    fn take_log(&mut self, path: &std::path::Path) -> anyhow::Result<()> {
        match archive::read_end(self.env, path, MOST_OF_A_LOG) {
            Ok(text) => {
                let name =
                    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                let text = self.redaction.text(&String::from_utf8_lossy(&text));
                self.archive.put(&format!("logs/{}", in_a_name(&name)), text.as_bytes())?;
            }
            Err(error) => self.failures.push(format!("{}: {error}", path.display())),
        }
        Ok(())
    }

    fn miss(&mut self, node: &NodeOf, what: &str, error: &anyhow::Error) {
        self.failures.push(format!("{}, {what}: {error:#}", node.http.addr));
    }
}

/// A text as a part of a file's name.
fn in_a_name(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    text.chars().map(|char| if is_plain(char) { char } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
