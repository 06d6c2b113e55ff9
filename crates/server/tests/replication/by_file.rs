//! vBuckets that are filled with files of another node: downloaded through a proxy that can cut and flip, then filled, then
//! followed by streams.

use std::net::{SocketAddr, TcpListener};

use protocol::{RequestParts, Status, opcode};

use super::fed::{logged_in, read, send, status, value};
use super::*;

/// Passes bytes on, and does harm to what the source sends.
struct Between {
    addr: SocketAddr,
    connections: Arc<AtomicU64>,
    /// Bytes that the source sent.
    passed: Arc<AtomicU64>,
    /// Whether what is behind the cut is passed on.
    is_open: Arc<AtomicBool>,
}

/// What a connection suffers.
#[derive(Clone, Copy)]
enum Harm {
    /// It is cut after so many bytes.
    Cut(u64),
    /// It is held up after so many bytes, until that is open.
    Hold(u64),
}

/// Which bits of a connection are flipped.
#[derive(Clone, Copy)]
enum Flip {
    None,
    /// One behind so many bytes.
    One(u64),
    /// One of each large answer behind so many bytes.
    Each(u64),
}

/// Flips bits of the answers on a connection.
struct Flipper {
    flip: Flip,
    /// Bytes that came.
    came: u64,
    /// Where in an answer the next byte is.
    at: usize,
    head: [u8; 24],
}

impl Flipper {
    const IN_VALUE: usize = 1_000;

    fn pass(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            let (body, at) =
                (u32::from_be_bytes(self.head[8..12].try_into().expect("four")) as usize, self.at);
            let is_large = body > 2 * Self::IN_VALUE;
            match self.flip {
                Flip::One(place) if place == self.came => *byte ^= 1,
                Flip::Each(from) if from <= self.came && is_large && at == 24 + Self::IN_VALUE => *byte ^= 1,
                _ => {}
            }
            if at < 24 {
                self.head[at] = *byte;
            }
            self.came += 1;
            let body = u32::from_be_bytes(self.head[8..12].try_into().expect("four")) as usize;
            self.at = if at + 1 >= 24 && at + 1 == 24 + body { 0 } else { at + 1 };
        }
    }
}

impl Between {
    /// The first connection is cut after so many bytes, and bits of each one are flipped.
    fn to(source: SocketAddr, cut: u64, flip: Flip) -> Between {
        Between::harming(source, (0, Harm::Cut(cut)), (0, flip))
    }

    /// The connection of that number is harmed, and bits of those from a number on are flipped.
    fn harming(source: SocketAddr, harm: (u64, Harm), flip: (u64, Flip)) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (connections, passed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let is_open = Arc::new(AtomicBool::new(false));
        let between = Between {
            addr,
            connections: Arc::clone(&connections),
            passed: Arc::clone(&passed),
            is_open: Arc::clone(&is_open),
        };
        std::thread::spawn(move || {
            while let Ok((here, _)) = listener.accept() {
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let harm = Some(harm.1).filter(|_| number == harm.0);
                let flip = if number >= flip.0 { flip.1 } else { Flip::None };
                let there = TcpStream::connect(source).expect("the source listens");
                let clone = |stream: &TcpStream| stream.try_clone().expect("a handle");
                let (mut up, mut down) = ((clone(&here), clone(&there)), (there, here));
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut up.0, &mut up.1);
                    let _ = up.1.shutdown(std::net::Shutdown::Both);
                });
                let (passed, is_open) = (Arc::clone(&passed), Arc::clone(&is_open));
                std::thread::spawn(move || {
                    let (mut buf, mut of_this) = (vec![0; 8 << 10], 0);
                    let mut flipper = Flipper { flip, came: 0, at: 0, head: [0; 24] };
                    while let Ok(bytes @ 1..) = down.0.read(&mut buf) {
                        flipper.pass(&mut buf[..bytes]);
                        of_this += bytes as u64;
                        passed.fetch_add(bytes as u64, Ordering::SeqCst);
                        let is_cut = matches!(harm, Some(Harm::Cut(at)) if of_this > at);
                        while matches!(harm, Some(Harm::Hold(at)) if of_this > at)
                            && !is_open.load(Ordering::SeqCst)
                        {
                            std::thread::yield_now();
                        }
                        if is_cut || down.1.write_all(&buf[..bytes]).is_err() {
                            break;
                        }
                    }
                    let _ = (
                        down.0.shutdown(std::net::Shutdown::Both),
                        down.1.shutdown(std::net::Shutdown::Both),
                    );
                });
            }
        });
        between
    }
}

