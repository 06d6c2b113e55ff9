//! Damaged copies: what the leader does about them, and when a node may set them aside.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command};
use cluster::filling::fillings;
use cluster::{
    Agent, ApplyTarget, Chain, Damaged, Following, Given, Leader, LeaderConfig, NodeId, Refusals, Refused,
    State, Status, Step, VbReport, View, apply_bucket,
};
use support::{BUCKET, reports, reports_copy, reports_nothing, three};

fn is_damaged(view: &mut View, id: u32) {
    reports_nothing(view, id);
    let report = view.reports.get_mut(&id.to_string()).expect("it reports");
    report.note_damaged(BUCKET, Damaged::of([0]));
}

fn step(view: &View) -> Option<State> {
    Leader::new(LeaderConfig::default()).step(view, Duration::ZERO)
}

/// The leader goes on until it has nothing more to do; the nodes become what it says at once.
fn settle(view: &mut View) {
    for _ in 0..20 {
        let Some(next) = step(view) else { return };
        view.state = next;
        for report in view.reports.values_mut() {
            report.applied = view.state.revision;
        }
    }
}

fn chain(view: &View) -> Vec<u32> {
    view.state.buckets[BUCKET].chain(0).iter().flatten().map(|id| id.0).collect()
}

fn the_step(view: &View) -> Option<&Step> {
    view.state.buckets[BUCKET].steps.get(&0)
}

/// Node 1 is active, 2 and 3 follow; all have everything.
fn whole() -> View {
    let mut view = three();
    reports(&mut view, 1, VbState::Active, 5);
    reports(&mut view, 2, VbState::Replica, 5);
    reports(&mut view, 3, VbState::Replica, 5);
    view
}

#[test]
fn a_damaged_active_copy_fails_over_alone() {
    let mut view = whole();
    is_damaged(&mut view, 1);
    reports(&mut view, 3, VbState::Replica, 6);
    settle(&mut view);
    assert_eq!(chain(&view), [3, 2], "the furthest one");
    reports_nothing(&mut view, 1);
    view.state = step(&view).expect("its files were set aside");
    let target = [3, 2, 1].map(|id| Some(NodeId(id)));
    assert_eq!(view.state.buckets[BUCKET].target[0], target, "its copy is to be filled again");
    assert!(view.state.is_active(NodeId(1)), "the node stays");
}

#[test]
fn a_damaged_replica_leaves_the_chain_at_once() {
    let mut view = whole();
    is_damaged(&mut view, 2);
    view.state = step(&view).expect("a document");
    assert_eq!(chain(&view), [1, 3]);
    assert_eq!(view.state.buckets[BUCKET].map[0].len(), 3, "and counts as missing for a majority");
    assert!(matches!(the_step(&view), Some(Step::Settle { .. })), "what it had acknowledged 3 may not have");
    assert_eq!(view.state.buckets[BUCKET].missing[&0], [NodeId(2)]);
}

#[test]
fn a_damaged_copy_that_comes_back_counts_when_it_has_caught_up() {
    let mut view = whole();
    is_damaged(&mut view, 2);
    view.state = step(&view).expect("it leaves the chain");
    reports(&mut view, 1, VbState::Active, 5);
    reports(&mut view, 3, VbState::Replica, 5);
    is_damaged(&mut view, 2);
    settle(&mut view);
    assert_eq!((chain(&view), the_step(&view)), (vec![1, 3], None), "not before its files were set aside");
    assert!(view.state.rebalance.is_none());
    reports_nothing(&mut view, 2);
    settle(&mut view);
    assert_eq!((chain(&view), the_step(&view)), (vec![1, 3], Some(&Step::Build)), "not before");
    // Half of it is there.
    reports(&mut view, 1, VbState::Active, 5);
    reports(&mut view, 2, VbState::Replica, 3);
    let told = fillings(&view);
    assert_eq!((told.len(), told[0].node, told[0].vbuckets), (1, NodeId(2), 1));
    assert_eq!((told[0].has, told[0].of), (3, 5));
    settle(&mut view);
    assert_eq!((chain(&view), the_step(&view)), (vec![1, 3], Some(&Step::Build)), "not before");
    reports(&mut view, 2, VbState::Replica, 5);
    settle(&mut view);
    assert_eq!((chain(&view), the_step(&view)), (vec![1, 3, 2], None));
    assert!(fillings(&view).is_empty());
    assert!(view.state.buckets[BUCKET].missing.is_empty());
}

