//! From the extras and value of a frame to specs.

use super::checks::{Raw, SpecChecks, check_doc_flags, check_revive};
use super::table::{Rules, lookup, mutation};
use super::{
    Features, LookupRequest, LookupSpec, MutationOp, MutationRequest, MutationSpec, Refusal, Specs, doc_flag,
    path_flag,
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
const NO_SPEC: Refusal =
    Refusal { status: status::INVALID_COMBINATION, context: "Request must contain at least one path" };

/// Path length, flags, expiry and document flags of a single-path command.
struct SingleExtras {
    path_len: usize,
    flags: u8,
    expiry: Option<u32>,
    doc_flags: u8,
}

fn single_extras(extras: &[u8]) -> Result<SingleExtras, Refusal> {
    const INVALID: Refusal = Refusal::invalid("Invalid extras section");
    let (expiry, doc_flags) = match *extras {
        [_, _, _] => (None, 0),
        [_, _, _, flags] => (None, flags),
        [_, _, _, a, b, c, d] => (Some(u32::from_be_bytes([a, b, c, d])), 0),
        [_, _, _, a, b, c, d, flags] => (Some(u32::from_be_bytes([a, b, c, d])), flags),
        _ => return Err(INVALID),
    };
    if doc_flags & !KNOWN_DOC_FLAGS != 0 {
        return Err(INVALID);
    }
    let path_len = usize::from(u16::from_be_bytes([extras[0], extras[1]]));
    Ok(SingleExtras { path_len, flags: extras[2], expiry, doc_flags })
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
    if extras.expiry.is_some() {
        return Err(Refusal::invalid("Invalid extras section"));
    }
    let (path, value) = split_single(&extras, value)?;
    let raw = Raw { flags: extras.flags, path, value };
    SpecChecks::new(features, extras.doc_flags, true, false).next(&rules, raw)?;
    let mut specs = Specs::new();
    specs.push(LookupSpec { op, flags: extras.flags, path })?;
    Ok(LookupRequest { is_single: true, doc_flags: extras.doc_flags, cas: 0, hides_system: false, specs })
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
    let (path, value) = split_single(&extras, value)?;
    let raw = Raw { flags: extras.flags, path, value };
    SpecChecks::new(features, extras.doc_flags, true, true).next(&rules, raw)?;
    check_doc_flags(extras.doc_flags, true, extras.flags & path_flag::XATTR == 0)?;
    let mut specs = Specs::new();
    specs.push(MutationSpec { op, flags: extras.flags, path, value })?;
    let SingleExtras { expiry, doc_flags, .. } = extras;
    Ok(MutationRequest { is_single: true, doc_flags, expiry, cas: 0, specs })
}

fn multi_extras(extras: &[u8], may_expire: bool) -> Result<(Option<u32>, u8), Refusal> {
    const INVALID: Refusal = Refusal::invalid("Request extras invalid");
    let (expiry, doc_flags) = match *extras {
        [] => (None, 0),
        [flags] => (None, flags),
        [a, b, c, d] if may_expire => (Some(u32::from_be_bytes([a, b, c, d])), 0),
        [a, b, c, d, flags] if may_expire => (Some(u32::from_be_bytes([a, b, c, d])), flags),
        _ => return Err(INVALID),
    };
    if doc_flags & !KNOWN_DOC_FLAGS != 0 {
        return Err(INVALID);
    }
    Ok((expiry, doc_flags))
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
    let (_, doc_flags) = multi_extras(extras, false)?;
    check_revive(doc_flags)?;
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
    let (expiry, doc_flags) = multi_extras(extras, true)?;
    check_doc_flags(doc_flags, false, false)?;
    let mut specs = Specs::new();
    let mut checks = SpecChecks::new(features, doc_flags, false, true);
    let mut rest = value;
    while !rest.is_empty() {
        specs.check_room()?;
        let head = take(&mut rest, 8, Refusal::invalid("Multi mutation spec truncated"))?;
        let path_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let value_len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let path = take(&mut rest, path_len, Refusal::invalid("Multi mutation path truncated"))?;
        let value = take(&mut rest, value_len, Refusal::invalid("Multi mutation value truncated"))?;
        let (code, flags) = (head[0], head[1]);
        let (op, rules) = known(mutation(code), lookup(code).is_some())?;
        checks.next_op(op == MutationOp::DeleteDoc)?;
        checks.next(&rules, Raw { flags, path, value })?;
        specs.push(MutationSpec { op, flags, path, value })?;
    }
    if specs.as_slice().is_empty() {
        return Err(NO_SPEC);
    }
    Ok(MutationRequest { is_single: false, doc_flags, expiry, cas: 0, specs })
}