const NEVER: u64 = u64::MAX;

fn ask(client: &mut TcpStream, vb: u16, opcode: u8, extras: &[u8], json: &Value) -> (Status, String) {
    let json = json.to_string();
    let parts = RequestParts { opcode, vbucket: VbId(vb), extras, datatype: 1, ..RequestParts::default() };
    send(client, &RequestParts { value: json.as_bytes(), ..parts });
    let answer = read(client).expect("an answer");
    (status(&answer), String::from_utf8_lossy(value(&answer)).into_owned())
}

fn download(client: &mut TcpStream, vb: u16, source: SocketAddr, password: &str) -> (Status, String) {
    let json = json!({
        "bucket": "default", "host": source.ip().to_string(), "port": source.port(), "write_size": 65_536,
        "sasl": { "mechanism": "PLAIN", "username": "Administrator", "password": password },
    });
    ask(client, vb, opcode::DOWNLOAD_SNAPSHOT, &[], &json)
}

fn fill(client: &mut TcpStream, vb: u16, state: VbState) -> (Status, String) {
    ask(client, vb, opcode::SET_VBUCKET, &[state as u8], &json!({ "use_snapshot": "fbr" }))
}

#[test]
fn replicas_are_filled_with_files_and_followed_by_streams() {
    let (active, mut replica) = (Node::start(), Node::start());
    (0..3_000).for_each(|at| change(&active.bucket(), at));
    assert!(active.bucket().flushing().flush_all());
    replica.set_roles(VbState::Dead);
    let mut client = logged_in(&replica);
    let source = active.server().kv_addr();
    for vb in 0..VBUCKETS {
        assert_eq!(fill(&mut client, vb, VbState::Replica).0, Status::KeyEnoent, "nothing was downloaded");
        assert_eq!(download(&mut client, vb, source, "password"), (Status::Success, String::new()));
        assert_eq!(fill(&mut client, vb, VbState::Replica), (Status::Success, String::new()));
    }
    assert_eq!(active.high_seqnos(), replica.high_seqnos());
    assert_same(&active, &replica);
    assert_eq!(fill(&mut client, 0, VbState::Replica).0, Status::KeyEnoent, "the file is gone");
    assert_eq!(download(&mut client, 0, source, "password").0, Status::Success);
    let (refused, why) = fill(&mut client, 0, VbState::Replica);
    assert!(refused == Status::KeyEexists && why.contains("not an empty replica"), "{refused:?} {why}");
    // It is a replica as any other one, also after a restart.
    replica.stop();
    replica.start_again();
    (3_000..4_000).for_each(|at| change(&active.bucket(), at));
    replica.follow(&active.source(Mode::Replicate));
    caught_up(&active, &replica);
    assert_same(&active, &replica);
    let counts = replica.link().counts;
    assert!(counts.rollbacks == 0 && counts.changes < 1_200, "{counts:?}");
}

/// vBucket 5 gets some large documents, 3.6 MB; their keys.
fn large_documents(active: &Node) -> Vec<String> {
    let keys: Vec<String> =
        (0..).map(|at| format!("large{at}")).filter(|key| vb_of(key) == VbId(5)).take(12).collect();
    for (at, key) in (0_u64..).zip(&keys) {
        // What cannot be compressed, so that the file is large.
        let mut seed = at + 1;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        };
        let body: Vec<u8> = (0..300_000).map(|_| next()).collect();
        set(&active.bucket(), key, &body, 0).expect("stored");
    }
    assert!(active.bucket().flushing().flush_all());
    keys
}

