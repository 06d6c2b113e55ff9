//! The power goes, or the process is killed, after every change of the disk.

use sim::crash::{CrashPlan, Verdict, every_crash, every_kill};

use super::model::Subject;
use super::*;

/// Restarts on what is left of a disk; then appends, and restarts again. Answers what is wrong.
fn check(subject: &Subject, image: &SimDisk, changes: u64) -> Vec<String> {
    let (journal, told) = match recover(image, subject.config) {
        Ok(recovered) => recovered,
        Err(failure) => return vec![format!("no recovery: {failure}")],
    };
    let mut wrong = subject.wrong(&told, changes);
    let mut maker = Maker::new(changes);
    maker.seqno = 1 << 40;
    let more = [maker.save(3)];
    if let Err(failure) = journal.append(&records(&more), &|| entries(&told.table)) {
        return vec![format!("no append: {failure}")];
    }
    drop(journal);
    match recover(image, subject.config) {
        Err(failure) => wrong.push(format!("no second recovery: {failure}")),
        Ok((_, again)) => {
            let mut expected: Vec<String> = told.saves.iter().map(|(_, save)| save.clone()).collect();
            expected.extend(more[0].save());
            let mut saves: Vec<String> = again.saves.into_iter().map(|(_, save)| save).collect();
            // an older segment may be gone by now, or be there again: what was told is there
            let behind = saves.len().saturating_sub(expected.len());
            saves.drain(..behind);
            if saves != expected || again.table != told.table {
                wrong.push("the second recovery told something else".to_owned());
            }
        }
    }
    wrong
}

/// A run of random steps, recorded.
fn recorded(seed: u64, steps: usize) -> Subject {
    let disk = fresh_disk();
    disk.record();
    let mut config = small();
    config.segment_bytes = 16 << 10;
    let mut subject = Subject::new(disk, config, seed).expect("a journal");
    subject.maker.most_value = 600;
    for step in 0..steps {
        subject.step().expect("a step");
        if step % 11 == 10 {
            subject = subject.restart();
        }
    }
    subject
}

fn crash_everywhere(seeds: std::ops::Range<u64>, steps: usize, plan: CrashPlan) -> Verdict {
    let mut verdict = Verdict::default();
    for seed in seeds {
        let subject = recorded(seed, steps);
        let recording = subject.disk.recording().expect("it is recorded");
        verdict.add(every_crash(&plan, &recording, |image, at| check(&subject, image, at)));
    }
    verdict
}

#[test]
fn nothing_acknowledged_is_lost_whenever_the_power_goes() {
    let verdict = crash_everywhere(0..6, 30, CrashPlan::new(1));
    assert!(verdict.holds(), "{verdict}");
}

#[test]
fn what_a_killed_process_left_is_made_durable_before_it_is_told() {
    let mut total = Verdict::default();
    for seed in 0..3 {
        let subject = recorded(seed, 20);
        let recording = subject.disk.recording().expect("it is recorded");
        let verdict = every_kill(
            &CrashPlan { seeds: 3, ..CrashPlan::new(seed) },
            &recording,
            |disk, _| {
                recover(disk, subject.config).map(|(_, told)| told).map_err(|failure| failure.to_string())
            },
            |claim, image, at| {
                let told = match claim {
                    Ok(told) => told,
                    Err(failure) => return vec![failure.clone()],
                };
                match recover(image, subject.config) {
                    Err(failure) => vec![failure.to_string()],
                    Ok((_, again)) => {
                        let mut wrong = subject.wrong(&again, at);
                        let skip = again.saves.len().saturating_sub(told.saves.len());
                        let texts = |told: &Told| -> Vec<String> {
                            told.saves.iter().map(|(_, save)| save.clone()).collect()
                        };
                        if texts(&again)[skip..] != texts(told)[..] || again.table != told.table {
                            wrong.push("told after the kill, gone after the crash".to_owned());
                        }
                        wrong
                    }
                }
            },
        );
        total.add(verdict);
    }
    assert!(total.holds(), "{total}");
}

#[test]
fn a_crash_during_recovery_loses_nothing() {
    let mut total = Verdict::default();
    for seed in 0..2 {
        let subject = recorded(100 + seed, 12);
        let recording = subject.disk.recording().expect("it is recorded");
        let plan = CrashPlan { seeds: 2, ..CrashPlan::new(seed) };
        let verdict = every_crash(&plan, &recording, |image, at| {
            image.record();
            if let Err(failure) = recover(image, subject.config) {
                return vec![failure.to_string()];
            }
            let during = image.recording().expect("it is recorded");
            let plan = CrashPlan { seeds: 2, ..CrashPlan::new(at) };
            let inner = every_crash(&plan, &during, |image, _| check(&subject, image, at));
            inner.examples
        });
        total.add(verdict);
    }
    assert!(total.holds(), "{total}");
}

#[test]
fn a_crash_while_the_journal_is_removed_leaves_all_or_what_still_holds() {
    let mut total = Verdict::default();
    for seed in 0..4 {
        let mut subject = recorded(200 + seed, 25);
        subject.disk.record();
        let (config, disk, table) = (subject.config, subject.disk.clone(), subject.table.clone());
        // everything is filed: nothing before is needed
        subject.releases.push((0, Frame(u64::MAX)));
        subject.calls.iter_mut().for_each(|call| {
            (call.began, call.acknowledged) = (0, call.acknowledged.map(|(_, frame)| (0, frame)));
        });
        let Subject { journal, calls, releases, maker, needed, .. } = subject;
        journal.remove().expect("a removal");
        let (journal, _) = recover(&fresh_disk(), config).expect("another journal");
        let subject = Subject { disk: disk.clone(), config, journal, maker, calls, table, needed, releases };
        let recording = disk.recording().expect("it is recorded");
        let verdict = every_crash(&CrashPlan::new(seed), &recording, |image, at| {
            if !Journal::exists(&env_on(image), &dir()).expect("a folder") {
                return Vec::new();
            }
            check(&subject, image, at)
        });
        total.add(verdict);
    }
    assert!(total.holds(), "{total}");
}

/// A reader takes files of which an existing journal knows nothing for leftovers.
#[test]
fn a_journal_that_exists_knows_the_files_that_were_there_before_it() {
    let mut total = Verdict::default();
    for seed in 0..8 {
        let disk = fresh_disk();
        disk.record();
        let (journal, _) = recover(&disk, small()).expect("a journal");
        let mut maker = Maker::new(seed);
        let file =
            |vb| Filed { vb: VbId(vb), through: Frame(0), revision: 1, header_offset: 4096, checksum: None };
        let table: Table = (0..20).map(|vb| (VbId(vb), file(vb))).collect();
        let call = [maker.save(30)];
        journal.append(&records(&call), &|| entries(&table)).expect("a call");
        let acknowledged = disk.changes();
        journal.append(&records(&[maker.save(3)]), &|| entries(&table)).expect("a call");
        let recording = disk.recording().expect("it is recorded");
        let verdict = every_crash(&CrashPlan::new(seed), &recording, |image, at| {
            let exists = Journal::exists(&env_on(image), &dir()).expect("a folder");
            match recover(image, small()) {
                Err(failure) => vec![failure.to_string()],
                Ok((_, told)) if exists && told.table != table => vec!["the table is not told".to_owned()],
                Ok((_, told)) if !exists && told.any => vec!["told by no journal".to_owned()],
                Ok(_) if !exists && at >= acknowledged => vec!["it is lost".to_owned()],
                Ok(_) => Vec::new(),
            }
        });
        total.add(verdict);
    }
    assert!(total.holds(), "{total}");
}
