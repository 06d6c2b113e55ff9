//! Binary values of extended attributes: kept as JSON strings, so that clients that know nothing of them still read and
//! copy them.
//!
//! kv_engine docs/ExtendedAttributes.md, "Binary values".

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const PREFIX: &[u8] = b"cb-content-base64-encoded:";

/// The JSON string that holds these bytes.
pub(super) fn encode(bytes: &[u8]) -> Vec<u8> {
    let digits = STANDARD.encode(bytes);
    [b"\"", PREFIX, digits.as_bytes(), b"\""].concat()
}

/// The bytes that such a string holds; `None` if the text is no such string.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_prefix(b"\"").map_or(Some(text), |rest| rest.strip_suffix(b"\""))?;
    STANDARD.decode(text.strip_prefix(PREFIX)?).ok()
}

/// Whether the first string in `value` that says that it holds bytes does so. True if none says so.
pub(crate) fn is_well_formed(value: &[u8]) -> bool {
    let Some(at) = value.windows(PREFIX.len()).position(|part| part == PREFIX) else {
        return true;
    };
    if at == 0 || (at == 1 && value[0] == b'"') {
        return decode(value).is_some();
    }
    let rest = &value[at..];
    rest.iter().position(|byte| *byte == b'"').is_some_and(|end| decode(&rest[..end]).is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_documented_example() {
        let text = br#""cb-content-base64-encoded:YmFzZTY0X2VuY29kZV92YWx1ZQ==""#;
        assert_eq!(encode(b"base64_encode_value"), text);
        assert_eq!(decode(text).as_deref(), Some(&b"base64_encode_value"[..]));
    }

    #[test]
    fn other_texts_hold_no_bytes() {
        for text in
            ["", "\"", "1", "\"text\"", "\"cb-content-base64-encoded:*\"", "\"cb-content-base64-encoded:YQ=="]
        {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn values_that_claim_to_hold_bytes_are_checked() {
        let is = |text: &str| is_well_formed(text.as_bytes());
        assert!(is("1"));
        assert!(is(r#""cb-content-base64-encoded:YQ==""#));
        assert!(is(r#"{"a":"cb-content-base64-encoded:YQ=="}"#));
        assert!(!is(r#"{"a":"cb-content-base64-encoded:Y"}"#));
        assert!(!is(r#"{"a":"cb-content-base64-encoded:YQ=="#));
        assert!(!is(r#""cb-content-base64-encoded:Y""#));
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = encode(&bytes);
            prop_assert!(crate::json::is_json(&text) && is_well_formed(&text));
            prop_assert_eq!(decode(&text), Some(bytes));
        }

        #[test]
        fn any_text_is_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = PREFIX.to_vec();
            text.extend_from_slice(&bytes);
            let _ = (decode(&bytes), decode(&text), is_well_formed(&bytes), is_well_formed(&text));
        }
    }
}
