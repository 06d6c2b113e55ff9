//! `stave restore`: sends what a backup holds to a running cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use base::VbId;
use base::env::Env;
use clap::{Args, ValueEnum};
use protocol::feature::Feature;
use regex::bytes::Regex;
use serde_json::Value;

use super::import::complete;
use super::status_line::StatusLine;
use crate::backup::{ChainReader, Repository, Version};
use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::{Client, Cluster, Dialect, Target};
use crate::units::thousands;
use crate::with_meta::{
    Collections, Conflict, Sender, SentCounts, Skipped, SourceCollection, Unknown, resolves_by_time,
};

/// Send what a backup holds to a running cluster.
///
/// Documents and tombstones keep CAS, revision, expiry, flags and attributes. The bucket must be there; it may have
/// another number of vBuckets, and the cluster other nodes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave restore --from /backups --bucket travel
  stave restore --from /backups --bucket travel --id 20261127T003000Z --conflict force
  stave restore --from /backups --bucket test --source travel --collections inventory.hotel
  stave restore --from /backups --bucket travel --map inventory.hotel=inventory.hotel_old --filter '^hotel_1'

Each document is sent once, in its newest version that the backup knows. Scopes and collections that the bucket lacks are
made, with their max TTL, unless --skip-unknown is given.
With --conflict newest a document that was changed or deleted since the backup stays as it is now: to bring a whole
bucket back to an earlier state, flush it first, or give --conflict force (documents that were made since then stay).
A restore that was broken off can be given again.")]
pub struct RestoreFlags {
    /// The folder with backups
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Which backup; the newest one if not given
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// The bucket that was backed up, if it has another name
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Only these collections, as the backup names them: scope.collection
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    collections: Vec<String>,
    /// Only documents whose keys match this regular expression
    #[arg(long, value_name = "REGEX")]
    filter: Option<String>,
    /// Send a collection's documents to another one
    #[arg(long, value_name = "SCOPE.COLL=SCOPE.COLL", value_delimiter = ',')]
    map: Vec<String>,
    /// What happens to documents that the bucket has already
    #[arg(long, value_enum, default_value_t = RestoreConflict::Newest)]
    conflict: RestoreConflict,
    /// Leave out documents of collections that the bucket lacks
    #[arg(long)]
    skip_unknown: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerFlags,
}

/// What happens to documents that the bucket has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RestoreConflict {
    /// The newer one stays, by the bucket's rule for conflicts
    Newest,
    /// The backup's replaces it
    Force,
    /// The bucket's stays, also one that was deleted; the backup's tombstones are left out
    Skip,
}

impl From<RestoreConflict> for Conflict {
    fn from(conflict: RestoreConflict) -> Conflict {
        match conflict {
            RestoreConflict::Newest => Conflict::Resolve,
            RestoreConflict::Force => Conflict::Overwrite,
            RestoreConflict::Skip => Conflict::Skip,
        }
    }
}

/// Runs the command.
pub fn run(env: &Env, flags: &RestoreFlags) -> anyhow::Result<Outcome> {
    let target = flags.server.target(Dialect::Couchbase)?;
    let (id, counts) = restore(env, flags, target)?;
    let mut out = std::io::stdout().lock();
    out.write_all(if flags.json { as_json(&id, &counts) } else { as_text(&id, &counts) }.as_bytes())?;
    complete(&counts, if flags.skip_unknown { Unknown::Skip } else { Unknown::Fail })?;
    Ok(Outcome::Done)
}

