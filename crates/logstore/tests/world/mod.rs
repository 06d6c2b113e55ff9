//! A store, the maps that it is compared with, and random changes of both.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::Clock;
use base::env::SimHandles;
use base::env::sim::{DocumentNames, SimClock, SimDisk, SplitMix64};
use base::limits;
use logstore::{
    Batch, Config, Entry, Erased, Failure, Item, KEPT, LogStore, Purger, Replaced, Retention, Sealed, Trust,
    View,
};

pub const DIR: &str = "/data/bucket";
const VBS: u16 = 5;
/// Flag of items that a purge leaves out.
const OLD: u8 = 1;
/// Commits that are kept in any case.
const NEAR: usize = 4;

pub fn config() -> Config {
    Config {
        shards: 2,
        most_open_files: 3,
        cache_bytes: 16 * 2000,
        kept_points: 5,
        most_superseded: 30,
        manifest_bytes: 600,
        step_bytes: 200,
        merge_runs: 3,
        small_run_bytes: 600,
        waste_percent: 25,
        small_segment_bytes: 900,
        small_segments: 4,
        rewrite_bytes: 2000,
        ..Config::default()
    }
}

/// An item as the model knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doc {
    pub seqno: u64,
    pub flags: u8,
    pub value: Vec<u8>,
}

/// What a vBucket holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub docs: BTreeMap<Vec<u8>, Doc>,
    pub high: u64,
    pub purge: u64,
    pub mark: u64,
    pub past: Past,
}

/// Every version that was ever committed, and from where on a history has them. What of it is found depends on time, so it is
/// compared by [`fits`] alone.
#[derive(Clone, Debug, Default)]
pub struct Past {
    pub start: u64,
    pub versions: BTreeMap<u64, (Vec<u8>, Doc)>,
}

impl PartialEq for Past {
    fn eq(&self, _: &Past) -> bool {
        true
    }
}

impl Eq for Past {}

/// Whether the history that was found has every version that it should, and no other one.
fn fits(found: &Content, model: &Content) -> Result<(), String> {
    let start = found.past.start;
    if start == 0 {
        return Ok(());
    }
    let is_live = |key: &Vec<u8>, seqno| model.docs.get(key).is_some_and(|doc| doc.seqno == seqno);
    let is_there = |(seqno, (key, doc)): &(&u64, &(Vec<u8>, Doc))| {
        **seqno >= start && (doc.flags & KEPT != 0 || is_live(key, **seqno))
    };
    let wanted: BTreeMap<_, _> = model.past.versions.iter().filter(is_there).collect();
    let seen: BTreeMap<_, _> = found.past.versions.iter().collect();
    if wanted == seen {
        return Ok(());
    }
    let (wanted, seen) = (wanted.into_keys().collect::<Vec<_>>(), seen.into_keys().collect::<Vec<_>>());
    Err(format!("the history from {start} on has {seen:?} instead of {wanted:?}"))
}

/// A vBucket with the commits that led to it, since it was made or purged.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The last one is what is there, with the number of its commit.
    pub states: Vec<(u64, Content)>,
    /// The first state that a rollback must find if it is near enough.
    pub since: usize,
    /// The first state that a rollback may find.
    pub floor: usize,
    /// The first state that a start must find if it is on record and near enough.
    pub reach: usize,
}

impl History {
    pub fn now(&self) -> &Content {
        &self.states.last().expect("it has a commit").1
    }
}

/// What is committed.
pub struct TestBatch {
    pub vb: u16,
    pub items: Vec<(Vec<u8>, Doc)>,
    pub mark: u64,
    pub count: u64,
}

fn meta_of(seqno: u64) -> Vec<u8> {
    format!("meta{seqno}").into_bytes()
}

/// What a test stores with a commit: a mark, and how many items there are.
fn state(mark: u64, count: u64) -> Vec<u8> {
    [mark.to_le_bytes(), count.to_le_bytes()].concat()
}

fn parse_state(bytes: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    (number(0), number(8))
}

