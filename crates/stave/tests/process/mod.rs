//! Nodes in processes of their own, and clients that write to them until their connections end.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base::vbucket_map::vbucket_of;
use protocol::{RequestParts, Status, opcode};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{self, Client, Reach};

/// How long a test waits for a line of the log.
const PATIENCE: Duration = Duration::from_secs(180);

/// A process that serves, which does not outlive the test.
pub struct Process {
    pub child: Child,
    pub kv: SocketAddr,
    pub http: SocketAddr,
    /// Lines of the log.
    pub log: mpsc::Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reach for Process {
    fn kv(&self) -> SocketAddr {
        self.kv
    }

    fn http(&self) -> SocketAddr {
        self.http
    }
}

pub const SERVE: &[&str] = &["serve", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"];
pub const DEV: &[&str] = &["dev", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--vbuckets", "4"];

impl Process {
    pub fn start(args: &[&str], more: &[&str]) -> Process {
        // Under nohup the tests themselves ignore SIGHUP, and what they start would, too.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_stave")]).args(args).args(more);
        Process::of(command, |_| {})
    }

    /// A process that was told to ignore SIGHUP, as nohup does.
    pub fn without_hang_up(args: &[&str], more: &[&str]) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_stave")]);
        command.args(args).args(more);
        Process::of(command, |_| {})
    }

    /// A process in a session of its own, which has no terminal.
    pub fn without_terminal(args: &[&str], more: &[&str]) -> Process {
        let mut command = Command::new("setsid");
        command.args(["env", "--default-signal=HUP", env!("CARGO_BIN_EXE_stave")]).args(args).args(more);
        Process::of(command, |_| {})
    }

    /// `look` may keep the standard error.
    pub fn of(mut command: Command, look: impl FnOnce(&mut Option<ChildStderr>)) -> Process {
        let mut child = command
            .env("STAVE_PASSWORD", "password")
            .env_remove("STAVE_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary is there");
        let mut stderr = child.stderr.take();
        look(&mut stderr);
        let (sender, log) = mpsc::channel();
        if let Some(stderr) = stderr {
            std::thread::spawn(move || {
                let lines = BufReader::new(stderr).lines().map_while(Result::ok);
                lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let field = |name: &str| {
            let mut fields = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
            let (_, value) = fields.find(|(field, _)| *field == name).unwrap_or_else(|| panic!("{line}"));
            value.parse().expect("an address")
        };
        let (kv, http) = (field("kv"), field("http"));
        Process { child, kv, http, log }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// The next line of the log with these words.
    pub fn logged(&self, words: &str) -> String {
        let begun = Instant::now();
        let next = || self.log.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())).ok();
        std::iter::from_fn(next)
            .find(|line| line.contains(words))
            .unwrap_or_else(|| panic!("no line with {words:?}"))
    }

    pub fn ends_well(mut self) {
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}: {:?}", self.log.iter().collect::<Vec<_>>());
    }
}

/// A configuration with few vBuckets, as the client of the tests has them, and more lines.
pub fn configure(folder: &Path, more: &str) -> String {
    let path = folder.join("stave.toml");
    std::fs::write(&path, format!("vbuckets = {}\n{more}", support::VBUCKETS)).expect("written");
    path.to_str().expect("text").to_owned()
}

/// What clients were told while they wrote, changed and deleted documents, until their connections ended.
#[derive(Default)]
pub struct Ledger(pub Vec<BTreeMap<String, Told>>);

/// The last that is known of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Its value, as the last answer says; `None` if it was deleted.
    acknowledged: Option<String>,
    /// What was asked for last, if no answer came.
    unanswered: Option<Option<String>>,
}

/// Clients that write until their connections end.
pub struct Writers {
    threads: Vec<std::thread::JoinHandle<BTreeMap<String, Told>>>,
    answers: mpsc::Receiver<()>,
}

pub const WRITERS: usize = 3;
/// Documents of each writer: they are overwritten and deleted again and again.
pub const KEYS: usize = 150;

pub fn change(client: &mut Client, vbuckets: u16, key: &str, value: Option<&str>) -> Option<Status> {
    let (key, vbucket) = (key.as_bytes(), vbucket_of(key.as_bytes(), vbuckets));
    let parts = RequestParts { key, vbucket, ..RequestParts::default() };
    let asked = match value {
        Some(value) => {
            RequestParts { opcode: opcode::SET, value: value.as_bytes(), extras: &[0; 8], ..parts }
        }
        None => RequestParts { opcode: opcode::DELETE, ..parts },
    };
    client.try_request(&asked).map(|answer| answer.status)
}

/// Changes documents until the connection ends.
pub fn write(
    mut client: Client,
    vbuckets: u16,
    writer: usize,
    answered: &mpsc::Sender<()>,
) -> BTreeMap<String, Told> {
    let mut told = BTreeMap::<String, Told>::new();
    for n in 0.. {
        let key = format!("writer-{writer}-{}", n % KEYS);
        let value = (n % 7 != 6).then(|| format!("version {n} of {key}"));
        let of_key = told.entry(key.clone()).or_default();
        match change(&mut client, vbuckets, &key, value.as_deref()) {
            Some(Status::Success) => of_key.acknowledged = value,
            Some(Status::KeyEnoent) if value.is_none() => {}
            // A node of a cluster that stops serves nothing any more: that changed nothing.
            Some(Status::NotMyVbucket) => break,
            Some(other) => panic!("{key}: {other:?}"),
            None => {
                of_key.unanswered = Some(value);
                break;
            }
        }
        // The test may not listen any more.
        let _ = answered.send(());
    }
    told
}

impl Writers {
    pub fn start(at: &impl Reach, vbuckets: u16) -> Writers {
        let (answered, answers) = mpsc::channel();
        let begin = |writer| {
            let (client, answered) = (Client::connect(at, "default", &[]), answered.clone());
            std::thread::spawn(move || write(client, vbuckets, writer, &answered))
        };
        Writers { threads: (0..WRITERS).map(begin).collect(), answers }
    }

    /// Waits for so many more answers.
    pub fn go_on(&self, answers: usize) {
        for _ in 0..answers {
            self.answers.recv().expect("the writers write");
        }
    }

    /// What they were told when their connections have ended.
    pub fn end(self) -> Ledger {
        Ledger(self.threads.into_iter().map(|thread| thread.join().expect("a writer")).collect())
    }
}

impl Ledger {
    /// Every document is what the last answer said, or what the request says that had none.
    pub fn check(&self, at: &impl Reach, vbuckets: u16, about: &str) {
        let mut client = Client::connect(at, "default", &[]);
        let told = self.0.iter().flatten();
        let mut compared = 0;
        for (key, told) in told {
            let vbucket = vbucket_of(key.as_bytes(), vbuckets);
            let get =
                RequestParts { opcode: opcode::GET, key: key.as_bytes(), vbucket, ..Default::default() };
            let answer = client.request(&get);
            let found = match answer.status {
                Status::Success => Some(String::from_utf8(answer.value).expect("text")),
                Status::KeyEnoent => None,
                other => panic!("{about}: {key}: {other:?}"),
            };
            let is_right = found == told.acknowledged || Some(&found) == told.unanswered.as_ref();
            assert!(is_right, "{about}: {key} is {found:?}, and was told {told:?}");
            compared += 1;
        }
        assert!(compared >= WRITERS, "{about}: {compared} documents");
    }
}
