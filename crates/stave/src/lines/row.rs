//! A row of CSV, taken apart as its lines are read (RFC 4180).

/// Takes the lines of one row. A quote within a field that does not begin with one is text, as `5"` is.
pub(crate) struct RowReader {
    separator: u8,
    place: FieldPlace,
    /// Fields that ended.
    fields: Vec<Vec<u8>>,
    field: Vec<u8>,
    /// What is wrong with the row.
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldPlace {
    /// Before the first byte of a field.
    Begin,
    /// In a field without quotes.
    Plain,
    /// Between quotes.
    Quoted,
    /// Behind a quote that closes the field, or is the first of two.
    Closed,
}

impl RowReader {
    /// Before the first line of a row.
    pub(crate) fn new(separator: u8) -> RowReader {
        RowReader { separator, place: FieldPlace::Begin, fields: Vec::new(), field: Vec::new(), wrong: None }
    }

    /// Takes a line with its end; whether the row ends with it.
    pub(crate) fn take(&mut self, line: &[u8]) -> bool {
        for (at, byte) in line.iter().enumerate() {
            if self.place != FieldPlace::Quoted && matches!(&line[at..], b"\n" | b"\r\n" | b"\r") {
                break;
            }
            self.byte(*byte);
        }
        self.place != FieldPlace::Quoted
    }

    fn byte(&mut self, byte: u8) {
        match (self.place, byte) {
            (FieldPlace::Begin, b'"') => self.place = FieldPlace::Quoted,
            (FieldPlace::Quoted, b'"') => self.place = FieldPlace::Closed,
            (FieldPlace::Closed, b'"') => {
                self.place = FieldPlace::Quoted;
                self.field.push(byte);
            }
            (FieldPlace::Begin | FieldPlace::Plain | FieldPlace::Closed, _) if byte == self.separator => {
                self.place = FieldPlace::Begin;
                self.fields.push(std::mem::take(&mut self.field));
            }
            (FieldPlace::Closed, _) => {
                let number = self.fields.len() + 1;
                let what = format!(
                    "field {number} goes on behind the quote that closes it; a quote inside of quotes is written twice"
                );
                self.wrong.get_or_insert(what);
                self.place = FieldPlace::Plain;
            }
            (FieldPlace::Begin | FieldPlace::Plain, _) => {
                self.place = FieldPlace::Plain;
                self.field.push(byte);
            }
            (FieldPlace::Quoted, _) => self.field.push(byte),
        }
    }

    /// The fields of the row.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn fields(mut self) -> Result<Vec<String>, String> {
        if self.place == FieldPlace::Quoted {
            let number = self.fields.len() + 1;
            return Err(format!(
                "the quote that opens field {number} is not closed up to the end of the file"
            ));
        }
        self.fields.push(self.field);
        let text = |field| String::from_utf8(field).map_err(|error| format!("it is no UTF-8: {error}"));
        self.wrong.map_or_else(|| self.fields.into_iter().map(text).collect(), Err)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(lines: &[&str]) -> Result<Vec<String>, String> {
        let mut row = RowReader::new(b',');
        let (last, before) = lines.split_last().expect("a line");
        assert!(before.iter().all(|line| !row.take(line.as_bytes())), "the row ended too early");
        row.take(last.as_bytes());
        row.fields()
    }

    #[test]
    fn a_quote_in_a_field_without_quotes_is_text() {
        let ok = |lines: &[&str]| read(lines).expect("a row").join("|");
        assert_eq!(ok(&["1,5\",screen\n"]), "1|5\"|screen");
        assert_eq!(ok(&["1,x\"y\r\n"]), "1|x\"y");
        assert_eq!(ok(&["\"a\"\"b\",,\"\"\n"]), "a\"b||");
        assert_eq!(ok(&["\"two\n", "lines\",x"]), "two\nlines|x");
        assert_eq!(ok(&["a\rb,c\r"]), "a\rb|c");
        for (lines, why) in [
            (&["\"x\"y,z\n"][..], "field 1 goes on behind the quote"),
            (&["1,\"open\n", "2,3\n"], "the quote that opens field 2 is not closed"),
        ] {
            let told = read(lines).expect_err("no row");
            assert!(told.contains(why), "{told}");
        }
    }

    proptest! {
        #[test]
        fn what_a_writer_writes_comes_back(
            fields in prop::collection::vec("[a,\"\r\n;ä ]{0,6}", 1..6),
            always_quotes in any::<bool>(),
        ) {
            let style = if always_quotes { csv::QuoteStyle::Always } else { csv::QuoteStyle::Necessary };
            let mut writer = csv::WriterBuilder::new().quote_style(style).from_writer(Vec::new());
            writer.write_record(&fields).expect("written");
            let row = writer.into_inner().expect("flushed");
            let mut reader = RowReader::new(b',');
            let mut ended = false;
            for line in row.split_inclusive(|byte| *byte == b'\n') {
                prop_assert!(!ended);
                ended = reader.take(line);
            }
            prop_assert!(ended);
            prop_assert_eq!(reader.fields(), Ok(fields));
        }
    }
}