#[test]
fn a_copy_that_cannot_be_built_keeps_no_repair_from_ending() {
    let mut view = whole();
    is_damaged(&mut view, 2);
    view.state = step(&view).expect("it leaves the chain");
    reports(&mut view, 1, VbState::Active, 5);
    reports(&mut view, 3, VbState::Replica, 5);
    reports_nothing(&mut view, 2);
    settle(&mut view);
    assert_eq!(the_step(&view), Some(&Step::Build));
    is_damaged(&mut view, 2);
    settle(&mut view);
    assert!(view.state.rebalance.is_none(), "others may be rebalanced");
    assert_eq!((chain(&view), the_step(&view)), (vec![1, 3], None));
    assert_eq!(view.state.buckets[BUCKET].missing[&0], [NodeId(2)]);
    reports_nothing(&mut view, 2);
    reports(&mut view, 1, VbState::Active, 5);
    settle(&mut view);
    assert_eq!(the_step(&view), Some(&Step::Build), "it is tried again");
}

#[test]
fn a_copy_that_is_damaged_while_writes_need_it_is_built_anew() {
    let mut view = whole();
    view.state = command::apply(&view, &Command::Rebalance { eject: vec![NodeId(3)] }).expect("it begins");
    let since = view.state.revision;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = vec![Some(NodeId(1)), None, None];
    bucket.target[0] = vec![Some(NodeId(1)), Some(NodeId(2)), None];
    bucket.steps.insert(0, Step::Both { since });
    reports(&mut view, 1, VbState::Active, 5);
    is_damaged(&mut view, 2);
    view.state = step(&view).expect("a document");
    assert_eq!(the_step(&view), Some(&Step::Build));
}

/// Its node serves what is in memory, and can save no more of it.
#[test]
fn a_copy_is_built_from_an_active_one_that_is_damaged() {
    let mut view = whole();
    view.state = command::apply(&view, &Command::Rebalance { eject: vec![NodeId(3)] }).expect("it begins");
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = vec![Some(NodeId(1)), None, None];
    bucket.target[0] = vec![Some(NodeId(1)), Some(NodeId(2)), None];
    bucket.steps.insert(0, Step::Build);
    let has =
        VbReport { state: Some(VbState::Active), high_seqno: 6, persisted: 5, high_prepared: 5, uuid: 1 };
    reports_copy(&mut view, 1, has);
    let report = view.reports.get_mut("1").expect("it reports");
    report.note_damaged(BUCKET, Damaged::of([0]).and_served([0]));
    reports(&mut view, 2, VbState::Replica, 5);
    assert_eq!(step(&view), None, "what the active one has in memory alone is not there yet");
    reports(&mut view, 2, VbState::Replica, 6);
    view.state = step(&view).expect("all others have it on their disks");
    assert!(matches!(the_step(&view), Some(Step::Both { .. })));
    view.reports.values_mut().for_each(|report| report.applied = view.state.revision);
    settle(&mut view);
    assert_eq!(chain(&view), [2], "which makes it safe to part with the damaged one");
}

#[test]
fn nothing_is_touched_where_no_sure_copy_is_left() {
    // The only copy.
    let mut view = whole();
    view.state.buckets.get_mut(BUCKET).expect("it is there").map[0] = vec![Some(NodeId(1)), None, None];
    is_damaged(&mut view, 1);
    assert_eq!(step(&view), None);
    assert_eq!(cluster::damage::wrongs(&view)[0].lost, [0]);
    // Two of three: a write may have been on these alone.
    let mut view = whole();
    is_damaged(&mut view, 1);
    is_damaged(&mut view, 3);
    assert_eq!(step(&view), None);
}

/// The chain of `whole` settles.
fn settling() -> View {
    let mut view = whole();
    let since = view.state.revision;
    view.state.buckets.get_mut(BUCKET).expect("it is there").steps.insert(0, Step::Settle { since });
    view
}

