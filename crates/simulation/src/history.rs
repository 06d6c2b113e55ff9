//! What was asked and answered, and whether it fits together: for each document, in time that grows with its history.
//!
//! Each change has a CAS, which rises with each change of a document, so that the order of changes needs no search.

use std::collections::BTreeMap;

use base::VbState;
use cluster::state::Step;

use crate::node::BUCKET;
use crate::nodes::Nodes;
use crate::ops::{Class, Key, Kind, Op, Outcome, mark, number_of};
use crate::rules::Rules;

/// Everything that was asked.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In the order in which it was asked.
    pub ops: Vec<Op>,
    /// The collection that is used just now, beside the default one.
    pub collection: u32,
    /// By vBucket: when changes that were answered from memory may have been lost, in microseconds.
    pub losses: Vec<Vec<(u64, u64)>>,
    /// By vBucket: since when that may be, if it still may.
    pub losing_since: Vec<Option<u64>>,
}

/// What was asked, with the documents that it was about.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Everything that was asked.
    pub history: &'a History,
    /// The documents.
    pub keys: &'a [Key],
}

impl<'a> Asked<'a> {
    /// What has this number.
    pub fn op(&self, number: usize) -> &'a Op {
        &self.history.ops[number]
    }

    /// Its document.
    pub fn key(&self, number: usize) -> &'a Key {
        &self.keys[self.op(number).key]
    }
}

/// One thing that happened to a document, somewhere between two moments.
#[derive(Clone, Copy, Debug)]
struct Point {
    cas: u64,
    is_read: bool,
    from_us: u64,
    to_us: u64,
    op: usize,
}

impl History {
    /// Nothing was asked yet.
    pub fn new(rules: &Rules) -> History {
        let vbuckets = usize::from(rules.vbuckets);
        History {
            ops: Vec::new(),
            collection: 0,
            losses: vec![Vec::new(); vbuckets],
            losing_since: vec![None; vbuckets],
        }
    }

    /// With the documents that it is about.
    pub fn about<'a>(&'a self, keys: &'a [Key]) -> Asked<'a> {
        Asked { history: self, keys }
    }

    /// Something is asked; its number.
    pub fn ask(&mut self, op: Op) -> usize {
        self.ops.push(op);
        self.ops.len() - 1
    }

    /// Changes of a vBucket that were answered from memory may be lost from now on.
    pub fn may_lose(&mut self, vb: u16, now_us: u64) {
        self.losing_since[usize::from(vb)].get_or_insert(now_us);
    }

    /// The same where active copies are chosen.
    pub fn note_losses(&mut self, nodes: &Nodes, now_us: u64) {
        let Some(bucket) = nodes.newest.buckets.get(BUCKET) else { return };
        for (vb, step) in &bucket.steps {
            if matches!(step, Step::Choose { .. }) {
                self.may_lose(*vb, now_us);
            }
        }
    }

    /// The same where a node is about to lose what is not on its disk.
    pub fn note_crash(&mut self, nodes: &Nodes, at: usize, now_us: u64) {
        for vb in nodes.vbuckets() {
            if nodes.active(vb) == Some(at) || nodes[at].role(vb) == Some(VbState::Active) {
                self.may_lose(vb, now_us);
            }
        }
    }

    /// What is answered from now on is not lost.
    pub fn loses_no_more(&mut self, vb: u16, now_us: u64) {
        if let Some(since_us) = self.losing_since[usize::from(vb)].take() {
            self.losses[usize::from(vb)].push((since_us, now_us));
        }
    }

    /// Whether a document may have been deleted by a change that is newer than this CAS.
    pub fn is_deleted_after(&self, key: usize, cas: u64) -> bool {
        let is_deletion =
            |op: &Op| op.key == key && op.kind == Kind::Delete && op.cas.is_some_and(|at| at > cas);
        self.ops.iter().any(is_deletion)
    }

