//! A disk whose files are encrypted, on top of another one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::cipher::{EPOCH_BYTES, FileKey, KeyId, PageKey};
use super::keys::{DataKeys, KeyRing, WrappingKeys, is_keys_file};
use super::layout::{
    FileHead, HEAD, PAGE, PREFIX, PageHead, STRIDE, bound, content_len, page_start, stored_len,
};
use crate::env::{Disk, Env, File, FolderAccess, GroupSync, OpenMode, Random, Room};

/// Pages that one key encrypts before an opening derives the next: far fewer than the cipher permits.
const PAGES_PER_EPOCH: u32 = 1 << 24;
/// Keys of earlier openings that a file remembers.
const REMEMBERED: usize = 8;
/// A thread keeps no larger buffer than this.
const KEPT_BUFFER: usize = 1 << 20;

/// A disk that encrypts the files that it makes, if its keys have an active one, and decrypts those that are encrypted.
#[derive(Clone)]
pub struct EncryptedDisk {
    under: Arc<dyn Disk>,
    keys: Keys,
    random: Arc<dyn Random>,
}

/// Which keys a disk has.
#[derive(Clone)]
enum Keys {
    Given(DataKeys),
    Found(Arc<Finder>),
}

impl Keys {
    fn of(&self, path: &Path) -> io::Result<DataKeys> {
        match self {
            Keys::Given(keys) => Ok(keys.clone()),
            Keys::Found(finder) => finder.of(path),
        }
    }
}

/// Finds the keys of files in their folder and those around it, when a file needs one.
struct Finder {
    /// Without encryption.
    env: Env,
    wrapping: Option<WrappingKeys>,
    /// What names of files begin with that a node keeps in the folders of its buckets under the keys of its own folder.
    of_node: &'static str,
    /// By folder.
    known: Mutex<BTreeMap<PathBuf, DataKeys>>,
}

impl Finder {
    /// A new file gets the active key of the nearest folder that has keys; one of the node's own of the nearest around its
    /// folder.
    fn of(&self, path: &Path) -> io::Result<DataKeys> {
        let own = path.parent().unwrap_or(path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_of_node = name.starts_with(self.of_node);
        let known_as = if is_of_node { own.join(self.of_node) } else { own.to_owned() };
        if let Some(keys) = self.known.lock().get(&known_as) {
            return Ok(keys.clone());
        }
        let mut folders: Vec<&Path> = own.ancestors().collect();
        if is_of_node {
            folders.rotate_left(1);
        }
        let mut found: Option<DataKeys> = None;
        for folder in folders {
            let place = folder.display().to_string();
            let keys = KeyRing::look(&self.env, folder, &place, self.wrapping.as_ref());
            match (keys.map_err(io::Error::other)?, &found) {
                (Some(keys), None) => found = Some(keys),
                (Some(keys), Some(nearest)) => nearest.add(&keys),
                (None, _) => {}
            }
        }
        let found = found.unwrap_or_default();
        self.known.lock().insert(known_as, found.clone());
        Ok(found)
    }
}

impl EncryptedDisk {
    /// On top of the disk of `env`, which has no encryption.
    pub fn new(env: &Env, keys: DataKeys) -> EncryptedDisk {
        EncryptedDisk {
            under: Arc::clone(&env.disk),
            keys: Keys::Given(keys),
            random: Arc::clone(&env.random),
        }
    }

    /// On top of the disk of `env`, with the keys that folders have: for commands that read folders without a
    /// node. The disk reads the keys, and needs `wrapping`, when a file is encrypted or is to be. A file whose name begins
    /// with `of_node` belongs to the folder around its own.
    pub fn finding(env: &Env, wrapping: Option<WrappingKeys>, of_node: &'static str) -> EncryptedDisk {
        let finder = Finder { env: env.clone(), wrapping, of_node, known: Mutex::default() };
        let keys = Keys::Found(Arc::new(finder));
        EncryptedDisk { under: Arc::clone(&env.disk), keys, random: Arc::clone(&env.random) }
    }

