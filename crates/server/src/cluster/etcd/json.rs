//! Numbers and bytes in the JSON form of protocol buffers (proto3 language guide, "JSON Mapping").

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

/// A number of 64 bits: text, so that nobody rounds it.
pub(super) fn number_of(value: &Value) -> Option<i64> {
    value.as_str().map_or_else(|| value.as_i64(), |text| text.parse().ok())
}

/// Bytes: Base64.
pub(super) fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    BASE64.decode(value.as_str()?).ok()
}
