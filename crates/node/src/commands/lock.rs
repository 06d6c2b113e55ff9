//! Get-and-lock, and unlock.

use protocol::Request;
use protocol::extras::decode_u32;

use crate::commands::get;
use crate::context::{Context, Outcome};

/// Get-and-lock: returns a document under a CAS that alone may change it for a while.
pub fn get_and_lock(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    // No extras at all is allowed, and means the default time.
    let seconds = decode_u32(request.extras).unwrap_or(0);
    let found = cx.bucket().documents().get_and_lock(request.vbucket, cx.key, seconds, cx.now);
    get::answer(cx, request, found)
}

/// Unlock: ends the lock whose CAS the request carries.
pub fn unlock(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    match cx.bucket().documents().unlock(request.vbucket, cx.key, request.cas, cx.now) {
        Ok(()) => {
            cx.reply.ok();
            Outcome::Done
        }
        Err(refusal) => cx.refuse(refusal),
    }
}
