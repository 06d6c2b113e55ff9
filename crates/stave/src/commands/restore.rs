//! `stave restore`: sends what a backup holds to a running cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::Env;
use base::{CollectionId, DocKey, VbId};
use clap::{Args, ValueEnum};
use protocol::feature::Feature;
use regex::bytes::Regex;
use serde_json::{Value, json};

use super::import::complete;
use super::status_line::StatusLine;
use crate::backup::{
    AtMoment, BackupManifest, BackupPlace, Chain, ChainReader, ChangeLog, MomentReader, ObjectStoreFlags,
    Repository, UsersPut, Version, WantedMoment, create_bucket, http_of, put_users,
};
use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::{Client, Cluster, Dialect, HttpTarget, Target};
use crate::units::{counted, moment_text, parse_duration, parse_utc, thousands};
use crate::with_meta::{
    Collections, Conflict, Sender, SentCounts, Skipped, SourceCollection, Unknown, resolves_by_time,
};

/// Send what a backup holds to a running cluster.
///
/// Documents and tombstones keep CAS, revision, expiry, flags and attributes. The bucket must be there, or is made with
/// --create-bucket; it may have another number of vBuckets, and the cluster other nodes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave restore --from /backups --bucket travel
  stave restore --from /backups --bucket travel --id 20261127T003000Z --conflict force
  stave restore --from /backups --bucket test --source travel --collections inventory.hotel
  stave restore --from /backups --bucket travel --map inventory.hotel=inventory.hotel_old --filter '^hotel_1'

  stave restore --from /backups --bucket travel --create-bucket --users
  stave restore --from /backups --bucket travel --at 2026-11-23T15:04:05Z --conflict force
  stave restore --from /backups --bucket travel --at latest
  stave restore --from /backups --bucket travel --before hotel_42 --conflict force

Each document is sent once, in its newest version that the backup knows. Scopes and collections that the bucket lacks are
made, with their max TTL, unless --skip-unknown is given.
With --conflict newest a document that was changed or deleted since the backup stays as it is now: to bring a whole
bucket back to an earlier state, flush it first, or give --conflict force (documents that were made since then stay).
What stays is told as `left as the bucket had them`, and with --json as `conflicts`, whether it is newer or the same.
Without --at, --at-seqno or --before the newest backup is restored, or that of --id. With them each vBucket is restored as it was at a moment, from the log that
`stave backup --follow` writes; settings and users are those of the backup that the log goes on from. A moment that the log
does not have, or does not tell apart from others, is refused with the nearest ones that can be restored. What was rolled back in a failover is not restored.
A restore that was broken off can be given again.")]
pub struct RestoreFlags {
    #[command(flatten)]
    state: RestoreState,
    /// The bucket that was backed up, if it has another name
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    #[command(flatten)]
    choice: DocumentChoice,
    /// Make the bucket first, with the settings that it had; one that is there with other settings is refused
    #[arg(long)]
    create_bucket: bool,
    /// Put users and groups back as well; those that are there stay, or are replaced with --conflict force
    #[arg(long)]
    users: bool,
    /// Where to ask over HTTP for --create-bucket and --users; the usual port of the node if not given
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerFlags,
}

/// Which state of a bucket is restored.
#[derive(Clone, Debug, Args)]
pub(super) struct RestoreState {
    /// The folder with backups, or s3://BUCKET/PATH
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    store: ObjectStoreFlags,
    /// Which backup; the newest one if not given
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Restore this moment, in UTC: the last change of each vBucket that is not later; `latest` is the last one of the log
    #[arg(long, value_name = "TIME", value_parser = parse_at, conflicts_with_all = ["id", "at_seqno", "before"])]
    at: Option<WantedTime>,
    /// Restore these vBuckets at these seqnos, and the others as they were at the latest of their moments
    #[arg(long, value_name = "VB:SEQNO", value_delimiter = ',', value_parser = parse_seqno, conflicts_with_all = ["id", "before"])]
    at_seqno: Vec<(u16, u64)>,
    /// Restore the moment just before the last change of this key
    #[arg(long, value_name = "KEY", conflicts_with = "id")]
    before: Option<String>,
    /// The collection of the key of --before
    #[arg(long, value_name = "NAME", default_value = "_default._default")]
    before_in: String,
    /// Take a vBucket whose state at the moment is not known from so much before, at the most
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    tolerance: Option<Duration>,
}

