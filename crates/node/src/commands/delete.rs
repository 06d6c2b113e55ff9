//! Delete.

use protocol::Request;

use crate::commands::mutation;
use crate::context::{Context, Outcome};

/// Delete: turns a document into a tombstone.
pub fn delete(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let deleted = cx.bucket().documents().durably(mutation::durable(cx)).delete(
        request.vbucket,
        cx.key,
        request.cas,
        cx.now,
    );
    mutation::answer(cx, deleted, &[])
}
