//! A start on a folder with a damaged file, and everything that it serves compared with what was promised.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base::env::sim::SimDisk;
use base::{CollectionId, DocKey, VbId, VbState};
use engine::{Bucket, Fetched, Refusal, value};

use super::damage::{Damage, Kind};
use super::log::Log;
use super::world::{End, Promised, World, open, set};

/// How often a value is asked for until it is there or refused.
const MOST_LOOKS: usize = 8;

/// What became of a start.
#[derive(Debug, Default)]
pub struct Started {
    pub damage: String,
    pub bucket_refused: bool,
    pub vbuckets_refused: u64,
    pub values_refused: u64,
    /// Whether something is missing that nothing vouches for.
    pub ends_lost: bool,
    pub wrong: Vec<String>,
}

impl Started {
    pub fn named(mut self, damage: &Damage) -> Started {
        self.damage = damage.to_string();
        self
    }

    pub fn is_refused(&self) -> bool {
        self.bucket_refused || self.vbuckets_refused > 0 || self.values_refused > 0
    }
}

/// What a document reads as.
pub enum Read {
    Value(Vec<u8>),
    Nothing,
    Refused,
}

/// Starts, compares, and does that once more after a stop if `begins_again`.
pub fn start(world: &World, disk: &SimDisk, damage: Option<&Damage>, begins_again: bool) -> Started {
    let mut started = Started::default();
    let (ended, told) = Log::listen(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let mut once = Look { world, damage, started: &mut started, has_next: false };
            let Some(bucket) = once.open(disk) else { return };
            once.compare(&bucket);
            if !begins_again {
                return;
            }
            // One that fails is as if the process was killed.
            let _ = bucket.close();
            drop(bucket);
            let mut again = Look { world, damage, started: &mut started, has_next: true };
            if let Some(bucket) = again.open(disk) {
                again.compare(&bucket);
            }
        }))
    });
    if let Err(panic) = ended {
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        started.wrong.push(format!("it panics: {what}"));
    }
    let is_refused = started.vbuckets_refused > 0 || started.values_refused > 0;
    if is_refused && told == 0 {
        started.wrong.push("it is refused, and nothing is logged".to_owned());
    }
    if damage.is_none() && (is_refused || started.bucket_refused || told > 0) {
        started.wrong.push(format!("it is sound, and refused or {told} times warned of"));
    }
    started
}

/// Starts on a folder with a damaged file, lives on, stops, and starts when the file is again what it was: then all is
/// served, what was refused meanwhile included. `None` if the first life has let go of the file.
pub fn heals(world: &World, disk: &SimDisk, damage: &Damage) -> Option<Started> {
    let mut started = Started::default();
    let ended = catch_unwind(AssertUnwindSafe(|| heal(world, disk, damage, &mut started)));
    match ended {
        Ok(is_tried) => is_tried.then_some(started),
        Err(_) => {
            started.wrong.push("it panics".to_owned());
            Some(started)
        }
    }
}

fn heal(world: &World, disk: &SimDisk, damage: &Damage, started: &mut Started) -> bool {
    let mut unused = Started::default();
    let mut first = Look { world, damage: Some(damage), started: &mut unused, has_next: false };
    let mut refused: Vec<VbId> = world.promised.keys().copied().collect();
    if let Some(bucket) = first.open(disk) {
        refused.retain(|vb| {
            bucket.documents().store(*vb, &set(DocKey::new(b"next"), b"1"), bucket.now()).is_err()
        });
        bucket.flushing().flush_all();
        bucket.flushing().file_step();
        // One that fails is as if the process was killed.
        let _ = bucket.close();
    }
    if !damage.heal(world, disk) {
        return false;
    }
    let mut again = Look { world, damage: None, started, has_next: true };
    let Some(bucket) = again.open(disk) else { return true };
    again.compare(&bucket);
    again.has_next = false;
    let mut wrong = Vec::new();
    refused.iter().for_each(|vb| again.add_next(&bucket, *vb, &world.promised[vb], &mut wrong));
    started.wrong.append(&mut wrong);
    if started.is_refused() {
        started.wrong.push("it has healed, and is refused".to_owned());
    }
    true
}

/// One start.
struct Look<'a> {
    world: &'a World,
    damage: Option<&'a Damage>,
    started: &'a mut Started,
    /// Whether a start before has added a document.
    has_next: bool,
}