    /// The world of `env` with such a disk.
    pub fn env(env: &Env, keys: DataKeys) -> Env {
        Env { disk: Arc::new(EncryptedDisk::new(env, keys)), ..env.clone() }
    }

    fn form(&self, file: &dyn File, path: &Path) -> io::Result<Form> {
        match FileHead::read(file)? {
            Some(head) => {
                let key = self.keys.of(path)?.get(head.key).ok_or_else(|| unknown_key(path, head.key))?;
                Ok(Form::Encrypted(Arc::new(Encryption::new(
                    head,
                    FileKey::derive(&key.secret, &head.salt, head.cipher),
                ))))
            }
            None => match (file.len()?, FileHead::is_begun(file)?) {
                // Files of proc(5) have content and no length.
                (0, _) if file.read_at(&mut [0], 0)? == 0 => Ok(Form::Empty),
                (0, _) => Ok(Form::Plain),
                // A crash or an error within the first write: nothing of it was durable.
                (..=HEAD, true) => Ok(Form::Empty),
                (_, true) => Ok(Form::Damaged),
                (_, false) => Ok(Form::Plain),
            },
        }
    }
}

/// A file cannot be read, because its folder does not have the key.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is encrypted with the key {key}, which the file encryption-keys of its folder does not have: put that file back from \
     a backup",
    path.display()
)]
struct UnknownKey {
    path: PathBuf,
    key: KeyId,
}

fn unknown_key(path: &Path, key: KeyId) -> io::Error {
    io::Error::other(UnknownKey { path: path.to_owned(), key })
}

/// Whether a file was not opened because its folder does not have the key: the disk works, and will say the same again.
pub fn is_unknown_key(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<UnknownKey>())
}

