//! The file of a vBucket is copied from another node, in fragments with checksums, into the bucket's folder: to fill a
//! vBucket of this node with it (docs/adr/0181).
//!
//! # Guarantees
//!
//! - What is in the folder under the name of a file is whole: fragments are written under another name, and the file is
//!   renamed once all are durable.
//! - A connection that breaks is made again, and the copy goes on where it stood as long as the source has the snapshot.
//! - A fragment whose checksum is wrong is asked for again, a few times; then the copy is given up.
//! - No more than one fragment is in memory, once; it is charged to the bucket.
//! - Nothing is written for a bucket that is gone, nor into one that was made again under its name.
//! - It goes on behind what was written since the bucket was opened, and behind nothing else: what was not durable when the
//!   power failed may be anything.

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::env::{Env, File, OpenMode, Task};
use base::limits::MAX_FRAME_BODY_BYTES;
use base::{Account, Part, VbId};
use engine::{Completer, INCOMING_PART, IncomingFile};
use protocol::{ParsedResponse, RequestParts, Status, magic, opcode, parse_response, write_request};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use super::download_places::DownloadPlace;
use super::login::{LinkError, Login, WANTED};
use super::source::Password;
use super::wire::{Wire, first_of, log_in};
use crate::sasl::client::SaltedPassword;
use crate::timer::Timer;

/// Connections that may break one after the other without a fragment in between.
const MOST_TRIES: u32 = 5;
/// Fragments of a file that may come damaged on one connection, each of which is asked for again.
const MOST_DAMAGED: u32 = 8;
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between two fragments of a download whose rate is limited.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What a source may refuse for a moment.
const PREPARE: &str = "to prepare a snapshot";
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest fragment that is asked for.
const MOST_FRAGMENT_BYTES: u64 = 16 << 20;
/// How long a manifest may be.
const MOST_MANIFEST_BYTES: usize = 64 << 10;
/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 4;
const BACKEND: &str = "couchstore";
/// The newest format that is read here.
const MOST_VERSION: u64 = kvstore::COUCH_FORMAT.read.1 as u64;

/// What a copy came to: bytes of the file.
pub type Downloaded = Result<u64, DownloadFailure>;

/// Why there is no copy. No text has a password in it.
#[derive(Debug)]
pub enum DownloadFailure {
    /// There is no connection, or it broke again and again.
    Link(LinkError),
    /// The source refuses something.
    Refused(&'static str, u16),
    /// What the source says of the snapshot cannot be used: why.
    Manifest(&'static str),
    /// Too many fragments, or the whole, have another checksum.
    Checksum,
    /// There is less room on the disk than the file takes.
    NoRoom,
    /// The disk failed.
    Disk(io::Error),
    /// The bucket is gone, or the node stops.
    Gone,
}

impl DownloadFailure {
    /// What is answered.
    pub fn status(&self) -> Status {
        match self {
            DownloadFailure::Manifest(_) => Status::NotSupported,
            DownloadFailure::Link(_) | DownloadFailure::NoRoom | DownloadFailure::Gone => Status::Etmpfail,
            DownloadFailure::Refused(_, code) => Status::from_code(*code).unwrap_or(Status::Einternal),
            DownloadFailure::Checksum | DownloadFailure::Disk(_) => Status::Einternal,
        }
    }
}

impl fmt::Display for DownloadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DownloadFailure::Link(error) => error.fmt(f),
            DownloadFailure::Refused(what, code) => {
                write!(f, "the source refuses {what} with status 0x{code:02x}")
            }
            DownloadFailure::Manifest(what) => write!(f, "the snapshot cannot be used here: {what}"),
            DownloadFailure::Checksum => f.write_str("what came has another checksum: download it again"),
            DownloadFailure::NoRoom => f.write_str(
                "the disk has less room than the file takes: make room, or allow it to fail later",
            ),
            DownloadFailure::Disk(error) => write!(f, "the file cannot be written: {error}"),
            DownloadFailure::Gone => f.write_str("the bucket is gone, or the node stops"),
        }
    }
}

