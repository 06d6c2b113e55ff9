//! SASL: list, auth and step.

use std::sync::Arc;

use engine::StepTimes;
use protocol::{Request, Status};

use crate::audit::record::text;
use crate::audit::sessions;
use crate::context::{Context, Outcome, Ready};
use crate::node::{FailedLogin, Node};
use crate::node_login::LOGIN_PREFIX;
use crate::password_check::{self, Checked};
use crate::reply::Answer;
use crate::sasl::digest::Mechanism;
use crate::sasl::offer::SaslMethods;
use crate::sasl::scram::{ClientFirst, Exchange};
use crate::sasl::{LoginError, Method, plain};
use crate::stale_users::{USERS_MAY_HAVE_CHANGED, lets_in};
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
    if let Some(refused) = must_wait(ctx, name) {
        return refused;
    }
    match ctx.node.accounts().users().check(name, password, &*ctx.node.env().random) {
        PasswordCheck::Right(user) => logged_in(ctx, user),
        PasswordCheck::Wrong => wrong(ctx, name, Status::AuthError),
        PasswordCheck::Derive(derivation) => derive(ctx, name, derivation),
    }
}

fn logged_in(ctx: &mut Context<'_>, user: Arc<User>) -> Outcome {
    if let Some(refused) = not_let_in(ctx, &user) {
        return refused;
    }
    right(ctx, user.name().as_bytes());
    ctx.session.log_in(user);
    sessions::logged_in(ctx.node, ctx.session);
    ctx.status(Status::Success)
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
fn derive(ctx: &mut Context<'_>, name: &[u8], derivation: Box<Derivation>) -> Outcome {
    let Some(checked) = password_check::derive(ctx.node, ctx.session.peer, derivation) else {
        sessions::login_put_off(ctx.node, ctx.session, name, "too many passwords wait to be checked");
        return ctx.error(Status::Etmpfail, "Too many passwords wait to be checked: try again");
    };
    let name = name.to_vec();
    Outcome::Again(Box::pin(async move {
        match checked.await {
            Some(checked) => {
                Ready::Finish(Box::new(move |ctx| finish(ctx, &name, checked)), StepTimes::default())
            }
            // Clients with less of the queue came.
            None => Ready::Failed(Status::Etmpfail),
        }
    }))
}

fn finish(ctx: &mut Context<'_>, name: &[u8], checked: Checked) -> Outcome {
    match checked {
        Checked::Right(user) => logged_in(ctx, user),
        Checked::Wrong => wrong(ctx, name, Status::AuthError),
        Checked::NoRoom => {
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
    if let Some(refused) = must_wait(ctx, &first.name) {
        return refused;
    }
    let users = ctx.node.accounts().users();
    let keys = users
        .by_scram(&first.name)
        .map_or_else(|| users.decoy(mechanism, &first.name), |user| user.scram(mechanism).clone());
    let mut nonce = [0; NONCE_BYTES];
    ctx.node.env().random.fill(&mut nonce);
    let exchange = Exchange::start(&first, keys, &nonce);
    let value = exchange.server_first().as_bytes();
    ctx.reply.send(&Answer { status: Status::AuthContinue, value, ..Answer::default() });
    ctx.session.exchange = Some(Box::new(exchange));
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
    // The user may have got another password since the exchange began.
    let users = ctx.node.accounts().users();
    let user = users.by_scram(&name).filter(|user| exchange.is_with(user.scram(mechanism))).cloned();
    let finished = exchange.finish(request.value);
    match (finished, user) {
        (Ok(server_final), Some(user)) => {
            if let Some(refused) = not_let_in(ctx, &user) {
                return refused;
            }
            ctx.session.log_in(user);
            sessions::logged_in(ctx.node, ctx.session);
            right(ctx, &name);
            ctx.reply.send(&Answer { value: server_final.as_bytes(), ..Answer::default() });
            Outcome::Done
        }
        (Ok(_), None) => wrong(ctx, &name, Status::AuthError),
        (Err(error), _) => wrong(ctx, &name, status_of(error)),
    }
}

fn status_of(error: LoginError) -> Status {
    match error {
        LoginError::Malformed => Status::Einval,
        LoginError::Wrong => Status::AuthError,
    }
}

/// Refuses to check a password if too many guesses at this user came from the client's address.
fn must_wait(ctx: &mut Context<'_>, name: &[u8]) -> Option<Outcome> {
    let now = ctx.node.env().clock.monotonic();
    let wait = ctx.node.logins.admit(ctx.session.peer?, name, now).err()?;
    sessions::login_put_off(ctx.node, ctx.session, name, "too many logins failed from this address");
    let context = format!(
        "Too many logins failed from this address: try again in {} seconds",
        wait.as_millis().div_ceil(1_000)
    );
    Some(ctx.error(Status::Etmpfail, &context))
}

/// A user has logged in from this address: that is remembered, too.
fn right(ctx: &Context<'_>, name: &[u8]) {
    if let Some(peer) = ctx.session.peer {
        ctx.node.logins.succeeded(peer, name, ctx.node.env().clock.monotonic());
    }
}

/// Name or password is wrong: that is remembered for a while.
fn wrong(ctx: &mut Context<'_>, name: &[u8], status: Status) -> Outcome {
    if let Some(peer) = ctx.session.peer {
        ctx.node.logins.failed(peer, name, ctx.node.env().clock.monotonic());
    }
    failed(ctx, name, status)
}

/// Whether another node logs in at one that belongs to a cluster and has not read the secret of its nodes since its start:
/// each restart of a node brings that about, and the other one tries again.
fn is_early(node: &Node, name: &[u8]) -> bool {
    name.starts_with(LOGIN_PREFIX.as_bytes())
        && !node.fence().is_open()
        && !node.accounts().users().has_nodes()
}

fn failed(ctx: &mut Context<'_>, name: &[u8], status: Status) -> Outcome {
    sessions::login_failed(ctx.node, ctx.session, name, status);
    refused(ctx, name, status, None)
}

/// Tells the client no more than a reference that also stands in the log. `unjudged`: why no password was looked at, and the
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
    let (ends, reference) = (ctx.session.ends, reference.as_str());
    let login = FailedLogin {
        user: name,
        ends,
        protocol: "kv",
        status: status.name(),
        reference: Some(reference),
        reason: unjudged.map(|(why, _)| why),
        mechanism: unjudged.map(|(_, mechanism)| mechanism),
    };
    if is_early(ctx.node, name) {
        tracing::debug!(reference, "another node logs in before this one has read its cluster's secret");
    } else {
        ctx.node.events().login_failed(&login, now);
    }
    ctx.reply.error_ref(status, reference);
    Outcome::Done
}
