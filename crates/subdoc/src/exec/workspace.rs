//! The document while a mutation works on it: only what a spec touches is copied.

use super::binary_value;
use super::existence::needs_document;
use super::macros::{Named, Placeholder, expand_document, macro_named};
use super::mutate::{Late, NewDocument};
use super::virtual_attributes::View;
use crate::json::is_json;
use crate::ops::{self, Edit, Operation, PathError};
use crate::path::Path;
use crate::request::{MutationOp, MutationSpec, doc_flag, path_flag, split_xattr_path};
use crate::xattr::{KeyKind, Section, Xattrs, key_kind};
use crate::{DATATYPE_JSON, DATATYPE_XATTR, status};
use std::borrow::Cow;
use std::ops::Range;

use super::MacroKind;

/// Why a spec ends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The spec failed; told with its index.
    Path(PathError),
    /// The request failed; told as the status of the reply.
    Request(u16),
}

impl From<PathError> for Fault {
    fn from(error: PathError) -> Fault {
        Fault::Path(error)
    }
}

/// Text with placeholders in it; their offsets follow every edit.
#[derive(Default)]
struct Text<'a> {
    bytes: Cow<'a, [u8]>,
    placeholders: Vec<Placeholder>,
}

impl<'a> Text<'a> {
    fn plain(bytes: &'a [u8]) -> Text<'a> {
        Text { bytes: Cow::Borrowed(bytes), placeholders: Vec::new() }
    }

    /// Applies `edit`; a macro in the new value becomes a placeholder.
    fn apply(&mut self, edit: &Edit<'_>, inserted: Option<MacroKind>) {
        let removed = edit.removed();
        let (bytes, value_at) = edit.apply(&self.bytes);
        self.placeholders.retain(|placeholder| !removed.contains(&placeholder.offset));
        for placeholder in &mut self.placeholders {
            if placeholder.offset >= removed.end {
                placeholder.offset = placeholder.offset - removed.len() + edit.inserted_len();
            }
        }
        if let Some(kind) = inserted {
            self.placeholders.push(Placeholder { offset: value_at + MacroKind::DIGITS_AT, kind });
        }
        self.bytes = Cow::Owned(bytes);
    }

    /// A copy of a part, with the placeholders in it.
    fn part(&self, range: Range<usize>) -> Text<'a> {
        let inside = self.placeholders.iter().filter(|placeholder| range.contains(&placeholder.offset));
        let placeholders = inside
            .map(|placeholder| Placeholder { offset: placeholder.offset - range.start, ..*placeholder });
        Text { placeholders: placeholders.collect(), bytes: Cow::Owned(self.bytes[range].to_vec()) }
    }
}

/// An attribute that was touched; without text it is gone, or was never there.
struct Touched<'a> {
    key: &'a [u8],
    text: Option<Text<'a>>,
}

/// See the module.
pub(super) struct Workspace<'a> {
    /// The version from before, for macros.
    view: Option<View<'a>>,
    /// The body that a new document started with.
    root: &'static [u8],
    xattrs: Xattrs<'a>,
    touched: Vec<Touched<'a>>,
    body: Text<'a>,
    is_json: bool,
    deleted: bool,
    /// Whether the whole document was deleted by this request.
    pub deletes: bool,
}

