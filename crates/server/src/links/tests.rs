//! A link that always has something to read leaves the thread to others after each turn.
#![allow(clippy::disallowed_methods, reason = "the source is outside of the server")]

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use ::node::connection_memory::ConnectionMemory;
use ::node::doors::LinkRunner;
use ::node::news::Announcer;
use ::node::replication::download::brings_none;
use ::node::replication::{Drive, Fills, Links, Password, Replication, Source, Sources};
use base::VbId;
use base::env::{Env, Task};
use dcp::{Features, Mode, TURN_MESSAGES};
use engine::{Bucket, BucketConfig};
use parking_lot::Mutex;
use protocol::{RequestParts, opcode, write_request};
use tokio::runtime::{Builder, LocalOptions};

use super::supervisor::RuntimePace;
use super::wire::Wire;

const MESSAGES: usize = 100_000;

/// Runs no link: the test does.
#[derive(Default)]
struct Caught(Mutex<Option<Arc<Links>>>);

impl LinkRunner for Caught {
    fn start(&self, env: &Env, links: Arc<Links>) -> std::io::Result<Task> {
        *self.0.lock() = Some(links);
        env.spawn.spawn("none", Box::new(|| ()))
    }
}

fn bucket(env: &Env, dir: &std::path::Path) -> Arc<Bucket> {
    let config = BucketConfig { vbuckets: 1, ..BucketConfig::new("test", dir.to_owned()) };
    let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
    let bucket = Bucket::open(config, env.clone(), Arc::new(store.expect("a folder")));
    Arc::new(bucket.expect("it opens"))
}

/// A node that sends messages of a stream that the link does not follow, as fast as they are taken; the place where it
/// listens.
fn source() -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it listens").to_string();
    let thread = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("the link connects");
        let mut message = Vec::new();
        let parts =
            RequestParts { opcode: opcode::DCP_SEQNO_ADVANCED, opaque: 77, ..RequestParts::default() };
        assert!(write_request(&mut message, &RequestParts { extras: &[0; 8], ..parts }));
        socket.write_all(&message.repeat(MESSAGES)).expect("the link takes it");
        socket.shutdown(std::net::Shutdown::Write).expect("it is open");
        let _ = socket.read_to_end(&mut Vec::new());
    });
    (address, thread)
}

#[test]
fn a_link_with_much_to_read_leaves_turns_to_its_neighbours() {
    let folder = tempfile::tempdir().expect("a folder");
    let env = Env::real();
    let bucket = bucket(&env, folder.path());
    let (node, sender) = source();
    let (announcer, memory) = (Announcer::default(), Arc::new(ConnectionMemory::new(None)));
    let runner = Arc::new(Caught::default());
    let (hearing, own_name) = (announcer.hearing(), "here:1".to_owned());
    let runs = Arc::clone(&runner) as Arc<dyn LinkRunner>;
    let replication = Replication::new(env.clone(), own_name, hearing, memory, runs, Arc::default());
    let (username, password) = ("u".to_owned(), Password::from("p".to_owned()));
    let source = Source { node: node.clone(), username, password, mode: Mode::Replicate };
    replication.want(&bucket, &Sources::from([(VbId(0), source)])).expect("it may");
    let links = runner.0.lock().take().expect("the links are run");
    let link = links.take_new().pop().expect("there is one");

    let strays = || replication.status(Some("test")).pop().expect("there is one").counts.strays;
    let is_over = Rc::new(Cell::new(false));
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let (most, looks) = runtime.expect("a runtime").block_on(async {
        let wire = Wire::connect(&env, &node, None).await.expect("the source listens");
        let ended = Rc::clone(&is_over);
        let running = tokio::task::spawn_local(async move {
            let (mut rollbacks, mut fills) = (link.rollbacks(), Fills::new(&link, brings_none()));
            let features = Features { collections: true, snappy: true, json: true };
            let outcome =
                Drive::new(&link, wire, features, &mut rollbacks, &mut fills).run(&RuntimePace).await;
            ended.set(true);
            outcome
        });
        // The neighbour: how much the link did between two of its turns, and how often it did something.
        let (mut most, mut looks, mut seen) = (0, 0, 0);
        while !is_over.get() {
            tokio::task::yield_now().await;
            let now = strays();
            most = most.max(now - seen);
            looks += usize::from(now > seen);
            seen = now;
        }
        assert_eq!(seen, MESSAGES as u64);
        running.await.expect("it does not panic").expect_err("the source ended the connection");
        (most, looks)
    });
    assert!(most <= TURN_MESSAGES as u64, "{most} messages in one turn");
    assert!(looks >= MESSAGES / TURN_MESSAGES, "{looks} turns");
    replication.stop();
    sender.join().expect("the source ends");
}
