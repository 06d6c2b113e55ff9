//! SASL: list, auth and step.

use std::sync::Arc;
use std::time::Duration;

use engine::StepTimes;
use protocol::{Request, Status};

use crate::audit::record::text;
use crate::audit::sessions;
use crate::context::{Context, Outcome, Ready};
use crate::login_throttle::Attempt;
use crate::node::{FailedLogin, Node};
use crate::node_login::LOGIN_PREFIX;
use crate::password_check::{self, Checked};
use crate::reply::Answer;
use crate::sasl::digest::Mechanism;
use crate::sasl::offer::SaslMethods;
use crate::sasl::scram::{ClientFirst, Exchange};
use crate::sasl::{LoginError, Method, plain};
use crate::stale_users::{USERS_MAY_HAVE_CHANGED, USERS_NOT_READ, lets_in};
use crate::user::{Derivation, PasswordCheck, User};

/// Bytes of a server's nonce.
const NONCE_BYTES: usize = 18;
/// Bytes of the name of a mechanism that are told: RFC 4422 has no longer ones.
const MOST_MECHANISM_BYTES: usize = 20;

/// A connection of streams keeps its user: another one might not have the right to what the streams are about.
fn refuse_streams(ctx: &mut Context<'_>) -> Option<Outcome> {
    ctx.session.dcp.as_ref()?;
    Some(ctx.error(Status::NotSupported, "The user of a connection that streams changes cannot be changed"))
}

/// Lists the ways to log in.
pub fn list_mechanisms(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    if let Some(refused) = refuse_streams(ctx) {
        return refused;
    }
    let names = offered(ctx).names();
    ctx.reply.send(&Answer { value: names.as_bytes(), ..Answer::default() });
    Outcome::Done
}

fn offered(ctx: &Context<'_>) -> SaslMethods {
    ctx.node.accounts().offer().on(ctx.session.is_encrypted)
}

/// Logs in, or begins to. Whoever was logged in before is not any more, whatever comes of it.
pub fn auth(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if let Some(refused) = refuse_streams(ctx) {
        return refused;
    }
    ctx.session.log_out();
    match Method::from_name(request.key) {
        Some(method) if !offered(ctx).has(method) => switched_off(ctx, method, request),
        Some(Method::Plain) => auth_plain(ctx, request.value),
        Some(Method::Scram(mechanism)) => auth_scram(ctx, mechanism, request.value),
        None => mechanism_refused(ctx, b"", request.key, "there is no such mechanism"),
    }
}

/// Refuses a mechanism that is not offered on this connection. The client hears what it hears of a wrong password; log and
/// audit log tell the two apart, and the limit on guesses does not count it.
fn switched_off(ctx: &mut Context<'_>, method: Method, request: &Request<'_>) -> Outcome {
    let why = match ctx.session.is_encrypted {
        true => "the mechanism is switched off on connections with TLS",
        false => "the mechanism is switched off on connections without TLS",
    };
    // Whose client it is that has to be changed.
    let name = match method {
        Method::Plain => plain::parse(request.value).map(|(name, _)| name.to_vec()),
        Method::Scram(_) => ClientFirst::parse(request.value).map(|first| first.name),
    };
    mechanism_refused(ctx, &name.unwrap_or_default(), request.key, why)
}

fn mechanism_refused(ctx: &mut Context<'_>, name: &[u8], mechanism: &[u8], why: &'static str) -> Outcome {
    let mechanism = text(&mechanism[..mechanism.len().min(MOST_MECHANISM_BYTES)]);
    sessions::mechanism_refused(ctx.node, ctx.session, name, why, &mechanism);
    refused(ctx, name, Status::AuthError, Some((why, &mechanism)))
}

