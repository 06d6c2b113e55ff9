//! Requests against documents: existence, tombstones, attributes, macros; what no recording shows.

use super::{Document, Late, Metadata, MutationOutcome, NewDocument, lookup, mutate};
use crate::request::{Features, parse_multi_lookup, parse_multi_mutation, parse_single_mutation};
use crate::{DATATYPE_JSON, DATATYPE_XATTR, reply, status, xattr};

const FEATURES: Features = Features { xattr: true, multiple_xattr_keys: true };
const MKDOC: u8 = 0x01;
const ADD: u8 = 0x02;
const ACCESS_DELETED: u8 = 0x04;
const CREATE_AS_DELETED: u8 = 0x08;
const REVIVE: u8 = 0x10;

fn frame(specs: &[(u8, u8, &str, &str)]) -> Vec<u8> {
    let mut frame = Vec::new();
    for (op, flags, path, value) in specs {
        frame.extend_from_slice(&[*op, *flags]);
        frame.extend_from_slice(&(path.len() as u16).to_be_bytes());
        frame.extend_from_slice(&(value.len() as u32).to_be_bytes());
        frame.extend_from_slice(path.as_bytes());
        frame.extend_from_slice(value.as_bytes());
    }
    frame
}

fn document(new: &NewDocument) -> Document<'_> {
    let metadata = Metadata { cas: 0x0102_0304_0506_0708, seqno: 0x42, ..Metadata::default() };
    Document { value: &new.value, datatype: new.datatype, deleted: new.deleted, metadata }
}

fn run(current: Option<&NewDocument>, doc_flags: u8, specs: &[(u8, u8, &str, &str)]) -> MutationOutcome {
    let frame = frame(specs);
    let request = parse_multi_mutation(&[doc_flags], &frame, &FEATURES).expect("a good request");
    mutate(current.map(document), &request)
}

#[track_caller]
fn new(outcome: MutationOutcome) -> NewDocument {
    assert!(matches!(outcome.status, status::SUCCESS | status::SUCCESS_DELETED), "{outcome:?}");
    outcome.new.expect("a new version")
}

fn body(document: &NewDocument) -> String {
    String::from_utf8(document.value[document.late.body_at..].to_vec()).expect("UTF-8")
}

fn attribute(document: &NewDocument, key: &str) -> Option<String> {
    let (xattrs, _) = xattr::split(&document.value, document.datatype).expect("splits");
    xattrs.get(key.as_bytes()).map(|value| String::from_utf8(value.to_vec()).expect("UTF-8"))
}

fn live(text: &str) -> NewDocument {
    new(run(None, MKDOC, &[(0x01, 0, "", text)]))
}

fn tombstone() -> NewDocument {
    new(run(None, MKDOC | CREATE_AS_DELETED, &[(0xc8, 5, "_t", "1")]))
}

const UPSERT: [(u8, u8, &str, &str); 1] = [(0xc8, 4, "x", "1")];

/// What a request with each set of flags meets: nothing, a document, a tombstone.
#[test]
fn existence_by_flags() {
    let rows = [
        (0, [0x01, 0x00, 0x01]),
        (MKDOC, [0x00, 0x00, 0x00]),
        (ADD, [0x00, 0x02, 0x00]),
        (ACCESS_DELETED, [0x01, 0x00, 0xcd]),
        (CREATE_AS_DELETED, [0x01, 0x00, 0x01]),
        (MKDOC | CREATE_AS_DELETED, [0xcd, 0x00, 0xcd]),
        (ADD | CREATE_AS_DELETED, [0xcd, 0x02, 0x02]),
        (ADD | CREATE_AS_DELETED | ACCESS_DELETED, [0xcd, 0x02, 0x02]),
        (MKDOC | CREATE_AS_DELETED | ACCESS_DELETED, [0xcd, 0x00, 0xcd]),
        (ACCESS_DELETED | REVIVE, [0x01, 0xd6, 0x00]),
        (ACCESS_DELETED | REVIVE | MKDOC, [0xd6, 0xd6, 0x00]),
    ];
    let (live, dead) = (live("{}"), tombstone());
    for (flags, expected) in rows {
        let found = [None, Some(&live), Some(&dead)].map(|current| run(current, flags, &UPSERT).status);
        assert_eq!(found, expected, "flags {flags:#x}");
    }
}

