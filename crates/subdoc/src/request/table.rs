//! One row for every operation: its code, and what a spec with it may and must have.

use super::{LookupOp, MutationOp, doc_flag, path_flag};
use crate::ops::Operation;

/// What a spec must or must not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Required,
    Optional,
    Forbidden,
}

/// The rules for one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub path: Need,
    pub value: Need,
    pub path_flags: u8,
    pub mandatory_flags: u8,
    pub doc_flags: u8,
}

const LOOKUP: Rules = Rules {
    path: Need::Required,
    value: Need::Forbidden,
    path_flags: path_flag::XATTR,
    mandatory_flags: 0,
    doc_flags: doc_flag::ACCESS_DELETED | doc_flag::REVIVE | doc_flag::REPLICA_READ,
};

const INSERTING: Rules = Rules {
    path: Need::Required,
    value: Need::Required,
    path_flags: path_flag::MKDIR_P | path_flag::XATTR | path_flag::EXPAND_MACROS,
    mandatory_flags: 0,
    doc_flags: doc_flag::MKDOC
        | doc_flag::ADD
        | doc_flag::ACCESS_DELETED
        | doc_flag::CREATE_AS_DELETED
        | doc_flag::REVIVE,
};

/// Operations that need something at the path. That `ADD` passes, to fail later, is as recorded.
const EXISTING: Rules = Rules {
    path: Need::Required,
    value: Need::Required,
    path_flags: path_flag::XATTR | path_flag::EXPAND_MACROS,
    mandatory_flags: 0,
    doc_flags: doc_flag::ADD | doc_flag::ACCESS_DELETED | doc_flag::REVIVE,
};

const WHOLE: Rules =
    Rules { path: Need::Forbidden, value: Need::Forbidden, path_flags: 0, mandatory_flags: 0, doc_flags: 0 };

/// Operations whose value, or what is read, may be bytes.
const fn with_binary(rules: Rules) -> Rules {
    Rules { path_flags: rules.path_flags | path_flag::BINARY_VALUE, ..rules }
}

/// The look-up with that code, and whether it exists as a command of its own.
pub(super) fn lookup(code: u8) -> Option<(LookupOp, Rules, bool)> {
    Some(match code {
        0x00 => (LookupOp::GetDoc, Rules { doc_flags: LOOKUP.doc_flags, ..WHOLE }, false),
        0xc5 => (LookupOp::Get, with_binary(LOOKUP), true),
        0xc6 => (LookupOp::Exists, LOOKUP, true),
        0xd2 => (LookupOp::GetCount, Rules { path: Need::Optional, ..LOOKUP }, true),
        _ => return None,
    })
}

/// The mutation with that code, and whether it exists as a command of its own.
pub(super) fn mutation(code: u8) -> Option<(MutationOp, Rules, bool)> {
    let array = Rules { path: Need::Optional, ..INSERTING };
    let plain_values = path_flag::MKDIR_P | path_flag::XATTR;
    let (operation, rules) = match code {
        0x01 => {
            let doc_flags = doc_flag::MKDOC | doc_flag::ADD;
            return Some((MutationOp::SetDoc, Rules { value: Need::Required, doc_flags, ..WHOLE }, false));
        }
        0x04 => {
            let doc_flags = doc_flag::ACCESS_DELETED | doc_flag::REVIVE;
            return Some((MutationOp::DeleteDoc, Rules { doc_flags, ..WHOLE }, false));
        }
        0xd3 => {
            let flags = path_flag::XATTR;
            let rules = Rules {
                path: Need::Optional,
                value: Need::Forbidden,
                path_flags: flags,
                mandatory_flags: flags,
                doc_flags: doc_flag::ACCESS_DELETED | doc_flag::REVIVE,
            };
            return Some((MutationOp::ReplaceBodyWithXattr, with_binary(rules), true));
        }
        0xc7 => (Operation::DictAdd, with_binary(INSERTING)),
        0xc8 => (Operation::DictUpsert, with_binary(INSERTING)),
        0xc9 => {
            let doc_flags = doc_flag::ACCESS_DELETED | doc_flag::REVIVE;
            let rules = Rules { value: Need::Forbidden, path_flags: path_flag::XATTR, doc_flags, ..EXISTING };
            (Operation::Delete, rules)
        }
        0xca => (Operation::Replace, with_binary(EXISTING)),
        0xcb => (Operation::ArrayPushLast, array),
        0xcc => (Operation::ArrayPushFirst, array),
        0xcd => {
            let doc_flags = EXISTING.doc_flags | doc_flag::CREATE_AS_DELETED;
            (Operation::ArrayInsert, Rules { doc_flags, ..EXISTING })
        }
        // What a macro becomes is not known yet when the elements are compared.
        0xce => (Operation::ArrayAddUnique, Rules { path_flags: plain_values, ..array }),
        0xcf => (Operation::Counter, Rules { path_flags: plain_values, ..INSERTING }),
        _ => return None,
    };
    Some((MutationOp::Path(operation), rules, true))
}
