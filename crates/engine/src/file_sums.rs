//! Sums of what a bucket's files take, all together and by collection, as its store knows them from memory.

use base::{CollectionId, VbId};
use kvstore::KvStore;

use crate::change_marks::GROUP_VBUCKETS;

/// What the files of neighbouring vBuckets take.
#[derive(Default)]
struct GroupFiles {
    file_bytes: u64,
    used_bytes: u64,
    /// Bytes of each collection that takes any, by id.
    of_collections: Box<[(CollectionId, u64)]>,
}

/// What is kept of files.
#[derive(Default)]
pub(crate) struct FileSums {
    groups: Vec<GroupFiles>,
    /// Groups of which something changed that was not looked at yet.
    changed: Vec<bool>,
    usage: (u64, u64),
    /// Counts looks that found a change.
    version: u64,
}

/// Adds to what there is of an id; sorted, and mostly in the order of the ids.
pub(crate) fn of_id<T: Default>(
    all: &mut Vec<(CollectionId, T)>,
    hint: &mut usize,
    id: CollectionId,
) -> usize {
    if all.get(*hint).is_none_or(|(there, _)| *there != id) {
        *hint = match all.last() {
            Some((last, _)) if *last >= id => all.binary_search_by_key(&id, |(there, _)| *there),
            _ => Err(all.len()),
        }
        .unwrap_or_else(|at| {
            all.insert(at, (id, T::default()));
            at
        });
    }
    // Most come in order.
    let at = *hint;
    *hint += 1;
    at
}

impl GroupFiles {
    /// `None` if one of the files is being written.
    fn of(store: &dyn KvStore, vbuckets: impl Iterator<Item = VbId>) -> Option<GroupFiles> {
        let (mut group, mut all) = (GroupFiles::default(), Vec::new());
        for vb in vbuckets {
            let (mut hint, mut has_file) = (0, false);
            let is_told = store.each_collection(vb, &mut |id, stats| {
                has_file = true;
                if stats.disk_bytes > 0 {
                    let at = of_id(&mut all, &mut hint, id);
                    all[at].1 += stats.disk_bytes;
                }
            });
            if !is_told {
                return None;
            }
            let usage = match store.usage(vb) {
                // It is being closed, or written: what it comes to is not known now.
                None if has_file => return None,
                usage => usage.unwrap_or_default(),
            };
            group.file_bytes += usage.file_bytes;
            group.used_bytes += usage.used_bytes;
        }
        group.of_collections = all.into();
        Some(group)
    }
}

impl FileSums {
    /// Looks at files that changed. Those with one of their neighbours that is being written are looked at the next time:
    /// until then they count as they were.
    pub(crate) fn look(&mut self, store: &dyn KvStore, vbuckets: u16) {
        let groups = usize::from(vbuckets.div_ceil(GROUP_VBUCKETS));
        self.groups.resize_with(groups, GroupFiles::default);
        self.changed.resize(groups, true);
        let changed = &mut self.changed;
        let can_tell = store.take_changed(&mut |vb| {
            if let Some(changed) = changed.get_mut(usize::from(vb.0 / GROUP_VBUCKETS)) {
                *changed = true;
            }
        });
        if !can_tell {
            changed.fill(true);
        }
        let mut any = false;
        for (at, changed) in changed.iter_mut().enumerate().filter(|(_, changed)| **changed) {
            let from = at as u16 * GROUP_VBUCKETS;
            let all = from..vbuckets.min(from.saturating_add(GROUP_VBUCKETS));
            if let Some(group) = GroupFiles::of(store, all.map(VbId)) {
                (self.groups[at], *changed, any) = (group, false, true);
            }
        }
        if any {
            self.version += 1;
            let sum = |(file, used), group: &GroupFiles| (file + group.file_bytes, used + group.used_bytes);
            self.usage = self.groups.iter().fold((0, 0), sum);
        }
    }

    /// Bytes of files and bytes in them that are in use.
    pub(crate) fn usage(&self) -> (u64, u64) {
        self.usage
    }

    /// Another number after each look that found a change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Of each group, bytes of each collection that takes any, by id.
    pub(crate) fn of_collections(&self) -> impl Iterator<Item = &[(CollectionId, u64)]> {
        self.groups.iter().map(|group| &*group.of_collections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_by_id_in_whatever_order_they_come() {
        let mut all: Vec<(CollectionId, u64)> = Vec::new();
        for ids in [[3, 5, 9], [3, 4, 9], [9, 0, 12]] {
            let mut hint = 0;
            for id in ids {
                let at = of_id(&mut all, &mut hint, CollectionId(id));
                all[at].1 += 1;
            }
        }
        let told: Vec<(u32, u64)> = all.iter().map(|(id, count)| (id.0, *count)).collect();
        assert_eq!(told, [(0, 1), (3, 2), (4, 1), (5, 1), (9, 3), (12, 1)]);
    }
}