#[test]
fn cas_is_compared_with_what_is_there() {
    let there = live("{}");
    let frame = frame(&UPSERT);
    let status = |flags: u8, cas: u64, current: Option<&NewDocument>| {
        let mut request = parse_multi_mutation(&[flags], &frame, &FEATURES).expect("a good request");
        request.cas = cas;
        mutate(current.map(document), &request).status
    };
    assert_eq!(status(0, 0x0102_0304_0506_0708, Some(&there)), 0x00);
    assert_eq!(status(0, 5, Some(&there)), 0x02);
    assert_eq!(status(0, 5, None), 0x01);
    assert_eq!(status(ADD, 5, None), 0x04);
}

#[test]
fn a_new_document_gets_the_root_that_its_first_path_needs() {
    let root = |specs: &[(u8, u8, &str, &str)]| body(&new(run(None, MKDOC, specs)));
    assert_eq!(root(&[(0xc8, 0, "a.b", "1")]), "{\"a\":{\"b\":1}}");
    assert_eq!(root(&[(0xcb, 0, "", "1")]), "[1]");
    assert_eq!(root(&[(0xc8, 4, "x", "1")]), "{}");
    // The first path is that of an attribute, and the body an object for it.
    assert_eq!(run(None, MKDOC, &[(0xc8, 4, "x", "1"), (0xcb, 0, "", "1")]).failed, Some((1, 0xc1)));
    assert_eq!(root(&[(0x01, 0, "", "text")]), "text");
    assert_eq!(run(None, ADD, &[(0xca, 0, "a", "1")]).failed, Some((0, status::INTERNAL)));
}

#[test]
fn deleting_keeps_only_system_attributes() {
    let there = new(run(Some(&live("{}")), 0, &[(0xc8, 4, "u", "1"), (0xc8, 4, "_s", "2")]));
    assert_eq!(there.datatype, DATATYPE_JSON | DATATYPE_XATTR);
    let outcome = run(Some(&there), 0, &[(0xc8, 4, "v", "3"), (0xc8, 4, "_t", "4"), (0x04, 0, "", "")]);
    assert_eq!(outcome.status, status::SUCCESS);
    let gone = new(outcome);
    assert!(gone.deleted);
    assert_eq!((gone.datatype, body(&gone)), (DATATYPE_XATTR, String::new()));
    assert_eq!(["u", "v"].map(|key| attribute(&gone, key)), [None, None]);
    assert_eq!(["_s", "_t"].map(|key| attribute(&gone, key)), [Some("2".into()), Some("4".into())]);
    let bare = new(run(Some(&live("{}")), 0, &[(0x04, 0, "", "")]));
    assert_eq!((bare.value.len(), bare.datatype), (0, 0));
    assert_eq!(run(Some(&gone), ACCESS_DELETED, &[(0x04, 0, "", "")]).status, status::SUCCESS_DELETED);
}

#[test]
fn a_tombstone_has_no_body() {
    let dead = tombstone();
    let replaced = run(Some(&dead), ACCESS_DELETED, &[(0xd3, 4, "_t", "")]);
    assert_eq!(replaced.status, status::DELETED_WITHOUT_VALUE);
    let edited = run(Some(&dead), ACCESS_DELETED, &[(0xc8, 0, "a", "1")]);
    assert_eq!((edited.status, edited.failed), (status::MULTI_PATH_FAILURE, Some((0, 0xc6))));
    let specs = [(0xc8, 4, "_t", "{}"), (0xd3, 4, "_t", ""), (0xc8, 0, "a", "1")];
    let revived = new(run(Some(&dead), ACCESS_DELETED | REVIVE, &specs));
    assert_eq!((revived.deleted, body(&revived)), (false, "{\"a\":1}".to_string()));
    assert_eq!(attribute(&revived, "_t").as_deref(), Some("{}"));
}

