//! The log on a simulated disk: moments of random histories, kill points, damage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod reads;

use base::encryption::{DataKeys, Sealer};
use base::env::Env;
use base::env::sim::{Call, Effect, Fault, On, SplitMix64};
use base::{Datatype, DocKey, Seqno, VbId, VbUuid};
use protocol::dcp::Marker;

use super::frame::{FrameHeader, FrameKind, FrameSeal};
use super::position::{GroupCommit, SnapshotMarks};
use super::writer::LogPlace;
use super::{AtMoment, ChangeLog, LogPosition, LogWriter, LoggedChange, MomentReader, WantedMoment};
use crate::backup::block::{BlockBuilder, Version};
use crate::backup::bucket_state::BucketState;
use crate::backup::manifest::{BackupHead, VbucketLine};
use crate::backup::writer::BackupWriter;
use crate::backup::{BackupError, Repository};
use crate::with_meta::Record;

const DIR: &str = "/backups";
const BUCKET: &str = "travel";
const VBUCKETS: u16 = 4;
/// When the histories begin.
const BEGIN_NS: u64 = 1_900_000_000_000_000_000;

/// A document or tombstone; an empty value is a tombstone.
fn record<'a>(key: &'a str, value: &'a str, cas: u64) -> Record<'a> {
    Record {
        key: DocKey::new(key.as_bytes()),
        deleted: value.is_empty(),
        expired: value.is_empty() && cas.is_multiple_of(2),
        cas,
        rev_seqno: cas / 3,
        expiry: cas as u32,
        flags: 7,
        datatype: if cas.is_multiple_of(3) { Datatype::XATTR } else { Datatype::JSON },
        value: value.as_bytes(),
    }
}

/// One change as the node made it.
#[derive(Clone, Debug)]
struct Change {
    seqno: u64,
    /// When it was made.
    made: u64,
    key: String,
    value: String,
}

/// A vBucket of the node.
#[derive(Clone, Debug, Default)]
struct NodeVbucket {
    changes: Vec<Change>,
    high: u64,
    uuid: u64,
    /// Ends of snapshots that were sent as a whole.
    ends: Vec<u64>,
    /// The moment of each change that went back, with the moment at which it did: between them a client saw it.
    undone: Vec<(u64, u64)>,
}

impl NodeVbucket {
    fn state(&self, moment: u64) -> BTreeMap<String, String> {
        let mut state = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.made <= moment) {
            if change.value.is_empty() {
                state.remove(&change.key);
            } else {
                state.insert(change.key.clone(), change.value.clone());
            }
        }
        state
    }
}

/// A node, the log that follows it, and the clock of both.
struct History<'e> {
    env: &'e Env,
    random: SplitMix64,
    now: u64,
    node: Vec<NodeVbucket>,
    /// Up to which seqno each vBucket was sent.
    sent: Vec<u64>,
    writer: LogWriter,
    origin: Vec<u64>,
    backups: u64,
    restarts: u64,
    undone: u64,
    merged: u64,
}

fn folder() -> PathBuf {
    Path::new(DIR).join(BUCKET).join("log")
}

fn open(env: &Env) -> Result<ChangeLog, BackupError> {
    open_keeping(env, 1 << 20)
}

/// The log, of which so many frames and gaps are kept in memory.
fn open_keeping(env: &Env, most: usize) -> Result<ChangeLog, BackupError> {
    ChangeLog::scan(env, &folder(), BUCKET, None, most)
}

/// A backup of what was sent.
fn back_up(env: &Env, node: &[NodeVbucket], number: u64) -> Vec<LogPosition> {
    let repository = Repository::new(env, Path::new(DIR));
    let newest = repository.backups(BUCKET).expect("read").len();
    let id = format!("20261127T{newest:06}Z");
    let head = BackupHead {
        id: id.clone(),
        number,
        base: None,
        begun_s: 7,
        vbuckets: VBUCKETS,
        snapshot: None,
        is_given: false,
    };
    let folder = Path::new(DIR).join(BUCKET).join(&id);
    let mut writer = BackupWriter::begin(&*env.disk, &folder, head, None).expect("begun");
    let mut lines = Vec::new();
    for (vb, of_node) in (0..).zip(node) {
        let mut newest: BTreeMap<&str, &Change> = BTreeMap::new();
        newest.extend(of_node.changes.iter().map(|change| (&*change.key, change)));
        let mut sorted: Vec<&Change> = newest.into_values().collect();
        sorted.sort_by_key(|change| change.seqno);
        let mut block = BlockBuilder::default();
        for Change { seqno, made, key, value } in sorted.iter().copied() {
            block.push(&Version { seqno: *seqno, record: record(key, value, *made) });
        }
        let blocks = match sorted.is_empty() {
            true => Vec::new(),
            false => vec![writer.block(VbId(vb), &mut block).expect("written")],
        };
        let (uuid, to) = (of_node.uuid, of_node.high);
        lines.push(VbucketLine { vb, uuid, from: 0, to, blocks, counts: BTreeMap::new() });
    }
    writer.complete(&lines).expect("written");
    writer.finish(BUCKET, 9, None, BucketState::default()).expect("complete");
    lines.iter().map(|line| LogPosition::at(line.uuid, line.to, BEGIN_NS)).collect()
}