/// A start found nothing; loading finds that the active copy is damaged, before the others surely have what it has.
#[test]
fn an_active_copy_that_is_damaged_while_its_chain_settles_fails_over() {
    let mut view = settling();
    is_damaged(&mut view, 1);
    reports(&mut view, 3, VbState::Replica, 6);
    view.state = step(&view).expect("each write was on two of the three");
    view.reports.values_mut().for_each(|report| report.applied = view.state.revision);
    let needed = view.reports.remove("3").expect("it reports");
    assert_eq!(step(&view), None, "2 may lack what was on the other two");
    view.reports.insert("3".to_owned(), needed);
    settle(&mut view);
    assert_eq!(chain(&view), [3, 2]);
}

#[test]
fn a_node_that_left_a_settling_chain_may_have_been_alone_with_the_damaged_copy() {
    let mut view = settling();
    view.state.buckets.get_mut(BUCKET).expect("it is there").map[0] =
        vec![Some(NodeId(1)), Some(NodeId(2)), None];
    is_damaged(&mut view, 1);
    assert_eq!(step(&view), None);
    assert_eq!(cluster::damage::wrongs(&view)[0].lost, [0]);
    // So may one that has forgotten what it acknowledged.
    let mut view = settling();
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.forgot.entry(0).or_default().insert(NodeId(2));
    is_damaged(&mut view, 1);
    assert_eq!(step(&view), None);
}

/// Its node began a new life while the chain settled, and finds at its start that the copy is damaged.
#[test]
fn a_choice_does_not_wait_for_a_damaged_copy_that_others_replace() {
    let mut view = settling();
    let since = view.state.revision;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.steps.insert(0, Step::Choose { since, taker: None, needs: Some(NodeId(1)), forced: false });
    bucket.forgot.entry(0).or_default().insert(NodeId(1));
    reports_nothing(&mut view, 1);
    assert_eq!(step(&view), None, "a copy that is not there may be the one that was needed");
    is_damaged(&mut view, 1);
    settle(&mut view);
    assert_eq!(chain(&view), [2, 3]);
}

/// It may have been alone with a write, together with one that says nothing.
#[test]
fn a_damaged_copy_of_a_node_that_was_failed_over_is_no_empty_one() {
    let mut view = whole();
    let since = view.state.revision;
    let choose = Step::Choose { since, taker: None, needs: None, forced: false };
    view.state.buckets.get_mut(BUCKET).expect("it is there").steps.insert(0, choose);
    view.state.nodes.get_mut(&NodeId(1)).expect("it is there").status = Status::FailedOver;
    view.reports.remove("3");
    let chosen = |view: &View| {
        let config = LeaderConfig { choice_patience: Duration::ZERO, ..LeaderConfig::default() };
        Leader::new(config).step(view, Duration::ZERO).map(|state| View { state, ..view.clone() })
    };
    reports_nothing(&mut view, 1);
    assert_eq!(chain(&chosen(&view).expect("2 and 3 have all that 1 may have had")), [2]);
    is_damaged(&mut view, 1);
    assert!(chosen(&view).is_none(), "2 alone may lack what 1 and 3 had");
    reports(&mut view, 3, VbState::Replica, 5);
    assert_eq!(chain(&chosen(&view).expect("two of three have said what they have")), [2, 3]);
}

#[test]
fn damaged_copies_do_not_begin_empty() {
    let mut view = whole();
    let since = view.state.revision;
    let choose = Step::Choose { since, taker: None, needs: None, forced: false };
    view.state.buckets.get_mut(BUCKET).expect("it is there").steps.insert(0, choose);
    (2..=3).for_each(|id| reports_nothing(&mut view, id));
    is_damaged(&mut view, 1);
    assert_eq!(step(&view), None, "what they held may come back");
    let down = view.reports.get_mut("1").expect("it reports");
    down.damaged.clear();
    down.note_damaged(BUCKET, Damaged::default().and_refused([0]));
    assert_eq!(step(&view), None, "a disk that refuses may be well later");
    view.reports.get_mut("1").expect("it reports").damaged.clear();
    assert!(step(&view).is_some(), "no node ever had anything");
}

