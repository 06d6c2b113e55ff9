//! Signatures of requests, as AWS Signature Version 4 has them ("Authenticating Requests: Using the Authorization Header").

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Who asks.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) key: String,
    pub(super) secret: String,
    pub(super) token: Option<String>,
}

/// What is signed, beside the method.
pub(super) struct Signed<'a> {
    pub(super) method: &'a str,
    /// Percent-encoded.
    pub(super) path: &'a str,
    /// Percent-encoded, in the order of names.
    pub(super) query: &'a str,
    /// Names in lower case, in order.
    pub(super) headers: &'a [(&'static str, String)],
    pub(super) region: &'a str,
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}

/// A time as headers have it: `20130524T000000Z`.
pub(super) fn amz_date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|at| time::OffsetDateTime::from_unix_timestamp(at).ok());
    let time = time.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second)) = (time.to_calendar_date(), time.to_hms());
    format!("{year:04}{:02}{day:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month))
}

/// The value of the header `Authorization`. The headers have `host`, `x-amz-content-sha256` and `x-amz-date`.
pub(super) fn authorization(signed: &Signed<'_>, credentials: &Credentials) -> String {
    let header =
        |name: &str| signed.headers.iter().find(|(one, _)| *one == name).map_or("", |(_, value)| value);
    let (date, payload) = (header("x-amz-date"), header("x-amz-content-sha256"));
    let names: Vec<&str> = signed.headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String =
        signed.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let Signed { method, path, query, region, .. } = signed;
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
    let day = date.get(..8).unwrap_or_default();
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", digest(canonical.as_bytes()));
    let mut key = format!("AWS4{}", credentials.secret).into_bytes();
    for part in [day, region, "s3", "aws4_request"] {
        key = mac(&key, part.as_bytes());
    }
    let signature = hex(&mac(&key, text.as_bytes()));
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
        credentials.key
    )
}

/// Percent-encodes text, but for what is never encoded; `keep` too.
pub(super) fn encoded(text: &str, keep: char) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || char::from(byte) == keep;
        if is_plain {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Amazon's documentation.
    fn signature(path: &str, query: &str, more: &[(&'static str, &str)]) -> String {
        let credentials = Credentials {
            key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let mut headers = vec![
            ("host", "examplebucket.s3.amazonaws.com".to_owned()),
            ("x-amz-content-sha256", digest(b"")),
            ("x-amz-date", amz_date(1_369_353_600)),
        ];
        headers.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        headers.sort();
        let signed = Signed { method: "GET", path, query, headers: &headers, region: "us-east-1" };
        authorization(&signed, &credentials).split_once("Signature=").expect("signed").1.to_owned()
    }

    #[test]
    fn signatures_are_those_of_the_documentation() {
        let of_object = signature("/test.txt", "", &[("range", "bytes=0-9")]);
        assert_eq!(of_object, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
        let of_list = signature("/", "max-keys=2&prefix=J", &[]);
        assert_eq!(of_list, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
        assert_eq!(
            (encoded("a/b c", '/'), encoded("a/b+", ' ')),
            ("a/b%20c".to_owned(), "a%2Fb%2B".to_owned())
        );
    }
}
