//! Keeps web pages out: a browser that shows somebody else's page must not act for the user who looks at it.
//!
//! A page can make a browser send requests to this machine, with credentials in the address or remembered ones, and can
//! have its own name lead to 127.0.0.1 (DNS rebinding). Browsers say where a request comes from (`Origin`,
//! `Sec-Fetch-Site`) and which name they looked up (`Host`). SDKs and scripts send neither of the first two.
//!
//! A node that other machines reach may have any name there. Of a browser it takes those alone that the node is known by
//! (record 206); SDKs, scripts and load balancers may come by any.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base::planted::{self, Bug};
use serde_json::json;

/// Whether a node is known by a name.
type IsOwn = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Whether only this machine can connect: then only names that cannot lead anywhere else are believed.
#[derive(Clone)]
pub struct Listens {
    is_loopback: bool,
    is_own: Option<IsOwn>,
    /// How it can get a name that a browser may use, to be told to browsers that use another one.
    naming: &'static str,
}

impl fmt::Debug for Listens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listens").field("is_loopback", &self.is_loopback).finish_non_exhaustive()
    }
}

impl Listens {
    /// At these addresses.
    pub fn at(addresses: &[SocketAddr]) -> Listens {
        let is_loopback = addresses.iter().all(|addr| addr.ip().to_canonical().is_loopback());
        Listens { is_loopback, is_own: None, naming: "" }
    }

    /// The same where browsers must name an address, or a name without a dot: it has no other name.
    pub fn without_a_name(self) -> Listens {
        Listens { naming: "", ..self.known_by(|_| false) }
    }

    /// Beyond this machine, browsers are answered where they name an address, or a name that is the node's.
    pub(crate) fn known_by(self, is_own: impl Fn(&str) -> bool + Send + Sync + 'static) -> Listens {
        let naming = ", or start it with --advertise and that name, or with a certificate for it";
        Listens { is_own: Some(Arc::new(is_own)), naming, ..self }
    }

    /// Whether a browser may have been led to this node by a name that is another's.
    fn is_strange(&self, host: &str) -> bool {
        let Some(is_own) = self.is_own.as_ref().filter(|_| !self.is_loopback) else { return false };
        !is_local_name(host) && !name_in(host).is_some_and(|name| is_own(&name))
    }
}

/// Refuses what web pages of others send.
pub async fn check(State(listens): State<Listens>, request: Request, next: Next) -> Response {
    match stranger(&listens, request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(why) => {
            let message = json!({ "message": why, "errors": { "_": why } });
            (StatusCode::FORBIDDEN, Json(message)).into_response()
        }
    }
}

/// Why a request is taken for that of a web page of others.
fn stranger(listens: &Listens, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).or_else(|| uri.authority().map(Authority::as_str));
    if let Some(host) = host.filter(|host| listens.is_loopback && !is_local_name(host)) {
        return Some(format!(
            "the Host header names {host:?}, which may lead anywhere: use 127.0.0.1, [::1] or localhost"
        ));
    }
    if let Some(host) = host.filter(|host| is_of_browser(headers) && listens.is_strange(host)) {
        return Some(format!(
            "a browser came here by the name {host:?}, which may lead anywhere and is not known to be this node's: use its \
             address{}",
            listens.naming
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

/// Whether a browser sent this for a page, as far as that shows. It says where the page is from with TLS and with `POST`;
/// what else a page may ask for in clear shows by two fields that browsers send together, and monitors do not.
fn is_of_browser(headers: &HeaderMap) -> bool {
    let is_mozilla =
        || headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"));
    headers.contains_key(header::ORIGIN)
        || headers.contains_key("sec-fetch-site")
        || (headers.contains_key(header::ACCEPT_LANGUAGE) && is_mozilla())
}

/// The name in a `Host` header, without port and the dot of the root.
fn name_in(host: &str) -> Option<String> {
    let authority = host.parse::<Authority>().ok()?;
    Some(authority.host().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase())
}

/// Whether a name cannot be led to another machine by somebody's name server: an address, `localhost`, or a name without
/// a dot, which only this machine or its network gives.
fn is_local_name(host: &str) -> bool {
    let Some(name) = name_in(host) else { return false };
    !name.is_empty()
        && (name.parse::<IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn refused(at: &str, fields: &[(&'static str, &str)]) -> bool {
        let listens = Listens::at(&[at.parse().expect("an address")]);
        why(&listens.known_by(|name| name == "db.example.org"), fields).is_some()
    }

    fn why(listens: &Listens, fields: &[(&'static str, &str)]) -> Option<String> {
        let headers = fields
            .iter()
            .map(|(name, value)| ((*name).parse().expect("a name"), value.parse().expect("a value")));
        stranger(listens, &Uri::from_static("/x"), &headers.collect())
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
    const BEYOND: &str = "0.0.0.0:8091";

    #[test]
    fn beyond_this_machine_a_browser_names_the_node() {
        let of_browser: [&[(&'static str, &str)]; 3] = [
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("user-agent", "Mozilla/5.0 (X11)"), ("accept-language", "*")],
        ];
        for fields in of_browser {
            let with = |host| [&[("host", host)][..], fields].concat();
            for host in [
                "db.example.org",
                "DB.example.org.:8091",
                "10.0.0.7:8091",
                "[fd00::1]:1",
                "db",
                "localhost:1",
            ] {
                assert!(!refused(BEYOND, &with(host)), "{host} {fields:?}");
            }
            for host in
                ["evil.example", "evil.example:8091", "db.example.org.evil.example", "x.db.example.org", ""]
            {
                assert!(refused(BEYOND, &with(host)), "{host} {fields:?}");
            }
        }
        let page = [("host", "evil.example"), ("origin", "http://evil.example")];
        assert!(refused(BEYOND, &page), "the page's own address is not the node's");
        let console = [("host", "db.example.org:8091"), ("origin", "http://db.example.org:8091")];
        assert!(!refused(BEYOND, &console));
    }

    #[test]
    fn beyond_this_machine_what_has_no_name_is_named_by_its_address() {
        let nameless = Listens::at(&[BEYOND.parse().expect("an address")]).without_a_name();
        let by = |host| why(&nameless, &[("host", host), ("sec-fetch-site", "same-origin")]);
        assert_eq!(["10.0.0.7:1", "db", "[fd00::1]:1"].map(by), [None, None, None]);
        let told = by("db.example.org").expect("it may be led elsewhere");
        assert!(told.ends_with("use its address"), "{told}");
        assert_eq!(why(&nameless, &[("host", "db.example.org")]), None, "no browser");
    }

    #[test]
    fn beyond_this_machine_other_clients_come_by_any_name() {
        let of_others: [&[(&'static str, &str)]; 4] = [
            &[],
            &[("user-agent", "gocb/v2.11.0")],
            &[("user-agent", "Mozilla/5.0 (compatible; a monitor)")],
            &[("user-agent", "node"), ("accept-language", "*"), ("sec-fetch-mode", "cors")],
        ];
        for fields in of_others {
            assert!(
                !refused(BEYOND, &[&[("host", "nodes.internal:8091")][..], fields].concat()),
                "{fields:?}"
            );
        }
    }
}
