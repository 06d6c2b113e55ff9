//! What of a version goes to a consumer, as was agreed on: the value or not, xattrs or not, compressed or not.

use std::borrow::Cow;

use base::{Cas, Datatype, ItemKind, SyncWrite, Version};
use engine::{Refusal, Whole, value};
use kvstore::Change;
use protocol::dcp::{Deletion, Message, Mutation, OpenFlags, What};

use crate::agreement::Agreement;
use crate::sink::Sink;
use crate::sync_writes;
use crate::system_event::{event_of, write_event};

/// Values below this are not worth compressing.
const SMALLEST_TO_COMPRESS: usize = 64;

/// What the two ends of a connection have agreed on beside the stream itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Keys carry their collection.
    pub collections: bool,
    /// Values may be compressed.
    pub snappy: bool,
    /// Datatypes may say JSON.
    pub json: bool,
}

/// The part of a version's value that is sent.
enum Content<'a> {
    Nothing,
    /// The stored value from a byte on.
    Stored(usize),
    Made(Cow<'a, [u8]>),
}

/// Writes `version` as a message of the stream that `head` belongs to; returns how many bytes it took.
/// A commit is told as such, without its value, to those who have the prepare: `has_prepare`.
/// A value that cannot be read is refused, and nothing is written.
pub fn write_version(
    out: &mut dyn Sink,
    head: Message<'_>,
    version: &Version,
    has_prepare: bool,
    agreed: &Agreement,
    features: Features,
) -> Result<usize, Refusal> {
    let change = Change::of(version);
    let whole = Whole::of(version.clone()).ok();
    let write = Write { head, change: &change, whole: whole.as_ref(), agreed, features };
    write.write(out, has_prepare)
}

/// The same for a change that is read from disk, and copied: commits are told as documents, as their prepares are gone.
pub fn write_change(
    out: &mut Vec<u8>,
    head: Message<'_>,
    change: &Change<'_>,
    agreed: &Agreement,
    features: Features,
) -> Result<usize, Refusal> {
    Write { head, change, whole: None, agreed, features }.write(out, false)
}

/// A change on its way out.
struct Write<'a> {
    head: Message<'a>,
    change: &'a Change<'a>,
    /// The version that it belongs to, if it shall be sent from there.
    whole: Option<&'a Whole>,
    agreed: &'a Agreement,
    features: Features,
}

impl Write<'_> {
    fn write<S: Sink + ?Sized>(&self, out: &mut S, has_prepare: bool) -> Result<usize, Refusal> {
        let Write { head, change, agreed, features, .. } = *self;
        if let Some(event) = event_of(change)? {
            return Ok(write_event(out, head, change, &event, agreed));
        }
        let key = sync_writes::wire_key(change, features);
        let is_abort = matches!(change.meta.sync_write, SyncWrite::Abort { .. });
        if (has_prepare || is_abort)
            && let Some(what) = sync_writes::completion(&change.meta)
        {
            let message = Message { cas: Cas(0), key, what, ..head };
            message.write(out.bytes());
            return Ok(message.wire_bytes());
        }
        let Some(value) = change.value else {
            // Read without its value because nobody wants it.
            let with_datatype = agreed.flags.has(OpenFlags::NO_VALUE_WITH_DATATYPE);
            let datatype = if with_datatype { change.meta.datatype } else { Datatype::RAW };
            let datatype = visible(datatype.without(Datatype::SNAPPY), features).0;
            let message = Message { datatype, ..finish(head, change, key, agreed) };
            message.write(out.bytes());
            return Ok(message.wire_bytes());
        };
        let (content, datatype) =
            content(value, change.meta.datatype, change.is_deleted(), agreed, features)?;
        let datatype = visible(datatype, features).0;
        let sent = match &content {
            Content::Nothing => b"",
            Content::Stored(from) => &value[*from..],
            Content::Made(value) => &value[..],
        };
        let message = Message { datatype, value: sent, ..finish(head, change, key, agreed) };
        match (&content, self.whole) {
            (Content::Stored(from), Some(whole)) => {
                message.write_head(out.bytes());
                out.value(whole, *from);
            }
            _ => message.write(out.bytes()),
        }
        Ok(message.wire_bytes())
    }
}

