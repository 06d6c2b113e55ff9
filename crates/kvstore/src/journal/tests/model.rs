//! Random calls with random sizes: what is recovered is what was appended.

use proptest::prelude::*;

use super::*;

/// A journal on a simulated disk, and everything that it was told.
pub(super) struct Subject {
    pub(super) disk: SimDisk,
    pub(super) config: JournalConfig,
    pub(super) journal: Journal,
    pub(super) maker: Maker,
    pub(super) calls: Vec<Appended>,
    pub(super) table: Table,
    pub(super) needed: Frame,
    pub(super) releases: Vec<(u64, Frame)>,
}

/// A call of append.
#[derive(Clone)]
pub(super) struct Appended {
    pub(super) records: Vec<Owned>,
    /// Changes of the disk when it began.
    pub(super) began: u64,
    /// Changes of the disk when it was acknowledged, and its last frame.
    pub(super) acknowledged: Option<(u64, Frame)>,
}

impl Subject {
    pub(super) fn new(disk: SimDisk, config: JournalConfig, seed: u64) -> Result<Subject, Failure> {
        let (journal, _) = recover(&disk, config)?;
        Ok(Subject {
            disk,
            config,
            journal,
            maker: Maker::new(seed),
            calls: Vec::new(),
            table: Table::new(),
            needed: Frame(0),
            releases: Vec::new(),
        })
    }

    fn last_frame(&self) -> Frame {
        Frame(self.journal.next_frame().0 - 1)
    }

    pub(super) fn append(&mut self) -> Result<(), Failure> {
        let call = self.maker.call(self.last_frame());
        self.append_this(call, 1)
    }

    /// Appends; tries again after a failure, as the caller would.
    pub(super) fn append_this(&mut self, call: Vec<Owned>, tries: usize) -> Result<(), Failure> {
        let at = self.calls.len();
        self.calls.push(Appended { records: call, began: self.disk.changes(), acknowledged: None });
        let table = entries(&self.table);
        let mut tried = 0;
        let frame = loop {
            tried += 1;
            let done = self.journal.append(&records(&self.calls[at].records), &|| table.clone());
            match done {
                Err(_) if tried < tries => {}
                other => break other?,
            }
        };
        self.calls[at].acknowledged = Some((self.disk.changes(), frame));
        self.calls[at].records.iter().for_each(|record| record.note(&mut self.table));
        Ok(())
    }

    /// Releases everything before one of the last calls.
    pub(super) fn release(&mut self) -> Result<(), Failure> {
        let acknowledged: Vec<_> = self.calls.iter().filter_map(|call| call.acknowledged).collect();
        let back = self.maker.rng.below(6) as usize;
        let Some((_, frame)) = acknowledged.len().checked_sub(back + 1).map(|i| acknowledged[i]) else {
            return Ok(());
        };
        self.needed = self.needed.max(frame);
        self.releases.push((self.disk.changes(), self.needed));
        self.journal.release(self.needed)
    }

    pub(super) fn step(&mut self) -> Result<(), Failure> {
        match self.maker.rng.below(10) {
            0 | 1 => self.release(),
            2 | 3 => self.journal.prepare_step().map(|_| ()),
            _ => self.append(),
        }
    }

    /// What is wrong with what was told when the disk had seen so many changes.
    pub(super) fn wrong(&self, told: &Told, changes: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        let began = |call: &&Appended| call.began <= changes;
        let is_acknowledged = |call: &Appended| call.acknowledged.is_some_and(|(at, _)| at <= changes);
        let needed = self.releases.iter().filter(|(at, _)| *at <= changes).map(|(_, needed)| *needed).max();
        let needed = needed.unwrap_or(Frame(0));
        let mut all = Vec::new();
        let (mut must_from, mut must_until) = (usize::MAX, 0);
        let (mut table, mut tables) = (Table::new(), Vec::new());
        for call in self.calls.iter().filter(began) {
            let begin = all.len();
            if is_acknowledged(call) {
                tables.clear();
            }
            for record in &call.records {
                record.note(&mut table);
                tables.push(table.clone());
                all.extend(record.save());
            }
            if is_acknowledged(call) {
                tables = vec![table.clone()];
                if call.acknowledged.is_some_and(|(_, frame)| frame >= needed) && must_from == usize::MAX {
                    must_from = begin;
                }
                must_until = all.len();
            }
        }
        if tables.is_empty() {
            tables.push(Table::new());
        }
        let mut saves: Vec<&String> = Vec::new();
        for (_, save) in &told.saves {
            if !saves.contains(&save) {
                saves.push(save);
            }
        }
        let first = match saves.first() {
            None => must_until,
            Some(first) => match all.iter().position(|save| save == *first) {
                Some(first) => first,
                None => return vec![format!("a save that nobody appended: {first}")],
            },
        };
        let end = first + saves.len();
        if all.get(first..end).is_none_or(|all| !all.iter().eq(saves.iter().copied())) {
            wrong.push(format!("saves {first}..{end} are not as they were appended"));
        }
        if must_from < first || end < must_until {
            wrong
                .push(format!("saves {must_from}..{must_until} were acknowledged, {first}..{end} are there"));
        }
        let unacknowledged_first = self.calls.iter().filter(began).all(|call| !is_acknowledged(call));
        let is_known = tables.contains(&told.table) || (unacknowledged_first && told.table.is_empty());
        if !is_known {
            wrong.push(format!("the table is {:?} instead of one of {tables:?}", told.table));
        }
        wrong
    }

