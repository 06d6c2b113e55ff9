//! The command line: what it takes, and what the process ends with.

mod failure;
mod named_files;
mod over_environment;
pub(crate) mod profile;
mod secret_flags;
pub(crate) mod variables;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use base::env::Env;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::client::{self, ClientTlsFlags, Dialect, Patience, Secret, Target, Trust};
use crate::commands;
use crate::commands::password::PasswordFlags;
use crate::units::parse_duration;
pub use crate::wrong_arguments::WrongArguments;
pub(crate) use failure::{explain, key_error};
use profile::ProfileFlags;

/// How a command ended, beyond failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it should.
    Done,
    /// The document does not exist.
    NotFound,
    /// The node that was asked is not well.
    NotWell,
    /// What was checked has faults.
    Faults,
}

const NOT_FOUND: u8 = 1;
/// What the parser of the arguments ends with, too.
const WRONG_ARGUMENTS: u8 = 2;
const FAILED: u8 = 3;
const FAULTS: u8 = 4;

/// A memory-first, persistent key-value engine that Couchbase SDKs connect to.
#[derive(Debug, Parser)]
#[command(
    name = "stave",
    version,
    propagate_version = true,
    after_help = "A first look:
  STAVE_PASSWORD=secret1 stave serve
  STAVE_PASSWORD=secret1 stave set hello '{\"to\":\"you\"}'
  STAVE_PASSWORD=secret1 stave get hello

Exit codes: 0 done, 1 document not found or node not well (`health`), 2 wrong arguments or configuration, 3 anything else that failed,
4 what was checked has faults (`check`, `backup verify`, `backup drill`, `import cluster`)."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

// A line here takes the place of all that a command says of itself: those without one say more than a line.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Box<commands::serve::ServeFlags>),
    Dev(Box<commands::dev::DevFlags>),
    Bench(Box<commands::bench::BenchFlags>),
    /// Print a document
    Get(commands::document::GetFlags),
    /// Write a document
    Set(commands::document::SetFlags),
    /// Delete a document
    Delete(commands::document::DeleteFlags),
    Keys(commands::keys::KeysFlags),
    SetParam(commands::set_param::SetParamFlags),
    LogLevel(commands::log_level::LogLevelFlags),
    /// Print a server's figures
    Stats(commands::stats::StatsFlags),
    /// Print how long operations of a node took
    Timings(commands::timings::TimingsFlags),
    /// Watch what the nodes of a cluster do, on one screen
    Top(commands::top::TopFlags),
    Health(commands::health::HealthFlags),
    /// Collect what a report of a fault needs, from all nodes, into one archive
    Collect(commands::collect::CollectFlags),
    Check(commands::check::CheckFlags),
    Compact(commands::compact::CompactFlags),
    Migrate(commands::migrate::MigrateFlags),
    Dump(commands::dump::DumpFlags),
    Decrypt(commands::decrypt::DecryptFlags),
    Import(Box<commands::import::ImportFlags>),
    /// Write a bucket's documents as lines of JSON or rows of CSV
    Export(commands::export::ExportFlags),
    /// Copy what a bucket holds into a folder while it serves
    Backup(Box<commands::backup::BackupFlags>),
    Restore(Box<commands::restore::RestoreFlags>),
    Replicate(commands::replicate::ReplicateFlags),
    MoveVbuckets(commands::replicate::MoveFlags),
    /// Make certificates for nodes
    Certs(commands::certs::CertsFlags),
    /// Look at a cluster, and change who is in it
    Cluster(commands::cluster::ClusterFlags),
    /// Buckets: look at them, make, change, empty and delete them
    Bucket(commands::bucket::BucketFlags),
    /// Scopes of a bucket: look at them, make and delete them
    Scope(commands::scope::ScopeFlags),
    /// Collections of a bucket: look at them, make and delete them
    Collection(commands::collection::CollectionFlags),
    /// Users that are made while nodes run: look at them, make, change and delete them
    User(commands::user::UserFlags),
    /// Groups of users, which share their roles
    Group(commands::group::GroupFlags),
    /// Snapshots by file that nodes keep for clients: look at them, and end them
    Snapshot(commands::snapshot::SnapshotFlags),
    /// Follow a bucket's changes in the terminal
    DcpTail(commands::dcp_tail::DcpTailFlags),
    /// Read a whole bucket by DCP, as fast as it comes
    Drain(commands::drain::DrainFlags),
    /// Print what has a shell complete the words of a command
    Completions(commands::shell::CompletionsFlags),
    /// Write manual pages, one for each command
    Man(commands::shell::ManFlags),
    Version(commands::version::VersionFlags),
}

