//! Signals as people send them to `stave serve` and `stave dev`: nothing that was acknowledged is lost, whichever it is.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is a client, outside the server"
)]

#[cfg(debug_assertions)]
#[path = "../../simulation/src/again.rs"]
mod again;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;
mod process;
#[path = "../../server/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use process::{DEV, KEYS, Process, SERVE, WRITERS, Writers, configure};
use protocol::Status;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use support::{Client, http, http_as};

/// Writers write, these signals come one after the other, and the last of them ends the node; what it holds after a
/// start is compared with what the writers were told.
fn stops_without_loss(more: &[&str], vbuckets: u16, signals: &[Signal]) {
    let node = Process::start(SERVE, more);
    let writers = Writers::start(&node, vbuckets);
    writers.go_on(WRITERS * KEYS * 2);
    for signal in signals {
        // Those before the last one end nothing.
        writers.go_on(WRITERS * 20);
        node.signal(*signal);
    }
    let ledger = writers.end();
    node.ends_well();
    let node = Process::start(SERVE, more);
    ledger.check(&node, vbuckets, &format!("{signals:?}"));
}

#[test]
fn a_stop_by_any_signal_loses_nothing() {
    let (term, hup) = (Signal::TERM, Signal::HUP);
    for signals in [
        &[term][..],
        &[Signal::INT],
        &[Signal::QUIT],
        &[Signal::USR1, Signal::USR2, Signal::PIPE, term],
        // With a configuration file it is read again.
        &[hup, hup, term],
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let config = configure(folder.path(), "");
        let data = folder.path().join("data");
        let more = ["--data", data.to_str().expect("text"), "--config", &config];
        stops_without_loss(&more, support::VBUCKETS, signals);
    }
    // Without one the files that flags name are.
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--data", folder.path().to_str().expect("text")];
    stops_without_loss(&more, 1024, &[hup, Signal::USR1, hup, term]);
}

/// A real terminal, which `script` holds: when that is killed the terminal is gone, and the system sends SIGHUP.
#[test]
fn closing_the_terminal_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("text");
    let serve =
        format!("echo pid=$$; exec {} {} --data {data} 2>&1", env!("CARGO_BIN_EXE_stave"), SERVE.join(" "));
    let mut terminal = Command::new("env")
        .args(["--default-signal=HUP", "script", "--quiet", "--flush", "--command", &serve, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("STAVE_PASSWORD", "password")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script is there: it belongs to util-linux");
    let mut told = BufReader::new(terminal.stdout.take().expect("it is piped"));
    let mut field = |name: &str| loop {
        let mut line = String::new();
        assert_ne!(told.read_line(&mut line).expect("a line"), 0, "no {name}=");
        let mut fields = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        if line.starts_with(name) || line.starts_with("ready") {
            break fields.map(|(_, value)| value.to_owned()).collect::<Vec<_>>();
        }
        fields.next();
    };
    let pid = field("pid")[0].parse().ok().and_then(Pid::from_raw).expect("a process");
    let ready = field("ready");
    let address = |at: usize| ready[at].parse::<SocketAddr>().expect("an address");
    let writers = Writers::start(&(address(0), address(1)), 1024);
    writers.go_on(WRITERS * KEYS * 2);
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
    terminal.kill().expect("it runs");
    let ledger = writers.end();
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).expect("it ends");
    terminal.wait().expect("it was killed");
    assert!(folder.path().join("buckets/default/clean").exists(), "the stop was a clean one");
    let node = Process::start(SERVE, &["--data", data]);
    ledger.check(&node, 1024, "a closed terminal");
}

#[test]
fn a_hang_up_ends_no_node_without_a_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--data", folder.path().to_str().expect("text")];
    let serves = |node: &Process| {
        let (code, _) = http(node, "GET", "/pools/default/buckets/default", "");
        assert_eq!(code, 200);
    };
    // As a service or in a container: a session of its own has no terminal.
    let node = Process::without_terminal(SERVE, &more);
    for _ in 0..2 {
        node.signal(Signal::HUP);
        node.logged("the configuration was read again");
        serves(&node);
    }
    node.signal(Signal::TERM);
    node.ends_well();
    let node = Process::without_hang_up(SERVE, &more);
    node.signal(Signal::HUP);
    node.signal(Signal::USR1);
    node.logged("SIGUSR1");
    serves(&node);
    node.signal(Signal::TERM);
    node.ends_well();
}

/// Whether the administrator has this password.
fn is_let_in(node: &Process, password: &str) -> bool {
    let mut stream = TcpStream::connect(node.http).expect("the node listens");
    let credentials = BASE64.encode(format!("Administrator:{password}"));
    let head = "GET /pools/default HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic";
    stream.write_all(format!("{head} {credentials}\r\n\r\n").as_bytes()).expect("the node takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in text");
    answer.starts_with("HTTP/1.1 200")
}

