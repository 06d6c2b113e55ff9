//! `stave set-param`: shows and changes the settings of a bucket while it serves.

use std::io::Write;

use anyhow::bail;
use base::env::Env;
use clap::Args;
use engine::settings::{SETTINGS, Setting, find};
use node::bucket_form::field_of;
use node::config::BucketTable;
use protocol::Status;

use crate::cli::{self, Outcome, ServerFlags, WrongArguments};
use crate::client::dcp::members;
use crate::client::{Client, ClientError, Dialect};

/// Change a setting of a bucket while it serves.
///
/// The change holds at the node that is named, until that node stops. To keep it, write it into the configuration file,
/// under `[bucket.settings]` of the bucket's table. For a bucket that was made over HTTP, and for each bucket of a cluster,
/// `PATCH /v1/buckets/NAME/settings` changes it for good.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave set-param --list                     # all settings, with what they take
  stave set-param max_size 2GiB --bucket orders
  stave set-param mem_high_wat_percent 90
  stave set-param mem_high_wat_percent       # shows it
  stave set-param exp_pager_stime 60 --all-nodes --json

`stave stats config` shows what all settings are now.")]
pub struct SetParamFlags {
    /// The setting
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Its new value; shows the present one if not given
    #[arg(allow_negative_numbers = true)]
    value: Option<String>,
    /// Show all settings with their defaults and what they take; needs no server
    #[arg(long, conflicts_with_all = ["name", "value"])]
    list: bool,
    /// Print JSON, one object for each node
    #[arg(long)]
    json: bool,
    /// Change it at every node of the cluster, not only at the one that is named
    #[arg(long, conflicts_with = "list")]
    all_nodes: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &SetParamFlags) -> anyhow::Result<Outcome> {
    let (text, kept_by) = match &flags.name {
        Some(name) => at_nodes(env, flags, name)?,
        None if flags.json => (list_json(), None),
        None => (list(), None),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    if let (Some(name), Some(_)) = (&flags.name, &flags.value) {
        eprintln!("{}", how_to_keep(name, &flags.server.bucket, kept_by.as_deref()));
    }
    Ok(Outcome::Done)
}

/// What keeps a change of a bucket that is kept by this, as nodes word it; of one whose node does not say it, all rules.
fn how_to_keep(name: &str, bucket: &str, kept_by: Option<&str>) -> String {
    let key = find(name).ok().map(|setting| setting.key);
    let in_file = match key.and_then(BucketTable::own_key) {
        Some(own) => format!("write {own} into the bucket's table of the configuration file"),
        None => {
            format!("write {name} under [bucket.settings] of the bucket's table of the configuration file")
        }
    };
    let by_flag =
        if name == "max_size" { format!(", or give --bucket {bucket}:QUOTA") } else { String::new() };
    let over_http = match key.and_then(field_of) {
        Some(field) => format!("set {field} with POST /pools/default/buckets/{bucket}"),
        None => format!("set {name} with PATCH /v1/buckets/{bucket}/settings"),
    };
    match kept_by {
        Some("configuration") => format!("until the node stops; to keep it, {in_file}{by_flag}"),
        Some("node" | "cluster") => format!("until the node stops; to keep it, {over_http}"),
        _ => format!(
            "until the node stops; to keep it\n  if the bucket is of the configuration file or the command line: \
             {in_file}{by_flag}\n  if it was made over HTTP, or is a cluster's: {over_http}"
        ),
    }
}

/// What keeps the bucket, in the word of its node; `None` if the node does not say it, or not to this user.
fn kept_by(client: &mut Client, bucket: &str) -> Option<String> {
    let details = client.stats(&format!("bucket_details {bucket}")).ok()?;
    let (_, details) = details.first()?;
    let details: serde_json::Value = serde_json::from_str(details).ok()?;
    details["kept_by"].as_str().map(str::to_owned)
}

/// Why a node failed, and what was changed at those before it.
fn failed(error: anyhow::Error, changed: &str) -> anyhow::Error {
    match changed.trim_end() {
        "" => error,
        changed => anyhow::anyhow!("{}; changed before:\n{changed}", cli::explain(&error)),
    }
}

/// Shows or changes a setting at the node that is named, or at all; what is to be printed, and what keeps the bucket.
fn at_nodes(env: &Env, flags: &SetParamFlags, name: &str) -> anyhow::Result<(String, Option<String>)> {
    let (target, bucket) = (flags.server.target(Dialect::Couchbase)?, &flags.server.bucket);
    let nodes = if flags.all_nodes { members(env, &target)? } else { vec![target] };
    let (mut text, mut kept) = (String::new(), None);
    for node in &nodes {
        let told = Client::open(env, node).map_err(anyhow::Error::from).and_then(|mut client| {
            let told = change(&mut client, name, flags.value.as_deref())?;
            if flags.value.is_some() && kept.is_none() {
                kept = kept_by(&mut client, bucket);
            }
            Ok(told)
        });
        let told = told.map_err(|error| {
            let changed = if flags.value.is_some() { text.as_str() } else { "" };
            failed(error.context(node.addr.clone()), changed)
        })?;
        if flags.all_nodes && !flags.json {
            text.push_str(&format!("{}: ", node.addr));
        }
        let node = flags.all_nodes.then_some(node.addr.as_str());
        text.push_str(&if flags.json { told.json(bucket, node) } else { told.text(bucket) });
    }
    Ok((text, kept))
}

/// A setting, before and after.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    name: String,
    /// Nothing if it was not to be changed.
    old: Option<String>,
    value: String,
}