impl Batch for TestBatch {
    fn vb(&self) -> u16 {
        self.vb
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    fn key(&self, at: usize) -> &[u8] {
        &self.items[at].0
    }

    fn seqno(&self, at: usize) -> u64 {
        self.items[at].1.seqno
    }

    fn item<'s>(&'s self, at: usize, scratch: &'s mut Vec<u8>) -> Item<'s> {
        let (key, doc) = &self.items[at];
        *scratch = meta_of(doc.seqno);
        Item {
            key,
            seqno: doc.seqno,
            flags: doc.flags,
            time: doc.seqno as u32,
            meta: scratch,
            value: &doc.value,
        }
    }

    fn seal(&mut self, before: Option<&View>, changes: &[Replaced]) -> Result<Sealed, String> {
        let count = before.map_or(0, |before| parse_state(before.state()).1);
        let count = count + changes.iter().filter(|change| change.old.is_none()).count() as u64;
        let purge_seqno = before.map_or(0, View::purge_seqno);
        Ok(Sealed { state: state(self.mark, count), purge_seqno })
    }
}

struct TestPurger {
    high: u64,
    mark: u64,
}

impl Purger for TestPurger {
    fn judge(&mut self, view: &View, key: &[u8], entry: &Entry) -> Result<bool, Failure> {
        let flags = view.get(key, |item| item.flags)?;
        assert_eq!(flags, Some(entry.flags), "index and item agree");
        Ok(entry.flags & OLD != 0 && entry.seqno != self.high)
    }

    fn go_on(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn seal(&mut self, now: &View, erased: &[Erased], _: bool) -> Result<Sealed, String> {
        let count = parse_state(now.state()).1 - erased.len() as u64;
        let purged = erased.iter().map(|one| one.entry.seqno).max().unwrap_or(0);
        Ok(Sealed { state: state(self.mark, count), purge_seqno: purged.max(now.purge_seqno()) })
    }
}

/// How a store is opened again.
pub enum Open {
    /// As it was left.
    Last,
    /// As its caller has it on record.
    Record,
}

/// What each vBucket holds that is there.
pub type Found = BTreeMap<u16, Content>;

/// A state of a vBucket in the history of the disk.
struct Moment {
    vb: u16,
    /// Changes of the disk when what led to it began, and when it was acknowledged.
    begun: u64,
    acked: Option<u64>,
    content: Option<Content>,
}

pub struct World {
    moments: Vec<Moment>,
    pub disk: SimDisk,
    pub store: Option<LogStore>,
    pub model: BTreeMap<u16, History>,
    pub rng: SplitMix64,
    mark: u64,
    names: DocumentNames,
    held: Vec<(View, Content)>,
    pub clock: Arc<SimClock>,
    pub retention: Retention,
    /// From where on a vBucket must have its history, and high seqnos with the seconds of their commits.
    needs: BTreeMap<u16, (u64, Vec<(u64, u64)>)>,
    /// Whether a change failed: a start that trusts the last commits may find it, and the model does not have it.
    pub is_in_doubt: bool,
    /// Whether opening may find that a caller did not put the last commits on record.
    pub is_recorded: bool,
}

pub fn open(disk: &SimDisk, trust: &Trust<'_>) -> Result<LogStore, Failure> {
    open_at(disk, Arc::new(SimClock::new()), trust)
}

fn open_at(disk: &SimDisk, clock: Arc<SimClock>, trust: &Trust<'_>) -> Result<LogStore, Failure> {
    let env = SimHandles { clock, ..SimHandles::new(0) }.with_disk(disk.clone()).env();
    LogStore::open(&env, Path::new(DIR), config(), trust)
}

impl World {
    pub fn new(disk: SimDisk, mut rng: SplitMix64) -> World {
        let clock = Arc::new(SimClock::new());
        let store = open_at(&disk, clock.clone(), &Trust::Last).expect("an empty folder opens");
        let retention = Retention { seconds: 60 * rng.below(2), bytes: 0 };
        store.retain(retention).expect("there is none yet");
        World {
            moments: Vec::new(),
            disk,
            store: Some(store),
            model: BTreeMap::new(),
            names: DocumentNames::of(rng.clone().next_u64(), limits::MAX_STORED_KEY_BYTES),
            rng,
            mark: 0,
            held: Vec::new(),
            clock,
            retention,
            needs: BTreeMap::new(),
            is_in_doubt: false,
            is_recorded: false,
        }
    }

