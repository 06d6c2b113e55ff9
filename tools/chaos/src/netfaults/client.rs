//! The workload: a Go program with the SDK, built from `tests/faults`, in the clients' namespace.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::child::succeeds;
use harness::stave::{BUCKET, PASSWORD, USER};
use harness::tree;

use super::process::KV;
use super::world::{Place, World};

/// How long the SDK may take to connect.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How soon the SDK connects again to a node that refused it.
const RECONNECT_AFTER_MS: u64 = 250;
/// How long reading everything once more may take.
const END_WITHIN: Duration = Duration::from_secs(120);

/// Builds the program.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let binary = folder.join("workload");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&binary).arg(".").current_dir(tree::root().join("tests/faults"));
    ensure!(succeeds(&mut go)?, "the workload could not be built");
    Ok(binary)
}

/// The running program.
pub struct Client {
    child: Child,
    said: mpsc::Receiver<String>,
    log: PathBuf,
    /// How many operations were done, refused, and answered in doubt.
    pub done: [u64; 3],
}

impl Client {
    /// Starts it, and waits until it works.
    pub fn start(
        world: &World,
        binary: &Path,
        nodes: u8,
        seed: u64,
        history: &Path,
        log: PathBuf,
    ) -> Result<Client> {
        let hosts: Vec<String> = (1..=nodes).map(|n| format!("{}:{KV}", Place::Node(n).address())).collect();
        let mut command = world.command(Place::Client, binary);
        // By itself the SDK connects to a node that refused it five seconds later: nothing would be seen of the rest.
        let seeds = format!("couchbase://{}?server_wait_backoff={RECONNECT_AFTER_MS}", hosts.join(","));
        command.args(["-connect", &seeds]);
        command.args(["-user", USER, "-password", PASSWORD, "-bucket", BUCKET]);
        command.args(["-seed", &seed.to_string(), "-history"]).arg(history);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let output = child.stdout.take().context("the output is piped")?;
        let (say, said) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Nobody listens any more when the run is over.
                let _ = say.send(line);
            }
        });
        let client = Client { child, said, log, done: [0; 3] };
        match client.said.recv_timeout(READY_WITHIN) {
            Ok(line) if line == "ready" => Ok(client),
            Ok(line) => bail!("the workload said {line:?} instead of being ready"),
            Err(_) => {
                let why = client.failure();
                bail!("the workload did not get ready: {why}")
            }
        }
    }

    /// Takes notice of how far it is; an error if it has ended.
    pub fn look(&mut self) -> Result<()> {
        while let Ok(line) = self.said.try_recv() {
            let mut numbers = line.split(' ').skip(1).filter_map(|number| number.parse().ok());
            self.done = std::array::from_fn(|at| numbers.next().unwrap_or(self.done[at]));
        }
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the workload ended with {status}: {}", self.failure()),
        }
    }

    /// Lets it read everything once more, and end.
    pub fn finish(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < END_WITHIN {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the workload ended with {status}: {}", self.failure());
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("the workload did not end within {END_WITHIN:?}")
    }

    fn failure(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It has ended already, or the run has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
