//! Commands whose requests are checked already and whose work is still to come.

use protocol::{Request, Status};

use crate::context::{Context, Outcome};

/// Says so.
pub fn not_supported(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.status(Status::NotSupported)
}

/// What makes sense only after a connection was opened for streams.
pub fn only_on_dcp(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.invalid("The command can only be sent on a DCP connection")
}

/// Invalid without a message.
pub fn invalid(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.status(Status::Einval)
}
