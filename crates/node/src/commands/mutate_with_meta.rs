//! Mutate with meta (kv_engine docs/mutate-with-meta.md): set, add or delete with metadata that are JSON behind the value,
//! and with CAS and seqno written into the xattrs (record 0116).

use std::borrow::Cow;

use base::{Cas, Datatype, ItemKind, RevSeqno, VersionMeta};
use engine::Refusal;
use protocol::Request;
use protocol::Status;
use protocol::extras::WithMetaExtras;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use subdoc::exec::{Late, MacroKind, Placeholder};
use subdoc::xattr::{KeyKind, key_kind};

use crate::commands::meta::{self, WithMetaChange};
use crate::context::{Context, Outcome};
use crate::privilege::Privilege;

/// The most that the metadata behind a value may take, so that what is made of them is bounded: offsets for every place
/// that xattrs of the largest size have are fewer.
const MOST_META_BYTES: usize = 1 << 20;
/// What is written at an offset: `0x` and 16 digits.
const PATCH_BYTES: usize = 18;

/// The metadata, as a client writes them.
#[derive(Deserialize)]
struct Given {
    command: Command,
    cas: Option<Number>,
    #[serde(default)]
    expiration: Number,
    #[serde(default)]
    flags: Number,
    #[serde(default = "first_revision")]
    rev_seqno: Number,
    #[serde(default)]
    options: Number,
    #[serde(default)]
    cas_offsets: Vec<usize>,
    #[serde(default)]
    seqno_offsets: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Command {
    Add,
    Set,
    Delete,
}

/// A number, or a text with one: decimal, or hexadecimal behind `0x`.
#[derive(Clone, Copy, Default)]
struct Number(u64);

fn first_revision() -> Number {
    Number(1)
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written<'a> {
            Number(u64),
            Text(#[serde(borrow)] Cow<'a, str>),
        }
        let number = match Written::deserialize(deserializer)? {
            Written::Number(number) => Some(number),
            Written::Text(text) => match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            },
        };
        number.map(Number).ok_or_else(|| D::Error::custom("a number, or a text like \"0x1f\", is needed"))
    }
}

impl Number {
    fn u32(self) -> Result<u32, String> {
        u32::try_from(self.0).map_err(|_| format!("{} is more than 32 bits hold", self.0))
    }
}

/// The command's handler.
pub fn mutate_with_meta(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let change = match understand(request) {
        Ok(change) => change,
        Err(Unsound::Xattrs) => return meta::answer(cx, Err(Refusal::BadXattr)),
        Err(Unsound::Told(why)) => return cx.invalid(&why),
    };
    if !meta::are_possible(cx, change.options) {
        return cx.status(Status::Einval);
    }
    if !cx.may(Privilege::SystemXattrWrite)
        && engine::value::split(&change.value, change.datatype)
            .is_ok_and(|(xattrs, _)| xattrs.system_bytes() > 0)
        && let Err(denied) = cx.require(Privilege::SystemXattrWrite)
    {
        return denied;
    }
    let applied = meta::apply(cx, request, &change);
    meta::answer(cx, applied)
}

/// Whether a request is sound, and deletes.
pub(crate) fn deletes(request: &Request<'_>) -> bool {
    understand(request).is_ok_and(|change| change.meta.kind != ItemKind::Mutation)
}

/// Why a request is refused before anything is looked up.
enum Unsound {
    /// The xattrs are malformed.
    Xattrs,
    Told(String),
}

fn told<T>(why: impl Into<String>) -> Result<T, Unsound> {
    Err(Unsound::Told(why.into()))
}

