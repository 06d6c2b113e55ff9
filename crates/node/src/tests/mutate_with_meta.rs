//! Mutate with meta: metadata as JSON behind the value, CAS and seqno written into attributes.

use engine::settings::Key;

use super::*;

const XATTR: u8 = 4;
const SNAPPY: u8 = 2;
/// The placeholders for CAS and seqno.
const CAS: &str = "1xffffffffffffffff";
const SEQNO: &str = "1xfffffffffffffffe";

/// A value with attributes and a body.
fn value(xattrs: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut pairs = Vec::new();
    for (key, value) in xattrs {
        let pair = [key.as_bytes(), &[0], value.as_bytes(), &[0]].concat();
        pairs.extend_from_slice(&(pair.len() as u32).to_be_bytes());
        pairs.extend_from_slice(&pair);
    }
    [&(pairs.len() as u32).to_be_bytes()[..], &pairs, body.as_bytes()].concat()
}

/// The offsets of a text in bytes.
fn offsets(bytes: &[u8], text: &str) -> Vec<usize> {
    (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).collect()
}

struct Bench {
    client: Connection,
}

/// Status, CAS and value of an answer.
type Told = (Status, Cas, Vec<u8>);

impl Bench {
    fn new() -> Bench {
        let features = [FULL, &[Feature::SnappyEverywhere]].concat();
        Bench { client: connect_as(&node(), "admin", &features) }
    }

    fn told(&mut self, parts: &RequestParts<'_>) -> Told {
        let (answers, _) = feed(&mut self.client, &request(parts));
        let mut told = None;
        each(&answers, |answer| {
            let status = Status::from_code(answer.status_code).expect("a status");
            told = Some((status, answer.cas, answer.value.to_vec()));
        });
        told.expect("one answer")
    }

    fn send(&mut self, cas: Cas, value: &[u8], datatype: u8, meta: &str) -> Told {
        let whole = [value, meta.as_bytes()].concat();
        self.send_raw(cas, &(meta.len() as u32).to_be_bytes(), &whole, datatype)
    }

    fn send_raw(&mut self, cas: Cas, extras: &[u8], value: &[u8], datatype: u8) -> Told {
        let vbucket = vb(b"k");
        let opcode = opcode::MUTATE_WITH_META;
        let parts = RequestParts {
            opcode,
            key: b"k",
            extras,
            value,
            datatype,
            cas,
            vbucket,
            ..RequestParts::default()
        };
        self.told(&parts)
    }

    /// The document as it is stored, xattrs in front.
    fn whole(&mut self) -> (Cas, Vec<u8>) {
        let parts =
            RequestParts { opcode: opcode::GET_EX, key: b"k", vbucket: vb(b"k"), ..RequestParts::default() };
        let (status, cas, value) = self.told(&parts);
        assert_eq!(status, Status::Success);
        (cas, value)
    }

    fn meta(&mut self) -> Vec<u8> {
        let parts = RequestParts {
            opcode: opcode::GET_META,
            key: b"k",
            extras: &[2],
            vbucket: vb(b"k"),
            ..RequestParts::default()
        };
        let (answers, _) = feed(&mut self.client, &request(&parts));
        let mut extras = Vec::new();
        each(&answers, |answer| extras = answer.extras.to_vec());
        extras
    }
}

