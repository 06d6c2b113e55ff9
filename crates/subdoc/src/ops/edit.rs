//! Changing by path: each operation becomes one edit of the text.

use super::PathError;
use super::counter::{NumberText, parse_current, parse_delta};
use super::resolve::{Gap, Location, Target, resolve};
use crate::json::{Container, Shape, Walk, check, skip_value, skip_whitespace};
use crate::path::{Component, Path};
use std::ops::Range;

/// Deepest level of a value; see `json`.
const MAX_LEVELS: usize = 32;

/// The operations that change a value by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new member.
    DictAdd,
    /// A new member or a new value for it.
    DictUpsert,
    /// Takes a member or an element away.
    Delete,
    /// A new value for what is there.
    Replace,
    /// Appends to an array.
    ArrayPushLast,
    /// Prepends to an array.
    ArrayPushFirst,
    /// Inserts before the element at the index.
    ArrayInsert,
    /// Appends a scalar that the array does not have.
    ArrayAddUnique,
    /// Adds to a number.
    Counter,
}

#[derive(Clone, Copy, Debug)]
enum NewText<'a> {
    Given(&'a [u8]),
    Number(NumberText),
}

/// What is cut out of a text, and what comes in its place.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    removed: Range<usize>,
    before: &'static [u8],
    /// Whether the inserted text starts with the brace of a new object (new attributes only).
    braced: bool,
    /// Keys to write in front of the value, each but the first in an object of its own.
    keys: &'a [Component<'a>],
    /// Whether the value comes as the only content of a new array.
    in_array: bool,
    value: NewText<'a>,
    after: &'static [u8],
}

impl<'a> Edit<'a> {
    fn new(removed: Range<usize>, value: &'a [u8]) -> Edit<'a> {
        let value = NewText::Given(value);
        Edit { removed, before: b"", braced: false, keys: &[], in_array: false, value, after: b"" }
    }

    /// The bytes of the value alone.
    pub fn value(&self) -> &[u8] {
        match &self.value {
            NewText::Given(text) => text,
            NewText::Number(number) => number.bytes(),
        }
    }

    /// The part of the old text that goes.
    pub fn removed(&self) -> Range<usize> {
        self.removed.clone()
    }

    fn objects(&self) -> usize {
        self.keys.len().saturating_sub(1) + usize::from(self.braced)
    }

    /// How many bytes come in.
    pub fn inserted_len(&self) -> usize {
        let keys: usize = self.keys.iter().map(|key| key_of(key).map_or(0, |key| key.json_len() + 3)).sum();
        let brackets = 2 * (self.objects() + usize::from(self.in_array));
        self.before.len() + keys + brackets + self.value().len() + self.after.len()
    }

    /// Writes what comes in; returns where in `out` the value starts.
    pub(crate) fn write_inserted(&self, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(self.before);
        for (depth, component) in self.keys.iter().enumerate() {
            if depth > 0 || self.braced {
                out.push(b'{');
            }
            if let Some(key) = key_of(component) {
                out.push(b'"');
                key.write_json(out);
                out.extend_from_slice(b"\":");
            }
        }
        if self.in_array {
            out.push(b'[');
        }
        let value_at = out.len();
        out.extend_from_slice(self.value());
        if self.in_array {
            out.push(b']');
        }
        out.resize(out.len() + self.objects(), b'}');
        out.extend_from_slice(self.after);
        value_at
    }

    /// The new text, in one allocation, and where in it the value starts.
    pub fn apply(&self, text: &[u8]) -> (Vec<u8>, usize) {
        let len = text.len() - self.removed.len() + self.inserted_len();
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&text[..self.removed.start]);
        let value_at = self.write_inserted(&mut out);
        out.extend_from_slice(&text[self.removed.end..]);
        assert_eq!(out.len(), len, "an edit knows its length");
        (out, value_at)
    }
}

fn key_of<'p>(component: &Component<'p>) -> Option<crate::path::Key<'p>> {
    match component {
        Component::Key(key) => Some(*key),
        _ => None,
    }
}