#[test]
fn the_last_attribute_can_go() {
    let there = new(run(Some(&live("{}")), 0, &[(0xc8, 4, "m", "1")]));
    let after = new(run(Some(&there), 0, &[(0xc9, 4, "m", "")]));
    assert_eq!((after.datatype, after.value.as_slice()), (DATATYPE_JSON, &b"{}"[..]));
}

#[test]
fn macros_are_filled_in_at_commit() {
    let specs = [
        (0xc8, 0x15, "m.cas", "\"${Mutation.CAS}\""),
        (0xc8, 0x15, "m.seqno", "\"${Mutation.seqno}\""),
        (0xc8, 0x15, "m.crc", "\"${Mutation.value_crc32c}\""),
        (0xc8, 0x15, "gone", "\"${Mutation.CAS}\""),
        (0xc8, 0x05, "m.first.x", "[1,2,3]"),
        (0xc9, 0x04, "gone", ""),
        (0xcc, 0x15, "n", "\"${Mutation.seqno}\""),
        (0xcc, 0x04, "n", "\"longer than it was\""),
        (0xc8, 0x00, "a", "2"),
    ];
    let mut after = new(run(Some(&live("{\"a\":1}")), 0, &specs));
    assert_eq!(after.late.placeholders.len(), 4);
    let length = after.value.len();
    after.late.fill(&mut after.value, 0x0102_0304_0506_0708, 0x2a);
    assert_eq!(after.value.len(), length);
    let crc = crc32c::crc32c(b"{\"a\":2}");
    let expected = format!(
        "{{\"cas\":\"0x0807060504030201\",\"seqno\":\"0x000000000000002a\",\"crc\":\"{crc:#010x}\",\"first\":{{\"x\":[1,2,3]}}}}"
    );
    assert_eq!(attribute(&after, "m"), Some(expected));
    assert_eq!(attribute(&after, "n").as_deref(), Some("[\"longer than it was\",\"0x000000000000002a\"]"));
    assert_eq!(attribute(&after, "gone"), None);
}

#[test]
fn a_macro_overwritten_later_is_not_filled_in() {
    let specs =
        [(0xc8, 0x15, "m.a", "\"${Mutation.CAS}\""), (0xc8, 0x04, "m", "\"0x0000000000000000-mine\"")];
    let mut after = new(run(Some(&live("{}")), 0, &specs));
    after.late.fill(&mut after.value, u64::MAX, u64::MAX);
    assert_eq!(attribute(&after, "m").as_deref(), Some("\"0x0000000000000000-mine\""));
}

#[test]
fn a_macro_copied_into_the_body_is_filled_in_there_too() {
    let specs = [
        (0xc8, 0x15, "m.a", "\"${Mutation.CAS}\""),
        (0xc8, 0x15, "c", "\"${Mutation.value_crc32c}\""),
        (0xd3, 0x04, "m", ""),
        (0xc8, 0x00, "b", "1"),
    ];
    let mut after = new(run(Some(&live("{}")), 0, &specs));
    after.late.fill(&mut after.value, 0x0102_0304_0506_0708, 1);
    assert_eq!(body(&after), "{\"a\":\"0x0807060504030201\",\"b\":1}");
    let crc = crc32c::crc32c(body(&after).as_bytes());
    assert_eq!(attribute(&after, "c"), Some(format!("\"{crc:#010x}\"")));
}

#[test]
fn document_macros_show_the_version_before() {
    let there = live("{\"a\":1}");
    let specs = [(0xc8, 0x15, "m.n", "\"${$document.value_bytes}\""), (0xc8, 0, "a", "100")];
    let after = new(run(Some(&there), 0, &specs));
    assert_eq!(attribute(&after, "m").as_deref(), Some("{\"n\":7}"));
}

