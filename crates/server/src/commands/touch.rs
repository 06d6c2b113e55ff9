//! Touch, and get-and-touch.

use engine::Found;
use protocol::Request;
use protocol::extras::decode_u32;

use crate::commands::get;
use crate::context::{Context, Outcome};
use crate::reply::Answer;

/// Touch: gives a document another expiry time.
pub fn touch(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(expiry) = decode_u32(request.extras) else {
        return cx.invalid("Request must include extras of length 4");
    };
    match cx.bucket().touch(request.vbucket, cx.key, expiry, cx.now) {
        Ok((mutated, version)) => {
            let cas = mutated.map_or(version.meta().cas, |m| m.cas);
            cx.reply.send(&Answer { cas, ..Answer::default() });
            Outcome::Done
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Get-and-touch: the same, and returns the document.
pub fn get_and_touch(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(expiry) = decode_u32(request.extras) else {
        return cx.invalid("Request must include extras of length 4");
    };
    let touched = cx.bucket().touch(request.vbucket, cx.key, expiry, cx.now);
    let found = touched
        .map(|(mutated, version)| Found { cas: mutated.map_or(version.meta().cas, |m| m.cas), version });
    get::answer(cx, request, found)
}