/// What --at names.
#[derive(Clone, Copy, Debug)]
enum WantedTime {
    Latest,
    /// In nanoseconds since 1970.
    At(u64),
}

fn parse_at(text: &str) -> Result<WantedTime, String> {
    match text {
        "latest" => Ok(WantedTime::Latest),
        _ => parse_utc(text).map(WantedTime::At).map_err(|wrong| format!("{wrong}, or `latest`")),
    }
}

/// Which documents are sent, and where to.
#[derive(Clone, Debug, Args)]
pub(crate) struct DocumentChoice {
    /// Only these collections, by the names that they have where they come from: scope.collection
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) collections: Vec<String>,
    /// Only documents whose keys match this regular expression
    #[arg(long, value_name = "REGEX")]
    filter: Option<String>,
    /// Send a collection's documents to another one
    #[arg(long, value_name = "SCOPE.COLL=SCOPE.COLL", value_delimiter = ',')]
    pub(crate) map: Vec<String>,
    /// What happens to documents that the bucket has already
    #[arg(long, value_enum, default_value_t = RestoreConflict::Newest)]
    conflict: RestoreConflict,
    /// Leave out documents of collections that the bucket lacks
    #[arg(long)]
    skip_unknown: bool,
}

impl DocumentChoice {
    /// All documents, to where they were.
    pub(crate) fn everything() -> DocumentChoice {
        DocumentChoice {
            collections: Vec::new(),
            filter: None,
            map: Vec::new(),
            conflict: RestoreConflict::Newest,
            skip_unknown: false,
        }
    }

    /// Whether nothing is left out, sent elsewhere or forced.
    pub(super) fn is_everything(&self) -> bool {
        let DocumentChoice { collections, filter, map, conflict, skip_unknown } = self;
        let is_usual = *conflict == RestoreConflict::Newest && !skip_unknown;
        is_usual && collections.is_empty() && filter.is_none() && map.is_empty()
    }

    /// Which documents are sent, and as what, in the words of the command line: the same for the same documents.
    pub(crate) fn told(&self) -> String {
        let list = |name: &str, of: &[String]| {
            let mut of = of.to_vec();
            of.sort_unstable();
            (!of.is_empty()).then(|| format!("{name} {}", of.join(",")))
        };
        let filter = self.filter.as_ref().map(|filter| format!("--filter {filter}"));
        let skip = self.skip_unknown.then(|| "--skip-unknown".to_owned());
        let said = [list("--collections", &self.collections), filter, list("--map", &self.map), skip];
        let said: Vec<String> = said.into_iter().flatten().collect();
        if said.is_empty() { "all documents".to_owned() } else { said.join(" ") }
    }

    /// Which keys are sent; all of them without one.
    pub(crate) fn regex(&self) -> Result<Option<Regex>, WrongArguments> {
        let filter = self.filter.as_deref().map(Regex::new).transpose();
        filter.map_err(|error| WrongArguments(format!("--filter: {error}")))
    }

    pub(crate) fn conflict(&self) -> Conflict {
        self.conflict.into()
    }

    /// What happens to documents of collections that the bucket lacks while they are sent.
    pub(crate) fn unknown(&self) -> Unknown {
        if self.skip_unknown { Unknown::Skip } else { Unknown::Create }
    }

    /// What happens at the end if some were left out.
    pub(crate) fn at_end(&self) -> Unknown {
        if self.skip_unknown { Unknown::Skip } else { Unknown::Fail }
    }
}

