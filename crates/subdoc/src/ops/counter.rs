//! Numbers of counters: the delta, the number in the document, and the text of the sum.

use super::PathError;

/// A 64-bit number as JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberText {
    digits: [u8; 20],
    start: usize,
}

impl NumberText {
    pub fn new(number: i64) -> NumberText {
        let mut text = NumberText { digits: [0; 20], start: 20 };
        let mut rest = number.unsigned_abs();
        loop {
            text.start -= 1;
            text.digits[text.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            text.start -= 1;
            text.digits[text.start] = b'-';
        }
        text
    }

    pub fn bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

fn magnitude(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    }
}

/// The delta of a request: digits without a leading zero, perhaps a minus.
///
/// Anything up to 2^64 - 1 is taken and wraps to 64 bits with sign, as recorded.
pub(super) fn parse_delta(text: &[u8]) -> Result<i64, PathError> {
    let (negative, digits) = split_sign(text);
    if digits.first() == Some(&b'0') {
        return Err(PathError::BadDelta);
    }
    let wrapped = magnitude(digits).ok_or(PathError::BadDelta)?.cast_signed();
    Ok(if negative { wrapped.wrapping_neg() } else { wrapped })
}

/// The number in the document: a whole one, in range.
pub(super) fn parse_current(text: &[u8]) -> Result<i64, PathError> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(PathError::Mismatch);
    }
    let magnitude = magnitude(digits).ok_or(PathError::NumberOutOfRange)?;
    let number =
        if negative { 0i64.checked_sub_unsigned(magnitude) } else { 0i64.checked_add_unsigned(magnitude) };
    number.ok_or(PathError::NumberOutOfRange)
}
