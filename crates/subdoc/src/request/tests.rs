//! Refusals that no recording shows, and the forms of extras.

use super::{
    Features, Refusal, parse_multi_lookup, parse_multi_mutation, parse_single_lookup, parse_single_mutation,
};
use crate::status;

const ALL: Features = Features { xattr: true, multiple_xattr_keys: false };

fn mutation(specs: &[(u8, u8, &str, &str)]) -> Vec<u8> {
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

fn refused(features: &Features, specs: &[(u8, u8, &str, &str)]) -> Option<u16> {
    let frame = mutation(specs);
    parse_multi_mutation(&[], &frame, features).err().map(|refusal| refusal.status)
}

fn lookup(op: u8, flags: u8, path: &str) -> Result<(), Refusal> {
    let mut frame = vec![op, flags, 0, path.len() as u8];
    frame.extend_from_slice(path.as_bytes());
    parse_multi_lookup(&[], &frame, &ALL).map(|_| ())
}

#[test]
fn expiry_and_flags_by_length_of_extras() {
    let single = |extras: &[u8]| {
        parse_single_mutation(0xc8, extras, b"a1", &ALL).map(|request| (request.expiry, request.doc_flags))
    };
    assert_eq!(single(&[0, 1, 0]), Ok((None, 0)));
    assert_eq!(single(&[0, 1, 0, 1]), Ok((None, 1)));
    assert_eq!(single(&[0, 1, 0, 0, 0, 0, 5]), Ok((Some(5), 0)));
    assert_eq!(single(&[0, 1, 0, 0, 0, 0, 5, 2]), Ok((Some(5), 2)));
    assert!(single(&[0, 1, 0, 0, 0]).is_err());
    let frame = mutation(&[(0xc8, 0, "a", "1")]);
    let multi = |extras: &[u8]| {
        parse_multi_mutation(extras, &frame, &ALL).map(|request| (request.expiry, request.doc_flags))
    };
    assert_eq!(multi(&[]), Ok((None, 0)));
    assert_eq!(multi(&[4]), Ok((None, 4)));
    assert_eq!(multi(&[0, 0, 0, 0]), Ok((Some(0), 0)));
    assert_eq!(multi(&[0, 0, 0, 9, 1]), Ok((Some(9), 1)));
    assert!(multi(&[0, 0]).is_err());
    assert!(parse_single_lookup(0xc5, &[0, 1, 0, 0, 0, 0, 5], b"a", &ALL).is_err());
}

#[test]
fn codes_of_the_wrong_kind_are_a_bad_combination() {
    assert_eq!(refused(&ALL, &[(0xc5, 0, "a", "1")]), Some(status::INVALID_COMBINATION));
    assert_eq!(refused(&ALL, &[(0xff, 0, "a", "1")]), Some(status::INVALID_COMBINATION));
    assert_eq!(lookup(0xc8, 0, "a").map_err(|refusal| refusal.status), Err(status::INVALID_COMBINATION));
    assert_eq!(refused(&ALL, &[(0x04, 0, "", ""), (0xc8, 0, "a", "1")]), Some(status::INVALID_COMBINATION));
    assert_eq!(refused(&ALL, &[(0xc8, 0, "a", "1"), (0x04, 0, "", "")]), Some(status::INVALID_COMBINATION));
    assert_eq!(refused(&ALL, &[(0xc8, 4, "a", "1"), (0x04, 0, "", "")]), None);
    assert!(parse_single_mutation(0x01, &[0, 0, 0], b"1", &ALL).is_err(), "whole documents only in multi");
}

#[test]
fn several_attribute_keys_need_the_feature() {
    let two = [(0xc8, 4, "a", "1"), (0xc8, 4, "b", "1")];
    assert_eq!(refused(&ALL, &two), Some(status::XATTR_KEY_COMBINATION));
    assert_eq!(refused(&Features { multiple_xattr_keys: true, ..ALL }, &two), None);
    assert_eq!(refused(&Features { xattr: false, ..ALL }, &two), Some(status::NOT_SUPPORTED));
}

#[test]
fn virtual_attributes_and_macros_must_be_known() {
    assert_eq!(lookup(0xc5, 4, "$nope.x"), Ok(()), "its own result says so");
    assert_eq!(lookup(0xc5, 4, "$document"), Ok(()));
    assert_eq!(refused(&ALL, &[(0xc8, 4, "$nope", "1")]), Some(status::VIRTUAL_ATTRIBUTE_READ_ONLY));
    let expand = |value| refused(&ALL, &[(0xc8, 0x14, "m", value)]);
    assert_eq!(expand("\"${Mutation.CAS}\""), None);
    assert_eq!(expand("\"${$document}\""), None);
    assert_eq!(expand("\"${$document.nope}\""), None, "found when it is expanded");
    assert_eq!(expand("\"${$documents}\""), None);
    for other in
        ["\"${$vbucket}\"", "\"${$vbucket.HLC}\"", "\"${$XTOC}\"", "\"${$Document}\"", "\"${$document\""]
    {
        assert_eq!(expand(other), Some(status::UNKNOWN_MACRO), "{other}");
    }
    assert_eq!(expand("\"${Mutation.nope}\""), Some(status::UNKNOWN_MACRO));
    assert_eq!(expand("1"), Some(status::UNKNOWN_MACRO));
    assert_eq!(refused(&ALL, &[(0xcf, 0x14, "m", "1")]), Some(status::INVALID_ARGUMENTS));
}

#[test]
fn macros_go_into_arrays_but_not_where_elements_are_compared() {
    for op in [0xcb, 0xcc] {
        assert_eq!(refused(&ALL, &[(op, 0x14, "m", "\"${Mutation.CAS}\"")]), None, "{op:#x}");
    }
    assert_eq!(refused(&ALL, &[(0xcd, 0x14, "m[0]", "\"${Mutation.CAS}\"")]), None);
    assert_eq!(refused(&ALL, &[(0xce, 0x14, "m", "\"${Mutation.CAS}\"")]), Some(status::INVALID_ARGUMENTS));
}

#[test]
fn document_flags_depend_on_the_operation() {
    let refused = |doc_flags: u8, spec: (u8, u8, &str, &str)| {
        parse_multi_mutation(&[doc_flags], &mutation(&[spec]), &ALL).err().map(|refusal| refusal.status)
    };
    const ADD: u8 = 0x02;
    const ACCESS_DELETED: u8 = 0x04;
    const CREATE_AS_DELETED: u8 = 0x08;
    let invalid = Some(status::INVALID_ARGUMENTS);
    assert_eq!(refused(ADD, (0xc9, 0, "a", "")), invalid);
    assert_eq!(refused(ACCESS_DELETED, (0xc9, 0, "a", "")), None);
    assert_eq!(refused(ACCESS_DELETED, (0x01, 0, "", "{}")), invalid);
    assert_eq!(refused(CREATE_AS_DELETED, (0xca, 0, "a", "1")), invalid);
    assert_eq!(refused(ADD | CREATE_AS_DELETED, (0xcd, 4, "a[0]", "1")), None);
}

#[test]
fn the_first_faulty_spec_decides() {
    let virtual_first = [(0xc8, 4, "$document", "1"), (0xc8, 0x40, "a", "1")];
    assert_eq!(refused(&ALL, &virtual_first), Some(status::VIRTUAL_ATTRIBUTE_READ_ONLY));
    let flags_first = [(0xc8, 0x40, "a", "1"), (0xc8, 4, "$document", "1")];
    assert_eq!(refused(&ALL, &flags_first), Some(status::INVALID_ARGUMENTS));
    let mut seventeen = vec![(0xc8, 0, "a", "1"); 16];
    seventeen.push((0xc8, 0xff, "", ""));
    assert_eq!(refused(&ALL, &seventeen), Some(status::INVALID_COMBINATION));
    let single = |extras: &[u8], value: &[u8]| {
        parse_single_mutation(0xc8, extras, value, &ALL).err().map(|refusal| refusal.status)
    };
    assert_eq!(single(&[0, 0, 4], b"1"), Some(status::XATTR_INVALID), "an empty key is no key");
    assert_eq!(refused(&ALL, &[(0xc8, 4, "", "1")]), Some(status::XATTR_INVALID), "here neither");
    let macro_of_other = [(0xc8, 4, "a", "1"), (0xc8, 0x14, "b", "1")];
    assert_eq!(refused(&ALL, &macro_of_other), Some(status::XATTR_KEY_COMBINATION));
    assert_eq!(refused(&ALL, &[(0xc8, 0x10, "", "")]), Some(status::XATTR_FLAG_COMBINATION));
    let attribute_without_value = [(0xc8, 0, "a", "1"), (0xc8, 4, "b", "")];
    assert_eq!(refused(&ALL, &attribute_without_value), Some(status::INVALID_ARGUMENTS));
    assert_eq!(refused(&ALL, &[(0xc8, 0, "a", "1"), (0x04, 0, "x", "")]), Some(status::INVALID_ARGUMENTS));
}

#[test]
fn truncated_frames_are_refused_at_every_length() {
    let frame = mutation(&[(0xc8, 0, "path", "\"value\""), (0xc9, 0, "gone", "")]);
    let first = frame.len() - 12;
    for len in (1..frame.len()).filter(|len| *len != first) {
        let refusal = parse_multi_mutation(&[], &frame[..len], &ALL).expect_err("too short");
        assert_eq!(refusal.status, status::INVALID_ARGUMENTS, "{len}");
    }
    assert!(parse_multi_mutation(&[], &frame, &ALL).is_ok());
}

#[test]
fn flags_of_the_document_come_behind_the_expiry() {
    let spec = [0xc8, 4, 0, 1, 0, 0, 0, 1, b'x', b'1'];
    let parsed = |extras: &[u8]| {
        parse_multi_mutation(extras, &spec, &ALL)
            .map(|request| (request.expiry, request.user_flags, request.doc_flags))
            .map_err(|refusal| refusal.status)
    };
    let both = [0, 0, 0, 7, 1, 0, 0, 2];
    assert_eq!(parsed(&both), Ok((Some(7), Some(0x0100_0002), 0)));
    assert_eq!(parsed(&[&both[..], &[1]].concat()), Ok((Some(7), Some(0x0100_0002), 1)));
    assert_eq!(parsed(&both[..4]), Ok((Some(7), None, 0)));
    for len in [2, 3, 6, 7, 10, 12, 13] {
        assert_eq!(parsed(&[0; 16][..len]), Err(status::INVALID_ARGUMENTS), "{len}");
    }
}