impl From<LinkError> for DownloadFailure {
    fn from(error: LinkError) -> DownloadFailure {
        DownloadFailure::Link(error)
    }
}

impl From<io::Error> for DownloadFailure {
    fn from(error: io::Error) -> DownloadFailure {
        DownloadFailure::Disk(error)
    }
}

/// Who connects to the source.
pub trait DownloadDial {
    /// The connections that it makes.
    type Wire: Wire;

    /// Connects to a node, HOST:PORT.
    fn connect(&self, env: &Env, node: &str) -> impl Future<Output = Result<Self::Wire, LinkError>>;

    /// Time limits and pauses.
    fn timer(&self) -> &dyn Timer;
}

/// Begins to copy a file elsewhere than on the thread of the links. The task ends when that is done, or has failed.
pub type Bring = Arc<dyn Fn(&Env, Download) -> io::Result<Task>>;

/// Of a place from which no file comes.
pub fn brings_none() -> Bring {
    Arc::new(|_, download| {
        drop(download);
        Err(io::Error::new(io::ErrorKind::NotConnected, "this node copies no files of others"))
    })
}

/// The bucket for which a file is copied.
pub trait DownloadBucket: Send + Sync {
    /// Whether it is there, and the node does not stop.
    fn is_there(&self) -> bool;

    /// Does something in its folder, if it is there, while it can neither go nor be made again.
    fn hold(&self, act: &mut dyn FnMut());
}

/// Memory of a bucket that is charged until this is dropped.
pub struct DownloadCharge {
    account: Account,
    bytes: usize,
}

impl DownloadCharge {
    /// Charges a fragment of a copy that asks for so many bytes at once.
    pub fn of(account: &Account, write_bytes: u64) -> DownloadCharge {
        let bytes = fragment_bytes(write_bytes) as usize + CHECKSUM_BYTES;
        account.charge(Part::Other, bytes);
        DownloadCharge { account: account.clone(), bytes }
    }
}

impl Drop for DownloadCharge {
    fn drop(&mut self) {
        self.account.release(Part::Other, self.bytes);
    }
}

/// Bytes of a fragment, of a copy that wants to write so many at once.
fn fragment_bytes(write_bytes: u64) -> u64 {
    write_bytes.clamp(1, MOST_FRAGMENT_BYTES)
}

/// What is to be copied, and where.
pub struct Download {
    /// The outside world, with the bucket's disk.
    pub env: Env,
    /// The source, HOST:PORT.
    pub node: String,
    /// The bucket there.
    pub bucket: String,
    /// Who logs in.
    pub username: String,
    /// That user's password.
    pub password: Password,
    /// The vBucket.
    pub vb: VbId,
    /// vBuckets of the bucket.
    pub vbuckets: u16,
    /// Where the file goes; nothing else is copied there meanwhile.
    pub into: IncomingFile,
    /// The bucket here.
    pub target: Box<dyn DownloadBucket>,
    /// What is held in memory.
    pub charge: DownloadCharge,
    /// One of the few at a time.
    pub place: DownloadPlace,
    /// Bytes that are asked for and written at once.
    pub write_bytes: u64,
    /// Bytes after which what was written is made durable; 0 if that is done once, at the end.
    pub fsync_bytes: u64,
    /// Bytes a second that it takes at most; 0 for no limit.
    pub most_bytes_per_s: u64,
    /// Grows by what comes.
    pub received: Arc<AtomicU64>,
    /// Whether it fails at once if there is less room than the file takes.
    pub fails_fast: bool,
    /// Is told how it went.
    pub done: Completer<Downloaded>,
}

/// What the source says of its snapshot.
struct SourceManifest {
    uuid: String,
    file: u64,
    bytes: u64,
    sha512: Option<String>,
}