#[test]
fn a_tombstone_is_deleted_again_unless_its_last_attributes_go() {
    let made = |key: &str| {
        let flags = MKDOC | CREATE_AS_DELETED | ACCESS_DELETED;
        new(run(None, flags, &[(0xc8, 4, key, "1")]))
    };
    let deletion = (0x04, 0, "", "");
    let outcome = run(Some(&made("_s")), ACCESS_DELETED, &[deletion]);
    assert_eq!(outcome.status, status::SUCCESS_DELETED);
    assert_eq!(attribute(&new(outcome), "_s").as_deref(), Some("1"));
    assert_eq!(run(Some(&made("u")), ACCESS_DELETED, &[deletion]).status, status::KEY_NOT_FOUND);
    assert_eq!(
        run(Some(&made("u")), ACCESS_DELETED, &[(0xc8, 4, "_s", "1"), deletion]).status,
        status::SUCCESS_DELETED
    );
    assert_eq!(run(Some(&made("_s")), 0, &[deletion]).status, status::KEY_NOT_FOUND);
    let bare = NewDocument { value: Vec::new(), datatype: 0, ..made("_s") };
    assert_eq!(run(Some(&bare), ACCESS_DELETED, &[deletion]).status, status::SUCCESS_DELETED);
}

#[test]
fn document_macros_name_whole_fields_and_no_checksum() {
    let there = live("{\"a\":1}");
    for named in ["nope", "value_crc32c", "datatype[0]", "CAS.x", ""] {
        let value = format!("\"${{$document.{named}}}\"");
        let outcome = run(Some(&there), 0, &[(0xc8, 5, "m.a", "1"), (0xc8, 0x15, "m.n", &value)]);
        assert_eq!(
            (outcome.status, outcome.failed),
            (status::MULTI_PATH_FAILURE, Some((1, 0xd5))),
            "{named}"
        );
        assert_eq!(run(None, 0, &[(0xc8, 0x15, "m.n", &value)]).status, status::KEY_NOT_FOUND, "{named}");
    }
    let outcome = run(Some(&there), 0, &[(0xc8, 0x15, "m", "\"${$documents}\"")]);
    assert_eq!(outcome.failed, Some((0, 0xd5)));
}

#[test]
fn document_macros_know_little_of_a_document_that_is_made() {
    let made = |value: &str| run(None, MKDOC, &[(0xc8, 0x15, "m", value)]);
    let attribute_of = |value: &str| attribute(&new(made(value)), "m");
    assert_eq!(attribute_of("\"${$document.CAS}\"").as_deref(), Some("\"0x0000000000000000\""));
    assert_eq!(attribute_of("\"${$document.revid}\"").as_deref(), Some("\"0\""));
    assert_eq!(attribute_of("\"${$document.value_bytes}\"").as_deref(), Some("2"));
    assert_eq!(attribute_of("\"${$document.datatype}\"").as_deref(), Some("[\"raw\"]"));
    assert_eq!(made("\"${$document.last_modified}\"").failed, Some((0, 0xd5)));
    let whole = attribute_of("\"${$document}\"").unwrap();
    assert!(
        whole.starts_with("{\"CAS\":\"0x0000000000000000\",") && !whole.contains("last_modified"),
        "{whole}"
    );
}