/// Where a node is reached if nothing else is said.
const DEFAULT_HOST: &str = "127.0.0.1";
/// No address that can be given: a port that is given is taken as it is, with and without TLS.
const DEFAULT_ADDR: &str = "127.0.0.1:11210|11207";
const KV_PORT: u16 = 11210;
const KV_PORT_TLS: u16 = 11207;

/// Which node, and as whom.
#[derive(Clone, Debug, Args)]
pub struct NodeFlags {
    /// The server's KV address; the port is 11210 if none is given, with TLS 11207
    #[arg(long, value_name = "HOST:PORT", env = "STAVE_ADDR", default_value = DEFAULT_ADDR, value_parser = NonEmptyStringValueParser::new())]
    pub addr: String,
    /// Who to log in as
    #[arg(long, value_name = "USER", env = "STAVE_USERNAME", default_value = "Administrator")]
    pub username: String,
    /// How the user proves to be that one.
    #[command(flatten)]
    pub password: PasswordFlags,
    /// The profile that says what no flag and no variable does.
    #[command(flatten)]
    pub profile: ProfileFlags,
    /// How long that node, and others that it names, are waited for.
    #[command(flatten)]
    pub wait: WaitFlags,
    /// How it is spoken with by TLS.
    #[command(flatten)]
    pub tls: ClientTlsFlags,
}

/// How long a node is waited for.
#[derive(Clone, Copy, Debug, Args)]
pub struct WaitFlags {
    /// How long to wait for a connection, an answer, or vBuckets that move: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", env = "STAVE_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
}

/// Which node and bucket, and as whom.
#[derive(Clone, Debug, Args)]
pub struct ServerFlags {
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    /// The bucket to use
    #[arg(long, value_name = "NAME", env = "STAVE_BUCKET", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    pub bucket: String,
}

impl ServerFlags {
    /// Whom these flags name. Plain memcached needs no password.
    pub fn target(&self, dialect: Dialect) -> anyhow::Result<Target> {
        self.node.target(&self.bucket, dialect)
    }
}

impl NodeFlags {
    /// A bucket of the node. Plain memcached needs no password.
    pub fn target(&self, bucket: &str, dialect: Dialect) -> anyhow::Result<Target> {
        let tls = self.tls.trust()?;
        let password = match (self.password.given()?, dialect) {
            (Some(password), _) => password,
            (None, Dialect::Memcached) => Secret::default(),
            (None, _) if tls.as_ref().is_some_and(Trust::shows_certificate) => Secret::default(),
            (None, Dialect::Couchbase) => {
                let WrongArguments(what) = self.password.needed();
                anyhow::bail!(WrongArguments(format!("{what} (`stave serve` prints the one it made up)")));
            }
        };
        let target = Target {
            addr: with_port(&self.addr, dialect, tls.is_some()),
            tls,
            dialect,
            username: self.username.clone(),
            password,
            bucket: bucket.to_owned(),
            patience: Patience(self.wait.timeout),
            ..Target::default()
        };
        Ok(target)
    }
}

