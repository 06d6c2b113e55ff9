//! `stave backup`: makes backups of a bucket in a folder, and looks after them.

mod drill;
#[cfg(test)]
mod durable_tests;
#[cfg(test)]
mod encrypted_tests;
mod follow;
#[cfg(test)]
mod follow_store_tests;
#[cfg(test)]
mod follow_tests;
mod log;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::env::Env;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::dcp_tail::watch_interrupt;
use super::status_line::StatusLine;
use crate::backup::{
    Backup, BackupError, BackupManifest, BackupPlace, ChainReader, ChangeLog, HowFar, ObjectStoreFlags,
    Repository, TakeOptions, Taken, UnfinishedBackup, count_users, take,
};
use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::Dialect;
use crate::units::{bytes, counted, parse_bytes, parse_duration, parse_moment, thousands, utc_text};

/// Copy what a bucket holds into a folder while it serves.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  stave backup --to /backups --bucket travel
  stave backup --to /backups --bucket travel --full --max-rate 50MiB
  stave backup --to /backups --bucket travel --since LAST
  stave backup --to /backups --bucket travel --users
  stave backup --to /backups --bucket travel --follow
  stave backup --to s3://backups/prod --bucket travel --s3-endpoint https://minio.example.com:9000
  stave backup --to /backups --bucket travel --key-file /etc/stave/backup-key
  stave backup list /backups
  stave backup verify /backups --bucket travel
  stave backup prune /backups --keep 7

The first backup of a bucket in a folder is full, a later one has what changed since the last one.
All of it is of one moment behind the beginning of the backup: the nodes hold changes together for some milliseconds, and
keep what there is then. Where they cannot, as for a bucket without a disk, vBuckets may be of different moments between
its beginning and its end, which the command says. Durable writes that are not committed are left out.
A backup that was broken off goes on when the command is given again. In a cluster any node may be named.
With --follow the command does not end: behind a backup it writes each change to a log as it comes, durably within a
second, into a folder or an S3-compatible store, so that `stave restore --at` brings back any moment. Given again, it goes on with the log where that ended.
With --key-file everything is encrypted that is written; a bucket's first encrypted backup is full. Keep the key elsewhere:
without it nothing is read.
`stave restore` sends a backup to a cluster."
)]
pub struct BackupFlags {
    /// The folder with backups, in which each bucket has a folder of its own, or a place in an S3-compatible store
    #[arg(long, value_name = "DIR|s3://BUCKET/PATH")]
    to: Option<PathBuf>,
    /// Copy everything, whatever earlier backups have
    #[arg(long, conflicts_with = "since")]
    full: bool,
    /// Go on from this backup instead of the newest one; LAST is the newest one, and refuses to make a full one
    #[arg(long, value_name = "ID|LAST")]
    since: Option<String>,
    /// Copy users and groups of the cluster, too, with what checks their passwords; for a full administrator
    #[arg(long)]
    users: bool,
    /// Where to ask for settings and users over HTTP, if not where the node says that it listens. Without TLS this sends the
    /// password in clear: a node on another machine is asked only if this or --users is given
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Copy this snapshot of the bucket, by the UUID that `stave snapshot make` and `list` print, instead of a new one
    #[arg(long, value_name = "UUID", conflicts_with = "follow")]
    snapshot: Option<String>,
    /// End with an error, instead of making a backup whose vBuckets may be of different moments
    #[arg(long)]
    one_moment: bool,
    /// The most that is read from the cluster in a second, before compression: 512KiB, 50MiB; at least 128KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    max_rate: Option<u64>,
    /// Go on behind the backup: write every change to a log as it comes, until the command is told to end
    #[arg(long, conflicts_with_all = ["full", "since"])]
    follow: bool,
    /// With --follow: make a backup again after this, so that a restore reads less of the log: 30m, 24h
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    base_every: Duration,
    /// With --follow: end as soon as the log has everything that was there when the command began
    #[arg(long, requires = "follow")]
    once_caught_up: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    store: ObjectStoreFlags,
    #[command(subcommand)]
    command: Option<BackupCommand>,
}

/// A node closes a connection that reads more slowly.
const LEAST_RATE: u64 = 128 << 10;

pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = parse_bytes(text)?;
    if rate >= LEAST_RATE {
        Ok(rate)
    } else {
        Err(format!("`{text}` a second is too slow; give at least 128KiB"))
    }
}

/// What can be done with backups that are there.
#[derive(Clone, Debug, Subcommand)]
enum BackupCommand {
    /// List the backups of a folder
    #[command(
        after_help = "Examples:\n  stave backup list /backups\n  stave backup list /backups --bucket travel --json\n\nA backup that was broken off, or is being made, is listed as unfinished, with the command that goes on with it."
    )]
    List(KeptFlags),
    /// Show what a backup holds, by collection
    #[command(
        after_help = "Examples:\n  stave backup show /backups --bucket travel\n  stave backup show /backups --bucket travel --id 20261127T003000Z"
    )]
    Show(OneFlags),
    /// Read all of a backup, and of those it goes on from, and compare checksums
    #[command(
        after_help = "Examples:\n  stave backup verify /backups\n  stave backup verify /backups --bucket travel --id 20261127T003000Z --json\n\nEnds with 4 if a backup is damaged."
    )]
    Verify(OneFlags),
    /// Remove old backups
    #[command(
        after_help = "Examples:\n  stave backup prune /backups --keep 7 --dry-run\n  stave backup prune /backups --bucket travel --keep 7d\n\nA backup that a kept one goes on from stays. With a number the newest backups are kept, and the log behind the oldest of them. With an age (90m, 12h, 7d) everything is kept that a restore of a moment of that time needs."
    )]
    Prune(PruneFlags),
    /// Restore into a throw-away node, compare, and say how long it took
    #[command(
        after_help = "Examples:\n  stave backup drill --from /backups --bucket travel\n  stave backup drill --from /backups --bucket travel --at 2026-11-23T15:04:05Z --json\n\nThe node is a process of its own that listens on this machine alone; it and its files are removed at the end, also after\na failure. The documents of each collection are counted and compared with their metadata; documents that expire within\na day are only counted. The scratch folder needs room for about twice what is restored. Ends with 4 if there is a\ndifference."
    )]
    Drill(drill::DrillFlags),
}

#[derive(Clone, Debug, Args)]
struct KeptFlags {
    /// The folder with backups, or s3://BUCKET/PATH
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    store: ObjectStoreFlags,
    /// Only those of this bucket
    #[arg(long, value_name = "NAME")]
    bucket: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
struct OneFlags {
    #[command(flatten)]
    kept: KeptFlags,
    /// Which backup; the newest one of each bucket if not given
    #[arg(long, value_name = "ID", requires = "bucket")]
    id: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct PruneFlags {
    #[command(flatten)]
    kept: KeptFlags,
    /// How many of the newest backups of each bucket to keep, or for how long moments can be restored: 7, 12h, 7d
    #[arg(long, value_name = "N|AGE", value_parser = parse_keep)]
    keep: Keep,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// So many of the newest backups.
    Newest(u32),
    /// What a restore of a moment needs that is not older than this, in seconds.
    Age(u32),
}

fn parse_keep(text: &str) -> Result<Keep, String> {
    let wrong = || format!("`{text}` is neither a number of backups nor an age; write it like 7, 12h or 7d");
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|count| *count > 0).map(Keep::Newest).ok_or_else(wrong);
    }
    let until = parse_moment(text, u32::MAX).map_err(|_| wrong())?;
    Ok(Keep::Age(u32::MAX - until))
}

/// Runs the command.
pub fn run(env: &Env, flags: &BackupFlags) -> anyhow::Result<Outcome> {
    match &flags.command {
        None => make(env, flags),
        Some(BackupCommand::List(kept)) => list(env, kept),
        Some(BackupCommand::Show(one)) => show(env, one),
        Some(BackupCommand::Verify(one)) => verify(env, one),
        Some(BackupCommand::Prune(flags)) => prune(env, flags),
        Some(BackupCommand::Drill(flags)) => drill::run(env, flags),
    }
}

impl KeptFlags {
    fn place(&self, env: &Env) -> anyhow::Result<BackupPlace> {
        BackupPlace::open(env, &self.dir, &self.store)
    }
}

