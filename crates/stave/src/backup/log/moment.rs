//! The state of a bucket at a moment: a backup, and the changes of the log behind it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use base::env::Disk;
use base::vbucket_map::vbucket_of;
use base::{DocKey, VbId};
use protocol::dcp::{What, WireEvent};

use super::held::HeldFrames;
use super::index::{EntryReader, FramePlace, VbucketIndex};
use super::scan::{ChangeLog, Epoch};
use super::{Gap, GapSet, LoggedChange};
use crate::backup::manifest::BackupManifest;
use crate::backup::{BackupError, Chain, ChainReader, Repository, Version};
use crate::units::moment_text;
use crate::with_meta::SourceCollection;

/// Places of frames that are in memory at once.
const MOST_PLACES: usize = 1 << 21;

/// Which state is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WantedMoment {
    /// The last change of each vBucket that is not later than this moment.
    At(u64),
    /// The last moment that the log has.
    Latest,
    /// These vBuckets at these seqnos, the others as they were at the latest of their moments.
    Seqnos(BTreeMap<u16, u64>),
    /// Just before the last change of any of these keys, which have the prefixes of their collections: the same key of
    /// collections that had the same name, one after the other.
    Before(Vec<Vec<u8>>),
}

/// A state that can be restored.
#[derive(Debug)]
pub(crate) struct AtMoment {
    epoch: Epoch,
    /// The seqno up to which each vBucket is restored.
    pub(crate) cuts: Vec<u64>,
    pub(crate) moment: u64,
    /// vBuckets that are restored as they were before a gap, and how long before the moment that is at the most.
    pub(crate) earlier: usize,
    pub(crate) earlier_ns: u64,
    pub(crate) chain: Chain,
    /// The seqno up to which the backup has each vBucket.
    bases: Vec<u64>,
}

impl AtMoment {
    /// How many segments of its part of the log are not encrypted.
    pub(crate) fn plain_segments(&self, log: &ChangeLog) -> usize {
        let of_epoch = log.segments.get(self.epoch.segments.clone()).unwrap_or_default();
        of_epoch.iter().filter(|segment| !segment.is_encrypted).count()
    }
}

/// What an epoch does not tell apart at a moment.
struct GapsOfEpoch {
    /// By vBucket.
    hiding: BTreeMap<u16, Gap>,
    all: GapSet,
}

impl ChangeLog {
    /// The backup that a restore of a moment goes on from; `None` if the log does not have the moment.
    pub(crate) fn base_at(
        &self,
        repository: &Repository<'_>,
        bucket: &str,
        moment: u64,
    ) -> Result<Option<String>, BackupError> {
        let Ok(epoch) = epoch_at(&self.epochs(), moment) else { return Ok(None) };
        let (chain, ..) = self.cuts_and_base(repository, bucket, &epoch, moment, &BTreeMap::new())?;
        Ok(Some(chain.newest().manifest.id.clone()))
    }

    /// Finds out what a wanted moment comes to. `tolerance_ns`: a vBucket whose state at the moment is not known may be
    /// taken from so much before.
    pub(crate) fn resolve(
        &self,
        repository: &Repository<'_>,
        bucket: &str,
        wanted: &WantedMoment,
        tolerance_ns: u64,
    ) -> Result<AtMoment, BackupError> {
        let disk = &*repository.env.disk;
        let epochs = self.epochs();
        if epochs.is_empty() {
            let what = format!(
                "{} has no log: `stave backup --to DIR --follow` writes one, and only then moments can be restored",
                self.folder.display()
            );
            return Err(BackupError::Missing(what));
        }
        let (epoch, fixed, moment) = match wanted {
            WantedMoment::Latest => {
                let epoch = epochs[epochs.len() - 1].clone();
                let horizon = epoch.horizon;
                (epoch, BTreeMap::new(), horizon)
            }
            WantedMoment::At(moment) => (epoch_at(&epochs, *moment)?, BTreeMap::new(), *moment),
            WantedMoment::Seqnos(seqnos) => self.of_seqnos(&epochs, seqnos)?,
            WantedMoment::Before(keys) => self.before(disk, &epochs, keys)?,
        };
        if !matches!(wanted, WantedMoment::At(_)) {
            epoch_at(std::slice::from_ref(&epoch), moment)?;
        }
        let gaps = self.gaps_at(&epoch, moment)?;
        let mut hiding = gaps.hiding;
        hiding.retain(|vb, _| !fixed.contains_key(vb));
        let too_long = hiding.values().find(|gap| moment - gap.from.1 > tolerance_ns);
        if let Some(gap) = too_long {
            return Err(in_gap(gap, hiding.len(), moment, gaps.all.around(moment), &epoch));
        }
        let earlier_ns = hiding.values().map(|gap| moment - gap.from.1).max().unwrap_or(0);
        let earlier = hiding.len();
        let mut known = fixed;
        known.extend(hiding.values().map(|gap| (gap.vb, gap.from.0)));
        let (chain, cuts, bases) = self.cuts_and_base(repository, bucket, &epoch, moment, &known)?;
        Ok(AtMoment { epoch, cuts, moment, earlier, earlier_ns, chain, bases })
    }

