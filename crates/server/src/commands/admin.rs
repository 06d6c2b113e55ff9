//! What administrators, and tests of clients, do to a session or a node.

use base::Cas;
use protocol::{Request, Status, extras};

use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;

/// Gives up a privilege for the rest of the session.
pub fn drop_privilege(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(privilege) = Privilege::from_name(request.key) else { return ctx.status(Status::KeyEnoent) };
    ctx.session.privileges = ctx.session.privileges.without(privilege);
    ctx.status(Status::Success)
}

/// Shows the token that guards changes by the cluster, as the CAS.
pub fn control_token(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    let token = Cas(ctx.node.control_token());
    ctx.reply.send(&Answer { cas: token, ..Answer::default() });
    Outcome::Done
}

/// Replaces the token, if the CAS is the old one.
pub fn set_control_token(ctx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(token) = extras::decode_u64(request.extras).filter(|token| *token != 0) else {
        return ctx.invalid("The new token must not be 0");
    };
    let old = if request.cas == Cas::ANY { None } else { Some(request.cas.0) };
    let (status, now) = match ctx.node.set_control_token(old, token) {
        Ok(()) => (Status::Success, token),
        Err(present) => (Status::KeyEexists, present),
    };
    ctx.reply.send(&Answer { status, cas: Cas(now), ..Answer::default() });
    Outcome::Done
}