#[test]
fn a_node_is_not_failed_over_to_a_damaged_copy() {
    let mut view = whole();
    view.state.buckets.get_mut(BUCKET).expect("it is there").map[0] =
        vec![Some(NodeId(1)), Some(NodeId(2)), None];
    is_damaged(&mut view, 2);
    let fail_over = Command::FailOver { node: NodeId(1), force: false };
    assert_eq!(command::apply(&view, &fail_over), Err(Refused::LastCopy(1)));
    let gracefully = Command::FailOverGracefully { node: NodeId(1) };
    assert_eq!(command::apply(&view, &gracefully), Err(Refused::LastCopy(1)));
}

#[test]
fn what_damaged_copies_held_is_given_up_when_somebody_asks() {
    let give_up = Command::GiveUpDamaged { name: BUCKET.to_owned() };
    let mut view = whole();
    assert_eq!(command::apply(&view, &give_up), Err(Refused::NothingToGiveUp(BUCKET.to_owned())));
    is_damaged(&mut view, 1);
    is_damaged(&mut view, 3);
    assert_eq!(step(&view), None);
    view.state = command::apply(&view, &give_up).expect("an administrator accepts that");
    for report in view.reports.values_mut() {
        report.applied = view.state.revision;
    }
    settle(&mut view);
    assert_eq!(chain(&view), [2]);
}

/// A node whose copies are all damaged; what it was asked.
#[derive(Default)]
struct Files {
    is_live: bool,
    asked: RefCell<Vec<&'static str>>,
}

impl Files {
    fn note(&self, what: &'static str) -> Result<(), Infallible> {
        self.asked.borrow_mut().push(what);
        Ok(())
    }
}

impl ApplyTarget for Files {
    type Topology = Vec<Chain>;
    type Error = Infallible;

    fn role(&self, _: u16) -> Option<VbState> {
        None
    }
    fn is_damaged(&self, _: u16) -> bool {
        !self.asked.borrow().contains(&"set aside")
    }
    fn is_unreadable(&self, vb: u16) -> bool {
        self.is_damaged(vb)
    }
    fn is_live(&self, _: u16, _: NodeId) -> bool {
        self.is_live
    }
    fn set_aside(&self, _: u16) -> Result<(), Infallible> {
        self.note("set aside")
    }
    fn topology(&self, _: u16, chains: &[Chain]) -> Result<Vec<Chain>, Infallible> {
        Ok(chains.to_vec())
    }
    fn set_role(&self, _: u16, _: VbState) -> Result<(), Infallible> {
        self.note("role")
    }
    fn activate(&self, _: u16, _: Vec<Chain>) -> Result<(), Infallible> {
        self.note("activate")
    }
    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<Infallible>> {
        if following.is_empty() {
            return Ok(());
        }
        Refusals::of(self.note("follow").err())
    }
    fn remove(&self, _: u16) -> Result<(), Infallible> {
        self.note("remove")
    }
}

/// What a node whose copy is damaged does.
fn asked(view: &View, id: u32, is_live: bool) -> Vec<&'static str> {
    let files = Files { is_live, ..Files::default() };
    let agent = Agent::new(&view.state, &id.to_string(), 10).expect("a node");
    let Ok(()) = apply_bucket(&agent, &view.state.buckets[BUCKET], &files, &mut Given::default());
    files.asked.into_inner()
}

#[test]
fn damaged_files_are_set_aside_only_when_nothing_needs_them() {
    let mut view = whole();
    for id in 1..=3 {
        assert!(asked(&view, id, true).is_empty(), "it is in the chain, and does not begin empty");
    }
    is_damaged(&mut view, 2);
    view.state = step(&view).expect("it leaves the chain");
    assert!(asked(&view, 2, false).is_empty(), "no node serves it");
    assert_eq!(asked(&view, 2, true), ["set aside"]);
    let since = view.state.revision;
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.target = vec![vec![Some(NodeId(1)), Some(NodeId(3)), Some(NodeId(2))]];
    bucket.steps.insert(0, Step::Build);
    assert!(asked(&view, 2, false).is_empty());
    assert_eq!(asked(&view, 2, true), ["set aside", "follow"]);
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.steps.insert(0, Step::Choose { since, taker: None, needs: None, forced: false });
    assert!(asked(&view, 2, true).is_empty(), "it is open who serves it");
    bucket_with_nobody(&mut view);
    assert_eq!(asked(&view, 2, false), ["set aside"], "an administrator has given up what it held");
    let agent = Agent::new(&view.state, "2", 11).expect("a node");
    assert!(!agent.may_part_with(&view.state.buckets[BUCKET], 0, true), "a life that was not admitted");
}

