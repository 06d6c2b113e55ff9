//! Reading by path: get, exists and count.

use super::PathError;
use super::resolve::{Target, resolve};
use crate::json::{Walk, skip_value};
use crate::path::Path;
use std::ops::Range;

/// The bytes of the value at `path`.
pub fn get(text: &[u8], path: &Path<'_>) -> Result<Range<usize>, PathError> {
    match resolve(text, path)? {
        Target::Found(location) => Ok(location.value),
        Target::Empty => Ok(0..0),
        Target::Missing(_) | Target::BelowEmpty => Err(PathError::NotFound),
    }
}

/// Whether anything lies at `path`.
pub fn exists(text: &[u8], path: &Path<'_>) -> Result<(), PathError> {
    get(text, path).map(|_| ())
}

/// How many members or elements the container at `path` has; the empty path counts the root's.
pub fn count(text: &[u8], path: &Path<'_>) -> Result<u64, PathError> {
    let location = match resolve(text, path)? {
        Target::Found(location) => location,
        Target::Empty => return Err(PathError::Mismatch),
        Target::Missing(_) | Target::BelowEmpty => return Err(PathError::NotFound),
    };
    let mut walk = Walk::new(text, location.value.start).ok_or(PathError::Mismatch)?;
    let mut entries = 0;
    while let Some(entry) = walk.next()? {
        walk.value_ends(skip_value(text, entry.value, location.level + 1)?);
        entries += 1;
    }
    Ok(entries)
}