fn understand<'a>(request: &Request<'a>) -> Result<WithMetaChange<'a>, Unsound> {
    let Ok(meta_bytes) = request.extras.try_into().map(u32::from_be_bytes) else {
        return told("Invalid extras length");
    };
    let sent = Datatype(request.datatype);
    let plain: Cow<'a, [u8]> = if sent.is_snappy() {
        let most = base::limits::MAX_VALUE_BYTES + base::limits::MAX_SYSTEM_XATTR_BYTES + MOST_META_BYTES;
        match engine::value::inflate(request.value, most) {
            Ok(plain) => plain.into(),
            Err(_) => return told("Failed to validate input: the value is no Snappy block, or too large"),
        }
    } else {
        request.value.into()
    };
    let datatype = sent.without(Datatype::SNAPPY);
    if meta_bytes as usize > MOST_META_BYTES {
        return told("Invalid metadata length: 1 MiB is the most");
    }
    let Some(value_len) = plain.len().checked_sub(meta_bytes as usize) else {
        return told("Invalid metadata length");
    };
    let given: Given = match serde_json::from_slice(&plain[value_len..]) {
        Ok(given) => given,
        Err(error) => return told(format!("Failed to validate input: {error}")),
    };
    let mut value = match plain {
        Cow::Borrowed(plain) => Cow::Borrowed(&plain[..value_len]),
        Cow::Owned(mut plain) => {
            plain.truncate(value_len);
            Cow::Owned(plain)
        }
    };
    check_cas(&given)?;
    let late = late(&given, &mut value, datatype)?;
    if given.command == Command::Delete {
        check_tombstone(&value, datatype)?;
    }
    let number =
        |number: Number| number.u32().or_else(|why| told(format!("Failed to validate input: {why}")));
    let options = number(given.options)?;
    let kind = match (given.command, options & WithMetaExtras::IS_EXPIRATION != 0) {
        (Command::Add | Command::Set, _) => ItemKind::Mutation,
        (Command::Delete, false) => ItemKind::Deletion,
        (Command::Delete, true) => ItemKind::Expiration,
    };
    let meta = VersionMeta {
        // Any that is valid, if the node makes one itself.
        cas: Cas(given.cas.map_or(1, |cas| cas.0)),
        rev_seqno: RevSeqno(given.rev_seqno.0),
        flags: number(given.flags)?,
        expiry: number(given.expiration)?,
        kind,
        ..VersionMeta::default()
    };
    // An empty value has no datatype.
    let datatype = if value.is_empty() { Datatype::RAW } else { datatype };
    Ok(WithMetaChange { value, datatype, meta, add: given.command == Command::Add, options, late })
}

/// A CAS is either brought or made here; only one that is made here is written into xattrs.
fn check_cas(given: &Given) -> Result<(), Unsound> {
    let regenerates = given.options.0 & u64::from(WithMetaExtras::REGENERATE_CAS) != 0;
    match (regenerates, given.cas) {
        (false, None) => told("CAS must be specified unless options contains REGENERATE_CAS"),
        (false, Some(_)) if !given.cas_offsets.is_empty() => {
            told("cas_offsets cannot be specified when cas is set")
        }
        (false, Some(_)) if !given.seqno_offsets.is_empty() => {
            told("seqno_offsets cannot be specified when cas is set")
        }
        (true, Some(_)) => told("CAS cannot be specified when REGENERATE_CAS option is set"),
        _ => Ok(()),
    }
}

/// Where CAS and seqno go: inside the xattrs, so that these stay valid. `value` gets zeros there.
fn late(given: &Given, value: &mut Cow<'_, [u8]>, datatype: Datatype) -> Result<Option<Late>, Unsound> {
    let cas = given.cas_offsets.iter().map(|offset| (*offset, MacroKind::Cas, "CAS"));
    let seqno = given.seqno_offsets.iter().map(|offset| (*offset, MacroKind::Seqno, "Seqno"));
    let mut places = cas.chain(seqno).peekable();
    if places.peek().is_none() {
        return Ok(None);
    }
    if value.is_empty() {
        return told("Cannot use offset replacements on empty documents");
    }
    if !datatype.is_xattr() {
        return told("Cannot use offset replacements on documents without xattr");
    }
    subdoc::xattr::validate(value).map_err(|_| Unsound::Xattrs)?;
    let (_, body) = engine::value::split(value, datatype).map_err(|_| Unsound::Xattrs)?;
    let section = value.len() - body.len();
    let mut placeholders = Vec::new();
    for (offset, kind, name) in places {
        let end = offset.saturating_add(PATCH_BYTES);
        if end > section {
            let text = format!(
                "{name} offset [{offset}, {end}] is out of bounds of the xattr section [0, {section}]"
            );
            return told(text);
        }
        value.to_mut()[offset..end].copy_from_slice(b"0x0000000000000000");
        placeholders.push(Placeholder { offset: offset + 2, kind });
    }
    // Digits in the place of digits change nothing more.
    if subdoc::xattr::validate(value).is_err() {
        return told("Patching seqno and cas would garble the xattr section");
    }
    Ok(Some(Late { placeholders, body_at: section }))
}

/// A tombstone keeps nothing but system xattrs.
fn check_tombstone(value: &[u8], datatype: Datatype) -> Result<(), Unsound> {
    const NO_BODY: &str = "Delete with meta: Document cannot have a body";
    if value.is_empty() {
        return Ok(());
    }
    if !datatype.is_xattr() {
        return told(NO_BODY);
    }
    subdoc::xattr::validate(value).map_err(|_| Unsound::Xattrs)?;
    let (xattrs, body) = engine::value::split(value, datatype).map_err(|_| Unsound::Xattrs)?;
    if !body.is_empty() {
        return told(NO_BODY);
    }
    if xattrs.iter().any(|(key, _)| key_kind(key) != Some(KeyKind::System)) {
        return told("Delete with meta: user-xattrs is not allowed");
    }
    Ok(())
}