fn print(is_json: bool, object: &Value, text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if is_json {
        writeln!(out, "{object}")?
    } else {
        out.write_all(text.as_bytes())?
    }
    Ok(())
}

fn make(env: &Env, flags: &BackupFlags) -> anyhow::Result<Outcome> {
    let Some(dir) = &flags.to else {
        anyhow::bail!(WrongArguments(
            "where to? give --to DIR, or a subcommand: list, show, verify, prune, drill".to_owned()
        ));
    };
    let target = flags.server.target(Dialect::Couchbase)?;
    let options = take_options(flags);
    let place = BackupPlace::open(env, dir, &flags.store)?;
    if flags.follow {
        let options = follow::options(options, flags.base_every, flags.once_caught_up);
        return follow::follow(env, &target, &place, &options, flags.json);
    }
    let interrupted = watch_interrupt(env)?;
    let repository = place.repository();
    let mut line = StatusLine::new(env);
    let taken = take(place.env(), &target, &repository, &options, &interrupted, &mut |now| {
        line.show(|seconds| how_far(now, seconds))
    })?;
    line.end();
    print(flags.json, &summary_json(&taken), &summary_text(&taken))?;
    if let Some(what) = resumed_text(&taken) {
        eprintln!("stave: {what}");
    }
    if let Some(why) = &taken.without_moment {
        eprintln!("stave: vBuckets in this backup may be of different moments: {why}");
    }
    if let Some(why) = &taken.without_settings {
        eprintln!("stave: the settings of bucket `{}` are not in the backup: {why}", taken.manifest.bucket);
    }
    Ok(Outcome::Done)
}

/// What --since calls the newest backup.
const LAST: &str = "LAST";

fn take_options(flags: &BackupFlags) -> TakeOptions {
    let needs_base = flags.since.as_ref().is_some_and(|since| since.eq_ignore_ascii_case(LAST));
    let since = flags.since.clone().filter(|_| !needs_base);
    TakeOptions {
        documents_only: false,
        is_full: flags.full,
        since,
        needs_base,
        users: flags.users,
        http: flags.http.clone(),
        max_rate: flags.max_rate,
        snapshot: flags.snapshot.clone(),
        one_moment: flags.one_moment,
    }
}

fn summary_text(taken: &Taken) -> String {
    let (manifest, total) = (&taken.manifest, taken.manifest.total());
    let seconds = manifest.ended_s.saturating_sub(manifest.begun_s);
    let goes_on_from = manifest.base.as_deref().unwrap_or("none: it is full");
    let rows = [
        ("backup", manifest.id.clone()),
        ("goes on from", goes_on_from.to_owned()),
        ("documents", thousands(total.documents)),
        ("tombstones", thousands(total.tombstones)),
        ("users and groups", users_text(manifest)),
        ("begun", begun_text(manifest)),
        ("of one moment", moment_of(manifest)),
        ("vBuckets", thousands(manifest.vbuckets.into())),
        ("of them unchanged", thousands(taken.unchanged as u64)),
        ("of them with a new history", thousands(taken.again as u64)),
        ("of them kept from an earlier try", thousands(taken.kept as u64)),
        ("keys and values", bytes(total.bytes)),
        ("in files", bytes(manifest.stored_bytes())),
        ("seconds", thousands(seconds)),
    ];
    rows.iter().map(|(name, value)| format!("{name:<32}  {value}\n")).collect()
}

/// When a backup was begun.
fn begun_text(manifest: &BackupManifest) -> String {
    utc_text(manifest.begun_s)
}

/// Whether all vBuckets are of one moment. It is always the moment of the first try, however long ago that was.
fn moment_of(manifest: &BackupManifest) -> String {
    match manifest.snapshot {
        Some(_) => format!("yes, right after {}", begun_text(manifest)),
        None => "no".to_owned(),
    }
}

/// What is told of a backup that goes on with one that was broken off.
fn resumed_text(taken: &Taken) -> Option<String> {
    let (manifest, begun) = (&taken.manifest, begun_text(&taken.manifest));
    let what = match manifest.snapshot {
        Some(_) => "it has what there was then; a backup after this one has what was changed since",
        None => "the vBuckets that it had are of then, the others of now",
    };
    taken.is_resumed.then(|| format!("backup {} was begun at {begun} and broken off: {what}", manifest.id))
}

