//! What is inside a value: compression, JSON, xattrs.

use std::borrow::Cow;

use base::{Datatype, limits};
use subdoc::xattr::Xattrs;

use crate::refusal::Refusal;
use crate::whole::Whole;

/// A value as a request brings it, made ready to be stored.
pub struct Prepared<'a> {
    /// The bytes to store.
    pub bytes: Cow<'a, [u8]>,
    /// What they are.
    pub datatype: Datatype,
}

/// Checks a body that a client sent (`sent` tells only whether it is compressed), finds out whether it is JSON, and
/// keeps the compressed form, if it may, where that is smaller.
pub fn prepare(body: &[u8], sent: Datatype, may_keep: bool) -> Result<Prepared<'_>, Refusal> {
    if !sent.is_snappy() {
        if body.len() > limits::MAX_VALUE_BYTES {
            return Err(Refusal::TooBig);
        }
        return Ok(Prepared { bytes: Cow::Borrowed(body), datatype: detect(body) });
    }
    let plain = inflate(body, limits::MAX_VALUE_BYTES)?;
    let datatype = detect(&plain);
    if may_keep && body.len() < plain.len() {
        Ok(Prepared { bytes: Cow::Borrowed(body), datatype: datatype.with(Datatype::SNAPPY) })
    } else {
        Ok(Prepared { bytes: Cow::Owned(plain), datatype })
    }
}

/// JSON or not.
pub fn detect(body: &[u8]) -> Datatype {
    if subdoc::json::is_json(body) { Datatype::JSON } else { Datatype::RAW }
}

/// No Snappy element makes more bytes out of one: 64 out of 3 is the most.
pub const MOST_INFLATION: usize = 22;

/// Bytes that a raw Snappy block declares to inflate to; 0 if it does not.
pub fn inflated_len(block: &[u8]) -> usize {
    snap::raw::decompress_len(block).unwrap_or(0)
}

/// Inflates a raw Snappy block of at most `limit_bytes`, reading its declared length first.
pub fn inflate(block: &[u8], limit_bytes: usize) -> Result<Vec<u8>, Refusal> {
    let len = snap::raw::decompress_len(block).map_err(|_| Refusal::BadSnappy)?;
    if len > block.len().saturating_mul(MOST_INFLATION) {
        return Err(Refusal::BadSnappy);
    }
    if len > limit_bytes {
        return Err(Refusal::TooBig);
    }
    snap::raw::Decoder::new().decompress_vec(block).map_err(|_| Refusal::BadSnappy)
}

/// A stored value without compression; `Unreadable` if it is not the Snappy block that its datatype says.
pub fn plain(version: &Whole) -> Result<Cow<'_, [u8]>, Refusal> {
    plain_of(version.value(), version.meta().datatype)
}

/// The same for a stored value by itself.
pub fn plain_of(stored: &[u8], datatype: Datatype) -> Result<Cow<'_, [u8]>, Refusal> {
    if !datatype.is_snappy() {
        return Ok(Cow::Borrowed(stored));
    }
    let limit = limits::MAX_VALUE_BYTES + limits::MAX_SYSTEM_XATTR_BYTES;
    inflate(stored, limit).map(Cow::Owned).map_err(|_| Refusal::Unreadable)
}

/// Bytes of a stored value without compression, as far as that can be told without making it.
pub fn plain_len(version: &Whole) -> usize {
    let stored = version.value();
    let inflated = || snap::raw::decompress_len(stored).unwrap_or(0);
    if version.meta().datatype.is_snappy() { inflated() } else { stored.len() }
}

/// Whether a plain value may be stored: system xattrs have an allowance of their own, everything else together one.
pub fn check_size(plain: &[u8], datatype: Datatype) -> Result<(), Refusal> {
    let may_exceed = datatype.is_xattr() && plain.len() > limits::MAX_SYSTEM_XATTR_BYTES;
    let system_bytes = match may_exceed {
        true => {
            subdoc::xattr::split(plain, datatype.0).map_err(|_| Refusal::BadXattr)?.0.system_section().len()
        }
        false => 0,
    };
    let is_within = system_bytes <= limits::MAX_SYSTEM_XATTR_BYTES
        && plain.len() - system_bytes <= limits::MAX_VALUE_BYTES;
    if is_within { Ok(()) } else { Err(Refusal::TooBig) }
}

/// A stored value, inflated, cut into xattrs and body; `Unreadable` if it has not the xattrs that its datatype says.
pub fn split(plain: &[u8], datatype: Datatype) -> Result<(Xattrs<'_>, &[u8]), Refusal> {
    subdoc::xattr::split(plain, datatype.0).map_err(|_| Refusal::Unreadable)
}

/// The xattr section as bytes in front of the body; empty if there is none.
pub fn section<'a>(plain: &'a [u8], body: &[u8]) -> &'a [u8] {
    &plain[..plain.len() - body.len()]
}
