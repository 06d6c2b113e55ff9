//! Situations that the load on one node does not bring about: memory that is short, compactions, collections, streams, and a
//! node that follows another one. Each is a kind of its own in the table of rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Seqno, VbId, VbState};
use engine::settings::Key;
use engine::{Bucket, topology_from_json};
use node::replication::{Password, Source, Sources};
use protocol::dcp::{StreamFlags, StreamRequest};
use protocol::{RequestParts, Status, opcode};
use serde_json::json;
use server::Server;

use super::support::{Client, VBUCKETS, http, start, vb};
use super::{Told, VALUE, expect, look, parts, settle, store};

/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

fn bucket(server: &Server) -> Arc<Bucket> {
    server.node().bucket("default").expect("it is served")
}

/// A node, with clients of it.
pub struct Driven {
    server: Server,
    _folder: tempfile::TempDir,
    client: Client,
    observer: Client,
    streams: Option<Client>,
}

type DrivenStep = (&'static str, fn(&mut Driven));

/// Its steps.
pub const DRIVEN: [DrivenStep; 6] = [
    ("refuse", Driven::refuse),
    ("fill", Driven::fill),
    ("evict", Driven::evict),
    ("compact", Driven::compact),
    ("collect", Driven::collect),
    ("stream", Driven::stream),
];

impl Driven {
    fn start() -> Driven {
        let folder = tempfile::tempdir().expect("a folder");
        let server = start(folder.path(), "");
        let client = Client::connect(&server, "default", &[]);
        let observer = Client::connect(&server, "default", &[]);
        Driven { server, _folder: folder, client, observer, streams: None }
    }

    /// Stores are refused while the bucket has these settings.
    fn refused(&mut self, stores: usize, quota_bytes: u64, ratio: u64) {
        let bucket = bucket(&self.server);
        let settings = bucket.settings();
        let before = [Key::MaxSize, Key::MutationRatio].map(|key| (key, settings.get(key)));
        settings.put(Key::MutationRatio, ratio);
        settings.put(Key::MaxSize, quota_bytes);
        let set = parts(opcode::SET, b"one more", &[0; 8], VALUE);
        (0..stores).for_each(|_| expect(&mut self.client, &set, Status::Etmpfail));
        before.into_iter().for_each(|(key, value)| settings.put(key, value));
    }

    /// A tenth of the quota is in use, of which changes may use a hundredth: nothing has to leave memory for that.
    fn refuse(&mut self) {
        let used = bucket(&self.server).memory().held_bytes();
        self.refused(2, used * 10, 10);
    }

    /// More than the quota is in use, whatever leaves memory meanwhile.
    fn fill(&mut self) {
        let used = bucket(&self.server).memory().held_bytes();
        self.refused(3, used / 8, 1_000);
    }

    /// Values that leave memory and stay away.
    fn evict(&mut self) {
        for key in [b"k1", b"k2", b"k3"] {
            expect(&mut self.client, &parts(opcode::EVICT_KEY, key, &[], &[]), Status::Success);
        }
    }

    fn compact(&mut self) {
        for vbucket in (0..VBUCKETS).map(VbId) {
            let parts = RequestParts {
                opcode: opcode::COMPACT_DB,
                extras: &[0; 24],
                vbucket,
                ..RequestParts::default()
            };
            expect(&mut self.client, &parts, Status::Success);
        }
    }

    fn collect(&mut self) {
        let scopes = "/pools/default/buckets/default/scopes";
        assert_eq!(http(&self.server, "POST", scopes, "name=s").0, 200);
        assert_eq!(http(&self.server, "POST", &format!("{scopes}/s/collections"), "name=c").0, 200);
        let observer = &mut self.observer;
        let mut knows = |vb| observer.stat("collections-details", &format!("vb_{vb}:manifest:uid")) == "2";
        eventually("every vBucket knows both", || (0..VBUCKETS).all(&mut knows));
    }

    /// All changes of one vBucket.
    fn stream(&mut self) {
        let mut streams = Client::connect(&self.server, "default", &[]);
        let open = parts(opcode::DCP_OPEN, b"rules", &[0, 0, 0, 0, 0, 0, 0, 1], &[]);
        expect(&mut streams, &open, Status::Success);
        let high = bucket(&self.server).streams().stream_state(vb(b"k0")).expect("there is one").3;
        let none = Seqno(0);
        let request = StreamRequest {
            flags: StreamFlags(0),
            start: none,
            end: high,
            uuid: base::VbUuid(0),
            snapshot_start: none,
            snapshot_end: none,
        };
        let extras = request.encode();
        let ask = RequestParts {
            opcode: opcode::DCP_STREAM_REQ,
            extras: &extras,
            vbucket: vb(b"k0"),
            ..RequestParts::default()
        };
        expect(&mut streams, &ask, Status::Success);
        while streams.receive().opcode != opcode::DCP_STREAM_END {}
        self.streams = Some(streams);
    }
}

/// What the groups tell before the first step and after each.
pub fn looks_at_driven() -> Vec<Told> {
    let mut world = Driven::start();
    store(&mut world.client);
    settle(&mut world.observer);
    let mut looks = vec![look(&mut world.observer)];
    for (_, step) in DRIVEN {
        step(&mut world);
        settle(&mut world.observer);
        looks.push(look(&mut world.observer));
    }
    drop(world.streams.take());
    world.server.stop().expect("a clean stop");
    looks
}

/// A node that has all vBuckets, and one that follows it and is looked at.
pub struct Followed {
    active: Server,
    replica: Server,
    _folders: [tempfile::TempDir; 2],
    client: Client,
    observer: Client,
}

type FollowedStep = (&'static str, fn(&mut Followed));

/// Its steps.
pub const FOLLOWED: [FollowedStep; 6] = [
    ("copy", Followed::copy),
    ("copy_delete", Followed::copy_delete),
    ("copy_prepare", Followed::copy_prepare),
    ("roll_back", Followed::roll_back),
    ("pend", Followed::pend),
    ("die", Followed::die),
];

impl Followed {
    fn start() -> Followed {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [active, replica] = [&folders[0], &folders[1]].map(|folder| start(folder.path(), ""));
        let chain = [&active, &replica].map(|server| server.kv_addr().to_string());
        let topology = topology_from_json(&json!([chain])).expect("a chain");
        for vb in (0..VBUCKETS).map(VbId) {
            let led = bucket(&active).roles().set_vbucket_state(vb, VbState::Active, Some(topology.clone()));
            led.expect("there is one");
        }
        let source = Source {
            node: active.kv_addr().to_string(),
            username: "Administrator".to_owned(),
            password: Password::from("password".to_owned()),
            mode: dcp::Mode::Replicate,
        };
        let sources: Sources = (0..VBUCKETS).map(|vb| (VbId(vb), source.clone())).collect();
        replica.node().replication().want(&bucket(&replica), &sources).expect("they may");
        let client = Client::connect(&active, "default", &[]);
        let observer = Client::connect(&replica, "default", &[]);
        let world = Followed { active, replica, _folders: folders, client, observer };
        eventually("it follows", || {
            (0..VBUCKETS).all(|vb| bucket(&world.replica).state_of(VbId(vb)) == Some(VbState::Replica))
        });
        world
    }

    /// Waits until the replica has everything.
    fn await_copies(&self) {
        let high = |server: &Server| {
            let of = |vb| bucket(server).streams().stream_state(VbId(vb)).expect("there is one").3;
            (0..VBUCKETS).map(of).collect::<Vec<Seqno>>()
        };
        eventually("everything is copied", || high(&self.active) == high(&self.replica));
    }

    fn copy(&mut self) {
        store(&mut self.client);
        self.await_copies();
    }

    fn copy_delete(&mut self) {
        super::delete(&mut self.client);
        self.await_copies();
    }

    fn copy_prepare(&mut self) {
        super::prepare(&mut self.client);
        self.await_copies();
    }

    /// Each vBucket goes back to its first change.
    fn roll_back(&mut self) {
        let replica = bucket(&self.replica);
        self.replica.node().replication().want(&replica, &Sources::new()).expect("nothing is allowed");
        for vb in (0..VBUCKETS).map(VbId) {
            replica.roles().rollback(vb, Seqno(1)).expect("a replica").expect("the disk works");
        }
    }

    fn set_roles(&self, role: VbState) {
        for vb in (0..VBUCKETS).map(VbId) {
            bucket(&self.replica).roles().set_vbucket_state(vb, role, None).expect("there is one");
        }
    }

    fn pend(&mut self) {
        // What is pending has documents again.
        self.set_roles(VbState::Active);
        let mut client = Client::connect(&self.replica, "default", &[]);
        store(&mut client);
        drop(client);
        self.set_roles(VbState::Pending);
    }

    fn die(&mut self) {
        self.set_roles(VbState::Dead);
    }
}

/// What the groups of the node that follows tell before the first step and after each.
pub fn looks_at_followed() -> Vec<Told> {
    let mut world = Followed::start();
    settle(&mut world.observer);
    let mut looks = vec![super::look_at_replica(&mut world.observer)];
    for (_, step) in FOLLOWED {
        step(&mut world);
        settle(&mut world.observer);
        looks.push(super::look_at_replica(&mut world.observer));
    }
    drop(world.observer);
    world.replica.stop().expect("a clean stop");
    world.active.stop().expect("a clean stop");
    looks
}