impl<'a> Workspace<'a> {
    /// Starts from the version that is there.
    pub fn existing(view: View<'a>, deleted: bool) -> Workspace<'a> {
        let is_json = view.document.datatype & DATATYPE_JSON != 0 && !view.document.deleted;
        let body = Text::plain(view.body);
        let xattrs = view.xattrs;
        let view = Some(view);
        Workspace { view, root: b"", xattrs, touched: Vec::new(), body, is_json, deleted, deletes: false }
    }

    /// Starts from nothing.
    pub fn new(root: &'static [u8], deleted: bool) -> Workspace<'a> {
        let root: &'static [u8] = if deleted { b"" } else { root };
        Workspace {
            view: None,
            root,
            xattrs: Xattrs::default(),
            touched: Vec::new(),
            body: Text::plain(root),
            is_json: !root.is_empty(),
            deleted,
            deletes: false,
        }
    }

    /// Whether the result is a tombstone.
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Whether there were attributes, and the deletion of the document leaves none.
    pub fn loses_attributes(&self) -> bool {
        let kept = |key: &[u8]| is_system(key) && !self.touched.iter().any(|one| one.key == key);
        let stays =
            self.xattrs.iter().any(|(key, _)| kept(key)) || self.touched.iter().any(|one| one.text.is_some());
        !stays && (!self.xattrs.is_empty() || !self.touched.is_empty())
    }

    /// Does what one spec says; gives the value that it returns, if any.
    pub fn apply(&mut self, spec: &MutationSpec<'a>, doc_flags: u8) -> Result<Option<Vec<u8>>, Fault> {
        match spec.op {
            MutationOp::SetDoc => {
                self.check_body_allowed()?;
                self.body = Text::plain(spec.value);
                self.is_json = is_json(spec.value);
                Ok(None)
            }
            MutationOp::DeleteDoc => {
                self.delete();
                Ok(None)
            }
            MutationOp::ReplaceBodyWithXattr => self.replace_body(spec).map(|()| None),
            MutationOp::Path(operation) => {
                let makes_document = doc_flags & (doc_flag::MKDOC | doc_flag::ADD) != 0;
                if makes_document && needs_document(spec.op) {
                    return Err(PathError::NoDocument.into());
                }
                let makes_parents = makes_document || spec.flags & path_flag::MKDIR_P != 0;
                if spec.flags & path_flag::XATTR == 0 {
                    self.edit_body(operation, spec, makes_parents)
                } else {
                    self.edit_attribute(operation, spec, makes_parents)
                }
            }
        }
    }

    fn check_body_allowed(&self) -> Result<(), Fault> {
        if self.deleted { Err(Fault::Request(status::DELETED_WITHOUT_VALUE)) } else { Ok(()) }
    }

    /// Takes body and user attributes away; system attributes stay in the tombstone.
    fn delete(&mut self) {
        for attribute in self.touched.iter_mut().filter(|attribute| !is_system(attribute.key)) {
            attribute.text = None;
        }
        self.body = Text::default();
        self.is_json = false;
        self.deleted = true;
        self.deletes = true;
    }

    fn edit_body(
        &mut self,
        operation: Operation,
        spec: &MutationSpec<'_>,
        makes_parents: bool,
    ) -> Result<Option<Vec<u8>>, Fault> {
        if self.deleted || !self.is_json {
            return Err(PathError::NotJson.into());
        }
        let path = Path::parse(spec.path)?;
        let edit = ops::edit(&self.body.bytes, &path, operation, spec.value, makes_parents)?;
        self.body.apply(&edit, None);
        Ok(returned(operation, &edit))
    }

    /// The index of the attribute among the touched ones; it is taken there if it was not touched yet.
    fn touch(&mut self, key: &'a [u8]) -> usize {
        if let Some(index) = self.touched.iter().position(|attribute| attribute.key == key) {
            return index;
        }
        let text = self.xattrs.get(key).map(Text::plain);
        self.touched.push(Touched { key, text });
        self.touched.len() - 1
    }

    fn edit_attribute(
        &mut self,
        operation: Operation,
        spec: &MutationSpec<'a>,
        makes_parents: bool,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let (value, kind) = self.expanded(spec)?;
        let (key, path) = split_xattr_path(spec.path);
        let path = Path::parse_attribute(key, path)?;
        let index = self.touch(key);
        let slot = &mut self.touched[index].text;
        let old = slot.as_ref().map(|text| &*text.bytes);
        let edit = ops::edit_root_of_attribute(old, &path, operation, &value, makes_parents)?;
        let result = returned(operation, &edit);
        if operation == Operation::Delete && path.components().is_empty() {
            *slot = None;
        } else {
            slot.get_or_insert_default().apply(&edit, kind);
        }
        Ok(result)
    }

    /// The value of a spec, its macro expanded or replaced by a placeholder, its bytes made a string.
    fn expanded(&self, spec: &MutationSpec<'a>) -> Result<(Cow<'a, [u8]>, Option<MacroKind>), Fault> {
        if spec.flags & path_flag::BINARY_VALUE != 0 {
            return Ok((Cow::Owned(binary_value::encode(spec.value)), None));
        }
        if spec.flags & path_flag::EXPAND_MACROS == 0 {
            return Ok((Cow::Borrowed(spec.value), None));
        }
        match macro_named(spec.value).map_err(Fault::Request)? {
            Named::Mutation(kind) => Ok((Cow::Borrowed(kind.placeholder()), Some(kind))),
            Named::Document(path) => {
                let text = expand_document(path, self.view.as_ref(), self.root)?;
                Ok((Cow::Owned(text), None))
            }
        }
    }

    fn replace_body(&mut self, spec: &MutationSpec<'a>) -> Result<(), Fault> {
        let (key, path) = split_xattr_path(spec.path);
        let path = Path::parse_attribute(key, path)?;
        let index = self.touch(key);
        let text = self.touched[index].text.as_ref().ok_or(PathError::NotFound)?;
        let found = ops::get(&text.bytes, &path)?;
        let body = if spec.flags & path_flag::BINARY_VALUE != 0 {
            let bytes = binary_value::decode(&text.bytes[found]).ok_or(PathError::NotBinaryValue)?;
            Text { bytes: Cow::Owned(bytes), placeholders: Vec::new() }
        } else {
            text.part(found)
        };
        self.check_body_allowed()?;
        self.is_json = is_json(&body.bytes);
        self.body = body;
        Ok(())
    }

    /// Puts attributes and body together.
    pub fn finish(self) -> NewDocument {
        let has_xattrs = !self.xattrs.is_empty() || self.touched.iter().any(|one| one.text.is_some());
        if !has_xattrs {
            // The body is the value: it was allocated by the edit, and is not copied again.
            let datatype = if self.is_json && !self.deleted { DATATYPE_JSON } else { 0 };
            let Text { bytes, placeholders } = self.body;
            let value = bytes.into_owned();
            return NewDocument {
                value,
                datatype,
                deleted: self.deleted,
                late: Late { placeholders, body_at: 0 },
            };
        }
        let mut value = Vec::with_capacity(self.value_bytes());
        let mut placeholders = Vec::new();
        let mut section = Section::start(&mut value);
        let mut place = |text: &Text<'_>, at: usize| {
            let moved = text.placeholders.iter();
            placeholders.extend(moved.map(|one| Placeholder { offset: one.offset + at, ..*one }));
        };
        let touched_with = |key: &[u8]| self.touched.iter().find(|attribute| attribute.key == key);
        for (key, old) in self.xattrs.iter() {
            match touched_with(key) {
                None if self.deletes && !is_system(key) => {}
                None => drop(section.pair(key, old)),
                Some(Touched { text: Some(text), .. }) => place(text, section.pair(key, &text.bytes)),
                Some(_) => {}
            }
        }
        for attribute in &self.touched {
            if let (Some(text), None) = (&attribute.text, self.xattrs.get(attribute.key)) {
                place(text, section.pair(attribute.key, &text.bytes));
            }
        }
        let has_xattrs = section.finish();
        let body_at = value.len();
        value.extend_from_slice(&self.body.bytes);
        place(&self.body, body_at);
        let mut datatype = if has_xattrs { DATATYPE_XATTR } else { 0 };
        if self.is_json && !self.deleted {
            datatype |= DATATYPE_JSON;
        }
        NewDocument { value, datatype, deleted: self.deleted, late: Late { placeholders, body_at } }
    }

    fn value_bytes(&self) -> usize {
        let old = self.xattrs.iter().map(|(key, value)| key.len() + value.len() + 6);
        let new = self.touched.iter().map(|attribute| {
            attribute.key.len() + attribute.text.as_ref().map_or(0, |text| text.bytes.len()) + 6
        });
        4 + old.sum::<usize>() + new.sum::<usize>() + self.body.bytes.len()
    }
}

fn is_system(key: &[u8]) -> bool {
    key_kind(key) == Some(KeyKind::System)
}

fn returned(operation: Operation, edit: &Edit<'_>) -> Option<Vec<u8>> {
    (operation == Operation::Counter).then(|| edit.value().to_vec())
}
