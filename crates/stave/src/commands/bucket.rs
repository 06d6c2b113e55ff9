//! `stave bucket`: buckets are made, changed, emptied and deleted while nodes run.

use std::collections::BTreeSet;

use anyhow::bail;
use base::env::Env;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use node::form::escaped;
use serde_json::Value;

use super::http_flags::HttpFlags;
use super::rbac::{self, done, texts, titled};
use crate::cli::{Outcome, WrongArguments};
use crate::client::HttpTarget;
use crate::output::print;
use crate::units::{bytes, counted, parse_bytes, thousands};

/// Where all buckets are.
const BUCKETS: &str = "/pools/default/buckets";

/// Buckets: look at them, make, change, empty and delete them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave bucket add orders --quota 256MiB
  stave bucket list
  stave bucket edit orders --quota 1GiB
  stave bucket delete orders --yes

Buckets of the configuration file are shown; what `edit` changes of them is as that file says after a restart. `stave scope` and `stave collection` are for what
is in a bucket, `stave keys` lists the keys of its documents.")]
pub struct BucketFlags {
    #[command(subcommand)]
    what: BucketCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BucketCommand {
    /// Print all buckets with what they hold, of all nodes together
    #[command(after_help = "Examples:
  stave bucket list
  stave bucket list --json | jq '.[].name'")]
    List {
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Print one bucket
    #[command(after_help = "Examples:
  stave bucket show orders
  stave bucket show orders --json | jq .basicStats.itemCount")]
    Show {
        /// The bucket
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Make a bucket
    #[command(after_help = "Examples:
  stave bucket add orders --quota 256MiB
  stave bucket add orders --quota 1GiB --backend magma --replicas 2 --max-ttl 86400
  stave bucket add cache --quota 512MiB --type ephemeral --eviction nruEviction --replicas 0 --flush")]
    Add {
        /// The bucket
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        new: NewBucketFlags,
        #[command(flatten)]
        change: BucketSettingFlags,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Change settings of a bucket for good; what is not named stays
    #[command(after_help = "Examples:
  stave bucket edit orders --quota 1GiB
  stave bucket edit orders --no-flush --max-ttl 0
  stave bucket edit orders --encryption-at-rest true
  stave bucket edit orders --history-seconds 86400 --history-bytes 10GiB")]
    Edit {
        /// The bucket
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// Memory that the bucket may use on each node, in whole MiB: 256MiB, 1GiB
        #[arg(long, value_name = "SIZE", value_parser = parse_quota)]
        quota: Option<u64>,
        /// Forbid `stave bucket flush`
        #[arg(long, conflicts_with = "flush")]
        no_flush: bool,
        #[command(flatten)]
        change: BucketSettingFlags,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Remove all documents of a bucket; scopes and collections stay
    #[command(after_help = "Examples:
  stave bucket flush orders --yes

The bucket must allow it: `stave bucket edit orders --flush`.")]
    Flush {
        /// The bucket
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// Its documents are removed for good, which has to be said
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        to: HttpFlags,
    },
    /// Delete a bucket with its documents
    #[command(after_help = "Examples:
  stave bucket delete orders --yes")]
    Delete {
        /// The bucket
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// Its documents are removed for good, which has to be said
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        to: HttpFlags,
    },
}

/// What a bucket is from its beginning.
#[derive(Clone, Debug, Args)]
struct NewBucketFlags {
    /// Memory that the bucket may use on each node, in whole MiB: 256MiB, 1GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_quota)]
    quota: u64,
    /// Whether documents are on disk, or in memory alone; couchstore and magma are on disk, in this --backend
    #[arg(
        long = "type",
        value_name = "TYPE",
        value_parser = ["couchbase", "couchstore", "magma", "ephemeral"],
        default_value = "couchbase"
    )]
    kind: String,
    /// The store of a bucket on disk: couchstore if not given, magma for much more than fits into memory; rocksdb where the
    /// node was built with it
    #[arg(long, value_name = "STORE", value_parser = ["couchstore", "magma", "rocksdb"])]
    backend: Option<String>,
    /// Which of two changes of a document counts that two clusters made: seqno if not given
    #[arg(long, value_name = "RULE", value_parser = ["seqno", "lww"])]
    conflict_resolution: Option<String>,
}

/// What a bucket may be given at any time.
#[derive(Clone, Debug, Args)]
struct BucketSettingFlags {
    /// Replicas of each vBucket, 0 to 3; a new bucket has 1 if not given, and 0 if there is one node
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,
    /// Allow `stave bucket flush`
    #[arg(long)]
    flush: bool,
    /// Seconds after which documents expire at the latest; 0 for never
    #[arg(long, value_name = "SECONDS")]
    max_ttl: Option<u32>,
    /// What goes if memory is short: valueOnly or fullEviction of a bucket on disk, noEviction or nruEviction of an
    /// ephemeral one
    #[arg(long, value_name = "POLICY", value_parser = ["valueOnly", "fullEviction", "noEviction", "nruEviction"])]
    eviction: Option<String>,
    /// The least durability of its writes
    #[arg(
        long,
        value_name = "LEVEL",
        value_parser = ["none", "majority", "majorityAndPersistActive", "persistToMajority"]
    )]
    min_durability: Option<String>,
    /// Whether values are kept compressed: passive keeps those that clients send compressed
    #[arg(long, value_name = "MODE", value_parser = ["off", "passive", "active"])]
    compression: Option<String>,
    /// Whether its files are encrypted, on nodes that have an encryption key; true if not given
    #[arg(long, value_name = "true|false")]
    encryption_at_rest: Option<bool>,
    /// Keep every version of a document for this long, in seconds; 0 for no such limit. A history of changes takes --backend
    /// magma; without seconds and bytes none is kept
    #[arg(long, value_name = "SECONDS")]
    history_seconds: Option<u64>,
    /// Keep versions of documents up to this size in all vBuckets together: 512MiB, 10GiB; 0 for no such limit
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    history_bytes: Option<u64>,
    /// Whether collections have a part in the history that do not say when they are made; true if not given
    #[arg(long, value_name = "true|false")]
    history_collections: Option<bool>,
}

impl NewBucketFlags {
    /// As the form has them. `stave serve --bucket` has one word for both, which is a type here, too.
    fn kind_and_backend(&self) -> anyhow::Result<(String, Option<String>)> {
        if !["couchstore", "magma"].contains(&self.kind.as_str()) {
            return Ok((self.kind.clone(), self.backend.clone()));
        }
        if let Some(backend) = self.backend.as_ref().filter(|backend| **backend != self.kind) {
            let kind = &self.kind;
            bail!(WrongArguments(format!(
                "--type {kind} is a bucket in {kind}, and --backend says {backend}: leave one of them out"
            )));
        }
        Ok(("couchbase".to_owned(), Some(self.kind.clone())))
    }
}

impl BucketSettingFlags {
    /// The fields of the node's form.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let number = |number: u32| number.to_string();
        let all = [
            ("replicaNumber", self.replicas.map(u32::from).map(number)),
            ("flushEnabled", self.flush.then(|| "1".to_owned())),
            ("maxTTL", self.max_ttl.map(number)),
            ("evictionPolicy", self.eviction.clone()),
            ("durabilityMinLevel", self.min_durability.clone()),
            ("compressionMode", self.compression.clone()),
            ("encryptionAtRest", self.encryption_at_rest.map(|is| u8::from(is).to_string())),
            ("historyRetentionSeconds", self.history_seconds.map(|seconds| seconds.to_string())),
            ("historyRetentionBytes", self.history_bytes.map(|bytes| bytes.to_string())),
            ("historyRetentionCollectionDefault", self.history_collections.map(|is| is.to_string())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// A quota in MiB, which is how nodes count it.
fn parse_quota(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes == 0 || !bytes.is_multiple_of(1 << 20) {
        return Err(format!("`{text}` is not a whole number of MiB; write a quota like 256MiB or 1GiB"));
    }
    Ok(bytes >> 20)
}

/// Runs the command.
pub fn run(_: &Env, flags: &BucketFlags) -> anyhow::Result<Outcome> {
    print(&said(flags)?)?;
    Ok(Outcome::Done)
}

pub(super) fn said(flags: &BucketFlags) -> anyhow::Result<String> {
    match &flags.what {
        BucketCommand::List { to } => {
            let buckets = to.target()?.request("GET", BUCKETS, None)?;
            Ok(if to.json { format!("{buckets}\n") } else { list(&buckets) })
        }
        BucketCommand::Show { name, to } => {
            let bucket = present(&to.target()?, name)?;
            Ok(if to.json { format!("{bucket}\n") } else { describe(&bucket) })
        }
        BucketCommand::Add { name, new, change, to } => {
            let note = add(&to.target()?, name, new, change)?;
            Ok(done(to, &format!("bucket {name} was added{note}")))
        }
        BucketCommand::Edit { name, quota, no_flush, change, to } => {
            let mut fields = change.fields();
            fields.extend(quota.map(|quota| ("ramQuota", quota.to_string())));
            fields.extend(no_flush.then(|| ("flushEnabled", "0".to_owned())));
            if fields.is_empty() {
                let what =
                    "what is to change? give --quota, --replicas, --flush, --max-ttl or another setting";
                bail!(WrongArguments(what.to_owned()));
            }
            let target = to.target()?;
            let before = present(&target, name)?["replicaNumber"].as_u64();
            let told = send(&target, &address(name), &fields)?;
            let moves = change.replicas.is_some_and(|replicas| Some(u64::from(replicas)) != before);
            let next =
                if moves { "; replicas come and go with the next `stave cluster rebalance`" } else { "" };
            let kept = not_kept(&told);
            let few =
                change.replicas.and_then(|replicas| too_few_nodes(&target, replicas)).unwrap_or_default();
            let small = quota.map_or("", small);
            Ok(done(to, &format!("bucket {name} was changed{next}{few}{small}{kept}")))
        }
        BucketCommand::Flush { name, yes, to } => {
            let target = to.target()?;
            let bucket = present(&target, name)?;
            if bucket["controllers"].get("flush").is_none() {
                bail!("bucket {name} must not be flushed; `stave bucket edit {name} --flush` allows it");
            }
            confirm(*yes, "flushing", name, &bucket)?;
            target.form(&format!("{}/controller/doFlush", address(name)), &[])?;
            Ok(done(to, &format!("all documents of bucket {name} were removed")))
        }
        BucketCommand::Delete { name, yes, to } => {
            let target = to.target()?;
            confirm(*yes, "deleting", name, &present(&target, name)?)?;
            target.send("DELETE", &address(name), &[])?;
            Ok(done(to, &format!("bucket {name} was deleted")))
        }
    }
}

fn add(
    target: &HttpTarget,
    name: &str,
    new: &NewBucketFlags,
    change: &BucketSettingFlags,
) -> anyhow::Result<String> {
    if rbac::find_at(target, &address(name))?.is_some() {
        bail!("there is a bucket {name} already; `stave bucket edit` changes it");
    }
    let mut fields = change.fields();
    fields.push(("name", name.to_owned()));
    fields.push(("ramQuota", new.quota.to_string()));
    let (kind, backend) = new.kind_and_backend()?;
    fields.push(("bucketType", kind));
    fields.extend(backend.map(|backend| ("storageBackend", backend)));
    fields.extend(new.conflict_resolution.clone().map(|rule| ("conflictResolutionType", rule)));
    // The form has one replica if nothing is said, and a node alone refuses durable writes of such a bucket.
    let is_alone = change.replicas.is_none() && nodes(target) == Some(1);
    if is_alone {
        fields.push(("replicaNumber", "0".to_owned()));
    }
    send(target, BUCKETS, &fields)?;
    let small = small(new.quota);
    let replicas = match change.replicas {
        None if is_alone => format!(
            " without replicas, as there is one node; `stave bucket edit {name} --replicas 1` gives it some when there are more"
        ),
        replicas => replicas.and_then(|replicas| too_few_nodes(target, replicas)).unwrap_or_default(),
    };
    Ok(format!("{replicas}{small}"))
}

/// MiB in which the largest document has room.
const ROOM_FOR_ALL: u64 = 32;

/// What is said of a quota in which some documents have no room.
fn small(quota: u64) -> &'static str {
    if quota < ROOM_FOR_ALL {
        "; warning: a document may have 20 MiB, and has no room in so small a quota; the original takes no less than 100MiB"
    } else {
        ""
    }
}

/// How many nodes there are; `None` if that cannot be seen.
fn nodes(target: &HttpTarget) -> Option<usize> {
    let pool = target.request("GET", "/pools/default", None).ok()?;
    pool["nodes"].as_array().map(Vec::len)
}

/// What is said if there are no nodes for so many replicas.
fn too_few_nodes(target: &HttpTarget, replicas: u8) -> Option<String> {
    let nodes = nodes(target).filter(|nodes| *nodes <= usize::from(replicas))?;
    let replicas = counted(u64::from(replicas), "replica", "replicas");
    Some(format!(
        "; warning: there are too few nodes ({nodes}) for {replicas}: durable writes are refused if they need more copies than \
         there are"
    ))
}

/// What is said of a change that a restart takes back.
fn not_kept(told: &Value) -> &'static str {
    if told["warnings"].is_object() {
        "; warning: only until the node stops, because it is a bucket of the configuration file or of --bucket: change it \
         there, too"
    } else {
        ""
    }
}

fn send(target: &HttpTarget, path: &str, fields: &[(&'static str, String)]) -> anyhow::Result<Value> {
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    target.form(path, &fields)
}

/// The address of a bucket.
pub(super) fn address(name: &str) -> String {
    format!("{BUCKETS}/{}", escaped(name))
}

fn present(target: &HttpTarget, name: &str) -> anyhow::Result<Value> {
    rbac::show_at(target, &address(name), &format!("bucket {name}"))
}

/// An error if the user did not say that documents may go.
fn confirm(yes: bool, doing: &str, name: &str, bucket: &Value) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    let documents = figure(bucket, "itemCount")
        .map_or("documents".to_owned(), |count| counted(count, "document", "documents"));
    bail!(WrongArguments(format!(
        "{doing} bucket {name} removes its {documents} for good; add --yes to do it"
    )))
}

/// A figure of what a bucket holds; `None` for users who may not see it.
fn figure(bucket: &Value, name: &str) -> Option<u64> {
    bucket["basicStats"][name].as_u64()
}

fn shown(figure: Option<u64>, text: fn(u64) -> String) -> String {
    figure.map_or("-".to_owned(), text)
}

fn text(bucket: &Value, field: &str) -> String {
    match &bucket[field] {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The words of `--type` and `--backend`.
fn type_and_store(bucket: &Value) -> (String, String) {
    match bucket["bucketType"].as_str() {
        Some("membase") => ("couchbase".to_owned(), text(bucket, "storageBackend")),
        _ => (text(bucket, "bucketType"), "-".to_owned()),
    }
}

fn list(buckets: &Value) -> String {
    let line = |bucket: &Value| {
        let (kind, store) = type_and_store(bucket);
        vec![
            text(bucket, "name"),
            kind,
            store,
            shown(bucket["quota"]["ram"].as_u64(), bytes),
            text(bucket, "replicaNumber"),
            shown(figure(bucket, "itemCount"), thousands),
            shown(figure(bucket, "memUsed"), bytes),
            shown(figure(bucket, "diskUsed"), bytes),
        ]
    };
    let buckets = || buckets.as_array().into_iter().flatten();
    let missing: BTreeSet<String> =
        buckets().flat_map(|bucket| texts(bucket, "nodesWithoutFigures")).collect();
    let heads = ["BUCKET", "TYPE", "STORE", "QUOTA", "REPLICAS", "DOCUMENTS", "MEMORY", "DISK"];
    titled(&heads, buckets().map(line).collect()) + &incomplete(missing)
}

/// What is said if not all nodes told what they hold.
fn incomplete(missing: BTreeSet<String>) -> String {
    let nodes = missing.into_iter().collect::<Vec<_>>().join(", ");
    if nodes.is_empty() {
        return nodes;
    }
    format!(
        "incomplete: documents, memory and disk lack those of {nodes}, which did not answer; `stave cluster status`\n"
    )
}

fn describe(bucket: &Value) -> String {
    let (kind, store) = type_and_store(bucket);
    let quota = &bucket["quota"];
    let quota = format!(
        "{} on each node, {} on all",
        shown(quota["rawRAM"].as_u64(), bytes),
        shown(quota["ram"].as_u64(), bytes)
    );
    let max_ttl = match bucket["maxTTL"].as_u64() {
        None | Some(0) => "none".to_owned(),
        Some(seconds) => format!("{seconds} s"),
    };
    let history = history_of(bucket);
    let flush = if bucket["controllers"].get("flush").is_some() { "allowed" } else { "refused" };
    let fields = [
        ("bucket", text(bucket, "name")),
        ("type", kind),
        ("store", store),
        ("quota", quota),
        ("documents", shown(figure(bucket, "itemCount"), thousands)),
        ("memory", shown(figure(bucket, "memUsed"), bytes)),
        ("disk", shown(figure(bucket, "diskUsed"), bytes)),
        ("vBuckets", text(bucket, "numVBuckets")),
        ("replicas", text(bucket, "replicaNumber")),
        ("eviction", text(bucket, "evictionPolicy")),
        ("compression", text(bucket, "compressionMode")),
        ("max TTL", max_ttl),
        ("conflict resolution", text(bucket, "conflictResolutionType")),
        ("least durability", text(bucket, "durabilityMinLevel")),
        ("flush", flush.to_owned()),
        ("encryption at rest", encryption_of(bucket)),
        ("history", history),
    ];
    let missing = texts(bucket, "nodesWithoutFigures").into_iter().collect();
    rbac::table(&fields.map(|(name, value)| vec![name.to_owned(), value])) + &incomplete(missing)
}

/// Whether the files of a bucket are encrypted on the node that was asked, and how far that is.
fn encryption_of(bucket: &Value) -> String {
    let (is_on, found) = (bucket["encryptionAtRest"].as_bool(), &bucket["encryptionAtRestInfo"]);
    let in_clear = found["filesInClear"].as_u64().filter(|files| *files > 0);
    match (is_on, in_clear) {
        (None, _) => "-".to_owned(),
        (Some(true), None) => "on".to_owned(),
        (Some(true), Some(files)) => format!("on; {files} files of before are not encrypted yet"),
        (Some(false), _) => "off".to_owned(),
    }
}

/// How long and how much a bucket keeps of replaced versions.
fn history_of(bucket: &Value) -> String {
    let limit = |name: &str| bucket[name].as_u64().filter(|limit| *limit > 0);
    let seconds = limit("historyRetentionSeconds").map(|seconds| format!("{seconds} s"));
    let size = limit("historyRetentionBytes").map(bytes);
    let limits: Vec<String> = seconds.into_iter().chain(size).collect();
    if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
}

#[cfg(test)]
mod tests;
