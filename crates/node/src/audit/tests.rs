//! The audit log on a simulated disk: what is written, filters, rotation, torn lines, and a disk that fails.

use std::path::Path;
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Env, OpenMode, SimHandles};
use serde_json::Value;

use super::*;

const DATA: &str = "/data";

struct Fixture {
    log: AuditLog,
    env: Env,
    sim: SimHandles,
}

fn fixture(fields: &[(&str, &str)]) -> Fixture {
    let (env, sim) = Env::sim(3);
    env.disk.create_dir_all(Path::new(DATA)).expect("a folder");
    let log = AuditLog::new(env.clone(), Arc::new(ConnectionMemory::new(None)));
    log.read(Path::new(DATA));
    let fixture = Fixture { log, env, sim };
    fixture.change(&[&[("auditdEnabled", "true")], fields].concat());
    fixture
}

impl Fixture {
    fn change(&self, fields: &[(&str, &str)]) {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let record = AuditRecord::new(AuditEvent::AuditConfigured).by(b"admin");
        self.log.change(&fields, |_| true, record).expect("valid settings");
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.env.disk.read_dir(&Path::new(DATA).join(FOLDER)).unwrap_or_default();
        names.sort();
        names
    }

    fn text(&self, name: &str) -> String {
        let path = Path::new(DATA).join(FOLDER).join(name);
        let file = self.env.disk.open(&path, OpenMode::Read).expect("the file is there");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("a read");
        String::from_utf8(bytes).expect("text")
    }

