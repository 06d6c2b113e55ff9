//! Which connections can be read from, or written to again.

/// A connection that something can be done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its number.
    pub at: usize,
    /// Whether there is room to write. Whether there is something to read is tried by reading.
    pub writable: bool,
}

/// Events that one wait returns at most.
const EVENTS: usize = 256;

#[cfg(target_os = "linux")]
mod system {
    use std::net::TcpStream;
    use std::time::Duration;

    use anyhow::Context;
    use rustix::buffer::spare_capacity;
    use rustix::event::Timespec;
    use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
    use rustix::fd::OwnedFd;
    use rustix::io::Errno;

    use super::{EVENTS, Ready};

    /// Watches connections for what can be read, and some for room to write.
    pub struct Epoll {
        poll: OwnedFd,
    }

    /// What a wait found.
    pub struct EpollEvents {
        events: Vec<Event>,
        /// The next of them to tell.
        next: usize,
    }

    impl EpollEvents {
        pub fn new() -> EpollEvents {
            EpollEvents { events: Vec::with_capacity(EVENTS), next: 0 }
        }

        /// One after the other, each once.
        pub fn take_next(&mut self) -> Option<Ready> {
            let event = self.events.get(self.next)?;
            self.next += 1;
            let flags = event.flags;
            Some(Ready { at: event.data.u64() as usize, writable: flags.contains(EventFlags::OUT) })
        }
    }

    fn flags(writable: bool) -> EventFlags {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, writable);
        flags
    }

    impl Epoll {
        pub fn new() -> anyhow::Result<Epoll> {
            let poll = epoll::create(CreateFlags::CLOEXEC).context("epoll")?;
            Ok(Epoll { poll })
        }

        /// Watches a connection until its socket is closed.
        pub fn add(&mut self, at: usize, stream: &TcpStream) -> anyhow::Result<()> {
            epoll::add(&self.poll, stream, EventData::new_u64(at as u64), flags(false)).context("epoll")
        }

        /// From now on tells of room to write, too, or no longer.
        pub fn watch_room(&mut self, at: usize, stream: &TcpStream, writable: bool) {
            // The socket was added at the start and is open: nothing can fail here but memory.
            let _ = epoll::modify(&self.poll, stream, EventData::new_u64(at as u64), flags(writable));
        }

        /// A connection was closed, which takes it out of `epoll`.
        pub fn forget(&mut self, _: usize) {}

        /// Waits until something can be done, or until the time is over.
        pub fn wait(&mut self, found: &mut EpollEvents, limit: Duration) -> anyhow::Result<()> {
            let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
            found.events.clear();
            found.next = 0;
            match epoll::wait(&self.poll, spare_capacity(&mut found.events), Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error).context("epoll"),
            }
        }
    }
}

/// `poll` asks about all connections each time: enough for a development machine.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::collections::VecDeque;
    use std::net::TcpStream;
    use std::time::Duration;

    use anyhow::Context;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;

    use super::{EVENTS, Ready};

    /// Watches connections for what can be read, and some for room to write.
    pub struct PollAll {
        watched: Vec<Option<(TcpStream, bool)>>,
    }

    /// What a wait found.
    pub struct PollEvents(VecDeque<Ready>);

    impl PollEvents {
        pub fn new() -> PollEvents {
            PollEvents(VecDeque::with_capacity(EVENTS))
        }

        /// One after the other, each once.
        pub fn take_next(&mut self) -> Option<Ready> {
            self.0.pop_front()
        }
    }

    impl PollAll {
        pub fn new() -> anyhow::Result<PollAll> {
            Ok(PollAll { watched: Vec::new() })
        }

        /// Watches a connection until [`PollAll::forget`].
        pub fn add(&mut self, at: usize, stream: &TcpStream) -> anyhow::Result<()> {
            self.watched.resize_with(self.watched.len().max(at + 1), || None);
            self.watched[at] = Some((stream.try_clone().context("a second descriptor")?, false));
            Ok(())
        }

        /// From now on tells of room to write, too, or no longer.
        pub fn watch_room(&mut self, at: usize, _: &TcpStream, writable: bool) {
            if let Some(Some(watched)) = self.watched.get_mut(at) {
                watched.1 = writable;
            }
        }

        /// A connection was closed.
        pub fn forget(&mut self, at: usize) {
            if let Some(watched) = self.watched.get_mut(at) {
                *watched = None;
            }
        }

        /// Waits until something can be done, or until the time is over.
        pub fn wait(&mut self, found: &mut PollEvents, limit: Duration) -> anyhow::Result<()> {
            let numbered = self.watched.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_ref()?)));
            let (numbers, mut polled): (Vec<usize>, Vec<PollFd<'_>>) = numbered
                .map(|(at, (stream, writable))| {
                    let mut flags = PollFlags::IN;
                    flags.set(PollFlags::OUT, *writable);
                    (at, PollFd::new(stream, flags))
                })
                .unzip();
            let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
            match poll(&mut polled, Some(&limit)) {
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(()),
                Err(error) => return Err(error).context("poll"),
            }
            let can = numbers.into_iter().zip(polled).filter(|(_, one)| !one.revents().is_empty());
            let ready = can.map(|(at, one)| Ready { at, writable: one.revents().contains(PollFlags::OUT) });
            found.0.extend(ready);
            Ok(())
        }
    }
}

#[cfg(target_os = "linux")]
pub use self::system::{Epoll as Poller, EpollEvents as Events};
#[cfg(not(target_os = "linux"))]
pub use self::system::{PollAll as Poller, PollEvents as Events};
