//! Basic authentication (RFC 7617).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::node::user::User;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Shared;

/// Whoever made a request.
#[derive(Clone)]
pub(super) struct Caller(pub Arc<User>);

/// The user, if name and password are right, and not too many of that address were wrong. Who gives none is the user that
/// the client's certificate stands for, if it has shown one.
pub(super) fn authenticate(
    shared: &Shared,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    certified: Option<&str>,
) -> Result<Caller, Box<Response>> {
    if let (Some(name), false) = (certified, headers.contains_key(header::AUTHORIZATION)) {
        return shared.node.users().get(name.as_bytes()).cloned().map(Caller).ok_or_else(unknown);
    }
    let Some((name, password)) = credentials(headers) else { return Err(unknown()) };
    let (logins, now) = (shared.node.logins(), shared.node.env().clock.monotonic());
    if let Some(wait) = peer.and_then(|peer| logins.admit(peer, name.as_bytes(), now).err()) {
        return Err(must_wait(wait));
    }
    let users = shared.node.users();
    let user = users.authenticate(name.as_bytes(), password.as_bytes());
    match (user, peer) {
        (Some(_), Some(peer)) => logins.succeeded(peer, name.as_bytes(), now),
        (None, Some(peer)) => logins.failed(peer, name.as_bytes(), now),
        (_, None) => {}
    }
    user.cloned().map(Caller).ok_or_else(unknown)
}

fn unknown() -> Box<Response> {
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"Stave\"")];
    let what = "User and password are needed (basic authentication).\n";
    Box::new((StatusCode::UNAUTHORIZED, challenge, what).into_response())
}

fn must_wait(wait: Duration) -> Box<Response> {
    let seconds = wait.as_millis().div_ceil(1_000);
    let what = format!("Too many logins failed from this address: try again in {seconds} seconds.\n");
    Box::new(
        (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds.to_string())], what).into_response(),
    )
}

fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}