impl SourceManifest {
    fn parse(json: &[u8], vb: VbId) -> Result<SourceManifest, DownloadFailure> {
        let wrong = DownloadFailure::Manifest;
        if json.len() > MOST_MANIFEST_BYTES {
            return Err(wrong("its description is too long"));
        }
        let manifest: Value =
            serde_json::from_slice(json).map_err(|_| wrong("its description is no JSON"))?;
        let storage = &manifest["storage"];
        if storage.get("backend").is_some_and(|backend| backend != BACKEND) {
            return Err(wrong("its files are of another store"));
        }
        if storage["version"].as_u64().is_some_and(|version| version > MOST_VERSION) {
            return Err(wrong("its files have a newer format"));
        }
        if manifest["deks"].as_array().is_some_and(|deks| !deks.is_empty()) {
            return Err(wrong("its files are encrypted"));
        }
        if manifest["vbid"] != json!(vb.0) {
            return Err(wrong("it is of another vBucket"));
        }
        let Some([file]) = manifest["files"].as_array().map(Vec::as_slice) else {
            return Err(wrong("it has not exactly one file"));
        };
        let uuid = manifest["uuid"].as_str().filter(|uuid| is_plain(uuid)).ok_or(wrong("it has no UUID"))?;
        let id = file["id"].as_u64().ok_or(wrong("its file has no number"))?;
        let bytes = file["size"].as_str().and_then(|size| size.parse().ok());
        let bytes = bytes.or(file["size"].as_u64()).ok_or(wrong("its file has no size"))?;
        let sha512 = file["sha512"].as_str().map(str::to_owned);
        Ok(SourceManifest { uuid: uuid.to_owned(), file: id, bytes, sha512 })
    }
}