/// Changes a setting if there is a value for it, and says what it is then.
fn change(client: &mut Client, name: &str, value: Option<&str>) -> anyhow::Result<Told> {
    let present = ask(client, name)?;
    let Some(value) = value else {
        let Some(value) = present else {
            bail!(WrongArguments(format!("there is no setting {name:?}; `stave set-param --list` shows all")))
        };
        return Ok(Told { name: name.to_owned(), old: None, value });
    };
    match client.set_param(name, value) {
        Err(ClientError::Refused { status_code, context, .. })
            if status_code == Status::Einval.code() && !context.is_empty() =>
        {
            bail!(WrongArguments(context))
        }
        outcome => outcome?,
    }
    // What the node says that it is, which may be written in another way.
    let value = ask(client, name)?.unwrap_or_else(|| value.to_owned());
    Ok(Told { name: name.to_owned(), old: present, value })
}

/// What a setting is now; nothing if there is none with this name.
fn ask(client: &mut Client, name: &str) -> anyhow::Result<Option<String>> {
    let config = client.stats("config")?;
    let is = |stat: &str| stat.strip_prefix("ep_") == Some(name);
    Ok(config.into_iter().find(|(stat, _)| is(stat)).map(|(_, value)| value))
}

impl Told {
    fn text(&self, bucket: &str) -> String {
        let Told { name, old, value } = self;
        let value = pretty(name, value);
        match old {
            Some(old) => format!("{name} of {bucket}: {} -> {value}\n", pretty(name, old)),
            None => format!("{name} of {bucket}: {value}\n{}", about(name)),
        }
    }

    fn json(&self, bucket: &str, node: Option<&str>) -> String {
        let Told { name, old, value } = self;
        let mut json = match old {
            Some(old) => serde_json::json!({ "bucket": bucket, "name": name, "old": old, "new": value }),
            None => serde_json::json!({ "bucket": bucket, "name": name, "value": value }),
        };
        if let Some(node) = node {
            json["node"] = node.into();
        }
        format!("{json}\n")
    }
}

/// A value as people write it, if the setting is one that this program knows: the node may be newer.
fn pretty(name: &str, value: &str) -> String {
    let kind = find(name).map(|setting| setting.kind);
    let known = kind.ok().and_then(|kind| Some(kind.pretty(kind.parse(value)?)));
    known.unwrap_or_else(|| value.to_owned())
}

fn about(name: &str) -> String {
    find(name).map(explain).unwrap_or_default()
}

fn explain(setting: &Setting) -> String {
    let default = setting.kind.pretty(setting.default);
    format!("    {}.\n    Default {default}; takes {}.\n", setting.doc, setting.kind)
}

/// Each setting with its default and what it takes.
fn list() -> String {
    let lines = SETTINGS.iter().map(|setting| format!("{}\n{}", setting.name, explain(setting)));
    lines.collect()
}

