//! The log of a process that serves: how much, how a line is written and where to, as flags, environment and
//! configuration say (record 0114).

mod file;
mod keys;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use base::encryption::WrappingKeys;
use base::env::Env;
use node::Node;
use node::config::{LogConfig, LogFormat};
use node::log_levels::LogLevels;
use node::recent_log::RecentLog;
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::cli::WrongArguments;
use crate::cli::variables::distance;
use file::OpenLog;
use keys::LogKeys;

/// What is logged if `STAVE_LOG` is not set.
const DEFAULT: &str = "info";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// A part that differs by more letters was not meant.
const MOST_MISTYPED: usize = 2;
/// The parts that log: `target` of a line begins with one of them.
const PARTS: [&str; 8] = ["dcp", "dev", "engine", "kvstore", "logstore", "node", "server", "stave"];

type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// What became of what the configuration says of the log.
pub struct FollowedLog {
    /// How much is logged, and by whose word.
    pub levels: String,
    /// Names of the settings that are different now.
    pub taken: Vec<String>,
}

/// The log, which can be told to say more or less, in another form, or elsewhere.
pub struct Log {
    lines: reload::Handle<Lines, Registry>,
    destination: Destination,
    /// What STAVE_LOG says, which wins over the configuration.
    by_environment: Option<String>,
    format: LogFormat,
    /// The file of the configuration.
    file: Option<PathBuf>,
    keys: LogKeys,
    /// The last lines.
    pub recent: RecentLog,
    /// How much is logged.
    pub levels: LogLevels,
}

impl Log {
    /// Starts it, to standard error. A log that was started before in this process stays as it is.
    pub fn start() -> anyhow::Result<Log> {
        let by_environment = environment("STAVE_LOG");
        let wanted = by_environment.as_deref().unwrap_or(DEFAULT);
        let levels_filter =
            filter(wanted).map_err(|why| WrongArguments(format!("STAVE_LOG={wanted}: {why}")))?;
        let format = environment("STAVE_LOG_FORMAT").map_or(Ok(LogFormat::Text), |format| {
            format.parse().map_err(|why| WrongArguments(format!("STAVE_LOG_FORMAT={format}: {why}")))
        })?;
        let destination = Destination::default();
        let (lines, lines_handle) = reload::Layer::new(layer(format, &destination));
        let (layer_of_levels, filter_handle) = reload::Layer::new(levels_filter);
        let recent = RecentLog::default();
        let kept = tracing_subscriber::fmt::layer().with_writer(RecentLines(recent.clone()));
        let kept = kept.log_internal_errors(false).json().flatten_event(true);
        let _ = tracing_subscriber::registry().with(lines).with(kept).with(layer_of_levels).try_init();
        let levels = LogLevels::default();
        levels.drive(wanted, move |wanted| {
            filter_handle.reload(filter(wanted)?).map_err(|error| error.to_string())
        });
        let (lines, keys) = (lines_handle, LogKeys::default());
        Ok(Log { lines, destination, by_environment, format, file: None, keys, recent, levels })
    }

    /// Logs as the configuration says; its level counts if STAVE_LOG says nothing. What is different now, or why nothing
    /// is. A file is opened again, so that a tool may have moved it away. If the first call has a wrapping key, files are
    /// encrypted from then on.
    pub fn follow(
        &mut self,
        env: &Env,
        configured: &LogConfig,
        wrapping: Option<&WrappingKeys>,
        rotates: bool,
    ) -> Result<FollowedLog, String> {
        self.keys.decide(wrapping.is_some());
        let wanted = configured.level.as_deref().unwrap_or(DEFAULT);
        filter_of(configured)?;
        let file = match &configured.file {
            Some(file) => {
                let disk = self.keys.disk(env, &file.path, wrapping, rotates)?;
                let opened = OpenLog::open(disk, file.clone());
                Some(opened.map_err(|error| format!("log-file {}: {error}", file.path.display()))?)
            }
            None => None,
        };
        let format = configured.format.unwrap_or_default();
        let is_moved = file.is_some() != self.destination.is_file();
        let path = configured.file.as_ref().map(|file| file.path.clone());
        let mut differs = vec![("log-format", format != self.format), ("log-file", path != self.file)];
        self.file = path;
        *self.destination.0.lock() = file;
        if format != self.format || is_moved {
            let lines = layer(format, &self.destination);
            self.lines.reload(lines).map_err(|error| error.to_string())?;
            self.format = format;
        }
        let before = self.levels.levels().present;
        let (followed, levels) = match &self.by_environment {
            Some(stays) => (stays.as_str(), format!("the log stays as STAVE_LOG={stays} has it")),
            None => (wanted, format!("log = {wanted:?}")),
        };
        self.levels.follow(followed)?;
        differs.push(("log", before != followed));
        let taken = differs.into_iter().filter(|(_, differs)| *differs);
        Ok(FollowedLog { levels, taken: taken.map(|(name, _)| name.to_owned()).collect() })
    }
}

impl Log {
    /// Has a node exchange the keys of the log with its own.
    pub fn hand_over_keys(&mut self, node: &Node) {
        self.keys.hand_over(node);
    }
}

/// Keeps the last lines in memory.
#[derive(Clone)]
struct RecentLines(RecentLog);

