//! Bodies of fuzz targets: any bytes at all may be given, and nothing may panic.

use crate::dcp::{CollectionNames, FailoverLog, Message, OpenFlags, StreamRequest, WireEvent};
use crate::frame::{Limits, Parsed, parse};
use crate::response::{ParsedResponse, parse_response};
use crate::{extras, feature};

/// Parses bytes as a client's stream, frame by frame, and decodes everything that is in the frames.
/// Returns how many requests there were.
pub fn requests(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    loop {
        let consumed = match parse(bytes, Limits::AUTHENTICATED) {
            Parsed::Incomplete { need } => {
                assert!(need > bytes.len(), "what is there already was asked for again");
                return count;
            }
            Parsed::Bad(_) => return count,
            Parsed::Answer { total_len, .. } => total_len,
            Parsed::Request { request, total_len } => {
                count += 1;
                assert_eq!(total_len, crate::HEADER_BYTES + request.body_len());
                if let Err(error) = request.decode_frame_infos() {
                    let _ = error.context();
                }
                all_extras(request.extras);
                let _ = feature::Features::decode(request.value);
                total_len
            }
        };
        bytes = bytes.get(consumed..).expect("a whole frame was there");
    }
}

/// Parses bytes as what a producer of changes sends, and reads each message, which is what is read again when it is
/// written. Returns how many messages there were.
pub fn changes(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    let mut names = CollectionNames::new();
    while let Parsed::Request { request, total_len } = parse(bytes, Limits::AUTHENTICATED) {
        let _ = OpenFlags::decode(request.extras);
        let _ = StreamRequest::decode(request.extras);
        let _ = FailoverLog::decode(request.value);
        if let Some(message) = Message::read(&request) {
            count += 1;
            if let Some(event) = WireEvent::read(&message.what, message.key, message.value) {
                names.learn(&event);
            }
            let mut written = Vec::new();
            message.write(&mut written);
            let Parsed::Request { request, .. } = parse(&written, Limits::AUTHENTICATED) else {
                panic!("what was written is no request: {written:02x?}")
            };
            assert_eq!(Message::read(&request).as_ref(), Some(&message), "what was read is read again");
        }
        bytes = bytes.get(total_len..).expect("a whole frame was there");
    }
    count
}

/// Parses bytes as a server's stream. Returns how many answers there were.
pub fn responses(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let ParsedResponse::Response { response, total_len } = parse_response(bytes, 1 << 20) {
        count += 1;
        let _ = (response.status(), response.server_duration_us());
        bytes = bytes.get(total_len..).expect("a whole frame was there");
    }
    count
}

fn all_extras(bytes: &[u8]) {
    let _ = extras::decode_u32(bytes);
    let _ = extras::decode_u64(bytes);
    let _ = extras::StoreExtras::decode(bytes);
    let _ = extras::CounterExtras::decode(bytes);
    let _ = extras::MutationToken::decode(bytes);
    let _ = extras::WithMetaExtras::decode(bytes);
    let _ = extras::GetMetaExtras::decode(bytes);
    let _ = extras::ConfigVersion::decode(bytes);
    let _ = extras::SubdocExtras::decode(bytes);
    let _ = extras::SubdocMultiExtras::decode(bytes);
}
