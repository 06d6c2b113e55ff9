//! Data directories that earlier versions wrote (`tests/golden/data`): this version reads them in full, and refuses files
//! that a newer version wrote, by name and without changing them.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of the process itself")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use flate2::read::GzDecoder;
use rustix::process::{Pid, Signal, kill_process};

/// What a newer version writes into headers of small files, as far as this test goes.
const NEWER: &str = "version=99";

/// The folders of versions, each with its archives.
fn versions() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/data");
    let entries = fs::read_dir(&all).expect("there are data directories");
    let mut folders: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    assert!(!folders.is_empty(), "no version in {}", all.display());
    folders
}

/// Unpacks an archive; the data directory that was in it.
fn unpack(archive: &Path, folder: &Path) -> PathBuf {
    let bytes = GzDecoder::new(File::open(archive).expect("an archive"));
    tar::Archive::new(bytes).unpack(folder).expect("it can be unpacked");
    folder.join("data")
}

fn stave() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stave"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("STAVE_")) {
        command.env_remove(name);
    }
    command.env("STAVE_PASSWORD", "password");
    command
}

/// A node, which does not outlive the test.
struct Node {
    child: Child,
    /// Empty if it ended before it was ready.
    ready: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    fn start(data: &Path) -> Node {
        let config = data.with_file_name("stave.toml");
        let is_log = data.join("buckets/default/0.manifest").exists();
        let kind = if is_log { ":magma" } else { "" };
        let settings = format!("vbuckets = 8\nbuckets = [\"default:100MiB{kind}\"]\n");
        fs::write(&config, settings).expect("a file");
        let mut child = stave()
            .args(["serve", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--config"])
            .arg(config)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::piped())
            .stderr(File::create(data.with_file_name("log")).expect("a file"))
            .spawn()
            .expect("the binary is there");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut ready).expect("text");
        Node { child, ready }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let kv = self.ready.split_ascii_whitespace().find_map(|word| word.strip_prefix("kv="));
        stave().args(arguments).args(["--addr", kv.expect("it is ready")]).output().expect("it runs")
    }

    /// Stops it if it runs; whether its end was clean.
    fn stop(&mut self) -> bool {
        if !self.ready.is_empty() {
            kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        }
        self.child.wait().expect("it ends").success()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn data_of_every_version_is_read_in_full() {
    for version in versions() {
        let expected = fs::read_to_string(version.join("expected.jsonl")).expect("it is there");
        assert!(expected.lines().count() > 50, "{}", version.display());
        for kind in ["stopped", "killed"] {
            let what = version.join(kind);
            let folder = tempfile::tempdir().expect("a folder");
            let data = unpack(&version.join(format!("{kind}.tar.gz")), folder.path());
            // The second start reads what this version has written over it.
            for _ in 0..2 {
                let mut node = Node::start(&data);
                let log = || fs::read_to_string(folder.path().join("log")).expect("a log");
                assert!(!node.ready.is_empty(), "{}: {}", what.display(), log());
                let exported = node.ask(&["export", "--to", "-"]);
                let exported = text(&exported.stdout);
                let mut lines: Vec<&str> = exported.lines().filter(|line| line.starts_with('{')).collect();
                lines.sort_unstable();
                assert_eq!(lines, expected.lines().collect::<Vec<_>>(), "{}", what.display());
                // Its users, too, with the rights that they had.
                let reader = ["--username", "reader", "--password", "reader1"];
                let read = node.ask(&[&["get", "k11"], &reader[..]].concat());
                assert!(text(&read.stdout).contains("\"changed\":true"), "{}: {read:?}", what.display());
                let refused = node.ask(&[&["set", "k11", "1"], &reader[..]].concat());
                assert_eq!(refused.status.code(), Some(3), "{}: {refused:?}", what.display());
                assert!(node.stop(), "{}: {}", what.display(), log());
            }
            let checked = stave().arg("check").arg(&data).output().expect("it runs");
            assert!(checked.status.success(), "{}: {}", what.display(), text(&checked.stdout));
        }
    }
}

/// CRC-32C (RFC 3720).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (0..8).fold(crc, |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)));
    !bytes.iter().fold(!0, |crc, byte| step(crc ^ u32::from(*byte)))
}

/// A small file with a header as a newer version would write it; `None` for a file without one.
fn newer(bytes: &[u8]) -> Option<Vec<u8>> {
    const CHECKSUM: &[u8] = b" crc32c=";
    let end = bytes.windows(CHECKSUM.len()).position(|window| window == CHECKSUM)? + CHECKSUM.len();
    let header = std::str::from_utf8(&bytes[..end]).ok().filter(|text| text.starts_with("stave-file 1 "))?;
    let words = header.split(' ').map(|word| if word.starts_with("version=") { NEWER } else { word });
    let (header, content) = (words.collect::<Vec<_>>().join(" "), &bytes[end + 9..]);
    let crc = crc32c(&[header.as_bytes(), content].concat());
    Some([header.as_bytes(), format!("{crc:08x}\n").as_bytes(), content].concat())
}

/// Files by their paths, with what they hold.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let mut bytes = Vec::new();
            File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("it can be read");
            found.insert(path, bytes);
        }
    }
    found
}

#[test]
fn files_of_a_newer_version_are_refused_by_name_and_not_changed() {
    let archive = versions().pop().expect("there is one").join("stopped.tar.gz");
    let folder = tempfile::tempdir().expect("a folder");
    let all = files(&unpack(&archive, folder.path()));
    let with_header: Vec<&PathBuf> = all
        .iter()
        .filter(|(path, bytes)| path.extension().is_none_or(|end| end != "copy") && newer(bytes).is_some())
        .map(|(path, _)| path)
        .collect();
    let names: Vec<_> = with_header.iter().filter_map(|path| path.file_name()).collect();
    assert!(names.len() >= 5 && names.contains(&"buckets.json".as_ref()), "{names:?}");
    for path in with_header {
        fs::remove_dir_all(folder.path().join("data")).expect("it is there");
        let data = unpack(&archive, folder.path());
        let copy = path.with_file_name(format!("{}.copy", path.file_name().expect("a name").display()));
        let changed: Vec<(&PathBuf, Vec<u8>)> = [path, &copy]
            .into_iter()
            .map(|path| (path, newer(&all[path]).expect("it has a header")))
            .collect();
        changed.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("it can be written"));
        let mut node = Node::start(&data);
        let ended_well = node.stop();
        let log = fs::read_to_string(folder.path().join("log")).expect("a log");
        // Without its list of buckets or its identity a node is none; the rest of it serves without the others.
        let is_needed =
            ["buckets.json", "node-uuid", "cluster-revision"].iter().any(|name| path.ends_with(name));
        assert_eq!((node.ready.is_empty(), ended_well), (is_needed, !is_needed), "{}: {log}", path.display());
        let what = format!("{} cannot be used: a newer version of Stave wrote it: format 99", path.display());
        assert!(log.contains(&what), "{what}: {log}");
        for (path, bytes) in changed {
            assert_eq!(fs::read(path).expect("it is there"), bytes, "{} was changed", path.display());
        }
    }
}
