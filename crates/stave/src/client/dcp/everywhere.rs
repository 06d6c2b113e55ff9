//! All vBuckets, wherever in a cluster they are active: following them over a connection to each node that has some, made again
//! when one of them moves or a node goes away; and snapshots of a bucket, which the nodes cut together (docs/adr/0197).
//!
//! For a snapshot all nodes hold changes first; when the last one has said so, each takes the moment and lets changes go on. A
//! moment is one only if the same nodes were active for the same vBuckets, in the same histories, from the first answer to the
//! last.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base::env::Env;
use base::{Datatype, Seqno, VbId, VbUuid};
use protocol::dcp::EndReason;
use protocol::{RequestParts, Status, opcode, uuid};
use serde_json::{Value, json};

use super::follow::{Watch, follow, high_seqnos};
use super::{Event, Session, Start, Wishes};
use crate::client::{Client, ClientError, Target};

/// Between two looks at who has what.
const PAUSE: Duration = Duration::from_millis(300);
/// The first of these, which are doubled, while a bucket's vBuckets are looked for.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// While nobody is active for some vBuckets, it is looked again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
const SNAPSHOT: &str = "snapshot of the bucket";
/// For how long nodes are asked to hold changes at the most, at first; it is doubled with each try.
const FIRST_HOLD_MS: u64 = 100;
/// Nodes hold changes for no longer.
const LONGEST_HOLD_MS: u64 = 1000;
const MOST_TRIES: u32 = 8;
/// Nor is it tried again after this, or after the longest wait that the user allows, if that is longer.
const MOST_TRYING: Duration = Duration::from_secs(5);
/// Between two looks at whether all vBuckets can be read.
const READY_PAUSE: Duration = Duration::from_millis(10);

/// The nodes of the cluster that a node belongs to, as it says; the node alone if it knows of no others.
pub fn members(env: &Env, target: &Target) -> Result<Vec<Target>, ClientError> {
    let map = Client::open(env, target)?.map()?.unwrap_or_default();
    Ok(map.reachable(&target.addr).into_iter().map(|addr| target.at(addr)).collect())
}

/// The members, as the first of those that are known says who answers; `None` if none does. An error if all of them say that
/// the bucket is not there.
fn newest_members(env: &Env, known: &[Target]) -> Result<Option<Vec<Target>>, ClientError> {
    let (mut without_bucket, mut gone) = (0, None);
    for member in known {
        match members(env, member) {
            Ok(newest) => return Ok(Some(newest)),
            Err(error @ ClientError::Bucket { .. }) => {
                (without_bucket, gone) = (without_bucket + 1, Some(error))
            }
            Err(_) => {}
        }
    }
    gone.filter(|_| without_bucket == known.len()).map_or(Ok(None), Err)
}

/// Asks a node about the vBuckets that it is active for.
type Ask<'a, T> = dyn FnMut(&mut Client) -> Result<Vec<(VbId, T)>, ClientError> + 'a;

/// What `ask` finds out about the vBuckets that are wanted, from the nodes that are active for them; asks again until it
/// is complete or the target's patience ends. While a vBucket is handed over, two nodes may say that it is theirs.
pub fn ask_everywhere<T>(
    env: &Env,
    target: &Target,
    wanted: Option<VbId>,
    ask: &mut Ask<'_, T>,
) -> Result<BTreeMap<VbId, T>, ClientError> {
    const OPERATION: &str = "vBuckets";
    let vbuckets = Client::open(env, target)?.vbuckets();
    let wanted: Vec<VbId> = wanted.map_or((0..vbuckets).map(VbId).collect(), |vb| vec![vb]);
    let mut known = vec![target.at(target.addr.clone())];
    let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        if let Some(newest) = newest_members(env, &known)? {
            known = newest;
        }
        let (mut found, mut why) = (BTreeMap::new(), None);
        for member in &known {
            match Client::open(env, member).and_then(|mut client| ask(&mut client)) {
                Ok(all) => found.extend(all),
                Err(error) if error.may_pass() => {
                    why = Some(format!("{}: {}", member.addr, error.reason()));
                }
                Err(error) => return Err(error),
            }
        }
        let Some(missing) = wanted.iter().find(|vb| !found.contains_key(vb)) else {
            found.retain(|vb, _| wanted.contains(vb));
            return Ok(found);
        };
        let waited = begun.elapsed();
        if waited >= target.patience.0 {
            let what = format!("no node says that it is active for vBucket {missing}");
            let what = why.map_or(what.clone(), |why| format!("{what}; {why}"));
            return Err(ClientError::Waited { operation: OPERATION, waited, what });
        }
        std::thread::sleep(pause.min(target.patience.0 - waited));
        pause = (pause * 2).min(PAUSE);
    }
}