    pub fn store(&self) -> &LogStore {
        self.store.as_ref().expect("it is open")
    }

    fn vb(&mut self) -> u16 {
        self.rng.below(u64::from(VBS)) as u16
    }

    fn next_mark(&mut self) -> u64 {
        self.mark += 1;
        self.mark
    }

    /// Notes what may be found from now on, and answers which note that is.
    fn begin(&mut self, vb: u16, content: Option<Content>) -> usize {
        self.moments.push(Moment { vb, begun: self.disk.changes(), acked: None, content });
        self.moments.len() - 1
    }

    fn ack(&mut self, at: usize) {
        self.moments[at].acked = Some(self.disk.changes());
    }

    /// How many notes count at a position: images at positions with the same number must answer the same.
    pub fn position(&self, at: u64) -> (usize, usize) {
        let begun = self.moments.iter().filter(|moment| moment.begun <= at).count();
        (begun, self.moments.iter().filter(|moment| moment.acked.is_some_and(|acked| acked <= at)).count())
    }

    /// Whether a start may find this after `at` changes of the disk.
    pub fn allows(&self, found: &Found, at: u64) -> Result<(), String> {
        for vb in 0..VBS {
            let all: Vec<&Moment> =
                self.moments.iter().filter(|moment| moment.vb == vb && moment.begun <= at).collect();
            let floor = all.iter().rposition(|moment| moment.acked.is_some_and(|acked| acked <= at));
            let is_it = |moment: &&Moment| match (moment.content.as_ref(), found.get(&vb)) {
                (Some(content), Some(found)) => content == found && fits(found, content).is_ok(),
                (content, found) => content.is_none() && found.is_none(),
            };
            let is_allowed = match floor {
                Some(floor) => all[floor..].iter().any(is_it),
                None => !found.contains_key(&vb) || all.iter().any(is_it),
            };
            if !is_allowed {
                let short = |content: Option<&Content>| {
                    content.map(|one| (one.high, one.purge, one.mark, one.docs.len()))
                };
                let states: Vec<_> =
                    all[floor.unwrap_or(0)..].iter().map(|moment| short(moment.content.as_ref())).collect();
                return Err(format!("vBucket {vb}: {:?} is none of {states:?}", short(found.get(&vb))));
            }
        }
        Ok(())
    }

    /// Goes on with what a start found.
    pub fn adopt(&mut self, store: LogStore, found: Found) {
        self.model.clear();
        self.needs.clear();
        self.is_in_doubt = false;
        store.retain(self.retention).expect("the disk works");
        for (vb, content) in found {
            let commit = store.stored(vb).expect("it was read").expect("it was found").commit;
            let states = vec![(commit.number, content)];
            self.model.insert(vb, History { states, ..History::default() });
        }
        self.store = Some(store);
    }

    /// Does something.
    pub fn change(&mut self) -> Result<&'static str, Failure> {
        self.age();
        match self.rng.below(27) {
            24 | 25 => {
                self.clock.advance(Duration::from_secs(self.rng.below(30)));
                self.age();
                Ok("wait")
            }
            26 => {
                self.limit_history()?;
                Ok("change how much history is kept")
            }
            0 => self.delete().map(|()| "delete"),
            1..=2 => self.rollback().map(|()| "rollback"),
            3 => self.purge().map(|()| "purge"),
            // What failed may be found, and the model does not have it.
            4 | 5 if self.is_in_doubt => self.store().step().map(|_| "step"),
            4 => self.reopen(Open::Last).map(|()| "open as it was left"),
            5 => self.reopen(Open::Record).map(|()| "open as on record"),
            6 => {
                self.hold()?;
                Ok("hold a snapshot")
            }
            7 => self.reclaim().map(|()| "reclaim"),
            8..=15 => self.store().step().map(|_| "step"),
            _ => self.commit().map(|()| "commit"),
        }
    }

