//! Wrapping keys, and the data keys of a folder, which are kept wrapped in a file of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;

use super::cipher::{self, KEY_BYTES, KeyId, Secret, WRAPPED_BYTES, from_hex, hex};
use crate::env::{Disk, Env};
use crate::small_file::{SmallFile, SmallFileError};

/// The file with the wrapped data keys of a folder.
const FILE: &str = "encryption-keys";
/// The first line of its content.
const FIRST_LINE: &str = "stave encryption keys 1";
/// More wrapping keys than any rotation needs.
const MOST_WRAPPING_KEYS: usize = 16;

/// Why data keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// What was given is no wrapping key.
    #[error(
        "{0} is no encryption key: it must be 64 hexadecimal digits, one key a line and at most {MOST_WRAPPING_KEYS}, as \
         `openssl rand -hex 32` prints"
    )]
    Malformed(String),
    /// Encryption is wanted or files are encrypted, and there is no wrapping key.
    #[error(
        "{0} is encrypted or is to be, and there is no encryption key: give it with --encryption-key-file, \
         --encryption-key-command or in STAVE_ENCRYPTION_KEY"
    )]
    NotGiven(String),
    /// The data keys are wrapped by another key.
    #[error(
        "{place} is encrypted under the wrapping key {wanted}, and the keys that were given are {given}: give the right \
         one with --encryption-key-file, --encryption-key-command or in STAVE_ENCRYPTION_KEY"
    )]
    Other {
        /// Whose keys they are.
        place: String,
        /// Fingerprint of the wrapping key that is needed.
        wanted: String,
        /// Fingerprints of those that there are.
        given: String,
    },
    /// The file with the data keys.
    #[error(transparent)]
    File(#[from] SmallFileError),
}

impl KeyError {
    /// Whether another key has to be given first.
    pub fn is_configuration(&self) -> bool {
        !matches!(self, KeyError::File(_))
    }
}

/// Keys that wrap data keys: the first one wraps, the others only unwrap what they wrapped earlier.
#[derive(Clone)]
pub struct WrappingKeys(Arc<Vec<Secret>>);

/// Whether a file in a folder holds the folder's keys, by its name: it is as it is on every disk, encrypted under nothing but
/// the wrapping key.
pub fn is_keys_file(name: &str) -> bool {
    name == FILE || name.strip_prefix(FILE).is_some_and(|rest| rest.starts_with('.'))
}

impl WrappingKeys {
    /// Reads them from text: 64 hexadecimal digits a line; empty lines, and lines that begin with `#`, are passed over.
    /// `source` is what an error says that the text came from.
    pub fn parse(text: &str, source: &str) -> Result<WrappingKeys, KeyError> {
        let malformed = || KeyError::Malformed(source.to_owned());
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Option<Vec<Secret>> = lines.map(|line| from_hex::<KEY_BYTES>(line).map(Secret)).collect();
        let keys =
            keys.filter(|keys| (1..=MOST_WRAPPING_KEYS).contains(&keys.len())).ok_or_else(malformed)?;
        Ok(WrappingKeys(Arc::new(keys)))
    }

    /// The fingerprint of the one that keys are wrapped with; an empty text if there is none.
    pub fn first(&self) -> String {
        self.0.first().map(cipher::fingerprint).unwrap_or_default()
    }

    /// The fingerprints of all of them, as they are shown in errors.
    pub fn shown(&self) -> String {
        self.fingerprints().join(", ")
    }

    /// Whether the one that `other` wraps with is among these.
    pub fn holds_first_of(&self, other: &WrappingKeys) -> bool {
        self.fingerprints().contains(&other.first())
    }

    fn fingerprints(&self) -> Vec<String> {
        self.0.iter().map(cipher::fingerprint).collect()
    }
}

impl PartialEq for WrappingKeys {
    fn eq(&self, other: &WrappingKeys) -> bool {
        self.fingerprints() == other.fingerprints()
    }
}

impl Eq for WrappingKeys {}

impl std::fmt::Debug for WrappingKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WrappingKeys").field(&self.fingerprints()).finish()
    }
}

/// A data key.
pub(super) struct DataKey {
    pub(super) id: KeyId,
    pub(super) secret: Secret,
    created_s: u32,
}

impl DataKey {
    fn new(env: &Env) -> DataKey {
        let (mut id, mut secret) = ([0; 16], [0; KEY_BYTES]);
        env.random.fill(&mut id);
        env.random.fill(&mut secret);
        DataKey { id: KeyId(id), secret: Secret(secret), created_s: env.clock.unix_s() }
    }
}

