//! Takes a backup of a bucket: follows each vBucket, a few of them at a time, to the end of a snapshot: that of the bucket,
//! which has all of them as of one moment, or else one of its own.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use base::encryption::Sealer;
use base::env::Env;
use base::{Datatype, DocKey, Seqno, VbId, VbUuid};
use protocol::Status;
use protocol::dcp::{EndReason, Message, OpenFlags, What};

use super::block::{BlockBuilder, Version};
use super::bucket_state::{BucketState, http_of, http_unasked, read_users, settings_of};
use super::manifest::{BackupHead, BackupManifest, VbucketLine};
use super::repository::{Repository, Unfinished};
use super::writer::BackupWriter;
use crate::client::dcp::{
    BucketSnapshot, Event, History, Position, Start, Watch, Wishes, ask_everywhere, end_snapshot,
    failover_logs, find_snapshot, follow_everywhere, high_seqnos, make_snapshot, seqno_of,
};
use crate::client::{Client, ClientError, HttpTarget, Target};
use crate::with_meta::{Record, resolves_by_time};

/// vBuckets that are followed at once, each of which has a block in memory.
const GROUP: usize = 256;
/// A block that is longer than this is written.
const BLOCK_BYTES: usize = 128 << 10;
/// Bytes on their way on each connection.
const BUFFER_BYTES: u32 = 4 << 20;
const NOOP_INTERVAL_S: u32 = 20;
/// A vBucket whose history changes more often than this while it is followed is given up.
const MOST_ATTEMPTS: u32 = 8;
/// The longest pause between two reads of a connection: a node waits for signs of life meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How a backup is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct TakeOptions {
    /// Documents alone, without the settings of the bucket: for a copy that does not stay.
    pub(crate) documents_only: bool,
    /// Everything, whatever earlier backups have.
    pub(crate) is_full: bool,
    /// The backup to go on from; the newest one if it is not given.
    pub(crate) since: Option<String>,
    /// There must be one to go on from: no full one is made in its place.
    pub(crate) needs_base: bool,
    /// Users and groups, too.
    pub(crate) users: bool,
    /// Where to ask for these and for settings, if not where the node says that it listens.
    pub(crate) http: Option<String>,
    /// The most bytes of changes a second, before compression.
    pub(crate) max_rate: Option<u64>,
    /// A snapshot of the bucket that is there already; else one is made.
    pub(crate) snapshot: Option<String>,
    /// No backup is made whose vBuckets are of different moments.
    pub(crate) one_moment: bool,
}

/// What was made.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) manifest: BackupManifest,
    /// Whether it goes on with an earlier, broken off attempt, whose moment it has then, if it has one.
    pub(crate) is_resumed: bool,
    /// vBuckets that an earlier, broken off attempt had complete.
    pub(crate) kept: usize,
    /// vBuckets that have not changed since the backup that this one goes on from.
    pub(crate) unchanged: usize,
    /// vBuckets that are there from their beginning, although this backup goes on from another one: their history is
    /// another one by now.
    pub(crate) again: usize,
    /// Why its vBuckets may be of different moments, if they may.
    pub(crate) without_moment: Option<String>,
    /// Why the settings of the bucket are not in it, if they are not.
    pub(crate) without_settings: Option<String>,
}

/// How far it is, for whoever waits.
pub(crate) struct HowFar {
    pub(crate) done: usize,
    pub(crate) vbuckets: usize,
    pub(crate) versions: u64,
    pub(crate) bytes: u64,
}

/// What a vBucket is like when the backup begins.
struct Now {
    high: Seqno,
    /// The newest history first, each with where it began.
    log: History,
}

/// What is to be read of a vBucket.
#[derive(Clone, Copy)]
struct ReadPlan {
    vb: VbId,
    /// The history that the stream is asked to go on in.
    known: VbUuid,
    /// The history that the vBucket is in now, in which the next backup goes on.
    uuid: VbUuid,
    from: Seqno,
    goal: Seqno,
}

