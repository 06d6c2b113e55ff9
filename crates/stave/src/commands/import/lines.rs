//! `stave import lines` and `stave import csv`: sends documents of a text file to a running bucket.

mod source;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use base::env::Env;
use clap::Args;
use serde_json::json;

use crate::cli::{Outcome, ServerFlags};
use crate::client::{Cluster, Dialect};
use crate::commands::status_line::StatusLine;
use crate::lines::{KeyTemplate, LineSender, Rejected};
use crate::new_file::NewFile;
use crate::output::print;
use crate::units::{counted, thousands};
use protocol::feature::Feature;
use source::{Documents, Form};

/// What is told of rejected documents, before only their number is.
const MOST_TOLD: u64 = 10;

/// Flags of `stave import lines`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave import lines travel.jsonl --bucket travel
  stave import lines users.jsonl --bucket app --collection app.users --key 'user::%id%'
  stave import lines travel.jsonl --bucket travel --create-collections
  stave import lines - --bucket app --key '#UUID#' --dry-run < users.jsonl

Without --key each line is as `stave export` writes them: {\"key\":\"k\",\"value\":{...}}, maybe with collection, flags,
expiry and xattrs. With --key each line is the document itself, and its key is made of the pattern: %id% is the member
id, %at.city% one inside of another, #UUID# a random UUID, #MONO_INCR[100]# a number that counts from 100 on; %% and ##
stand for themselves.
A line that cannot be sent is rejected and the others are sent; --rejects keeps it as it was, to be sent again.")]
pub struct LinesFlags {
    #[command(flatten)]
    common: CommonFlags,
    /// How keys are made of documents, such as user::%id% or #UUID#
    #[arg(long, value_name = "PATTERN")]
    key: Option<KeyTemplate>,
}

/// Flags of `stave import csv`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave import csv users.csv --bucket app --key 'user::%id%'
  stave import csv users.tsv --bucket app --key '%email%' --separator '\\t' --infer-types
  stave import csv travel.csv --bucket travel

The first row has the names of the columns; each other row is a document with them. Patterns of --key are those of
`stave import lines`. Without --key the columns are those of `stave export --format csv`: key, value and others.")]
pub struct CsvFlags {
    #[command(flatten)]
    common: CommonFlags,
    /// How keys are made of rows, such as user::%id% or #UUID#; without it rows are whole documents, as `stave export
    /// --format csv` writes them
    #[arg(long, value_name = "PATTERN")]
    key: Option<KeyTemplate>,
    /// The character between fields; \t for a tab
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = separator)]
    separator: u8,
    /// Numbers, true and false become such values, and empty fields are left out; else everything is text
    #[arg(long, requires = "key")]
    infer_types: bool,
}

fn separator(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("give one ASCII character, or \\t".to_owned()),
    }
}

