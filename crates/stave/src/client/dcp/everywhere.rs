//! Following vBuckets wherever in a cluster they are active: a connection to each node that has some, made anew when one
//! of them moves or a node goes away.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::env::Env;
use base::{Seqno, VbId};
use protocol::dcp::EndReason;

use super::follow::{Watch, follow, high_seqnos};
use super::{Event, Session, Start, Wishes};
use crate::client::{Client, ClientError, Target};

/// Between two looks at who has what.
const PAUSE: Duration = Duration::from_millis(300);
/// The first of these, which are doubled, while a bucket's vBuckets are looked for.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// While nobody is active for some vBuckets, it is looked again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The nodes of the cluster that a node belongs to, as it says; the node alone if it knows of no others.
pub fn members(env: &Env, target: &Target) -> Result<Vec<Target>, ClientError> {
    let map = Client::open(env, target)?.map()?.unwrap_or_default();
    Ok(map.reachable(&target.addr).into_iter().map(|addr| target.at(addr)).collect())
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
        if let Some(newest) = known.iter().find_map(|member| members(env, member).ok()) {
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
        // Any of them knows who is there now; the one that was named may be gone.
        if let Some(newest) = known.iter().find_map(|member| members(env, member).ok()) {
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
