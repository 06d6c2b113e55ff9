//! Backups of a node in the same process, restored into another one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::backup::Version;
use crate::cli::ServerFlags;
use crate::commands::restore::{RestoreFlags, restore};
use crate::test_server::{BUCKET, NOT_INTERRUPTED, TestServer};
use base::VbId;
use base::env::OpenMode;
use base::vbucket_map::vbucket_of;
use clap::Parser;

fn make_backup(server: &TestServer, dir: &Path, options: &TakeOptions) -> anyhow::Result<Taken> {
    let env = Env::real();
    let repository = Repository::new(&env, dir);
    take(&env, &server.target(), &repository, options, &NOT_INTERRUPTED, &mut |_| {})
}

pub(super) fn restored(
    server: &TestServer,
    dir: &Path,
    more: &[&str],
) -> anyhow::Result<crate::with_meta::SentCounts> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: RestoreFlags,
    }
    let dir = dir.to_str().expect("text");
    let line: Line = clap::Parser::parse_from(["restore", "--from", dir].iter().chain(more));
    let mut flags = line.flags;
    flags.server = ServerFlags { node: server.flags(), bucket: BUCKET.to_owned() };
    let target = flags.server.target(Dialect::Couchbase)?;
    Ok(restore(&Env::real(), &flags, target)?.1)
}

/// Everything that a backup has of a document or tombstone, but for its seqno.
type Whole = (bool, u64, u64, u32, u32, u8, Vec<u8>);

/// All that the newest backup in a folder restores.
fn contents(dir: &Path) -> BTreeMap<(u32, Vec<u8>), Whole> {
    let env = Env::real();
    let repository = Repository::new(&env, dir);
    let chain = repository.chain(BUCKET, None).expect("a backup");
    let mut reader = ChainReader::open(&repository, &chain).expect("sound");
    let mut all = BTreeMap::new();
    for vb in 0..chain.newest().manifest.vbuckets {
        let mut visit = |version: &Version<'_>| -> Result<(), BackupError> {
            let one = &version.record;
            let whole = (
                one.deleted,
                one.cas,
                one.rev_seqno,
                // When a tombstone was made is a moment of the node that made it.
                if one.deleted { 0 } else { one.expiry },
                one.flags,
                one.datatype.0,
                one.value.to_vec(),
            );
            let before = all.insert((one.key.collection.0, one.key.key.to_vec()), whole);
            assert_eq!(before, None, "each is there once");
            Ok(())
        };
        reader.newest(VbId(vb), &mut visit).expect("sound");
    }
    all
}

fn values(contents: &BTreeMap<(u32, Vec<u8>), Whole>) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let living = contents.iter().filter(|(_, whole)| !whole.0);
    living.map(|((_, key), whole)| (text(key), text(&whole.6))).collect()
}

#[test]
fn a_bucket_comes_back_from_a_full_backup_and_those_behind_it() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let dir = folder.path();
    let mut model = BTreeMap::new();
    let mut client = server.client();
    for at in 0..500 {
        let (key, value) = (format!("k{at}"), format!("{{\"n\":{at}}}"));
        client
            .set(key.as_bytes(), value.as_bytes(), if at % 7 == 0 { 2_000_000_000 } else { 0 })
            .expect("stored");
        model.insert(key, value);
    }
    let first = make_backup(&server, dir, &TakeOptions::default()).expect("a backup");
    assert_eq!((first.manifest.base.as_deref(), first.manifest.total().documents), (None, 500));
    assert_eq!(values(&contents(dir)), model);

    // From memory and, behind a restart, from disk.
    for round in 0..2 {
        for at in 0..20 {
            let key = format!("k{}", at * 9 + round);
            client.set(key.as_bytes(), format!("{round}").as_bytes(), 0).expect("stored");
            model.insert(key, format!("{round}"));
            let key = format!("k{}", 300 + at + 20 * round);
            client.delete(key.as_bytes()).expect("there");
            model.remove(&key);
        }
        if round == 1 {
            drop(client);
            server.restart();
            client = server.client();
        }
        let later = make_backup(&server, dir, &TakeOptions::default()).expect("a backup");
        assert_eq!(later.again, 0, "histories go on over a clean stop");
        assert!(later.manifest.base.is_some() && later.manifest.total().documents <= 40, "{later:?}");
        assert_eq!(values(&contents(dir)), model);
    }
    let idle = make_backup(&server, dir, &TakeOptions::default()).expect("a backup");
    assert_eq!((idle.unchanged, idle.manifest.total().documents), (4, 0));
    assert_eq!(values(&contents(dir)), model);

    // Another node has the same afterwards, with metadata and tombstones.
    let (mut other, second) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let sent = restored(&other, dir, &[]).expect("restored");
    assert_eq!((sent.documents, sent.tombstones, sent.conflicts), (460, 40, 0), "{sent:?}");
    make_backup(&other, second.path(), &TakeOptions::default()).expect("a backup");
    assert_eq!(contents(second.path()), contents(dir));
    drop(client);
    server.stop();
    other.stop();
}

