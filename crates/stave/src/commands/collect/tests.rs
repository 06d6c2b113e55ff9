//! `stave collect` against a node: what is in the archive, and what is not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test reads what was written")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::cli::profile::ProfileFlags;
use crate::client::ClientTlsFlags;
use crate::commands::password::PasswordFlags;
use crate::test_server::{BUCKET, TestServer};

fn flags(addr: &str, out: PathBuf, log: Vec<PathBuf>) -> CollectFlags {
    let http = HttpFlags {
        addr: addr.to_owned(),
        username: "Administrator".to_owned(),
        password: PasswordFlags::of("password"),
        profile: ProfileFlags::default(),
        timeout: Duration::from_secs(10),
        tls: ClientTlsFlags::default(),
        json: true,
    };
    CollectFlags { out: Some(out), log, no_redact: false, http }
}

/// Files of an archive by their names.
fn read(path: &Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(path).expect("the archive is there");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let text = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        let (top, name) = name.split_once('/').expect("all are in one folder");
        assert!(top.starts_with("stave-collect-"), "{top}");
        let name = name.to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        (name, text)
    };
    archive.entries().expect("entries").map(text).collect()
}

#[test]
fn an_archive_has_what_the_node_says_and_no_names() {
    let mut server = TestServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("stave.log");
    std::fs::write(&log, "WARN a login failed user=ann peer=10.1.2.3:5\nWARN slow key=<ud>k1</ud>\n")
        .expect("written");
    let out = folder.path().join("report.tar.gz");
    let missing = folder.path().join("missing.log");
    let env = Env::real();
    let flags = flags(&server.http_target().addr, out.clone(), vec![log, missing]);
    run(&env, &flags).expect("it is made");
    let files = read(&out);

    let node =
        files.keys().find_map(|name| name.strip_suffix("/metrics.txt")).expect("a node's folder").to_owned();
    let of_node = |file: &str| files[&format!("{node}/{file}")].as_str();
    assert!(of_node("metrics.txt").contains("stave_items{bucket=\"default\""));
    assert!(of_node("pools_default.json").contains("nodes"));
    assert!(of_node(&format!("buckets/{BUCKET}/settings.json")).contains("mem_high_wat"));
    let log: Value = serde_json::from_str(of_node("log.json")).expect("JSON");
    assert!(log["list"].is_array(), "{log}");
    assert!(of_node("security.json").contains("tlsMinVersion"));
    assert!(of_node("client_cert_auth.json").contains("state"));
    for file in ["slow_operations.json", "cluster.json", &format!("buckets/{BUCKET}/samples.json")] {
        serde_json::from_str::<Value>(of_node(file)).expect(file);
    }
    assert!(of_node(&format!("buckets/{BUCKET}/replication.json")).contains("links"));
    // Every group that needs no argument, but the one that changes something.
    for group in GROUPS.iter().filter(|group| group.args.least == 0) {
        let name = if group.name.is_empty() { "all" } else { group.name };
        let file = format!("{node}/buckets/{BUCKET}/stats/{}.txt", in_a_name(name));
        assert_eq!(files.contains_key(&file), name != "reset", "{file}");
    }
    assert!(files["logs/stave.log"].contains("a login failed user="));
    for (name, text) in &files {
        assert!(!text.contains("=ann") && !text.contains("10.1.2.3") && !text.contains("k1<"), "{name}");
        assert!(!text.contains("password\""), "{name}");
    }
    let about: Value = serde_json::from_str(&files["collect.json"]).expect("JSON");
    let failures = about["failures"].as_array().expect("a list");
    assert!(
        failures.len() == 1 && failures[0].as_str().is_some_and(|why| why.contains("missing.log")),
        "{about}"
    );

    let again = run(&env, &flags).expect_err("the file is there");
    assert!(again.to_string().contains("is there already"), "{again}");
    server.stop();
    assert!(run(&env, &super::tests::flags(&flags.http.addr, folder.path().join("x"), Vec::new())).is_err());
    assert!(!folder.path().join("x").exists(), "nothing is left of one that could not begin");
}

#[test]
fn what_is_left_out_for_one_reason_is_one_line() {
    let of = |what: &str| format!("h:1, {what}: the server answered EACCESS: no right");
    let mut failures: Vec<String> =
        ["bucket a, stats all", "bucket a, stats b", "/x", "/y", "/z"].map(of).into();
    failures.push("h:2, /x: no answer".to_owned());
    failures.push("/var/log/stave.log: not found".to_owned());
    assert_eq!(
        grouped(&failures),
        [
            "h:1, bucket a, stats all; bucket a, stats b; /x and 2 more: the server answered EACCESS: no right",
            "h:2, /x: no answer",
            "/var/log/stave.log: not found",
        ]
    );
}