/// A node whose copy is damaged and served: what it was asked, attempt by attempt.
#[derive(Default)]
struct Served {
    role: Cell<Option<VbState>>,
    follows: Cell<bool>,
    asked: RefCell<Vec<String>>,
}

impl ApplyTarget for Served {
    type Topology = Vec<Chain>;
    type Error = Infallible;

    fn role(&self, _: u16) -> Option<VbState> {
        self.role.get()
    }
    fn is_damaged(&self, _: u16) -> bool {
        !self.asked.borrow().iter().any(|what| what == "set aside")
    }
    fn is_live(&self, _: u16, _: NodeId) -> bool {
        true
    }
    fn set_aside(&self, _: u16) -> Result<(), Infallible> {
        assert!(self.role.get() == Some(VbState::Dead) && !self.follows.get(), "it is in use");
        self.role.set(None);
        self.asked.borrow_mut().push("set aside".to_owned());
        Ok(())
    }
    fn topology(&self, _: u16, chains: &[Chain]) -> Result<Vec<Chain>, Infallible> {
        Ok(chains.to_vec())
    }
    fn set_role(&self, _: u16, role: VbState) -> Result<(), Infallible> {
        self.role.set(Some(role));
        self.asked.borrow_mut().push(format!("{role:?}"));
        Ok(())
    }
    fn activate(&self, vb: u16, _: Vec<Chain>) -> Result<(), Infallible> {
        self.set_role(vb, VbState::Active)
    }
    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<Infallible>> {
        self.follows.set(!following.is_empty());
        if following.is_empty() {
            return Ok(());
        }
        Refusals::of(self.set_role(0, VbState::Replica).err())
    }
    fn remove(&self, _: u16) -> Result<(), Infallible> {
        self.role.set(None);
        Ok(())
    }
}

impl Served {
    fn applies(&self, view: &View, id: u32) -> Vec<String> {
        let agent = Agent::new(&view.state, &id.to_string(), 10).expect("a node");
        let Ok(()) = apply_bucket(&agent, &view.state.buckets[BUCKET], self, &mut Given::default());
        self.asked.borrow().clone()
    }
}

#[test]
fn a_damaged_copy_that_is_served_is_let_go_of_before_its_files_are_set_aside() {
    let mut view = whole();
    let files = Served::default();
    files.role.set(Some(VbState::Active));
    is_damaged(&mut view, 1);
    view.state = step(&view).expect("another copy is looked for");
    assert_eq!(files.applies(&view, 1), ["Replica"], "it stands still");
    is_damaged(&mut view, 1);
    reports(&mut view, 2, VbState::Replica, 5);
    reports(&mut view, 3, VbState::Replica, 5);
    view.state = step(&view).expect("one is chosen");
    assert_eq!(chain(&view), [2, 3]);
    assert_eq!(files.applies(&view, 1), ["Replica", "Dead"]);
    assert_eq!(files.applies(&view, 1), ["Replica", "Dead", "set aside"]);
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.target = vec![[2, 3, 1].map(|id| Some(NodeId(id))).to_vec()];
    bucket.steps.insert(0, Step::Build);
    assert_eq!(files.applies(&view, 1), ["Replica", "Dead", "set aside", "Replica"], "it is filled again");
}

#[test]
fn a_damaged_copy_that_is_served_is_not_told_to_be_lost() {
    let mut view = whole();
    view.state.buckets.get_mut(BUCKET).expect("it is there").map[0] = vec![Some(NodeId(1)), None, None];
    reports(&mut view, 1, VbState::Active, 5);
    let report = view.reports.get_mut("1").expect("it reports");
    report.note_damaged(BUCKET, Damaged::of([0]).and_served([0]));
    assert_eq!(step(&view), None, "it is the only copy");
    let wrong = &cluster::damage::wrongs(&view)[0];
    assert_eq!((&wrong.damaged[..], &wrong.lost[..], &wrong.at_risk[..]), (&[0][..], &[][..], &[0][..]));
}

fn bucket_with_nobody(view: &mut View) {
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.steps.clear();
    bucket.map[0] = vec![None, None, None];
}