/// Both have these documents in vBucket 5, which is active at both.
fn assert_same_large(active: &Node, replica: &Node, keys: &[String]) {
    assert_eq!(active.high_seqnos()[5], replica.high_seqnos()[5]);
    for key in keys {
        let of = |node: &Node| {
            let (bucket, key) = (node.bucket(), DocKey::new(key.as_bytes()));
            let found = bucket.documents().get(VbId(5), key, bucket.now()).expect("it is there");
            found.version.value().to_vec()
        };
        assert!(of(active) == of(replica), "{key}");
    }
}

#[test]
fn a_download_goes_on_after_a_cut_and_finds_what_was_flipped() {
    let (active, replica) = (Node::start(), Node::start());
    let keys = large_documents(&active);
    replica.set_roles(VbState::Dead);
    let mut client = logged_in(&replica);
    let source = active.server().kv_addr();
    let (refused, why) = download(&mut client, 5, source, "wrong");
    assert!(refused == Status::Etmpfail && why.contains("password is another one"), "{refused:?} {why}");
    let flipping = Between::to(source, NEVER, Flip::Each(1_000_000));
    let (refused, why) = download(&mut client, 5, flipping.addr, "password");
    assert!(refused == Status::Einternal && why.contains("checksum"), "{refused:?} {why}");
    let cutting = Between::to(source, 2_000_000, Flip::None);
    assert_eq!(download(&mut client, 5, cutting.addr, "password"), (Status::Success, String::new()));
    assert_eq!(cutting.connections.load(Ordering::SeqCst), 2);
    // The part that came before is not sent again: neither that of the first connection nor that of the download before.
    let passed = cutting.passed.load(Ordering::SeqCst);
    assert!((2_000_000..4_000_000).contains(&passed), "{passed} bytes for 3,600,000");
    assert_eq!(fill(&mut client, 5, VbState::Active), (Status::Success, String::new()));
    assert_same_large(&active, &replica, &keys);
    assert_eq!(fill(&mut client, 5, VbState::Dead).0, Status::Einval);
    let wrong = json!({ "use_snapshot": "fusion" });
    assert_eq!(ask(&mut client, 6, opcode::SET_VBUCKET, &[2], &wrong).0, Status::Einval);
}

#[test]
fn a_flipped_bit_costs_a_fragment_and_not_the_file() {
    let (active, replica) = (Node::start(), Node::start());
    let keys = large_documents(&active);
    replica.set_roles(VbState::Dead);
    // In the middle of a fragment, whatever the lengths of the answers before it are.
    let flipping = Between::to(active.server().kv_addr(), NEVER, Flip::One(1_030_000));
    let mut client = logged_in(&replica);
    assert_eq!(download(&mut client, 5, flipping.addr, "password"), (Status::Success, String::new()));
    let passed = flipping.passed.load(Ordering::SeqCst);
    assert!((3_600_000..3_720_000).contains(&passed), "{passed} bytes for 3,600,000 and a fragment");
    assert_eq!(flipping.connections.load(Ordering::SeqCst), 1);
    assert_eq!(fill(&mut client, 5, VbState::Active), (Status::Success, String::new()));
    assert_same_large(&active, &replica, &keys);
}

#[test]
fn a_download_goes_on_behind_what_is_known_to_be_good_only() {
    let (active, mut replica) = (Node::start(), Node::start());
    large_documents(&active);
    replica.set_roles(VbState::Dead);
    let source = active.server().kv_addr();
    let flipping = Between::to(source, NEVER, Flip::Each(3_000_000));
    assert_eq!(download(&mut logged_in(&replica), 5, flipping.addr, "password").0, Status::Einternal);
    // What of a part was durable when a node ended is not known.
    replica.stop();
    replica.start_again();
    let whole = Between::to(source, NEVER, Flip::None);
    assert_eq!(download(&mut logged_in(&replica), 5, whole.addr, "password").0, Status::Success);
    assert!(whole.passed.load(Ordering::SeqCst) > 3_600_000, "all of it came again");
}

