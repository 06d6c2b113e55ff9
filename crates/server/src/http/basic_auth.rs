//! Basic authentication (RFC 7617).

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Shared;
use crate::user::User;

/// Whoever made a request.
#[derive(Clone)]
pub(super) struct Caller(pub Arc<User>);

/// The user, if name and password are right.
pub(super) fn authenticate(shared: &Shared, headers: &HeaderMap) -> Result<Caller, Box<Response>> {
    let user = credentials(headers).and_then(|(name, password)| {
        shared.node.users().authenticate(name.as_bytes(), password.as_bytes()).cloned()
    });
    user.map(Caller).ok_or_else(|| {
        let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"Stave\"")];
        let what = "User and password are needed (basic authentication).\n";
        Box::new((StatusCode::UNAUTHORIZED, challenge, what).into_response())
    })
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