    /// The gaps of an epoch, and which of them hide a moment.
    fn gaps_at(&self, epoch: &Epoch, moment: u64) -> Result<GapsOfEpoch, BackupError> {
        let (mut hiding, mut all) = (BTreeMap::new(), GapSet::default());
        self.each_gap(&mut |gap| {
            let is_here = gap.epoch == epoch.number && gap.from.1 <= epoch.horizon && gap.to.1 >= epoch.from;
            if is_here {
                all.add(gap.from.1, gap.to.1);
                if gap.hides(moment) {
                    hiding.insert(gap.vb, *gap);
                }
            }
        })?;
        Ok(GapsOfEpoch { hiding, all })
    }

    /// The cuts at a moment, but for those that are known, and the newest backup in front of all of them.
    fn cuts_and_base(
        &self,
        repository: &Repository<'_>,
        bucket: &str,
        epoch: &Epoch,
        moment: u64,
        known: &BTreeMap<u16, u64>,
    ) -> Result<(Chain, Vec<u64>, Vec<u64>), BackupError> {
        let disk = &*repository.env.disk;
        let backups: Vec<_> = repository.backups(bucket)?.into_iter().filter_map(Result::ok).collect();
        let mut candidates = Vec::new();
        let vbuckets = self.origin(epoch).len();
        for backup in backups.into_iter().rev() {
            if usize::from(backup.manifest.vbuckets) == vbuckets {
                let lines = repository.lines(&backup)?;
                candidates.push((backup, lines));
            }
        }
        let mut cuts = vec![0; vbuckets];
        for batch in self.batches(disk, epoch)? {
            let index = self.index(disk, epoch, &batch)?;
            let at_moment = self.seqnos_at(disk, &index, moment)?;
            for ((vb, one), cut) in batch.zip(&index).zip(at_moment) {
                let cut = known.get(&vb).map_or(cut, |known| cut.min(*known));
                cuts[usize::from(vb)] = cut;
                candidates.retain(|(_, lines)| {
                    lines.get(&vb).is_some_and(|line| {
                        (one.origin..=cut).contains(&line.to) && one.has(line.uuid, line.to)
                    })
                });
            }
        }
        let Some((backup, lines)) = candidates.into_iter().next() else {
            let at = moment_text(moment);
            let what = format!(
                "{} has no backup that the log goes on from to {at}: the first moment of this part of the log is {}",
                repository.folder(bucket).display(),
                moment_text(epoch.from)
            );
            return Err(BackupError::Missing(what));
        };
        let bases = lines.values().map(|line| line.to).collect();
        Ok((repository.chain(bucket, Some(&backup.manifest.id))?, cuts, bases))
    }

    /// The last seqno of each of some vBuckets that is not later than a moment.
    fn seqnos_at(
        &self,
        disk: &dyn Disk,
        index: &[VbucketIndex],
        moment: u64,
    ) -> Result<Vec<u64>, BackupError> {
        let mut cuts: Vec<u64> = index.iter().map(|one| one.origin).collect();
        let last =
            |one: &VbucketIndex| one.frames.iter().rev().find(|frame| frame.moments.0 <= moment).copied();
        let places = index.iter().enumerate().filter_map(|(of, one)| Some((of, last(one)?)));
        let mut places: Vec<(usize, FramePlace)> = places.collect();
        // In the order in which they lie, so that each segment is opened once.
        places.sort_unstable_by_key(|(_, place)| (place.segment, place.at));
        let mut reader = EntryReader::new(self, disk);
        for (of, place) in places {
            reader.read(place.segment, place.at)?;
            for at in 0..reader.len() {
                let Some((seqno, made, _)) = reader.get(at) else { continue };
                if made <= moment && seqno <= place.limit {
                    cuts[of] = seqno;
                }
            }
        }
        Ok(cuts)
    }

