//! Sizes as people write them.

/// Reads a number of bytes with its unit: `512`, `4KiB`, `256 MB`, `1g`. Units are powers of 1,024, whatever their
/// spelling. Nothing if it is none, or beyond 64 bits.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_spelling_and_nothing_else() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4KiB", 4096),
            ("256M", 256 << 20),
            ("1 gib", 1 << 30),
            ("2tb", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5GiB", "1XB", "99999999999TiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
