//! `stave keys`: the keys of a collection, page after page, written as they come.
//!
//! Memory does not grow with the number of keys: it holds one page of each vBucket that is asked at once. A vBucket that
//! moves meanwhile is asked at its new node from the last key on.

use std::io::{self, BufWriter, Write};

use base::VbId;
use base::env::Env;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use protocol::Status;
use serde_json::json;

use crate::cli::{Outcome, ServerFlags};
use crate::client::{ClientError, Cluster, Dialect};

/// vBuckets that are asked at once.
const AT_ONCE: usize = 16;
/// Keys of a page.
const PAGE: usize = 256;
/// Keys of the first page of a vBucket if there is a prefix: what does not have it is sent in vain.
const FIRST_PAGE: usize = 32;

/// Print the keys of a collection.
///
/// Keys come vBucket after vBucket, within each in their order; `| sort` puts all in order. They are read from disk:
/// a document that was stored a moment ago may not be among them yet, and an ephemeral bucket has none.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave keys
  stave keys --prefix user:: --limit 10
  stave keys --bucket orders --collection shop.carts | wc -l
  stave keys --prefix session:: | xargs -d '\\n' -n 1 stave delete

Each key is followed by a newline. Control characters and bytes that are no UTF-8 are printed as \\n, \\u{1b} or \\xff, so
that a terminal does not obey them; --raw prints every key as it is. With --json each is an object on a line of its own,
{\"key\":\"user::42\"}, or {\"key_base64\":\"/w==\"} if the key is no UTF-8.")]
pub struct KeysFlags {
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// The collection, like `scope.collection`, or its hexadecimal number like 0x8
    #[arg(long, value_name = "NAME", default_value = "_default._default")]
    collection: String,
    /// Print no more keys than this
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print each key as a JSON object
    #[arg(long)]
    json: bool,
    /// Print keys as they are, control characters included
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &KeysFlags) -> anyhow::Result<Outcome> {
    write_keys(env, flags, &mut BufWriter::new(io::stdout()))?;
    Ok(Outcome::Done)
}

fn write_keys(env: &Env, flags: &KeysFlags, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut cluster = Cluster::open(env, flags.server.target(Dialect::Couchbase)?, &[])?;
    cluster.use_collection(&flags.collection)?;
    let mut left = flags.limit.unwrap_or(usize::MAX);
    let vbuckets: Vec<VbId> = (0..cluster.vbuckets()).map(VbId).collect();
    for some in vbuckets.chunks(AT_ONCE) {
        of_vbuckets(&mut cluster, flags, some, &mut left, out)?;
    }
    Ok(())
}

/// Writes the keys of some vBuckets, no more than are left to be written.
fn of_vbuckets(
    cluster: &mut Cluster<'_>,
    flags: &KeysFlags,
    vbuckets: &[VbId],
    left: &mut usize,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let prefix = flags.prefix.as_bytes();
    // A key has at least one byte.
    let first = if prefix.is_empty() { &[0][..] } else { prefix };
    let mut page = if prefix.is_empty() { PAGE } else { FIRST_PAGE };
    let mut asked: Vec<(VbId, Vec<u8>)> = vbuckets.iter().map(|vb| (*vb, first.to_vec())).collect();
    while !asked.is_empty() && *left > 0 {
        let pages = cluster.keys(&asked, page.min(*left) as u32).map_err(explained)?;
        let mut next = Vec::new();
        for ((vb, _), keys) in asked.iter().zip(&pages) {
            let wanted = keys.iter().take_while(|key| key.starts_with(prefix)).take(*left);
            let mut written = 0;
            for key in wanted {
                write_key(flags, key, out)?;
                written += 1;
            }
            *left -= written;
            let last = keys.last().filter(|_| written == keys.len());
            next.extend(last.and_then(|last| cluster.behind(last)).map(|from| (*vb, from)));
        }
        out.flush()?;
        (asked, page) = (next, PAGE);
    }
    Ok(())
}

fn write_key(flags: &KeysFlags, key: &[u8], out: &mut dyn Write) -> io::Result<()> {
    match (flags.json, str::from_utf8(key)) {
        (false, _) if flags.raw => out.write_all(key)?,
        (false, _) => write_shown(key, out)?,
        (true, Ok(text)) => write!(out, "{}", json!({ "key": text }))?,
        (true, Err(_)) => write!(out, "{}", json!({ "key_base64": BASE64.encode(key) }))?,
    }
    out.write_all(b"\n")
}

/// Writes a key so that a terminal shows it and obeys none of it.
fn write_shown(key: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character.is_control() {
                true => write!(out, "{}", character.escape_default())?,
                false => write!(out, "{character}")?,
            }
        }
        chunk.invalid().iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))?;
    }
    Ok(())
}

/// An ephemeral bucket answers that it has no disk.
fn explained(error: ClientError) -> anyhow::Error {
    let is_unsupported = matches!(
        error,
        ClientError::Refused { status_code, .. }
            if [Status::NotSupported, Status::UnknownCommand].iter().any(|status| status.code() == status_code)
    );
    let error = anyhow::Error::new(error);
    if !is_unsupported {
        return error;
    }
    error.context(
        "this bucket has no keys on disk to list; `stave export --to -` prints its documents with their keys",
    )
}

#[cfg(test)]
mod tests;
