//! What a bucket is beside its documents: its settings, and users and groups, read from a cluster and put back
//! (record 0177).
//!
//! # Guarantees
//!
//! - Of passwords there is only what checks them.
//! - What is there and is another one is never changed unless that was asked for; it is named.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::Env;
use node::form::escaped;
use serde_json::{Value, json};

use crate::client::{Client, HttpTarget, Target, with_http_port};

const MIB: u64 = 1 << 20;
/// How long a bucket that was made may take to serve.
const PATIENCE: Duration = Duration::from_secs(60);
/// Fields of a bucket's description that the form takes as they are.
const AS_TOLD: [&str; 15] = [
    "bucketType",
    "storageBackend",
    "replicaNumber",
    "evictionPolicy",
    "conflictResolutionType",
    "durabilityMinLevel",
    "durabilityImpossibleFallback",
    "compressionMode",
    "maxTTL",
    "threadsNumber",
    "rank",
    "replicaIndex",
    "historyRetentionSeconds",
    "historyRetentionBytes",
    "historyRetentionCollectionDefault",
];

/// Settings of a bucket, by the fields of the form that makes one.
pub(crate) type BucketSettings = BTreeMap<String, String>;

/// What a backup notes of its bucket at the end.
#[derive(Debug, Default)]
pub(crate) struct BucketState {
    pub(crate) by_time: bool,
    /// As *get collections manifest* answers.
    pub(crate) collections: Value,
    /// Empty if they could not be read.
    pub(crate) settings: BucketSettings,
    /// Users and groups, if they were asked for.
    pub(crate) users: Option<Value>,
}

/// Where to ask over HTTP: at the address that was given, or where the node says that it listens.
pub(crate) fn http_of(
    client: Option<&mut Client>,
    target: &Target,
    given: Option<&str>,
) -> anyhow::Result<HttpTarget> {
    if let Some(given) = given {
        return Ok(target.over_http(with_http_port(given, target.tls.is_some())));
    }
    let told = match client {
        Some(client) => client.map()?.and_then(|map| map.http),
        None => None,
    };
    let usual = || {
        let host = target.addr.rsplit_once(':').map_or(&*target.addr, |(host, _)| host);
        with_http_port(host, target.tls.is_some())
    };
    Ok(target.over_http(told.unwrap_or_else(usual)))
}

/// Whether a password may be sent in clear to where a node says that it listens over HTTP: only to this machine, and only if
/// the address that was given is on it, too. A map that anyone can have changed must not make it go elsewhere.
fn stays_here(target: &Target, http: &HttpTarget) -> bool {
    is_loopback(&target.addr) && is_loopback(&http.addr)
}

/// Whether an address, with or without a port, is one of this machine alone.
fn is_loopback(addr: &str) -> bool {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>().or_else(|_| addr.parse());
    ip.map_or(host.eq_ignore_ascii_case("localhost"), |ip| ip.to_canonical().is_loopback())
}

/// Where to ask for settings that were not asked for by name. Over HTTP the password is sent as it is: without TLS it goes
/// nowhere but to this machine, unless `is_asked`.
pub(super) fn http_unasked(
    client: &mut Client,
    target: &Target,
    given: Option<&str>,
    is_asked: bool,
) -> anyhow::Result<HttpTarget> {
    let http = http_of(Some(client), target, given)?;
    check_clear(target, &http, is_asked || given.is_some())?;
    Ok(http)
}

fn check_clear(target: &Target, http: &HttpTarget, is_asked: bool) -> anyhow::Result<()> {
    if is_asked || target.tls.is_some() || stays_here(target, http) {
        return Ok(());
    }
    bail!(
        "they are at {} over HTTP, where the password would be sent in clear: give --tls-ca, or --http {} if the network is \
         to be trusted",
        http.addr,
        http.addr
    )
}

/// The settings of a bucket; `None` if there is none of this name.
pub(crate) fn settings_of(http: &HttpTarget, bucket: &str) -> anyhow::Result<Option<BucketSettings>> {
    let told = http.request("GET", "/pools/default/buckets", None)?;
    let all = told.as_array().context("the node does not list its buckets")?;
    Ok(all.iter().find(|one| one["name"] == bucket).map(settings_in))
}

