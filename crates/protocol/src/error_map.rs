//! The error map: what clients shall do about status numbers they do not know (BinaryProtocol.md, Get Error Map).

use std::fmt::Write;

use crate::status::Status;

/// The newest format there is.
pub const NEWEST_VERSION: u16 = 2;
/// Raised whenever an entry changes.
const REVISION: u32 = 1;
/// Attributes that came with version 2; a version 1 map does without them.
const VERSION_2_ATTRIBUTES: [&str; 2] = ["rate-limit", "system-constraint"];

/// The error map for a client that understands `version`, which must be at least 1.
pub fn json(version: u16) -> Option<String> {
    if version == 0 {
        return None;
    }
    let version = version.min(NEWEST_VERSION);
    let mut out = format!("{{\"version\":{version},\"revision\":{REVISION},\"errors\":{{");
    for (at, status) in Status::ALL.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let (code, name, text) = (status.code(), status.name(), status.text());
        let mut attributes = String::new();
        for attribute in attributes_in(*status, version) {
            let comma = if attributes.is_empty() { "" } else { "," };
            let _ = write!(attributes, "{comma}\"{attribute}\"");
        }
        let _ = write!(
            out,
            "{comma}\"{code:x}\":{{\"name\":\"{name}\",\"desc\":\"{text}\",\"attrs\":[{attributes}]}}"
        );
    }
    out.push_str("}}");
    Some(out)
}

fn attributes_in(status: Status, version: u16) -> impl Iterator<Item = &'static str> {
    let hides = move |attribute: &str| version < 2 && VERSION_2_ATTRIBUTES.contains(&attribute);
    status.attributes().iter().copied().filter(move |attribute| !hides(attribute))
}
