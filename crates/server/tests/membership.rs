//! What a node knows of its cluster for good: a store that was restored from an older state, nodes that start without
//! their cluster, and one node that grows to several.
#![allow(clippy::disallowed_methods, reason = "what the server made of the folder is looked at from outside")]

#[path = "support/log.rs"]
mod log;
mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::cluster::store::{Commit, LeaseId, Snapshot, StoreFailure, Swap, Swapped, Version};
use ::cluster::{Command, MemoryStore, State, Store, View, Writer};
use base::encryption::WrappingKeys;
use base::env::Env;
use base::{VbId, VbState};
use log::Log;
use node::Config;
use node::cluster::{Cluster, ClusterConfig};
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, http};

/// Longer than anything here takes: nothing waits for it if all is well.
const SOON: Duration = Duration::from_secs(60);

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    fn start(folder: &Path, store: &Arc<dyn Store>) -> Member {
        Member::joined(support::start_member(folder), store)
    }

    /// One whose files are encrypted, or are not.
    fn of(folder: &Path, store: &Arc<dyn Store>, encryption: Option<WrappingKeys>) -> Member {
        let config = Config { is_member: true, encryption, ..support::config(folder, 1, "") };
        let member = Member::joined(server::serve(config, Env::real()).expect("the node starts"), store);
        assert!(member.cluster.wait_until_served(SOON), "{:?}", member.cluster.outside());
        member
    }

    fn joined(server: Server, store: &Arc<dyn Store>) -> Member {
        let config = ClusterConfig { lease_ttl: Duration::from_secs(2), ..ClusterConfig::default() };
        let cluster = Cluster::join(Arc::clone(server.node()), Arc::clone(store), config).expect("it joins");
        Member { server, cluster }
    }

    fn served(folder: &Path, store: &Arc<dyn Store>) -> Member {
        let member = Member::start(folder, store);
        assert!(member.cluster.wait_until_served(SOON), "{:?}", member.cluster.outside());
        member
    }

    fn wait(&self, what: &str, is_so: impl Fn(&View) -> bool) {
        let done =
            self.cluster.wait_until(SOON, |view, applied| applied >= view.state.revision && is_so(view));
        assert!(done, "{what}: {:?}", self.cluster.view());
    }

    /// Whether a document is there, once the node has become what it is to be.
    fn lacks(&self, key: &[u8]) -> bool {
        (0..2_000).any(|_| {
            let frame = Client::connect(&self.server, "default", &[]).get(key).expect("an answer");
            frame.status == Status::KeyEnoent
                || self.cluster.wait_until(Duration::from_millis(5), |_, _| false)
        })
    }

    fn has(&self, key: &[u8]) -> bool {
        (0..2_000).any(|_| {
            let frame = Client::connect(&self.server, "default", &[]).get(key).expect("an answer");
            match frame.status {
                Status::Success => true,
                Status::KeyEnoent => panic!("{} is gone", key.escape_ascii()),
                _ => {
                    self.cluster.wait_until(Duration::from_millis(5), |_, _| false);
                    false
                }
            }
        })
    }

    fn stop(self) {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
    }
}

/// A store that a founder reaches until it has written the first state, so that the founder never sees it.
struct Founded {
    store: Arc<dyn Store>,
    is_away: Arc<AtomicBool>,
}

impl Founded {
    fn there(&self) -> Result<&dyn Store, StoreFailure> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(StoreFailure { operation: "reach", reason: "it is away".to_owned() });
        }
        Ok(&*self.store)
    }
}

impl Store for Founded {
    fn read(&self) -> Result<Snapshot, StoreFailure> {
        self.there()?.read()
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        self.there()?.swap(swap)
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        let is_first = commit.guard.is_some_and(|(_, version)| version == Version::ABSENT);
        let swapped = self.there()?.commit(commit)?;
        self.is_away.fetch_or(is_first, Ordering::SeqCst);
        Ok(swapped)
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        self.there()?.wait(after, at_most)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        self.there()?.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.there()?.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        self.there()?.revoke(lease)
    }
}

