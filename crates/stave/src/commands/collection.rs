//! `stave collection`: collections of a bucket, named like `scope.collection`.

use anyhow::bail;
use base::env::Env;
use clap::{Args, Subcommand};
use node::form::escaped;
use serde_json::Value;

use super::rbac::{done, titled};
use super::scope::{self, BucketOverHttp, name_of};
use crate::cli::{Outcome, WrongArguments};
use crate::output::print;

/// Collections of a bucket: look at them, make and delete them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave collection add shop.carts --bucket orders --max-ttl 3600
  stave collection list --bucket orders
  stave collection delete shop.carts --bucket orders --yes

`carts` alone is `_default.carts`.")]
pub struct CollectionFlags {
    #[command(subcommand)]
    what: CollectionCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum CollectionCommand {
    /// Print all collections of a bucket with their max TTLs and numbers
    #[command(after_help = "Examples:
  stave collection list --bucket orders
  stave collection list --json | jq '.scopes[].collections[].name'")]
    List {
        #[command(flatten)]
        of: BucketOverHttp,
    },
    /// Make a collection in a scope that is there
    #[command(after_help = "Examples:
  stave collection add shop.carts --bucket orders
  stave collection add shop.sessions --bucket orders --max-ttl 3600 --history false")]
    Add {
        /// The collection, like `scope.collection`
        #[arg(value_name = "SCOPE.NAME", value_parser = parse_path)]
        collection: ScopedName,
        /// Seconds after which its documents expire at the latest; 0 for what the bucket says, -1 for never
        #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_negative_numbers = true)]
        max_ttl: i32,
        /// Whether it has a part in the bucket's history of changes; as the bucket says if not given
        #[arg(long, value_name = "true|false")]
        history: Option<bool>,
        #[command(flatten)]
        of: BucketOverHttp,
    },
    /// Delete a collection with its documents
    #[command(after_help = "Examples:
  stave collection delete shop.carts --bucket orders --yes")]
    Delete {
        /// The collection, like `scope.collection`
        #[arg(value_name = "SCOPE.NAME", value_parser = parse_path)]
        collection: ScopedName,
        /// Its documents are removed for good, which has to be said
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        of: BucketOverHttp,
    },
}

/// A collection and its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScopedName {
    scope: String,
    name: String,
}

impl std::fmt::Display for ScopedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.scope, self.name)
    }
}

fn parse_path(text: &str) -> Result<ScopedName, String> {
    let (scope, name) = text.split_once('.').unwrap_or(("_default", text));
    if scope.is_empty() || name.is_empty() || name.contains('.') {
        return Err(format!("`{text}` is no collection; write SCOPE.NAME"));
    }
    Ok(ScopedName { scope: scope.to_owned(), name: name.to_owned() })
}

/// Runs the command.
pub fn run(_: &Env, flags: &CollectionFlags) -> anyhow::Result<Outcome> {
    print(&said(flags)?)?;
    Ok(Outcome::Done)
}

pub(super) fn said(flags: &CollectionFlags) -> anyhow::Result<String> {
    match &flags.what {
        CollectionCommand::List { of } => {
            let manifest = of.manifest(&of.to.target()?)?;
            Ok(if of.to.json { format!("{manifest}\n") } else { list(&manifest) })
        }
        CollectionCommand::Add { collection, max_ttl, history, of } => {
            let (target, bucket) = (of.to.target()?, &of.bucket);
            let (manifest, scope) = (of.manifest(&target)?, &collection.scope);
            if scope::find(&manifest, scope).is_none() {
                bail!(
                    "there is no scope {scope} in bucket {bucket}; `stave scope add {scope} --bucket {bucket}` makes it"
                );
            }
            if is_there(&manifest, collection) {
                bail!("there is a collection {collection} in bucket {bucket} already");
            }
            let (max_ttl, history) = (max_ttl.to_string(), history.map(|history| history.to_string()));
            let mut fields = vec![("name", collection.name.as_str()), ("maxTTL", &max_ttl)];
            fields.extend(history.as_deref().map(|history| ("history", history)));
            target.form(&format!("{}/collections", of.scope(scope)), &fields)?;
            Ok(done(&of.to, &format!("collection {collection} was added")))
        }
        CollectionCommand::Delete { collection, yes, of } => {
            let (target, bucket) = (of.to.target()?, &of.bucket);
            if !is_there(&of.manifest(&target)?, collection) {
                bail!(
                    "there is no collection {collection} in bucket {bucket}; `stave collection list --bucket {bucket}` \
                     shows all"
                );
            }
            if !yes {
                bail!(WrongArguments(format!(
                    "deleting collection {collection} of bucket {bucket} removes its documents for good; add --yes to \
                     do it"
                )));
            }
            let place = of.scope(&collection.scope);
            target.send("DELETE", &format!("{place}/collections/{}", escaped(&collection.name)), &[])?;
            Ok(done(&of.to, &format!("collection {collection} was deleted")))
        }
    }
}

fn is_there(manifest: &Value, wanted: &ScopedName) -> bool {
    let scope = scope::find(manifest, &wanted.scope);
    scope.into_iter().flat_map(scope::collections).any(|one| one["name"] == *wanted.name)
}

fn list(manifest: &Value) -> String {
    let line = |scope: &Value, one: &Value| {
        let max_ttl = match one["maxTTL"].as_i64() {
            None | Some(0) => "of the bucket".to_owned(),
            Some(seconds) if seconds < 0 => "none".to_owned(),
            Some(seconds) => format!("{seconds} s"),
        };
        let number = format!("0x{}", one["uid"].as_str().unwrap_or("-"));
        let history = if one["history"] == true { "yes" } else { "no" };
        vec![format!("{}.{}", name_of(scope), name_of(one)), max_ttl, number, history.to_owned()]
    };
    let scopes = scope::scopes(manifest);
    let lines = scopes.flat_map(|scope| scope::collections(scope).map(move |one| line(scope, one)));
    titled(&["COLLECTION", "MAX TTL", "NUMBER", "HISTORY"], lines.collect())
}
