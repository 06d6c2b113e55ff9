//! Documents as rows of CSV (RFC 4180): whole ones, which come back as they were, and some of their members.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::value::RawValue;

use super::{Body, Line, Ordered, decoded, key_of};

/// Columns of a whole document: what `stave export --format csv` writes, and `stave import csv` reads without `--key`.
const COLUMNS: [&str; 8] =
    ["key", "key_base64", "collection", "flags", "expiry", "xattrs", "value", "value_base64"];

/// The first row of whole documents.
pub(crate) fn whole_head() -> String {
    row(COLUMNS.into_iter())
}

/// Fields as one row with its end.
pub(crate) fn row<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::new();
    for (at, field) in fields.enumerate() {
        if at > 0 {
            out.push(',');
        }
        // Spaces at an end are kept by readers, but not by all of them.
        let has_space = field.trim() != field;
        if has_space || field.contains([',', '"', '\n', '\r']) {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(field);
        }
    }
    out.push('\n');
    out
}

/// A number that is not 0, as text.
fn if_any(number: u32) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

impl Line {
    /// The row of the whole document, with its end. JSON keeps all of its bytes.
    pub(crate) fn encode_row(&self) -> Result<String, serde_json::Error> {
        let key = std::str::from_utf8(&self.key).ok();
        let key_base64 = if key.is_none() { BASE64.encode(&self.key) } else { String::new() };
        let xattrs = self.xattrs.iter().map(|(name, json)| Ok((name.clone(), serde_json::from_str(json)?)));
        let xattrs: Vec<(String, &RawValue)> = xattrs.collect::<Result<_, serde_json::Error>>()?;
        let xattrs = if xattrs.is_empty() { String::new() } else { serde_json::to_string(&Ordered(xattrs))? };
        let (value, value_base64) = match &self.body {
            Body::Json(text) => (text.as_str(), String::new()),
            Body::Bytes(bytes) => ("", BASE64.encode(bytes)),
        };
        let (flags, expiry) = (if_any(self.flags), if_any(self.expiry));
        let collection = self.collection.as_deref().unwrap_or_default();
        let fields = [
            key.unwrap_or_default(),
            &key_base64,
            collection,
            &flags,
            &expiry,
            &xattrs,
            value,
            &value_base64,
        ];
        Ok(row(fields.into_iter()))
    }

    /// What is wrong with columns that are not those of whole documents.
    pub(crate) fn check_columns(columns: &[String]) -> Result<(), String> {
        let has = |name: &str| columns.iter().any(|column| column == name);
        let unknown = columns.iter().find(|column| !COLUMNS.contains(&column.as_str()));
        let advice = "if rows are documents themselves, say with --key how their keys are made";
        match unknown {
            Some(unknown) => {
                Err(format!("column `{unknown}` is none of `stave export --format csv`; {advice}"))
            }
            None if !has("key") && !has("key_base64") => Err(format!("there is no column `key`; {advice}")),
            None if !has("value") && !has("value_base64") => {
                Err(format!("there is no column `value`; {advice}"))
            }
            None => Ok(()),
        }
    }

    /// The document of a row whose columns were checked; what is wrong with one that is none.
    pub(crate) fn decode_row(columns: &[String], fields: &[String]) -> Result<Line, String> {
        let field = |name: &str| {
            let at = columns.iter().position(|column| column == name);
            at.and_then(|at| fields.get(at)).map(String::as_str).filter(|field| !field.is_empty())
        };
        let number = |name: &str| match field(name) {
            None => Ok(0),
            Some(text) => {
                text.parse::<u32>().map_err(|_| format!("{name} is no number of 32 bits: {text:?}"))
            }
        };
        let key = key_of(field("key"), field("key_base64"))?;
        let body = match (field("value"), field("value_base64")) {
            (Some(text), None) => {
                serde_json::from_str::<&RawValue>(text)
                    .map_err(|error| format!("value is no JSON: {error}"))?;
                Body::Json(text.trim().to_owned())
            }
            // An empty document has an empty field, too.
            (None, text) => Body::Bytes(decoded("value_base64", text.unwrap_or_default())?),
            (Some(_), Some(_)) => return Err("it needs either value or value_base64".to_owned()),
        };
        let xattrs = match field("xattrs") {
            None => Vec::new(),
            Some(text) => {
                let Ordered(members) = serde_json::from_str::<Ordered<'_>>(text)
                    .map_err(|error| format!("xattrs are no object: {error}"))?;
                members.into_iter().map(|(name, json)| (name, json.get().to_owned())).collect()
            }
        };
        let collection = field("collection").map(str::to_owned);
        Ok(Line { key, collection, flags: number("flags")?, expiry: number("expiry")?, xattrs, body })
    }

    /// The row of some members of the document behind its key, with its end; `None` if it is no JSON object, or its key no
    /// text. A member that is missing, or null, is an empty field; text is written as it is, everything else as JSON.
    pub(crate) fn encode_members(&self, members: &[MemberPath]) -> Option<String> {
        let key = std::str::from_utf8(&self.key).ok()?;
        let Body::Json(text) = &self.body else { return None };
        let document = object(text)?;
        let fields = members.iter().map(|path| path.text(&document).unwrap_or_default());
        let fields: Vec<String> = std::iter::once(key.to_owned()).chain(fields).collect();
        Some(row(fields.iter().map(String::as_str)))
    }
}

