//! Reading documents: get and its variants, get replica, GetEx, get random key.

use std::borrow::Cow;

use base::{Datatype, DocKey, VbState, Version};
use engine::value::WantedXattrs;
use engine::{ByChance, Found, Refusal, Whole, value};
use protocol::feature::Feature;
use protocol::{Request, Status, opcode};

use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;

/// Get: flags, value and CAS of a document.
pub fn get(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let found = cx.bucket().documents().get(request.vbucket, cx.key, cx.now);
    answer(cx, request, found)
}

/// Get replica: the same from a replica vBucket.
pub fn get_replica(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let found = cx.bucket().documents().get_replica(request.vbucket, cx.key, cx.now);
    answer(cx, request, found)
}

/// GetEx: flags, CAS and the whole value of a document, its xattrs in front, compressed if it is held so. Those of the
/// system are left out for users who may not read them.
pub fn get_ex(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    whole(cx, |cx| cx.bucket().documents().get(request.vbucket, cx.key, cx.now))
}

/// GetExReplica: the same from a replica vBucket.
pub fn get_ex_replica(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    whole(cx, |cx| cx.bucket().documents().get_replica(request.vbucket, cx.key, cx.now))
}

/// What a client has not agreed to, and must have to understand a whole value (BinaryProtocol.md of the original).
fn lacking_for_whole(cx: &Context<'_>) -> Option<&'static str> {
    let has = |feature| cx.session.has(feature);
    let needed = [
        (Feature::Xattr, "Xattr support must be enabled"),
        (Feature::Json, "JSON support must be enabled"),
        (Feature::SnappyEverywhere, "SnappyEverywhere support must be enabled"),
    ];
    needed.into_iter().find(|(feature, _)| !has(*feature)).map(|(_, what)| what)
}

fn whole(cx: &mut Context<'_>, read: impl FnOnce(&Context<'_>) -> Result<Found, Refusal>) -> Outcome {
    if let Some(what) = lacking_for_whole(cx) {
        return cx.error(Status::NotSupported, what);
    }
    match read(cx) {
        Ok(found) => send_whole(cx, &found, &[]),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Sends flags, CAS and the whole value.
fn send_whole(cx: &mut Context<'_>, found: &Found, key: &[u8]) -> Outcome {
    let (version, meta) = (&found.version, found.version.meta());
    let wanted = if cx.may(Privilege::SystemXattrRead) { WantedXattrs::All } else { WantedXattrs::User };
    let bucket = cx.bucket();
    let takes_snappy = cx.session.has(Feature::Snappy) && bucket.keeps_compressed();
    let is_cut = meta.datatype.is_xattr() && wanted == WantedXattrs::User;
    // Then it is a copy, which takes time and memory.
    let may_be_made = is_cut || (meta.datatype.is_snappy() && !takes_snappy);
    if may_be_made {
        let plain_len = value::plain_len(version);
        if cx.may_leave && cx.takes(plain_len) {
            return Outcome::Elsewhere;
        }
        if !cx.reply.has_room(plain_len) {
            return cx.status(Status::Etmpfail);
        }
    }
    let times = bucket.value_times();
    let (shown, datatype) = match value::shown(version.value(), meta.datatype, wanted, takes_snappy, times) {
        Ok(shown) => shown,
        Err(refusal) => return cx.refuse_key(cx.vbucket, version.key(), refusal),
    };
    let flags = meta.flags.to_be_bytes();
    let datatype = cx.session.visible_datatype(datatype);
    let answer = Answer { datatype, cas: found.cas, extras: &flags, key, ..Answer::default() };
    match shown {
        Cow::Borrowed(shown) => {
            let from = version.value().len() - shown.len();
            cx.reply.send_version(&answer, version, from);
        }
        Cow::Owned(made) => cx.reply.send_made(&answer, made, 0),
    }
    Outcome::Done
}

/// Get random key: some document of the bucket, with its xattrs if the client asks for them and can understand them.
pub fn get_random_key(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let with_collections = cx.session.has(Feature::Collections);
    let with_xattrs = cx.session.has(Feature::GetRandomKeyIncludeXattr);
    let (collection, wants_xattrs) = match request.extras {
        [] if !with_collections => (0, false),
        [a, b, c, d, rest @ ..] if with_collections && rest.len() <= usize::from(with_xattrs) => {
            (u32::from_be_bytes([*a, *b, *c, *d]), rest.first().is_some_and(|asked| *asked != 0))
        }
        _ if with_collections && with_xattrs => {
            return cx.invalid("Request must include extras of length 4 or 5");
        }
        _ if with_collections => return cx.invalid("Request must include extras of length 4"),
        _ => return cx.invalid("Request must not include extras without collections"),
    };
    let Some(collection) = super::collections::check(&cx.bucket(), collection) else {
        return super::collections::unknown_collection(cx);
    };
    if let Err(denied) = cx.require_in(collection, Privilege::Read) {
        return denied;
    }
    let found = match cx.bucket().documents().random_key(collection, cx.now) {
        ByChance::Found(found) => found,
        ByChance::None => return cx.status(Status::KeyEnoent),
        ByChance::NotResident(vb, version) => return cx.refuse_key(vb, version.key(), Refusal::NotResident),
        ByChance::Evicted(vb) => {
            return cx.refuse_key(vb, DocKey { collection, key: &[] }, Refusal::NotResident);
        }
        ByChance::Loading(vb) => return cx.refuse_key(vb, DocKey::new(&[]), Refusal::Loading),
    };
    let stored = found.version.clone();
    if wants_xattrs && stored.meta().datatype.is_xattr() && lacking_for_whole(cx).is_none() {
        return send_whole(cx, &found, stored.stored_key());
    }
    let key = if with_collections { stored.stored_key() } else { stored.key().key };
    send(cx, &found, key)
}

/// Evict key: takes the value out of memory. While it is locked or not on disk yet it has to stay, which is told as in
/// the original.
pub fn evict_key(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if cx.bucket().state_of(request.vbucket) != Some(VbState::Active) {
        return cx.refuse(Refusal::NotMyVbucket);
    }
    match cx.bucket().eviction().evict_value(request.vbucket, cx.key) {
        Ok(true) => cx.status(Status::Success),
        Ok(false) => cx.status(Status::KeyEexists),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Answers with what was found or refused; the "K" variants and get replica name the key, as the client sent it.
pub fn answer(cx: &mut Context<'_>, request: &Request<'_>, found: Result<Found, Refusal>) -> Outcome {
    match found {
        Ok(found) => {
            let with_key = matches!(request.opcode, opcode::GETK | opcode::GETKQ | opcode::GET_REPLICA);
            send(cx, &found, if with_key { request.key } else { &[] })
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Sends flags, value and CAS.
fn send(cx: &mut Context<'_>, found: &Found, key: &[u8]) -> Outcome {
    if cx.may_leave && !is_sent_as_stored(cx, &found.version) && cx.takes(value::plain_len(&found.version)) {
        return Outcome::Elsewhere;
    }
    let flags = found.version.meta().flags.to_be_bytes();
    let Shown { datatype, plain, from } = match shown(cx, found) {
        Ok(shown) => shown,
        Err(refused) => return refused,
    };
    let answer = Answer { datatype, cas: found.cas, extras: &flags, key, ..Answer::default() };
    match plain {
        None => cx.reply.send_version(&answer, &found.version, from),
        Some(plain) => cx.reply.send_made(&answer, plain, from),
    }
    Outcome::Done
}

/// What of a document a client gets.
struct Shown {
    datatype: Datatype,
    /// The value, if it had to be inflated.
    plain: Option<Vec<u8>>,
    /// Where in that, or in the stored value, the body begins.
    from: usize,
}

/// Xattrs never travel with a plain read, and compression only if agreed on. A value that cannot be read is refused, and
/// so is one that would have to be inflated while the memory of connections is short.
fn shown(cx: &mut Context<'_>, found: &Found) -> Result<Shown, Outcome> {
    let stored = found.version.meta().datatype;
    let datatype = cx.session.visible_datatype(stored.without(Datatype::XATTR));
    if is_sent_as_stored(cx, &found.version) {
        return Ok(Shown { datatype, plain: None, from: 0 });
    }
    if stored.is_snappy() && !cx.reply.has_room(value::plain_len(&found.version)) {
        return Err(cx.status(Status::Etmpfail));
    }
    let read = cx.bucket().value_times().plain(&found.version).and_then(|plain| {
        let from = plain.len() - value::split(&plain, stored)?.1.len();
        Ok((plain, from))
    });
    match read {
        Ok((Cow::Borrowed(_), from)) => Ok(Shown { datatype, plain: None, from }),
        Ok((Cow::Owned(plain), from)) => {
            Ok(Shown { datatype: datatype.without(Datatype::SNAPPY), plain: Some(plain), from })
        }
        Err(refusal) => Err(cx.refuse_key(cx.vbucket, found.version.key(), refusal)),
    }
}

/// Gives flags, value and CAS of a document to `tell`, the value as that of the version from a byte on if it is sent
/// from where it is.
pub fn show(
    cx: &mut Context<'_>,
    found: &Found,
    tell: impl FnOnce(&mut Context<'_>, &Answer<'_>, Option<(&Whole, usize)>) -> Outcome,
) -> Outcome {
    let flags = found.version.meta().flags.to_be_bytes();
    let answer = Answer { cas: found.cas, extras: &flags, ..Answer::default() };
    match shown(cx, found) {
        Err(refused) => refused,
        Ok(Shown { datatype, plain: None, from }) => {
            tell(cx, &Answer { datatype, ..answer }, Some((&found.version, from)))
        }
        Ok(Shown { datatype, plain: Some(plain), from }) => {
            tell(cx, &Answer { datatype, value: &plain[from..], ..answer }, None)
        }
    }
}

/// With compression switched off nothing is sent compressed, although values may still be held so.
fn is_sent_as_stored(cx: &Context<'_>, version: &Version) -> bool {
    let datatype = version.meta().datatype;
    let takes_snappy = || cx.session.has(Feature::Snappy) && cx.bucket().keeps_compressed();
    !datatype.is_xattr() && (!datatype.is_snappy() || takes_snappy())
}
