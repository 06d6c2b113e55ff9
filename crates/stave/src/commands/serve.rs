//! `stave serve`: runs a node until it is told to stop.

mod etcd_files;
mod host_names;
mod manager;
mod signals;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::{Env, OpenMode};
use clap::Args;
use node::cluster::serving::failed_over;
use node::cluster::{Cluster, ClusterConfig};
use node::config::{LogConfig, LogFormat, shown};
use node::{
    Config, MetricsLogin, Settings, Switch, bucket_list,
    readiness::{self, Audience},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::Server;
use server::etcd::{EtcdAddress, EtcdStore};

use self::etcd_files::EtcdFiles;
use self::host_names::{HostNameError, KnownNames};
use self::manager::Manager;
use self::signals::{Again, Terminal};
use super::encryption_flags::{self, EncryptionFlags};
use super::etcd_flags::{EtcdFlags, EtcdNames, EtcdTexts, first_line};
use super::login_flags::LoginFlags;
use super::tls_flags::TlsFlags;
use crate::cli::{Outcome, WrongArguments};
use crate::client::Secret;
use crate::key_source::open_to_all;
use crate::log::Log;
use crate::wrong_arguments::cannot_read;

const MAX_CONFIG_BYTES: usize = 1 << 20;
/// The environment variable that allows core dumps.
const CORE_DUMPS: &str = "STAVE_CORE_DUMPS";
/// Without those that look alike.
const PASSWORD_LETTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const PASSWORD_LEN: usize = 20;

/// Run a node.
///
/// When it serves every vBucket that the map gives it, it prints one line: `ready kv=HOST:PORT http=HOST:PORT data=DIR`,
/// with TLS `ready kv=HOST:PORT http=HOST:PORT kvs=HOST:PORT https=HOST:PORT data=DIR`; `off` is told of ports that are off.
/// If some cannot be served, lines that begin with `not served:` follow and say which and why.
/// If its cluster does not let it in for a minute, a line that begins with `not ready` says why; `ready` follows when
/// it does.
/// SIGTERM, SIGINT (Ctrl-C) and SIGQUIT stop it cleanly. SIGHUP has it read its configuration file, and the files with
/// passwords, keys and certificates that flags or variables name, again; users, the log and settings of buckets change at
/// once, and the log says what needs a restart. Without a configuration file, a node whose terminal was closed stops cleanly,
/// unless nohup started it.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave serve
  stave serve --data ./data --username Administrator --password secret1 --bucket default:1GiB
  stave serve --kv 0.0.0.0:11210 --http 0.0.0.0:8091 --password secret1 --bucket orders:2GiB --bucket sessions
  stave serve --config stave.toml
  stave serve --data ./a --password secret1 --join etcd://127.0.0.1:2379/demo
  stave serve --data ./a --leave-cluster
  stave serve --tls-cert node.pem --tls-key node.key --password secret1
  stave serve --kv off --http off --kv-tls 0.0.0.0:11207 --http-tls 0.0.0.0:18091 \\
    --tls-cert node.pem --tls-key node.key --password secret1
  stave serve --kv '10.0.0.7:11210,[::1]:11210' --password secret1
  stave serve --config stave.toml --join etcd://etcd1:2379,etcd2:2379/demo \\
    --etcd-user stave --etcd-password-file /etc/stave/etcd-password \\
    --etcd-ca /etc/stave/ca.pem --etcd-cert /etc/stave/node.pem --etcd-key /etc/stave/node-key.pem

The configuration file holds the same names, the buckets as a list or each with settings, and further users:
  data = \"/var/lib/stave\"
  kv = \"127.0.0.1:11210\"
  join = \"etcd://127.0.0.1:2379/demo\"    # then the cluster says which buckets there are
  buckets = [\"orders:2GiB\", \"sessions:512MiB\"]
  [[bucket]]
  name = \"cache\"
  quota = \"1GiB\"
  type = \"ephemeral\"
  eviction-policy = \"auto_delete\"
  [[user]]
  name = \"shop\"
  password = \"secret2\"
  role = \"read-write\"

The log goes to standard error, or to --log-file; STAVE_LOG, or log in the configuration file, says how much: error,
warn, info (the default), debug.")]
pub struct ServeFlags {
    /// Where documents are kept [default: a folder of the user, like ~/.local/share/stave]
    #[arg(long, value_name = "DIR", env = "STAVE_DATA")]
    data: Option<PathBuf>,
    /// Where clients connect: an address, or the name of a host, which is all of its addresses; port 0 takes a free one;
    /// others are told of the first of several; off, with --tls-cert: only with TLS [default: 127.0.0.1:11210]
    #[arg(long, value_name = "HOST:PORT[,...]|off", env = "STAVE_KV")]
    kv: Option<String>,
    /// Where metrics, health and the SDKs' questions are answered, as --kv [default: 127.0.0.1:8091]
    #[arg(long, value_name = "HOST:PORT[,...]|off", env = "STAVE_HTTP")]
    http: Option<String>,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    encryption: EncryptionFlags,
    #[command(flatten)]
    login: LoginFlags,
    /// The user that may do everything [default: Administrator]
    #[arg(long, value_name = "USER", env = "STAVE_USERNAME")]
    username: Option<String>,
    /// That user's password; to listen beyond this machine one of at least 6 characters is needed [default: one is made
    /// up and printed once]
    #[arg(long, value_name = "PASSWORD", env = "STAVE_PASSWORD", hide_env_values = true)]
    password: Option<Secret>,
    /// A file whose first line is that password
    #[arg(long, value_name = "FILE", env = "STAVE_PASSWORD_FILE", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// A bucket, its memory quota and its type (couchstore, magma for data larger than memory, rocksdb where it is
    /// built in, ephemeral for memory alone); may be repeated; replaces all buckets of the configuration file [default: default:256MiB:couchstore]
    #[arg(long, value_name = "NAME[:QUOTA[:TYPE]]", env = "STAVE_BUCKETS", value_delimiter = ',')]
    bucket: Vec<String>,
    /// Threads that serve clients [default: one for each CPU]
    #[arg(long, value_name = "N", env = "STAVE_THREADS")]
    threads: Option<usize>,
    /// Whether /metrics asks for a user: one of the roles admin, cluster_admin, ro_admin and external_stats_reader, or
    /// none, for monitors on a closed network [default: required]
    #[arg(long, value_name = "required|none", env = "STAVE_METRICS_LOGIN")]
    metrics_login: Option<MetricsLogin>,
    /// Where traces of slow operations go: a collector that takes OTLP over HTTP, in JSON [default path: /v1/traces]
    #[arg(long, value_name = "http[s]://HOST:PORT[/PATH]", env = "STAVE_TRACE_ENDPOINT")]
    trace_endpoint: Option<String>,
    /// Certificates of the CAs that the collector's certificate is checked with, in PEM; needed with https://
    #[arg(long, value_name = "FILE", env = "STAVE_TRACE_CA")]
    trace_ca: Option<PathBuf>,
    /// How lines of the log are written: text for people, or json, an object a line, for machines [default: text]
    #[arg(long, value_name = "text|json", env = "STAVE_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// A file that the log goes to, instead of standard error; one of 64 MiB is full, and the last 8 full ones are kept
    #[arg(long, value_name = "FILE", env = "STAVE_LOG_FILE")]
    log_file: Option<PathBuf>,
    /// Whether a journal goes before the files: without it every batch of changes commits in the files of its vBuckets,
    /// which is slow for durable writes [default: on]
    #[arg(long, value_name = "on|off", env = "STAVE_JOURNAL")]
    journal: Option<Switch>,
    /// Belong to a cluster whose state is in etcd: it says which buckets there are and which vBuckets this node serves.
    /// All nodes of a cluster have the same user and password
    #[arg(
        long,
        value_name = "etcd://HOST:PORT[,...]/CLUSTER",
        env = "STAVE_JOIN",
        conflicts_with = "bucket"
    )]
    join: Option<String>,
    /// Leave the cluster that the folder of data belongs to, for good: the node becomes one of its own, with the copies
    /// that it has, or the first of another cluster with --join
    #[arg(long)]
    leave_cluster: bool,
    /// Encrypt files with new keys from this start on, and those that are there by and by; keys that no file needs any
    /// more go at a later start
    #[arg(long)]
    rotate_encryption_keys: bool,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// The name or address by which clients and other nodes reach this one [default: the address that it listens at]
    #[arg(long, value_name = "HOST", env = "STAVE_ADVERTISE")]
    advertise: Option<String>,
    /// Where clients of another network reach this node, behind address translation or a container's mapped ports; without
    /// ports those of the node itself. PUT /node/controller/setupAlternateAddresses/external changes it later
    #[arg(long, value_name = "HOST[,kv=PORT,mgmt=PORT,...]", env = "STAVE_ALTERNATE_ADDRESS")]
    alternate_address: Option<String>,
    /// A TOML file with any of these and more; flags win over it
    #[arg(long, value_name = "FILE.toml", env = "STAVE_CONFIG")]
    config: Option<PathBuf>,
    /// Only read the configuration and the files that it names, and say what the node would do; start nothing
    #[arg(long)]
    check: bool,
}

