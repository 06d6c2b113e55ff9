//! `stave dev`: a cluster in one process, for people's tests.

mod folder;
mod parent;
mod seed;

use std::io::Write;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base::env::Env;
use base::limits::DEFAULT_VBUCKETS;
use clap::Args;
use dev::{DevCluster, DevConfig, DevTimes, DevTls, MOST_NODES, Seed};
use node::config::{BucketSpec, MOST_REPLICAS};
use node::log_levels::LogLevels;
use node::recent_log::RecentLog;
use rustix::process::Pid;
use serde_json::{Value, json};

use self::folder::{Folder, IN_MEMORY};
use self::seed::SeedFile;
use super::certs::{self, OwnCertificates};
use super::serve::raise_descriptor_limit;
use crate::cli::{Outcome, WrongArguments};
use crate::client::Secret;
use crate::log::Log;

/// How soon a node may be missed, and how late. Threads that renew leases have to get their turn.
const TIMES_MS: RangeInclusive<u64> = 100..=3_600_000;

/// Run a cluster in one process, to test applications.
///
/// When all nodes serve it prints one line: `ready kv=HOST:PORT http=HOST:PORT username=U password=P nodes=N
/// control=HOST:PORT`, the addresses of the first node; with --tls ` kvs=HOST:PORT https=HOST:PORT ca=FILE` behind it.
/// SIGTERM, SIGINT (Ctrl-C), SIGQUIT and SIGHUP stop it, and so does the end of the process that started it, unless
/// --outlive-parent is given, or another one is named with --with-parent.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave dev
  stave dev --nodes 3 --replicas 1 --bucket orders
  stave dev --nodes 3 --replicas 2 --kv 127.0.0.1:0 --http 127.0.0.1:0 --json
  stave dev --seed-file seed.json                       begins with these documents
  stave dev --outlive-parent &                          stays when the shell ends
  stave dev --tls certs                                 couchbases:// too; clients trust certs/ca.pem

What the application does when a node fails (the address is that behind control=):
  curl -X POST localhost:8100/v1/dev/nodes/2/stop       and start, restart
  curl -X POST localhost:8100/v1/dev/nodes/2/kill       and start: its lease has to run out
  curl -X POST localhost:8100/v1/dev/nodes/2/freeze     and thaw: connections stay open, nothing is answered
  curl -X POST localhost:8100/v1/dev/nodes/2/cut        and join: no way to other nodes and to the cluster's state
  curl -X POST localhost:8100/v1/dev/nodes/2/failover   and recover: others take over; it holds copies again
  curl -X POST localhost:8100/v1/dev/nodes              another node; nodes/2/remove: one less
  curl -X POST 'localhost:8100/v1/dev/nodes/2/delay?ms=200&opcode=get'   requests wait; without nodes/2 on all nodes
  curl -X POST 'localhost:8100/v1/dev/fail?times=3'     temporary failures; heal takes delays and failures back
  curl -X POST localhost:8100/v1/dev/reset              all nodes serve, all buckets are empty
  curl -X POST 'localhost:8100/v1/dev/clock?advance_s=3600'    an hour later, on all nodes or with &node=2 on one
  curl localhost:8100/v1/dev

The log goes to standard error; STAVE_LOG says how much: error, warn, info (the default), debug.")]
pub struct DevFlags {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u16,
    /// Copies of each vBucket beside the active one, on other nodes
    #[arg(long, value_name = "N", default_value_t = 0)]
    replicas: u8,
    /// A bucket, its memory quota and its type; may be repeated
    #[arg(long, value_name = "NAME[:QUOTA[:TYPE]]", default_value = "default")]
    bucket: Vec<String>,
    /// Buckets, collections and documents that the cluster begins with, at its start and after each reset: JSON, or, if
    /// its name ends with .jsonl, a document a line for the first bucket
    #[arg(long, value_name = "FILE")]
    seed_file: Option<PathBuf>,
    /// Where documents are kept, or `memory`: they are gone with the process
    #[arg(long, value_name = "DIR|memory", default_value = IN_MEMORY)]
    data: String,
    /// Where clients of the first node connect; port 0 takes a free one, as the other nodes do
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:11210")]
    kv: SocketAddr,
    /// HTTP of the first node
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8091")]
    http: SocketAddr,
    /// The control endpoint, for programs of the user who started it, and of root
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// The user that may do everything
    #[arg(long, value_name = "USER", default_value = "Administrator")]
    username: String,
    /// That user's password
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "STAVE_PASSWORD",
        hide_env_values = true,
        default_value = "password"
    )]
    password: Secret,
    /// Threads of each node that serve clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// A node that is killed, frozen or cut off is missed after so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    lease_ms: u64,
    /// So many milliseconds after a node is missed others take over from it, or `off`
    #[arg(long, value_name = "MS|off", default_value = "1000", value_parser = auto_failover)]
    auto_failover_ms: AutoFailover,
    /// vBuckets of each bucket, a power of two
    #[arg(long, value_name = "N", default_value_t = DEFAULT_VBUCKETS)]
    vbuckets: u16,
    /// Serve TLS, too, at free ports, and use it for all that nodes say to each other, with a certificate for localhost by
    /// a CA of its own: both are made in DIR, or taken from there [default: the folder `certs` where documents are kept]
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    tls: Option<Option<PathBuf>>,
    /// Let users do what they lack privileges for, and say in the log and in the nodes' audit logs each privilege that was
    /// missing, with roles that have it: one run of an application tells which roles its user needs
    #[arg(long)]
    privilege_debug: bool,
    /// Stay when the process that started this one ends
    #[arg(long)]
    outlive_parent: bool,
    /// Stop when this process ends, instead of the one that started this one
    #[arg(long, value_name = "PID", value_parser = process, conflicts_with = "outlive_parent")]
    with_parent: Option<Pid>,
    /// Print the ready line as JSON, with all nodes
    #[arg(long)]
    json: bool,
}