/// Makes a backup. `interrupted` ends it early: what is complete stays, and the next one goes on with it.
///
/// A vBucket that moves while it is read has no part in the snapshot at its new node. If the snapshot was made for this
/// backup, and one moment was not asked for, it goes on without.
pub(crate) fn take(
    env: &Env,
    target: &Target,
    repository: &Repository<'_>,
    options: &TakeOptions,
    interrupted: &AtomicBool,
    show: &mut (dyn FnMut(&HowFar) + Send),
) -> anyhow::Result<Taken> {
    let mut without = None;
    match take_once((env, target), repository, options, &mut without, interrupted, show) {
        Err(_) if without.is_some() && !options.one_moment && !interrupted.load(Ordering::Relaxed) => {
            take_once((env, target), repository, options, &mut without, interrupted, show)
        }
        taken => taken,
    }
}

/// One try. `without` says why no snapshot is to be made, or, if a try with one fails, is set to that.
fn take_once(
    (env, target): (&Env, &Target),
    repository: &Repository<'_>,
    options: &TakeOptions,
    without: &mut Option<String>,
    interrupted: &AtomicBool,
    show: &mut (dyn FnMut(&HowFar) + Send),
) -> anyhow::Result<Taken> {
    let lock = repository.lock(&target.bucket)?;
    let sealer = repository.sealer_to_write(&target.bucket)?;
    // What may be refused is asked for before anything is copied.
    let users = if options.users { Some(read_users(&http_target(env, target, options)?)?) } else { None };
    let now = ask_everywhere(env, target, None, &mut states)?;
    let vbuckets = now.len();
    let base = base_of(repository, &target.bucket, vbuckets, options, sealer.is_some())?;
    let base_id = base.as_ref().map(|(id, _)| id);
    let unfinished = unfinished((env, target), repository, &now, base_id, options, sealer.is_some())?;
    let is_resumed = unfinished.is_some();
    let cut = match without.take() {
        Some(why) => Cut::none(why),
        None => cut(env, target, options, unfinished.as_ref())?,
    };
    let copy = || {
        let now = match cut.snapshot {
            Some(_) => cut.apply(ask_everywhere(env, target, None, &mut states)?)?,
            None => now,
        };
        let (writer, done) = match unfinished {
            Some(unfinished) => go_on(env, &unfinished, sealer)?,
            None => (begin(env, repository, &target.bucket, vbuckets, base_id, &cut, sealer)?, Vec::new()),
        };
        let taking = Taking {
            env,
            patience: target.patience.0,
            writer,
            tracks: BTreeMap::new(),
            left: 0,
            interrupted,
            show,
            vbuckets,
            versions: 0,
            bytes: 0,
            cut: &cut,
            begun: env.clock.monotonic(),
            heard: env.clock.monotonic(),
            max_rate: options.max_rate,
            paused: Duration::ZERO,
            failed: None,
        };
        let base = base.as_ref().map(|(_, lines)| lines);
        let (writer, unchanged, again) = taking.all(target, &now, &done, base.unwrap_or(&BTreeMap::new()))?;
        let (state, without_settings) = what_the_bucket_is(env, target, options)?;
        let collections = cut.snapshot.as_ref().and_then(|snapshot| snapshot.collections.clone());
        let state = BucketState { users, collections: collections.unwrap_or(state.collections), ..state };
        lock.check()?;
        let manifest = writer.finish(&target.bucket, env.clock.unix_s().into(), cut.id(), state)?;
        let (kept, without_moment) = (done.len(), cut.why_not.clone());
        Ok(Taken { manifest, is_resumed, kept, unchanged, again, without_moment, without_settings })
    };
    let taken: anyhow::Result<Taken> = copy();
    let lost = taken.as_ref().err().filter(|error| error.is::<SnapshotLost>());
    *without = lost.filter(|_| cut.is_own).map(|error| format!("it could not be read to its end: {error:#}"));
    // What was broken off goes on with it, unless nothing of one of them stays.
    if taken.is_ok() || options.documents_only || lost.is_some() {
        cut.end(env, target);
    }
    taken
}

/// The snapshot of the bucket has nothing of a vBucket any more.
#[derive(Debug, thiserror::Error)]
#[error("the snapshot of the bucket cannot be read further: {0}")]
struct SnapshotLost(String);