    /// What must be in the history as time goes by.
    fn age(&mut self) {
        let (now, Retention { seconds, .. }) = (u64::from(self.clock.unix_s()), self.retention);
        for (need, commits) in self.needs.values_mut() {
            let old = commits.iter().filter(|(_, at)| at + seconds < now).map(|(high, _)| *high);
            *need = (*need).max(old.max().map_or(0, |high| high + 1));
        }
    }

    fn limit_history(&mut self) -> Result<(), Failure> {
        let seconds = [0, 20, 100, 1_000_000][self.rng.below(4) as usize];
        self.retention = Retention { seconds, bytes: 0 };
        if seconds == 0 {
            self.needs.clear();
        }
        self.store().retain(self.retention)?;
        self.age();
        Ok(())
    }

    /// A commit with this seqno as the highest, behind another one.
    fn note_commit(&mut self, vb: u16, (before, high): (u64, u64)) {
        if self.retention.is_on() {
            let now = u64::from(self.clock.unix_s());
            self.needs.entry(vb).or_insert((before + 1, Vec::new())).1.push((high, now));
        }
        self.age();
    }

    fn note_rollback(&mut self, vb: u16) {
        let high = self.model.get(&vb).map(|history| history.now().high);
        match (self.needs.get_mut(&vb), high) {
            (Some((need, commits)), Some(high)) => {
                *need = (*need).min(high + 1);
                commits.retain(|(known, _)| *known <= high);
            }
            (Some(_), None) => drop(self.needs.remove(&vb)),
            (None, _) => {}
        }
    }

    fn doc(&mut self, seqno: u64) -> Doc {
        let flags = (u8::from(self.rng.chance(1, 5)) * OLD) | (u8::from(self.rng.chance(1, 2)) * KEPT);
        let len = [0, 10, 40, 200, 3000][self.rng.below(5) as usize];
        let mut value = vec![b'v'; len];
        value.iter_mut().step_by(3).for_each(|byte| *byte = self.rng.next_u64() as u8);
        Doc { seqno, flags, value }
    }

    pub fn batch(&mut self, vb: u16) -> TestBatch {
        let high = self.model.get(&vb).map_or(0, |history| history.now().high);
        let keys: Vec<u64> = (0..self.rng.below(7)).map(|_| self.rng.below(25)).collect();
        let mut seqnos: Vec<u64> = (high + 1..).take(keys.len()).collect();
        if !seqnos.is_empty() {
            let turn = self.rng.below(seqnos.len() as u64) as usize;
            seqnos.rotate_left(turn);
        }
        let names = self.names;
        let named = |key: u64| names.with_text(key, &format!("key{key:03}"));
        let keys: Vec<Vec<u8>> = keys.into_iter().map(named).collect();
        let mut items: Vec<(Vec<u8>, Doc)> =
            keys.into_iter().zip(seqnos).map(|(key, seqno)| (key, self.doc(seqno))).collect();
        items.sort_by(|a, b| (&a.0, a.1.seqno).cmp(&(&b.0, b.1.seqno)));
        TestBatch { vb, items, mark: self.next_mark(), count: 0 }
    }

    /// What a vBucket holds after a batch.
    pub fn after(&self, batch: &TestBatch) -> Content {
        let mut content = self.model.get(&batch.vb).map(|history| history.now().clone()).unwrap_or_default();
        for (key, doc) in &batch.items {
            content.high = content.high.max(doc.seqno);
            content.docs.insert(key.clone(), doc.clone());
            content.past.versions.insert(doc.seqno, (key.clone(), doc.clone()));
        }
        content.mark = batch.mark;
        content
    }

