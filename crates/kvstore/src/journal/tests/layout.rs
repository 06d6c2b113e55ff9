//! The example of docs/journal_format.md, byte by byte.

use base::env::{OpenMode, Random};

use super::super::check_journal;
use super::super::layout::{BLOCK, Name, parse_name, segment_path};
use super::*;

/// The same example as earlier versions of the layout had it: a test compared each listing with what its version wrote.
const EARLIER: [(u8, &str); 3] = [
    (2, include_str!("version_2.txt")),
    (3, include_str!("version_3.txt")),
    (6, include_str!("version_6.txt")),
];
const PAGE: &str = include_str!("../../../../../docs/journal_format.md");

/// Makes every salt the same.
struct Same;

impl Random for Same {
    fn fill(&self, bytes: &mut [u8]) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = 0xa0 + i as u8;
        }
    }
}

/// One document, key `k`, value `{"a":1}`, in vBucket 7; then its file is durable.
fn example() -> Vec<u8> {
    let disk = fresh_disk();
    let env = Env { random: Arc::new(Same), ..env_on(&disk) };
    let (journal, _) = recover_in(env, &dir(), JournalConfig::default()).expect("a journal");
    let meta = VersionMeta {
        cas: Cas(0x18e9_c3b8_1dff_0000),
        by_seqno: Seqno(1),
        rev_seqno: RevSeqno(1),
        flags: 0x0200_0006,
        datatype: Datatype::JSON,
        ..VersionMeta::default()
    };
    let items = [NewVersion::new(base::Heap::shared(), meta, DocKey::new(b"k"), &[b"{\"a\":1}"]).publish()];
    let doc = VbStateDoc { max_cas: 0x18e9_c3b8_1dff_0000, snap_end: 1, ..VbStateDoc::default() };
    let before = Filed { vb: VbId(3), through: Frame(0), revision: 1, header_offset: 4096, checksum: None };
    let save = Record::Save { vb: VbId(7), state: State::Numbers(&doc), items: &items, is_repeat: false };
    journal.append(&[save], &|| vec![before]).expect("a call");
    let filed = Filed {
        vb: VbId(7),
        through: Frame(1),
        revision: 1,
        header_offset: 0x5000,
        checksum: Some(0x1a2b_3c4d),
    };
    journal.append(&[Record::Filed(filed)], &|| vec![before]).expect("a call");
    let file = disk.open(&segment_path(&dir(), 1), OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("a read");
    bytes
}

/// The listing of the page.
fn page() -> Vec<(usize, Vec<u8>)> {
    listing(PAGE.split("```text").nth(1).and_then(|rest| rest.split("```").next()).expect("a listing"))
}

/// Lines of a listing: where, and which bytes.
fn listing(listing: &str) -> Vec<(usize, Vec<u8>)> {
    let hex = |digits: &str| usize::from_str_radix(digits, 16).expect("a hexadecimal number");
    let line = |line: &str| {
        let (bytes, _) = line.split_once("  ")?;
        let (at, bytes) = bytes.split_once(' ')?;
        Some((hex(at), bytes.split(' ').map(|byte| hex(byte) as u8).collect()))
    };
    listing.lines().filter_map(line).collect()
}

#[test]
fn the_example_is_what_is_written() {
    let written = example();
    let mut listed = vec![0; written.len()];
    for (at, bytes) in page() {
        listed[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let differs = std::iter::zip(&written, &listed).position(|(written, listed)| written != listed);
    assert_eq!(differs.map(|at| format!("{at:#x}: {:02x?}", &written[at..written.len().min(at + 16)])), None);
}

#[test]
fn what_earlier_versions_wrote_is_read() {
    EARLIER.iter().for_each(|(version, text)| is_read(*version, text));
}

fn is_read(version: u8, text: &str) {
    let mut written = vec![0; 3 * BLOCK];
    for (at, bytes) in listing(text) {
        written[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(written[8], version);
    let disk = fresh_disk();
    let file = disk.open(&segment_path(&dir(), 1), OpenMode::CreateNew).expect("a file");
    file.write_at(&written, 0).and_then(|()| file.sync_data()).expect("the disk works");
    disk.sync_dir(&dir()).expect("the disk works");
    let (journal, told) = recover(&disk, JournalConfig::default()).expect("it is read");
    let before = Filed { vb: VbId(3), through: Frame(0), revision: 1, header_offset: 4096, checksum: None };
    let filed = Filed { vb: VbId(7), through: Frame(1), revision: 1, header_offset: 0x5000, checksum: None };
    assert_eq!(told.table, Table::from([(VbId(3), before), (VbId(7), filed)]));
    assert_eq!(told.saves.len(), 1, "{:?}", told.saves);
    // what follows is of the present version
    let call = Maker::new(5).save(1);
    journal.append(&[call.record()], &|| entries(&told.table)).expect("a call");
    drop(journal);
    let (_, again) = recover(&disk, JournalConfig::default()).expect("both versions are read");
    assert_eq!((again.saves.len(), again.table), (2, told.table));
}

/// A change of the manifest in 1,024 vBuckets; each has its own CAS, seqno and state.
fn manifest_change() -> Vec<Owned> {
    let mut maker = Maker::new(3);
    maker.event((0..1024).map(VbId))
}

/// Events in a save of a call.
fn events(call: &[Owned]) -> u64 {
    let Owned::Save { items, .. } = &call[0] else { unreachable!("a call of saves") };
    items.len() as u64
}

#[test]
fn an_event_of_all_vbuckets_is_one_record() {
    let disk = fresh_disk();
    let (journal, _) = recover(&disk, JournalConfig::default()).expect("a journal");
    let call = manifest_change();
    journal.append(&records(&call), &Vec::new).expect("a call");
    let stats = journal.stats();
    assert_eq!((stats.frames, stats.syncs), (1, 1));
    assert!(stats.payload_bytes < (40 + 24 * events(&call)) << 10, "{stats:?}");
    let report = check_journal(&disk, &dir()).expect("the disk works");
    assert_eq!(
        (report.segments[0].records, report.segments[0].items),
        (2, 1024 * events(&call)),
        "a table, and the change"
    );
    drop(journal);
    let (_, told) = recover(&disk, JournalConfig::default()).expect("a journal");
    let saves: Vec<String> = told.saves.into_iter().map(|(_, save)| save).collect();
    assert_eq!(saves, call.iter().filter_map(Owned::save).collect::<Vec<_>>());
}

#[test]
fn events_share_a_record_only_with_their_like() {
    let disk = fresh_disk();
    let (journal, _) = recover(&disk, JournalConfig::default()).expect("a journal");
    let mut maker = Maker::new(4);
    let mut call = maker.event([VbId(1)].into_iter());
    call.extend(maker.event([VbId(1), VbId(2)].into_iter()));
    call.push(maker.save(3));
    call.extend(maker.event([VbId(3), VbId(4), VbId(5)].into_iter()));
    if let Some(Owned::Save { is_whole, .. }) = call.last_mut() {
        *is_whole = true;
    }
    journal.append(&records(&call), &Vec::new).expect("a call");
    let report = check_journal(&disk, &dir()).expect("the disk works");
    assert_eq!(
        report.segments[0].records,
        1 + 1 + 1 + 1 + 1 + 1,
        "a table; alone; 1 and 2; a save; 3 and 4; 5"
    );
    drop(journal);
    let (_, told) = recover(&disk, JournalConfig::default()).expect("a journal");
    let saves: Vec<String> = told.saves.into_iter().map(|(_, save)| save).collect();
    assert_eq!(saves, call.iter().filter_map(Owned::save).collect::<Vec<_>>());
}

#[test]
fn only_names_of_the_journal_are_taken_for_its_files() {
    assert_eq!(parse_name("journal.12"), Some(Name::Segment(12)));
    assert_eq!(parse_name("journal.spare.1"), Some(Name::Spare(1)));
    for name in
        ["journal", "journal.", "journal.01", "journal.+1", "journal.spare.", "1.couch.1", "journal.1.new"]
    {
        assert_eq!(parse_name(name), None, "{name}");
    }
}
