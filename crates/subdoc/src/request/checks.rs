//! The checks that need no document: of one spec, of the flags, of all specs together.

use super::table::{Need, Rules};
use super::{Features, LookupSpec, MutationOp, MutationSpec, Refusal, doc_flag, path_flag};
use crate::exec::{is_known_virtual, macro_named};
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

/// Path, value and flags of one spec against the rules of its operation.
pub(super) fn check_spec(
    rules: &Rules,
    flags: u8,
    path: &[u8],
    value: &[u8],
    doc_flags: u8,
    features: &Features,
) -> Result<(), Refusal> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Refusal::invalid("Request path length exceeds maximum"));
    }
    match (rules.value, value.is_empty()) {
        (Need::Required, true) => return Err(Refusal::invalid("Request must include value")),
        (Need::Forbidden, false) => return Err(Refusal::invalid("Request must not include value")),
        _ => {}
    }
    match (rules.path, path.is_empty()) {
        (Need::Required, true) => return Err(Refusal::invalid("Request must include path")),
        (Need::Forbidden, false) => {
            return Err(Refusal::invalid("Request must not include path for wholedoc operations"));
        }
        _ => {}
    }
    check_path_flags(rules, flags)?;
    if doc_flags & !rules.doc_flags != 0 {
        return Err(Refusal::invalid("Request document flags invalid"));
    }
    if flags & path_flag::XATTR != 0 {
        if !features.xattr {
            let status = status::NOT_SUPPORTED;
            return Err(Refusal { status, context: "Connection not XATTR enabled" });
        }
        if key_kind(split_xattr_path(path).0).is_none() {
            return Err(Refusal { status: status::XATTR_INVALID, context: "Request XATTR key invalid" });
        }
    }
    Ok(())
}

fn check_path_flags(rules: &Rules, flags: u8) -> Result<(), Refusal> {
    if flags & !rules.path_flags != 0 {
        return Err(Refusal::invalid("Request flags invalid"));
    }
    if flags & rules.mandatory_flags != rules.mandatory_flags {
        return Err(Refusal::invalid("Request missing mandatory flags"));
    }
    if flags & path_flag::EXPAND_MACROS != 0 && flags & path_flag::XATTR == 0 {
        return Err(Refusal {
            status: status::XATTR_FLAG_COMBINATION,
            context: "EXPAND_MACROS flag requires XATTR flag to be set",
        });
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

/// Order and number of attribute keys, over all specs.
struct XattrKeys<'a> {
    body_seen: bool,
    key: Option<&'a [u8]>,
    several: bool,
}

impl<'a> XattrKeys<'a> {
    fn new(features: &Features) -> XattrKeys<'a> {
        XattrKeys { body_seen: false, key: None, several: features.multiple_xattr_keys }
    }

    /// Takes the next spec in; gives the kind of its key if it is about an attribute.
    fn next(&mut self, flags: u8, path: &'a [u8]) -> Result<Option<KeyKind>, Refusal> {
        if flags & path_flag::XATTR == 0 {
            self.body_seen = true;
            return Ok(None);
        }
        if self.body_seen {
            return Err(Refusal::bare(status::XATTR_ORDER));
        }
        let key = split_xattr_path(path).0;
        let kind = key_kind(key);
        if kind != Some(KeyKind::Virtual) {
            if self.key.is_some_and(|other| other != key) && !self.several {
                return Err(Refusal::bare(status::XATTR_KEY_COMBINATION));
            }
            self.key = Some(key);
        }
        Ok(kind)
    }
}

/// All look-ups together.
pub(super) fn check_lookups(specs: &[LookupSpec<'_>], features: &Features) -> Result<(), Refusal> {
    let mut keys = XattrKeys::new(features);
    for spec in specs {
        let kind = keys.next(spec.flags, spec.path)?;
        if kind == Some(KeyKind::Virtual) && !is_known_virtual(split_xattr_path(spec.path).0) {
            return Err(Refusal::bare(status::UNKNOWN_VIRTUAL_ATTRIBUTE));
        }
    }
    Ok(())
}

/// All mutations together.
pub(super) fn check_mutations(specs: &[MutationSpec<'_>], features: &Features) -> Result<(), Refusal> {
    let mut keys = XattrKeys::new(features);
    for (index, spec) in specs.iter().enumerate() {
        // Deleting the document leaves nothing to work on behind it, and nothing of a body before it.
        let is_delete = spec.op == MutationOp::DeleteDoc;
        if is_delete && (keys.body_seen || index + 1 != specs.len()) {
            return Err(Refusal {
                status: status::INVALID_COMBINATION,
                context: "Request contains an invalid combination of commands",
            });
        }
        // Replacing the body with an attribute counts as work on the attribute.
        if keys.next(spec.flags, spec.path)? == Some(KeyKind::Virtual) {
            return Err(Refusal::bare(status::VIRTUAL_ATTRIBUTE_READ_ONLY));
        }
        if spec.flags & path_flag::EXPAND_MACROS != 0 {
            macro_named(spec.value).map_err(Refusal::bare)?;
        }
    }
    Ok(())
}