    /// Commits batches of some vBuckets.
    pub fn commit(&mut self) -> Result<(), Failure> {
        let mut vbs: Vec<u16> = (0..VBS).filter(|_| self.rng.chance(1, 2)).collect();
        if vbs.is_empty() {
            vbs.push(self.vb());
        }
        let mut batches: Vec<TestBatch> = vbs.into_iter().map(|vb| self.batch(vb)).collect();
        let notes: Vec<usize> = batches
            .iter()
            .map(|batch| {
                let after = self.after(batch);
                self.begin(batch.vb, Some(after))
            })
            .collect();
        let mut group: Vec<&mut dyn Batch> =
            batches.iter_mut().map(|batch| batch as &mut dyn Batch).collect();
        let answers = self.store().commit(&mut group);
        let mut failed = Ok(());
        for ((batch, answer), note) in batches.iter().zip(answers).zip(notes) {
            match answer {
                Ok(commit) => {
                    self.ack(note);
                    let after = self.after(batch);
                    let before = self.model.get(&batch.vb).map_or(0, |history| history.now().high);
                    self.note_commit(batch.vb, (before, after.high));
                    self.model.entry(batch.vb).or_default().states.push((commit.number, after));
                }
                Err(failure) => failed = Err(failure),
            }
        }
        failed
    }

    fn delete(&mut self) -> Result<(), Failure> {
        let vb = self.vb();
        let note = self.begin(vb, None);
        self.store().delete(vb)?;
        self.ack(note);
        self.model.remove(&vb);
        self.needs.remove(&vb);
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), Failure> {
        let vb = self.vb();
        let high = self.model.get(&vb).map_or(0, |history| history.now().high);
        let to = self.rng.between(0, high + 1);
        // It may go back to any of these.
        let states = self.model.get(&vb).map(|history| history.states.clone()).unwrap_or_default();
        for (_, content) in states.into_iter().filter(|(_, content)| content.high <= to) {
            self.begin(vb, Some(content));
        }
        self.begin(vb, None);
        let is_two_steps = self.rng.chance(1, 2);
        let is_refused = is_two_steps && self.rng.chance(1, 3);
        let back = if is_two_steps {
            let refused = Failure::Ended { vb, why: "refused" };
            let before = |_| if is_refused { Err(refused.clone()) } else { Ok(()) };
            self.store().rollback_with::<Failure>(vb, to, &before)
        } else {
            self.store().rollback(vb, to)
        };
        if is_refused && matches!(back, Err(Failure::Ended { .. })) {
            return self.store().forget_rollback(vb);
        }
        let back = back?;
        let Some(history) = self.model.get_mut(&vb) else {
            assert_eq!(back, None);
            return Ok(());
        };
        let wanted = history.states.iter().rposition(|(_, content)| content.high <= to);
        let Some(commit) = back else {
            let is_near = |at| at >= history.since && at + NEAR >= history.states.len();
            assert!(!wanted.is_some_and(is_near), "a commit is kept that could be gone back to");
            self.model.remove(&vb);
            self.needs.remove(&vb);
            let note = self.begin(vb, None);
            self.ack(note);
            return Ok(());
        };
        let mark = parse_state(self.store().view(vb)?.expect("it is there").state()).0;
        let history = self.model.get_mut(&vb).expect("it is there");
        let at = history.states.iter().rposition(|(_, content)| content.mark == mark);
        let at = at.expect("it goes back to a commit");
        assert!(history.states[at].1.high <= to, "it goes back far enough");
        assert!(at >= history.floor, "it does not go back behind a purge");
        let wanted = wanted.expect("there is one");
        if wanted >= history.since && wanted + NEAR >= history.states.len() {
            assert_eq!(
                history.states[wanted].1.high, history.states[at].1.high,
                "it goes back to the newest"
            );
        }
        history.states.truncate(at + 1);
        history.states[at].0 = commit.number;
        // Others may have been given up since.
        (history.since, history.reach) = (at, at);
        let content = history.now().clone();
        let note = self.begin(vb, Some(content));
        // With a fault that it may not be told of, one in two steps may be prepared only: its caller's record decides.
        if !(is_two_steps && self.disk.was_struck()) {
            self.ack(note);
        }
        self.note_rollback(vb);
        Ok(())
    }

