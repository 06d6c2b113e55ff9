//! `stave serve`: from flags and a configuration file to what the server needs to know.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use base::env::{Env, OpenMode};
use clap::Args;
use serde::Deserialize;

use crate::cli::Outcome;
use crate::client::Secret;
use crate::units::parse_bytes;

const DEFAULT_KV_PORT: u16 = 11210;
const DEFAULT_HTTP_PORT: u16 = 8091;
const DEFAULT_USERNAME: &str = "Administrator";
const DEFAULT_BUCKET: &str = "default";
const DEFAULT_QUOTA_BYTES: u64 = 256 << 20;
const MIN_QUOTA_BYTES: u64 = 1 << 20;
const MAX_BUCKET_NAME_BYTES: usize = 100;
const MAX_THREADS: usize = 1_024;
const MAX_CONFIG_BYTES: usize = 1 << 20;
/// Without those that look alike.
const PASSWORD_LETTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const PASSWORD_LEN: usize = 20;

/// Run a node.
///
/// When it can serve it prints one line: `ready kv=HOST:PORT http=HOST:PORT data=DIR`.
/// SIGTERM and Ctrl-C stop it cleanly.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  stave serve
  stave serve --data ./data --username Administrator --password secret1 --bucket default:1GiB
  stave serve --kv 0.0.0.0:11210 --http 0.0.0.0:8091 --bucket orders:2GiB --bucket sessions:512MiB:ephemeral
  stave serve --config stave.toml

The configuration file holds the same names; flags win over it:
  data = \"/var/lib/stave\"
  kv = \"127.0.0.1:11210\"
  bucket = [\"orders:2GiB\", \"sessions:512MiB:ephemeral\"]")]
pub struct ServeFlags {
    /// Where documents are kept [default: a folder of the user, like ~/.local/share/stave]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where clients connect; port 0 takes a free one [default: 127.0.0.1:11210]
    #[arg(long, value_name = "ADDR", value_parser = parse_addr)]
    kv: Option<SocketAddr>,
    /// Where metrics, health and the SDKs' questions are answered; port 0 takes a free one [default: 127.0.0.1:8091]
    #[arg(long, value_name = "ADDR", value_parser = parse_addr)]
    http: Option<SocketAddr>,
    /// The user that may do everything [default: Administrator]
    #[arg(long, value_name = "U")]
    username: Option<String>,
    /// The user's password [default: one is made up and printed once]
    #[arg(long, value_name = "P", env = "STAVE_PASSWORD", hide_env_values = true)]
    password: Option<Secret>,
    /// A bucket, its quota and its type (couchbase or ephemeral); may be repeated [default: default:256MiB:couchbase]
    #[arg(long, value_name = "NAME[:QUOTA[:TYPE]]")]
    bucket: Vec<BucketArg>,
    /// Threads that serve clients [default: one for each CPU]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// A file with any of these
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
}

/// The same in a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServeFile {
    data: Option<PathBuf>,
    kv: Option<String>,
    http: Option<String>,
    username: Option<String>,
    password: Option<String>,
    bucket: Option<Vec<String>>,
    threads: Option<usize>,
}

/// Whether a bucket's documents are kept on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketType {
    /// They are.
    #[default]
    Couchbase,
    /// They are only in memory.
    Ephemeral,
}

/// A bucket to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketArg {
    /// Its name.
    pub name: String,
    /// How much memory it may take.
    pub quota_bytes: u64,
    /// Whether its documents are kept on disk.
    pub bucket_type: BucketType,
}

/// A password, and whether the user knows it already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Password {
    /// The password.
    pub text: Secret,
    /// Whether it was made up just now.
    pub generated: bool,
}

/// All a server needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeArgs {
    /// Where documents are kept.
    pub data: PathBuf,
    /// Where clients connect.
    pub kv: SocketAddr,
    /// Where HTTP is answered.
    pub http: SocketAddr,
    /// The user that may do everything.
    pub username: String,
    /// The user's password.
    pub password: Password,
    /// The buckets, at least one.
    pub buckets: Vec<BucketArg>,
    /// Threads that serve clients.
    pub threads: usize,
}

impl FromStr for BucketArg {
    type Err = String;

