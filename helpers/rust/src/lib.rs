//! Development clusters of Stave for tests.
//!
#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod binary;
mod control;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

pub use binary::find_binary;

/// How much of the log an error tells.
const LOG_BYTES: usize = 2000;

/// The cluster did not start, or refused an order.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl Error {
    fn io(what: impl fmt::Display, error: io::Error) -> Error {
        Error(format!("{what}: {error}"))
    }
}

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct Options {
    nodes: u16,
    replicas: u8,
    username: String,
    password: String,
    binary: Option<String>,
    more: Vec<String>,
}

impl Options {
    /// How many nodes.
    pub fn nodes(mut self, nodes: u16) -> Options {
        self.nodes = nodes;
        self
    }

    /// Copies of each vBucket beside the active one.
    pub fn replicas(mut self, replicas: u8) -> Options {
        self.replicas = replicas;
        self
    }

    /// A bucket, `NAME[:QUOTA[:TYPE]]`; may be repeated. Without any there is `default`.
    pub fn bucket(self, bucket: &str) -> Options {
        self.argument("--bucket").argument(bucket)
    }

    /// User and password.
    pub fn login(mut self, username: &str, password: &str) -> Options {
        (self.username, self.password) = (username.to_owned(), password.to_owned());
        self
    }

    /// The stave program.
    pub fn binary(mut self, path: &str) -> Options {
        self.binary = Some(path.to_owned());
        self
    }

    /// Documents that the cluster begins with, after each reset too; docs/developing.md has the format.
    pub fn seed_file(self, path: impl AsRef<Path>) -> Options {
        self.argument("--seed-file").argument(&path.as_ref().to_string_lossy())
    }

    /// One more argument of `stave dev`.
    pub fn argument(mut self, argument: &str) -> Options {
        self.more.push(argument.to_owned());
        self
    }

    /// Starts the cluster, and waits until all of its nodes serve.
    pub fn start(self) -> Result<Dev, Error> {
        let binary = find_binary(self.binary.as_deref())?;
        let mut command = Command::new(&binary);
        command.args(["dev", "--json", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.args(["--with-parent", &std::process::id().to_string(), "--username", &self.username]);
        command.args(["--nodes", &self.nodes.to_string(), "--replicas", &self.replicas.to_string()]);
        command.args(&self.more).env("STAVE_PASSWORD", &self.password);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| Error::io(format_args!("cannot run {binary}"), error))?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().expect("it is piped");
        let reader = {
            let log = Arc::clone(&log);
            thread::spawn(move || keep_tail(stderr, &log))
        };
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        // At its end and after an error alike, the process is not ready.
        if matches!(stdout.read_line(&mut line), Ok(0) | Err(_)) {
            // Closed or killed, it ends; what it said comes first.
            let status = child.wait().map_err(|error| Error::io("cannot wait for stave dev", error))?;
            drop(reader.join());
            let said = log.lock().map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default();
            return Err(Error(format!(
                "stave dev ended with {status} before it was ready; its log ends with:\n{said}"
            )));
        }
        let one = |field: &str| addresses(&line, field).into_iter().next().unwrap_or_default();
        let (control, http) = (one("control"), one("http"));
        let (kv, username, password) = (addresses(&line, "kv"), self.username, self.password);
        Ok(Dev { child, _stdout: stdout, kv, http, control, username, password })
    }
}

/// Reads to the end, so that the process never waits, and keeps the end of what was read.
fn keep_tail(mut stderr: ChildStderr, log: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let Ok(mut log) = log.lock() else { return };
        log.extend_from_slice(&buffer[..count]);
        let more = log.len().saturating_sub(LOG_BYTES);
        log.drain(..more);
    }
}

/// The values of a field of the ready line whose values are addresses.
fn addresses(json: &str, field: &str) -> Vec<String> {
    let begin = format!("\"{field}\":\"");
    let values = json.split(&begin).skip(1);
    let address = |rest: &str| {
        let value = rest.split('"').next().unwrap_or_default();
        value.parse::<std::net::SocketAddr>().ok().map(|_| value.to_owned())
    };
    values.filter_map(address).collect()
}

/// A running development cluster. It ends when it is dropped, and with this process.
#[derive(Debug)]
pub struct Dev {
    child: Child,
    // Open as long as the process writes.
    _stdout: BufReader<ChildStdout>,
    kv: Vec<String>,
    http: String,
    control: String,
    username: String,
    password: String,
}

