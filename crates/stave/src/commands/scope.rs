//! `stave scope`: scopes of a bucket, and what `stave collection` has in common with it.

use anyhow::bail;
use base::env::Env;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use node::form::escaped;
use serde_json::Value;

use super::bucket;
use super::http_flags::HttpFlags;
use super::rbac::{self, cell, done, titled};
use crate::cli::{Outcome, WrongArguments};
use crate::client::HttpTarget;
use crate::output::print;
use crate::units::counted;

/// Scopes of a bucket: look at them, make and delete them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave scope add shop --bucket orders
  stave collection add shop.carts --bucket orders
  stave scope list --bucket orders
  stave scope delete shop --bucket orders --yes")]
pub struct ScopeFlags {
    #[command(subcommand)]
    what: ScopeCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ScopeCommand {
    /// Print all scopes of a bucket with their collections
    #[command(after_help = "Examples:
  stave scope list --bucket orders
  stave scope list --json | jq '.scopes[].name'")]
    List {
        #[command(flatten)]
        of: BucketOverHttp,
    },
    /// Make a scope
    #[command(after_help = "Examples:
  stave scope add shop --bucket orders")]
    Add {
        /// The scope
        name: String,
        #[command(flatten)]
        of: BucketOverHttp,
    },
    /// Delete a scope with its collections and their documents
    #[command(after_help = "Examples:
  stave scope delete shop --bucket orders --yes")]
    Delete {
        /// The scope
        name: String,
        /// Its documents are removed for good, which has to be said
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        of: BucketOverHttp,
    },
}

/// Which bucket, and which node is asked over HTTP.
#[derive(Clone, Debug, Args)]
pub struct BucketOverHttp {
    /// The bucket
    #[arg(long, value_name = "NAME", env = "STAVE_BUCKET", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    pub bucket: String,
    /// Which node is asked, and as whom.
    #[command(flatten)]
    pub to: HttpFlags,
}

impl BucketOverHttp {
    /// The address of the bucket's scopes.
    pub(super) fn scopes(&self) -> String {
        format!("{}/scopes", bucket::address(&self.bucket))
    }

    /// The address of a scope.
    pub(super) fn scope(&self, name: &str) -> String {
        format!("{}/{}", self.scopes(), escaped(name))
    }

    /// The scopes and collections that the bucket has.
    pub(super) fn manifest(&self, target: &HttpTarget) -> anyhow::Result<Value> {
        rbac::show_at(target, &self.scopes(), &format!("bucket {}", self.bucket))
    }
}

/// Runs the command.
pub fn run(_: &Env, flags: &ScopeFlags) -> anyhow::Result<Outcome> {
    print(&said(flags)?)?;
    Ok(Outcome::Done)
}

pub(super) fn said(flags: &ScopeFlags) -> anyhow::Result<String> {
    match &flags.what {
        ScopeCommand::List { of } => {
            let manifest = of.manifest(&of.to.target()?)?;
            Ok(if of.to.json { format!("{manifest}\n") } else { list(&manifest) })
        }
        ScopeCommand::Add { name, of } => {
            let target = of.to.target()?;
            if find(&of.manifest(&target)?, name).is_some() {
                bail!("there is a scope {name} in bucket {} already", of.bucket);
            }
            target.form(&of.scopes(), &[("name", name)])?;
            Ok(done(&of.to, &format!("scope {name} was added")))
        }
        ScopeCommand::Delete { name, yes, of } => {
            let (target, bucket) = (of.to.target()?, &of.bucket);
            let manifest = of.manifest(&target)?;
            let Some(scope) = find(&manifest, name) else {
                bail!(missing(name, bucket));
            };
            if !yes {
                let count = counted(collections(scope).count() as u64, "collection", "collections");
                bail!(WrongArguments(format!(
                    "deleting scope {name} of bucket {bucket} removes its {count} with all documents for good; add \
                     --yes to do it"
                )));
            }
            target.send("DELETE", &of.scope(name), &[])?;
            Ok(done(&of.to, &format!("scope {name} was deleted")))
        }
    }
}

/// What is said of a scope that is not there.
pub(super) fn missing(name: &str, bucket: &str) -> String {
    format!("there is no scope {name} in bucket {bucket}; `stave scope list --bucket {bucket}` shows all")
}

/// The scopes of a manifest.
pub(super) fn scopes(manifest: &Value) -> impl Iterator<Item = &Value> {
    manifest["scopes"].as_array().into_iter().flatten()
}

/// A scope of a manifest.
pub(super) fn find<'m>(manifest: &'m Value, name: &str) -> Option<&'m Value> {
    scopes(manifest).find(|scope| scope["name"] == name)
}

/// The collections of a scope.
pub(super) fn collections(scope: &Value) -> impl Iterator<Item = &Value> {
    scope["collections"].as_array().into_iter().flatten()
}

/// How a scope or collection is called.
pub(super) fn name_of(one: &Value) -> String {
    one["name"].as_str().unwrap_or_default().to_owned()
}

fn list(manifest: &Value) -> String {
    let line = |scope: &Value| {
        let names: Vec<String> = collections(scope).map(name_of).collect();
        vec![name_of(scope), cell(&names)]
    };
    titled(&["SCOPE", "COLLECTIONS"], scopes(manifest).map(line).collect())
}
