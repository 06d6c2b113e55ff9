//! What the table says about a command: its layout on the wire, who may use it, what handles it.

use base::Datatype;
use protocol::{Request, Status};

use crate::command_rules::{Access, CasRule, Durability, Extent, Extras, Key, Leaves, Silence, ValueRule};
use crate::context::{Context, Outcome};
use crate::privilege::{Privilege, Privileges};

pub use crate::command_table::{ROWS, find};

/// Handles a command whose request fits its row.
pub type Handler = fn(&mut Context<'_>, &Request<'_>) -> Outcome;

/// Everything there is to know about a command.
pub struct Row {
    /// Its number.
    pub opcode: u8,
    /// Its name.
    pub name: &'static str,
    /// One line for the command reference.
    pub doc: &'static str,
    /// Which lengths the extras may have.
    pub extras: Extras,
    /// What the key may be.
    pub key: Key,
    /// What the value may be.
    pub value: ValueRule,
    /// Bytes that the value may have at most: what is taken apart takes many times as much.
    pub most_value_bytes: usize,
    /// What the CAS may be.
    pub cas: CasRule,
    /// The datatype bits the value may have.
    pub datatype: u8,
    /// Whether the vBucket must be 0.
    pub is_vbucket_zero: bool,
    /// What a durability requirement makes of it.
    pub durability: Durability,
    /// Whether keeping the expiry time makes sense.
    pub preserve_ttl: bool,
    /// Whether it may be finished in another order than it came, if that was agreed on.
    pub reorder: bool,
    /// Whether it is refused on connections that agreed to answers out of order.
    pub is_ordered: bool,
    /// Which answers are not sent.
    pub silence: Silence,
    /// Who may use it at all.
    pub access: Access,
    /// What a user must be allowed to do, whatever the request asks for. A handler asks for more with
    /// `Context::require` where that depends on the request.
    pub privileges: Privileges,
    /// Where the user must have them.
    pub extent: Extent,
    /// Whether it is refused where another node of the cluster may be active by now for what this one is.
    pub is_fenced: bool,
    /// When it leaves its worker.
    pub leaves: Leaves,
    /// Why it is refused as not supported once its request is checked; `None` if it is not.
    pub refused: Option<&'static str>,
    /// Whether it is a message of a stream into the bucket: its key and its datatype are as the producer agreed on them, on a
    /// connection of its own.
    pub brings_changes: bool,
    /// Why a node of a cluster refuses it as not supported; `None` if it does not.
    pub not_in_cluster: Option<&'static str>,
    /// What handles it.
    pub handler: Handler,
}

impl Row {
    /// A command without any part, for logged-in users.
    pub(crate) const fn new(opcode: u8, handler: Handler, doc: &'static str) -> Row {
        let Some(name) = protocol::opcode::name(opcode) else { panic!("an opcode without a name") };
        Row {
            opcode,
            name,
            doc,
            extras: Extras::None,
            key: Key::Forbidden,
            value: ValueRule::Forbidden,
            most_value_bytes: usize::MAX,
            cas: CasRule::Forbidden,
            datatype: 0,
            is_vbucket_zero: false,
            durability: Durability::Invalid,
            preserve_ttl: false,
            reorder: false,
            is_ordered: false,
            silence: Silence::None,
            access: Access::User,
            is_fenced: false,
            leaves: Leaves::Never,
            privileges: Privileges::NONE,
            extent: Extent::Bucket,
            refused: None,
            brings_changes: false,
            not_in_cluster: None,
            handler,
        }
    }

    /// A command that is known and not there: why.
    pub(crate) const fn refused(opcode: u8, doc: &'static str, why: &'static str) -> Row {
        Row { refused: Some(why), ..Row::new(opcode, not_supported, doc) }
    }

    /// A command on a document of the selected bucket.
    pub(crate) const fn document(
        opcode: u8,
        handler: Handler,
        privilege: Privilege,
        doc: &'static str,
    ) -> Row {
        let row = Row::new(opcode, handler, doc);
        Row {
            key: Key::Document,
            reorder: true,
            is_fenced: true,
            leaves: Leaves::LargeValue,
            extent: Extent::Collection,
            ..row.in_bucket().needs(privilege)
        }
    }