impl Dev {
    /// One node with the bucket `default`, unless more is said.
    pub fn options() -> Options {
        let (username, password) = ("Administrator".to_owned(), "password".to_owned());
        Options { nodes: 1, replicas: 0, username, password, binary: None, more: Vec::new() }
    }

    /// For SDKs, with all nodes.
    pub fn connection_string(&self) -> String {
        format!("couchbase://{}", self.kv.join(","))
    }

    /// The user.
    pub fn username(&self) -> &str {
        &self.username
    }

    /// The user's password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Where the first node serves HTTP, `HOST:PORT`.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// Where the control endpoint listens, `HOST:PORT`.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Any order of the control endpoint, `nodes/2/cut?from=store`; returns what the cluster is then, as JSON.
    pub fn order(&self, path: &str) -> Result<String, Error> {
        control::ask(&self.control, "POST", path)
    }

    /// What each node is and where it listens, as JSON.
    pub fn status(&self) -> Result<String, Error> {
        control::ask(&self.control, "GET", "")
    }

    fn order_of(&self, node: u16, name: &str) -> Result<(), Error> {
        self.order(&format!("nodes/{node}/{name}")).map(drop)
    }

    /// All nodes serve, without injected failures, and all buckets are empty, or have what the seed file says.
    pub fn reset(&self) -> Result<(), Error> {
        self.order("reset").map(drop)
    }

    /// Requests wait.
    pub fn delay(&self, ms: u32, what: &Injection) -> Result<(), Error> {
        self.order(&what.path("delay", &format!("ms={ms}"))).map(drop)
    }

    /// Requests are refused with a temporary failure.
    pub fn fail(&self, what: &Injection) -> Result<(), Error> {
        self.order(&what.path("fail", "status=temporary-failure")).map(drop)
    }

    /// Takes back delays and failures.
    pub fn heal(&self) -> Result<(), Error> {
        self.order("heal").map(drop)
    }

    /// Moves the wall clock of all nodes, so that documents expire.
    pub fn advance_clock(&self, seconds: i64) -> Result<(), Error> {
        self.order(&format!("clock?advance_s={seconds}")).map(drop)
    }

    /// Ends a node as `kill -9` would.
    pub fn kill(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "kill")
    }

    /// Closes a node cleanly.
    pub fn stop(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "stop")
    }

    /// Starts a node where it was.
    pub fn start(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "start")
    }

    /// Stops and starts a node.
    pub fn restart(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "restart")
    }

    /// Lets a node stand still.
    pub fn freeze(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "freeze")
    }

    /// Lets it go on.
    pub fn thaw(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "thaw")
    }

    /// Lets others take over from a node.
    pub fn failover(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "failover")
    }

    /// Takes a node back.
    pub fn recover(&self, node: u16) -> Result<(), Error> {
        self.order_of(node, "recover")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // SIGTERM, so that it removes its folder; the standard library only knows SIGKILL.
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        if !asked.is_ok_and(|status| status.success()) {
            drop(self.child.kill());
        }
        drop(self.child.wait());
    }
}

/// Which requests are delayed or refused.
#[derive(Clone, Debug, Default)]
pub struct Injection {
    opcode: Option<String>,
    node: Option<u16>,
    times: Option<u64>,
}

impl Injection {
    /// Those of every command that is answered from documents, on all nodes, until they are healed.
    pub fn all() -> Injection {
        Injection::default()
    }

    /// Those of one command, such as `get`.
    pub fn of(opcode: &str) -> Injection {
        Injection { opcode: Some(opcode.to_owned()), ..Injection::default() }
    }

    /// On one node only.
    pub fn node(self, node: u16) -> Injection {
        Injection { node: Some(node), ..self }
    }

    /// The next ones of each node only.
    pub fn times(self, times: u64) -> Injection {
        Injection { times: Some(times), ..self }
    }

    fn path(&self, order: &str, options: &str) -> String {
        let at = self.node.map(|node| format!("nodes/{node}/")).unwrap_or_default();
        let opcode = self.opcode.as_ref().map(|opcode| format!("&opcode={opcode}")).unwrap_or_default();
        let times = self.times.map(|times| format!("&times={times}")).unwrap_or_default();
        format!("{at}{order}?{options}{opcode}{times}")
    }
}
