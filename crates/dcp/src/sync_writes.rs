//! Sync writes in a stream: who gets prepares, commits and aborts, and where a snapshot ends for those who do not.

use std::collections::HashSet;

use base::{CollectionId, DurabilityLevel, ItemKind, Seqno, SyncWrite, Version, VersionMeta};
use kvstore::Change;
use protocol::dcp::{Mutation, Prepare, What};

use crate::content::Features;

/// The key as the consumer knows it: of a prepare or an abort that of the document.
pub(crate) fn wire_key<'a>(change: &Change<'a>, features: Features) -> &'a [u8] {
    let key = change.key();
    match (features.collections, key.collection == CollectionId::PREPARES) {
        (true, true) => key.key,
        (true, false) => change.stored_key,
        (false, true) => change.document_key().key,
        (false, false) => key.key,
    }
}

/// How a commit or an abort is said to those who have the prepare; nothing for anything else.
pub(crate) fn completion(meta: &VersionMeta) -> Option<What> {
    match meta.sync_write {
        SyncWrite::Commit { prepared } => Some(What::Commit(prepared, meta.by_seqno)),
        SyncWrite::Abort { prepared } => Some(What::Abort(prepared, meta.by_seqno)),
        SyncWrite::Prepare(_) | SyncWrite::Alone(_) | SyncWrite::No => None,
    }
}

/// What is prepared, with the fields that it shares with a mutation.
pub(crate) fn prepare(level: DurabilityLevel, kind: ItemKind, mutation: Mutation) -> What {
    let is_deletion = matches!(kind, ItemKind::Deletion | ItemKind::Expiration);
    What::Prepare(Prepare { mutation, is_deletion, level: level as u8 })
}

/// What consumers without sync writes are told about the end of some changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    /// Where their snapshot ends.
    pub(crate) end: Seqno,
    /// Whether the last of them is not shown, so that they need another message to get there.
    pub(crate) is_hidden_last: bool,
}

/// Whether a consumer without sync writes looks at changes because something for it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It begins with what is there.
    First,
    /// It has had everything before. A prepare wakes none of these consumers.
    Live,
}

impl Visible {
    /// Of changes in seqno order that end with `end` as a whole. Prepares and aborts at the end are told as a gap to
    /// those who understand one: `knows_gaps`. Prepares alone are not, if the consumer has had everything before.
    pub(crate) fn of(items: &[Version], end: Seqno, knows_gaps: bool, look: Look) -> Visible {
        let is_prepare = |version: &Version| matches!(version.meta().sync_write, SyncWrite::Prepare(_));
        let tells_gaps = knows_gaps && (look == Look::First || !items.iter().all(is_prepare));
        let is_hidden = |version: &Version| version.meta().sync_write.is_hidden();
        let Some(last) = items.iter().rev().find(|version| tells_gaps || !is_hidden(version)) else {
            return Visible { end: if items.is_empty() { end } else { Seqno(0) }, is_hidden_last: false };
        };
        let is_last = items.last().is_some_and(|item| item.is_same(last));
        let end = if is_last { end } else { last.meta().by_seqno };
        Visible { end, is_hidden_last: is_hidden(last) }
    }
}

/// The last change of some in seqno order that readers can see; 0 if there is none.
pub(crate) fn last_visible(items: &[Version]) -> Seqno {
    let last = items.iter().rev().map(|version| version.meta()).find(|meta| !meta.sync_write.is_hidden());
    last.map_or(Seqno(0), |meta| meta.by_seqno)
}

/// Seqnos of commits in `items`, all after `sent`, whose prepares are not among them: a later prepare of the key took
/// their places when several checkpoints became one snapshot. For their consumer they are plain changes.
pub(crate) fn commits_without_prepares(items: &[Version], sent: Seqno) -> HashSet<Seqno> {
    let prepared_later = items.iter().filter_map(|version| match version.meta().sync_write {
        SyncWrite::Commit { prepared } if prepared > sent => Some((prepared, version.meta().by_seqno)),
        _ => None,
    });
    let mut missing: Vec<(Seqno, Seqno)> = prepared_later.collect();
    if missing.is_empty() {
        return HashSet::new();
    }
    let is_prepare = |version: &&Version| matches!(version.meta().sync_write, SyncWrite::Prepare(_));
    let there: HashSet<Seqno> =
        items.iter().filter(is_prepare).map(|version| version.meta().by_seqno).collect();
    missing.retain(|(prepared, _)| !there.contains(prepared));
    missing.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use base::{DocKey, Heap, NewVersion};

    use super::*;

    fn version(seqno: u64, sync_write: SyncWrite) -> Version {
        let heap = Heap::default();
        let meta = VersionMeta { by_seqno: Seqno(seqno), sync_write, ..VersionMeta::default() };
        let document = DocKey::new(b"k");
        let (stored, len) = document.to_prepared();
        let key = match sync_write.is_hidden() {
            true => DocKey { collection: CollectionId::PREPARES, key: &stored[..len] },
            false => document,
        };
        NewVersion::new(&heap, meta, key, &[b"v"]).publish()
    }

    const PREPARE: SyncWrite = SyncWrite::Prepare(DurabilityLevel::Majority);

    fn commit(prepared: u64) -> SyncWrite {
        SyncWrite::Commit { prepared: Seqno(prepared) }
    }

    #[test]
    fn keys_are_those_of_documents() {
        let with = Features { collections: true, ..Features::default() };
        for of in [PREPARE, commit(1), SyncWrite::No, SyncWrite::Abort { prepared: Seqno(1) }] {
            let version = version(2, of);
            let change = Change::of(&version);
            assert_eq!(wire_key(&change, with), b"\0k");
            assert_eq!(wire_key(&change, Features::default()), b"k");
        }
    }

    #[test]
    fn what_readers_do_not_see_is_told_as_a_gap_to_those_who_understand_one() {
        let abort = SyncWrite::Abort { prepared: Seqno(2) };
        // Without gaps, with them at the first look, and later.
        type Case<'a> = (&'a [(u64, SyncWrite)], [(u64, bool); 3]);
        let cases: [Case<'_>; 6] = [
            (&[], [(9, false); 3]),
            (&[(1, SyncWrite::No), (2, PREPARE)], [(1, false), (9, true), (9, true)]),
            (&[(1, PREPARE)], [(0, false), (9, true), (0, false)]),
            (&[(1, PREPARE), (2, commit(1))], [(9, false); 3]),
            (&[(3, abort)], [(0, false), (9, true), (9, true)]),
            (&[(1, SyncWrite::No), (3, abort), (4, PREPARE)], [(1, false), (9, true), (9, true)]),
        ];
        let looks = [(false, Look::First), (true, Look::First), (true, Look::Live)];
        for (items, expected) in cases {
            let items: Vec<Version> = items.iter().map(|(seqno, of)| version(*seqno, *of)).collect();
            for ((knows_gaps, look), (end, is_hidden_last)) in looks.into_iter().zip(expected) {
                let visible = Visible { end: Seqno(end), is_hidden_last };
                assert_eq!(Visible::of(&items, Seqno(9), knows_gaps, look), visible);
            }
        }
    }

    #[test]
    fn a_commit_needs_its_prepare_only_if_the_consumer_cannot_have_it() {
        let items: Vec<Version> = vec![version(4, commit(3)), version(5, PREPARE), version(6, commit(5))];
        assert_eq!(commits_without_prepares(&items, Seqno(2)), HashSet::from([Seqno(4)]));
        assert!(commits_without_prepares(&items, Seqno(3)).is_empty());
    }
}