impl ServeFlags {
    /// What the flags say, over what the file says.
    fn settings(self, file: Settings) -> Settings {
        let line = Settings {
            data: self.data,
            kv: self.kv,
            http: self.http,
            username: self.username,
            password: self.password.map(|secret| secret.0),
            buckets: (!self.bucket.is_empty()).then_some(self.bucket),
            threads: self.threads,
            metrics_login: self.metrics_login,
            trace_endpoint: self.trace_endpoint,
            trace_ca: self.trace_ca,
            log_format: self.log_format,
            log_file: self.log_file,
            journal: self.journal,
            advertise: self.advertise,
            alternate_address: self.alternate_address,
            join: self.join,
            ..self.etcd.settings()
        };
        self.login.settings().over(self.tls.settings()).over(self.encryption.settings()).over(line).over(file)
    }
}

/// What a node is started with, from flags and file.
struct Setup {
    config: Config,
    join: Option<EtcdAddress>,
    /// What is shown to etcd, as its files had it, or why they cannot be used: a node that runs goes on with what it had.
    etcd: (EtcdNames, anyhow::Result<EtcdTexts>),
    /// How much is logged, how and where.
    log: LogConfig,
    /// The files with keys.
    keys: Vec<PathBuf>,
    /// The files with passwords.
    passwords: Vec<PathBuf>,
    /// Whether the configuration file names buckets, and the cluster says which there are.
    ignores_buckets: bool,
}

