//! Versions of one vBucket that are in the journal and not yet in its file, as sorted immutable runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::leb128::decode_leb128;
use base::{Account, CollectionId, DocKey, Seqno, Version};

use super::charged::Charged;
use crate::collections::{SYSTEM, holds};
use crate::journal::Frame;
use crate::manifest::events_in;
use crate::sort::newest_of;

/// Versions sorted by stored key, one for each key. Shared by those who read them.
pub(super) type Run = Arc<Charged>;

/// So many runs of about one size become one: the more, the fewer times each version is sorted again, and the more
/// runs a reader looks into.
const FAN_IN: usize = 24;
/// Small saves gather unsorted until they are so many versions, and become a run then.
const RECENT: usize = 32;

/// Kinds of system events that are dropped: collections and scopes, by the first byte of their keys.
const EVENT_KINDS: usize = 2;

/// The highest number of each kind that was dropped.
#[derive(Clone, Copy, Default)]
struct Dropped {
    highest: [Option<u32>; EVENT_KINDS],
    /// Whether there was an event whose key is not understood.
    has_others: bool,
}

impl Dropped {
    fn add(&mut self, event_key: &[u8]) {
        match numbered(event_key) {
            Some((kind, number)) => self.highest[kind] = self.highest[kind].max(Some(number)),
            None => self.has_others = true,
        }
    }

    fn may_have(&self, event_key: &[u8]) -> bool {
        match numbered(event_key) {
            Some((kind, number)) => self.highest[kind].is_some_and(|highest| number <= highest),
            None => self.has_others,
        }
    }
}

/// The kind of an event, and which one it is about.
fn numbered(event_key: &[u8]) -> Option<(usize, u32)> {
    let [kind, rest @ ..] = DocKey::parse(event_key)?.key else { return None };
    let kind = usize::from(*kind);
    (kind < EVENT_KINDS).then_some(())?;
    decode_leb128(rest).map(|(number, _)| (kind, number))
}

/// Runs, oldest first. Of versions of one key that with the highest seqno counts, which is in the newest run except
/// while a rollback is not complete.
#[derive(Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    /// What came after all of them, in the order in which it came; a key may be there several times.
    recent: Option<Charged>,
    /// So many of the oldest are being filed and stay as they are.
    frozen: usize,
    /// How many of the oldest runs are filed before those behind them, and the frame of the last save among them.
    ///
    /// A drop of a collection or scope and a later beginning under the same key must not meet in one commit of the
    /// file: merged, they would count as neither. All other events of a vBucket are filed in one commit.
    barriers: Vec<(usize, Frame)>,
    /// The highest numbers that were dropped since the last barrier.
    dropped: Dropped,
    /// The frame of the newest save.
    newest: Frame,
}

impl Runs {
    /// Adds newer versions, one for each key, of a save whose last frame is `frame`.
    pub(super) fn push(&mut self, items: &[Version], frame: Frame, account: &Account) {
        let events = events_in(items);
        let has_events = !events.is_empty();
        if self.recent.as_ref().is_some_and(|recent| has_events || recent.room() < items.len()) {
            self.settle(account);
        }
        if events.iter().any(|event| !event.is_deleted() && self.has_drop_of(event.stored_key())) {
            self.dropped = Dropped::default();
            self.barriers.push((self.runs.len(), self.newest));
        }
        events
            .iter()
            .filter(|event| event.is_deleted())
            .for_each(|event| self.dropped.add(event.stored_key()));
        self.newest = frame;
        if has_events || items.len() >= RECENT {
            self.push_run(Charged::new(items.to_vec(), account), account);
        } else if !items.is_empty() {
            self.recent.get_or_insert_with(|| Charged::with_capacity(RECENT, account)).extend(items);
        }
    }