/// Follows vBuckets until every stream has come to its end or `watch` breaks; with one node as [`follow`] does.
/// vBuckets that no node is active for are waited for as long as `patience`, or for ever.
pub fn follow_everywhere(
    env: &Env,
    target: &Target,
    wishes: &Wishes,
    starts: Vec<Start>,
    patience: Option<Duration>,
    watch: &mut (dyn Watch + Send),
) -> Result<(), ClientError> {
    let mut known = members(env, target)?;
    if known.len() == 1 {
        return follow(env, &known[0], &mut Session::new(wishes.clone(), &starts), watch);
    }
    let watch = Mutex::new(watch);
    let mut starts = starts;
    let mut last_complete = Instant::now();
    while !starts.is_empty() {
        // The one that was named may be gone.
        if let Some(newest) = newest_members(env, &known)? {
            known = newest;
        }
        let shares = shares(env, &known, &starts);
        let followed: usize = shares.iter().map(|(_, share)| share.len()).sum();
        if followed == starts.len() {
            last_complete = Instant::now();
        }
        let waited = last_complete.elapsed();
        if patience.is_some_and(|patience| waited >= patience) {
            let lacking = starts.len() - followed;
            let what = format!("no node is active for {lacking} of the vBuckets");
            return Err(ClientError::Waited { operation: "streams", waited, what });
        }
        let look_again = patience.map_or(LOOK_AGAIN, |patience| LOOK_AGAIN.min(patience - waited));
        let round = Round::new(&watch, (followed < starts.len()).then_some(look_again));
        if followed == 0 {
            round.rest();
        } else {
            round.follow(env, wishes, shares, &mut starts)?;
        }
        if round.is_over.load(Ordering::Relaxed) || lock(&watch).idle().is_break() {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Which node is active for which of the vBuckets; of a node that cannot be reached nothing is known.
fn shares(env: &Env, members: &[Target], starts: &[Start]) -> Vec<(Target, Vec<Start>)> {
    let mut left: Vec<Start> = starts.to_vec();
    let mut shares = Vec::new();
    for member in members {
        let asked = Client::open(env, member).and_then(|mut client| high_seqnos(&mut client));
        let active: BTreeSet<VbId> = asked.into_iter().flatten().map(|(vb, _)| vb).collect();
        let share: Vec<Start> = left.extract_if(.., |start| active.contains(&start.vb)).collect();
        if !share.is_empty() {
            shares.push((member.at(member.addr.clone()), share));
        }
    }
    shares
}

/// A panic on another thread is told when that is joined.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections until something moves.
struct Round<'a, 'w> {
    watch: &'a Mutex<&'w mut (dyn Watch + Send)>,
    begun: Instant,
    /// Who has what is looked at again after this, if no node was active for some vBuckets.
    look_again: Option<Duration>,
    /// Something has moved, or a node is gone: who has what is looked at again.
    has_moved: AtomicBool,
    /// Whoever looks on has seen enough.
    is_over: AtomicBool,
    /// Those that have come to their end.
    ended: Mutex<BTreeSet<VbId>>,
}

impl<'a, 'w> Round<'a, 'w> {
    fn new(watch: &'a Mutex<&'w mut (dyn Watch + Send)>, look_again: Option<Duration>) -> Round<'a, 'w> {
        Round {
            watch,
            begun: Instant::now(),
            look_again,
            has_moved: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            ended: Mutex::default(),
        }
    }

    /// Waits, as nobody is active for anything.
    fn rest(&self) {
        let mut one = One { round: self, has_left: false, rewinds: Vec::new() };
        while one.idle().is_continue() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Follows each share on a connection of its own; then `starts` are where the rest stands.
    fn follow(
        &self,
        env: &Env,
        wishes: &Wishes,
        shares: Vec<(Target, Vec<Start>)>,
        starts: &mut Vec<Start>,
    ) -> Result<(), ClientError> {
        let sessions = std::thread::scope(|scope| {
            let follow_one = |(target, share): (Target, Vec<Start>)| {
                scope.spawn(move || {
                    let mut session = Session::new(wishes.clone(), &share);
                    let mut one = One { round: self, has_left: false, rewinds: Vec::new() };
                    let followed = follow(env, &target, &mut session, &mut one);
                    // What it broke off because of is looked at by all together.
                    let failed = followed.err().filter(|_| !one.has_left);
                    if failed.is_some() {
                        self.is_over.store(true, Ordering::Relaxed);
                    }
                    (session, failed)
                })
            };
            let threads: Vec<_> = shares.into_iter().map(follow_one).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        let ended = lock(&self.ended);
        starts.retain(|start| !ended.contains(&start.vb));
        for joined in sessions {
            let (session, failed) = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Some(error) = failed {
                return Err(error);
            }
            for start in starts.iter_mut() {
                start.position = session.position(start.vb).unwrap_or(start.position);
            }
        }
        Ok(())
    }
}

/// What one of the connections tells.
struct One<'r, 'a, 'w> {
    round: &'r Round<'a, 'w>,
    /// It broke off because something has moved.
    has_left: bool,
    /// Of its own streams.
    rewinds: Vec<(VbId, Seqno)>,
}

impl One<'_, '_, '_> {
    fn leave(&mut self) -> ControlFlow<()> {
        self.has_left = true;
        self.round.has_moved.store(true, Ordering::Relaxed);
        ControlFlow::Break(())
    }

    fn unless_over(&self, flow: ControlFlow<()>) -> ControlFlow<()> {
        if flow.is_break() {
            self.round.is_over.store(true, Ordering::Relaxed);
        }
        flow
    }
}

impl Watch for One<'_, '_, '_> {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Ended(_, EndReason::StateChanged) => return self.leave(),
            Event::Ended(vb, EndReason::Ok) => drop(lock(&self.round.ended).insert(vb)),
            _ => {}
        }
        let mut watch = lock(self.round.watch);
        // Somebody else has seen enough: nothing more is shown.
        if self.round.is_over.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let flow = watch.event(event);
        self.rewinds.append(&mut watch.rewinds());
        drop(watch);
        self.unless_over(flow)
    }

    fn rewinds(&mut self) -> Vec<(VbId, Seqno)> {
        std::mem::take(&mut self.rewinds)
    }

    fn idle(&mut self) -> ControlFlow<()> {
        let round = self.round;
        if round.is_over.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let is_time = round.look_again.is_some_and(|after| round.begun.elapsed() >= after);
        if is_time || round.has_moved.load(Ordering::Relaxed) {
            return self.leave();
        }
        let flow = lock(round.watch).idle();
        self.unless_over(flow)
    }

    fn disconnected(&mut self, error: &ClientError) -> ControlFlow<()> {
        let flow = lock(self.round.watch).disconnected(error);
        if self.unless_over(flow).is_break() { flow } else { self.leave() }
    }
}

/// Where a vBucket was at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VbPlace {
    /// Its history.
    pub uuid: VbUuid,
    /// Its last change.
    pub seqno: Seqno,
}