/// A node with a document founds a cluster, and ends before it has seen what it wrote.
fn founded_and_ended(folder: &Path, store: &Arc<dyn Store>) {
    let server = server::serve(support::config(folder, 1, ""), Env::real()).expect("a node alone");
    let put = Client::connect(&server, "default", &[]).set(b"key", b"value");
    assert_eq!(put, Some(Status::Success));
    server.stop().expect("a clean stop");
    let is_away = Arc::new(AtomicBool::new(false));
    let once: Arc<dyn Store> = Arc::new(Founded { store: Arc::clone(store), is_away: Arc::clone(&is_away) });
    let founder = Member::start(folder, &once);
    let has_founded = (0..20_000).any(|_| {
        is_away.load(Ordering::SeqCst) || founder.cluster.wait_until(Duration::from_millis(1), |_, _| false)
    });
    assert!(has_founded, "it writes the first state");
    founder.stop();
    assert!(!folder.join("cluster-membership").exists(), "it has not seen it");
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Env::real().clock))
}

fn state(store: &Arc<dyn Store>) -> State {
    View::of(&store.read().expect("it answers")).expect("sound").expect("it is there").state
}

/// As if the store had been restored from a backup.
fn restore(store: &Arc<dyn Store>, state: &State) {
    let puts = state.changes(None).expect("sound");
    store.commit(Commit { guard: None, puts: &puts, lease: None }).expect("it answers");
}

fn make_bucket(member: &Member) {
    let form = "name=default&ramQuotaMB=100&replicaNumber=0";
    let (code, told) = http(&member.server, "POST", "/pools/default/buckets", form);
    assert_eq!(code, 202, "{told}");
    let put = (0..2_000).any(|_| {
        let mut client = Client::connect(&member.server, "default", &[]);
        client.set(b"key", b"value") == Some(Status::Success)
    });
    assert!(put, "it is served");
}

/// The same with a replica, in a cluster of two.
fn make_bucket_of_two(first: &Member) {
    let form = "name=default&ramQuotaMB=100&replicaNumber=1";
    assert_eq!(http(&first.server, "POST", "/pools/default/buckets", form).0, 202);
    first.wait("each vBucket has two copies", |view| {
        let bucket = view.state.buckets.get("default");
        bucket.is_some_and(|bucket| {
            bucket.steps.is_empty() && bucket.map.iter().flatten().flatten().count() == 8
        })
    });
}

/// Files and folders of a folder that a member has left, moved elsewhere: all, or those that `is_lost` names.
struct Lost {
    from: PathBuf,
    aside: tempfile::TempDir,
}

impl Lost {
    fn of(folder: &Path, is_lost: impl Fn(&str) -> bool) -> Lost {
        let aside = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(folder).expect("it is there") {
            let entry = entry.expect("it is there");
            let name = entry.file_name().into_string().expect("a name");
            if is_lost(&name) {
                std::fs::rename(entry.path(), aside.path().join(&name)).expect("it is moved");
            }
        }
        Lost { from: folder.to_owned(), aside }
    }

    /// Puts all of it back, in the place of what was made meanwhile.
    fn put_back(self) {
        for entry in std::fs::read_dir(self.aside.path()).expect("it is there") {
            let entry = entry.expect("it is there");
            let to = self.from.join(entry.file_name());
            let removed = if to.is_dir() { std::fs::remove_dir_all(&to) } else { std::fs::remove_file(&to) };
            drop(removed);
            std::fs::rename(entry.path(), to).expect("it is moved");
        }
    }
}

/// What a node that must not serve a document answers, whatever it is asked.
fn serves_nothing(member: &Member) {
    for _ in 0..20 {
        let (mut client, selected) = Client::try_connect(&member.server, "default", &[]);
        if selected == Status::Success {
            let status = client.get(b"key").map(|frame| frame.status);
            assert!(!matches!(status, Some(Status::Success | Status::KeyEnoent)), "{status:?}");
        }
        member.cluster.wait_until(Duration::from_millis(20), |_, _| false);
    }
}

/// A member of a cluster, and another one that has each bucket's replicas.
fn pair(folders: [&Path; 2], store: &Arc<dyn Store>) -> [Member; 2] {
    let members = folders.map(|folder| Member::served(folder, store));
    members[0].wait("both have joined", |view| view.state.nodes.len() == 2);
    let asked = (0..1_000).any(|_| {
        let asked = members[0].cluster.ask(&Command::Rebalance { eject: Vec::new() }).is_ok();
        asked || members[0].cluster.wait_until(Duration::from_millis(20), |_, _| false)
    });
    assert!(asked, "a rebalance begins");
    members[0].wait("both are active", |view| {
        let state = &view.state;
        state.rebalance.is_none() && state.nodes.keys().all(|id| state.is_active(*id))
    });
    members
}

