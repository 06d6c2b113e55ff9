//! Follows a bucket: writes every change to the log as it comes, with its moment (record 0122).
//!
//! # Guarantees
//!
//! - A change is durable within a second of its arrival, unless the disk or the store takes longer than that to take it: then
//!   it is so as soon as that answers, or the command fails.
//! - The log says that it has everything up to a moment only when each vBucket has come to where it was then.
//! - Memory is bounded: what is not written yet has a limit, and the node waits while it is written.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::Env;
use base::{Seqno, VbId};
use protocol::dcp::{Message, OpenFlags, What};

use super::block::read_version;
use super::log::{ChangeLog, LogGroup, LogPosition, LogWriter, LoggedChange, clock_set_back};
use super::prepared::Prepared;
use super::repository::RepositoryLock;
use super::take::record_of;
use super::{BackupError, HowFar, Repository, TakeOptions, Version, take};
use crate::client::dcp::{
    Event, Start, Watch, Wishes, follow_everywhere, high_seqnos, members, newest_histories, seqno_of,
};
use crate::client::{Client, ClientError, Target};
use crate::units::duration;

/// What came is written after this: to a folder, and to an object store, which takes longer and charges each request.
const WRITE_AFTER_NS: u64 = 250_000_000;
const WRITE_TO_STORE_AFTER_NS: u64 = 500_000_000 / TEST_DIVISOR;
/// That nothing came is written after this.
const TELL_AFTER_NS: u64 = 750_000_000;
const TELL_STORE_AFTER_NS: u64 = 2_000_000_000 / TEST_DIVISOR;
/// Tests wait for less.
const TEST_DIVISOR: u64 = if cfg!(test) { 10 } else { 1 };
/// Between two tries to make whole segments of pieces, after one that failed.
const PAUSE_OF_JOINS: Duration = Duration::from_secs(10);
/// Between two looks at what waits to be written.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions where the vBuckets are.
const ASK: Duration = Duration::from_millis(200);
/// An answer that is not reached by then makes way for a newer one: a vBucket may have gone back meanwhile.
const GIVE_UP_NS: u64 = 5_000_000_000;
/// After streams that ended, and after a backup that failed.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_OF_BACKUPS: Duration = Duration::from_secs(60);
/// A log that begins again more often than this without having been complete once is given up.
const MOST_EPOCHS: u32 = 8;
/// Bytes on their way on each connection.
const BUFFER_BYTES: u32 = 4 << 20;
const NOOP_INTERVAL_S: u32 = 20;

/// How a bucket is followed.
#[derive(Clone, Debug, Default)]
pub(crate) struct FollowOptions {
    /// How the backup is made that the log goes on from.
    pub(crate) take: TakeOptions,
    /// A backup is made again after this.
    pub(crate) base_every: Duration,
    /// Ends as soon as the log has everything that was there when the command began.
    pub(crate) once_caught_up: bool,
}

/// What following has come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct FollowCounts {
    pub(crate) versions: u64,
    /// Stretches of time that cannot be restored, as they are counted in what the log has, and how long they take together.
    pub(crate) gaps: u64,
    pub(crate) gaps_ns: u64,
    pub(crate) rollbacks: u64,
    /// Parts of the log that were begun.
    pub(crate) epochs: u64,
    /// Backups that were made.
    pub(crate) backups: u64,
    /// Up to which moment the log has everything.
    pub(crate) horizon: u64,
    /// The longest time for which a change waited before it was durable.
    pub(crate) longest_wait_ns: u64,
}

/// What is told while a bucket is followed.
pub(crate) enum FollowNews<'a> {
    Backup(&'a HowFar),
    Following(&'a FollowCounts),
    Trouble(String),
}

/// Takes what is told.
pub(crate) type Tell<'a> = dyn Fn(FollowNews<'_>) + Sync + 'a;