/// The data keys that a disk encrypts and decrypts with. Clones are the same keys.
///
/// Files are made under the active key; if there is none, they are made plain.
#[derive(Clone, Default)]
pub struct DataKeys(Arc<RwLock<Held>>);

#[derive(Default)]
struct Held {
    keys: BTreeMap<KeyId, Arc<DataKey>>,
    active: Option<KeyId>,
    /// Whether new files are plain although there is an active key.
    is_off: bool,
    /// How often the form of new files has changed.
    changes: u64,
}

impl Held {
    fn active(&self) -> Option<&Arc<DataKey>> {
        self.keys.get(&self.active.filter(|_| !self.is_off)?)
    }
}

impl std::fmt::Debug for DataKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DataKeys").field(&self.ids()).finish()
    }
}

impl DataKeys {
    /// One new key, active, that is kept nowhere: for tests, and for what need not be read again.
    pub fn ephemeral(env: &Env) -> DataKeys {
        let keys = DataKeys::default();
        keys.begin(DataKey::new(env));
        keys
    }

    /// The key of new files; `None` if they are plain.
    pub fn active(&self) -> Option<KeyId> {
        self.0.read().active().map(|key| key.id)
    }

    /// Whether new files are encrypted with the active key, or are plain for as long as this is off. Files that are there
    /// stay as they are.
    pub fn set_encrypting(&self, is_on: bool) {
        let mut held = self.0.write();
        if held.is_off == is_on {
            held.is_off = !is_on;
            held.changes += 1;
        }
    }

    /// How often another key became that of new files, or they became plain, or encrypted.
    pub fn changes(&self) -> u64 {
        self.0.read().changes
    }

    /// Which keys there are.
    pub fn ids(&self) -> Vec<KeyId> {
        self.0.read().keys.keys().copied().collect()
    }

    /// Reads with the keys of another folder, too.
    pub fn add(&self, other: &DataKeys) {
        let theirs = other.0.read().keys.clone();
        self.0.write().keys.extend(theirs);
    }

    fn begin(&self, key: DataKey) {
        let mut held = self.0.write();
        held.active = Some(key.id);
        held.keys.insert(key.id, Arc::new(key));
    }

    pub(super) fn active_key(&self) -> Option<Arc<DataKey>> {
        self.0.read().active().cloned()
    }

    pub(super) fn get(&self, id: KeyId) -> Option<Arc<DataKey>> {
        self.0.read().keys.get(&id).cloned()
    }
}

/// The data keys of a folder, and the file that keeps them wrapped.
///
/// # Invariants
///
/// A key is in the file, durably, before anything is encrypted with it; and it leaves the file only when no file needs
/// it.
pub struct KeyRing {
    keys: DataKeys,
    file: SmallFile,
    wrapping: WrappingKeys,
    /// What it is the ring of, for messages.
    place: String,
}

/// A data key of the file.
struct Wrapped {
    id: KeyId,
    created_s: u32,
    /// Fingerprint of the wrapping key.
    by: String,
    sealed: [u8; WRAPPED_BYTES],
}

/// The content of the file.
struct WrappedKeys {
    active: Option<KeyId>,
    keys: Vec<Wrapped>,
}

impl WrappedKeys {
    fn parse(bytes: &[u8], _version: u16) -> Result<WrappedKeys, String> {
        let malformed = || "it is no list of keys".to_owned();
        let text = std::str::from_utf8(bytes).map_err(|_| malformed())?;
        let mut lines = text.strip_suffix('\n').ok_or_else(malformed)?.split('\n');
        if lines.next() != Some(FIRST_LINE) {
            return Err("it is no list of keys of version 1".to_owned());
        }
        let id = |word: &str| from_hex(word).map(KeyId).ok_or_else(malformed);
        let active = match lines.next().and_then(|line| line.strip_prefix("active ")).ok_or_else(malformed)? {
            "none" => None,
            word => Some(id(word)?),
        };
        let key = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let ["key", name, "created", created, "wrapped-by", by, sealed] = words[..] else {
                return Err(malformed());
            };
            let created_s = created.parse().map_err(|_| malformed())?;
            Ok(Wrapped {
                id: id(name)?,
                created_s,
                by: by.to_owned(),
                sealed: from_hex(sealed).ok_or_else(malformed)?,
            })
        };
        let keys: Vec<Wrapped> = lines.map(key).collect::<Result<_, String>>()?;
        if active.is_some_and(|active| keys.iter().all(|key| key.id != active)) {
            return Err("its active key is missing".to_owned());
        }
        Ok(WrappedKeys { active, keys })
    }
}