impl Setup {
    fn read(
        env: &Env,
        mut flags: ServeFlags,
        descriptors: Option<u64>,
        names: &mut KnownNames,
        cancelled: &AtomicBool,
    ) -> anyhow::Result<Setup> {
        let mut file = match &flags.config {
            Some(path) => read_file(env, path)?,
            None => Settings::default(),
        };
        take_password_file(&mut flags, &mut file)?;
        let holds_password = file.password.is_some() || !file.user.is_empty();
        let config = flags.config.as_ref().filter(|_| holds_password);
        let passwords: Vec<PathBuf> = flags.password_file.iter().chain(config).cloned().collect();
        flags.password = password(env, &flags)?;
        let (leaves_cluster, rotates_keys) = (flags.leave_cluster, flags.rotate_encryption_keys);
        let names_buckets = !flags.bucket.is_empty();
        let mut settings = flags.settings(file);
        let join = settings.join.as_deref().map(EtcdAddress::parse).transpose();
        let join = join.map_err(|error| WrongArguments(error.to_string()))?;
        if join.is_some() && names_buckets {
            let what =
                "the cluster says which buckets there are: --bucket goes with no join, in the file either";
            bail!(WrongArguments(what.to_owned()));
        }
        let ignores_buckets = join.is_some() && (settings.buckets.is_some() || !settings.bucket.is_empty());
        let names_of_etcd = EtcdNames::of(&settings)?;
        let texts = names_of_etcd.read(env).and_then(|texts| texts.access().map(|_| texts));
        settings.descriptors = descriptors;
        host_names::resolve(env, &mut settings, names).map_err(|error| match error {
            // A name server that answers later is no mistake of a configuration.
            HostNameError::Unresolved(what) => anyhow::Error::msg(what),
            HostNameError::Elsewhere(what) => WrongArguments(what).into(),
        })?;
        let data_dir = match &settings.data {
            Some(dir) => dir.clone(),
            None => Home::of_process().data_dir()?,
        };
        let log = settings.log()?;
        crate::log::filter_of(&log).map_err(WrongArguments)?;
        let encryption = encryption_flags::wrapping_keys(env, &settings, cancelled)?;
        let key_file = settings.encryption_key_file.clone();
        let config = Config::new(settings, data_dir, cpus(), || make_password(env))?;
        if rotates_keys && encryption.is_none() {
            let what = "--rotate-encryption-keys needs the encryption key: give --encryption-key-file, too";
            bail!(WrongArguments(what.to_owned()));
        }
        let config = Config { is_member: join.is_some(), leaves_cluster, encryption, rotates_keys, ..config };
        check_log(&config, &log)?;
        if join.is_some() && config.password_was_generated {
            bail!(WrongArguments(
                "the nodes of a cluster need the same password: set STAVE_PASSWORD or give --password"
                    .to_owned()
            ));
        }
        let keys = key_file.into_iter().chain(config.tls.iter().map(|tls| tls.key.clone())).collect();
        let etcd = (names_of_etcd, texts);
        Ok(Setup { config, join, etcd, log, keys, passwords, ignores_buckets })
    }

