//! How much memory a node may use: the machine's, or what the limit of a container or service leaves of it.

use std::path::{Path, PathBuf};

use base::env::{Disk, OpenMode};

/// The process's control groups (cgroups(7)).
pub(crate) const OWN_GROUPS: &str = "/proc/self/cgroup";
/// Where Linux has control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// What Linux says of the machine's memory (proc(5)).
pub(crate) const MEMINFO: &str = "/proc/meminfo";
/// The longest of these files that is read.
const MOST_BYTES: usize = 64 << 10;

/// The machine's memory (proc(5), /proc/meminfo) or the lowest limit of the process's control groups, if that is less;
/// `None` if the system says neither.
pub(crate) fn machine_memory_bytes(disk: &dyn Disk) -> Option<u64> {
    let groups = read(disk, Path::new(OWN_GROUPS)).unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| limit(&read(disk, &path)?));
    limits.chain(total(disk)).min()
}

fn total(disk: &dyn Disk) -> Option<u64> {
    of_meminfo(&read(disk, Path::new(MEMINFO))?, "MemTotal:")
}

/// A line of /proc/meminfo in bytes.
pub(crate) fn of_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The files that may limit the process's memory.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let file = |(folder, version): (PathBuf, Version)| match version {
        Version::Two => folder.join("memory.max"),
        Version::One => folder.join("memory.limit_in_bytes"),
    };
    group_folders(groups, "memory").into_iter().map(file).collect()
}

/// Versions of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

/// The folders in which a controller may limit the process: of its groups and of all those above them. In a container the
/// path of a group may be the host's, and what is mounted its own group: the root is looked at in any case.
pub(crate) fn group_folders(groups: &str, controller: &str) -> Vec<(PathBuf, Version)> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        // Fields: number, controllers, path; version 2 has one line without controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, version) = if controllers.is_empty() {
            (PathBuf::from(GROUPS), Version::Two)
        } else if controllers.split(',').any(|there| there == controller) {
            (Path::new(GROUPS).join(controller), Version::One)
        } else {
            continue;
        };
        // What would lead out of the folder is no path of a group.
        let group = Path::new(group.trim_start_matches('/'));
        if group.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
            folders.extend(group.ancestors().map(|above| (root.join(above), version)));
        } else {
            folders.push((root, version));
        }
    }
    folders
}

/// A number of bytes; `None` for `max`. Version 1 has a number that no machine has in its place, which is no limit
/// either beside the machine's memory.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Option<String> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut bytes = vec![0; MOST_BYTES];
    let read = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(read);
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use base::env::sim::SimDisk;

    use super::*;

    /// One that has these files.
    pub(crate) fn disk(files: &[(&str, &str)]) -> SimDisk {
        let disk = SimDisk::new();
        for (path, text) in files {
            let path = Path::new(path);
            disk.create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
            let file = disk.open(path, OpenMode::CreateNew).expect("a file");
            file.write_at(text.as_bytes(), 0).expect("a write");
        }
        disk
    }

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB\n");
    const MACHINE_BYTES: u64 = 65_536_000 * 1024;

    #[test]
    fn without_a_limit_it_is_the_machines() {
        assert_eq!(machine_memory_bytes(&SimDisk::new()), None);
        assert_eq!(machine_memory_bytes(&disk(&[MACHINE])), Some(MACHINE_BYTES));
        let groups = ("/proc/self/cgroup", "4:memory:/a\n0::/\n");
        let version_1 = ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
        let version_2 = ("/sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(
            machine_memory_bytes(&disk(&[MACHINE, groups, version_1, version_2])),
            Some(MACHINE_BYTES)
        );
    }

    #[test]
    fn the_limit_of_a_container_counts() {
        // As it is in a container with a control group namespace of its own.
        let groups = ("/proc/self/cgroup", "0::/\n");
        let limit = ("/sys/fs/cgroup/memory.max", "1073741824\n");
        assert_eq!(machine_memory_bytes(&disk(&[MACHINE, groups, limit])), Some(1 << 30));
        // Version 1 without one: the path is the host's.
        let groups = ("/proc/self/cgroup", "11:cpu,cpuacct:/kubepods/x\n9:memory:/kubepods/x\n");
        let limit = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(machine_memory_bytes(&disk(&[MACHINE, groups, limit])), Some(1 << 30));
        assert_eq!(machine_memory_bytes(&disk(&[groups, limit])), Some(1 << 30));
    }

    #[test]
    fn the_lowest_limit_of_all_groups_above_counts() {
        let groups = ("/proc/self/cgroup", "0::/system.slice/stave.service\n");
        let own = ("/sys/fs/cgroup/system.slice/stave.service/memory.max", "2147483648\n");
        let above = ("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
        assert_eq!(machine_memory_bytes(&disk(&[MACHINE, groups, own])), Some(2 << 30));
        assert_eq!(machine_memory_bytes(&disk(&[MACHINE, groups, own, above])), Some(1 << 30));
    }

    #[test]
    fn what_cannot_be_understood_is_no_limit() {
        for groups in ["", "no colon\n", "0:\n", "0::/../../etc\n", ":::\n"] {
            let files = [MACHINE, ("/proc/self/cgroup", groups), ("/sys/fs/cgroup/memory.max", "-1 x\n")];
            assert_eq!(machine_memory_bytes(&disk(&files)), Some(MACHINE_BYTES), "{groups:?}");
        }
    }
}
