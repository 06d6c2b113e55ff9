//! Which user of this machine asks the control endpoint.
//!
//! *Guarantee:* on Linux the endpoint does what the user asks who started the development cluster, or root, and no other user
//! of the machine: the kernel says whose a connection is, so that people and helpers have no token to hand on (record 206).
//! Where the kernel does not say it, and for clients of other machines, nothing is looked at.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base::env::{Disk, Env, OpenMode};
use serde_json::json;
use server::http::connections::addresses;

/// Bytes that one read asks for.
const READ_BYTES: usize = 64 << 10;
/// A longer table of connections is read up to here.
const MOST_TABLE_BYTES: usize = 16 << 20;

/// Whom a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The process at its other end has it, of a user with this number.
    User(u32),
    /// No process has it any more, or there is none.
    None,
    /// The kernel has no tables to look at.
    Unknown,
}

/// Refuses what another user of this machine asks.
pub(super) async fn check(State(env): State<Env>, request: Request, next: Next) -> Response {
    match addresses(&request).and_then(|ends| stranger(&*env.disk, ends)) {
        None => next.run(request).await,
        Some(why) => (StatusCode::FORBIDDEN, Json(json!({ "message": why }))).into_response(),
    }
}

/// Why a request is refused that came from the first address to the second one.
fn stranger(disk: &dyn Disk, (client, own): (SocketAddr, SocketAddr)) -> Option<String> {
    if !client.ip().to_canonical().is_loopback() {
        return None;
    }
    let this = own_user(disk)?;
    let what = match owner(disk, client, own) {
        Owner::Unknown => return None,
        Owner::User(user) if user == this || user == 0 => return None,
        Owner::User(user) => format!("the user with the number {user}"),
        Owner::None => "a connection that no process has any more".to_owned(),
    };
    Some(format!(
        "{what} asks, and a development cluster does only what the user who started it (number {this}) or root asks: ask as \
         that one, or start another development cluster"
    ))
}

/// The number of the user who runs this process, whose connections have it, too.
fn own_user(disk: &dyn Disk) -> Option<u32> {
    let status = read(disk, Path::new("/proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // The real one, and behind it the one that counts.
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Who has the end of a connection that is at `client`. The tables are read in pieces, between which connections come and go:
/// what is not found is looked for again.
fn owner(disk: &dyn Disk, client: SocketAddr, own: SocketAddr) -> Owner {
    match owner_now(disk, client, own) {
        Owner::None => owner_now(disk, client, own),
        found => found,
    }
}

fn owner_now(disk: &dyn Disk, client: SocketAddr, own: SocketAddr) -> Owner {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|path| read(disk, Path::new(path)));
    let known: Vec<&str> = tables.iter().flatten().map(String::as_str).collect();
    if known.is_empty() {
        return Owner::Unknown;
    }
    let mut lines = known.iter().flat_map(|table| table.lines().skip(1));
    lines.find_map(|line| owner_of(line, client, own)).unwrap_or(Owner::None)
}

/// The same of one line (proc_net_tcp(5)): number, local and remote address, state, three fields, user, one field, inode. A
/// connection that its process has closed has no inode, and user 0 whoever that was.
fn owner_of(line: &str, client: SocketAddr, own: SocketAddr) -> Option<Owner> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    if (local, remote) != (canonical(client), canonical(own)) {
        return None;
    }
    let (user, inode) = (fields.nth(4)?.parse().ok()?, fields.nth(1)?);
    Some(if inode == "0" { Owner::None } else { Owner::User(user) })
}

fn canonical(addr: SocketAddr) -> (IpAddr, u16) {
    (addr.ip().to_canonical(), addr.port())
}

/// An address as the kernel writes it: words of 32 bits in the order of the machine, and the port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(host.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let host: IpAddr = match host.len() {
        8 => word(0)?.into(),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            bytes.into()
        }
        _ => return None,
    };
    Some((host.to_canonical(), port))
}

/// What a file of the kernel holds, whose length is not known before.
fn read(disk: &dyn Disk, path: &Path) -> Option<String> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut bytes = Vec::new();
    while bytes.len() < MOST_TABLE_BYTES {
        let mut some = vec![0; READ_BYTES];
        match file.read_at(&mut some, bytes.len() as u64).ok()? {
            0 => break,
            count => bytes.extend_from_slice(&some[..count]),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "both ends of a connection, outside the cluster")]
mod tests {
    use super::*;

    const LINE: &str = "   1: 0100007F:A1D3 0100007F:1F9B 01 00000000:00000000 00:00000000 00000000  1000        0 4356134 1 0";

    fn at(port: u16) -> SocketAddr {
        SocketAddr::new("127.0.0.1".parse().expect("an address"), port)
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_line_says_whose_a_connection_is() {
        let (client, own) = (at(0xa1d3), at(0x1f9b));
        assert_eq!(owner_of(LINE, client, own), Some(Owner::User(1000)));
        assert_eq!(owner_of(LINE, own, client), None, "that is the other end");
        assert_eq!(owner_of(LINE, at(1), own), None);
        let closed = LINE.replace(" 1000 ", " 0 ").replace(" 4356134 ", " 0 ");
        assert_eq!(owner_of(&closed, client, own), Some(Owner::None), "root is not meant");
        let mapped = LINE.replace("0100007F", "0000000000000000FFFF00000100007F");
        assert_eq!(owner_of(&mapped, client, own), Some(Owner::User(1000)));
        assert_eq!(owner_of("  sl  local_address rem_address   st", client, own), None);
    }

    #[test]
    fn a_connection_of_this_process_is_its_users() {
        let env = Env::real();
        let listener = std::net::TcpListener::bind(at(0)).expect("a port");
        let own = listener.local_addr().expect("an address");
        let client = std::net::TcpStream::connect(own).expect("it listens");
        let ends = (client.local_addr().expect("an address"), own);
        assert_eq!(stranger(&*env.disk, ends), None);
        // No process has the end of one that was never made.
        let is_known = own_user(&*env.disk).is_some();
        assert_eq!(stranger(&*env.disk, (own, own)).is_some(), is_known && cfg!(target_os = "linux"));
        let elsewhere = ("192.0.2.1:7".parse().expect("an address"), own);
        assert_eq!(stranger(&*env.disk, elsewhere), None, "other machines are not looked at");
    }
}