/// The address with the dialect's usual port if it has none.
fn with_port(addr: &str, dialect: Dialect, by_tls: bool) -> String {
    let of_couchbase = if by_tls { KV_PORT_TLS } else { KV_PORT };
    if addr == DEFAULT_ADDR {
        return client::with_port(DEFAULT_HOST, of_couchbase);
    }
    let port = match dialect {
        Dialect::Couchbase => of_couchbase,
        Dialect::Memcached => 11211,
    };
    client::with_port(addr, port)
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let in_json = failure::is_json_wanted(&args);
    let command = over_environment::without_overruled(Cli::command(), &args);
    let given = profile::matches(&command, &args, &profile::ProfileFile::of_user());
    let cli = given.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let ended = match cli.map_err(anyhow::Error::downcast::<clap::Error>) {
        Ok((cli, matches)) => {
            // Not `command`, which leaves out variables that are set and empty.
            secret_flags::leave_the_process_list(&Cli::command(), &args, &matches);
            named_files::are_there(&matches)
                .map_err(anyhow::Error::new)
                .and_then(|()| dispatch(&Env::real(), cli.command))
        }
        // Help, too.
        Err(Ok(wrong)) => return failure::refuse(&failure::worded(wrong, command, &args), in_json),
        Err(Err(error)) => Err(error),
    };
    match ended {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::NotFound | Outcome::NotWell) => ExitCode::from(NOT_FOUND),
        Ok(Outcome::Faults) => ExitCode::from(FAULTS),
        // Somebody who reads only the beginning, like `head`, is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => failure::end(&error, in_json),
    }
}

/// What is said of variables that no command reads.
fn unknown_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    variables::unknown(&Cli::command(), names)
}

