//! Commands whose requests are checked already and whose work is still to come.

use protocol::{Request, Status};

use crate::context::{Context, Outcome};

/// Says so.
pub fn not_supported(ctx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    ctx.status(Status::NotSupported)
}
