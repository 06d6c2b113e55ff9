//! Basic authentication (RFC 7617).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Shared;
use crate::user::User;

/// Whoever made a request.
#[derive(Clone)]
pub(super) struct Caller(pub Arc<User>);

/// Lets requests through whose name and password are right.
pub(super) async fn check(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let credentials = credentials(request.headers());
    let user = credentials.and_then(|(name, password)| {
        shared.node.users().authenticate(name.as_bytes(), password.as_bytes()).cloned()
    });
    let Some(user) = user else {
        let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"Stave\"")];
        let what = "User and password are needed (basic authentication).\n";
        return (StatusCode::UNAUTHORIZED, challenge, what).into_response();
    };
    request.extensions_mut().insert(Caller(user));
    next.run(request).await
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