    /// vBuckets whose places fit into memory together.
    pub(super) fn batches(&self, disk: &dyn Disk, epoch: &Epoch) -> Result<Vec<Range<u16>>, BackupError> {
        let mut counts = vec![0_usize; self.origin(epoch).len()];
        self.each_frame(disk, epoch, &mut |_, _, header| {
            if let Some(count) = counts.get_mut(usize::from(header.vb.0)) {
                *count += 1;
            }
        })?;
        let (mut batches, mut begin, mut sum) = (Vec::new(), 0, 0);
        for (vb, count) in (0_u16..).zip(&counts) {
            if sum > 0 && sum + count > MOST_PLACES {
                batches.push(begin..vb);
                (begin, sum) = (vb, 0);
            }
            sum += count;
        }
        batches.push(begin..counts.len() as u16);
        Ok(batches)
    }

    /// The newest epoch in which all of these vBuckets were at these seqnos, and the latest of their moments.
    fn of_seqnos(
        &self,
        epochs: &[Epoch],
        seqnos: &BTreeMap<u16, u64>,
    ) -> Result<(Epoch, BTreeMap<u16, u64>, u64), BackupError> {
        let disk = &*self.disk;
        let mut why = "no vBucket is named".to_owned();
        for epoch in epochs.iter().rev() {
            let (mut latest, mut is_here) = (epoch.from, !seqnos.is_empty());
            for (vb, seqno) in seqnos {
                let index = self.index(disk, epoch, &(*vb..vb.saturating_add(1)))?;
                let Some(one) = index.first().filter(|one| (one.origin..=one.last).contains(seqno)) else {
                    let range = index
                        .first()
                        .map_or("nothing".to_owned(), |one| format!("{} to {}", one.origin, one.last));
                    why = format!("the log has seqnos {range} of vBucket {vb}, and not {seqno}");
                    is_here = false;
                    break;
                };
                latest = latest.max(self.moment_of(disk, one, *seqno)?);
            }
            if is_here {
                self.check_seqnos(epoch, seqnos)?;
                return Ok((epoch.clone(), seqnos.clone(), latest));
            }
        }
        Err(BackupError::Missing(why))
    }

    /// An error if a vBucket's state at a seqno is not known.
    fn check_seqnos(&self, epoch: &Epoch, seqnos: &BTreeMap<u16, u64>) -> Result<(), BackupError> {
        let mut found = None;
        self.each_gap(&mut |gap| {
            let is_here = gap.epoch == epoch.number;
            let is_inside = |seqno: &u64| gap.from.0 < *seqno && *seqno < gap.to.0;
            if is_here && seqnos.get(&gap.vb).is_some_and(is_inside) {
                found = Some(*gap);
            }
        })?;
        found.map_or(Ok(()), |gap| Err(between(&gap)))
    }

    /// The moment of the last change up to a seqno.
    fn moment_of(&self, disk: &dyn Disk, index: &VbucketIndex, seqno: u64) -> Result<u64, BackupError> {
        let Some(place) = index.frames.iter().rev().find(|frame| frame.seqnos.0 <= seqno) else {
            return Ok(0);
        };
        let mut reader = EntryReader::new(self, disk);
        reader.read(place.segment, place.at)?;
        let mut entries = (0..reader.len()).filter_map(|at| reader.get(at));
        Ok(entries.rfind(|(at, ..)| *at <= seqno).map_or(0, |(_, moment, _)| moment))
    }

