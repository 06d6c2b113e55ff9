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
    let settings =
        Settings::parse("password = \"password\"\nvbuckets = 4\nbuckets = [\"a\"]\n").expect("valid");
    let config = Config::new(settings, folder.to_owned(), 1, String::new).expect("a valid configuration");
    let data_dir = Arc::new(DataDir::take(folder, env).expect("nobody else has it"));
    Host::open(config, data_dir, env).expect("it is new").0
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
