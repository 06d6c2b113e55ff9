//! System events between a vBucket and the wire.

use base::{CollectionId, ScopeId};
use engine::{Refusal, value};
use kvstore::Change;
use protocol::dcp::system_event::{self as wire, STORED_FORM};
use protocol::dcp::{Message, What, WireEvent};
use vbucket::collections::{Collection, EventKind, ManifestUid, Scope, SystemEvent};

use crate::agreement::Agreement;
use crate::sink::Sink;

/// The event that a version is; `None` if it is a document; refused if it is an event that cannot be read.
pub(crate) fn event_of(change: &Change<'_>) -> Result<Option<SystemEvent>, Refusal> {
    let key = change.key();
    if key.collection != CollectionId::SYSTEM {
        return Ok(None);
    }
    let stored = change.value.ok_or(Refusal::Unreadable)?;
    let plain = value::plain_of(stored, change.meta.datatype)?;
    let event = SystemEvent::parse(key.key, change.is_deleted(), &plain);
    event.map(Some).ok_or(Refusal::Unreadable)
}

/// Whether a consumer can be told of it at all.
pub(crate) fn is_sent(event: &SystemEvent, agreed: &Agreement) -> bool {
    agreed.stored_events || !matches!(event, SystemEvent::CollectionChanged { .. })
}

/// Writes an event as a message of the stream that `head` belongs to; returns how many bytes it took.
pub(crate) fn write_event<S: Sink + ?Sized>(
    out: &mut S,
    head: Message<'_>,
    change: &Change<'_>,
    event: &SystemEvent,
    agreed: &Agreement,
) -> usize {
    let meta = &change.meta;
    let plain = wire_event(event);
    let stored = agreed.stored_events.then(|| event.to_value());
    let plain_value = plain.map(|plain| plain.value());
    let (number, key, plain_version) = match (plain, event) {
        (Some(plain), _) => {
            let (number, version) = plain.number_and_version();
            (number, plain.key(), version)
        }
        (None, SystemEvent::CollectionChanged { collection, .. }) => {
            (wire::COLLECTION_CHANGED, collection.name.as_bytes(), STORED_FORM)
        }
        (None, _) => unreachable!("everything else has a plain form"),
    };
    let (version, value) = match (&stored, &plain_value) {
        (Some(stored), _) => (STORED_FORM, &stored[..]),
        (None, Some(plain)) => (plain_version, plain.as_bytes()),
        // Nobody asks for what cannot be told: see `is_sent`.
        (None, None) => return 0,
    };
    let what = What::SystemEvent(meta.by_seqno, number, version);
    let message = Message { cas: meta.cas, key, value, what, ..head };
    message.write(out.bytes());
    message.wire_bytes()
}

/// What versions 0 and 1 have for it: everything but a collection's change.
fn wire_event(event: &SystemEvent) -> Option<WireEvent<'_>> {
    Some(match event {
        SystemEvent::CollectionBegin { manifest, collection } => WireEvent::CollectionBegin {
            manifest: manifest.0,
            scope: collection.scope,
            collection: collection.id,
            max_ttl_s: collection.max_ttl_s,
            name: collection.name.as_bytes(),
        },
        SystemEvent::CollectionEnd { manifest, scope, id } => {
            WireEvent::CollectionEnd { manifest: manifest.0, scope: *scope, collection: *id }
        }
        SystemEvent::CollectionChanged { .. } => return None,
        SystemEvent::ScopeBegin { manifest, scope } => {
            WireEvent::ScopeBegin { manifest: manifest.0, scope: scope.id, name: scope.name.as_bytes() }
        }
        SystemEvent::ScopeEnd { manifest, id } => WireEvent::ScopeEnd { manifest: manifest.0, scope: *id },
    })
}

fn kind_of(number: u32) -> Option<EventKind> {
    Some(match number {
        wire::COLLECTION_BEGIN => EventKind::CollectionBegin,
        wire::COLLECTION_END => EventKind::CollectionEnd,
        wire::COLLECTION_CHANGED => EventKind::CollectionChanged,
        wire::SCOPE_BEGIN => EventKind::ScopeBegin,
        wire::SCOPE_END => EventKind::ScopeEnd,
        _ => return None,
    })
}

/// Reads an event from a message of a stream, in any version; nothing if it is no such message, or makes no sense.
pub fn read_event(message: &Message<'_>) -> Option<SystemEvent> {
    let What::SystemEvent(_, number, version) = message.what else { return None };
    if version == STORED_FORM {
        return SystemEvent::from_value(kind_of(number)?, message.value);
    }
    let name = |name: &[u8]| str::from_utf8(name).ok().map(str::to_owned);
    Some(match WireEvent::read(&message.what, message.key, message.value)? {
        WireEvent::CollectionBegin { manifest, scope, collection, max_ttl_s, name: bytes } => {
            let (id, name) = (collection, name(bytes)?);
            // These versions do not tell.
            let collection = Collection { id, scope, name, max_ttl_s, history: None };
            SystemEvent::CollectionBegin { manifest: ManifestUid(manifest), collection }
        }
        WireEvent::CollectionEnd { manifest, scope, collection } => {
            SystemEvent::CollectionEnd { manifest: ManifestUid(manifest), scope, id: collection }
        }
        WireEvent::ScopeBegin { manifest, scope, name: bytes } => {
            let scope = Scope { id: ScopeId(scope.0), name: name(bytes)? };
            SystemEvent::ScopeBegin { manifest: ManifestUid(manifest), scope }
        }
        WireEvent::ScopeEnd { manifest, scope } => {
            SystemEvent::ScopeEnd { manifest: ManifestUid(manifest), id: scope }
        }
    })
}