/// The moment of a backup.
#[derive(Default)]
struct Cut {
    /// What is read; without one each vBucket as it is when its turn comes.
    snapshot: Option<BucketSnapshot>,
    /// Why there is none.
    why_not: Option<String>,
    /// Whether it was made for this backup, and ends with it.
    is_own: bool,
}

impl Cut {
    fn none(why: String) -> Cut {
        Cut { snapshot: None, why_not: Some(why), is_own: false }
    }

    /// The UUID of the snapshot.
    fn id(&self) -> Option<String> {
        self.snapshot.as_ref().map(|snapshot| snapshot.id.clone())
    }

    /// Takes the vBuckets as they were then. An error if one has another history since.
    fn apply(&self, mut all: BTreeMap<VbId, Now>) -> anyhow::Result<BTreeMap<VbId, Now>> {
        let Some(snapshot) = &self.snapshot else { return Ok(all) };
        for (vb, now) in &mut all {
            let place =
                snapshot.vbuckets.get(vb).with_context(|| format!("the snapshot has no vBucket {vb}"))?;
            let uuid = now.log.first().map(|(uuid, _)| *uuid);
            if uuid != Some(place.uuid) {
                let why = format!("vBucket {vb} has another history than in it; give the command again");
                return Err(SnapshotLost(why).into());
            }
            now.high = place.seqno;
        }
        Ok(all)
    }

    /// Ends the snapshot, if it was made for this backup. One that cannot be ended ends by itself.
    fn end(&self, env: &Env, target: &Target) {
        if let Some(snapshot) = self.snapshot.as_ref().filter(|_| self.is_own) {
            let _ = end_snapshot(env, target, &snapshot.id);
        }
    }
}

/// The moment of a backup that begins, or that goes on where it was broken off. An error if there is none although one was
/// asked for.
fn cut(
    env: &Env,
    target: &Target,
    options: &TakeOptions,
    unfinished: Option<&Unfinished>,
) -> anyhow::Result<Cut> {
    let found = match (&options.snapshot, unfinished) {
        (Some(id), _) => {
            let found = find_snapshot(env, target, id);
            let snapshot = found.with_context(|| format!("snapshot {id} cannot be copied"))?;
            return Ok(Cut { snapshot: Some(snapshot), why_not: None, is_own: false });
        }
        (None, None) => make_snapshot(env, target),
        (None, Some(unfinished)) => match &unfinished.head.snapshot {
            Some(id) => {
                let found =
                    find_snapshot(env, target, id).context("that of the backup that was broken off is gone");
                found.and_then(|snapshot| match is_all_of(&snapshot, &unfinished.done) {
                    true => Ok(snapshot),
                    false => {
                        Err(anyhow::anyhow!("a part of the backup that was broken off is not of its moment"))
                    }
                })
            }
            None => Err(anyhow::anyhow!("the backup that was broken off had none")),
        },
    };
    let is_own = unfinished.is_none_or(|unfinished| !unfinished.head.is_given);
    match found {
        Ok(snapshot) => Ok(Cut { snapshot: Some(snapshot), why_not: None, is_own }),
        Err(error) if options.one_moment => Err(error.context(
            "there is no moment of all vBuckets; without --one-moment they may be of different ones",
        )),
        Err(error) => Ok(Cut::none(format!("{error:#}"))),
    }
}

/// Whether these vBuckets were copied as the snapshot has them: a try without it may have come between.
fn is_all_of(snapshot: &BucketSnapshot, done: &[VbucketLine]) -> bool {
    done.iter().all(|line| snapshot.vbuckets.get(&VbId(line.vb)).is_some_and(|at| at.seqno.0 == line.to))
}

/// How far each active vBucket of a node is.
fn states(client: &mut Client) -> Result<Vec<(VbId, Now)>, ClientError> {
    let all = high_seqnos(client)?;
    let vbuckets: Vec<VbId> = all.iter().map(|(vb, _)| *vb).collect();
    let logs = failover_logs(client, &vbuckets)?;
    Ok(all.into_iter().zip(logs).map(|((vb, high), log)| (vb, Now { high, log })).collect())
}