/// A snapshot that the nodes keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSnapshot {
    /// Its UUID.
    pub id: String,
    /// All vBuckets of the bucket.
    pub vbuckets: BTreeMap<VbId, VbPlace>,
    /// For how long a node held changes, that of the one that held them for longest.
    pub held: Duration,
    /// The manifest of the collections that there were, the newest that a node had; nothing if the nodes do not tell.
    pub collections: Option<Value>,
}

impl BucketSnapshot {
    /// The value of a stream request that reads it.
    pub fn filter(&self) -> Vec<u8> {
        json!({ "snapshot": self.id }).to_string().into_bytes()
    }
}

/// What a node keeps, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptOnNode {
    /// The snapshot's UUID.
    pub id: String,
    /// Its vBuckets of that node.
    pub vbuckets: BTreeMap<VbId, VbPlace>,
    /// vBuckets that cannot be read yet.
    pub waiting: u64,
    /// vBuckets that cannot be read any more.
    pub lost: Vec<u16>,
    /// How long ago it was made.
    pub age_ms: u64,
    /// When it ends unless something is read or asked of it.
    pub ends_after_ms: u64,
    /// For how long changes were held for it.
    pub held_us: u64,
}

/// Why a try came to nothing.
enum NoMoment {
    /// Another one may succeed.
    Again(String),
    Over(anyhow::Error),
}

