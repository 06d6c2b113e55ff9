//! Reading by path: get, exists and count.

use super::PathError;
use super::resolve::{Target, resolve};
use crate::json::{Walk, skip_value, skip_whitespace};
use crate::path::{Component, Path};
use std::ops::Range;

/// The bytes of the value at `path`.
///
/// `[-1]` on a document that is a scalar, but no string, gives an empty value, as recorded.
pub fn get(text: &[u8], path: &Path<'_>) -> Result<Range<usize>, PathError> {
    if path.components() == [Component::Last] && path.root_level() == 1 && is_scalar(text) {
        return Ok(0..0);
    }
    match resolve(text, path)? {
        Target::Found(location) => Ok(location.value),
        Target::Missing(_) => Err(PathError::NotFound),
    }
}

/// Whether anything lies at `path`.
pub fn exists(text: &[u8], path: &Path<'_>) -> Result<(), PathError> {
    get(text, path).map(|_| ())
}

/// How many members or elements the container at `path` has; the empty path counts the root's.
pub fn count(text: &[u8], path: &Path<'_>) -> Result<u64, PathError> {
    let Target::Found(location) = resolve(text, path)? else {
        return Err(PathError::NotFound);
    };
    let mut walk = Walk::new(text, location.value.start).ok_or(PathError::Mismatch)?;
    let mut entries = 0;
    while let Some(entry) = walk.next()? {
        walk.value_ends(skip_value(text, entry.value, location.level + 1)?);
        entries += 1;
    }
    Ok(entries)
}

fn is_scalar(text: &[u8]) -> bool {
    !matches!(text.get(skip_whitespace(text, 0)), None | Some(b'{' | b'[' | b'"'))
}