impl<'e> History<'e> {
    fn begin(env: &'e Env, seed: u64) -> History<'e> {
        let uuid = |vb: u64| NodeVbucket { uuid: 100 + vb, ..NodeVbucket::default() };
        let mut node: Vec<NodeVbucket> = (0..VBUCKETS.into()).map(uuid).collect();
        for (vb, of_node) in node.iter_mut().enumerate() {
            for seqno in 1..=5 {
                let (key, value) = (format!("k{vb}-{seqno}"), "of the backup".to_owned());
                of_node.changes.push(Change { seqno, made: BEGIN_NS - 9, key, value });
                of_node.high = seqno;
            }
        }
        let positions = back_up(env, &node, 1);
        let now = BEGIN_NS + 1_000;
        let log = open(env).expect("there is none");
        let writer = log.begin_epoch(77, positions, (BEGIN_NS, now), "the log begins").expect("begun");
        let sent = node.iter().map(|vb| vb.high).collect();
        let mut history = History {
            env,
            random: SplitMix64::new(seed),
            now,
            node,
            sent,
            writer,
            origin: vec![5; VBUCKETS.into()],
            backups: 1,
            restarts: 0,
            undone: 0,
            merged: 0,
        };
        history.stream();
        history.poll();
        history
    }

    fn tick(&mut self) -> u64 {
        self.now += 1 + self.random.below(5_000);
        self.now
    }

    /// All streams go on.
    fn stream(&mut self) {
        for vb in 0..VBUCKETS {
            let now = self.tick();
            self.writer.history(VbId(vb), VbUuid(self.node[usize::from(vb)].uuid), now);
        }
    }

    fn change(&mut self, vb: usize) {
        let made = self.tick();
        let key = format!("k{vb}-{}", self.random.below(12));
        let value = match self.random.below(4) {
            0 => String::new(),
            _ => format!("v{}", self.random.next_u64()),
        };
        let of_node = &mut self.node[vb];
        if self.random.below(20) == 0 {
            // A prepare and its abort.
            of_node.high += 2;
            return;
        }
        // A prepare that no reader sees takes a seqno, too.
        of_node.high += 1 + u64::from(self.random.below(30) == 0);
        of_node.changes.push(Change { seqno: of_node.high, made, key, value });
    }

    /// Sends a vBucket's changes as a snapshot, without those that a later one of it replaced, and only some of it if
    /// `most` says so.
    fn send(&mut self, vb: usize, most: usize) {
        let (sent, high) = (self.sent[vb], self.node[vb].high);
        let new: Vec<Change> =
            self.node[vb].changes.iter().filter(|change| change.seqno > sent).cloned().collect();
        let first = new.first().map_or(high, |change| change.seqno);
        if sent == high {
            return;
        }
        let id = VbId(vb as u16);
        let marker = Marker { start: Seqno(first), end: Seqno(high), flags: 1, more: None };
        self.writer.marker(id, &marker);
        for (at, change) in new.iter().enumerate().take(most) {
            if new[at + 1..].iter().any(|later| later.key == change.key) {
                // What is in front of it counts as made when it came, if its CAS is of the future.
                let moment = self.writer.positions()[vb].moment;
                let of_node = self.node[vb].changes.iter_mut().find(|one| one.seqno == change.seqno);
                let of_node = of_node.expect("it was made");
                of_node.made = of_node.made.max(moment + 1);
                self.merged += 1;
                continue;
            }
            let now = self.tick();
            let version =
                Version { seqno: change.seqno, record: record(&change.key, &change.value, change.made) };
            // A node's clock is not that of the follower; some changes bring an old CAS.
            let made = match self.random.below(8) {
                0 => Some(1),
                1 => Some(u64::MAX),
                _ => Some(change.made),
            };
            self.writer.change(id, Seqno(change.seqno), made, now, LoggedChange::Version(version));
            // What is compared is what the log believes.
            let moment = self.writer.positions()[vb].moment;
            let of_node = self.node[vb].changes.iter_mut().find(|one| one.seqno == change.seqno);
            of_node.expect("it was made").made = moment;
            self.sent[vb] = change.seqno;
        }
        let last = new.last().map_or(sent, |change| change.seqno);
        if self.sent[vb] == last && last < high {
            let now = self.tick();
            self.writer.change(id, Seqno(high), None, now, LoggedChange::Advanced);
            self.sent[vb] = high;
        }
        if self.sent[vb] == high {
            self.node[vb].ends.push(high);
        }
    }

    /// All vBuckets have come to where they were.
    fn poll(&mut self) {
        let moment = self.tick();
        let moment = self.writer.now(moment);
        self.now = moment;
        self.tick();
        let is_there = |vb: usize| self.sent[vb] == self.node[vb].high;
        let there: Vec<bool> = (0..VBUCKETS.into()).map(is_there).collect();
        for (vb, is_there) in there.iter().enumerate() {
            if *is_there {
                self.writer.nothing_before(VbId(vb as u16), moment);
            }
        }
        if there.iter().all(|is_there| *is_there) {
            self.writer.complete_through(moment);
        }
    }

    /// A failover: the last changes of a vBucket are lost.
    fn fail_over(&mut self, vb: usize) {
        let of_node = &mut self.node[vb];
        let keep = of_node.changes.len().saturating_sub(1 + self.random.below(3) as usize);
        let kept: Vec<Change> = of_node.changes[..keep].to_vec();
        let last = kept.last().map_or(0, |change| change.seqno);
        // A producer goes back to the end of a snapshot that its consumer has as a whole.
        of_node.ends.retain(|end| *end <= last);
        let to = of_node.ends.last().copied().unwrap_or(5);
        if last < 5 || keep == of_node.changes.len() || to == self.sent[vb] {
            return;
        }
        let lost = of_node.changes[keep].made;
        let now = self.tick();
        let of_node = &mut self.node[vb];
        of_node.undone.push((lost, now));
        (of_node.changes, of_node.high, of_node.uuid) = (kept, last, of_node.uuid + 1000);
        self.sent[vb] = to;
        assert!(self.writer.rollback(VbId(vb as u16), Seqno(to), self.origin[vb]), "the log reaches back");
        let (uuid, now) = (self.node[vb].uuid, self.tick());
        self.writer.history(VbId(vb as u16), VbUuid(uuid), now);
        self.undone += 1;
    }

    /// Ends the follower, and begins another one.
    fn restart(&mut self, is_clean: bool) {
        let now = self.tick();
        self.writer.flush(now).expect("written");
        let log = open(self.env).expect("sound");
        let writer = log.go_on(now).expect("it goes on").expect("there is a log");
        for (at, before) in writer.positions().iter().zip(self.writer.positions()) {
            assert_eq!((at.position, at.gap), (before.position, before.gap), "it goes on where it was");
            assert_eq!(at.moment, before.moment);
        }
        let old = std::mem::replace(&mut self.writer, writer);
        drop((old, is_clean));
        self.restarts += 1;
        self.stream();
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let vb = self.random.below(VBUCKETS.into()) as usize;
            match self.random.below(100) {
                0..66 => {
                    self.change(vb);
                    if self.random.below(12) > 0 {
                        self.send(vb, usize::MAX);
                    }
                }
                66..80 => self.send(vb, usize::MAX),
                80..84 => self.send(vb, 2),
                84..93 => self.poll(),
                93..97 => {
                    let now = self.tick();
                    self.writer.flush(now).expect("written");
                }
                97 => self.fail_over(vb),
                98 => self.restart(true),
                _ => {
                    (0..VBUCKETS).for_each(|vb| self.send(vb.into(), usize::MAX));
                    if self.random.below(4) == 0 {
                        self.backups += 1;
                        back_up(self.env, &self.node, self.backups);
                    }
                }
            }
        }
        (0..VBUCKETS).for_each(|vb| self.send(vb.into(), usize::MAX));
        self.poll();
        let now = self.tick();
        self.writer.flush(now).expect("written");
    }
}

