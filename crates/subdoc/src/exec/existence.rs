//! Which version of a document a request applies to: what the document flags decide.

use super::Document;
use crate::request::{MutationOp, MutationSpec, doc_flag};
use crate::status;

/// What a mutation starts from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base<'a> {
    /// The version that is there; `deleted` says whether the result is a tombstone.
    Existing { document: Document<'a>, deleted: bool },
    /// Nothing: a new document or tombstone.
    New { deleted: bool },
}

fn has(doc_flags: u8, flag: u8) -> bool {
    doc_flags & flag != 0
}

/// The version that a look-up reads, or the status that it gets instead.
pub(super) fn readable<'a>(
    current: Option<Document<'a>>,
    doc_flags: u8,
    cas: u64,
) -> Result<Document<'a>, u16> {
    let document = current.ok_or(status::KEY_NOT_FOUND)?;
    if document.deleted && !has(doc_flags, doc_flag::ACCESS_DELETED) {
        return Err(status::KEY_NOT_FOUND);
    }
    if cas != 0 && cas != document.metadata.cas {
        return Err(status::KEY_EXISTS);
    }
    if !document.deleted && has(doc_flags, doc_flag::REVIVE) {
        return Err(status::ONLY_DELETED_CAN_REVIVE);
    }
    Ok(document)
}

/// The version that a mutation changes, or the status that it gets instead.
pub(super) fn changeable<'a>(
    current: Option<Document<'a>>,
    doc_flags: u8,
    cas: u64,
) -> Result<Base<'a>, u16> {
    let adds = has(doc_flags, doc_flag::ADD);
    let as_deleted = has(doc_flags, doc_flag::CREATE_AS_DELETED);
    if adds && cas != 0 {
        return Err(status::INVALID_ARGUMENTS);
    }
    let revives = has(doc_flags, doc_flag::REVIVE);
    if let Some(document) = current {
        let accessible = !document.deleted || has(doc_flags, doc_flag::ACCESS_DELETED);
        // A tombstone that may be seen is a document that there is.
        if adds && (accessible || as_deleted) {
            return Err(status::KEY_EXISTS);
        }
        if accessible {
            if cas != 0 && cas != document.metadata.cas {
                return Err(status::KEY_EXISTS);
            }
            if revives && !document.deleted {
                return Err(status::ONLY_DELETED_CAN_REVIVE);
            }
            return Ok(Base::Existing { document, deleted: document.deleted && !revives });
        }
    }
    if !has(doc_flags, doc_flag::MKDOC | doc_flag::ADD) || cas != 0 {
        return Err(status::KEY_NOT_FOUND);
    }
    // What is made is a live document, unless it is made as a tombstone.
    if revives && !as_deleted {
        return Err(status::ONLY_DELETED_CAN_REVIVE);
    }
    Ok(Base::New { deleted: as_deleted && !revives })
}

/// The body that a new document starts with: the kind of root that the first path needs, be it that of an attribute.
pub(super) fn empty_root(specs: &[MutationSpec<'_>]) -> &'static [u8] {
    let Some(spec) = specs.iter().find(|spec| matches!(spec.op, MutationOp::Path(_))) else {
        return b"";
    };
    match spec.path.trim_ascii_start().first() {
        None | Some(b'[') => b"[]",
        Some(_) => b"{}",
    }
}

/// Whether an operation needs an existing path, so that it means nothing for a document that is made. That this is an
/// internal error is as recorded.
pub(super) fn needs_document(op: MutationOp) -> bool {
    use crate::ops::Operation::{ArrayInsert, Delete, Replace};
    matches!(op, MutationOp::Path(Replace | Delete | ArrayInsert))
}
