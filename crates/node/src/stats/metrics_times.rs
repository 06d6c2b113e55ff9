//! What Prometheus is told about times: histograms, under the field's names where the field has such times.

use std::fmt;

use engine::{StoreTimes, TaskStats, task_stats};

use super::page::{Kind, Numbers, Page};
use super::timings::QUEUES;

/// Times of a bucket's requests, of its store, and of its background tasks. Only what was recorded is told.
pub(super) fn put(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    put_requests(buckets, page)?;
    put_store(buckets, page)?;
    put_tasks(buckets, page)
}

fn put_requests(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "kv_cmd_duration_seconds";
    page.head(name, Kind::Histogram, "How long requests took; those of one turn of a connection in 64, which were measured, stand for all.")?;
    for numbers in buckets {
        for (opcode, told) in numbers.times.of_all_requests() {
            if let Some(opcode) = protocol::opcode::field_name(opcode) {
                page.histogram_told(name, &[("bucket", numbers.bucket.name()), ("opcode", opcode)], &told)?;
            }
        }
    }
    let name = "kv_sync_write_commit_duration_seconds";
    page.head(name, Kind::Histogram, "How long clients waited for sync writes that were committed.")?;
    for numbers in buckets {
        for level in numbers.times.sync_writes().iter().filter(|level| level.took.total() > 0) {
            let level_name = level.timing.trim_start_matches("sync_write_commit_");
            page.histogram(name, &[("bucket", numbers.bucket.name()), ("level", level_name)], &level.took)?;
        }
    }
    let name = "stave_queue_wait_seconds";
    page.head(name, Kind::Histogram, "How long requests waited that left their worker, by queue.")?;
    for numbers in buckets {
        for (queue, waited) in QUEUES.into_iter().zip(numbers.times.queues()) {
            let queue = queue.trim_end_matches("_queue");
            page.histogram(name, &[("bucket", numbers.bucket.name()), ("queue", queue)], &waited)?;
        }
    }
    Ok(())
}

fn put_store(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let times: Vec<(&str, StoreTimes)> =
        buckets.iter().map(|numbers| (numbers.bucket.name(), StoreTimes::of(&numbers.bucket))).collect();
    let name = "kv_bg_wait_seconds";
    page.head(name, Kind::Histogram, "How long clients waited until a fetcher began to read for them.")?;
    for (bucket, times) in &times {
        page.histogram(name, &[("bucket", bucket)], &times.fetch_wait)?;
    }
    let name = "kv_bg_load_seconds";
    page.head(name, Kind::Histogram, "How long fetchers read for clients.")?;
    for (bucket, times) in &times {
        page.histogram(name, &[("bucket", bucket)], &times.fetch)?;
    }
    let name = "kv_disk_seconds";
    page.head(
        name,
        Kind::Histogram,
        "How long the disk took, by what it did: commit, of a group of vBuckets.",
    )?;
    for (bucket, times) in &times {
        page.histogram(name, &[("bucket", bucket), ("op", "commit")], &times.commit)?;
    }
    let name = "stave_store_operation_seconds";
    page.head(name, Kind::Histogram, "How long operations of the store took.")?;
    for (bucket, times) in &times {
        for (op, counts) in times.ops.iter().filter(|(_, counts)| counts.total() > 0) {
            page.histogram(name, &[("bucket", bucket), ("op", op)], counts)?;
        }
    }
    Ok(())
}

fn put_tasks(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let tasks: Vec<(&str, Vec<TaskStats>)> =
        buckets.iter().map(|numbers| (numbers.bucket.name(), task_stats(&numbers.bucket))).collect();
    let name = "stave_task_run_seconds";
    page.head(name, Kind::Histogram, "How long steps of background tasks took.")?;
    for (bucket, tasks) in &tasks {
        for task in tasks.iter().filter(|task| task.run.total() > 0) {
            page.histogram(name, &[("bucket", bucket), ("task", task.name)], &task.run)?;
        }
    }
    let name = "stave_task_wait_seconds";
    page.head(name, Kind::Histogram, "How long background tasks were due, or waited for, before they ran.")?;
    for (bucket, tasks) in &tasks {
        for task in tasks.iter().filter(|task| task.wait.total() > 0) {
            page.histogram(name, &[("bucket", bucket), ("task", task.name)], &task.wait)?;
        }
    }
    Ok(())
}
