//! Where traces of slow operations go, and the table `[slow-operations]`: how long commands may take.

use std::collections::BTreeMap;

use super::ConfigError;
use crate::slow::limits::{self, SlowLimit};

/// Where collectors of OpenTelemetry take traces if nothing else is said.
const DEFAULT_PATH: &str = "/v1/traces";

/// A collector of traces that is spoken to with OTLP over HTTP, in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEndpoint {
    /// `HOST:PORT`.
    pub authority: String,
    /// With a slash in front.
    pub path: String,
}

impl TraceEndpoint {
    /// Reads `http://HOST:PORT[/PATH]`.
    pub(super) fn parse(text: &str) -> Result<TraceEndpoint, ConfigError> {
        let wrong = |why: &str| Err(ConfigError::TraceEndpoint(text.to_owned(), why.to_owned()));
        let Some(rest) = text.strip_prefix("http://") else {
            return wrong(match text.starts_with("https://") {
                true => {
                    "traces are sent without TLS: name a collector on this machine or a network of its own"
                }
                false => "give http://HOST:PORT or http://HOST:PORT/PATH",
            });
        };
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let port = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if !port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return wrong("it needs a host and a port, as in http://127.0.0.1:4318");
        }
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong("its path has letters that no address has");
        }
        let path = if path.len() > 1 { path } else { DEFAULT_PATH };
        Ok(TraceEndpoint { authority: authority.to_owned(), path: path.to_owned() })
    }
}

/// The limits of a table of commands and milliseconds.
pub(super) fn slow_limits(table: Option<&BTreeMap<String, u64>>) -> Result<Vec<SlowLimit>, ConfigError> {
    let limit = |(command, ms): (&String, &u64)| limits::parse(command, &ms.to_string());
    table.into_iter().flatten().map(limit).collect::<Result<_, _>>().map_err(ConfigError::SlowLimit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_or_without_a_path() {
        let of = |text| TraceEndpoint::parse(text).map(|at| (at.authority, at.path));
        let at = |authority: &str, path: &str| (authority.to_owned(), path.to_owned());
        assert_eq!(of("http://127.0.0.1:4318").expect("valid"), at("127.0.0.1:4318", "/v1/traces"));
        assert_eq!(of("http://[::1]:4318/").expect("valid"), at("[::1]:4318", "/v1/traces"));
        assert_eq!(of("http://otel:80/a/b").expect("valid"), at("otel:80", "/a/b"));
        for (text, part) in [
            ("https://otel:4318", "without TLS"),
            ("otel:4318", "give http://HOST:PORT"),
            ("http://otel", "a host and a port"),
            ("http://:4318", "a host and a port"),
            ("http://otel:4318/a b", "no address has"),
        ] {
            let refused = TraceEndpoint::parse(text).expect_err(text).to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn commands_of_the_table_must_exist() {
        let table = |command: &str| BTreeMap::from([(command.to_owned(), 7)]);
        assert_eq!(slow_limits(Some(&table("get"))).expect("valid"), [(protocol::opcode::GET, Some(7))]);
        assert!(slow_limits(Some(&table("fetch"))).is_err());
        assert!(slow_limits(None).expect("nothing").is_empty());
    }
}
