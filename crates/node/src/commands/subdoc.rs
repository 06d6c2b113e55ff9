//! Sub-document commands: parts of a document read and changed by path.

use std::sync::Arc;

use base::{Datatype, VbId};
use engine::{Mutated, Refusal};
use protocol::feature::Feature;
use protocol::{Request, Status, opcode};
use subdoc::exec::MutationOutcome;
use subdoc::reply::{lookup_bytes, write_lookup, write_mutation};
use subdoc::request::{self, Features, LookupRequest, MutationRequest, doc_flag};

use crate::commands::mutation;
use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;

fn features(cx: &Context<'_>) -> Features {
    Features {
        xattr: cx.session.has(Feature::Xattr),
        multiple_xattr_keys: cx.session.has(Feature::SubdocAllowsAccessOnMultipleXattrKeys),
    }
}

fn refused(cx: &mut Context<'_>, refusal: request::Refusal) -> Outcome {
    let status = Status::from_code(refusal.status).unwrap_or(Status::Einternal);
    if refusal.context.is_empty() { cx.status(status) } else { cx.error(status, refusal.context) }
}

fn datatype(cx: &Context<'_>, is_json: bool) -> Datatype {
    cx.session.visible_datatype(if is_json { Datatype::JSON } else { Datatype::RAW })
}

/// Refuses a look-up of system attributes without the privilege for them.
fn may_look_up(cx: &mut Context<'_>, lookup: &LookupRequest<'_>) -> Result<(), Outcome> {
    if lookup.reads_system() { cx.require(Privilege::SystemXattrRead) } else { Ok(()) }
}

/// Refuses a change that needs more than the right to change documents.
fn may_change(cx: &mut Context<'_>, change: &MutationRequest<'_>) -> Result<(), Outcome> {
    let needed = [
        (change.deletes_document(), Privilege::Delete),
        (change.reads(), Privilege::Read),
        (change.changes_system(), Privilege::SystemXattrWrite),
        (change.reads_system(), Privilege::SystemXattrRead),
    ];
    needed
        .into_iter()
        .filter(|(is_needed, _)| *is_needed)
        .try_for_each(|(_, privilege)| cx.require(privilege))
}

/// Looks up one or several paths.
pub fn lookup(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let features = features(cx);
    let mut lookup = match parse_lookup(request.opcode, request.extras, request.value, &features) {
        Ok(lookup) => lookup,
        Err(refusal) => return refused(cx, refusal),
    };
    if let Err(denied) = may_look_up(cx, &lookup) {
        return denied;
    }
    lookup.hides_system = !cx.may(Privilege::SystemXattrRead);
    lookup.cas = request.cas.0;
    if is_long(cx, request, lookup.doc_flags & doc_flag::REPLICA_READ != 0, lookup.specs.as_slice().len()) {
        return Outcome::Elsewhere;
    }
    let looked_up = look_up(cx, request.vbucket, &lookup);
    tell_lookup(cx, lookup.is_single, looked_up)
}

/// Whether an operation on this number of paths takes long: each of them reads the document, and a change writes it.
fn is_long(cx: &mut Context<'_>, request: &Request<'_>, replica: bool, paths: usize) -> bool {
    if !cx.may_leave {
        return false;
    }
    let bytes = cx.bucket().documents().plain_bytes(request.vbucket, cx.key, replica, cx.now);
    cx.takes(bytes.saturating_mul(paths))
}

/// What a look-up comes to.
struct LookedUp {
    status: u16,
    is_json: bool,
    cas: base::Cas,
    has_results: bool,
    /// Nothing if there is no room for it: it may be as many times the document as there are paths.
    body: Option<Vec<u8>>,
}

fn look_up(cx: &Context<'_>, vb: VbId, lookup: &LookupRequest<'_>) -> Result<LookedUp, Refusal> {
    cx.bucket().documents().subdoc_lookup(vb, cx.key, lookup, cx.now, |outcome, cas| {
        let (status, has_results, bytes) = (outcome.status, outcome.has_results(), lookup_bytes(outcome));
        let mut body = cx.reply.has_room(bytes).then(|| Vec::with_capacity(bytes));
        let is_json = body.as_mut().is_some_and(|body| has_results && write_lookup(outcome, body));
        LookedUp { status, is_json, cas, has_results, body }
    })
}

fn tell_lookup(cx: &mut Context<'_>, is_single: bool, looked_up: Result<LookedUp, Refusal>) -> Outcome {
    let LookedUp { status, is_json, cas, has_results, body } = match looked_up {
        Ok(looked_up) => looked_up,
        Err(refusal) => return cx.refuse(refusal),
    };
    let Some(body) = body else { return cx.status(Status::Etmpfail) };
    let status = Status::from_code(status).unwrap_or(Status::Einternal);
    let shows_cas = has_results && (status.is_success() || !is_single);
    let cas = if shows_cas { cas } else { base::Cas(0) };
    let value = if shows_cas { body } else { Vec::new() };
    let answer = Answer { status, datatype: datatype(cx, is_json), cas, ..Answer::default() };
    cx.reply.send_made(&answer, value, 0);
    Outcome::Done
}

fn parse_lookup<'a>(
    opcode: u8,
    extras: &'a [u8],
    value: &'a [u8],
    features: &Features,
) -> Result<LookupRequest<'a>, request::Refusal> {
    if opcode == opcode::SUBDOC_MULTI_LOOKUP {
        return request::parse_multi_lookup(extras, value, features);
    }
    request::parse_single_lookup(opcode, extras, value, features)
}

fn parse_mutation<'a>(
    opcode: u8,
    extras: &'a [u8],
    value: &'a [u8],
    features: &Features,
) -> Result<MutationRequest<'a>, request::Refusal> {
    if opcode == opcode::SUBDOC_MULTI_MUTATION {
        return request::parse_multi_mutation(extras, value, features);
    }
    request::parse_single_mutation(opcode, extras, value, features)
}

/// Changes one or several paths: all of them or none.
pub fn mutate(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let features = features(cx);
    let mut change = match parse_mutation(request.opcode, request.extras, request.value, &features) {
        Ok(change) => change,
        Err(refusal) => return refused(cx, refusal),
    };
    if request.cas.0 != 0 && change.doc_flags & doc_flag::ADD != 0 {
        return cx.invalid("Request with add flag must have CAS 0");
    }
    if let Err(denied) = may_change(cx, &change) {
        return denied;
    }
    change.cas = request.cas.0;
    let (preserve, durable) = (cx.infos.preserve_ttl, mutation::durable(cx));
    let bucket = Arc::clone(&cx.bucket());
    if is_long(cx, request, false, change.specs.as_slice().len()) {
        return Outcome::Elsewhere;
    }
    let changed =
        bucket.documents().durably(durable).subdoc_mutate(request.vbucket, cx.key, &change, preserve, cx.now);
    tell_change(cx, changed)
}

fn tell_change(
    cx: &mut Context<'_>,
    changed: Result<(Option<Mutated>, MutationOutcome), Refusal>,
) -> Outcome {
    match changed {
        Ok((mutated, outcome)) => {
            let status = Status::from_code(outcome.status).unwrap_or(Status::Einternal);
            let mut body = Vec::new();
            let is_json = write_mutation(&outcome, &mut body);
            let datatype = datatype(cx, is_json);
            match mutated {
                Some(mutated) => mutation::done(cx, mutated, status, datatype, &body),
                None => {
                    cx.reply.send(&Answer { status, datatype, value: &body, ..Answer::default() });
                    Outcome::Done
                }
            }
        }
        Err(refusal) => cx.refuse(refusal),
    }
}