fn quarantined(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("quarantine")).map_or(0, Iterator::count)
}

#[test]
fn an_older_state_deletes_nothing_and_is_not_followed() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    let older = state(&store);
    make_bucket(&member);
    let newer = state(&store);
    restore(&store, &older);
    let refuses = (0..20_000).any(|_| {
        member.cluster.wait_until(Duration::from_millis(1), |_, _| false);
        member.cluster.outside().is_some_and(|why| why.contains("restored from an older state"))
    });
    assert!(refuses, "{:?}", member.cluster.outside());
    let frame = Client::connect(&member.server, "default", &[]).get(b"key").expect("an answer");
    assert_eq!(frame.status, Status::NotMyVbucket, "it serves nobody");
    let asked = member.cluster.ask(&Command::DropBucket { name: "default".to_owned() });
    assert!(asked.is_err_and(|why| why.to_string().contains("stave cluster adopt")));
    // Neither after a restart.
    member.stop();
    let member = Member::start(folder.path(), &store);
    assert!(!member.cluster.wait_until_served(SOON), "it does not wait for long");
    restore(&store, &newer);
    assert!(member.has(b"key"));
    assert_eq!(quarantined(folder.path()), 0);
    member.stop();
}

#[test]
fn an_older_state_that_is_adopted_deletes_nothing() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    let (code, told) = http(&member.server, "POST", "/controller/adoptState", "");
    assert!(code == 400 && told.contains("nothing to adopt"), "{code} {told}");
    let older = state(&store);
    make_bucket(&member);
    let newer = state(&store);
    restore(&store, &older);
    let refuses = (0..20_000).any(|_| {
        member.cluster.wait_until(Duration::from_millis(1), |_, _| false);
        member.cluster.outside().is_some()
    });
    assert!(refuses, "it has read the older state");
    let (code, told) = http(&member.server, "POST", "/controller/adoptState", "");
    assert_eq!(code, 200, "{told}");
    member.wait("it follows", |view| view.state.revision > newer.revision && view.state.buckets.is_empty());
    assert_eq!(quarantined(folder.path()), 0, "the state does not say that the bucket was deleted");
    assert!(folder.path().join("buckets/default").is_dir());
    // What the state has again is served again.
    let mut again = newer;
    again.revision = state(&store).revision + 1;
    again.epoch += 9;
    restore(&store, &again);
    // Not by itself, whatever its revision: it is of the branch that was given up.
    let refuses = (0..20_000).any(|_| {
        member.cluster.wait_until(Duration::from_millis(1), |_, _| false);
        member.cluster.outside().is_some_and(|why| why.contains("adopted without"))
    });
    assert!(refuses, "{:?}", member.cluster.outside());
    let (code, told) = http(&member.server, "POST", "/controller/adoptState", "");
    assert_eq!(code, 200, "{told}");
    assert!(member.has(b"key"));
    member.stop();
}

/// The store was restored from an older state, and others that had seen no more changed it: its revision is higher than
/// what the node has seen, and means something else.
#[test]
fn a_state_that_was_made_without_what_the_node_has_seen_is_not_followed() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    let older = state(&store);
    make_bucket(&member);
    let mut writer = Writer::default();
    let other = (0..20).fold(older, |state, _| {
        let mut next = state.next();
        writer.sign(&mut next, state.revision, 1 << 40);
        next
    });
    restore(&store, &other);
    let refuses = (0..20_000).any(|_| {
        member.cluster.wait_until(Duration::from_millis(1), |_, _| false);
        member.cluster.outside().is_some_and(|why| why.contains("made without") && why.contains("adopt"))
    });
    assert!(refuses, "{:?}", member.cluster.outside());
    let (code, told) = http(&member.server, "POST", "/controller/adoptState", "");
    assert_eq!(code, 200, "{told}");
    member.wait("it follows", |view| view.state.revision > other.revision && view.state.buckets.is_empty());
    assert!(folder.path().join("buckets/default").is_dir(), "the state does not say that it was deleted");
    member.stop();
}

