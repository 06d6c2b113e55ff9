//! The client of a cluster against servers of a few lines, whose vBuckets move while they are asked.

use std::sync::{Arc, Mutex};

use super::super::fake_server::{FakeMap, FakeServer, Habits, SharedMap};
use super::super::{Dialect, Patience};
use super::*;

/// A port on which nothing listens.
const GONE: &str = "127.0.0.1:1";

struct World {
    map: SharedMap,
    servers: Vec<FakeServer>,
    env: Env,
}

impl World {
    /// Two servers, the first of which is active for everything.
    fn new() -> World {
        World::with(Habits::default())
    }

    fn with(habits: Habits) -> World {
        let map = FakeMap { revision: 1, is_told: true, ..FakeMap::default() };
        let map: SharedMap = Arc::new(Mutex::new(map));
        let habits = Habits { cluster: Some(map.clone()), ..habits };
        let servers = vec![FakeServer::start(habits.clone()), FakeServer::start(habits)];
        World { map, servers, env: Env::real() }
    }

    /// A client that was sent to one of the servers.
    fn open(&self, server: usize) -> Cluster<'_> {
        let target = self.servers[server].target(Dialect::Couchbase);
        Cluster::open(&self.env, target, &[]).expect("a connection")
    }

    fn change(&self, change: impl FnOnce(&mut FakeMap)) {
        change(&mut self.map.lock().expect("no panic"));
    }
}

fn said(outcome: Result<impl std::fmt::Debug, ClientError>) -> String {
    outcome.expect_err("an error").to_string()
}

#[test]
fn a_document_is_found_whichever_node_is_named() {
    let world = World::new();
    for named in [0, 1] {
        world.open(named).set(b"k", b"v", 0).expect("stored");
        assert_eq!(world.open(named).get(b"k").expect("an answer").expect("there").value, b"v");
    }
    assert!(world.servers[1].keys().is_empty());
    assert!(world.open(1).delete(b"k").expect("an answer").is_some());
    assert_eq!(world.open(1).get(b"k").expect("an answer"), None);
}

#[test]
fn a_refusal_leads_to_the_node_that_has_the_vbucket_now() {
    for is_told in [true, false] {
        let world = World::new();
        let mut client = world.open(0);
        world.change(|map| (map.active, map.revision, map.is_told) = (1, 2, is_told));
        client.set(b"k", b"v", 0).expect("stored");
        assert_eq!((world.servers[0].keys().len(), world.servers[1].keys().len()), (0, 1));
    }
}

#[test]
fn a_vbucket_that_nobody_is_active_for_is_waited_for() {
    let world = World::new();
    world.change(|map| (map.active, map.then) = (-1, Some((3, 1))));
    let mut client = world.open(0);
    client.set(b"k", b"v", 0).expect("stored");
    assert_eq!(world.servers[1].keys().len(), 1);
}

#[test]
fn a_node_that_is_gone_is_replaced_by_the_one_that_took_over() {
    let world = World::new();
    world.change(|map| {
        map.servers.push(GONE.to_owned());
        (map.active, map.then) = (2, Some((2, 1)));
    });
    world.open(0).set(b"k", b"v", 0).expect("stored");
    assert_eq!(world.servers[1].keys().len(), 1);
}

#[test]
fn what_was_waited_for_is_said() {
    // Long enough for a machine with other work to answer in.
    const PATIENT: Duration = Duration::from_secs(2);
    let world = World::new();
    world.change(|map| map.active = -1);
    let patient = |world: &World| {
        let mut target = world.servers[0].target(Dialect::Couchbase);
        target.patience = Patience(PATIENT);
        let mut client = Cluster::open(&world.env, target, &[]).expect("a connection");
        said(client.get(b"k"))
    };
    let text = patient(&world);
    assert!(
        text.starts_with("get: gave up after ") && text.contains("no node is active for vBucket"),
        "{text}"
    );
    // The map and the node disagree for good.
    world.change(|map| {
        map.servers.swap(0, 1);
        (map.active, map.is_told, map.then) = (0, false, None);
    });
    let client = world.open(0);
    world.change(|map| map.servers.swap(0, 1));
    let mut client = Cluster { target: Target { patience: Patience(PATIENT), ..client.target }, ..client };
    let text = said(client.get(b"k"));
    assert!(
        text.contains("answers NOT_MY_VBUCKET")
            && text.contains("/readyz of that node, say what is not served: its file is damaged")
            && text.contains("--timeout gives it longer"),
        "{text}"
    );
    world.change(|map| {
        map.servers.push(GONE.to_owned());
        map.active = 2;
    });
    let text = patient(&world);
    assert!(text.contains("cannot connect to 127.0.0.1:1: "), "{text}");
}

#[test]
fn a_change_whose_answer_was_lost_is_not_made_again() {
    let world = World::with(Habits { closes_at: Some(opcode::SET), ..Habits::default() });
    let text = said(world.open(0).set(b"k", b"v", 0));
    assert!(
        text.contains("the server closed the connection") && text.contains("not known whether"),
        "{text}"
    );
}

#[test]
fn many_requests_keep_the_order_of_their_answers() {
    let world = World::new();
    world.open(0).set(b"k7", b"v", 0).expect("stored");
    let mut client = world.open(1);
    let get = |at: u32| {
        let request = client.on_key("get", opcode::GET, format!("k{at}").as_bytes(), &[], &[]);
        DocRequest { is_repeatable: true, ..request.expect("a short key") }
    };
    let requests: Vec<_> = (0..20).map(get).collect();
    // What comes too early is asked again.
    world.change(|map| (map.active, map.then) = (-1, Some((30, 0))));
    let answers = client.exchange("get", &requests).expect("answers");
    let found: Vec<usize> = (0..20).filter(|at| answers[*at].is(Status::Success)).collect();
    assert_eq!((answers.len(), found), (20, vec![7]));
}

#[test]
fn the_time_of_the_last_attempt_is_not_told_of_a_lost_answer() {
    let world = World::new();
    let mut client = world.open(0);
    let what = "no answer from h:1".to_owned();
    let late = ClientError::Waited { operation: "set", waited: Duration::from_millis(1), what };
    let lost = client.broke("set", "h:1", late, false, &mut Round::default()).expect_err("maybe it was made");
    let text = lost.to_string();
    assert!(text.starts_with("set: no answer from h:1; it is not known"), "{text}");
}
