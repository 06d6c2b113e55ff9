//! Follows the bucket there, sends what comes, and knows how far it is.

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
use crate::backup::record_of;
use crate::client::dcp::{
    Event, Position, Start, Watch, Wishes, follow_everywhere, high_seqnos, members, seqno_of,
};
use crate::client::{Client, ClientError, Cluster, Target};
use crate::commands::restore::{DocumentChoice, collection_names, kind, mapped, wanted};
use crate::with_meta::{
    Collections, Sender, SentCounts, Skipped, SourceCollection, Unknown, resolves_by_time,
};

/// Between two questions where the vBuckets there are.
const ASK: Duration = Duration::from_millis(200);
/// Nothing has changed there for so long: applications have stopped writing.
const QUIET: Duration = Duration::from_secs(1);
/// Between two checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// After streams that ended.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes on their way on each connection.
const BUFFER_BYTES: u32 = 4 << 20;
const NOOP_INTERVAL_S: u32 = 20;

/// How a bucket is moved in.
pub(super) struct MoveOptions<'a> {
    pub(super) choice: &'a DocumentChoice,
    pub(super) checkpoint: Option<&'a Path>,
    /// Ends as soon as everything is here that was there when the command began.
    pub(super) until_caught_up: bool,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MoveEnd {
    #[default]
    Interrupted,
    CaughtUp,
    /// So many nanoseconds after the order.
    Switched(u64),
}

/// What moving has come to.
#[derive(Clone, Debug, Default)]
pub(super) struct MoveCounts {
    /// Changes that came, those that were not asked for too.
    pub(super) changes: u64,
    /// Changes that have not come yet; `None` if the cluster there cannot be asked.
    pub(super) behind: Option<u64>,
    /// For how long not everything was here.
    pub(super) behind_ns: Option<u64>,
    pub(super) is_ordered: bool,
    pub(super) connections_lost: u64,
    /// Collections that were dropped there, by name.
    pub(super) dropped: Vec<String>,
    /// vBuckets that went back there, with the seqnos that they went back to.
    pub(super) went_back: BTreeMap<u16, u64>,
    pub(super) end: MoveEnd,
}

/// What is told meanwhile.
pub(super) enum MoveNews<'a> {
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

