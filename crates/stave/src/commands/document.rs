//! `stave get`, `set` and `delete`: a quick look at single documents.

use std::io::{IsTerminal, Read, Write};

use anyhow::{Context, bail};
use base::env::Env;
use base::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use clap::Args;

use crate::cli::{Outcome, ServerFlags};
use crate::client::{Cluster, Dialect, Stored};

/// Print a document.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave get user::42
  stave get user::42 --meta
  stave get order::7 --collection shop.orders
  stave get user::42 --addr 10.0.0.2 --timeout 2s

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
#[command(after_help = "Example:
  stave delete user::42

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
}

impl Place {
    /// The cluster that the named node belongs to: each document is looked for where it is.
    fn open<'e>(&self, env: &'e Env) -> anyhow::Result<Cluster<'e>> {
        let mut cluster = Cluster::open(env, self.server.target(Dialect::Couchbase)?, &[])?;
        let name = &self.collection;
        cluster.use_collection(name).with_context(|| format!("collection `{name}`"))?;
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

fn not_found(key: &str) -> Outcome {
    eprintln!("stave: there is no document `{key}`");
    Outcome::NotFound
}

/// Runs `stave get`.
pub fn get(env: &Env, flags: &GetFlags) -> anyhow::Result<Outcome> {
    let Some(document) = flags.place.open(env)?.get(flags.key.as_bytes())? else {
        return Ok(not_found(&flags.key));
    };
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
        serde_json::from_slice::<serde::de::IgnoredAny>(&value)
            .context("the value is not JSON; mend it, or leave --json-check out")?;
    }
    let stored = flags.place.open(env)?.set(flags.key.as_bytes(), &value, flags.expiry)?;
    println!("stored, {}", describe(&stored));
    Ok(Outcome::Done)
}

/// Runs `stave delete`.
pub fn delete(env: &Env, flags: &DeleteFlags) -> anyhow::Result<Outcome> {
    match flags.place.open(env)?.delete(flags.key.as_bytes())? {
        Some(stored) => println!("deleted, {}", describe(&stored)),
        None => return Ok(not_found(&flags.key)),
    }
    Ok(Outcome::Done)
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