impl From<ClientError> for NoMoment {
    fn from(error: ClientError) -> NoMoment {
        let ClientError::Refused { status_code, .. } = &error else {
            return if error.may_pass() {
                NoMoment::Again(error.reason())
            } else {
                NoMoment::Over(error.into())
            };
        };
        match *status_code {
            // A node that may not open a file for each vBucket.
            code if code == Status::Ebusy.code() => NoMoment::Over(error.into()),
            // A failover or a handover.
            code if code == Status::NotMyVbucket.code() => NoMoment::Again(error.reason()),
            _ if error.may_pass() => NoMoment::Again(error.reason()),
            _ => NoMoment::Over(error.into()),
        }
    }
}

/// Has the nodes make a snapshot of the target's bucket. It can be read when this returns, until it is ended or nothing is
/// read or asked of it for ten minutes.
pub fn make_snapshot(env: &Env, target: &Target) -> anyhow::Result<BucketSnapshot> {
    let (begun, mut hold_ms, mut why, mut tries) = (Instant::now(), FIRST_HOLD_MS, String::new(), 0);
    let most_trying = MOST_TRYING.max(target.patience.0);
    while tries < MOST_TRIES && begun.elapsed() < most_trying {
        tries += 1;
        if tries > 1 {
            // Nodes rest behind a hold.
            std::thread::sleep(Duration::from_millis(hold_ms));
            hold_ms = (hold_ms * 2).min(LONGEST_HOLD_MS);
        }
        match try_once(env, target, hold_ms) {
            Ok(made) => return Ok(made),
            Err(NoMoment::Again(reason)) => why = reason,
            Err(NoMoment::Over(error)) => return Err(error),
        }
    }
    bail!("the nodes found no moment in {tries} tries; the last one: {why}")
}

/// What the nodes keep of a snapshot; an error if that is not all of the bucket's vBuckets, or some of them cannot be read.
pub fn find_snapshot(env: &Env, target: &Target, id: &str) -> anyhow::Result<BucketSnapshot> {
    let mut nodes = connect(env, target).map_err(over)?;
    let all = nodes[0].vbuckets();
    wait_until_ready(&mut nodes, id, all, target.patience.0).map_err(over)
}

/// Ends a snapshot on all nodes; whether any of them had it. An error is the first of them: the others are asked all the
/// same.
pub fn end_snapshot(env: &Env, target: &Target, id: &str) -> Result<bool, ClientError> {
    let end = |member: &Target| end_on(&mut Client::open(env, member)?, id);
    let ended: Vec<Result<bool, ClientError>> = members(env, target)?.iter().map(end).collect();
    ended.into_iter().try_fold(false, |was_there, ended| Ok(was_there | ended?))
}

