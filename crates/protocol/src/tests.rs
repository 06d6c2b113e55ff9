//! Frames there and back, cut off, and made of noise.

use base::{Cas, VbId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::DurabilityLevel;
use crate::extras::*;
use crate::feature::{Feature, Features};
use crate::frame_info::{Durability, FrameInfoError, FrameInfos};
use crate::response::ParsedResponse;
use crate::*;

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..max)
}

fn frame_infos() -> impl Strategy<Value = FrameInfos<'static>> {
    let durability = (1u8..4, proptest::option::of(1u16..0xffff)).prop_map(|(level, timeout_ms)| {
        Durability { level: DurabilityLevel::from_wire(level).expect("levels are 1 to 3"), timeout_ms }
    });
    let user = prop_oneof![Just(&b"u"[..]), Just(&b"a user with a name that needs an escape"[..])];
    (
        any::<bool>(),
        proptest::option::of(durability),
        proptest::option::of(any::<u16>()),
        proptest::option::of(user),
        any::<bool>(),
    )
        .prop_map(|(barrier, durability, stream_id, impersonate, preserve_ttl)| FrameInfos {
            barrier,
            durability,
            stream_id,
            impersonate,
            preserve_ttl,
            extra_privilege: None,
        })
}

proptest! {
    #[test]
    fn a_request_comes_back(
        opcode: u8, datatype: u8, vb: u16, opaque: u32, cas: u64,
        infos in frame_infos(), extras in bytes(40), key in bytes(250), value in bytes(300), noise in bytes(30),
    ) {
        let mut encoded_infos = Vec::new();
        infos.encode(&mut encoded_infos);
        let parts = RequestParts {
            opcode, datatype, vbucket: VbId(vb), opaque, cas: Cas(cas),
            frame_infos: &encoded_infos, extras: &extras, key: &key, value: &value,
        };
        let mut out = Vec::new();
        prop_assert!(write_request(&mut out, &parts));
        let len = out.len();
        out.extend_from_slice(&noise);
        let Parsed::Request { request, total_len } = parse(&out, Limits::AUTHENTICATED) else {
            return Err(TestCaseError::fail("not a request"));
        };
        prop_assert_eq!(total_len, len);
        prop_assert_eq!((request.opcode, request.datatype, request.vbucket), (opcode, datatype, VbId(vb)));
        prop_assert_eq!((request.opaque, request.cas), (opaque, Cas(cas)));
        prop_assert_eq!((request.extras, request.key, request.value), (&extras[..], &key[..], &value[..]));
        prop_assert_eq!(request.decode_frame_infos(), Ok(infos));
        for cut in 0..len {
            let Parsed::Incomplete { need } = parse(&out[..cut], Limits::AUTHENTICATED) else {
                return Err(TestCaseError::fail("half a frame is not a frame"));
            };
            prop_assert_eq!(need, if cut < HEADER_BYTES { HEADER_BYTES } else { len });
        }
    }

    #[test]
    fn a_response_comes_back(
        opcode: u8, datatype: u8, opaque: u32, cas: u64, duration in proptest::option::of(any::<u16>()),
        at in 0..Status::ALL.len(), extras in bytes(40), key in bytes(600), value in bytes(300),
    ) {
        let status = Status::ALL[at];
        let response = Response {
            opcode, status, datatype, opaque, cas: Cas(cas), server_duration: duration,
            extras: &extras, key: &key, value: &value,
        };
        let mut out = Vec::new();
        response.write(&mut out);
        let ParsedResponse::Response { response: back, total_len } = parse_response(&out, 1 << 20) else {
            return Err(TestCaseError::fail("not a response"));
        };
        prop_assert_eq!(total_len, out.len());
        prop_assert_eq!((back.opcode, back.status(), back.datatype), (opcode, Some(status), datatype));
        prop_assert_eq!((back.opaque, back.cas), (opaque, Cas(cas)));
        prop_assert_eq!((back.extras, back.key, back.value), (&extras[..], &key[..], &value[..]));
        let told = duration.filter(|_| key.len() <= 255);
        prop_assert_eq!(back.server_duration_us(), told.map(server_duration::decode));
        for cut in 0..out.len() {
            let is_incomplete = matches!(parse_response(&out[..cut], 1 << 20), ParsedResponse::Incomplete { .. });
            prop_assert!(is_incomplete);
        }
    }

    #[test]
    fn noise_never_panics(noise in bytes(200)) {
        fuzz::requests(&noise);
        fuzz::responses(&noise);
    }

    #[test]
    fn noise_behind_a_magic_never_panics(magic in prop_oneof![Just(0x80), Just(0x08), Just(0x81), Just(0x83)], noise in bytes(200)) {
        let mut frame = vec![magic];
        frame.extend_from_slice(&noise);
        // Small lengths, so that many frames are whole.
        for at in [2, 3, 4, 8, 9, 10, 11] {
            if let Some(byte) = frame.get_mut(at) {
                *byte = if at < 5 || at == 11 { *byte % 40 } else { 0 };
            }
        }
        fuzz::requests(&frame);
    }

    #[test]
    fn framing_extras_never_panic(noise in bytes(60)) {
        if let Err(error) = FrameInfos::decode(&noise) {
            let _ = (error.status(), error.context());
        }
    }

    #[test]
    fn extras_come_back(a: u32, b: u32, c: u64, d: u64) {
        let store = StoreExtras { flags: a, expiry: b };
        prop_assert_eq!(StoreExtras::decode(&store.encode()), Some(store));
        let counter = CounterExtras { delta: c, initial: d, expiry: a };
        prop_assert_eq!(CounterExtras::decode(&counter.encode()), Some(counter));
        let token = MutationToken { uuid: base::VbUuid(c), seqno: base::Seqno(d) };
        prop_assert_eq!(MutationToken::decode(&token.encode()), Some(token));
        let version = ConfigVersion { epoch: c.cast_signed(), revision: d.cast_signed() };
        prop_assert_eq!(ConfigVersion::decode(&version.encode()), Some(version));
        prop_assert_eq!(StoreExtras::decode(&[0; 9]), None);
        prop_assert_eq!(StoreExtras::decode(&[0; 7]), None);
    }

    #[test]
    fn features_come_back(codes in vec(0u16..0x40, 0..20)) {
        let value: Vec<u8> = codes.iter().flat_map(|code| code.to_be_bytes()).collect();
        let features = Features::decode(&value).expect("the length is even");
        prop_assert_eq!(Features::decode(&features.encode()), Some(features));
        for code in codes {
            prop_assert!(Feature::from_code(code).is_none_or(|feature| features.has(feature)));
        }
    }
}