fn list_json() -> String {
    let settings = SETTINGS.iter().map(|setting| {
        serde_json::json!({
            "name": setting.name,
            "default": setting.kind.show(setting.default),
            "takes": setting.kind.to_string(),
            "doc": setting.doc,
        })
    });
    format!("{}\n", serde_json::Value::from(settings.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::client::fake_server::{FakeServer, Habits};
    use crate::test_server::{BUCKET, TestServer};

    fn open() -> (FakeServer, Client) {
        let server = FakeServer::start(Habits::default());
        let client = Client::open(&Env::real(), &server.target(Dialect::Couchbase)).expect("it listens");
        (server, client)
    }

    #[test]
    fn a_change_is_told_as_it_became() {
        let (server, mut client) = open();
        let told = change(&mut client, "max_size", Some("536870912")).expect("a setting");
        assert_eq!(told.text("orders"), "max_size of orders: 256MiB -> 512MiB\n");
        assert_eq!(
            told.json("orders", None),
            "{\"bucket\":\"orders\",\"name\":\"max_size\",\"new\":\"536870912\",\"old\":\"268435456\"}\n"
        );
        assert_eq!(server.setting("max_size").as_deref(), Some("536870912"));
        // One that only the node knows.
        let told = change(&mut client, "novel", Some("7")).expect("a setting");
        assert_eq!(told.text("orders"), "novel of orders: 1 -> 7\n");
    }

    #[test]
    fn what_keeps_a_change_is_told_by_setting() {
        let quota = |kept_by| how_to_keep("max_size", "orders", kept_by);
        for (kept_by, told) in [
            (
                "configuration",
                "until the node stops; to keep it, write quota into the bucket's table of the configuration file, or give \
                 --bucket orders:QUOTA",
            ),
            (
                "node",
                "until the node stops; to keep it, set ramQuota with POST /pools/default/buckets/orders",
            ),
            (
                "cluster",
                "until the node stops; to keep it, set ramQuota with POST /pools/default/buckets/orders",
            ),
        ] {
            assert_eq!(quota(Some(kept_by)), told);
        }
        // A node that does not say it.
        let all = quota(None);
        assert_eq!(all.lines().count(), 3, "{all}");
        let level = how_to_keep("durability_min_level", "orders", None);
        assert!(level.contains("[bucket.settings]") && level.contains("durabilityMinLevel"), "{level}");
        for name in ["mem_high_wat_percent", "novel"] {
            let told = |kept_by| how_to_keep(name, "orders", Some(kept_by));
            assert!(told("configuration").contains(&format!("write {name} under [bucket.settings]")));
            for kept_by in ["cluster", "node"] {
                let told = told(kept_by);
                assert!(
                    told.ends_with(&format!("set {name} with PATCH /v1/buckets/orders/settings")),
                    "{told}"
                );
            }
        }
    }

    #[test]
    fn a_node_says_what_keeps_its_bucket() {
        let server = TestServer::start();
        assert_eq!(kept_by(&mut server.client(), BUCKET).as_deref(), Some("configuration"));
        assert_eq!(kept_by(&mut server.client(), "none"), None);
    }

    #[test]
    fn a_node_that_fails_is_named_with_its_failure() {
        let error = || anyhow::anyhow!("gave up").context("h:2");
        assert_eq!(cli::explain(&failed(error(), "")), "h:2: gave up");
        let told = cli::explain(&failed(error(), "h:1: a of b: 1 -> 2\n"));
        assert_eq!(told, "h:2: gave up; changed before:\nh:1: a of b: 1 -> 2");
    }

    #[test]
    fn without_a_value_it_is_shown() {
        let (server, mut client) = open();
        let told = change(&mut client, "mem_high_wat_percent", None).expect("a setting");
        expect![[r#"
            mem_high_wat_percent of b: 85
                Eviction begins when more of the quota than this is in use.
                Default 85; takes whole percent from 2 to 100.
        "#]]
        .assert_eq(&told.text("b"));
        assert_eq!(
            told.json("b", Some("h:1")),
            "{\"bucket\":\"b\",\"name\":\"mem_high_wat_percent\",\"node\":\"h:1\",\"value\":\"85\"}\n"
        );
        assert_eq!(server.setting("mem_high_wat_percent").as_deref(), Some("85"));
    }

    #[test]
    fn a_refusal_says_why_and_counts_as_wrong_arguments() {
        let (_server, mut client) = open();
        for (name, value, why) in [
            ("max_size", Some("much"), "this is why"),
            ("max_sise", Some("1"), "this is why"),
            ("max_sise", None, "there is no setting \"max_sise\""),
        ] {
            let error = change(&mut client, name, value).expect_err("refused");
            assert!(error.is::<WrongArguments>() && error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn every_setting_is_listed() {
        let (text, json) = (list(), list_json());
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json.as_array().map(Vec::len), Some(SETTINGS.len()));
        for (at, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(text.lines().nth(3 * at), Some(setting.name));
            assert_eq!((&json[at]["name"], &json[at]["doc"]), (&setting.name.into(), &setting.doc.into()));
        }
    }
}