#[test]
fn no_download_makes_the_folder_of_a_deleted_bucket_again() {
    let (active, replica) = (Node::start(), Node::start());
    large_documents(&active);
    replica.set_roles(VbState::Dead);
    // A source that lets no one in, until the bucket is gone.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let mut client = logged_in(&replica);
    let json = json!({
        "bucket": "default", "host": addr.ip().to_string(), "port": addr.port(),
        "sasl": { "username": "Administrator", "password": "password" },
    });
    let json = json.to_string();
    let parts =
        RequestParts { opcode: opcode::DOWNLOAD_SNAPSHOT, vbucket: VbId(5), ..RequestParts::default() };
    send(&mut client, &RequestParts { datatype: 1, value: json.as_bytes(), ..parts });
    let (mut here, _) = listener.accept().expect("it connects");
    assert_eq!(replica.http("DELETE", "/pools/default/buckets/default", &Value::Null).0, 200);
    let mut there = TcpStream::connect(active.server().kv_addr()).expect("the source listens");
    let (mut from, mut to) = (there.try_clone().expect("a handle"), here.try_clone().expect("a handle"));
    let back = std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
    // It ends by itself, without having written anything.
    let _ = std::io::copy(&mut here, &mut there);
    let _ = there.shutdown(std::net::Shutdown::Both);
    back.join().expect("it does not panic");
    let folder = replica.folder.path().join("buckets/default");
    assert!(!folder.exists(), "{}", folder.display());
}

/// A node with changes that are on disk alone, so that a stream from the beginning reads the disk.
fn on_disk(change_all: impl FnOnce(&Node)) -> Node {
    let mut active = Node::start();
    change_all(&active);
    assert!(active.bucket().flushing().flush_all());
    active.stop();
    active.start_again();
    active
}

fn fills(node: &Node, how: &str) {
    node.bucket().set_param("replica_fill", how).expect("a good value");
}

/// What was filled with a file is here before its stream goes on.
fn streams_again(replica: &Node) {
    eventually("all streams go on", || replica.link().streaming() == usize::from(VBUCKETS));
}

fn followed(between: &Between, active: &Node) -> Source {
    Source { node: between.addr.to_string(), ..active.source(Mode::Replicate) }
}

#[test]
fn a_replica_is_filled_with_files_by_itself_and_goes_on_with_streams() {
    let active = on_disk(|active| (0..3_000).for_each(|at| change(&active.bucket(), at)));
    let mut replica = Node::start();
    fills(&replica, "file");
    replica.follow(&active.source(Mode::Replicate));
    (3_000..4_000).for_each(|at| change(&active.bucket(), at));
    caught_up(&active, &replica);
    streams_again(&replica);
    assert_same(&active, &replica);
    let link = replica.link();
    assert_eq!((link.counts.filled_by_file, link.counts.filled_by_documents), (16, 0), "{link:?}");
    assert!(link.file_bytes > 0 && link.files_refused == 0 && link.counts.rollbacks == 0, "{link:?}");
    let (status, told) = replica.http("GET", "/v1/buckets/default/replication", &Value::Null);
    assert_eq!((status, &told["links"][0]["filled_by_file"]), (200, &json!(16)), "{told}");
    assert!(!replica.folder.path().join("buckets/default/downloads/5").exists(), "no file is left");
    // It is a replica as any other one, also after a restart, and takes the role of the active one.
    replica.stop();
    replica.start_again();
    (4_000..5_000).for_each(|at| change(&active.bucket(), at));
    replica.follow(&active.source(Mode::Replicate));
    caught_up(&active, &replica);
    streams_again(&replica);
    assert_same(&active, &replica);
    assert_eq!(replica.link().counts.rollbacks, 0);
    replica.follow(&active.source(Mode::TakeOver));
    eventually("all are taken over", || replica.all_have_role(VbState::Active));
    set(&replica.bucket(), "k1", b"here now", 0).expect("it is active");
}