/// The state that a restore of a moment brings, by vBucket.
fn restored(
    env: &Env,
    wanted: &WantedMoment,
    tolerance_ns: u64,
) -> Result<(AtMoment, Vec<BTreeMap<String, String>>), BackupError> {
    let repository = Repository::new(env, Path::new(DIR));
    // What is not kept in memory is read again, and is the same.
    let most = if env.random.next_u64().is_multiple_of(2) { 1 << 20 } else { 3 };
    let log = open_keeping(env, most)?;
    let at = log.resolve(&repository, BUCKET, wanted, tolerance_ns)?;
    let mut states = Vec::new();
    {
        let mut reader = MomentReader::open(&repository, &log, &at)?;
        // All at once, or in parts of any length.
        if env.random.next_u64().is_multiple_of(2) {
            reader.hold_at_most(env.random.next_u64() as usize % 4096);
        }
        for vb in 0..VBUCKETS {
            let mut state = BTreeMap::new();
            reader.newest(VbId(vb), &mut |version: &Version<'_>| -> Result<(), BackupError> {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
                let (key, value) = (text(version.record.key.key), text(version.record.value));
                let Record { deleted, expired, cas, rev_seqno, expiry, flags, datatype, .. } = version.record;
                let as_made = record(&key, &value, cas);
                assert_eq!(
                    (deleted, expired, rev_seqno),
                    (as_made.deleted, as_made.expired, as_made.rev_seqno)
                );
                assert_eq!((expiry, flags, datatype), (as_made.expiry, as_made.flags, as_made.datatype));
                if !deleted {
                    state.insert(key, value);
                }
                Ok(())
            })?;
            states.push(state);
        }
    }
    Ok((at, states))
}

