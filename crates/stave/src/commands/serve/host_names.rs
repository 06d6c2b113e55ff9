//! Names of hosts among the addresses that a node listens at: each becomes all of its addresses, when the configuration is read.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use base::env::Env;
use node::Settings;

/// How a name becomes addresses.
type Resolve<'r> = &'r dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// What names with ports became. A reload takes them from here: a node goes on listening where it does, and a name server
/// that does not answer keeps no certificate from being taken.
#[derive(Clone, Default)]
pub(super) struct KnownNames(BTreeMap<String, String>);

/// What is wrong with a name.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostNameError {
    /// It has no address, which may be otherwise later.
    #[error("{0}")]
    Unresolved(String),
    /// One of its addresses is not of this machine.
    #[error("{0}")]
    Elsewhere(String),
}

/// Puts addresses in the place of names, each as it is known or becomes known now.
///
/// # Errors
///
/// If a name has no address, or one that is not of this machine.
pub(super) fn resolve(
    env: &Env,
    settings: &mut Settings,
    known: &mut KnownNames,
) -> Result<(), HostNameError> {
    let is_ours = |ip: IpAddr| env.network.listen(SocketAddr::new(ip, 0)).map(drop);
    for (setting, text) in [
        ("kv", &mut settings.kv),
        ("http", &mut settings.http),
        ("kv-tls", &mut settings.kv_tls),
        ("http-tls", &mut settings.http_tls),
    ] {
        if let Some(text) = text {
            *text = resolved(setting, text, &by_system, &is_ours, known)?;
        }
    }
    Ok(())
}

fn by_system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Addresses with commas between them. What is no name stays as it is: the configuration refuses what is no address either.
fn resolved(
    setting: &str,
    text: &str,
    resolve: Resolve<'_>,
    is_ours: &dyn Fn(IpAddr) -> io::Result<()>,
    known: &mut KnownNames,
) -> Result<String, HostNameError> {
    let mut all = Vec::new();
    for one in text.split(',').map(str::trim) {
        let Some((host, port)) = name_of(one) else {
            all.push(one.to_owned());
            continue;
        };
        if let Some(known) = known.0.get(one) {
            all.push(known.clone());
            continue;
        }
        let mut found = resolve(host, port).map_err(|error| {
            let what = format!("{setting} = {one:?}: {host} cannot be resolved: {error}; give IP:PORT");
            HostNameError::Unresolved(what)
        })?;
        // Others are told of the first one: that is one of IPv4, if there is any.
        found.sort_by_key(|addr| (addr.is_ipv6(), *addr));
        found.dedup();
        found.retain(|addr| !is_link_local(addr.ip()));
        if found.is_empty() {
            let what = format!("{setting} = {one:?}: {host} has no address; give IP:PORT");
            return Err(HostNameError::Unresolved(what));
        }
        for addr in &found {
            is_ours(addr.ip()).map_err(|error| {
                HostNameError::Elsewhere(format!(
                    "{setting} = {one:?}: {} is an address of {host}, and this machine cannot listen there ({error}): \
                     name this machine, or give IP:PORT",
                    addr.ip()
                ))
            })?;
        }
        let addresses: Vec<String> = found.iter().map(SocketAddr::to_string).collect();
        known.0.insert(one.to_owned(), addresses.join(","));
        all.extend(addresses);
    }
    Ok(all.join(","))
}

/// An address that is one of a network card's only: it needs the card's name, and clients elsewhere cannot use it.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Host and port, if an address has the name of a host. `localhost` is one that needs no resolving.
fn name_of(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !host.is_empty() && host != "localhost" && host.bytes().all(is_in_name);
    (is_name && host.parse::<IpAddr>().is_err()).then_some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_table(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let all: &[&str] = match host {
            "db1.example" => &["::1", "10.0.0.7", "10.0.0.7", "fe80::1"],
            "elsewhere" => &["192.0.2.1"],
            "empty" => &[],
            _ => return Err(io::Error::other("no such name")),
        };
        Ok(all.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), port)).collect())
    }

    fn resolved_as(text: &str) -> Result<String, String> {
        let is_ours = |ip: IpAddr| match ip.to_string().starts_with("192.") {
            true => Err(io::Error::other("not ours")),
            false => Ok(()),
        };
        resolved("kv", text, &by_table, &is_ours, &mut KnownNames::default())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_becomes_all_of_its_addresses() {
        for (text, expected) in [
            ("db1.example:11210", "10.0.0.7:11210,[::1]:11210"),
            ("127.0.0.1:1, db1.example:2", "127.0.0.1:1,10.0.0.7:2,[::1]:2"),
            // These are no names: the configuration says what it makes of them.
            ("off", "off"),
            ("localhost:1", "localhost:1"),
            ("[::1]:1", "[::1]:1"),
            ("127.0.0.1:1,", "127.0.0.1:1,"),
            ("db1.example", "db1.example"),
            ("db1.example:x", "db1.example:x"),
            ("db1 example:1", "db1 example:1"),
            (":1", ":1"),
        ] {
            assert_eq!(resolved_as(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_name_is_resolved_once() {
        let mut known = KnownNames::default();
        let mut ask = |resolve: Resolve<'_>| {
            resolved("kv", "db1.example:1", resolve, &|_| Ok(()), &mut known)
                .map_err(|error| error.to_string())
        };
        let at_start = ask(&by_table);
        let gone = |_: &str, _| Err(io::Error::other("no server answers"));
        assert_eq!(ask(&gone), at_start);
        assert_eq!(at_start.as_deref(), Ok("10.0.0.7:1,[::1]:1"));
    }

    #[test]
    fn a_name_that_is_of_no_use_is_refused_with_the_setting() {
        for (text, words) in [
            ("nowhere:1", "kv = \"nowhere:1\": nowhere cannot be resolved: no such name; give IP:PORT"),
            ("empty:1", "kv = \"empty:1\": empty has no address"),
            (
                "elsewhere:1",
                "192.0.2.1 is an address of elsewhere, and this machine cannot listen there (not ours)",
            ),
        ] {
            let why = resolved_as(text).expect_err(text);
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn the_settings_of_a_node_are_resolved() {
        let env = Env::real();
        let mut settings = Settings { kv: Some("127.0.0.1:1".to_owned()), ..Settings::default() };
        let mut known = KnownNames::default();
        resolve(&env, &mut settings, &mut known).expect("no name");
        assert_eq!(settings.kv.as_deref(), Some("127.0.0.1:1"));
        let mut settings = Settings { http_tls: Some("no.such.name.invalid:1".to_owned()), ..settings };
        let why = resolve(&env, &mut settings, &mut known).expect_err("reserved by RFC 2606").to_string();
        assert!(why.starts_with("http-tls = \"no.such.name.invalid:1\""), "{why}");
    }
}
