//! `stave get`, `set` and `delete`: a quick look at single documents.

use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, bail};
use base::env::Env;
use base::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::{Outcome, ServerFlags, WrongArguments};
use crate::client::{Cluster, Dialect, Document, Stored};
use crate::output::print;

/// Print a document.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave get user::42
  stave get user::42 --meta
  stave get order::7 --collection shop.orders
  stave get user::42 --json | jq .value
  stave get user::42 --addr 10.0.0.2 --timeout 2s

On a terminal a newline follows the value. Into a file or a pipe the value goes byte for byte, without a newline, so that
`stave get picture::7 > picture.png` gives back what was stored; redis-cli adds a newline there, too.

In a cluster any of its nodes may be named: the document is read where it is, also while vBuckets move.")]
pub struct GetFlags {
    /// The document's key
    #[arg(value_parser = parse_key)]
    key: String,
    /// Say on standard error what is known beside the value: CAS, flags, datatype
    #[arg(long)]
    meta: bool,
    #[command(flatten)]
    place: Place,
}

/// Write a document, whether it exists or not.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave set user::42 '{\"name\":\"Ada\"}' --json-check
  stave set picture::7 - < picture.png
  stave set session::1 token --expiry 3600
  stave set session::1 token --json | jq -r .cas
  stave set order::7 '{}' --collection shop.orders

In a cluster any of its nodes may be named: the document is written where it belongs, also while vBuckets move.")]
pub struct SetFlags {
    /// The document's key
    #[arg(value_parser = parse_key)]
    key: String,
    /// The value; `-` reads it from standard input; write `--` before one that begins with a dash
    value: String,
    /// Seconds until the document is gone, up to 30 days; more is taken as a moment in seconds since 1970
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_negative_numbers = true)]
    expiry: u32,
    /// Refuse a value that is not JSON
    #[arg(long)]
    json_check: bool,
    #[command(flatten)]
    place: Place,
}

/// Delete a document.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave delete user::42
  stave delete user::42 --json | jq .deleted

In a cluster any of its nodes may be named.")]
pub struct DeleteFlags {
    /// The document's key
    #[arg(value_parser = parse_key)]
    key: String,
    #[command(flatten)]
    place: Place,
}

/// Where documents are.
#[derive(Clone, Debug, Args)]
struct Place {
    #[command(flatten)]
    server: ServerFlags,
    /// The collection, like `scope.collection`, or its hexadecimal number like 0x8
    #[arg(long, value_name = "NAME", default_value = "_default._default")]
    collection: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Place {
    /// The cluster that the named node belongs to: each document is looked for where it is.
    fn open<'e>(&self, env: &'e Env) -> anyhow::Result<Cluster<'e>> {
        let mut cluster = Cluster::open(env, self.server.target(Dialect::Couchbase)?, &[])?;
        cluster.use_collection(&self.collection)?;
        Ok(cluster)
    }
}

fn parse_key(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a key has at least one byte".into()),
        len if len > MAX_KEY_BYTES => Err(format!("a key has at most {MAX_KEY_BYTES} bytes, this one {len}")),
        _ => Ok(text.to_owned()),
    }
}

/// The longest time that is counted from now on: 30 days (the original's rule for expiry times).
const MOST_RELATIVE_S: u32 = 30 * 24 * 60 * 60;

/// Says that a document does not exist; as JSON, `done` is what was not done with it.
fn not_found(key: &str, done: Option<&str>) -> anyhow::Result<Outcome> {
    if let Some(done) = done {
        print(&format!("{}\n", json!({ "key": key, done: false })))?;
    }
    eprintln!("stave: there is no document `{key}`");
    Ok(Outcome::NotFound)
}