/// A bucket that a node cannot make what the document says costs the node no promise for its other buckets.
#[test]
fn a_bucket_that_cannot_be_applied_costs_no_promises() {
    let (store, folders) = (store(), [(); 2].map(|()| tempfile::tempdir().expect("a folder")));
    let first = Member::served(folders[0].path(), &store);
    make_bucket(&first);
    let second = Member::served(folders[1].path(), &store);
    first.wait("both have joined", |view| view.state.nodes.len() == 2);
    first.cluster.ask(&Command::Rebalance { eject: Vec::new() }).expect("it begins");
    first.wait("both have a share", |view| {
        view.state.rebalance.is_none() && view.state.nodes.keys().all(|id| view.state.is_active(*id))
    });
    let mut stuck = state(&store).next();
    let bucket = stuck.buckets.get_mut("default").expect("it was made");
    bucket.settings = serde_json::json!({ "from": "a later version" });
    restore(&store, &stuck);
    let has_seen =
        |member: &Member| member.cluster.wait_until(SOON, |view, _| view.state.revision >= stuck.revision);
    assert!(has_seen(&first) && has_seen(&second), "both read what they cannot become");
    assert!(first.cluster.wait_until_promised(SOON));
    second.stop();
    let is_over = (0..60_000).any(|_| {
        first.cluster.wait_until(Duration::from_millis(1), |_, _| false);
        !first.cluster.is_promised()
    });
    assert!(is_over, "what the process before has promised ends");
    // This process promises nothing to a node that may serve what its node has seen others take over.
    let second = Member::start(folders[1].path(), &store);
    assert!(first.cluster.wait_until_promised(SOON), "{:?}", first.cluster.view());
    [first, second].into_iter().for_each(Member::stop);
}

/// All that is refused is told, and a refused manifest keeps no vBucket from its role.
#[test]
fn refused_settings_and_a_refused_manifest_are_both_told_and_roles_are_applied() {
    let log = Log::listen();
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    let bucket = member.server.node().bucket("default").expect("it was made");
    assert_eq!(bucket.state_of(VbId(0)), Some(VbState::Active));
    let mut stuck = state(&store).next();
    let is = stuck.buckets.get_mut("default").expect("it was made");
    is.settings = serde_json::json!({ "from": "a later version" });
    is.manifest = serde_json::json!({ "uid": "no number", "scopes": [] }).into();
    is.map[0] = vec![None; is.map[0].len()];
    restore(&store, &stuck);
    let (mut has_told, mut is_applied) = (false, false);
    let parts =
        ["the bucket is not what the cluster wants", "does not know what it is asked to be", "its manifest"];
    let is_so = (0..20_000).any(|_| {
        member.cluster.wait_until(Duration::from_millis(1), |_, _| false);
        has_told = log.has_line(&parts);
        is_applied = bucket.state_of(VbId(0)) != Some(VbState::Active);
        has_told && is_applied
    });
    assert!(is_so, "told: {has_told}, applied: {is_applied}");
    drop(bucket);
    member.stop();
}

#[test]
fn a_store_that_lost_everything_is_no_new_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let member = Member::served(folder.path(), &store());
    member.stop();
    let empty = store();
    let member = Member::start(folder.path(), &empty);
    assert!(!member.cluster.wait_until_served(SOON));
    let why = member.cluster.outside().expect("it says why");
    assert!(why.contains("holds no cluster of this name") && why.contains("--leave-cluster"), "{why}");
    assert!(empty.read().expect("it answers").entries.keys().all(|key| key.starts_with("members/")));
    member.stop();
    // Nor does it follow another cluster.
    let other = tempfile::tempdir().expect("a folder");
    let first = Member::served(other.path(), &empty);
    let member = Member::start(folder.path(), &empty);
    assert!(!member.cluster.wait_until_served(SOON));
    let why = member.cluster.outside().expect("it says why");
    assert!(why.contains("this node belongs to cluster"), "{why}");
    member.stop();
    first.stop();
}

