//! Installs the packages in a clean Debian, where there is no Rust: the service starts by its unit's command, stores a
//! document, is upgraded under load, and is removed (docs/adr/0188-packages-are-tried-in-a-clean-root.md).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use harness::child::{each_line, headline, is_installed, output, succeeds};
use harness::totals::Totals;
use harness::tree::{self, Scratch};

/// Stands for systemd, which needs a machine of its own.
const SYSTEMCTL: &str = include_str!("systemctl.sh");
/// What happens in the root.
const SESSION: &str = include_str!("session.sh");
/// Programs that this needs, with Debian's packages.
const NEEDS: [(&str, &str); 3] =
    [("debootstrap", "debootstrap"), ("unshare", "util-linux"), ("ip", "iproute2")];
/// A root with processes, mounts and a network of its own, so that nothing of it outlives the command.
const INSIDE: &str = "set -e; root=$1; shift; mount --make-rprivate /; mount --bind $root $root; cd $root
    mount -t proc proc proc; mount --rbind /dev dev; mount -t tmpfs tmpfs run; mkdir -p run/systemd/system
    ip link set lo up; exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \"$@\"";

/// The packages of a program.
pub struct Made {
    /// For Debian.
    pub deb: Vec<u8>,
    /// For RPM.
    pub rpm: Vec<u8>,
}

/// Tries packages, each of which is an upgrade of one of `old`.
pub fn run(old: &Made, new: &Made) -> Result<Totals> {
    ensure!(rustix::process::getuid().is_root(), "only root can make a root: run it as root");
    for (tool, package) in NEEDS {
        ensure!(is_installed(tool), "{tool} is missing; Debian's package {package} has it");
    }
    let mut totals = Totals::default();
    // Debian installs its own packages with what is in each root.
    for (kind, extras, old, new) in
        [("deb", None, &old.deb, &new.deb), ("rpm", Some("--include=rpm"), &old.rpm, &new.rpm)]
    {
        headline(&format!("the package {kind} in a clean root"));
        let clean = clean_root(kind, extras)?;
        totals += Totals::one(one(kind, &clean, [("old", old), ("new", new)])?);
    }
    println!("\n{totals}");
    Ok(totals)
}

fn one(kind: &str, clean: &Path, packages: [(&str, &Vec<u8>); 2]) -> Result<bool> {
    let mut scratch = Scratch::new(&format!("clean-{kind}"))?;
    let root = scratch.path().join("root");
    output(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(clean).arg(&root))?;
    let folder = root.join("packages");
    fs::create_dir(&folder)?;
    for (name, package) in packages {
        let path = folder.join(name).with_extension(kind);
        fs::write(&path, package).with_context(|| path.display().to_string())?;
    }
    for (path, text) in [("usr/bin/systemctl", SYSTEMCTL), ("session", SESSION)] {
        let path = root.join(path);
        ensure!(!path.exists(), "{} is there: the root is not clean", path.display());
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", INSIDE, "sh"])
        .arg(&root);
    let passed = each_line(command.args(["/session", kind]), |_| ())?;
    if !passed {
        scratch.keep();
    }
    Ok(passed)
}

/// A Debian as small as it gets, which is made once and copied then.
fn clean_root(kind: &str, extras: Option<&str>) -> Result<PathBuf> {
    let folder = tree::target().join("clean-roots");
    let (root, cache) = (folder.join(kind), folder.join("packages"));
    if root.exists() {
        return Ok(root);
    }
    fs::create_dir_all(&cache)?;
    let cache = cache.canonicalize()?;
    let unfinished = root.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", "--cache-dir"]).arg(cache).args(extras);
    // This machine's debootstrap knows at least this machine's own suite.
    make.arg(suite().unwrap_or_else(|| "stable".to_owned())).arg(&unfinished);
    if !succeeds(&mut make)? {
        bail!("debootstrap failed: its log is {}", unfinished.join("debootstrap/debootstrap.log").display());
    }
    fs::rename(&unfinished, &root)?;
    Ok(root)
}

/// The suite of this machine, if it is a Debian.
fn suite() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    (value("ID") == Some("debian")).then(|| value("VERSION_CODENAME"))?.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_tree(path: &str) -> String {
        fs::read_to_string(tree::root().join(path)).expect("a file of the tree")
    }

    #[test]
    fn what_stands_for_systemctl_knows_what_packages_ask_it_for() {
        let scripts =
            ["debian/postinst", "debian/prerm", "debian/postrm", "rpm/post", "rpm/preun", "rpm/postun"];
        let mut asked = 0;
        for script in scripts {
            for line in of_tree(&format!("deploy/{script}")).lines() {
                let Some((_, call)) = line.split_once("systemctl ") else { continue };
                let call = call.trim_end_matches("; then");
                let is_known =
                    SYSTEMCTL.lines().any(|line| line == "daemon-reload) ;;" && call == "daemon-reload")
                        || SYSTEMCTL.contains(&format!("\n\"{call}\")"));
                assert!(is_known, "{script}: systemctl {call}");
                asked += 1;
            }
        }
        assert!(asked > 6, "{asked}");
    }

    #[test]
    fn what_is_read_of_the_unit_is_in_it() {
        let unit = of_tree("deploy/systemd/stave.service");
        let names: Vec<&str> =
            SYSTEMCTL.split("$(value ").skip(1).filter_map(|rest| rest.split([' ', ')']).next()).collect();
        assert!(names.len() > 8, "{names:?}");
        for name in names {
            assert!(unit.lines().any(|line| line.starts_with(&format!("{name}="))), "{name}");
        }
    }

    #[test]
    fn the_scripts_are_scripts() {
        for (name, text) in [("systemctl.sh", SYSTEMCTL), ("session.sh", SESSION)] {
            let path = tree::root().join("xtask/src/dist/clean").join(name);
            assert!(succeeds(Command::new("sh").arg("-n").arg(&path)).expect("there is a shell"), "{name}");
            assert!(text.starts_with("#!/bin/sh\n"), "{name}");
        }
    }
}
