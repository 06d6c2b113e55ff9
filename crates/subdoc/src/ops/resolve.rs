//! Finding the place that a path names in a JSON text, in one pass.

use super::PathError;
use crate::json::{Container, Walk, skip_value, skip_whitespace};
use crate::path::{Component, Path};
use std::ops::Range;

/// A value that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The value itself.
    pub value: Range<usize>,
    /// Where its entry starts: at the key in objects, at the value in arrays.
    pub entry_start: usize,
    /// The comma in front of the entry, if it is not the first.
    pub comma: Option<usize>,
    /// Its level; the root lies at level 1.
    pub level: usize,
}

/// The container that lacks the next component of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// How many components were found before.
    pub found: usize,
    /// The closing bracket of the container.
    pub close: usize,
    /// How many entries it has.
    pub entries: u64,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A value.
    Found(Location),
    /// Nothing, but the container is there.
    Missing(Gap),
    /// `[-1]` of a scalar: as if there were an empty value, which nothing can be done with but to read it.
    Empty,
    /// Something below such a value.
    BelowEmpty,
}

/// Follows `path` from the root of `text`.
///
/// A body that is one string is no document to these commands; one that is another scalar has no members.
/// What `[-1]` leads to is a document of its own for the rest of the path.
pub(super) fn resolve(text: &[u8], path: &Path<'_>) -> Result<Target, PathError> {
    let root = skip_whitespace(text, 0);
    let level = path.root_level();
    if level == 1 && text.get(root) == Some(&b'"') {
        return Err(PathError::NotJson);
    }
    let mut here = Location { value: root..root, entry_start: root, comma: None, level };
    // An attribute is a member of an object, so none of them is the root of a document.
    let mut is_root = level == 1;
    let components = path.components();
    for (found, component) in components.iter().enumerate() {
        let first = text.get(here.value.start);
        if is_root && first == Some(&b'"') {
            return Err(PathError::NotJson);
        }
        if is_root && *component == Component::Last && is_number_or_literal(first) {
            return Ok(if found + 1 == components.len() { Target::Empty } else { Target::BelowEmpty });
        }
        match step(text, &here, component, found)? {
            Target::Found(next) => here = next,
            other => return Ok(other),
        }
        is_root = *component == Component::Last;
    }
    if here.value.is_empty() {
        here.value.end = skip_value(text, here.value.start, here.level)?;
    }
    Ok(Target::Found(here))
}

fn is_number_or_literal(first: Option<&u8>) -> bool {
    !matches!(first, None | Some(b'{' | b'[' | b'"'))
}

/// One component down. The end of the value is left open (an empty range) unless it had to be found.
fn step(text: &[u8], from: &Location, component: &Component<'_>, found: usize) -> Result<Target, PathError> {
    let Some(mut walk) = Walk::new(text, from.value.start) else {
        return if text.get(from.value.start).is_some() {
            Err(PathError::Mismatch)
        } else {
            Err(PathError::NotJson)
        };
    };
    let level = from.level + 1;
    let mut entries = 0u64;
    let mut last = None;
    match (walk.kind(), component) {
        (Container::Object, Component::Key(_)) => {}
        (Container::Array, Component::Index(_) | Component::Last) => {}
        _ => return Err(PathError::Mismatch),
    }
    while let Some(entry) = walk.next()? {
        let is_it = match component {
            Component::Key(key) => key.names(&text[entry.start + 1..entry.key_end - 1]),
            Component::Index(index) => entries == *index,
            Component::Last => false,
        };
        let here = |value| Location { value, entry_start: entry.start, comma: entry.comma, level };
        if is_it {
            return Ok(Target::Found(here(entry.value..entry.value)));
        }
        let end = skip_value(text, entry.value, level)?;
        if *component == Component::Last {
            last = Some(here(entry.value..end));
        }
        walk.value_ends(end);
        entries += 1;
    }
    Ok(match last {
        Some(location) => Target::Found(location),
        None => Target::Missing(Gap { found, close: walk.position(), entries }),
    })
}