/// What happens to documents that the bucket has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RestoreConflict {
    /// The newer one stays, by the bucket's rule for conflicts; also called resolve
    #[value(alias = "resolve")]
    Newest,
    /// The one that is sent replaces it; also called overwrite
    #[value(alias = "overwrite")]
    Force,
    /// The bucket's stays, also one that was deleted; tombstones that are sent are left out
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

fn parse_seqno(text: &str) -> Result<(u16, u64), String> {
    let wrong = || format!("`{text}` is no place in a vBucket; write it like 17:4711");
    let (vb, seqno) = text.split_once(':').ok_or_else(wrong)?;
    vb.parse().ok().zip(seqno.parse().ok()).ok_or_else(wrong)
}

/// What a restore reads from.
enum RestoreReader<'r> {
    Backup(ChainReader<'r>),
    Moment(Box<MomentReader<'r>>),
}

impl RestoreReader<'_> {
    fn newest(
        &mut self,
        vb: VbId,
        visit: &mut dyn FnMut(&Version<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            RestoreReader::Backup(reader) => reader.newest(vb, visit),
            RestoreReader::Moment(reader) => reader.newest(vb, visit),
        }
    }
}

/// The moment that is asked for, if one is.
fn wanted_moment(
    flags: &RestoreState,
    repository: &Repository<'_>,
    source: &str,
) -> anyhow::Result<Option<WantedMoment>> {
    match flags.at {
        Some(WantedTime::Latest) => return Ok(Some(WantedMoment::Latest)),
        Some(WantedTime::At(moment)) => return Ok(Some(WantedMoment::At(moment))),
        None => {}
    }
    if !flags.at_seqno.is_empty() {
        let seqnos: BTreeMap<u16, u64> = flags.at_seqno.iter().copied().collect();
        if seqnos.len() < flags.at_seqno.len() {
            bail!(WrongArguments("--at-seqno names a vBucket twice".to_owned()));
        }
        return Ok(Some(WantedMoment::Seqnos(seqnos)));
    }
    let Some(key) = &flags.before else {
        if flags.tolerance.is_some() {
            bail!(WrongArguments("--tolerance belongs to --at, --at-seqno or --before".to_owned()));
        }
        return Ok(None);
    };
    let named = all_collections(repository, source)?;
    number_of(&named, &flags.before_in)?;
    let of_name = named.iter().filter(|(_, one)| one.path() == flags.before_in);
    let stored = |(number, _): (&u32, &SourceCollection)| {
        let (prefix, len) = DocKey { collection: CollectionId(*number), key: key.as_bytes() }.prefix();
        [&prefix[..len], key.as_bytes()].concat()
    };
    Ok(Some(WantedMoment::Before(of_name.map(stored).collect())))
}

/// Collections that the newest part of the log and the backups know, by their numbers; also those that were dropped.
fn all_collections(
    repository: &Repository<'_>,
    source: &str,
) -> anyhow::Result<BTreeMap<u32, SourceCollection>> {
    let newest = repository.chain(source, None)?;
    let log = ChangeLog::open(repository, source)?;
    let mut named = log.newest_collections(repository.disk(), &newest.newest().manifest)?;
    for backup in repository.backups(source)?.into_iter().rev().flatten() {
        // A number that another bucket of this name used is the newer one's.
        for (number, one) in collection_names(&backup.manifest.collections) {
            named.entry(number).or_insert(one);
        }
    }
    Ok(named)
}

/// The moment that is restored, if one is asked for, with the log that has it.
fn find_moment(
    flags: &RestoreState,
    repository: &Repository<'_>,
    source: &str,
) -> anyhow::Result<Option<(ChangeLog, AtMoment)>> {
    let Some(wanted) = wanted_moment(flags, repository, source)? else { return Ok(None) };
    let log = ChangeLog::open(repository, source)?;
    let tolerance_ns = flags.tolerance.map_or(0, |time| time.as_nanos() as u64);
    let at = log.resolve(repository, source, &wanted, tolerance_ns)?;
    Ok(Some((log, at)))
}

