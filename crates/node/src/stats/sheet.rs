//! A sheet of stats: names and values in the order in which they are sent.

use std::fmt::{self, Display, Write};

/// Names and values, all in one piece of text.
#[derive(Default)]
pub struct Sheet {
    text: String,
    /// Where each name and each value ends.
    ends: Vec<(usize, usize)>,
}

impl Sheet {
    /// Adds a stat.
    pub fn put(&mut self, name: impl Display, value: impl Display) {
        // Writing to a string fails only if the value says so, and then what it wrote stands.
        let _ = write!(self.text, "{name}");
        let name_end = self.text.len();
        let _ = write!(self.text, "{value}");
        self.ends.push((name_end, self.text.len()));
    }

    /// For stats whose names begin with `prefix` and a colon.
    pub fn under(&mut self, prefix: impl Display) -> Under<'_> {
        Under { prefix: format!("{prefix}:"), sheet: self }
    }

    /// About as many bytes as they take on their way.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.ends.len() * protocol::HEADER_BYTES
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        starts
            .zip(&self.ends)
            .map(|(start, &(name_end, end))| (&self.text[start..name_end], &self.text[name_end..end]))
    }
}

/// A part of a sheet whose names have a prefix in common.
pub struct Under<'a> {
    prefix: String,
    sheet: &'a mut Sheet,
}

impl Under<'_> {
    /// Adds a stat.
    pub fn put(&mut self, name: impl Display, value: impl Display) {
        self.sheet.put(format_args!("{}{name}", self.prefix), value);
    }
}

impl fmt::Debug for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
