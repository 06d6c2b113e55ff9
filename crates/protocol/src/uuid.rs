//! Identifiers of snapshots as text: UUIDs as RFC 9562 writes them, in lower case.

/// As it is written.
pub fn text(id: u128) -> String {
    let digits = format!("{id:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// The one that is written so; `None` if it is written in another way.
pub fn parse(written: &str) -> Option<u128> {
    let id = u128::from_str_radix(&written.replace('-', ""), 16).ok()?;
    (text(id) == written).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let id = 0xf797_0e20_ca1b_4059_8542_3196_e93f_6927;
        assert_eq!(text(id), "f7970e20-ca1b-4059-8542-3196e93f6927");
        assert_eq!((parse(&text(id)), parse(&text(0))), (Some(id), Some(0)));
        for wrong in
            ["", "f7970e20ca1b405985423196e93f6927", "F7970E20-CA1B-4059-8542-3196E93F6927", "+1", "x"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