/// Follows a bucket until `interrupted`, or until the log is complete if that is enough.
pub(crate) fn follow_bucket(
    env: &Env,
    target: &Target,
    repository: &Repository<'_>,
    options: &FollowOptions,
    interrupted: &AtomicBool,
    tell: &Tell<'_>,
) -> anyhow::Result<FollowCounts> {
    let held = &repository.lock_log(&target.bucket)?;
    // Keys are made before the log is opened, which takes them as they are.
    repository.sealer_to_log(&target.bucket)?;
    let begun = env.clock.unix_ns();
    let mut counts = FollowCounts::default();
    let (mut again, mut attempts) = (None, 0);
    while !interrupted.load(Ordering::Relaxed) {
        let run =
            Run { env, target, repository, options, interrupted, tell, begun, held, writing: Mutex::new(()) };
        let (writer, origin) = run.writer(again.take(), &mut counts)?;
        let (horizon, taken) = (writer.horizon(), run.follow(writer, &origin, &mut counts)?);
        attempts = if counts.horizon > horizon { 0 } else { attempts + 1 };
        match taken {
            Some(why) if attempts > MOST_EPOCHS => {
                bail!("the log could not be gone on with {attempts} times: {why}; try again later")
            }
            Some(why) => again = Some(why),
            None => break,
        }
    }
    Ok(counts)
}

/// One writer's time.
struct Run<'a> {
    env: &'a Env,
    target: &'a Target,
    repository: &'a Repository<'a>,
    options: &'a FollowOptions,
    interrupted: &'a AtomicBool,
    tell: &'a Tell<'a>,
    begun: u64,
    held: &'a RepositoryLock,
    /// Held while a group is written.
    writing: Mutex<()>,
}