/// When others take over from a node, if they do by themselves.
#[derive(Clone, Copy, Debug)]
struct AutoFailover(Option<Duration>);

fn auto_failover(text: &str) -> Result<AutoFailover, String> {
    if text == "off" {
        return Ok(AutoFailover(None));
    }
    let ms = text.parse().ok().filter(|ms| TIMES_MS.contains(ms));
    let wrong = || format!("give off, or milliseconds from {} to {}", TIMES_MS.start(), TIMES_MS.end());
    ms.map(|ms| AutoFailover(Some(Duration::from_millis(ms)))).ok_or_else(wrong)
}

fn process(text: &str) -> Result<Pid, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    pid.ok_or_else(|| "give the id of a process, a number from 1 on".to_owned())
}

impl DevFlags {
    fn config(self, data: PathBuf) -> anyhow::Result<DevConfig> {
        let wrong = |what: String| Err(WrongArguments(what).into());
        if !(1..=MOST_NODES).contains(&self.nodes) {
            return wrong(format!("--nodes {}: give a number from 1 to {MOST_NODES}", self.nodes));
        }
        if self.replicas > MOST_REPLICAS || u16::from(self.replicas) >= self.nodes {
            let most = u16::from(MOST_REPLICAS).min(self.nodes - 1);
            return wrong(format!(
                "--replicas {}: give a number from 0 to {most}; each copy needs a node of its own",
                self.replicas
            ));
        }
        if !self.vbuckets.is_power_of_two() || self.vbuckets > DEFAULT_VBUCKETS {
            return wrong(format!(
                "--vbuckets {}: give a power of two up to {DEFAULT_VBUCKETS}",
                self.vbuckets
            ));
        }
        if !TIMES_MS.contains(&self.lease_ms) {
            let (least, most) = (TIMES_MS.start(), TIMES_MS.end());
            return wrong(format!("--lease-ms {}: give a number from {least} to {most}", self.lease_ms));
        }
        if self.password.0.is_empty() {
            return wrong("the password is empty: set STAVE_PASSWORD to one, or give --password".to_owned());
        }
        let open = [self.kv, self.http, self.control].into_iter().find(|addr| !addr.ip().is_loopback());
        if let Some(addr) = open {
            return wrong(format!("{addr}: a development cluster listens on this machine only"));
        }
        let spec = |text: &String| -> anyhow::Result<BucketSpec> {
            let spec = BucketSpec::parse(text)?;
            Ok(BucketSpec { replicas: self.replicas, flush_enabled: true, ..spec })
        };
        Ok(DevConfig {
            descriptors: None,
            tls: None,
            seed: None,
            debugs_privileges: self.privilege_debug,
            recent_log: RecentLog::default(),
            log_levels: LogLevels::default(),
            nodes: self.nodes,
            buckets: self.bucket.iter().map(spec).collect::<Result<_, _>>()?,
            data,
            username: self.username,
            password: self.password.0,
            kv: self.kv,
            http: self.http,
            control: self.control,
            threads: self.threads,
            vbuckets: self.vbuckets,
            times: DevTimes {
                lease: Duration::from_millis(self.lease_ms),
                auto_failover: self.auto_failover_ms.0,
            },
        })
    }
}