fn auth_plain(ctx: &mut Context<'_>, message: &[u8]) -> Outcome {
    let (name, password) = match plain::parse(message) {
        Ok(parsed) => parsed,
        // The original says no more than the status here.
        Err(error) => {
            sessions::login_failed(ctx.node, ctx.session, b"", status_of(error));
            return ctx.status(status_of(error));
        }
    };
    let attempt = match admit(ctx, name) {
        Ok(attempt) => attempt,
        Err(refused) => return refused,
    };
    // Before the password is checked: the users may be read meanwhile.
    let is_early = awaits_users(ctx.node, name);
    match ctx.node.accounts().users().check(name, password, &*ctx.node.env().random) {
        PasswordCheck::Right(user) => logged_in(ctx, user, attempt),
        PasswordCheck::Wrong => wrong(ctx, name, attempt, is_early),
        PasswordCheck::Derive(derivation) => derive(ctx, name, (attempt, is_early), derivation),
    }
}

fn logged_in(ctx: &mut Context<'_>, user: Arc<User>, attempt: Option<Attempt>) -> Outcome {
    match let_in(ctx, user, attempt) {
        Ok(()) => ctx.status(Status::Success),
        Err(refused) => refused,
    }
}

/// Logs a user in whose password is right, unless this member may not know the user well enough.
fn let_in(ctx: &mut Context<'_>, user: Arc<User>, attempt: Option<Attempt>) -> Result<(), Outcome> {
    if let Some(refused) = not_let_in(ctx, &user) {
        unchecked(ctx, attempt);
        return Err(refused);
    }
    if let Some(attempt) = attempt {
        ctx.node.logins.succeeded(attempt, ctx.node.env().clock.monotonic());
    }
    ctx.session.log_in(user);
    sessions::logged_in(ctx.node, ctx.session);
    Ok(())
}

/// Refuses a user whose password is right, and whom this member may not know well enough to let in.
fn not_let_in(ctx: &mut Context<'_>, user: &User) -> Option<Outcome> {
    if lets_in(ctx.node, user) {
        return None;
    }
    sessions::login_put_off(ctx.node, ctx.session, user.name().as_bytes(), USERS_MAY_HAVE_CHANGED);
    Some(ctx.error(Status::Etmpfail, USERS_MAY_HAVE_CHANGED))
}

/// Has keys derived of a password on a thread for that. The connection waits, and its worker goes on with others.
fn derive(
    ctx: &mut Context<'_>,
    name: &[u8],
    (attempt, is_early): (Option<Attempt>, bool),
    derivation: Box<Derivation>,
) -> Outcome {
    let Some(checked) = password_check::derive(ctx.node, ctx.session.peer, attempt.as_ref(), derivation)
    else {
        unchecked(ctx, attempt);
        sessions::login_put_off(ctx.node, ctx.session, name, "too many passwords wait to be checked");
        return ctx.error(Status::Etmpfail, "Too many passwords wait to be checked: try again");
    };
    let name = name.to_vec();
    // If the client does not wait for the end of it, it stays counted as a failure: the password is checked all the same.
    Outcome::Again(Box::pin(async move {
        let checked = checked.await;
        let finish = move |ctx: &mut Context<'_>| finish(ctx, &name, (attempt, is_early), checked);
        Ready::Finish(Box::new(finish), StepTimes::default())
    }))
}

fn finish(
    ctx: &mut Context<'_>,
    name: &[u8],
    (attempt, is_early): (Option<Attempt>, bool),
    checked: Option<Checked>,
) -> Outcome {
    match checked {
        Some(Checked::Right(user)) => logged_in(ctx, user, attempt),
        Some(Checked::Wrong) => wrong(ctx, name, attempt, is_early),
        // Clients with less of the queue came.
        None => {
            unchecked(ctx, attempt);
            ctx.status(Status::Etmpfail)
        }
        Some(Checked::NoRoom) => {
            unchecked(ctx, attempt);
            sessions::login_put_off(ctx.node, ctx.session, name, "there is no memory to check the password");
            ctx.error(Status::Etmpfail, "There is no memory to check the password now: try again")
        }
    }
}

