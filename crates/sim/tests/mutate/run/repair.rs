//! A bucket whose folder is damaged is repaired: each vBucket goes on from where the survey says, and loses no more.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use base::env::sim::{Fault, On, SimDisk, SimHandles, SplitMix64, Survival};
use base::{DocKey, Seqno, VbId, VbState};
use engine::Bucket;
use kvstore::repair::{Damaged, Survey, apply, resume, survey};

use super::damage::Damage;
use super::start::{Read, read};
use super::world::{DIR, Keeper, Promised, World, open, set};

const ASIDE: &str = "/data/quarantine/repair";
/// Repairs, compares, and answers whether anything had to be repaired.
pub fn repair(world: &World, disk: &SimDisk, damage: &Damage, rng: &mut SplitMix64) -> Result<bool, String> {
    let work = || repair_once(world, disk, damage, rng);
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("it panics: {}", what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text")))
    })
}

fn repair_once(world: &World, disk: &SimDisk, damage: &Damage, rng: &mut SplitMix64) -> Result<bool, String> {
    let mut disk = disk.clone();
    let first = match surveyed(&disk) {
        // A manifest of a later version is no damage.
        Err(what) if world.keeper == Keeper::Log && what.contains("this program reads versions up to") => {
            return Ok(false);
        }
        first => first?,
    };
    let said: BTreeMap<VbId, Damaged> = first.vbuckets.clone();
    let is_clean = first.is_clean();
    world.promised.iter().try_for_each(|(vb, promised)| {
        said.get(vb).map_or(Ok(()), |said| says_all(*vb, said, promised, damage))
    })?;
    if !is_clean {
        if rng.chance(1, 2) {
            disk = interrupted(&disk, first, rng)?;
        } else {
            applied(&disk, first)?;
        }
        let again = surveyed(&disk)?;
        if !again.is_clean() {
            return Err(format!("a second run finds {:?} and {:?}", again.faults, again.vbuckets));
        }
        let faults = checked(&disk, world.keeper)?;
        if !faults.is_empty() {
            return Err(format!("a check finds {faults:?}"));
        }
    }
    let (bucket, _) = open(9, &disk, world.keeper).map_err(|failure| format!("no start: {failure}"))?;
    world.promised.iter().try_for_each(|(vb, promised)| {
        compare(&bucket, *vb, promised, said.get(vb), damage).map_err(|what| format!("{vb}: {what}"))
    })?;
    Ok(!is_clean)
}

/// What a check finds.
fn checked(disk: &SimDisk, keeper: Keeper) -> Result<Vec<(PathBuf, u64, String)>, String> {
    let (env, dir) = (handles(disk).env(), Path::new(DIR));
    let faults = match keeper {
        Keeper::Log => kvstore::check_log(&env, dir, &mut |_| ()).map(|report| report.faults),
        Keeper::Files | Keeper::Journaled => kvstore::check_catalog(disk, dir).map(|report| report.faults),
    };
    faults.map_err(|failure| failure.to_string())
}

fn handles(disk: &SimDisk) -> SimHandles {
    SimHandles::new(5).with_disk(disk.clone())
}

fn surveyed(disk: &SimDisk) -> Result<Survey, String> {
    survey(&handles(disk).env(), DIR.as_ref()).map_err(|failure| format!("no survey: {failure}"))
}

fn applied(disk: &SimDisk, survey: Survey) -> Result<(), String> {
    let env = handles(disk).env();
    if !survey.was_closed {
        engine::forget_clean_stop(&env, DIR.as_ref()).map_err(|failure| failure.to_string())?;
    }
    apply(&env, DIR.as_ref(), ASIDE.as_ref(), survey).map_err(|failure| format!("no repair: {failure}"))
}

/// How many calls of a repair may change the disk.
fn changes_of_repair(disk: &SimDisk) -> Result<u64, String> {
    let disk = disk.image(Survival::Everything);
    let (survey, before) = (surveyed(&disk)?, disk.calls(On::Changes));
    applied(&disk, survey)?;
    Ok(disk.calls(On::Changes) - before)
}

/// The power fails in the midst, and a repair is begun again.
fn interrupted(disk: &SimDisk, first: Survey, rng: &mut SplitMix64) -> Result<SimDisk, String> {
    let at = rng.between(1, changes_of_repair(disk)?);
    disk.plan(Fault::power_off_at(at));
    let done = applied(disk, first);
    if !disk.is_off() {
        return Err(format!("the power is to fail at change {at}, and the repair ends before: {done:?}"));
    }
    let disk = disk.crash(rng.next_u64());
    let aside = format!("{ASIDE}-resumed");
    let resumed = resume(&handles(&disk).env(), DIR.as_ref(), aside.as_ref());
    resumed.map_err(|failure| format!("a repair is not ended: {failure}"))?;
    let again = surveyed(&disk)?;
    if !again.is_clean() {
        applied(&disk, again)?;
    }
    Ok(disk)
}

