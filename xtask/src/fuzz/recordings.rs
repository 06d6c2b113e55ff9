//! What fuzzers begin with beside seeds of their own: the frames of the recorded conversations (`tests/recordings`), one
//! input for each conversation.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Bodies that read frames of clients, one after the other.
const BODIES: [&str; 2] = ["requests", "connection"];
/// Folders of recordings, below `tests/recordings`.
const FOLDERS: [&str; 3] = ["kv", "dcp", "derived"];

/// Puts the conversations into a body's corpus, those that are no longer than `most` bytes; how many these are.
pub fn seed(recordings: &Path, target: &str, corpus: &Path, most: usize) -> Result<usize> {
    if !BODIES.contains(&target) {
        return Ok(0);
    }
    let mut written = 0;
    for (name, bytes) in conversations(recordings)?.into_iter().filter(|(_, bytes)| bytes.len() <= most) {
        let path = corpus.join(format!("recorded-{}", name.replace('/', "-")));
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        written += 1;
    }
    Ok(written)
}

/// The frames that clients send, by conversation.
fn conversations(recordings: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for folder in FOLDERS {
        let folder = recordings.join(folder);
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            for line in fs::read_to_string(&path)?.lines() {
                let line: Value = serde_json::from_str(line).with_context(|| path.display().to_string())?;
                let frame = if line["req"].is_object() { frame(&line["req"]) } else { change(&line["do"]) };
                let name = line["scenario"].as_str().context("each line names its scenario")?;
                found.entry(name.to_owned()).or_default().extend(frame.unwrap_or_default());
            }
        }
    }
    found.retain(|_, bytes| !bytes.is_empty());
    Ok(found)
}

/// A request of `KV.md`; `None` of what is computed at the replay.
fn frame(request: &Value) -> Option<Vec<u8>> {
    if let Some(raw) = request["raw"].as_str() {
        return hex(raw);
    }
    let extras = request["extras"].as_str().map_or(Some(Vec::new()), hex)?;
    let framing = request["frame"].as_str().map_or(Some(Vec::new()), hex)?;
    let mut key = match &request["cid"] {
        Value::Null => Vec::new(),
        Value::Number(number) => leb128(u32::try_from(number.as_u64()?).ok()?),
        Value::String(text) if text.starts_with("hex:") => hex(&text[4..])?,
        // By its name: the first collection that a bucket has beside the default one.
        _ => leb128(8),
    };
    key.extend(bytes(&request["key"])?);
    let value = bytes(&request["value"])?;
    let cas =
        request["cas"].as_str().and_then(|cas| u64::from_str_radix(cas.trim_start_matches("0x"), 16).ok());
    let vbucket = request["vb"].as_u64().and_then(|vb| u16::try_from(vb).ok()).unwrap_or(0);
    let head = Head {
        op: op_of(&request["op"])?,
        dt: u8::try_from(request["dt"].as_u64().unwrap_or(0)).ok()?,
        vbucket,
        cas: cas.unwrap_or(0),
    };
    head.frame(&framing, &extras, &key, &value)
}

/// A step of `DCP.md`: those that a consumer sends.
fn change(step: &Value) -> Option<Vec<u8>> {
    let number = |name: &str, other: u64| step[name].as_u64().unwrap_or(other);
    let text = |name: &str| step[name].as_str().unwrap_or_default().as_bytes().to_vec();
    let head = |op| Head { op, dt: 0, vbucket: 0, cas: 0 };
    match step["do"].as_str()? {
        "open" => {
            let extras = [[0; 4], u32::try_from(number("flags", 1)).ok()?.to_be_bytes()].concat();
            head(0x50).frame(&[], &extras, b"recorded", &[])
        }
        "control" => head(0x5e).frame(&[], &[], &text("key"), &text("val")),
        "stream" => {
            let flags = u64::from(u32::try_from(number("flags", 0)).ok()?) << 32;
            let (start, end) = (number("start", 0), number("end", u64::MAX));
            let extras = [flags, start, end, 0, start, start].map(u64::to_be_bytes).concat();
            head(0x53).frame(&[], &extras, &[], &text("value"))
        }
        _ => None,
    }
}