/// The collections that are restored, by their numbers, and what reads their documents.
fn open_reader<'r>(
    repository: &'r Repository<'r>,
    moment: Option<&'r (ChangeLog, AtMoment)>,
    chain: &Chain,
) -> anyhow::Result<(BTreeMap<u32, SourceCollection>, RestoreReader<'r>)> {
    let mut named = collection_names(&chain.newest().manifest.collections);
    let Some((log, at)) = moment else {
        return Ok((named, RestoreReader::Backup(ChainReader::open(repository, chain)?)));
    };
    let mut reader = MomentReader::open(repository, log, at)?;
    let changes = reader.collections()?;
    named.extend(changes.begun);
    named.retain(|number, _| !changes.ended.contains(number));
    Ok((named, RestoreReader::Moment(Box::new(reader))))
}

/// Says if what is restored is not encrypted although a key was given.
fn warn_of_clear(repository: &Repository<'_>, chain: &Chain, moment: Option<&(ChangeLog, AtMoment)>) {
    let plain_segments = moment.map_or(0, |(log, at)| at.plain_segments(log));
    if let Some(warning) = repository.clear_warning(Some(chain), plain_segments) {
        eprintln!("stave: {warning}");
    }
}

/// Says if a log goes on behind the newest backup, which is restored `alone`. A log that cannot be read keeps no backup from
/// being restored.
fn warn_of_log(
    state: &RestoreState,
    repository: &Repository<'_>,
    source: &str,
    alone: Option<&BackupManifest>,
) {
    let Some(newest) = alone.filter(|_| state.id.is_none()) else { return };
    match ChangeLog::last_moment(repository, source) {
        Ok(Some(last)) if last / 1_000_000_000 > newest.ended_s => eprintln!(
            "stave: backup {} is restored without what the log has behind it, up to {}: --at latest restores that, too",
            newest.id,
            moment_text(last)
        ),
        Ok(_) => {}
        Err(error) => eprintln!(
            "stave: backup {} is restored; what the log may have behind it cannot be read: {error}",
            newest.id
        ),
    }
}

/// What was restored: the backup's name, and the moment behind it.
fn restored_name(id: &str, at: Option<&AtMoment>) -> String {
    let Some(at) = at else { return id.to_owned() };
    let mut name = format!("{id} and the log up to {}", moment_text(at.moment));
    if at.earlier > 0 {
        let ms = at.earlier_ns.div_ceil(1_000_000);
        name.push_str(&format!(", {} vBuckets as they were up to {ms} ms before", at.earlier));
    }
    name
}

/// Runs the command.
pub fn run(env: &Env, flags: &RestoreFlags) -> anyhow::Result<Outcome> {
    let target = flags.server.target(Dialect::Couchbase)?;
    let source = flags.source.clone().unwrap_or_else(|| target.bucket.clone());
    let http = http_of(None, &target, flags.http.as_deref())?;
    let users = before(env, flags, &source, &http, &target)?;
    let (id, counts) = restore(env, flags, target)?;
    // Roles may name collections that were made just now.
    let replaces = flags.choice.conflict == RestoreConflict::Force;
    let put = users.map(|users| put_users(&http, &users, replaces)).transpose();
    let put = put.map_err(|error| named_http(error, flags))?;
    let mut out = std::io::stdout().lock();
    let told =
        if flags.json { as_json(&id, &counts, put.as_ref()) } else { as_text(&id, &counts, put.as_ref()) };
    out.write_all(told.as_bytes())?;
    if let Some(hint) = hint(flags.choice.conflict, &counts) {
        eprintln!("{hint}");
    }
    complete(&counts, flags.choice.at_end())?;
    match put.filter(|put| !put.refused.is_empty()) {
        Some(put) => bail!("users and groups that the cluster refused: {}", put.refused.join("; ")),
        None => Ok(Outcome::Done),
    }
}

