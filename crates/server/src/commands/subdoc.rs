//! Sub-document commands: parts of a document read and changed by path.

use base::Datatype;
use protocol::feature::Feature;
use protocol::{Request, Status, opcode};
use subdoc::reply::{write_lookup, write_mutation};
use subdoc::request::{self, Features, LookupRequest, MutationRequest};

use crate::commands::mutation;
use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;

fn features(cx: &Context<'_>) -> Features {
    Features { xattr: cx.session.has(Feature::Xattr), multiple_xattr_keys: false }
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
    let parsed = if request.opcode == opcode::SUBDOC_MULTI_LOOKUP {
        request::parse_multi_lookup(request.extras, request.value, &features)
    } else {
        request::parse_single_lookup(request.opcode, request.extras, request.value, &features)
    };
    let mut lookup = match parsed {
        Ok(lookup) => lookup,
        Err(refusal) => return refused(cx, refusal),
    };
    if let Err(denied) = may_look_up(cx, &lookup) {
        return denied;
    }
    lookup.hides_system = !cx.may(Privilege::SystemXattrRead);
    lookup.cas = request.cas.0;
    let mut body = Vec::new();
    let looked_up = cx.bucket().subdoc_lookup(request.vbucket, cx.key, &lookup, cx.now, |outcome, cas| {
        let is_json = outcome.has_results() && write_lookup(outcome, &mut body);
        (outcome.status, is_json, cas, outcome.has_results())
    });
    match looked_up {
        Ok((status, is_json, cas, has_results)) => {
            let status = Status::from_code(status).unwrap_or(Status::Einternal);
            let shows_cas = has_results && (status.is_success() || !lookup.is_single);
            let cas = if shows_cas { cas } else { base::Cas(0) };
            let value = if shows_cas { body } else { Vec::new() };
            let answer = Answer { status, datatype: datatype(cx, is_json), cas, ..Answer::default() };
            cx.reply.send_made(&answer, value, 0);
            Outcome::Done
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Changes one or several paths: all of them or none.
pub fn mutate(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let features = features(cx);
    let parsed = if request.opcode == opcode::SUBDOC_MULTI_MUTATION {
        request::parse_multi_mutation(request.extras, request.value, &features)
    } else {
        request::parse_single_mutation(request.opcode, request.extras, request.value, &features)
    };
    let mut change = match parsed {
        Ok(change) => change,
        Err(refusal) => return refused(cx, refusal),
    };
    if let Err(denied) = may_change(cx, &change) {
        return denied;
    }
    change.cas = request.cas.0;
    let preserve = cx.infos.preserve_ttl;
    let bucket = cx.bucket();
    match bucket.durably(mutation::durable(cx)).subdoc_mutate(
        request.vbucket,
        cx.key,
        &change,
        preserve,
        cx.now,
    ) {
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
