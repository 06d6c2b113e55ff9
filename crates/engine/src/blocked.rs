//! Which threads of a bucket do not go on, and what the log has of it.

use std::sync::atomic::Ordering;

use crate::bucket_core::{Core, admit_log};
use crate::tasks::TASKS;
use crate::thread_watch::Blocked;

/// The threads of a bucket that do not go on at this moment. To be asked every few seconds.
pub fn blocked_threads(bucket: &Core) -> Vec<Blocked> {
    let with_threads =
        std::iter::zip(&bucket.tasks.tasks, TASKS).map(|(clock, (name, _, does))| (clock, name, does));
    let all = with_threads.chain(bucket.keeper.clocks());
    let marks = all.flat_map(|(clock, name, does)| clock.marks.look().map(move |look| (name, does, look)));
    bucket.watch.look(bucket.env.clock.monotonic(), marks)
}

/// Logs what does not go on, when it begins and when it is over.
pub fn tell_blocked(bucket: &Core, blocked: &[Blocked], waits_for_disk: bool) {
    let (watch, name) = (&bucket.watch, bucket.name());
    match blocked.iter().find(|one| one.call.is_some()) {
        Some(Blocked { task, call: Some(call), for_s, .. }) => {
            if !watch.disk_is_told.swap(true, Ordering::Relaxed)
                && let Some(left_out) = admit_log(bucket, "disk blocked")
            {
                tracing::error!(
                    event = "disk_blocked",
                    bucket = name,
                    task,
                    call = call.name(),
                    for_s,
                    left_out,
                    "a call of the disk does not end: what waits for it waits, and changes may stay in memory alone"
                );
            }
        }
        _ => {
            if watch.disk_is_told.swap(false, Ordering::Relaxed)
                && let Some(left_out) = admit_log(bucket, "disk goes on")
            {
                tracing::info!(event = "disk_goes_on", bucket = name, left_out, "the disk works again");
            }
        }
    }
    match blocked.iter().find(|one| one.call.is_none()) {
        Some(Blocked { task, does, for_s, .. }) => {
            if !watch.threads_are_told.swap(true, Ordering::Relaxed)
                && let Some(left_out) = admit_log(bucket, "thread blocked")
            {
                tracing::error!(
                    event = "bucket_thread_blocked",
                    bucket = name,
                    task,
                    does,
                    for_s,
                    left_out,
                    "a thread of the bucket does not go on with its work, and waits for no disk"
                );
            }
        }
        // What is known of threads that wait for a call of the disk is what was known before it.
        None if waits_for_disk => {}
        None => {
            if watch.threads_are_told.swap(false, Ordering::Relaxed)
                && let Some(left_out) = admit_log(bucket, "threads go on")
            {
                tracing::info!(
                    event = "bucket_threads_go_on",
                    bucket = name,
                    left_out,
                    "the threads of the bucket go on with their work"
                );
            }
        }
    }
}