/// The message of a change, without its value and what describes that.
#[inline(always)]
fn finish<'a>(head: Message<'a>, change: &Change<'_>, key: &'a [u8], agreed: &Agreement) -> Message<'a> {
    let (meta, frequency) = (&change.meta, change.frequency);
    let deletion = |delete_time| Deletion { by_seqno: meta.by_seqno, rev_seqno: meta.rev_seqno, delete_time };
    let mutation = Mutation {
        by_seqno: meta.by_seqno,
        rev_seqno: meta.rev_seqno,
        flags: meta.flags,
        expiry: meta.expiry,
        lock_time: 0,
        nru: if agreed.full_frequencies { frequency } else { not_used(frequency) },
    };
    let what = match (meta.sync_write, meta.kind) {
        (SyncWrite::Prepare(level), kind) => sync_writes::prepare(level, kind, mutation),
        // Only for those who also want to know when.
        (_, ItemKind::Expiration) if agreed.expirations && agreed.flags.has(OpenFlags::DELETE_TIMES) => {
            What::Expiration(deletion(Some(meta.expiry)))
        }
        (_, ItemKind::Deletion | ItemKind::Expiration) => {
            let times = agreed.flags.has(OpenFlags::DELETE_TIMES);
            What::Deletion(deletion(times.then_some(meta.expiry)))
        }
        _ => What::Mutation(mutation),
    };
    Message { cas: meta.cas, key, what, ..head }
}

/// How long a document was not used, in the four steps that older consumers know: 0 for lately.
fn not_used(frequency: u8) -> u8 {
    3 - frequency / 64
}

/// Only what the consumer knows of.
fn visible(datatype: Datatype, features: Features) -> Datatype {
    let datatype = if features.json { datatype } else { datatype.without(Datatype::JSON) };
    if features.snappy { datatype } else { datatype.without(Datatype::SNAPPY) }
}

/// The part of a value that is sent. Most are sent as they are stored.
#[inline]
fn content<'a>(
    stored: &'a [u8],
    datatype: Datatype,
    is_tombstone: bool,
    agreed: &Agreement,
    features: Features,
) -> Result<(Content<'a>, Datatype), Refusal> {
    let is_whole =
        !agreed.flags.has(OpenFlags::NO_VALUE) && !agreed.flags.has(OpenFlags::NO_VALUE_WITH_DATATYPE);
    let is_as_stored = !datatype.is_xattr() && !datatype.is_snappy() && !agreed.force_compression;
    if is_whole && is_as_stored {
        return Ok((Content::Stored(0), datatype));
    }
    other_content(stored, datatype, is_tombstone, agreed, features)
}

