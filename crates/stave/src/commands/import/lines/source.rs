//! Where documents come from: lines or rows of a file, one at a time.

use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use base::env::{Env, File, OpenMode};
use base::limits::MAX_VALUE_BYTES;
use serde_json::Value;

use crate::lines::{Body, JSON_FLAGS, KeyTemplate, Line, RowReader, row_as_json};

/// The longest line: a document of the largest size in base64, with its key, its attributes and some room.
const MOST_LINE_BYTES: u64 = 2 * MAX_VALUE_BYTES as u64 + (4 << 20);

/// What a line is.
pub(super) enum Form {
    /// As `stave export` writes them.
    Exported,
    /// The document alone.
    Documents { key: KeyTemplate },
    /// A row; without a pattern for keys as `stave export` writes them.
    Csv { key: Option<KeyTemplate>, separator: u8, infers: bool },
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

/// The fields of a row, or what is wrong with it.
type Fields = Result<Vec<String>, String>;

/// What was read of a file.
struct Read {
    number: u64,
    raw: Vec<u8>,
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
            let Some((head, columns)) = documents.row(separator)? else {
                bail!("it has no row with the names of columns")
            };
            documents.columns = columns.map_err(|why| anyhow::anyhow!("the names of columns: {why}"))?;
            documents.head = head.raw;
            documents.check_columns()?;
        }
        Ok(documents)
    }

    /// Whether rows can be made documents, and keys of them.
    fn check_columns(&self) -> anyhow::Result<()> {
        let columns = &self.columns;
        if columns.iter().any(|name| name.contains('\r')) {
            bail!("its lines end with CR alone: write it with LF, or CR and LF");
        }
        if let Some(twice) = columns.iter().enumerate().find(|(at, name)| columns[..*at].contains(name)) {
            bail!("two columns have the name `{}`: documents would have one of them", twice.1);
        }
        let Form::Csv { key, .. } = &self.form else { return Ok(()) };
        let Some(key) = key else { return Line::check_columns(columns).map_err(anyhow::Error::msg) };
        if let Some(missing) = key.members().find(|name| !columns.iter().any(|column| column == name)) {
            bail!(
                "there is no column `{missing}`, which the key is made of; there are: {}",
                columns.join(", ")
            );
        }
        Ok(())
    }

    /// The row with the names of columns, unchanged.
    pub(super) fn head(&self) -> Option<&[u8]> {
        (!self.head.is_empty()).then_some(&self.head)
    }

    /// The next document; empty lines are passed over.
    pub(super) fn next(&mut self, env: &Env) -> anyhow::Result<Option<NextLine>> {
        loop {
            let (read, fields) = match self.form {
                Form::Csv { separator, .. } => self.row(separator)?.unzip(),
                Form::Exported | Form::Documents { .. } => (self.line()?, None),
            };
            let Some(Read { number, raw }) = read else { return Ok(None) };
            if raw.trim_ascii().is_empty() {
                continue;
            }
            let document = match fields {
                Some(fields) => fields.and_then(|fields| self.document_of_row(env, &fields)),
                None => self.document(env, &raw),
            };
            self.made += 1;
            return Ok(Some(NextLine { number, raw, document }));
        }
    }

    fn document_of_row(&self, env: &Env, fields: &[String]) -> Result<Line, String> {
        let Form::Csv { key, infers, .. } = &self.form else { unreachable!("rows are read of CSV alone") };
        if fields.len() != self.columns.len() {
            return Err(format!("it has {} fields, the first row {}", fields.len(), self.columns.len()));
        }
        let Some(key) = key else { return Line::decode_row(&self.columns, fields) };
        let names = self.columns.iter().map(String::as_str);
        let value = row_as_json(names, fields.iter().map(String::as_str), *infers);
        let body = value.to_string();
        self.with_key(env, key, &value, body)
    }

    fn with_key(&self, env: &Env, key: &KeyTemplate, value: &Value, body: String) -> Result<Line, String> {
        let key = key.key(value, self.made, &mut || env.random.next_u64())?;
        Ok(Line { key: key.into_bytes(), flags: JSON_FLAGS, body: Body::Json(body), ..Line::default() })
    }

    fn document(&self, env: &Env, raw: &[u8]) -> Result<Line, String> {
        let text = std::str::from_utf8(raw).map_err(|error| format!("it is no UTF-8: {error}"))?;
        let text = text.trim_end_matches(['\n', '\r']);
        let Form::Documents { key } = &self.form else { return Line::decode(text) };
        let value: Value = serde_json::from_str(text).map_err(|error| no_json(&error))?;
        self.with_key(env, key, &value, text.trim().to_owned())
    }

    fn line(&mut self) -> anyhow::Result<Option<Read>> {
        let mut raw = Vec::new();
        self.append_line(&mut raw)?;
        Ok((!raw.is_empty()).then_some(Read { number: self.lines, raw }))
    }

    /// A row: lines until all quotes are closed, and its fields.
    fn row(&mut self, separator: u8) -> anyhow::Result<Option<(Read, Fields)>> {
        let (mut raw, mut row) = (Vec::new(), RowReader::new(separator));
        let number = self.lines + 1;
        loop {
            let before = raw.len();
            self.append_line(&mut raw)?;
            let line = &raw[before..];
            let is_first = number == 1 && before == 0;
            let line = line.strip_prefix("\u{feff}".as_bytes()).filter(|_| is_first).unwrap_or(line);
            if row.take(line) || raw.len() == before {
                return Ok((!raw.is_empty()).then_some((Read { number, raw }, row.fields())));
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

/// A file that is read from its start.
struct FromStart {
    file: Arc<dyn File>,
    at: u64,
}

impl io::Read for FromStart {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buf, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// What is wrong with a line that is no JSON. Its own number is told in front; that of the parser would be another one.
fn no_json(error: &serde_json::Error) -> String {
    let told = error.to_string();
    let what = told.split(" at line ").next().unwrap_or(&told);
    format!("it is no JSON: {what}, at byte {} of the line", error.column())
}