/// Moves a bucket in, until it has caught up, is switched or is interrupted; what became of the documents.
pub(super) fn move_in(
    env: &Env,
    source: &Target,
    target: Target,
    options: &MoveOptions<'_>,
    interrupted: &AtomicBool,
    ordered: &AtomicBool,
    tell: &(dyn Fn(MoveNews<'_>) + Sync),
) -> anyhow::Result<(MoveCounts, SentCounts)> {
    let mut mover = Mover::open(env, source, target, options, tell)?;
    let (polled, stop) = (Mutex::new(None), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        scope.spawn(|| ask(env, source, &polled, &stop));
        let done = mover.stream(source, options, interrupted, ordered, &polled);
        stop.store(true, Ordering::Relaxed);
        done
    });
    // After a failure it is not known what has come: the last checkpoint stays.
    done?;
    mover.settle(true)?;
    Ok((mover.counts, mover.sender.counts))
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
    saved: Duration,
    is_changed: bool,
    begun: Duration,
    ordered: Option<Duration>,
    /// Where the vBuckets there are since when.
    since: Option<(Duration, Vec<u64>)>,
    /// The latest moment at which everything was here.
    was_complete: Option<Duration>,
    counts: MoveCounts,
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
        let mut there = Client::open(env, source).context("the cluster there")?;
        let (by_time, vbuckets) = (resolves_by_time(&mut there)?, there.vbuckets());
        let here_by_time = resolves_by_time(&mut Client::open(env, &target).context("the bucket here")?)?;
        if by_time != here_by_time {
            bail!(
                "bucket `{}` here resolves conflicts by {}, the one there by {}: make one here of the same kind",
                target.bucket,
                kind(here_by_time),
                kind(by_time)
            );
        }
        let manifest = there.collections_manifest()?.context("the cluster there has no collections")?;
        let named = collection_names(&manifest);
        let wanted = wanted(&named, &choice.collections)?;
        let mut sources = named.clone();
        sources.retain(|number, _| wanted.contains(number));
        let sources = mapped(sources, &choice.map)?;
        let paths = sources.iter().map(|(number, source)| (source.path(), *number)).collect();
        let collections = Collections::find(env, sources, &target, choice.unknown())?;
        let checkpoint =
            options.checkpoint.map(|path| CheckpointFile::new(env, path, (&source.bucket, &target.bucket)));
        let checkpoint = checkpoint.transpose()?;
        let saved = checkpoint.as_ref().map(|file| file.read(vbuckets)).transpose()?.flatten();
        let again = target.at(target.addr.clone());
        let cluster = Cluster::open(env, target, &[Feature::Xattr, Feature::Snappy])?;
        let sender = Sender::new("import cluster", cluster, collections, choice.conflict(), by_time);
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
            positions: saved.unwrap_or_else(|| vec![Position::START; vbuckets.into()]),
            unanswered: HashSet::new(),
            checkpoint,
            saved: now,
            is_changed: false,
            begun: now,
            ordered: None,
            since: None,
            was_complete: None,
            counts: MoveCounts::default(),
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
        polled: &Mutex<Option<HighSeqnos>>,
    ) -> anyhow::Result<()> {
        let until_caught_up = options.until_caught_up;
        loop {
            let wishes = Wishes {
                name: format!("stave-import:{:016x}", self.env.random.next_u64()),
                flags: OpenFlags(OpenFlags::XATTRS | OpenFlags::DELETE_TIMES),
                buffer_bytes: BUFFER_BYTES,
                noop_interval_s: NOOP_INTERVAL_S,
                filter: Vec::new(),
                sync_writes: false,
            };
            let start =
                |(vb, at): (u16, &Position)| Start { vb: VbId(vb), position: *at, end: Start::FOR_EVER };
            let starts = (0..).zip(&self.positions).map(start).collect();
            let env = self.env;
            let mut watch =
                MoveWatch { mover: self, interrupted, ordered, polled, until_caught_up, told: None };
            follow_everywhere(env, source, &wishes, starts, None, &mut watch)?;
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.is_over {
                return Ok(());
            }
            self.counts.connections_lost += 1;
            std::thread::sleep(PAUSE);
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
        Ok(())
    }

    /// Everything is answered; a checkpoint is written if it is time, or in any case.
    fn settle(&mut self, in_any_case: bool) -> anyhow::Result<()> {
        if !self.unanswered.is_empty() {
            self.answered()?;
        }
        let now = self.env.clock.monotonic();
        let is_due = in_any_case || now >= self.saved + CHECKPOINT_EVERY;
        if self.is_changed
            && is_due
            && let Some(file) = &self.checkpoint
        {
            file.write(&self.positions)?;
            (self.saved, self.is_changed) = (now, false);
        }
        Ok(())
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
    polled: &'a Mutex<Option<HighSeqnos>>,
    until_caught_up: bool,
    told: Option<String>,
}

impl MoveWatch<'_, '_> {
    fn flow(&mut self) -> ControlFlow<()> {
        let mover = &mut *self.mover;
        if self.interrupted.load(Ordering::Relaxed) {
            mover.is_over = true;
        }
        if mover.is_over || mover.failed.is_some() {
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
                    (mover.tell)(MoveNews::Trouble(format!("vBucket {vb} there went back to seqno {to}")));
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
        match &*lock(self.polled) {
            Some(polled) => mover.look(polled, self.until_caught_up),
            None => (mover.counts.behind, mover.counts.behind_ns) = (None, None),
        }
        (mover.tell)(MoveNews::Following(&mover.counts));
        self.flow()
    }

    fn disconnected(&mut self, error: &ClientError) -> ControlFlow<()> {
        let trouble = format!("{error}; it is tried again");
        self.mover.counts.connections_lost += 1;
        if self.told.as_ref() != Some(&trouble) {
            (self.mover.tell)(MoveNews::Trouble(trouble.clone()));
            self.told = Some(trouble);
        }
        self.flow()
    }
}