/// The backup to go on from, with its vBuckets.
fn base_of(
    repository: &Repository<'_>,
    bucket: &str,
    vbuckets: usize,
    options: &TakeOptions,
    is_encrypted: bool,
) -> anyhow::Result<Option<(String, BTreeMap<u16, VbucketLine>)>> {
    if options.is_full {
        return Ok(None);
    }
    let newest = match &options.since {
        Some(id) => Some(repository.chain(bucket, Some(id))?.0.swap_remove(0)),
        None => {
            let newest = repository.backups(bucket)?.into_iter().next_back().transpose();
            newest.context("the backup to go on from cannot be read; --full makes one that needs no other")?
        }
    };
    let Some(newest) = newest else {
        if options.needs_base {
            let folder = repository.folder(bucket);
            bail!(
                "{} has no complete backup to go on from: leave --since out to make a full one",
                folder.display()
            );
        }
        return Ok(None);
    };
    let (id, is_asked) = (&newest.manifest.id, options.needs_base || options.since.is_some());
    if is_encrypted && !newest.is_encrypted {
        if is_asked {
            bail!(
                "backup {id} is not encrypted, and this one is to be: leave --since out to make a full one"
            );
        }
        // What is restored with this one is to be encrypted.
        return Ok(None);
    }
    if usize::from(newest.manifest.vbuckets) != vbuckets {
        if options.needs_base {
            bail!(
                "backup {id} is of a bucket with another number of vBuckets: leave --since out to make a full one"
            );
        }
        // Another bucket of this name: nothing of it can be gone on from.
        return Ok(None);
    }
    let lines = repository.lines(&newest);
    let lines =
        lines.context("the backup to go on from cannot be read; --full makes one that needs no other")?;
    Ok(Some((newest.manifest.id, lines)))
}

/// A backup that was broken off, if it can be gone on with: it went on from the same one, is of no other moment than what is
/// asked for, and what it has of each vBucket belongs to the history that this is in. Another one is removed: a bucket that
/// was emptied or made again since, or of another cluster, has nothing in common with it but the name.
fn unfinished(
    (env, target): (&Env, &Target),
    repository: &Repository<'_>,
    now: &BTreeMap<VbId, Now>,
    base: Option<&String>,
    options: &TakeOptions,
    is_encrypted: bool,
) -> anyhow::Result<Option<Unfinished>> {
    let Some(unfinished) = repository.unfinished(&target.bucket)? else { return Ok(None) };
    let head = &unfinished.head;
    let is_same =
        head.base.as_ref() == base && usize::from(head.vbuckets) == now.len() && options.since.is_none();
    let is_same = is_same && unfinished.is_encrypted == is_encrypted && unfinished.lines_len > 0;
    let is_same = is_same && unfinished.done.iter().all(|line| goes_on(now, line));
    let is_of = |id: &String| {
        let found = find_snapshot(env, target, id);
        found.map(|snapshot| is_all_of(&snapshot, &unfinished.done))
    };
    let is_moment = match &options.snapshot {
        // If it cannot be found, the backup ends with an error, and what is there stays.
        Some(id) => head.snapshot.as_ref() == Some(id) && is_of(id).unwrap_or(true),
        None if options.one_moment => head.snapshot.as_ref().is_some_and(|id| is_of(id).unwrap_or(false)),
        None => true,
    };
    if is_same && is_moment {
        return Ok(Some(unfinished));
    }
    repository.remove(&unfinished.folder)?;
    Ok(None)
}

/// Goes on with a backup that was broken off; the vBuckets that it has.
fn go_on<'e>(
    env: &'e Env,
    unfinished: &Unfinished,
    sealer: Option<Sealer>,
) -> anyhow::Result<(BackupWriter<'e>, Vec<u16>)> {
    let done = unfinished.done.iter().map(|line| line.vb).collect();
    Ok((BackupWriter::go_on(&*env.disk, unfinished, sealer)?, done))
}

