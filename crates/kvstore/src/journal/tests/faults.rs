//! Every call of the disk fails, once and for ever.

use base::env::sim::{Call, Effect, Fault, On};
use sim::crash::{CrashPlan, FaultKind, every_fault};

use super::model::Subject;
use super::*;

/// A run that goes on after failures, as the caller would; what could not be begun has no subject.
fn run(disk: &SimDisk, seed: u64) -> Option<Subject> {
    disk.create_dir_all_synced(&dir()).ok()?;
    let mut config = small();
    config.segment_bytes = 16 << 10;
    let mut subject = Subject::new(disk.clone(), config, seed).ok()?;
    subject.maker.most_value = 600;
    for _ in 0..14 {
        let _ = match subject.maker.rng.below(8) {
            0 => subject.release(),
            1 => subject.journal.prepare_step().map(|_| ()),
            _ => {
                let through = Frame(subject.journal.next_frame().0 - 1);
                let call = subject.maker.call(through);
                subject.append_this(call, 3)
            }
        };
        if subject.calls.last().is_some_and(|call| call.acknowledged.is_none()) {
            break;
        }
    }
    Some(subject)
}

fn check(subject: Option<&Subject>, image: &SimDisk, changes: u64) -> Vec<String> {
    let Some(subject) = subject else { return Vec::new() };
    match recover(image, subject.config) {
        Err(failure) => vec![failure.to_string()],
        Ok((_, told)) => subject.wrong(&told, changes),
    }
}

fn fail_everywhere(kind: FaultKind) {
    for seed in 0..3 {
        let plan = CrashPlan { seeds: 3, ..CrashPlan::new(seed) };
        let verdict = every_fault(
            &plan,
            &kind,
            |_| {},
            |disk| run(disk, seed),
            |subject, image, at| check(subject.as_ref(), image, at),
        );
        assert!(verdict.holds(), "{verdict}");
    }
}

#[test]
fn one_failure_loses_nothing() {
    fail_everywhere(FaultKind::once("failed call", On::Any, Effect::IO_ERROR));
    let short = Effect::Short { bytes: 1000, errno: 28 };
    fail_everywhere(FaultKind::once("short write", On::Changes, short));
}

#[test]
fn a_disk_that_fails_for_ever_keeps_what_was_acknowledged() {
    fail_everywhere(FaultKind::for_ever("full disk", On::Changes, Effect::DISK_FULL));
    fail_everywhere(FaultKind::for_ever("broken disk", On::Any, Effect::IO_ERROR));
}

#[test]
fn a_failing_recovery_says_so_and_the_next_one_finds_everything() {
    let disk = SimDisk::new();
    let subject = run(&disk, 5).expect("a run");
    for nth in 1.. {
        let image = disk.image(base::env::sim::Survival::Synced);
        image.plan(Fault::once(On::Any, nth, Effect::IO_ERROR));
        let first = recover(&image, subject.config).map(|(_, told)| told);
        if let Ok(told) = &first {
            assert_eq!(subject.wrong(told, disk.changes()), Vec::<String>::new(), "fault {nth}");
        }
        let was_struck = image.was_struck();
        image.heal();
        let (_, told) = recover(&image, subject.config).expect("the second recovery");
        assert_eq!(subject.wrong(&told, disk.changes()), Vec::<String>::new(), "fault {nth}");
        if !was_struck {
            assert!(nth > 10, "there is something to fail");
            return;
        }
    }
}

/// A failed sync may leave in the page cache what no later sync makes durable; a restart must not take it for that.
#[test]
fn after_a_failed_sync_a_killed_process_leaves_nothing_that_is_told_and_then_lost() {
    for seed in 0..4 {
        let plan = CrashPlan { seeds: 3, ..CrashPlan::new(seed) };
        let verdict = every_fault(
            &plan,
            &FaultKind::for_ever("failing syncs", On::Kind(Call::Sync), Effect::IO_ERROR),
            |_| {},
            |disk| {
                let subject = run(disk, seed)?;
                disk.heal();
                let told = recover(disk, subject.config)
                    .map(|(_, told)| told)
                    .map_err(|failure| failure.to_string());
                Some((subject, told))
            },
            |answer, image, at| {
                let Some((subject, claim)) = answer else { return Vec::new() };
                let claim = match claim {
                    Ok(claim) => claim,
                    Err(failure) => return vec![failure.clone()],
                };
                let mut wrong = subject.wrong(claim, at);
                match recover(image, subject.config) {
                    Err(failure) => wrong.push(failure.to_string()),
                    Ok((_, told)) => {
                        wrong.extend(subject.wrong(&told, at));
                        let is_there =
                            |(_, save): &(Frame, String)| told.saves.iter().any(|(_, other)| other == save);
                        if !claim.saves.iter().all(is_there) || claim.table != told.table {
                            wrong.push("told after the kill, gone after the crash".to_owned());
                        }
                    }
                }
                wrong
            },
        );
        assert!(verdict.holds(), "{verdict}");
    }
}