/// How many users and groups a backup has.
fn users_text(manifest: &BackupManifest) -> String {
    let counts = manifest.users.as_ref().map(count_users);
    counts.map_or_else(
        || "not copied".to_owned(),
        |(users, groups)| format!("{} and {}", thousands(users as u64), thousands(groups as u64)),
    )
}

fn summary_json(taken: &Taken) -> Value {
    let mut object = manifest_json(&taken.manifest);
    object["unchanged_vbuckets"] = json!(taken.unchanged);
    object["vbuckets_with_new_history"] = json!(taken.again);
    object["kept_vbuckets"] = json!(taken.kept);
    object["resumed"] = json!(taken.is_resumed);
    object
}

fn manifest_json(manifest: &BackupManifest) -> Value {
    let total = manifest.total();
    json!({
        "id": manifest.id,
        "bucket": manifest.bucket,
        "base": manifest.base,
        "begun": manifest.begun_s,
        "ended": manifest.ended_s,
        "vbuckets": manifest.vbuckets,
        "one_moment": manifest.snapshot.is_some(),
        "documents": total.documents,
        "tombstones": total.tombstones,
        "bytes": total.bytes,
        "stored_bytes": manifest.stored_bytes(),
    })
}

/// The same of a backup that is there.
fn backup_json(backup: &Backup) -> Value {
    let mut object = manifest_json(&backup.manifest);
    object["encrypted"] = json!(backup.is_encrypted);
    object
}

/// The buckets that are asked about.
fn buckets(repository: &Repository<'_>, kept: &KeptFlags) -> anyhow::Result<Vec<String>> {
    let all = repository.buckets()?;
    match &kept.bucket {
        None => Ok(all),
        Some(name) if all.contains(name) => Ok(vec![name.clone()]),
        Some(name) => {
            let all = all.join(", ");
            Err(BackupError::Missing(format!(
                "{} has no backups of `{name}`; it has {all}",
                kept.dir.display()
            ))
            .into())
        }
    }
}

