//! Bits turn over, and files hold anything: an error or the same, never a wrong value, never a panic.

use base::env::OpenMode;
use proptest::prelude::*;

use super::super::check_journal;
use super::super::layout::{BLOCK, COMPRESSED_VERSION, FrameHead, SegmentHead, VERSION, segment_path};
use super::*;

fn tiny() -> JournalConfig {
    JournalConfig { segment_bytes: 12 << 10, frame_bytes: 4 << 10, spare_segments: 1, compresses: false }
}

/// Two segments with a few frames; answers what is in it.
fn small_journal() -> (SimDisk, Told) {
    let disk = fresh_disk();
    let (journal, _) = recover(&disk, tiny()).expect("a journal");
    let mut maker = Maker::new(3);
    maker.most_value = 60;
    let mut table = Table::new();
    for i in 0..7 {
        let filed = Owned::Filed(Filed {
            vb: VbId(1),
            through: Frame(i),
            revision: 1,
            header_offset: 4096 * i,
            checksum: None,
        });
        let call = [maker.save(3), filed];
        journal.append(&records(&call), &|| entries(&table)).expect("a call");
        call.iter().for_each(|record| record.note(&mut table));
    }
    drop(journal);
    let (_, told) = recover(&disk.image(base::env::sim::Survival::Synced), tiny()).expect("a recovery");
    (disk, told)
}

#[test]
fn every_bit_counts() {
    let (disk, whole) = small_journal();
    let (mut errors, mut ends, mut same) = (0, 0, 0);
    for (path, content) in disk.contents() {
        for offset in 0..content.len() as u64 {
            // bits of one byte fare alike in padding: one is enough there
            let bits = if content[offset as usize..].iter().take(64).all(|byte| *byte == 0) { 1 } else { 8 };
            for bit in 0..bits {
                let image = disk.image(base::env::sim::Survival::Synced);
                assert!(image.rot(&path, offset, 1 << bit).expect("a file"));
                let clean = check_journal(&image, &dir()).expect("a report").is_clean();
                match recover(&image, tiny()) {
                    Err(Failure::Journal { .. }) => {
                        assert!(!clean, "{} byte {offset} bit {bit}", path.display());
                        errors += 1;
                    }
                    Err(other) => panic!("{other}"),
                    Ok((_, told)) => {
                        assert!(clean);
                        let texts = |told: &Told| -> Vec<String> {
                            told.saves.iter().map(|(_, save)| save.clone()).collect()
                        };
                        let (found, all) = (texts(&told), texts(&whole));
                        if found == all && told.table == whole.table {
                            same += 1;
                        } else {
                            assert_eq!(found, all[..all.len() - 1], "only the last group may end the log");
                            ends += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(errors > 1000 && ends > 100 && same > 100, "errors {errors}, shorter {ends}, same {same}");
}

#[test]
fn a_missing_segment_is_damage() {
    let (disk, _) = small_journal();
    for generation in [1, 2] {
        let image = disk.image(base::env::sim::Survival::Synced);
        image.remove_file(&segment_path(&dir(), generation)).expect("it is there");
        let last = image.contents().len() == usize::try_from(generation).expect("a small number") - 1;
        let failure = recover(&image, tiny()).map(|_| ());
        assert!(last || matches!(failure, Err(Failure::Journal { .. })), "{generation} {failure:?}");
    }
}

#[test]
fn a_segment_whose_header_is_lost_is_named() {
    let (disk, _) = small_journal();
    let count = disk.contents().len() as u64;
    assert!(count > 3, "there is one in the middle");
    for generation in 1..=count {
        let image = disk.image(base::env::sim::Survival::Synced);
        let path = segment_path(&dir(), generation);
        for at in [0, 2048] {
            image.rot(&path, at, 1).expect("a file");
        }
        match recover(&image, tiny()).map(|_| ()) {
            Err(failure @ Failure::Journal { .. }) => {
                let named = failure.to_string().contains(&path.display().to_string());
                assert!(named || generation == 1, "{generation}: {failure}");
            }
            // it may hold nothing but a group of which nobody knows whether it was synced
            other => assert!(other.is_ok() && generation == count, "{generation}: {other:?}"),
        }
    }
}

/// Writes another version into the header of a segment.
fn set_version(disk: &SimDisk, generation: u64, version: u8) {
    let path = segment_path(&dir(), generation);
    let file = disk.open(&path, OpenMode::ReadWrite).expect("it is there");
    let mut block = vec![0; BLOCK];
    file.read_at(&mut block, 0).expect("a read");
    block[8] = version;
    for at in [0, 2048] {
        block.copy_within(0..40, at);
        let crc = crc32c::crc32c(&block[at..at + 40]);
        block[at + 40..at + 44].copy_from_slice(&crc.to_le_bytes());
    }
    file.write_at(&block, 0).expect("a write");
}

#[test]
fn a_segment_of_a_later_version_is_refused() {
    let (disk, _) = small_journal();
    set_version(&disk, 1, COMPRESSED_VERSION as u8 + 1);
    let failure = recover(&disk, tiny()).map(|_| ()).expect_err("an unknown version");
    assert!(failure.to_string().contains("unknown version"), "{failure}");
}

#[test]
fn segments_of_the_earlier_version_are_read() {
    let (disk, told) = small_journal();
    (1..3).for_each(|generation| set_version(&disk, generation, generation as u8));
    let (_, again) = recover(&disk, tiny()).expect("a known version");
    assert_eq!((again.saves, again.table), (told.saves, told.table));
}

/// Numbers at the edges.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..4,
        (0_u64..4).prop_map(|n| u64::MAX - n),
        (0_u64..4).prop_map(|n| (1 << 62) - n),
        any::<u64>()
    ]
}

/// A file with sound heads and anything else.
fn arbitrary(head: SegmentHead, frames: &[(FrameHead, Vec<u8>)], tail: &[u8]) -> Vec<u8> {
    let mut bytes = head.encode().to_vec();
    for (frame, payload) in frames {
        bytes.extend_from_slice(&frame.encode());
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    bytes.extend_from_slice(tail);
    bytes
}

fn recover_from(bytes: &[u8]) {
    let disk = fresh_disk();
    let file = disk.open(&segment_path(&dir(), 1), OpenMode::CreateNew).expect("a file");
    file.write_at(bytes, 0).expect("a write");
    check_journal(&disk, &dir()).expect("a report");
    let _ = recover(&disk, tiny());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        recover_from(&bytes);
    }

    #[test]
    fn any_frames_are_read_without_harm(
        first in number(),
        frames in proptest::collection::vec(
            (any::<u32>(), number(), number(), 0_u32..4, proptest::collection::vec(any::<u8>(), 0..300)), 0..4),
        lie in any::<bool>(),
        tail in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let head = SegmentHead { version: VERSION, generation: 1, first, salt: 5 };
        let frames: Vec<_> = (0..).zip(frames).map(|(i, (len, durable, needed, records, payload))| {
            let payload_bytes = if lie { len } else { payload.len() as u32 };
            let number = first.wrapping_add(i);
            (FrameHead { payload: payload_bytes, generation: 1, number, durable, needed, salt: 5, records }, payload)
        }).collect();
        recover_from(&arbitrary(head, &frames, &tail));
    }
}