/// Says how a node is asked that does not answer over HTTP at its usual port.
fn named_http(error: anyhow::Error, flags: &RestoreFlags) -> anyhow::Error {
    if flags.http.is_none() && error.chain().any(|cause| cause.is::<std::io::Error>()) {
        return error
            .context("--http HOST:PORT says where the node answers over HTTP, if not at the usual port");
    }
    error
}

/// Makes the bucket, if that was asked for; the users that are to be put back at the end.
fn before(
    env: &Env,
    flags: &RestoreFlags,
    source: &str,
    http: &HttpTarget,
    target: &Target,
) -> anyhow::Result<Option<Value>> {
    if !(flags.create_bucket || flags.users) {
        return Ok(None);
    }
    let place = BackupPlace::open(env, &flags.state.from, &flags.state.store)?;
    let repository = place.repository();
    let moment = find_moment(&flags.state, &repository, source)?;
    // Settings and users are those of the backup that the documents are restored from, as far as it has them.
    let chain = match &moment {
        Some((_, at)) => &at.chain,
        None => &repository.chain(source, flags.state.id.as_deref())?,
    };
    let manifest = &chain.newest().manifest;
    if flags.users && manifest.users.is_none() {
        let with_users =
            chain.0.iter().map(|backup| &backup.manifest).find(|earlier| earlier.users.is_some());
        let hint = with_users.map_or(String::new(), |earlier| {
            format!("; {}, from which it goes on, has them: --id {}", earlier.id, earlier.id)
        });
        bail!("backup {} has no users: it was made without --users{hint}", manifest.id);
    }
    if flags.create_bucket {
        create_bucket(env, http, target, &manifest.settings).map_err(|error| named_http(error, flags))?;
    }
    Ok(manifest.users.clone().filter(|_| flags.users))
}

/// What to do about documents that were left as they are because they are newer.
fn hint(conflict: RestoreConflict, counts: &SentCounts) -> Option<String> {
    let newer = counts.conflicts - counts.had_already.min(counts.conflicts);
    let is_asked = conflict == RestoreConflict::Newest && newer > 0;
    is_asked.then(|| {
        format!(
            "left as the bucket had them, newer or the same there: {}; --conflict force replaces them with the backup's",
            counted(newer, "document", "documents")
        )
    })
}

/// Restores; the backup's name, and what became of its documents.
pub(super) fn restore(
    env: &Env,
    flags: &RestoreFlags,
    target: Target,
) -> anyhow::Result<(String, SentCounts)> {
    let source = flags.source.clone().unwrap_or_else(|| target.bucket.clone());
    restore_state(env, &flags.state, &source, &flags.choice, target, &AtomicBool::new(false))
}

/// A state that was read.
#[derive(Debug)]
pub(super) struct OpenedState {
    /// The backup's name, and the moment behind it.
    pub(super) name: String,
    pub(super) vbuckets: u16,
    /// Whether the last write wins in its bucket.
    pub(super) by_time: bool,
}