#[test]
fn what_is_faster_is_chosen_by_the_number_of_changes() {
    let active = on_disk(|active| (0..2_000).for_each(|at| change(&active.bucket(), at)));
    let replica = Node::start();
    fills(&replica, "auto");
    replica.follow(&active.source(Mode::Replicate));
    caught_up(&active, &replica);
    streams_again(&replica);
    let counts = replica.link().counts;
    assert_eq!((counts.filled_by_file, counts.filled_by_documents), (0, 16), "few changes: {counts:?}");
    let other = Node::start();
    fills(&other, "auto");
    other.bucket().set_param("replica_fill_min_changes", "20").expect("a good value");
    other.follow(&active.source(Mode::Replicate));
    caught_up(&active, &other);
    streams_again(&other);
    assert_same(&active, &other);
    let counts = other.link().counts;
    assert_eq!((counts.filled_by_file, counts.filled_by_documents), (16, 0), "many changes: {counts:?}");
}

#[test]
fn a_file_that_is_cut_off_goes_on_where_it_stood() {
    let active = on_disk(|active| drop(large_documents(active)));
    let replica = Node::start();
    fills(&replica, "file");
    // The first connection is the link's, the second one brings the file.
    let cutting = Between::harming(active.server().kv_addr(), (1, Harm::Cut(2_000_000)), (0, Flip::None));
    replica.follow(&followed(&cutting, &active));
    caught_up(&active, &replica);
    streams_again(&replica);
    assert_same(&active, &replica);
    let link = replica.link();
    assert_eq!((link.counts.filled_by_file, link.counts.filled_by_documents), (1, 0), "{link:?}");
    assert!((3_600_000..4_000_000).contains(&link.file_bytes), "nothing came twice: {link:?}");
    assert_eq!(cutting.connections.load(Ordering::SeqCst), 3);
}

#[test]
fn a_file_that_is_damaged_on_its_way_gives_way_to_documents() {
    let active = on_disk(|active| drop(large_documents(active)));
    let replica = Node::start();
    fills(&replica, "file");
    let flipping =
        Between::harming(active.server().kv_addr(), (0, Harm::Cut(NEVER)), (1, Flip::Each(1_000_000)));
    replica.follow(&followed(&flipping, &active));
    caught_up(&active, &replica);
    streams_again(&replica);
    assert_same(&active, &replica);
    let link = replica.link();
    assert_eq!((link.counts.filled_by_file, link.counts.filled_by_documents), (0, 1), "{link:?}");
    let why = link.file_refused.expect("it is told why");
    assert!(link.files_refused == 1 && why.contains("vBucket 5") && why.contains("checksum"), "{why}");
}

#[test]
fn a_source_that_loses_the_vbucket_meanwhile_is_asked_again() {
    let active = on_disk(|active| drop(large_documents(active)));
    let replica = Node::start();
    fills(&replica, "file");
    let holding = Between::harming(active.server().kv_addr(), (1, Harm::Hold(2_000_000)), (0, Flip::None));
    replica.follow(&followed(&holding, &active));
    eventually("a part of the file is here", || replica.link().file_bytes >= 1 << 20);
    let roles = active.bucket();
    for state in [VbState::Dead, VbState::Active] {
        roles.roles().set_vbucket_state(VbId(5), state, None).expect("there is one");
    }
    holding.is_open.store(true, Ordering::SeqCst);
    eventually("it is told why there is no file", || replica.link().files_refused == 1);
    caught_up(&active, &replica);
    streams_again(&replica);
    eventually("the histories are the same", || active.histories() == replica.histories());
    assert_same(&active, &replica);
}

#[test]
fn a_replica_that_stops_while_its_file_comes_is_filled_after_its_start() {
    let active = on_disk(|active| drop(large_documents(active)));
    let mut replica = Node::start();
    fills(&replica, "file");
    let holding = Between::harming(active.server().kv_addr(), (1, Harm::Hold(2_000_000)), (0, Flip::None));
    replica.follow(&followed(&holding, &active));
    eventually("a part of the file is here", || replica.link().file_bytes >= 1 << 20);
    replica.stop();
    replica.start_again();
    assert_eq!(replica.high_seqnos()[5], Seqno(0), "it has nothing of it");
    fills(&replica, "file");
    replica.follow(&active.source(Mode::Replicate));
    caught_up(&active, &replica);
    streams_again(&replica);
    assert_same(&active, &replica);
    assert_eq!(replica.link().counts.filled_by_file, 1);
    let folder = replica.folder.path().join("buckets/default/downloads/5");
    assert!(!folder.exists(), "no part is left");
}