/// What both have.
#[derive(Clone, Debug, Args)]
struct CommonFlags {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where documents go whose line names no collection: scope.collection
    #[arg(long, value_name = "NAME", default_value = "_default._default")]
    collection: String,
    /// Make scopes and collections that the bucket lacks
    #[arg(long)]
    create_collections: bool,
    /// Leave documents alone that the bucket has already
    #[arg(long)]
    keep_existing: bool,
    /// Look at every line, and ask the nodes whether they would take it, but change nothing
    #[arg(long)]
    dry_run: bool,
    /// A new file that gets the lines that were rejected, as they were
    #[arg(long, value_name = "FILE")]
    rejects: Option<PathBuf>,
    /// The most documents a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs `stave import lines`.
pub fn run_lines(env: &Env, flags: &LinesFlags) -> anyhow::Result<Outcome> {
    let form = match &flags.key {
        None => Form::Exported,
        Some(key) => Form::Documents { key: key.clone() },
    };
    run(env, &flags.common, form)
}

/// Runs `stave import csv`.
pub fn run_csv(env: &Env, flags: &CsvFlags) -> anyhow::Result<Outcome> {
    let (key, separator, infers) = (flags.key.clone(), flags.separator, flags.infer_types);
    run(env, &flags.common, Form::Csv { key, separator, infers })
}

fn run(env: &Env, flags: &CommonFlags, form: Form) -> anyhow::Result<Outcome> {
    let mut documents = Documents::open(env, &flags.file, form)
        .with_context(|| format!("cannot read {}", flags.file.display()))?;
    let mut rejects = Rejects::open(env, flags, documents.head())?;
    let features = [Feature::Xattr, Feature::SubdocAllowsAccessOnMultipleXattrKeys];
    let cluster = Cluster::open(env, flags.server.target(Dialect::Couchbase)?, &features)?;
    let mut sender = LineSender::new(cluster, flags.keep_existing, flags.rate, env);
    if flags.create_collections {
        sender.create_collections();
    }
    if flags.dry_run {
        sender.only_try();
    }
    let mut line = StatusLine::new(env);
    let mut read = 0_u64;
    while let Some(next) = documents.next(env)? {
        read += 1;
        let rejected = match next.document {
            Err(why) => vec![Rejected { number: next.number, raw: next.raw, why }],
            Ok(mut document) => {
                document.collection.get_or_insert_with(|| flags.collection.clone());
                sender.send(next.number, next.raw, &document)?
            }
        };
        rejects.take(&rejected)?;
        line.show(|seconds| {
            format!(
                "{} lines, {}/s, {} rejected",
                thousands(read),
                (read as f64 / seconds) as u64,
                rejects.count
            )
        });
    }
    let (stored, kept, rejected) = sender.finish()?;
    line.end();
    rejects.take(&rejected)?;
    tell(flags, [read, stored, kept, rejects.finish()?])
}

/// Tells what became of the lines; an error if some were rejected.
fn tell(flags: &CommonFlags, [read, stored, kept, rejected]: [u64; 4]) -> anyhow::Result<Outcome> {
    if flags.json {
        let told = json!({
            "lines": read, "documents": stored, "kept": kept, "rejected": rejected, "dry_run": flags.dry_run,
        });
        print(&format!("{told}\n"))?;
    } else {
        let rows = [
            ("lines", read),
            (if flags.dry_run { "documents that would be sent" } else { "documents" }, stored),
            ("left as the bucket had them", kept),
            ("rejected", rejected),
        ];
        let row = |(name, count): &(&str, u64)| format!("{name:<30}  {}\n", thousands(*count));
        print(&rows.iter().map(row).collect::<String>())?;
    }
    if rejected > 0 {
        let kept = flags.rejects.as_ref().map_or_else(
            || "--rejects FILE keeps them".to_owned(),
            |path| format!("they are in {}", path.display()),
        );
        bail!("{} rejected; {kept}", counted(rejected, "line was", "lines were"));
    }
    Ok(Outcome::Done)
}

/// Lines that were rejected: the command tells and counts them, and keeps them in the file that --rejects names.
struct Rejects {
    file: Option<NewFile>,
    count: u64,
}

impl Rejects {
    fn open(env: &Env, flags: &CommonFlags, head: Option<&[u8]>) -> anyhow::Result<Rejects> {
        let Some(path) = &flags.rejects else { return Ok(Rejects { file: None, count: 0 }) };
        let mut file = NewFile::create(env, path)?;
        // Rows can be sent again only behind the names of their columns.
        file.write_all(head.unwrap_or_default())?;
        Ok(Rejects { file: Some(file), count: 0 })
    }

    fn take(&mut self, rejected: &[Rejected]) -> anyhow::Result<()> {
        for one in rejected {
            self.count += 1;
            if self.count <= MOST_TOLD {
                eprintln!("stave: line {}: {}", one.number, one.why);
            } else if self.count == MOST_TOLD + 1 {
                eprintln!("stave: further rejected lines are only counted");
            }
            if let Some(file) = &mut self.file {
                file.write_all(&one.raw).context("cannot write the rejected lines")?;
            }
        }
        Ok(())
    }

    /// Keeps the file; the number of rejected lines.
    fn finish(self) -> anyhow::Result<u64> {
        self.file.map(NewFile::keep).transpose()?;
        Ok(self.count)
    }
}