/// Is told the vBucket of a version, its collection unless that was dropped, and the version.
pub(super) type EachVersion<'a> =
    dyn FnMut(u16, Option<&SourceCollection>, &Version<'_>) -> anyhow::Result<()> + 'a;

/// Tells `visit` each document and tombstone of a state.
pub(super) fn each_version(
    env: &Env,
    state: &RestoreState,
    source: &str,
    visit: &mut EachVersion<'_>,
) -> anyhow::Result<OpenedState> {
    let place = BackupPlace::open(env, &state.from, &state.store)?;
    let repository = place.repository();
    let moment = find_moment(state, &repository, source)?;
    let chain = match &moment {
        Some((_, at)) => &at.chain,
        None => &repository.chain(source, state.id.as_deref())?,
    };
    let manifest = &chain.newest().manifest;
    let (named, mut reader) = open_reader(&repository, moment.as_ref(), chain)?;
    for vb in 0..manifest.vbuckets {
        let mut each =
            |version: &Version<'_>| visit(vb, named.get(&version.record.key.collection.0), version);
        reader
            .newest(VbId(vb), &mut each)
            .with_context(|| format!("vBucket {vb} of backup {}", manifest.id))?;
    }
    Ok(OpenedState {
        name: restored_name(&manifest.id, moment.as_ref().map(|(_, at)| at)),
        vbuckets: manifest.vbuckets,
        by_time: manifest.by_time,
    })
}

/// Restores a state until `interrupted`; the backup's name, and what became of its documents.
pub(super) fn restore_state(
    env: &Env,
    state: &RestoreState,
    source: &str,
    choice: &DocumentChoice,
    target: Target,
    interrupted: &AtomicBool,
) -> anyhow::Result<(String, SentCounts)> {
    let filter = choice.regex()?;
    let place = BackupPlace::open(env, &state.from, &state.store)?;
    let repository = place.repository();
    let moment = find_moment(state, &repository, source)?;
    let chain = match &moment {
        Some((_, at)) => &at.chain,
        None => &repository.chain(source, state.id.as_deref())?,
    };
    warn_of_clear(&repository, chain, moment.as_ref());
    let manifest = &chain.newest().manifest;
    warn_of_log(state, &repository, source, moment.is_none().then_some(manifest));
    let (named, mut reader) = open_reader(&repository, moment.as_ref(), chain)?;
    let by_time = resolves_by_time(&mut Client::open(env, &target)?)?;
    if by_time != manifest.by_time {
        bail!(
            "bucket `{}` resolves conflicts by {}, the one that was backed up by {}: restore into one of the same kind",
            target.bucket,
            kind(by_time),
            kind(manifest.by_time)
        );
    }
    let wanted = wanted(&named, &choice.collections)?;
    let mut sources = named.clone();
    sources.retain(|number, _| wanted.contains(number));
    let sources = mapped(sources, &choice.map)?;
    let collections = Collections::find(env, sources, &target, choice.unknown())?;
    let bucket = target.bucket.clone();
    let cluster = Cluster::open(env, target, &[Feature::Xattr, Feature::Snappy])?;
    let mut sender = Sender::new("restore", cluster, collections, choice.conflict(), by_time);
    let mut line = StatusLine::new(env);
    for vb in 0..manifest.vbuckets {
        let mut visit = |version: &Version<'_>| -> anyhow::Result<()> {
            let record = &version.record;
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
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
            line.show(|seconds| progress(vb, manifest.vbuckets, sender.counts.documents, seconds));
            sender.send(record).map(drop)
        };
        let restored = reader.newest(VbId(vb), &mut visit);
        let restored = restored.with_context(|| format!("vBucket {vb} of backup {}", manifest.id));
        if let Err(error) = restored {
            // What was sent is counted with its answers; if they do not come either, the first error is the one to tell.
            let _ = sender.finish();
            return Err(ended_early(error, sender.counts.documents, &bucket));
        }
    }
    sender.finish()?;
    line.end();
    Ok((restored_name(&manifest.id, moment.as_ref().map(|(_, at)| at)), sender.counts))
}

/// A restore that ends early says what it has changed.
fn ended_early(error: anyhow::Error, sent: u64, bucket: &str) -> anyhow::Error {
    if sent == 0 {
        return error;
    }
    let sent = thousands(sent);
    error.context(format!(
        "the restore ended early, and at least {sent} documents were sent to bucket `{bucket}` and stay there \
         (`stave backup verify` finds damage before anything is sent)"
    ))
}

