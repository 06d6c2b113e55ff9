//! What the machine has and does: processors, memory, swap (proc(5), cgroups(7)), read through the doors of `base::env`.
//!
//! Processors are those of the whole machine, whatever else works on it; limits of containers are told beside that.

use std::path::Path;

use base::env::{Disk, Env};
use parking_lot::Mutex;

use crate::machine_memory::{
    MEMINFO, OWN_GROUPS, Version, group_folders, machine_memory_bytes, of_meminfo, read,
};

/// What the system counted of the time of all processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    user: u64,
    system: u64,
    /// Interrupts, which are counted in `system`, too.
    interrupts: u64,
    stolen: u64,
    /// All of it.
    total: u64,
    /// Without work, or waiting for a disk.
    idle: u64,
}

/// The same in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CpuMilliseconds {
    pub(crate) total: f64,
    pub(crate) idle: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) interrupts: f64,
    pub(crate) stolen: f64,
}

/// What processors did between two looks, each in percent of the time of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuShares {
    /// Everything but being idle and waiting for a disk.
    pub busy: f64,
    /// Programs.
    pub user: f64,
    /// The kernel, with interrupts.
    pub system: f64,
    /// Other virtual machines.
    pub stolen: f64,
}

impl CpuTimes {
    /// Those until now; `None` if the system does not say it.
    pub fn read(disk: &dyn Disk) -> Option<CpuTimes> {
        CpuTimes::parse(&read(disk, Path::new("/proc/stat"))?)
    }

    fn parse(text: &str) -> Option<CpuTimes> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        // Guests are in `user` and `nice` already.
        let mut next = || fields.next().and_then(Result::ok);
        let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
        let mut or_none = || next().unwrap_or(0);
        let (waiting, irq, softirq, stolen) = (or_none(), or_none(), or_none(), or_none());
        let idle = idle + waiting;
        let interrupts = irq + softirq;
        let (user, system) = (user + nice, system + interrupts);
        Some(CpuTimes { user, system, interrupts, stolen, total: user + system + stolen + idle, idle })
    }

    /// All of it, and its parts, in milliseconds of one processor.
    pub(crate) fn milliseconds(&self) -> CpuMilliseconds {
        // The system counts in hundredths of a second, whatever its own clock does (proc(5), USER_HZ).
        let ms = |ticks: u64| ticks as f64 * 10.0;
        CpuMilliseconds {
            total: ms(self.total),
            idle: ms(self.idle),
            user: ms(self.user),
            system: ms(self.system),
            interrupts: ms(self.interrupts),
            stolen: ms(self.stolen),
        }
    }

    /// What was done since an earlier look; `None` if no time has passed.
    pub fn since(&self, earlier: &CpuTimes) -> Option<CpuShares> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        let percent =
            |of: fn(&CpuTimes) -> u64| of(self).saturating_sub(of(earlier)) as f64 * 100.0 / total as f64;
        Some(CpuShares {
            busy: (100.0 - percent(|times| times.idle)).max(0.0),
            user: percent(|times| times.user),
            system: percent(|times| times.system),
            stolen: percent(|times| times.stolen),
        })
    }
}

/// What the machine has, in bytes where nothing else is said; 0 where the system does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Machine {
    /// Its memory.
    pub memory: u64,
    /// What of it programs could still get without swapping.
    pub free: u64,
    /// What of it holds no file either.
    pub unused: u64,
    /// Its memory, or the limit of the process's container or service, if that is less.
    pub limit: u64,
    /// Swap.
    pub swap: u64,
    /// What of it is used.
    pub swap_used: u64,
    /// How many processors' time the process may use: those that are there, or the limit of its container or service.
    pub cores: f64,
    /// How often a program had to free memory itself to get some.
    pub stalls: u64,
}

impl Machine {
    /// As it is now.
    pub fn read(disk: &dyn Disk) -> Machine {
        let text = read(disk, Path::new(MEMINFO)).unwrap_or_default();
        let bytes = |name: &str| of_meminfo(&text, name).unwrap_or(0);
        Machine {
            memory: bytes("MemTotal:"),
            free: bytes("MemAvailable:"),
            unused: bytes("MemFree:"),
            limit: machine_memory_bytes(disk).unwrap_or(0),
            swap: bytes("SwapTotal:"),
            swap_used: bytes("SwapTotal:").saturating_sub(bytes("SwapFree:")),
            cores: cores(disk).unwrap_or(0.0),
            stalls: read(disk, Path::new("/proc/vmstat")).map_or(0, |text| stalls(&text)),
        }
    }
}

/// A look at the machine serves all requests of this time.
const LOOK_LASTS_NS: u64 = 1_000_000_000;

/// The last look at the machine: a look reads five files and those of the limits of each control group above the process.
#[derive(Default)]
pub struct LastLook(Mutex<Option<(u64, Machine)>>);

impl LastLook {
    /// The machine as it is now, or was at most a second ago.
    pub fn machine(&self, env: &Env) -> Machine {
        let mut last = self.0.lock();
        let now_ns = env.clock.monotonic_ns();
        if let Some((at_ns, machine)) = *last
            && now_ns.saturating_sub(at_ns) < LOOK_LASTS_NS
        {
            return machine;
        }
        let machine = Machine::read(&*env.disk);
        *last = Some((now_ns, machine));
        machine
    }
}