/// The settings in a bucket's description.
fn settings_in(told: &Value) -> BucketSettings {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(is) => Some(if *is { "1" } else { "0" }.to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let mut settings: BucketSettings =
        AS_TOLD.iter().filter_map(|name| Some(((*name).to_owned(), text(&told[*name])?))).collect();
    if let Some(quota) = told["quota"]["rawRAM"].as_u64() {
        settings.insert("ramQuotaMB".to_owned(), quota.div_ceil(MIB).to_string());
    }
    let is_flushed = told["controllers"]["flush"].is_string();
    settings.insert("flushEnabled".to_owned(), if is_flushed { "1" } else { "0" }.to_owned());
    // Where there is no key, it is off whatever the setting is: then the cluster's own way counts.
    if told["encryptionAtRest"] == true {
        settings.insert("encryptionAtRest".to_owned(), "1".to_owned());
    }
    settings
}

/// What two buckets' settings differ in: the name, what is there, what is wanted.
fn differing(is: &BucketSettings, wanted: &BucketSettings) -> Vec<String> {
    let differs = |(name, wanted): (&String, &String)| {
        let is = is.get(name).map_or("nothing", String::as_str);
        // A cluster without a key answers that nothing is encrypted.
        (is != wanted && name != "encryptionAtRest").then(|| format!("{name} is {is}, and was {wanted}"))
    };
    wanted.iter().filter_map(differs).collect()
}

/// Makes a bucket with the settings that a backup has, and waits until it serves. One that is there with the same settings
/// is taken as it is.
pub(crate) fn create_bucket(
    env: &Env,
    http: &HttpTarget,
    target: &Target,
    settings: &BucketSettings,
) -> anyhow::Result<()> {
    let bucket = &target.bucket;
    if settings.is_empty() {
        bail!(
            "the backup has no settings of its bucket: make bucket `{bucket}`, and restore without --create-bucket"
        );
    }
    if let Some(is) = settings_of(http, bucket)? {
        let differing = differing(&is, settings);
        if differing.is_empty() {
            return Ok(());
        }
        bail!(
            "bucket `{bucket}` is there already, and its settings are not those of the backup: {}; leave --create-bucket out \
             to restore into it as it is, or delete it first",
            differing.join("; ")
        );
    }
    let mut fields: Vec<(&str, &str)> = vec![("name", bucket)];
    fields.extend(settings.iter().map(|(name, value)| (&**name, &**value)));
    http.form("/pools/default/buckets", &fields)
        .with_context(|| format!("bucket `{bucket}` cannot be made with the settings of the backup"))?;
    let until = env.clock.monotonic() + PATIENCE;
    loop {
        match Client::open(env, target) {
            Ok(_) => return Ok(()),
            Err(_) if env.clock.monotonic() < until => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error).with_context(|| format!("bucket `{bucket}`, which was made")),
        }
    }
}

/// Users and groups with what checks their passwords.
pub(crate) fn read_users(http: &HttpTarget) -> anyhow::Result<Value> {
    let told = http.request("GET", "/settings/rbac/backup", None);
    let told = told.context("--users: users and groups cannot be read")?;
    if !(told["users"].is_array() && told["groups"].is_array()) {
        bail!("--users: the node does not tell users with what checks their passwords");
    }
    Ok(json!({ "users": told["users"], "groups": told["groups"] }))
}

/// How many users and groups a backup has.
pub(crate) fn count_users(users: &Value) -> (usize, usize) {
    let count = |name: &str| users[name].as_array().map_or(0, Vec::len);
    (count("users"), count("groups"))
}

/// What became of users and groups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UsersPut {
    pub(crate) made: Vec<String>,
    /// There was one of this name, which is as it was.
    pub(crate) left: Vec<String>,
    pub(crate) replaced: Vec<String>,
    /// What the cluster refused, and why.
    pub(crate) refused: Vec<String>,
}