fn decrypted(key: &str, log: &str) -> String {
    let mut decrypt = Command::new(env!("CARGO_BIN_EXE_stave"));
    decrypt.args(["decrypt", "--text", "--encryption-key-file", key, log]);
    String::from_utf8(decrypt.output().expect("it runs").stdout).expect("text")
}

/// A node of flags and variables alone, as in a container: each file that these name is read again.
#[test]
fn files_that_flags_name_are_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let keys = ["1", "2"].map(|digit| digit.repeat(64));
    std::fs::create_dir(path("logs")).expect("a folder");
    std::fs::write(path("password"), "first\n").expect("written");
    std::fs::write(path("key"), &keys[0]).expect("written");
    let certs = |words: &[&str]| {
        let made = Command::new(env!("CARGO_BIN_EXE_stave")).arg("certs").args(words).output();
        assert!(made.expect("it runs").status.success());
    };
    certs(&["init", "--out", &path("certs")]);
    certs(&["init", "--out", &path("new")]);
    let (data, log, password) = (path("data"), path("logs/stave.log"), path("password"));
    let (cert, key, wrapping) = (path("certs/node.pem"), path("certs/node.key"), path("key"));
    let files = ["--data", &data, "--log-file", &log, "--password-file", &password];
    let keys_of = ["--encryption-key-file", &wrapping, "--tls-cert", &cert, "--tls-key", &key];
    let listens = ["--kv-tls", "127.0.0.1:0", "--http-tls", "127.0.0.1:0"];
    let more = [&files[..], &keys_of, &listens].concat();
    let node = Process::start(SERVE, &more);
    let may = |password: &str| is_let_in(&node, password);
    assert!(may("first") && !may("second"));
    let told = || decrypted(&wrapping, &log);
    std::fs::write(&password, "second\n").expect("written");
    std::fs::write(&wrapping, format!("{}\n{}", keys[1], keys[0])).expect("written");
    for name in ["node.pem", "node.key"] {
        std::fs::copy(path(&format!("new/{name}")), path(&format!("certs/{name}"))).expect("copied");
    }
    // A tool that rotates logs moves the file away, and sends the signal.
    std::fs::rename(&log, path("logs/moved.log")).expect("moved");
    node.signal(Signal::HUP);
    while !std::path::Path::new(&log).exists() || !told().contains("read again") {}
    let after = told();
    assert!(after.contains("was changed"), "the user's password: {after}");
    assert!(after.contains("earlier keys are not needed any more"), "the wrapping key: {after}");
    assert!(may("second") && !may("first"));
    // A file that is gone changes nothing.
    std::fs::remove_file(&password).expect("removed");
    node.signal(Signal::HUP);
    while !told().contains("nothing was changed") {}
    assert!(may("second"));
    // Nor does a key file without the key in use, whose copy elsewhere would open nothing any more.
    std::fs::write(&password, "third\n").expect("written");
    std::fs::rename(&wrapping, path("right-key")).expect("moved");
    std::fs::write(&wrapping, "3".repeat(64)).expect("written");
    node.signal(Signal::HUP);
    let told = || decrypted(&path("right-key"), &log);
    while !told().contains("put the key in use back") {}
    assert!(may("second"), "all of it is refused");
    std::fs::rename(path("right-key"), &wrapping).expect("moved");
    node.signal(Signal::TERM);
    node.ends_well();
    drop(Process::start(SERVE, &more));
}

/// A vault that hangs keeps no node from being stopped.
#[test]
fn a_key_command_that_does_not_end_does_not_keep_a_node_from_stopping() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("getkey"), format!("echo {}", "1".repeat(64))).expect("written");
    let (data, command) = (path("data"), format!("sh {}", path("getkey")));
    let node = Process::start(SERVE, &["--data", &data, "--encryption-key-command", &command]);
    let hangs = format!("touch {}; sleep 600", path("asked"));
    std::fs::write(path("getkey"), hangs).expect("written");
    node.signal(Signal::HUP);
    while !std::path::Path::new(&path("asked")).exists() {}
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
    // The log says less now, but what needs a restart.
    let told = node.logged("read again");
    assert!(told.contains("needs a restart: threads") && told.contains("log = \\\"warn\\\""), "{told}");
    assert!(told.contains("taken: log; "), "{told}");
    while !may("comes") {}
    assert!(may("stays") && !may("goes"));
    while http(&node, "GET", "/pools/default/buckets/default", "").1.contains("\"ram\":104857600") {}
    assert_eq!(client.set(b"k", b"1"), Some(Status::Success), "connections of who is not changed go on");

    configure(folder.path(), &["threads = 7\n", &after.concat()].concat());
    node.signal(Signal::HUP);
    let told = node.logged("read again");
    assert!(told.contains("needs a restart: threads") && told.contains("log = \\\"info\\\""), "{told}");
    assert!(told.contains("taken: log; "), "{told}");
    configure(folder.path(), &["threads = 7\nlog-format = \"json\"\n", &after.concat()].concat());
    node.signal(Signal::HUP);
    let told = node.logged("read again");
    assert!(told.contains("taken: log-format; "), "{told}");
    node.signal(Signal::TERM);
    node.ends_well();
}