impl Run<'_> {
    fn say(&self, news: FollowNews<'_>) {
        (self.tell)(news);
    }

    /// Makes a backup; its vBuckets' places.
    fn backup(&self, interrupted: &AtomicBool) -> anyhow::Result<Vec<LogPosition>> {
        let floor = self.env.clock.unix_ns();
        let show = &mut |how_far: &HowFar| self.say(FollowNews::Backup(how_far));
        let taken = take(self.env, self.target, self.repository, &self.options.take, interrupted, show)?;
        if let Some(why) = &taken.without_settings {
            let bucket = &taken.manifest.bucket;
            self.say(FollowNews::Trouble(format!(
                "the settings of bucket `{bucket}` are not in the backup: {why}"
            )));
        }
        let chain = self.repository.chain(&self.target.bucket, Some(&taken.manifest.id))?;
        let lines = self.repository.lines(chain.newest())?;
        Ok(lines.values().map(|line| LogPosition::at(line.uuid, line.to, floor)).collect())
    }

    /// Goes on with the log, or begins an epoch behind a new backup; the writer, and from where on it can go back.
    fn writer(
        &self,
        again: Option<String>,
        counts: &mut FollowCounts,
    ) -> anyhow::Result<(LogWriter, Vec<u64>)> {
        let bucket = &self.target.bucket;
        let log = ChangeLog::open(self.repository, bucket).context(
            "the log cannot be gone on with; move its folder away to begin another one behind a new backup",
        )?;
        let seqnos = |positions: &[LogPosition]| positions.iter().map(|at| at.position.seqno.0).collect();
        let again = again.or_else(|| log.clock_set_back(self.env.clock.unix_ns()).map(set_back));
        let vbuckets = usize::from(Client::open(self.env, self.target)?.vbuckets());
        if again.is_none()
            && let Some(epoch) = log.epochs().last()
            && log.origin(epoch).len() == vbuckets
            && let Some(writer) = log.go_on(self.env.clock.unix_ns())?
        {
            return Ok((writer, seqnos(&log.origin(epoch))));
        }
        let why = again.unwrap_or_else(|| match log.epochs().last() {
            Some(_) => "the bucket has another number of vBuckets".to_owned(),
            None => "the log begins".to_owned(),
        });
        let floor = self.env.clock.unix_ns();
        let positions = self.backup(self.interrupted)?;
        (counts.backups, counts.epochs) = (counts.backups + 1, counts.epochs + 1);
        let origin = seqnos(&positions);
        let now = self.env.clock.unix_ns();
        let writer = log.begin_epoch(self.env.random.next_u64(), positions, (floor, now), &why)?;
        Ok((writer, origin))
    }

    /// Follows until it is to end (`None`) or the log is to be begun again, and why.
    fn follow(
        &self,
        writer: LogWriter,
        origin: &[u64],
        counts: &mut FollowCounts,
    ) -> anyhow::Result<Option<String>> {
        let following = Following {
            clock: &*self.env.clock,
            origin,
            before: counts.clone(),
            backups: 0,
            enough: writer.begun().max(self.begun),
            writer,
            prepared: Prepared::default(),
            goal: None,
            reached: 0,
            longest_wait_ns: counts.longest_wait_ns,
            rhythm: if self.repository.is_store() {
                (WRITE_TO_STORE_AFTER_NS, TELL_STORE_AFTER_NS)
            } else {
                (WRITE_AFTER_NS, TELL_AFTER_NS)
            },
            wants_backup: false,
            failed: None,
            again: None,
        };
        let (shared, stop) = (Mutex::new(following), AtomicBool::new(false));
        let done = std::thread::scope(|scope| {
            scope.spawn(|| self.write(&shared, &stop));
            scope.spawn(|| self.ask(&shared, &stop));
            scope.spawn(|| self.back_up(&shared, &stop));
            scope.spawn(|| self.join_segments(&shared, &stop));
            let done = self.stream(&shared);
            stop.store(true, Ordering::Relaxed);
            done
        });
        let following = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        *counts = following.counts();
        let Following { writer, again, failed, .. } = following;
        match failed {
            Some(error) => return Err(error),
            // What came is kept, whatever ended the streams.
            None => self.finish(writer)?,
        }
        done?;
        Ok(again)
    }

    /// Writes what is left, and ends the segment.
    fn finish(&self, writer: LogWriter) -> anyhow::Result<()> {
        let behind = writer.segment() + 1;
        self.held.check()?;
        writer.finish(self.env.clock.unix_ns())?;
        if let Err(error) = self.repository.join_segments(&self.target.bucket, behind) {
            self.say(FollowNews::Trouble(format!("{error}; the next command that follows does it")));
        }
        Ok(())
    }

    /// Makes one object of each segment that ended, where segments are in pieces.
    fn join_segments(&self, shared: &Mutex<Following<'_>>, stop: &AtomicBool) {
        let now = || self.env.clock.monotonic();
        let (mut joined, mut due) = (0, now());
        while self.repository.is_store() && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            let segment = lock(shared).writer.segment();
            if segment == joined || now() < due {
                continue;
            }
            match self.repository.join_segments(&self.target.bucket, segment) {
                Ok(()) => joined = segment,
                Err(error) => {
                    due = now() + PAUSE_OF_JOINS;
                    self.say(FollowNews::Trouble(format!("{error}; it is tried again")));
                }
            }
        }
    }

    /// Streams, again and again, until it is to end.
    fn stream(&self, shared: &Mutex<Following<'_>>) -> anyhow::Result<()> {
        loop {
            let wishes = Wishes {
                name: format!("stave-follow:{:016x}", self.env.random.next_u64()),
                flags: OpenFlags(OpenFlags::XATTRS | OpenFlags::DELETE_TIMES),
                buffer_bytes: BUFFER_BYTES,
                noop_interval_s: NOOP_INTERVAL_S,
                filter: Vec::new(),
                sync_writes: true,
                history: false,
            };
            lock(shared).prepared.begin_again();
            let start = |(vb, at): (u16, &LogPosition)| Start {
                vb: VbId(vb),
                position: at.start(),
                end: Start::FOR_EVER,
            };
            let starts = (0..).zip(lock(shared).writer.positions()).map(start).collect();
            let mut watch = FollowWatch { run: self, shared, trouble: None, told: None };
            follow_everywhere(self.env, self.target, &wishes, starts, None, &mut watch)?;
            if let Some(trouble) = watch.trouble {
                self.say(FollowNews::Trouble(trouble));
            }
            if self.is_over(&lock(shared)) {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn is_over(&self, following: &Following<'_>) -> bool {
        let is_enough = self.options.once_caught_up && following.reached >= following.enough;
        self.interrupted.load(Ordering::Relaxed)
            || is_enough
            || following.failed.is_some()
            || following.again.is_some()
    }

    /// Writes what waits before a second is over.
    fn write(&self, shared: &Mutex<Following<'_>>, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            self.write_if_due(shared);
        }
    }

    fn write_if_due(&self, shared: &Mutex<Following<'_>>) {
        let is_due = lock(shared).is_due();
        if is_due {
            self.write_group(shared);
        }
    }

    /// Writes what waits as a group; the streams go on meanwhile.
    fn write_group(&self, shared: &Mutex<Following<'_>>) {
        let _one_at_a_time = lock(&self.writing);
        let group = {
            let following = &mut *lock(shared);
            let now = following.clock.unix_ns();
            if following.failed.is_some() { None } else { following.writer.take_group(now) }
        };
        let Some(group) = group else { return };
        // The store may have taken its time: what was written behind another holder counts nowhere.
        let holds = || self.held.check();
        let written = holds().and_then(|()| group.write()).and_then(|done| holds().map(|()| done));
        lock(shared).written(&group, written);
    }

    /// Asks again and again where the vBuckets are.
    fn ask(&self, shared: &Mutex<Following<'_>>, stop: &AtomicBool) {
        let mut clients = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(ASK);
            let moment = {
                let following = &mut *lock(shared);
                following.look_at_clock();
                following.writer.now(following.clock.unix_ns())
            };
            let vbuckets = lock(shared).writer.positions().len();
            match self.states(&mut clients, vbuckets) {
                Ok(Some(states)) => {
                    let (highs, uuids) = states.into_iter().unzip();
                    lock(shared).polled(SeqnoPoll { moment, highs, uuids, reached: 0 });
                }
                // A vBucket that no node is active for, or a node that is gone: whoever streams tells of it.
                Ok(None) | Err(_) => clients.clear(),
            }
        }
    }

    /// Where the vBuckets are, and in which history; `None` if no node is active for one of them.
    fn states(
        &self,
        clients: &mut Vec<Client>,
        vbuckets: usize,
    ) -> Result<Option<Vec<(u64, u64)>>, ClientError> {
        if clients.is_empty() {
            for member in members(self.env, self.target)? {
                clients.push(Client::open(self.env, &member)?);
            }
        }
        let mut states = vec![None; vbuckets];
        for client in clients {
            let highs = high_seqnos(client)?;
            let ids: Vec<VbId> = highs.iter().map(|(vb, _)| *vb).collect();
            // Behind the seqnos: if the history is the one that is followed, they are of it.
            let histories = newest_histories(client, &ids)?;
            for ((vb, high), uuid) in highs.into_iter().zip(histories) {
                if let Some(known) = states.get_mut(usize::from(vb.0)) {
                    *known = (*known).max(Some((high.0, uuid.0)));
                }
            }
        }
        Ok(states.into_iter().collect())
    }

    /// Makes a backup when it is time for one, so that a restore needs less of the log.
    fn back_up(&self, shared: &Mutex<Following<'_>>, stop: &AtomicBool) {
        let now = || self.env.clock.monotonic();
        let mut due = now() + self.options.base_every;
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            let is_wanted = std::mem::take(&mut lock(shared).wants_backup);
            if !is_wanted && now() < due {
                continue;
            }
            match self.backup(stop) {
                Ok(_) => {
                    due = now() + self.options.base_every;
                    lock(shared).backups += 1;
                }
                Err(_) if stop.load(Ordering::Relaxed) => {}
                Err(error) => {
                    due = now() + PAUSE_OF_BACKUPS;
                    self.say(FollowNews::Trouble(format!("no backup was made: {error:#}")));
                }
            }
        }
    }
}

