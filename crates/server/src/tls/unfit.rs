//! What is wrong with certificates that can be served with: they end, or are not for what the node uses them for.

use ::node::config::{ClientAuth, TlsConfig};
use rustls::pki_types::CertificateDer;

use super::certificate::is_of;
use super::identity::{self, CaEnd, Leaf, Purpose};

/// Why the other nodes of a cluster refuse a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedByNodes {
    /// It is one of a CA.
    #[error(
        "it is one of a CA (basicConstraints with CA:TRUE, as openssl req -x509 makes it), which is none of a node: have a CA \
         issue one that is none, as stave certs node does"
    )]
    Ca,
    /// It is not for servers.
    #[error(
        "its extended key usage has no serverAuth: have the CA issue one with both serverAuth and clientAuth, as stave certs \
         init does, or one without an extended key usage"
    )]
    NotForServers,
    /// It is not for clients, which nodes are of each other, and nodes ask their clients for certificates.
    #[error(
        "its extended key usage has no clientAuth, and the nodes ask for certificates (tls-client-auth): have the CA issue one \
         with both serverAuth and clientAuth, as stave certs init does, or one without an extended key usage, or set \
         tls-client-auth to off on all nodes"
    )]
    NotForClients,
    /// No CA signed it by which the nodes know others.
    #[error(
        "no CA of tls-ca has signed it, its issuer is {0:?}: put that CA into the file of all nodes, or have one of the file's \
         CAs issue the certificate"
    )]
    Unknown(String),
}

/// Seconds.
pub(super) const DAY_S: u64 = 24 * 60 * 60;
/// From this number of days before its end a certificate is warned of.
const SOON_DAYS: u64 = 30;
/// The most names of a certificate that are told.
const MOST_NAMES_TOLD: usize = 8;

/// The certificates that a node shows, and the CAs by which it knows others.
#[derive(Clone)]
pub(super) struct Shown {
    chain: Vec<CertificateDer<'static>>,
    /// When the first of the chain is not valid any more, in seconds of Unix time.
    end_s: Option<u64>,
    /// The CAs by which others are known, in DER.
    known: Vec<CertificateDer<'static>>,
    cas: Vec<CaEnd>,
    /// Those among the CAs that are none.
    leaves: Vec<Leaf>,
}

impl Shown {
    pub(super) fn new(chain: Vec<CertificateDer<'static>>, cas: Vec<CertificateDer<'static>>) -> Shown {
        let (end_s, ends) = (identity::valid_until_s(&chain), identity::ends(&cas));
        Shown { end_s, cas: ends, leaves: cas.iter().filter_map(identity::leaf).collect(), known: cas, chain }
    }

    /// How many CAs there are.
    pub(super) fn count_of_cas(&self) -> usize {
        self.known.len() - self.leaves.len()
    }

    /// When the node's own certificate is not valid any more, in seconds of Unix time.
    pub(super) fn end_s(&self) -> Option<u64> {
        self.end_s
    }

    /// When the first of the CAs is not valid any more.
    pub(super) fn first_ca_end_s(&self) -> Option<u64> {
        self.cas.iter().map(|ca| ca.last_s).min()
    }

    /// What a person has to know of the end of the certificate, if it is near or past.
    pub(super) fn end(&self, now_s: u64) -> Option<String> {
        let what = warning(self.end_s?, now_s)?;
        let then = if what == PAST { ": clients refuse it" } else { "" };
        Some(format!("the node's certificate {what}{then}"))
    }

    /// The same of each CA.
    pub(super) fn ends_of_cas(&self, now_s: u64) -> Vec<String> {
        let of = |ca: &CaEnd| {
            let what = warning(ca.last_s, now_s)?;
            let then = match what == PAST {
                true => {
                    "clients and nodes with certificates of it are refused, and many clients refuse nodes with such ones; give \
                     all of them certificates of another CA, and take this one out of the file"
                }
                false => {
                    "put another CA beside it, give nodes and clients certificates of that one, and take this one out of the \
                     file then"
                }
            };
            Some(format!("the CA {:?} {what}: {then}", ca.name))
        };
        self.cas.iter().filter_map(of).collect()
    }

    /// What the certificate is not for: one of the hosts that clients are told, or servers.
    pub(super) fn unfit(&self, hosts: &[String]) -> Vec<String> {
        let Some(first) = self.chain.first() else { return Vec::new() };
        let missing = hosts.iter().filter(|host| !identity::is_for(first, host));
        let names = || {
            let names = identity::names(first);
            if names.is_empty() {
                return "no name".to_owned();
            }
            names[..names.len().min(MOST_NAMES_TOLD)].join(", ")
        };
        let of_host = |host: &String| {
            format!(
                "clients are told that this node is {host}, and its certificate (tls-cert) is not for that host but for {}: \
                 clients that compare names do not connect; give --advertise a name of the certificate, or put {host} into \
                 the certificate",
                names()
            )
        };
        let of_purpose = identity::leaves_out(&self.chain, Purpose::Server).then(|| {
            "the extended key usage of the node's certificate (tls-cert) has no serverAuth: clients refuse it; have the CA \
             issue another one"
                .to_owned()
        });
        let of_certificate = of_purpose.into_iter().chain(self.ca_as_server()).chain(self.key_of_few());
        missing.map(of_host).chain(of_certificate).chain(self.no_cas()).collect()
    }