fn list(env: &Env, kept: &KeptFlags) -> anyhow::Result<Outcome> {
    let place = kept.place(env)?;
    let repository = place.repository();
    let (mut objects, mut damaged, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    let mut unfinished = Vec::new();
    let mut text = format!(
        "{:<24} {:<22} {:<6} {:>14} {:>12} {:>10}\n",
        "bucket", "backup", "kind", "documents", "tombstones", "in files"
    );
    for bucket in buckets(&repository, kept)? {
        let mut newest = None;
        for backup in repository.backups(&bucket)? {
            newest =
                Some(backup.as_ref().map_or_else(|_| String::new(), |backup| backup.manifest.id.clone()));
            match backup {
                Ok(backup) => {
                    let (manifest, total) = (&backup.manifest, backup.manifest.total());
                    text.push_str(&format!(
                        "{bucket:<24} {:<22} {:<6} {:>14} {:>12} {:>10}\n",
                        manifest.id,
                        if manifest.base.is_some() { "since" } else { "full" },
                        thousands(total.documents),
                        thousands(total.tombstones),
                        bytes(manifest.stored_bytes()),
                    ));
                    objects.push(backup_json(&backup));
                }
                Err(error @ BackupError::Key(_)) => return Err(error.into()),
                Err(error) => {
                    text.push_str(&format!("{bucket:<24} {error}\n"));
                    damaged.push(error.to_string());
                }
            }
        }
        if let Some(begun) = repository.unfinished_backup(&bucket)? {
            let command = resumed_by(&begun, newest.as_deref(), &kept.dir, &bucket);
            text.push_str(&unfinished_text(&begun, &bucket, command.as_deref()));
            unfinished.push(unfinished_json(&begun, &bucket, command.as_deref()));
        }
        match log::report(&repository, &bucket, false) {
            Ok(report) => {
                if let Some(report) = report {
                    text.push_str(&report.text);
                    logs.extend(report.json.as_array().cloned().unwrap_or_default());
                }
            }
            Err(error @ BackupError::Key(_)) => return Err(error.into()),
            Err(error) => {
                text.push_str(&format!("{bucket:<24} {error}\n"));
                damaged.push(error.to_string());
            }
        }
    }
    let object = json!({ "backups": objects, "unfinished": unfinished, "logs": logs, "damaged": damaged });
    print(kept.json, &object, &text)?;
    Ok(if damaged.is_empty() { Outcome::Done } else { Outcome::Faults })
}

/// The command that goes on with a backup, given the newest complete one of the bucket (empty: its manifest is damaged);
/// `None`: the next backup begins again.
fn resumed_by(begun: &UnfinishedBackup, newest: Option<&str>, dir: &Path, bucket: &str) -> Option<String> {
    let full = if begun.base.is_none() && newest.is_some() { " --full" } else { "" };
    // Else another base was chosen by hand.
    let is_next = begun.base.is_none() || begun.base.as_deref() == newest;
    (begun.can_go_on && is_next)
        .then(|| format!("stave backup --to {} --bucket {bucket}{full}", dir.display()))
}

fn unfinished_text(begun: &UnfinishedBackup, bucket: &str, resumed_by: Option<&str>) -> String {
    let kind = if begun.base.is_some() { "since" } else { "full" };
    let next = resumed_by.map_or_else(
        || "the next backup begins again".to_owned(),
        |command| format!("if no command is at work on it, `{command}` goes on with it"),
    );
    format!(
        "{bucket:<24} {:<22} {kind:<6} unfinished, {} of {} vBuckets: {next}\n",
        begun.id,
        thousands(begun.done as u64),
        thousands(begun.vbuckets.into()),
    )
}

fn unfinished_json(begun: &UnfinishedBackup, bucket: &str, resumed_by: Option<&str>) -> Value {
    json!({
        "id": begun.id,
        "bucket": bucket,
        "base": begun.base,
        "begun": begun.begun_s,
        "vbuckets": begun.vbuckets,
        "complete_vbuckets": begun.done,
        "documents": begun.total.documents,
        "tombstones": begun.total.tombstones,
        "bytes": begun.total.bytes,
        "resumed_by": resumed_by,
    })
}

/// What the counts of a backup are about, which is restored from this number of backups.
fn counts_head(backups: usize, is_empty: bool) -> &'static str {
    match (backups > 1, is_empty) {
        (true, true) => {
            "  nothing was changed since the backup before it; a restore brings what those before it have\n"
        }
        (true, false) => {
            "  changed since the backup before it; a restore brings what those before it have, too:\n"
        }
        (false, true) => "  no documents\n",
        (false, false) => "",
    }
}

/// The settings of the bucket, and how many users there are.
fn state_text(manifest: &BackupManifest) -> String {
    let settings: Vec<String> =
        manifest.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let settings = if settings.is_empty() { "not in the backup".to_owned() } else { settings.join(" ") };
    let (moment, users) = (moment_of(manifest), users_text(manifest));
    let (begun, ended) = (begun_text(manifest), utc_text(manifest.ended_s));
    format!(
        "  begun: {begun}, complete: {ended}\n  of one moment: {moment}\n  settings: {settings}\n  users and groups: {users}\n"
    )
}

