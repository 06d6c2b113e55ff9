//! The time a request took in the server, squeezed into 16 bits (BinaryProtocol.md, Server Duration).

/// Clients take less for 0, as if the server had not measured.
const LEAST_US: u64 = 2;

/// Encodes microseconds: `(2 t) ^ (1 / 1.74)`, at least 2 us, at most what 16 bits hold (about two minutes).
pub fn encode(micros: u64) -> u16 {
    let encoded = (micros.max(LEAST_US) as f64 * 2.0).powf(1.0 / 1.74);
    if encoded >= f64::from(u16::MAX) { u16::MAX } else { encoded as u16 }
}

/// Decodes to microseconds: `t ^ 1.74 / 2`.
pub fn decode(encoded: u16) -> f64 {
    f64::from(encoded).powf(1.74) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_within_the_coarseness_of_the_encoding() {
        for micros in [2u64, 3, 10, 1_000, 30_000, 1_000_000, 60_000_000] {
            let back = decode(encode(micros));
            let step = decode(encode(micros).saturating_add(1)) - back;
            assert!((micros as f64 - back).abs() <= step.max(0.5), "{micros} us came back as {back}");
        }
        assert_eq!(encode(u64::MAX), u16::MAX);
    }

    #[test]
    fn no_time_at_all_is_told_as_a_little() {
        assert_eq!((encode(0), encode(1)), (encode(2), encode(2)));
        assert!(decode(encode(0)) as u64 > 0, "clients cut off what is behind the point");
    }
}