    /// The same at a start, with what is shown to etcd: without that a node does not start.
    fn at_start(
        env: &Env,
        flags: ServeFlags,
        descriptors: Option<u64>,
        names: &mut KnownNames,
    ) -> anyhow::Result<(Setup, (EtcdNames, EtcdTexts))> {
        let setup = Setup::read(env, flags, descriptors, names, &AtomicBool::new(false))?;
        let (names, texts) = setup.etcd;
        let texts = texts?;
        Ok((Setup { etcd: (names.clone(), Ok(texts.clone())), ..setup }, (names, texts)))
    }

    /// What is wrong with the rights of the files with keys and passwords, and what has no effect, a line each.
    fn warnings(&self) -> Vec<String> {
        let keys = self.keys.iter().filter_map(|path| open_to_all(path, "key"));
        let passwords = self.passwords.iter().filter_map(|path| open_to_all(path, "password"));
        let ignored = self.ignores_buckets.then(|| {
            "the buckets of the configuration file are not made: the cluster says which there are, and stave bucket add makes one"
                .to_owned()
        });
        keys.chain(passwords).chain(ignored).collect()
    }
}

/// The keys of the log are in the folder of its file, which is not one that the node has keys in, or encrypts itself.
fn check_log(config: &Config, log: &LogConfig) -> anyhow::Result<()> {
    let Some(file) = log.file.as_ref().filter(|_| config.encryption.is_some()) else { return Ok(()) };
    if std::path::absolute(&file.path)?.starts_with(std::path::absolute(&config.data_dir)?) {
        bail!(WrongArguments(format!(
            "log-file {}: a node that encrypts its files has its log outside of the folder of data: name a file in a \
             folder of its own",
            file.path.display()
        )));
    }
    Ok(())
}

/// A file of the password that the configuration names counts if no flag and no variable says what the password is.
fn take_password_file(flags: &mut ServeFlags, file: &mut Settings) -> anyhow::Result<()> {
    let Some(named) = file.password_file.take() else { return Ok(()) };
    if file.password.is_some() {
        let what = "the configuration file has password and password-file: leave one of them out";
        bail!(WrongArguments(what.to_owned()));
    }
    if flags.password.is_none() && flags.password_file.is_none() {
        flags.password_file = Some(named);
    }
    Ok(())
}

/// The password that flags or environment name. An empty one is refused here, where it is known whence it comes.
fn password(env: &Env, flags: &ServeFlags) -> anyhow::Result<Option<Secret>> {
    let (password, source) = match &flags.password_file {
        Some(path) => {
            (Some(Secret(first_line(&read_text(env, path)?).to_owned())), path.display().to_string())
        }
        None => (flags.password.clone(), "STAVE_PASSWORD or --password".to_owned()),
    };
    if password.as_ref().is_some_and(|password| password.0.is_empty()) {
        let what = "the administrator's password is empty";
        bail!(WrongArguments(format!("{what} in {source}: write one there, or leave that out")));
    }
    Ok(password)
}