/// Puts users and groups back; groups first, since users name them. Those that are there are left unless `replaces`.
pub(crate) fn put_users(http: &HttpTarget, users: &Value, replaces: bool) -> anyhow::Result<UsersPut> {
    let names = |path: &str| -> anyhow::Result<Vec<String>> {
        let told = http.request("GET", path, None).context("--users: users and groups cannot be read")?;
        let all = told.as_array().into_iter().flatten();
        Ok(all.filter_map(|one| one["id"].as_str()).map(str::to_owned).collect())
    };
    let mut put = UsersPut::default();
    let kinds =
        [("groups", "group", "/settings/rbac/groups"), ("users", "user", "/settings/rbac/users/local")];
    for (list, kind, path) in kinds {
        let there = names(path)?;
        for one in users[list].as_array().into_iter().flatten() {
            let name = one["id"].as_str().unwrap_or_default();
            let (told, is_there) = (format!("{kind} {name}"), there.iter().any(|there| there == name));
            if is_there && !replaces {
                put.left.push(told);
                continue;
            }
            let fields = fields_of(one);
            let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
            match http.send("PUT", &format!("{path}/{}", escaped(name)), &fields) {
                Ok(_) if is_there => put.replaced.push(told),
                Ok(_) => put.made.push(told),
                Err(error) => put.refused.push(format!("{told}: {error:#}")),
            }
        }
    }
    Ok(put)
}

/// The fields of the form that makes a user or a group.
fn fields_of(one: &Value) -> Vec<(&'static str, String)> {
    const FIELDS: [&str; 6] = ["name", "roles", "groups", "passwordHash", "description", "ldap_group_ref"];
    let text = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            Some(names.join(","))
        }
        other => Some(other.to_string()),
    };
    FIELDS.into_iter().filter_map(|name| Some((name, text(&one[name])?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_that_the_form_takes() {
        let told = json!({
            "name": "b", "bucketType": "membase", "replicaNumber": 2, "maxTTL": 0, "replicaIndex": false,
            "quota": { "ram": 1, "rawRAM": 104_857_601 }, "controllers": { "flush": "/x" }, "encryptionAtRest": true,
            "uuid": "1", "nodes": [],
        });
        let settings = settings_in(&told);
        let expected = [
            ("bucketType", "membase"),
            ("encryptionAtRest", "1"),
            ("flushEnabled", "1"),
            ("maxTTL", "0"),
            ("ramQuotaMB", "101"),
            ("replicaIndex", "0"),
            ("replicaNumber", "2"),
        ];
        assert!(settings.iter().map(|(name, value)| (&**name, &**value)).eq(expected), "{settings:?}");
        let mut other = settings.clone();
        assert_eq!(differing(&other, &settings), Vec::<String>::new());
        other.insert("replicaNumber".to_owned(), "1".to_owned());
        other.remove("maxTTL");
        assert_eq!(
            differing(&other, &settings),
            ["maxTTL is nothing, and was 0", "replicaNumber is 1, and was 2"]
        );
    }

    #[test]
    fn a_password_goes_to_other_machines_in_clear_only_if_that_was_asked_for() {
        let checked = |addr: &str, http: &str, is_asked| {
            let target = Target { addr: addr.to_owned(), ..Target::default() };
            check_clear(&target, &target.over_http(http.to_owned()), is_asked)
                .map_err(|error| error.to_string())
        };
        for (addr, http) in [
            ("127.0.0.1:11210", "127.0.0.1:8091"),
            ("localhost:11210", "127.0.0.2:8091"),
            ("[::1]:11210", "[::1]:8091"),
            ("[::ffff:127.0.0.1]:11210", "LOCALHOST:8091"),
        ] {
            assert_eq!(checked(addr, http, false), Ok(()), "{addr} {http}");
        }
        for (addr, http) in [
            ("127.0.0.1:11210", "10.0.0.1:8091"),
            ("10.0.0.1:11210", "127.0.0.1:8091"),
            ("10.0.0.1:11210", "10.0.0.1:8091"),
            ("127.0.0.1.example.com:11210", "127.0.0.1:8091"),
            ("127.0.0.1:11210", "localhost.example.com:8091"),
            ("127.0.0.1:11210", ""),
        ] {
            let said = checked(addr, http, false).expect_err(http);
            assert!(said.contains("in clear") && said.contains("--tls-ca"), "{said}");
            assert_eq!(checked(addr, http, true), Ok(()), "{addr} {http}");
        }
    }
}
