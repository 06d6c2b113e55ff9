//! Which node is asked over HTTP, and as whom.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::password::{self, PasswordFlags};
use crate::cli::profile::ProfileFlags;
use crate::client::{ClientTlsFlags, HttpTarget, Secret, Trust, with_http_port};
use crate::units::parse_duration;

/// Where a node is asked if nothing else is said. It is no address that can be given: a port that is given is taken as it is,
/// with and without TLS.
pub(crate) const DEFAULT_ADDR: &str = "127.0.0.1:8091|18091";
const DEFAULT_HOST: &str = "127.0.0.1";

/// Which node is asked, and as whom.
#[derive(Clone, Debug, Args)]
pub struct HttpFlags {
    /// HTTP address of any node of the cluster; the port is 8091 if none is given, with TLS 18091
    #[arg(long, value_name = "HOST:PORT", env = "STAVE_HTTP_ADDR", default_value = DEFAULT_ADDR, value_parser = NonEmptyStringValueParser::new())]
    pub addr: String,
    /// Who to log in as
    #[arg(long, value_name = "USER", env = "STAVE_USERNAME", default_value = "Administrator")]
    pub username: String,
    /// How the user proves to be that one.
    #[command(flatten)]
    pub password: PasswordFlags,
    /// The profile that says what no flag and no variable does.
    #[command(flatten)]
    pub profile: ProfileFlags,
    /// How long to wait for an answer of the node, not for a rebalance to end: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", env = "STAVE_TIMEOUT", default_value = "30s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// How it is spoken with by TLS.
    #[command(flatten)]
    pub tls: ClientTlsFlags,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl HttpFlags {
    /// Whom these flags name. A password that is not given is asked for at the terminal.
    pub fn target(&self) -> anyhow::Result<HttpTarget> {
        let given = self.password.given()?;
        let tls = self.tls.trust()?;
        let is_by_certificate = given.is_none() && tls.as_ref().is_some_and(Trust::shows_certificate);
        let given = if is_by_certificate { Some(Secret::default()) } else { given };
        let asked = || password::ask(&format!("password of {}: ", self.username));
        let Some(password) = given.map_or_else(asked, |given| Ok(Some(given)))? else {
            bail!(self.password.needed());
        };
        let addr = full_addr(&self.addr, tls.is_some());
        let (username, patience) = (self.username.clone(), self.timeout);
        Ok(HttpTarget { addr, username, password, patience, tls })
    }
}

/// An address with its port.
pub(super) fn full_addr(addr: &str, by_tls: bool) -> String {
    with_http_port(if addr == DEFAULT_ADDR { DEFAULT_HOST } else { addr }, by_tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_given_is_taken() {
        let of = |addr| (full_addr(addr, false), full_addr(addr, true));
        assert_eq!(of(DEFAULT_ADDR), ("127.0.0.1:8091".to_owned(), "127.0.0.1:18091".to_owned()));
        assert_eq!(of("127.0.0.1:8091"), ("127.0.0.1:8091".to_owned(), "127.0.0.1:8091".to_owned()));
    }
}