/// Why another epoch begins.
fn set_back(by_ns: u64) -> String {
    format!("the clock of this machine was set back by {}", duration(by_ns))
}

/// A panic on another thread is told when that is joined.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the vBuckets were at a moment, or later.
struct SeqnoPoll {
    moment: u64,
    highs: Vec<u64>,
    /// The histories that they were in.
    uuids: Vec<u64>,
    /// So many of them are reached.
    reached: usize,
}

/// What the threads of a run share.
struct Following<'a> {
    clock: &'a dyn base::env::Clock,
    origin: &'a [u64],
    /// What it had come to before.
    before: FollowCounts,
    /// Backups that were made since.
    backups: u64,
    writer: LogWriter,
    prepared: Prepared,
    goal: Option<SeqnoPoll>,
    /// What was there at this moment is enough for a follower that does not go on.
    enough: u64,
    /// The moment up to which everything is there and durable.
    reached: u64,
    longest_wait_ns: u64,
    /// After which time changes are written, and a horizon.
    rhythm: (u64, u64),
    wants_backup: bool,
    failed: Option<anyhow::Error>,
    again: Option<String>,
}

impl Following<'_> {
    /// What it has come to.
    fn counts(&self) -> FollowCounts {
        let (writer, before) = (&self.writer, &self.before);
        let (gaps, gaps_ns) = writer.gaps();
        FollowCounts {
            versions: before.versions + writer.versions,
            gaps: before.gaps + gaps,
            gaps_ns: before.gaps_ns + gaps_ns,
            rollbacks: before.rollbacks + writer.rollbacks,
            epochs: before.epochs,
            backups: before.backups + self.backups,
            horizon: writer.horizon(),
            longest_wait_ns: self.longest_wait_ns,
        }
    }

    /// A clock that was set back shows moments again that the log has: those are told apart by an epoch of their own.
    fn look_at_clock(&mut self) {
        if let Some(by_ns) = clock_set_back(self.writer.latest(), self.clock.unix_ns()) {
            self.again.get_or_insert_with(|| set_back(by_ns));
        }
    }

    fn polled(&mut self, poll: SeqnoPoll) {
        let positions = self.writer.positions();
        let followed = || positions.iter().map(|at| at.position.uuid.0).zip(&poll.uuids);
        let is_reached = |((vb, high), (followed, uuid)): ((u16, &u64), (u64, &u64))| {
            let at = positions.get(usize::from(vb))?;
            (followed == *uuid && at.position.seqno.0 >= *high).then_some(VbId(vb))
        };
        let reached: Vec<VbId> = (0..).zip(&poll.highs).zip(followed()).filter_map(is_reached).collect();
        let is_ours = followed().all(|(followed, uuid)| followed == *uuid);
        for vb in reached {
            self.writer.nothing_before(vb, poll.moment);
        }
        // A vBucket has another history than the one that is followed: its stream will tell.
        if !is_ours {
            self.goal = None;
            return;
        }
        let is_old = |goal: &SeqnoPoll| poll.moment.saturating_sub(goal.moment) > GIVE_UP_NS;
        if self.goal.as_ref().is_none_or(is_old) {
            self.goal = Some(poll);
        }
        self.settle();
    }

    /// Looks whether everything is there that was there at a moment.
    fn settle(&mut self) {
        let Some(goal) = &mut self.goal else { return };
        let positions = self.writer.positions();
        while let Some((high, at)) = goal.highs.get(goal.reached).zip(positions.get(goal.reached)) {
            // Nothing is known of a vBucket whose stream goes on later than that.
            if at.streams_since >= goal.moment {
                self.goal = None;
                return;
            }
            if at.position.seqno.0 < *high {
                return;
            }
            goal.reached += 1;
        }
        let (moment, vbuckets) = (goal.moment, positions.len() as u16);
        self.goal = None;
        for vb in 0..vbuckets {
            self.writer.nothing_before(VbId(vb), moment);
        }
        self.writer.complete_through(moment);
    }

    fn message(&mut self, message: &Message<'_>) -> anyhow::Result<()> {
        let vb = message.vb;
        let Some(at) = self.writer.positions().get(usize::from(vb.0)).map(|at| at.position.seqno) else {
            return Ok(());
        };
        if self.prepared.goes_back(vb) {
            return Ok(());
        }
        if let What::Marker(marker) = &message.what {
            if marker.end > at {
                self.writer.marker(vb, marker);
            }
            return Ok(());
        }
        let Some(seqno) = seqno_of(&message.what) else { return Ok(()) };
        // A stream that went back for a prepare brings what is here already, too.
        let (is_new, now) = (seqno > at, self.clock.unix_ns());
        let committed = match message.what {
            What::Commit(prepared, _) if is_new => match self.prepared.commit(vb, message.key, prepared)? {
                Some(raw) => raw,
                None => return Ok(()),
            },
            _ => Vec::new(),
        };
        let (made, what) = self.change(message, seqno, now, &committed)?;
        if !is_new {
            return Ok(());
        }
        self.writer.change(vb, seqno, made, now, what);
        Ok(())
    }

    /// What a message comes to, and when it was made, if it says so. `committed` is the document of a commit.
    fn change<'a>(
        &mut self,
        message: &Message<'a>,
        seqno: Seqno,
        now: u64,
        committed: &'a [u8],
    ) -> anyhow::Result<(Option<u64>, LoggedChange<'a>)> {
        let (vb, made) = (message.vb, (message.cas.0 > 0).then_some(message.cas.0));
        let completed = self.writer.time_of_completion(vb, now);
        let record = record_of(message)?;
        Ok(match (message.what, record) {
            (What::Prepare(_), Some(record)) => {
                let version = Version { seqno: seqno.0, record };
                self.prepared.prepare(vb, message.key, &version);
                (made, LoggedChange::Hidden { prepared: seqno.0 })
            }
            (_, Some(record)) => {
                self.prepared.forget(vb, message.key, seqno);
                (made, LoggedChange::Version(Version { seqno: seqno.0, record }))
            }
            (What::SystemEvent(_, event, version), _) => {
                let (key, value) = (message.key, message.value);
                (None, LoggedChange::Event { event, version, key, value })
            }
            (What::Abort(prepared, _), _) => {
                self.prepared.forget(vb, message.key, seqno);
                (completed, LoggedChange::Hidden { prepared: prepared.0 })
            }
            // One that is here already has no document.
            (What::Commit(..), _) => match read_version(committed) {
                Some((version, _)) => {
                    (completed, LoggedChange::Version(Version { seqno: seqno.0, ..version }))
                }
                None => {
                    self.prepared.forget(vb, message.key, seqno);
                    (None, LoggedChange::Advanced)
                }
            },
            _ => (None, LoggedChange::Advanced),
        })
    }

    fn is_due(&self) -> bool {
        let now = self.clock.unix_ns();
        let is_due = |since: u64, after: u64| now.saturating_sub(since) >= after || since > now;
        let (changed, told) = self.writer.waiting_since();
        let (write_after, tell_after) = self.rhythm;
        let has_to = changed.is_some_and(|since| is_due(since, write_after))
            || told.is_some_and(|since| is_due(since, tell_after));
        self.failed.is_none() && has_to
    }

    /// A group was written, or was not.
    fn written(&mut self, group: &LogGroup, done: Result<(), BackupError>) {
        let now = self.clock.unix_ns();
        if let Err(error) = done.and_then(|()| self.writer.has_written(now)) {
            self.failed = Some(error.into());
            return;
        }
        self.reached = group.horizon;
        if let Some(since) = group.since {
            self.longest_wait_ns = self.longest_wait_ns.max(now.saturating_sub(since));
        }
    }

    fn rolled_back(&mut self, vb: VbId, to: Seqno) {
        self.goal = None;
        self.wants_backup = true;
        self.prepared.roll_back(vb, to);
        let origin = self.origin.get(usize::from(vb.0)).copied().unwrap_or(0);
        if !self.writer.rollback(vb, to, origin) {
            let what = format!("vBucket {vb} went back to seqno {to}, and the log began at seqno {origin}");
            self.again.get_or_insert(what);
        }
    }
}

