//! Bodies for fuzzers: what must hold for any bytes.

use std::path::Path;
use std::sync::Arc;

use base::env::sim::SimDisk;
use base::env::{Disk, Env, OpenMode};

use super::layout::{
    BLOCK, Cursor, FrameHead, ITEM_HEAD, RECORD_HEAD, SAVE_HEAD, SegmentHead, VERSION, kind, seed,
    segment_path,
};
use super::{Journal, JournalConfig, check_journal};

const GENERATION: u64 = 1;

/// Any bytes as the only segment, then as the records of a frame with checksums that match: read or refused, and what
/// is read is read again.
pub fn fuzz_recover(bytes: &[u8]) {
    recover(bytes);
    let mut payload = bytes.to_vec();
    let records = seal_records(&mut payload);
    let head = SegmentHead { version: VERSION, generation: GENERATION, first: 1, salt: 5 };
    let frame = FrameHead {
        payload: payload.len() as u32,
        generation: GENERATION,
        number: 1,
        durable: 0,
        needed: 1,
        salt: 5,
        records,
    };
    recover(&[&head.encode()[..], &frame.encode()[..], &payload[..]].concat());
}

fn recover(segment: &[u8]) {
    let (env, _) = Env::sim(1);
    let disk = SimDisk::new();
    let env = Env { disk: Arc::new(disk.clone()), ..env };
    let dir = Path::new("/bucket");
    disk.create_dir_all(dir).expect("a folder");
    let file = disk.open(&segment_path(dir, GENERATION), OpenMode::CreateNew).expect("a file");
    file.write_at(segment, 0).expect("a write");
    let report = check_journal(&disk, dir).expect("the disk works");
    let config = JournalConfig { segment_bytes: 16 * BLOCK as u64, ..JournalConfig::default() };
    let read = || {
        let mut told = Vec::new();
        let recovered = Journal::recover(env.clone(), dir, config, &mut |_, replayed| {
            told.push(format!("{replayed:?}"));
            Ok(())
        });
        recovered.map(|_| told)
    };
    let first = read();
    assert_eq!(first.is_ok(), report.is_clean(), "checking and recovering agree: {report:?}");
    if let Ok(told) = first {
        let again = read().expect("what was recovered is recovered again");
        // a table in the last frame becomes records, and stands in the new table too
        assert!(again.ends_with(&told) || told.iter().all(|one| again.contains(one)));
    }
}

/// Makes lengths and checksums fit, as far as there are bytes; answers how many records there are.
fn seal_records(payload: &mut Vec<u8>) -> u32 {
    let (mut at, mut records) = (0, 0);
    while payload.len() - at >= SAVE_HEAD {
        let rest = payload.len() - at;
        let wanted = usize::from(u16::from_le_bytes([payload[at], payload[at + 1]]));
        let len = if (SAVE_HEAD..rest.saturating_sub(SAVE_HEAD)).contains(&wanted) { wanted } else { rest };
        payload[at + 8] %= 8;
        seal_record(&mut payload[at..at + len]);
        (at, records) = (at + len, records + 1);
    }
    payload.truncate(at);
    records
}

fn seal_record(record: &mut [u8]) {
    let len = record.len();
    record[..4].copy_from_slice(&(len as u32).to_le_bytes());
    let vb = u16::from_le_bytes([record[10], record[11]]);
    let mut sealed = len;
    if record[8] == kind::SAVE {
        let state = usize::from(record[RECORD_HEAD + 4]).min(len - SAVE_HEAD);
        record[RECORD_HEAD + 4..SAVE_HEAD].copy_from_slice(&(state as u32).to_le_bytes());
        sealed = SAVE_HEAD + state;
        let items = seal_items(&mut record[sealed..], seed(GENERATION, vb));
        if record[9] & 16 == 0 {
            record[RECORD_HEAD..RECORD_HEAD + 4].copy_from_slice(&items.to_le_bytes());
            record[9] &= 15;
        }
    }
    let crc = crc32c::crc32c_append(seed(GENERATION, vb), &record[..4]);
    let crc = crc32c::crc32c_append(crc, &record[8..sealed]);
    record[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn seal_items(bytes: &mut [u8], seed: u32) -> u32 {
    let (mut at, mut items) = (0, 0);
    while bytes.len() - at >= ITEM_HEAD {
        let item = &mut bytes[at..];
        let key = usize::from(item[8]).min(item.len() - ITEM_HEAD);
        let most = item.len() - ITEM_HEAD - key;
        let wanted = Cursor(&item[4..8]).u32().map_or(0, |value| value as usize % 64).min(most);
        let value = if most - wanted < ITEM_HEAD { most } else { wanted };
        item[8] = key as u8;
        item[4..8].copy_from_slice(&(value as u32).to_le_bytes());
        let len = ITEM_HEAD + key + value;
        let crc = crc32c::crc32c_append(seed, &item[4..len]);
        item[..4].copy_from_slice(&crc.to_le_bytes());
        (at, items) = (at + len, items + 1);
    }
    items
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The only frame goes on with a save of which the beginning is missing.
    #[test]
    fn a_save_without_its_beginning() {
        let mut record = vec![20, 0, 0, 0, 0, 0, 0, 0, kind::SAVE, 0, 1, 0];
        record.extend_from_slice(&[0, 0, 0, 0, 90, 0, 0, 0]);
        fuzz_recover(&record);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz_recover(&bytes);
        }

        /// Mostly forms that exist.
        #[test]
        fn nearly_records(
            records in proptest::collection::vec(
                (0_u8..8, prop_oneof![Just(0_u8), 0_u8..20], any::<u8>(), proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 8..200)),
                0..5,
            ),
        ) {
            let mut bytes = Vec::new();
            for (kind, flags, state, rest) in records {
                let len = (RECORD_HEAD + rest.len()) as u32;
                bytes.extend_from_slice(&len.to_le_bytes());
                bytes.extend_from_slice(&[0, 0, 0, 0, kind, flags, 1, 0]);
                bytes.extend_from_slice(&rest);
                let at = bytes.len() - rest.len() + 4;
                bytes[at] = if state < 128 { 90 } else { state };
            }
            fuzz_recover(&bytes);
        }
    }
}
