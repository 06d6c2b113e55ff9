//! What is inside a value: compression, JSON, xattrs.

use std::borrow::Cow;

use base::planted::{self, Bug};
use base::{Datatype, limits};
use subdoc::xattr::Xattrs;

use crate::refusal::Refusal;
use crate::value_times::ValueTimes;
use crate::whole::Whole;

mod front;

/// A value as a request brings it, made ready to be stored.
pub struct Prepared<'a> {
    /// The bytes to store.
    pub bytes: Cow<'a, [u8]>,
    /// What they are.
    pub datatype: Datatype,
}

/// Checks a body that a client sent, of a length that `stored_len` allows (`sent` tells only whether it is compressed), finds
/// out whether it is JSON, and keeps the compressed form, if it may, where that is smaller.
pub fn prepare<'a>(
    body: &'a [u8],
    sent: Datatype,
    may_keep: bool,
    times: &ValueTimes,
) -> Result<Prepared<'a>, Refusal> {
    if !sent.is_snappy() {
        return Ok(Prepared { bytes: Cow::Borrowed(body), datatype: times.detect(body) });
    }
    let plain = times.inflate(body, limits::MAX_VALUE_BYTES)?;
    let datatype = times.detect(&plain);
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

/// What tells how long an xattr section is.
const XATTR_LENGTH_BYTES: usize = 4;

/// No Snappy element makes more bytes out of one: 64 out of 3 is the most.
pub const MOST_INFLATION: usize = 22;

/// Bytes that a raw Snappy block declares to inflate to; 0 if it does not.
pub fn inflated_len(block: &[u8]) -> usize {
    snap::raw::decompress_len(block).unwrap_or(0)
}

/// Inflates a raw Snappy block of at most `limit_bytes`, reading its declared length first.
pub fn inflate(block: &[u8], limit_bytes: usize) -> Result<Vec<u8>, Refusal> {
    declared_len(block, limit_bytes)?;
    snap::raw::Decoder::new().decompress_vec(block).map_err(|_| Refusal::BadSnappy)
}

/// Bytes that a raw Snappy block declares to inflate to, if it can, and if they are at most `limit_bytes`.
fn declared_len(block: &[u8], limit_bytes: usize) -> Result<usize, Refusal> {
    let len = snap::raw::decompress_len(block).map_err(|_| Refusal::BadSnappy)?;
    if len > block.len().saturating_mul(MOST_INFLATION) {
        return Err(Refusal::BadSnappy);
    }
    if len > limit_bytes { Err(Refusal::TooBig) } else { Ok(len) }
}

/// Bytes that a sent value takes when it is stored, or why it cannot be, as far as its lengths tell: nothing is scanned,
/// and a block that inflates to something else than it declares is found later.
pub(crate) fn stored_len(
    sent: &[u8],
    datatype: Datatype,
    may_keep: bool,
    limit_bytes: usize,
) -> Result<usize, Refusal> {
    if !datatype.is_snappy() {
        return if sent.len() > limit_bytes { Err(Refusal::TooBig) } else { Ok(sent.len()) };
    }
    let plain = declared_len(sent, limit_bytes)?;
    Ok(if may_keep { plain.min(sent.len()) } else { plain })
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
    match inflate(stored, limit) {
        Ok(plain) => Ok(Cow::Owned(plain)),
        Err(_) if planted::is(Bug::UnreadableIsEmpty) => Ok(Cow::Borrowed(&[])),
        Err(_) => Err(Refusal::Unreadable),
    }
}

/// Bytes of a stored value without compression, as far as that can be told without making it.
pub fn plain_len(version: &Whole) -> usize {
    let stored = version.value();
    let inflated = || snap::raw::decompress_len(stored).unwrap_or(0);
    if version.meta().datatype.is_snappy() { inflated() } else { stored.len() }
}