/// Runs `stave get`.
pub fn get(env: &Env, flags: &GetFlags) -> anyhow::Result<Outcome> {
    let Some(document) = flags.place.open(env)?.get(flags.key.as_bytes())? else {
        return not_found(&flags.key, flags.place.json.then_some("found"));
    };
    if flags.place.json {
        print(&format!("{}\n", as_json(&flags.key, &document)))?;
        return Ok(Outcome::Done);
    }
    if flags.meta {
        eprintln!(
            "CAS {}, flags 0x{:08x}, datatype 0x{:02x}",
            document.cas, document.flags, document.datatype
        );
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&document.value)?;
    // Into a file or a pipe goes the value and nothing else.
    if out.is_terminal() {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(Outcome::Done)
}

/// Runs `stave set`.
pub fn set(env: &Env, flags: &SetFlags) -> anyhow::Result<Outcome> {
    let value = if flags.value == "-" { read_stdin()? } else { flags.value.clone().into_bytes() };
    if value.len() > MAX_VALUE_BYTES {
        bail!("the value has {} bytes, and a document at most {MAX_VALUE_BYTES}", value.len());
    }
    if flags.json_check {
        serde_json::from_slice::<serde::de::IgnoredAny>(&value).map_err(|error| {
            WrongArguments(format!("the value is not JSON ({error}); mend it, or leave --json-check out"))
        })?;
    }
    let now = env.clock.unix_s();
    if (MOST_RELATIVE_S + 1..now).contains(&flags.expiry) {
        bail!(WrongArguments(format!(
            "--expiry {} is a moment that is past: the document would be gone at once; up to {MOST_RELATIVE_S} it is \
             seconds from now, above that seconds since 1970 (now {now})",
            flags.expiry
        )));
    }
    let stored = flags.place.open(env)?.set(flags.key.as_bytes(), &value, flags.expiry)?;
    say("stored", &flags.key, &stored, flags.place.json)?;
    Ok(Outcome::Done)
}

/// Runs `stave delete`.
pub fn delete(env: &Env, flags: &DeleteFlags) -> anyhow::Result<Outcome> {
    match flags.place.open(env)?.delete(flags.key.as_bytes())? {
        Some(stored) => say("deleted", &flags.key, &stored, flags.place.json)?,
        None => return not_found(&flags.key, flags.place.json.then_some("deleted")),
    }
    Ok(Outcome::Done)
}

/// A document as one object: JSON as `value`, text as a string there, anything else as `value_base64`. Numbers that
/// not every reader of JSON holds exactly are text.
fn as_json(key: &str, document: &Document) -> Value {
    let mut fields = json!({
        "key": key,
        "found": true,
        "cas": document.cas.0.to_string(),
        "flags": document.flags,
        "datatype": document.datatype,
    });
    match (serde_json::from_slice::<Value>(&document.value), str::from_utf8(&document.value)) {
        (Ok(value), _) => fields["value"] = value,
        (_, Ok(text)) => fields["value"] = text.into(),
        _ => fields["value_base64"] = BASE64.encode(&document.value).into(),
    }
    fields
}

/// Says what became of a change.
fn say(done: &str, key: &str, stored: &Stored, as_json: bool) -> std::io::Result<()> {
    if !as_json {
        return print(&format!("{done}, {}\n", describe(stored)));
    }
    let mut fields =
        json!({ "key": key, done: true, "cas": stored.cas.0.to_string(), "vbucket": stored.vbucket.0 });
    if let Some(token) = stored.token {
        fields["seqno"] = token.seqno.0.into();
        fields["vbucket_uuid"] = format!("{:016x}", token.uuid.0).into();
    }
    print(&format!("{fields}\n"))
}

fn describe(stored: &Stored) -> String {
    let seqno = stored.token.map(|token| format!(", seqno {}", token.seqno)).unwrap_or_default();
    format!("CAS {}, vBucket {}{seqno}", stored.cas, stored.vbucket)
}

/// At most one byte more than a document may have, which is enough to refuse it.
fn read_stdin() -> anyhow::Result<Vec<u8>> {
    let mut value = Vec::new();
    let limit = MAX_VALUE_BYTES as u64 + 1;
    std::io::stdin().lock().take(limit).read_to_end(&mut value).context("cannot read standard input")?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use base::Cas;

    use super::*;

    #[test]
    fn a_document_is_one_object() {
        let document =
            |value: &[u8]| Document { value: value.to_vec(), cas: Cas(u64::MAX), flags: 1, datatype: 0 };
        let json = as_json("k", &document(b"{\"a\":1}"));
        assert_eq!(
            (&json["key"], &json["found"], &json["value"]["a"]),
            (&"k".into(), &true.into(), &1.into())
        );
        assert_eq!(json["cas"], "18446744073709551615");
        assert_eq!(as_json("k", &document(b"plain text"))["value"], "plain text");
        let binary = as_json("k", &document(b"\xff"));
        assert_eq!((&binary["value_base64"], binary.get("value")), (&"/w==".into(), None));
    }
}