fn dispatch(env: &Env, command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Serve(flags) => commands::serve::run(env, *flags, &unknown_variables()),
        Command::Dev(flags) => commands::dev::run(env, *flags),
        Command::Bench(flags) => commands::bench::run(env, &flags),
        Command::Get(flags) => commands::document::get(env, &flags),
        Command::Set(flags) => commands::document::set(env, &flags),
        Command::Delete(flags) => commands::document::delete(env, &flags),
        Command::Keys(flags) => commands::keys::run(env, &flags),
        Command::SetParam(flags) => commands::set_param::run(env, &flags),
        Command::LogLevel(flags) => commands::log_level::run(&flags),
        Command::Certs(flags) => commands::certs::run(env, &flags),
        Command::Stats(flags) => commands::stats::run(env, &flags),
        Command::Timings(flags) => commands::timings::run(env, &flags),
        Command::Top(flags) => commands::top::run(env, &flags),
        Command::Health(flags) => commands::health::run(&flags),
        Command::Collect(flags) => commands::collect::run(env, &flags),
        Command::Check(flags) => commands::check::run(env, &flags),
        Command::Compact(flags) => commands::compact::run(env, &flags),
        Command::Migrate(flags) => commands::migrate::run(env, &flags),
        Command::Dump(flags) => commands::dump::run(env, &flags),
        Command::Decrypt(flags) => commands::decrypt::run(env, &flags),
        Command::Import(flags) => commands::import::run(env, &flags),
        Command::Export(flags) => commands::export::run(env, &flags),
        Command::Backup(flags) => commands::backup::run(env, &flags),
        Command::Restore(flags) => commands::restore::run(env, &flags),
        Command::Replicate(flags) => commands::replicate::replicate(env, &flags),
        Command::Cluster(flags) => commands::cluster::run(env, &flags),
        Command::Bucket(flags) => commands::bucket::run(env, &flags),
        Command::Scope(flags) => commands::scope::run(env, &flags),
        Command::Collection(flags) => commands::collection::run(env, &flags),
        Command::User(flags) => commands::user::run(env, &flags),
        Command::Group(flags) => commands::group::run(env, &flags),
        Command::Snapshot(flags) => commands::snapshot::run(env, &flags),
        Command::MoveVbuckets(flags) => commands::replicate::move_vbuckets(env, &flags),
        Command::DcpTail(flags) => commands::dcp_tail::run(env, &flags),
        Command::Drain(flags) => commands::drain::run(env, &flags),
        Command::Completions(flags) => commands::shell::completions(Cli::command(), &flags),
        Command::Man(flags) => commands::shell::man(Cli::command(), &flags),
        Command::Version(flags) => commands::version::run(&flags),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod every_command;
#[cfg(test)]
mod readme_numbers;
#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[test]
    fn the_arguments_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ports_are_filled_in() {
        let with = |addr| with_port(addr, Dialect::Couchbase, false);
        assert_eq!(with("localhost"), "localhost:11210");
        assert_eq!(with("localhost:1"), "localhost:1");
        assert_eq!(with("[::1]"), "[::1]:11210");
        assert_eq!(with("[::1]:7"), "[::1]:7");
        assert_eq!(with("::1"), "[::1]:11210");
        assert_eq!(with_port("h", Dialect::Memcached, false), "h:11211");
        let by_tls = |addr| with_port(addr, Dialect::Couchbase, true);
        assert_eq!((by_tls("h"), by_tls(DEFAULT_ADDR)), ("h:11207".into(), "127.0.0.1:11207".into()));
        assert_eq!((by_tls("h:1"), with(DEFAULT_ADDR)), ("h:1".into(), "127.0.0.1:11210".into()));
        assert_eq!(by_tls("127.0.0.1:11210"), "127.0.0.1:11210", "a port that is given is taken");
    }

    fn check_error(arguments: &str, expect: Expect) {
        let arguments = std::iter::once("stave").chain(arguments.split_ascii_whitespace());
        let error = Cli::try_parse_from(arguments).expect_err("wrong arguments").to_string();
        expect.assert_eq(error.lines().next().unwrap_or_default());
    }

    #[test]
    fn wrong_arguments_are_explained() {
        check_error(
            "bench --distribution pareto",
            expect![
                "error: invalid value 'pareto' for '--distribution <uniform|own|zipf[:THETA]>': `pareto` is not a distribution; give uniform, own, zipf or zipf:0.99"
            ],
        );
        check_error(
            "bench --value-size 10:5",
            expect![
                "error: invalid value '10:5' for '--value-size <SIZE|MIN:MAX>': `10:5` is not a range of sizes; give the smaller one first, like 64:1024"
            ],
        );
        check_error(
            "bench --value-size 30MiB",
            expect![
                "error: invalid value '30MiB' for '--value-size <SIZE|MIN:MAX>': `30MiB` is more than a document may have: 20MiB"
            ],
        );
        check_error(
            "bench --seconds 5 --operations 7",
            expect!["error: the argument '--seconds <SECONDS>' cannot be used with '--operations <N>'"],
        );
        check_error(
            "get k --timeout soon",
            expect![
                "error: invalid value 'soon' for '--timeout <TIME>': `soon` is no length of time; write it like 500ms, 10s, 2m or 1h, up to a year"
            ],
        );
        check_error(
            "bench --durability all",
            expect!["error: invalid value 'all' for '--durability <DURABILITY>'"],
        );
        check_error("check", expect!["error: the following required arguments were not provided:"]);
        check_error("import lines", expect!["error: the following required arguments were not provided:"]);
        check_error("dump", expect!["error: the following required arguments were not provided:"]);
        check_error("set-param", expect!["error: the following required arguments were not provided:"]);
        check_error(
            "set-param --list max_size",
            expect!["error: the argument '--list' cannot be used with '[NAME]'"],
        );
        check_error(
            "stats --interval 1s",
            expect!["error: the following required arguments were not provided:"],
        );
        assert!(Cli::try_parse_from(["stave", "stats"]).is_ok(), "the default needs no --watch");
        check_error("set key", expect!["error: the following required arguments were not provided:"]);
        // What is wrong with the values of `serve` is said by the server's configuration, which knows.
        check_error(
            "serve --threads x",
            expect!["error: invalid value 'x' for '--threads <N>': invalid digit found in string"],
        );
    }
}
