//! Lines of JSON that are appended to a file, each behind its checksum: what is torn by a crash is noticed.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes before the JSON: eight digits and a space.
const CHECKSUM_BYTES: usize = 9;

/// A line as it is appended.
pub(super) fn line_of(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("plain data");
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}

/// The lines up to the first one that is not whole, and how many bytes they take.
pub(super) fn lines_in<T: DeserializeOwned>(bytes: &[u8]) -> (Vec<T>, usize) {
    let (mut lines, mut taken) = (Vec::new(), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(value) = parse(line) else { break };
        lines.push(value);
        taken += line.len();
    }
    (lines, taken)
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let (checksum, json) = line.strip_suffix(b"\n")?.split_at_checked(CHECKSUM_BYTES)?;
    let expected = format!("{:08x} ", crc32c::crc32c(json));
    (checksum == expected.as_bytes()).then(|| serde_json::from_slice(json).ok())?
}
