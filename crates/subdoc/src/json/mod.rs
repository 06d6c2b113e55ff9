//! JSON text: is it JSON, how deep does it nest, and how does one walk over it.

mod scan;
mod validate;

pub(crate) use scan::{Container, Walk, skip_value, skip_whitespace};
pub(crate) use validate::{Shape, check};

#[cfg(test)]
mod tests;

/// Whether `text` is one JSON value (a scalar counts), whitespace around it allowed, in valid UTF-8.
///
/// Surrogates written as escapes and numbers of any size pass; a byte order mark does not.
pub fn is_json(text: &[u8]) -> bool {
    match check(text, Shape::Single) {
        Some(checked) => !checked.has_non_ascii || std::str::from_utf8(text).is_ok(),
        None => false,
    }
}