/// Works out what `operation` at `path` does to `text`. `value` must outlive the edit.
///
/// `create_parents` makes objects (never array elements) for the components that are missing.
pub fn edit<'a>(
    text: &[u8],
    path: &'a Path<'a>,
    operation: Operation,
    value: &'a [u8],
    create_parents: bool,
) -> Result<Edit<'a>, PathError> {
    let components = path.components();
    let delta = check_new_value(operation, path, value)?;
    check_form(operation, components)?;
    match operation {
        Operation::ArrayInsert => return insert(text, path, value),
        Operation::ArrayPushLast if components.is_empty() && is_scalar(text) => {
            return Err(PathError::NotJson); // as recorded; the others say mismatch
        }
        Operation::ArrayPushFirst => first_element(text, path)?,
        _ => {}
    }
    match resolve(text, path)? {
        Target::Found(location) => edit_found(text, components, operation, value, delta, &location),
        Target::Missing(gap) => {
            let edit = create(&components[gap.found..], operation, value, create_parents)?;
            let before: &'static [u8] = if gap.entries == 0 { b"" } else { b"," };
            Ok(Edit { removed: gap.close..gap.close, before, ..edit })
        }
        Target::Empty | Target::BelowEmpty if is_dict(operation) && !ends_in_key(components) => {
            Err(PathError::InvalidPath)
        }
        // Whatever came in its place would not be JSON.
        Target::Empty => Err(PathError::Mismatch),
        Target::BelowEmpty => Err(PathError::NotFound),
    }
}

/// What is told of the first element of what `[-1]` leads to, where that differs from what is told of the whole.
fn first_element(text: &[u8], path: &Path<'_>) -> Result<(), PathError> {
    if path.components().last() != Some(&Component::Last) {
        return Ok(());
    }
    match resolve(text, path)? {
        Target::Empty => Err(PathError::NotFound),
        Target::Found(found) if text.get(found.value.start) == Some(&b'"') => Err(PathError::NotJson),
        _ => Ok(()),
    }
}

fn is_dict(operation: Operation) -> bool {
    matches!(operation, Operation::DictAdd | Operation::DictUpsert)
}

fn is_key(component: &Component<'_>) -> bool {
    matches!(component, Component::Key(_))
}

fn ends_in_key(path: &[Component<'_>]) -> bool {
    path.last().is_some_and(is_key)
}

fn is_scalar(text: &[u8]) -> bool {
    !matches!(text.get(skip_whitespace(text, 0)), None | Some(b'{' | b'['))
}

/// What can be said of the value without looking at the document: it is told before anything about the path.
///
/// Gives the delta of a counter.
fn check_new_value(operation: Operation, path: &Path<'_>, value: &[u8]) -> Result<i64, PathError> {
    let level = path.root_level() + path.components().len();
    match operation {
        Operation::Delete => {}
        Operation::DictAdd | Operation::DictUpsert | Operation::Replace => {
            check_value(value, Shape::Member, level)?;
        }
        Operation::ArrayInsert => check_value(value, Shape::List, level)?,
        Operation::ArrayPushLast | Operation::ArrayPushFirst => check_value(value, Shape::List, level + 1)?,
        Operation::ArrayAddUnique => check_unique(value, level + 1)?,
        Operation::Counter => return parse_delta(value),
    }
    Ok(0)
}

/// What can be said of the path without looking at the document.
fn check_form(operation: Operation, path: &[Component<'_>]) -> Result<(), PathError> {
    let takes_root =
        matches!(operation, Operation::ArrayPushLast | Operation::ArrayPushFirst | Operation::ArrayAddUnique);
    match (operation, path.last()) {
        (_, None) if !takes_root => Err(PathError::InvalidArguments),
        (Operation::ArrayInsert, Some(Component::Index(_))) => Ok(()),
        (Operation::ArrayInsert, _) => Err(PathError::InvalidPath),
        _ => Ok(()),
    }
}

/// The value must be JSON of the right shape and must not reach below the deepest level.
fn check_value(value: &[u8], shape: Shape, level: usize) -> Result<(), PathError> {
    let checked = check(value, shape).ok_or(PathError::CannotInsert)?;
    if level - 1 + checked.levels > MAX_LEVELS {
        return Err(PathError::ValueTooDeep);
    }
    Ok(())
}

fn check_unique(value: &[u8], level: usize) -> Result<(), PathError> {
    let checked = check(value, Shape::Single).ok_or(PathError::CannotInsert)?;
    if checked.is_container {
        return Err(PathError::CannotInsert);
    }
    if level > MAX_LEVELS { Err(PathError::ValueTooDeep) } else { Ok(()) }
}

fn edit_found<'a>(
    text: &[u8],
    path: &'a [Component<'a>],
    operation: Operation,
    value: &'a [u8],
    delta: i64,
    found: &Location,
) -> Result<Edit<'a>, PathError> {
    match operation {
        Operation::DictAdd | Operation::DictUpsert => {
            if !ends_in_key(path) {
                return Err(PathError::InvalidPath);
            }
            if operation == Operation::DictAdd {
                return Err(PathError::Exists);
            }
            Ok(Edit::new(found.value.clone(), value))
        }
        // More members are for objects only.
        Operation::Replace if !ends_in_key(path) && check(value, Shape::Single).is_none() => {
            Err(PathError::CannotInsert)
        }
        Operation::Replace => Ok(Edit::new(found.value.clone(), value)),
        Operation::Delete => Ok(delete(text, found)),
        Operation::Counter => {
            let current = parse_current(&text[found.value.clone()])?;
            let sum = current.checked_add(delta).ok_or(PathError::CannotInsert)?;
            let value = NewText::Number(NumberText::new(sum));
            Ok(Edit { value, ..Edit::new(found.value.clone(), b"") })
        }
        Operation::ArrayPushLast => {
            let array = inside_of_array(text, found)?;
            let before: &'static [u8] = if array.is_empty() { b"" } else { b"," };
            if found.level == 1 {
                // Of a body nothing is kept behind the last element.
                return Ok(Edit { before, after: b"]", ..Edit::new(array.end..text.len(), value) });
            }
            Ok(Edit { before, ..Edit::new(behind_last(&array, found), value) })
        }
        Operation::ArrayPushFirst => {
            let array = inside_of_array(text, found)?;
            if array.is_empty() {
                return Ok(Edit::new(behind_last(&array, found), value));
            }
            Ok(Edit { after: b",", ..Edit::new(array.start..array.start, value) })
        }
        Operation::ArrayAddUnique => add_unique(text, value, found),
        Operation::ArrayInsert => Err(PathError::InvalidPath),
    }
}