/// Begins a new backup.
fn begin<'e>(
    env: &'e Env,
    repository: &Repository<'e>,
    bucket: &str,
    vbuckets: usize,
    base: Option<&String>,
    cut: &Cut,
    sealer: Option<Sealer>,
) -> anyhow::Result<BackupWriter<'e>> {
    let vbuckets = u16::try_from(vbuckets).context("more vBuckets than there can be")?;
    let id = repository.new_id(bucket)?;
    let folder = repository.folder(bucket).join(&id);
    let (base, begun_s) = (base.cloned(), env.clock.unix_s().into());
    let (number, snapshot, is_given) = (env.random.next_u64(), cut.id(), cut.id().is_some() && !cut.is_own);
    let head = BackupHead { id, number, base, begun_s, vbuckets, snapshot, is_given };
    Ok(BackupWriter::begin(&*env.disk, &folder, head, sealer)?)
}

/// What is to be read, or the line of a vBucket that needs no reading.
fn plan(vb: VbId, now: &Now, base: Option<&VbucketLine>) -> Result<ReadPlan, VbucketLine> {
    let uuid = now.log.first().map_or(VbUuid(0), |(uuid, _)| *uuid);
    let from = base.filter(|line| is_in(&now.log, now.high, line)).map_or(0, |line| line.to);
    if now.high.0 == from {
        let (vb, uuid) = (vb.0, uuid.0);
        return Err(VbucketLine { vb, uuid, from, to: from, blocks: Vec::new(), counts: BTreeMap::new() });
    }
    // A stream goes on in the history that the earlier backup knows.
    let known = base.filter(|_| from > 0).map_or(uuid, |line| VbUuid(line.uuid));
    Ok(ReadPlan { vb, known, uuid, from: Seqno(from), goal: now.high })
}

/// Whether a vBucket is in the history of what a backup that was broken off has of it, or in one that goes on behind that.
fn goes_on(now: &BTreeMap<VbId, Now>, line: &VbucketLine) -> bool {
    now.get(&VbId(line.vb)).is_some_and(|now| match line.to {
        0 => now.log.iter().any(|(uuid, _)| uuid.0 == line.uuid),
        _ => is_in(&now.log, now.high, line),
    })
}

/// Whether a vBucket's history still has the place at which an earlier backup ended.
fn is_in(log: &History, high: Seqno, line: &VbucketLine) -> bool {
    let at = log.iter().position(|(uuid, _)| uuid.0 == line.uuid);
    let end = match at {
        Some(0) => Some(high),
        // An earlier history ends where the next one began.
        Some(at) => log.get(at - 1).map(|(_, begun)| *begun),
        None => None,
    };
    line.to > 0 && end.is_some_and(|end| line.to <= end.0)
}

/// A vBucket that is followed.
struct Followed {
    plan: ReadPlan,
    snapshot_end: Seqno,
    at: Seqno,
    block: BlockBuilder,
    line: VbucketLine,
    state: FollowState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowState {
    Streaming,
    Complete,
    /// Its history is another one: it is to be read from the beginning.
    RolledBack,
}

impl Followed {
    fn new(plan: ReadPlan) -> Followed {
        let (vb, uuid, from) = (plan.vb.0, plan.uuid.0, plan.from.0);
        let line = VbucketLine { vb, uuid, from, to: from, blocks: Vec::new(), counts: BTreeMap::new() };
        let (snapshot_end, at, block) = (plan.from, plan.from, BlockBuilder::default());
        Followed { plan, snapshot_end, at, block, line, state: FollowState::Streaming }
    }