#[test]
fn an_emptied_bucket_is_backed_up_from_its_beginning() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let mut client = server.client();
    for at in 0..40 {
        client.set(format!("old{at}").as_bytes(), b"old", 0).expect("stored");
    }
    make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    drop(client);
    let http = server.http_target();
    http.form("/pools/default/buckets/default", &[("flushEnabled", "1")]).expect("it may be emptied");
    http.form("/pools/default/buckets/default/controller/doFlush", &[]).expect("emptied");
    let mut client = server.client();
    client.set(b"new", b"new", 0).expect("stored");
    let later = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    assert_eq!(later.again + later.unchanged, 4, "no history goes on: {later:?}");
    assert_eq!(values(&contents(folder.path())), [("new".to_owned(), "new".to_owned())].into());
    drop(client);
    server.stop();
}

#[test]
fn conflicts_end_as_was_asked() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let dir = folder.path();
    let mut client = server.client();
    for key in [b"kept", b"gone", b"dead"] {
        client.set(key, b"1", 0).expect("stored");
    }
    client.delete(b"dead").expect("there");
    make_backup(&server, dir, &TakeOptions::default()).expect("a backup");
    client.set(b"kept", b"2", 0).expect("stored");
    client.delete(b"gone").expect("there");
    client.set(b"dead", b"3", 0).expect("stored");
    let mut get = |key: &[u8]| client.get(key).expect("an answer").map(|found| found.value);
    let newest = restored(&server, dir, &[]).expect("restored");
    assert_eq!((newest.documents, newest.conflicts), (0, 3), "{newest:?}");
    assert_eq!((get(b"kept"), get(b"gone"), get(b"dead")), (Some(b"2".to_vec()), None, Some(b"3".to_vec())));
    let skipped = restored(&server, dir, &["--conflict", "skip"]).expect("restored");
    // The bucket's tombstone stays, too.
    assert_eq!((skipped.documents, skipped.conflicts), (0, 2), "{skipped:?}");
    assert_eq!((get(b"kept"), get(b"gone"), get(b"dead")), (Some(b"2".to_vec()), None, Some(b"3".to_vec())));
    restored(&server, dir, &["--conflict", "force"]).expect("restored");
    assert_eq!((get(b"kept"), get(b"gone"), get(b"dead")), (Some(b"1".to_vec()), Some(b"1".to_vec()), None));
    drop(client);
    server.stop();
}

#[test]
fn collections_are_made_mapped_and_chosen() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let http = server.http_target();
    let scopes = "/pools/default/buckets/default/scopes";
    http.form(scopes, &[("name", "app")]).expect("a scope");
    for name in ["users", "orders", "dropped"] {
        http.form(&format!("{scopes}/app/collections"), &[("name", name)]).expect("a collection");
    }
    let env = Env::real();
    let mut cluster = crate::client::Cluster::open(&env, server.target(), &[]).expect("a cluster");
    for name in ["app.users", "app.orders", "app.dropped"] {
        cluster.use_collection(name).expect("it is there");
        for at in 0..10 {
            cluster.set(format!("k{at}").as_bytes(), name.as_bytes(), 0).expect("stored");
        }
    }
    let dir = folder.path();
    make_backup(&server, dir, &TakeOptions::default()).expect("a backup");
    http.request("DELETE", &format!("{scopes}/app/collections/dropped"), None).expect("dropped");
    make_backup(&server, dir, &TakeOptions::default()).expect("a backup");

    let mut other = TestServer::start();
    let map = ["--collections", "app.users", "--map", "app.users=old.people", "--filter", "^k[0-4]$"];
    let sent = restored(&other, dir, &map).expect("restored");
    assert_eq!(sent.documents, 5, "{sent:?}");
    assert_eq!(sent.skipped[&crate::with_meta::Skipped::NotAskedFor], 15, "{sent:?}");
    assert_eq!(sent.skipped[&crate::with_meta::Skipped::DroppedCollection], 10, "{sent:?}");
    let mut there = crate::client::Cluster::open(&env, other.target(), &[]).expect("a cluster");
    there.use_collection("old.people").expect("it was made");
    assert_eq!(there.get(b"k3").expect("an answer").expect("a document").value, b"app.users");
    assert!(there.use_collection("app.orders").is_err(), "only what was asked for is made");
    let all = restored(&other, dir, &[]).expect("restored");
    assert_eq!(all.documents, 20, "{all:?}");
    assert!(there.use_collection("app.dropped").is_err(), "it was dropped before the backup");
    let wrong =
        restored(&other, dir, &["--map", "app.users=app.orders"]).expect_err("two into one").to_string();
    assert!(wrong.contains("`app.orders`"), "{wrong}");
    drop((cluster, there));
    server.stop();
    other.stop();
}

