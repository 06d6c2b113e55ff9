//! Fuzz bodies: each takes any bytes and must return without a panic.

use crate::exec::{self, Document, Metadata};
use crate::ops::{self, Operation};
use crate::path::Path;
use crate::request::{self, Features};
use crate::{json, reply, xattr};

const OPERATIONS: [Operation; 9] = [
    Operation::DictAdd,
    Operation::DictUpsert,
    Operation::Delete,
    Operation::Replace,
    Operation::ArrayPushLast,
    Operation::ArrayPushFirst,
    Operation::ArrayInsert,
    Operation::ArrayAddUnique,
    Operation::Counter,
];

/// Takes a part off the front, as long as its first byte says.
fn part<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let Some((&len, bytes)) = rest.split_first() else {
        return b"";
    };
    let (front, back) = bytes.split_at(usize::from(len).min(bytes.len()));
    *rest = back;
    front
}

/// The validator.
pub fn fuzz_is_json(bytes: &[u8]) {
    let _ = json::is_json(bytes);
}

/// Paths and all operations on texts that need not be JSON; on JSON every result must be JSON.
pub fn fuzz_operations(mut bytes: &[u8]) {
    let (path, value, parents) = (part(&mut bytes), part(&mut bytes), part(&mut bytes).is_empty());
    let Ok(path) = Path::parse(path) else { return };
    let is_json = json::is_json(bytes);
    for found in [ops::get(bytes, &path)].into_iter().flatten() {
        assert!(!is_json || found.is_empty() || json::is_json(&bytes[found]), "a value is JSON");
    }
    let _ = ops::exists(bytes, &path);
    let _ = ops::count(bytes, &path);
    for operation in OPERATIONS {
        if let Ok(edit) = ops::edit(bytes, &path, operation, value, parents) {
            let (text, at) = edit.apply(bytes);
            assert_eq!(text.len(), bytes.len() - edit.removed().len() + edit.inserted_len());
            assert!(text[at..].starts_with(edit.value()));
            assert!(!is_json || value.iter().any(|byte| !byte.is_ascii()) || json::is_json(&text));
        }
    }
}

/// The section of extended attributes.
pub fn fuzz_xattrs(bytes: &[u8]) {
    let valid = xattr::validate(bytes).is_ok();
    let Ok((xattrs, _)) = xattr::split(bytes, crate::DATATYPE_XATTR) else {
        assert!(!valid);
        return;
    };
    let mut copy = Vec::new();
    xattrs.write_section(&mut copy);
    assert!(bytes.starts_with(&copy));
    let mut keys = Vec::new();
    xattrs.write_keys(false, &mut keys);
    assert!(!valid || json::is_json(&keys));
    let system = xattrs.system_section();
    assert!(!valid || system.is_empty() || xattr::validate(&system).is_ok());
    let changed = xattrs.section_with(b"key", Some(b"1"));
    assert!(!valid || xattr::validate(&changed).is_ok());
}

/// Whole requests, from the frame's parts to the reply, against a document of any bytes.
pub fn fuzz_requests(mut bytes: &[u8]) {
    let Some((&[opcode, datatype, kind], mut rest)) = bytes.split_first_chunk::<3>() else { return };
    bytes = part(&mut rest);
    let (extras, value) = (part(&mut rest), part(&mut rest));
    let features = Features { xattr: kind & 1 == 0, multiple_xattr_keys: kind & 2 != 0 };
    let metadata = Metadata { cas: 7, ..Metadata::default() };
    let document = Document { value: bytes, datatype, deleted: kind & 4 != 0, metadata };
    let current = (kind & 8 == 0).then_some(document);
    let mut out = Vec::new();
    let lookups = [
        request::parse_single_lookup(opcode, extras, value, &features),
        request::parse_multi_lookup(extras, value, &features),
    ];
    for request in lookups.into_iter().flatten() {
        reply::write_lookup(&exec::lookup(current, &request), &mut out);
    }
    let mutations = [
        request::parse_single_mutation(opcode, extras, value, &features),
        request::parse_multi_mutation(extras, value, &features),
    ];
    for request in mutations.into_iter().flatten() {
        let outcome = exec::mutate(current, &request);
        reply::write_mutation(&outcome, &mut out);
        if let Some(mut new) = outcome.new {
            new.late.fill(&mut new.value, 0x0102_0304_0506_0708, 9);
            assert!(new.late.body_at <= new.value.len());
            assert!(xattr::split(&new.value, new.datatype).is_ok());
        }
    }
}