/// Members of an object, as they are written; `None` if it is none.
fn object(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

/// A member of a document, maybe one inside of others: `address.city`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberPath(String);

impl std::str::FromStr for MemberPath {
    type Err = String;

    fn from_str(text: &str) -> Result<MemberPath, String> {
        if text.split('.').any(str::is_empty) {
            return Err("write names of members with points between them, like address.city".to_owned());
        }
        Ok(MemberPath(text.to_owned()))
    }
}

impl MemberPath {
    /// Its name, which is the column's.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    fn text(&self, document: &BTreeMap<String, &RawValue>) -> Option<String> {
        let mut names = self.0.split('.');
        let mut json = document.get(names.next()?)?.get();
        for name in names {
            json = object(json)?.get(name)?.get();
        }
        match json {
            "null" => None,
            _ if json.starts_with('"') => serde_json::from_str(json).ok(),
            _ => Some(json.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lines::RowReader;

    fn fields(row: &str) -> Vec<String> {
        let mut reader = RowReader::new(b',');
        let mut lines = row.split_inclusive('\n').peekable();
        while let Some(line) = lines.next() {
            assert_eq!(reader.take(line.as_bytes()), lines.peek().is_none(), "{row:?}");
        }
        reader.fields().expect("a row")
    }

    #[test]
    fn a_row_quotes_what_has_to_be_quoted() {
        assert_eq!(
            row(["a", "", "5\"", "x,y", "two\nlines", " z"].into_iter()),
            "a,,\"5\"\"\",\"x,y\",\"two\nlines\",\" z\"\n"
        );
        assert_eq!(whole_head(), "key,key_base64,collection,flags,expiry,xattrs,value,value_base64\n");
    }

    #[test]
    fn members_are_columns() {
        let line =
            |body: &str| Line { key: b"k".to_vec(), body: Body::Json(body.to_owned()), ..Line::default() };
        let members = ["name", "address.city", "price", "tags"].map(|path| path.parse().expect("a path"));
        let row = |body: &str| line(body).encode_members(&members);
        assert_eq!(
            row(r#"{"name":"A, \"B\"","address":{"city":"Bern"},"price":1.50,"tags":["x"]}"#).as_deref(),
            Some("k,\"A, \"\"B\"\"\",Bern,1.50,\"[\"\"x\"\"]\"\n")
        );
        assert_eq!(row(r#"{"name":null,"address":7}"#).as_deref(), Some("k,,,,\n"));
        assert_eq!((row("7"), row("[]")), (None, None));
        for wrong in ["", "a..b", ".a", "a."] {
            assert!(wrong.parse::<MemberPath>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_row_of_an_export_is_refused_in_words() {
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (names, why) in [
            (&["id", "name"][..], "column `id` is none of `stave export --format csv`"),
            (&["value"], "there is no column `key`"),
            (&["key", "flags"], "there is no column `value`"),
        ] {
            let told = Line::check_columns(&columns(names)).expect_err("no whole documents");
            assert!(told.contains(why) && told.contains("--key"), "{told}");
        }
        let all = columns(&["key", "key_base64", "flags", "xattrs", "value", "value_base64"]);
        for (fields, why) in [
            (["", "", "", "", "1", ""], "either key or key_base64"),
            (["a", "YQ==", "", "", "1", ""], "either key or key_base64"),
            (["a", "", "", "", "1", "YQ=="], "either value or value_base64"),
            (["a", "", "x", "", "1", ""], "flags is no number"),
            (["a", "", "", "[]", "1", ""], "xattrs are no object"),
            (["a", "", "", "", "{", ""], "value is no JSON"),
            (["a", "", "", "", "", "?"], "value_base64 is not base64"),
        ] {
            let fields = columns(&fields);
            let told = Line::decode_row(&all, &fields).expect_err("no document");
            assert!(told.contains(why), "{told}");
        }
    }

    proptest! {
        #[test]
        fn every_document_comes_back(
            key in prop::collection::vec(any::<u8>(), 1..40),
            body in prop::collection::vec(any::<u8>(), 0..60),
            is_json in any::<bool>(),
            flags in any::<u32>(),
            expiry in any::<u32>(),
            has_xattrs in any::<bool>(),
        ) {
            // With ends of lines between its tokens, which a line of JSON does not keep.
            let text = serde_json::to_string(&String::from_utf8_lossy(&body)).expect("text");
            let body = if is_json { Body::Json(format!("[\r\n{text},\n 1.50]")) } else { Body::Bytes(body) };
            let xattrs = if has_xattrs { vec![("_sync".to_owned(), format!("{{\"a\":  {text}}}"))] } else { Vec::new() };
            let collection = Some("app.users".to_owned());
            let line = Line { key, collection, flags, expiry, xattrs, body };
            let columns = COLUMNS.map(str::to_owned);
            let row = line.encode_row().expect("JSON");
            prop_assert_eq!(Line::decode_row(&columns, &fields(&row)), Ok(line));
        }
    }
}
