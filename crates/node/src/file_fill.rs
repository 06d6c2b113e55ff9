//! A vBucket is filled with the file that was downloaded for it (docs/adr/0181), on a thread for long work.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use base::{VbId, VbState};
use dcp::{FileFill, FillFailure, FillStep};
use engine::{Bucket, Completion, FileSnapshotRefusal, Refusal};
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
}

impl NotFilled {
    /// What is answered.
    pub(crate) fn status(&self) -> Status {
        match self {
            NotFilled::NoFile => Status::KeyEnoent,
            NotFilled::Fill(FillFailure::NotEmpty) => Status::KeyEexists,
            NotFilled::File(FileSnapshotRefusal::Busy) | NotFilled::NoRoom => Status::Etmpfail,
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
            NotFilled::NoRoom => {
                f.write_str("memory was short for too long: the vBucket has a part of the file")
            }
        }
    }
}

/// Makes a vBucket an empty replica, and fills it with the file that was downloaded for it, which is removed then. Reads
/// the disk, and waits for room in memory.
pub(crate) fn fill(bucket: &Arc<Bucket>, vb: VbId) -> Result<(), NotFilled> {
    let files = bucket.file_snapshots();
    let file = files.incoming(vb).map_err(NotFilled::File)?;
    let snapshot = files.read_incoming(&file).map_err(|failure| NotFilled::Fill(failure.into()))?;
    let snapshot = snapshot.ok_or(NotFilled::NoFile)?;
    let state = bucket.streams().stream_state(vb);
    if state.is_some_and(|(_, _, _, high)| high.0 > 0) || bucket.state_of(vb) == Some(VbState::Active) {
        return Err(NotFilled::Fill(FillFailure::NotEmpty));
    }
    bucket.roles().set_vbucket_state(vb, VbState::Replica, None).map_err(NotFilled::Role)?;
    let mut fill = FileFill::begin(Arc::clone(bucket), vb, snapshot).map_err(NotFilled::Fill)?;
    let mut looks = 0;
    loop {
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
    if let Err(error) = files.remove_incoming(&file)
        && let Some(left_out) = engine::admit_log(bucket, "file not removed")
    {
        let bucket = bucket.name();
        tracing::warn!(bucket, %vb, %error, left_out, "the file that a vBucket was filled with is still there");
    }
    Ok(())
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
