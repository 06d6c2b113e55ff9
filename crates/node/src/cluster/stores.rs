//! A bucket that goes to another store, on this node: the document says which one, and the node brings what it has there.
//!
//! *Guarantee:* what is reported of a bucket was looked at after the node began what the document asks for. A store that cannot
//! be exchanged just now keeps no bucket from being served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::{Bucket, State, StoreReport, StoreStage};
use engine::settings::Key;
use kvstore::{MoveProgress, MoveStage, StorageBackend};
use serde_json::Value;

use crate::config::BucketSpec;
use crate::local_move;
use crate::naming;
use crate::node::Node;

/// How often counts of a move that goes on are reported: each report has all nodes look.
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// vBuckets that a report names.
const NAMED: usize = 8;
/// The most characters of a reason.
const MOST_WORDS: usize = 300;

/// The store that the document wants a bucket in; `None` for one that has no files.
fn wanted(bucket: &Bucket) -> Option<StorageBackend> {
    bucket.store().and_then(naming::backend_from)
}

/// Brings what this node has of a bucket to the store that the document names.
pub(super) fn bring(node: &Arc<Node>, name: &str, bucket: &Bucket) {
    if let Some(store) = wanted(bucket) {
        local_move::bring_to(node, name, store);
    }
}

/// What the document asks of a bucket's settings that this node can do by now: as long as its copy is in another store, the
/// store stays that one, and no history of changes begins, which that one may not be able to keep.
pub(super) fn settings_by_now(node: &Node, settings: &Value, local: &BucketSpec) -> Value {
    let mut settings = settings.clone();
    let word = naming::type_name(local.kind, local.backend);
    let moves = || node.host().and_then(|host| host.moves().get(&local.name)?.movable.progress()).is_some();
    let is_there = settings.get("type").and_then(Value::as_str) == Some(word);
    if is_there && !moves() {
        return settings;
    }
    if let Some(fields) = settings.as_object_mut() {
        fields.insert("type".to_owned(), Value::from(word));
        for key in [Key::HistorySeconds, Key::HistoryBytes] {
            let kept = local.settings.show(key);
            let of = fields.get_mut("settings").and_then(Value::as_object_mut);
            match of {
                Some(of) if local.settings.get(key) == 0 => drop(of.remove(naming::name_of(key))),
                Some(of) => {
                    // One that is to end may end now.
                    of.entry(naming::name_of(key)).and_modify(|value| *value = Value::from(kept));
                }
                None => {}
            }
        }
    }
    settings
}

/// What was reported last of buckets that move, and when.
#[derive(Default)]
pub(super) struct StoreReports(BTreeMap<String, (Duration, StoreReport)>);

impl StoreReports {
    /// What this node reports of the buckets that go to another store. Called after the document was applied.
    pub(super) fn of(&mut self, node: &Node, state: &State) -> BTreeMap<String, StoreReport> {
        let now = node.env().clock.monotonic();
        let moving = state.buckets.iter().filter(|(_, bucket)| bucket.store_move.is_some());
        let fresh =
            moving.filter_map(|(name, bucket)| Some((name.clone(), look(node, name, wanted(bucket)?))));
        let fresh: BTreeMap<String, StoreReport> = fresh.collect();
        self.0.retain(|name, _| fresh.contains_key(name));
        for (name, report) in fresh {
            let is_same = |(at, old): &(Duration, StoreReport)| {
                let is_early = now.saturating_sub(*at) < COUNTS_EVERY;
                is_early && (old.stage, &old.failure) == (report.stage, &report.failure)
            };
            if !self.0.get(&name).is_some_and(is_same) {
                self.0.insert(name, (now, report));
            }
        }
        self.0.iter().map(|(name, (_, report))| (name.clone(), report.clone())).collect()
    }
}

/// How far this node is with a bucket that goes to a store.
fn look(node: &Node, name: &str, to: StorageBackend) -> StoreReport {
    let (served, found) = (node.served().find(name), node.host().and_then(|host| host.moves().get(name)));
    let (Ok((spec, bucket)), Some(found)) = (served, found) else {
        return StoreReport::waiting(0, Some("the bucket is down on this node, see its log".to_owned()));
    };
    let vbuckets = u64::from(bucket.vbuckets());
    let waiting = || StoreReport::waiting(vbuckets, found.refused().map(short));
    let Some(progress) = found.movable.progress() else {
        if spec.backend != to || found.movable.backend() != to {
            return waiting();
        }
        let done = StoreReport { stage: StoreStage::Done, vbuckets, ..StoreReport::waiting(vbuckets, None) };
        return match found.last() {
            Some(last) => StoreReport { items: last.items, millis: millis(&last), ..done },
            None => done,
        };
    };
    let goes_to = match progress.stage {
        MoveStage::Cancelling => progress.from,
        MoveStage::Copying | MoveStage::Ending | MoveStage::Done => progress.to,
    };
    // What the node does now ends before it does what is wanted.
    if goes_to != to {
        return waiting();
    }
    StoreReport {
        stage: match progress.stage {
            MoveStage::Copying => StoreStage::Copying,
            MoveStage::Cancelling => StoreStage::Returning,
            MoveStage::Ending | MoveStage::Done => StoreStage::Ending,
        },
        vbuckets: progress.vbuckets,
        of_vbuckets: progress.of_vbuckets,
        items: progress.items,
        millis: millis(&progress),
        left: progress.left.iter().take(NAMED).map(|(vb, why)| (vb.0, short(why.clone()))).collect(),
        waits_for: progress.waits_for.iter().take(NAMED).map(|vb| vb.0).collect(),
        waits_s: progress.waits.as_secs(),
        failure: progress.failure.map(short),
    }
}

fn millis(progress: &MoveProgress) -> u64 {
    u64::try_from(progress.time.as_millis()).unwrap_or(u64::MAX)
}

fn short(text: String) -> String {
    if text.chars().count() <= MOST_WORDS {
        return text;
    }
    text.chars().take(MOST_WORDS).chain(['…']).collect()
}