    /// Just before the last change of a key: its vBucket in front of that change, the others before its moment.
    fn before(
        &self,
        disk: &dyn Disk,
        epochs: &[Epoch],
        stored_keys: &[Vec<u8>],
    ) -> Result<(Epoch, BTreeMap<u16, u64>, u64), BackupError> {
        let keys: Vec<DocKey<'_>> = stored_keys.iter().filter_map(|key| DocKey::parse(key)).collect();
        let missing = |what: &str| {
            let key = keys.first().map_or(&b""[..], |key| key.key).escape_ascii().to_string();
            BackupError::Missing(format!("the log has no change of key `{key}`{what}"))
        };
        let key = *keys.first().ok_or_else(|| missing(""))?;
        for epoch in epochs.iter().rev() {
            let vbuckets = self.origin(epoch).len() as u16;
            let vb = vbucket_of(key.key, vbuckets);
            let index = self.index(disk, epoch, &(vb.0..vb.0 + 1))?;
            let Some(index) = index.first() else { continue };
            let mut reader = EntryReader::new(self, disk);
            for place in index.frames.iter().rev() {
                reader.read(place.segment, place.at)?;
                for at in (0..reader.len()).rev() {
                    let Some((seqno, moment, LoggedChange::Version(version))) = reader.get(at) else {
                        continue;
                    };
                    if !keys.contains(&version.record.key) || seqno > place.limit {
                        continue;
                    }
                    if moment <= epoch.from {
                        return Err(missing(" behind the moment at which its backup ended"));
                    }
                    return Ok((epoch.clone(), BTreeMap::new(), moment - 1));
                }
            }
        }
        Err(missing(""))
    }
}

/// The epoch that has a moment.
fn epoch_at(epochs: &[Epoch], moment: u64) -> Result<Epoch, BackupError> {
    let at = epochs.iter().rposition(|epoch| epoch.from <= moment && moment <= epoch.horizon);
    if let Some(at) = at {
        return Ok(epochs[at].clone());
    }
    let before = epochs.iter().filter(|epoch| epoch.horizon < moment).map(|epoch| epoch.horizon).max();
    let behind = epochs.iter().filter(|epoch| epoch.from > moment).map(|epoch| epoch.from).min();
    Err(BackupError::Missing(format!(
        "the log does not have {}: {}",
        moment_text(moment),
        nearest(before, behind)
    )))
}

fn nearest(before: Option<u64>, behind: Option<u64>) -> String {
    match (before.map(moment_text), behind.map(moment_text)) {
        (Some(before), Some(behind)) => format!("the nearest moments that it has are {before} and {behind}"),
        (Some(before), None) => format!("the nearest moment that it has is {before}"),
        (None, Some(behind)) => format!("the nearest moment that it has is {behind}"),
        (None, None) => "it has none yet".to_owned(),
    }
}

fn in_gap(gap: &Gap, count: usize, moment: u64, around: (u64, u64), epoch: &Epoch) -> BackupError {
    let before = Some(around.0).filter(|before| *before >= epoch.from);
    let behind = Some(around.1).filter(|behind| *behind <= epoch.horizon);
    BackupError::Missing(format!(
        "{} is in a gap: changes of {count} vBuckets are missing, of vBucket {} between seqno {} and {}; {}; \
         --tolerance takes such vBuckets as they were before their gaps",
        moment_text(moment),
        gap.vb,
        gap.from.0,
        if gap.to.0 == u64::MAX { "the end".to_owned() } else { gap.to.0.to_string() },
        nearest(before, behind)
    ))
}

fn between(gap: &Gap) -> BackupError {
    let Gap { vb, from, to, .. } = gap;
    let behind = if to.0 == u64::MAX { String::new() } else { format!(" and {}", to.0) };
    BackupError::Missing(format!(
        "changes of vBucket {vb} are missing there: the nearest seqnos that can be restored are {}{behind}",
        from.0
    ))
}

/// Collections that came and went in the log up to a moment.
#[derive(Debug, Default)]
pub(crate) struct CollectionChanges {
    pub(crate) begun: BTreeMap<u32, SourceCollection>,
    pub(crate) ended: BTreeSet<u32>,
}

/// An event of collections: its number, the version of its value, key and value.
type CollectionEvent = (u32, u8, Vec<u8>, Vec<u8>);