/// What was promised is told in full, or that it is not known.
fn says_all(vb: VbId, said: &Damaged, promised: &Promised, damage: &Damage) -> Result<(), String> {
    let is_all = said.may_be_more || said.promised == Some(promised.high_seqno) || damage.is_unvouched;
    let is_true = said.promised.is_none_or(|told| told <= promised.high_seqno);
    if is_all && is_true && said.kept <= promised.high_seqno {
        return Ok(());
    }
    Err(format!("{vb}: {:?} was promised, and said is {said:?}", promised.high_seqno))
}

fn compare(
    bucket: &Bucket,
    vb: VbId,
    promised: &Promised,
    said: Option<&Damaged>,
    damage: &Damage,
) -> Result<(), String> {
    let of_vb = |vb: &vbucket::VBucket| (vb.state(), vb.uuid(), vb.high_seqno(), vb.documents());
    let (state, uuid, high, documents) = bucket.with_vbucket(vb, of_vb).ok_or("it is gone")?;
    if state != VbState::Active {
        return Err(format!("it is {state:?}, and said was {said:?}"));
    }
    let is_new = uuid != promised.uuid;
    let kept = said.map_or(promised.high_seqno, |said| said.kept);
    let is_end = damage.is_unvouched && is_new;
    // Changes of collections that the bucket has decided and the vBucket has lost come again.
    if high < kept && !is_end {
        return Err(format!("it goes on from {high} and not from {kept}"));
    }
    if said.is_some_and(|said| !said.loses_nothing()) && !is_new {
        return Err("it lost something, and its history goes on".to_owned());
    }
    if is_end && high < kept {
        return Ok(());
    }
    match said.filter(|said| !said.holes.is_empty()) {
        Some(said) => compare_with_holes(bucket, vb, promised, said, documents)?,
        None => compare_documents(bucket, vb, promised, said, (kept, documents))?,
    }
    match bucket.documents().store(vb, &set(DocKey::new(b"next"), b"1"), bucket.now()) {
        Ok(next) if promised.given.contains(&(next.uuid.0, next.seqno.0)) => {
            Err(format!("seqno {} of {} is given to another change", next.seqno, next.uuid))
        }
        Ok(_) => Ok(()),
        Err(refusal) => Err(format!("it takes no changes: {refusal:?}")),
    }
}

/// Everything is as it was at a seqno.
fn compare_documents(
    bucket: &Bucket,
    vb: VbId,
    promised: &Promised,
    said: Option<&Damaged>,
    (kept, documents): (Seqno, u64),
) -> Result<(), String> {
    let mut live = 0;
    for ((collection, name), values) in &promised.documents {
        let kept_value = values.iter().rev().find(|(seqno, _)| *seqno <= kept);
        let expected = kept_value.and_then(|(_, value)| value.as_ref());
        live += u64::from(expected.is_some());
        let is = read(bucket, vb, *collection, name);
        let name = name.escape_ascii();
        match (is, expected) {
            (Read::Value(found), Some(expected)) if found == *expected => {}
            (Read::Nothing, None) => {}
            (Read::Refused, _) => return Err(format!("{name} is refused")),
            (Read::Nothing, Some(_)) => return Err(format!("{name} is absent, up to {kept}: {said:?}")),
            (Read::Value(_), _) => return Err(format!("{name} is not as it was at {kept}")),
        }
    }
    let counted = said.and_then(|said| said.documents);
    if documents != live || counted.is_some_and(|counted| counted != live) {
        return Err(format!("{documents} documents, {counted:?} were said, {live} were there at {kept}"));
    }
    Ok(())
}

/// Documents are missing in the middle: as many as was said, and of the others none is older than it was.
fn compare_with_holes(
    bucket: &Bucket,
    vb: VbId,
    promised: &Promised,
    said: &Damaged,
    documents: u64,
) -> Result<(), String> {
    let (mut live, mut absent) = (0, 0);
    for ((collection, name), values) in &promised.documents {
        let last = values.last().and_then(|(_, value)| value.as_ref());
        let is = read(bucket, vb, *collection, name);
        let name = name.escape_ascii();
        match (is, last) {
            (Read::Value(found), Some(last)) if found == *last => live += 1,
            // If what is left is not the last commit, it is some commit.
            (Read::Value(found), _)
                if said.lost_documents.is_none()
                    && values.iter().any(|(_, value)| value.as_ref() == Some(&found)) =>
            {
                live += 1;
            }
            (Read::Nothing, last) => absent += u64::from(last.is_some()),
            (Read::Refused, _) => return Err(format!("{name} is refused")),
            (Read::Value(_), _) => return Err(format!("{name} is not as it was: {said:?}")),
        }
    }
    if said.lost_documents.is_some_and(|lost| lost != absent) {
        return Err(format!("{absent} documents are missing: {said:?}"));
    }
    if documents != live || said.documents.is_some_and(|counted| counted != live) {
        return Err(format!("{documents} documents, {live} are there: {said:?}"));
    }
    Ok(())
}