    /// A certificate of a CA in the place of a server's.
    fn ca_as_server(&self) -> Option<String> {
        self.chain.first().is_some_and(identity::is_ca).then(|| {
            "the node's certificate (tls-cert) is one of a CA (basicConstraints with CA:TRUE, as `openssl req -x509` makes it): \
             other nodes, commands of stave and the Rust SDK refuse it; have a CA issue one that is none (stave certs node)"
                .to_owned()
        })
    }

    /// A key that SDKs do not take.
    fn key_of_few(&self) -> Option<String> {
        self.chain.first().is_some_and(identity::is_ed25519).then(|| {
            "the key of the node's certificate (tls-cert) is Ed25519: the Python SDK and others on the C++ core do not connect; \
             have the CA issue a certificate with a key of ECDSA P-256 or RSA"
                .to_owned()
        })
    }

    /// Certificates in the place of CAs that are none.
    fn no_cas(&self) -> impl Iterator<Item = String> {
        self.leaves.iter().map(|Leaf { name, issuer }| {
            let what = format!("tls-ca: the certificate {name:?} is not one of a CA (it has no basicConstraints with CA:TRUE)");
            match issuer {
                Some(issuer) => format!(
                    "{what}: nothing is known by it; put the certificate of the CA that signed it into the file, {issuer:?}"
                ),
                None => format!("{what}: no client is known by it, and of nodes only the one that has it"),
            }
        })
    }

    /// Whether the certificate is for a host.
    pub(super) fn is_for(&self, host: &str) -> bool {
        self.chain.first().is_some_and(|first| identity::is_for(first, host))
    }

    /// Why the other nodes of a cluster refuse the certificate where documents go. They are taken to have the same `tls-ca` as
    /// this one, and to ask for certificates as it does.
    pub(super) fn refused_by_nodes(&self, config: &TlsConfig, now_s: u64) -> Option<RefusedByNodes> {
        if config.cluster_encryption.covers_documents() { self.why_refused(config, now_s) } else { None }
    }

    /// Why they refuse it for requests over HTTP alone.
    pub(super) fn refused_over_http(&self, config: &TlsConfig, now_s: u64) -> Option<RefusedByNodes> {
        let level = config.cluster_encryption;
        let is_http_alone = level.covers_http() && !level.covers_documents();
        if is_http_alone { self.why_refused(config, now_s) } else { None }
    }

    fn why_refused(&self, config: &TlsConfig, now_s: u64) -> Option<RefusedByNodes> {
        // Without a CA a node knows no other one, whatever its certificate is.
        let first = self.chain.first().filter(|_| !self.known.is_empty())?;
        let asks_clients = config.client_auth != ClientAuth::Off;
        if identity::is_ca(first) {
            return Some(RefusedByNodes::Ca);
        }
        if identity::leaves_out(&self.chain, Purpose::Server) {
            return Some(RefusedByNodes::NotForServers);
        }
        if asks_clients && identity::leaves_out(&self.chain, Purpose::Client) {
            return Some(RefusedByNodes::NotForClients);
        }
        // A server is known by a certificate that it has signed itself, a client is not.
        let (mut servers, mut clients) = (self.known.clone(), self.known.clone());
        servers.retain(|ca| identity::leaf(ca).is_none_or(|leaf| leaf.issuer.is_none()));
        clients.retain(|ca| identity::leaf(ca).is_none());
        let is_known =
            is_of(&self.chain, &servers, now_s) && (!asks_clients || is_of(&self.chain, &clients, now_s));
        let issuer = || self.chain.last().and_then(identity::issuer).unwrap_or_default();
        (!is_known).then(|| RefusedByNodes::Unknown(issuer()))
    }
}

const PAST: &str = "is not valid any more";

/// What is said of an end at `end_s`, both in seconds of Unix time; `None` while that is far away.
fn warning(end_s: u64, now_s: u64) -> Option<String> {
    let left_s = end_s.saturating_sub(now_s);
    if left_s == 0 {
        return Some(PAST.to_owned());
    }
    let days = left_s / DAY_S;
    (days < SOON_DAYS).then(|| match days {
        0 => "ends in less than a day".to_owned(),
        1 => "is valid for one more day".to_owned(),
        days => format!("is valid for {days} more days"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_comes_soon_is_warned_of() {
        let now_s = 1_000 * DAY_S;
        assert_eq!(warning(now_s + 30 * DAY_S, now_s), None);
        let days = |left_s| warning(now_s + left_s, now_s).expect("a warning");
        assert!(days(30 * DAY_S - 1).contains("29 more days"));
        assert!(days(2 * DAY_S - 1).contains("one more day") && days(1).contains("less than a day"));
        assert_eq!(warning(now_s, now_s), warning(0, now_s));
        assert!(days(0).contains("not valid any more"));
    }
}