fn show(env: &Env, one: &OneFlags) -> anyhow::Result<Outcome> {
    let place = one.kept.place(env)?;
    let repository = place.repository();
    let (mut objects, mut text) = (Vec::new(), String::new());
    for bucket in buckets(&repository, &one.kept)? {
        let chain = repository.chain(&bucket, one.id.as_deref())?;
        let newest = chain.newest();
        let ids: Vec<&str> = chain.0.iter().map(|backup| &*backup.manifest.id).collect();
        let encrypted = if newest.is_encrypted { ", encrypted" } else { "" };
        text.push_str(&format!(
            "{bucket} {}{encrypted}, restored from {}\n",
            newest.manifest.id,
            ids.join(", ")
        ));
        text.push_str(counts_head(ids.len(), newest.manifest.counts.is_empty()));
        let names = super::restore::collection_names(&newest.manifest.collections);
        let mut collections = serde_json::Map::new();
        for (number, counts) in &newest.manifest.counts {
            let name = names.get(number).map_or_else(|| format!("0x{number:x} (dropped)"), |one| one.path());
            text.push_str(&format!(
                "  {name:<40} {:>14} documents {:>12} tombstones {:>10}\n",
                thousands(counts.documents),
                thousands(counts.tombstones),
                bytes(counts.bytes)
            ));
            let counts = json!({"documents": counts.documents, "tombstones": counts.tombstones, "bytes": counts.bytes});
            collections.insert(name, counts);
        }
        text.push_str(&state_text(&newest.manifest));
        let mut object = backup_json(newest);
        object["settings"] = json!(newest.manifest.settings);
        let counts = newest.manifest.users.as_ref().map(count_users);
        object["users"] = json!(counts.map(|(users, _)| users));
        object["groups"] = json!(counts.map(|(_, groups)| groups));
        object["chain"] = json!(ids);
        object["collections"] = Value::Object(collections);
        if let Some(report) = log::report(&repository, &bucket, true)? {
            text.push_str(&report.text);
            object["log"] = report.json;
        }
        objects.push(object);
    }
    print(one.kept.json, &json!({ "backups": objects }), &text)?;
    Ok(Outcome::Done)
}

fn verify(env: &Env, one: &OneFlags) -> anyhow::Result<Outcome> {
    let place = one.kept.place(env)?;
    let repository = place.repository();
    let (mut objects, mut text, mut outcome) = (Vec::new(), String::new(), Outcome::Done);
    let (mut logs, mut warnings) = (Vec::new(), Vec::new());
    let mut line = StatusLine::new(env);
    for bucket in buckets(&repository, &one.kept)? {
        let verified = repository.chain(&bucket, one.id.as_deref()).and_then(|chain| {
            let id = chain.newest().manifest.id.clone();
            let mut reader = ChainReader::open(&repository, &chain)?;
            let verified =
                reader.verify(&mut |count| line.show(|_| format!("{} vBuckets read", thousands(count))))?;
            warnings.extend(repository.clear_warning(Some(&chain), 0));
            Ok((id, chain.0.len(), chain.newest().is_encrypted, verified))
        });
        match verified {
            Ok((id, backups, is_encrypted, verified)) => {
                text.push_str(&format!(
                    "{bucket} {id}: sound, {}, {} in {}, {}\n",
                    counted(backups as u64, "backup", "backups"),
                    counted(verified.versions, "version", "versions"),
                    counted(verified.blocks, "block", "blocks"),
                    bytes(verified.bytes)
                ));
                objects.push(json!({"bucket": bucket, "id": id, "sound": true, "backups": backups,
                    "encrypted": is_encrypted,
                    "versions": verified.versions, "blocks": verified.blocks, "bytes": verified.bytes}));
            }
            Err(error) if error.is_damage() => {
                text.push_str(&format!("{bucket}: {error}\n"));
                objects.push(json!({"bucket": bucket, "sound": false, "fault": error.to_string()}));
                outcome = Outcome::Faults;
            }
            Err(error) => return Err(error.into()),
        }
        match log::verify(place.env(), &repository, &bucket) {
            Ok(None) => {}
            Ok(Some(report)) => {
                text.push_str(&report.text);
                warnings.extend(report.warning);
                logs.push(json!({"bucket": bucket, "sound": true, "log": report.json}));
            }
            Err(error) if error.is_damage() => {
                text.push_str(&format!("{bucket} log: {error}\n"));
                logs.push(json!({"bucket": bucket, "sound": false, "fault": error.to_string()}));
                outcome = Outcome::Faults;
            }
            Err(error) => return Err(error.into()),
        }
    }
    line.end();
    print(one.kept.json, &json!({ "backups": objects, "logs": logs }), &text)?;
    warnings.iter().for_each(|warning| eprintln!("stave: {warning}"));
    Ok(outcome)
}

