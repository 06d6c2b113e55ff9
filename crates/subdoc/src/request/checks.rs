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
    /// The order of the checks is that of the original: a command for one path looks at the value first, one for several
    /// last, and both at an empty path behind what is asked of attributes.
    pub fn next(&mut self, rules: &Rules, spec: Raw<'a>) -> Result<(), Refusal> {
        if self.is_single {
            check_path_len(spec.path)?;
            check_value(rules.value, spec.value)?;
            check_flags(rules, spec.flags, self.doc_flags)?;
            let touches_body = spec.flags & path_flag::XATTR == 0;
            check_doc_flags(self.doc_flags, self.is_mutation && touches_body)?;
            self.check_xattr(spec)?;
            return check_path(rules.path, spec.path);
        }
        check_flags(rules, spec.flags, self.doc_flags)?;
        check_path_len(spec.path)?;
        if rules.path == Need::Forbidden {
            check_path(rules.path, spec.path)?;
        }
        self.check_xattr(spec)?;
        check_path(rules.path, spec.path)?;
        check_value(rules.value, spec.value)
    }

    /// Refuses what comes behind the deletion of the document: there is nothing to work on.
    pub fn check_before(&self) -> Result<(), Refusal> {
        if self.deleted { Err(OTHER_COMBINATION) } else { Ok(()) }
    }

    /// Attributes come before bodies, and nothing of a body before the deletion of the document.
    pub fn check_order(&mut self, flags: u8, is_delete: bool) -> Result<(), Refusal> {
        let is_attribute = flags & path_flag::XATTR != 0;
        if self.body_seen && is_attribute {
            return Err(Refusal::bare(status::XATTR_ORDER));
        }
        if self.body_seen && is_delete {
            return Err(OTHER_COMBINATION);
        }
        self.body_seen |= !is_attribute;
        self.deleted = is_delete;
        Ok(())
    }

    /// What is asked about attributes, and whether it may be asked here.
    fn check_xattr(&mut self, spec: Raw<'a>) -> Result<(), Refusal> {
        let expands = spec.flags & path_flag::EXPAND_MACROS != 0;
        if spec.flags & path_flag::XATTR == 0 {
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
        if kind != KeyKind::Virtual {
            let is_other = self.key.replace(key).is_some_and(|other| other != key);
            if is_other && !self.features.multiple_xattr_keys {
                return Err(Refusal::bare(status::XATTR_KEY_COMBINATION));
            }
        }
        if expands { macro_named(spec.value).map(drop).map_err(Refusal::bare) } else { Ok(()) }
    }
}

const OTHER_COMBINATION: Refusal = Refusal {
    status: status::INVALID_COMBINATION,
    context: "Request contains an invalid combination of commands",
};

fn check_path_len(path: &[u8]) -> Result<(), Refusal> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Refusal::invalid("Request path length exceeds maximum"));
    }
    Ok(())
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

/// Flags of a request with one path against each other. They are laxer than with several about reviving, as recorded.
fn check_doc_flags(doc_flags: u8, touches_body: bool) -> Result<(), Refusal> {
    let has = |flag: u8| doc_flags & flag != 0;
    if has(doc_flag::CREATE_AS_DELETED) {
        if !has(doc_flag::MKDOC | doc_flag::ADD) {
            return Err(Refusal::invalid("CreateAsDeleted requires Mkdoc or Add"));
        }
        if touches_body {
            return Err(Refusal::invalid("CreateAsDeleted does not support body path"));
        }
    }
    check_add(doc_flags)
}

/// A document is made only if there is none, or whether there is one or not.
fn check_add(doc_flags: u8) -> Result<(), Refusal> {
    if doc_flags & doc_flag::MKDOC != 0 && doc_flags & doc_flag::ADD != 0 {
        return Err(Refusal::invalid("Request must not contain both add and mkdoc flags"));
    }
    Ok(())
}

/// Flags of a request with several paths against each other: reviving needs access to the deleted document, which is one.
pub(super) fn check_flags_of_several(doc_flags: u8) -> Result<(), Refusal> {
    check_add(doc_flags)?;
    let has = |flag: u8| doc_flags & flag != 0;
    if has(doc_flag::REVIVE) && !has(doc_flag::ACCESS_DELETED) {
        return Err(Refusal::invalid("ReviveDocument can't be used without AccessDeleted"));
    }
    if has(doc_flag::REVIVE) && has(doc_flag::CREATE_AS_DELETED) {
        return Err(Refusal::invalid("ReviveDocument can't be used with CreateAsDeleted"));
    }
    Ok(())
}