fn auth_scram(ctx: &mut Context<'_>, mechanism: Mechanism, message: &[u8]) -> Outcome {
    if message.is_empty() {
        return ctx.status(Status::Einval);
    }
    let first = match ClientFirst::parse(message) {
        Ok(first) => first,
        Err(error) => return failed(ctx, b"", status_of(error)),
    };
    // The password comes with the last message, and takes a place then: however many exchanges were begun while there was
    // one, no more are ended than there are places.
    if let Err(wait) = look(ctx, &first.name) {
        return must_wait(ctx, &first.name, wait);
    }
    ctx.session.exchange_is_early = awaits_users(ctx.node, &first.name);
    let users = ctx.node.accounts().users();
    let user = users.by_scram(&first.name).cloned();
    let keys = user
        .as_ref()
        .map_or_else(|| users.decoy(mechanism, &first.name), |user| user.scram(mechanism).clone());
    let mut nonce = [0; NONCE_BYTES];
    ctx.node.env().random.fill(&mut nonce);
    let exchange = Exchange::start(&first, keys, &nonce);
    let value = exchange.server_first().as_bytes();
    ctx.reply.send(&Answer { status: Status::AuthContinue, value, ..Answer::default() });
    ctx.session.exchange = Some(Box::new(exchange));
    ctx.session.exchanges_with = user;
    Outcome::Done
}

/// Goes on with a login that was begun.
pub fn step(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if let Some(refused) = refuse_streams(ctx) {
        return refused;
    }
    let Some(exchange) = ctx.session.exchange.take() else {
        let context =
            "Logic error: The server expects the client to start with SASL START before sending SASL STEP";
        return ctx.invalid(context);
    };
    if Method::from_name(request.key) != Some(Method::Scram(exchange.mechanism())) {
        return failed(ctx, b"", Status::Einval);
    }
    let (name, mechanism) = (exchange.name().to_vec(), exchange.mechanism());
    let admitted = if is_at_nodes(ctx.node, &name) { Ok(None) } else { admit(ctx, &name) };
    let attempt = match admitted {
        Ok(attempt) => attempt,
        Err(refused) => return refused,
    };
    // The user may have got another password since the exchange began, or, of the configuration, other keys of the same.
    let (users, began) = (ctx.node.accounts().users(), ctx.session.exchanges_with.take());
    let is_still = |began: &Arc<User>| users.now(began).is_some();
    let is_with =
        |user: &&Arc<User>| exchange.is_with(user.scram(mechanism)) || began.as_ref().is_some_and(is_still);
    let user = users.by_scram(&name).filter(is_with).cloned();
    let finished = exchange.finish(request.value);
    match (finished, user) {
        (Ok(server_final), Some(user)) => {
            if let Err(refused) = let_in(ctx, user, attempt) {
                return refused;
            }
            ctx.reply.send(&Answer { value: server_final.as_bytes(), ..Answer::default() });
            Outcome::Done
        }
        (Ok(_), None) | (Err(LoginError::Wrong), _) => {
            let is_early = ctx.session.exchange_is_early;
            wrong(ctx, &name, attempt, is_early)
        }
        (Err(error), _) => failed(ctx, &name, status_of(error)),
    }
}

fn status_of(error: LoginError) -> Status {
    match error {
        LoginError::Malformed => Status::Einval,
        LoginError::Wrong => Status::AuthError,
    }
}

/// Whether a login by SCRAM is at the secret of nodes, and not at the password of a user. It is neither limited nor counted:
/// 32 random bytes are not guessed, and with a limit strangers behind the address of another node would keep it out. What
/// is looked at is not stretched, so that each costs as little as what strangers may ask for without a limit.
fn is_at_nodes(node: &Node, name: &[u8]) -> bool {
    name.starts_with(LOGIN_PREFIX.as_bytes()) && node.accounts().users().get(name).is_none()
}

/// Whether the end of an exchange of this user from the client's address would be looked at now.
fn look(ctx: &Context<'_>, name: &[u8]) -> Result<(), Duration> {
    let peer = ctx.session.peer.filter(|_| !is_at_nodes(ctx.node, name));
    let Some(peer) = peer else { return Ok(()) };
    ctx.node.logins.look(peer, name, ctx.node.env().clock.monotonic())
}

/// Lets a password be checked, unless too many guesses at this user came from the client's address. It counts as wrong until
/// it is found right, or [`unchecked`].
fn admit(ctx: &mut Context<'_>, name: &[u8]) -> Result<Option<Attempt>, Outcome> {
    let Some(peer) = ctx.session.peer else { return Ok(None) };
    let admitted = ctx.node.logins.admit(peer, name, ctx.node.env().clock.monotonic());
    admitted.map(Some).map_err(|wait| must_wait(ctx, name, wait))
}