/// What a frame's head has beside lengths.
struct Head {
    op: u8,
    dt: u8,
    vbucket: u16,
    cas: u64,
}

impl Head {
    /// `None` if something is longer than its length can say.
    fn frame(&self, framing: &[u8], extras: &[u8], key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut frame = vec![if framing.is_empty() { 0x80 } else { 0x08 }, self.op];
        match framing.is_empty() {
            true => frame.extend(u16::try_from(key.len()).ok()?.to_be_bytes()),
            false => frame.extend([u8::try_from(framing.len()).ok()?, u8::try_from(key.len()).ok()?]),
        }
        frame.extend([u8::try_from(extras.len()).ok()?, self.dt]);
        frame.extend(self.vbucket.to_be_bytes());
        let body = [framing, extras, key, value].concat();
        frame.extend(u32::try_from(body.len()).ok()?.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(self.cas.to_be_bytes());
        frame.extend(body);
        Some(frame)
    }
}

fn op_of(op: &Value) -> Option<u8> {
    u8::from_str_radix(op.as_str()?.trim_start_matches("0x"), 16).ok()
}

/// A key or a value: text, or base64; what is generated is left out.
fn bytes(of: &Value) -> Option<Vec<u8>> {
    match of {
        Value::Null => Some(Vec::new()),
        of if of["t"].is_string() => Some(of["t"].as_str()?.replace("@RUN@@", "r").into_bytes()),
        of => base64(of["b"].as_str()?),
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    text.len().is_multiple_of(2).then(|| (0..text.len()).step_by(2).map(pair).collect())?
}

fn base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for digit in text.trim_end_matches('=').bytes() {
        let at = DIGITS.iter().position(|known| *known == digit)?;
        bits = (bits << 6) | u32::try_from(at).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// A collection's id in front of a key.
fn leb128(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use harness::tree;

    use super::*;

    #[test]
    fn each_conversation_becomes_frames_one_after_the_other() {
        let found = conversations(&tree::root().join("tests/recordings")).expect("the tree has recordings");
        assert!(found.len() > 900, "{}", found.len());
        let append = &found["append/append_hit"];
        // A SET with flags, expiry and the default collection in front of the key.
        assert_eq!(append[..4], [0x80, 0x01, 0, 22], "{append:02x?}");
        assert!(append.windows(3).any(|part| part == b"mid"));
        let (mut frames, mut whole) = (0, 0);
        for (name, bytes) in &found {
            let mut rest = &bytes[..];
            while let Some(body) = rest.get(8..12) {
                let length = 24 + u32::from_be_bytes(body.try_into().expect("4 bytes")) as usize;
                frames += 1;
                let Some(behind) = rest.get(length..) else { break };
                rest = behind;
            }
            whole += usize::from(rest.is_empty());
            // What is cut short, or lies about lengths, was recorded so.
            assert!(
                rest.is_empty() || name.starts_with("malformed/") || name.starts_with("frames/"),
                "{name}"
            );
        }
        assert!(frames > 4_000 && whole > 900, "{frames} {whole}");
        let stream = &found["stream/empty-collections"];
        assert_eq!((stream[0], stream[1]), (0x80, 0x50), "{stream:02x?}");
    }

    #[test]
    fn only_bodies_that_read_frames_get_them() {
        let (folder, recordings) =
            (tree::Scratch::new("seeds").expect("a folder"), tree::root().join("tests/recordings"));
        let count = |target, most| seed(&recordings, target, folder.path(), most).expect("written");
        assert_eq!(count("json", 4096), 0);
        let some = count("requests", 512);
        assert!(some > 100 && count("requests", 4096) > some);
    }

    #[test]
    fn numbers_are_read_as_they_are_recorded() {
        assert_eq!(hex("00ff10"), Some(vec![0, 255, 16]));
        assert_eq!((hex("0"), hex("zz")), (None, None));
        assert_eq!(base64("AAAAAQ=="), Some(vec![0, 0, 0, 1]));
        assert_eq!(base64("-"), None);
        assert_eq!((leb128(8), leb128(128)), (vec![8], vec![0x80, 1]));
    }
}
