//! Commands that are known, whose requests are checked, and that a node does not carry out.

use protocol::{Request, Status};

use crate::context::{Context, Outcome};

/// Says why.
pub fn not_supported(cx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    cx.error(Status::NotSupported, cx.row.refused.unwrap_or_default())
}
