//! A memory cgroup for a child process, of version 1 or 2: its limit, and what the kernel says is charged to it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where cgroups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A memory cgroup of our own, below the one we are in; removed when it is dropped, after its processes ended.
pub struct Cgroup {
    path: PathBuf,
    version: Version,
}

/// What is charged to a cgroup, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// Everything, the page cache included.
    pub all: u64,
    /// The most that `all` was.
    pub peak: u64,
    /// Heaps and stacks.
    pub anon: u64,
    /// Page cache; the kernel takes it back when memory is short, once it is written.
    pub file: u64,
    /// Of the page cache, what is mapped: the program itself.
    pub mapped: u64,
}

impl Charged {
    /// What the kernel cannot take back: all but the page cache that is not mapped.
    pub fn fixed(&self) -> u64 {
        self.all.saturating_sub(self.file.saturating_sub(self.mapped))
    }
}

impl Cgroup {
    /// Makes one.
    pub fn make(name: &str) -> Result<Cgroup> {
        let ours = fs::read_to_string("/proc/self/cgroup").context("this system has no cgroups")?;
        let (version, parent) = memory_group(&ours).context("there is no cgroup for memory")?;
        let path = parent.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let cgroup = Cgroup { path, version };
        if !cgroup.path.join(cgroup.limit_file()).exists() {
            bail!("{} cannot limit memory", cgroup.path.display());
        }
        Ok(cgroup)
    }

    /// A process that writes its id here is in it, and so are its children.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Which version of cgroups this is, for people.
    pub fn version(&self) -> &'static str {
        match self.version {
            Version::One => "cgroup v1",
            Version::Two => "cgroup v2",
        }
    }

    fn limit_file(&self) -> &'static str {
        match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }

    /// Nothing in it may use more.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let path = self.path.join(self.limit_file());
        fs::write(&path, bytes.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// What is charged now.
    pub fn charged(&self) -> Result<Charged> {
        let (all, peak, anon, file, mapped) = match self.version {
            Version::One => {
                ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "rss", "cache", "mapped_file")
            }
            Version::Two => ("memory.current", "memory.peak", "anon", "file", "file_mapped"),
        };
        let stat = self.read("memory.stat")?;
        let of = |name: &str| field(&stat, name).with_context(|| format!("memory.stat has no {name}"));
        Ok(Charged {
            all: self.number(all)?,
            // Linux before 5.19 does not say in version 2.
            peak: self.number(peak).unwrap_or_default(),
            anon: of(anon)?,
            file: of(file)?,
            mapped: of(mapped)?,
        })
    }

    /// How many processes the kernel killed in it because of the limit.
    pub fn kills(&self) -> Result<u64> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        field(&self.read(file)?, "oom_kill").with_context(|| format!("{file} has no oom_kill"))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    fn number(&self, file: &str) -> Result<u64> {
        self.read(file)?.trim().parse().with_context(|| format!("{file} is no number"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // It is empty unless a child could not be ended; then it stays, and does no harm.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Where memory of this process is accounted, from `/proc/self/cgroup`: lines of `ID:CONTROLLERS:PATH`.
fn memory_group(ours: &str) -> Option<(Version, PathBuf)> {
    let lines = || ours.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let below = |mount: PathBuf, path: &str| mount.join(path.trim_start_matches('/'));
    let one = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    if let Some((_, path)) = one {
        return Some((Version::One, below(Path::new(ROOT).join("memory"), path)));
    }
    lines()
        .find(|(controllers, _)| controllers.is_empty())
        .map(|(_, path)| (Version::Two, below(PathBuf::from(ROOT), path)))
}

/// The number behind a name in a file of `NAME NUMBER` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_group_of_memory_in_either_version() {
        let one = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n";
        assert_eq!(memory_group(one), Some((Version::One, PathBuf::from("/sys/fs/cgroup/memory/a/b"))));
        assert_eq!(memory_group("0::/u\n"), Some((Version::Two, PathBuf::from("/sys/fs/cgroup/u"))));
        assert_eq!(memory_group("4:cpu:/a\n"), None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let stat = "rss_huge 1\nrss 22\n";
        assert_eq!(field(stat, "rss"), Some(22));
        assert_eq!(field(stat, "rs"), None);
    }

    #[test]
    fn page_cache_that_is_not_mapped_is_not_fixed() {
        let charged = Charged { all: 100, peak: 120, anon: 40, file: 50, mapped: 10 };
        assert_eq!(charged.fixed(), 60);
    }
}
