//! Follows a bucket, sends what comes to another one, and knows how far it is.
//!
//! "There" is the bucket that is read, "here" the one that is sent to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use base::VbId;
use base::env::Env;
use protocol::dcp::{Message, OpenFlags, What, WireEvent};
use protocol::feature::Feature;
use regex::bytes::Regex;

use super::checkpoint::CheckpointFile;
use super::kept::{Heights, KeptPoints};
use crate::backup::record_of;
use crate::client::dcp::{
    Event, History, Position, Start, Watch, Wishes, failover_logs, follow_everywhere, high_seqnos, members,
    seqno_of,
};
use crate::client::{Client, ClientError, Cluster, FlagNames, Target};
use crate::commands::restore::{DocumentChoice, collection_names, kind, mapped, wanted};
use crate::units::thousands;
use crate::with_meta::{
    Collections, ConflictLog, Sender, SentCounts, Skipped, SourceCollection, Unknown, resolves_by_time,
};

/// Between two questions where the vBuckets there are.
const ASK: Duration = Duration::from_millis(200);
/// Between two questions where those here are.
const ASK_HERE: Duration = Duration::from_millis(500);
/// Nothing has changed there for so long: applications have stopped writing.
const QUIET: Duration = Duration::from_secs(1);
/// Between two checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// After streams that ended.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes on their way on each connection.
const BUFFER_BYTES: u32 = 4 << 20;
const NOOP_INTERVAL_S: u32 = 20;
/// So many vBuckets are named in one line.
const FEW: usize = 8;

/// How a bucket is sent to another one.
pub(crate) struct MoveOptions<'a> {
    /// The command, for what is told of it.
    pub(crate) command: &'static str,
    pub(crate) choice: &'a DocumentChoice,
    pub(crate) checkpoint: Option<&'a Path>,
    /// Where it is written which documents were left as the bucket here had them.
    pub(crate) conflicts: Option<&'a Path>,
    /// What errors call the flags that say how each of the two clusters is reached.
    pub(crate) source_flags: FlagNames,
    pub(crate) target_flags: FlagNames,
    /// Ends as soon as everything is here that was there when the command began.
    pub(crate) until_caught_up: bool,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MoveEnd {
    #[default]
    Interrupted,
    CaughtUp,
    /// So many nanoseconds after the order.
    Switched(u64),
}

/// What moving has come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct MoveCounts {
    /// Changes that came, those that were not asked for too.
    pub(crate) changes: u64,
    /// Changes that have not come yet; `None` if the cluster there cannot be asked.
    pub(crate) behind: Option<u64>,
    /// For how long not everything was here.
    pub(crate) behind_ns: Option<u64>,
    pub(crate) is_ordered: bool,
    pub(crate) connections_lost: u64,
    /// vBuckets here that had lost changes in a failover, which were sent again.
    pub(crate) lost_here: u64,
    /// Collections that were dropped there, by name.
    pub(crate) dropped: Vec<String>,
    /// vBuckets that went back there, with the seqnos that they went back to.
    pub(crate) went_back: BTreeMap<u16, u64>,
    pub(crate) end: MoveEnd,
}

/// What is told meanwhile.
pub(crate) enum MoveNews<'a> {
    Following(&'a MoveCounts),
    Trouble(String),
}