/// Restores; the backup's name, and what became of its documents.
pub(super) fn restore(
    env: &Env,
    flags: &RestoreFlags,
    target: Target,
) -> anyhow::Result<(String, SentCounts)> {
    let filter = flags.filter.as_deref().map(Regex::new).transpose();
    let filter = filter.map_err(|error| WrongArguments(format!("--filter: {error}")))?;
    let repository = Repository::new(env, &std::path::absolute(&flags.from)?);
    let source = flags.source.as_ref().unwrap_or(&target.bucket);
    let chain = repository.chain(source, flags.id.as_deref())?;
    let manifest = &chain.newest().manifest;
    let by_time = resolves_by_time(&mut Client::open(env, &target)?)?;
    if by_time != manifest.by_time {
        bail!(
            "bucket `{}` resolves conflicts by {}, the one that was backed up by {}: restore into one of the same kind",
            target.bucket,
            kind(by_time),
            kind(manifest.by_time)
        );
    }
    let named = collection_names(&manifest.collections);
    let wanted = wanted(&named, &flags.collections)?;
    let mut sources = named.clone();
    sources.retain(|number, _| wanted.contains(number));
    let sources = mapped(sources, &flags.map)?;
    let unknown = if flags.skip_unknown { Unknown::Skip } else { Unknown::Create };
    let collections = Collections::find(env, sources, &target, unknown)?;
    let mut reader = ChainReader::open(&repository, &chain)?;
    let cluster = Cluster::open(env, target, &[Feature::Xattr, Feature::Snappy])?;
    let mut sender = Sender::new("restore", cluster, collections, flags.conflict.into(), by_time);
    let mut line = StatusLine::new(env);
    for vb in 0..manifest.vbuckets {
        let mut visit = |version: &Version<'_>| -> anyhow::Result<()> {
            let record = &version.record;
            if !named.contains_key(&record.key.collection.0) {
                sender.skip(Skipped::DroppedCollection);
                return Ok(());
            }
            let is_asked_for = wanted.contains(&record.key.collection.0)
                && filter.as_ref().is_none_or(|filter| filter.is_match(record.key.key));
            if !is_asked_for {
                sender.skip(Skipped::NotAskedFor);
                return Ok(());
            }
            line.show(|seconds| {
                let sent = sender.counts.documents;
                format!(
                    "{vb} of {} vBuckets, {} documents, {}/s",
                    manifest.vbuckets,
                    thousands(sent),
                    thousands((sent as f64 / seconds) as u64)
                )
            });
            sender.send(record)
        };
        reader
            .newest(VbId(vb), &mut visit)
            .with_context(|| format!("vBucket {vb} of backup {}", manifest.id))?;
    }
    sender.finish()?;
    line.end();
    Ok((manifest.id.clone(), sender.counts))
}

fn kind(by_time: bool) -> &'static str {
    if by_time { "time" } else { "number of changes" }
}

/// The collections that a manifest names, by their numbers.
pub(super) fn collection_names(manifest: &Value) -> BTreeMap<u32, SourceCollection> {
    let mut named = BTreeMap::new();
    for scope in manifest["scopes"].as_array().into_iter().flatten() {
        for collection in scope["collections"].as_array().into_iter().flatten() {
            let number = collection["uid"].as_str().and_then(|uid| u32::from_str_radix(uid, 16).ok());
            let names = scope["name"].as_str().zip(collection["name"].as_str());
            let Some((number, (scope, name))) = number.zip(names) else { continue };
            let max_ttl_s = collection["maxTTL"].as_i64().map_or(0, |ttl| if ttl == 0 { -1 } else { ttl });
            let source = SourceCollection { scope: scope.to_owned(), name: name.to_owned(), max_ttl_s };
            named.insert(number, source);
        }
    }
    named
}

/// The numbers of the collections that are asked for: all of them if none is named.
pub(super) fn wanted(
    named: &BTreeMap<u32, SourceCollection>,
    asked: &[String],
) -> anyhow::Result<BTreeSet<u32>> {
    if asked.is_empty() {
        return Ok(named.keys().copied().collect());
    }
    asked.iter().map(|path| Ok(number_of(named, path)?)).collect()
}

fn number_of(named: &BTreeMap<u32, SourceCollection>, path: &str) -> Result<u32, WrongArguments> {
    let found = named.iter().find(|(_, source)| source.path() == path);
    found.map(|(number, _)| *number).ok_or_else(|| {
        let all: Vec<String> = named.values().map(SourceCollection::path).collect();
        WrongArguments(format!("the backup has no collection `{path}`; it has {}", all.join(", ")))
    })
}

/// The collections with the names that they are sent to.
fn mapped(
    named: BTreeMap<u32, SourceCollection>,
    map: &[String],
) -> anyhow::Result<BTreeMap<u32, SourceCollection>> {
    let mut mapped = named.clone();
    for pair in map {
        let wrong =
            || WrongArguments(format!("--map {pair}: write it like scope.collection=scope.collection"));
        let (from, to) = pair.split_once('=').ok_or_else(wrong)?;
        let (scope, name) = to.split_once('.').filter(|(_, name)| !name.contains('.')).ok_or_else(wrong)?;
        if let Some(source) = mapped.get_mut(&number_of(&named, from)?) {
            (source.scope, source.name) = (scope.to_owned(), name.to_owned());
        }
    }
    let mut targets = BTreeMap::new();
    for source in mapped.values() {
        *targets.entry(source.path()).or_insert(0) += 1;
    }
    if let Some((path, _)) = targets.iter().find(|(_, count)| **count > 1) {
        bail!(WrongArguments(format!(
            "two collections would be sent to `{path}`, where documents may have the same key"
        )));
    }
    Ok(mapped)
}

fn as_text(id: &str, counts: &SentCounts) -> String {
    let mut rows = vec![("backup", id.to_owned())];
    rows.extend(counts.rows());
    rows.iter().map(|(name, value)| format!("{name:<56}  {value}\n")).collect()
}

fn as_json(id: &str, counts: &SentCounts) -> String {
    let mut line = counts.json();
    line["backup"] = id.into();
    format!("{line}\n")
}
