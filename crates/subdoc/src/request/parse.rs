//! From the extras and value of a frame to specs.

use super::checks::{Raw, SpecChecks, check_flags_of_several};
use super::table::{Rules, lookup, mutation};
use super::{
    Features, LookupRequest, LookupSpec, MutationOp, MutationRequest, MutationSpec, Refusal, Specs, doc_flag,
};
use crate::status;

const KNOWN_DOC_FLAGS: u8 = doc_flag::MKDOC
    | doc_flag::ADD
    | doc_flag::ACCESS_DELETED
    | doc_flag::CREATE_AS_DELETED
    | doc_flag::REVIVE
    | doc_flag::REPLICA_READ;

const UNKNOWN_COMMAND: Refusal = Refusal {
    status: status::INVALID_COMBINATION,
    context: "Subdoc and MCBP command must not both be invalid",
};
const WRONG_KIND: Refusal = Refusal {
    status: status::INVALID_COMBINATION,
    context: "Request contains an invalid combination of commands",
};
const INVALID_EXTRAS: Refusal = Refusal::invalid("Request extras invalid");
const NO_SPEC: Refusal =
    Refusal { status: status::INVALID_COMBINATION, context: "Request must contain at least one path" };

/// What both forms of a mutation may have in their extras, in this order, the first two at once or one after the other.
struct DocumentExtras {
    expiry: Option<u32>,
    user_flags: Option<u32>,
    doc_flags: u8,
}

fn document_extras(extras: &[u8], invalid: Refusal) -> Result<DocumentExtras, Refusal> {
    let number = |bytes: &[u8; 4]| Some(u32::from_be_bytes(*bytes));
    let (numbers, doc_flags) = match extras {
        [numbers @ .., flags] if extras.len() % 4 == 1 => (numbers, *flags),
        numbers => (numbers, 0),
    };
    let (expiry, user_flags) = match numbers.as_chunks() {
        ([], []) => (None, None),
        ([expiry], []) => (number(expiry), None),
        ([expiry, flags], []) => (number(expiry), number(flags)),
        _ => return Err(invalid),
    };
    if doc_flags & !KNOWN_DOC_FLAGS != 0 {
        return Err(invalid);
    }
    Ok(DocumentExtras { expiry, user_flags, doc_flags })
}

/// Path length and flags of a single-path command, and what may follow.
struct SingleExtras {
    path_len: usize,
    flags: u8,
    document: DocumentExtras,
}

fn single_extras(extras: &[u8]) -> Result<SingleExtras, Refusal> {
    const INVALID: Refusal = Refusal::invalid("Invalid extras section");
    let ([high, low, flags], rest) = extras.split_first_chunk().ok_or(INVALID)?;
    let document = document_extras(rest, INVALID)?;
    Ok(SingleExtras { path_len: usize::from(u16::from_be_bytes([*high, *low])), flags: *flags, document })
}

fn split_single<'a>(extras: &SingleExtras, value: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Refusal> {
    value.split_at_checked(extras.path_len).ok_or(Refusal::invalid("Path length can't exceed value"))
}

/// A look-up command with one path; `value` is the frame's.
pub fn parse_single_lookup<'a>(
    opcode: u8,
    extras: &[u8],
    value: &'a [u8],
    features: &Features,
) -> Result<LookupRequest<'a>, Refusal> {
    let Some((op, rules, true)) = lookup(opcode) else {
        return Err(UNKNOWN_COMMAND);
    };
    let extras = single_extras(extras)?;
    let DocumentExtras { expiry, doc_flags, .. } = extras.document;
    if expiry.is_some() {
        return Err(Refusal::invalid("Invalid extras section"));
    }
    let (path, value) = split_single(&extras, value)?;
    let raw = Raw { flags: extras.flags, path, value };
    SpecChecks::new(features, doc_flags, true, false).next(&rules, raw)?;
    let mut specs = Specs::new();
    specs.push(LookupSpec { op, flags: extras.flags, path })?;
    Ok(LookupRequest { is_single: true, doc_flags, cas: 0, hides_system: false, specs })
}

