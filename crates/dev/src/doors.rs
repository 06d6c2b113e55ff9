//! The doors to the world of one node of a development cluster: its clock can be moved, its network be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use base::env::{Clock, Env, Listener, Network, Stream};
use parking_lot::Mutex;

/// A clock whose wall clock is set apart from the machine's.
pub(super) struct MovedClock {
    real: Arc<dyn Clock>,
    offset_s: Arc<AtomicI64>,
}

impl Clock for MovedClock {
    fn unix_ns(&self) -> u64 {
        let offset_ns = self.offset_s.load(Ordering::Relaxed).saturating_mul(1_000_000_000);
        self.real.unix_ns().saturating_add_signed(offset_ns)
    }

    fn monotonic_ns(&self) -> u64 {
        self.real.monotonic_ns()
    }
}

/// The connections between nodes, and which nodes have none.
#[derive(Default)]
pub(super) struct Wires(Mutex<WireTable>);

#[derive(Default)]
struct WireTable {
    /// Where each node listens for others.
    listen: BTreeMap<u16, Vec<SocketAddr>>,
    /// Those that are cut off.
    cut: BTreeSet<u16>,
    /// Connections, with both ends.
    open: Vec<(u16, u16, TcpStream)>,
}

impl Wires {
    /// Says where a node listens for others; nowhere if it is gone.
    pub(super) fn listens(&self, node: u16, at: Vec<SocketAddr>) {
        self.0.lock().listen.insert(node, at);
    }

    /// Cuts a node off from all others, or lets it connect again.
    pub(super) fn cut(&self, node: u16, is_cut: bool) {
        let mut inner = self.0.lock();
        if !is_cut {
            inner.cut.remove(&node);
            return;
        }
        inner.cut.insert(node);
        inner.open.retain(|(from, to, stream)| {
            let stays = *from != node && *to != node;
            if !stays {
                // One that is closed already is as good.
                let _ = stream.shutdown(Shutdown::Both);
            }
            stays
        });
    }

    /// Whether a node is cut off.
    pub(super) fn is_cut(&self, node: u16) -> bool {
        self.0.lock().cut.contains(&node)
    }
}

impl WireTable {
    fn node_at(&self, addr: SocketAddr) -> Option<u16> {
        self.listen.iter().find(|(_, listens)| listens.contains(&addr)).map(|(node, _)| *node)
    }

    fn check(&self, from: u16, to: u16) -> io::Result<()> {
        if self.cut.contains(&from) || self.cut.contains(&to) {
            return Err(io::Error::new(io::ErrorKind::HostUnreachable, "the node is cut off"));
        }
        Ok(())
    }
}

/// The network as one node sees it.
struct CuttableNetwork {
    real: Arc<dyn Network>,
    wires: Arc<Wires>,
    node: u16,
}

impl Network for CuttableNetwork {
    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.real.listen(addr)
    }

    fn connect(&self, addr: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let to = {
            let inner = self.wires.0.lock();
            let to = inner.node_at(addr);
            to.map_or(Ok(()), |to| inner.check(self.node, to))?;
            to
        };
        let stream = self.real.connect(addr)?;
        let Some(to) = to else { return Ok(stream) };
        let stream = stream.into_std().ok_or(io::ErrorKind::Unsupported)?;
        let mut inner = self.wires.0.lock();
        // It may have been cut while the connection was made.
        inner.check(self.node, to)?;
        inner.open.retain(|(_, _, stream)| stream.peer_addr().is_ok() && stream.take_error().is_ok());
        inner.open.push((self.node, to, stream.try_clone()?));
        Ok(Box::new(Wire(stream)))
    }
}

/// A connection to another node.
struct Wire(TcpStream);

impl Stream for Wire {
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut self.0, buf)
    }

    fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut self.0, buf)
    }

    fn shut_down_writing(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    fn into_std(self: Box<Self>) -> Option<TcpStream> {
        Some(self.0)
    }
}

/// The world as a node sees it, and by how many seconds its wall clock is off.
pub(super) fn world(real: &Env, node: u16, wires: &Arc<Wires>) -> (Env, Arc<AtomicI64>) {
    let offset_s = Arc::new(AtomicI64::new(0));
    let clock = MovedClock { real: Arc::clone(&real.clock), offset_s: Arc::clone(&offset_s) };
    let network = CuttableNetwork { real: Arc::clone(&real.network), wires: Arc::clone(wires), node };
    (Env { clock: Arc::new(clock), network: Arc::new(network), ..real.clone() }, offset_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_moves_and_the_other_does_not() {
        let (real, _) = Env::sim(1);
        let (env, offset_s) = world(&real, 1, &Arc::default());
        let (wall, monotonic) = (env.clock.unix_s(), env.clock.monotonic_ns());
        offset_s.store(3600, Ordering::Relaxed);
        assert_eq!((env.clock.unix_s(), env.clock.monotonic_ns()), (wall + 3600, monotonic));
        offset_s.store(-60, Ordering::Relaxed);
        assert_eq!(env.clock.unix_s(), wall - 60);
    }

    #[test]
    fn what_is_cut_breaks_and_cannot_be_made_anew() {
        let real = Env::real();
        let listener = real.network.listen("127.0.0.1:0".parse().expect("valid")).expect("a port");
        let addr = listener.local_addr().expect("it listens");
        let wires = Arc::new(Wires::default());
        wires.listens(2, vec![addr]);
        let (env, _) = world(&real, 1, &wires);
        let mut stream = env.network.connect(addr).expect("they are connected");
        wires.cut(3, true);
        assert_eq!(stream.try_write(b"x").expect("it is another that is cut"), 1);
        wires.cut(2, true);
        assert_eq!(stream.try_read(&mut [0]).expect("the end"), 0);
        let refused = env.network.connect(addr).err().expect("no way there");
        assert_eq!(refused.kind(), io::ErrorKind::HostUnreachable);
        wires.cut(2, false);
        assert!(env.network.connect(addr).is_ok());
    }
}