/// Where the vBuckets there were.
struct HighSeqnos {
    /// When it was asked, on the monotonic clock.
    asked: Duration,
    highs: Vec<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the clusters said last.
#[derive(Default)]
struct Polled {
    /// Where the vBuckets there were.
    there: Mutex<Option<HighSeqnos>>,
    /// Those here.
    here: Mutex<Option<Heights>>,
}

/// What was done, until it was over or could not go on.
pub(crate) struct Moved {
    pub(crate) counts: MoveCounts,
    pub(crate) sent: SentCounts,
    /// Why it could not go on.
    pub(crate) failed: Option<anyhow::Error>,
}

/// Sends a bucket to another one, until it has caught up, is switched or is interrupted, or cannot go on.
///
/// # Errors
///
/// Nothing was begun.
pub(crate) fn move_in(
    env: &Env,
    source: &Target,
    target: Target,
    options: &MoveOptions<'_>,
    interrupted: &AtomicBool,
    ordered: &AtomicBool,
    tell: &(dyn Fn(MoveNews<'_>) + Sync),
) -> anyhow::Result<Moved> {
    let here = target.at(target.addr.clone());
    let mut mover = Mover::open(env, source, target, options, tell)?;
    mover.look_here(&first_heights(env, &here, interrupted)?);
    mover.begins_again = false;
    let (polled, stop) = (Polled::default(), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        scope.spawn(|| ask(env, source, &polled.there, &stop));
        scope.spawn(|| ask_here(env, &here, &polled.here, &stop));
        let done = mover.stream(source, options, interrupted, ordered, &polled);
        stop.store(true, Ordering::Relaxed);
        done
    });
    // After a failure it is not known what has come: the last checkpoint stays.
    let failed = done.and_then(|()| mover.settle(true)).err();
    Ok(Moved { counts: mover.counts, sent: mover.sender.counts, failed })
}

/// Asks again and again where the vBuckets there are. `None`: they cannot all be asked.
fn ask(env: &Env, source: &Target, polled: &Mutex<Option<HighSeqnos>>, stop: &AtomicBool) {
    let mut clients = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let asked = env.clock.monotonic();
        let highs = highs(env, source, &mut clients);
        if highs.is_none() {
            clients.clear();
        }
        *lock(polled) = highs.map(|highs| HighSeqnos { asked, highs });
        std::thread::sleep(ASK);
    }
}

/// Asks again and again which histories the vBuckets here are in, and how far. `None`: they cannot all be asked.
fn ask_here(env: &Env, target: &Target, polled: &Mutex<Option<Heights>>, stop: &AtomicBool) {
    let mut clients = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let asked = env.clock.monotonic();
        let vbuckets = heights(env, target, &mut clients);
        if vbuckets.is_none() {
            clients.clear();
        }
        *lock(polled) = vbuckets.map(|vbuckets| Heights { asked, vbuckets });
        std::thread::sleep(ASK_HERE);
    }
}

/// Which histories the vBuckets here are in before anything is sent: what is lost from then on is noticed.
fn first_heights(env: &Env, target: &Target, interrupted: &AtomicBool) -> anyhow::Result<Heights> {
    let until = env.clock.monotonic() + target.patience.0;
    loop {
        let asked = env.clock.monotonic();
        if let Some(vbuckets) = heights(env, target, &mut Vec::new()) {
            return Ok(Heights { asked, vbuckets });
        }
        if asked >= until || interrupted.load(Ordering::Relaxed) {
            bail!("bucket `{}` here: not every vBucket has a node that is active for it", target.bucket);
        }
        std::thread::sleep(ASK);
    }
}

fn heights(env: &Env, target: &Target, clients: &mut Vec<Client>) -> Option<Vec<(History, u64)>> {
    if clients.is_empty() {
        for member in members(env, target).ok()? {
            clients.push(Client::open(env, &member).ok()?);
        }
    }
    let mut all = vec![None; usize::from(clients.first()?.vbuckets())];
    for client in clients {
        // The histories behind the seqnos: a seqno of an earlier history is not taken for one of the newest.
        let active = high_seqnos(client).ok()?;
        let ids: Vec<VbId> = active.iter().map(|(vb, _)| *vb).collect();
        for ((vb, high), history) in active.into_iter().zip(failover_logs(client, &ids).ok()?) {
            *all.get_mut(usize::from(vb.0))? = Some((history, high.0));
        }
    }
    all.into_iter().collect()
}

fn highs(env: &Env, source: &Target, clients: &mut Vec<Client>) -> Option<Vec<u64>> {
    if clients.is_empty() {
        for member in members(env, source).ok()? {
            clients.push(Client::open(env, &member).ok()?);
        }
    }
    let mut highs = vec![None; usize::from(clients.first()?.vbuckets())];
    for client in clients {
        for (vb, high) in high_seqnos(client).ok()? {
            if let Some(known) = highs.get_mut(usize::from(vb.0)) {
                *known = (*known).max(Some(high.0));
            }
        }
    }
    highs.into_iter().collect()
}