#[test]
fn an_interrupted_backup_says_so_and_is_gone_on_with() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let mut client = server.client();
    for at in 0..100 {
        client.set(format!("k{at}").as_bytes(), b"v", 0).expect("stored");
    }
    let env = Env::real();
    let repository = Repository::new(&env, folder.path());
    let interrupted = AtomicBool::new(true);
    let taken = take(&env, &server.target(), &repository, &TakeOptions::default(), &interrupted, &mut |_| {});
    let said = taken.expect_err("interrupted").to_string();
    assert!(said.starts_with("interrupted: ") && said.ends_with("goes on with the rest"), "{said}");
    assert!(repository.chain(BUCKET, None).is_err(), "it is not complete");
    let begun = repository.unfinished_backup(BUCKET).expect("read").expect("it was begun");
    assert!(begun.base.is_none() && begun.vbuckets == 4 && begun.done <= 4, "{begun:?}");
    let command = |newest| resumed_by(&begun, newest, Path::new("/b"), "default");
    assert_eq!(command(None).as_deref(), Some("stave backup --to /b --bucket default"));
    assert_eq!(
        command(Some("20261127T000000Z")).as_deref(),
        Some("stave backup --to /b --bucket default --full")
    );
    let said = unfinished_text(&begun, BUCKET, command(None).as_deref());
    assert!(said.contains(&begun.id) && said.contains("of 4 vBuckets"), "{said}");
    assert_eq!(unfinished_json(&begun, BUCKET, None)["vbuckets"], 4);
    let taken = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    assert_eq!(taken.manifest.total().documents, 100, "{taken:?}");
    assert_eq!(repository.backups(BUCKET).expect("read").len(), 1, "it is the same backup");
    assert!(repository.unfinished_backup(BUCKET).expect("read").is_none(), "it is complete");
    drop(client);
    server.stop();
}

/// Makes a backup one that was broken off behind its last vBucket.
fn break_off(dir: &Path, id: &str) {
    let (env, folder) = (Env::real(), dir.join(BUCKET).join(id));
    for name in ["manifest", "manifest.copy"] {
        env.disk.remove_file(&folder.join(name)).expect("it has a manifest");
    }
}

#[test]
fn nothing_of_another_history_is_gone_on_with() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let mut client = server.client();
    // One vBucket is empty, so far.
    let full = (0..).map(|at| format!("old{at}")).filter(|key| vbucket_of(key.as_bytes(), 4) != VbId(0));
    for key in full.take(40) {
        client.set(key.as_bytes(), b"old", 0).expect("stored");
    }
    let first = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    break_off(folder.path(), &first.manifest.id);
    let same = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    assert_eq!((same.kept, &same.manifest.id), (4, &first.manifest.id), "{same:?}");
    // It is of the moment of the first try, which is told.
    assert!(same.is_resumed && same.manifest.begun_s == first.manifest.begun_s, "{same:?}");
    let begun = utc_text(first.manifest.begun_s);
    let told = resumed_text(&same).expect("it is told");
    assert!(told.contains(&begun) && told.contains(&same.manifest.id), "{told}");
    assert_eq!((resumed_text(&first), summary_json(&first)["resumed"].clone()), (None, json!(false)));
    assert!(state_text(&same.manifest).contains(&format!("begun: {begun}, complete: ")));
    break_off(folder.path(), &first.manifest.id);
    drop(client);
    let http = server.http_target();
    http.form("/pools/default/buckets/default", &[("flushEnabled", "1")]).expect("it may be emptied");
    http.form("/pools/default/buckets/default/controller/doFlush", &[]).expect("emptied");
    let mut client = server.client();
    let mut new = BTreeMap::new();
    for at in 0..40 {
        client.set(format!("new{at}").as_bytes(), b"new", 0).expect("stored");
        new.insert(format!("new{at}"), "new".to_owned());
    }
    let later = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    assert_eq!((later.kept, later.without_moment.as_deref()), (0, None), "{later:?}");
    assert!(!later.is_resumed, "{later:?}");
    assert_eq!(values(&contents(folder.path())), new);
    drop(client);
    server.stop();
}

