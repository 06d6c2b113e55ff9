//! `stave migrate BUCKET`: a running node brings a bucket to the other store, and this command says how far it is.
#![allow(clippy::disallowed_methods, reason = "a client waits in the real world")]

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use base::env::Env;
use node::form::escaped;
use serde_json::{Value, json};

use super::MigrateFlags;
use crate::cli::{Outcome, WrongArguments};
use crate::client::HttpTarget;
use crate::commands::status_line::StatusLine;
use crate::commands::{bucket, rbac};
use crate::units::thousands;

/// vBuckets that the line names.
const NAMED: usize = 8;
/// How long nodes may be away before the command ends without them: a node that is started again needs less.
const AWAY_FOR: Duration = Duration::from_secs(60);
/// How often the node is asked.
const ASK: Duration = Duration::from_millis(500);

/// Begins a move or cancels it, and waits for its end.
pub(super) fn run(env: &Env, bucket: &str, flags: &MigrateFlags) -> anyhow::Result<Outcome> {
    let target = flags.http.target()?;
    let path = format!("/v1/buckets/{}/migration", escaped(bucket));
    if rbac::find_at(&target, &bucket::address(bucket))?.is_none() {
        bail!(WrongArguments(format!(
            "there is no bucket {bucket}, and no folder of this name; `stave bucket list` shows all buckets, and the folder of \
             a stopped node's bucket is like data/buckets/{bucket}"
        )));
    }
    let first = match (&flags.backend, flags.cancel) {
        (_, true) => target.send("DELETE", &path, &[])?,
        (Some(backend), false) => target.send("POST", &path, &[("storageBackend", backend)])?,
        (None, false) => bail!(WrongArguments("--backend: couchstore, magma or rocksdb".to_owned())),
    };
    let (last, end) = follow(env, &target, &path, first)?;
    let is_there = |word: &&String| end["storageBackend"] == word.as_str();
    if !flags.cancel && flags.backend.as_ref().filter(is_there).is_none() {
        bail!("the migration of {bucket} was cancelled; it is in {}", text(&end, "storageBackend"));
    }
    let mut out = std::io::stdout().lock();
    out.write_all(said(bucket, &last, &end, flags.http.json).as_bytes())?;
    Ok(Outcome::Done)
}

/// Asks until it is over; what was told last while it was under way, and then.
fn follow(env: &Env, target: &HttpTarget, path: &str, first: Value) -> anyhow::Result<(Value, Value)> {
    let (mut line, mut last, mut now) = (StatusLine::new(env), first.clone(), first);
    let (mut pace, mut alone_since) = (Pace::default(), None);
    while now["state"] != "none" {
        let at = env.clock.monotonic();
        let left = pace.left(at, &now);
        line.show(|_| progress(&now, left));
        let away = absent(&now);
        alone_since = away.as_ref().map(|_| alone_since.unwrap_or(at));
        let away = away.filter(|_| alone_since.is_some_and(|since| at.saturating_sub(since) >= AWAY_FOR));
        if let Some(why) = stuck(&now).or(away) {
            line.end();
            bail!(why);
        }
        last = now;
        std::thread::sleep(ASK);
        let (status, body) = target.exchange("GET", path, String::new())?;
        now = target.answer(status, &body)?;
    }
    line.end();
    Ok((last, now))
}

fn text<'v>(of: &'v Value, field: &str) -> &'v str {
    of[field].as_str().unwrap_or_default()
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_default()
}

/// How fast vBuckets move.
#[derive(Default)]
struct Pace {
    /// When the first one was seen to be moved, and how many there were then: those that are stored nowhere move together.
    first: Option<(Duration, u64)>,
}

impl Pace {
    /// How long it takes to the end, if it goes on like this.
    fn left(&mut self, at: Duration, now: &Value) -> Option<Duration> {
        let (done, of) = (number(now, "vbuckets"), number(now, "ofVbuckets"));
        let (since, before) = match self.first {
            // A move that was cancelled goes the other way.
            Some((since, before)) if before <= done => (since, before),
            _ if done == 0 => return None,
            _ => *self.first.insert((at, done)),
        };
        let moved = u32::try_from(done - before).ok().filter(|moved| *moved > 0)?;
        Some((at - since) * u32::try_from(of.saturating_sub(done)).ok()? / moved)
    }
}