    /// The lines that are whole.
    fn records(&self, name: &str) -> Vec<Value> {
        self.text(name).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn ids(&self, name: &str) -> Vec<u64> {
        self.records(name).iter().map(|record| record["id"].as_u64().expect("a number")).collect()
    }

    /// A client that calls itself `name` could not log in.
    fn fail(&self, name: &str) {
        let record = AuditRecord::new(AuditEvent::LoginFailed).by(name.as_bytes());
        self.log.record(record.with("reason", "Auth failure"));
    }
}

#[test]
fn a_log_that_is_off_writes_nothing() {
    let (env, _) = Env::sim(3);
    env.disk.create_dir_all(Path::new(DATA)).expect("a folder");
    let log = AuditLog::new(env.clone(), Arc::new(ConnectionMemory::new(None)));
    log.read(Path::new(DATA));
    log.record(AuditRecord::new(AuditEvent::LoginFailed));
    log.write_step();
    assert!(!log.is_on() && env.disk.read_dir(&Path::new(DATA).join(FOLDER)).is_err());
}

#[test]
fn settings_and_records_outlive_the_process() {
    let fixture = fixture(&[("disabled", "20492"), ("disabledUsers", "ann/local")]);
    for user in ["ann", "bob"] {
        for event in [AuditEvent::BucketSelected, AuditEvent::DcpOpened, AuditEvent::LoginFailed] {
            fixture.log.record(AuditRecord::new(event).by(user.as_bytes()));
        }
    }
    fixture.log.write_step();
    // What cannot be switched off is recorded of everybody.
    assert_eq!(fixture.ids("audit.log"), [4096, 8240, 20_481, 20_480, 20_481]);
    let again = AuditLog::new(fixture.env.clone(), Arc::new(ConnectionMemory::new(None)));
    again.read(Path::new(DATA));
    assert_eq!(again.settings(), fixture.log.settings());
    again.stop();
    again.write_step();
    assert_eq!(fixture.ids("audit.log")[5..], [4096, 4097]);
    assert_eq!(fixture.log.figures().waiting_bytes, 0);
}

#[test]
fn files_are_rotated_by_age_and_size_and_removed_when_they_are_old() {
    let fixture = fixture(&[("rotateInterval", "900"), ("rotateSize", "1048576"), ("pruneAge", "60")]);
    fixture.log.write_step();
    assert_eq!(fixture.names(), ["audit.log"]);
    fixture.sim.clock.advance(Duration::from_secs(899));
    fixture.log.write_step();
    assert_eq!(fixture.names().len(), 1, "it is not old enough");
    fixture.sim.clock.advance(Duration::from_secs(1));
    fixture.log.write_step();
    assert_eq!(fixture.names().len(), 1, "an empty file is made with the next record");
    assert!(fixture.names()[0].starts_with("localhost-20"), "{:?}", fixture.names());
    let reason = "x".repeat(4_000);
    for _ in 0..300 {
        fixture.log.record(AuditRecord::new(AuditEvent::LoginFailed).with("reason", reason.clone()));
    }
    fixture.log.write_step();
    let names = fixture.names();
    assert_eq!(names.len(), 3, "{names:?}");
    let lens = names.iter().map(|name| fixture.text(name).len());
    assert!(lens.clone().all(|len| len <= 1 << 20), "{:?}", lens.collect::<Vec<_>>());
    assert_eq!(fixture.log.figures().written, 302);
    fixture.sim.clock.advance(Duration::from_secs(900 + 3_600 + 60));
    fixture.log.write_step();
    fixture.log.write_step();
    let names = fixture.names();
    assert!(names.is_empty(), "all are older than an interval and an hour: {names:?}");
}

/// Two files that begin in the same second: what the second one is called tells neither when it ended nor which came first.
#[test]
fn a_file_with_a_record_that_is_not_old_enough_stays() {
    let fixture = fixture(&[("rotateInterval", "604800"), ("rotateSize", "1048576")]);
    let reason = "x".repeat(4_000);
    let write = |count: usize, seconds: u64| {
        for _ in 0..count {
            fixture.log.record(AuditRecord::new(AuditEvent::LoginFailed).with("reason", reason.clone()));
            fixture.sim.clock.advance(Duration::from_secs(seconds));
            fixture.log.write_step();
        }
    };
    while fixture.names().len() < 2 {
        write(1, 0);
    }
    let first = fixture.names().into_iter().find(|name| name != "audit.log").expect("one was rotated");
    while fixture.names().len() < 3 {
        write(1, 4);
    }
    let second = fixture.names().into_iter().find(|name| *name != first && name != "audit.log");
    let second = second.expect("another one was rotated");
    assert!(second < first && second.contains("-1-"), "{first} {second}");
    fixture.change(&[("pruneAge", "10")]);
    fixture.log.write_step();
    assert_eq!(fixture.names(), ["audit.log", second.as_str()]);
    fixture.sim.clock.advance(Duration::from_secs(700));
    fixture.log.write_step();
    assert_eq!(fixture.names(), ["audit.log"]);
}

/// The age counts from the last record of a file, not from the longest that a file may be written to. A shorter age holds at
/// once.
#[test]
fn files_are_removed_their_age_after_their_last_record() {
    let fixture = fixture(&[("rotateInterval", "604800"), ("rotateSize", "1048576")]);
    let reason = "x".repeat(4_000);
    for _ in 0..600 {
        fixture.log.record(AuditRecord::new(AuditEvent::LoginFailed).with("reason", reason.clone()));
        fixture.sim.clock.advance(Duration::from_secs(1));
        fixture.log.write_step();
    }
    let all = fixture.names();
    assert_eq!(all.len(), 3, "{all:?}");
    // The last record of the first file is some 340 seconds old.
    fixture.change(&[("pruneAge", "6")]);
    fixture.log.write_step();
    assert_eq!(fixture.names(), all, "its last record is not old enough");
    fixture.change(&[("pruneAge", "5")]);
    fixture.log.write_step();
    assert_eq!(fixture.names().len(), 2, "{:?}", fixture.names());
    // A node that starts again looks at once, too.
    fixture.sim.clock.advance(Duration::from_secs(600));
    let again = AuditLog::new(fixture.env.clone(), Arc::new(ConnectionMemory::new(None)));
    again.read(Path::new(DATA));
    again.write_step();
    assert_eq!(fixture.names(), ["audit.log"]);
}

#[test]
fn a_torn_line_is_ended_before_the_next_record() {
    let fixture = fixture(&[]);
    fixture.log.write_step();
    let path = Path::new(DATA).join(FOLDER).join("audit.log");
    let file = fixture.env.disk.open(&path, OpenMode::ReadWrite).expect("the file");
    let len = file.len().expect("a length");
    file.set_len(len - 10).expect("cut");
    let again = AuditLog::new(fixture.env.clone(), Arc::new(ConnectionMemory::new(None)));
    again.read(Path::new(DATA));
    again.write_step();
    let text = fixture.text("audit.log");
    let whole: Vec<bool> = text.lines().map(|line| serde_json::from_str::<Value>(line).is_ok()).collect();
    assert_eq!(whole, [true, false, true], "{text}");
}

#[test]
fn what_does_not_fit_is_counted_or_refused() {
    for policy in ["count", "refuse"] {
        let fixture = fixture(&[("failurePolicy", policy)]);
        let log = &fixture.log;
        while log.figures().waiting < MOST_RECORDS / 2 {
            assert_eq!(log.admit(AuditEvent::LoginFailed), Ok(()), "{policy}");
            fixture.fail("ann");
        }
        assert_eq!(log.admit(AuditEvent::LoginFailed).is_err(), policy == "refuse");
        assert_eq!(log.admit(AuditEvent::DocumentRead), Ok(()), "it is not recorded");
        while log.figures().dropped == 0 {
            fixture.fail("ann");
        }
        let figures = log.figures();
        assert!(figures.waiting <= MOST_RECORDS && figures.waiting_bytes <= MOST_BYTES);
        assert_eq!(log.memory.used_bytes(), figures.waiting_bytes as u64, "it is charged");
        log.write_step();
        assert_eq!((log.admit(AuditEvent::LoginFailed), log.memory.used_bytes()), (Ok(()), 0));
        assert_eq!(log.figures().written, figures.waiting as u64);
    }
}

/// What may happen while the disk refuses to write, and after it has come to itself.
#[test]
fn a_disk_that_fails_is_told_and_written_to_again() {
    for policy in ["count", "refuse"] {
        let fixture = fixture(&[("failurePolicy", policy)]);
        let log = &fixture.log;
        log.write_step();
        fixture.sim.disk.plan(Fault::for_ever(
            On::Kind(Call::Write),
            1,
            Effect::Short { bytes: 9, errno: 28 },
        ));
        fixture.fail("ann");
        log.write_step();
        let figures = log.figures();
        assert_eq!((figures.is_failing, figures.dropped, figures.waiting), (true, 0, 1), "{policy}");
        assert_eq!(log.admit(AuditEvent::LoginFailed).is_err(), policy == "refuse");
        fixture.fail("bob");
        log.write_step();
        fixture.sim.disk.heal();
        log.write_step();
        let figures = log.figures();
        assert_eq!(
            (figures.is_failing, figures.waiting, log.admit(AuditEvent::LoginFailed)),
            (false, 0, Ok(()))
        );
        let users: Vec<String> =
            fixture.records("audit.log").iter().map(|one| one["real_userid"]["user"].to_string()).collect();
        assert_eq!(users[users.len() - 2..], ["\"ann\"", "\"bob\""]);
        assert_eq!(figures.failures, 2);
    }
}

/// A sync that failed is tried again without a new record: with the policy `refuse` none would come.
#[test]
fn a_sync_that_fails_is_tried_again_without_a_record() {
    let fixture = fixture(&[("failurePolicy", "refuse")]);
    let log = &fixture.log;
    log.write_step();
    fixture.fail("ann");
    fixture.sim.clock.advance(Duration::from_secs(1));
    fixture.sim.disk.plan(Fault::for_ever(On::Kind(Call::Sync), 1, Effect::IO_ERROR));
    log.write_step();
    assert!(log.admit(AuditEvent::LoginFailed).is_err());
    log.write_step();
    assert!(log.admit(AuditEvent::LoginFailed).is_err(), "the disk still refuses");
    fixture.sim.disk.heal();
    log.write_step();
    assert_eq!(log.admit(AuditEvent::LoginFailed), Ok(()));
}

/// What was written a second ago survives the machine.
#[test]
fn records_are_durable_within_a_second() {
    let fixture = fixture(&[]);
    fixture.log.write_step();
    fixture.fail("ann");
    fixture.sim.clock.advance(Duration::from_secs(1));
    fixture.log.write_step();
    let written = fixture.text("audit.log").len() as u64;
    let crashed = fixture.sim.with_disk(fixture.sim.disk.crash(1)).env();
    let path = Path::new(DATA).join(FOLDER).join("audit.log");
    let file = crashed.disk.open(&path, OpenMode::Read).expect("the file is there");
    assert_eq!(file.len().expect("a length"), written);
}

/// However many logins of an address fail, the log has a few of them and a count, which comes without another failure.
#[test]
fn failed_logins_of_an_address_are_a_few_records_and_a_count() {
    let fixture = fixture(&[]);
    let log = &fixture.log;
    log.write_step();
    fixture.sim.clock.advance(Duration::from_secs(2));
    log.write_step();
    let before = fixture.records("audit.log").len();
    let address = Some([10, 0, 0, 1].into());
    let most = strangers::MOST_EACH as usize;
    for n in 0..10_000 {
        if n == most {
            log.waiting.lock().is_woken = false;
        }
        if log.admits_stranger(AuditEvent::LoginFailed, "AUTH_ERROR", address) {
            fixture.fail("ann");
        }
    }
    assert!(log.waiting.lock().is_woken, "the thread would sleep on");
    log.write_step();
    fixture.sim.clock.advance(Duration::from_secs(2));
    assert!(log.write_step() <= strangers::SPAN, "the count is due then");
    assert_eq!(fixture.records("audit.log").len(), before + most);
    fixture.sim.clock.advance(strangers::SPAN);
    log.write_step();
    let records = fixture.records("audit.log");
    let rest = records.last().expect("there are some");
    assert_eq!((records.len(), rest["left_out"].as_u64()), (before + most + 1, Some(10_000 - most as u64)));
    assert_eq!((&rest["reason"], &rest["remote"]["ip"]), (&"AUTH_ERROR".into(), &"10.0.0.1".into()));
    // What is left at the end of the node is told, too.
    for _ in 0..=most {
        log.admits_stranger(AuditEvent::LoginFailed, "AUTH_ERROR", address);
    }
    log.stop();
    log.write_step();
    assert_eq!(fixture.ids("audit.log")[records.len()..], [20_481, 4097]);
}