#[test]
fn metadata_are_taken_from_the_json_behind_the_value() {
    let mut bench = Bench::new();
    let meta = r#"{"command":"set","cas":"0x1122","flags":"0xdeadbeef","expiration":4000000000,"rev_seqno":"7","options":8}"#;
    let (status, cas, _) = bench.send(Cas::ANY, br#"{"body":"Hello"}"#, 1, meta);
    assert_eq!((status, cas), (Status::Success, Cas(0x1122)));
    assert_eq!(bench.whole(), (Cas(0x1122), br#"{"body":"Hello"}"#.to_vec()));
    let extras = bench.meta();
    assert_eq!(extras[4..8], 0xdead_beef_u32.to_be_bytes());
    assert_eq!(extras[8..12], 4_000_000_000_u32.to_be_bytes());
    assert_eq!(extras[12..20], 7_u64.to_be_bytes());
    // An older revision loses, and adding what is there is refused.
    let older = r#"{"command":"set","cas":"0x1122","rev_seqno":6}"#;
    assert_eq!(bench.send(Cas::ANY, b"1", 1, older).0, Status::KeyEexists);
    let add = r#"{"command":"add","cas":"0x9999","rev_seqno":9}"#;
    assert_eq!(bench.send(Cas::ANY, b"1", 1, add).0, Status::KeyEexists);
}

#[test]
fn cas_and_seqno_are_written_into_attributes_and_nowhere_else() {
    let field = format!(r#"{{"cas":"{CAS}","seqno":"{SEQNO}"}}"#);
    let document = value(&[("user", &field), ("_sys", &field)], &field);
    let section = document.len() - field.len();
    let (cas_at, seqno_at) = (offsets(&document[..section], CAS), offsets(&document[..section], SEQNO));
    assert_eq!((cas_at.len(), seqno_at.len()), (2, 2));
    let meta = |command: &str| {
        format!(
            r#"{{"command":"{command}","options":"0xc","cas_offsets":{cas_at:?},"seqno_offsets":{seqno_at:?}}}"#
        )
    };
    let mut bench = Bench::new();
    for (round, is_snappy) in [(1_u64, false), (2, true)] {
        let command = if round == 1 { "add" } else { "set" };
        let whole = [&document[..], meta(command).as_bytes()].concat();
        let len = (meta(command).len() as u32).to_be_bytes();
        let (sent, datatype) = if is_snappy {
            (snap::raw::Encoder::new().compress_vec(&whole).expect("it fits"), XATTR | SNAPPY)
        } else {
            (whole, XATTR)
        };
        let (status, cas, _) = bench.send_raw(Cas::ANY, &len, &sent, datatype);
        assert_eq!(status, Status::Success);
        let (stored, whole) = bench.whole();
        assert_eq!(stored, cas);
        let told = format!("0x{:016x}", cas.0.swap_bytes());
        assert_eq!(offsets(&whole, &told), cas_at);
        assert_eq!(offsets(&whole, &format!("0x{round:016x}")), seqno_at);
        assert!(whole.ends_with(field.as_bytes()), "the body stays");
    }
    // With the CAS of the document, and with another.
    let (cas, _) = bench.whole();
    assert_eq!(bench.send(Cas(cas.0 + 1), &document, XATTR, &meta("set")).0, Status::KeyEexists);
    assert_eq!(bench.send(cas, &document, XATTR, &meta("set")).0, Status::Success);
    assert_eq!(bench.send(Cas::ANY, &document, XATTR, &meta("add")).0, Status::KeyEexists);
    // A tombstone keeps the system's.
    let system = value(&[("_sys", &field)], "");
    let at = offsets(&system, CAS);
    let delete = format!(r#"{{"command":"delete","options":"0x1c","cas_offsets":{at:?}}}"#);
    assert_eq!(bench.send(Cas::ANY, &document, XATTR, &delete).0, Status::Einval);
    let (status, cas, _) = bench.send(Cas::ANY, &system, XATTR, &delete);
    assert_eq!(status, Status::Success);
    assert_eq!(bench.meta()[..4], 1_u32.to_be_bytes(), "it is deleted");
    let told = format!("0x{:016x}", cas.0.swap_bytes());
    // It reads as a tombstone's attribute.
    let path = [&[0xc5, 0x04, 0, 4][..], b"_sys"].concat();
    let lookup = RequestParts {
        opcode: opcode::SUBDOC_MULTI_LOOKUP,
        key: b"k",
        extras: &[0x04],
        value: &path,
        vbucket: vb(b"k"),
        ..RequestParts::default()
    };
    let (_, _, found) = bench.told(&lookup);
    assert!(String::from_utf8_lossy(&found).contains(&told), "{found:?}");
}

#[test]
fn what_is_not_sound_is_refused_in_words_and_changes_nothing() {
    let mut bench = Bench::new();
    let document = value(&[("user", &format!(r#"{{"cas":"{CAS}"}}"#))], "{}");
    let section = document.len() - 2;
    let beyond = format!("CAS offset [1000, 1018] is out of bounds of the xattr section [0, {section}]");
    let in_body = format!("Seqno offset [{section}, {}] is out of bounds", section + 18);
    let at_body = format!(r#"{{"command":"set","options":12,"seqno_offsets":[{section}]}}"#);
    let cases: [(&[u8], u8, &str, &str); 14] = [
        (
            &document,
            XATTR,
            r#"{"command":"set"}"#,
            "CAS must be specified unless options contains REGENERATE_CAS",
        ),
        (
            &document,
            XATTR,
            r#"{"command":"set","cas":1,"options":12}"#,
            "CAS cannot be specified when REGENERATE_CAS",
        ),
        (
            &document,
            XATTR,
            r#"{"command":"set","cas":1,"cas_offsets":[1]}"#,
            "cas_offsets cannot be specified when cas",
        ),
        (
            &document,
            XATTR,
            r#"{"command":"set","cas":1,"seqno_offsets":[1]}"#,
            "seqno_offsets cannot be specified",
        ),
        (
            &document,
            XATTR,
            r#"{"command":"set","options":12,"cas_offsets":[2,3,4]}"#,
            "would garble the xattr section",
        ),
        (&document, XATTR, r#"{"command":"set","options":12,"cas_offsets":[1000]}"#, &beyond),
        (&document, XATTR, &at_body, &in_body),
        (b"{}", 1, r#"{"command":"set","options":12,"cas_offsets":[1]}"#, "documents without xattr"),
        (b"", 0, r#"{"command":"set","options":12,"cas_offsets":[1]}"#, "on empty documents"),
        (b"{}", 1, r#"{"command":"delete","cas":1}"#, "Document cannot have a body"),
        (b"{}", 1, r#"{"command":"touch","cas":1}"#, "Failed to validate input"),
        (b"{}", 1, r#"{"command":"set","cas":"12x"}"#, "Failed to validate input"),
        (b"{}", 1, r#"{"command":"set","cas":1,"flags":"0x1ffffffff"}"#, "Failed to validate input"),
        (b"{}", 1, "", "Failed to validate input"),
    ];
    for (value, datatype, meta, why) in cases {
        let (status, _, told) = bench.send(Cas::ANY, value, datatype, meta);
        let told = String::from_utf8_lossy(&told).into_owned();
        assert_eq!(status, Status::Einval, "{meta}: {told}");
        assert!(told.contains(why), "{meta}: {told}");
    }
    let too_long = bench.send_raw(Cas::ANY, &100_u32.to_be_bytes(), b"{}", 1);
    assert!(String::from_utf8_lossy(&too_long.2).contains("Invalid metadata length"), "{too_long:?}");
    let user = value(&[("user", "1")], "");
    let (status, _, told) = bench.send(Cas::ANY, &user, XATTR, r#"{"command":"delete","cas":1}"#);
    assert_eq!(status, Status::Einval);
    assert!(String::from_utf8_lossy(&told).contains("user-xattrs is not allowed"), "{told:?}");
    let broken = [&9_u32.to_be_bytes()[..], b"x"].concat();
    assert_eq!(bench.send(Cas::ANY, &broken, XATTR, r#"{"command":"set","cas":1}"#).0, Status::XattrEinval);
    // A new CAS without skipping conflict resolution, as with the older commands.
    assert_eq!(bench.send(Cas::ANY, b"{}", 1, r#"{"command":"set","options":4}"#).0, Status::Einval);
    let get = RequestParts { opcode: opcode::GET, key: b"k", vbucket: vb(b"k"), ..RequestParts::default() };
    assert_eq!(bench.told(&get).0, Status::KeyEnoent);
}

#[test]
fn where_time_decides_the_client_says_that_it_knows() {
    let node = node();
    node.bucket("default").expect("it is served").settings().put(Key::ConflictResolution, 1);
    let mut bench = Bench { client: connect_as(&node, "admin", FULL) };
    assert_eq!(bench.send(Cas::ANY, b"{}", 1, r#"{"command":"set","cas":5}"#).0, Status::Einval);
    assert_eq!(bench.send(Cas::ANY, b"{}", 1, r#"{"command":"set","cas":5,"options":2}"#).0, Status::Success);
}