/// Takes what the streams bring.
struct FollowWatch<'a, 'r, 'f> {
    run: &'a Run<'r>,
    shared: &'a Mutex<Following<'f>>,
    trouble: Option<String>,
    /// What was told last.
    told: Option<String>,
}

impl Watch for FollowWatch<'_, '_, '_> {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        let mut guard = lock(self.shared);
        let following = &mut *guard;
        match event {
            Event::Message(message) => {
                if let Err(error) = following.message(message) {
                    following.failed.get_or_insert(error);
                }
                if following.writer.is_full() {
                    drop(guard);
                    self.run.write_group(self.shared);
                    guard = lock(self.shared);
                }
            }
            Event::Began(vb, uuid) => {
                let went_back = following.prepared.goes_back(vb);
                following.prepared.began(vb);
                following.writer.history(vb, uuid, following.clock.unix_ns());
                if !went_back {
                    following.writer.was_away(vb);
                }
            }
            Event::RolledBack(vb, to) => following.rolled_back(vb, to),
            Event::Ended(vb, reason) => {
                self.trouble =
                    Some(format!("the stream of vBucket {vb} ended: {reason:?}; it is asked for again"));
                return ControlFlow::Break(());
            }
        }
        let is_over = guard.failed.is_some() || guard.again.is_some();
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn rewinds(&mut self) -> Vec<(VbId, Seqno)> {
        lock(self.shared).prepared.rewinds()
    }

    fn idle(&mut self) -> ControlFlow<()> {
        lock(self.shared).settle();
        self.run.write_if_due(self.shared);
        let (counts, is_over) = {
            let following = lock(self.shared);
            (following.counts(), self.run.is_over(&following))
        };
        self.run.say(FollowNews::Following(&counts));
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn disconnected(&mut self, error: &ClientError) -> ControlFlow<()> {
        let trouble = format!("{error}; it is tried again");
        if self.told.as_ref() != Some(&trouble) {
            self.run.say(FollowNews::Trouble(trouble.clone()));
            self.told = Some(trouble);
        }
        let (counts, is_over) = {
            let following = lock(self.shared);
            (following.counts(), self.run.is_over(&following))
        };
        self.run.say(FollowNews::Following(&counts));
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
