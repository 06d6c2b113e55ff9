//! A package for Debian and what comes from it (deb(5), deb-control(5)).

use anyhow::Result;

use super::archive::{self, Entry};
use super::shell::ShellFiles;
use super::{Release, dates};

/// Configuration that the operator changes: kept when the package is upgraded.
pub const CONFIGURATION: &str = "/etc/stave/stave.toml";

/// Scripts that Debian runs, by their names there and in the tree.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The package.
pub fn make(release: &Release, program: &[u8], shell: &ShellFiles) -> Result<Vec<u8>> {
    let data = data_entries(release, program, shell)?;
    let installed: usize = data.iter().map(|entry| entry.bytes.len().div_ceil(1024)).sum();
    let mut control = vec![
        Entry::new("./control", control_file(release, program, installed)?.into_bytes(), 0o644),
        Entry::new("./conffiles", format!("{CONFIGURATION}\n").into_bytes(), 0o644),
    ];
    for name in SCRIPTS {
        control.push(Entry::read(format!("./{name}"), &format!("deploy/debian/{name}"), 0o755)?);
    }
    let mut package = ar::Builder::new(Vec::new());
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", archive::make(&control, release.time)?),
        ("data.tar.gz", archive::make(&data, release.time)?),
    ];
    for (name, bytes) in members {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), bytes.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(release.time);
        package.append(&header, &bytes[..])?;
    }
    Ok(package.into_inner()?)
}

/// What it installs.
pub fn data_entries(release: &Release, program: &[u8], shell: &ShellFiles) -> Result<Vec<Entry>> {
    let changes = format!(
        "stave ({}) unstable; urgency=medium\n\n  * See /usr/share/doc/stave/README.md.\n\n -- {}  {}\n",
        release.version,
        release.maintainer,
        dates::rfc_2822(release.time)
    );
    let mut entries = vec![
        Entry::new("./usr/bin/stave", program.to_vec(), 0o755),
        Entry::read("./usr/lib/systemd/system/stave.service", "deploy/systemd/stave.service", 0o644)?,
        Entry::read(format!(".{CONFIGURATION}"), "deploy/stave.toml", 0o644)?,
        Entry::read("./usr/share/stave/grafana/stave.json", "deploy/grafana/stave.json", 0o644)?,
        Entry::read(
            "./usr/share/stave/prometheus/prometheus.yml",
            "deploy/prometheus/prometheus.yml",
            0o644,
        )?,
        Entry::read("./usr/share/stave/prometheus/alerts.yml", "deploy/prometheus/alerts.yml", 0o644)?,
        Entry::read("./usr/share/doc/stave/copyright", "LICENSE", 0o644)?,
        Entry::read("./usr/share/doc/stave/README.md", "README.md", 0o644)?,
        Entry::read("./usr/share/doc/stave/SECURITY.md", "SECURITY.md", 0o644)?,
        Entry::new("./usr/share/doc/stave/changelog.gz", archive::gzip(changes.as_bytes())?, 0o644),
    ];
    entries.extend(shell.in_package()?);
    Ok(entries)
}

fn control_file(release: &Release, program: &[u8], installed_kib: usize) -> Result<String> {
    let needs = match glibc(program) {
        Some((major, minor)) => format!("libc6 (>= {major}.{minor}), libgcc-s1, passwd"),
        None => "passwd".to_owned(),
    };
    Ok(format!(
        "Package: stave\nVersion: {}\nArchitecture: {}\nMaintainer: {}\nInstalled-Size: {installed_kib}\n\
         Depends: {needs}\nSection: database\nPriority: optional\n\
         Description: memory-first key-value store for Couchbase clients\n \
         Stave speaks the protocol of Couchbase's data service: its SDKs connect to it\n \
         unmodified, store documents, and find them again after a crash.\n",
        release.version,
        release.debian_machine()?,
        release.maintainer
    ))
}

/// The newest version of the C library that a program asks for, by the names of its symbols' versions.
pub fn glibc(program: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"GLIBC_";
    let places = program.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let version = |(at, _): (usize, &[u8])| {
        let rest = &program[at + PREFIX.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let mut parts = std::str::from_utf8(&rest[..end]).ok()?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    places.filter_map(version).max()
}

/// The paths of the files that a package installs.
#[cfg(test)]
pub fn data_names(package: &[u8]) -> Result<Vec<String>> {
    use std::io::Read;

    use anyhow::{Context, bail};

    let mut members = ar::Archive::new(package);
    while let Some(member) = members.next_entry() {
        let mut member = member.context("a package is an archive of ar")?;
        if member.header().identifier() == b"data.tar.gz" {
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes)?;
            return archive::names(&bytes);
        }
    }
    bail!("the package installs nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_c_library_that_a_program_asks_for_counts() {
        assert_eq!(glibc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0"), Some((2, 34)));
        assert_eq!(glibc(b"nothing of it"), None);
    }
}