/// Ends what a node keeps of a snapshot; false if it keeps nothing of it.
pub fn end_on(client: &mut Client, id: &str) -> Result<bool, ClientError> {
    match ask(client, &json!({ "do": "drop", "id": id })) {
        Ok(_) => Ok(true),
        Err(ClientError::Refused { status_code, .. }) if status_code == Status::KeyEnoent.code() => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a node keeps. Nothing of one that does not know of snapshots.
pub fn kept_on(client: &mut Client) -> anyhow::Result<Vec<KeptOnNode>> {
    match ask(client, &json!({ "do": "list" })) {
        Ok(told) => {
            let all = told["snapshots"].as_array().context("the node's list of snapshots is none")?;
            all.iter().map(kept_of).collect()
        }
        // Nor of one that tells this user nothing of them.
        Err(ClientError::Refused { status_code, .. })
            if [Status::UnknownCommand, Status::Eaccess].iter().any(|one| one.code() == status_code) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error.into()),
    }
}

fn over(failed: NoMoment) -> anyhow::Error {
    match failed {
        NoMoment::Again(reason) => anyhow::anyhow!(reason),
        NoMoment::Over(error) => error,
    }
}

fn connect(env: &Env, target: &Target) -> Result<Vec<Client>, NoMoment> {
    let members = members(env, target)?;
    members.iter().map(|member| Ok(Client::open(env, member)?)).collect()
}

fn try_once(env: &Env, target: &Target, hold_ms: u64) -> Result<BucketSnapshot, NoMoment> {
    let mut nodes = connect(env, target)?;
    let vbuckets = nodes[0].vbuckets();
    let mut bytes = [0; 16];
    env.random.fill(&mut bytes);
    let id = uuid::text(u128::from_be_bytes(bytes));
    let taken = cut(&mut nodes, &id, vbuckets, hold_ms)
        .and_then(|()| wait_until_ready(&mut nodes, &id, vbuckets, target.patience.0));
    if taken.is_err() {
        // What failed is told; what is left behind ends by itself.
        let _ = at_once(&mut nodes, &json!({ "do": "release", "id": id }));
        let _ = at_once(&mut nodes, &json!({ "do": "drop", "id": id }));
    }
    taken
}

/// Holds changes on all nodes, then takes the moment on all of them.
fn cut(nodes: &mut [Client], id: &str, vbuckets: u16, hold_ms: u64) -> Result<(), NoMoment> {
    let held = at_once(nodes, &json!({ "do": "hold", "id": id, "most_ms": hold_ms }))?;
    let taken = at_once(nodes, &json!({ "do": "take", "id": id }))?;
    let places = |all: &[Value]| -> Result<Vec<BTreeMap<VbId, VbPlace>>, NoMoment> {
        all.iter().map(|told| places_of(&told["vbuckets"]).map_err(NoMoment::Over)).collect()
    };
    let (held, taken) = (places(&held)?, places(&taken)?);
    let of_one = |held: &BTreeMap<VbId, VbPlace>, taken: &BTreeMap<VbId, VbPlace>| {
        held.keys().eq(taken.keys()) && held.iter().all(|(vb, place)| taken[vb].uuid == place.uuid)
    };
    if !held.iter().zip(&taken).all(|(held, taken)| of_one(held, taken)) {
        return Err(NoMoment::Again("vBuckets moved meanwhile".to_owned()));
    }
    whole(taken.into_iter().flatten(), vbuckets).map(drop)
}

/// All vBuckets, each of which must be there once.
fn whole(
    places: impl Iterator<Item = (VbId, VbPlace)>,
    vbuckets: u16,
) -> Result<BTreeMap<VbId, VbPlace>, NoMoment> {
    let mut all = BTreeMap::new();
    for (vb, place) in places {
        if all.insert(vb, place).is_some() {
            return Err(NoMoment::Again(format!("two nodes say that they are active for vBucket {vb}")));
        }
    }
    match (0..vbuckets).map(VbId).find(|vb| !all.contains_key(vb)) {
        Some(missing) => Err(NoMoment::Again(format!("no node has vBucket {missing} in it"))),
        None => Ok(all),
    }
}

/// Waits until all vBuckets of a snapshot can be read.
fn wait_until_ready(
    nodes: &mut [Client],
    id: &str,
    vbuckets: u16,
    patience: Duration,
) -> Result<BucketSnapshot, NoMoment> {
    let begun = Instant::now();
    loop {
        let told = at_once(nodes, &json!({ "do": "look", "id": id }))?;
        let kept: Vec<KeptOnNode> =
            told.iter().map(kept_of).collect::<anyhow::Result<_>>().map_err(NoMoment::Over)?;
        if let Some(lost) = kept.iter().find_map(|one| one.lost.first()) {
            return Err(NoMoment::Again(format!("vBucket {lost} moved, went back, or could not be read")));
        }
        if kept.iter().all(|one| one.waiting == 0) {
            let held = kept.iter().map(|one| Duration::from_micros(one.held_us)).max().unwrap_or_default();
            let vbuckets = whole(kept.into_iter().flat_map(|one| one.vbuckets), vbuckets)?;
            let manifests = told.into_iter().map(|mut told| told["manifest"].take());
            let collections = manifests.filter(Value::is_object).max_by_key(manifest_uid);
            return Ok(BucketSnapshot { id: id.to_owned(), vbuckets, held, collections });
        }
        if begun.elapsed() >= patience {
            let reason = format!("not all vBuckets were saved within {patience:.0?}; --timeout waits longer");
            return Err(NoMoment::Over(anyhow::anyhow!(reason)));
        }
        std::thread::sleep(READY_PAUSE);
    }
}

/// The number of a manifest of collections: a later one has a higher one.
fn manifest_uid(manifest: &Value) -> u64 {
    manifest["uid"].as_str().and_then(|uid| u64::from_str_radix(uid, 16).ok()).unwrap_or_default()
}

/// Asks all nodes at the same time.
fn at_once(nodes: &mut [Client], wanted: &Value) -> Result<Vec<Value>, ClientError> {
    let answers: Vec<Result<Value, ClientError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter_mut().map(|node| scope.spawn(move || ask(node, wanted))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        let joined = threads.into_iter().map(join);
        joined.map(|answer| answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    answers.into_iter().collect()
}

fn ask(client: &mut Client, wanted: &Value) -> Result<Value, ClientError> {
    let (value, datatype) = (wanted.to_string(), Datatype::JSON.0);
    let value = value.as_bytes();
    let parts = RequestParts { opcode: opcode::BUCKET_SNAPSHOT, value, datatype, ..RequestParts::default() };
    let answer = client.request(SNAPSHOT, parts)?;
    if Status::from_code(answer.status_code) != Some(Status::Success) {
        return Err(answer.refused(SNAPSHOT));
    }
    let wrong = ClientError::Answer { operation: SNAPSHOT, what: "it is not JSON" };
    serde_json::from_slice(&answer.value).map_err(|_| wrong)
}

fn places_of(told: &Value) -> anyhow::Result<BTreeMap<VbId, VbPlace>> {
    let place = |one: &Value| {
        let vb = VbId(u16::try_from(one[0].as_u64()?).ok()?);
        Some((vb, VbPlace { uuid: VbUuid(one[1].as_u64()?), seqno: Seqno(one[2].as_u64()?) }))
    };
    let all = told.as_array().context("the node's answer names no vBuckets")?;
    all.iter().map(|one| place(one).context("the node's answer has what is no vBucket")).collect()
}

fn kept_of(told: &Value) -> anyhow::Result<KeptOnNode> {
    let number = |name: &str| told[name].as_u64().with_context(|| format!("the node tells no {name}"));
    let lost = told["lost"].as_array().context("the node does not say what it lost")?;
    Ok(KeptOnNode {
        id: told["id"].as_str().context("the node tells no id")?.to_owned(),
        vbuckets: places_of(&told["vbuckets"])?,
        waiting: number("waiting")?,
        lost: lost.iter().filter_map(Value::as_u64).filter_map(|vb| u16::try_from(vb).ok()).collect(),
        age_ms: number("age_ms")?,
        ends_after_ms: number("ends_after_ms")?,
        held_us: number("held_us")?,
    })
}