    /// Whether what begins with this event was dropped behind the last barrier.
    ///
    /// Numbers are given out upwards, so mostly the event's is above all that were dropped. Otherwise the runs are looked
    /// into: a list of all drops would take more than the drops themselves.
    fn has_drop_of(&self, event_key: &[u8]) -> bool {
        let behind = self.barriers.last().map_or(0, |(end, _)| *end);
        let is_drop = |run: &Run| find(run, event_key).is_some_and(|version| version.is_deleted());
        self.dropped.may_have(event_key) && self.runs[behind..].iter().any(is_drop)
    }

    /// Makes a run of what is none yet.
    pub(super) fn settle(&mut self, account: &Account) {
        if let Some(mut recent) = self.recent.take() {
            recent.sort_newest();
            self.push_run(recent, account);
        }
    }

    /// Adds a newer run. As soon as there are [`FAN_IN`] neighbours of about one size they are merged, so that there
    /// are never more runs than some times a logarithm of the items.
    fn push_run(&mut self, run: Charged, account: &Account) {
        self.runs.push(Arc::new(run));
        self.merge_small(account);
    }

    fn merge_small(&mut self, account: &Account) {
        let floor = self.barriers.last().map_or(0, |(end, _)| *end).max(self.frozen);
        while let Some(newest) = self.runs.last() {
            let limit = newest.len().next_power_of_two() * FAN_IN;
            let open = &self.runs[floor..];
            let alike = open.iter().rev().take_while(|run| run.len() < limit).count();
            if alike < FAN_IN {
                break;
            }
            let small = self.runs.split_off(self.runs.len() - alike);
            self.runs.push(Arc::new(Charged::new(merged(&small), account)));
        }
    }

    /// Keeps the oldest runs as they are until [`Runs::thaw`], and says through which frame they go if that is not all.
    pub(super) fn freeze(&mut self, account: &Account) -> (Vec<Run>, Option<Frame>) {
        self.settle(account);
        let barrier = self.barriers.first().copied();
        self.frozen = barrier.map_or(self.runs.len(), |(end, _)| end);
        (self.runs[..self.frozen].to_vec(), barrier.map(|(_, frame)| frame))
    }

    /// The frozen runs are filed, and go, or they are not, and stay. Returns what went, to be freed without a lock.
    pub(super) fn thaw(&mut self, filed: bool) -> Vec<Run> {
        let frozen = std::mem::take(&mut self.frozen);
        if !filed {
            return Vec::new();
        }
        if self.barriers.is_empty() && frozen == self.runs.len() {
            self.dropped = Dropped::default();
        }
        self.barriers.retain_mut(|(end, _)| {
            *end -= frozen.min(*end);
            *end > 0
        });
        self.runs.drain(..frozen).collect()
    }

    /// All of them, oldest first.
    pub(super) fn all(&mut self, account: &Account) -> Vec<Run> {
        self.settle(account);
        self.runs.clone()
    }

    fn recent(&self) -> &[Version] {
        self.recent.as_deref().unwrap_or_default()
    }

    /// Every version, those included that newer ones replaced.
    fn versions(&self) -> impl Iterator<Item = &Version> {
        self.runs.iter().flat_map(|run| run.iter()).chain(self.recent())
    }

    /// The events about collections in them, in the order in which they happened: all of them are in runs.
    pub(super) fn events(&self) -> impl Iterator<Item = &Version> {
        self.runs.iter().flat_map(|run| events_in(run))
    }

    /// Whether there is something of a collection in them.
    pub(super) fn hold(&self, id: CollectionId) -> bool {
        self.runs.iter().any(|run| holds(run, id))
            || self.recent().iter().any(|version| version.key().collection == id)
    }

    /// By collection, the highest seqno of what belongs to it; looks at every version.
    pub(super) fn high_seqnos(&self) -> BTreeMap<CollectionId, Seqno> {
        let mut all = BTreeMap::new();
        for version in self.versions() {
            let id = version.document_key().collection;
            if id != SYSTEM {
                let high: &mut Seqno = all.entry(id).or_default();
                *high = version.meta().by_seqno.max(*high);
            }
        }
        all
    }

