//! The log of a process that serves: to standard error, as much of it as STAVE_LOG or the configuration says.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::WrongArguments;

/// What is logged if `STAVE_LOG` is not set.
const DEFAULT: &str = "info";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The log, which can be told to say more or less.
pub struct Log {
    change: Box<dyn Fn(EnvFilter) -> Result<(), String>>,
    /// What STAVE_LOG says, which wins over the configuration.
    by_environment: Option<String>,
}

impl Log {
    /// Starts it. A log that was started before in this process stays as it is.
    pub fn start() -> anyhow::Result<Log> {
        let by_environment = std::env::var("STAVE_LOG").ok().filter(|wanted| !wanted.trim().is_empty());
        let wanted = by_environment.as_deref().unwrap_or(DEFAULT);
        let filter = filter(wanted).map_err(|why| WrongArguments(format!("STAVE_LOG={wanted}: {why}")))?;
        // Colours are for people. A log that cannot be written, as when the terminal is gone, ends nothing.
        let log = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .log_internal_errors(false)
            .with_env_filter(filter)
            .with_filter_reloading();
        let handle = log.reload_handle();
        let _ = log.try_init();
        let change = Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()));
        Ok(Log { change, by_environment })
    }

    /// Logs what the configuration says, if STAVE_LOG says nothing; what is different now, or why nothing is.
    pub fn follow(&self, configured: Option<&str>) -> Result<String, String> {
        let wanted = configured.unwrap_or(DEFAULT);
        let filter = filter(wanted).map_err(|why| format!("log = {wanted:?}: {why}"))?;
        if let Some(stays) = &self.by_environment {
            return Ok(format!("the log stays as STAVE_LOG={stays} has it"));
        }
        (self.change)(filter)?;
        Ok(format!("log = {wanted:?}"))
    }
}

/// Understands `LEVEL`, and for developers `PART=LEVEL`, several of them with commas between.
pub fn filter(wanted: &str) -> Result<EnvFilter, String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let mut says_of_all = false;
    for word in wanted.split(',').map(str::trim) {
        let level = match word.rsplit_once('=') {
            Some((part, level)) if !part.is_empty() => level,
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

#[cfg(test)]
mod tests {
    use super::*;

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
