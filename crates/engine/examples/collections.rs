//! What making collections costs on a real disk, one after the other, and what the stop behind it takes.
//!
//! `cargo run --release -p engine --example collections -- DIR [COLLECTIONS [VBUCKETS]]`
//!
//! DIR is the bucket's folder, which must be new or empty. Flusher and filer run beside, as in a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::Env;
use base::{CollectionId, ScopeId, SmallFile};
use engine::{Bucket, BucketConfig, ManifestRefusal};
use kvstore::{Journaled, JournaledConfig, KvStore};
use rustix::time::{ClockId, clock_gettime};
use vbucket::Collection;

/// Changes that are measured together.
const TOGETHER: u32 = 100;

/// Makes a collection with the next free id.
fn make(bucket: &Bucket, name: String) {
    let made = bucket.collections().change_manifest::<ManifestRefusal>(|present, ids| {
        let mut next = present.successor();
        let (id, scope) = (CollectionId(ids.collection.0), ScopeId(0));
        next.add_collection(Collection { id, scope, name, max_ttl_s: None, history: None })
            .expect("the name is new");
        Ok(next)
    });
    made.expect("the disk works, and there is room");
}

/// Processor time of all threads.
#[allow(clippy::disallowed_methods, reason = "no door tells the processor time")]
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn journal_bytes(store: &dyn KvStore) -> u64 {
    store.stats().journal.expect("there is a journal").written_bytes
}

/// Writes a small file as long as the manifest of so many collections, as a change of it does.
fn save_alone(env: &Env, dir: &Path, collections: u32) {
    let content = vec![b' '; 64 + 32 * collections as usize];
    SmallFile::new(dir, "beside").write(&*env.disk, &content).expect("the disk works");
}

fn measure(bucket: &Bucket, store: &dyn KvStore, dir: &Path, collections: u32) {
    let clock = &bucket.env().clock;
    println!("collections  ms each (p50, longest)   syncs alone p50   processor ms each   journal KiB each");
    for first in (0..collections).step_by(TOGETHER as usize) {
        let (used, written) = (processor(), journal_bytes(store));
        let count = TOGETHER.min(collections - first);
        let mut alone: Vec<Duration> = Vec::new();
        let mut times: Vec<Duration> = (first..first + count)
            .map(|n| {
                let from = clock.monotonic();
                make(bucket, format!("c{n}"));
                let made = clock.monotonic();
                if n % 4 == 0 {
                    save_alone(bucket.env(), dir, n);
                    alone.push(clock.monotonic() - made);
                }
                made - from
            })
            .collect();
        times.sort_unstable();
        alone.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let each = |of: f64| of / f64::from(count);
        println!(
            "{:>11}  {:>7.2} ({:.2}, {:.2})   {:>15.2}   {:>17.2}   {:>16.1}",
            first + count,
            each(ms(times.iter().sum())),
            ms(times[times.len() / 2]),
            ms(times[times.len() - 1]),
            ms(alone[alone.len() / 2]),
            each(ms(processor() - used)),
            each((journal_bytes(store) - written) as f64 / 1024.0)
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = PathBuf::from(args.first().expect("a folder"));
    let number =
        |at: usize, default: u32| args.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (collections, vbuckets) = (number(1, 1_199), number(2, 1_024) as u16);
    let env = Env::real();
    let store: Arc<dyn KvStore> = Arc::new(open(&env, &dir));
    let config =
        BucketConfig { vbuckets, quota_bytes: 1 << 30, ..BucketConfig::new("collections", dir.clone()) };
    let bucket = Bucket::open(config, env.clone(), Arc::clone(&store)).expect("the folder can be made");
    let bucket = &bucket;
    std::thread::scope(|scope| {
        scope.spawn(|| bucket.flushing().run_flusher());
        scope.spawn(|| bucket.flushing().run_filer());
        measure(bucket, &*store, &dir, collections);
        bucket.flushing().stop_flusher();
        bucket.flushing().stop_filer();
    });
    let unfiled = store.stats().unfiled_bytes >> 20;
    let begun = env.clock.monotonic();
    bucket.close().expect("the disk works");
    println!("stop with {unfiled} MiB unfiled: {:.2} s", (env.clock.monotonic() - begun).as_secs_f64());
}

fn open(env: &Env, dir: &Path) -> Journaled {
    Journaled::open(env.clone(), dir, JournaledConfig::default()).expect("the folder can be made")
}
