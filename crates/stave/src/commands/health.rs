//! `stave health`: whether a node is well, by its exit code, for health checks of containers and for scripts.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;

use super::http_flags::{DEFAULT_ADDR, full_addr};
use crate::cli::profile::ProfileFlags;
use crate::cli::{Outcome, explain};
use crate::client::{ClientTlsFlags, HttpTarget, Secret};
use crate::output::print;
use crate::units::parse_duration;

/// Ask a node whether it is well, or with --ready whether it serves, and end with 0 or 1
///
/// It needs no user and no password. Without --ready it asks /healthz, which says no if an operator has something to do,
/// and then names it; with --ready it asks /readyz, which says yes when the node serves every vBucket that it has to.
/// A node that does not answer is not well.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave health
  stave health --ready --addr 10.0.0.1:8091
  until stave health --ready; do sleep 1; done
  stave health --addr db1 --tls-ca ca.pem --json | jq -r '.reasons[]'")]
pub struct HealthFlags {
    /// HTTP address of the node
    #[arg(long, value_name = "HOST:PORT", env = "STAVE_HTTP_ADDR", default_value = DEFAULT_ADDR, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) addr: String,
    /// Ask whether it serves, not whether an operator has something to do
    #[arg(long)]
    pub(crate) ready: bool,
    /// The profile that says what no flag and no variable does.
    #[command(flatten)]
    pub(crate) profile: ProfileFlags,
    /// How long to wait for an answer: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", env = "STAVE_TIMEOUT", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// How it is spoken with by TLS.
    #[command(flatten)]
    pub(crate) tls: ClientTlsFlags,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a node says of itself.
#[derive(Debug, PartialEq, Eq)]
struct HealthAnswer {
    /// `None` if there is no answer.
    status: Option<u16>,
    /// Why it is not well; none if it is.
    reasons: Vec<String>,
}

/// Runs the command.
pub fn run(flags: &HealthFlags) -> anyhow::Result<Outcome> {
    let tls = flags.tls.trust()?;
    let target = HttpTarget {
        addr: full_addr(&flags.addr, tls.is_some()),
        // No one asks: the addresses are for all.
        username: String::new(),
        password: Secret::default(),
        patience: flags.timeout,
        tls,
    };
    let path = if flags.ready { "/readyz" } else { "/healthz" };
    let told = ask(&target, path);
    let is_well = told.reasons.is_empty();
    if flags.json {
        let HealthAnswer { status, reasons } = told;
        let object = json!({
            "addr": target.addr, "path": path, "ok": is_well, "status": status, "reasons": reasons,
        });
        print(&format!("{object}\n"))?;
    } else if is_well {
        print("ok\n")?;
    } else {
        print(&(told.reasons.join("\n") + "\n"))?;
    }
    Ok(if is_well { Outcome::Done } else { Outcome::NotWell })
}

fn ask(target: &HttpTarget, path: &str) -> HealthAnswer {
    match target.exchange("GET", path, String::new()) {
        Ok((200, _)) => HealthAnswer { status: Some(200), reasons: Vec::new() },
        Ok((503, body)) => {
            let mut reasons: Vec<String> = body.lines().map(str::to_owned).collect();
            if reasons.is_empty() {
                reasons.push(format!("{} gives no reason", target.addr));
            }
            HealthAnswer { status: Some(503), reasons }
        }
        Ok((status, _)) => {
            let why = format!("{} answers {path} with status {status}: is it a node of Stave?", target.addr);
            HealthAnswer { status: Some(status), reasons: vec![why] }
        }
        Err(error) => {
            HealthAnswer { status: None, reasons: vec![format!("{}: {}", target.addr, explain(&error))] }
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test listens")]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::test_server::TestServer;

    fn flags(addr: &str, ready: bool) -> HealthFlags {
        HealthFlags {
            addr: addr.to_owned(),
            ready,
            profile: ProfileFlags::default(),
            timeout: Duration::from_secs(10),
            tls: ClientTlsFlags::default(),
            json: true,
        }
    }

    /// What a server that answers with this is taken for; the request that it got.
    fn told(answer: &'static str) -> (HealthAnswer, String) {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let target = HttpTarget {
            addr: server.local_addr().expect("it is bound").to_string(),
            username: String::new(),
            password: Secret::default(),
            patience: Duration::from_secs(10),
            tls: None,
        };
        let served = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("the command asks");
            let mut request = [0; 4096];
            let count = stream.read(&mut request).expect("a request");
            stream.write_all(answer.as_bytes()).expect("the command listens");
            String::from_utf8_lossy(&request[..count]).into_owned()
        });
        (ask(&target, "/healthz"), served.join().expect("it answers"))
    }

    #[test]
    fn a_node_is_well_or_does_not_answer() {
        let mut server = TestServer::start();
        let addr = server.http_addr();
        for ready in [false, true] {
            assert_eq!(run(&flags(&addr, ready)).expect("it answers"), Outcome::Done);
        }
        server.stop();
        assert_eq!(run(&flags(&addr, true)).expect("no wrong arguments"), Outcome::NotWell);
    }

    #[test]
    fn reasons_are_told_and_no_password_is_sent() {
        let (said, request) =
            told("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 12\r\n\r\nfirst\nsecond");
        assert_eq!(
            said,
            HealthAnswer { status: Some(503), reasons: vec!["first".to_owned(), "second".to_owned()] }
        );
        assert!(request.starts_with("GET /healthz HTTP/1.1\r\n"), "{request}");
        assert!(!request.contains("Authorization"), "{request}");
        let (said, _) = told("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(said.status, Some(404));
        assert!(said.reasons[0].contains("is it a node of Stave?"), "{said:?}");
        let (said, _) = told("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
        assert!(!said.reasons.is_empty(), "{said:?}");
    }
}