fn progress(now: &Value, left: Option<Duration>) -> String {
    let (done, of) = (number(now, "vbuckets"), number(now, "ofVbuckets"));
    let (items, rate) = (thousands(number(now, "items")), thousands(number(now, "itemsPerSecond")));
    let state = text(now, "state");
    let read = now["waitsFor"].as_array().filter(|read| !read.is_empty());
    match (now["failure"].as_str(), read) {
        (None, Some(read)) => {
            let named: Vec<String> = read.iter().take(NAMED).map(Value::to_string).collect();
            let more = if read.len() > NAMED { ", …" } else { "" };
            // A node of an earlier version does not say for how long.
            let most = now["waitsSeconds"].as_u64().map_or(String::new(), |s| format!(" {s} s at the most"));
            format!(
                "{state}: waits{most} for readers of the store that is left, of vBuckets {}{more}: a stream of \
                 changes, a backup or a scan that began before; `stave stats dcp` shows the streams",
                named.join(", ")
            )
        }
        (None, None) => {
            let left = left.map_or(String::new(), |left| format!(", about {} s left", left.as_secs() + 1));
            format!("{state}: {done} of {of} vBuckets, {items} records, {rate}/s{left}{}", missed(now))
        }
        (Some(failure), _) => format!("{state}: {done} of {of} vBuckets; trying again: {failure}"),
    }
}

/// The nodes of a cluster that say nothing of it.
fn silent(now: &Value) -> Vec<String> {
    let nodes = now["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let of = nodes.iter().filter_map(|node| {
        let why = match text(node, "state") {
            "away" => "is away, and goes on when it is back",
            "olderVersion" => "runs a version that does not move buckets of a cluster",
            _ => return None,
        };
        Some(format!("{} ({}) {why}", text(node, "node"), text(node, "hostname")))
    });
    of.collect()
}

fn missed(now: &Value) -> String {
    silent(now).iter().map(|node| format!("; {node}")).collect()
}

/// Who is waited for, if all nodes but those that say nothing are there.
fn absent(now: &Value) -> Option<String> {
    let silent = silent(now);
    let nodes = now["nodes"].as_array().map_or(0, Vec::len);
    let done = now["nodes"].as_array().into_iter().flatten().filter(|node| node["state"] == "done").count();
    (!silent.is_empty() && done + silent.len() == nodes).then(|| {
        format!(
            "the other nodes are done: {}\nthe bucket is served, and nothing has to be done again; \
             `stave cluster status` shows the nodes, and a node that is failed over is not waited for",
            silent.join("; ")
        )
    })
}

/// Why a move does not end, if nothing is left but vBuckets that cannot be moved.
fn stuck(now: &Value) -> Option<String> {
    let left = now["left"].as_array().filter(|left| !left.is_empty())?;
    if number(now, "vbuckets") + (left.len() as u64) < number(now, "ofVbuckets") {
        return None;
    }
    let lines = left.iter().map(|one| {
        let at = one["node"].as_str().map_or(String::new(), |node| format!(" on {node}"));
        format!("\n  vBucket {}{at}: {}", one["vbucket"], text(one, "reason"))
    });
    Some(format!(
        "{} of {} vBuckets are moved, and these cannot be read:{}\nthe bucket is served from both stores, and the node \
         tries again; --cancel brings the others back",
        number(now, "vbuckets"),
        number(now, "ofVbuckets"),
        lines.collect::<String>()
    ))
}

