//! A bucket that goes to another store: who refuses it, when it is over, and what the state says meanwhile.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::command::{self, Command, Refused};
use cluster::{Leader, LeaderConfig, MemberMove, NodeId, Report, StoreReport, StoreStage, View, store_moves};
use serde_json::json;
use support::{BUCKET, lives, three};

fn move_to(to: &str) -> Command {
    Command::MoveBucket { name: BUCKET.to_owned(), to: to.to_owned() }
}

fn cancel() -> Command {
    Command::CancelMove { name: BUCKET.to_owned() }
}

/// Three nodes, whose bucket is in one store.
fn world() -> View {
    let mut view = three();
    let settings = json!({ "type": "couchstore", "quota_bytes": 7 });
    let change = Command::ChangeBucket { name: BUCKET.to_owned(), settings: Some(settings), replicas: None };
    view.state = command::apply(&view, &change).expect("it is changed");
    view
}

fn ask(view: &mut View, what: &Command) {
    view.state = command::apply(view, what).unwrap_or_else(|refused| panic!("{what:?}: {refused}"));
}

/// A node says how far it is, after it has read the state.
fn says(view: &mut View, id: u32, stage: StoreStage) {
    let stores =
        BTreeMap::from([(BUCKET.to_owned(), StoreReport { stage, ..StoreReport::waiting(1, None) })]);
    let incarnation = view.members[&id.to_string()].incarnation;
    let report = Report { incarnation, applied: view.state.revision, stores, ..Report::default() };
    view.reports.insert(id.to_string(), report);
}

fn leads(view: &mut View) -> bool {
    let next = Leader::new(LeaderConfig::default()).step(view, Duration::ZERO);
    let is_over = |next: &cluster::State| next.buckets[BUCKET].store_move.is_none();
    match next.filter(is_over) {
        Some(next) => {
            view.state = next;
            true
        }
        None => false,
    }
}

fn is_moving(view: &View) -> bool {
    view.state.buckets[BUCKET].store_move.is_some()
}

#[test]
fn the_state_says_where_to_until_all_are_there() {
    let mut view = world();
    assert_eq!(command::apply(&view, &move_to("couchstore")), Err(Refused::StoreIsThat(BUCKET.to_owned())));
    assert_eq!(command::apply(&view, &cancel()), Err(Refused::StoreStays(BUCKET.to_owned())));
    ask(&mut view, &move_to("magma"));
    let settings = &view.state.buckets[BUCKET].settings;
    assert_eq!(*settings, json!({ "type": "magma", "quota_bytes": 7 }), "who makes it makes it there");
    let refused = Refused::StoreMoves { name: BUCKET.to_owned(), is_cancelled: false };
    for to in ["magma", "couchstore"] {
        assert_eq!(command::apply(&view, &move_to(to)).as_ref(), Err(&refused));
    }
    assert!(refused.to_string().contains("wait for its end, or cancel it"), "{refused}");
    // What was reported before the node had read it says nothing.
    assert_eq!(store_moves(&view, BUCKET)[0], (NodeId(1), MemberMove::Unread));
    (1..=2).for_each(|id| says(&mut view, id, StoreStage::Done));
    says(&mut view, 3, StoreStage::Ending);
    assert!(!leads(&mut view), "n_3 is not there");
    view.members.remove("3");
    assert_eq!(store_moves(&view, BUCKET)[2], (NodeId(3), MemberMove::Away));
    assert!(!leads(&mut view), "n_3 is away");
    lives(&mut view, 3, 10);
    says(&mut view, 3, StoreStage::Done);
    assert!(leads(&mut view) && !is_moving(&view));
    assert!(store_moves(&view, BUCKET).is_empty());
}

#[test]
fn a_node_that_was_failed_over_is_not_waited_for() {
    let mut view = world();
    ask(&mut view, &move_to("magma"));
    (1..=2).for_each(|id| says(&mut view, id, StoreStage::Done));
    assert!(!leads(&mut view));
    view.state.nodes.get_mut(&NodeId(3)).expect("there").status = cluster::Status::FailedOver;
    assert!(leads(&mut view) && !is_moving(&view));
}

#[test]
fn a_cancelled_move_goes_back_on_every_node() {
    let mut view = world();
    ask(&mut view, &move_to("magma"));
    says(&mut view, 1, StoreStage::Done);
    ask(&mut view, &cancel());
    assert_eq!(view.state.buckets[BUCKET].store(), Some("couchstore"));
    let is_cancelled = Refused::StoreMoves { name: BUCKET.to_owned(), is_cancelled: true };
    assert_eq!(command::apply(&view, &move_to("magma")).as_ref(), Err(&is_cancelled));
    assert!(is_cancelled.to_string().contains("goes back"), "{is_cancelled}");
    let revision = view.state.revision;
    ask(&mut view, &cancel());
    assert_eq!(view.state.revision, revision, "that was asked before");
    assert_eq!(store_moves(&view, BUCKET)[0].1, MemberMove::Unread, "n_1 was done with the way there");
    says(&mut view, 1, StoreStage::Copying);
    says(&mut view, 2, StoreStage::Returning);
    says(&mut view, 3, StoreStage::Done);
    assert!(!leads(&mut view));
    (1..=3).for_each(|id| says(&mut view, id, StoreStage::Done));
    assert!(leads(&mut view) && !is_moving(&view));
}

#[test]
fn a_node_of_an_older_version_is_named() {
    let mut view = world();
    view.members.get_mut("2").expect("there").moves_stores = false;
    let refused = command::apply(&view, &move_to("magma")).expect_err("n_2 would not do it").to_string();
    assert!(refused.starts_with("n_2 (h2:2) runs a version of stave that does not"), "{refused}");
    // One that is away may be of any version.
    let older = view.members.remove("2").expect("there");
    ask(&mut view, &move_to("magma"));
    view.members.insert("2".to_owned(), older);
    [1, 3].into_iter().for_each(|id| says(&mut view, id, StoreStage::Done));
    says(&mut view, 2, StoreStage::Done);
    assert_eq!(store_moves(&view, BUCKET)[1].1, MemberMove::Older);
    assert!(!leads(&mut view), "it is named until another version runs there");
}

#[test]
fn it_is_written_and_read_with_state_and_reports() {
    let mut view = world();
    ask(&mut view, &move_to("magma"));
    let parts = view.state.changes(None).expect("it fits");
    let settings = parts.iter().find(|put| put.key.ends_with("/settings")).expect("an entry");
    let text = String::from_utf8(settings.value.clone().expect("a value")).expect("JSON");
    assert!(text.contains(r#""store_move":{"since":"#), "{text}");
    says(&mut view, 1, StoreStage::Copying);
    let report = &view.reports["1"];
    let own = report.entries("u", false);
    let (whole, own): (Vec<_>, Vec<_>) = own.iter().partition(|(key, _)| !key.ends_with(BUCKET));
    let read = |json: &[u8]| serde_json::from_slice::<Report>(json).expect("a report");
    assert!(read(whole[0].1).stores.is_empty(), "it is beside the revision that the bucket is as");
    let own = read(own[0].1);
    assert_eq!((&own.stores, own.applied), (&report.stores, view.state.revision));
    let later = r#"{"stage":"dreaming","vbuckets":3,"more":1}"#;
    let later: StoreReport = serde_json::from_str(later).expect("what a later version says");
    assert_eq!((later.stage, later.vbuckets), (StoreStage::Unknown, 3));
}