impl KeyRing {
    /// The file of a folder.
    pub fn file(folder: &Path) -> SmallFile {
        SmallFile::new(folder, FILE)
    }

    /// What is wrong with the file of a folder or its copy, if anything is; changes nothing.
    pub fn fault(disk: &dyn Disk, folder: &Path) -> Option<String> {
        KeyRing::file(folder).fault(disk, WrappedKeys::parse)
    }

    /// Opens the keys of a folder, which is there. With `encrypts` there is an active key afterwards, otherwise there is
    /// none, and what was encrypted earlier can be read. `None` if nothing ever was encrypted and nothing is to be.
    ///
    /// Keys that an old wrapping key wrapped are wrapped by the first one. `env` has the disk as it is, without
    /// encryption. `place` says in messages whose keys these are.
    pub fn open(
        env: &Env,
        folder: &Path,
        place: &str,
        wrapping: Option<&WrappingKeys>,
        encrypts: bool,
        say: impl FnMut(&str),
    ) -> Result<Option<KeyRing>, KeyError> {
        let file = KeyRing::file(folder);
        let found = file.open(&*env.disk, WrappedKeys::parse, say)?;
        if found.is_none() && !encrypts {
            return Ok(None);
        }
        let first_key = || found.as_ref().and_then(|found| found.keys.first());
        let wrapping = wrapping.ok_or_else(|| not_given(place, first_key().map(|key| &*key.by)))?.clone();
        let ring = KeyRing { keys: DataKeys::default(), file, wrapping, place: place.to_owned() };
        let first = ring.wrapping.fingerprints().first().cloned().unwrap_or_default();
        let was_active = found.as_ref().and_then(|found| found.active);
        let is_stale = found.is_some_and(|found| found.keys.iter().any(|key| key.by != first));
        ring.read_again(env)?;
        let active = match (encrypts, was_active) {
            (false, _) => None,
            (true, Some(active)) => Some(active),
            (true, None) => {
                let key = DataKey::new(env);
                let id = key.id;
                ring.keys.0.write().keys.insert(id, Arc::new(key));
                Some(id)
            }
        };
        ring.keys.0.write().active = active;
        if active != was_active || is_stale {
            ring.write(env, active)?;
        }
        Ok(Some(ring))
    }

    /// The keys of a folder to read with; changes nothing. `None` if it has none.
    pub fn look(
        env: &Env,
        folder: &Path,
        place: &str,
        wrapping: Option<&WrappingKeys>,
    ) -> Result<Option<DataKeys>, KeyError> {
        let file = KeyRing::file(folder);
        let Some(found) = file.look(&*env.disk, WrappedKeys::parse)? else { return Ok(None) };
        let first_key = || found.content.keys.first();
        let wrapping = wrapping.ok_or_else(|| not_given(place, first_key().map(|key| &*key.by)))?;
        let keys = unwrap_all(&found.content, wrapping, place)?;
        let held = Held { keys, active: found.content.active, ..Held::default() };
        Ok(Some(DataKeys(Arc::new(RwLock::new(held)))))
    }

    /// Wraps the keys of a folder that is not open with the first of these wrapping keys, if another one has wrapped some.
    ///
    /// # Errors
    ///
    /// They cannot be read with these wrapping keys, or the file could not be written.
    pub fn wrap_again(
        env: &Env,
        folder: &Path,
        place: &str,
        wrapping: &WrappingKeys,
    ) -> Result<(), KeyError> {
        let file = KeyRing::file(folder);
        let Some(found) = file.look(&*env.disk, WrappedKeys::parse)? else { return Ok(()) };
        let first = wrapping.fingerprints().first().cloned().unwrap_or_default();
        if found.content.keys.iter().all(|key| key.by == first) {
            return Ok(());
        }
        let (keys, place) = (DataKeys::default(), place.to_owned());
        let ring = KeyRing { keys, file, wrapping: wrapping.clone(), place };
        ring.read_again(env)?;
        ring.write(env, found.content.active)
    }