fn said(bucket: &str, last: &Value, end: &Value, json: bool) -> String {
    let (store, vbuckets, items) =
        (text(end, "storageBackend"), number(last, "ofVbuckets"), number(last, "items"));
    if json {
        let line = json!({ "bucket": bucket, "backend": store, "vbuckets": vbuckets, "items": items });
        return format!("{line}\n");
    }
    let lines = [
        ("bucket", bucket.to_owned()),
        ("store", store.to_owned()),
        ("vBuckets", thousands(vbuckets)),
        ("records copied", thousands(items)),
    ];
    lines.iter().map(|(name, value)| format!("{name:<32}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_while_it_goes_on() {
        let mut now = json!({
            "state": "copying", "vbuckets": 1000, "ofVbuckets": 1024, "items": 12_345, "itemsPerSecond": 678, "left": [],
            "failure": null,
        });
        assert_eq!(progress(&now, None), "copying: 1000 of 1024 vBuckets, 12,345 records, 678/s");
        let (mut pace, at) = (Pace::default(), Duration::from_secs);
        now["vbuckets"] = json!(0);
        assert_eq!(pace.left(at(1), &now), None);
        now["vbuckets"] = json!(24);
        assert_eq!(pace.left(at(2), &now), None, "it has not moved yet");
        now["vbuckets"] = json!(124);
        let left = pace.left(at(12), &now);
        assert_eq!(left, Some(at(90)));
        assert!(progress(&now, left).ends_with(", about 91 s left"), "{}", progress(&now, left));
        now["vbuckets"] = json!(1000);
        assert_eq!(stuck(&now), None);
        now["waitsFor"] = json!([3, 7]);
        let waits = "for readers of the store that is left, of vBuckets 3, 7:";
        assert!(progress(&now, None).starts_with(&format!("copying: waits {waits}")), "an earlier version");
        now["waitsSeconds"] = json!(90);
        assert!(progress(&now, None).starts_with(&format!("copying: waits 90 s at the most {waits}")));
        now["waitsFor"] = json!([]);
        now["left"] = json!([{ "vbucket": 7, "reason": "it is damaged" }]);
        assert_eq!(stuck(&now), None, "others may still be moved");
        now["vbuckets"] = json!(1023);
        let why = stuck(&now).expect("nothing else is left");
        assert!(why.contains("vBucket 7: it is damaged") && why.contains("--cancel"), "{why}");
        now["failure"] = json!("the disk is full");
        assert!(progress(&now, left).ends_with("trying again: the disk is full"), "{}", progress(&now, left));
    }

    #[test]
    fn nodes_that_say_nothing_are_named() {
        let mut now = json!({
            "state": "copying", "vbuckets": 70, "ofVbuckets": 192, "items": 5, "itemsPerSecond": 1, "left": [],
            "failure": null, "nodes": [
                { "node": "n_1", "hostname": "a:1", "state": "copying" }, { "node": "n_2", "hostname": "a:2", "state": "away" },
            ],
        });
        let line = progress(&now, None);
        assert!(line.ends_with("; n_2 (a:2) is away, and goes on when it is back"), "{line}");
        assert_eq!(absent(&now), None, "n_1 goes on");
        now["nodes"][0]["state"] = json!("done");
        let why = absent(&now).expect("only n_2 is waited for");
        assert!(why.contains("n_2 (a:2) is away") && why.contains("failed over"), "{why}");
        now["nodes"][1]["state"] = json!("waiting");
        assert_eq!(absent(&now), None);
        now["left"] = json!([{ "node": "n_2", "vbucket": 7, "reason": "it is damaged" }]);
        now["vbuckets"] = json!(191);
        let why = stuck(&now).expect("nothing else is left");
        assert!(why.contains("vBucket 7 on n_2: it is damaged"), "{why}");
    }

    #[test]
    fn what_is_told_in_the_end() {
        let last = json!({ "ofVbuckets": 1024, "items": 5 });
        let end = json!({ "storageBackend": "magma", "state": "none" });
        let line: Value = serde_json::from_str(&said("b", &last, &end, true)).expect("JSON");
        assert_eq!(line, json!({ "bucket": "b", "backend": "magma", "vbuckets": 1024, "items": 5 }));
        assert!(said("b", &last, &end, false).contains("store                             magma\n"));
    }
}
