//! A network in memory: hosts, bounded byte pipes between them, and the faults that a seed decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

use super::pipe::{NetFaults, Pipe};
use super::random::SplitMix64;
use crate::env::network::{Listener, Network, Stream};

/// First of the ports that are given out.
const FIRST_FREE_PORT: u16 = 32_768;

type ConnectionId = u64;

/// A simulated network, seen from one host. Clones see it from the same host.
///
/// Time on it is counted in steps ([`SimNetwork::step`]); nothing arrives by itself.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    host: IpAddr,
    wires: Arc<Mutex<Wires>>,
}

#[derive(Debug)]
struct Wires {
    rng: SplitMix64,
    faults: NetFaults,
    step: u64,
    next_port: u16,
    next_connection: ConnectionId,
    listeners: BTreeMap<SocketAddr, VecDeque<ConnectionId>>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// From the first to the second nothing travels.
    blocked: BTreeSet<(IpAddr, IpAddr)>,
}

#[derive(Debug)]
struct Connection {
    ends: [SocketAddr; 2],
    /// `pipes[i]` carries what end `i` writes.
    pipes: [Pipe; 2],
    open_ends: u8,
}

impl Connection {
    fn cut(&mut self) {
        self.pipes.iter_mut().for_each(Pipe::cut);
    }

    fn has_end_at(&self, host: IpAddr) -> bool {
        self.ends.iter().any(|end| end.ip() == host)
    }
}

