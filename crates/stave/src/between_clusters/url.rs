//! How people name a cluster.

use anyhow::bail;
use base::env::Env;

use crate::cli::WrongArguments;
use crate::client::{Client, ClientError, FlagNames, Target, Trust, with_port};

const KV_PORT: u16 = 11210;
const KV_PORT_TLS: u16 = 11207;

/// A cluster, as SDKs name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterUrl {
    pub(super) hosts: Vec<String>,
    pub(super) is_encrypted: bool,
}

/// Reads such a name.
pub(crate) fn parse_url(text: &str) -> Result<ClusterUrl, String> {
    let wrong = || format!("`{text}` names no cluster; write it like couchbase://10.0.0.1,10.0.0.2");
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let is_encrypted = match scheme {
        "couchbase" => false,
        "couchbases" => true,
        _ => return Err(wrong()),
    };
    let port = if is_encrypted { KV_PORT_TLS } else { KV_PORT };
    let hosts = rest.trim_end_matches('/').split(',');
    let hosts: Vec<String> = hosts.map(|host| with_port(host, port)).collect();
    let is_host = |host: &String| !host.starts_with(':') && !host.contains(['/', '?', '@', ' ']);
    if hosts.iter().all(is_host) { Ok(ClusterUrl { hosts, is_encrypted }) } else { Err(wrong()) }
}

impl ClusterUrl {
    /// The first node that answers. `like` says who logs in, to which bucket, and how long that may take; `trust` which
    /// CAs are trusted, `flag` by which flag that is said, and `names` what errors call the other flags.
    pub(crate) fn find(
        &self,
        env: &Env,
        like: &Target,
        trust: Option<Trust>,
        flag: &str,
        names: FlagNames,
    ) -> anyhow::Result<Target> {
        let tls = trust.filter(|_| self.is_encrypted);
        if self.is_encrypted && tls.is_none() {
            bail!(WrongArguments(format!("couchbases:// needs {flag} with the CA of the cluster there")));
        }
        let mut last: Option<ClientError> = None;
        for addr in &self.hosts {
            let target = Target { tls: tls.clone(), is_of_map: false, ..like.at(addr.clone()) };
            match Client::open(env, &target) {
                Ok(_) => return Ok(target),
                Err(error) => last = Some(error),
            }
        }
        let (hosts, bucket) = (self.hosts.join(", "), &like.bucket);
        Err(last
            .map_or_else(|| anyhow::anyhow!("no host is named"), |error| names.told(error))
            .context(format!("no node of {hosts} can be asked for bucket `{bucket}`")))
    }
}
