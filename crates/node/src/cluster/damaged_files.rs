//! The small files of a member, each damaged in each way after a stop and after a crash within a write: what is read is
//! what was written last, or the file is refused by name.
//!
//! `cluster-membership` is not kept twice: of a damaged newest slot, and of a file that is whole and older, or gone, the
//! folder of a bucket knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::cluster::{Address, Membership, State, command};
use base::SmallFile;
use base::env::sim::{Fault, SimDisk, SimHandles, Survival};
use base::env::{Disk, Env, OpenMode};

use super::membership::Seen;
use super::noted::{Note, Noted};
use super::{identity, vouched};
use crate::{data_dir, node_files};

const FOLDER: &str = "/data";
const MEMBERSHIP: &str = "cluster-membership";
/// The folder of the node's bucket.
const BUCKET: &str = "/data/buckets/b";
const NODE: &str = "u";
/// How often everything is written.
const VERSIONS: u64 = 4;

/// Of so many crashes one has its files damaged.
const EACH: u64 = 4;

type FileContents = BTreeMap<PathBuf, Vec<u8>>;

/// In which way a file is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Flip,
    Zero,
    Cut,
    Stale,
    Swap,
    Remove,
}

/// What the files say: versions, from 1 on; 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    seen: u64,
    noted: u64,
    uuid: u64,
    starts: u64,
}

impl Said {
    fn of(self, name: &str) -> u64 {
        match name.trim_end_matches(".copy") {
            MEMBERSHIP => self.seen,
            "cluster-buckets.json" => self.noted,
            "node-uuid" => self.uuid,
            "cluster-revision" => self.starts,
            other => panic!("{other} is none of a member's files"),
        }
    }
}

fn env_on(disk: &SimDisk) -> Env {
    SimHandles::new(1).with_disk(disk.clone()).env()
}

fn state(version: u64) -> State {
    let found = command::found(NODE, &Address::new("h".to_owned(), 1, 2), 7);
    (1..version).fold(found, |state, _| state.next())
}

fn note(version: u64) -> Note {
    Note { uuid: "u".to_owned(), flushes: version, had: true }
}

fn uuid(version: u64) -> String {
    format!("{version:032x}")
}

/// Writes a version of each file; answers what was written before the disk failed.
fn write(env: &Env, version: u64, said: &mut Said) -> Result<(), String> {
    let folder = PathBuf::from(FOLDER);
    let text = |error: std::io::Error| error.to_string();
    let mut seen = Seen::read(env, folder.clone()).map_err(text)?;
    seen.note(env, &state(version)).map_err(text)?;
    vouched::write(env, Path::new(BUCKET), NODE, &Membership::of(&state(version))).map_err(text)?;
    said.seen = version;
    let mut notes = Noted::read(env, folder.clone()).map_err(text)?;
    notes.put(env, "b", Some(note(version))).map_err(text)?;
    said.noted = version;
    let put =
        |file: SmallFile, bytes: &[u8]| file.write(&*env.disk, bytes).map_err(|error| error.to_string());
    put(node_files::identity(&folder), uuid(version).as_bytes())?;
    said.uuid = version;
    put(node_files::revision(&folder), format!("{version:020}\n").as_bytes())?;
    said.starts = version;
    Ok(())
}

/// What one file says, or that it is refused.
fn read(env: &Env, name: &str) -> Result<u64, String> {
    let folder = PathBuf::from(FOLDER);
    let version = |of: fn(u64) -> String, found: String| {
        (1..=VERSIONS).find(|version| of(*version) == found).unwrap_or_else(|| panic!("{name} says {found}"))
    };
    match name.trim_end_matches(".copy") {
        MEMBERSHIP => {
            let text = |error: std::io::Error| error.to_string();
            let mut seen = Seen::read(env, folder).map_err(text)?;
            vouched::put_right(env, &mut seen, NODE, [(env, Path::new(BUCKET))].into_iter()).map_err(text)?;
            let of = |version| format!("{:?}", Membership::of(&state(version)));
            Ok(seen.get().map_or(0, |seen| version(of, format!("{seen:?}"))))
        }
        "cluster-buckets.json" => {
            let notes = Noted::read(env, folder).map_err(|error| error.to_string())?;
            Ok(notes
                .get("b")
                .map_or(0, |found| version(|version| format!("{:?}", note(version)), format!("{found:?}"))))
        }
        "node-uuid" => {
            let found = node_files::identity(&folder).open(&*env.disk, identity::parse, |_| {});
            Ok(found.map_err(|error| error.to_string())?.map_or(0, |found| version(uuid, found)))
        }
        _ => {
            let found = node_files::revision(&folder).open(&*env.disk, data_dir::parse_revision, |_| {});
            Ok(found.map_err(|error| error.to_string())?.map_or(0, |found| found as u64))
        }
    }
}

fn put(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Create).expect("no fault is planned");
    let written = file.set_len(0).and_then(|()| file.write_at(bytes, 0)).and_then(|()| file.sync_data());
    written.and_then(|()| disk.sync_dir(Path::new(FOLDER))).expect("no fault is planned");
}