#[test]
fn bytes_are_kept_in_attributes() {
    const BINARY: u8 = 0x20;
    let encoded = r#""cb-content-base64-encoded:AAH/""#;
    let bytes = "\u{0}\u{1}\u{7f}";
    let made =
        new(run(Some(&live("{}")), 0, &[(0xc8, 5 | BINARY, "txn.bin", bytes), (0xc8, 4, "x", encoded)]));
    assert_eq!(attribute(&made, "txn").as_deref(), Some(r#"{"bin":"cb-content-base64-encoded:AAF/"}"#));
    let look = |flags: u8, path: &str| {
        let frame = frame(&[(0xc5, flags, path, "")].map(|(op, flags, path, _)| (op, flags, path, "")));
        // A look-up has no value, and no length of one.
        let frame = [&frame[..4], &frame[8..]].concat();
        let request = parse_multi_lookup(&[], &frame, &FEATURES).expect("a good request");
        let outcome = lookup(Some(document(&made)), &request);
        (outcome.results()[0].status, outcome.bytes(outcome.results()[0].value).to_vec())
    };
    assert_eq!(look(4 | BINARY, "txn.bin"), (0, bytes.as_bytes().to_vec()));
    assert_eq!(look(4 | BINARY, "x"), (0, vec![0, 1, 0xff]));
    assert_eq!(look(4, "x"), (0, encoded.as_bytes().to_vec()));
    assert_eq!(look(4 | BINARY, "txn"), (0xd8, Vec::new()));
    assert_eq!(look(4 | BINARY, "$document.exptime"), (0xd8, Vec::new()));
    // The bytes become the body, and the string that holds them without the flag.
    let committed = new(run(Some(&made), 0, &[(0xd3, 4 | BINARY, "x", "")]));
    assert_eq!(&committed.value[committed.late.body_at..], [0, 1, 0xff]);
    assert_eq!(committed.datatype & DATATYPE_JSON, 0);
    assert_eq!(body(&new(run(Some(&made), 0, &[(0xd3, 4, "x", "")]))), encoded);
    let refused = run(Some(&made), 0, &[(0xd3, 4 | BINARY, "txn", "")]);
    assert_eq!(refused.status, status::MULTI_PATH_FAILURE);
}

#[test]
fn flags_of_bytes_are_checked() {
    let refusal = |op: u8, flags: u8, value: &str| {
        let frame = frame(&[(op, flags, "x", value)]);
        parse_multi_mutation(&[0], &frame, &FEATURES).map(|_| ()).map_err(|refusal| refusal.status)
    };
    assert_eq!(refusal(0xc8, 0x24, "v"), Ok(()));
    assert_eq!(refusal(0xca, 0x24, "v"), Ok(()));
    assert_eq!(refusal(0xc8, 0x20, "v"), Err(status::INVALID_ARGUMENTS));
    assert_eq!(refusal(0xc8, 0x34, "v"), Err(status::INVALID_ARGUMENTS));
    for op in [0xcb, 0xcc, 0xcd, 0xce, 0xcf] {
        assert_eq!(refusal(op, 0x24, "1"), Err(status::INVALID_ARGUMENTS), "{op:x}");
    }
    let bad = r#"{"a":"cb-content-base64-encoded:*"}"#;
    assert_eq!(refusal(0xc8, 4, bad), Err(status::XATTR_INVALID));
    assert_eq!(refusal(0xc8, 0, bad), Ok(()));
}

#[test]
fn replies_of_one_path_carry_the_value_alone() {
    let there = live("{\"n\":1}");
    let request = parse_single_mutation(0xcf, &[0, 1, 0], b"n41", &FEATURES).expect("a good request");
    let outcome = mutate(Some(document(&there)), &request);
    let mut out = Vec::new();
    assert!(reply::write_mutation(&outcome, &mut out));
    assert_eq!(out, b"42");
}

#[test]
fn look_ups_borrow_from_the_document() {
    let there = live("{\"list\":[1,2],\"s\":\"text\"}");
    let mut request = Vec::new();
    for (op, flags, path) in
        [(0xd2, 4, "$XTOC"), (0xc5, 4, "$document.flags"), (0xc5, 0, "s"), (0xd2, 0, "list")]
    {
        request.extend_from_slice(&[op, flags, 0, path.len() as u8]);
        request.extend_from_slice(path.as_bytes());
    }
    let request = parse_multi_lookup(&[], &request, &FEATURES).expect("a good request");
    let outcome = lookup(Some(document(&there)), &request);
    let mut out = Vec::new();
    assert!(!reply::write_lookup(&outcome, &mut out));
    assert_eq!(out, b"\0\0\0\0\0\x010\0\0\0\0\0\x010\0\0\0\0\0\x06\"text\"\0\0\0\0\0\x012");
    let text = outcome.results()[2].value;
    assert!(there.value.as_ptr_range().contains(&outcome.bytes(text).as_ptr()));
}

#[test]
fn a_value_whose_section_is_broken_is_an_internal_error() {
    let broken =
        NewDocument { value: vec![0xff; 6], datatype: DATATYPE_XATTR, deleted: false, late: Late::default() };
    assert_eq!(run(Some(&broken), 0, &UPSERT).status, status::INTERNAL);
    let request = parse_multi_lookup(&[], &[0, 0, 0, 0], &FEATURES).expect("a good request");
    assert_eq!(lookup(Some(document(&broken)), &request).status, status::INTERNAL);
}
