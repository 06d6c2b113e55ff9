//! Forms as browsers, SDKs and `curl -d` send them (WHATWG URL, application/x-www-form-urlencoded).

/// Names and values in order. What is no escape is taken as it stands.
pub fn parse(body: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(body).map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

/// A value as forms have it; it may be a part of a path as well.
pub fn escaped(value: &str) -> String {
    // A form may have `+` for a space, a path may not.
    form_urlencoded::byte_serialize(value.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fields() {
        let parsed = parse(b"a=1&b=x+y%26%c3%A9&&c&d=50%&e=%zz");
        let parsed: Vec<(&str, &str)> = parsed.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(parsed, [("a", "1"), ("b", "x y&é"), ("c", ""), ("d", "50%"), ("e", "%zz")]);
        assert!(parse(b"").is_empty());
    }

    #[test]
    fn values_are_escaped_for_forms_and_paths() {
        assert_eq!(escaped("aZ0*-._ +%/é"), "aZ0*-._%20%2B%25%2F%C3%A9");
    }
}
