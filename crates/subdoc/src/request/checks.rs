//! The checks that need no document: of one spec, of the flags, of all specs together.

use super::table::{Need, Rules};
use super::{Features, Refusal, doc_flag, path_flag};
use crate::exec::{is_well_formed, macro_named};
use crate::path::MAX_PATH_BYTES;
use crate::status;
use crate::xattr::{KeyKind, key_kind};

/// Divides the path of an attribute into its key and the path inside its value.
///
/// The key ends at the first dot or bracket; backticks do not quote here
/// (kv_engine docs/ExtendedAttributes.md).
pub(crate) fn split_xattr_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().position(|byte| matches!(byte, b'.' | b'[')) {
        Some(at) => (&path[..at], if path[at] == b'.' { &path[at + 1..] } else { &path[at..] }),
        None => (path, &[]),
    }
}

/// One spec as it came.
#[derive(Clone, Copy)]
pub(super) struct Raw<'a> {
    pub flags: u8,
    pub path: &'a [u8],
    pub value: &'a [u8],
}

/// Checks the specs of a request one after the other, so that the first faulty one decides what is told.
pub(super) struct SpecChecks<'a> {
    features: Features,
    doc_flags: u8,
    is_single: bool,
    is_mutation: bool,
    body_seen: bool,
    deleted: bool,
    key: Option<&'a [u8]>,
}

impl<'a> SpecChecks<'a> {
    pub fn new(features: &Features, doc_flags: u8, is_single: bool, is_mutation: bool) -> SpecChecks<'a> {
        SpecChecks {
            features: *features,
            doc_flags,
            is_single,
            is_mutation,
            body_seen: false,
            deleted: false,
            key: None,
        }
    }

    /// Takes the next spec in.
    ///
    /// The order of the checks is that of the original: a command for one path looks at the value first and at an
    /// empty path last, one for several at the value behind the path.
    pub fn next(&mut self, rules: &Rules, spec: Raw<'a>) -> Result<(), Refusal> {
        if spec.path.len() > MAX_PATH_BYTES {
            return Err(Refusal::invalid("Request path length exceeds maximum"));
        }
        if self.is_single {
            check_value(rules.value, spec.value)?;
        }
        check_flags(rules, spec.flags, self.doc_flags)?;
        if !self.is_single {
            check_path(rules.path, spec.path)?;
            check_value(rules.value, spec.value)?;
        }
        self.check_xattr(spec)?;
        check_path(rules.path, spec.path)
    }

    /// Deleting the document leaves nothing to work on behind it, and nothing of a body before it.
    pub fn next_op(&mut self, is_delete: bool) -> Result<(), Refusal> {
        if self.deleted || (is_delete && self.body_seen) {
            return Err(Refusal {
                status: status::INVALID_COMBINATION,
                context: "Request contains an invalid combination of commands",
            });
        }
        self.deleted = is_delete;
        Ok(())
    }

    /// What is asked about attributes, and whether it may be asked here.
    fn check_xattr(&mut self, spec: Raw<'a>) -> Result<(), Refusal> {
        let expands = spec.flags & path_flag::EXPAND_MACROS != 0;
        if spec.flags & path_flag::XATTR == 0 {
            self.body_seen = true;
            let context = "EXPAND_MACROS flag requires XATTR flag to be set";
            let status = status::XATTR_FLAG_COMBINATION;
            return if expands { Err(Refusal { status, context }) } else { Ok(()) };
        }
        if !self.features.xattr {
            let context = "Connection not XATTR enabled";
            return Err(Refusal { status: status::NOT_SUPPORTED, context });
        }
        let key = split_xattr_path(spec.path).0;
        let kind = key_kind(key)
            .ok_or(Refusal { status: status::XATTR_INVALID, context: "Request XATTR key invalid" })?;
        // Replacing the body with an attribute counts as work on the attribute.
        if kind == KeyKind::Virtual && self.is_mutation {
            return Err(Refusal::bare(status::VIRTUAL_ATTRIBUTE_READ_ONLY));
        }
        if !is_well_formed(spec.value) {
            let context = "Incorrectly encoded binary value";
            return Err(Refusal { status: status::XATTR_INVALID, context });
        }
        if expands {
            macro_named(spec.value).map_err(Refusal::bare)?;
        }
        if kind != KeyKind::Virtual {
            let is_other = self.key.replace(key).is_some_and(|other| other != key);
            if is_other && !self.features.multiple_xattr_keys {
                return Err(Refusal::bare(status::XATTR_KEY_COMBINATION));
            }
        }
        if self.body_seen { Err(Refusal::bare(status::XATTR_ORDER)) } else { Ok(()) }
    }
}

fn check_value(need: Need, value: &[u8]) -> Result<(), Refusal> {
    match (need, value.is_empty()) {
        (Need::Required, true) => Err(Refusal::invalid("Request must include value")),
        (Need::Forbidden, false) => Err(Refusal::invalid("Request must not include value")),
        _ => Ok(()),
    }
}

fn check_path(need: Need, path: &[u8]) -> Result<(), Refusal> {
    match (need, path.is_empty()) {
        (Need::Required, true) => Err(Refusal::invalid("Request must include path")),
        (Need::Forbidden, false) => {
            Err(Refusal::invalid("Request must not include path for wholedoc operations"))
        }
        _ => Ok(()),
    }
}

fn check_flags(rules: &Rules, flags: u8, doc_flags: u8) -> Result<(), Refusal> {
    // As recorded from versions that do not know this flag, if it makes no sense.
    let holds_bytes = flags & path_flag::BINARY_VALUE != 0;
    let may_hold_bytes = flags & (path_flag::XATTR | path_flag::EXPAND_MACROS) == path_flag::XATTR;
    if flags & !rules.path_flags != 0 || (holds_bytes && !may_hold_bytes) {
        return Err(Refusal::invalid("Request flags invalid"));
    }
    if doc_flags & !rules.doc_flags != 0 {
        return Err(Refusal::invalid("Request document flags invalid"));
    }
    if flags & rules.mandatory_flags != rules.mandatory_flags {
        return Err(Refusal::invalid("Request missing mandatory flags"));
    }
    Ok(())
}

/// Flags of a mutation request against each other.
pub(super) fn check_doc_flags(doc_flags: u8, is_single: bool, touches_body: bool) -> Result<(), Refusal> {
    let has = |flag: u8| doc_flags & flag != 0;
    if has(doc_flag::MKDOC) && has(doc_flag::ADD) {
        return Err(Refusal::invalid("Request must not contain both add and mkdoc flags"));
    }
    if !is_single {
        return check_revive(doc_flags);
    }
    // The single-path form is stricter with one flag and laxer with the other, as recorded.
    if has(doc_flag::CREATE_AS_DELETED) {
        if !has(doc_flag::MKDOC | doc_flag::ADD) {
            return Err(Refusal::invalid("CreateAsDeleted requires Mkdoc or Add"));
        }
        if touches_body {
            return Err(Refusal::invalid("CreateAsDeleted does not support body path"));
        }
    }
    Ok(())
}

/// Reviving needs access to the deleted document, in requests of several paths.
pub(super) fn check_revive(doc_flags: u8) -> Result<(), Refusal> {
    if doc_flags & doc_flag::REVIVE != 0 && doc_flags & doc_flag::ACCESS_DELETED == 0 {
        return Err(Refusal::invalid("ReviveDocument can't be used without AccessDeleted"));
    }
    Ok(())
}