#[test]
fn the_files_of_a_deleted_bucket_are_kept_for_a_while() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    let (code, told) = http(&member.server, "DELETE", "/pools/default/buckets/default", "");
    assert_eq!(code, 200, "{told}");
    assert_eq!(state(&store).deleted.len(), 1);
    assert!(!folder.path().join("buckets/default").exists());
    assert_eq!(quarantined(folder.path()), 1);
    make_bucket(&member);
    member.stop();
}

#[test]
fn a_member_does_not_start_without_its_cluster() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    member.stop();
    let refused = server::serve(support::config(folder.path(), 1, ""), Env::real())
        .err()
        .expect("it is refused")
        .to_string();
    assert!(refused.contains("--join") && refused.contains("--leave-cluster"), "{refused}");
    let leaves = Config { leaves_cluster: true, ..support::config(folder.path(), 1, "") };
    let server = server::serve(leaves, Env::real()).expect("it leaves");
    let frame = Client::connect(&server, "default", &[]).get(b"key").expect("an answer");
    assert_eq!(frame.status, Status::Success, "its copies are served");
    server.stop().expect("a clean stop");
    server::serve(support::config(folder.path(), 1, ""), Env::real())
        .expect("it has left")
        .stop()
        .expect("a clean stop");
    // Its old cluster does not take it for the node that left.
    let member = Member::start(folder.path(), &store);
    assert!(!member.cluster.wait_until_served(SOON));
    assert!(member.cluster.outside().is_some_and(|why| why.contains("keeps its copies")));
    member.stop();
}

/// Nothing of it is taken for the copies that the node had: neither by the cluster nor by the node.
#[test]
fn a_member_whose_folder_was_emptied_is_another_node() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    member.stop();
    let lost = Lost::of(folder.path(), |_| true);
    let before = state(&store);
    let member = Member::start(folder.path(), &store);
    member.wait("it joins as a new node", |view| view.state.nodes.len() == 2);
    serves_nothing(&member);
    let after = state(&store);
    let (new, _) = after.nodes.iter().find(|(id, _)| !before.nodes.contains_key(id)).expect("it has joined");
    assert!(!after.is_active(*new));
    let (had, has) = (&before.buckets["default"], &after.buckets["default"]);
    assert_eq!(had.map, has.map, "the copies are those of the node that is gone");
    member.stop();
    lost.put_back();
    let member = Member::start(folder.path(), &store);
    assert!(member.has(b"key"), "the node that had left is back with its copies");
    member.stop();
}

/// The same beside another node, which had the replicas: durable writes do not count the new node.
#[test]
fn a_member_whose_folder_was_emptied_is_no_copy() {
    let (store, folders) = (store(), [(); 2].map(|()| tempfile::tempdir().expect("a folder")));
    let [first, second] = pair([folders[0].path(), folders[1].path()], &store);
    make_bucket_of_two(&first);
    let before = state(&store);
    second.stop();
    let lost = Lost::of(folders[1].path(), |_| true);
    let second = Member::start(folders[1].path(), &store);
    first.wait("it joins as a new node", |view| view.state.nodes.len() == 3);
    assert_eq!(before.buckets["default"].map, state(&store).buckets["default"].map);
    // Majority, for at most a tenth of a second.
    let durable = |key: &str| {
        let request = RequestParts {
            opcode: opcode::SET,
            key: key.as_bytes(),
            extras: &[0; 8],
            value: b"v",
            ..RequestParts::default()
        };
        let vbucket = support::vb(key.as_bytes());
        Client::connect(&first.server, "default", &[Feature::AltRequestSupport, Feature::SyncReplication])
            .request(&RequestParts { frame_infos: &[0x13, 0x01, 0, 100], vbucket, ..request })
            .status
    };
    let is_asked = || {
        let answers: Vec<Status> = (0..40).map(|at| durable(&format!("key-{at}"))).collect();
        assert!(!answers.contains(&Status::Success), "{answers:?}");
        answers.iter().filter(|status| **status == Status::SyncWriteAmbiguous).count() > 5
    };
    // Where the machine stood still for longer than its lease it serves a moment later.
    let is_active =
        (0..2_000).any(|_| is_asked() || first.cluster.wait_until(Duration::from_millis(5), |_, _| false));
    assert!(is_active, "this node is active for half of the vBuckets");
    drop(lost);
    second.stop();
    first.stop();
}

