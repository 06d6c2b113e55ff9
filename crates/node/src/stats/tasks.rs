//! The groups about what works in the background: tasks, how long they wait and run, and operations of the store.

use engine::{Bucket, StoreTimes, TaskKind, TaskStats, task_stats};
use serde_json::{Value, json};

use super::Sheet;
use super::inquiry::{Inquiry, Refused, parse_number};
use super::timings::put_times;
use crate::node::Node;

/// The pool of threads that the field would have a task in.
fn pool(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::Reader => "Reader",
        TaskKind::Writer => "Writer",
        TaskKind::AuxIo => "AuxIO",
        TaskKind::NonIo => "NonIO",
    }
}

/// `tasks`: of the selected bucket, in the field's form.
pub fn tasks(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    put_tasks(inquiry.node, std::iter::once(&**inquiry.bucket), sheet);
    Ok(())
}

/// `tasks-all`: of all buckets.
pub fn all_tasks(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let buckets = node.buckets();
    put_tasks(node, buckets.iter().map(|(_, bucket)| &**bucket), sheet);
    Ok(())
}

/// Tasks whose steps are requests of the disk that clients wait for. A step of the compactor takes as long as a file is
/// large, and says nothing of the disk.
const READS: &[&str] = &["fetcher"];
const WRITES: &[&str] = &["flusher", "filer"];

/// `disk-slowness SECONDS`: requests of the disk that are under way, and those that began at least so long ago. If several
/// threads run a task, it is known when the last of them began.
pub fn disk_slowness(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let seconds: Option<u32> = args.first().and_then(|text| parse_number(text));
    let seconds = seconds.ok_or(Refused::Invalid("The argument must be a number of seconds"))?;
    let (now_ns, threshold_ns) =
        (inquiry.node.env().clock.monotonic_ns(), u64::from(seconds) * 1_000_000_000);
    let tasks = task_stats(inquiry.bucket);
    for (kind, names) in [("read", READS), ("write", WRITES)] {
        let (mut pending, mut slow) = (0, 0);
        for task in tasks.iter().filter(|task| names.contains(&task.name)) {
            let is_slow = now_ns.saturating_sub(task.started_ns) >= threshold_ns;
            pending += task.running;
            slow += if is_slow { task.running } else { 0 };
        }
        sheet.put(format_args!("pending_disk_{kind}_num"), pending);
        sheet.put(format_args!("pending_disk_{kind}_slow_num"), slow);
    }
    Ok(())
}

fn put_tasks<'a>(node: &Node, buckets: impl Iterator<Item = &'a Bucket>, sheet: &mut Sheet) {
    let now_ns = node.env().clock.monotonic_ns();
    let mut tasks: Vec<Value> = Vec::new();
    for bucket in buckets {
        for task in task_stats(bucket) {
            tasks.push(of(tasks.len(), &task, bucket.name(), now_ns));
        }
    }
    let mut sheet = sheet.under("ep_tasks");
    sheet.put("cur_time", now_ns);
    sheet.put("tasks", Value::from(tasks));
}

/// One background task. A task with threads of its own has the priority 0; chores, which share a thread, run in the order of theirs.
fn of(at: usize, task: &TaskStats, bucket: &str, now_ns: u64) -> Value {
    let is_chore = task.kind == TaskKind::NonIo;
    let is_running = task.running > 0;
    // A time far ahead says that it waits until something wakes it.
    let wake_ns = task.due_ns.min(i64::MAX as u64);
    json!({
        "tid": at,
        "this": format!("{at:#x}"),
        "name": task.name,
        "bucket": bucket,
        "type": pool(task.kind),
        "description": task.does,
        "priority": if is_chore { at } else { 0 },
        "state": if is_running { "RUNNING" } else { "SNOOZED" },
        "waketime_ns": if task.due_ns == 0 { now_ns } else { wake_ns },
        "total_runtime_ns": task.run.sum_ns(),
        "last_starttime_ns": if is_running { task.started_ns } else { 0 },
        "previous_runtime_ns": task.previous_ns,
        "num_runs": task.run.total(),
    })
}

/// `dispatcher`: what background threads do now, by task; chores share one thread. Times are in microseconds, and
/// absent of a thread that sleeps. If several threads run a task, the time is that of the last that began.
pub fn dispatcher(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let now_ns = inquiry.node.env().clock.monotonic_ns();
    let (chores, with_threads): (Vec<_>, Vec<_>) =
        task_stats(inquiry.bucket).into_iter().partition(|task| task.kind == TaskKind::NonIo);
    for task in &with_threads {
        put_thread(task.name, Some(task).filter(|task| task.running > 0), now_ns, sheet);
    }
    put_thread("chores", chores.iter().find(|task| task.running > 0), now_ns, sheet);
    Ok(())
}

/// What a thread does, if it does something.
fn put_thread(name: &str, does: Option<&TaskStats>, now_ns: u64, sheet: &mut Sheet) {
    let mut sheet = sheet.under(name);
    sheet.put("state", if does.is_some() { "running" } else { "sleeping" });
    if let Some(task) = does {
        sheet.put("task", task.does);
        sheet.put("runtime", now_ns.saturating_sub(task.started_ns) / 1000);
    }
}

/// `scheduler`
pub fn scheduler(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    task_stats(inquiry.bucket).iter().for_each(|task| put_times(task.name, &task.wait, sheet));
    Ok(())
}

/// `runtimes`
pub fn runtimes(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    task_stats(inquiry.bucket).iter().for_each(|task| put_times(task.name, &task.run, sheet));
    Ok(())
}

/// `kvtimings`: under the name of the one store that a bucket has.
pub fn kvtimings(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    for (op, times) in StoreTimes::of(inquiry.bucket).ops {
        put_times(&format!("rw_0:{op}"), &times, sheet);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::HistogramCounts;

    use super::*;

    #[test]
    fn a_thread_tells_what_it_does_while_it_runs() {
        let task = TaskStats {
            name: "filer",
            kind: TaskKind::Writer,
            does: "Brings files up to date",
            due_ns: u64::MAX,
            running: 1,
            started_ns: 4_000,
            previous_ns: 0,
            wait: HistogramCounts::default(),
            run: HistogramCounts::default(),
        };
        let mut sheet = Sheet::default();
        put_thread("filer", Some(&task), 9_500, &mut sheet);
        put_thread("fetcher", None, 9_500, &mut sheet);
        let expected = [
            ("filer:state", "running"),
            ("filer:task", "Brings files up to date"),
            ("filer:runtime", "5"),
            ("fetcher:state", "sleeping"),
        ];
        assert_eq!(sheet.iter().collect::<Vec<_>>(), expected);
    }
}
