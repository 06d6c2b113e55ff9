//! Look-ups: every spec gets a result of its own, borrowed from the document where it can be.

use super::Document;
use super::binary_value;
use super::existence::readable;
use super::virtual_attributes::{View, is_known};
use crate::ops::{self, PathError};
use crate::path::Path;
use crate::request::{LookupOp, LookupRequest, LookupSpec, MAX_SPECS, path_flag, split_xattr_path};
use crate::{DATATYPE_JSON, status, xattr};

/// What a look-up found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupValue<'a> {
    /// No bytes.
    #[default]
    Empty,
    /// A part of the document.
    Borrowed(&'a [u8]),
    /// A number, sent as decimal digits.
    Count(u64),
    /// A part of the outcome's own text, where virtual attributes are written.
    Computed(usize, usize),
}

/// The result of one spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupResult<'a> {
    /// 0 or a path status.
    pub status: u16,
    /// The value, if there is one.
    pub value: LookupValue<'a>,
}

/// What a look-up request is answered with.
#[derive(Clone, Debug)]
pub struct LookupOutcome<'a> {
    /// The status of the reply.
    pub status: u16,
    /// Whether the reply takes the form of a single-path command.
    pub is_single: bool,
    results: [LookupResult<'a>; MAX_SPECS],
    len: usize,
    computed: Vec<u8>,
}

impl<'a> LookupOutcome<'a> {
    fn refused(status: u16, is_single: bool) -> LookupOutcome<'a> {
        let results = [LookupResult::default(); MAX_SPECS];
        LookupOutcome { status, is_single, results, len: 0, computed: Vec::new() }
    }

    /// The results in the order of the specs; none if the request failed as a whole.
    pub fn results(&self) -> &[LookupResult<'a>] {
        &self.results[..self.len]
    }

    /// Whether the reply has a body: always with results of several paths, else if there is a value.
    pub fn has_results(&self) -> bool {
        self.len > 0
    }

    /// The bytes of `value`; a count is not bytes yet.
    pub fn bytes(&self, value: LookupValue<'a>) -> &[u8] {
        match value {
            LookupValue::Borrowed(bytes) => bytes,
            LookupValue::Computed(from, to) => &self.computed[from..to],
            LookupValue::Empty | LookupValue::Count(_) => b"",
        }
    }
}

/// Runs a look-up against the current version; `None` is a document that was never there.
pub fn lookup<'a>(current: Option<Document<'a>>, request: &LookupRequest<'_>) -> LookupOutcome<'a> {
    let is_single = request.is_single;
    let document = match readable(current, request.doc_flags, request.cas) {
        Ok(document) => document,
        Err(status) => return LookupOutcome::refused(status, is_single),
    };
    let Ok((xattrs, body)) = xattr::split(document.value, document.datatype) else {
        return LookupOutcome::refused(status::INTERNAL, is_single);
    };
    let view = View { document, xattrs, body, hides_system: request.hides_system };
    let mut outcome = LookupOutcome::refused(status::SUCCESS, is_single);
    let mut failure = None;
    for (slot, spec) in outcome.results.iter_mut().zip(request.specs.as_slice()) {
        *slot = match look_up(&view, spec, &mut outcome.computed) {
            Ok(value) => LookupResult { status: status::SUCCESS, value },
            Err(error) => {
                failure.get_or_insert(error);
                LookupResult { status: error, value: LookupValue::Empty }
            }
        };
        outcome.len += 1;
    }
    outcome.status = match (failure, is_single, document.deleted) {
        (None, _, false) => status::SUCCESS,
        (None, _, true) => status::SUCCESS_DELETED,
        (Some(error), true, _) => error,
        (Some(_), false, false) => status::MULTI_PATH_FAILURE,
        (Some(_), false, true) => status::MULTI_PATH_FAILURE_DELETED,
    };
    outcome
}

fn look_up<'a>(
    view: &View<'a>,
    spec: &LookupSpec<'_>,
    computed: &mut Vec<u8>,
) -> Result<LookupValue<'a>, u16> {
    if spec.op == LookupOp::GetDoc {
        // No bytes are no body, as there is none in a tombstone.
        return if view.document.deleted || view.body.is_empty() {
            Err(PathError::NotFound.status())
        } else {
            Ok(LookupValue::Borrowed(view.body))
        };
    }
    if spec.flags & path_flag::XATTR == 0 {
        if view.document.deleted || view.document.datatype & DATATYPE_JSON == 0 {
            return Err(PathError::NotJson.status());
        }
        return Path::parse(spec.path)
            .and_then(|path| read(view.body, spec.op, &path))
            .map_err(PathError::status);
    }
    let (key, path) = split_xattr_path(spec.path);
    let value = if key.first() != Some(&b'$') {
        read_attribute(view, spec.op, key, path)
    } else if is_known(key) {
        read_virtual(view, spec.op, key, path, computed)
    } else {
        return Err(status::UNKNOWN_VIRTUAL_ATTRIBUTE);
    };
    let is_binary = spec.flags & path_flag::BINARY_VALUE != 0;
    value
        .and_then(|value| if is_binary { decoded(value, computed) } else { Ok(value) })
        .map_err(PathError::status)
}

/// The bytes that a string holds.
fn decoded<'a>(value: LookupValue<'a>, computed: &mut Vec<u8>) -> Result<LookupValue<'a>, PathError> {
    let bytes = match value {
        LookupValue::Borrowed(text) => binary_value::decode(text),
        LookupValue::Computed(from, to) => binary_value::decode(&computed[from..to]),
        LookupValue::Empty | LookupValue::Count(_) => None,
    };
    let start = computed.len();
    computed.extend_from_slice(&bytes.ok_or(PathError::NotBinaryValue)?);
    Ok(LookupValue::Computed(start, computed.len()))
}

fn read_attribute<'a>(
    view: &View<'a>,
    op: LookupOp,
    key: &[u8],
    path: &[u8],
) -> Result<LookupValue<'a>, PathError> {
    let path = Path::parse_attribute(key, path)?;
    read(view.xattrs.get(key).ok_or(PathError::NotFound)?, op, &path)
}

fn read_virtual<'a>(
    view: &View<'a>,
    op: LookupOp,
    key: &[u8],
    path: &[u8],
    computed: &mut Vec<u8>,
) -> Result<LookupValue<'a>, PathError> {
    let start = computed.len();
    let path = Path::parse_behind_key(view.write(key, path, computed))?;
    let text = &computed[start..];
    match op {
        LookupOp::GetCount => ops::count(text, &path).map(LookupValue::Count),
        LookupOp::Exists => ops::exists(text, &path).map(|()| LookupValue::Empty),
        LookupOp::Get | LookupOp::GetDoc => {
            let found = ops::get(text, &path)?;
            Ok(LookupValue::Computed(start + found.start, start + found.end))
        }
    }
}

fn read<'t>(text: &'t [u8], op: LookupOp, path: &Path<'_>) -> Result<LookupValue<'t>, PathError> {
    match op {
        LookupOp::GetCount => ops::count(text, path).map(LookupValue::Count),
        LookupOp::Exists => ops::exists(text, path).map(|()| LookupValue::Empty),
        LookupOp::Get | LookupOp::GetDoc => {
            ops::get(text, path).map(|range| LookupValue::Borrowed(&text[range]))
        }
    }
}