    fn purge(&mut self) -> Result<(), Failure> {
        let vb = self.vb();
        let Some(history) = self.model.get(&vb) else { return Ok(()) };
        let before = history.now().clone();
        let is_told = self.rng.chance(1, 2);
        let mut purger = TestPurger { high: before.high, mark: self.next_mark() };
        let mut after = Content { mark: purger.mark, ..before.clone() };
        after.docs.retain(|_, doc| {
            let goes = doc.flags & OLD != 0 && doc.seqno != before.high;
            if goes {
                after.purge = after.purge.max(doc.seqno);
            }
            !goes
        });
        let note = self.begin(vb, Some(after.clone()));
        let purged = self.store().purge(vb, &mut purger)?;
        self.ack(note);
        assert_eq!(purged.erased as usize, before.docs.len() - after.docs.len());
        let history = self.model.get_mut(&vb).expect("it is there");
        history.states.push((purged.commit.number, after));
        history.since = history.states.len() - 1;
        history.floor = history.since;
        if is_told {
            history.reach = history.since;
            self.store().is_on_record(vb)?;
        }
        Ok(())
    }

    fn reclaim(&mut self) -> Result<(), Failure> {
        let vb = self.vb();
        self.store().reclaim(vb, &mut || ControlFlow::Continue(()))
    }

    fn hold(&mut self) -> Result<(), Failure> {
        let vb = self.vb();
        if self.held.len() > 3 {
            let at = self.rng.below(self.held.len() as u64) as usize;
            self.held.remove(at);
        }
        if let Some(view) = self.store().snapshot(vb)? {
            let content = self.model[&vb].now().clone();
            self.held.push((view, content));
        }
        Ok(())
    }

    pub fn reopen(&mut self, how: Open) -> Result<(), Failure> {
        self.held.clear();
        self.store = None;
        let mut commits = BTreeMap::new();
        if let Open::Record = how {
            let vbs: Vec<u16> = self.model.keys().copied().collect();
            for vb in vbs {
                if self.rng.chance(1, 8) {
                    self.begin(vb, None);
                    self.model.remove(&vb);
                    continue;
                }
                let back = if self.rng.chance(1, 2) { self.rng.below(NEAR as u64 - 1) as usize } else { 0 };
                let history = self.model.get_mut(&vb).expect("it is there");
                let at = (history.states.len() - 1).saturating_sub(back).max(history.reach);
                if at >= history.floor {
                    history.reach = history.reach.max(history.floor);
                }
                let is_back = at + 1 < history.states.len();
                history.states.truncate(at + 1);
                commits.insert(vb, history.states[at].0);
                if is_back {
                    let content = self.model[&vb].now().clone();
                    self.begin(vb, Some(content));
                    let history = self.model.get_mut(&vb).expect("it is there");
                    (history.since, history.reach) = (at, at);
                    history.floor = if history.floor > at { 0 } else { history.floor };
                }
            }
        }
        if let Open::Last = how {
            // A start without a record does not go back behind a purge.
            self.model.values_mut().for_each(|history| history.reach = history.reach.max(history.floor));
        }
        let missing = BTreeSet::new();
        let trust = match how {
            Open::Last => Trust::Last,
            Open::Record => Trust::Record { commits: &commits, missing: &missing },
        };
        let store = self.store.insert(open_at(&self.disk, self.clock.clone(), &trust)?);
        store.retain_as_before(self.retention);
        store.settle()?;
        for vb in 0..VBS {
            self.note_rollback(vb);
            let content = self.model.get(&vb).map(|history| history.now().clone());
            let note = self.begin(vb, content);
            self.ack(note);
        }
        Ok(())
    }

    /// Does all that is left to do in the background.
    pub fn settle(&mut self) -> Result<(), Failure> {
        for _ in 0..10_000 {
            if !self.store().step()? {
                return Ok(());
            }
        }
        panic!("there is no end to what is to be done");
    }

    pub fn check_some(&mut self) -> Result<(), String> {
        let vb = self.vb();
        self.check(vb)?;
        if !self.held.is_empty() && self.rng.chance(1, 4) {
            let at = self.rng.below(self.held.len() as u64) as usize;
            let (view, content) = &self.held[at];
            compare(view, content).map_err(|wrong| format!("a snapshot: {wrong}"))?;
        }
        Ok(())
    }

    pub fn check_all(&self) -> Result<(), String> {
        (0..VBS).try_for_each(|vb| self.check(vb))
    }