/// Whether it can be part of a file's name.
fn is_plain(uuid: &str) -> bool {
    (1..=64).contains(&uuid.len()) && uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether the source answered with success.
fn success(status: u16, what: &'static str) -> Result<(), DownloadFailure> {
    if status == Status::Success.code() { Ok(()) } else { Err(DownloadFailure::Refused(what, status)) }
}

/// Copies the file, and completes [`Download::done`] with the outcome.
pub async fn run_download(download: Download, dial: &impl DownloadDial) {
    let outcome = download.copy(dial).await;
    let Download { env, bucket, node, vb, done, into, charge, place, fails_fast, .. } = download;
    if let Err(error) = &outcome {
        tracing::info!(
            event = "vbucket_file_not_downloaded", bucket, source = node, %vb, %error,
            "the file of a vBucket was not downloaded"
        );
    }
    // Another one may begin when the client hears of this one.
    if let Err(DownloadFailure::Disk(_)) = &outcome {
        into.forget();
    }
    // Nobody asks for this file again: the vBucket is filled by documents. One that is gone may be asked for by the next link.
    let is_for_nothing =
        fails_fast && outcome.as_ref().is_err_and(|failure| !matches!(failure, DownloadFailure::Gone));
    if is_for_nothing && let Err(error) = into.remove(&env) {
        tracing::debug!(bucket, %vb, %error, "what came of the file of a vBucket cannot be removed");
    }
    drop((into, charge, place));
    done.complete(outcome);
}

impl Download {
    async fn copy(&self, dial: &impl DownloadDial) -> Downloaded {
        let (mut known, mut failures, mut before, mut busy) = (None, 0, 0, 0);
        loop {
            if !self.target.is_there() {
                return Err(DownloadFailure::Gone);
            }
            let mut written = 0;
            match self.attempt(dial, &mut known, &mut written).await {
                Err(DownloadFailure::Link(error)) if is_passing(&error) => {
                    failures = if written > before { 0 } else { failures + 1 };
                    before = before.max(written);
                    if failures >= MOST_TRIES {
                        return Err(DownloadFailure::Link(error));
                    }
                    dial.timer().after(PAUSE * (failures + 1)).await;
                }
                // The source writes files just now, or has nothing of the vBucket on disk yet.
                Err(DownloadFailure::Refused(PREPARE, code))
                    if code == Status::Etmpfail.code() && busy < MOST_TRIES =>
                {
                    busy += 1;
                    dial.timer().after(PAUSE * busy).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Bytes that are asked for at once: what may come in the longest pause, if less.
    fn most_at_once(&self) -> u64 {
        let most = self.most_bytes_per_s.saturating_mul(LONGEST_PAUSE.as_secs());
        if most == 0 { self.write_bytes } else { self.write_bytes.min(most) }
    }

    /// Waits for as long as a fragment, asked for at `begun`, came faster than it may.
    async fn keep_rate(&self, dial: &impl DownloadDial, bytes: u64, begun: Duration) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        if self.most_bytes_per_s == 0 {
            return;
        }
        let least = Duration::from_secs_f64(bytes as f64 / self.most_bytes_per_s as f64);
        let took = self.env.clock.monotonic().saturating_sub(begun);
        // No answer is waited for meanwhile; the source keeps the snapshot for far longer.
        let pause = least.saturating_sub(took).min(LONGEST_PAUSE);
        if !pause.is_zero() {
            dial.timer().after(pause).await;
        }
    }

    /// One connection. `written` is how much of the file is here.
    async fn attempt(
        &self,
        dial: &impl DownloadDial,
        known: &mut Option<SaltedPassword>,
        written: &mut u64,
    ) -> Downloaded {
        let opening = async {
            let mut wire = dial.connect(&self.env, &self.node).await?;
            let (username, password) = (Cow::Borrowed(&*self.username), Cow::Borrowed(&self.password));
            let (env, bucket, vbuckets) = (&self.env, &*self.bucket, self.vbuckets);
            let login = Login { env, username, password, bucket, vbuckets, wanted: WANTED, asks_for: None };
            log_in(&mut wire, login, known).await?;
            Ok(wire)
        };
        let mut wire = first_of(opening, too_late(dial)).await?;
        let wanted = json!({ "storage": { "backend": BACKEND, "max_version": MOST_VERSION } }).to_string();
        let prepare = self.request(opcode::PREPARE_SNAPSHOT, b"", wanted.as_bytes());
        let told = |status, value: &[u8]| {
            success(status, PREPARE)?;
            SourceManifest::parse(value, self.vb)
        };
        let prepared = first_of(ask(&mut wire, &prepare, told), too_late(dial)).await?;
        let uuid = prepared.as_ref().map_or_else(|_| String::new(), |manifest| manifest.uuid.clone());
        let copied = match prepared {
            Ok(manifest) => self.fragments(dial, &mut wire, &manifest, written).await,
            Err(failure) => Err(failure),
        };
        // A connection that broke is made again, and the copy goes on with the same snapshot. Else the source keeps it for
        // nothing until it ends by itself; whether it ends now does not matter here.
        let is_over = !matches!(copied, Err(DownloadFailure::Link(_) | DownloadFailure::Refused(PREPARE, _)));
        if is_over {
            let release = self.request(opcode::RELEASE_SNAPSHOT, uuid.as_bytes(), b"");
            let _ = first_of(ask(&mut wire, &release, |_, _: &[u8]| ()), too_late(dial)).await;
        }
        copied
    }

    /// Copies what is not here yet. `written` is how much of the file is here.
    async fn fragments(
        &self,
        dial: &impl DownloadDial,
        wire: &mut impl Wire,
        manifest: &SourceManifest,
        written: &mut u64,
    ) -> Downloaded {
        let (part, file) = self.held(|| self.part(manifest))?;
        *written = file.len()?.min(manifest.bytes);
        file.set_len(*written)?;
        let (mut unsynced, mut damaged) = (0, 0);
        while *written < manifest.bytes {
            let length = (manifest.bytes - *written).min(fragment_bytes(self.most_at_once()));
            let wanted = json!({
                "id": manifest.file, "offset": written.to_string(), "length": length.to_string(),
                "checksum_length": length.to_string(),
            });
            let wanted = wanted.to_string();
            let request =
                self.request(opcode::GET_FILE_FRAGMENT, manifest.uuid.as_bytes(), wanted.as_bytes());
            let at = *written;
            // It is written from where it came to: no second copy of it is made.
            let write = |fragment: &[u8]| {
                if !self.target.is_there() {
                    return Err(DownloadFailure::Gone);
                }
                Ok(file.write_at(fragment, at)?)
            };
            let (begun, before) = (self.env.clock.monotonic(), damaged);
            ask_for_fragment(dial, wire, &request, length, &mut damaged, &write).await?;
            if damaged > before {
                let (source, bucket, vb) = (&self.node, &self.bucket, self.vb);
                tracing::info!(
                    event = "vbucket_file_fragment_damaged", bucket, source, %vb, offset = at, length,
                    times = damaged - before,
                    "a fragment of the file of a vBucket came damaged, and whole when it was asked for again"
                );
            }
            let came = length * u64::from(1 + damaged - before);
            self.keep_rate(dial, came, begun).await;
            *written += length;
            unsynced += length;
            if self.fsync_bytes > 0 && unsynced >= self.fsync_bytes {
                file.sync_data()?;
                unsynced = 0;
            }
        }
        self.finish(&part, &*file, manifest)?;
        Ok(manifest.bytes)
    }

    fn request<'a>(&self, opcode: u8, key: &'a [u8], value: &'a [u8]) -> RequestParts<'a> {
        let datatype = if value.is_empty() { 0 } else { base::Datatype::JSON.0 };
        RequestParts { opcode, vbucket: self.vb, key, value, datatype, ..RequestParts::default() }
    }

    /// Does something in the bucket's folder, if the bucket is there.
    fn held<T>(&self, act: impl Fn() -> Result<T, DownloadFailure>) -> Result<T, DownloadFailure> {
        let mut outcome = Err(DownloadFailure::Gone);
        self.target.hold(&mut || outcome = act());
        outcome
    }

    /// The part of the file that is here, if it is known to be good, or an empty one. What is left of other snapshots is
    /// removed.
    fn part(&self, manifest: &SourceManifest) -> Result<(PathBuf, Arc<dyn File>), DownloadFailure> {
        let (disk, folder) = (&self.env.disk, self.into.folder());
        disk.create_dir_all_synced(folder)?;
        let name = format!("{}{INCOMING_PART}", manifest.uuid);
        for other in disk.read_dir(folder)?.iter().filter(|other| **other != name) {
            disk.remove_file(&folder.join(other))?;
        }
        let has_room = disk.room(folder).is_none_or(|room| room.free_bytes >= manifest.bytes);
        if self.fails_fast && !has_room {
            return Err(DownloadFailure::NoRoom);
        }
        let path = folder.join(&name);
        let file = disk.open(&path, OpenMode::Create)?;
        if !self.into.goes_on(&name) {
            file.set_len(0)?;
        }
        Ok((path, file))
    }

    /// Looks at the whole, makes it durable and gives it its name.
    fn finish(&self, part: &Path, file: &dyn File, manifest: &SourceManifest) -> Result<(), DownloadFailure> {
        file.sync_data()?;
        let disk = &self.env.disk;
        if let Some(wanted) = &manifest.sha512
            && sha512_of(file, manifest.bytes)? != wanted.to_ascii_lowercase()
        {
            disk.remove_file(part)?;
            return Err(DownloadFailure::Checksum);
        }
        self.held(|| {
            disk.rename(part, &self.into.path())?;
            Ok(disk.sync_dir(self.into.folder())?)
        })
    }
}

/// Asks for a fragment, and has `write` write it; again, if its checksum is wrong, until too many were `damaged`.
async fn ask_for_fragment(
    dial: &impl DownloadDial,
    wire: &mut impl Wire,
    request: &RequestParts<'_>,
    length: u64,
    damaged: &mut u32,
    write: &impl Fn(&[u8]) -> Result<(), DownloadFailure>,
) -> Result<(), DownloadFailure> {
    let wrote = |status, value: &[u8]| {
        success(status, "a fragment of a file")?;
        write(checked(value, length)?)
    };
    loop {
        match first_of(ask(wire, request, wrote), too_late(dial)).await? {
            Err(DownloadFailure::Checksum) if *damaged < MOST_DAMAGED => *damaged += 1,
            outcome => return outcome,
        }
    }
}

/// The bytes of a fragment, of which a checksum that stands behind them holds. Sources that know of no checksums send none.
fn checked(value: &[u8], length: u64) -> Result<&[u8], DownloadFailure> {
    if value.len() as u64 == length {
        return Ok(value);
    }
    let (bytes, checksum) = value.split_last_chunk::<CHECKSUM_BYTES>().ok_or(DownloadFailure::Checksum)?;
    let is_right = bytes.len() as u64 == length && crc32c::crc32c(bytes) == u32::from_be_bytes(*checksum);
    if is_right { Ok(bytes) } else { Err(DownloadFailure::Checksum) }
}

fn sha512_of(file: &dyn File, bytes: u64) -> io::Result<String> {
    let (mut hasher, mut at, mut buf) = (Sha512::new(), 0, vec![0; 1 << 20]);
    while at < bytes {
        let want = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(buf.len());
        let read = file.read_at(buf.get_mut(..want).unwrap_or_default(), at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(buf.get(..read).unwrap_or_default());
        at += read as u64;
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn too_late<T>(dial: &impl DownloadDial) -> Result<T, LinkError> {
    dial.timer().after(ANSWER_TIMEOUT).await;
    Err(LinkError::TimeOut)
}

/// Whether another connection may do better.
fn is_passing(error: &LinkError) -> bool {
    matches!(error, LinkError::Connect(_) | LinkError::Io(_) | LinkError::Closed | LinkError::TimeOut)
}

/// Makes a request, waits for its answer, and has `take` make something of its status and its value.
async fn ask<W: Wire, T>(
    wire: &mut W,
    request: &RequestParts<'_>,
    take: impl Fn(u16, &[u8]) -> T,
) -> Result<T, LinkError> {
    if !write_request(wire.parts().1, request) {
        return Err(LinkError::TooLong);
    }
    loop {
        wire.send()?;
        let mut answer = None;
        let mut consumed = 0;
        match parse_response(wire.parts().0, MAX_FRAME_BODY_BYTES) {
            ParsedResponse::Bad(_) => return Err(LinkError::NotANode),
            ParsedResponse::Incomplete { .. } => {}
            ParsedResponse::Response { response, total_len } => {
                consumed = total_len;
                if response.magic != magic::SERVER_REQUEST {
                    answer = Some(take(response.status_code, response.value));
                }
            }
        }
        wire.consume(consumed);
        match answer {
            Some(answer) => return Ok(answer),
            None if consumed > 0 => {}
            None => poll_fn(|cx| wire.poll_turn(true, cx)).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::{pending, ready};
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_fragment_is_taken_with_its_checksum_or_without_one() {
        let with = [&b"bytes"[..], &crc32c::crc32c(b"bytes").to_be_bytes()].concat();
        assert_eq!(checked(&with, 5).ok(), Some(&b"bytes"[..]));
        assert_eq!(checked(b"bytes", 5).ok(), Some(&b"bytes"[..]));
        let mut flipped = with.clone();
        flipped[2] ^= 1;
        for (value, length) in [(&flipped[..], 5), (&with[..], 4), (b"byt", 5), (b"", 5)] {
            assert!(checked(value, length).is_err(), "{value:?} {length}");
        }
    }

    /// A source that has its answers ready, one for each request.
    struct Answers {
        left: Vec<Vec<u8>>,
        came: Vec<u8>,
        out: Vec<u8>,
        asked: usize,
    }

    impl Wire for Answers {
        fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
            (&self.came, &mut self.out)
        }

        fn consume(&mut self, bytes: usize) {
            self.came.drain(..bytes);
        }

        fn send(&mut self) -> Result<(), LinkError> {
            if !std::mem::take(&mut self.out).is_empty() {
                self.asked += 1;
                self.came.extend(self.left.remove(0));
            }
            Ok(())
        }

        fn unsent_bytes(&self) -> usize {
            self.out.len()
        }

        fn held_bytes(&self) -> usize {
            self.came.len()
        }

        fn poll_turn(&mut self, _: bool, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            Poll::Ready(Err(LinkError::Closed))
        }
    }

    /// Time does not pass.
    struct Still;

    impl Timer for Still {
        fn after(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(pending())
        }
    }

    impl DownloadDial for Still {
        type Wire = Answers;

        fn connect(&self, _: &Env, _: &str) -> impl Future<Output = Result<Answers, LinkError>> {
            ready(Err(LinkError::Closed))
        }

        fn timer(&self) -> &dyn Timer {
            self
        }
    }

    /// The answer with a fragment and its checksum, of which a bit is flipped if it `is_damaged`.
    fn answer(is_damaged: bool) -> Vec<u8> {
        let mut value = [&b"bytes"[..], &crc32c::crc32c(b"bytes").to_be_bytes()].concat();
        value[2] ^= u8::from(is_damaged);
        let mut answer = vec![magic::RESPONSE, opcode::GET_FILE_FRAGMENT];
        answer.resize(24, 0);
        answer[8..12].copy_from_slice(&9_u32.to_be_bytes());
        answer.extend(value);
        answer
    }

    /// Asks for a fragment that comes damaged so many times; how that ends, what was written, and requests and damages.
    fn asked_for(times: usize) -> (Result<(), DownloadFailure>, Vec<u8>, usize, u32) {
        let left = (0..=times).map(|n| answer(n < times)).collect();
        let mut wire = Answers { left, came: Vec::new(), out: Vec::new(), asked: 0 };
        let (written, mut damaged) = (RefCell::new(Vec::new()), 0);
        let request = RequestParts { opcode: opcode::GET_FILE_FRAGMENT, ..RequestParts::default() };
        let write = |fragment: &[u8]| {
            written.borrow_mut().extend_from_slice(fragment);
            Ok(())
        };
        let asking = ask_for_fragment(&Still, &mut wire, &request, 5, &mut damaged, &write);
        let Poll::Ready(outcome) = pin!(asking).poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("answers are there at once");
        };
        (outcome, written.into_inner(), wire.asked, damaged)
    }

    #[test]
    fn a_damaged_fragment_is_asked_for_again_and_at_last_given_up() {
        let most = MOST_DAMAGED as usize;
        for times in [0, 1, most] {
            let (outcome, written, asked, damaged) = asked_for(times);
            assert!(outcome.is_ok(), "{times}: {outcome:?}");
            assert_eq!((&written[..], asked, damaged as usize), (&b"bytes"[..], times + 1, times));
        }
        let (outcome, written, asked, _) = asked_for(most + 1);
        assert!(matches!(outcome, Err(DownloadFailure::Checksum)), "{outcome:?}");
        assert_eq!((written.len(), asked), (0, most + 1));
    }

    #[test]
    fn a_manifest_says_what_cannot_be_used() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut manifest = json!({
                "uuid": "f7970e20-ca1b-4059-8542-3196e93f6927", "vbid": 3, "deks": [],
                "storage": { "backend": "couchstore", "version": 13 },
                "files": [{ "id": 1, "path": "3.couch.1", "size": "4096" }],
            });
            change(&mut manifest);
            SourceManifest::parse(manifest.to_string().as_bytes(), VbId(3))
        };
        let good = with(&|_| {}).expect("it can be used");
        assert_eq!((good.file, good.bytes, good.sha512), (1, 4096, None));
        assert_eq!(with(&|it| it["files"][0]["size"] = json!(7)).expect("a number").bytes, 7);
        let wrong: [&dyn Fn(&mut Value); 8] = [
            &|it| it["storage"]["backend"] = json!("magma"),
            &|it| it["storage"]["version"] = json!(15),
            &|it| it["deks"] = json!([{}]),
            &|it| it["vbid"] = json!(4),
            &|it| it["files"] = json!([]),
            &|it| it["files"][0]["size"] = json!("x"),
            &|it| it["files"][0]["id"] = json!(null),
            &|it| it["uuid"] = json!("../../etc"),
        ];
        for change in wrong {
            assert!(matches!(with(change), Err(DownloadFailure::Manifest(_))));
        }
        assert!(
            SourceManifest::parse(b"[", VbId(3)).is_err() && SourceManifest::parse(b"[]", VbId(3)).is_err()
        );
    }
}
