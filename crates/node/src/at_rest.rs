//! Encryption at rest of a node: what it keeps for itself is under the data keys of its folder, each bucket under its own
//! (record 113).
//!
//! *Guarantee:* with a wrapping key nothing is written plain that has content of a client. Without the right one a node
//! or a bucket does not open, and nothing of it is changed.

pub mod progress;
pub mod rekey;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use base::encryption::{EncryptedDisk, KeyError, KeyRing, WrappingKeys, key_of_file, keys_in_use};
use base::env::{Disk, Env, OpenMode};
use engine::settings::Key;
use kvstore::replace::REPLACING;

use crate::config::{BucketSpec, Config};
use crate::data_dir::DataDir;
use crate::host_failure::HostFailure;
use crate::node_files::{self, buckets_in};
use crate::quarantine;

/// Files that the store encrypts by itself, when it goes on to other ones, or that must be plain.
const LEFT_ALONE: [&str; 3] = ["journal.", "encryption-keys", "lock"];
/// What the journal has no need of.
const SPARE: &str = "journal.spare.";
/// What the names of a small file's files end with, and that of a folder.
const SUFFIXES: [&str; 4] = ["", ".copy", ".new", ".copy.new"];
/// Ends the name of a copy that is not whole.
const UNFINISHED: &str = ".encrypting";
/// Bytes of a piece in which a file is copied.
const PIECE_BYTES: usize = 1 << 20;

/// Folders with keys lie no deeper than this in the quarantine.
const REMOVED_DEPTH: usize = 2;

/// What the folder of data is called among folders; no bucket has this name.
const OF_NODE: &str = "";
/// What the folder of the log is called among them; neither has a bucket this name.
const OF_LOG: &str = "/log";

/// Has the keys of folders in quarantine, and of those that a repair or a migration has built, wrapped as those of open
/// folders are. Returns what was not, and why.
fn wrap_removed_again(env: &Env, data: &Path, wrapping: &WrappingKeys) -> Vec<String> {
    let mut left = Vec::new();
    let mut folders: Vec<_> = [quarantine::FOLDER, REPLACING].map(|name| (data.join(name), 0)).into();
    while let Some((folder, depth)) = folders.pop() {
        let names = match env.disk.read_dir(&folder) {
            // A file, or nothing is there any more.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                continue;
            }
            Err(error) => {
                left.push(format!("{}: {error}", folder.display()));
                continue;
            }
            Ok(names) => names,
        };
        let place = format!("the removed folder {}", folder.display());
        if let Err(error) = KeyRing::wrap_again(env, &folder, &place, wrapping) {
            left.push(error.to_string());
        }
        // What a repair has put aside has a folder for each bucket.
        if depth < REMOVED_DEPTH {
            folders.extend(names.into_iter().map(|name| (folder.join(name), depth + 1)));
        }
    }
    left
}

/// The world in which a node keeps its state, once its folder is taken.
pub fn of_node(env: &Env, config: &Config, data_dir: &DataDir) -> Result<Env, HostFailure> {
    let (env, folder) = (env.beneath(), data_dir.path());
    let wrapping = config.encryption.as_ref();
    let others = ["buckets", quarantine::FOLDER];
    let ring = open(&env, folder, "the folder of data", wrapping, config.rotates_keys, true, &others)?;
    if let Some(wrapping) = wrapping {
        for fault in wrap_removed_again(&env, folder, wrapping) {
            tracing::error!(
                event = "wrapping_key_still_needed",
                "{fault}: the earlier wrapping key stays needed for it"
            );
        }
    }
    if let Some(ring) = &ring {
        if let Err(error) = encrypt_descriptions_again(&env, ring, &data_dir.buckets()) {
            tracing::error!(
                event = "bucket_description_key_stays", %error,
                "what buckets are stays as it is encrypted until the next start"
            );
        }
        drop_old(&env, ring, &[folder])?;
    }
    Ok(keep(env, data_dir, OF_NODE, ring))
}

/// The world with the keys of a folder, which are kept to be exchanged later.
fn keep(env: Env, data_dir: &DataDir, name: &str, ring: Option<KeyRing>) -> Env {
    let Some(ring) = ring else { return env };
    let encrypted = EncryptedDisk::env(&env, ring.keys().clone());
    data_dir.keys().put(name, ring);
    encrypted
}