/// Runs the command. `ignored` says of variables of the environment that they mean nothing.
pub fn run(env: &Env, flags: ServeFlags, ignored: &[String]) -> anyhow::Result<Outcome> {
    let mut log = Log::start()?;
    let terminal = Terminal::of_process(env);
    // Before the first password or key is read.
    keep_memory_private();
    let descriptors = raise_descriptor_limit();
    let mut names = KnownNames::default();
    let (setup, etcd) = Setup::at_start(env, flags.clone(), descriptors, &mut names)?;
    if flags.check {
        ignored.iter().for_each(|what| say(what));
        return check(env, &setup);
    }
    let (wrapping, rotates) = (setup.config.encryption.as_ref(), setup.config.rotates_keys);
    log.follow(env, &setup.log, wrapping, rotates).map_err(WrongArguments)?;
    warn(&setup, ignored);
    let Setup { config, join, .. } = setup;
    let made_up = config.password_was_generated.then(|| config.users[0].clone());
    let config = Config { recent_log: log.recent.clone(), log_levels: log.levels.clone(), ..config };
    let server = server::serve(config, env.clone())?;
    log.hand_over_keys(server.node());
    let mut again = Again { env, flags, descriptors, names, log, terminal, join: join.clone(), etcd: None };
    let (manager, cluster) = match begin(env, &server, join, etcd) {
        Ok((manager, None)) => (manager, None),
        Ok((manager, Some((cluster, files)))) => {
            again.etcd = Some(files);
            (manager, Some(cluster))
        }
        Err(error) => {
            // A node that does not join is no crash to its buckets. What fails is logged.
            let _ = server.stop();
            return Err(error);
        }
    };
    if let Some(user) = made_up {
        tell(&format!("user {}, password {} (printed only now)", user.name, user.password));
    }
    let told = match &cluster {
        Some(cluster) => wait_until_let_in(&mut again, &server, cluster, &manager),
        None => Told::Nothing,
    };
    if told == Told::Nothing {
        say(&server.ready_line());
        manager.ready();
        // It is let in, and scripts wait for that: but it serves nothing.
        cluster.as_deref().and_then(failed_over).iter().for_each(|why| say(&format!("not served: {why}")));
        let unserved = readiness::unserved(server.node(), Audience::Operator);
        unserved.iter().for_each(|line| say(&format!("not served: {line}")));
        again.wait_for_stop(&server);
    }
    manager.stopping();
    // Asked before the end, which is a reason of its own.
    let waited_for = cluster.as_deref().map(missing);
    if told == Told::ToStopWaiting {
        // At once: letting go may have to wait for a coordination store that does not answer.
        tell("stave: interrupted; stopping");
    }
    // First, so that others do not wait for the lease to run out.
    let left = cluster.is_none_or(|cluster| cluster.stop());
    server.stop()?;
    if !left {
        bail!("a thread of the cluster panicked");
    }
    if told == Told::ToGoAway {
        bail!(WrongArguments(waited_for.unwrap_or_default()));
    }
    if told == Told::ToStopWaiting {
        bail!("interrupted before this node served: {}", waited_for.unwrap_or_default());
    }
    Ok(Outcome::Done)
}

fn warn(setup: &Setup, ignored: &[String]) {
    let all = setup.warnings();
    all.iter().chain(ignored).for_each(|what| tracing::warn!(event = "configuration_warning", "{what}"));
}

/// `--check`: says what a node would do with its configuration.
fn check(env: &Env, setup: &Setup) -> anyhow::Result<Outcome> {
    let config = &setup.config;
    let warnings = server::check(config, env)?;
    setup.warnings().iter().chain(&warnings).for_each(|what| say(what));
    say("the configuration is valid");
    let row = |name: &str, value: String| say(&format!("  {name:<9} {value}"));
    row("data", config.data_dir.display().to_string());
    row("kv", shown(&server::plain_addrs(config, config.plain_kv())));
    row("http", shown(&server::plain_addrs(config, config.plain_http())));
    row("encrypted", if config.encryption.is_some() { "yes" } else { "no" }.to_owned());
    exposure(config).into_iter().for_each(|(name, value)| row(name, value));
    row("users", config.users.len().to_string());
    match &setup.join {
        Some(address) => row("cluster", format!("{} at {}", address.cluster, address.endpoints.join(", "))),
        None => {
            let world = encryption_flags::world_with(env, config.encryption.clone());
            let made = bucket_list::made_in(&*world.disk, &config.data_dir);
            let given: Vec<&str> = config.buckets.iter().map(|spec| spec.name.as_str()).collect();
            row("buckets", buckets(&given, &made));
        }
    }
    Ok(Outcome::Done)
}

