//! Document flags on living, deleted and missing documents, with one path and with several: every combination.
//!
//! What is expected is written down as the original's documents tell it, question by question, and compared with what
//! parsing and executing come to.

use subdoc::exec::{ClockMode, Document, Metadata, mutate};
use subdoc::request::{
    Features, MutationRequest, Refusal, doc_flag, parse_multi_mutation, parse_single_mutation,
};

const MKDOC: u8 = doc_flag::MKDOC;
const ADD: u8 = doc_flag::ADD;
const ACCESS: u8 = doc_flag::ACCESS_DELETED;
const AS_DELETED: u8 = doc_flag::CREATE_AS_DELETED;
const REVIVE: u8 = doc_flag::REVIVE;
const XATTR: u8 = 0x04;
const FEATURES: Features = Features { xattr: true, multiple_xattr_keys: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Living,
    Deleted,
    Missing,
}

/// What one spec does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    SetAttribute,
    ReplaceAttribute,
    SetMember,
    BodyFromAttribute,
    SetDocument,
    DeleteDocument,
}

const OPS: [Op; 6] = [
    Op::SetAttribute,
    Op::ReplaceAttribute,
    Op::SetMember,
    Op::BodyFromAttribute,
    Op::SetDocument,
    Op::DeleteDocument,
];

impl Op {
    /// Its code, the flags of its path, the path and the value.
    fn spec(self) -> (u8, u8, &'static [u8], &'static [u8]) {
        match self {
            Op::SetAttribute => (0xc8, XATTR, b"_s.a", b"1"),
            Op::ReplaceAttribute => (0xca, XATTR, b"_s", b"2"),
            Op::SetMember => (0xc8, 0, b"a", b"1"),
            Op::BodyFromAttribute => (0xd3, XATTR, b"_s", b""),
            Op::SetDocument => (0x01, 0, b"", b"{}"),
            Op::DeleteDocument => (0x04, 0, b"", b""),
        }
    }

    /// Document flags that make sense with it.
    fn flags(self) -> u8 {
        match self {
            Op::SetAttribute | Op::SetMember => MKDOC | ADD | ACCESS | AS_DELETED | REVIVE,
            Op::ReplaceAttribute => ADD | ACCESS | REVIVE,
            Op::BodyFromAttribute | Op::DeleteDocument => ACCESS | REVIVE,
            Op::SetDocument => MKDOC | ADD,
        }
    }

    fn is_command(self) -> bool {
        !matches!(self, Op::SetDocument | Op::DeleteDocument)
    }

    fn parse<'a>(
        self,
        flags: u8,
        is_single: bool,
        value: &'a mut Vec<u8>,
    ) -> Result<MutationRequest<'a>, Refusal> {
        let (code, path_flags, path, new) = self.spec();
        let path_len = (path.len() as u16).to_be_bytes();
        if is_single {
            value.extend([path, new].concat());
            let extras = [&path_len[..], &[path_flags, flags]].concat();
            return parse_single_mutation(code, &extras, value, &FEATURES);
        }
        value.extend(
            [&[code, path_flags], &path_len[..], &(new.len() as u32).to_be_bytes(), path, new].concat(),
        );
        parse_multi_mutation(&[flags], value, &FEATURES)
    }
}

/// The status of the reply, and that of the spec if it is told apart.
type Told = (u16, Option<u16>);

fn expected(state: State, op: Op, flags: u8, is_single: bool) -> Told {
    let has = |flag: u8| flags & flag != 0;
    let of_spec = |status: u16| if is_single { (status, None) } else { (0xcc, Some(status)) };
    // What is refused whatever the document is.
    let clash = has(MKDOC) && has(ADD);
    let one_path = has(AS_DELETED) && (!(has(MKDOC) || has(ADD)) || op == Op::SetMember);
    let several = has(REVIVE) && (!has(ACCESS) || has(AS_DELETED));
    if flags & !op.flags() != 0 || clash || if is_single { one_path } else { several } {
        return (0x04, None);
    }
    // Whether there is a document, as far as the request may see it.
    let is_seen = state == State::Living || (state == State::Deleted && has(ACCESS));
    let makes = has(MKDOC) || has(ADD);
    match (is_seen, state) {
        (true, _) if has(ADD) => return (0x02, None),
        (true, State::Living) if has(REVIVE) => return (0xd6, None),
        (false, _) if !makes => return (0x01, None),
        // Nobody else may have made a tombstone there.
        (false, State::Deleted) if has(ADD) && has(AS_DELETED) => return (0x02, None),
        (false, _) if has(REVIVE) && !has(AS_DELETED) => return (0xd6, None),
        _ => {}
    }
    let stays_deleted = if is_seen { state == State::Deleted } else { has(AS_DELETED) } && !has(REVIVE);
    let has_body = is_seen && state == State::Living || !is_seen && !has(AS_DELETED);
    let success = if stays_deleted { 0xcd } else { 0x00 };
    match op {
        Op::SetMember if !has_body => of_spec(0xc6),
        Op::ReplaceAttribute if !is_seen => of_spec(0x84),
        Op::BodyFromAttribute if stays_deleted => (0xd7, None),
        Op::DeleteDocument if state == State::Deleted && has(REVIVE) => (0x01, None),
        _ => (success, None),
    }
}

/// An attribute `_s`, and an object in the living one.
fn document(state: State, value: &[u8]) -> Option<Document<'_>> {
    let is_living = state == State::Living;
    let metadata = Metadata {
        cas: 1,
        seqno: 1,
        rev_seqno: 1,
        vbucket_uuid: 1,
        flags: 0,
        exptime_s: 0,
        last_modified_s: 0,
        hlc_now_s: 0,
        hlc_mode: ClockMode::Real,
    };
    let datatype = if is_living { 0x05 } else { 0x04 };
    (state != State::Missing).then_some(Document { value, datatype, deleted: !is_living, metadata })
}

fn told(state: State, op: Op, flags: u8, is_single: bool) -> Told {
    let mut sent = Vec::new();
    let request = match op.parse(flags, is_single, &mut sent) {
        Ok(request) => request,
        Err(refusal) => return (refusal.status, None),
    };
    let pair = b"_s\0{}\0";
    let mut value =
        [&(pair.len() as u32 + 4).to_be_bytes()[..], &(pair.len() as u32).to_be_bytes(), pair].concat();
    if state == State::Living {
        value.extend(b"{}");
    }
    let outcome = mutate(document(state, &value), &request);
    (outcome.status, outcome.failed.map(|(_, status)| status))
}

#[test]
fn every_combination_is_answered_as_the_documents_say() {
    let mut combinations = 0;
    for state in [State::Living, State::Deleted, State::Missing] {
        for op in OPS {
            for flags in 0..=(MKDOC | ADD | ACCESS | AS_DELETED | REVIVE) {
                for is_single in [false, true] {
                    if is_single && !op.is_command() {
                        continue;
                    }
                    let (is, shall) =
                        (told(state, op, flags, is_single), expected(state, op, flags, is_single));
                    assert_eq!(
                        is, shall,
                        "{op:?} on a {state:?} document with {flags:#04x}, single: {is_single}"
                    );
                    combinations += 1;
                }
            }
        }
    }
    assert_eq!(combinations, 3 * 32 * (6 + 4));
}