fn must_wait(ctx: &mut Context<'_>, name: &[u8], wait: Duration) -> Outcome {
    sessions::login_put_off(ctx.node, ctx.session, name, "too many logins failed from this address");
    let context = format!(
        "Too many logins failed from this address: try again in {} seconds",
        wait.as_millis().div_ceil(1_000)
    );
    ctx.error(Status::Etmpfail, &context)
}

/// A password that was let through to be checked was not: it does not count.
fn unchecked(ctx: &Context<'_>, attempt: Option<Attempt>) {
    if let Some(attempt) = attempt {
        ctx.node.logins.unchecked(attempt, ctx.node.env().clock.monotonic());
    }
}

/// Whether another node logs in at one that belongs to a cluster and has not read the secret of its nodes since its start:
/// each restart of a node brings that about, and the other one tries again.
fn is_early(node: &Node, name: &[u8]) -> bool {
    name.starts_with(LOGIN_PREFIX.as_bytes())
        && !node.fence().is_open()
        && !node.accounts().users().has_nodes()
}

/// Whether this may be a user of the cluster, whose users this member has not read. Nodes are none of them.
fn awaits_users(node: &Node, name: &[u8]) -> bool {
    node.accounts().awaits_users() && !name.starts_with(LOGIN_PREFIX.as_bytes())
}

/// The password is not that of a user known here. Before this node has read the users of its cluster, this says nothing of
/// others than those of the configuration. All of them are answered alike, so that a stranger does not learn who is in the
/// configuration (record 0202).
fn wrong(ctx: &mut Context<'_>, name: &[u8], attempt: Option<Attempt>, is_early: bool) -> Outcome {
    if !is_early {
        return failed(ctx, name, Status::AuthError);
    }
    let is_configured = |name| ctx.node.accounts().users().is_configured(name);
    if std::str::from_utf8(name).is_ok_and(is_configured) {
        sessions::login_failed(ctx.node, ctx.session, name, Status::AuthError);
        let login = failed_login(ctx, name, Status::AuthError);
        ctx.node.events().login_failed(&login, ctx.node.env().clock.monotonic());
    } else {
        unchecked(ctx, attempt);
    }
    ctx.error(Status::Etmpfail, USERS_NOT_READ)
}

/// What the log is told of a client that calls itself `name` and could not log in.
fn failed_login<'a>(ctx: &Context<'_>, user: &'a [u8], status: Status) -> FailedLogin<'a> {
    FailedLogin {
        user,
        ends: ctx.session.ends,
        protocol: "kv",
        status: status.name(),
        reference: None,
        reason: None,
        mechanism: None,
    }
}

fn failed(ctx: &mut Context<'_>, name: &[u8], status: Status) -> Outcome {
    sessions::login_failed(ctx.node, ctx.session, name, status);
    refused(ctx, name, status, None)
}

/// Tells the client no more than a reference that the log has, too. `unjudged`: why no password was looked at, and the
/// mechanism.
fn refused(
    ctx: &mut Context<'_>,
    name: &[u8],
    status: Status,
    unjudged: Option<(&'static str, &str)>,
) -> Outcome {
    let [a, b] = [ctx.node.env().random.next_u64(), ctx.node.env().random.next_u64()];
    let reference = format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        (a & 0x0fff) | 0x4000,
        (b >> 48 & 0x3fff) | 0x8000,
        b & 0xffff_ffff_ffff
    );
    let now = ctx.node.env().clock.monotonic();
    let reference = reference.as_str();
    let login = FailedLogin {
        reference: Some(reference),
        reason: unjudged.map(|(why, _)| why),
        mechanism: unjudged.map(|(_, mechanism)| mechanism),
        ..failed_login(ctx, name, status)
    };
    if is_early(ctx.node, name) {
        tracing::debug!(reference, "another node logs in before this one has read its cluster's secret");
    } else {
        ctx.node.events().login_failed(&login, now);
    }
    ctx.reply.error_ref(status, reference);
    Outcome::Done
}