/// How many moments of each history are restored: a few, or as many as `RESTORE_MOMENTS` says.
fn moments() -> u64 {
    std::env::var("RESTORE_MOMENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

#[test]
fn a_random_moment_is_what_the_history_was_up_to_it() {
    let (mut compared, mut refused, mut counts) = (0, 0, [0; 4]);
    for seed in 0..12 {
        let (env, _) = Env::sim(seed);
        let mut history = History::begin(&env, seed);
        history.run(1500);
        let log = open(&env).expect("sound");
        let epoch = log.epochs().pop().expect("there is one");
        let mut random = SplitMix64::new(seed + 1000);
        for _ in 0..moments() {
            let moment = random.between(epoch.from, epoch.horizon);
            let expected: Vec<_> = history.node.iter().map(|vb| vb.state(moment)).collect();
            match restored(&env, &WantedMoment::At(moment), 0) {
                Ok((_, states)) => {
                    assert_eq!(states, expected, "seed {seed} at {moment}");
                    compared += 1;
                }
                Err(BackupError::Missing(said)) => {
                    assert!(said.contains("is in a gap") && said.contains("the nearest moment"), "{said}");
                    refused += 1;
                    // What is told to be the nearest moment can be restored.
                    let text = said.split("have are ").nth(1).or(said.split("that it has is ").nth(1));
                    let text = text.or(said.split("that it has are ").nth(1)).expect(&said);
                    let text = text.split([' ', ';']).next().expect("a moment");
                    let near = crate::units::parse_utc(text).expect("a moment");
                    let (_, states) = restored(&env, &WantedMoment::At(near), 0).expect("the nearest");
                    let expected: Vec<_> = history.node.iter().map(|vb| vb.state(near)).collect();
                    assert_eq!(states, expected, "seed {seed} near {moment}");
                    // Each vBucket is as it was at some moment that is not later.
                    let (at, _) = restored(&env, &WantedMoment::At(moment), u64::MAX).expect("tolerated");
                    assert!(at.earlier > 0);
                }
                Err(error) => panic!("seed {seed} at {moment}: {error}"),
            }
        }
        for (sum, count) in
            counts.iter_mut().zip([history.restarts, history.undone, history.merged, history.backups])
        {
            *sum += count;
        }
    }
    println!(
        "{compared} moments compared, {refused} in gaps; restarts, rollbacks, merged, backups: {counts:?}"
    );
    assert!(compared >= 100 && refused > 0, "{compared} {refused}");
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
}

#[test]
fn a_seqno_and_a_key_name_moments() {
    let (env, _) = Env::sim(1);
    let mut history = History::begin(&env, 1);
    // One change a snapshot: nothing is missing.
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("a", "")] {
        let vb = usize::from(base::vbucket_map::vbucket_of(key.as_bytes(), VBUCKETS).0);
        let made = history.tick();
        let of_node = &mut history.node[vb];
        of_node.high += 1;
        let (seqno, key, value) = (of_node.high, key.to_owned(), value.to_owned());
        of_node.changes.push(Change { seqno, made, key, value });
        history.send(vb, usize::MAX);
        history.poll();
    }
    let now = history.tick();
    history.writer.flush(now).expect("written");
    let vb = base::vbucket_map::vbucket_of(b"a", VBUCKETS).0;
    let before = |key: &str| restored(&env, &WantedMoment::Before(vec![format!("\0{key}").into_bytes()]), 0);
    let (_, states) = before("a").expect("it was changed");
    assert_eq!(states[usize::from(vb)]["a"], "2");
    let of_c = usize::from(base::vbucket_map::vbucket_of(b"c", VBUCKETS).0);
    assert_eq!(states[of_c]["c"], "1", "the change of `c` came before");
    let said = before("never").expect_err("it was never changed").to_string();
    assert!(said.contains("no change of key `never`"), "{said}");

    let seqnos: Vec<u64> = history.node[usize::from(vb)]
        .changes
        .iter()
        .filter(|one| one.key == "a")
        .map(|one| one.seqno)
        .collect();
    let at = |seqno: u64| restored(&env, &WantedMoment::Seqnos([(vb, seqno)].into()), 0);
    let (_, states) = at(seqnos[0]).expect("it is there");
    assert_eq!(states[usize::from(vb)]["a"], "1");
    let (_, states) = at(seqnos[2]).expect("it is there");
    assert!(!states[usize::from(vb)].contains_key("a"));
    let said = at(seqnos[2] + 100).expect_err("not yet").to_string();
    assert!(said.contains(&format!("of vBucket {vb}")), "{said}");
    let said = restored(&env, &WantedMoment::At(BEGIN_NS - 5), 0).expect_err("before").to_string();
    assert!(said.contains("the nearest moment that it has is"), "{said}");
    let said = restored(&env, &WantedMoment::At(u64::MAX / 2), 0).expect_err("behind").to_string();
    assert!(said.contains("the nearest moment that it has is"), "{said}");
}

/// A log with a few groups; after each of them the bytes of the segment, the horizon and where the vBuckets are.
fn groups(env: &Env) -> (LogWriter, Vec<(u64, u64, Vec<u64>)>) {
    let mut history = History::begin(env, 3);
    let mut groups = Vec::new();
    for _ in 0..5 {
        for vb in [0, 1, 0, 3] {
            history.change(vb);
            history.send(vb, usize::MAX);
        }
        history.poll();
        let now = history.tick();
        history.writer.flush(now).expect("written");
        let file = env.disk.open(&folder().join("segment-00000001"), base::env::OpenMode::Read);
        let len = file.and_then(|file| file.len()).expect("it is there");
        groups.push((len, history.writer.horizon(), seqnos(&history.writer)));
    }
    (history.writer, groups)
}

fn seqnos(writer: &LogWriter) -> Vec<u64> {
    writer.positions().iter().map(|at| at.position.seqno.0).collect()
}

fn read_all(env: &Env, path: &Path) -> Vec<u8> {
    let file = env.disk.open(path, base::env::OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    bytes
}

#[test]
fn a_log_that_ends_at_any_byte_goes_on_behind_its_last_whole_group() {
    let (env, _) = Env::sim(1);
    let (writer, groups) = groups(&env);
    drop(writer);
    let path = folder().join("segment-00000001");
    let bytes = read_all(&env, &path);
    assert_eq!(groups.last().expect("there are some").0, bytes.len() as u64);
    for cut in 0..=bytes.len() {
        let file = env.disk.open(&path, base::env::OpenMode::ReadWrite).expect("it is there");
        file.set_len(cut as u64).expect("cut");
        let log = open(&env).expect("a cut is no damage");
        let whole = groups.iter().rfind(|(len, ..)| *len <= cut as u64);
        let writer = log.go_on(BEGIN_NS + 9_000_000_000).expect("it goes on");
        match (whole, &writer) {
            (Some((len, horizon, at)), Some(writer)) => {
                assert_eq!((writer.horizon(), seqnos(writer)), (*horizon, at.clone()), "cut at {cut}");
                assert_eq!(file.len().expect("a length"), *len, "what is not whole is cut off");
            }
            // Only its first frame, or not even that.
            (None, Some(writer)) => assert_eq!(seqnos(writer), [5; 4], "cut at {cut}"),
            (None, None) => assert!(open(&env).expect("sound").epochs().is_empty(), "cut at {cut}"),
            (Some(_), None) => panic!("cut at {cut}: groups are lost"),
        }
        if writer.is_some() {
            open(&env).expect("both segments").verify(&*env.disk).expect("sound");
            env.disk.remove_file(&folder().join("segment-00000002")).expect("it was made");
        }
        let file = env.disk.open(&path, base::env::OpenMode::Create).expect("it is there");
        file.write_at(&bytes, 0).expect("mended");
    }
}

#[test]
fn every_flipped_bit_of_a_log_is_noticed_or_at_its_very_end() {
    let (env, handles) = Env::sim(1);
    let (writer, groups) = groups(&env);
    let (first, second) = (folder().join("segment-00000001"), folder().join("segment-00000002"));
    let before_last = groups[groups.len() - 2].clone();
    let check = |what: &str, may_end: bool, path: &Path| {
        let mut noticed = 0;
        for offset in 0..read_all(&env, path).len() {
            let mask = 1 << (offset % 8);
            handles.disk.rot(path, offset as u64, mask).expect("it is there");
            match open(&env).and_then(|log| log.verify(&*env.disk).map(|_| log)) {
                Ok(log) => {
                    let horizon = log.epochs().last().map_or(0, |epoch| epoch.horizon);
                    assert!(may_end && horizon >= before_last.1, "{what} at {offset}");
                    assert!(log.torn_bytes() > 0, "{what} at {offset}: the last group does not count");
                }
                Err(error) => {
                    let (said, name) =
                        (error.to_string(), path.file_name().expect("a name").to_string_lossy());
                    assert!(error.is_damage() && said.contains(&*name), "{what} at {offset}: {said}");
                    noticed += 1;
                }
            }
            handles.disk.rot(path, offset as u64, mask).expect("it is there");
        }
        noticed
    };
    // While it is written a flipped bit of the last group cannot be told from a crash.
    let noticed = check("an open log", true, &first);
    assert!(noticed as u64 >= before_last.0, "{noticed}");
    writer.finish(BEGIN_NS + 9_000_000_000).expect("written");
    let len = read_all(&env, &first).len();
    let noticed = check("a log that was ended", true, &first);
    assert_eq!(noticed, len - super::frame::HEADER_BYTES, "all but the last frame, which says nothing");
    drop(open(&env).expect("sound").go_on(BEGIN_NS + 9_000_000_001).expect("it goes on"));
    assert_eq!(check("a segment that another one follows", false, &first), len);
    assert_eq!(check("one that holds no group", true, &second), 0);
    env.disk.remove_file(&first).expect("it is there");
    assert_eq!(open(&env).expect("the oldest may be removed").segments.len(), 1);
}

#[test]
fn a_crash_loses_nothing_that_was_durable() {
    let (mut torn, mut whole) = (0, 0);
    for seed in 0..300 {
        let (env, handles) = Env::sim(seed);
        let mut history = History::begin(&env, seed);
        history.run(40);
        let (horizon, at) = (history.writer.horizon(), seqnos(&history.writer));
        // The group that is written when the power goes.
        history.change(1);
        history.send(1, usize::MAX);
        history.change(0);
        history.send(0, usize::MAX);
        history.poll();
        let later = (history.writer.horizon(), seqnos(&history.writer));
        let nth = 1 + seed % 3;
        handles.disk.plan(base::env::sim::Fault::power_off_at(nth));
        let now = history.tick();
        let _ = history.writer.flush(now);
        let crashed = handles.with_disk(handles.disk.crash(seed));
        let env = crashed.env();
        let log = open(&env).expect("a crash is no damage");
        log.verify(&*env.disk).expect("what counts is whole");
        let writer = log.go_on(now).expect("it goes on").expect("there is a log");
        let is_whole = (writer.horizon(), seqnos(&writer)) == later;
        assert!(is_whole || (writer.horizon(), seqnos(&writer)) == (horizon, at), "seed {seed}");
        *(if is_whole { &mut whole } else { &mut torn }) += 1;
        open(&env).expect("sound").verify(&*env.disk).expect("sound");
    }
    assert!(torn > 20 && whole > 20, "{torn} {whole}");
}

#[test]
fn a_group_that_was_not_durable_yet_is_made_so_before_the_log_goes_on() {
    let mut gone_on = 0;
    for seed in 0..100 {
        let (env, handles) = Env::sim(seed);
        let mut history = History::begin(&env, seed);
        history.run(40);
        let before = seqnos(&history.writer);
        history.change(1);
        history.send(1, usize::MAX);
        // Killed when the group was written, and before it was durable.
        handles.disk.plan(Fault::once(On::Kind(Call::Sync), 1, Effect::IO_ERROR));
        let now = history.tick();
        history.writer.flush(now).expect_err("it is not durable");
        let writer = open(&env).expect("sound").go_on(now).expect("it goes on").expect("there is a log");
        gone_on += u64::from(seqnos(&writer) != before);
        let crashed = handles.with_disk(handles.disk.crash(seed));
        let log = open(&crashed.env()).expect("what is gone on from is durable");
        let state = &log.segments.last().expect("there are some").state;
        let begun: Vec<u64> = state.positions().iter().map(|at| at.position.seqno.0).collect();
        assert_eq!(begun, seqnos(&writer), "seed {seed}");
    }
    assert!(gone_on > 20, "{gone_on}");
}

#[test]
fn a_full_disk_costs_the_group_that_had_no_room() {
    let (mut torn, mut whole) = (0, 0);
    for seed in 0..100 {
        let (env, handles) = Env::sim(seed);
        let mut history = History::begin(&env, seed);
        history.run(40);
        let before = (history.writer.horizon(), seqnos(&history.writer));
        history.change(1);
        history.send(1, usize::MAX);
        history.poll();
        let later = (history.writer.horizon(), seqnos(&history.writer));
        let (bytes, errno) = (seed as usize * 3, libc::ENOSPC);
        handles.disk.plan(Fault::once(On::Kind(Call::Write), 1, Effect::Short { bytes, errno }));
        let now = history.tick();
        let said = history.writer.flush(now).expect_err("there is no room").to_string();
        assert!(said.contains("segment-"), "{said}");
        // Nor is there any for another segment.
        handles.disk.plan(Fault::once(On::Kind(Call::Write), 1, Effect::DISK_FULL));
        assert!(open(&env).expect("sound").go_on(now).is_err());
        let writer = open(&env).expect("sound").go_on(now).expect("it goes on").expect("there is a log");
        // What was told to have failed may be there as a whole.
        let is_whole = (writer.horizon(), seqnos(&writer)) == later;
        assert!(is_whole || (writer.horizon(), seqnos(&writer)) == before, "seed {seed}");
        *(if is_whole { &mut whole } else { &mut torn }) += 1;
        open(&env).expect("sound").verify(&*env.disk).expect("sound");
    }
    assert!(torn > 50 && whole > 0, "{torn} {whole}");
}

/// A vBucket of the node goes back to what the log began with.
fn back_to_the_beginning(history: &mut History<'_>, vb: usize) {
    assert!(history.writer.rollback(VbId(vb as u16), Seqno(5), 5), "the log reaches back");
    let of_node = &mut history.node[vb];
    of_node.changes.retain(|change| change.seqno <= 5);
    (of_node.ends, of_node.high, of_node.uuid) = (Vec::new(), 5, of_node.uuid + 1000);
    history.sent[vb] = 5;
}

/// The last moment of the log is restored as the node is.
fn ends_as_the_node_is(history: &mut History<'_>) {
    history.poll();
    let now = history.tick();
    history.writer.flush(now).expect("written");
    let moment = open(history.env).expect("sound").epochs().pop().expect("there is one").horizon;
    let expected: Vec<_> = history.node.iter().map(|vb| vb.state(moment)).collect();
    let (_, states) = restored(history.env, &WantedMoment::At(moment), 0).expect("no gap");
    assert_eq!(states, expected);
}

#[test]
fn what_is_missing_at_the_end_of_a_part_hides_no_moment_of_the_next() {
    let (env, _) = Env::sim(5);
    let mut history = History::begin(&env, 5);
    history.run(60);
    back_to_the_beginning(&mut history, 0);
    let now = history.tick();
    history.writer.flush(now).expect("written");
    let positions = back_up(&env, &history.node, 2);
    let now = history.tick();
    let log = open(&env).expect("sound");
    history.writer = log.begin_epoch(78, positions, (now, now + 1), "another vBucket").expect("begun");
    history.sent = history.node.iter().map(|vb| vb.high).collect();
    history.stream();
    ends_as_the_node_is(&mut history);
}

#[test]
fn a_vbucket_may_go_back_to_before_what_was_removed() {
    let (env, _) = Env::sim(6);
    let mut history = History::begin(&env, 6);
    history.run(400);
    history.restart(true);
    back_up(&env, &history.node, 2);
    let log = open(&env).expect("sound");
    log.remove_before(log.segments.len() - 1).expect("removed");
    back_to_the_beginning(&mut history, 0);
    history.stream();
    history.change(0);
    history.send(0, usize::MAX);
    history.poll();
    back_up(&env, &history.node, 3);
    ends_as_the_node_is(&mut history);
}

/// What a stream brings that was away was not made as it came, however short the absence was.
#[test]
fn commits_of_an_absence_count_from_behind_what_is_in_front_of_them() {
    let (env, _) = Env::sim(41);
    let ms = |ms: u64| BEGIN_NS + ms * 1_000_000;
    let (vb, uuid) = (VbId(0), VbUuid(1));
    let positions = vec![LogPosition::at(uuid.0, 0, ms(0))];
    let log = open(&env).expect("there is none");
    let mut writer = log.begin_epoch(77, positions, (ms(0), ms(1)), "the log begins").expect("begun");
    writer.history(vb, uuid, ms(10));
    writer.was_away(vb);
    assert_eq!(writer.time_of_completion(vb, ms(20)), Some(0), "it may have been made before");
    writer.nothing_before(vb, ms(30));
    assert_eq!(writer.time_of_completion(vb, ms(40)), None, "it comes as it is made");
    // Away for a second and a half.
    writer.history(vb, uuid, ms(1_500));
    writer.was_away(vb);
    assert_eq!(writer.time_of_completion(vb, ms(1_510)), Some(0));
    let prepared = LoggedChange::Hidden { prepared: 1 };
    writer.change(vb, Seqno(1), Some(ms(1_600)), ms(1_610), prepared);
    assert_eq!(writer.time_of_completion(vb, ms(1_620)), None, "what is in front of it was made since");
    // It goes back for a prepare, and was not away.
    writer.history(vb, uuid, ms(1_630));
    assert_eq!(writer.time_of_completion(vb, ms(1_640)), None);
    assert_eq!(writer.time_of_completion(vb, ms(2_100)), Some(0), "the log is behind");
}

#[test]
fn memory_has_no_more_than_a_group() {
    let (env, _) = Env::sim(1);
    let mut history = History::begin(&env, 1);
    let value = "v".repeat(1 << 20);
    let mut groups = 0;
    for seqno in 6..60 {
        let marker = Marker { start: Seqno(seqno), end: Seqno(seqno), flags: 1, more: None };
        history.writer.marker(VbId(0), &marker);
        let version = Version { seqno, record: record("k", &value, 1) };
        let now = history.tick();
        history.writer.change(VbId(0), Seqno(seqno), Some(1), now, LoggedChange::Version(version));
        if history.writer.is_full() {
            history.writer.flush(now).expect("written");
            groups += 1;
        }
        assert!(!history.writer.is_full());
    }
    assert!(groups >= 6, "{groups}");
}

#[test]
fn what_no_kept_backup_needs_is_removed() {
    let (env, _) = Env::sim(2);
    let mut history = History::begin(&env, 2);
    history.run(600);
    history.restart(true);
    back_up(&env, &history.node, 99);
    let bases: Vec<u64> = history.node.iter().map(|vb| vb.high).collect();
    history.run(300);
    let log = open(&env).expect("sound");
    let count = log.unneeded(&bases, u64::MAX);
    assert!(count > 3 && count < log.segments.len(), "{count} of {}", log.segments.len());
    let first = log.segments[count].state.moment;
    log.remove_before(count).expect("removed");
    let log = open(&env).expect("sound");
    let epoch = log.epochs().pop().expect("there is one");
    assert_eq!(epoch.from, first);
    let moment = epoch.horizon;
    let expected: Vec<_> = history.node.iter().map(|vb| vb.state(moment)).collect();
    let (at, states) = restored(&env, &WantedMoment::At(moment), 0).expect("it is there");
    assert_eq!((states, at.earlier), (expected, 0));
    let said = restored(&env, &WantedMoment::At(first - 1), 0).expect_err("it was removed").to_string();
    assert!(said.contains("the nearest moment that it has"), "{said}");
}

/// What encrypts; its keys are kept nowhere.
fn sealer(env: &Env) -> Sealer {
    Sealer::new(env, &DataKeys::ephemeral(env)).expect("there is a key")
}

#[test]
fn plain_frames_and_segments_behind_encrypted_ones_are_refused() {
    let (env, _) = Env::sim(1);
    let sealer = sealer(&env);
    let scan = || ChangeLog::scan(&env, &folder(), BUCKET, Some(&sealer), 1 << 20);
    let begin = |segment: u32, previous_len: Option<u64>, sealer: Option<Sealer>| {
        let (epoch, horizon, why) = (77, BEGIN_NS, "the log begins".to_owned());
        let place = LogPlace { epoch, segment, previous_len, horizon, why, sealer, most_age_ns: 1 << 60 };
        let positions: Vec<LogPosition> = (0..4).map(|vb| LogPosition::at(vb, 5, BEGIN_NS)).collect();
        let marks = vec![SnapshotMarks::default(); positions.len()];
        LogWriter::begin(&env.disk, &folder(), BUCKET, place, (positions, marks), BEGIN_NS + 9)
            .expect("begun")
    };
    begin(1, None, Some(sealer.clone()));
    let log = scan().expect("sound");
    assert_eq!((log.segments.len(), log.plain_segments()), (1, 0));
    let end = log.segments[0].end;

    // A group whose checksums are right, in clear.
    let commit = serde_json::to_vec(&GroupCommit { horizon: BEGIN_NS + 5, ..GroupCommit::default() });
    let header = FrameHeader::new(77, 1, FrameKind::Commit, VbId(0));
    let path = folder().join("segment-00000001");
    let file = env.disk.open(&path, base::env::OpenMode::ReadWrite).expect("it is there");
    for (form, is_taken) in [(None, false), (Some(sealer.clone()), true)] {
        let (mut frame, seal) = (Vec::new(), FrameSeal { sealer: form, segment: 1 });
        header.seal(commit.as_ref().expect("JSON"), &seal, &mut snap::raw::Encoder::new(), &mut frame);
        file.set_len(end).and_then(|()| file.write_at(&frame, end)).expect("written");
        match scan() {
            Ok(log) => assert!(is_taken && log.segments[0].end > end, "a plain frame was taken"),
            Err(error) => {
                let said = error.to_string();
                assert!(
                    !is_taken && error.is_damage() && said.contains("is not encrypted, unlike"),
                    "{said}"
                );
            }
        }
    }
    let end = scan().expect("sound").segments[0].end;
    begin(2, Some(end), None);
    let error = scan().map(drop).expect_err("a plain segment");
    assert!(error.is_damage() && error.to_string().contains("the segment before it is"), "{error}");
}

#[test]
fn a_log_that_was_plain_goes_on_encrypted_and_its_plain_segments_are_counted() {
    let (env, _) = Env::sim(1);
    let (writer, _) = groups(&env);
    drop(writer);
    let sealer = sealer(&env);
    let scan = || ChangeLog::scan(&env, &folder(), BUCKET, Some(&sealer), 1 << 20).expect("sound");
    drop(scan().go_on(BEGIN_NS + 9_000_000_000).expect("it goes on"));
    let log = scan();
    assert_eq!((log.segments.len(), log.plain_segments()), (2, 1));
    log.verify(&*env.disk).expect("sound");
}
