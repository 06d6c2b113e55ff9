//! The doors to the world of one node of a development cluster: its clock can be moved, its network be cut.

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
pub(super) struct Wires(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// The KV address of each node, by its place, and whether it is cut off.
    nodes: Vec<(Option<SocketAddr>, bool)>,
    /// Connections, with the places of both ends.
    open: Vec<(usize, usize, TcpStream)>,
}

impl Wires {
    /// Of so many nodes.
    pub(super) fn new(nodes: usize) -> Wires {
        Wires(Mutex::new(Inner { nodes: vec![(None, false); nodes], open: Vec::new() }))
    }

    /// Says where a node listens for others.
    pub(super) fn listens(&self, node: usize, addr: SocketAddr) {
        self.0.lock().nodes[node].0 = Some(addr);
    }

    /// Cuts a node off from all others, or lets it connect again.
    pub(super) fn cut(&self, node: usize, is_cut: bool) {
        let mut inner = self.0.lock();
        inner.nodes[node].1 = is_cut;
        if is_cut {
            let Inner { open, .. } = &mut *inner;
            open.retain(|(from, to, stream)| {
                let stays = *from != node && *to != node;
                if !stays {
                    // One that is closed already is as good.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                stays
            });
        }
    }

    /// Whether a node is cut off.
    pub(super) fn is_cut(&self, node: usize) -> bool {
        self.0.lock().nodes[node].1
    }
}

impl Inner {
    fn place_of(&self, addr: SocketAddr) -> Option<usize> {
        self.nodes.iter().position(|(listens, _)| *listens == Some(addr))
    }

    fn check(&self, from: usize, to: usize) -> io::Result<()> {
        if self.nodes[from].1 || self.nodes[to].1 {
            return Err(io::Error::new(io::ErrorKind::HostUnreachable, "the node is cut off"));
        }
        Ok(())
    }
}

/// The network as one node sees it.
struct CuttableNetwork {
    real: Arc<dyn Network>,
    wires: Arc<Wires>,
    node: usize,
}

impl Network for CuttableNetwork {
    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.real.listen(addr)
    }

    fn connect(&self, addr: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let to = {
            let inner = self.wires.0.lock();
            let to = inner.place_of(addr);
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
pub(super) fn world(real: &Env, node: usize, wires: &Arc<Wires>) -> (Env, Arc<AtomicI64>) {
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
        let (env, offset_s) = world(&real, 0, &Arc::new(Wires::new(1)));
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
        let wires = Arc::new(Wires::new(3));
        wires.listens(1, addr);
        let (env, _) = world(&real, 0, &wires);
        let mut stream = env.network.connect(addr).expect("they are connected");
        wires.cut(2, true);
        assert_eq!(stream.try_write(b"x").expect("it is another that is cut"), 1);
        wires.cut(1, true);
        assert_eq!(stream.try_read(&mut [0]).expect("the end"), 0);
        let refused = env.network.connect(addr).err().expect("no way there");
        assert_eq!(refused.kind(), io::ErrorKind::HostUnreachable);
        wires.cut(1, false);
        assert!(env.network.connect(addr).is_ok());
    }
}