/// Cuts the entry and one comma: the one behind it, or for the last entry the one before it. Whitespace stays.
fn delete<'a>(text: &[u8], found: &Location) -> Edit<'a> {
    let next = skip_whitespace(text, found.value.end);
    let cut = match (text.get(next), found.comma) {
        (Some(b','), _) => found.entry_start..next + 1,
        (_, Some(comma)) => comma..found.value.end,
        (_, None) => found.entry_start..found.value.end,
    };
    Edit::new(cut, b"")
}

/// From the first element of an array to the end of its last one; empty, behind the bracket, if it has none.
fn inside_of_array(text: &[u8], found: &Location) -> Result<Range<usize>, PathError> {
    if text.get(found.value.start) != Some(&b'[') {
        return Err(PathError::Mismatch);
    }
    let (open, close) = (found.value.start + 1, found.value.end - 1);
    let start = skip_whitespace(text, open);
    if start == close {
        return Ok(open..open);
    }
    Ok(start..open + text[open..close].trim_ascii_end().len())
}

/// Where an element goes that comes last: in an empty array it takes the place of the whitespace.
fn behind_last(array: &Range<usize>, found: &Location) -> Range<usize> {
    let close = found.value.end - 1;
    if array.is_empty() { array.start..close } else { close..close }
}

/// Compares by text, among scalars only (kv_engine docs/SubDocument.md, CMD_ARRAY_ADD_UNIQUE).
fn add_unique<'a>(text: &[u8], value: &'a [u8], found: &Location) -> Result<Edit<'a>, PathError> {
    let array = inside_of_array(text, found)?;
    let mut walk = Walk::new(text, found.value.start).ok_or(PathError::Mismatch)?;
    while let Some(entry) = walk.next()? {
        if Container::of(text[entry.value]).is_some() {
            return Err(PathError::Mismatch);
        }
        let end = skip_value(text, entry.value, found.level + 1)?;
        if &text[entry.value..end] == value {
            return Err(PathError::Exists); // what follows is not looked at, as recorded
        }
        walk.value_ends(end);
    }
    let before: &'static [u8] = if array.is_empty() { b"" } else { b"," };
    Ok(Edit { before, ..Edit::new(behind_last(&array, found), value) })
}