/// Runs the command.
pub fn run(env: &Env, flags: DevFlags) -> anyhow::Result<Outcome> {
    let log = Log::start()?;
    let descriptors = raise_descriptor_limit();
    let folder = Folder::new(env, &flags.data).context("cannot make a folder in memory; give --data DIR")?;
    let (as_json, outlives, watched) = (flags.json, flags.outlive_parent, flags.with_parent);
    let certificates = certificates(env, &flags, folder.path())?;
    let tls = certificates
        .as_ref()
        .map(|own| (own.ca.clone(), own.certificate.clone(), own.key.clone()))
        .map(|(ca, certificate, key)| DevTls { ca, certificate, key });
    let seed_file = flags.seed_file.clone();
    let (recent_log, log_levels) = (log.recent.clone(), log.levels.clone());
    let mut config =
        DevConfig { descriptors, tls, recent_log, log_levels, ..flags.config(folder.path().to_owned())? };
    if let Some(path) = seed_file {
        add_seed(env, &path, &mut config)?;
    }
    // Before anything is started: a parent that ends meanwhile would not be known any more.
    if !outlives {
        parent::end_with_parent(env, watched)?;
    }
    let cluster = DevCluster::start(config.clone(), env.clone())?;
    let ca = certificates.map(|own| own.ca.display().to_string());
    let line = match as_json {
        true => json_line(&cluster, &config, ca).to_string(),
        false => ready_line(&cluster, &config, ca.as_deref()),
    };
    let mut stdout = std::io::stdout();
    // Whoever started it may have stopped reading; that is no reason not to serve.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    let signal = cluster.wait_for_signal();
    tracing::info!(event = "stop_signal", signal, "stopping");
    cluster.stop()?;
    Ok(Outcome::Done)
}

/// Has the cluster begin with what a file says, and adds the buckets that the file names.
fn add_seed(env: &Env, path: &Path, config: &mut DevConfig) -> anyhow::Result<()> {
    let wrong = |why: anyhow::Error| WrongArguments(format!("--seed-file {}: {why:#}", path.display()));
    let first = config.buckets.first().map(|spec| spec.name.clone()).unwrap_or_default();
    let replicas = config.buckets.first().map_or(0, |spec| spec.replicas);
    let seed = SeedFile::read(env, path, &first).map_err(wrong)?;
    for name in seed.buckets() {
        if !BucketSpec::is_name(name) {
            let why = "letters, digits and . _ % - are allowed; a quota is given with --bucket NAME:QUOTA";
            return Err(wrong(anyhow::anyhow!("there can be no bucket `{name}`: {why}")).into());
        }
        if config.buckets.iter().all(|spec| spec.name != *name) {
            config.buckets.push(BucketSpec { replicas, flush_enabled: true, ..BucketSpec::parse(name)? });
        }
    }
    let (env, username, password) = (env.clone(), config.username.clone(), config.password.clone());
    let load = move |kv| seed.load(&env, kv, &username, &password).map_err(|error| format!("{error:#}"));
    config.seed = Some(Seed(Arc::new(load)));
    Ok(())
}

/// What nodes serve TLS with, if they do.
fn certificates(env: &Env, flags: &DevFlags, data: &Path) -> anyhow::Result<Option<OwnCertificates>> {
    let Some(folder) = &flags.tls else { return Ok(None) };
    let folder = folder.clone().unwrap_or_else(|| data.join("certs"));
    certs::of_this_machine(env, &folder, &[flags.kv.ip(), flags.http.ip()]).map(Some)
}

fn ready_line(cluster: &DevCluster, config: &DevConfig, ca: Option<&str>) -> String {
    let (kv, http) = cluster.addresses().into_values().next().expect("there is at least one node");
    let DevConfig { username, password, nodes, .. } = config;
    let control = cluster.control_addr();
    let encrypted = cluster.tls_addresses().into_values().next().zip(ca);
    let encrypted = encrypted.map(|((kvs, https), ca)| format!(" kvs={kvs} https={https} ca={ca}"));
    format!(
        "ready kv={kv} http={http} username={username} password={password} nodes={nodes} control={control}{}",
        encrypted.unwrap_or_default()
    )
}

fn json_line(cluster: &DevCluster, config: &DevConfig, ca: Option<String>) -> Value {
    let encrypted = cluster.tls_addresses();
    let node = |(number, (kv, http)): (u16, (SocketAddr, SocketAddr))| {
        let tls = encrypted.get(&number);
        json!({
            "node": number,
            "kv": kv.to_string(),
            "http": http.to_string(),
            "kvs": tls.map(|(kv, _)| kv.to_string()),
            "https": tls.map(|(_, http)| http.to_string()),
        })
    };
    json!({
        "ready": true,
        "username": config.username,
        "password": config.password,
        "control": cluster.control_addr().to_string(),
        "ca": ca,
        "cluster_encryption": config.cluster_encryption().name(),
        "nodes": cluster.addresses().into_iter().map(node).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn wrong_numbers_are_wrong_arguments() {
        for words in ["--vbuckets 1000", "--vbuckets 2048", "--vbuckets 0", "--nodes 0", "--replicas 1"] {
            let args = ["stave", "dev"].into_iter().chain(words.split(' '));
            let Command::Dev(flags) = Cli::try_parse_from(args).expect("it parses").command else {
                panic!("{words}: another command")
            };
            let flags = *flags;
            let Err(refused) = flags.config(PathBuf::from("data")) else { panic!("{words} is taken") };
            assert!(refused.is::<WrongArguments>(), "{words}: {refused}");
        }
    }
}