    fn check(&self, vb: u16) -> Result<(), String> {
        let view = self.store().snapshot(vb).map_err(|failure| failure.to_string())?;
        match (view, self.model.get(&vb)) {
            (None, None) => Ok(()),
            (Some(view), Some(history)) => {
                let in_vb = |wrong| format!("vBucket {vb}: {wrong}");
                compare(&view, history.now()).map_err(in_vb)?;
                let (start, need) = (view.history_start(), self.needs.get(&vb).map(|(need, _)| *need));
                if need.is_some_and(|need| start == 0 || start > need) {
                    return Err(in_vb(format!("its history begins with {start}, not {need:?}")));
                }
                // In a development build this compares the sum of bytes that each change keeps with all extents.
                let usage = self.store().history(vb).expect("it is there");
                if (usage.versions == 0) != (usage.bytes == 0) {
                    return Err(in_vb(format!("versions or bytes are missing: {usage:?}")));
                }
                Ok(())
            }
            (view, model) => {
                Err(format!("vBucket {vb}: is there: {}, should: {}", view.is_some(), model.is_some()))
            }
        }
    }
}

fn doc_of(item: &Item<'_>) -> Doc {
    assert_eq!(item.meta, meta_of(item.seqno), "metadata of another item");
    assert_eq!(item.time, item.seqno as u32);
    Doc { seqno: item.seqno, flags: item.flags, value: item.value.to_vec() }
}

/// What a view holds, read in every way.
pub fn read(view: &View) -> Result<Content, String> {
    let say = |failure: Failure| failure.to_string();
    let mut docs = BTreeMap::new();
    let mut last = 0;
    view.scan::<Failure>(0, |item| {
        assert!(item.seqno > last, "in order of seqno");
        last = item.seqno;
        assert!(docs.insert(item.key.to_vec(), doc_of(item)).is_none(), "each key once");
        Ok(ControlFlow::Continue(()))
    })
    .map_err(say)?;
    let mut by_key = BTreeMap::new();
    view.scan_keys::<Failure>(b"", |item| {
        by_key.insert(item.key.to_vec(), doc_of(item));
        Ok(ControlFlow::Continue(()))
    })
    .map_err(say)?;
    if by_key != docs {
        return Err(format!("by key {by_key:?}, by seqno {docs:?}"));
    }
    for (key, doc) in &docs {
        let got = view.get(key, doc_of).map_err(say)?;
        if got.as_ref() != Some(doc) {
            return Err(format!("{got:?} is got, {doc:?} is visited"));
        }
    }
    for key in [&b"key"[..], b"key0005", b"never", b""] {
        if let Some(doc) = view.get(key, doc_of).map_err(say)? {
            return Err(format!("{doc:?} was never written"));
        }
    }
    let mut past = Past { start: view.history_start(), ..Past::default() };
    if past.start > 0 {
        view.scan_history::<Failure>(past.start, |item| {
            let known = past.versions.insert(item.seqno, (item.key.to_vec(), doc_of(item)));
            assert!(known.is_none(), "each version once");
            Ok(ControlFlow::Continue(()))
        })
        .map_err(say)?;
    }
    let (mark, count) = parse_state(view.state());
    if count != docs.len() as u64 {
        return Err(format!("{count} are counted, {} are there", docs.len()));
    }
    Ok(Content { docs, high: view.high_seqno(), purge: view.purge_seqno(), mark, past })
}

fn compare(view: &View, content: &Content) -> Result<(), String> {
    let found = read(view)?;
    if found == *content {
        return fits(&found, content);
    }
    let keys: BTreeSet<&Vec<u8>> = found.docs.keys().chain(content.docs.keys()).collect();
    let short = |doc: Option<&Doc>| doc.map(|doc| (doc.seqno, doc.flags, doc.value.len()));
    let differences: Vec<String> = keys
        .into_iter()
        .filter(|key| found.docs.get(*key) != content.docs.get(*key))
        .map(|key| {
            let (found, wanted) = (short(found.docs.get(key)), short(content.docs.get(key)));
            format!("{}: {found:?} instead of {wanted:?}", key.escape_ascii())
        })
        .collect();
    let numbers = |content: &Content| (content.high, content.purge, content.mark);
    Err(format!("{:?} instead of {:?}; {}", numbers(&found), numbers(content), differences.join(", ")))
}
