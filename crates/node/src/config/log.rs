//! How much a node logs, how a line is written, and where to (record 0114).

use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;
use super::bucket::parse_size;

/// How large the file of the log becomes if nothing is said.
const DEFAULT_FILE_BYTES: u64 = 64 << 20;
/// The smallest that may be asked for: a file must hold what one turn of a busy second says.
const LEAST_FILE_BYTES: u64 = 64 << 10;
/// How many full files are kept if nothing is said.
const DEFAULT_KEPT: u32 = 8;
/// The most that may be kept: all are looked at when one is full.
const MOST_KEPT: u32 = 1_000;

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people: time, level, part, what happened, then names with values.
    #[default]
    Text,
    /// For machines: one object of JSON a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<LogFormat, &'static str> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("write text or json"),
        }
    }
}

/// What a configuration says of the log; where it is silent, the process decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// Levels: one for all, and others for parts.
    pub level: Option<String>,
    /// How a line is written.
    pub format: Option<LogFormat>,
    /// The file that lines go to, instead of standard error.
    pub file: Option<LogFile>,
}

/// A file that lines go to, and the earlier ones beside it: `FILE.1` is the newest of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Where it is.
    pub path: PathBuf,
    /// Size in bytes at which a file is full.
    pub bytes: u64,
    /// Number of full files that are kept.
    pub kept: u32,
}

impl LogFile {
    pub(super) fn checked(
        path: Option<PathBuf>,
        size: Option<&str>,
        kept: Option<u32>,
    ) -> Result<Option<LogFile>, ConfigError> {
        let Some(path) = path else {
            return match (size, kept) {
                (None, None) => Ok(None),
                _ => Err(ConfigError::LogFile("say where it is with log-file".to_owned())),
            };
        };
        let bytes = size.map_or(Ok(DEFAULT_FILE_BYTES), parse_size)?;
        let kept = kept.unwrap_or(DEFAULT_KEPT);
        if bytes < LEAST_FILE_BYTES {
            return Err(ConfigError::LogFile(format!("log-file-size = {bytes} bytes: give 64KiB or more")));
        }
        if kept > MOST_KEPT {
            return Err(ConfigError::LogFile(format!("log-files = {kept}: give 0 to {MOST_KEPT}")));
        }
        Ok(Some(LogFile { path, bytes, kept }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_size_and_a_number_of_earlier_ones() {
        let path = || Some(PathBuf::from("stave.log"));
        let made = |bytes, kept| Ok(Some(LogFile { path: "stave.log".into(), bytes, kept }));
        assert_eq!(LogFile::checked(path(), None, None), made(64 << 20, 8));
        assert_eq!(LogFile::checked(path(), Some("1MiB"), Some(0)), made(1 << 20, 0));
        assert_eq!(LogFile::checked(None, None, None), Ok(None));
        for (path, size, kept) in [
            (None, Some("1MiB"), None),
            (None, None, Some(1)),
            (path(), Some("1KiB"), None),
            (path(), None, Some(1_001)),
        ] {
            let refused = LogFile::checked(path, size, kept);
            assert!(matches!(refused, Err(ConfigError::LogFile(_) | ConfigError::Quota(_))), "{refused:?}");
        }
    }
}