/// Whether a plain value may be stored: system xattrs have an allowance of their own, everything else together one.
pub fn check_size(plain: &[u8], datatype: Datatype) -> Result<(), Refusal> {
    let system_bytes = system_bytes(plain, datatype)?;
    let is_within = system_bytes <= limits::MAX_SYSTEM_XATTR_BYTES
        && plain.len() - system_bytes <= limits::MAX_VALUE_BYTES;
    if is_within { Ok(()) } else { Err(Refusal::TooBig) }
}

/// A stored value, inflated, cut into xattrs and body; `Unreadable` if it has not the xattrs that its datatype says.
pub fn split(plain: &[u8], datatype: Datatype) -> Result<(Xattrs<'_>, &[u8]), Refusal> {
    subdoc::xattr::split(plain, datatype.0).map_err(|_| Refusal::Unreadable)
}

/// How long the system xattrs of a plain value are; 0 if the value is too short for them to be too long.
pub fn system_bytes(plain: &[u8], datatype: Datatype) -> Result<usize, Refusal> {
    if !datatype.is_xattr() || plain.len() <= limits::MAX_SYSTEM_XATTR_BYTES {
        return Ok(0);
    }
    let (xattrs, _) = subdoc::xattr::split(plain, datatype.0).map_err(|_| Refusal::BadXattr)?;
    Ok(xattrs.system_section().len())
}

/// The xattr section as bytes in front of the body; empty if there is none.
pub fn section<'a>(plain: &'a [u8], body: &[u8]) -> &'a [u8] {
    &plain[..plain.len() - body.len()]
}

/// The xattr section of a version; see [`stored_section`].
pub fn section_of(version: &Whole) -> Result<Cow<'_, [u8]>, Refusal> {
    stored_section(version.value(), version.meta().datatype)
}

/// The xattr section of a stored value with its length in front, as [`section`] gives it; the body is not inflated.
pub fn stored_section(stored: &[u8], datatype: Datatype) -> Result<Cow<'_, [u8]>, Refusal> {
    if !datatype.is_xattr() {
        return Ok(Cow::Borrowed(&[]));
    }
    if !datatype.is_snappy() {
        return Ok(Cow::Borrowed(section(stored, split(stored, datatype)?.1)));
    }
    let front = |most| front::inflate_front(stored, most).ok_or(Refusal::Unreadable);
    let head = front(XATTR_LENGTH_BYTES)?;
    let len: [u8; XATTR_LENGTH_BYTES] = head.try_into().map_err(|_| Refusal::Unreadable)?;
    let len = XATTR_LENGTH_BYTES + u32::from_be_bytes(len) as usize;
    if len > limits::MAX_VALUE_BYTES + limits::MAX_SYSTEM_XATTR_BYTES {
        return Err(Refusal::Unreadable);
    }
    let section = front(len)?;
    if section.len() == len { Ok(Cow::Owned(section)) } else { Err(Refusal::Unreadable) }
}

/// Which xattrs of a document are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedXattrs {
    /// None: its body alone.
    None,
    /// Those of users.
    User,
    /// All.
    All,
}

/// A stored value as a reader gets it, and what it is then: compressed only if the reader takes that and nothing is left
/// out of it.
pub fn shown<'a>(
    stored: &'a [u8],
    datatype: Datatype,
    xattrs: WantedXattrs,
    takes_snappy: bool,
    times: &ValueTimes,
) -> Result<(Cow<'a, [u8]>, Datatype), Refusal> {
    let is_cut = match xattrs {
        WantedXattrs::All => false,
        WantedXattrs::None => datatype.is_xattr(),
        WantedXattrs::User => {
            datatype.is_xattr()
                && !split(&stored_section(stored, datatype)?, datatype)?.0.system_section().is_empty()
        }
    };
    if !is_cut && (takes_snappy || !datatype.is_snappy()) {
        return Ok((Cow::Borrowed(stored), datatype));
    }
    let (plain, datatype) = (times.plain_of(stored, datatype)?, datatype.without(Datatype::SNAPPY));
    if !is_cut {
        return Ok((plain, datatype));
    }
    let (all, body) = split(&plain, datatype)?;
    let body_at = plain.len() - body.len();
    if xattrs == WantedXattrs::User {
        let mut shown = all.user_section();
        if !shown.is_empty() {
            shown.extend_from_slice(body);
            return Ok((Cow::Owned(shown), datatype));
        }
    }
    let body = match plain {
        Cow::Borrowed(plain) => Cow::Borrowed(&plain[body_at..]),
        Cow::Owned(mut plain) => Cow::Owned(plain.split_off(body_at)),
    };
    Ok((body, datatype.without(Datatype::XATTR)))
}

