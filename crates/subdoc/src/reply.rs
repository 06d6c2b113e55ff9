//! The bodies of replies (kv_engine docs/SubDocument.md, "Response Format").

use crate::exec::{LookupOutcome, LookupValue, MutationOutcome};
use crate::status;

/// Decimal digits of a count.
fn write_count(count: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    let mut rest = count;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

fn write_value<'a>(outcome: &LookupOutcome<'a>, value: LookupValue<'a>, out: &mut Vec<u8>) {
    match value {
        LookupValue::Count(count) => write_count(count, out),
        other => out.extend_from_slice(outcome.bytes(other)),
    }
}

/// Bytes that [`write_lookup`] appends at most: up to as many times the document as there are paths.
pub fn lookup_bytes(outcome: &LookupOutcome<'_>) -> usize {
    const COUNT_DIGITS: usize = 20;
    let head = if outcome.is_single { 0 } else { size_of::<u16>() + size_of::<u32>() };
    let bytes = |value| match value {
        LookupValue::Count(_) => COUNT_DIGITS,
        other => outcome.bytes(other).len(),
    };
    outcome.results().iter().map(|result| head + bytes(result.value)).sum()
}

/// Appends the body of a reply to a look-up; says whether the datatype of the reply is JSON.
///
/// Several paths: status, length and value for every spec. One path: the value alone, which is JSON
/// even where a scalar document gives no bytes.
pub fn write_lookup(outcome: &LookupOutcome<'_>, out: &mut Vec<u8>) -> bool {
    if outcome.is_single {
        let Some(result) = outcome.results().first() else {
            return false;
        };
        write_value(outcome, result.value, out);
        return result.value != LookupValue::Empty;
    }
    for result in outcome.results() {
        out.extend_from_slice(&result.status.to_be_bytes());
        let length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        write_value(outcome, result.value, out);
        let length = (out.len() - length_at - 4) as u32;
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }
    false
}

/// Appends the body of a reply to a mutation; says whether the datatype of the reply is JSON.
///
/// Several paths: index, status 0, length and value for every spec that returns a value, or index and
/// status of the one that failed. One path: the value alone, which is JSON.
pub fn write_mutation(outcome: &MutationOutcome, out: &mut Vec<u8>) -> bool {
    if outcome.is_single {
        for (_, value) in &outcome.values {
            out.extend_from_slice(value);
        }
        return !outcome.values.is_empty();
    }
    if let Some((index, status)) = outcome.failed {
        out.push(index);
        out.extend_from_slice(&status.to_be_bytes());
        return false;
    }
    for (index, value) in &outcome.values {
        out.push(*index);
        out.extend_from_slice(&status::SUCCESS.to_be_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(value);
    }
    false
}