/// Nothing is left but the name by which the cluster knows it.
#[test]
fn a_member_that_lost_all_but_its_identity_serves_nothing() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    member.stop();
    let lost = Lost::of(folder.path(), |name| !name.starts_with("node-uuid"));
    for _ in 0..2 {
        let member = Member::start(folder.path(), &store);
        assert!(!member.cluster.wait_until_served(SOON));
        let why = member.cluster.outside().expect("it stays outside");
        assert!(why.contains("node-uuid") && why.contains("put the folder back"), "{why}");
        serves_nothing(&member);
        let has_lease = |view: &View| !view.members.is_empty();
        let gone = (0..2_000).any(|_| {
            let view = View::of(&store.read().expect("it answers")).expect("sound").expect("it is there");
            !has_lease(&view) || member.cluster.wait_until(Duration::from_millis(5), |_, _| false)
        });
        assert!(gone, "it gives its lease up, so that the cluster can fail it over");
        member.stop();
    }
    lost.put_back();
    let member = Member::start(folder.path(), &store);
    assert!(member.has(b"key"));
    member.stop();
}

/// Another node joins before the founder is back.
#[test]
fn a_founder_that_ended_before_it_saw_what_it_wrote_is_taken_back() {
    let (store, folders) = (store(), [(); 2].map(|()| tempfile::tempdir().expect("a folder")));
    founded_and_ended(folders[0].path(), &store);
    let alone = server::serve(support::config(folders[0].path(), 1, ""), Env::real()).err();
    assert!(alone.is_some_and(|why| why.to_string().contains("--join")), "it belongs to a cluster");
    let second = Member::start(folders[1].path(), &store);
    second.wait("it joins", |view| view.state.nodes.len() == 2);
    let first = Member::served(folders[0].path(), &store);
    assert!(first.has(b"key"));
    assert!(!folders[0].path().join("cluster-founding").exists(), "it is over");
    first.stop();
    second.stop();
}

/// The same state, and nothing of the folder but the identity is left: that is no founder.
#[test]
fn a_founder_that_lost_all_but_its_identity_serves_nothing() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    founded_and_ended(folder.path(), &store);
    let lost = Lost::of(folder.path(), |name| !name.starts_with("node-uuid"));
    let member = Member::start(folder.path(), &store);
    assert!(!member.cluster.wait_until_served(SOON));
    serves_nothing(&member);
    member.stop();
    lost.put_back();
    let member = Member::served(folder.path(), &store);
    assert!(member.has(b"key"));
    member.stop();
}

/// Folder and list of the buckets are gone, and the rest of the node's data says that it has had the bucket.
#[test]
fn a_bucket_that_a_member_has_had_does_not_begin_empty() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    member.stop();
    let lost = Lost::of(folder.path(), |name| name.starts_with("buckets"));
    let member = Member::start(folder.path(), &store);
    let is_down = |_: &View| member.server.node().served().why_down("default").is_some();
    assert!(member.cluster.wait_until(SOON, |view, _| is_down(view)));
    let why = member.server.node().served().why_down("default").expect("it is down");
    assert!(why.contains("buckets.json"), "{why}");
    serves_nothing(&member);
    member.stop();
    lost.put_back();
    let member = Member::start(folder.path(), &store);
    assert!(member.has(b"key"));
    member.stop();
}

/// What is noted of the buckets is put back as it was before the bucket was emptied.
#[test]
fn a_bucket_is_not_emptied_again_when_older_notes_are_put_back() {
    not_emptied_again(None);
}

#[test]
fn the_same_where_files_are_encrypted() {
    let log = Log::listen();
    not_emptied_again(Some(WrappingKeys::parse(&"1".repeat(64), "the test").expect("keys")));
    assert!(!log.has_line(&["stay so until the next start"]), "each file has its folder's key");
}

