//! A follower of durable writes: each moment counts what was committed by then, and none is in a gap.

use std::collections::BTreeMap;

use base::env::sim::SplitMix64;
use base::vbucket_map::vbucket_of;
use base::{VbId, VbState};
use protocol::{Durability, DurabilityLevel, FrameInfos, RequestParts, Status, opcode};
use serde_json::json;

use super::follow_tests::{Follower, State, followed, later, state};
use super::*;
use crate::backup::{MomentReader, Version, WantedMoment};
use crate::client::Client;
use crate::test_server::{BUCKET, TestServer};

const VBUCKETS: u16 = 4;

/// One client, what it knows, and the moments at which it looked.
struct Scene<'s> {
    server: &'s TestServer,
    client: Client,
    env: Env,
    model: State,
    history: Vec<(u64, State)>,
    /// Changes that the follower has to be told of.
    versions: u64,
    counts: BTreeMap<&'static str, u64>,
}

/// A durable write that is not answered yet.
struct Pending(Client, u32);

impl Pending {
    fn answer(mut self) -> Status {
        let answer = self.0.answer("durable set", self.1).expect("an answer");
        Status::from_code(answer.status_code).expect("a known status")
    }
}

impl<'s> Scene<'s> {
    fn new(server: &'s TestServer) -> Scene<'s> {
        let (client, env) = (server.client(), Env::real());
        let (model, history, counts) = (State::new(), Vec::new(), BTreeMap::new());
        Scene { server, client, env, model, history, versions: 0, counts }
    }

    /// The vBucket of a key gets this chain of nodes; of this node's own name anything will do.
    fn lead(&self, key: &str, chain: serde_json::Value) {
        let topology =
            (!chain.is_null()).then(|| engine::topology_from_json(&json!([chain])).expect("a chain"));
        let vb = vbucket_of(key.as_bytes(), VBUCKETS);
        self.server.bucket().roles().set_vbucket_state(vb, VbState::Active, topology).expect("it is there");
    }

    /// Sends a durable write on a connection of its own, since the answer comes later.
    fn send(&self, key: &str, value: &str, timeout_ms: u16) -> Pending {
        let mut client = self.server.client();
        let mut frame_infos = Vec::new();
        let durability = Some(Durability { level: DurabilityLevel::Majority, timeout_ms: Some(timeout_ms) });
        FrameInfos { durability, ..FrameInfos::default() }.encode(&mut frame_infos);
        let key = [b"\0", key.as_bytes()].concat();
        let parts = RequestParts {
            opcode: opcode::SET,
            vbucket: vbucket_of(&key[1..], VBUCKETS),
            frame_infos: &frame_infos,
            extras: &[0; 8],
            key: &key,
            value: value.as_bytes(),
            ..RequestParts::default()
        };
        let opaque = client.queue("durable set", parts).expect("it fits");
        client.flush("durable set").expect("sent");
        Pending(client, opaque)
    }

    /// A prepare is there before this answers: changes of a vBucket have an order.
    fn begin(&self, key: &str, value: &str) -> Pending {
        self.lead(key, json!(["n", "away"]));
        let vb = vbucket_of(key.as_bytes(), VBUCKETS);
        let before = self.high(vb);
        let pending = self.send(key, value, 60_000);
        while self.high(vb) == before {
            std::thread::yield_now();
        }
        pending
    }

    fn high(&self, vb: VbId) -> u64 {
        self.server.bucket().vbucket_stats(vb).expect("it is there").high_seqno.0
    }

    /// Its replica is taken away, so that it is committed.
    fn commit(&mut self, key: &str, value: &str, pending: Pending) {
        self.lead(key, json!(["n"]));
        assert_eq!(pending.answer(), Status::Success);
        self.changed(key, Some(value), "committed later");
    }

    fn changed(&mut self, key: &str, value: Option<&str>, how: &'static str) {
        let key = (0, key.to_owned());
        match value {
            Some(value) => drop(self.model.insert(key, value.to_owned())),
            None => drop(self.model.remove(&key)),
        }
        self.versions += 1;
        *self.counts.entry(how).or_default() += 1;
    }

    /// The moment is one of those that are restored.
    fn look(&mut self, follower: &Follower<'_>) {
        follower.has_versions(self.versions);
        self.history.push((later(&self.env), self.model.clone()));
    }

    fn step(&mut self, at: u64, random: &mut SplitMix64, follower: &Follower<'_>) {
        let (key, value) = (format!("k{at}"), format!("v{at}"));
        match random.below(6) {
            0 => {
                self.client.set(key.as_bytes(), value.as_bytes(), 0).expect("stored");
                self.changed(&key, Some(&value), "plain");
            }
            1 => {
                // None that was written lately: what is merged is a gap, as it is without durable writes.
                let mut old = (0..at.saturating_sub(20)).map(|at| (0, format!("k{at}")));
                let old = old.rfind(|key| self.model.contains_key(key));
                let Some((_, old)) = old else { return };
                self.client.delete(old.as_bytes()).expect("an answer");
                self.changed(&old, None, "deleted");
            }
            2 => {
                // The node alone, as it is without replicas.
                self.lead(&key, serde_json::Value::Null);
                let pending = self.send(&key, &value, 60_000);
                assert_eq!(pending.answer(), Status::Success);
                self.changed(&key, Some(&value), "committed at once");
            }
            3 => {
                self.lead(&key, json!(["n", "away"]));
                let pending = self.send(&key, &value, 1);
                assert_eq!(pending.answer(), Status::SyncWriteAmbiguous);
                self.lead(&key, json!(["n"]));
                *self.counts.entry("aborted").or_default() += 1;
            }
            _ => {
                let pending = self.begin(&key, &value);
                // Between prepare and commit.
                self.look(follower);
                if random.below(2) == 0 {
                    let other = (0..).map(|more| format!("k{at}-{more}"));
                    let vb = |key: &str| vbucket_of(key.as_bytes(), VBUCKETS);
                    let other = other.into_iter().find(|other| vb(other) == vb(&key)).expect("there is one");
                    self.client.set(other.as_bytes(), b"meanwhile", 0).expect("stored");
                    self.changed(&other, Some("meanwhile"), "plain");
                    self.look(follower);
                }
                self.commit(&key, &value, pending);
            }
        }
        self.look(follower);
    }
}

#[test]
fn moments_between_durable_writes_are_restored_without_tolerance() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let (dir, env) = (folder.path(), Env::real());
    let mut scene = Scene::new(&server);
    let mut random = SplitMix64::new(7);
    // In flight while the backup is made that the log goes on from.
    let early = scene.begin("early", "1");
    let counts = followed(&server, dir, |follower| {
        follower.is_live(&env);
        scene.look(follower);
        scene.commit("early", "1", early);
        scene.look(follower);
        (0..150).for_each(|at| scene.step(at, &mut random, follower));
        follower.catch_up(&env);
    });
    assert_eq!((counts.gaps, counts.epochs, counts.versions), (0, 1, scene.versions), "{counts:?}");
    // In flight when the follower ends, and committed while there is none, and later.
    let (one, two) = (scene.begin("one", "1"), scene.begin("two", "2"));
    followed(&server, dir, |follower| {
        follower.catch_up(&env);
    });
    scene.commit("one", "1", one);
    let counts = followed(&server, dir, |follower| {
        follower.is_live(&env);
        scene.versions = 0;
        scene.look(follower);
        scene.commit("two", "2", two);
        scene.versions = 2;
        scene.look(follower);
        follower.catch_up(&env);
    });
    assert_eq!((counts.gaps, counts.epochs, counts.versions), (0, 0, 2), "{counts:?}");
    let ways = ["plain", "deleted", "committed at once", "aborted", "committed later"];
    assert!(ways.iter().all(|way| scene.counts[way] >= 5), "{:?}", scene.counts);
    assert!(scene.history.len() >= 100, "{}", scene.history.len());
    for (moment, model) in &scene.history {
        let (_, state) = state(dir, &WantedMoment::At(*moment)).expect("no gap");
        assert_eq!(state, *model, "at {moment}");
    }
    println!("{} moments without a difference: {:?}", scene.history.len(), scene.counts);
    same_as_the_node(&mut scene, dir);
    drop(scene);
    server.stop();
}

/// CAS and revision of each document in the log are those of the node.
fn same_as_the_node(scene: &mut Scene<'_>, dir: &std::path::Path) {
    let repository = Repository::new(&scene.env, dir);
    let log = ChangeLog::open(&repository, BUCKET).expect("a log");
    let last = scene.history.last().expect("there are some").0;
    let at = log.resolve(&repository, BUCKET, &WantedMoment::At(last), 0).expect("it is there");
    let mut reader = MomentReader::open(&repository, &log, &at).expect("read");
    let mut compared = 0;
    for vb in 0..VBUCKETS {
        let visit = &mut |version: &Version<'_>| -> Result<(), BackupError> {
            let one = &version.record;
            let there = scene.client.get(one.key.key).expect("an answer");
            assert_eq!(there.map(|there| there.cas.0), (!one.deleted).then_some(one.cas));
            compared += 1;
            Ok(())
        };
        reader.newest(VbId(vb), visit).expect("read");
    }
    assert!(compared > 100, "{compared}");
}
