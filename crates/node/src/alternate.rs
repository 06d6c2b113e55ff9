//! Where clients of another network reach the node: what the configuration says, or what was said over HTTP since, which
//! is kept in the data directory.

use std::collections::BTreeMap;
use std::path::Path;

use ::cluster::state::Alternate;
use base::SmallFile;
use serde::{Deserialize, Serialize};

const FILE: &str = "alternate-address.json";
/// The longest name of a host (RFC 1035, 2.3.4).
const MOST_HOST_BYTES: usize = 253;

/// Services that a node has, under the field's names: the KV protocol and HTTP, and both with TLS.
pub const SERVICES: [&str; 4] = ["kv", "mgmt", "kvSSL", "mgmtSSL"];

/// Services of the field that a node does not have. Tools that set ports for all services may name them.
const OTHER_SERVICES: [&str; 16] = [
    "capi",
    "capiSSL",
    "cbas",
    "cbasSSL",
    "eventingAdminPort",
    "eventingDebug",
    "eventingSSL",
    "fts",
    "ftsSSL",
    "indexHttp",
    "indexHttps",
    "n1ql",
    "n1qlSSL",
    "projector",
    "rest",
    "restSSL",
];

/// The file of a data directory.
pub(crate) fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, FILE)
}

/// What the file says; it is there once something was said over HTTP.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptAddress {
    /// Nothing: the node has no other address, whatever the configuration says.
    pub(crate) external: Option<Alternate>,
}

pub(crate) fn parse(bytes: &[u8], _version: u16) -> Result<KeptAddress, String> {
    let kept: KeptAddress = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match kept.external.as_ref().map(check) {
        Some(Err(what)) => Err(what),
        Some(Ok(())) | None => Ok(kept),
    }
}

fn check(alternate: &Alternate) -> Result<(), String> {
    if !is_host(&alternate.host) {
        return Err(format!("{:?} is no name of a host and no address", alternate.host));
    }
    match alternate.ports.iter().find(|(service, port)| !SERVICES.contains(&service.as_str()) || **port == 0)
    {
        Some((service, port)) => Err(format!("{service} cannot have the port {port}")),
        None => Ok(()),
    }
}

/// Whether a text can be a host: a name, or an address without brackets.
pub fn is_host(text: &str) -> bool {
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    is_address || (1..=MOST_HOST_BYTES).contains(&text.len()) && text.bytes().all(is_one)
}

/// What can be wrong with an alternate address: the field, and what is wrong with it.
pub type Wrong = BTreeMap<String, String>;

/// Reads the fields `hostname` and ports by service. Ports of services that a node does not have are left out.
pub fn from_fields(fields: &[(String, String)]) -> Result<Alternate, Wrong> {
    let (mut host, mut ports, mut wrong) = (None, BTreeMap::new(), Wrong::new());
    for (name, value) in fields {
        let is_service = SERVICES.contains(&name.as_str());
        if name == "hostname" {
            let value = value.trim_matches(['[', ']']);
            host = Some(value.to_owned());
            if !is_host(value) {
                wrong.insert(name.clone(), "give a name or an address, without a port".to_owned());
            }
        } else if is_service || OTHER_SERVICES.contains(&name.as_str()) {
            match value.parse::<u16>() {
                Ok(port) if port > 0 && is_service => drop(ports.insert(name.clone(), port)),
                Ok(port) if port > 0 => {}
                _ => drop(wrong.insert(name.clone(), "The value must be a port: 1 to 65535".to_owned())),
            }
        } else {
            let what =
                format!("Unsupported key: give hostname and ports by service, {}", SERVICES.join(", "));
            wrong.insert(name.clone(), what);
        }
    }
    match host {
        None => {
            wrong.insert("hostname".to_owned(), "The value must be supplied".to_owned());
            Err(wrong)
        }
        Some(_) if !wrong.is_empty() => Err(wrong),
        Some(host) => Ok(Alternate { host, ports }),
    }
}

/// Reads `HOST[,SERVICE=PORT...]`.
pub fn from_word(text: &str) -> Result<Alternate, String> {
    let mut parts = text.split(',');
    let mut fields = vec![("hostname".to_owned(), parts.next().unwrap_or_default().to_owned())];
    for part in parts {
        let (service, port) = part.split_once('=').unwrap_or((part, ""));
        fields.push((service.to_owned(), port.to_owned()));
    }
    from_fields(&fields).map_err(|wrong| {
        let wrong: Vec<String> = wrong.into_iter().map(|(field, what)| format!("{field}: {what}")).collect();
        wrong.join("; ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_host_and_ports() {
        let read = from_word("db.example.org,kv=31210,mgmt=31091").expect("valid");
        let ports = BTreeMap::from([("kv".to_owned(), 31210), ("mgmt".to_owned(), 31091)]);
        assert_eq!(read, Alternate { host: "db.example.org".to_owned(), ports });
        let read = from_word("[2001:db8::1]").expect("valid");
        assert_eq!((read.host.as_str(), read.ports.len()), ("2001:db8::1", 0));
        for (word, what) in [
            ("", "hostname: give a name"),
            ("a b", "hostname: give a name"),
            ("a:1", "hostname: give a name"),
            ("a,kv=0", "kv: The value must be a port"),
            ("a,kv", "kv: The value must be a port"),
            ("a,kv=70000", "kv: The value must be a port"),
            ("a,tcp=1", "tcp: Unsupported key"),
        ] {
            let error = from_word(word).expect_err(word);
            assert!(error.starts_with(what), "{word}: {error}");
        }
    }

    #[test]
    fn ports_of_services_that_are_not_here_are_left_out() {
        let fields = [("hostname", "a"), ("kv", "1"), ("n1ql", "2")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(from_fields(&fields).expect("valid").ports.len(), 1);
        let wrong = from_fields(&[("n1ql".to_owned(), "x".to_owned())]).expect_err("no host, no port");
        assert_eq!(wrong.keys().collect::<Vec<_>>(), ["hostname", "n1ql"]);
    }

    #[test]
    fn what_is_kept_is_checked() {
        assert!(parse(br#"{"external":{"host":"a","ports":{"kv":1}}}"#, 1).is_ok());
        assert!(parse(br#"{"external":null}"#, 1).is_ok());
        for text in [r#"{"external":{"host":"a b"}}"#, r#"{"external":{"host":"a","ports":{"x":1}}}"#, "{}x"]
        {
            assert!(parse(text.as_bytes(), 1).is_err(), "{text}");
        }
    }
}
