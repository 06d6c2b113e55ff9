//! Bodies for fuzzers: what must hold for any bytes that commands read.

use std::sync::LazyLock;

use rcgen::{CertificateParams, KeyPair};
use server::tls::fuzz::Handshakes;

use crate::client::Map;
use crate::lines::Line;
use crate::units;

pub use crate::backup::fuzz::{block_seeds, frame_seeds, fuzz_block, fuzz_frame};

/// Any bytes as a line of exported documents, which is written as it was read.
pub fn fuzz_line(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for parse in [units::parse_bytes, units::parse_utc] {
        let _ = parse(text);
    }
    let _ = (units::parse_moment(text, 1), units::parse_duration(text));
    let Ok(line) = Line::decode(text) else { return };
    let written = line.encode().expect("a line is JSON");
    let again = Line::decode(&written).expect("what was written is read");
    assert_eq!(again.encode().expect("a line is JSON"), written);
}

/// Any bytes as what a server says of a bucket's nodes.
pub fn fuzz_map(bytes: &[u8]) {
    for by_tls in [false, true] {
        let Some(map) = Map::read(bytes, "host:1", by_tls) else { continue };
        let _ = (map.vbuckets(), map.reachable("host:1"), map.active(base::VbId(1), "host:1"));
    }
}

/// With a certificate of this process.
static HANDSHAKES: LazyLock<Handshakes> = LazyLock::new(|| {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    Handshakes::new(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).expect("they go together")
});

/// Any bytes as TLS records of a client that has not logged in.
pub fn fuzz_records(bytes: &[u8]) {
    HANDSHAKES.fuzz(bytes);
}

/// Seeds of [`fuzz_records`].
pub fn record_seeds() -> Vec<Vec<u8>> {
    // An alert that ends the session (RFC 8446, 5.1 and 6).
    vec![HANDSHAKES.hello(), vec![21, 3, 3, 0, 2, 1, 0], vec![0, 5, 1, 0, 60, 0x80]]
}

/// Seeds of [`fuzz_line`].
pub fn line_seeds() -> Vec<Vec<u8>> {
    let line = r#"{"key":"k","collection":"s.c","flags":1,"expiry":2,"xattrs":{"a":[1]},"value":{"b":1}}"#;
    [line, r#"{"key_base64":"/w==","value_base64":"AAE="}"#, "2026-11-28T09:00:00Z", "10MiB"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// Seeds of [`fuzz_map`].
pub fn map_seeds() -> Vec<Vec<u8>> {
    let map = r#"{"rev":3,"revEpoch":1,"nodesExt":[{"hostname":"a","services":{"kv":1,"kvSSL":2,"mgmt":3,"mgmtSSL":4},"thisNode":true}],
        "vBucketServerMap":{"serverList":["$HOST:1","b:2"],"vBucketMap":[[0,1],[1,-1]]}}"#;
    vec![map.as_bytes().to_vec()]
}

#[cfg(test)]
mod tests {
    use base::fuzz::replay;

    use super::*;

    #[test]
    fn damaged_lines_never_panic() {
        replay(1, 20_000, &line_seeds(), fuzz_line);
    }

    #[test]
    fn damaged_maps_never_panic() {
        replay(2, 10_000, &map_seeds(), fuzz_map);
    }

    #[test]
    fn damaged_records_before_login_never_panic() {
        replay(5, 1_000, &record_seeds(), fuzz_records);
    }

    #[test]
    fn damaged_backups_never_panic() {
        replay(3, 10_000, &block_seeds(), fuzz_block);
        replay(4, 10_000, &frame_seeds(), fuzz_frame);
    }
}
