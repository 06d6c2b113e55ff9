//! Signals as people send them to `stave serve` and `stave dev`: nothing that was acknowledged is lost, whichever it is.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;

use protocol::Status;
use rustix::process::{Pid, Signal, kill_process};
use support::{Client, http, http_as};

/// A process that serves, which does not outlive the test.
struct Process {
    child: Child,
    kv: SocketAddr,
    http: SocketAddr,
    /// Lines of the log.
    log: mpsc::Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl support::Reach for Process {
    fn kv(&self) -> SocketAddr {
        self.kv
    }

    fn http(&self) -> SocketAddr {
        self.http
    }
}

const SERVE: &[&str] = &["serve", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"];
const DEV: &[&str] = &["dev", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--vbuckets", "4"];

impl Process {
    fn start(args: &[&str], more: &[&str]) -> Process {
        // Under nohup the tests themselves ignore SIGHUP, and what they start would, too.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_stave")]).args(args).args(more);
        Process::of(command, |_| {})
    }

    /// A process that was told to ignore SIGHUP, as nohup does.
    fn without_hang_up(args: &[&str], more: &[&str]) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_stave")]);
        command.args(args).args(more);
        Process::of(command, |_| {})
    }

    /// `look` may keep the standard error.
    fn of(mut command: Command, look: impl FnOnce(&mut Option<ChildStderr>)) -> Process {
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

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// The next line of the log with these words.
    fn logged(&self, words: &str) -> String {
        self.log.iter().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no line with {words:?}"))
    }

    fn ends_well(mut self) {
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}: {:?}", self.log.iter().collect::<Vec<_>>());
    }

    fn fill(&self) {
        let mut client = Client::connect(self, "default", &[]);
        for i in 0..50 {
            assert_eq!(client.set(format!("k{i}").as_bytes(), b"1"), Some(Status::Success));
        }
    }

    fn count(&self) -> usize {
        let mut client = Client::connect(self, "default", &[]);
        let mut is_there = |i: &i32| {
            client.get(format!("k{i}").as_bytes()).is_some_and(|answer| answer.status == Status::Success)
        };
        (0..50).filter(|i| is_there(i)).count()
    }
}

/// A configuration with few vBuckets, as the client of the tests has them, and more lines.
fn configure(folder: &Path, more: &str) -> String {
    let path = folder.join("stave.toml");
    std::fs::write(&path, format!("vbuckets = {}\n{more}", support::VBUCKETS)).expect("written");
    path.to_str().expect("text").to_owned()
}

#[test]
fn a_stop_by_any_signal_loses_nothing() {
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let folder = tempfile::tempdir().expect("a folder");
        let config = configure(folder.path(), "");
        let data = folder.path().join("data");
        let more = ["--data", data.to_str().expect("text"), "--config", &config];
        let node = Process::start(SERVE, &more);
        node.fill();
        for ignored in [Signal::USR1, Signal::USR2, Signal::PIPE] {
            node.signal(ignored);
        }
        assert_eq!(node.count(), 50, "it serves on");
        node.signal(signal);
        node.ends_well();
        let node = Process::start(SERVE, &more);
        assert_eq!(node.count(), 50, "{signal:?}");
    }
}

#[test]
fn a_closed_terminal_stops_a_node_without_configuration_file_cleanly() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--data", folder.path().to_str().expect("text")];
    let set = |node: &Process, expected: u16| {
        let (code, _) = http(node, "GET", "/pools/default/buckets/default", "");
        assert_eq!(code, expected);
    };
    let node = Process::start(SERVE, &more);
    set(&node, 200);
    node.signal(Signal::HUP);
    node.logged("stopping");
    node.ends_well();
    assert!(folder.path().join("buckets/default/clean").exists(), "the stop was a clean one");
    let node = Process::without_hang_up(SERVE, &more);
    node.signal(Signal::HUP);
    node.signal(Signal::USR1);
    node.logged("SIGUSR1");
    set(&node, 200);
    node.signal(Signal::TERM);
    node.ends_well();
}