/// What an operator looks at who lets other machines reach the node, as the configuration has it.
fn exposure(config: &Config) -> Vec<(&'static str, String)> {
    let host = server::host_told_by(config);
    let told = host.unwrap_or_else(|| "the address that each of them came to".to_owned());
    let told = match &config.alternate {
        Some(alternate) => format!("{told}; {} in another network", alternate.host),
        None => told,
    };
    let is_on = config.audit.iter().any(|(field, value)| field == "auditdEnabled" && value == "true");
    let audit = if is_on { "on" } else { "off, unless it was switched on over HTTP" };
    let mut rows = vec![("tls", if config.tls.is_some() { "yes" } else { "no" }.to_owned())];
    if let Some(tls) = &config.tls {
        rows.push(("kvs", shown(&tls.kv_addrs())));
        rows.push(("https", shown(&tls.http_addrs())));
        rows.push(("clients", format!("tls-client-auth {}", tls.client_auth.name())));
        rows.push(("nodes", format!("cluster-encryption {}", tls.cluster_encryption.name())));
    }
    rows.extend([("advertise", format!("clients are told {told}")), ("audit", audit.to_owned())]);
    rows
}

/// The buckets of the configuration, and those beside them that were made over HTTP.
fn buckets(given: &[&str], made: &[String]) -> String {
    let made: Vec<&str> = made.iter().map(String::as_str).filter(|name| !given.contains(name)).collect();
    let over_http =
        if made.is_empty() { String::new() } else { format!("; made over HTTP: {}", made.join(", ")) };
    format!("{}{over_http}", given.join(", "))
}

/// How long a node waits for its cluster before it says that it is not let in.
const LET_IN_WITHIN: Duration = Duration::from_secs(60);

/// Between two looks at whether it is. Signals are heard at once.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a node was told while it waited to be let into its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// It was let in.
    Nothing,
    /// To stop, while whoever started it was waiting.
    ToStopWaiting,
    /// To stop, when it had said that it does not serve.
    ToStop,
    /// That user or password is not the cluster's.
    ToGoAway,
}

/// A node's part in its cluster, and what follows the files of its access to etcd.
type Membership = (Arc<Cluster>, EtcdFiles);

/// Tells the service manager from now on that the node is live, and makes the node a member if it is to join a cluster.
fn begin(
    env: &Env,
    server: &Server,
    join: Option<EtcdAddress>,
    etcd: (EtcdNames, EtcdTexts),
) -> anyhow::Result<(Manager, Option<Membership>)> {
    let manager = Manager::of_process(env, server).context("cannot start the watchdog")?;
    let membership = join.map(|address| join_cluster(env, server, &address, etcd)).transpose()?;
    Ok((manager, membership))
}

/// Makes the node a member.
fn join_cluster(
    env: &Env,
    server: &Server,
    address: &EtcdAddress,
    (names, texts): (EtcdNames, EtcdTexts),
) -> anyhow::Result<Membership> {
    let store = Arc::new(EtcdStore::new(env.clone(), address, texts.access()?));
    let files = EtcdFiles::follow(env, Arc::clone(&store), names, texts).context("cannot start a thread")?;
    Ok((Cluster::join_checked(Arc::clone(server.node()), store, ClusterConfig::default())?, files))
}

