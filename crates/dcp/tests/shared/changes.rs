//! A bucket that keeps a history of changes, and readers of its change streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::env::Env;
use dcp::{Producer, Step};
use engine::settings::Key;
use engine::{Bucket, BucketConfig, Progress, Settings, history_retention};
use kvstore::{FilesConfig, Journaled, JournaledConfig, LogConfig, StorageBackend};
use protocol::dcp::Message;
use protocol::{Limits, Parsed, parse};

/// A node's log-structured bucket with what is on its disk, which keeps versions for these seconds; 0: no history.
pub fn open(env: &Env, vbuckets: u16, seconds: u64) -> Arc<Bucket> {
    let settings = Settings::default();
    settings.put(Key::HistorySeconds, seconds);
    let config = BucketConfig {
        vbuckets,
        settings,
        backend: StorageBackend::LogStructured,
        ..BucketConfig::new("test", "/data/test".into())
    };
    let history = history_retention(&config.settings, vbuckets);
    let files = FilesConfig::Log(LogConfig { history, ..LogConfig::default() });
    let store =
        Journaled::open(env.clone(), &config.dir, JournaledConfig { files, ..JournaledConfig::default() });
    Arc::new(Bucket::open(config, env.clone(), Arc::new(store.expect("the disk works"))).expect("it opens"))
}

/// The consumer's end of a change stream.
pub trait Reader {
    /// What sends to it, and whether that was woken.
    fn source(&mut self) -> (&mut Producer, &AtomicBool);

    /// A message came.
    fn take(&mut self, message: &Message<'_>);
}

/// Lets both ends work until nothing moves any more.
pub fn drain(reader: &mut impl Reader, bucket: &Bucket) {
    loop {
        let mut out = Vec::new();
        let (producer, woken) = reader.source();
        woken.store(false, Ordering::Relaxed);
        let step = producer.step(&mut out, 1 << 10);
        let read = bucket.streams().backfills().step() == Progress::Worked;
        receive(reader, &out);
        let is_woken = reader.source().1.load(Ordering::Relaxed);
        if step == Step::Idle && !read && out.is_empty() && !is_woken {
            return;
        }
    }
}

fn receive(reader: &mut impl Reader, mut rest: &[u8]) {
    reader.source().0.acknowledge(rest.len() as u32);
    while !rest.is_empty() {
        let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) else {
            panic!("a producer sends whole requests");
        };
        reader.take(&Message::read(&request).expect("a message of a stream"));
        rest = &rest[total_len..];
    }
}