    pub(crate) const fn in_bucket(self) -> Row {
        Row { access: Access::Bucket(Status::NoBucket), ..self }
    }

    pub(crate) const fn without_bucket(self, status: Status) -> Row {
        Row { access: Access::Bucket(status), ..self }
    }

    pub(crate) const fn for_anybody(self) -> Row {
        Row { access: Access::Anybody, ..self }
    }

    /// Asks for one more privilege.
    pub(crate) const fn needs(self, privilege: Privilege) -> Row {
        Row { privileges: self.privileges.with(privilege), ..self }
    }

    /// It is enough to have the privileges in some collection.
    pub(crate) const fn somewhere(self) -> Row {
        Row { extent: Extent::Somewhere, ..self }
    }

    /// It tells of documents, or changes them, without the key of one.
    pub(crate) const fn fenced(self) -> Row {
        Row { is_fenced: true, ..self }
    }

    /// Only for a node alone: why.
    pub(crate) const fn not_in_cluster(self, why: &'static str) -> Row {
        Row { not_in_cluster: Some(why), ..self }
    }

    /// A message of a stream.
    pub(crate) const fn brings_changes(self) -> Row {
        Row { brings_changes: true, ..self }
    }

    pub(crate) const fn extras(self, len: u8) -> Row {
        Row { extras: Extras::Exactly(len), ..self }
    }

    pub(crate) const fn extras_of(self, lens: &'static [u8]) -> Row {
        Row { extras: Extras::OneOf(lens), ..self }
    }

    pub(crate) const fn any_extras(self) -> Row {
        Row { extras: Extras::Any, ..self }
    }

    pub(crate) const fn key(self, key: Key) -> Row {
        Row { key, ..self }
    }

    pub(crate) const fn value(self, value: ValueRule) -> Row {
        Row { value, ..self }
    }

    /// Not on connections that agreed to answers out of order.
    pub(crate) const fn in_order(self) -> Row {
        Row { is_ordered: true, ..self }
    }

    pub(crate) const fn at_most(self, most_value_bytes: usize) -> Row {
        Row { most_value_bytes, ..self }
    }

    pub(crate) const fn cas(self, cas: CasRule) -> Row {
        Row { cas, ..self }
    }

    pub(crate) const fn datatype(self, bits: u8) -> Row {
        Row { datatype: bits, ..self }
    }

    /// The value of a document: JSON and Snappy bits make sense.
    pub(crate) const fn document_value(self) -> Row {
        Row { value: ValueRule::Optional, datatype: Datatype::JSON.0 | Datatype::SNAPPY.0, ..self }
    }

    pub(crate) const fn vbucket_zero(self) -> Row {
        Row { is_vbucket_zero: true, ..self }
    }

    pub(crate) const fn durable(self) -> Row {
        Row { durability: Durability::Carried, ..self }
    }

    pub(crate) const fn refuses_durability(self) -> Row {
        Row { durability: Durability::NotSupported, ..self }
    }

    pub(crate) const fn keeps_ttl(self) -> Row {
        Row { preserve_ttl: true, ..self }
    }

    /// Says when it leaves its worker.
    pub(crate) const fn leaves(self, leaves: Leaves) -> Row {
        Row { leaves, ..self }
    }

    /// What is silent must not be overtaken: clients find out by what is answered behind it.
    pub(crate) const fn quiet(self, silence: Silence) -> Row {
        Row { silence, ..self.in_turn() }
    }

    /// Waits for what came before it, and is waited for, also where answers may overtake each other.
    pub(crate) const fn in_turn(self) -> Row {
        Row { reorder: false, ..self }
    }
}

/// Says why.
pub fn not_supported(cx: &mut Context<'_>, _: &Request<'_>) -> Outcome {
    cx.error(Status::NotSupported, cx.row.refused.unwrap_or_default())
}