fn header(magic: u8, key_len: u16, extras_len: u8, body_len: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = magic;
    header[2..4].copy_from_slice(&key_len.to_be_bytes());
    header[4] = extras_len;
    header[8..12].copy_from_slice(&body_len.to_be_bytes());
    header
}

#[test]
fn a_bad_magic_is_found_in_the_first_byte() {
    for byte in (0..=255u8).filter(|byte| ![0x80, 0x08, 0x81, 0x18, 0x83].contains(byte)) {
        assert!(
            matches!(parse(&[byte], Limits::AUTHENTICATED), Parsed::Bad(FrameError::Magic(b)) if b == byte)
        );
    }
}

#[test]
fn what_only_servers_send_is_passed_over() {
    for magic in [0x81, 0x18, 0x83] {
        let frame = header(magic, 0, 0, 0);
        assert!(matches!(parse(&frame, Limits::AUTHENTICATED), Parsed::Answer { total_len: 24, .. }));
        assert!(matches!(parse(&frame[..20], Limits::AUTHENTICATED), Parsed::Incomplete { need: 24 }));
    }
}

#[test]
fn lengths_are_checked_before_the_body_is_there() {
    let is_bad = |frame: [u8; 24], limits| matches!(parse(&frame, limits), Parsed::Bad(_));
    assert!(is_bad(header(0x80, 10, 0, 5), Limits::AUTHENTICATED));
    assert!(is_bad(header(0x80, 0, 8, 4), Limits::AUTHENTICATED));
    assert!(is_bad(header(0x80, 5, 8, 10), Limits::AUTHENTICATED));
    assert!(is_bad(header(0x80, 0, 0, u32::MAX), Limits::AUTHENTICATED));
    assert!(is_bad(header(0x80, 0, 0, (30 << 20) + 1), Limits::AUTHENTICATED));
    assert!(!is_bad(header(0x80, 0, 0, 30 << 20), Limits::AUTHENTICATED));
    assert!(is_bad(header(0x80, 0, 0, 20 << 10), Limits::UNAUTHENTICATED));
    // Framing extras count too.
    assert!(is_bad(header(0x08, 0x0505, 0, 9), Limits::AUTHENTICATED));
}