    fn from_str(text: &str) -> Result<BucketArg, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let quota_bytes = match parts.next() {
            None | Some("") => DEFAULT_QUOTA_BYTES,
            // As administrators of Couchbase are used to, a bare number counts MiB.
            Some(quota) if quota.bytes().all(|b| b.is_ascii_digit()) => parse_bytes(&format!("{quota}MiB"))?,
            Some(quota) => parse_bytes(quota)?,
        };
        let bucket_type = match parts.next() {
            None | Some("couchbase" | "membase") => BucketType::Couchbase,
            Some("ephemeral") => BucketType::Ephemeral,
            Some(other) => {
                return Err(format!("`{other}` is not a type of bucket; give couchbase or ephemeral"));
            }
        };
        if parts.next().is_some() {
            return Err(format!("`{text}` has too many parts; write NAME, NAME:QUOTA or NAME:QUOTA:TYPE"));
        }
        check_bucket_name(name)?;
        if quota_bytes < MIN_QUOTA_BYTES {
            return Err(format!("a quota of {quota_bytes} bytes is too small; give at least 1MiB"));
        }
        Ok(BucketArg { name: name.to_owned(), quota_bytes, bucket_type })
    }
}

fn check_bucket_name(name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.%".contains(&b);
    if (1..=MAX_BUCKET_NAME_BYTES).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('.')
    {
        Ok(())
    } else {
        Err(format!(
            "`{name}` is not a bucket name; give up to 100 letters, digits, `_`, `-`, `%` or `.`, without a `.` in front"
        ))
    }
}

fn parse_addr(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse()
        .map_err(|_| format!("`{text}` is not an address; write it like 127.0.0.1:11210 or [::1]:11210"))
}

impl ServeFlags {
    /// Flags over file over defaults.
    fn resolve(self, file: ServeFile, env: &Env, home: &Home) -> anyhow::Result<ServeArgs> {
        let from_file = |name, addr: Option<String>| -> anyhow::Result<Option<SocketAddr>> {
            let addr = addr.map(|addr| parse_addr(&addr)).transpose();
            addr.map_err(|why| anyhow!("`{name}` in the configuration file: {why}"))
        };
        let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let kv = self.kv.or(from_file("kv", file.kv)?).unwrap_or(local(DEFAULT_KV_PORT));
        let http = self.http.or(from_file("http", file.http)?).unwrap_or(local(DEFAULT_HTTP_PORT));
        let data = match self.data.or(file.data) {
            Some(data) => data,
            None => home.data_dir()?,
        };
        let username = self.username.or(file.username).unwrap_or_else(|| DEFAULT_USERNAME.to_owned());
        let password = match self.password.or(file.password.map(Secret)) {
            Some(text) => Password { text, generated: false },
            None => Password { text: Secret(make_password(env)), generated: true },
        };
        let buckets = if self.bucket.is_empty() { buckets_of(file.bucket)? } else { self.bucket };
        let threads = self.threads.or(file.threads).unwrap_or_else(cpus);
        let args = ServeArgs { data, kv, http, username, password, buckets, threads };
        args.check()?;
        Ok(args)
    }
}

impl ServeArgs {
    fn check(&self) -> anyhow::Result<()> {
        if !(1..=MAX_THREADS).contains(&self.threads) {
            bail!("--threads {} is out of range; give 1 to {MAX_THREADS}", self.threads);
        }
        if self.username.is_empty() || self.username.len() > 128 {
            bail!("--username must have 1 to 128 bytes");
        }
        if self.password.text.0.is_empty() {
            bail!("--password is empty; give one, or leave it out to have one made up");
        }
        if self.kv == self.http && self.kv.port() != 0 {
            bail!("--kv and --http are both {}; give them different ports", self.kv);
        }
        for (at, bucket) in self.buckets.iter().enumerate() {
            if self.buckets[..at].iter().any(|other| other.name == bucket.name) {
                bail!("bucket `{}` is given twice", bucket.name);
            }
        }
        Ok(())
    }
}

fn buckets_of(names: Option<Vec<String>>) -> anyhow::Result<Vec<BucketArg>> {
    let names = names.filter(|names| !names.is_empty()).unwrap_or_else(|| vec![DEFAULT_BUCKET.to_owned()]);
    let parse = |text: &String| text.parse::<BucketArg>().map_err(|why| anyhow!(why));
    names.iter().map(parse).collect::<anyhow::Result<_>>().context("`bucket` in the configuration file")
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_THREADS)
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