/// Waits until the node is let in, or told to stop. Says what it waits for if that takes long.
fn wait_until_let_in(again: &mut Again<'_>, server: &Server, cluster: &Cluster, manager: &Manager) -> Told {
    let begun = again.env.clock.monotonic();
    let mut has_said = false;
    loop {
        let has_waited = again.env.clock.monotonic() - begun > LET_IN_WITHIN;
        if cluster.wait_until_served(Duration::ZERO) && (has_waited || !readiness::may_come(server.node())) {
            return Told::Nothing;
        }
        if cluster.is_stranger() {
            return Told::ToGoAway;
        }
        let is_long = has_waited || cluster.outside().is_some();
        if is_long && !has_said {
            let missing = missing(cluster);
            say(&format!("not {}: {missing}", server.ready_line()));
            manager.waits(&missing);
            has_said = true;
        }
        if server.signal_within(LOOK_EVERY).is_some_and(|signal| again.is_stop(server, signal)) {
            return if has_said { Told::ToStop } else { Told::ToStopWaiting };
        }
    }
}

/// What keeps a node from serving.
fn missing(cluster: &Cluster) -> String {
    let lost = || Some(format!("it waits for the coordination store: {}", cluster.lost()?));
    let unread = || cluster.view().is_none().then(|| "it waits for the coordination store".to_owned());
    let waits = || "it waits until its cluster lets it in, and goes on trying".to_owned();
    cluster.outside().or_else(lost).or_else(unread).unwrap_or_else(waits)
}

/// Prints a line for whoever started the node.
fn say(line: &str) {
    let mut stdout = std::io::stdout();
    // Whoever started the node may have stopped reading; that is no reason not to serve.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// The same on standard error.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Keeps documents, passwords and keys out of core dumps, and other programs of the same user out of the memory, unless
/// [`CORE_DUMPS`] says otherwise.
fn keep_memory_private() {
    if std::env::var(CORE_DUMPS).is_ok_and(|word| word == "on") {
        return;
    }
    let hidden = hide_memory();
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    if let Err(error) = hidden.and_then(|()| setrlimit(Resource::Core, limit)) {
        tracing::warn!(
            event = "core_dump_not_off", %error,
            "core dumps cannot be switched off: a crash may leave documents and keys in one"
        );
    }
}

/// The limit alone does not hold for a program that the kernel hands dumps to.
#[cfg(target_os = "linux")]
fn hide_memory() -> rustix::io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
}

/// Elsewhere the limit is all there is.
#[cfg(not(target_os = "linux"))]
fn hide_memory() -> rustix::io::Result<()> {
    Ok(())
}

/// Takes as many descriptors as the system allows: shells usually start programs with room for about a thousand.
/// Says how many there are now; nothing if there is no limit.
pub(super) fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(
            event = "open_files_limit_stays", %error,
            "the limit of open files (ulimit -n, LimitNOFILE) stays at {:?}", limit.current
        );
    }
    getrlimit(Resource::Nofile).current
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn make_password(env: &Env) -> String {
    let letters = PASSWORD_LETTERS.len() as u64;
    // 56 letters do not divide 2^64, by an unevenness nobody can use.
    let letter = |_| char::from(PASSWORD_LETTERS[(env.random.next_u64() % letters) as usize]);
    (0..PASSWORD_LEN).map(letter).collect()
}

