//! Basic authentication (RFC 7617).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::node::audit::events::AuditEvent;
use ::node::login_throttle::Attempt;
use ::node::node_login::LOGIN_PREFIX;
use ::node::password_check::{self, Checked};
use ::node::stale_users;
use ::node::user::{Derivation, PasswordCheck, User};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::shared::Shared;

/// Whoever made a request.
#[derive(Clone)]
pub(super) struct Caller(pub Arc<User>);

/// Whether a request is let through although it cannot be recorded: otherwise no administrator could have the node go on without
/// the audit log.
pub(super) fn is_way_out(uri: &Uri) -> bool {
    uri.path().starts_with("/settings/audit")
}

/// The user, if name and password are right, and not too many of that address were wrong. Who gives none is the user that
/// the client's certificate names, if it has shown one. Every login over HTTP comes by here, and none is let through
/// that must be recorded and cannot be.
pub(super) async fn authenticate(
    shared: &Shared,
    uri: &Uri,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    certified: Option<&str>,
) -> Result<Caller, Box<Response>> {
    if !is_way_out(uri)
        && let Err(why) = shared.node.audit.admit(AuditEvent::WebLoginFailed)
    {
        return Err(try_again(&format!("{why}.\n")));
    }
    // Before the users are looked at: they may be read meanwhile.
    let is_early = shared.node.accounts().awaits_users();
    if let Some(name) = certified.filter(|_| names_no_user(headers)) {
        let user = shared.node.accounts().users().get(name.as_bytes()).cloned();
        let user = user.filter(|_| !name.is_empty());
        let user = user.ok_or_else(|| match is_early && !name.is_empty() {
            true => not_read(),
            false => unknown_certified(shared, name),
        })?;
        return let_in(shared, uri, user);
    }
    let Some((name, password)) = credentials(headers) else { return Err(nameless(headers)) };
    let (logins, now) = (&shared.node.logins, || shared.node.env().clock.monotonic());
    // It counts as wrong until it is found right, or was not looked at. If the client does not wait for that, it stays
    // counted: the password is checked all the same.
    let attempt =
        peer.map(|peer| logins.admit(peer, name.as_bytes(), now())).transpose().map_err(must_wait)?;
    let checked = shared.node.accounts().users().check(
        name.as_bytes(),
        password.as_bytes(),
        &*shared.node.env().random,
    );
    let checked = match checked {
        PasswordCheck::Right(user) => Checked::Right(user),
        PasswordCheck::Wrong => Checked::Wrong,
        PasswordCheck::Derive(derivation) => derive(shared, peer, attempt.as_ref(), derivation).await,
    };
    match (checked, attempt) {
        (Checked::Right(user), attempt) => {
            if let Some(attempt) = attempt {
                logins.succeeded(attempt, now());
            }
            let_in(shared, uri, user)
        }
        // Names of nodes are no user's, whatever is read later.
        (Checked::Wrong, attempt) if is_early && !name.starts_with(LOGIN_PREFIX) => {
            Err(wrong_or_not_read(shared, &name, attempt))
        }
        (Checked::Wrong, _) => Err(refused()),
        (Checked::NoRoom, attempt) => {
            if let Some(attempt) = attempt {
                logins.unchecked(attempt, now());
            }
            Err(busy())
        }
    }
}

/// Marks an answer to a user that this node has not read yet: it is no failed login.
#[derive(Clone, Copy)]
pub(super) struct NotJudged;

/// The password is not that of a user known to this member, which has not read the users of its cluster. Those of the
/// configuration are answered alike, so that a stranger does not learn who is in it (records 0202 and 0221).
fn wrong_or_not_read(shared: &Shared, name: &str, attempt: Option<Attempt>) -> Box<Response> {
    if shared.node.accounts().users().is_configured(name) {
        return try_again(&format!("{}.\n", stale_users::USERS_NOT_READ));
    }
    if let Some(attempt) = attempt {
        shared.node.logins.unchecked(attempt, shared.node.env().clock.monotonic());
    }
    not_read()
}

fn not_read() -> Box<Response> {
    let mut answer = try_again(&format!("{}.\n", stale_users::USERS_NOT_READ));
    answer.extensions_mut().insert(NotJudged);
    answer
}

/// Whether a request has no name and no password. SDKs send both empty where their users have certificates.
pub(super) fn names_no_user(headers: &HeaderMap) -> bool {
    let is_empty = |(name, password): (String, String)| name.is_empty() && password.is_empty();
    !headers.contains_key(header::AUTHORIZATION) || credentials(headers).is_some_and(is_empty)
}

/// The user, unless this node is cut off from what it knows of users. It tells figures all the same: that it serves nothing is
/// one of them.
fn let_in(shared: &Shared, uri: &Uri, user: Arc<User>) -> Result<Caller, Box<Response>> {
    if uri.path() == "/metrics" || stale_users::lets_in(&shared.node, &user) {
        return Ok(Caller(user));
    }
    Err(try_again(&format!("{}.\n", stale_users::USERS_MAY_HAVE_CHANGED)))
}

/// Has keys derived of a password on a thread for that.
async fn derive(
    shared: &Shared,
    peer: Option<IpAddr>,
    attempt: Option<&Attempt>,
    derivation: Box<Derivation>,
) -> Checked {
    let checked = match password_check::derive(&shared.node, peer, attempt, derivation) {
        Some(checked) => checked.await,
        None => None,
    };
    checked.unwrap_or(Checked::NoRoom)
}

fn busy() -> Box<Response> {
    try_again("Too many passwords wait to be checked: try again.\n")
}

/// The password was not looked at, or its user is not let in now.
fn try_again(what: &str) -> Box<Response> {
    let answer = (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], what.to_owned());
    Box::new(answer.into_response())
}

/// The request names no user, or not as basic authentication does.
fn nameless(headers: &HeaderMap) -> Box<Response> {
    let what = if headers.contains_key(header::AUTHORIZATION) {
        "The Authorization header is not the one of basic authentication: Basic, and USER:PASSWORD in base64.\n"
    } else {
        "User and password are needed (basic authentication).\n"
    };
    not_logged_in(what.to_owned())
}

/// Which of the two is wrong is not told: a stranger learns no names of users.
fn refused() -> Box<Response> {
    not_logged_in("There is no such user, or the password is another one.\n".to_owned())
}

/// No user is the one that the client's certificate names.
fn unknown_certified(shared: &Shared, name: &str) -> Box<Response> {
    let what = shared.node.events().unknown_certified(name, shared.node.env().clock.monotonic());
    not_logged_in(format!("{what}.\n"))
}

fn not_logged_in(what: String) -> Box<Response> {
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"Stave\"")];
    Box::new((StatusCode::UNAUTHORIZED, challenge, what).into_response())
}

fn must_wait(wait: Duration) -> Box<Response> {
    let seconds = wait.as_millis().div_ceil(1_000);
    let what = format!("Too many logins failed from this address: try again in {seconds} seconds.\n");
    Box::new(
        (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds.to_string())], what).into_response(),
    )
}

/// What the user of a request calls itself.
pub(super) fn claimed_name(headers: &HeaderMap) -> Option<String> {
    credentials(headers).map(|(name, _)| name)
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
