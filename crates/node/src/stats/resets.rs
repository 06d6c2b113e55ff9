//! The groups `reset` and `stat-timings`.

use engine::StoreTimes;

use super::baseline::Baseline;
use super::inquiry::{Inquiry, Refused};
use super::timings::put_times;
use super::{GROUPS, Sheet};
use crate::tally::Counted;

/// `reset [timings]`: what the field's documents list of what there is here; with an argument the times of commands alone.
pub fn reset(inquiry: &Inquiry<'_>, args: &[&[u8]], _: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.node.times.of(inquiry.bucket);
    let commands = times.commands().collect();
    let requests = (0..=u8::MAX).map(|opcode| times.requests(opcode)).collect();
    let sync_writes = times.sync_writes().into_iter().map(|level| level.took).collect();
    let queues = times.queues().into();
    let then = times.baseline();
    let baseline = match args.first() {
        Some(&b"timings") => Baseline { commands, requests, sync_writes, queues, ..Baseline::clone(&then) },
        Some(_) => return Err(Refused::Invalid("The only argument of this stat group is `timings`")),
        None => {
            let evicted = inquiry.bucket.eviction().eviction_stats();
            Baseline {
                commands,
                requests,
                sync_writes,
                queues,
                store: Some(StoreTimes::of(inquiry.bucket)),
                pager_runs: evicted.passes,
                ejects: evicted.ejects(),
                not_my_vbuckets: times.counted(Counted::NotMyVbucket),
            }
        }
    };
    times.begin_again(baseline);
    Ok(())
}

/// `stat-timings`: how long each group of stats took; `all` is the group without a name.
pub fn stat_timings(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.node.times.of(inquiry.bucket);
    for (at, group) in GROUPS.iter().enumerate().filter(|(at, _)| !times.stat_group(*at).is_unused()) {
        let name = if group.name.is_empty() { "all" } else { group.name };
        put_times(name, &times.stat_group(at).counts(), sheet);
    }
    Ok(())
}
