//! What a repair says before it changes anything: a row for each damaged vBucket, and why; what becomes of small files.

use std::io::{self, Write};
use std::path::Path;

use base::Seqno;
use kvstore::repair::{Damaged, Survey};
use node::small_files::{Cure, Mending};
use serde_json::{Value, json};

use crate::units::thousands;

const HEAD: [&str; 6] = ["bucket", "vbucket", "kept seqno", "lost seqnos", "documents", "goes on from"];

/// Prints lines as they come, and the rows last.
pub(super) struct LossReport<'o> {
    json: bool,
    out: &'o mut dyn Write,
    rows: Vec<[String; 6]>,
    is_clean: bool,
}

impl<'o> LossReport<'o> {
    pub(super) fn new(json: bool, out: &'o mut dyn Write) -> LossReport<'o> {
        LossReport { json, out, rows: Vec::new(), is_clean: true }
    }

    /// What was found in a bucket.
    pub(super) fn bucket(&mut self, name: &str, survey: &Survey, small: &[Mending]) -> io::Result<()> {
        self.is_clean &= survey.is_clean();
        for (path, offset, what) in &survey.faults {
            let file = path.display().to_string();
            match self.json {
                true => writeln!(
                    self.out,
                    "{}",
                    json!({ "type": "fault", "bucket": name, "file": file, "offset": offset, "what": what })
                )?,
                false => writeln!(self.out, "{file}: offset {offset}: {what}")?,
            }
        }
        for (vb, damaged) in &survey.vbuckets {
            if self.json {
                writeln!(self.out, "{}", damaged_json(name, vb.0, damaged))?;
            } else {
                writeln!(self.out, "{name}: vBucket {vb}: {}", damaged.what)?;
                self.rows.push(row(name, vb.0, damaged));
            }
        }
        self.small_files(Some(name), small)
    }

    /// What becomes of small files of a bucket, or of the node.
    pub(super) fn small_files(&mut self, bucket: Option<&str>, all: &[Mending]) -> io::Result<()> {
        for Mending { path, what, cure, then } in all {
            self.is_clean = false;
            let file = path.display();
            if self.json {
                let (file, cure) = (file.to_string(), cure.name());
                let line = json!({ "type": "small_file", "bucket": bucket, "file": file, "what": what, "cure": cure,
                    "lost": then });
                writeln!(self.out, "{line}")?;
            } else {
                let by_hand = if *cure == Cure::ByHand { " (not repaired here)" } else { "" };
                writeln!(self.out, "{file}: {what}; lost: {then}{by_hand}")?;
            }
        }
        Ok(())
    }

    /// Prints the rows; whether nothing is damaged.
    pub(super) fn end(self) -> io::Result<bool> {
        if !self.rows.is_empty() {
            let rows = [HEAD.map(str::to_owned)].into_iter().chain(self.rows).collect::<Vec<_>>();
            let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let [bucket, vb, kept, lost, documents] = [0, 1, 2, 3, 4].map(width);
            for [a, b, c, d, e, f] in &rows {
                writeln!(self.out, "{a:bucket$}  {b:>vb$}  {c:>kept$}  {d:>lost$}  {e:>documents$}  {f}")?;
            }
        }
        Ok(self.is_clean)
    }
}

fn row(bucket: &str, vb: u16, damaged: &Damaged) -> [String; 6] {
    let Damaged { file, kept, documents, promised, may_be_more, holes, .. } = damaged;
    let first = kept.0 + 1;
    let lost = match promised {
        _ if damaged.loses_nothing() => "none".to_owned(),
        _ if !holes.is_empty() => format!("some of {}", ranges(holes)),
        Some(promised) if promised > kept && *may_be_more => format!("{first}-{promised} or more"),
        Some(promised) if promised > kept => format!("{first}-{promised}"),
        _ => format!("unknown, from {first}"),
    };
    let from = match file {
        Some(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        None if kept.0 > 0 => "the journal".to_owned(),
        None => "nothing: it begins empty".to_owned(),
    };
    let documents = documents.map_or_else(|| "-".to_owned(), thousands);
    [bucket.to_owned(), vb.to_string(), kept.to_string(), lost, documents, from]
}

/// Ranges of seqnos, the first few of them.
fn ranges(holes: &[(Seqno, Seqno)]) -> String {
    const MOST: usize = 3;
    let range = |(first, last): &(Seqno, Seqno)| format!("{first}-{last}");
    let told: Vec<String> = holes.iter().take(MOST).map(range).collect();
    let more = if holes.len() > MOST { " and more" } else { "" };
    format!("{}{more}", told.join(", "))
}

fn damaged_json(bucket: &str, vb: u16, damaged: &Damaged) -> Value {
    let ids = damaged.collections.as_ref();
    json!({
        "type": "damage",
        "bucket": bucket,
        "vbucket": vb,
        "what": damaged.what,
        "file": damaged.file.as_ref().map(|path| path.display().to_string()),
        "committed_ns": damaged.committed_ns,
        "kept_seqno": damaged.kept.0,
        "documents": damaged.documents,
        "promised_seqno": damaged.promised.map(|promised| promised.0),
        "may_be_more": damaged.may_be_more,
        "loses_nothing": damaged.loses_nothing(),
        "lost_documents": damaged.lost_documents,
        "holes": damaged.holes.iter().map(|(first, last)| [first.0, last.0]).collect::<Vec<_>>(),
        "collections": ids.map(|ids| ids.iter().map(|id| format!("{:#x}", id.0)).collect::<Vec<_>>()),
    })
}

/// What was done to a bucket.
pub(super) fn repaired_json(bucket: &str, vbuckets: usize, aside: &Path, is_whole: bool) -> Value {
    json!({
        "type": "repaired",
        "bucket": bucket,
        "vbuckets": vbuckets,
        "kept_aside": aside.display().to_string(),
        "is_whole": is_whole,
    })
}
