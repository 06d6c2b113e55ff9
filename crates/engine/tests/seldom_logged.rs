//! What fails again and again between what does not is logged seldom.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::VbId;
use base::env::Env;
use base::env::sim::{Call, Effect, Fault, On};
use common::stores::{files, open};
use common::{doc, set};
use engine::Progress;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts what is said of saves, as of levels that operators see.
#[derive(Default)]
struct Count(Arc<AtomicU64>);

impl Subscriber for Count {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("engine::disk_state")
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// How many lines there are about saves of which each second one fails.
fn lines(effect: Effect) -> u64 {
    const ROUNDS: usize = 50;
    let (env, handles) = Env::sim(1);
    let world = open(env, handles.clone(), files, |_| {});
    let count = Count::default();
    let lines = Arc::clone(&count.0);
    tracing::subscriber::with_default(count, || {
        for round in 0..ROUNDS {
            let request = set(doc("k"), if round % 2 == 0 { "even" } else { "odd" });
            world.bucket.store(VbId(0), &request, world.now()).expect("there is room");
            handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, effect));
            assert_eq!(world.bucket.flush_step(), Progress::Failed, "{round}");
            handles.disk.heal();
            assert!(world.bucket.flush_all(), "{round}");
        }
    });
    assert!(world.bucket.save_stats().failed_saves >= ROUNDS as u64, "each failure is counted");
    lines.load(Ordering::Relaxed)
}

#[test]
fn failures_that_come_and_go_are_logged_seldom() {
    assert_eq!(lines(Effect::IO_ERROR), 1);
    assert_eq!(lines(Effect::DISK_FULL), 2, "that it is full, and that there is room");
}
