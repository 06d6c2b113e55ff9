//! What a small file survives: every changed bit, missing and old files, writes that fail.

use super::*;
use crate::env::Env;
use crate::env::sim::{Call, Effect, Fault, On};

const FOLDER: &str = "/data";

fn file() -> SmallFile {
    SmallFile::new(FOLDER.as_ref(), "manifest.json").owned_by("b1")
}

fn env() -> Env {
    let (env, _) = Env::sim(1);
    env.disk.create_dir_all(FOLDER.as_ref()).expect("a folder");
    env
}

/// Content that any bytes could be.
fn any(bytes: &[u8], version: u16) -> Result<(Vec<u8>, u16), String> {
    Ok((bytes.to_vec(), version))
}

/// As strict as the parsers of the product: nothing but `{...}`.
fn braces(bytes: &[u8], _: u16) -> Result<Vec<u8>, String> {
    let is_whole = bytes.starts_with(b"{") && bytes.ends_with(b"}");
    is_whole.then(|| bytes.to_vec()).ok_or_else(|| "it is no JSON".to_owned())
}

fn bytes_of(env: &Env, name: &str) -> Vec<u8> {
    let file = env.disk.open(&Path::new(FOLDER).join(name), OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    bytes
}

fn put(env: &Env, name: &str, bytes: &[u8]) {
    let file = env.disk.open(&Path::new(FOLDER).join(name), OpenMode::Create).expect("a file");
    file.set_len(0).expect("cut");
    file.write_at(bytes, 0).expect("written");
}

fn open(env: &Env) -> (Option<Vec<u8>>, Vec<String>) {
    let mut said = Vec::new();
    let content = file().open(&*env.disk, braces, |what| said.push(what.to_owned()));
    (content.expect("one of the two can be used"), said)
}

#[test]
fn a_full_disk_is_told_with_what_to_do() {
    let (path, source) = ("/data/f".into(), io::Error::from(io::ErrorKind::StorageFull));
    let told = SmallFileError::Io { operation: "write", path, source }.to_string();
    assert!(told.starts_with("cannot write /data/f: ") && told.ends_with(": make room on it"), "{told}");
}

#[test]
fn content_is_read_back_with_its_version() {
    let env = env();
    assert!(file().look(&*env.disk, any).expect("readable").is_none());
    file().write(&*env.disk, b"{1}").expect("written");
    let file = file().of_version(3);
    let found = file.look(&*env.disk, any).expect("readable").expect("there");
    assert_eq!((found.content, found.fault), ((b"{1}".to_vec(), 1), None));
    file.write(&*env.disk, b"{22}").expect("written");
    let found = file.look(&*env.disk, any).expect("readable").expect("there");
    assert_eq!(found.content, (b"{22}".to_vec(), 3));
    let old = super::SmallFile::of_version(file.clone(), 2);
    let refused = old.look(&*env.disk, any).expect_err("it is newer");
    assert!(refused.to_string().contains("a newer version of Stave wrote it: format 3"), "{refused}");
    assert!(!refused.is_damage(), "nothing takes its place");
    // One of the two is enough, and both stay as they are.
    let newer = bytes_of(&env, "manifest.json");
    old.write(&*env.disk, b"{1}").expect("written");
    let older = bytes_of(&env, "manifest.json");
    for name in ["manifest.json", "manifest.json.copy"] {
        put(&env, name, &newer);
        let refused = old.open(&*env.disk, any, |_| {}).expect_err("it is newer");
        assert!(!refused.is_damage(), "{name}: {refused}");
        assert_eq!(bytes_of(&env, name), newer);
        put(&env, name, &older);
    }
    file.remove(&*env.disk).expect("removed");
    file.remove(&*env.disk).expect("nothing to remove");
    assert!(file.look(&*env.disk, any).expect("readable").is_none());
}

/// What the product's formats hold, every bit of it and of the header changed, in either file and in both.
#[test]
fn every_changed_bit_is_noticed() {
    let env = env();
    file().write(&*env.disk, b"{\"uid\":\"8\"}").expect("written");
    let sound = bytes_of(&env, "manifest.json");
    assert_eq!(sound, bytes_of(&env, "manifest.json.copy"));
    for bit in 0..sound.len() * 8 {
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        for name in ["manifest.json", "manifest.json.copy"] {
            put(&env, name, &bytes);
            let (content, said) = open(&env);
            assert_eq!(content.as_deref(), Some(&b"{\"uid\":\"8\"}"[..]));
            assert!(matches!(&said[..], [one] if one.contains(name)), "bit {bit} of {name}: {said:?}");
            let (_, said) = open(&env);
            assert!(said.is_empty(), "it was made whole again: {said:?}");
        }
        put(&env, "manifest.json", &bytes);
        put(&env, "manifest.json.copy", &bytes);
        let refused = file().look(&*env.disk, braces).expect_err("both are damaged");
        assert!(refused.is_damage(), "bit {bit}: {refused}");
        put(&env, "manifest.json", &sound);
        put(&env, "manifest.json.copy", &sound);
    }
}

#[test]
fn what_is_cut_emptied_zeroed_or_missing_is_noticed() {
    let env = env();
    file().write(&*env.disk, b"{\"uid\":\"8\"}").expect("written");
    let sound = bytes_of(&env, "manifest.json");
    let cuts = (0..sound.len()).map(|len| sound[..len].to_vec());
    let longer = [&sound[..], b"}"].concat();
    for bytes in cuts.chain([vec![0; sound.len()], longer]) {
        put(&env, "manifest.json", &bytes);
        let (content, said) = open(&env);
        assert_eq!((content.as_deref(), said.len()), (Some(&b"{\"uid\":\"8\"}"[..]), 1), "{bytes:?}");
    }
    for name in ["manifest.json", "manifest.json.copy"] {
        env.disk.remove_file(&Path::new(FOLDER).join(name)).expect("removed");
        let (content, said) = open(&env);
        assert_eq!(content.as_deref(), Some(&b"{\"uid\":\"8\"}"[..]));
        assert!(said[0].contains(&format!("{name}: it is missing")), "{said:?}");
    }
}

#[test]
fn an_older_file_another_file_and_the_file_of_another_are_not_used() {
    let env = env();
    file().write(&*env.disk, b"{1}").expect("written");
    let old = bytes_of(&env, "manifest.json");
    file().write(&*env.disk, b"{2}").expect("written");
    file().write(&*env.disk, b"{3}").expect("written");
    for name in ["manifest.json", "manifest.json.copy"] {
        put(&env, name, &old);
        let (content, said) = open(&env);
        assert_eq!(content.as_deref(), Some(&b"{3}"[..]));
        assert!(said[0].contains("it is of generation 1 of"), "{said:?}");
    }
    let folder = Path::new(FOLDER);
    let others = [SmallFile::new(folder, "buckets.json").owned_by("b1"), file().owned_by("b2")];
    for (other, why) in others.iter().zip(["another file: buckets.json", "it belongs to \"b2\""]) {
        let generation = 99;
        put(&env, "manifest.json", &other.header(generation, b"{4}").seal(b"{4}"));
        let (content, said) = open(&env);
        assert_eq!(content.as_deref(), Some(&b"{3}"[..]));
        assert!(said[0].contains(why), "{said:?}");
    }
    // Two files that both claim to be it: there is no telling which.
    let generation = file().generation(&*env.disk);
    put(&env, "manifest.json", &file().header(generation, b"{5}").seal(b"{5}"));
    let refused = file().look(&*env.disk, braces).expect_err("ambiguous").to_string();
    assert!(refused.contains("same generation and other content"), "{refused}");
}

#[test]
fn files_of_the_version_before_are_read_and_get_a_header() {
    let env = env();
    put(&env, "manifest.json", b"{old}");
    assert_eq!(open(&env), (Some(b"{old}".to_vec()), Vec::new()));
    assert!(bytes_of(&env, "manifest.json").starts_with(b"stave-file 1 name=manifest.json version=1 "));
    // Where there is one with a header, one without is none of ours.
    put(&env, "manifest.json", b"{other}");
    assert_eq!(open(&env).0, Some(b"{old}".to_vec()));
    put(&env, "manifest.json", b"old");
    env.disk.remove_file(&Path::new(FOLDER).join("manifest.json.copy")).expect("removed");
    let refused = file().look(&*env.disk, braces).expect_err("no JSON").to_string();
    assert!(
        refused.starts_with("/data/manifest.json cannot be used: it is no JSON; and its copy"),
        "{refused}"
    );
}

/// Each call of the disk fails once, and the power goes during each.
#[test]
fn a_write_that_fails_or_is_cut_off_leaves_the_old_or_the_new_content() {
    let mut outcomes = std::collections::BTreeSet::new();
    for nth in 1..30 {
        for effect in [Effect::IO_ERROR, Effect::DISK_FULL, Effect::PowerOff] {
            let (env, handles) = Env::sim(nth);
            env.disk.create_dir_all_synced(FOLDER.as_ref()).expect("a folder");
            file().write(&*env.disk, b"{1}").expect("written");
            handles.disk.plan(Fault::once(On::Any, nth, effect));
            let is_written = file().write(&*env.disk, b"{2}").is_ok();
            handles.disk.heal();
            let after = handles.with_disk(handles.disk.crash(nth)).env();
            let mut said = Vec::new();
            let content = file().open(&*after.disk, braces, |what| said.push(what.to_owned()));
            let content = content.expect("one of the two can be used").expect("never gone");
            let is_new = content == b"{2}";
            assert!(is_new || content == b"{1}", "call {nth}, {effect:?}: {content:?}");
            assert!(is_new || !is_written, "call {nth}, {effect:?}: what was written is gone");
            assert!(said.is_empty(), "an interrupted write is no damage: {said:?}");
            outcomes.insert((is_written, is_new));
        }
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [(false, false), (false, true), (true, true)]);
}

#[test]
fn a_disk_that_refuses_is_no_damage_and_no_first_start() {
    let (env, handles) = Env::sim(1);
    env.disk.create_dir_all(FOLDER.as_ref()).expect("a folder");
    file().write(&*env.disk, b"content").expect("the disk works");
    handles.disk.plan(Fault::for_ever(On::Kind(Call::Open), 1, Effect::IO_ERROR));
    let error = file().look(&*env.disk, any).expect_err("neither file can be opened");
    assert!(!error.is_damage() && matches!(error, SmallFileError::Io { .. }), "{error}");
    handles.disk.heal();
    handles.disk.plan(Fault::once(On::Kind(Call::Open), 1, Effect::IO_ERROR));
    let found = file().look(&*env.disk, any).expect("the other one can").expect("it is there");
    assert_eq!(found.content.0, b"content");
    assert!(found.fault.is_some_and(|fault| fault.contains("cannot be read")));
}