    /// The newest version of a key.
    pub(super) fn get(&self, stored_key: &[u8]) -> Option<&Version> {
        let recent = self.recent().iter().rev().find(|version| version.stored_key() == stored_key);
        recent.or_else(|| self.runs.iter().rev().find_map(|run| find(run, stored_key)))
    }

    /// The highest seqno; looks at every version.
    pub(super) fn high_seqno(&self) -> Seqno {
        self.versions().map(|version| version.meta().by_seqno).max().unwrap_or_default()
    }
}

/// The version of a key in one run.
pub(super) fn find<'r>(run: &'r [Version], stored_key: &[u8]) -> Option<&'r Version> {
    run.binary_search_by(|version| version.stored_key().cmp(stored_key)).ok().map(|at| &run[at])
}

/// All runs as one: the newest of each key.
pub(super) fn merged(runs: &[Run]) -> Vec<Version> {
    match runs {
        [] => Vec::new(),
        [only] => only.to_vec(),
        _ => newest_of(runs.iter().flat_map(|run| run.iter())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::Part;
    use proptest::prelude::*;

    use super::*;
    use store_suite::version;

    fn batch(seqno: &mut u64, keys: &[u8]) -> Vec<Version> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        keys.iter()
            .map(|key| {
                *seqno += 1;
                version(0, &format!("{key:03}"), *seqno, b"")
            })
            .collect()
    }

    proptest! {
        #[test]
        fn runs_are_a_map(
            steps in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), 0..4u8), 1..60),
        ) {
            let (mut runs, mut model, mut seqno) = (Runs::default(), BTreeMap::new(), 0);
            let mut frozen: Option<BTreeMap<Vec<u8>, u64>> = None;
            let account = Account::new();
            for (keys, then) in steps {
                let items = batch(&mut seqno, &keys);
                runs.push(&items, Frame(seqno), &account);
                model.extend(items.iter().map(|v| (v.stored_key().to_vec(), v.meta().by_seqno.0)));
                match (then, &frozen) {
                    (1, None) => {
                        let taken = merged(&runs.freeze(&account).0);
                        let taken = taken.iter().map(|v| (v.stored_key().to_vec(), v.meta().by_seqno.0));
                        frozen = Some(taken.collect());
                        prop_assert_eq!(frozen.as_ref(), Some(&model));
                    }
                    (2, Some(filed)) => {
                        drop(runs.thaw(true));
                        model.retain(|key, seqno| filed.get(key) != Some(seqno));
                        frozen = None;
                    }
                    (3, Some(_)) => {
                        prop_assert!(runs.thaw(false).is_empty());
                        frozen = None;
                    }
                    _ => {}
                }
                let mut found = BTreeMap::new();
                for version in runs.versions() {
                    let high = found.entry(version.stored_key().to_vec()).or_default();
                    *high = version.meta().by_seqno.0.max(*high);
                }
                prop_assert_eq!(&found, &model);
                prop_assert_eq!(Some(&runs.high_seqno().0), model.values().max().or(Some(&0)));
                prop_assert!(runs.runs.len() < 4 * FAN_IN);
                for (key, seqno) in &model {
                    prop_assert_eq!(runs.get(key).map(|v| v.meta().by_seqno.0), Some(*seqno));
                }
                let kept = runs.versions().count();
                let charged = account.exact()[Part::Storage as usize] as usize;
                prop_assert!(charged >= 8 * kept && (kept > 0 || charged == 0), "{charged} for {kept}");
            }
            let all = merged(&runs.all(&account));
            prop_assert!(all.iter().map(|v| v.stored_key()).eq(model.keys()), "sorted, each once");
            drop((all, runs));
            prop_assert_eq!(account.exact(), [0; base::memory::PARTS], "what is charged is given back");
        }
    }
}