/// The names of the scopes that a backup knows, by their numbers.
fn scope_names(manifest: &BackupManifest) -> BTreeMap<u32, String> {
    let scopes = manifest.collections["scopes"].as_array().into_iter().flatten();
    let named = scopes.filter_map(|scope| {
        let number = scope["uid"].as_str().and_then(|uid| u32::from_str_radix(uid, 16).ok());
        number.zip(scope["name"].as_str().map(str::to_owned))
    });
    named.collect()
}

impl CollectionChanges {
    /// What events come to; `scopes` has the names of scopes that were there before.
    fn of(events: &[CollectionEvent], scopes: BTreeMap<u32, String>) -> CollectionChanges {
        let (mut changes, mut scopes) = (CollectionChanges::default(), scopes);
        for (event, version, key, value) in events {
            let what = What::SystemEvent(base::Seqno(0), *event, *version);
            match WireEvent::read(&what, key, value) {
                Some(WireEvent::ScopeBegin { scope, name, .. }) => {
                    scopes.insert(scope.0, String::from_utf8_lossy(name).into_owned());
                }
                Some(WireEvent::CollectionEnd { collection, .. }) => {
                    changes.ended.insert(collection.0);
                }
                _ => {}
            }
        }
        for (event, version, key, value) in events {
            let what = What::SystemEvent(base::Seqno(0), *event, *version);
            if let Some(WireEvent::CollectionBegin { scope, collection, max_ttl_s, name, .. }) =
                WireEvent::read(&what, key, value)
            {
                let scope = scopes.get(&scope.0).cloned().unwrap_or_else(|| format!("0x{:x}", scope.0));
                let name = String::from_utf8_lossy(name).into_owned();
                let max_ttl_s = max_ttl_s.map_or(0, |ttl| if ttl == 0 { -1 } else { i64::from(ttl) });
                changes.begun.insert(collection.0, SourceCollection { scope, name, max_ttl_s });
            }
        }
        changes
    }
}