/// Whether the folder of data can be opened with the wrapping key that is given, before it is taken; changes nothing.
/// Buckets that could not be opened are returned, a line each.
pub fn check(env: &Env, config: &Config) -> Result<Vec<String>, HostFailure> {
    let (env, wrapping) = (env.beneath(), config.encryption.as_ref());
    KeyRing::look(&env, &config.data_dir, "the folder of data", wrapping)?;
    let buckets = buckets_in(&config.data_dir);
    // A start says what is wrong with a folder that cannot be listed.
    let mut names = env.disk.read_dir(&buckets).unwrap_or_default();
    names.sort();
    let line = |name: &String| {
        let place = format!("the bucket {name}");
        match KeyRing::look(&env, &buckets.join(name), &place, wrapping) {
            Err(error @ (KeyError::NotGiven(_) | KeyError::Other { .. })) => {
                Some(format!("the bucket {name} would be down: {error}"))
            }
            _ => None,
        }
    };
    Ok(names.iter().filter_map(line).collect())
}

/// The world in which a bucket keeps its documents.
pub(crate) fn of_bucket(
    env: &Env,
    config: &Config,
    data_dir: &DataDir,
    spec: &BucketSpec,
) -> Result<Env, HostFailure> {
    let (env, name, folder) = (env.beneath(), &spec.name, data_dir.bucket(&spec.name));
    let _until_they_are_kept = data_dir.keys().opening.read();
    let wrapping = data_dir.keys().wrapping(config);
    if wrapping.is_some() {
        let failed = |source| HostFailure::Remove { path: folder.clone(), source };
        env.disk.create_dir_all_synced(&folder).map_err(failed)?;
    }
    let (place, is_on) = (format!("the bucket {name}"), spec.settings.is_on(Key::EncryptionAtRest));
    let (wrapping, rotates) = (wrapping.as_ref(), config.rotates_keys);
    let ring = open(&env, &folder, &place, wrapping, rotates, is_on, &[node_files::BUCKET])?;
    if let Some(ring) = &ring {
        if !is_on {
            tracing::info!(
                event = "bucket_not_encrypted", bucket = %name,
                "its setting encryption_at_rest is off: new files of it are not encrypted"
            );
        }
        drop_old(&env, ring, &[&folder, &data_dir.path().join(quarantine::FOLDER)])?;
    }
    Ok(keep(env, data_dir, name, ring))
}

/// The keys of the log of a process, which are in the folder of its file. Files of the log that are plain, or under an
/// earlier key, are encrypted again: no handle has them open.
///
/// # Errors
///
/// The keys cannot be opened or made.
pub fn of_log(env: &Env, file: &Path, wrapping: &WrappingKeys, rotates: bool) -> Result<KeyRing, KeyError> {
    let (env, folder) = (env.beneath(), file.parent().unwrap_or(file));
    let (place, say) = (format!("the log in {}", folder.display()), |fault: &str| {
        tracing::error!(event = "file_copy_damaged", "{fault}")
    });
    let is_new = KeyRing::file(folder).look(&*env.disk, |_, _| Ok(()))?.is_none();
    let opened = KeyRing::open(&env, folder, &place, Some(wrapping), true, say)?;
    let ring = opened.ok_or(KeyError::NotGiven(place))?;
    if rotates && !is_new {
        ring.rotate(&env)?;
    }
    if let Err(error) = encrypt_log_again(&env, &ring, file) {
        tracing::error!(
            event = "log_file_key_stays", %error,
            "files of the log that are not encrypted under the present key stay so"
        );
    }
    Ok(ring)
}

/// Encrypts the file of a log, and those that it was before, under the active key.
fn encrypt_log_again(env: &Env, ring: &KeyRing, file: &Path) -> io::Result<()> {
    let (folder, log) =
        (file.parent().unwrap_or(file), file.file_name().unwrap_or_default().to_string_lossy());
    let is_of_log = |name: &String| {
        name.strip_prefix(&*log).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    };
    let names = env.disk.read_dir(folder)?.into_iter().filter(is_of_log);
    let (unfinished, names): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with(UNFINISHED));
    unfinished.iter().try_for_each(|name| env.disk.remove_file(&folder.join(name)))?;
    for name in names {
        let key = match key_of_file(&*env.disk, &folder.join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => continue,
            key => key?,
        };
        // Under a key of others it cannot be read.
        if key.is_none_or(|key| ring.keys().ids().contains(&key)) && key != ring.keys().active() {
            replace(env, ring, folder, &name)?;
        }
    }
    Ok(())
}

