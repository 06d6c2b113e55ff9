//! Keeps web pages out: a browser that shows somebody else's page must not act for the user who looks at it.
//!
//! A page can make a browser send requests to this machine, with credentials in the address or remembered ones, and can
//! have its own name lead to 127.0.0.1 (DNS rebinding). Browsers say where a request comes from (`Origin`,
//! `Sec-Fetch-Site`) and which name they looked up (`Host`). SDKs and scripts send neither of the first two.

use std::net::{IpAddr, SocketAddr};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base::planted::{self, Bug};
use serde_json::json;

/// Whether only this machine can connect: then only names that cannot lead anywhere else are believed.
#[derive(Clone, Copy, Debug)]
pub struct Listens {
    is_loopback: bool,
}

impl Listens {
    /// At these addresses.
    pub fn at(addresses: &[SocketAddr]) -> Listens {
        Listens { is_loopback: addresses.iter().all(|addr| addr.ip().to_canonical().is_loopback()) }
    }
}

/// Refuses what web pages of others send.
pub async fn check(State(listens): State<Listens>, request: Request, next: Next) -> Response {
    match stranger(listens, request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(why) => {
            let message = json!({ "message": why, "errors": { "_": why } });
            (StatusCode::FORBIDDEN, Json(message)).into_response()
        }
    }
}

/// Why a request is taken for that of a web page of others.
fn stranger(listens: Listens, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).or_else(|| uri.authority().map(Authority::as_str));
    if let Some(host) = host.filter(|host| listens.is_loopback && !is_local_name(host)) {
        return Some(format!(
            "the Host header names {host:?}, which may lead anywhere: use 127.0.0.1, [::1] or localhost"
        ));
    }
    if let Some(site) = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("?"))
        && !matches!(site, "same-origin" | "none")
    {
        return Some(format!("a web page of another site ({site}) sent this: it may not"));
    }
    let origin = text(header::ORIGIN).filter(|_| !planted::is(Bug::PagesOfOthersAct))?;
    let is_same = host.is_some_and(|host| {
        ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
    });
    (!is_same).then(|| format!("a web page at {origin:?} sent this: pages of other addresses may not"))
}

/// Whether a name cannot be led to another machine by somebody's name server: an address, `localhost`, or a name without
/// a dot, which only this machine or its network gives.
fn is_local_name(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    !name.is_empty()
        && (name.parse::<IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn refused(at: &str, fields: &[(&'static str, &str)]) -> bool {
        let headers = fields
            .iter()
            .map(|(name, value)| ((*name).parse().expect("a name"), value.parse().expect("a value")));
        let listens = Listens::at(&[at.parse().expect("an address")]);
        stranger(listens, &Uri::from_static("/x"), &headers.collect()).is_some()
    }

    const HERE: &str = "127.0.0.1:8091";

    #[test]
    fn clients_are_let_in() {
        for host in
            ["127.0.0.1:8091", "localhost:8091", "[::1]:8091", "db", "a.localhost", "10.0.0.7:1", "127.0.0.1"]
        {
            assert!(!refused(HERE, &[("host", host)]), "{host}");
        }
        assert!(!refused(HERE, &[]));
        assert!(!refused(HERE, &[("host", "localhost:8091"), ("origin", "http://localhost:8091")]));
        assert!(!refused(HERE, &[("host", "localhost:8091"), ("sec-fetch-site", "none")]));
        assert!(!refused("0.0.0.0:8091", &[("host", "db.example.org:8091")]));
        assert!(!refused("[::ffff:127.0.0.1]:1", &[("host", "localhost")]));
    }

    #[test]
    pub(crate) fn pages_of_others_are_not() {
        for host in
            ["evil.example", "evil.example:8091", "localhost.evil.example", "", "127.0.0.1.evil.example"]
        {
            assert!(refused(HERE, &[("host", host)]), "{host}");
        }
        for at in [HERE, "0.0.0.0:8091"] {
            for origin in ["http://evil.example", "null", "http://localhost:3000", "https://127.0.0.1"] {
                assert!(refused(at, &[("host", "127.0.0.1:8091"), ("origin", origin)]), "{origin}");
            }
            for site in ["cross-site", "same-site", "?"] {
                assert!(refused(at, &[("host", "127.0.0.1:8091"), ("sec-fetch-site", site)]), "{site}");
            }
        }
    }
}