#[test]
fn a_development_cluster_stops_cleanly_when_its_terminal_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--data", folder.path().to_str().expect("text")];
    let dev = Process::start(DEV, &more);
    let writers = Writers::start(&dev, support::VBUCKETS);
    writers.go_on(WRITERS * KEYS);
    dev.signal(Signal::USR1);
    writers.go_on(WRITERS * KEYS);
    dev.signal(Signal::HUP);
    let ledger = writers.end();
    dev.ends_well();
    let dev = Process::start(DEV, &more);
    ledger.check(&dev, support::VBUCKETS, "a development cluster");
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
    assert!(text().contains("taken: log-file; needs"), "{}", text());
    node.signal(Signal::TERM);
    node.ends_well();
    let text = text();
    let said: Vec<_> = text.lines().map(object).collect();
    let has =
        |words: &str| said.iter().any(|line| line["message"].as_str().is_some_and(|m| m.contains(words)));
    assert!(has("the configuration was read again") && has("stopping"), "{text}");
    let events: Vec<_> = said.iter().filter_map(|line| line["event"].as_str()).collect();
    assert!(events.contains(&"configuration_reread") && events.contains(&"stop_signal"), "{text}");
    let nameless =
        said.iter().find(|line| line["target"].as_str().is_some_and(is_own) && line["event"].is_null());
    assert_eq!(nameless, None, "a line has no stable name");
}

/// Whether the part that logs is of this program, and not of a library.
fn is_own(target: &str) -> bool {
    ["stave", "server", "node", "engine", "kvstore"].contains(&target.split("::").next().unwrap_or_default())
}

/// Names of users and documents are in the log, and in no file in clear if the node encrypts.
#[test]
fn the_file_of_the_log_is_encrypted_if_the_node_encrypts() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, path) = (folder.path().join("data"), folder.path().join("logs/stave.log"));
    let [both, new] = ["both", "new"].map(|name| folder.path().join(name).display().to_string());
    let keys = ["1", "2"].map(|digit| digit.repeat(64));
    std::fs::create_dir(folder.path().join("logs")).expect("a folder");
    std::fs::write(&path, "an earlier line\n").expect("written");
    std::fs::write(&both, &keys[0]).expect("written");
    std::fs::write(&new, &keys[1]).expect("written");
    let lines = format!("log-file = {path:?}\nencryption-key-file = {both:?}\n");
    let config = configure(folder.path(), &lines);
    let flags = ["--data", data.to_str().expect("text"), "--config", &config];
    let clear = |key: &str| {
        let mut decrypt = Command::new(env!("CARGO_BIN_EXE_stave"));
        decrypt.args(["decrypt", "--text", "--encryption-key-file", key]).arg(&path);
        String::from_utf8(decrypt.output().expect("it runs").stdout).expect("text")
    };
    let node = Process::start(SERVE, &flags);
    std::fs::write(&both, format!("{}\n{}", keys[1], keys[0])).expect("written");
    node.signal(Signal::HUP);
    while !clear(&both).contains("read again") {}
    // The keys of the log are under the new key, like all others.
    assert!(clear(&new).contains("earlier keys are not needed any more"), "{}", clear(&both));
    node.signal(Signal::TERM);
    node.ends_well();
    std::fs::write(&both, &keys[1]).expect("written");
    let node = Process::start(SERVE, &flags);
    node.signal(Signal::TERM);
    node.ends_well();
    let told = clear(&new);
    for (words, count) in [("an earlier line", 1), ("stopping", 2)] {
        assert_eq!(told.matches(words).count(), count, "{words}: {told}");
        for file in std::fs::read_dir(folder.path().join("logs")).expect("a folder") {
            let path = file.expect("a file").path();
            let bytes = std::fs::read(&path).expect("it is read");
            let is_there = bytes.windows(words.len()).any(|part| part == words.as_bytes());
            assert!(!is_there, "{words} in {}", path.display());
        }
    }
    // Its keys would be those of the folder of data.
    configure(
        folder.path(),
        &format!("log-file = {:?}\nencryption-key-file = {both:?}\n", data.join("stave.log")),
    );
    let refused =
        Command::new(env!("CARGO_BIN_EXE_stave")).args(SERVE).args(flags).output().expect("it runs");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && why.contains("outside of the folder of data"), "{why}");
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Signals, |seed| {
        // Nothing depends on it.
        if seed > 0 {
            return Ok(());
        }
        again::again("a_hang_up_ends_no_node_without_a_terminal")
    });
}
