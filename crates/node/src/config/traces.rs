//! Where traces of slow operations go, and the table `[slow-operations]`: how long commands may take.

use std::collections::BTreeMap;
use std::path::PathBuf;

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
    /// The file of the CAs that its certificate is checked with; without one it is spoken to in clear.
    pub ca: Option<PathBuf>,
}

impl TraceEndpoint {
    /// What is configured: where it is, and the file of CAs.
    pub(super) fn of(
        endpoint: Option<&str>,
        ca: Option<&PathBuf>,
    ) -> Result<Option<TraceEndpoint>, ConfigError> {
        match (endpoint, ca) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err(wrong("", "trace-ca is given, and no collector: give trace-endpoint, too"))
            }
            (Some(endpoint), ca) => TraceEndpoint::parse(endpoint, ca).map(Some),
        }
    }

    /// Reads `http[s]://HOST:PORT[/PATH]`.
    fn parse(text: &str, ca: Option<&PathBuf>) -> Result<TraceEndpoint, ConfigError> {
        let wrong = |why| Err(wrong(text, why));
        let rest = match (text.strip_prefix("http://"), text.strip_prefix("https://"), ca) {
            (Some(rest), _, None) | (_, Some(rest), Some(_)) => rest,
            (Some(_), ..) => {
                return wrong("trace-ca is for collectors with TLS: write https://, or leave it out");
            }
            (_, Some(_), None) => {
                return wrong(
                    "the collector's certificate is checked with the CAs of trace-ca: give that, such as \
                     /etc/ssl/certs/ca-certificates.crt",
                );
            }
            _ => return wrong("give http://HOST:PORT or https://HOST:PORT, with a path or without"),
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
        Ok(TraceEndpoint { authority: authority.to_owned(), path: path.to_owned(), ca: ca.cloned() })
    }

    /// As it was configured.
    pub fn url(&self) -> String {
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

fn wrong(text: &str, why: &str) -> ConfigError {
    ConfigError::TraceEndpoint(text.to_owned(), why.to_owned())
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
        let of = |text| TraceEndpoint::parse(text, None).map(|at| (at.authority, at.path));
        let at = |authority: &str, path: &str| (authority.to_owned(), path.to_owned());
        assert_eq!(of("http://127.0.0.1:4318").expect("valid"), at("127.0.0.1:4318", "/v1/traces"));
        assert_eq!(of("http://[::1]:4318/").expect("valid"), at("[::1]:4318", "/v1/traces"));
        assert_eq!(of("http://otel:80/a/b").expect("valid"), at("otel:80", "/a/b"));
        for (text, part) in [
            ("https://otel:4318", "give that"),
            ("otel:4318", "give http://HOST:PORT"),
            ("http://otel", "a host and a port"),
            ("http://:4318", "a host and a port"),
            ("http://otel:4318/a b", "no address has"),
        ] {
            let refused = of(text).expect_err(text).to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_collector_with_tls_is_known_by_its_ca() {
        let ca = PathBuf::from("/ca.pem");
        let of = |endpoint| TraceEndpoint::of(endpoint, Some(&ca));
        let with = of(Some("https://otel:4318")).expect("valid").expect("one");
        assert_eq!((with.url(), with.ca.as_ref()), ("https://otel:4318/v1/traces".to_owned(), Some(&ca)));
        for (endpoint, part) in [(None, "no collector"), (Some("http://otel:4318"), "write https://")] {
            let refused = of(endpoint).expect_err("not valid").to_string();
            assert!(refused.contains(part), "{refused}");
        }
        assert_eq!(TraceEndpoint::of(None, None).expect("valid"), None);
    }

    #[test]
    fn commands_of_the_table_must_exist() {
        let table = |command: &str| BTreeMap::from([(command.to_owned(), 7)]);
        assert_eq!(slow_limits(Some(&table("get"))).expect("valid"), [(protocol::opcode::GET, Some(7))]);
        assert!(slow_limits(Some(&table("fetch"))).is_err());
        assert!(slow_limits(None).expect("nothing").is_empty());
    }
}