/// One counter, or one for each zone of memory.
fn stalls(vmstat: &str) -> u64 {
    let counters = vmstat.lines().filter(|line| line.starts_with("allocstall"));
    counters.filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok()).sum()
}

fn cores(disk: &dyn Disk) -> Option<f64> {
    let is_core = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let there = read(disk, Path::new("/proc/stat"))?.lines().filter(is_core).count() as f64;
    let groups = read(disk, Path::new(OWN_GROUPS)).unwrap_or_default();
    let limits = group_folders(&groups, "cpu").into_iter().filter_map(|(folder, version)| {
        let number = |name: &str| read(disk, &folder.join(name));
        let (quota, period) = match version {
            Version::Two => {
                let text = number("cpu.max")?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
            }
            Version::One => (
                number("cpu.cfs_quota_us")?.trim().parse().ok()?,
                number("cpu.cfs_period_us")?.trim().parse().ok()?,
            ),
        };
        // -1 is no limit.
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    });
    Some(limits.fold(there, f64::min))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::env::OpenMode;
    use base::env::sim::SimDisk;

    use super::*;
    use crate::machine_memory::tests::disk;

    const STAT: &str = "cpu  100 20 30 800 50 6 4 10 5 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 5\n";

    #[test]
    fn processors_are_told_by_what_they_did_between_two_looks() {
        let before = CpuTimes::parse(STAT).expect("times");
        assert_eq!(before.total, 1_020, "guests are counted once");
        let after = CpuTimes::parse("cpu  140 30 40 860 70 16 14 20 9 0\n").expect("times");
        let shares = after.since(&before).expect("time has passed");
        // 50 of programs, 30 of the kernel, 10 stolen, 80 idle.
        let expected = [90.0, 50.0, 30.0, 10.0].map(|ticks| ticks * 100.0 / 170.0);
        let told = [shares.busy, shares.user, shares.system, shares.stolen];
        assert!(told.iter().zip(expected).all(|(told, expected)| (told - expected).abs() < 1e-9), "{told:?}");
        assert_eq!(before.since(&before), None);
        assert_eq!(before.since(&after), None, "it does not go back");
        for text in ["", "cpu 1 2 3\n", "cpu  x 1 2 3\n"] {
            assert_eq!(CpuTimes::parse(text), None, "{text:?}");
        }
        let old = CpuTimes::parse("cpu  1 2 3 4\n").expect("an old kernel");
        assert_eq!((old.total, old.idle), (10, 4));
    }

    #[test]
    fn memory_swap_and_stalls_are_told() {
        let text =
            "MemTotal: 1000 kB\nMemAvailable: 400 kB\nMemFree: 100 kB\nSwapTotal: 200 kB\nSwapFree: 150 kB\n";
        let stalls = "allocstall_normal 3\nallocstall_movable 4\npgfault 9\n";
        let disk = disk(&[("/proc/meminfo", text), ("/proc/vmstat", stalls), ("/proc/stat", STAT)]);
        let kib = 1024;
        let expected = Machine {
            memory: 1_000 * kib,
            free: 400 * kib,
            unused: 100 * kib,
            limit: 1_000 * kib,
            swap: 200 * kib,
            swap_used: 50 * kib,
            cores: 2.0,
            stalls: 7,
        };
        assert_eq!(Machine::read(&disk), expected);
        assert_eq!(Machine::read(&SimDisk::new()), Machine::default());
    }

    #[test]
    fn a_look_lasts_a_second() {
        let write = |env: &Env, kib: u64| {
            let file = env.disk.open(Path::new(MEMINFO), OpenMode::Create).expect("the simulated disk works");
            file.write_at(format!("MemTotal: {kib} kB\n").as_bytes(), 0).expect("there is room");
        };
        let (env, handles) = Env::sim(1);
        env.disk.create_dir_all(Path::new("/proc")).expect("the simulated disk works");
        let last = LastLook::default();
        write(&env, 1_000);
        assert_eq!(last.machine(&env).memory, 1_000 << 10);
        write(&env, 2_000);
        handles.clock.advance(Duration::from_millis(999));
        assert_eq!(last.machine(&env).memory, 1_000 << 10, "it is not looked at again");
        handles.clock.advance(Duration::from_millis(1));
        assert_eq!(last.machine(&env).memory, 2_000 << 10);
    }

    #[test]
    fn the_limit_of_a_container_counts_for_processors_too() {
        let stat = ("/proc/stat", STAT);
        for (files, expected) in [
            (vec![("/proc/self/cgroup", "0::/a/b\n"), ("/sys/fs/cgroup/a/cpu.max", "150000 100000\n")], 1.5),
            (vec![("/proc/self/cgroup", "0::/a\n"), ("/sys/fs/cgroup/a/cpu.max", "max 100000\n")], 2.0),
            (vec![("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/cpu.max", "900000 100000\n")], 2.0),
            (
                vec![
                    ("/proc/self/cgroup", "4:cpu,cpuacct:/x\n"),
                    ("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n"),
                    ("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
                ],
                0.5,
            ),
            (
                vec![
                    ("/proc/self/cgroup", "4:cpu:/x\n"),
                    ("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n"),
                    ("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
                ],
                2.0,
            ),
        ] {
            let files: Vec<_> = [stat].into_iter().chain(files).collect();
            assert_eq!(cores(&disk(&files)), Some(expected), "{files:?}");
        }
    }
}
