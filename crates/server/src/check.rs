//! What a start with a configuration would refuse. Nothing on the disk is changed, and no address is listened at: a node
//! may run on the folder meanwhile.

use std::io;
use std::net::SocketAddr;

use ::node::at_rest;
use ::node::cluster::membership;
use ::node::config::Config;
use ::node::data_dir::DataDirError;
use ::node::hosting::check_quotas;
use base::env::Env;

use crate::server::{Failure, host_told_by, plain_addrs};
use crate::tls::Tls;
use crate::traces;

/// Looks at what [`crate::serve`] looks at before it opens buckets, in the same order. What a start warns of is returned,
/// a line each.
///
/// # Errors
///
/// The same as those of a start.
pub fn check(config: &Config, env: &Env) -> Result<Vec<String>, Failure> {
    let folder = &config.data_dir;
    let failed = |source| DataDirError::Io { operation: "use the folder", path: folder.to_owned(), source };
    match env.disk.read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        names => drop(names.map_err(failed)?),
    }
    let mut warnings = at_rest::check(env, config)?;
    if let Some(tls) = &config.tls {
        let tls = Tls::load(env, tls, config.is_member)?;
        let alternate = config.alternate.iter().map(|alternate| alternate.host.clone());
        let hosts: Vec<String> = host_told_by(config).into_iter().chain(alternate).collect();
        warnings.extend(tls.warnings(env.clock.unix_s().into(), &hosts));
    }
    if let Some(endpoint) = &config.trace_endpoint {
        traces::tls_of(env, endpoint)?;
    }
    check_addresses(config)?;
    let is_alone = !config.is_member && !config.leaves_cluster;
    if is_alone && !membership::may_start_alone(env, folder).map_err(failed)? {
        return Err(Failure::BelongsToCluster(folder.to_owned()));
    }
    check_quotas(config, env)?;
    Ok(warnings)
}

/// Refuses addresses of which two cannot both be listened at.
pub(crate) fn check_addresses(config: &Config) -> Result<(), Failure> {
    address_of_two(config).map_or(Ok(()), |addr| Err(Failure::SameAddress(addr)))
}

/// An address that the node would listen at twice.
fn address_of_two(config: &Config) -> Option<SocketAddr> {
    let plain = [config.plain_kv(), config.plain_http()].map(|addrs| plain_addrs(config, addrs));
    let encrypted = config.tls.iter().flat_map(|tls| [tls.kv_addrs(), tls.http_addrs()]);
    let all: Vec<SocketAddr> = plain.into_iter().chain(encrypted).flatten().collect();
    let mut others = all.iter().enumerate().map(|(at, addr)| (addr, &all[..at]));
    others.find(|(addr, before)| before.iter().any(|other| overlaps(**addr, *other))).map(|(addr, _)| *addr)
}

fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let same_ip = one.ip() == other.ip() || (is_any && one.is_ipv4() == other.is_ipv4());
    one.port() != 0 && one.port() == other.port() && same_ip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_that_cannot_both_be_listened_at() {
        let overlap = |one: &str, other: &str| {
            overlaps(one.parse().expect("an address"), other.parse().expect("an address"))
        };
        assert!(overlap("127.0.0.1:8091", "127.0.0.1:8091"));
        assert!(overlap("0.0.0.0:8091", "127.0.0.1:8091"));
        assert!(!overlap("127.0.0.1:8091", "127.0.0.1:8092"));
        assert!(!overlap("127.0.0.1:8091", "127.0.0.2:8091"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0"), "each gets a free port");
    }
}
