//! Bodies for fuzzers: what must hold for any bytes that commands read.

use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
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

/// With a certificate that is the same in each process.
static HANDSHAKES: LazyLock<Handshakes> = LazyLock::new(|| {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, known_key(1)).expect("a CA");
    let key = known_key(2);
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    Handshakes::new(certificate.as_bytes(), key.as_bytes(), ca.pem().as_bytes()).expect("they go together")
});

/// A key that is the same at each call, and signs the same bytes the same way: an Ed25519 key in PKCS #8 (RFC 8410, 7).
fn known_key(byte: u8) -> KeyPair {
    let head = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    KeyPair::try_from([&head[..], &[byte; 32]].concat()).expect("a key")
}

/// What a client of rustls 0.23 said first: one that is made now has a key, a number and an order of extensions of its own.
const HELLO: &str = "\
    16030100e7010000e3030394deee9b90c713dbbc48abe7005b3aeb0fac20e4604f9f48f2edf927158fcd37209b2d99f98d5a\
    cef101636da562bc0c2b51cee0f02a0443bafb6b07584dbbce1e0014130213011303c02cc02bcca9c030c02fcca800ff0100\
    0086000500050100000000000b00020100001700000000000e000c0000096c6f63616c686f7374003300260024001d002048\
    6829924310c4949e6e9fd55bacbafbfa3c1925c700d3aeb1958ab994dfdd1d000d0014001205030403080708060805080406\
    0105010401002b0005040304030300230000002d00020101000a00080006001d00170018";

/// Any bytes as TLS records of a client that has not logged in.
pub fn fuzz_records(bytes: &[u8]) {
    HANDSHAKES.fuzz(bytes);
}

/// Seeds of [`fuzz_records`].
pub fn record_seeds() -> Vec<Vec<u8>> {
    // An alert that ends the session (RFC 8446, 5.1 and 6).
    vec![hello(), vec![21, 3, 3, 0, 2, 1, 0], vec![0, 5, 1, 0, 60, 0x80]]
}

fn hello() -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&HELLO[at..at + 2], 16).expect("hex");
    (0..HELLO.len()).step_by(2).map(byte).collect()
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
        assert!(HANDSHAKES.is_taken(&hello()), "the seed is refused: it is to be that of a client of today");
        replay(5, 1_000, &record_seeds(), fuzz_records);
    }

    #[test]
    fn damaged_backups_never_panic() {
        replay(3, 10_000, &block_seeds(), fuzz_block);
        replay(4, 10_000, &frame_seeds(), fuzz_frame);
    }
}