/// The bucket on its way.
struct Mover<'e> {
    env: &'e Env,
    /// For collections that are made there meanwhile.
    target: Target,
    sender: Sender<'e>,
    unknown: Unknown,
    filter: Option<Regex>,
    /// Whether all collections are wanted, those too that are made meanwhile.
    wants_all: bool,
    /// Collections there that are sent, and those that are not, by number.
    named: BTreeMap<u32, SourceCollection>,
    wanted: BTreeSet<u32>,
    /// Where documents go to, with the collection there that they come from.
    paths: BTreeMap<String, u32>,
    ended: BTreeSet<u32>,
    scopes: BTreeMap<u32, String>,
    /// What has come of each vBucket there.
    positions: Vec<Position>,
    /// Keys that are sent and not answered: no key is sent twice at once.
    unanswered: HashSet<Box<[u8]>>,
    checkpoint: Option<CheckpointFile<'e>>,
    kept: KeptPoints,
    /// Since when everything in front of these positions is answered: a point, once the vBuckets here were asked.
    answered: Option<(Duration, Vec<Position>)>,
    /// When the last answer came that was waited for.
    answered_last: Duration,
    /// When the vBuckets here were asked last.
    looked: Duration,
    /// The streams have to begin elsewhere.
    begins_again: bool,
    saved: Duration,
    is_changed: bool,
    begun: Duration,
    ordered: Option<Duration>,
    /// Where the vBuckets there are since when.
    since: Option<(Duration, Vec<u64>)>,
    /// The latest moment at which everything was here.
    was_complete: Option<Duration>,
    counts: MoveCounts,
    /// vBuckets that went back there, and to where, of which nothing was told yet.
    went_back: Vec<(u16, u64)>,
    failed: Option<anyhow::Error>,
    is_over: bool,
    tell: &'e (dyn Fn(MoveNews<'_>) + Sync),
}