#[test]
fn a_log_that_nobody_reads_ends_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    command.args(SERVE).arg("--data").arg(folder.path());
    let node = Process::of(command, |stderr| drop(stderr.take()));
    node.signal(Signal::USR1);
    node.signal(Signal::USR2);
    node.signal(Signal::TERM);
    node.ends_well();
}

#[test]
fn a_configuration_is_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let user = |name: &str, password: &str, role: &str| {
        format!("[[user]]\nname = \"{name}\"\npassword = \"{password}\"\nrole = \"{role}\"\n")
    };
    let bucket = |quota: &str| format!("[[bucket]]\nname = \"default\"\nquota = \"{quota}\"\n");
    let stays = user("stays", "password", "read-only");
    let before = [bucket("100MiB"), stays.clone(), user("goes", "password", "read-only")].concat();
    let config = configure(folder.path(), &before);
    let data = folder.path().join("data");
    let node = Process::start(SERVE, &["--data", data.to_str().expect("text"), "--config", &config]);
    let may = |user: &str| http_as(user, node.http, "GET", "/pools/default", "").0 == 200;
    assert!(may("stays") && may("goes") && !may("comes"));
    let mut client = Client::connect(&node, "default", &[]);

    configure(folder.path(), &[&before, "kvv = 1\n"].concat());
    node.signal(Signal::HUP);
    assert!(node.logged("nothing was changed").contains("unknown field"));
    configure(folder.path(), &["log = \"loud\"\n", &before].concat());
    node.signal(Signal::HUP);
    assert!(node.logged("nothing was changed").contains("there is no level"));
    assert!(may("goes"));

    let after = [bucket("120MiB"), stays, user("comes", "password", "read-write")];
    configure(folder.path(), &["threads = 7\nlog = \"warn\"\n", &after.concat()].concat());
    node.signal(Signal::HUP);
    // The log says less now, and this is said with the words of before.
    while !may("comes") {}
    assert!(may("stays") && !may("goes"));
    while http(&node, "GET", "/pools/default/buckets/default", "").1.contains("\"ram\":104857600") {}
    assert_eq!(client.set(b"k", b"1"), Some(Status::Success), "connections of who is not changed go on");

    configure(folder.path(), &["threads = 7\n", &after.concat()].concat());
    node.signal(Signal::HUP);
    let told = node.logged("read again");
    assert!(told.contains("needs a restart: threads") && told.contains("log = \\\"info\\\""), "{told}");
    node.signal(Signal::TERM);
    node.ends_well();
}

#[test]
fn a_development_cluster_stops_cleanly_when_its_terminal_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--data", folder.path().to_str().expect("text")];
    let dev = Process::start(DEV, &more);
    dev.fill();
    dev.signal(Signal::USR1);
    assert_eq!(dev.count(), 50);
    dev.signal(Signal::HUP);
    dev.ends_well();
    let dev = Process::start(DEV, &more);
    assert_eq!(dev.count(), 50);
}

#[test]
fn the_log_is_objects_if_asked_for_and_moves_to_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = configure(folder.path(), "log-format = \"json\"\n");
    let data = folder.path().join("data");
    let node = Process::start(SERVE, &["--data", data.to_str().expect("text"), "--config", &config]);
    let object = |line: &str| -> serde_json::Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    let first = object(&node.log.recv().expect("something is said at the start"));
    for name in ["timestamp", "level", "target", "message"] {
        assert!(first[name].is_string(), "{name}: {first}");
    }

    let path = folder.path().join("logs/stave.log");
    let file = format!("log-format = \"json\"\nlog-file = {path:?}\n");
    configure(folder.path(), &file);
    node.signal(Signal::HUP);
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    while !text().contains("read again") {}
    node.signal(Signal::TERM);
    node.ends_well();
    let text = text();
    let said: Vec<_> = text.lines().map(object).collect();
    let has =
        |words: &str| said.iter().any(|line| line["message"].as_str().is_some_and(|m| m.contains(words)));
    assert!(has("the configuration was read again") && has("stopping"), "{text}");
}
