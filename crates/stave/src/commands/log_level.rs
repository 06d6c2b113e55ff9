//! `stave log-level`: shows and changes how much a node logs while it runs.

use std::io::Write;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::http_flags::HttpFlags;
use crate::cli::{Outcome, WrongArguments};
use crate::log;

/// Where the levels are.
const PATH: &str = "/node/settings/log";

/// Show or change how much a node logs, while it runs.
///
/// The change holds until the node stops, or reads its configuration again. To keep it, write `log = "LEVELS"` into the
/// configuration file.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave log-level                        # shows it
  stave log-level debug
  stave log-level warn,engine=debug      # debug for one part, warn for all others; parts: dcp, dev, engine, kvstore,
                                         # logstore, node, server, stave
  stave log-level default                # as the configuration says
  stave log-level --addr db1.example.org:8091 --json")]
pub struct LogLevelFlags {
    /// off, error, warn, info, debug or trace; PART=LEVEL for one part, several with commas between; or default
    #[arg(value_name = "LEVELS", value_parser = NonEmptyStringValueParser::new())]
    levels: Option<String>,
    #[command(flatten)]
    to: HttpFlags,
}

/// Runs the command.
pub fn run(flags: &LogLevelFlags) -> anyhow::Result<Outcome> {
    let target = flags.to.target()?;
    let told = match &flags.levels {
        None => target.request("GET", PATH, None)?,
        Some(levels) => {
            if levels != "default" {
                log::filter(levels).map_err(WrongArguments)?;
            }
            target.form(PATH, &[("level", levels)])?
        }
    };
    let text = if flags.to.json {
        format!("{told}\n")
    } else {
        let of = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        let (level, configured) = (of("level"), of("configured"));
        if level == configured {
            format!("{level}\n")
        } else {
            format!("{level} (until the node starts again: {configured})\n")
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Outcome::Done)
}
