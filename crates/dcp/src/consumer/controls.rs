//! What a consumer agrees on with its producer when the connection is opened.
//!
//! Sources: `docs/dcp/documentation/commands/{open-connection,control}.md`.

use protocol::dcp::OpenFlags;
use protocol::{RequestParts, Status, opcode};

use super::{ConsumerConfig, Disconnect, send};

/// Opaques of what is not about a stream begin here; those of streams are below.
pub(super) const OTHER_OPAQUES: u32 = 0x8000_0000;
const OPEN: u32 = OTHER_OPAQUES;
const FIRST_CONTROL: u32 = OTHER_OPAQUES + 1;

/// Control messages in the order in which they are sent: key, value, and whether it does not work without.
fn controls(config: &ConsumerConfig) -> Vec<(&'static str, String, bool)> {
    let yes = || "true".to_owned();
    let mut all = vec![
        ("enable_noop", yes(), true),
        ("set_noop_interval", config.noop_interval_s.to_string(), true),
        ("connection_buffer_size", config.buffer_bytes.to_string(), true),
        ("enable_expiry_opcode", yes(), false),
        ("supports_cursor_dropping", yes(), false),
    ];
    if let Some(name) = &config.consumer_name {
        all.push(("enable_sync_writes", yes(), false));
        all.push(("consumer_name", name.clone(), false));
    }
    if config.features.collections {
        all.push(("max_marker_version", "2.2".to_owned(), false));
    }
    if config.change_streams {
        // A producer that keeps no history refuses it, as does one of a version that does not know it.
        all.push(("change_streams", yes(), false));
        // Whether a collection has a part in the history is told by no other form of these events.
        all.push(("flatbuffers_system_events", yes(), false));
    }
    all
}

/// Writes what opens the connection.
pub(super) fn open(config: &ConsumerConfig, out: &mut Vec<u8>) {
    let flags =
        OpenFlags::PRODUCER | OpenFlags::XATTRS | OpenFlags::DELETE_TIMES | OpenFlags::DELETED_USER_XATTRS;
    let parts = RequestParts {
        opcode: opcode::DCP_OPEN,
        opaque: OPEN,
        key: config.name.as_bytes(),
        extras: &OpenFlags(flags).encode(),
        ..RequestParts::default()
    };
    send(out, &parts);
}

/// Writes what a connection for changes is to have agreed on.
pub(super) fn agree(config: &ConsumerConfig, out: &mut Vec<u8>) {
    for (at, (key, value, _)) in controls(config).iter().enumerate() {
        let parts = RequestParts {
            opcode: opcode::DCP_CONTROL,
            opaque: FIRST_CONTROL + at as u32,
            key: key.as_bytes(),
            value: value.as_bytes(),
            ..RequestParts::default()
        };
        send(out, &parts);
    }
}

/// Takes the answer to one of these; what may be refused and was, is done without.
pub(super) fn answered(
    config: &ConsumerConfig,
    opcode: u8,
    opaque: u32,
    status_code: u16,
) -> Result<(), Disconnect> {
    if status_code == Status::Success.code() {
        return Ok(());
    }
    if opcode == opcode::DCP_OPEN {
        return Err(Disconnect::Refused("to be asked for changes (DCP open)", status_code));
    }
    let at = opaque.checked_sub(FIRST_CONTROL).and_then(|at| usize::try_from(at).ok());
    match at.and_then(|at| controls(config).into_iter().nth(at)) {
        Some((key, _, true)) => Err(Disconnect::Refused(key, status_code)),
        Some((_, _, false)) => Ok(()),
        None => Err(Disconnect::Unreadable(opcode)),
    }
}