/// Inserts in front of the element at the index; the index one past the end appends.
fn insert<'a>(text: &[u8], path: &Path<'_>, value: &'a [u8]) -> Result<Edit<'a>, PathError> {
    let components = path.components();
    let Some(&Component::Index(index)) = components.last() else {
        return Err(PathError::InvalidPath);
    };
    match resolve(text, path)? {
        Target::Found(location) => {
            Ok(Edit { after: b",", ..Edit::new(location.entry_start..location.entry_start, value) })
        }
        Target::Missing(Gap { found, close, entries })
            if found + 1 == components.len() && entries == index =>
        {
            if entries == 0 {
                let open = text[..close].trim_ascii_end().len();
                return Ok(Edit::new(open..close, value));
            }
            Ok(Edit { before: b",", ..Edit::new(close..close, value) })
        }
        Target::Empty => Err(PathError::Mismatch),
        Target::Missing(_) | Target::BelowEmpty => Err(PathError::NotFound),
    }
}

/// The text for the components `missing` of a container, the first of which it lacks.
fn create<'a>(
    missing: &'a [Component<'a>],
    operation: Operation,
    value: &'a [u8],
    create_parents: bool,
) -> Result<Edit<'a>, PathError> {
    let makes_member = matches!(operation, Operation::DictAdd | Operation::DictUpsert | Operation::Counter);
    let makes_array =
        matches!(operation, Operation::ArrayPushLast | Operation::ArrayPushFirst | Operation::ArrayAddUnique);
    let makes_parents =
        operation == Operation::Counter && create_parents && missing.first().is_some_and(is_key);
    if (is_dict(operation) || makes_parents) && !missing.is_empty() && !ends_in_key(missing) {
        return Err(PathError::InvalidPath);
    }
    let only_keys = missing.iter().all(|component| matches!(component, Component::Key(_)));
    let creates = (makes_member && (missing.len() <= 1 || create_parents)) || (makes_array && create_parents);
    if !creates || !only_keys {
        return Err(PathError::NotFound);
    }
    // Keys are written into documents as they are, so they must not spoil them.
    if missing.iter().filter_map(key_of).any(|key| !key.is_text()) {
        return Err(PathError::InvalidPath);
    }
    let text = match operation {
        Operation::Counter => NewText::Number(NumberText::new(parse_delta(value)?)),
        _ => NewText::Given(value),
    };
    Ok(Edit { keys: missing, in_array: makes_array, value: text, ..Edit::new(0..0, b"") })
}

/// The edit of an attribute as a whole: `text` is its value, if there is one.
///
/// Acts as if the attribute were a member of an object: `path` is what follows its key.
pub(crate) fn edit_root_of_attribute<'a>(
    text: Option<&[u8]>,
    path: &'a Path<'a>,
    operation: Operation,
    value: &'a [u8],
    create_parents: bool,
) -> Result<Edit<'a>, PathError> {
    let rest = path.components();
    let delta = check_new_value(operation, path, value)?;
    if rest.is_empty() && (is_dict(operation) || operation == Operation::Replace) {
        // More members would be more attributes, which nothing has checked.
        check_value(value, Shape::Single, path.root_level())?;
    }
    let Some(text) = text else {
        if operation == Operation::ArrayInsert && !matches!(rest.last(), Some(Component::Index(_))) {
            return Err(PathError::InvalidPath);
        }
        if !rest.is_empty() && !create_parents {
            let is_invalid = is_dict(operation) && !ends_in_key(rest);
            return Err(if is_invalid { PathError::InvalidPath } else { PathError::NotFound });
        }
        let edit = create(rest, operation, value, create_parents)?;
        return Ok(Edit { braced: !rest.is_empty(), ..edit });
    };
    if !rest.is_empty() {
        return edit(text, path, operation, value, create_parents);
    }
    if operation == Operation::ArrayInsert {
        return Err(PathError::InvalidPath);
    }
    let Target::Found(found) = resolve(text, path)? else {
        return Err(PathError::NotFound);
    };
    match operation {
        Operation::DictAdd => Err(PathError::Exists),
        Operation::DictUpsert | Operation::Replace => Ok(Edit::new(found.value, value)),
        Operation::Delete => Ok(Edit::new(0..text.len(), b"")),
        _ => edit_found(text, &[], operation, value, delta, &found),
    }
}
