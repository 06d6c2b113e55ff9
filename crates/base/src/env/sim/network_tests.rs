//! What simulated connections promise.

use std::io::ErrorKind;

use proptest::prelude::*;

use super::*;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn pair(net: &SimNetwork) -> (Box<dyn Stream>, Box<dyn Stream>) {
    let mut listener = net.at(B).listen(SocketAddr::new(B, 0)).expect("a free port");
    let client = net.at(A).connect(listener.local_addr().expect("bound")).expect("somebody listens");
    let server = listener.try_accept().expect("somebody called");
    (client, server)
}

fn kind<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

/// Sends everything and says in which pieces it arrived.
fn transfer(seed: u64, faults: NetFaults, bytes: &[u8]) -> Vec<Vec<u8>> {
    let net = SimNetwork::new(seed);
    net.set_faults(faults);
    let (mut client, mut server) = pair(&net);
    let (mut sent, mut pieces) = (0, Vec::new());
    let mut buf = [0; 300];
    loop {
        if sent == bytes.len() {
            client.shut_down_writing().expect("it is open");
        } else {
            match client.try_write(&bytes[sent..]) {
                Ok(len) => sent += len,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
        match server.try_read(&mut buf) {
            Ok(0) => return pieces,
            Ok(len) => pieces.push(buf[..len].to_vec()),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        net.step();
    }
}

proptest! {
    #[test]
    fn bytes_arrive_once_and_in_order(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        seed: u64,
        buffer_bytes in 1_usize..500,
        most_piece_bytes in 0_usize..50,
        most_delay_steps in 0_u64..10,
    ) {
        let faults = NetFaults { buffer_bytes, most_piece_bytes, most_delay_steps };
        let pieces = transfer(seed, faults, &bytes);
        prop_assert_eq!(pieces.concat(), bytes.clone());
        prop_assert_eq!(transfer(seed, faults, &bytes), pieces, "the seed decides everything");
    }
}

#[test]
fn both_directions_and_the_end() {
    let net = SimNetwork::new(1);
    let (mut client, mut server) = pair(&net);
    let mut buf = [0; 8];
    assert_eq!(kind(client.try_read(&mut buf)), Some(ErrorKind::WouldBlock));
    assert_eq!(client.try_write(b"ping").expect("open"), 4);
    assert_eq!(server.try_read(&mut buf).expect("arrived"), 4);
    assert_eq!(server.try_write(b"pong").expect("open"), 4);
    drop(server);
    assert_eq!(client.try_read(&mut buf).expect("sent before the end"), 4);
    assert_eq!(&buf[..4], b"pong");
    assert_eq!(client.try_read(&mut buf).expect("the end"), 0);
    assert_eq!(kind(client.try_write(b"x")), Some(ErrorKind::ConnectionReset));
}

#[test]
fn buffers_are_bounded() {
    let net = SimNetwork::new(1);
    net.set_faults(NetFaults { buffer_bytes: 10, ..NetFaults::default() });
    let (mut client, mut server) = pair(&net);
    assert_eq!(client.try_write(&[1; 20]).expect("room for 10"), 10);
    assert_eq!(kind(client.try_write(&[1])), Some(ErrorKind::WouldBlock));
    assert_eq!(server.try_read(&mut [0; 3]).expect("arrived"), 3);
    assert_eq!(client.try_write(&[1; 20]).expect("room for 3"), 3);
}

#[test]
fn a_partition_can_be_one_way() {
    let net = SimNetwork::new(1);
    let (mut client, mut server) = pair(&net);
    net.block(A, B);
    assert_eq!(client.try_write(b"lost?").expect("nobody is told"), 5);
    assert_eq!(kind(server.try_read(&mut [0; 8])), Some(ErrorKind::WouldBlock));
    assert_eq!(server.try_write(b"other way").expect("open"), 9);
    assert_eq!(client.try_read(&mut [0; 16]).expect("not blocked"), 9);
    assert_eq!(kind(net.at(A).connect(SocketAddr::new(B, 1))), Some(ErrorKind::TimedOut));
    net.unblock(A, B);
    assert_eq!(server.try_read(&mut [0; 8]).expect("delayed, not lost"), 5);
}

#[test]
fn a_cut_resets_both_ends() {
    let net = SimNetwork::new(1);
    let (mut client, mut server) = pair(&net);
    client.try_write(b"on its way").expect("open");
    net.cut(B);
    assert_eq!(kind(server.try_read(&mut [0; 8])), Some(ErrorKind::ConnectionReset));
    assert_eq!(kind(client.try_write(b"x")), Some(ErrorKind::ConnectionReset));
}

#[test]
fn addresses_are_taken_and_given_back() {
    let net = SimNetwork::new(1).at(B);
    let addr = SocketAddr::new(B, 11210);
    assert_eq!(kind(net.connect(addr)), Some(ErrorKind::ConnectionRefused));
    let listener = net.listen(addr).expect("free");
    assert_eq!(kind(net.listen(addr)), Some(ErrorKind::AddrInUse));
    assert_eq!(kind(net.listen(SocketAddr::new(A, 1))), Some(ErrorKind::AddrNotAvailable));
    let mut waiting = net.connect(addr).expect("it listens");
    drop(listener);
    assert_eq!(kind(waiting.try_read(&mut [0; 1])), Some(ErrorKind::ConnectionReset));
    assert_eq!(kind(net.connect(addr)), Some(ErrorKind::ConnectionRefused));
    net.listen(addr).expect("free again");
}