fn other_content<'a>(
    stored: &'a [u8],
    datatype: Datatype,
    is_tombstone: bool,
    agreed: &Agreement,
    features: Features,
) -> Result<(Content<'a>, Datatype), Refusal> {
    let has_xattrs = datatype.is_xattr();
    let wants_xattrs = agreed.flags.has(OpenFlags::XATTRS);
    let no_value = agreed.flags.has(OpenFlags::NO_VALUE);
    let no_value_with_datatype = agreed.flags.has(OpenFlags::NO_VALUE_WITH_DATATYPE);
    if no_value || no_value_with_datatype {
        let kept = if no_value_with_datatype { datatype.without(Datatype::SNAPPY) } else { Datatype::RAW };
        // The datatype is that of the document, whatever of it is sent.
        if !(has_xattrs && wants_xattrs) {
            return Ok((Content::Nothing, kept));
        }
        let section = value::stored_section(stored, datatype)?.into_owned();
        let kept = if no_value_with_datatype { kept } else { Datatype::XATTR };
        return Ok(pack(Cow::Owned(section), kept, agreed, features));
    }
    if has_xattrs && !wants_xattrs {
        let plain = value::plain_of(stored, datatype)?;
        let body_len = value::split(&plain, datatype)?.1.len();
        let kept = datatype.without(Datatype::XATTR).without(Datatype::SNAPPY);
        return Ok(match plain {
            Cow::Borrowed(plain) => (Content::Stored(plain.len() - body_len), kept),
            Cow::Owned(plain) => {
                pack(Cow::Owned(plain[plain.len() - body_len..].to_vec()), kept, agreed, features)
            }
        });
    }
    if is_tombstone && has_xattrs && !agreed.flags.has(OpenFlags::DELETED_USER_XATTRS) {
        let section = value::stored_section(stored, datatype)?;
        let system = value::split(&section, datatype)?.0.system_section();
        let kept = if system.is_empty() { Datatype::RAW } else { Datatype::XATTR };
        return Ok(pack(Cow::Owned(system), kept, agreed, features));
    }
    if datatype.is_snappy() && !features.snappy {
        return Ok((Content::Made(value::plain_of(stored, datatype)?), datatype.without(Datatype::SNAPPY)));
    }
    if agreed.force_compression && !datatype.is_snappy() {
        return Ok(pack(Cow::Borrowed(stored), datatype, agreed, features));
    }
    Ok((Content::Stored(0), datatype))
}

/// Compresses a plain value if that was agreed on and helps.
fn pack<'a>(
    plain: Cow<'a, [u8]>,
    datatype: Datatype,
    agreed: &Agreement,
    features: Features,
) -> (Content<'a>, Datatype) {
    if agreed.force_compression
        && features.snappy
        && plain.len() >= SMALLEST_TO_COMPRESS
        && let Ok(packed) = snap::raw::Encoder::new().compress_vec(&plain)
        && packed.len() < plain.len()
    {
        return (Content::Made(Cow::Owned(packed)), datatype.with(Datatype::SNAPPY));
    }
    (Content::Made(plain), datatype)
}

#[cfg(test)]
mod tests {
    use base::{DocKey, Heap, NewVersion, Seqno, VbId, VersionMeta};
    use protocol::dcp::EndReason;

    use super::*;

    fn write(
        datatype: Datatype,
        key: DocKey<'_>,
        value: &[u8],
        flags: u32,
    ) -> (Result<usize, Refusal>, usize) {
        let meta = VersionMeta { datatype, by_seqno: Seqno(1), ..VersionMeta::default() };
        let version = NewVersion::new(Heap::shared(), meta, key, &[value]).publish();
        let head = Message {
            vb: VbId(0),
            opaque: 0,
            stream_id: None,
            cas: Cas(0),
            datatype: 0,
            key: b"",
            value: b"",
            what: What::End(EndReason::Ok),
        };
        let agreed = Agreement::open(OpenFlags(flags | OpenFlags::PRODUCER), b"stream", false);
        let agreed = agreed.expect("valid flags");
        let mut out = Vec::new();
        let written = write_change(&mut out, head, &Change::of(&version), &agreed, Features::default());
        (written, out.len())
    }

    #[test]
    fn a_value_that_cannot_be_read_is_not_sent_as_an_empty_one() {
        let key = DocKey::new(b"k");
        let refused = (Err(Refusal::Unreadable), 0);
        assert_eq!(write(Datatype::SNAPPY, key, b"no block", 0), refused);
        for flags in [0, OpenFlags::NO_VALUE | OpenFlags::XATTRS] {
            assert_eq!(write(Datatype::XATTR, key, b"\0\0", flags), refused);
            assert_eq!(write(Datatype(6), key, b"no block", flags), refused);
        }
        assert!(write(Datatype::RAW, key, b"no block", 0).0.is_ok());
    }

    #[test]
    fn a_system_event_that_cannot_be_read_is_not_passed_over() {
        let key = DocKey { collection: base::CollectionId::SYSTEM, key: b"?" };
        assert_eq!(write(Datatype::RAW, key, b"no event", 0), (Err(Refusal::Unreadable), 0));
    }
}