#[test]
fn what_is_kept_keeps_what_it_goes_on_from() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let mut client = server.client();
    for round in 0..6 {
        client.set(b"k", format!("{round}").as_bytes(), 0).expect("stored");
        make_backup(&server, folder.path(), &TakeOptions { is_full: round == 3, ..TakeOptions::default() })
            .expect("a backup");
    }
    let env = Env::real();
    let repository = Repository::new(&env, folder.path());
    let all = || -> Vec<Backup> {
        let all = repository.backups(BUCKET).expect("read");
        all.into_iter().map(|one| one.expect("sound")).collect()
    };
    // The second newest goes on from the fourth, which is full.
    assert_eq!(unneeded(&all(), 2).len(), 3);
    assert_eq!(unneeded(&all(), 4).len(), 0);
    let store = ObjectStoreFlags::default();
    let kept = KeptFlags { dir: folder.path().to_owned(), store, bucket: None, json: true };
    prune(&env, &PruneFlags { kept: kept.clone(), keep: Keep::Newest(1), dry_run: true })
        .expect("nothing is removed");
    assert_eq!(all().len(), 6);
    prune(&env, &PruneFlags { kept: kept.clone(), keep: Keep::Newest(1), dry_run: false }).expect("removed");
    assert_eq!(all().len(), 3);
    let one = OneFlags { kept, id: None };
    assert_eq!(verify(&env, &one).expect("read"), Outcome::Done);
    assert_eq!(values(&contents(folder.path()))["k"], "5");
    drop(client);
    server.stop();
}

#[test]
fn last_is_the_newest_backup_and_makes_no_full_one() {
    let (mut server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let flags = |since: &str| {
        let line = ["stave", "backup", "--to", "/b", "--since", since];
        match crate::cli::Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(crate::cli::Command::Backup(flags)) => take_options(&flags),
            other => panic!("{:?}", other.err()),
        }
    };
    assert!(flags("LAST").needs_base && flags("LAST").since.is_none() && flags("last").needs_base);
    assert_eq!(flags("20261127T000000Z").since.as_deref(), Some("20261127T000000Z"));
    let said = make_backup(&server, folder.path(), &flags("LAST")).expect_err("there is none").to_string();
    assert!(said.contains("no complete backup to go on from"), "{said}");
    let first = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a full one").manifest;
    let later = make_backup(&server, folder.path(), &flags("LAST")).expect("a later one").manifest;
    assert_eq!(later.base, Some(first.id));
    server.stop();
}

#[test]
fn a_restore_that_ends_early_says_what_it_leaves() {
    let (server, folder) = (TestServer::start(), tempfile::tempdir().expect("a folder"));
    let mut client = server.client();
    let mut state = 1u32;
    for at in 0..200 {
        // What compresses badly, so that the file has several frames.
        let value: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(20_000)
        .collect();
        client.set(format!("k{at}").as_bytes(), &value, 0).expect("stored");
    }
    let taken = make_backup(&server, folder.path(), &TakeOptions::default()).expect("a backup");
    let (disk, dir) = (Env::real().disk, folder.path().join(BUCKET).join(&taken.manifest.id));
    let open = |path: &Path| disk.open(path, OpenMode::ReadWrite).expect("it is there");
    let len = |path: &Path| open(path).len().expect("its length");
    let paths = disk.read_dir(&dir).expect("it is there").into_iter().map(|name| dir.join(name));
    let path = paths.max_by_key(|path| len(path)).expect("the changes");
    let mut all = vec![0; len(&path) as usize];
    open(&path).read_at(&mut all, 0).expect("it is sound");
    // The last block of the vBucket that is restored last: its number stands behind the mark and the backup's number.
    let is_last_vbucket = |head: &[u8]| head[..4] == *b"SBK1" && head[12..14] == [0, 3];
    let late = all.windows(14).rposition(is_last_vbucket).expect("a block") + 1_000;
    open(&path).write_at(&[all[late] ^ 1], late as u64).expect("written");
    let error = restored(&server, folder.path(), &["--conflict", "force"]).expect_err("it is damaged");
    let error = format!("{error:#}");
    assert!(error.contains("documents were sent") && error.contains("stay there"), "{error}");
    assert!(error.contains(path.to_str().expect("text")), "{error}");
}