/// Opens the keys of a folder, and has small files in it encrypted as new ones are, or made plain if encryption is not
/// on. The function leaves folders and small files `of_others` alone.
fn open(
    env: &Env,
    folder: &Path,
    place: &str,
    wrapping: Option<&WrappingKeys>,
    rotates: bool,
    is_on: bool,
    of_others: &[&str],
) -> Result<Option<KeyRing>, KeyError> {
    let say = |fault: &str| tracing::error!(event = "file_copy_damaged", "{fault}");
    let is_new = KeyRing::file(folder).look(&*env.disk, |_, _| Ok(()))?.is_none();
    let ring = KeyRing::open(env, folder, place, wrapping, wrapping.is_some(), say)?;
    if let Some(ring) = &ring
        && rotates
        && !is_new
    {
        let key = ring.rotate(env)?;
        tracing::info!(
            event = "data_key_rotated", place, %key,
            "files are encrypted with a new key from now on, and earlier ones by and by"
        );
    }
    if let Some(ring) = &ring {
        ring.keys().set_encrypting(is_on);
    }
    if let Some(ring) = &ring
        && let Err(error) = encrypt_again(env, ring, folder, of_others)
    {
        tracing::error!(
            event = "file_key_stays", place, %error,
            "files that are not encrypted under the present key stay so until the next start"
        );
    }
    Ok(ring)
}

/// Encrypts each file of a folder under the active key if it has another key or none. No other handle has them open.
fn encrypt_again(env: &Env, ring: &KeyRing, folder: &Path, of_others: &[&str]) -> io::Result<()> {
    let names = env.disk.read_dir(folder)?;
    let (unfinished, names): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.ends_with(UNFINISHED));
    // First of all: their names are used again.
    for name in unfinished {
        env.disk.remove_file(&folder.join(name))?;
    }
    for name in names {
        let path = folder.join(&name);
        if of_others.iter().any(|other| name.strip_prefix(other).is_some_and(|rest| SUFFIXES.contains(&rest)))
        {
            continue;
        }
        let is_spare = name.starts_with(SPARE);
        let is_of_store = LEFT_ALONE.iter().any(|left| name.starts_with(left))
            || name.contains(".couch.")
            || kvstore::is_log_file(&name)
            || kvstore::is_rocks_folder(&name);
        // There may be thousands of these: they are not even opened.
        if is_of_store && !is_spare {
            continue;
        }
        match key_of_file(&*env.disk, &path) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                encrypt_again(env, ring, &path, &[])?;
            }
            Err(error) => return Err(error),
            Ok(key) if key == ring.keys().active() => {}
            _ if is_spare => {
                env.disk.remove_file(&path)?;
                env.disk.sync_dir(folder)?;
            }
            _ => replace(env, ring, folder, &name)?,
        }
    }
    Ok(())
}

/// Puts a copy of a file under the active key in its place.
fn replace(env: &Env, ring: &KeyRing, folder: &Path, name: &str) -> io::Result<()> {
    let disk = EncryptedDisk::new(env, ring.keys().clone());
    let (path, copy) = (folder.join(name), folder.join(format!("{name}{UNFINISHED}")));
    let (from, to) = (disk.open(&path, OpenMode::Read)?, disk.open(&copy, OpenMode::Create)?);
    to.set_len(0)?;
    let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
    loop {
        let read = from.read_at(&mut piece, at)?;
        to.write_at(&piece[..read], at)?;
        at += read as u64;
        if read < PIECE_BYTES {
            break;
        }
    }
    to.sync_data()?;
    disk.rename(&copy, &path)?;
    disk.sync_dir(folder)
}

/// The same for what the node notes in the folders of its buckets.
fn encrypt_descriptions_again(env: &Env, ring: &KeyRing, buckets: &Path) -> io::Result<()> {
    let names = match env.disk.read_dir(buckets) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for bucket in names {
        let folder = buckets.join(bucket);
        for name in
            env.disk.read_dir(&folder)?.into_iter().filter(|name| name.starts_with(node_files::BUCKET))
        {
            let key = key_of_file(&*env.disk, &folder.join(&name))?;
            // Under a key of others it cannot be read here: it is written again when the bucket opens.
            let is_ours = key.is_none_or(|key| ring.keys().ids().contains(&key));
            if is_ours && key != ring.keys().active() {
                replace(env, ring, &folder, &name)?;
            }
        }
    }
    Ok(())
}

/// Drops the keys that no file in these folders needs.
fn drop_old(env: &Env, ring: &KeyRing, folders: &[&Path]) -> Result<(), KeyError> {
    if ring.keys().ids().len() < 2 {
        return Ok(());
    }
    let mut needed = BTreeSet::new();
    let found = folders.iter().try_for_each(|folder| {
        needed.extend(keys_in_use(&*env.disk, folder)?);
        Ok::<_, io::Error>(())
    });
    match found {
        Ok(()) => {
            let dropped = ring.retain(env, &needed)?;
            tracing::info!(event = "data_keys_dropped", dropped, "data keys that no file needs were dropped");
        }
        Err(error) => {
            tracing::warn!(
                event = "data_keys_unknown", %error,
                "files cannot be read to learn which data keys they need: no key is dropped"
            )
        }
    }
    Ok(())
}