/// Every way in which a file can be another one, with what it holds then.
fn damages(path: &Path, all: &FileContents, older: &[FileContents]) -> Vec<(Harm, Option<Vec<u8>>)> {
    let bytes = &all[path];
    let mut damages = vec![(Harm::Remove, None)];
    for at in (0..bytes.len()).step_by(23) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        damages.push((Harm::Flip, Some(flipped)));
        let mut zeroed = bytes.clone();
        zeroed[at..bytes.len().min(at + 64)].fill(0);
        damages.push((Harm::Zero, Some(zeroed)));
        damages.push((Harm::Cut, Some(bytes[..at].to_vec())));
    }
    damages.extend(older.iter().filter_map(|older| Some((Harm::Stale, Some(older.get(path)?.clone())))));
    damages
        .extend(all.iter().filter(|(other, _)| *other != path).map(|(_, of)| (Harm::Swap, Some(of.clone()))));
    damages.retain(|(_, damaged)| damaged.as_ref() != Some(bytes));
    damages
}

/// What is wrong with what a damaged file says; `Ok` if nothing is.
fn judge(env: &Env, name: &str, said: (u64, u64)) -> Result<(), String> {
    let (last, next) = said;
    let is_twice = name.trim_end_matches(".copy") != MEMBERSHIP;
    match read(env, name) {
        Ok(found) if (last..=next).contains(&found) => Ok(()),
        Ok(found) => Err(format!("it says {found}, and {last} to {next} was written")),
        // After a crash the other may be the one that was being written.
        Err(_) if is_twice && last == next => {
            Err("it is refused, and the other of the two files is whole".to_owned())
        }
        Err(refused) if refused.contains(name) => Ok(()),
        Err(refused) => Err(format!("it is refused without its name: {refused}")),
    }
}

/// Damages each file of a folder in each way; answers how many there were.
fn try_all(disk: &SimDisk, last: Said, next: Said, older: &[FileContents], wrong: &mut Vec<String>) -> u64 {
    let is_of_node =
        |path: &Path| path.extension() != Some("next".as_ref()) && path.parent() == Some(Path::new(FOLDER));
    let all: FileContents = disk.contents().into_iter().filter(|(path, _)| is_of_node(path)).collect();
    let mut tried = 0;
    for path in all.keys() {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        for (kind, damaged) in damages(path, &all, older) {
            match damaged {
                Some(bytes) => put(disk, path, &bytes),
                None => disk
                    .remove_file(path)
                    .and_then(|()| disk.sync_dir(Path::new(FOLDER)))
                    .expect("no fault is planned"),
            }
            tried += 1;
            if let Err(what) = judge(&env_on(disk), name, (last.of(name), next.of(name))) {
                wrong.push(format!("{kind:?} of {name}: {what}"));
            }
            put(disk, path, &all[path]);
        }
    }
    tried
}

fn fresh() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all_synced(Path::new(BUCKET)).expect("no fault is planned");
    disk
}

#[test]
fn a_damaged_file_of_a_member_says_what_was_written_last_or_is_refused() {
    let (disk, mut said, mut older) = (fresh(), Said::default(), Vec::new());
    for version in 1..=VERSIONS {
        write(&env_on(&disk), version, &mut said).expect("no fault is planned");
        older.push(disk.contents().into_iter().collect());
    }
    older.pop();
    let mut wrong = Vec::new();
    let tried = try_all(&disk, said, said, &older, &mut wrong);
    println!("{tried} damaged files");
    assert!(wrong.is_empty(), "{} of {tried} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);
    assert!(tried > 300, "{tried}");
}

/// A crash at each change of the disk within a write: nothing that was written is forgotten, whichever file is damaged then.
#[test]
fn a_member_that_is_killed_within_a_write_has_what_it_wrote_before() {
    let (mut crashes, mut tried, mut wrong) = (0, 0, Vec::new());
    for nth in 1.. {
        let (disk, mut said) = (fresh(), Said::default());
        for version in 1..VERSIONS {
            write(&env_on(&disk), version, &mut said).expect("no fault is planned");
        }
        disk.plan(Fault::power_off_at(nth));
        if write(&env_on(&disk), VERSIONS, &mut said).is_ok() {
            break;
        }
        for survival in [Survival::Synced, Survival::Seeded(nth)] {
            let after = disk.image(survival);
            for name in [MEMBERSHIP, "cluster-buckets.json", "node-uuid", "cluster-revision"] {
                let found =
                    read(&env_on(&after), name).unwrap_or_else(|failure| panic!("crash {nth}: {failure}"));
                let last = said.of(name);
                assert!(
                    found == last || found == last + 1,
                    "crash {nth}: {name} says {found}, and {last} was written"
                );
            }
            crashes += 1;
        }
        if nth % EACH == 1 {
            let next = Said { seen: VERSIONS, noted: VERSIONS, uuid: VERSIONS, starts: VERSIONS };
            tried += try_all(&disk.image(Survival::Synced), said, next, &[], &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{} of {tried} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);
    assert!(crashes > 20 && tried > 300, "{crashes} crashes, {tried} damaged files");
}
