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
    pub struct Poller {
        poll: OwnedFd,
        events: Vec<Event>,
        /// The next of them to tell.
        next: usize,
    }

    fn flags(writable: bool) -> EventFlags {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, writable);
        flags
    }

    impl Poller {
        pub fn new() -> anyhow::Result<Poller> {
            let poll = epoll::create(CreateFlags::CLOEXEC).context("epoll")?;
            Ok(Poller { poll, events: Vec::with_capacity(EVENTS), next: 0 })
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
        pub fn wait(&mut self, limit: Duration) -> anyhow::Result<()> {
            let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
            self.events.clear();
            self.next = 0;
            match epoll::wait(&self.poll, spare_capacity(&mut self.events), Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error).context("epoll"),
            }
        }

        /// What the last wait found, once.
        pub fn ready(&mut self) -> Option<Ready> {
            let event = self.events.get(self.next)?;
            self.next += 1;
            let flags = event.flags;
            Some(Ready { at: event.data.u64() as usize, writable: flags.contains(EventFlags::OUT) })
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
    pub struct Poller {
        watched: Vec<Option<(TcpStream, bool)>>,
        ready: VecDeque<Ready>,
    }

    impl Poller {
        pub fn new() -> anyhow::Result<Poller> {
            Ok(Poller { watched: Vec::new(), ready: VecDeque::with_capacity(EVENTS) })
        }

        /// Watches a connection until [`Poller::forget`].
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
        pub fn wait(&mut self, limit: Duration) -> anyhow::Result<()> {
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
            let found = numbers.into_iter().zip(polled).filter(|(_, one)| !one.revents().is_empty());
            self.ready.extend(
                found.map(|(at, one)| Ready { at, writable: one.revents().contains(PollFlags::OUT) }),
            );
            Ok(())
        }

        /// What the last wait found, once.
        pub fn ready(&mut self) -> Option<Ready> {
            self.ready.pop_front()
        }
    }
}

pub use system::Poller;
