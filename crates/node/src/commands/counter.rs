//! Increment and decrement.

use engine::CounterRequest;
use protocol::Request;
use protocol::extras::CounterExtras;

use crate::commands::mutation;
use crate::context::{Context, Outcome};

/// Increment: counts a document up, and wraps around.
pub fn increment(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    count(cx, request, true)
}

/// Decrement: counts a document down, and stops at 0.
pub fn decrement(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    count(cx, request, false)
}

fn count(cx: &mut Context<'_>, request: &Request<'_>, increment: bool) -> Outcome {
    let Some(extras) = CounterExtras::decode(request.extras) else {
        return cx.invalid("Request must include extras of length 20");
    };
    let create = extras.expiry != CounterExtras::DO_NOT_CREATE;
    let counted = cx.bucket().documents().durably(mutation::durable(cx)).count(
        request.vbucket,
        &CounterRequest {
            key: cx.key,
            increment,
            delta: extras.delta,
            initial: create.then_some(extras.initial),
            expiry: extras.expiry,
            preserve_expiry: cx.infos.preserve_ttl,
        },
        cx.now,
    );
    match counted {
        Ok((mutated, number)) => mutation::answer(cx, Ok(mutated), &number.to_be_bytes()),
        Err(refusal) => cx.refuse(refusal),
    }
}