fn progress(vb: u16, vbuckets: u16, sent: u64, seconds: f64) -> String {
    let (documents, rate) = (thousands(sent), thousands((sent as f64 / seconds) as u64));
    let (vb, vbuckets) = (thousands(vb.into()), thousands(vbuckets.into()));
    format!("{vb} of {vbuckets} vBuckets, {documents} documents, {rate}/s")
}

pub(crate) fn kind(by_time: bool) -> &'static str {
    if by_time { "time" } else { "number of changes" }
}

/// The collections that a manifest names, by their numbers.
pub(crate) fn collection_names(manifest: &Value) -> BTreeMap<u32, SourceCollection> {
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
pub(crate) fn wanted(
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
        WrongArguments(format!("the source has no collection `{path}`; it has {}", all.join(", ")))
    })
}

/// The collections with the names that they are sent to.
pub(crate) fn mapped(
    named: BTreeMap<u32, SourceCollection>,
    map: &[String],
) -> anyhow::Result<BTreeMap<u32, SourceCollection>> {
    let mut mapped = named.clone();
    for pair in map {
        let wrong =
            || WrongArguments(format!("--map {pair}: write it like scope.collection=scope.collection"));
        let (from, to) = pair.split_once('=').ok_or_else(wrong)?;
        let (scope, name) = to.split_once('.').filter(|(_, name)| !name.contains('.')).ok_or_else(wrong)?;
        let number = number_of(&named, from).map_err(|WrongArguments(what)| {
            WrongArguments(format!("--map {pair}: {what}; what --collections leaves out is not sent"))
        })?;
        if let Some(source) = mapped.get_mut(&number) {
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

fn as_text(id: &str, counts: &SentCounts, put: Option<&UsersPut>) -> String {
    let mut rows = vec![("backup", id.to_owned())];
    rows.extend(counts.rows());
    if let Some(put) = put {
        let count = |names: &[String]| thousands(names.len() as u64);
        rows.push(("users and groups made", count(&put.made)));
        rows.push(("users and groups replaced", count(&put.replaced)));
        rows.push(("users and groups left as they were", put.left.join(", ")));
        rows.push(("users and groups refused", count(&put.refused)));
    }
    rows.iter().map(|(name, value)| format!("{name:<56}  {value}\n")).collect()
}

fn as_json(id: &str, counts: &SentCounts, put: Option<&UsersPut>) -> String {
    let mut line = counts.json();
    line["backup"] = id.into();
    if let Some(put) = put {
        let UsersPut { made, left, replaced, refused } = put;
        line["users"] = json!({ "made": made, "left": left, "replaced": replaced, "refused": refused });
    }
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_conflicts_has_the_names_that_import_gives_it() {
        for (name, other) in [("newest", "resolve"), ("force", "overwrite"), ("skip", "skip")] {
            let (of_restore, of_import) =
                (RestoreConflict::from_str(name, false), Conflict::from_str(name, false));
            assert_eq!(of_restore, RestoreConflict::from_str(other, false), "{name}");
            assert_eq!(of_import, Conflict::from_str(other, false), "{name}");
            assert_eq!(of_restore.map(Conflict::from), of_import, "{name}");
        }
    }

    #[test]
    fn what_replaces_newer_documents_is_told() {
        let counts = |conflicts, had_already| SentCounts { conflicts, had_already, ..SentCounts::default() };
        let told = hint(RestoreConflict::Newest, &counts(8, 0)).expect("8 were left");
        assert!(told.contains("there: 8 documents;") && told.contains("--conflict force"), "{told}");
        let told = hint(RestoreConflict::Newest, &counts(1, 0)).expect("one was left");
        assert!(told.contains("there: 1 document;"), "{told}");
        for (conflict, counts) in [
            (RestoreConflict::Newest, counts(0, 0)),
            (RestoreConflict::Newest, counts(3, 3)),
            (RestoreConflict::Force, counts(2, 0)),
            (RestoreConflict::Skip, counts(2, 0)),
        ] {
            assert_eq!(hint(conflict, &counts), None, "{conflict:?}");
        }
    }
}
