//! Starts what an image holds as a container would: its file system alone, read-only, as its user.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use harness::child::output;
use harness::stave::{PASSWORD, Stave};
use harness::totals::Totals;
use harness::tree::Scratch;
use serde_json::Value;

use super::{oci, sha256};

/// Why it cannot be done here, if so.
pub fn cannot() -> Option<&'static str> {
    if !rustix::process::getuid().is_root() {
        return Some("only root can change its root");
    }
    let mut mounts = Command::new("unshare");
    mounts
        .args(["--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let can_mount = mounts.status().is_ok_and(|status| status.success());
    (!can_mount).then_some("there can be no mounts of our own (unshare --mount)")
}

/// Makes an image of a program twice, which must be the same bytes, and starts one: first document, SIGTERM.
pub fn run(binary: &Path) -> Result<Totals> {
    if let Some(why) = cannot() {
        println!("passed over: {why}");
        return Ok(Totals::default());
    }
    let scratch = Scratch::new("image")?;
    let make = || super::image_of(binary, scratch.path());
    let image = make()?;
    ensure!(make()? == image, "two images of one program differ");
    let root = scratch.path().join("root");
    let config = unpack(&image, &root)?;
    println!(
        "image: {} bytes, {} files",
        image.len(),
        output(Command::new("find").arg(&root).args(["-type", "f"]))?.lines().count()
    );
    let stave = Stave::launch(inside(&root, &config)?, &scratch.path().join("log"), &[])?;
    println!("image: ready after {:?}", stave.ready_after);
    let client = |arguments: &[&str]| {
        let mut client = Command::new(binary);
        output(client.args(arguments).args(["--addr", &stave.kv]).env("STAVE_PASSWORD", PASSWORD))
    };
    client(&["set", "k", "{\"n\":1}"])?;
    let read = client(&["get", "k"])?;
    ensure!(read.trim() == "{\"n\":1}", "the first document is read as {read:?}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", stave.pid()))?;
    let users = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
    let user = oci::USER.to_string();
    ensure!(users.split_ascii_whitespace().skip(1).all(|id| id == user), "it runs as {users}");
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", stave.pid()))?;
    // Fields: ids, device, root, where it is mounted, options (proc_pid_mountinfo(5)).
    let mut fields = mounts.lines().map(|line| line.split(' ').skip(4));
    let options = fields.find_map(|mut rest| (rest.next()? == "/").then(|| rest.next()).flatten());
    ensure!(options.is_some_and(|options| options.starts_with("ro,")), "its root is mounted {options:?}");
    healthy(binary, &config, &stave.http)?;
    stave.stop()?;
    Ok(Totals::one(true))
}

/// Runs the image's health check, which a container's runtime starts inside: here it has to be told the address.
fn healthy(binary: &Path, config: &Value, http: &str) -> Result<()> {
    let check = config["config"]["Healthcheck"]["Test"].as_array().context("it has a health check")?;
    let words: Vec<&str> = check.iter().filter_map(Value::as_str).collect();
    let ["CMD", program, arguments @ ..] = &words[..] else { anyhow::bail!("no command: {words:?}") };
    ensure!(program.trim_start_matches('/') == oci::PROGRAM, "the health check starts {program}");
    let said = output(Command::new(binary).args(arguments).env("STAVE_HTTP_ADDR", http))?;
    ensure!(said == "ok\n", "the health check says {said:?}");
    Ok(())
}

/// Checks all digests, and unpacks the layers into a folder. Returns the configuration.
fn unpack(image: &[u8], root: &Path) -> Result<Value> {
    let mut blobs = std::collections::BTreeMap::new();
    let mut layout = tar::Archive::new(image);
    for entry in layout.entries()? {
        let mut entry = entry?;
        let (name, mut bytes) = (String::from_utf8_lossy(&entry.path_bytes()).into_owned(), Vec::new());
        std::io::Read::read_to_end(&mut entry, &mut bytes)?;
        if let Some(digest) = name.strip_prefix("blobs/sha256/").filter(|digest| !digest.is_empty()) {
            ensure!(sha256(&bytes) == digest, "a blob is not what its name says: {digest}");
        }
        blobs.insert(name, bytes);
    }
    let of = |described: &Value| {
        let digest = described["digest"].as_str().unwrap_or_default().replace(':', "/");
        let blob = blobs.get(&format!("blobs/{digest}")).with_context(|| format!("no blob {digest}"))?;
        ensure!(described["size"] == blob.len(), "blob {digest} has {} bytes", blob.len());
        anyhow::Ok(blob)
    };
    let index: Value = serde_json::from_slice(blobs.get("index.json").context("there is an index")?)?;
    let manifest: Value = serde_json::from_slice(of(&index["manifests"][0])?)?;
    let config: Value = serde_json::from_slice(of(&manifest["config"])?)?;
    for layer in manifest["layers"].as_array().context("there are layers")? {
        let mut files = tar::Archive::new(flate2::read::GzDecoder::new(&of(layer)?[..]));
        files.set_preserve_permissions(true);
        files.set_preserve_ownerships(true);
        files.unpack(root)?;
    }
    Ok(config)
}

/// The entrypoint as a container's runtime starts it: the image's files read-only, a volume for documents, `/proc` and
/// `/dev`, the image's environment and user, no privileges to gain.
fn inside(root: &Path, config: &Value) -> Result<Command> {
    const MOUNTS: &str = "set -e; root=$1; user=$2; data=$3; shift 3; mkdir -p $root/proc $root/dev
        mount --bind $root $root; mount -o remount,bind,ro $root
        mount -t tmpfs -o mode=700,uid=${user%%:*},gid=${user##*:} tmpfs $root$data
        mount -t proc proc $root/proc; mount --rbind /dev $root/dev
        exec setpriv --no-new-privs chroot --userspec=$user --groups= $root \"$@\"";
    let config = &config["config"];
    let words = |name: &str| {
        let words = config[name].as_array().into_iter().flatten();
        words.filter_map(|word| word.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNTS, "sh"]).arg(root);
    command.args([config["User"].as_str().context("it has a user")?, oci::DATA]);
    command.args(words("Entrypoint")).args(words("Cmd"));
    for variable in words("Env").iter().filter_map(|variable| variable.split_once('=')) {
        // Programs that make the container are looked up in a path of their own.
        if variable.0 != "PATH" {
            command.env(variable.0, variable.1);
        }
    }
    Ok(command)
}
