//! Bodies for fuzzers: what must hold for any bytes.

use base::VbId;
use protocol::reader::Reader;

use super::entry::{EntryRuns, LogEntry, write_entry};
use super::frame::{FrameHeader, FrameKind, FrameSeal, HEADER_BYTES};

/// Any bytes as a frame, and as the body of one whose checksums fit: numbers of the header first.
pub fn fuzz_frame(bytes: &[u8]) {
    let _ = FrameHeader::read(bytes);
    let mut reader = Reader(bytes);
    let (Some(count), Some(first), Some(last)) = (reader.u32(), reader.u64(), reader.u64()) else { return };
    let body = reader.0;
    let mut header = FrameHeader::new(1, 2, FrameKind::Entries, VbId(3));
    (header.count, header.seqnos) = (count, (first, last));
    let mut frame = Vec::new();
    header.seal(body, &FrameSeal::default(), &mut snap::raw::Encoder::new(), &mut frame);
    let read = FrameHeader::read(&frame).expect("it was just sealed");
    assert_eq!(read.len(), frame.len() as u64);
    let (mut raw, mut begins) = (Vec::new(), Vec::new());
    read.open(&frame[HEADER_BYTES..], &FrameSeal::default(), &mut raw).expect("it was just sealed");
    assert!(raw == body, "a body is opened as it was sealed");
    if read.find_entries(&raw, &mut begins).is_ok() {
        let mut runs = EntryRuns(&raw, 0);
        let mut written = Vec::new();
        while let Ok(Some((_, entry))) = runs.next_entry() {
            let begin = written.len();
            write_entry(&mut written, &entry);
            assert!(EntryRuns(&written, begin).next_entry().is_ok_and(|found| found.is_some()));
        }
    }
}

/// Seeds of [`fuzz_frame`].
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let mut body = [0_u8; 20].to_vec();
    write_entry(&mut body, &LogEntry::Marker { start: 1, end: 2, flags: 3 });
    vec![body]
}
