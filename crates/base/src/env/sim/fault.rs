//! Which calls of a simulated disk go wrong, and how.

use std::io;

/// One kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// [`crate::env::Disk::open`].
    Open,
    /// [`crate::env::Disk::create_dir_all`].
    CreateDir,
    /// [`crate::env::Disk::read_dir`].
    ReadDir,
    /// [`crate::env::Disk::rename`].
    Rename,
    /// [`crate::env::Disk::remove_file`].
    Remove,
    /// [`crate::env::Disk::sync_dir`].
    SyncDir,
    /// [`crate::env::File::read_at`].
    Read,
    /// [`crate::env::File::write_at`].
    Write,
    /// [`crate::env::File::set_len`].
    SetLen,
    /// [`crate::env::File::sync_data`].
    Sync,
    /// [`crate::env::File::len`].
    Len,
}

impl Call {
    const COUNT: usize = 11;

    /// All kinds.
    pub const ALL: [Call; Call::COUNT] = [
        Call::Open,
        Call::CreateDir,
        Call::ReadDir,
        Call::Rename,
        Call::Remove,
        Call::SyncDir,
        Call::Read,
        Call::Write,
        Call::SetLen,
        Call::Sync,
        Call::Len,
    ];

    /// Whether the call may change the disk. (An open may make a file.)
    pub fn is_change(self) -> bool {
        !matches!(self, Call::Read | Call::ReadDir | Call::Len)
    }
}

/// Which calls a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Every call.
    Any,
    /// Every call that may change the disk.
    Changes,
    /// Calls of one kind.
    Kind(Call),
}

impl On {
    fn matches(self, call: Call) -> bool {
        match self {
            On::Any => true,
            On::Changes => call.is_change(),
            On::Kind(kind) => kind == call,
        }
    }
}

/// What happens instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call answers this error number and does nothing; a failed sync also leaves what was unsynced in doubt.
    Errno(i32),
    /// A write gets this many bytes done and then answers the error number; other calls do nothing.
    Short {
        /// Bytes that are written.
        bytes: usize,
        /// The error number.
        errno: i32,
    },
    /// The power goes during the call: a write or a name may or may not reach the disk, and every later call fails.
    PowerOff,
}

impl Effect {
    /// The disk is broken.
    pub const IO_ERROR: Effect = Effect::Errno(libc::EIO);
    /// The disk is full.
    pub const DISK_FULL: Effect = Effect::Errno(libc::ENOSPC);
}

/// One thing that will go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The calls that are counted.
    pub on: On,
    /// The first one that fails, from 1, counted from when the fault was planned.
    pub nth: u64,
    /// Whether all that follow fail too.
    pub for_ever: bool,
    /// How it fails.
    pub effect: Effect,
}

impl Fault {
    /// Fails once.
    pub fn once(on: On, nth: u64, effect: Effect) -> Fault {
        Fault { on, nth, for_ever: false, effect }
    }

    /// Fails from then on.
    pub fn for_ever(on: On, nth: u64, effect: Effect) -> Fault {
        Fault { on, nth, for_ever: true, effect }
    }

    /// The power goes during the n-th call that may change the disk.
    pub fn power_off_at(nth: u64) -> Fault {
        Fault::once(On::Changes, nth, Effect::PowerOff)
    }
}

/// All that will go wrong, and how many calls there were.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultPlan {
    faults: Vec<(Fault, u64)>,
    calls: [u64; Call::COUNT],
    is_off: bool,
    was_struck: bool,
}

impl FaultPlan {
    pub(super) fn add(&mut self, fault: Fault) {
        self.faults.push((fault, 0));
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
    }

    pub(super) fn power_off(&mut self) {
        self.is_off = true;
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    pub(super) fn was_struck(&self) -> bool {
        self.was_struck
    }

    pub(super) fn calls(&self, on: On) -> u64 {
        Call::ALL.iter().filter(|call| on.matches(**call)).map(|call| self.calls[*call as usize]).sum()
    }

    /// Counts a call and decides its fate. The first fault that strikes wins.
    pub(super) fn begin(&mut self, call: Call) -> io::Result<Option<Effect>> {
        if self.is_off {
            return Err(off());
        }
        self.calls[call as usize] += 1;
        let mut effect = None;
        for (fault, seen) in &mut self.faults {
            if !fault.on.matches(call) {
                continue;
            }
            *seen += 1;
            let strikes = *seen == fault.nth || (fault.for_ever && *seen > fault.nth);
            if strikes && effect.is_none() {
                effect = Some(fault.effect);
                self.was_struck = true;
            }
        }
        Ok(effect)
    }
}

/// What every call answers once the power is off.
pub(super) fn off() -> io::Error {
    io::Error::other("the simulated machine is off")
}
