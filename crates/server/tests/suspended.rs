//! A machine that is suspended between letting a request through and answering it: nothing is answered that another node
//! may have changed meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::{Clock, Env, SimHandles};
use base::{Cas, DocKey, Seqno, VbId, VbState};
use cluster::Fence;
use engine::{Bucket, BucketConfig};
use node::Node;
use node::close_reason::CloseReason;
use node::cluster_map::NodeAddress;
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::connection::{Connection, Next};
use node::counters::WorkerCounters;
use node::fuzz::{feed, login};
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};

const LEASE: Duration = Duration::from_secs(5);

/// A clock that jumps by a minute once it was looked at, if somebody wants that.
struct Jumping {
    clock: Arc<dyn Clock>,
    handles: SimHandles,
    jumps: AtomicBool,
}

impl Clock for Jumping {
    fn unix_ns(&self) -> u64 {
        self.clock.unix_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        let now_ns = self.clock.monotonic_ns();
        if self.jumps.swap(false, Ordering::SeqCst) {
            self.handles.clock.advance(Duration::from_secs(60));
        }
        now_ns
    }
}

struct World {
    node: Arc<Node>,
    bucket: Arc<Bucket>,
    clock: Arc<Jumping>,
    connection: Connection,
}

impl World {
    fn new(replicas: Option<&str>) -> World {
        let (env, handles) = Env::sim(1);
        let clock = Arc::new(Jumping { clock: env.clock.clone(), handles, jumps: AtomicBool::new(false) });
        let env = Env { clock: clock.clone(), ..env };
        let dir = "/data/default";
        let config = BucketConfig { vbuckets: 1, ..BucketConfig::new("default", dir.into()) };
        let store = kvstore::Couch::open(env.clone(), dir.as_ref(), kvstore::CouchConfig::default());
        let bucket = Bucket::open(config, env.clone(), Arc::new(store.expect("a new disk")));
        let bucket = Arc::new(bucket.expect("an empty bucket opens"));
        let members = ["here"].into_iter().chain(replicas).map(|name| Some(name.into()));
        let chain = vbucket::Chain::new(members.collect()).expect("a chain");
        let topology = vbucket::Topology::of(vec![chain]).expect("one chain");
        bucket.roles().set_vbucket_state(VbId(0), VbState::Active, Some(topology)).expect("it is there");
        let admin = UserSpec {
            name: "admin".to_owned(),
            password: "password".to_owned(),
            role: Role::Admin,
            buckets: None,
        };
        let users = Users::new(&[admin], &*env.random);
        let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
        let version = ConfigVersion { epoch: 1, revision: 1 };
        let spec = BucketSpec::parse("default").expect("a valid name");
        let served = vec![Served { spec, bucket: Arc::clone(&bucket) }];
        let limits = ConnectionLimits::default();
        let node = Arc::new(
            Node::new(env, users, served, address, version, limits, Vec::new())
                .fenced_by(Arc::new(Fence::closed())),
        );
        node.fence().renewed(clock.monotonic_ns(), LEASE);
        let mut connection = Connection::new(Arc::clone(&node), Arc::new(WorkerCounters::default()));
        // Clients that do not know extended errors have no word for what is ambiguous.
        let features = Features::of(&[Feature::Xerror]).encode();
        feed(&mut connection, &login("admin", "password", "default", &features));
        World { node, bucket, clock, connection }
    }

    /// Statuses of what is answered to a request, and what the connection waits for then.
    fn ask(&mut self, opcode: u8, extras: &[u8], value: &[u8], durable: bool) -> (Vec<Status>, Next) {
        let frame_infos: &[u8] = if durable { &[0x11, 0x01] } else { &[] };
        let parts = RequestParts { opcode, key: b"k", extras, value, frame_infos, ..RequestParts::default() };
        let mut bytes = Vec::new();
        assert!(write_request(&mut bytes, &parts));
        let (answers, next) = feed(&mut self.connection, &bytes);
        (statuses(&answers), next)
    }
}

fn statuses(mut answers: &[u8]) -> Vec<Status> {
    let mut statuses = Vec::new();
    while let ParsedResponse::Response { response, total_len } = parse_response(answers, 1 << 20) {
        statuses.push(response.status().expect("a status that is known"));
        answers = &answers[total_len..];
    }
    statuses
}

#[test]
fn what_was_let_through_before_a_suspension_is_not_answered() {
    for (opcode, extras, value) in [(opcode::GET, &[][..], &b""[..]), (opcode::SET, &[0; 8], b"new")] {
        let mut world = World::new(None);
        assert_eq!(world.ask(opcode::SET, &[0; 8], b"old", false).0, [Status::Success]);
        world.clock.jumps.store(true, Ordering::SeqCst);
        let (answers, next) = world.ask(opcode, extras, value, false);
        assert_eq!((answers, next), (vec![], Next::Close(CloseReason::Fenced)), "{opcode:#x}");
        assert!(!world.node.fence().may_serve(world.clock.monotonic_ns()));
    }
}

#[test]
fn a_sync_write_that_is_committed_after_the_lease_is_ambiguous() {
    let mut world = World::new(Some("there"));
    let (answers, next) = world.ask(opcode::SET, &[0; 8], b"v", true);
    assert_eq!((answers, next), (vec![], Next::Later));
    world.clock.handles.clock.advance(Duration::from_secs(60));
    world.bucket.durability().acknowledged(VbId(0), "there", Seqno(1));
    let (answers, _) = feed(&mut world.connection, &[]);
    assert_eq!(statuses(&answers), [Status::SyncWriteAmbiguous]);
    let found = world.bucket.documents().get(VbId(0), DocKey::new(b"k"), world.bucket.now());
    assert!(found.is_ok_and(|found| found.cas != Cas::ANY), "it is committed, and whoever follows has it");
}