fn not_emptied_again(encryption: Option<WrappingKeys>) {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::of(folder.path(), &store, encryption.clone());
    make_bucket(&member);
    let change = http(&member.server, "POST", "/pools/default/buckets/default", "flushEnabled=1");
    assert_eq!(change.0, 200, "{}", change.1);
    let names = ["cluster-buckets.json", "cluster-buckets.json.copy"];
    let notes = names.map(|name| (folder.path().join(name), std::fs::read(folder.path().join(name)).ok()));
    assert!(notes[0].1.is_some(), "it is noted");
    let flush = "/pools/default/buckets/default/controller/doFlush";
    let (code, told) = http(&member.server, "POST", flush, "");
    assert_eq!(code, 200, "{told}");
    assert!(member.lacks(b"key"));
    let mut client = Client::connect(&member.server, "default", &[]);
    assert_eq!(client.set(b"after", b"value"), Some(Status::Success));
    drop(client);
    member.stop();
    let newer = std::fs::read(&notes[0].0).expect("it is there");
    for (path, bytes) in &notes {
        match bytes {
            Some(bytes) => std::fs::write(path, bytes).expect("written"),
            None => drop(std::fs::remove_file(path)),
        }
    }
    assert_ne!(std::fs::read(&notes[0].0).expect("it is there"), newer, "they are older");
    let member = Member::of(folder.path(), &store, encryption);
    assert!(member.has(b"after"));
    // The next one is done.
    let (code, told) = http(&member.server, "POST", flush, "");
    assert_eq!(code, 200, "{told}");
    assert!(member.lacks(b"after"));
    member.stop();
}

/// What the node has noted of its cluster is put back, both slots, together with the store: the bucket's folder has seen
/// more. The older state has another bucket of that name, for which this one would go.
#[test]
fn an_older_note_that_is_put_back_does_not_have_an_older_state_followed() {
    older_note_put_back(None);
}

#[test]
fn the_same_of_a_note_where_files_are_encrypted() {
    older_note_put_back(Some(WrappingKeys::parse(&"1".repeat(64), "the test").expect("keys")));
}

fn older_note_put_back(encryption: Option<WrappingKeys>) {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::of(folder.path(), &store, encryption.clone());
    make_bucket(&member);
    member.stop();
    let (path, older) = (folder.path().join("cluster-membership"), state(&store));
    let older_note = std::fs::read(&path).expect("it is there");
    let member = Member::of(folder.path(), &store, encryption.clone());
    assert_eq!(http(&member.server, "DELETE", "/pools/default/buckets/default", "").0, 200);
    make_bucket(&member);
    let newer = state(&store);
    member.stop();
    restore(&store, &older);
    std::fs::write(&path, older_note).expect("written");
    let log = Log::listen();
    let config = Config { is_member: true, encryption, ..support::config(folder.path(), 1, "") };
    let member = Member::joined(server::serve(config, Env::real()).expect("the node starts"), &store);
    assert!(!member.cluster.wait_until_served(SOON), "it follows the older state");
    let why = member.cluster.outside().expect("it stays outside");
    assert!(why.contains("restored from an older state"), "{why}");
    assert!(log.has_line(&["cluster-membership is older than what the folders"]));
    assert_eq!(quarantined(folder.path()), 1, "the second bucket stays");
    restore(&store, &newer);
    assert!(member.has(b"key"));
    member.stop();
}

/// A disk that refuses is no damage: nothing is given up for it.
#[test]
fn a_bucket_that_a_member_cannot_read_is_not_lost() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let member = Member::served(folder.path(), &store);
    make_bucket(&member);
    member.stop();
    let bucket = folder.path().join("buckets/default");
    let lost = Lost::of(&bucket, |name| name.starts_with("manifest.json"));
    // What is in their place cannot be read as a file.
    for name in ["manifest.json", "manifest.json.copy"] {
        std::fs::create_dir(bucket.join(name)).expect("a folder");
    }
    let member = Member::start(folder.path(), &store);
    member.cluster.wait_until(SOON, |_, applied| {
        applied > 0 || member.server.node().served().why_down("default").is_some()
    });
    serves_nothing(&member);
    let why = member.server.node().served().why_down("default").expect("it is down");
    assert!(why.contains("manifest.json") && !why.contains("has had the bucket"), "{why}");
    assert!(bucket.exists(), "its files stay");
    member.stop();
    for name in ["manifest.json", "manifest.json.copy"] {
        std::fs::remove_dir(bucket.join(name)).expect("it is there");
    }
    lost.put_back();
    let member = Member::start(folder.path(), &store);
    assert!(member.has(b"key"));
    member.stop();
}

