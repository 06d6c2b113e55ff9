//! A node as a service: its manager is told when it serves, secrets come from files, variables stand for flags.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of the process itself")]

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Of the machine's own environment nothing is wanted.
fn stave(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.to_string_lossy().starts_with("STAVE_"))
        .for_each(|name| {
            command.env_remove(name);
        });
    command.env("STAVE_DATA", folder.join("data")).env("STAVE_KV", "127.0.0.1:0");
    command.env("STAVE_HTTP", "127.0.0.1:0");
    command
}

fn output(command: &mut Command) -> (Output, String) {
    let output = command.output().expect("it runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, text)
}

/// Stops a node when a test ends early.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes of the next message. Who was stopped while it waited for one waits on.
fn receive(manager: &UnixDatagram, bytes: &mut [u8]) -> usize {
    loop {
        match manager.recv(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.expect("it is told"),
        }
    }
}

#[test]
fn its_manager_is_told_when_it_serves_and_when_it_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
    std::fs::write(folder.path().join("password"), "secret1\nanother line\n").expect("a file");
    let mut command = stave(folder.path());
    command.args(["serve", "--password-file"]).arg(folder.path().join("password"));
    command.env("STAVE_BUCKETS", "a:100MiB,b:100MiB:ephemeral").env("NOTIFY_SOCKET", &path);
    let mut node = Node(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts"));
    let mut bytes = [0; 256];
    let mut told = || {
        let len = receive(&manager, &mut bytes);
        String::from_utf8_lossy(&bytes[..len]).trim().to_owned()
    };
    assert_eq!(told(), "READY=1");
    let mut line = String::new();
    BufReader::new(node.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let addr =
        line.split_whitespace().find_map(|word| word.strip_prefix("kv=")).expect("an address").to_owned();
    for bucket in ["a", "b"] {
        let (set, text) = output(
            stave(folder.path())
                .args(["set", "--addr", &addr, "--bucket", bucket, "k", "1"])
                .env("STAVE_PASSWORD", "secret1"),
        );
        assert!(set.status.success(), "{text}");
    }
    let pid = rustix::process::Pid::from_child(&node.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    assert_eq!(told(), "STOPPING=1");
    assert!(node.0.wait().expect("it ends").success());
}

#[test]
fn its_manager_is_told_that_it_is_live_before_and_after_it_was_suspended() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
    let mut command = stave(folder.path());
    command.args(["serve"]).env("STAVE_BUCKETS", "a:100MiB").env("NOTIFY_SOCKET", &path);
    command.env("WATCHDOG_USEC", "400000");
    let mut node = Node(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    let mut bytes = [0; 256];
    let mut wait_for = |word: &str| loop {
        let len = receive(&manager, &mut bytes);
        if String::from_utf8_lossy(&bytes[..len]).trim() == word {
            break;
        }
    };
    wait_for("READY=1");
    (0..3).for_each(|_| wait_for("WATCHDOG=1"));
    let pid = rustix::process::Pid::from_child(&node.0);
    let signal = |signal| rustix::process::kill_process(pid, signal).expect("it is there");
    signal(rustix::process::Signal::STOP);
    let stat = format!("/proc/{}/stat", node.0.id());
    while !std::fs::read_to_string(&stat).expect("it is there").contains(") T ") {}
    // What it had said before; a stopped process says nothing more.
    manager.set_nonblocking(true).expect("it can be set");
    while manager.recv(&mut [0; 256]).is_ok() {}
    manager.set_nonblocking(false).expect("it can be set");
    signal(rustix::process::Signal::CONT);
    (0..3).for_each(|_| wait_for("WATCHDOG=1"));
    signal(rustix::process::Signal::TERM);
    wait_for("STOPPING=1");
    assert!(node.0.wait().expect("it ends").success());
}

#[test]
fn another_process_s_watchdog_is_not_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    let mut command = stave(folder.path());
    command.args(["serve"]).env("STAVE_BUCKETS", "a:100MiB").env("NOTIFY_SOCKET", &path);
    // Of the process that started this one, as after `sh -c`.
    command.env("WATCHDOG_USEC", "2000").env("WATCHDOG_PID", std::process::id().to_string());
    let mut node = Node(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts"));
    let mut line = String::new();
    BufReader::new(node.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let pid = rustix::process::Pid::from_child(&node.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    assert!(node.0.wait().expect("it ends").success());
    manager.set_nonblocking(true).expect("it can be set");
    let mut told = Vec::new();
    let mut bytes = [0; 256];
    while let Ok(len) = manager.recv(&mut bytes) {
        told.push(String::from_utf8_lossy(&bytes[..len]).trim().to_owned());
    }
    assert_eq!(told, ["READY=1", "STOPPING=1"]);
}

#[test]
fn a_crash_leaves_no_core_dump_unless_it_is_asked_for() {
    let soft_limit_of_core_files = |word: Option<&str>| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 4096; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_stave"), "serve"]);
        command.args(["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]).arg(folder.path());
        command.env_remove("STAVE_CORE_DUMPS").stdout(Stdio::piped()).stderr(Stdio::null());
        command.envs(word.map(|word| ("STAVE_CORE_DUMPS", word)));
        let mut node = Node(command.spawn().expect("it starts"));
        let mut line = String::new();
        BufReader::new(node.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready"), "{line}");
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.0.id())).expect("its limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a line");
        line.split_whitespace().next().expect("a figure").to_owned()
    };
    assert_eq!(soft_limit_of_core_files(None), "0");
    if rustix::process::getrlimit(rustix::process::Resource::Core).maximum != Some(0) {
        assert_ne!(soft_limit_of_core_files(Some("on")), "0");
    }
}

/// Writes a certificate that was valid in 2020, and its key.
fn expired(cert: &Path, key: &Path) {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    (params.not_before, params.not_after) =
        (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
    let pair = rcgen::KeyPair::generate().expect("a key");
    let made = params.self_signed(&pair).expect("a certificate");
    std::fs::write(cert, made.pem())
        .and_then(|()| std::fs::write(key, pair.serialize_pem()))
        .expect("two files");
}

#[test]
fn a_configuration_is_checked_without_a_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("stave.toml");
    std::fs::write(&config, "password = \"secret1\"\nbuckets = [\"orders:100MiB\"]\n").expect("a file");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let check = |more: &[&str]| {
        let mut command = stave(folder.path());
        command.args(["serve", "--check"]).args(more).env("STAVE_CONFIG", &config);
        output(&mut command)
    };
    let (checked, text) = check(&[]);
    assert!(checked.status.success() && text.contains("holds a password, and every user"), "{text}");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (checked, text) = check(&[]);
    assert!(checked.status.success(), "{text}");
    assert!(text.starts_with("the configuration is valid") && text.contains("orders"), "{text}");
    assert!(!text.contains("secret1"), "{text}");
    assert!(!folder.path().join("data").exists(), "nothing was made");
    // A variable that is misspelt is named, without what it holds.
    let mut misspelt = stave(folder.path());
    misspelt.args(["serve", "--check"]).env("STAVE_CONFIG", &config).env("STAVE_PASWORD", "secret9");
    let (checked, text) = output(misspelt.env("STAVE_PORT", "tcp://10.0.0.1:8091"));
    assert!(checked.status.success() && text.contains("STAVE_PASWORD is ignored: "), "{text}");
    assert!(text.contains("STAVE_PASSWORD") && !text.contains("STAVE_PORT"), "{text}");
    assert!(!text.contains("secret9"), "{text}");
    let mut by_variable = stave(folder.path());
    by_variable.args(["serve", "--check"]).env("STAVE_CONFIG", &config);
    let (refused, text) = output(by_variable.env("STAVE_TLS_CIPHER_SUITES", "TLS_NO_SUCH"));
    assert!(refused.status.code() == Some(2) && text.contains("tls-cipher-suites"), "it is read: {text}");
    // A file that it names and that is not there.
    let (refused, text) = check(&["--tls-cert", "/none.pem", "--tls-key", "/none.pem"]);
    assert!(refused.status.code() == Some(2) && text.contains("/none.pem"), "{text}");
    let (refused, text) = check(&["--bucket", "a:900TiB"]);
    assert!(refused.status.code() == Some(2) && text.contains("943718400 MiB"), "{text}");
    let (cert, key) = (folder.path().join("old.pem"), folder.path().join("old.key"));
    expired(&cert, &key);
    let (refused, text) =
        check(&["--tls-cert", &cert.to_string_lossy(), "--tls-key", &key.to_string_lossy()]);
    // As a start has it, which warns of it.
    assert!(refused.status.success() && text.contains("not valid any more"), "{text}");
    let at = "127.0.0.1:18091";
    let (refused, text) = check(&["--kv", at, "--http", at]);
    assert!(refused.status.code() == Some(2) && text.contains("the same"), "{text}");
    let (refused, text) = check(&["--data", &config.to_string_lossy()]);
    assert!(refused.status.code() == Some(3) && text.contains("stave.toml"), "{text}");
    let (refused, text) = check(&["--password-file", "/none"]);
    assert!(!refused.status.success() && text.contains("/none"), "{text}");
    std::fs::write(&config, "buckets = [\"orders:no\"]\n").expect("a file");
    let (refused, text) = check(&[]);
    assert_eq!(refused.status.code(), Some(2), "{text}");
}
