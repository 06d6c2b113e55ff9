//! Forms as browsers, SDKs and `curl -d` send them (WHATWG URL, application/x-www-form-urlencoded).

/// Names and values in order. What is no escape is taken as it stands.
pub fn parse(body: &[u8]) -> Vec<(String, String)> {
    let fields = body.split(|byte| *byte == b'&').filter(|field| !field.is_empty());
    let pair = |field: &[u8]| {
        let at = field.iter().position(|byte| *byte == b'=').unwrap_or(field.len());
        (decode(&field[..at]), decode(field.get(at + 1..).unwrap_or_default()))
    };
    fields.map(pair).collect()
}

fn decode(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        rest = behind;
        match (first, escape(behind)) {
            (b'+', _) => out.push(b' '),
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = &behind[2..];
            }
            _ => out.push(*first),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The byte that the first two digits stand for.
fn escape(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    Some((digit(0)? * 16 + digit(1)?) as u8)
}

/// A value as forms have it (WHATWG URL, application/x-www-form-urlencoded percent-encode set).
pub fn escaped(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
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
}