    fn count(&mut self, record: &Record<'_>) {
        let counts = self.line.counts.entry(record.key.collection.0).or_default();
        if record.deleted {
            counts.tombstones += 1;
        } else {
            counts.documents += 1;
        }
        counts.bytes += (record.key.key.len() + record.value.len()) as u64;
    }
}

struct Taking<'e, 'a> {
    env: &'e Env,
    patience: Duration,
    writer: BackupWriter<'e>,
    tracks: BTreeMap<VbId, Followed>,
    /// Of them, how many are neither complete nor rolled back.
    left: usize,
    interrupted: &'a AtomicBool,
    show: &'a mut (dyn FnMut(&HowFar) + Send),
    vbuckets: usize,
    versions: u64,
    bytes: u64,
    begun: Duration,
    /// When something came last.
    heard: Duration,
    cut: &'a Cut,
    max_rate: Option<u64>,
    /// Since the connection was read last.
    paused: Duration,
    failed: Option<anyhow::Error>,
}

impl<'e> Taking<'e, '_> {
    /// Reads what is not done yet; with how many vBuckets are as the base has them, and how many were read from their
    /// beginning although there is a base.
    fn all(
        mut self,
        target: &Target,
        now: &BTreeMap<VbId, Now>,
        done: &[u16],
        base: &BTreeMap<u16, VbucketLine>,
    ) -> anyhow::Result<(BackupWriter<'e>, usize, usize)> {
        let (mut lines, mut plans, mut again) = (Vec::new(), Vec::new(), 0);
        for (vb, now) in now.iter().filter(|(vb, _)| !done.contains(&vb.0)) {
            match plan(*vb, now, base.get(&vb.0)) {
                Ok(plan) => {
                    let had_base = base.get(&vb.0).is_some_and(|line| line.to > 0);
                    again += usize::from(plan.from == Seqno(0) && had_base);
                    plans.push(plan);
                }
                Err(line) => lines.push(line),
            }
        }
        self.writer.complete(&lines)?;
        again += self.run(target, plans)?;
        Ok((self.writer, lines.len(), again))
    }

    /// Follows all plans, a group at a time; how many vBuckets had to be read from their beginning.
    fn run(&mut self, target: &Target, plans: Vec<ReadPlan>) -> anyhow::Result<usize> {
        let (mut again, mut attempts) = (0, 0);
        let mut plans = plans;
        while !plans.is_empty() {
            let rest = plans.split_off(plans.len().min(GROUP));
            let rolled_back = self.group(target, &plans)?;
            attempts = if rolled_back.is_empty() { 0 } else { attempts + 1 };
            if attempts > MOST_ATTEMPTS {
                let vb = rolled_back[0];
                bail!("vBucket {vb} changed its history {attempts} times while it was read; try again later");
            }
            again += rolled_back.len();
            plans = self.plan_again(target, &rolled_back)?;
            plans.extend(rest);
        }
        Ok(again)
    }

    /// What is to be read of vBuckets that were rolled back: all of them, up to where they are by now.
    fn plan_again(&mut self, target: &Target, rolled_back: &[VbId]) -> anyhow::Result<Vec<ReadPlan>> {
        if rolled_back.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.cut.apply(ask_everywhere(self.env, target, None, &mut states)?)?;
        let (mut plans, mut empty) = (Vec::new(), Vec::new());
        for (vb, now) in now.iter().filter(|(vb, _)| rolled_back.contains(vb)) {
            match plan(*vb, now, None) {
                Ok(plan) => plans.push(plan),
                Err(line) => empty.push(line),
            }
        }
        self.writer.complete(&empty)?;
        Ok(plans)
    }