#[test]
fn framing_extras_that_are_refused() {
    let decode = |bytes: &'static [u8]| FrameInfos::decode(bytes);
    assert_eq!(decode(&[0x01, b'x']), Err(FrameInfoError::BarrierWithValue));
    assert_eq!(decode(&[0x11, 0]), Err(FrameInfoError::DurabilityLevel));
    assert_eq!(decode(&[0x11, 4]), Err(FrameInfoError::DurabilityLevel));
    assert_eq!(decode(&[0x13, 1, 0, 0]), Err(FrameInfoError::DefaultTimeout));
    assert_eq!(decode(&[0x13, 1, 0xff, 0xff]), Err(FrameInfoError::InfiniteTimeout));
    assert_eq!(decode(&[0x10]), Err(FrameInfoError::DurabilityLength(0)));
    assert_eq!(decode(&[0x12, 1, 0]), Err(FrameInfoError::DurabilityLength(2)));
    assert_eq!(decode(&[0x21, 1]), Err(FrameInfoError::StreamIdLength(1)));
    assert_eq!(decode(&[0x30]), Err(FrameInfoError::Unknown));
    assert_eq!(decode(&[0x40]), Err(FrameInfoError::EmptyUser));
    assert_eq!(decode(&[0x51, 1]), Err(FrameInfoError::PreserveTtlWithValue));
    assert_eq!(decode(&[0x60]), Err(FrameInfoError::EmptyPrivilege));
    assert_eq!(decode(&[0x13, 1]), Err(FrameInfoError::Truncated));
    assert_eq!(decode(&[0xf0]), Err(FrameInfoError::Truncated));
    assert_eq!(decode(&[0xf0, 1]), Err(FrameInfoError::Unknown));
}

#[test]
fn the_client_of_the_field_is_understood() {
    // What gocb sends for "majority" with 2.5 s to go.
    let infos = FrameInfos::decode(&[0x13, 0x01, 0x08, 0xca]).expect("a real client's framing extra");
    let durability = Durability { level: DurabilityLevel::Majority, timeout_ms: Some(2250) };
    assert_eq!(infos.durability, Some(durability));
}

#[test]
fn statuses_and_error_map_agree() {
    for version in 1..4 {
        let json = error_map::json(version).expect("version 1 and up");
        let map: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
        assert_eq!(map["version"], version.min(2));
        assert!(map["revision"].is_u64());
        for status in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(*status));
            let entry = &map["errors"][format!("{:x}", status.code())];
            assert_eq!(entry["name"], status.name());
            assert!(entry["desc"].is_string() && entry["attrs"].is_array());
        }
    }
    assert!(error_map::json(0).is_none());
}

#[test]
fn opcodes_have_names() {
    assert_eq!(opcode::name(opcode::GET), Some("Get"));
    assert_eq!(opcode::name(opcode::SUBDOC_MULTI_MUTATION), Some("SubdocMultiMutation"));
    assert_eq!(opcode::name(0x99), None);
}