/// Where another node has all of the bucket, its copies are filled again from there.
#[test]
fn a_bucket_that_a_member_has_lost_is_filled_again() {
    let (store, folders) = (store(), [(); 2].map(|()| tempfile::tempdir().expect("a folder")));
    let [first, second] = pair([folders[0].path(), folders[1].path()], &store);
    make_bucket_of_two(&first);
    let members = [&first, &second];
    let served = |key: &str, members: [&Member; 2]| {
        (0..2_000).any(|_| {
            let found = members.iter().any(|member| {
                let (mut client, selected) = Client::try_connect(&member.server, "default", &[]);
                selected == Status::Success
                    && client.get(key.as_bytes()).is_some_and(|frame| frame.status == Status::Success)
            });
            found || members[0].cluster.wait_until(Duration::from_millis(5), |_, _| false)
        })
    };
    let keys: Vec<String> = (0..40).map(|at| format!("key-{at}")).collect();
    for key in &keys {
        let put = (0..2_000).any(|_| {
            let put =
                members.iter().any(|member| {
                    let request = RequestParts {
                        opcode: opcode::SET,
                        key: key.as_bytes(),
                        extras: &[0; 8],
                        value: b"v",
                        ..RequestParts::default()
                    };
                    let vbucket = support::vb(key.as_bytes());
                    let features = [Feature::AltRequestSupport, Feature::SyncReplication];
                    let frame = Client::connect(&member.server, "default", &features)
                        .request(&RequestParts { frame_infos: &[0x11, 0x01], vbucket, ..request });
                    frame.status == Status::Success
                });
            put || first.cluster.wait_until(Duration::from_millis(5), |_, _| false)
        });
        assert!(put, "{key}");
    }
    second.stop();
    drop(Lost::of(folders[1].path(), |name| name.starts_with("buckets")));
    let second = Member::start(folders[1].path(), &store);
    first.wait("the chains are whole again", |view| {
        let bucket = &view.state.buckets["default"];
        bucket.steps.is_empty() && bucket.map.iter().flatten().flatten().count() == 8
    });
    assert!(keys.iter().all(|key| served(key, [&first, &second])), "nothing is lost");
    second.stop();
    first.stop();
}

#[test]
fn one_node_grows_to_three() {
    let (store, folder) = (store(), tempfile::tempdir().expect("a folder"));
    let server = server::serve(support::config(folder.path(), 1, ""), Env::real()).expect("a node alone");
    let path = "/pools/default/buckets/default/scopes/_default/collections";
    assert_eq!(http(&server, "POST", path, "name=c").0, 200);
    let keys: Vec<String> = (0..40).map(|at| format!("key-{at}")).collect();
    for key in &keys {
        let put = Client::connect(&server, "default", &[]).set(key.as_bytes(), b"value");
        assert_eq!(put, Some(Status::Success));
    }
    server.stop().expect("a clean stop");
    let first = Member::served(folder.path(), &store);
    assert!(keys.iter().all(|key| first.has(key.as_bytes())));
    let ids = state(&store).buckets["default"].next_ids;
    assert!(ids.collection > 8, "ids of collections go on: {ids:?}");
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let others: Vec<Member> = folders.iter().map(|folder| Member::served(folder.path(), &store)).collect();
    first.wait("all have joined", |view| view.state.nodes.len() == 3);
    let asked = (0..1_000).any(|_| {
        let asked = first.cluster.ask(&Command::Rebalance { eject: Vec::new() }).is_ok();
        asked || first.cluster.wait_until(Duration::from_millis(20), |_, _| false)
    });
    assert!(asked, "a rebalance begins");
    first.wait("they have their share", |view| {
        let state = &view.state;
        state.rebalance.is_none() && state.nodes.keys().all(|id| state.is_active(*id))
    });
    let members: Vec<Member> = std::iter::once(first).chain(others).collect();
    for key in &keys {
        let found = (0..2_000).any(|_| {
            let found = members.iter().filter(|member| {
                let frame = Client::connect(&member.server, "default", &[]).get(key.as_bytes());
                frame.expect("an answer").status == Status::Success
            });
            found.count() == 1 || members[0].cluster.wait_until(Duration::from_millis(5), |_, _| false)
        });
        assert!(found, "{key}");
    }
    members.into_iter().for_each(Member::stop);
}