impl Disk for EncryptedDisk {
    /// A disk that finds its keys is the one below in a folder whose new files it does not encrypt.
    fn on_file_system(&self, folder: &Path) -> Option<FolderAccess> {
        let Keys::Found(finder) = &self.keys else { return None };
        let is_plain = finder.of(&folder.join("file")).is_ok_and(|keys| keys.active().is_none());
        if is_plain { self.under.on_file_system(folder) } else { None }
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.under.open(path, mode)?;
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_keys_file) {
            return Ok(file);
        }
        let form = match mode {
            OpenMode::CreateNew => Form::Empty,
            _ => self.form(&*file, path)?,
        };
        if matches!(form, Form::Plain) && mode == OpenMode::Read {
            return Ok(file);
        }
        Ok(Arc::new(EncryptedFile {
            disk: self.clone(),
            path: path.to_owned(),
            under: file,
            form: RwLock::new(form),
            writing: Mutex::default(),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.under.create_dir_all(path)
    }

    fn create_dir_all_synced(&self, path: &Path) -> io::Result<()> {
        self.under.create_dir_all_synced(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.under.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.under.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.under.remove_file(path)
    }

    fn room(&self, folder: &Path) -> Option<Room> {
        self.under.room(folder)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.under.remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.under.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.under.sync_dir(path)
    }

    fn group_sync(&self, folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        self.under.group_sync(folder)
    }

    fn beneath(&self) -> Option<Arc<dyn Disk>> {
        Some(Arc::clone(&self.under))
    }

    fn set_encrypting(&self, is_on: bool) {
        if let Keys::Given(keys) = &self.keys {
            keys.set_encrypting(is_on);
        }
    }

    fn key_changes(&self) -> u64 {
        match &self.keys {
            Keys::Given(keys) => keys.changes(),
            Keys::Found(_) => 0,
        }
    }
}

/// How a file is stored.
#[derive(Clone)]
enum Form {
    /// It has no content yet; the first write decides.
    Empty,
    Plain,
    /// It was encrypted, and what it begins with is damaged: its bytes are of no meaning.
    Damaged,
    Encrypted(Arc<Encryption>),
}

/// The keys of an encrypted file.
struct Encryption {
    head: FileHead,
    key: FileKey,
    /// Keys of openings that were used last, the latest one last.
    remembered: Mutex<Vec<Epoch>>,
}

type Epoch = ([u8; EPOCH_BYTES], Arc<PageKey>);

impl Encryption {
    fn new(head: FileHead, key: FileKey) -> Encryption {
        Encryption { head, key, remembered: Mutex::default() }
    }

    fn of_epoch(&self, epoch: &[u8; EPOCH_BYTES]) -> Arc<PageKey> {
        let mut remembered = self.remembered.lock();
        if let Some(at) = remembered.iter().rposition(|(of, _)| of == epoch) {
            return Arc::clone(&remembered[at].1);
        }
        let key = Arc::new(self.key.of_epoch(epoch));
        if remembered.len() == REMEMBERED {
            remembered.remove(0);
        }
        remembered.push((*epoch, Arc::clone(&key)));
        key
    }
}

/// What pages are encrypted with in this opening.
#[derive(Default)]
struct Writing {
    epoch: Option<Epoch>,
    /// Pages that were encrypted in the epoch.
    pages: u32,
}

impl Writing {
    /// The key and the number for the next page.
    fn next(&mut self, encryption: &Encryption, random: &dyn Random) -> (Epoch, u32) {
        if self.pages == PAGES_PER_EPOCH {
            *self = Writing::default();
        }
        let (epoch, key) = self.epoch.get_or_insert_with(|| {
            let mut epoch = [0; EPOCH_BYTES];
            while epoch == [0; EPOCH_BYTES] {
                random.fill(&mut epoch);
            }
            (epoch, encryption.of_epoch(&epoch))
        });
        let number = self.pages;
        self.pages += 1;
        ((*epoch, Arc::clone(key)), number)
    }
}

struct EncryptedFile {
    disk: EncryptedDisk,
    path: PathBuf,
    under: Arc<dyn File>,
    form: RwLock<Form>,
    /// Held while the file is written to.
    writing: Mutex<Writing>,
}

thread_local! {
    /// Encrypted pages on their way.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends the thread's buffer. What is in it is of no meaning.
fn with_buffer<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    BUFFER.with(|buffer| {
        let mut taken = std::mem::take(&mut *buffer.borrow_mut());
        let done = work(&mut taken);
        if taken.capacity() <= KEPT_BUFFER {
            *buffer.borrow_mut() = taken;
        }
        done
    })
}

/// Decrypts a page that was read with its head, as far as it is there, into `content`; what is not as it was written
/// becomes zeros. Returns how much of it was written.
fn open_page(encryption: &Encryption, page: u64, stored: &mut [u8], last: &mut Option<Epoch>) -> usize {
    let Some((head, content)) = stored.split_at_mut_checked(PREFIX) else { return 0 };
    let Some(head) = PageHead::decode(head) else { return 0 };
    let Some(content) = content.get_mut(..head.len as usize) else { return 0 };
    let key = match last {
        Some((epoch, key)) if *epoch == head.epoch => key,
        _ => &last.insert((head.epoch, encryption.of_epoch(&head.epoch))).1,
    };
    if key.open(head.number, &bound(page, head.len), head.tag, content) { content.len() } else { 0 }
}

impl EncryptedFile {
    /// How it is stored. A file that was empty may have been written through another handle.
    fn form(&self) -> io::Result<Form> {
        let form = self.form.read().clone();
        if !matches!(form, Form::Empty) || self.under.len()? == 0 {
            return Ok(form);
        }
        let form = self.disk.form(&*self.under, &self.path)?;
        *self.form.write() = form.clone();
        Ok(form)
    }

    /// The same for a change, which decides about an empty file.
    fn form_to_change(&self) -> io::Result<Form> {
        let form = self.form()?;
        let active = match form {
            Form::Empty => self.disk.keys.of(&self.path)?.active_key(),
            _ => None,
        };
        match (form, active) {
            (Form::Damaged, _) => Err(io::Error::other(format!(
                "the head of the encrypted file {} is damaged",
                self.path.display()
            ))),
            (Form::Empty, None) => {
                if self.under.len()? > 0 {
                    self.under.set_len(0)?;
                }
                *self.form.write() = Form::Plain;
                Ok(Form::Plain)
            }
            (Form::Empty, Some(key)) => {
                if self.under.len()? > 0 {
                    self.under.set_len(0)?;
                }
                let head = FileHead::new(key.id, &*self.disk.random);
                self.under.write_at(&head.encode(), 0)?;
                let key = FileKey::derive(&key.secret, &head.salt, head.cipher);
                let form = Form::Encrypted(Arc::new(Encryption::new(head, key)));
                *self.form.write() = form.clone();
                Ok(form)
            }
            (form, _) => Ok(form),
        }
    }

    /// The content of a page as far as it was written.
    fn page(&self, encryption: &Encryption, page: u64) -> io::Result<Vec<u8>> {
        let mut stored = vec![0; STRIDE as usize];
        let read = self.under.read_at(&mut stored, page_start(page))?;
        let len = open_page(encryption, page, &mut stored[..read], &mut None);
        stored.drain(..PREFIX);
        stored.truncate(len);
        Ok(stored)
    }

    /// Pages of which `is_wanted` wants nothing are not decrypted.
    fn read_encrypted(
        &self,
        encryption: &Encryption,
        buf: &mut [u8],
        offset: u64,
        is_wanted: &dyn Fn(Range<u64>) -> bool,
    ) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let end = offset.saturating_add(buf.len() as u64);
        let pages = offset / PAGE..end.div_ceil(PAGE);
        let start = page_start(pages.start);
        let mut last = None;
        with_buffer(|stored| {
            let bytes = ((pages.end - pages.start) * STRIDE) as usize;
            if stored.len() < bytes {
                stored.resize(bytes, 0);
            }
            let read = self.under.read_at(&mut stored[..bytes], start)?;
            let mut done = 0;
            for (page, stored) in pages.zip(stored[..read].chunks_mut(STRIDE as usize)) {
                let there = stored.len().saturating_sub(PREFIX);
                let from = offset.saturating_sub(page * PAGE) as usize;
                let wanted = there.saturating_sub(from).min(buf.len() - done);
                if !is_wanted(page * PAGE..(page + 1) * PAGE) {
                    done += wanted;
                    continue;
                }
                let written = open_page(encryption, page, stored, &mut last).saturating_sub(from).min(wanted);
                let out = &mut buf[done..done + wanted];
                out[..written]
                    .copy_from_slice(stored.get(PREFIX + from..PREFIX + from + written).unwrap_or(&[]));
                out[written..].fill(0);
                done += wanted;
            }
            Ok(done)
        })
    }

    /// Appends a page to `stored`, whose content is what is there now with `bytes` put in at `from`.
    fn seal_page(
        &self,
        encryption: &Encryption,
        writing: &mut Writing,
        stored: &mut Vec<u8>,
        page: u64,
        from: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        let at = stored.len();
        stored.extend_from_slice(&[0; PREFIX]);
        if bytes.len() as u64 == PAGE {
            stored.extend_from_slice(bytes);
        } else {
            let mut content = self.page(encryption, page)?;
            content.resize(content.len().max(from + bytes.len()), 0);
            content[from..from + bytes.len()].copy_from_slice(bytes);
            stored.extend_from_slice(&content);
        }
        let ((epoch, key), number) = writing.next(encryption, &*self.disk.random);
        let (head, content) = stored[at..].split_at_mut(PREFIX);
        let len = content.len() as u32;
        let tag = key.seal(number, &bound(page, len), content);
        head.copy_from_slice(&PageHead { epoch, number, len, tag }.encode());
        Ok(())
    }

    fn write_encrypted(
        &self,
        encryption: &Encryption,
        writing: &mut Writing,
        mut buf: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        let first = offset / PAGE;
        with_buffer(|stored| {
            stored.clear();
            let (mut page, mut from) = (first, (offset % PAGE) as usize);
            while !buf.is_empty() {
                let (bytes, rest) = buf.split_at(buf.len().min(PAGE as usize - from));
                self.seal_page(encryption, writing, stored, page, from, bytes)?;
                (buf, page, from) = (rest, page + 1, 0);
            }
            self.under.write_at(stored, page_start(first))
        })
    }

    /// Cuts or extends; a page that is cut in the middle is written again first.
    fn set_encrypted_len(&self, encryption: &Encryption, writing: &mut Writing, len: u64) -> io::Result<()> {
        let (page, rest) = (len / PAGE, (len % PAGE) as usize);
        if rest > 0 && content_len(self.under.len()?) > len {
            let mut content = self.page(encryption, page)?;
            if content.len() > rest {
                content.truncate(rest);
                let mut stored = Vec::new();
                let ((epoch, key), number) = writing.next(encryption, &*self.disk.random);
                let tag = key.seal(number, &bound(page, rest as u32), &mut content);
                stored.extend_from_slice(&PageHead { epoch, number, len: rest as u32, tag }.encode());
                stored.extend_from_slice(&content);
                self.under.write_at(&stored, page_start(page))?;
            }
        }
        self.under.set_len(stored_len(len))
    }
}

impl File for EncryptedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.form()? {
            Form::Encrypted(encryption) => self.read_encrypted(&encryption, buf, offset, &|_| true),
            Form::Empty => Ok(0),
            Form::Plain | Form::Damaged => self.under.read_at(buf, offset),
        }
    }

