//! `stave` with a profile, as a user starts it: which address, user and password a server is asked with.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program is started and a file of its user written"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

/// A server for HTTP that answers each request with an empty list.
struct Server(TcpListener);

impl Server {
    fn start() -> Server {
        Server(TcpListener::bind("127.0.0.1:0").expect("a port of loopback"))
    }

    fn addr(&self) -> String {
        self.0.local_addr().expect("it is bound").to_string()
    }

    /// Answers one request; returns the user and the password that it came with.
    fn answer(&self) -> String {
        let (stream, _) = self.0.accept().expect("the command asks");
        let mut stream = BufReader::new(stream);
        let mut credentials = String::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a head");
            if line.trim_end().is_empty() {
                break;
            }
            if let Some(encoded) = line.trim_end().strip_prefix("Authorization: Basic ") {
                let decoded = BASE64.decode(encoded).expect("base64");
                credentials = String::from_utf8(decoded).expect("text");
            }
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
        stream.get_mut().write_all(answer).expect("the command listens");
        credentials
    }
}

/// The command of a user with this home folder; the variables of the machine are no part of the test.
fn stave(home: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("STAVE_")) {
        command.env_remove(name);
    }
    command.env_remove("XDG_CONFIG_HOME").env("HOME", home).envs(variables.iter().copied());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn home(text: &str, mode: u32) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join(".config/stave");
    std::fs::create_dir_all(&folder).expect("it can be made");
    let file = folder.join("profile.toml");
    std::fs::write(&file, text).expect("it can be written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    home
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_flag_precedes_the_environment_and_that_the_profile() {
    let (first, second) = (Server::start(), Server::start());
    let file = format!(
        "[default]\nhttp = \"{}\"\nusername = \"of-default\"\npassword = \"pass-of-default\"\n\
         [other]\nhttp = \"{}\"\nusername = \"of-other\"\npassword = \"pass-of-other\"\n",
        first.addr(),
        second.addr()
    );
    let home = home(&file, 0o600);
    let user = ("STAVE_USERNAME", "of-variable");
    let password = ("STAVE_PASSWORD", "pass-of-variable");
    let profile = ("STAVE_PROFILE", "other");
    let addr = second.addr();
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a Server, &'a str);
    let of_first = [("STAVE_HTTP_ADDR", first.addr())];
    let by_variable = [(of_first[0].0, &*of_first[0].1)];
    let cases: [Case<'_>; 9] = [
        (&[], &[], &first, "of-default:pass-of-default"),
        (&[profile], &[], &second, "of-other:pass-of-other"),
        (&[profile], &["--profile", "default"], &first, "of-default:pass-of-default"),
        (&[user], &[], &first, "of-variable:pass-of-default"),
        (&[user, password], &["--profile", "other"], &second, "of-variable:pass-of-variable"),
        (
            &[user, password],
            &["--username", "of-flag", "--password", "pass-of-flag"],
            &first,
            "of-flag:pass-of-flag",
        ),
        (&[], &["--addr", &addr], &second, "of-default:pass-of-default"),
        (&by_variable, &["--profile", "other"], &first, "of-other:pass-of-other"),
        (&by_variable, &["--addr", &addr], &second, "of-default:pass-of-default"),
    ];
    for (variables, flags, server, expected) in cases {
        let arguments = [&["user", "list"], flags].concat();
        let command = stave(home.path(), variables, &arguments).spawn().expect("it starts");
        assert_eq!(server.answer(), expected, "{variables:?} {flags:?}");
        let ended = command.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{}", text(&ended));
    }
}

/// A password for a server elsewhere is not sent to this machine.
#[test]
fn an_address_for_the_other_protocol_is_not_enough() {
    let none = tempfile::tempdir().expect("a folder");
    let password = ("STAVE_PASSWORD", "do-not-show");
    for (variable, arguments, missing) in [
        ("STAVE_ADDR", &["user", "list"][..], "set STAVE_HTTP_ADDR, too, or give --addr"),
        ("STAVE_HTTP_ADDR", &["get", "k"], "set STAVE_ADDR, too, or give --addr"),
    ] {
        let variables = [password, (variable, "db.example:1")];
        let ended = stave(none.path(), &variables, arguments).output().expect("it runs");
        let said = text(&ended);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{variable}=db.example:1")) && said.contains(missing), "{said}");
    }
    let variables = [password, ("STAVE_ADDR", "127.0.0.1:1"), ("STAVE_HTTP_ADDR", "127.0.0.1:2")];
    let ended = stave(none.path(), &variables, &["get", "k"]).output().expect("it runs");
    assert_eq!(ended.status.code(), Some(3), "it asks the address of the variable: {}", text(&ended));
    assert!(text(&ended).contains("127.0.0.1:1"), "{}", text(&ended));
    let variables = [("STAVE_ADDR", "db.example:1")];
    let ended = stave(none.path(), &variables, &["health", "--timeout", "1s"]).output().expect("it runs");
    assert_ne!(ended.status.code(), Some(2), "it sends no password: {}", text(&ended));
}

#[test]
fn a_wrong_profile_ends_like_wrong_arguments() {
    let secret = "[prod]\nhttp = \"127.0.0.1:1\"\npassword = \"do-not-show\"\n";
    for (file, mode, arguments, expected) in [
        (secret, 0o644, &["user", "list", "--profile", "prod"][..], "chmod 600"),
        (secret, 0o600, &["user", "list", "--profile", "prud"], "no profile \"prud\"; there are: prod"),
        (secret, 0o600, &["get", "k", "--profile", "prod"], "add `kv` to it or give --addr"),
        ("[prod]\n\nport = 1\n", 0o600, &["get", "k"], "line 3: unknown field `port`"),
    ] {
        let home = home(file, mode);
        let ended = stave(home.path(), &[], arguments).output().expect("it runs");
        let said = text(&ended);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && !said.contains("do-not-show"), "{said}");
    }
    // Without a profile that is asked for, a file that is missing is no error.
    let none = tempfile::tempdir().expect("a folder");
    let ended = stave(none.path(), &[], &["get", "k"]).output().expect("it runs");
    assert!(text(&ended).contains("a password is needed"), "{}", text(&ended));
}