    /// Stops and starts.
    pub(super) fn restart(self) -> Subject {
        let (disk, config) = (self.disk.clone(), self.config);
        drop(self.journal);
        let (journal, told) = recover(&disk, config).expect("a recovery");
        let subject = Subject { journal, ..self };
        let wrong = subject.wrong(&told, disk.changes());
        assert!(wrong.is_empty(), "{wrong:?}");
        subject
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_appended_is_recovered(
        seed: u64,
        segment_bytes in 8_u64..100,
        frame_bytes in 256_usize..20_000,
        spare_segments in 0_usize..4,
        steps in 1..60,
    ) {
        let config = JournalConfig { segment_bytes: segment_bytes << 10, frame_bytes, spare_segments, compresses: seed.is_multiple_of(2) };
        let mut subject = Subject::new(fresh_disk(), config, seed).expect("a journal");
        for step in 0..steps {
            subject.step().expect("a step");
            if step % 13 == 12 {
                subject = subject.restart();
            }
        }
        let report = super::super::check_journal(&subject.disk, &dir()).expect("a report");
        prop_assert!(report.is_clean(), "{report:?}");
        subject = subject.restart();
        subject.journal.remove().expect("a removal");
        prop_assert!(!Journal::exists(&env_on(&subject.disk), &dir()).expect("a folder"));
        prop_assert!(subject.disk.contents().is_empty());
    }
}

#[test]
fn segments_go_when_they_are_not_needed_and_come_again() {
    let mut subject = Subject::new(fresh_disk(), small(), 7).expect("a journal");
    for _ in 0..200 {
        subject.append().expect("a call");
        subject.needed = subject.last_frame();
        subject.releases.push((subject.disk.changes(), subject.needed));
        subject.journal.release(subject.needed).expect("a release");
        let stats = subject.journal.stats();
        assert!(stats.segments <= 4, "{stats:?}");
    }
    let stats = subject.journal.stats();
    assert!(stats.recycled_segments > 20, "{stats:?}");
    assert!(subject.disk.contents().len() <= 6);
    subject.restart();
}

#[test]
fn an_item_larger_than_a_segment_is_kept() {
    let mut subject = Subject::new(fresh_disk(), small(), 7).expect("a journal");
    subject.append().expect("a call");
    let items = vec![version("small", 4000, b"v"), version("large", 4004, &vec![7; 20 << 20])];
    let doc = subject.maker.doc();
    let call = vec![Owned::Save { vb: VbId(1), doc, is_whole: true, items }];
    subject.append_this(call, 1).expect("a call");
    subject.append().expect("a call");
    subject.restart();
}

#[test]
fn prewritten_segments_are_used_as_soon_as_there_is_one() {
    let mut subject = Subject::new(fresh_disk(), small(), 7).expect("a journal");
    subject.maker.most_value = 100;
    subject.append().expect("a call");
    while subject.journal.prepare_step().expect("a step") {}
    let stats = subject.journal.stats();
    assert_eq!((stats.spares, stats.prewritten_bytes, stats.segments), (1, 32 << 10, 1));
    subject.append().expect("a call");
    let stats = subject.journal.stats();
    assert_eq!((stats.spares, stats.recycled_segments, stats.segments), (0, 1, 2));
    subject.restart();
}

#[test]
fn an_empty_folder_has_no_journal_and_an_empty_journal_tells_nothing() {
    let disk = fresh_disk();
    assert!(!Journal::exists(&env_on(&disk), &dir()).expect("a folder"));
    let (journal, told) = recover(&disk, small()).expect("a journal");
    assert!(!told.any);
    assert_eq!(journal.next_frame(), Frame(1));
    assert_eq!(journal.append(&[], &Vec::new).expect("nothing to do"), Frame(0));
    assert!(disk.contents().is_empty(), "a journal begins with its first record");
    journal.remove().expect("nothing to do");
}

#[test]
fn the_table_is_repeated_in_each_segment() {
    let disk = fresh_disk();
    let (journal, _) = recover(&disk, small()).expect("a journal");
    let filed = Filed { vb: VbId(9), through: Frame(1), revision: 2, header_offset: 8192, checksum: None };
    let mut maker = Maker::new(1);
    let frame = journal.append(&[Record::Filed(filed)], &Vec::new).expect("a call");
    assert_eq!(frame, Frame(1));
    let mut last = frame;
    while journal.stats().segments < 3 {
        let call = [maker.save(5)];
        last = journal.append(&records(&call), &|| vec![filed]).expect("a call");
    }
    journal.release(last).expect("a release");
    assert!(journal.stats().segments < 3);
    drop(journal);
    let (_, told) = recover(&disk, small()).expect("a recovery");
    assert_eq!(told.table.get(&VbId(9)), Some(&filed));
}
