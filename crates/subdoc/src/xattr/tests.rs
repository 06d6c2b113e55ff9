//! The section codec: the documented example, faults, and round trips.

use super::{KeyKind, XattrError, Xattrs, key_kind, split, validate};
use crate::{DATATYPE_JSON, DATATYPE_XATTR};
use proptest::prelude::*;

fn section(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().fold(Vec::new(), |section, (key, value)| {
        let datatype = if section.is_empty() { 0 } else { DATATYPE_XATTR };
        let (xattrs, _) = split(&section, datatype).expect("own section");
        xattrs.section_with(key.as_bytes(), Some(value.as_bytes()))
    })
}

fn pairs(value: &[u8]) -> Vec<(String, String)> {
    let (xattrs, _) = split(value, DATATYPE_XATTR).expect("splits");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    xattrs.iter().map(|(key, value)| (text(key), text(value))).collect()
}

/// The example of kv_engine docs/Document.md.
#[test]
fn writes_the_documented_example() {
    let meta = r#"{"author":"Trond Norbye","content-type":"application/octet-stream"}"#;
    let value = section(&[("_sync", r#"{"cas":"deadbeefcafefeed"}"#), ("meta", meta)]);
    assert_eq!(value[..8], [0, 0, 0, 0x72, 0, 0, 0, 0x21]);
    assert_eq!(value[40..44], [0, 0, 0, 0]);
    assert_eq!(value.len(), 0x72 + 4);
    assert_eq!(validate(&value), Ok(()));
}

#[test]
fn splits_by_datatype() {
    let mut value = section(&[("a", "1")]);
    value.extend_from_slice(b"{}");
    let (xattrs, body) = split(&value, DATATYPE_XATTR | DATATYPE_JSON).expect("splits");
    assert_eq!((xattrs.get(b"a"), xattrs.get(b"b"), body), (Some(&b"1"[..]), None, &b"{}"[..]));
    let (none, whole) = split(&value, DATATYPE_JSON).expect("splits");
    assert!(none.is_empty());
    assert_eq!(whole, value);
}

#[test]
fn removes_replaces_and_keeps_system() {
    let value = section(&[("u", "1"), ("_s", "2"), ("v", "3")]);
    let (xattrs, _) = split(&value, DATATYPE_XATTR).expect("splits");
    assert_eq!(pairs(&xattrs.section_with(b"_s", Some(b"[4]")))[1], ("_s".into(), "[4]".into()));
    assert_eq!(pairs(&xattrs.section_with(b"u", None)).len(), 2);
    assert_eq!(pairs(&xattrs.system_section()), [("_s".into(), "2".into())]);
    assert_eq!(xattrs.system_bytes(), 9);
    let mut keys = Vec::new();
    xattrs.write_keys(false, &mut keys);
    assert_eq!(keys, b"[\"u\",\"_s\",\"v\"]");
    let last = section(&[("u", "1")]);
    let (last, _) = split(&last, DATATYPE_XATTR).expect("splits");
    assert_eq!(last.section_with(b"u", None), b"");
    assert_eq!(last.system_section(), b"");
    assert_eq!(Xattrs::default().section_with(b"u", None), b"");
}

#[test]
fn finds_every_fault() {
    let good = section(&[("_s", "{\"a\":1}")]);
    assert_eq!(validate(&good), Ok(()));
    assert_eq!(validate(&[0; 4]), Ok(()), "a section may be empty");
    assert_eq!(validate(&good[..3]), Err(XattrError::Length));
    assert_eq!(validate(&good[..good.len() - 1]), Err(XattrError::Length));
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        validate(&bad)
    };
    assert_eq!(with(0, 0xff), Err(XattrError::Length));
    assert_eq!(with(7, 0x0a), Err(XattrError::Unterminated));
    assert_eq!(with(7, 0xff), Err(XattrError::Length));
    assert_eq!(with(10, b'x'), Err(XattrError::Unterminated), "the key runs on over the value");
    assert_eq!(with(8, b'.'), Err(XattrError::Key));
    assert_eq!(with(8, b'$'), Err(XattrError::Key), "virtual attributes are not stored");
    assert_eq!(with(11, b'x'), Err(XattrError::Value));
    assert_eq!(with(good.len() - 1, b' '), Err(XattrError::Unterminated));
    let twice = b"\0\0\0\x10\0\0\0\x04a\x001\0\0\0\0\x04a\x002\0";
    assert_eq!(validate(twice), Err(XattrError::DuplicateKey));
}

#[test]
fn kinds_of_keys() {
    assert_eq!(key_kind(b"_sync"), Some(KeyKind::System));
    assert_eq!(key_kind(b"$document"), Some(KeyKind::Virtual));
    for key in ["meta", "a b", "1a", "aaaaaaaaaaaaaaa", "ä"] {
        assert_eq!(key_kind(key.as_bytes()), Some(KeyKind::User), "{key}");
    }
    for key in ["", "_", "$", "`a`", ".a", "#x", "\u{1}", "aaaaaaaaaaaaaaaa", "a\0"] {
        assert_eq!(key_kind(key.as_bytes()), None, "{key}");
    }
    assert_eq!(key_kind(b"\xff"), None);
}

proptest! {
    #[test]
    fn round_trips(edits in proptest::collection::vec(("_?[a-d]", proptest::option::of("[0-9]|\"[a-z]{0,5}\"")), 0..12)) {
        let mut model: Vec<(String, String)> = Vec::new();
        let mut value = Vec::new();
        for (key, new) in edits {
            let datatype = if value.is_empty() { 0 } else { DATATYPE_XATTR };
            let (xattrs, body) = split(&value, datatype).expect("own section");
            prop_assert!(body.is_empty());
            value = xattrs.section_with(key.as_bytes(), new.as_deref().map(str::as_bytes));
            match (model.iter().position(|(name, _)| *name == key), new) {
                (Some(at), Some(new)) => model[at].1 = new,
                (Some(at), None) => drop(model.remove(at)),
                (None, Some(new)) => model.push((key, new)),
                (None, None) => {}
            }
            if value.is_empty() {
                prop_assert!(model.is_empty());
            } else {
                prop_assert_eq!(validate(&value), Ok(()));
                prop_assert_eq!(&pairs(&value), &model);
                let (xattrs, _) = split(&value, DATATYPE_XATTR).expect("splits");
                let mut copy = Vec::new();
                xattrs.write_section(&mut copy);
                prop_assert_eq!(&copy, &value);
            }
        }
    }
}
