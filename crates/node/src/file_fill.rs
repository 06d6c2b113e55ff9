//! A vBucket is filled with the file that was downloaded for it (docs/adr/0181), on a thread for that.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use base::{VbId, VbState};
use dcp::{FileFill, FillFailure, FillStep};
use engine::{Bucket, Completion, FileSnapshotRefusal, Refusal};
use kvstore::Snapshot;
use parking_lot::{Condvar, Mutex};
use protocol::Status;

use crate::status_map::status_of;

/// How long to wait for room in memory before it is looked at again, and how often that is done without any coming.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(100);
const MOST_LOOKS: u32 = 600;

/// Why it cannot be filled.
#[derive(Debug)]
pub(crate) enum NotFilled {
    /// No file was downloaded for it.
    NoFile,
    /// The file is being downloaded, or read, or the bucket has no such files.
    File(FileSnapshotRefusal),
    /// The vBucket cannot be a replica now.
    Role(Refusal),
    /// It cannot be filled with the file, or no further.
    Fill(FillFailure),
    /// There was no room for it in memory.
    NoRoom,
    /// The node stops, or the bucket is deleted.
    Stopped,
}

impl NotFilled {
    /// What is answered.
    pub(crate) fn status(&self) -> Status {
        match self {
            NotFilled::NoFile => Status::KeyEnoent,
            NotFilled::Fill(FillFailure::NotEmpty) => Status::KeyEexists,
            NotFilled::File(FileSnapshotRefusal::Busy) | NotFilled::NoRoom | NotFilled::Stopped => {
                Status::Etmpfail
            }
            NotFilled::Fill(FillFailure::Refused(_) | FillFailure::Ended) => Status::Etmpfail,
            NotFilled::File(_) => Status::NotSupported,
            NotFilled::Role(refusal) => status_of(*refusal),
            NotFilled::Fill(_) => Status::Einternal,
        }
    }
}

impl fmt::Display for NotFilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotFilled::NoFile => f.write_str("no snapshot was downloaded for the vBucket"),
            NotFilled::File(refusal) => {
                write!(f, "the snapshot of the vBucket cannot be used now: {refusal:?}")
            }
            NotFilled::Role(refusal) => write!(f, "the vBucket cannot be made a replica: {refusal:?}"),
            NotFilled::Fill(failure) => failure.fmt(f),
            NotFilled::Stopped => {
                f.write_str("the node stops, or the bucket is deleted: the vBucket has a part of the file")
            }
            NotFilled::NoRoom => {
                f.write_str("memory was short for too long: the vBucket has a part of the file")
            }
        }
    }
}

/// Makes a vBucket an empty replica, and fills it with the file that was downloaded for it, which is removed then. Reads
/// the disk, and waits for room in memory; ends when it `is_wanted` no more.
pub(crate) fn fill(bucket: &Arc<Bucket>, vb: VbId, is_wanted: &dyn Fn() -> bool) -> Result<(), NotFilled> {
    let files = bucket.file_snapshots();
    let file = files.incoming(vb).map_err(NotFilled::File)?;
    let snapshot = files.read_incoming(&file).map_err(|failure| NotFilled::Fill(failure.into()))?;
    let snapshot = snapshot.ok_or(NotFilled::NoFile)?;
    // What cannot be read changes no role.
    snapshot.state().map_err(|failure| NotFilled::Fill(failure.into()))?;
    let mut fill = begin(bucket, vb, snapshot)?;
    let mut looks = 0;
    loop {
        if !is_wanted() {
            return Err(NotFilled::Stopped);
        }
        match fill.step().map_err(NotFilled::Fill)? {
            FillStep::Done => break,
            FillStep::More => looks = 0,
            FillStep::Full if looks == MOST_LOOKS => return Err(NotFilled::NoRoom),
            FillStep::Full => {
                looks += 1;
                if let Some(room) = bucket.replicas().replica_room() {
                    wait(room);
                }
            }
        }
    }
    if let Err(error) = file.remove(bucket.env())
        && let Some(left_out) = engine::admit_log(bucket, "file not removed")
    {
        let bucket = bucket.name();
        tracing::warn!(
            event = "fill_file_not_deleted", bucket, %vb, %error, left_out,
            "the file that a vBucket was filled with cannot be removed"
        );
    }
    Ok(())
}

/// Makes a vBucket a replica, if it is empty and not active, and begins to fill it. If that fails it has the role again that
/// it had; one that was not there is dead.
fn begin(bucket: &Arc<Bucket>, vb: VbId, snapshot: Box<dyn Snapshot>) -> Result<FileFill, NotFilled> {
    let not_empty = || NotFilled::Fill(FillFailure::NotEmpty);
    let (before, roles) = (bucket.state_of(vb), bucket.roles());
    let has_changes = bucket.streams().stream_state(vb).is_some_and(|(_, _, _, high)| high.0 > 0);
    if has_changes || before == Some(VbState::Active) {
        return Err(not_empty());
    }
    // Another role that it was given meanwhile goes first.
    if !roles.change_role(vb, before, VbState::Replica).map_err(NotFilled::Role)? {
        return Err(not_empty());
    }
    FileFill::begin(Arc::clone(bucket), vb, snapshot).map_err(|failure| {
        // The failure is what is told.
        let _ = roles.change_role(vb, Some(VbState::Replica), before.unwrap_or(VbState::Dead));
        NotFilled::Fill(failure)
    })
}

/// Wakes the thread that waits.
#[derive(Default)]
struct RoomBell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Wake for RoomBell {
    fn wake(self: Arc<Self>) {
        *self.has_rung.lock() = true;
        self.rings.notify_one();
    }
}

fn wait(mut room: Completion<()>) {
    let bell = Arc::<RoomBell>::default();
    let waker = Waker::from(Arc::clone(&bell));
    let polled = std::pin::Pin::new(&mut room).poll(&mut Context::from_waker(&waker));
    if polled.is_pending() {
        let mut has_rung = bell.has_rung.lock();
        if !*has_rung {
            bell.rings.wait_for(&mut has_rung, LOOK_FOR_ROOM);
        }
    }
}