impl ChangeLog {
    /// Collections that came in the newest part of the log, dropped ones as well. A backup knows older scopes.
    pub(crate) fn newest_collections(
        &self,
        disk: &dyn Disk,
        known: &BackupManifest,
    ) -> Result<BTreeMap<u32, SourceCollection>, BackupError> {
        let (Some(epoch), mut places) = (self.epochs().pop(), Vec::new()) else { return Ok(BTreeMap::new()) };
        // Each vBucket has all events.
        self.each_frame(disk, &epoch, &mut |segment, at, header| {
            if header.has_events && header.vb == VbId(0) {
                places.push((segment, at));
            }
        })?;
        let (mut reader, mut events) = (EntryReader::new(self, disk), Vec::new());
        for (segment, at) in places {
            reader.read(segment, at)?;
            for at in 0..reader.len() {
                if let Some((_, _, LoggedChange::Event { event, version, key, value })) = reader.get(at) {
                    events.push((event, version, key.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(CollectionChanges::of(&events, scope_names(known)).begun)
    }
}

/// Reads the state at a moment, a vBucket at a time.
pub(crate) struct MomentReader<'r> {
    log: &'r ChangeLog,
    disk: &'r dyn Disk,
    at: &'r AtMoment,
    chain: ChainReader<'r>,
    batches: Vec<Range<u16>>,
    /// What is in memory of the log.
    index: (Range<u16>, Vec<VbucketIndex>),
    entries: EntryReader<'r>,
    held: HeldFrames,
}

impl<'r> MomentReader<'r> {
    pub(crate) fn open(
        repository: &'r Repository<'r>,
        log: &'r ChangeLog,
        at: &'r AtMoment,
    ) -> Result<MomentReader<'r>, BackupError> {
        let disk = &*repository.env.disk;
        let batches = log.batches(disk, &at.epoch)?;
        let chain = ChainReader::open(repository, &at.chain)?;
        let (entries, held) = (EntryReader::new(log, disk), HeldFrames::default());
        Ok(MomentReader { log, disk, at, chain, batches, index: (0..0, Vec::new()), entries, held })
    }

    /// Has no more bytes of the log in memory than this.
    #[cfg(test)]
    pub(super) fn hold_at_most(&mut self, bytes: usize) {
        self.held.most_bytes = bytes;
    }

    /// The backup that is gone on from.
    pub(crate) fn manifest(&self) -> &'r BackupManifest {
        &self.at.chain.newest().manifest
    }

    fn index(&mut self, vb: VbId) -> Result<&VbucketIndex, BackupError> {
        if !self.index.0.contains(&vb.0) {
            let batch = self.batches.iter().find(|batch| batch.contains(&vb.0)).cloned();
            let batch = batch.unwrap_or(vb.0..vb.0 + 1);
            // Not both at once.
            self.index = (0..0, Vec::new());
            self.index = (batch.clone(), self.log.index(self.disk, &self.at.epoch, &batch)?);
        }
        Ok(&self.index.1[usize::from(vb.0 - self.index.0.start)])
    }

    /// The places of what the log has of a vBucket between the backup and the moment. If it was not read yet, it is now, with
    /// that of as many vBuckets behind it as fit into memory.
    fn hold(&mut self, vb: VbId) -> Result<Vec<FramePlace>, BackupError> {
        self.index(vb)?;
        let (in_index, index) = &self.index;
        let wanted = |vb: u16| -> Vec<FramePlace> {
            let (cut, base) = (self.at.cuts[usize::from(vb)], self.at.bases[usize::from(vb)]);
            let of_vb = index[usize::from(vb - in_index.start)].frames.iter();
            of_vb.filter(|place| place.seqnos.0 <= cut && place.seqnos.1 > base).copied().collect()
        };
        if !self.held.has(vb.0) {
            self.held.read(&mut self.entries, vb.0..in_index.end, wanted)?;
        }
        Ok(wanted(vb.0))
    }

    /// Collections that came and went between the backup and the moment, in any vBucket.
    pub(crate) fn collections(&mut self) -> Result<CollectionChanges, BackupError> {
        let mut places = Vec::new();
        self.log.each_frame(self.disk, &self.at.epoch, &mut |segment, at, header| {
            if header.has_events {
                places.push((header.vb, segment, at));
            }
        })?;
        // vBuckets whose places are in memory together come together, and of these what lies together.
        let batch_of = |vb: VbId| self.batches.iter().position(|batch| batch.contains(&vb.0));
        places.sort_unstable_by_key(|(vb, segment, at)| (batch_of(*vb), *segment, *at));
        let mut reader = EntryReader::new(self.log, self.disk);
        let mut events = Vec::new();
        for (vb, segment, at) in places {
            let (cut, base) = (self.at.cuts[usize::from(vb.0)], self.at.bases[usize::from(vb.0)]);
            let is_kept = |limit: u64, seqno: u64| (base + 1..=cut.min(limit)).contains(&seqno);
            let index = self.index(vb)?;
            // Without a place it was rolled back.
            let place = index.frames.iter().find(|place| (place.segment, place.at) == (segment, at));
            let Some(limit) = place.map(|place| place.limit) else { continue };
            reader.read(segment, at)?;
            for at in 0..reader.len() {
                let Some((seqno, _, LoggedChange::Event { event, version, key, value })) = reader.get(at)
                else {
                    continue;
                };
                if is_kept(limit, seqno) {
                    events.push((event, version, key.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(CollectionChanges::of(&events, scope_names(self.manifest())))
    }

    /// The version of each document and tombstone of a vBucket at the moment, the latest change first.
    pub(crate) fn newest<E: From<BackupError>>(
        &mut self,
        vb: VbId,
        visit: &mut dyn FnMut(&Version<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (cut, base) = (self.at.cuts[usize::from(vb.0)], self.at.bases[usize::from(vb.0)]);
        let mut seen: HashSet<Box<[u8]>> = HashSet::default();
        let places = self.hold(vb)?;
        let mut left = &places[..];
        while !left.is_empty() {
            let (entries, held) = (&mut self.entries, &mut self.held);
            let count = if held.has(vb.0) { left.len() } else { held.part(entries, left)? };
            let (rest, part) = left.split_at(left.len() - count);
            left = rest;
            for place in part.iter().rev() {
                held.give(entries, place)?;
                for at in (0..entries.len()).rev() {
                    let Some((seqno, _, LoggedChange::Version(version))) = entries.get(at) else { continue };
                    if seqno > base && seqno <= cut.min(place.limit) && seen.insert(version.stored_key()) {
                        visit(&version)?;
                    }
                }
            }
        }
        self.chain.newest_unseen(vb, &mut seen, visit)
    }
}