/// Checks a value that comes with its datatype, and gives it the form in which it is kept.
pub(crate) fn checked<'a>(
    keeps_compressed: bool,
    datatype: Datatype,
    value: &'a [u8],
    times: &ValueTimes,
) -> Result<(Datatype, Cow<'a, [u8]>), Refusal> {
    if !datatype.is_snappy() {
        check_xattrs(value, datatype)?;
        return Ok((datatype, Cow::Borrowed(value)));
    }
    let limit = limits::MAX_VALUE_BYTES + limits::MAX_SYSTEM_XATTR_BYTES;
    let inflated = times.inflate(value, limit)?;
    check_xattrs(&inflated, datatype)?;
    if keeps_compressed && inflated.len() > value.len() {
        return Ok((datatype, Cow::Borrowed(value)));
    }
    Ok((datatype.without(Datatype::SNAPPY), Cow::Owned(inflated)))
}

fn check_xattrs(plain: &[u8], datatype: Datatype) -> Result<(), Refusal> {
    if datatype.is_xattr() {
        subdoc::xattr::validate(plain).map_err(|_| Refusal::BadXattr)?;
        // As in the field, other than where attributes are changed by path.
        if system_bytes(plain, datatype)? > limits::MAX_SYSTEM_XATTR_BYTES {
            return Err(Refusal::Invalid);
        }
    }
    check_size(plain, datatype)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value with one attribute, and a body that compresses well.
    fn plain(body_bytes: usize) -> Vec<u8> {
        let pair = b"_sync\0{\"a\":1}\0";
        let pairs = [&(pair.len() as u32).to_be_bytes()[..], pair].concat();
        [&(pairs.len() as u32).to_be_bytes()[..], &pairs, &vec![b'x'; body_bytes]].concat()
    }

    #[test]
    fn attributes_are_read_without_the_body() {
        let plain = plain(4 << 20);
        let datatype = Datatype::XATTR;
        let expected = section(&plain, split(&plain, datatype).expect("sound").1).to_vec();
        assert_eq!(stored_section(&plain, datatype).as_deref(), Ok(&expected[..]));
        let block = snap::raw::Encoder::new().compress_vec(&plain).expect("it fits");
        let packed = datatype.with(Datatype::SNAPPY);
        assert_eq!(stored_section(&block, packed).as_deref(), Ok(&expected[..]));
        // Nothing behind them is looked at, so it costs nothing.
        let front = &block[..expected.len() + 16];
        assert_eq!(stored_section(front, packed).as_deref(), Ok(&expected[..]));
        assert_eq!(
            inflate(front, limits::MAX_VALUE_BYTES),
            Err(Refusal::BadSnappy),
            "the whole is not there"
        );
        assert_eq!(stored_section(&block[..4], packed), Err(Refusal::Unreadable));
        assert_eq!(stored_section(&block, Datatype::SNAPPY).as_deref(), Ok(&[][..]), "it has none");
    }

    #[test]
    fn a_section_that_is_longer_than_its_value_is_refused() {
        let wrong = [&u32::MAX.to_be_bytes()[..], b"x"].concat();
        let block = snap::raw::Encoder::new().compress_vec(&wrong).expect("it fits");
        let packed = Datatype::XATTR.with(Datatype::SNAPPY);
        assert_eq!(stored_section(&block, packed), Err(Refusal::Unreadable));
        let short = [&9u32.to_be_bytes()[..], b"x"].concat();
        let block = snap::raw::Encoder::new().compress_vec(&short).expect("it fits");
        assert_eq!(stored_section(&block, packed), Err(Refusal::Unreadable));
    }
}
