//! Where documents come from: lines or rows of a file, one at a time.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use base::env::{Env, File, OpenMode};
use base::limits::MAX_VALUE_BYTES;
use serde_json::Value;

use crate::lines::{Body, JSON_FLAGS, KeyTemplate, Line, row_as_json};

/// The longest line: a document of the largest size in base64, with its key, its attributes and some room.
const MOST_LINE_BYTES: u64 = 2 * MAX_VALUE_BYTES as u64 + (4 << 20);

/// What a line is.
pub(super) enum Form {
    /// As `stave export` writes them.
    Exported,
    /// The document alone.
    Documents { key: KeyTemplate },
    /// A row.
    Csv { key: KeyTemplate, separator: u8, infers: bool },
}

/// One line, and the document that it is.
pub(super) struct NextLine {
    /// From 1 on; of a row that has several lines the first.
    pub(super) number: u64,
    /// As it was, with its end.
    pub(super) raw: Vec<u8>,
    /// What is wrong with a line that is none.
    pub(super) document: Result<Line, String>,
}

/// Documents of a file.
pub(super) struct Documents {
    input: Box<dyn BufRead>,
    form: Form,
    /// Lines that were read.
    lines: u64,
    /// Documents that were made.
    made: u64,
    columns: Vec<String>,
    head: Vec<u8>,
}

impl Documents {
    /// Opens a file, or standard input for `-`. Of rows the first is read.
    pub(super) fn open(env: &Env, path: &Path, form: Form) -> anyhow::Result<Documents> {
        let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
            Box::new(BufReader::with_capacity(1 << 20, io::stdin()))
        } else {
            let file = env.disk.open(path, OpenMode::Read)?;
            Box::new(BufReader::with_capacity(1 << 20, FromStart { file, at: 0 }))
        };
        let mut documents =
            Documents { input, form, lines: 0, made: 0, columns: Vec::new(), head: Vec::new() };
        if let Form::Csv { separator, .. } = documents.form {
            let Some((_, head)) = documents.row()? else { bail!("it has no row with the names of columns") };
            let text = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&head);
            documents.columns = fields(text, separator).map_err(anyhow::Error::msg)?;
            documents.head = head;
        }
        Ok(documents)
    }

    /// The row with the names of columns, unchanged.
    pub(super) fn head(&self) -> Option<&[u8]> {
        (!self.head.is_empty()).then_some(&self.head)
    }

    /// The next document; empty lines are passed over.
    pub(super) fn next(&mut self, env: &Env) -> anyhow::Result<Option<NextLine>> {
        loop {
            let read = if matches!(self.form, Form::Csv { .. }) { self.row()? } else { self.line()? };
            let Some((number, raw)) = read else { return Ok(None) };
            if raw.trim_ascii().is_empty() {
                continue;
            }
            let document = self.document(env, &raw);
            self.made += 1;
            return Ok(Some(NextLine { number, raw, document }));
        }
    }

    fn document(&self, env: &Env, raw: &[u8]) -> Result<Line, String> {
        let text = std::str::from_utf8(raw).map_err(|error| format!("it is no UTF-8: {error}"))?;
        let text = text.trim_end_matches(['\n', '\r']);
        let (key, value, body) = match &self.form {
            Form::Exported => return Line::decode(text),
            Form::Documents { key } => {
                let value: Value =
                    serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
                (key, value, text.trim().to_owned())
            }
            Form::Csv { key, separator, infers } => {
                let fields = fields(raw, *separator)?;
                if fields.len() != self.columns.len() {
                    return Err(format!(
                        "it has {} fields, the first row {}",
                        fields.len(),
                        self.columns.len()
                    ));
                }
                let names = self.columns.iter().map(String::as_str);
                let value = row_as_json(names, fields.iter().map(String::as_str), *infers);
                let body = value.to_string();
                (key, value, body)
            }
        };
        let key = key.key(&value, self.made, &mut || env.random.next_u64())?;
        Ok(Line { key: key.into_bytes(), flags: JSON_FLAGS, body: Body::Json(body), ..Line::default() })
    }

    fn line(&mut self) -> anyhow::Result<Option<(u64, Vec<u8>)>> {
        let mut line = Vec::new();
        self.append_line(&mut line)?;
        Ok((!line.is_empty()).then_some((self.lines, line)))
    }

    /// A row: lines until all quotes are closed.
    fn row(&mut self) -> anyhow::Result<Option<(u64, Vec<u8>)>> {
        let mut row = Vec::new();
        let first = self.lines + 1;
        loop {
            let before = row.len();
            self.append_line(&mut row)?;
            let quotes = row.iter().filter(|byte| **byte == b'"').count();
            if row.len() == before || quotes.is_multiple_of(2) {
                return Ok((!row.is_empty()).then_some((first, row)));
            }
        }
    }

    fn append_line(&mut self, line: &mut Vec<u8>) -> anyhow::Result<()> {
        let room = MOST_LINE_BYTES.saturating_sub(line.len() as u64);
        let read = (&mut self.input).take(room).read_until(b'\n', line)?;
        if read > 0 {
            self.lines += 1;
        }
        if read as u64 == room && line.last() != Some(&b'\n') {
            bail!("line {} is longer than any document: is this the right file?", self.lines.max(1));
        }
        Ok(())
    }
}

/// Fields of one row (RFC 4180).
fn fields(row: &[u8], separator: u8) -> Result<Vec<String>, String> {
    let mut builder = csv::ReaderBuilder::new();
    builder.delimiter(separator).has_headers(false).flexible(true).buffer_capacity(row.len());
    let mut reader = builder.from_reader(row);
    let mut record = csv::StringRecord::new();
    reader.read_record(&mut record).map_err(|error| error.to_string())?;
    Ok(record.iter().map(str::to_owned).collect())
}

/// A file that is read from its start.
struct FromStart {
    file: Arc<dyn File>,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
