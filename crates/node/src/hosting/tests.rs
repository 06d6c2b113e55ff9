//! What fails after a failure is told beside it.

use std::sync::atomic::{AtomicUsize, Ordering};

use base::env::sim::{Call, Effect, Fault, On, SimDisk};
use base::env::{RealSpawn, SimHandles, Spawn};

use super::*;
use crate::Settings;

/// Starts one thread, which panics. The second cannot be started, and what a file is synced for from then on fails.
struct OnePanics {
    disk: SimDisk,
    started: AtomicUsize,
}

impl Spawn for OnePanics {
    fn spawn(&self, name: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        if self.started.fetch_add(1, Ordering::Relaxed) > 0 {
            self.disk.plan(Fault::for_ever(On::Kind(Call::Sync), 1, Effect::DISK_FULL));
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // Without the message of a panic.
        RealSpawn.spawn(name, Box::new(|| std::panic::resume_unwind(Box::new(()))))
    }
}

/// A host on a simulated disk; only its lock is a real file.
fn host(folder: &Path, env: &Env) -> Host {
    open(folder, env).0
}

/// Opens bucket "a" of the configuration, and what else is there.
fn open(folder: &Path, env: &Env) -> (Host, Opened) {
    let settings =
        Settings::parse("password = \"password\"\nvbuckets = 4\nbuckets = [\"a\"]\n").expect("valid");
    let config = Config::new(settings, folder.to_owned(), 1, String::new).expect("a valid configuration");
    let data_dir = Arc::new(DataDir::take(folder, env).expect("nobody else has it"));
    Host::open(config, data_dir, env).expect("one bucket does not keep a node from starting")
}

fn spec() -> BucketSpec {
    BucketSpec::parse("b:128MiB").expect("valid")
}

fn told(failure: &HostFailure) -> Vec<String> {
    match failure {
        HostFailure::Several(failures) => failures.iter().flat_map(told).collect(),
        one => vec![one.to_string()],
    }
}

#[test]
fn failures_to_clean_up_are_told_beside_the_first_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let handles = SimHandles::new(1);
    let disk = handles.disk.clone();
    let spawn = Arc::new(OnePanics { disk: disk.clone(), started: AtomicUsize::new(0) });
    let env = Env { spawn, ..handles.env() };
    let host = host(folder.path(), &env);
    let spec = spec();
    let failure = host.make(&spec, &env).err().expect("there is no second thread");
    let told = told(&failure);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("cannot start a thread"), "{told:?}");
    assert_eq!(told[1], "a thread of the bucket panicked");
    assert!(told[2].contains("buckets.json"), "{told:?}");
}

#[test]
fn a_bucket_that_panicked_and_cannot_be_written_tells_both() {
    let folder = tempfile::tempdir().expect("a folder");
    let handles = SimHandles::new(1);
    let env = handles.env();
    let host = host(folder.path(), &env);
    let spec = spec();
    let served = host.make(&spec, &env).expect("it is made");
    let panics = RealSpawn.spawn("panics", Box::new(|| std::panic::resume_unwind(Box::new(()))));
    host.threads.lock().entry("b".to_owned()).or_default().push(panics.expect("a thread"));
    handles.disk.plan(Fault::for_ever(On::Changes, 1, Effect::IO_ERROR));
    let failure = host.close(&[(spec, served.bucket)]).expect_err("nothing can be written");
    let told = told(&failure);
    assert_eq!(told[0], "a thread of the bucket panicked");
    assert!(told.len() == 2 && told[1].starts_with("bucket b: "), "{told:?}");
}

/// Starts again on what is there.
fn again(folder: &Path, env: &Env) -> Opened {
    open(folder, env).1
}

fn is_damage(opened: &Opened, name: &str) -> bool {
    opened.down.get(name).is_some_and(|down| down.is_damage && down.reason.contains("was here before"))
}

#[test]
fn a_bucket_whose_folder_is_gone_is_down_until_a_person_decides() {
    let folder = tempfile::tempdir().expect("a folder");
    let env = SimHandles::new(1).env();
    let host = host(folder.path(), &env);
    let place = host.data_dir().bucket("a");
    drop(host);
    env.disk.remove_dir_all(&place).expect("no fault is planned");
    assert!(is_damage(&again(folder.path(), &env), "a"));
    assert!(env.disk.read_dir(&place).is_err(), "nothing is made in its place");
    let told = crate::small_files::node_faults(&*env.disk, folder.path());
    assert!(told.iter().any(|(path, what)| *path == place && what.contains("was here before")), "{told:?}");

    let mendings = crate::small_files::node_mendings(&*env.disk, folder.path());
    let [mending] = &mendings[..] else { panic!("one of them: {mendings:?}") };
    assert!(crate::small_files::mend(&env, mending, &folder.path().join("aside")).expect("written"));
    let opened = again(folder.path(), &env);
    assert!(opened.down.is_empty() && opened.served.len() == 1, "{:?}", opened.down);
}

/// A start may end between the new identity and the note of it.
#[test]
fn a_lost_identity_is_replaced_however_far_the_start_comes() {
    let folder = tempfile::tempdir().expect("a folder");
    let handles = SimHandles::new(1);
    let env = handles.env();
    let place = host(folder.path(), &env).data_dir().bucket("a");
    for name in ["uuid", "uuid.copy"] {
        env.disk.remove_file(&place.join(name)).expect("no fault is planned");
    }
    handles.disk.record();
    assert_eq!(again(folder.path(), &env).served.len(), 1);
    let recording = handles.disk.recording().expect("it records");
    let (mut replay, mut starts) = (recording.replay(), 0);
    loop {
        let disk = replay.killed();
        let opened = again(folder.path(), &SimHandles::new(2).with_disk(disk).env());
        assert_eq!(opened.served.len(), 1, "killed after {} changes: {:?}", replay.done(), opened.down);
        starts += 1;
        if !replay.step() {
            break;
        }
    }
    assert!(starts > 10, "{starts} starts");
}

/// What a first start made is no proof of a bucket, however far it came.
#[test]
fn a_first_start_that_is_cut_short_costs_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let handles = SimHandles::new(1);
    handles.disk.record();
    drop(host(folder.path(), &handles.env()));
    let recording = handles.disk.recording().expect("it records");
    let mut replay = recording.replay();
    loop {
        for disk in [replay.killed(), replay.image(base::env::sim::Survival::Synced)] {
            let opened = again(folder.path(), &SimHandles::new(2).with_disk(disk).env());
            assert_eq!(opened.served.len(), 1, "after {} changes: {:?}", replay.done(), opened.down);
        }
        if !replay.step() {
            break;
        }
    }
}

#[test]
fn a_bucket_that_is_down_for_want_of_room_says_what_to_do() {
    let spec = BucketSpec::parse("a").expect("valid");
    let down = |kind: io::ErrorKind| {
        let (path, source) = (PathBuf::from("/data"), io::Error::from(kind));
        Down::of(&spec, &HostFailure::Remove { path, source }).reason
    };
    let full = down(io::ErrorKind::StorageFull);
    assert!(full.ends_with(": make room, and start the node again"), "{full}");
    let other = down(io::ErrorKind::PermissionDenied);
    assert!(!other.contains("make room"), "{other}");
}
