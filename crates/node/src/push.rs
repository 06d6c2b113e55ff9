//! New cluster maps, sent to clients that did not ask for this one: as a request of the server that nobody answers
//! (BinaryProtocol.md, Clustermap change notification).

use base::Datatype;
use protocol::feature::Feature;
use protocol::{RequestParts, opcode, write_server_request};

use crate::node::Node;
use crate::output::Output;
use crate::session::Session;

/// Tells a client that agreed to it of the newest map of its bucket, or of the node if it has selected none: the whole
/// map, or that there is one. Nothing if it has that map or was told of it.
pub fn newest_map(session: &mut Session, node: &Node, out: &mut Output) {
    let is_brief = session.has(Feature::ClustermapChangeNotificationBrief);
    if !session.is_authenticated() || !is_brief && !session.has(Feature::ClustermapChangeNotification) {
        return;
    }
    let maps = node.cluster_map();
    let version = maps.version();
    if session.sent_map.max(session.told_map).is_some_and(|known| known >= version) {
        return;
    }
    let bucket = session.bucket.as_ref().map(|bucket| bucket.name().to_owned()).unwrap_or_default();
    let map = if bucket.is_empty() { Some(maps.global()) } else { maps.bucket(&bucket) };
    let Some(map) = map else { return };
    let (extras, value) = (version.encode(), if is_brief { &[][..] } else { map.json() });
    let parts = RequestParts {
        opcode: opcode::CLUSTERMAP_CHANGE_NOTIFICATION,
        datatype: if is_brief { Datatype::RAW.0 } else { session.visible_datatype(Datatype::JSON).0 },
        extras: &extras,
        key: bucket.as_bytes(),
        value,
        ..RequestParts::default()
    };
    assert!(write_server_request(out.bytes(), &parts), "a map fits into a frame");
    if is_brief {
        session.told_map = Some(version);
    } else {
        session.sent_map = Some(version);
    }
}