    fn read_parts_at(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_wanted: &dyn Fn(Range<u64>) -> bool,
    ) -> io::Result<usize> {
        match self.form()? {
            Form::Encrypted(encryption) => self.read_encrypted(&encryption, buf, offset, is_wanted),
            _ => self.read_at(buf, offset),
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut writing = self.writing.lock();
        match self.form_to_change()? {
            Form::Encrypted(encryption) => self.write_encrypted(&encryption, &mut writing, buf, offset),
            _ => self.under.write_at(buf, offset),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.under.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        match self.form()? {
            Form::Encrypted(_) => Ok(content_len(self.under.len()?)),
            Form::Empty => Ok(0),
            Form::Plain | Form::Damaged => self.under.len(),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut writing = self.writing.lock();
        if len == 0 {
            // It begins again, with the key that is active then.
            self.under.set_len(0)?;
            *writing = Writing::default();
            *self.form.write() = Form::Empty;
            return Ok(());
        }
        match self.form_to_change()? {
            Form::Encrypted(encryption) => self.set_encrypted_len(&encryption, &mut writing, len),
            _ => self.under.set_len(len),
        }
    }

    fn append_from(&self, end: u64) -> u64 {
        match &*self.form.read() {
            Form::Encrypted(_) => end.next_multiple_of(PAGE),
            Form::Empty | Form::Plain | Form::Damaged => self.under.append_from(end),
        }
    }

    fn is_current(&self) -> bool {
        let active = match self.disk.keys.of(&self.path) {
            Ok(keys) => keys.active(),
            Err(_) => return true,
        };
        match &*self.form.read() {
            Form::Empty => true,
            Form::Plain | Form::Damaged => active.is_none(),
            Form::Encrypted(encryption) => active == Some(encryption.head.key),
        }
    }

    fn key_changes(&self) -> u64 {
        self.disk.key_changes()
    }
}

const _: () = assert!(HEAD > 0 && STRIDE as usize == PREFIX + PAGE as usize);