    /// Whether everything fits together; how many documents were looked at.
    pub fn check(&self, keys: &[Key]) -> Result<u64, String> {
        let mut by_key: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, op) in self.ops.iter().enumerate() {
            by_key.entry(op.key).or_default().push(number);
        }
        for (at, numbers) in &by_key {
            let key = &keys[*at];
            let checked = match key.class {
                Class::Register | Class::Counter | Class::Set => {
                    self.check_order(numbers, (0, u64::MAX)).and_then(|()| match key.class {
                        Class::Counter => self.check_counter(numbers),
                        Class::Set => self.check_set(numbers),
                        _ => Ok(()),
                    })
                }
                Class::Plain => self.check_stretches(key.vb, numbers),
                Class::Expiring | Class::Collection => Ok(()),
            };
            checked.map_err(|what| format!("{}: {what}", key.name.escape_ascii()))?;
        }
        Ok(by_key.len() as u64)
    }

    /// What is answered from memory fits together where nothing may have been lost.
    fn check_stretches(&self, vb: u16, numbers: &[usize]) -> Result<(), String> {
        let losses = &self.losses[usize::from(vb)];
        let mut begin_us = 0;
        for (from_us, to_us) in losses.iter().copied().chain([(u64::MAX, u64::MAX)]) {
            self.check_order(numbers, (begin_us, from_us))?;
            begin_us = to_us;
        }
        Ok(())
    }

    fn say(&self, number: usize) -> String {
        let op = &self.ops[number];
        let (asked_us, answered_us) = (op.asked_us, op.answered_us);
        format!("{number} {:?} {:?} {asked_us}..{answered_us:?} {:x?}", op.kind, op.level, op.cas)
    }

    /// Whether changes and reads happened in the order of their CAS values, each between question and answer. Only what
    /// lies between two moments counts.
    fn check_order(&self, numbers: &[usize], (begin_us, end_us): (u64, u64)) -> Result<(), String> {
        let is_inside = |op: &Op| op.asked_us >= begin_us && op.answered_us.is_none_or(|at| at < end_us);
        let writers = self.writers(numbers, is_inside)?;
        let mut points = Vec::new();
        let mut nothing = Vec::new();
        for number in numbers.iter().copied() {
            let op = &self.ops[number];
            let Some(answered_us) = op.answered_us.filter(|_| is_inside(op)) else { continue };
            let (from_us, to_us) = (op.asked_us, answered_us);
            match &op.outcome {
                Some(Outcome::Done(cas, value)) => {
                    let is_read = op.kind == Kind::Read;
                    if is_read {
                        self.check_read(number, *cas, value, &writers)?;
                    }
                    points.push(Point { cas: *cas, is_read, from_us, to_us, op: number });
                }
                Some(Outcome::NotFound) if op.kind == Kind::Read => nothing.push(number),
                _ => {}
            }
        }
        points.sort_by_key(|point| (point.cas, point.is_read, point.from_us));
        let mut latest: Option<Point> = None;
        for point in &points {
            if let Some(latest) = latest.filter(|latest| point.to_us < latest.from_us) {
                let (one, other) = (self.say(latest.op), self.say(point.op));
                return Err(format!("{one} was asked after {other} was answered, and has a lower CAS"));
            }
            if latest.is_none_or(|latest| point.from_us > latest.from_us) {
                latest = Some(*point);
            }
        }
        self.check_replaced(&points)?;
        nothing.into_iter().try_for_each(|number| self.check_nothing(number, &points, numbers))
    }

    /// Who gave the document which CAS. One that was lost may be given again.
    fn writers(
        &self,
        numbers: &[usize],
        is_inside: impl Fn(&Op) -> bool,
    ) -> Result<BTreeMap<u64, Vec<usize>>, String> {
        // What nobody was told of may have been lost with the node that prepared it.
        let stands = |op: &Op| is_inside(op) && op.outcome != Some(Outcome::Ambiguous);
        let mut writers: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for number in numbers.iter().copied().filter(|number| self.ops[*number].kind != Kind::Read) {
            let Some(cas) = self.ops[number].cas else { continue };
            let same = writers.entry(cas).or_default();
            if let Some(other) = same.iter().find(|other| stands(&self.ops[**other]))
                && stands(&self.ops[number])
            {
                return Err(format!("{} and {} have one CAS", self.say(*other), self.say(number)));
            }
            same.push(number);
        }
        Ok(writers)
    }

    /// What is read was written, and by whom the CAS says.
    fn check_read(
        &self,
        number: usize,
        cas: u64,
        value: &[u8],
        writers: &BTreeMap<u64, Vec<usize>>,
    ) -> Result<(), String> {
        let read = self.say(number);
        let of_cas =
            writers.get(&cas).ok_or_else(|| format!("{read} found CAS {cas:x}, which nobody made"))?;
        let fits = |writer: &usize| {
            let op = &self.ops[*writer];
            let has_its_value = match op.kind {
                Kind::Set | Kind::Replace(_) => number_of(value) == Some(*writer),
                Kind::Append => value.ends_with(mark(*writer).as_bytes()),
                Kind::Count => true,
                Kind::Delete | Kind::Read => false,
            };
            has_its_value && op.asked_us <= self.ops[number].answered_us.unwrap_or(u64::MAX)
        };
        match of_cas.iter().any(fits) {
            true => Ok(()),
            false => {
                let writers: Vec<String> = of_cas.iter().map(|writer| self.say(*writer)).collect();
                Err(format!("{read} found {:?}, not {writers:?}", String::from_utf8_lossy(value)))
            }
        }
    }

    /// A change of one version came right behind that version.
    fn check_replaced(&self, points: &[Point]) -> Result<(), String> {
        let mut before: Option<Point> = None;
        for point in points.iter().filter(|point| !point.is_read) {
            if let (Kind::Replace(cas), Some(before)) = (self.ops[point.op].kind, before)
                && before.cas > cas
            {
                let (one, other) = (self.say(point.op), self.say(before.op));
                return Err(format!("{one} came behind {other}"));
            }
            before = Some(*point);
        }
        Ok(())
    }

    /// Who finds nothing looks before the first change, or behind a deletion.
    fn check_nothing(&self, number: usize, points: &[Point], numbers: &[usize]) -> Result<(), String> {
        let read = &self.ops[number];
        let answered_us = read.answered_us.unwrap_or(u64::MAX);
        let Some(last) = points.iter().rfind(|point| point.to_us < read.asked_us) else { return Ok(()) };
        let next = points.iter().find(|point| point.from_us > answered_us);
        let range = last.cas..next.map_or(u64::MAX, |next| next.cas);
        let is_deletion = |number: &usize| {
            let op = &self.ops[*number];
            op.kind == Kind::Delete
                && op.asked_us <= answered_us
                && op.cas.is_some_and(|cas| range.contains(&cas))
        };
        match numbers.iter().any(is_deletion) {
            true => Ok(()),
            false => Err(format!("{} found nothing, after {}", self.say(number), self.say(last.op))),
        }
    }

    /// Each count is one more than those before; counts that nobody heard of may lie between.
    fn check_counter(&self, numbers: &[usize]) -> Result<(), String> {
        let mut counts: Vec<(u64, u64, usize)> = Vec::new();
        for number in numbers.iter().copied().filter(|number| self.ops[*number].kind == Kind::Count) {
            if let Some(Outcome::Done(cas, value)) = &self.ops[number].outcome {
                let value = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                counts.push((*cas, value.unwrap_or(0), number));
            }
        }
        counts.sort_unstable();
        let unheard = |from: u64, to: u64| {
            let is_between = |number: &&usize| {
                let op = &self.ops[**number];
                let is_heard = matches!(op.outcome, Some(Outcome::Done(..)));
                op.kind == Kind::Count && !is_heard && op.cas.is_some_and(|cas| from < cas && cas < to)
            };
            numbers.iter().filter(is_between).count() as u64
        };
        let mut before = (0, 0);
        for (cas, value, number) in counts {
            let least = before.1 + 1;
            if value < least || value > least + unheard(before.0, cas) {
                return Err(format!("{} came to {value}, after {}", self.say(number), before.1));
            }
            before = (cas, value);
        }
        Ok(())
    }

    /// Each read of a set has the marks that were told to be there, in the order of their CAS values, and no mark twice.
    fn check_set(&self, numbers: &[usize]) -> Result<(), String> {
        let mut told: Vec<(u64, usize)> = Vec::new();
        for number in numbers.iter().copied().filter(|number| self.ops[*number].kind == Kind::Append) {
            if let Some(Outcome::Done(cas, _)) = self.ops[number].outcome {
                told.push((cas, number));
            }
        }
        told.sort_unstable();
        for number in numbers.iter().copied().filter(|number| self.ops[*number].kind == Kind::Read) {
            let Some(Outcome::Done(cas, value)) = &self.ops[number].outcome else { continue };
            let marks: Vec<usize> =
                value.chunks(6).map(|mark| number_of(mark).unwrap_or(usize::MAX)).collect();
            let mut at = 0;
            for (_, wanted) in told.iter().filter(|(made, _)| made <= cas) {
                let found = marks[at..].iter().position(|mark| mark == wanted);
                let found = found.ok_or_else(|| {
                    format!("{} found {marks:?}, without {}", self.say(number), self.say(*wanted))
                })?;
                at += found + 1;
            }
            let mut sorted = marks.clone();
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("{} found {marks:?}, something twice", self.say(number)));
            }
        }
        Ok(())
    }
}