impl Wires {
    fn free_port(&mut self, host: IpAddr) -> io::Result<u16> {
        for _ in 0..u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
            let addr = SocketAddr::new(host, port);
            let is_used = self.connections.values().any(|c| c.ends.contains(&addr));
            if !is_used && !self.listeners.contains_key(&addr) {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    fn piece(&mut self, len: usize) -> usize {
        match self.faults.most_piece_bytes {
            0 => len,
            most => len.min(self.rng.between(1, most as u64) as usize),
        }
    }

    fn connection(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("a connection lives as long as its ends")
    }

    fn is_blocked(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.blocked.contains(&(from.ip(), to.ip()))
    }

    /// One end is gone; the other reads what was sent before, then the end.
    fn close(&mut self, id: ConnectionId, end: usize) {
        let connection = self.connection(id);
        connection.pipes[end].is_finished = true;
        connection.pipes[1 - end].cut();
        connection.open_ends -= 1;
        if connection.open_ends == 0 {
            self.connections.remove(&id);
        }
    }
}

impl SimNetwork {
    /// A network without faults, seen from 127.0.0.1.
    pub fn new(seed: u64) -> SimNetwork {
        let wires = Wires {
            rng: SplitMix64::new(seed),
            faults: NetFaults::default(),
            step: 0,
            next_port: FIRST_FREE_PORT,
            next_connection: 0,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            blocked: BTreeSet::new(),
        };
        SimNetwork { host: Ipv4Addr::LOCALHOST.into(), wires: Arc::new(Mutex::new(wires)) }
    }

    /// The same network, seen from another host.
    pub fn at(&self, host: IpAddr) -> SimNetwork {
        SimNetwork { host, wires: Arc::clone(&self.wires) }
    }

    /// How bytes travel from now on.
    pub fn set_faults(&self, faults: NetFaults) {
        self.wires.lock().faults = faults;
    }

    /// A step passes: what was delayed comes nearer.
    pub fn step(&self) {
        self.wires.lock().step += 1;
    }

    /// From now on nothing travels from one host to another; the other way is not touched. Nobody is told.
    pub fn block(&self, from: IpAddr, to: IpAddr) {
        self.wires.lock().blocked.insert((from, to));
    }

    /// What is on its way from one host to another, and what follows, arrives again.
    pub fn unblock(&self, from: IpAddr, to: IpAddr) {
        self.wires.lock().blocked.remove(&(from, to));
    }

    /// Resets all connections of a host; what was on its way is lost.
    pub fn cut(&self, host: IpAddr) {
        let mut wires = self.wires.lock();
        wires.connections.values_mut().filter(|c| c.has_end_at(host)).for_each(Connection::cut);
    }
}

impl Network for SimNetwork {
    fn listen(&self, mut addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        if addr.ip().is_unspecified() {
            addr.set_ip(self.host);
        }
        if addr.ip() != self.host {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let mut wires = self.wires.lock();
        if addr.port() == 0 {
            addr.set_port(wires.free_port(self.host)?);
        }
        if wires.listeners.contains_key(&addr) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        wires.listeners.insert(addr, VecDeque::new());
        Ok(Box::new(SimListener { wires: Arc::clone(&self.wires), addr }))
    }

    fn connect(&self, addr: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let mut wires = self.wires.lock();
        let both = [(self.host, addr.ip()), (addr.ip(), self.host)];
        if both.iter().any(|way| wires.blocked.contains(way)) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let own = SocketAddr::new(self.host, wires.free_port(self.host)?);
        let id = wires.next_connection;
        let Some(queue) = wires.listeners.get_mut(&addr) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        queue.push_back(id);
        wires.next_connection += 1;
        let connection = Connection { ends: [own, addr], pipes: Default::default(), open_ends: 2 };
        wires.connections.insert(id, connection);
        Ok(Box::new(SimStream { wires: Arc::clone(&self.wires), id, end: 0, peer: addr }))
    }
}

struct SimListener {
    wires: Arc<Mutex<Wires>>,
    addr: SocketAddr,
}

impl Listener for SimListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn try_accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let mut wires = self.wires.lock();
        let id = wires.listeners.get_mut(&self.addr).and_then(VecDeque::pop_front);
        let id = id.ok_or(io::ErrorKind::WouldBlock)?;
        let peer = wires.connection(id).ends[0];
        Ok(Box::new(SimStream { wires: Arc::clone(&self.wires), id, end: 1, peer }))
    }

    fn into_std(self: Box<Self>) -> Option<TcpListener> {
        None
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut wires = self.wires.lock();
        for id in wires.listeners.remove(&self.addr).unwrap_or_default() {
            wires.connection(id).cut();
            wires.close(id, 1);
        }
    }
}

struct SimStream {
    wires: Arc<Mutex<Wires>>,
    id: ConnectionId,
    end: usize,
    peer: SocketAddr,
}

impl Stream for SimStream {
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut wires = self.wires.lock();
        let step = wires.step;
        let most = wires.piece(buf.len());
        let ends = wires.connection(self.id).ends;
        let is_blocked = wires.is_blocked(ends[1 - self.end], ends[self.end]);
        let pipe = &mut wires.connection(self.id).pipes[1 - self.end];
        if pipe.is_cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if buf.is_empty() {
            return Ok(0);
        }
        if is_blocked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match pipe.take(&mut buf[..most], step) {
            0 if pipe.is_at_end() => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            len => Ok(len),
        }
    }

    fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut wires = self.wires.lock();
        let most = wires.piece(buf.len());
        let delay_most = wires.faults.most_delay_steps;
        let arrives_at_step = wires.step + wires.rng.between(0, delay_most);
        let buffer_bytes = wires.faults.buffer_bytes;
        let pipe = &mut wires.connection(self.id).pipes[self.end];
        if pipe.is_cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if pipe.is_finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match most.min(pipe.room(buffer_bytes)) {
            0 if !buf.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            len => {
                pipe.push(&buf[..len], arrives_at_step);
                Ok(len)
            }
        }
    }

    fn shut_down_writing(&mut self) -> io::Result<()> {
        self.wires.lock().connection(self.id).pipes[self.end].is_finished = true;
        Ok(())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }

    fn into_std(self: Box<Self>) -> Option<TcpStream> {
        None
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.wires.lock().close(self.id, self.end);
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