/// A mutation command with one path; `value` is the frame's.
pub fn parse_single_mutation<'a>(
    opcode: u8,
    extras: &[u8],
    value: &'a [u8],
    features: &Features,
) -> Result<MutationRequest<'a>, Refusal> {
    let Some((op, rules, true)) = mutation(opcode) else {
        return Err(UNKNOWN_COMMAND);
    };
    let extras = single_extras(extras)?;
    let DocumentExtras { expiry, user_flags, doc_flags } = extras.document;
    let (path, value) = split_single(&extras, value)?;
    let raw = Raw { flags: extras.flags, path, value };
    SpecChecks::new(features, doc_flags, true, true).next(&rules, raw)?;
    let mut specs = Specs::new();
    specs.push(MutationSpec { op, flags: extras.flags, path, value })?;
    Ok(MutationRequest { is_single: true, doc_flags, expiry, user_flags, cas: 0, specs })
}

/// Takes `len` bytes off the front of `rest`.
fn take<'a>(rest: &mut &'a [u8], len: usize, short: Refusal) -> Result<&'a [u8], Refusal> {
    let (front, back) = rest.split_at_checked(len).ok_or(short)?;
    *rest = back;
    Ok(front)
}

/// The rules for a code, or which of the two refusals it gets.
fn known<Op>(found: Option<(Op, Rules, bool)>, is_other_kind: bool) -> Result<(Op, Rules), Refusal> {
    match found {
        Some((op, rules, _)) => Ok((op, rules)),
        None => Err(if is_other_kind { WRONG_KIND } else { UNKNOWN_COMMAND }),
    }
}

/// A look-up of several paths; `value` is the frame's.
pub fn parse_multi_lookup<'a>(
    extras: &[u8],
    value: &'a [u8],
    features: &Features,
) -> Result<LookupRequest<'a>, Refusal> {
    let DocumentExtras { expiry, doc_flags, .. } = document_extras(extras, INVALID_EXTRAS)?;
    if expiry.is_some() {
        return Err(INVALID_EXTRAS);
    }
    check_flags_of_several(doc_flags)?;
    let mut specs = Specs::new();
    let mut checks = SpecChecks::new(features, doc_flags, false, false);
    let mut rest = value;
    while !rest.is_empty() {
        specs.check_room()?;
        let head = take(&mut rest, 4, Refusal::invalid("Multi lookup spec truncated"))?;
        let path_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let path = take(&mut rest, path_len, Refusal::invalid("Multi lookup path truncated"))?;
        let (code, flags) = (head[0], head[1]);
        let (op, rules) = known(lookup(code), mutation(code).is_some())?;
        checks.next(&rules, Raw { flags, path, value: b"" })?;
        checks.check_order(flags, false)?;
        specs.push(LookupSpec { op, flags, path })?;
    }
    if specs.as_slice().is_empty() {
        return Err(NO_SPEC);
    }
    Ok(LookupRequest { is_single: false, doc_flags, cas: 0, hides_system: false, specs })
}

/// A mutation of several paths; `value` is the frame's.
pub fn parse_multi_mutation<'a>(
    extras: &[u8],
    value: &'a [u8],
    features: &Features,
) -> Result<MutationRequest<'a>, Refusal> {
    let DocumentExtras { expiry, user_flags, doc_flags } = document_extras(extras, INVALID_EXTRAS)?;
    check_flags_of_several(doc_flags)?;
    let mut specs = Specs::new();
    let mut checks = SpecChecks::new(features, doc_flags, false, true);
    let mut rest = value;
    while !rest.is_empty() {
        specs.check_room()?;
        checks.check_before()?;
        let head = take(&mut rest, 8, Refusal::invalid("Multi mutation spec truncated"))?;
        let path_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let value_len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let path = take(&mut rest, path_len, Refusal::invalid("Multi mutation path truncated"))?;
        let value = take(&mut rest, value_len, Refusal::invalid("Multi mutation value truncated"))?;
        let (code, flags) = (head[0], head[1]);
        let (op, rules) = known(mutation(code), lookup(code).is_some())?;
        checks.next(&rules, Raw { flags, path, value })?;
        checks.check_order(flags, op == MutationOp::DeleteDoc)?;
        specs.push(MutationSpec { op, flags, path, value })?;
    }
    if specs.as_slice().is_empty() {
        return Err(NO_SPEC);
    }
    Ok(MutationRequest { is_single: false, doc_flags, expiry, user_flags, cas: 0, specs })
}
