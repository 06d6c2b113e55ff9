//! Lines of JSON that are appended to a file, each behind its checksum: what is torn by a crash is noticed. With a key,
//! each is encrypted for itself.

use base::encryption::Sealer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes before the JSON: eight digits and a space.
const CHECKSUM_BYTES: usize = 9;

/// What encrypted lines are bound to, with the identifier of their backup.
const LINE_LABEL: &[u8] = b"stave backup line ";

/// Whose lines they are, and what encrypts them; without a sealer they are as they are.
#[derive(Clone, Copy)]
pub(super) struct LineSeal<'a> {
    pub(super) sealer: Option<&'a Sealer>,
    /// The identifier of the backup.
    pub(super) id: &'a str,
}

impl LineSeal<'_> {
    fn bound(&self) -> Vec<u8> {
        [LINE_LABEL, self.id.as_bytes()].concat()
    }
}

/// A line as it is appended.
pub(super) fn line_of(value: &impl Serialize, seal: LineSeal<'_>) -> String {
    let mut text = serde_json::to_string(value).expect("plain data");
    if let Some(sealer) = seal.sealer {
        let mut piece = Vec::new();
        sealer.seal(&seal.bound(), text.as_bytes(), &mut piece);
        text = STANDARD.encode(piece);
    }
    format!("{:08x} {text}\n", crc32c::crc32c(text.as_bytes()))
}

/// Whether the first of these lines, if there is one, is encrypted.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.get(CHECKSUM_BYTES).is_some_and(|byte| *byte != b'{')
}

/// The lines up to the first one that is not whole, and how many bytes they take.
pub(super) fn lines_in<T: DeserializeOwned>(bytes: &[u8], seal: LineSeal<'_>) -> (Vec<T>, usize) {
    let (mut lines, mut taken) = (Vec::new(), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(value) = parse(line, seal) else { break };
        lines.push(value);
        taken += line.len();
    }
    (lines, taken)
}

fn parse<T: DeserializeOwned>(line: &[u8], seal: LineSeal<'_>) -> Option<T> {
    let (checksum, text) = line.strip_suffix(b"\n")?.split_at_checked(CHECKSUM_BYTES)?;
    let expected = format!("{:08x} ", crc32c::crc32c(text));
    if checksum != expected.as_bytes() {
        return None;
    }
    // With a key a plain line is refused: who has none could have put it there.
    let Some(sealer) = seal.sealer else { return serde_json::from_slice(text).ok() };
    let piece = STANDARD.decode(text).ok()?;
    serde_json::from_slice(&sealer.open(&seal.bound(), &piece).ok()?).ok()
}