    fn read_again(&self, env: &Env) -> Result<(), KeyError> {
        if let Some(found) = self.file.look(&*env.disk, WrappedKeys::parse)? {
            let keys = unwrap_all(&found.content, &self.wrapping, &self.place)?;
            self.keys.0.write().keys = keys;
        }
        Ok(())
    }

    /// The keys, for a disk.
    pub fn keys(&self) -> &DataKeys {
        &self.keys
    }

    /// Makes a new key, and has new files encrypted with it. One caller at a time.
    pub fn rotate(&self, env: &Env) -> Result<KeyId, KeyError> {
        let key = DataKey::new(env);
        let id = key.id;
        // Not active before it is durable.
        self.keys.0.write().keys.insert(id, Arc::new(key));
        if let Err(error) = self.write(env, Some(id)) {
            self.keys.0.write().keys.remove(&id);
            return Err(error);
        }
        let mut held = self.keys.0.write();
        held.active = Some(id);
        held.changes += 1;
        Ok(id)
    }

    /// Wraps the keys with the first of these wrapping keys from now on.
    ///
    /// # Errors
    ///
    /// The file could not be written. It is read with the earlier wrapping keys or with these: give both to the next start.
    pub fn rewrap(&mut self, env: &Env, wrapping: &WrappingKeys) -> Result<(), KeyError> {
        let before = std::mem::replace(&mut self.wrapping, wrapping.clone());
        let active = self.keys.0.read().active;
        let written = self.write(env, active);
        if written.is_err() {
            self.wrapping = before;
        }
        written
    }

    /// Drops the keys that no file needs: neither the active one, nor one of `needed`. Returns how many went.
    pub fn retain(&self, env: &Env, needed: &BTreeSet<KeyId>) -> Result<usize, KeyError> {
        let (before, active) = {
            let held = self.keys.0.read();
            (held.keys.clone(), held.active)
        };
        let mut left = before.clone();
        left.retain(|id, _| needed.contains(id) || active == Some(*id));
        let dropped = before.len() - left.len();
        if dropped > 0 {
            self.keys.0.write().keys = left;
            if let Err(error) = self.write(env, active) {
                self.keys.0.write().keys.extend(before);
                return Err(error);
            }
        }
        Ok(dropped)
    }

    fn write(&self, env: &Env, active: Option<KeyId>) -> Result<(), KeyError> {
        let first = self.wrapping.0.first().ok_or_else(|| KeyError::NotGiven(self.place.clone()))?;
        let by = cipher::fingerprint(first);
        let active = active.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let mut text = format!("{FIRST_LINE}\nactive {active}\n");
        for key in self.keys.0.read().keys.values() {
            let sealed = hex(&cipher::wrap(first, key.id, &key.secret, &*env.random));
            text += &format!("key {} created {} wrapped-by {by} {sealed}\n", key.id, key.created_s);
        }
        Ok(self.file.write(&*env.disk, text.as_bytes())?)
    }
}

fn unwrap_all(
    content: &WrappedKeys,
    wrapping: &WrappingKeys,
    place: &str,
) -> Result<BTreeMap<KeyId, Arc<DataKey>>, KeyError> {
    let unwrap = |wrapped: &Wrapped| {
        let secret = wrapping.0.iter().find_map(|key| cipher::unwrap(key, wrapped.id, &wrapped.sealed));
        let secret = secret.ok_or_else(|| KeyError::Other {
            place: place.to_owned(),
            wanted: wrapped.by.clone(),
            given: wrapping.fingerprints().join(", "),
        })?;
        let key = DataKey { id: wrapped.id, secret, created_s: wrapped.created_s };
        Ok((wrapped.id, Arc::new(key)))
    };
    content.keys.iter().map(unwrap).collect()
}

/// The keys that files in a folder and the folders in it are encrypted with; `disk` has no encryption.
pub fn keys_in_use(disk: &dyn Disk, folder: &Path) -> io::Result<BTreeSet<KeyId>> {
    let mut found = BTreeSet::new();
    let names = match disk.read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        names => names?,
    };
    for name in names {
        let path = folder.join(name);
        match super::key_of_file(disk, &path) {
            Ok(key) => found.extend(key),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                found.extend(keys_in_use(disk, &path)?);
            }
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
/// `by`: the fingerprint of the wrapping key that is needed, if the file of the keys tells it.
fn not_given(place: &str, by: Option<&str>) -> KeyError {
    let wanted = by.map(|by| format!(" (under the wrapping key {by})"));
    KeyError::NotGiven(format!("{place}{}", wanted.unwrap_or_default()))
}