fn prune(env: &Env, flags: &PruneFlags) -> anyhow::Result<Outcome> {
    let place = flags.kept.place(env)?;
    let repository = place.repository();
    let (mut removed, mut needed, mut text) = (Vec::new(), Vec::new(), String::new());
    let verb = if flags.dry_run { "would remove" } else { "removed" };
    for bucket in buckets(&repository, &flags.kept)? {
        let _lock = repository.lock(&bucket)?;
        // A damaged manifest may be of a backup that others need: nothing is removed then.
        let all = repository.backups(&bucket)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        // The same is so of a damaged log, which may need them.
        let changes = ChangeLog::open(&repository, &bucket)?;
        let (keep, cutoff) = newest_kept(place.env(), &repository, &bucket, &changes, &all, flags.keep)?;
        let segments = match all.len().checked_sub(keep).and_then(|at| all.get(at)) {
            Some(oldest) => log::unneeded_segments(&repository, &changes, oldest, cutoff)?,
            None => 0,
        };
        // The log goes first: what is left of it has its backups.
        if segments > 0 {
            if !flags.dry_run {
                changes.remove_before(segments)?;
            }
            let oldest = counted(segments as u64, "oldest segment", "oldest segments");
            text.push_str(&format!("{verb} {bucket} the {oldest} of the log\n"));
            removed.push(json!({"bucket": bucket, "log_segments": segments}));
        }
        let unneeded = unneeded(&all, keep);
        let stay = (all.len() - keep - unneeded.len()) as u64;
        for backup in unneeded {
            let id = &backup.manifest.id;
            if !flags.dry_run {
                repository.remove(&backup.folder)?;
            }
            text.push_str(&format!("{verb} {bucket} {id}\n"));
            removed.push(json!({"bucket": bucket, "id": id, "stored_bytes": backup.manifest.stored_bytes()}));
        }
        if stay > 0 {
            let older = counted(stay, "older backup", "older backups");
            text.push_str(&format!(
                "{bucket}: kept ones go on from {older}, which can be removed when those behind a later one made with \
                 --full are enough\n"
            ));
            needed.push(json!({"bucket": bucket, "backups": stay}));
        }
    }
    if removed.is_empty() {
        text.push_str("nothing to remove\n");
    }
    let told = json!({ "removed": removed, "needed": needed, "dry_run": flags.dry_run });
    print(flags.kept.json, &told, &text)?;
    Ok(Outcome::Done)
}

/// How many of the newest backups are kept, and the first moment that can be restored afterwards.
fn newest_kept(
    env: &Env,
    repository: &Repository<'_>,
    bucket: &str,
    changes: &ChangeLog,
    all: &[Backup],
    keep: Keep,
) -> anyhow::Result<(usize, u64)> {
    const SECOND_NS: u64 = 1_000_000_000;
    let seconds = match keep {
        Keep::Newest(count) => {
            let keep = (count as usize).min(all.len());
            let oldest = all.get(all.len() - keep);
            return Ok((keep, oldest.map_or(0, |oldest| oldest.manifest.begun_s * SECOND_NS)));
        }
        Keep::Age(seconds) => seconds,
    };
    let cutoff_s = u64::from(env.clock.unix_s().saturating_sub(seconds));
    let needed = changes.base_at(repository, bucket, cutoff_s * SECOND_NS)?;
    let is_oldest = |backup: &&Backup| match &needed {
        Some(id) => backup.manifest.id == *id,
        None => backup.manifest.ended_s <= cutoff_s,
    };
    let at = all.iter().rposition(|backup| is_oldest(&backup)).unwrap_or(0);
    Ok((all.len() - at, cutoff_s * SECOND_NS))
}

/// The backups, the latest first, that the newest `keep` ones do not go on from.
fn unneeded(all: &[Backup], keep: usize) -> Vec<&Backup> {
    let mut needed: std::collections::BTreeSet<&str> = std::collections::BTreeSet::new();
    let mut unneeded = Vec::new();
    for (age, backup) in all.iter().rev().enumerate() {
        if age < keep || needed.contains(&*backup.manifest.id) {
            needed.extend(backup.manifest.base.as_deref());
        } else {
            unneeded.push(backup);
        }
    }
    unneeded
}

/// How far a backup is.
fn how_far(now: &HowFar, seconds: f64) -> String {
    format!(
        "{} of {} vBuckets, {} changes, {}, {}/s",
        thousands(now.done as u64),
        thousands(now.vbuckets as u64),
        thousands(now.versions),
        bytes(now.bytes),
        bytes((now.bytes as f64 / seconds) as u64)
    )
}
