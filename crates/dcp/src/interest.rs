//! What of a vBucket's changes a stream is about, while scopes and collections come and go.

use std::sync::Arc;

use base::{CollectionId, ScopeId, Seqno};
use engine::{Refusal, StreamWanted};
use kvstore::Change;
use vbucket::collections::SystemEvent;

use crate::agreement::Agreement;
use crate::system_event::{event_of, is_sent};

/// What of a vBucket's changes a stream is about; a stream without one is about everything.
///
/// It is shown every change in order, for its scope's collections are those that the events so far leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// The default collection, without events: for those who know no others.
    Default,
    /// These collections. Up to this seqno the consumer had everything of them when the stream began.
    Collections(Vec<CollectionId>, Seqno),
    /// The collections of a scope.
    Scope(ScopeId, Vec<CollectionId>),
}

/// What a change is to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is sent.
    Wanted,
    /// It is not.
    Passed,
    /// It is sent, and nothing after it.
    Last,
    /// Neither it nor anything after it is sent.
    Over,
}

impl Verdict {
    /// Whether the change itself is sent.
    pub(crate) fn is_wanted(self) -> bool {
        matches!(self, Verdict::Wanted | Verdict::Last)
    }

    /// Whether nothing is sent after it.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Verdict::Last | Verdict::Over)
    }
}

fn verdict(is_wanted: bool) -> Verdict {
    if is_wanted { Verdict::Wanted } else { Verdict::Passed }
}

/// What the next change is to a stream with this interest. Streams may share one until they hear of something that
/// changes it. Refused if it is a system event that cannot be read.
pub(crate) fn look(
    interest: Option<&mut Arc<Interest>>,
    change: &Change<'_>,
    agreed: &Agreement,
) -> Result<Verdict, Refusal> {
    if let Some(event) = event_of(change)? {
        let told = match interest {
            None => Verdict::Wanted,
            // Nothing changes it, so that all streams share the one they have.
            Some(interest) if **interest == Interest::Default => Interest::Default.hear(&event),
            Some(interest) => Arc::make_mut(interest).hear(&event),
        };
        return Ok(match told {
            Verdict::Wanted if !is_sent(&event, agreed) => Verdict::Passed,
            told => told,
        });
    }
    let collection = || change.document_key().collection;
    Ok(match interest.map(|interest| &**interest) {
        None => Verdict::Wanted,
        Some(Interest::Default) => verdict(collection() == CollectionId::DEFAULT),
        Some(Interest::Collections(wanted, _) | Interest::Scope(_, wanted)) => {
            verdict(wanted.contains(&collection()))
        }
    })
}

/// What a stream with this interest is about now.
pub(crate) fn about(interest: Option<&Interest>) -> StreamWanted<'_> {
    match interest {
        None => StreamWanted::Everything,
        Some(Interest::Default) => StreamWanted::Default,
        Some(Interest::Collections(wanted, _)) => StreamWanted::Collections(wanted),
        Some(Interest::Scope(scope, _)) => StreamWanted::Scope(*scope),
    }
}

/// Collections that a scope is charged with: more than come while it is streamed, as a rule.
const MOST_OF_SCOPE: usize = 1200;

impl Interest {
    /// Collections that it is charged for, as long as its stream is there.
    pub(crate) fn most_collections(&self) -> u16 {
        let collections = match self {
            Interest::Default => 0,
            Interest::Collections(wanted, _) => wanted.len(),
            Interest::Scope(_, wanted) => wanted.len().max(MOST_OF_SCOPE),
        };
        collections.try_into().unwrap_or(u16::MAX)
    }

    /// Bytes of that: once an interest changes, a backfill has one of its own.
    pub(crate) fn bytes_of(collections: u16) -> usize {
        2 * usize::from(collections) * size_of::<CollectionId>()
    }