impl Write for &RecentLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line.trim_ascii_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for RecentLines {
    type Writer = &'a RecentLines;

    fn make_writer(&'a self) -> &'a RecentLines {
        self
    }
}

/// Where lines go: standard error, or a file.
#[derive(Clone, Default)]
struct Destination(Arc<Mutex<Option<OpenLog>>>);

impl Destination {
    fn is_file(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl Write for &Destination {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock() {
            Some(file) => file.write(line),
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Destination {
    type Writer = &'a Destination;

    fn make_writer(&'a self) -> &'a Destination {
        self
    }
}

/// How events become lines. A line that cannot be written, as when the terminal is gone, ends nothing.
fn layer(format: LogFormat, destination: &Destination) -> Lines {
    let lines = tracing_subscriber::fmt::layer().with_writer(destination.clone()).log_internal_errors(false);
    match format {
        // Colours are for people.
        LogFormat::Text => {
            let is_read_by_people = !destination.is_file() && io::stderr().is_terminal();
            lines.with_ansi(is_read_by_people).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// What an environment variable says, if it says anything.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// What the configuration says of levels, understood.
pub fn filter_of(configured: &LogConfig) -> Result<EnvFilter, String> {
    let wanted = configured.level.as_deref().unwrap_or(DEFAULT);
    filter(wanted).map_err(|why| format!("log = {wanted:?}: {why}"))
}

/// Understands `LEVEL`, and for developers `PART=LEVEL`, several of them with commas between.
pub fn filter(wanted: &str) -> Result<EnvFilter, String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let mut says_of_all = false;
    for word in wanted.split(',').map(str::trim) {
        let level = match word.rsplit_once('=') {
            Some((part, level)) if !part.is_empty() => {
                check_part(part.trim_end())?;
                level.trim_start()
            }
            _ => {
                says_of_all = true;
                word
            }
        };
        if !is_level(level) {
            return Err(format!(
                "there is no level {level:?}: give error, warn, info (the default) or debug; off and trace, too"
            ));
        }
    }
    // A part alone does not turn everything else off.
    let whole = if says_of_all { wanted.to_owned() } else { format!("{DEFAULT},{wanted}") };
    EnvFilter::try_new(whole.replace(' ', "")).map_err(|error| error.to_string())
}

/// Refuses what is no part, nor a module of one (`engine::flusher`), as far as names tell: the log would not change.
fn check_part(part: &str) -> Result<(), String> {
    let (name, modules) = part.split_once("::").map_or((part, None), |(name, rest)| (name, Some(rest)));
    let is_module = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    };
    if !PARTS.contains(&name) {
        let nearest = PARTS.iter().min_by_key(|known| distance(name.as_bytes(), known.as_bytes()));
        let near = nearest.filter(|near| distance(name.as_bytes(), near.as_bytes()) <= MOST_MISTYPED);
        let meant = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
        return Err(format!(
            "no part {name:?} logs anything{meant}: give one of {}, or one of their modules, such as engine::flusher",
            PARTS.join(", ")
        ));
    }
    match modules {
        Some(modules) if !modules.split("::").all(is_module) => Err(format!(
            "{part:?} is no module of {name}: write it as engine::flusher, the `target` of a line"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The reference is made from the code's own log lines.
    #[test]
    fn the_parts_are_those_that_log() {
        let reference = include_str!("../../../docs/reference/log_events.md");
        let rows = reference.lines().filter(|line| line.starts_with("| `"));
        let named = rows.filter_map(|row| row.split('|').nth(3)).flat_map(|parts| parts.split(','));
        let named: BTreeSet<&str> = named.map(str::trim).collect();
        assert_eq!(named, BTreeSet::from(PARTS));
    }

    #[test]
    fn a_part_that_there_is_not_is_refused_with_those_that_there_are() {
        for (wanted, words) in [
            (
                "engin=debug",
                "no part \"engin\" logs anything (did you mean engine?): give one of dcp, dev, engine, ",
            ),
            ("warn, Node=debug", "no part \"Node\" logs anything (did you mean node?)"),
            ("info,rustls=debug", "no part \"rustls\" logs anything: give one of"),
            ("engine[span]=debug", "no part \"engine[span]\""),
            ("engine::=debug", "\"engine::\" is no module of engine"),
            ("engine::a b=debug", "\"engine::a b\" is no module of engine"),
        ] {
            let why = filter(wanted).expect_err(wanted);
            assert!(why.contains(words), "{wanted}: {why}");
        }
        for right in ["engine::flusher=debug", "stave=trace,node = warn", "server=off"] {
            filter(right).expect(right);
        }
    }

    #[test]
    fn only_levels_are_levels() {
        for (wanted, is) in [
            ("info", "info"),
            ("DEBUG", "debug"),
            ("off", "off"),
            ("warn, engine=debug", "engine=debug,warn"),
            ("kvstore=debug", "kvstore=debug,info"),
        ] {
            assert_eq!(filter(wanted).expect(wanted).to_string(), is);
        }
        for wrong in ["verbose", "", "infos", "engine=loud", "info,,warn", "5", "engine"] {
            let why = filter(wrong).expect_err(wrong);
            assert!(why.contains("error, warn, info (the default) or debug"), "{why}");
        }
    }
}