/// What the process's environment says about the user's folders (XDG Base Directory Specification).
#[derive(Clone, Debug, Default)]
struct Home {
    xdg_data_home: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Home {
    fn of_process() -> Home {
        let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Home { xdg_data_home: folder("XDG_DATA_HOME"), home: folder("HOME") }
    }

    fn data_dir(&self) -> anyhow::Result<PathBuf> {
        let data = self.xdg_data_home.clone().or_else(|| Some(self.home.as_ref()?.join(".local/share")));
        Ok(data.context("there is no HOME to keep documents in; give --data DIR")?.join("stave"))
    }
}

fn read_file(env: &Env, path: &Path) -> anyhow::Result<Settings> {
    let text = read_text(env, path)?;
    Settings::parse(&text).with_context(|| path.display().to_string())
}

/// A small file.
pub(super) fn read_text(env: &Env, path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let file = env.disk.open(path, OpenMode::Read).map_err(|error| cannot_read(path, error))?;
    let mut bytes = vec![0; MAX_CONFIG_BYTES];
    let count = file.read_at(&mut bytes, 0).with_context(|| format!("cannot read {name}"))?;
    if count == MAX_CONFIG_BYTES {
        bail!("{name} is larger than such a file may be: {MAX_CONFIG_BYTES} bytes");
    }
    bytes.truncate(count);
    String::from_utf8(bytes).with_context(|| format!("{name} is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file() {
        let file = Settings::parse("kv = \"127.0.0.1:1\"\nbuckets = [\"a\"]").expect("a valid file");
        let flags = ServeFlags { kv: Some("127.0.0.1:2".into()), ..ServeFlags::default() };
        let settings = flags.settings(file);
        assert_eq!(settings.kv.as_deref(), Some("127.0.0.1:2"));
        assert_eq!(settings.buckets, Some(vec!["a".to_owned()]));
    }

    #[test]
    fn an_empty_password_is_refused_with_where_it_comes_from() {
        let flags = ServeFlags { password: Some(Secret::default()), ..ServeFlags::default() };
        let refused = password(&Env::real(), &flags).expect_err("it is empty");
        assert!(
            refused.is::<WrongArguments>() && refused.to_string().contains("STAVE_PASSWORD"),
            "{refused}"
        );
        assert_eq!(password(&Env::real(), &ServeFlags::default()).expect("none is given"), None);
    }

    #[test]
    fn the_file_names_a_file_of_the_password_if_nothing_else_does() {
        let file = || Settings::parse("password-file = \"/p\"").expect("valid");
        let mut flags = ServeFlags::default();
        take_password_file(&mut flags, &mut file()).expect("the one there is");
        assert_eq!(flags.password_file.as_deref(), Some(Path::new("/p")));
        let mut flags = ServeFlags { password: Some(Secret("p".to_owned())), ..ServeFlags::default() };
        take_password_file(&mut flags, &mut file()).expect("the flag wins");
        assert_eq!(flags.password_file, None);
        let mut both = Settings { password: Some("p".to_owned()), ..file() };
        let refused = take_password_file(&mut ServeFlags::default(), &mut both).expect_err("two");
        assert!(refused.is::<WrongArguments>() && refused.to_string().contains("password-file"), "{refused}");
    }

    #[test]
    fn buckets_that_were_made_over_http_are_told_beside_the_others() {
        let made = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(buckets(&["default"], &made(&[])), "default");
        assert_eq!(buckets(&["default"], &made(&["default", "a", "b"])), "default; made over HTTP: a, b");
    }

    #[test]
    fn data_are_kept_in_the_users_folder() {
        let home = Home { xdg_data_home: None, home: Some("/ada".into()) };
        assert_eq!(home.data_dir().expect("there is a home"), Path::new("/ada/.local/share/stave"));
        let home = Home { xdg_data_home: Some("/xdg".into()), ..home };
        assert_eq!(home.data_dir().expect("there is a home"), Path::new("/xdg/stave"));
        assert!(Home::default().data_dir().is_err());
    }

    /// A node that runs goes on with the access to etcd that it has, and takes the rest of its configuration.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test writes the files that are read")]
    fn a_file_for_etcd_that_cannot_be_used_refuses_a_start_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("stave.toml");
        let (ca, data) = (folder.path().join("ca.pem"), folder.path().join("data"));
        std::fs::write(&ca, "half written").expect("written");
        let join = "join = \"etcd://127.0.0.1:1/c\"\npassword = \"secret-1\"\n";
        std::fs::write(&file, format!("{join}data = {data:?}\netcd-ca = {ca:?}\n")).expect("written");
        let flags = ServeFlags { config: Some(file), ..ServeFlags::default() };
        let (env, names) = (Env::real(), &mut KnownNames::default());
        let setup = Setup::read(&env, flags.clone(), None, names, &AtomicBool::new(false));
        let setup = setup.expect("the rest can be used");
        assert!(setup.config.users[0].password == "secret-1" && setup.etcd.1.is_err());
        let why = Setup::at_start(&env, flags, None, names).err().expect("no start");
        assert!(format!("{why:#}").contains("TLS with etcd cannot be set up"), "{why:#}");
    }

    #[test]
    fn a_password_that_is_made_up_is_long_and_plain() {
        let (env, _) = Env::sim(1);
        let password = make_password(&env);
        assert_eq!(password.len(), PASSWORD_LEN);
        assert!(password.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }
}
