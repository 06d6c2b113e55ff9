//! Set, add, replace, append and prepend.

use base::Datatype;
use engine::{End, Refusal, StoreMode, StoreRequest};
use protocol::extras::StoreExtras;
use protocol::{Request, Status};

use crate::commands::mutation;
use crate::context::{Context, Outcome};

/// Set: stores a document.
pub fn set(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    store(cx, request, StoreMode::Set)
}

/// Add: stores a document that must not exist.
pub fn add(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    store(cx, request, StoreMode::Add)
}

/// Replace: stores a document that must exist.
pub fn replace(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    store(cx, request, StoreMode::Replace)
}

fn store(cx: &mut Context<'_>, request: &Request<'_>, mode: StoreMode) -> Outcome {
    let Some(extras) = StoreExtras::decode(request.extras) else {
        return cx.invalid("Request must include extras of length 8");
    };
    let stored = cx.bucket().documents().durably(mutation::durable(cx)).store(
        request.vbucket,
        &StoreRequest {
            key: cx.key,
            body: request.value,
            datatype: Datatype(request.datatype),
            flags: extras.flags,
            expiry: extras.expiry,
            mode,
            cas: request.cas,
            preserve_expiry: cx.infos.preserve_ttl,
        },
        cx.now,
    );
    mutation::answer(cx, stored, &[])
}

/// Append: joins a value to the end of a document.
pub fn append(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    join(cx, request, End::Back)
}

/// Prepend: joins a value to the front of a document.
pub fn prepend(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    join(cx, request, End::Front)
}

fn join(cx: &mut Context<'_>, request: &Request<'_>, end: End) -> Outcome {
    let datatype = Datatype(request.datatype);
    let bucket = cx.bucket();
    let writer = bucket.documents().durably(mutation::durable(cx));
    let joined = writer.join(request.vbucket, cx.key, request.value, datatype, end, request.cas, cx.now);
    match joined {
        Err(Refusal::NotFound) => cx.status(Status::NotStored),
        joined => mutation::answer(cx, joined, &[]),
    }
}