    /// Takes note of an event.
    fn hear(&mut self, event: &SystemEvent) -> Verdict {
        match self {
            Interest::Default => match event {
                SystemEvent::CollectionEnd { id: CollectionId::DEFAULT, .. } => Verdict::Over,
                _ => Verdict::Passed,
            },
            Interest::Collections(wanted, _) => {
                let Some(at) = wanted.iter().position(|id| Some(*id) == event.collection()) else {
                    return Verdict::Passed;
                };
                if event.is_end() {
                    wanted.swap_remove(at);
                }
                if wanted.is_empty() { Verdict::Last } else { Verdict::Wanted }
            }
            Interest::Scope(scope, _) if event.scope() != *scope => Verdict::Passed,
            Interest::Scope(_, wanted) => {
                match event {
                    SystemEvent::CollectionBegin { collection, .. } if !wanted.contains(&collection.id) => {
                        wanted.push(collection.id);
                    }
                    SystemEvent::CollectionEnd { id, .. } => wanted.retain(|there| there != id),
                    SystemEvent::ScopeEnd { .. } => return Verdict::Last,
                    _ => {}
                }
                Verdict::Wanted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vbucket::collections::{Collection, ManifestUid, Scope};

    use super::*;

    const MANIFEST: ManifestUid = ManifestUid(1);

    fn begin(id: u32, scope: u32) -> SystemEvent {
        let (id, scope, name) = (CollectionId(id), ScopeId(scope), "c".into());
        let collection = Collection { id, scope, name, max_ttl_s: None, history: None };
        SystemEvent::CollectionBegin { manifest: MANIFEST, collection }
    }

    fn end(id: u32, scope: u32) -> SystemEvent {
        SystemEvent::CollectionEnd { manifest: MANIFEST, scope: ScopeId(scope), id: CollectionId(id) }
    }

    #[test]
    fn some_collections_end_with_the_last_of_them() {
        let mut interest = Interest::Collections(vec![CollectionId(8), CollectionId(9)], Seqno(0));
        assert_eq!(interest.hear(&begin(8, 8)), Verdict::Wanted);
        assert_eq!(interest.hear(&begin(10, 8)), Verdict::Passed);
        let scope = Scope { id: ScopeId(8), name: "s".into() };
        assert_eq!(interest.hear(&SystemEvent::ScopeBegin { manifest: MANIFEST, scope }), Verdict::Passed);
        assert_eq!(interest.hear(&end(8, 8)), Verdict::Wanted);
        assert_eq!(interest, Interest::Collections(vec![CollectionId(9)], Seqno(0)));
        assert_eq!(interest.hear(&end(9, 8)), Verdict::Last);
    }

    #[test]
    fn a_scope_follows_its_collections_and_ends_with_itself() {
        let mut interest = Interest::Scope(ScopeId(8), vec![CollectionId(8)]);
        assert_eq!(interest.hear(&begin(9, 8)), Verdict::Wanted);
        assert_eq!(interest.hear(&begin(10, 9)), Verdict::Passed);
        assert_eq!(interest, Interest::Scope(ScopeId(8), vec![CollectionId(8), CollectionId(9)]));
        assert_eq!(interest.hear(&end(8, 8)), Verdict::Wanted);
        assert_eq!(interest.hear(&end(9, 8)), Verdict::Wanted);
        assert_eq!(interest, Interest::Scope(ScopeId(8), vec![]));
        let ends = |id| SystemEvent::ScopeEnd { manifest: MANIFEST, id: ScopeId(id) };
        assert_eq!((interest.hear(&ends(9)), interest.hear(&ends(8))), (Verdict::Passed, Verdict::Last));
    }

    #[test]
    fn whoever_knows_no_collections_is_told_nothing() {
        let mut interest = Interest::Default;
        assert_eq!(
            (interest.hear(&begin(8, 8)), interest.hear(&end(8, 8))),
            (Verdict::Passed, Verdict::Passed)
        );
        assert_eq!(interest.hear(&end(0, 0)), Verdict::Over);
    }
}