impl<'e> Mover<'e> {
    fn open(
        env: &'e Env,
        source: &Target,
        target: Target,
        options: &MoveOptions<'e>,
        tell: &'e (dyn Fn(MoveNews<'_>) + Sync),
    ) -> anyhow::Result<Mover<'e>> {
        let choice = options.choice;
        let mut there = opened(env, source, options.source_flags, "the cluster there")?;
        let (by_time, vbuckets) = (resolves_by_time(&mut there)?, there.vbuckets());
        has_same_rule(env, &target, options.target_flags, by_time)?;
        let manifest = there.collections_manifest()?.context("the cluster there has no collections")?;
        let named = collection_names(&manifest);
        let wanted = wanted(&named, &choice.collections)?;
        let mut sources = named.clone();
        sources.retain(|number, _| wanted.contains(number));
        let sources = mapped(sources, &choice.map)?;
        let paths = sources.iter().map(|(number, source)| (source.path(), *number)).collect();
        let collections = Collections::find(env, sources, &target, choice.unknown())?;
        let checkpoint = options.checkpoint.map(|path| {
            let buckets = (&*source.bucket, &*target.bucket);
            CheckpointFile::new(env, path, buckets, choice.told())
        });
        let checkpoint = checkpoint.transpose()?;
        let saved = checkpoint.as_ref().map(|file| file.read(vbuckets)).transpose()?.flatten();
        let (positions, kept) =
            saved.unwrap_or_else(|| (vec![Position::START; vbuckets.into()], KeptPoints::default()));
        let again = target.at(target.addr.clone());
        let cluster = Cluster::open(env, target, &[Feature::Xattr, Feature::Snappy])?;
        let mut sender = Sender::new(options.command, cluster, collections, choice.conflict(), by_time);
        if let Some(path) = options.conflicts {
            sender.log_conflicts(ConflictLog::open(env, path)?);
        }
        let now = env.clock.monotonic();
        Ok(Mover {
            env,
            target: again,
            sender,
            unknown: choice.unknown(),
            filter: choice.regex()?,
            wants_all: choice.collections.is_empty(),
            scopes: scope_names(&manifest),
            named,
            wanted,
            paths,
            ended: BTreeSet::new(),
            positions,
            unanswered: HashSet::new(),
            checkpoint,
            kept,
            answered: None,
            answered_last: now,
            looked: Duration::ZERO,
            begins_again: false,
            saved: now,
            is_changed: false,
            begun: now,
            ordered: None,
            since: None,
            was_complete: None,
            counts: MoveCounts::default(),
            went_back: Vec::new(),
            failed: None,
            is_over: false,
            tell,
        })
    }

    /// Streams, again and again, until it is over.
    fn stream(
        &mut self,
        source: &Target,
        options: &MoveOptions<'_>,
        interrupted: &AtomicBool,
        ordered: &AtomicBool,
        polled: &Polled,
    ) -> anyhow::Result<()> {
        let until_caught_up = options.until_caught_up;
        loop {
            let wishes = Wishes {
                name: format!(
                    "stave-{}:{:016x}",
                    options.command.replace(' ', "-"),
                    self.env.random.next_u64()
                ),
                flags: OpenFlags(OpenFlags::XATTRS | OpenFlags::DELETE_TIMES),
                buffer_bytes: BUFFER_BYTES,
                noop_interval_s: NOOP_INTERVAL_S,
                filter: Vec::new(),
                sync_writes: false,
                history: false,
            };
            let start =
                |(vb, at): (u16, &Position)| Start { vb: VbId(vb), position: *at, end: Start::FOR_EVER };
            let starts = (0..).zip(&self.positions).map(start).collect();
            let env = self.env;
            let names = options.source_flags;
            let mut watch =
                MoveWatch { mover: self, interrupted, ordered, polled, until_caught_up, names, told: None };
            follow_everywhere(env, source, &wishes, starts, None, &mut watch)
                .map_err(|error| names.told(error))?;
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.is_over {
                return Ok(());
            }
            if !std::mem::take(&mut self.begins_again) {
                self.counts.connections_lost += 1;
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn message(&mut self, message: &Message<'_>) -> anyhow::Result<()> {
        let index = usize::from(message.vb.0);
        if let What::Marker(marker) = &message.what {
            if let Some(at) = self.positions.get_mut(index) {
                (at.snapshot_start, at.snapshot_end) = (marker.start, marker.end);
            }
            return Ok(());
        }
        let Some(seqno) = seqno_of(&message.what) else { return Ok(()) };
        if let What::SystemEvent(..) = message.what {
            self.event(message)?;
        }
        if let Some(record) = record_of(message)? {
            let collection = record.key.collection.0;
            self.counts.changes += 1;
            let is_wanted = self.wanted.contains(&collection)
                && self.filter.as_ref().is_none_or(|filter| filter.is_match(record.key.key));
            if self.ended.contains(&collection) {
                self.sender.skip(Skipped::DroppedCollection);
            } else if !is_wanted {
                self.sender.skip(Skipped::NotAskedFor);
            } else {
                if !self.unanswered.insert(message.key.into()) {
                    self.answered()?;
                    self.unanswered.insert(message.key.into());
                }
                if self.sender.send(&record)? {
                    self.unanswered.clear();
                }
            }
        }
        // Behind what was sent: a checkpoint is written only when everything is answered.
        if let Some(at) = self.positions.get_mut(index) {
            let snapshot = (at.snapshot_start, at.snapshot_end);
            at.advance(seqno, snapshot);
            self.is_changed = true;
        }
        Ok(())
    }

    /// A scope or collection came or went there.
    fn event(&mut self, message: &Message<'_>) -> anyhow::Result<()> {
        match WireEvent::read(&message.what, message.key, message.value) {
            Some(WireEvent::ScopeBegin { scope, name, .. }) => {
                self.scopes.insert(scope.0, String::from_utf8_lossy(name).into_owned());
            }
            Some(WireEvent::CollectionBegin { scope, collection, max_ttl_s, name, .. }) => {
                let number = collection.0;
                if self.named.contains_key(&number) || self.ended.contains(&number) {
                    return Ok(());
                }
                let scope = self.scopes.get(&scope.0).cloned().unwrap_or_else(|| format!("0x{:x}", scope.0));
                let name = String::from_utf8_lossy(name).into_owned();
                let max_ttl_s = max_ttl_s.map_or(0, |ttl| if ttl == 0 { -1 } else { i64::from(ttl) });
                let made = SourceCollection { scope, name, max_ttl_s };
                self.named.insert(number, made.clone());
                if self.wants_all {
                    if let Some(other) = self.paths.insert(made.path(), number)
                        && !self.ended.contains(&other)
                    {
                        bail!(
                            "collection `{}` was made there, and --map sends another one to that name; rename one of them",
                            made.path()
                        );
                    }
                    self.wanted.insert(number);
                    self.answered()?;
                    self.sender.learn(self.env, number, made, &self.target, self.unknown)?;
                }
            }
            Some(WireEvent::CollectionEnd { collection, .. }) => {
                if self.ended.insert(collection.0)
                    && self.wanted.contains(&collection.0)
                    && let Some(gone) = self.named.get(&collection.0)
                {
                    self.counts.dropped.push(gone.path());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits for the answers to everything that was sent.
    fn answered(&mut self) -> anyhow::Result<()> {
        self.sender.finish()?;
        self.unanswered.clear();
        self.answered_last = self.env.clock.monotonic();
        Ok(())
    }

    /// Everything is answered; a checkpoint is written if it is time, or in any case.
    fn settle(&mut self, in_any_case: bool) -> anyhow::Result<()> {
        if !self.unanswered.is_empty() {
            self.answered()?;
        }
        let now = self.env.clock.monotonic();
        if self.answered.is_none() && !self.kept.has(&self.positions) {
            self.answered = Some((now, self.positions.clone()));
        }
        let is_due = in_any_case || now >= self.saved + CHECKPOINT_EVERY;
        if self.is_changed
            && is_due
            && let Some(file) = &self.checkpoint
        {
            file.write(&self.positions, &self.kept)?;
            (self.saved, self.is_changed) = (now, false);
        }
        Ok(())
    }

    /// Looks at the vBuckets here, as they were when they were asked last. What they have lost is to be sent again.
    fn look_here(&mut self, heights: &Heights) {
        if self.looked >= heights.asked {
            return;
        }
        self.looked = heights.asked;
        let is_same_number = heights.vbuckets.len() == self.positions.len();
        let losses = self.kept.look(heights);
        if losses.is_empty() {
            if let Some((_, positions)) = self.answered.take_if(|(since, _)| *since <= heights.asked) {
                self.kept.add(positions, heights);
                self.is_changed = true;
            }
            return;
        }
        for loss in &losses {
            for (index, at) in self.positions.iter_mut().enumerate() {
                // With other numbers of vBuckets a vBucket here has documents of several of them.
                if is_same_number && index != usize::from(loss.vb) {
                    continue;
                }
                let before = loss.since.map_or(Position::START, |point| point.positions[index]);
                if before.seqno < at.seqno {
                    *at = before;
                }
            }
        }
        let vbs = few(losses.iter().map(|loss| loss.vb.to_string()));
        (self.tell)(MoveNews::Trouble(format!(
            "vBuckets {vbs} here have another history since a failover or a crash, or a shorter one: what they may have lost is sent again"
        )));
        self.counts.lost_here += losses.len() as u64;
        (self.answered, self.is_changed, self.begins_again) = (None, true, true);
    }

    /// Whether the vBuckets here were asked since the last answer, and so have what was answered.
    fn has_kept_all(&self) -> bool {
        self.looked >= self.answered_last && !self.begins_again
    }

    /// Looks how far it is, as the cluster there said last.
    fn look(&mut self, polled: &HighSeqnos, until_caught_up: bool) {
        let now = self.env.clock.monotonic();
        let pairs = polled.highs.iter().zip(&self.positions);
        let behind: u64 = pairs.map(|(high, at)| high.saturating_sub(at.seqno.0)).sum();
        self.counts.behind = Some(behind);
        if behind == 0 {
            self.was_complete = self.was_complete.max(Some(polled.asked));
        }
        let ns = |since: Duration| now.saturating_sub(since).as_nanos() as u64;
        self.counts.behind_ns = self.was_complete.map(ns);
        if self.since.as_ref().is_none_or(|(_, highs)| *highs != polled.highs) {
            self.since = Some((polled.asked, polled.highs.clone()));
        }
        // A vBucket there may have been elsewhere for a moment: only what is complete counts.
        if behind > 0 || polled.highs.len() != self.positions.len() || polled.asked < self.begun {
            return;
        }
        if !self.has_kept_all() {
            return;
        }
        if until_caught_up {
            (self.counts.end, self.is_over) = (MoveEnd::CaughtUp, true);
        }
        let Some(ordered) = self.ordered else { return };
        let since = self.since.as_ref().map_or(polled.asked, |(since, _)| *since);
        if polled.asked >= ordered && polled.asked >= since + QUIET {
            (self.counts.end, self.is_over) = (MoveEnd::Switched(ns(ordered)), true);
        }
    }
}

/// The first of these, and how many more there are.
fn few(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(FEW) as u64;
    let named = all.take(FEW).collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named} and {} more", thousands(more)) }
}

/// A connection to one of the two, which `whose` names if there is none.
fn opened(env: &Env, target: &Target, names: FlagNames, whose: &'static str) -> anyhow::Result<Client> {
    Client::open(env, target).map_err(|error| names.told(error)).context(whose)
}

/// Both buckets must resolve conflicts in the same way, or a document could become another one in each.
fn has_same_rule(env: &Env, here: &Target, names: FlagNames, by_time: bool) -> anyhow::Result<()> {
    let here_by_time = resolves_by_time(&mut opened(env, here, names, "the bucket here")?)?;
    if by_time != here_by_time {
        bail!(
            "bucket `{}` at {}, which is written to, resolves conflicts by {}, the one that is read by {}: make one of \
             the same kind to write to",
            here.bucket,
            here.addr,
            kind(here_by_time),
            kind(by_time)
        );
    }
    Ok(())
}

/// The scopes of a manifest, by their numbers.
fn scope_names(manifest: &serde_json::Value) -> BTreeMap<u32, String> {
    let named = |scope: &serde_json::Value| {
        let number = u32::from_str_radix(scope["uid"].as_str()?, 16).ok()?;
        Some((number, scope["name"].as_str()?.to_owned()))
    };
    manifest["scopes"].as_array().into_iter().flatten().filter_map(named).collect()
}

/// Takes what the streams bring.
struct MoveWatch<'a, 'e> {
    mover: &'a mut Mover<'e>,
    interrupted: &'a AtomicBool,
    ordered: &'a AtomicBool,
    polled: &'a Polled,
    until_caught_up: bool,
    names: FlagNames,
    told: Option<String>,
}

impl MoveWatch<'_, '_> {
    fn flow(&mut self) -> ControlFlow<()> {
        let mover = &mut *self.mover;
        if self.interrupted.load(Ordering::Relaxed) {
            mover.is_over = true;
        }
        if mover.is_over || mover.begins_again || mover.failed.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Watch for MoveWatch<'_, '_> {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        let mover = &mut *self.mover;
        match event {
            Event::Message(message) => {
                if let Err(error) = mover.message(message) {
                    mover.failed.get_or_insert(error);
                }
            }
            Event::Began(vb, uuid) => {
                if let Some(at) = mover.positions.get_mut(usize::from(vb.0)) {
                    at.uuid = uuid;
                }
            }
            Event::RolledBack(vb, to) => {
                if let Some(at) = mover.positions.get_mut(usize::from(vb.0)) {
                    *at = at.rolled_back(to);
                    mover.is_changed = true;
                    mover.counts.went_back.insert(vb.0, to.0);
                    mover.went_back.push((vb.0, to.0));
                }
            }
            Event::Ended(vb, reason) => {
                let trouble = format!("the stream of vBucket {vb} ended: {reason:?}; it is asked for again");
                (mover.tell)(MoveNews::Trouble(trouble));
                return ControlFlow::Break(());
            }
        }
        self.flow()
    }

    fn idle(&mut self) -> ControlFlow<()> {
        let mover = &mut *self.mover;
        let now = mover.env.clock.monotonic();
        if self.ordered.load(Ordering::Relaxed) && mover.ordered.is_none() {
            (mover.ordered, mover.counts.is_ordered) = (Some(now), true);
        }
        if let Err(error) = mover.settle(false) {
            mover.failed.get_or_insert(error);
            return ControlFlow::Break(());
        }
        let went_back = std::mem::take(&mut mover.went_back);
        if !went_back.is_empty() {
            let vbs = few(went_back.iter().map(|(vb, to)| format!("{vb} (to {to})")));
            (mover.tell)(MoveNews::Trouble(format!("vBuckets went back to an earlier seqno there: {vbs}")));
        }
        if let Some(heights) = &*lock(&self.polled.here) {
            mover.look_here(heights);
        }
        match &*lock(&self.polled.there) {
            Some(polled) => mover.look(polled, self.until_caught_up),
            None => (mover.counts.behind, mover.counts.behind_ns) = (None, None),
        }
        (mover.tell)(MoveNews::Following(&mover.counts));
        self.flow()
    }

    fn disconnected(&mut self, error: &ClientError) -> ControlFlow<()> {
        let trouble = format!("{}; it is tried again", self.names.applied(&error.to_string()));
        self.mover.counts.connections_lost += 1;
        if self.told.as_ref() != Some(&trouble) {
            (self.mover.tell)(MoveNews::Trouble(trouble.clone()));
            self.told = Some(trouble);
        }
        self.flow()
    }
}