    /// Follows a group to its end; which vBuckets were rolled back and are to be read from their beginning.
    fn group(&mut self, target: &Target, plans: &[ReadPlan]) -> anyhow::Result<Vec<VbId>> {
        let env = self.env;
        let start = |plan: &ReadPlan| {
            let position = Position::at(plan.known, plan.from);
            Start { vb: plan.vb, position, end: Start::FOR_EVER }
        };
        let starts = plans.iter().map(start).collect();
        self.tracks = plans.iter().map(|plan| (plan.vb, Followed::new(*plan))).collect();
        self.left = plans.len();
        self.heard = env.clock.monotonic();
        let wishes = Wishes {
            name: format!("stave-backup:{:016x}", env.random.next_u64()),
            flags: OpenFlags(OpenFlags::XATTRS | OpenFlags::DELETE_TIMES),
            buffer_bytes: BUFFER_BYTES,
            noop_interval_s: NOOP_INTERVAL_S,
            filter: self.cut.snapshot.as_ref().map(BucketSnapshot::filter).unwrap_or_default(),
            sync_writes: false,
            history: false,
        };
        let followed = follow_everywhere(env, target, &wishes, starts, Some(target.patience.0), self);
        if let Err(error) = followed {
            // A node that does not answer, or refuses for another reason, may have it still.
            let has_nothing = |code: u16| code == Status::KeyEnoent.code();
            let is_refused =
                matches!(error, ClientError::Refused { status_code, .. } if has_nothing(status_code));
            let is_lost = self.cut.snapshot.is_some() && is_refused;
            return Err(if is_lost { SnapshotLost(error.to_string()).into() } else { error.into() });
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let tracks = std::mem::take(&mut self.tracks).into_values();
        let (complete, others): (Vec<_>, Vec<_>) =
            tracks.partition(|track| track.state == FollowState::Complete);
        let complete: Vec<VbucketLine> = complete.into_iter().map(|track| track.line).collect();
        self.writer.complete(&complete)?;
        if self.interrupted.load(Ordering::Relaxed) {
            bail!(
                "interrupted: {} of {} vBuckets are complete; the same command goes on with the rest",
                self.writer.done,
                self.vbuckets
            );
        }
        if let Some(open) = others.iter().find(|track| track.state == FollowState::Streaming) {
            bail!("the stream of vBucket {} ended at seqno {}", open.plan.vb, open.at.0);
        }
        Ok(others.into_iter().map(|track| track.plan.vb).collect())
    }

    fn message(&mut self, message: &Message<'_>) -> anyhow::Result<()> {
        let Some(track) = self.tracks.get_mut(&message.vb) else { return Ok(()) };
        if track.state != FollowState::Streaming {
            return Ok(());
        }
        if let What::Marker(marker) = message.what {
            track.snapshot_end = marker.end;
            return Ok(());
        }
        let Some(seqno) = seqno_of(&message.what) else { return Ok(()) };
        track.at = seqno;
        if let Some(record) = record_of(message)? {
            track.count(&record);
            self.versions += 1;
            self.bytes += message.wire_bytes() as u64;
            track.block.push(&Version { seqno: seqno.0, record });
        }
        let is_complete = seqno >= track.snapshot_end && seqno >= track.plan.goal;
        self.took(message.vb, seqno, is_complete)
    }

    /// A vBucket was read up to a seqno. What there is of it is written, if it is much or complete.
    fn took(&mut self, vb: VbId, seqno: Seqno, is_complete: bool) -> anyhow::Result<()> {
        let Some(track) = self.tracks.get_mut(&vb) else { return Ok(()) };
        if track.block.count() > 0 && (is_complete || track.block.len() >= BLOCK_BYTES) {
            let place = self.writer.block(vb, &mut track.block)?;
            track.line.blocks.push(place);
        }
        if is_complete {
            track.line.to = seqno.0;
            track.state = FollowState::Complete;
            self.left -= 1;
        }
        Ok(())
    }

    /// Keeps to the rate, as far as the node is not kept waiting for too long.
    fn pace(&mut self) {
        let Some(rate) = self.max_rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        let ahead = due.saturating_sub(self.env.clock.monotonic() - self.begun);
        let pause = ahead.min(LONGEST_PAUSE.saturating_sub(self.paused));
        if !pause.is_zero() {
            self.paused += pause;
            std::thread::sleep(pause);
        }
    }

    fn show(&mut self) {
        let (vbuckets, versions, bytes) = (self.vbuckets, self.versions, self.bytes);
        (self.show)(&HowFar { done: self.writer.done, vbuckets, versions, bytes });
    }
}

impl Watch for Taking<'_, '_> {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        self.heard = self.env.clock.monotonic();
        match event {
            Event::Message(message) => {
                if let Err(error) = self.message(message) {
                    self.failed = Some(error);
                    return ControlFlow::Break(());
                }
                self.pace();
            }
            Event::Began(..) => {}
            Event::RolledBack(vb, _) => {
                if let Some(track) = self.tracks.get_mut(&vb)
                    && track.state == FollowState::Streaming
                {
                    track.state = FollowState::RolledBack;
                    self.left -= 1;
                }
            }
            Event::Ended(vb, reason) => {
                let track = self.tracks.get(&vb).filter(|track| track.state == FollowState::Streaming);
                if let Some(goal) = track.map(|track| track.plan.goal) {
                    // A snapshot of the bucket has an end.
                    let is_whole = self.cut.snapshot.is_some() && reason == EndReason::Ok;
                    let ended = || {
                        let why = format!("the stream of vBucket {vb} ended: {reason:?}");
                        let has_snapshot = self.cut.snapshot.is_some();
                        if has_snapshot { SnapshotLost(why).into() } else { anyhow::Error::msg(why) }
                    };
                    let took = if is_whole { self.took(vb, goal, true) } else { Err(ended()) };
                    if let Err(error) = took {
                        self.failed = Some(error);
                        return ControlFlow::Break(());
                    }
                }
            }
        }
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn idle(&mut self) -> ControlFlow<()> {
        self.paused = Duration::ZERO;
        self.show();
        let waited = self.env.clock.monotonic().saturating_sub(self.heard);
        if waited >= self.patience {
            let open = self.tracks.values().find(|track| track.state == FollowState::Streaming);
            let vb = open.map_or(VbId(0), |track| track.plan.vb);
            self.failed = Some(anyhow::anyhow!(
                "nothing came of vBucket {vb} for {waited:.0?}; --timeout waits longer"
            ));
            return ControlFlow::Break(());
        }
        if self.interrupted.load(Ordering::Relaxed) || self.left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn disconnected(&mut self, _error: &ClientError) -> ControlFlow<()> {
        if self.env.clock.monotonic().saturating_sub(self.heard) >= self.patience {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// What a message says of a document; `None` if it says nothing of one.
pub(crate) fn record_of<'a>(message: &Message<'a>) -> anyhow::Result<Option<Record<'a>>> {
    let unreadable = || format!("a change of vBucket {} cannot be read", message.vb);
    let (rev_seqno, flags, expiry, deleted, expired) = match message.what {
        What::Mutation(mutation) => (mutation.rev_seqno, mutation.flags, mutation.expiry, false, false),
        What::Deletion(deletion) => (deletion.rev_seqno, 0, deletion.delete_time.unwrap_or(0), true, false),
        What::Expiration(deletion) => (deletion.rev_seqno, 0, deletion.delete_time.unwrap_or(0), true, true),
        What::Prepare(prepare) => {
            let (mutation, is_deletion) = (prepare.mutation, prepare.is_deletion);
            let flags = if is_deletion { 0 } else { mutation.flags };
            (mutation.rev_seqno, flags, mutation.expiry, is_deletion, false)
        }
        _ => return Ok(None),
    };
    Ok(Some(Record {
        key: DocKey::parse(message.key).with_context(unreadable)?,
        deleted,
        expired,
        cas: message.cas.0,
        rev_seqno: rev_seqno.0,
        expiry,
        flags,
        datatype: Datatype::from_wire(message.datatype).with_context(unreadable)?,
        value: message.value,
    }))
}

/// Where users and settings are asked for.
fn http_target(env: &Env, target: &Target, options: &TakeOptions) -> anyhow::Result<HttpTarget> {
    http_of(Some(&mut Client::open(env, target)?), target, options.http.as_deref())
}

/// Whether the last write wins, which collections there are, and the settings, or why these are missing. Without them a
/// backup is as good: a node may be out of reach over HTTP.
fn what_the_bucket_is(
    env: &Env,
    target: &Target,
    options: &TakeOptions,
) -> anyhow::Result<(BucketState, Option<String>)> {
    let mut client = Client::open(env, target)?;
    let manifest = client.collections_manifest()?;
    let settings = if options.documents_only {
        Ok(None)
    } else {
        let http = http_unasked(&mut client, target, options.http.as_deref(), options.users);
        http.and_then(|http| settings_of(&http, &target.bucket))
    };
    let (settings, missing) = match settings {
        Ok(settings) => (settings.unwrap_or_default(), None),
        Err(error) => (BTreeMap::new(), Some(format!("{error:#}"))),
    };
    let state = BucketState {
        by_time: resolves_by_time(&mut client)?,
        collections: manifest.context("the server has no collections")?,
        settings,
        users: None,
    };
    Ok((state, missing))
}

#[cfg(test)]
mod tests;
