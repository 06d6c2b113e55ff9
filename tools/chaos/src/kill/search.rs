//! What stands in clear in the files that a killed node has left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::document;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// How keys of documents begin.
    Key,
    /// How bodies of documents begin.
    Body,
    /// The password of a user.
    Password,
    /// The key that the files are encrypted under.
    WrappingKey,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Key, Kind::Body, Kind::Password, Kind::WrappingKey];
}

/// What is looked for, and how it reads.
pub struct Sought(Vec<(Kind, Vec<u8>)>);

/// What was found.
#[derive(Default)]
pub struct InClear {
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How often each kind was found, and where first.
    hits: BTreeMap<Kind, (u64, PathBuf)>,
}

impl Sought {
    /// Of so many writers, of a user with this password, and of files under this key in hexadecimal digits.
    pub fn new(writers: u32, password: &str, wrapping_key: &str) -> Sought {
        let keys = (0..writers).map(|writer| (Kind::Key, document::key_begin(writer).into_bytes()));
        let digits = |at: usize| u8::from_str_radix(wrapping_key.get(at..at + 2)?, 16).ok();
        let raw: Vec<u8> = (0..wrapping_key.len()).step_by(2).filter_map(digits).collect();
        let others = [
            (Kind::Body, document::MARK.to_vec()),
            (Kind::Password, password.as_bytes().to_vec()),
            (Kind::WrappingKey, wrapping_key.as_bytes().to_vec()),
            (Kind::WrappingKey, raw),
        ];
        Sought(keys.chain(others).collect())
    }

    /// The same without keys of documents, which a log may name.
    pub fn without_keys(self) -> Sought {
        Sought(self.0.into_iter().filter(|(kind, _)| *kind != Kind::Key).collect())
    }

    /// Looks into each file below a folder.
    pub fn below(&self, folder: &Path, found: &mut InClear) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                self.below(&path, found)?;
            } else if path.is_file() {
                self.in_file(&path, found)?;
            }
        }
        Ok(())
    }

    /// Looks into a file.
    pub fn in_file(&self, path: &Path, found: &mut InClear) -> Result<()> {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        found.files += 1;
        found.bytes += content.len() as u64;
        // One pass for all: most bytes begin none of them.
        let mut begins = [const { Vec::new() }; 256];
        for (kind, text) in &self.0 {
            if let Some(first) = text.first() {
                begins[usize::from(*first)].push((*kind, text));
            }
        }
        for (at, byte) in content.iter().enumerate() {
            for (kind, text) in &begins[usize::from(*byte)] {
                if content[at..].starts_with(text) {
                    found.hits.entry(*kind).or_insert_with(|| (0, path.to_owned())).0 += 1;
                }
            }
        }
        Ok(())
    }
}

impl InClear {
    /// Whether nothing was found.
    pub fn is_nothing(&self) -> bool {
        self.hits.is_empty()
    }

    /// Whether what a node without encryption leaves was found, and no secret.
    pub fn is_documents_alone(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.hits.contains_key(kind) == matches!(kind, Kind::Key | Kind::Body))
    }

    /// What was found, in words.
    pub fn told(&self) -> String {
        let of = |kind: &Kind| match self.hits.get(kind) {
            None => format!("{kind:?} 0"),
            Some((count, path)) => format!("{kind:?} {count} (first in {})", path.display()),
        };
        let hits: Vec<String> = Kind::ALL.iter().map(of).collect();
        format!("searched {} files with {} bytes; in clear: {}", self.files, self.bytes, hits.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff";
    const RAW: &[u8] = b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";

    #[test]
    fn finds_what_is_in_clear_wherever_it_is() {
        let folder = harness::tree::Scratch::new("search").unwrap();
        let below = folder.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let look = |sought: Sought| {
            let mut found = InClear::default();
            sought.below(folder.path(), &mut found).unwrap();
            found
        };
        fs::write(below.join("sealed"), [7; 100_000]).unwrap();
        let found = look(Sought::new(2, "unmistakable", KEY));
        assert!(found.is_nothing() && !found.is_documents_alone(), "{}", found.told());
        assert_eq!((found.files, found.bytes), (1, 100_000));
        let value = document::value(b"kill-1-0-0", 1);
        let body = (1..).map(|version| document::value(b"kill-1-0-0", version));
        let body = body.take(100).find(|value| value.len() > 100).unwrap_or(value);
        fs::write(
            folder.path().join("plain"),
            [[7; 4095].as_slice(), b"kill-1-0-0", body.as_slice()].concat(),
        )
        .unwrap();
        let found = look(Sought::new(2, "unmistakable", KEY));
        assert!(found.is_documents_alone(), "{}", found.told());
        for (name, content) in
            [("password", b"unmistakable".as_slice()), ("raw", RAW), ("hex", KEY.as_bytes())]
        {
            fs::write(below.join(name), content).unwrap();
            let found = look(Sought::new(2, "unmistakable", KEY).without_keys());
            assert!(!found.is_nothing() && !found.is_documents_alone(), "{name}: {}", found.told());
            fs::remove_file(below.join(name)).unwrap();
        }
    }
}
