//! An image for containers: an archive of an OCI image layout (image-spec 1.1), made without a daemon.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::child::output;
use serde_json::{Value, json};

use super::archive::{self, Entry};
use super::{Release, dates, deb, sha256};

/// Who the program runs as: a number, so that Kubernetes can see that it is not root.
pub const USER: u32 = 10_001;
/// Where documents are; a volume.
pub const DATA: &str = "/var/lib/stave";
/// Where the program is.
pub const PROGRAM: &str = "usr/bin/stave";
const SECOND_NS: u64 = 1_000_000_000;
/// The largest image.
const MOST_BYTES: usize = 25 << 20;

/// The folder of blobs in a layout.
const BLOBS: &str = "blobs/sha256";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The image, from the program and the libraries that it is linked with at its start.
pub fn make(release: &Release, program: &[u8], libraries: &[Entry]) -> Result<Vec<u8>> {
    let own = program_entries(program)?;
    let layers: Vec<&[Entry]> = if libraries.is_empty() { vec![&own] } else { vec![libraries, &own] };
    let mut blobs = Vec::new();
    let (mut diff_ids, mut described) = (Vec::new(), Vec::new());
    for entries in layers {
        let tar = archive::tar(entries, release.time)?;
        diff_ids.push(format!("sha256:{}", sha256(&tar)));
        described.push(put(&mut blobs, LAYER, archive::gzip(&tar)?));
    }
    let config = put(&mut blobs, CONFIG, serde_json::to_vec(&config(release, &diff_ids)?)?);
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": described });
    let mut manifest = put(&mut blobs, MANIFEST, serde_json::to_vec(&manifest)?);
    // What containerd and podman, and what others call it once it is loaded.
    let version = &release.version;
    manifest["annotations"] = json!({
        "io.containerd.image.name": format!("localhost/stave:{version}"),
        "org.opencontainers.image.ref.name": format!("stave:{version}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    let mut entries = vec![
        Entry::new("oci-layout", serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?, 0o644),
        Entry::new("index.json", serde_json::to_vec(&index)?, 0o644),
    ];
    entries.extend(blobs);
    let image = archive::tar(&entries, release.time)?;
    ensure!(image.len() < MOST_BYTES, "the image has {} bytes: {MOST_BYTES} are too many", image.len());
    Ok(image)
}

/// Adds a blob; what describes it.
fn put(blobs: &mut Vec<Entry>, kind: &str, bytes: Vec<u8>) -> Value {
    let (digest, size) = (sha256(&bytes), bytes.len());
    blobs.push(Entry::new(format!("{BLOBS}/{digest}"), bytes, 0o644));
    json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": size })
}

fn program_entries(program: &[u8]) -> Result<Vec<Entry>> {
    let users =
        format!("root:x:0:0:root:/:/sbin/nologin\nstave:x:{USER}:{USER}:stave:{DATA}:/sbin/nologin\n");
    let groups = format!("root:x:0:\nstave:x:{USER}:\n");
    let inside = |path: &str| format!("{}/", path.trim_start_matches('/'));
    Ok(vec![
        Entry::new("etc/group", groups.into_bytes(), 0o644),
        Entry::new("etc/passwd", users.into_bytes(), 0o644),
        Entry::new(PROGRAM, program.to_vec(), 0o755),
        Entry::read("usr/share/doc/stave/LICENSE", "LICENSE", 0o644)?,
        Entry::folder(inside(DATA), 0o700, USER),
    ])
}

fn config(release: &Release, diff_ids: &[String]) -> Result<Value> {
    let time = dates::rfc_3339(release.time);
    Ok(json!({
        "created": time,
        "architecture": release.debian_machine()?,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": { "8091/tcp": {}, "11207/tcp": {}, "11210/tcp": {}, "18091/tcp": {} },
            "Env": [
                "PATH=/usr/bin",
                format!("STAVE_DATA={DATA}"),
                "STAVE_KV=0.0.0.0:11210",
                "STAVE_HTTP=0.0.0.0:8091",
            ],
            "Entrypoint": [format!("/{PROGRAM}")],
            "Cmd": ["serve"],
            "Volumes": { DATA: {} },
            "WorkingDir": DATA,
            "StopSignal": "SIGTERM",
            // No part of the image specification: Docker reads it, others pass it over. Times are nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", format!("/{PROGRAM}"), "health", "--ready"],
                "Interval": 10 * SECOND_NS,
                "Timeout": 6 * SECOND_NS,
                "StartPeriod": 120 * SECOND_NS,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "stave",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": diff_ids.iter().map(|_| json!({ "created": time })).collect::<Vec<_>>(),
    }))
}

/// The libraries that a program is linked with at its start, and what loads them, as this machine has them; none if it
/// is linked statically.
pub fn libraries(binary: &Path, program: &[u8]) -> Result<Vec<Entry>> {
    if deb::glibc(program).is_none() {
        return Ok(Vec::new());
    }
    let listed = output(Command::new("ldd").arg(binary).env("LC_ALL", "C"))?;
    let mut entries = Vec::new();
    for path in listed.lines().filter_map(library) {
        let bytes = std::fs::read(path).with_context(|| path.to_owned())?;
        entries.push(Entry::new(path.trim_start_matches('/'), bytes, 0o755));
    }
    ensure!(!entries.is_empty(), "ldd names no libraries of {}: {listed}", binary.display());
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// The path in a line like `libm.so.6 => /lib/libm.so.6 (0x7f)` or `/lib64/ld-linux-x86-64.so.2 (0x7f)`.
fn library(line: &str) -> Option<&str> {
    let (name, _) = line.trim().rsplit_once(" (")?;
    let path = name.rsplit_once("=> ").map_or(name, |(_, path)| path);
    path.starts_with('/').then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_path() {
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(library("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)"), Some("/lib/x/libc.so.6"));
        assert_eq!(library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("\tstatically linked"), None);
    }
}