impl Look<'_> {
    fn open(&mut self, disk: &SimDisk) -> Option<Bucket> {
        match open(u64::from(self.has_next) + 7, disk, self.world.keeper) {
            Ok((bucket, _)) => Some(bucket),
            Err(failure) => {
                self.started.bucket_refused = true;
                if self.damage.is_none() {
                    self.started.wrong.push(format!("it does not open: {failure}"));
                }
                None
            }
        }
    }

    fn compare(&mut self, bucket: &Bucket) {
        let world = self.world;
        if bucket.uuid() != world.bucket_uuid {
            self.started.wrong.push("the bucket has another UUID".to_owned());
        }
        let is_served = |vb: &VbId| bucket.with_vbucket(*vb, |vb| vb.state()) == Some(VbState::Active);
        // If no vBucket can be read, none tells how new the manifest is.
        let is_told = self.damage.is_none_or(|damage| damage.kind != Kind::SmallStale)
            || world.promised.keys().any(is_served);
        if is_told && *bucket.collections().manifest() != *world.manifest {
            self.started.wrong.push(format!("another manifest, {:?}", bucket.collections().manifest().uid()));
        }
        for (vb, promised) in &world.promised {
            if bucket.with_vbucket(*vb, |vb| vb.state()) == Some(VbState::Active) {
                self.compare_vbucket(bucket, *vb, promised);
            } else {
                self.started.vbuckets_refused += 1;
            }
        }
    }

    fn compare_vbucket(&mut self, bucket: &Bucket, vb: VbId, promised: &Promised) {
        let of_vb = |vb: &vbucket::VBucket| (vb.uuid(), vb.high_seqno(), vb.documents());
        let (uuid, high_seqno, documents) = bucket.with_vbucket(vb, of_vb).expect("it is active");
        let is_new = uuid != promised.uuid;
        let (mut wrong, mut refused) = (Vec::new(), 0);
        for ((collection, name), values) in &promised.documents {
            let expected = values.last().and_then(|(_, value)| value.as_ref());
            let is = read(bucket, vb, *collection, name);
            let name = name.escape_ascii();
            match (is, expected) {
                (Read::Value(found), Some(expected)) if found == *expected => {}
                (Read::Nothing, None) => {}
                (Read::Refused, _) => refused += 1,
                (Read::Nothing, Some(_)) => wrong.push(format!("{name} is absent")),
                (Read::Value(found), _) => {
                    let at = values.iter().position(|(_, value)| value.as_ref() == Some(&found));
                    wrong.push(match at {
                        Some(at) => format!("{name} is as it was at {at} of {}", values.len()),
                        None => format!("{name} is what it never was"),
                    });
                }
            }
        }
        self.started.values_refused += refused;
        let expected =
            promised.live() as u64 + u64::from(self.has_next && documents > promised.live() as u64);
        if documents != expected && wrong.is_empty() && refused == 0 {
            wrong.push(format!("{documents} documents instead of {expected}"));
        }
        if !is_new && high_seqno < promised.high_seqno {
            wrong.push(format!("goes on from seqno {high_seqno}, not {}", promised.high_seqno));
        }
        let is_end = is_new && self.damage.is_some_and(|damage| damage.is_unvouched);
        if is_end && !wrong.is_empty() && !wrong.iter().any(|what| what.contains("never")) {
            self.started.ends_lost = true;
            wrong.clear();
        }
        if self.world.end == End::Killed && !is_new && !self.has_next {
            wrong.push("its history goes on after a crash".to_owned());
        }
        self.add_next(bucket, vb, promised, &mut wrong);
        self.started.wrong.extend(wrong.into_iter().map(|what| format!("{vb}: {what}")));
    }

    /// No change is given what another one had.
    fn add_next(&self, bucket: &Bucket, vb: VbId, promised: &Promised, wrong: &mut Vec<String>) {
        if self.has_next {
            return;
        }
        match bucket.documents().store(vb, &set(DocKey::new(b"next"), b"1"), bucket.now()) {
            Ok(next) if promised.given.contains(&(next.uuid.0, next.seqno.0)) => {
                wrong.push(format!("seqno {} of {} is given to another change", next.seqno, next.uuid));
            }
            Ok(_) => {}
            Err(refusal) => wrong.push(format!("it takes no changes: {refusal:?}")),
        }
    }
}

pub fn read(bucket: &Bucket, vb: VbId, collection: CollectionId, name: &[u8]) -> Read {
    let key = DocKey { collection, key: name };
    for _ in 0..MOST_LOOKS {
        match bucket.documents().get(vb, key, bucket.now()) {
            Ok(found) => {
                return value::plain(&found.version)
                    .map_or(Read::Refused, |plain| Read::Value(plain.into_owned()));
            }
            Err(Refusal::NotFound) => return Read::Nothing,
            Err(Refusal::NotResident) => {
                let Ok(fetch) = bucket.fetching().fetch(vb, key) else { return Read::Refused };
                bucket.fetching().fetch_step();
                if matches!(fetch.try_take(), Some(Fetched::Failed)) {
                    return Read::Refused;
                }
            }
            Err(_) => return Read::Refused,
        }
    }
    Read::Refused
}
