//! The validator on what was recorded, on texts by hand, and beside serde_json.

use super::validate::{Shape, check};
use super::{is_json, skip_value};
use proptest::prelude::*;

#[test]
fn detects_what_was_recorded() {
    let yes: [&[u8]; 12] = [
        b"{\"name\":\"stave\",\"n\":1,\"list\":[1,2,3],\"obj\":{\"a\":{\"b\":true}},\"nil\":null}",
        b"[1,2]",
        b"\"abc\"",
        b"true",
        b"null",
        b"12",
        b"  {\"a\":1}",
        b"{\"a\":1} \n",
        b"{\"a\":1,\"a\":2}",
        b"\"\\ud800\"",
        b"1e999",
        "{\"ä\":\"日\"}".as_bytes(),
    ];
    let no: [&[u8]; 14] = [
        b"",
        b" ",
        b"abc",
        b"{\"a\":",
        b"{'a':1}",
        b"{\"a\":\"\xff\"}",
        b"[1,]",
        b"+1",
        b"NaN",
        b"\xef\xbb\xbf{}",
        b"\"\\x\"",
        b"01",
        b"[1}",
        b"{\"a\":1}{}",
    ];
    for text in yes {
        assert!(is_json(text), "{}", String::from_utf8_lossy(text));
    }
    for text in no {
        assert!(!is_json(text), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn depth_is_not_limited_here() {
    // Miri takes minutes for more.
    let most = if cfg!(miri) { 2_000 } else { 100_000 };
    for levels in [1, 63, 64, 65, 127, 128, 129, 1000, most] {
        let mut text = "[".repeat(levels) + "{\"a\":1}" + &"]".repeat(levels);
        assert!(is_json(text.as_bytes()), "{levels}");
        assert_eq!(check(text.as_bytes(), Shape::Single).map(|checked| checked.levels), Some(levels + 2));
        text.pop();
        assert!(!is_json(text.as_bytes()));
        text.push('}');
        assert!(!is_json(text.as_bytes()));
    }
    let alternating = "[{\"a\":".repeat(100) + "0" + &"}]".repeat(100);
    assert!(is_json(alternating.as_bytes()));
    assert!(!is_json(alternating.replacen("}]", "]}", 1).as_bytes()));
}

#[test]
fn bytes_that_strings_must_not_have_are_found_anywhere() {
    for len in 0..24 {
        for at in 0..len {
            for byte in (0..0x20).chain([b'"', 0x80, 0xff]) {
                let mut text = vec![b'x'; len + 2];
                text[0] = b'"';
                text[len + 1] = b'"';
                text[at + 1] = byte;
                assert!(!is_json(&text), "{byte} at {at} of {len}");
            }
        }
    }
}

#[test]
fn shapes_for_insertion() {
    let accepts = |text: &str| {
        [Shape::Single, Shape::List, Shape::Member].map(|shape| check(text.as_bytes(), shape).is_some())
    };
    assert_eq!(accepts("1"), [true, true, true]);
    assert_eq!(accepts(" {\"a\":1} "), [true, true, true]);
    assert_eq!(accepts("1 , 2"), [false, true, false]);
    assert_eq!(accepts("1,\"x\":2"), [false, false, true]);
    for text in ["", "1,", ",1", "1]", "1}", "[", "{\"a\":1}{\"b\":2}", "1 2", "1,2,abc"] {
        assert_eq!(accepts(text), [false; 3], "{text}");
    }
}

#[test]
fn skipping_stops_at_the_deepest_level() {
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert_eq!(skip_value(nested(32).as_bytes(), 0, 1), Ok(64));
    assert!(skip_value(nested(33).as_bytes(), 0, 1).is_err());
    let with_scalar = "[".repeat(32) + "1" + &"]".repeat(32);
    assert!(skip_value(with_scalar.as_bytes(), 0, 1).is_err());
    assert_eq!(skip_value(with_scalar.as_bytes(), 1, 1), Ok(with_scalar.len() - 1));
    for garbage in ["[}", "{]", "[\"", "[", "{\"a\":[}", "}", "", "!"] {
        assert!(skip_value(garbage.as_bytes(), 0, 1).is_err(), "{garbage}");
    }
}

/// Whether serde_json takes it, leaving aside what the two judge differently on purpose.
fn serde_accepts(text: &[u8]) -> Option<bool> {
    match serde_json::from_slice::<serde_json::Value>(text) {
        Ok(_) => Some(true),
        Err(error) => {
            let reason = error.to_string();
            let ours =
                ["surrogate", "number out of range", "recursion limit", "unexpected end of hex escape"];
            (!ours.iter().any(|one| reason.contains(one))).then_some(false)
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_serde_json_on_text(text in "[ \\[\\]{}\",:\\\\utfnrae0-9.+\n-]{0,24}") {
        if let Some(expected) = serde_accepts(text.as_bytes()) {
            prop_assert_eq!(is_json(text.as_bytes()), expected);
        }
    }

    #[test]
    fn agrees_with_serde_json_on_damaged_json(
        value in crate::ops::property_tests::json(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut text = value.to_string().into_bytes();
        for (at, byte) in damage {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if let Some(expected) = serde_accepts(&text) {
            prop_assert_eq!(is_json(&text), expected);
        }
    }

    #[test]
    fn agrees_with_serde_json_on_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
        if let Some(expected) = serde_accepts(&bytes) {
            prop_assert_eq!(is_json(&bytes), expected);
        }
    }
}