fn read_file(env: &Env, path: &Path) -> anyhow::Result<ServeFile> {
    let name = path.display();
    let file = env.disk.open(path, OpenMode::Read).with_context(|| format!("cannot read {name}"))?;
    let mut bytes = vec![0; MAX_CONFIG_BYTES];
    let count = file.read_at(&mut bytes, 0).with_context(|| format!("cannot read {name}"))?;
    if count == MAX_CONFIG_BYTES {
        bail!("{name} is larger than a configuration file may be: {MAX_CONFIG_BYTES} bytes");
    }
    let text = std::str::from_utf8(&bytes[..count]).with_context(|| format!("{name} is not text"))?;
    toml::from_str(text).with_context(|| format!("{name} is not a configuration of `stave serve`"))
}

/// Runs the command.
pub fn run(env: &Env, flags: ServeFlags) -> anyhow::Result<Outcome> {
    let file = match &flags.config {
        Some(path) => read_file(env, path)?,
        None => ServeFile::default(),
    };
    let args = flags.resolve(file, env, &Home::of_process())?;
    if args.password.generated {
        eprintln!("user {}, password {} (printed only now)", args.username, args.password.text.0);
    }
    serve(env, &args)?;
    Ok(Outcome::Done)
}

/// Where the server is started.
fn serve(_env: &Env, args: &ServeArgs) -> anyhow::Result<()> {
    bail!("this build has no server to listen on {}", args.kv)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: ServeFlags, file: &str) -> Result<ServeArgs, String> {
        let home = Home { xdg_data_home: None, home: Some("/home/ada".into()) };
        let file = toml::from_str(file).map_err(|error| error.to_string())?;
        flags.resolve(file, &Env::real(), &home).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn defaults_are_those_of_the_readme() {
        let args = resolve(ServeFlags::default(), "").unwrap();
        assert_eq!(args.kv.to_string(), "127.0.0.1:11210");
        assert_eq!(args.http.to_string(), "127.0.0.1:8091");
        assert_eq!(args.data, Path::new("/home/ada/.local/share/stave"));
        assert_eq!(args.username, "Administrator");
        assert!(args.password.generated && args.password.text.0.len() == PASSWORD_LEN);
        assert_eq!(args.buckets, ["default:256MiB:couchbase".parse().unwrap()]);
        assert!(args.threads >= 1);
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = ServeFlags {
            kv: Some("127.0.0.1:1".parse().unwrap()),
            bucket: vec!["b".parse().unwrap()],
            ..ServeFlags::default()
        };
        let file = "kv = '127.0.0.1:2'\nhttp = 'localhost:3'\nbucket = ['a:1GiB']\npassword = 'p'\nthreads = 3\ndata = '/d'";
        let args = resolve(flags, file).unwrap();
        assert_eq!((args.kv.port(), args.http.port(), args.threads), (1, 3, 3));
        assert_eq!(args.buckets[0].name, "b");
        assert_eq!(args.password, Password { text: Secret("p".into()), generated: false });
        assert_eq!(args.data, Path::new("/d"));
    }

    #[test]
    fn reads_buckets() {
        let bucket: BucketArg = "orders:2GiB".parse().unwrap();
        assert_eq!((bucket.quota_bytes, bucket.bucket_type), (2 << 30, BucketType::Couchbase));
        let bucket: BucketArg = "s:512:ephemeral".parse().unwrap();
        assert_eq!((bucket.quota_bytes, bucket.bucket_type), (512 << 20, BucketType::Ephemeral));
        for bad in ["", ":1GiB", "a/b", ".hidden", "a:x", "a:1KiB", "a:1GiB:memcached", "a:1GiB:ephemeral:x"]
        {
            assert!(bad.parse::<BucketArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_what_cannot_work() {
        let bad = [
            "threads = 0",
            "password = ''",
            "username = ''",
            "kv = 'here'",
            "bucket = ['a', 'a']",
            "quota = 1",
        ];
        for file in bad {
            assert!(resolve(ServeFlags::default(), file).is_err(), "{file}");
        }
        let same = "kv = '127.0.0.1:5'\nhttp = '127.0.0.1:5'";
        assert!(resolve(ServeFlags::default(), same).is_err());
        assert!(Home::default().data_dir().is_err());
    }

    #[test]
    fn passwords_are_not_printed_by_accident() {
        let args =
            resolve(ServeFlags { password: Some(Secret("geheim".into())), ..ServeFlags::default() }, "")
                .unwrap();
        assert!(!format!("{args:?}").contains("geheim"));
    }
}
