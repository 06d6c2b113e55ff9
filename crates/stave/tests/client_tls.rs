//! Commands that speak TLS: with nodes whose certificate a CA has signed that they trust, and with no others.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of the process itself")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The commands as a user starts them; of the machine's own environment nothing is wanted.
fn stave(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    let set = std::env::vars_os().map(|(name, _)| name);
    set.filter(|name| name.to_string_lossy().starts_with("STAVE_")).for_each(|name| {
        command.env_remove(name);
    });
    command.args(arguments).env("STAVE_PASSWORD", "password").stdin(Stdio::null());
    command
}

/// Whether a command succeeds, and all that it prints.
fn run(arguments: &[&str]) -> (bool, String) {
    let output = stave(arguments).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn succeeds(arguments: &[&str]) -> String {
    let (is_done, text) = run(arguments);
    assert!(is_done, "{arguments:?}: {text}");
    text
}

fn refused(arguments: &[&str], why: &str) {
    let (is_done, text) = run(arguments);
    assert!(!is_done && text.contains(why), "{arguments:?}: {text}");
}

/// Two nodes with TLS; they end with this.
struct Dev {
    child: Child,
    ready: Value,
}

impl Drop for Dev {
    fn drop(&mut self) {
        // They may have ended by themselves.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Dev {
    fn start(certificates: &str) -> Dev {
        let flags =
            ["dev", "--nodes", "2", "--replicas", "1", "--vbuckets", "8", "--json", "--tls", certificates];
        let free = ["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let mut command = stave(&[&flags[..], &free[..]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        Dev { child, ready: serde_json::from_str(&line).expect("JSON") }
    }

    /// An address of a node, by the host that its certificate names.
    fn at(&self, node: usize, service: &str) -> String {
        let addr = self.ready["nodes"][node][service].as_str().expect("an address");
        format!("localhost:{}", addr.rsplit_once(':').expect("a port").1)
    }
}

/// A node, and the line that says where it serves.
fn serve(flags: &[&str]) -> (Dev, String) {
    let mut command = stave(&[&["serve"], flags].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    (Dev { child, ready: Value::Null }, line)
}

fn field(line: &str, name: &str) -> String {
    let of = |word: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    line.split_whitespace().find_map(of).expect("it is in the line")
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("text").to_owned()
}

#[test]
fn commands_reach_nodes_by_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let certificates = path(folder.path(), "certs");
    let dev = Dev::start(&certificates);
    let ca = path(folder.path(), "certs/ca.pem");
    assert_eq!(dev.ready["cluster_encryption"], "strict");
    let (kvs, https) = (dev.at(0, "kvs"), dev.at(0, "https"));
    let kv = |arguments: &[&str]| succeeds(&[arguments, &["--addr", &kvs, "--tls-ca", &ca]].concat());
    let http = |arguments: &[&str]| succeeds(&[arguments, &["--addr", &https, "--tls-ca", &ca]].concat());
    // Documents of both nodes: the map's addresses are those for TLS, too.
    for at in 0..16 {
        kv(&["set", &format!("k{at}"), "1"]);
        assert_eq!(kv(&["get", &format!("k{at}")]).trim(), "1");
    }
    assert!(kv(&["stats", "vbucket"]).contains("vb_0"));
    kv(&["set-param", "max_ttl", "0"]);
    let lines = path(folder.path(), "lines.json");
    kv(&["export", "--to", &lines]);
    assert_eq!(std::fs::read_to_string(&lines).expect("exported").lines().count(), 16);
    kv(&["import", "lines", &lines]);
    kv(&["backup", "--to", &path(folder.path(), "backup")]);
    kv(&["restore", "--from", &path(folder.path(), "backup")]);
    let drained: Value = serde_json::from_str(&kv(&["drain", "default", "--json"])).expect("JSON");
    // What was imported once more, and was not flushed yet, comes behind its earlier version.
    assert!(drained["mutations"].as_u64().is_some_and(|count| count >= 16), "{drained}");
    let bench = ["bench", "--keys", "100", "--populate", "--operations", "2000", "--pipeline", "16"];
    let more = ["--connections", "4", "--value-size", "2000", "--collections", "2", "--json"];
    let report: Value = serde_json::from_str(&kv(&[&bench[..], &more[..]].concat())).expect("JSON");
    assert_eq!(report["errors"].as_object().map(serde_json::Map::len).unwrap_or_default(), 0, "{report}");
    assert!(http(&["cluster", "status"]).contains("active"));
    http(&["user", "list"]);
    http(&["collect", "--out", &path(folder.path(), "report.tar.gz")]);
}

#[test]
fn a_server_that_is_not_trusted_is_sent_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let dev = Dev::start(&path(folder.path(), "certs"));
    let ca = path(folder.path(), "certs/ca.pem");
    let others = path(folder.path(), "others");
    succeeds(&["certs", "init", "--out", &others]);
    let other_ca = path(folder.path(), "others/ca.pem");
    let (kvs, https) = (dev.at(0, "kvs"), dev.at(0, "https"));
    let kv = |addr: &str, ca: &str, why: &str| refused(&["get", "k", "--addr", addr, "--tls-ca", ca], why);
    let http = |addr: &str, ca: &str, why: &str| {
        refused(&["cluster", "status", "--addr", addr, "--tls-ca", ca], why)
    };
    kv(&kvs, &other_ca, "no CA of --tls-ca has signed its certificate");
    http(&https, &other_ca, "no CA of --tls-ca has signed its certificate");
    // A certificate of the right CA for another host.
    let other = path(folder.path(), "other");
    succeeds(&[
        "certs",
        "node",
        "--ca",
        &path(folder.path(), "certs"),
        "--out",
        &other,
        "--name",
        "db.example",
    ]);
    let (certificate, key) = (path(folder.path(), "other/node.pem"), path(folder.path(), "other/node.key"));
    let files = ["--data", &path(folder.path(), "data"), "--tls-cert", &certificate, "--tls-key", &key];
    let free = ["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--kv-tls", "127.0.0.1:0", "--http-tls"];
    let (node, line) = serve(&[&files[..], &free[..], &["127.0.0.1:0"]].concat());
    kv(&field(&line, "kvs"), &ca, "its certificate is not for 127.0.0.1");
    drop(node);
    kv(&dev.at(0, "kv"), &ca, "before TLS was agreed on");
    http(&dev.at(0, "http"), &ca, "it does not speak TLS there");
    let none = path(folder.path(), "certs/none.pem");
    kv(&kvs, &none, "cannot read");
    let no_pem = path(folder.path(), "certs/no.pem");
    std::fs::write(&no_pem, "no PEM").expect("a file");
    kv(&kvs, &no_pem, "there is no certificate in it");
    refused(&["get", "k", "--tls-cert", &ca], "--tls-ca");
    for wrong in [&none, &no_pem] {
        let output = stave(&["get", "k", "--addr", &kvs, "--tls-ca", wrong]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_password_comes_from_a_file_whatever_the_environment_says() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let file = path(folder.path(), "secret");
    std::fs::write(&file, "password\n").expect("a file");
    let open_to = |mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    let (_node, line) =
        serve(&["--data", &path(folder.path(), "data"), "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let (kv, http) = (field(&line, "kv"), field(&line, "http"));
    let run = |words: &[&str]| {
        let mut command = stave(words);
        let output = command.args(["--password-file", &file]).env("STAVE_PASSWORD", "wrong").output();
        let output = output.expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    open_to(0o600);
    for words in [["set", "k", "1", "--addr", &kv], ["user", "list", "--json", "--addr", &http]] {
        assert_eq!(run(&words), (Some(0), String::new()), "{words:?}");
    }
    open_to(0o644);
    let (code, said) = run(&["set", "k", "1", "--addr", &kv]);
    assert!(code == Some(0) && said.contains("chmod 600"), "{said}");
    let backups = ["backup", "list", &folder.path().display().to_string(), "--key-file", &file];
    let said = stave(&backups).output().expect("it runs").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("holds a key") && said.contains("chmod 600"), "{said}");
    let (code, said) = run(&["set", "k", "1", "--addr", &kv, "--password", "another"]);
    assert!(code == Some(2) && said.contains("give one of them"), "{said}");
    // The port of the other protocol is told with the right one.
    let (_, said) = run(&["user", "list", "--addr", &kv]);
    assert!(said.contains("its HTTP port, HOST:8091"), "{said}");
    let (_, said) = run(&["get", "k", "--addr", &http]);
    assert!(said.contains("its KV port, HOST:11210"), "{said}");
}

#[test]
fn a_certificate_takes_the_place_of_a_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| path(folder.path(), name);
    succeeds(&["certs", "init", "--out", &at("certs")]);
    succeeds(&["certs", "client", "--ca", &at("certs"), "--out", &at("own"), "--user", "Administrator"]);
    let (certificate, key, ca) = (at("certs/node.pem"), at("certs/node.key"), at("certs/ca.pem"));
    let files = ["--data", &at("data"), "--tls-cert", &certificate, "--tls-key", &key, "--tls-ca", &ca];
    let free = ["--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--kv-tls", "127.0.0.1:0"];
    let more = ["--http-tls", "127.0.0.1:0", "--tls-client-auth", "required"];
    let (_node, line) = serve(&[&files[..], &free, &more].concat());
    let (kvs, https) = (field(&line, "kvs"), field(&line, "https"));
    let (own, own_key) = (at("own/client.pem"), at("own/client.key"));
    let by_certificate = ["--tls-ca", &ca, "--tls-cert", &own, "--tls-key", &own_key];
    let without_password = |arguments: &[&str]| {
        let mut command = stave(&[arguments, &by_certificate].concat());
        let output = command.env_remove("STAVE_PASSWORD").output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
        String::from_utf8_lossy(&text).into_owned()
    };
    without_password(&["set", "k", "1", "--addr", &kvs]);
    assert_eq!(without_password(&["get", "k", "--addr", &kvs]).trim(), "1");
    without_password(&["user", "list", "--addr", &https]);
    refused(&["get", "k", "--addr", &kvs, "--tls-ca", &ca], "--tls-cert");
}
