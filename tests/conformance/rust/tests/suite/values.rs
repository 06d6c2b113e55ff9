//! What goes in comes out: transcoders, compressible values, Unicode in keys and values.

use couchbase::transcoding::{self, DataType};
use serde_json::{Value, json};

use crate::support::*;

const TEXTS: [&str; 7] =
    ["ключ", "鍵", "🗝️ 🇪🇺", "e\u{301} and é", "\u{202e}right to left", "tab\tand\nnewline", "\u{1}control"];

#[test]
fn json_value_round_trip() {
    run(async |collection, key| {
        let nested = json!({"a": {"b": [1, {"c": null}]}});
        let values =
            [json!({}), json!([]), nested, json!("text"), json!(""), json!(0), json!(-1), json!(1u64 << 53)];
        for value in values.into_iter().chain([json!(1.5e300), json!(true), json!(false), Value::Null]) {
            collection.upsert(&key, &value, None).await.unwrap();
            assert_eq!(content(&collection, &key).await, value);
        }
    });
}

#[test]
fn raw_json_is_returned_byte_for_byte() {
    run(async |collection, key| {
        let text = br#"{ "spaces" :  1.0, "dup":1, "dup":2, "esc":"\u0041" }"#;
        let (value, flags) = transcoding::raw_json::encode(text).unwrap();
        collection.upsert_raw(&key, value, flags, None).await.unwrap();
        let got = collection.get(&key, None).await.unwrap();
        let (value, flags) = got.content_as_raw();
        assert_eq!(transcoding::raw_json::decode(value, flags).unwrap(), text);
    });
}

#[test]
fn raw_string_round_trip() {
    run(async |collection, key| {
        let (value, flags) = transcoding::raw_string::encode("not {json").unwrap();
        collection.insert_raw(&key, value, flags, None).await.unwrap();
        let got = collection.get(&key, None).await.unwrap();
        let (value, flags) = got.content_as_raw();
        assert_eq!(transcoding::raw_string::decode(value, flags).unwrap(), "not {json");
    });
}

#[test]
fn raw_binary_round_trip() {
    run(async |collection, key| {
        let every_byte: Vec<u8> = (0..=255).collect();
        store_raw(&collection, &key, &every_byte).await.unwrap();
        assert_eq!(load_raw(&collection, &key).await, every_byte);
    });
}

#[test]
fn flags_follow_the_last_write() {
    run(async |collection, key| {
        collection.upsert(&key, "text", None).await.unwrap();
        let (value, flags) = transcoding::raw_binary::encode(b"bytes").unwrap();
        collection.replace_raw(&key, value, flags, None).await.unwrap();
        let got = collection.get(&key, None).await.unwrap();
        assert_eq!(transcoding::decode_common_flags(got.content_as_raw().1), DataType::Binary);
        assert!(got.content_as::<Value>().is_err());
    });
}

#[test]
fn all_bits_of_the_flags_are_kept() {
    run(async |collection, key| {
        collection.upsert_raw(&key, b"{}", 0xfedc_ba98, None).await.unwrap();
        assert_eq!(collection.get(&key, None).await.unwrap().content_as_raw().1, 0xfedc_ba98);
    });
}

#[test]
fn compressible_json_of_64_kib() {
    run(async |collection, key| {
        let document = json!({"text": "stave ".repeat(64 * 1024 / 6)});
        collection.upsert(&key, &document, None).await.unwrap();
        assert_eq!(content(&collection, &key).await, document);
    });
}

#[test]
fn compressible_binary_of_64_kib() {
    run(async |collection, key| {
        let value = b"0123456789abcdef".repeat(4096);
        store_raw(&collection, &key, &value).await.unwrap();
        assert!(load_raw(&collection, &key).await == value);
    });
}

#[test]
fn incompressible_binary_of_64_kib() {
    run(async |collection, key| {
        let value = incompressible(64 * 1024);
        store_raw(&collection, &key, &value).await.unwrap();
        assert!(load_raw(&collection, &key).await == value);
    });
}

#[test]
fn append_to_a_compressed_document() {
    run(async |collection, key| {
        let mut value = b"0123456789abcdef".repeat(4096);
        store_raw(&collection, &key, &value).await.unwrap();
        collection.binary().append(&key, b"tail", None).await.unwrap();
        value.extend_from_slice(b"tail");
        assert!(load_raw(&collection, &key).await == value);
    });
}

#[test]
fn unicode_keys_and_values() {
    run(async |collection, key| {
        for text in TEXTS {
            let key = format!("{key}{text}");
            collection.upsert(&key, json!({text: text}), None).await.unwrap();
            assert_eq!(content(&collection, &key).await, json!({text: text}));
        }
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn keys_that_differ_only_in_normal_form_are_different() {
    run(async |collection, key| {
        let (composed, decomposed) = (format!("{key}\u{e9}"), format!("{key}e\u{301}"));
        collection.upsert(&composed, 1, None).await.unwrap();
        collection.upsert(&decomposed, 2, None).await.unwrap();
        assert_eq!(content(&collection, &composed).await, json!(1));
        assert_eq!(content(&collection, &decomposed).await, json!(2));
    });
}