#[test]
fn a_backup_that_goes_on_from_others_says_what_its_counts_are_about() {
    assert_eq!(counts_head(1, false), "", "all that a restore brings");
    assert!(counts_head(2, true).contains("nothing was changed since the backup before it"));
    assert!(counts_head(2, false).contains("a restore brings what those before it have, too:"));
}

#[test]
fn a_snapshot_keeps_the_collections_that_are_dropped_behind_it() {
    let (mut server, mut other) = (TestServer::start(), TestServer::start());
    let (folder, env, http) = (tempfile::tempdir().expect("a folder"), Env::real(), server.http_target());
    let scopes = "/pools/default/buckets/default/scopes";
    http.form(scopes, &[("name", "app")]).expect("a scope");
    http.form(&format!("{scopes}/app/collections"), &[("name", "made")]).expect("a collection");
    let mut cluster = crate::client::Cluster::open(&env, server.target(), &[]).expect("a cluster");
    cluster.use_collection("app.made").expect("it is there");
    cluster.set(b"k", b"in a collection", 0).expect("stored");
    let made = crate::client::dcp::make_snapshot(&env, &server.target()).expect("a moment");
    http.request("DELETE", &format!("{scopes}/app/collections/made"), None).expect("dropped");
    let options = TakeOptions { snapshot: Some(made.id), ..TakeOptions::default() };
    make_backup(&server, folder.path(), &options).expect("a backup");
    assert_eq!(restored(&other, folder.path(), &[]).expect("restored").documents, 1);
    let mut there = crate::client::Cluster::open(&env, other.target(), &[]).expect("a cluster");
    there.use_collection("app.made").expect("it was made");
    assert_eq!(there.get(b"k").expect("an answer").expect("it is there").value, b"in a collection");
    drop((cluster, there));
    server.stop();
    other.stop();
}

/// A try without the snapshot may have come between: its vBuckets are no part of the moment.
#[test]
fn a_backup_that_goes_on_is_of_one_moment_if_all_of_it_is_and_leaves_a_given_snapshot() {
    let mut server = TestServer::start();
    let (folder, env, mut client) = (tempfile::tempdir().expect("a folder"), Env::real(), server.client());
    let mut write = |round: &str| {
        for at in 0..20 {
            client.set(format!("k{at}").as_bytes(), round.as_bytes(), 0).expect("stored");
        }
    };
    write("before");
    let made = crate::client::dcp::make_snapshot(&env, &server.target()).expect("a moment");
    write("behind");
    let given = TakeOptions { snapshot: Some(made.id.clone()), is_full: true, ..TakeOptions::default() };
    let disk = &env.disk;
    for is_whole in [true, false] {
        let taken = make_backup(&server, folder.path(), &given).expect("a backup").manifest;
        let dir = folder.path().join(BUCKET).join(&taken.id);
        // Broken off before its end.
        for name in disk.read_dir(&dir).expect("it is there") {
            if name.starts_with("manifest") {
                disk.remove_file(&dir.join(name)).expect("removed");
            }
        }
        if !is_whole {
            let lines = dir.join("vbuckets");
            let file = disk.open(&lines, OpenMode::ReadWrite).expect("it is there");
            let mut text = vec![0; file.len().expect("its length") as usize];
            file.read_at(&mut text, 0).expect("it is read");
            let text = String::from_utf8(text).expect("text");
            let at = made.vbuckets.values().next().expect("there is one").seqno.0;
            let changed = text.lines().map(|line| later(line, at)).collect::<String>();
            file.set_len(0).and_then(|()| file.write_at(changed.as_bytes(), 0)).expect("written");
        }
        let taken =
            make_backup(&server, folder.path(), &TakeOptions { is_full: true, ..TakeOptions::default() });
        let taken = taken.expect("it goes on");
        assert!(taken.kept > 0, "it goes on with what was complete");
        assert_eq!(taken.manifest.snapshot, is_whole.then(|| made.id.clone()));
        assert_eq!(taken.without_moment.is_some(), !is_whole);
    }
    assert!(
        crate::client::dcp::end_snapshot(&env, &server.target(), &made.id).expect("an answer"),
        "it stays"
    );
    server.stop();
}

/// The line of a vBucket that ends at a seqno, as one that ends behind it.
fn later(line: &str, at: u64) -> String {
    let json = &line[9..];
    let json = json.replacen(&format!("\"to\":{at},"), &format!("\"to\":{},", at + 1), 1);
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}
