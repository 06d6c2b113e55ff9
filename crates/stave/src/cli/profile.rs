//! Profiles: a file of the user that names servers, users and certificates for client commands.
//!
//! A flag takes precedence over the environment, the environment over the profile, and the profile over the built-in default.
//! A command reads profiles if it has the flag `--profile`; `serve` and `dev` have none.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a file of the user is no part of a node"
)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use serde::Deserialize;

use super::DEFAULT_ADDR;
use crate::commands::{http_flags, password};
use crate::wrong_arguments::{WrongArguments, cannot_read};

/// The profile that is used if the file has it and no other one is named.
const DEFAULT: &str = "default";
/// The id of the flag that names a profile.
const FLAG: &str = "profile";

/// The flag by which a command takes a profile.
#[derive(Clone, Debug, Default, Args)]
pub struct ProfileFlags {
    /// A table of ~/.config/stave/profile.toml with the address, user, password file, bucket and certificates to use where no flag and no variable says otherwise. Without this flag it is the table `default`, if there is one
    #[arg(long, value_name = "NAME", env = "STAVE_PROFILE")]
    pub profile: Option<String>,
}

/// One table of the file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct ServerProfile {
    kv: Option<String>,
    http: Option<String>,
    username: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    bucket: Option<String>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
}

/// The file of the profiles; `None` if the user has no home folder.
#[derive(Debug)]
pub(super) struct ProfileFile(Option<PathBuf>);

impl ProfileFile {
    /// `$XDG_CONFIG_HOME/stave/profile.toml`, by default `~/.config/stave/profile.toml`.
    pub(super) fn of_user() -> ProfileFile {
        let folder = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
        ProfileFile(config.map(|config| config.join("stave/profile.toml")))
    }

    /// The profile of a name; `None` if there is no file, and none was asked for.
    fn read(&self, wanted: Option<&str>) -> anyhow::Result<Option<ServerProfile>> {
        let Some(path) = &self.0 else {
            match wanted {
                None => return Ok(None),
                Some(_) => bail!(WrongArguments("there is no home folder for profiles: set HOME".to_owned())),
            }
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(_) if wanted.is_none() && !path.exists() => return Ok(None),
            Err(error) => {
                bail!(WrongArguments(format!("cannot read profiles in {}: {error}", path.display())))
            }
        };
        let wrong = |why: String| WrongArguments(format!("{}: {why}", path.display()));
        let mut all: BTreeMap<String, ServerProfile> =
            toml::from_str(&text).map_err(|error| wrong(told(&error, &text)))?;
        let name = wanted.unwrap_or(DEFAULT);
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        if all.values().any(|profile| profile.password.is_some()) {
            refuse_if_shared(path)?;
        }
        let profile = match all.remove(name) {
            Some(profile) => profile,
            None if wanted.is_none() => return Ok(None),
            None => bail!(wrong(format!("there is no profile {name:?}; there are: {known}"))),
        };
        profile.check().map_err(|why| wrong(format!("profile {name:?}: {why}")))?;
        Ok(Some(profile))
    }
}

/// What is wrong with a file and in which line. The line itself may hold a password, so it is not shown.
fn told(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    format!("line {}: {}", before.matches('\n').count() + 1, error.message())
}

/// A file with a password is for its owner alone.
fn refuse_if_shared(path: &Path) -> anyhow::Result<()> {
    let found = std::fs::metadata(path).map_err(|error| cannot_read(path, error))?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!(WrongArguments(format!(
            "{} holds a password and has mode {mode:o}, so that others may read or change it: chmod 600 {}",
            path.display(),
            path.display()
        )));
    }
    Ok(())
}

impl ServerProfile {
    /// What is wrong with its values, if something is.
    fn check(&self) -> Result<(), String> {
        let texts = [
            ("kv", &self.kv),
            ("http", &self.http),
            ("username", &self.username),
            ("password", &self.password),
            ("bucket", &self.bucket),
        ];
        if let Some((name, _)) = texts.iter().find(|(_, text)| text.as_ref().is_some_and(String::is_empty)) {
            return Err(format!("{name} is empty: give it a value or remove the line"));
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err("it has password and password-file: leave one out".to_owned());
        }
        if self.tls_cert.is_some() != self.tls_key.is_some()
            || self.tls_cert.is_some() && self.tls_ca.is_none()
        {
            return Err("tls-cert and tls-key go together, and with tls-ca".to_owned());
        }
        Ok(())
    }

    /// Refuses to ask this machine with a user and a password that are those of a server elsewhere.
    fn check_address(&self, chosen: &ArgMatches) -> anyhow::Result<()> {
        if chosen.value_source("addr") != Some(ValueSource::DefaultValue) {
            return Ok(());
        }
        let usual = chosen.get_one::<String>("addr").map(String::as_str);
        let (missing, other) = match usual {
            Some(DEFAULT_ADDR) if self.kv.is_none() && self.http.is_some() => ("kv", "http"),
            Some(http_flags::DEFAULT_ADDR) if self.http.is_none() && self.kv.is_some() => ("http", "kv"),
            _ => return Ok(()),
        };
        bail!(WrongArguments(format!(
            "the profile has an address for {other}, and this command needs one for {missing}: add `{missing}` to it or give --addr"
        )))
    }

    /// Its value for a flag, which is recognized by its variable, or an address by its default.
    fn value(&self, arg: &clap::Arg, password: Option<&str>) -> Option<OsString> {
        let text = |text: &Option<String>| text.clone().map(OsString::from);
        let file = |file: &Option<PathBuf>| file.clone().map(OsString::from);
        if arg.get_id() == "addr" {
            return match arg.get_default_values().first()?.to_str()? {
                DEFAULT_ADDR => text(&self.kv),
                http_flags::DEFAULT_ADDR => text(&self.http),
                _ => None,
            };
        }
        match arg.get_env()?.to_str()? {
            "STAVE_USERNAME" => text(&self.username),
            "STAVE_PASSWORD" => password.map(OsString::from),
            "STAVE_BUCKET" => text(&self.bucket),
            "STAVE_CLIENT_TLS_CA" => file(&self.tls_ca),
            "STAVE_CLIENT_TLS_CERT" => file(&self.tls_cert),
            "STAVE_CLIENT_TLS_KEY" => file(&self.tls_key),
            _ => None,
        }
    }

    /// Its password, which may be in a file of its own.
    fn secret(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.password_file else { return Ok(self.password.clone()) };
        refuse_if_shared(file)?;
        Ok(Some(password::from_file(file)?.0))
    }
}

/// Refuses to ask this machine with a user and a password that are those of a server elsewhere: the environment names that
/// server for the other protocol alone.
fn check_variables(chosen: &ArgMatches) -> anyhow::Result<()> {
    // A command that does not log in sends no password to the wrong server.
    if chosen.try_contains_id("password").is_err()
        || chosen.try_get_one::<String>("addr").is_err()
        || chosen.value_source("addr") != Some(ValueSource::DefaultValue)
    {
        return Ok(());
    }
    let (given, missing) = match chosen.get_one::<String>("addr").map(String::as_str) {
        Some(DEFAULT_ADDR) => ("STAVE_HTTP_ADDR", "STAVE_ADDR"),
        Some(http_flags::DEFAULT_ADDR) => ("STAVE_ADDR", "STAVE_HTTP_ADDR"),
        // It is a profile's.
        _ => return Ok(()),
    };
    let other = std::env::var_os(given).filter(|other| !other.is_empty());
    let Some(other) = other else { return Ok(()) };
    bail!(WrongArguments(format!(
        "{given}={} names a server for the other protocol alone: set {missing}, too, or give --addr",
        other.display()
    )))
}

/// The command line with the values of a profile in the place of the built-in defaults.
fn applied(command: Command, profile: &ServerProfile, password: Option<&str>) -> Command {
    let takes = command.get_arguments().any(|arg| arg.get_id() == FLAG);
    let values: Vec<(clap::Id, OsString)> = if takes {
        let args = command.get_arguments();
        args.filter_map(|arg| Some((arg.get_id().clone(), profile.value(arg, password)?))).collect()
    } else {
        Vec::new()
    };
    let command = values.into_iter().fold(command, |command, (id, value)| {
        // A password is in no help text.
        command
            .mut_arg(id, |arg| arg.default_value(clap::builder::OsStr::from(value)).hide_default_value(true))
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, |sub| applied(sub, profile, password)))
}

/// The innermost command that was given.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, sub)| innermost(sub))
}

/// The arguments of a command line, with what a profile adds to them.
///
/// # Errors
///
/// [`clap::Error`] for wrong arguments and for help; [`WrongArguments`] for a profile that is wrong or missing.
pub(super) fn matches(
    command: &Command,
    args: &[OsString],
    place: &ProfileFile,
) -> anyhow::Result<ArgMatches> {
    let plain = command.clone().try_get_matches_from(args)?;
    let chosen = innermost(&plain);
    // Commands without the flag talk to no server, are one, or have flags for two.
    let Ok(wanted) = chosen.try_get_one::<String>(FLAG) else { return Ok(plain) };
    let with_profile = match place.read(wanted.map(String::as_str).filter(|name| !name.is_empty()))? {
        None => plain,
        Some(profile) => {
            profile.check_address(chosen)?;
            // A command that logs in takes both.
            let takes = chosen.try_contains_id("password").is_ok();
            let is_given =
                takes && ["password", "password_file"].iter().any(|id| chosen.value_source(id).is_some());
            let password = if is_given || !takes { None } else { profile.secret()? };
            applied(command.clone(), &profile, password.as_deref()).try_get_matches_from(args)?
        }
    };
    check_variables(innermost(&with_profile))?;
    Ok(with_profile)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::super::Cli;
    use super::*;

    const FILE: &str = r#"
[default]
kv = "kv.example:11210"
[prod]
kv = "10.0.0.1:11210"
http = "10.0.0.1:8091"
username = "ops"
password = "secret"
bucket = "orders"
tls-ca = "/etc/ca.pem"
"#;

    struct Home(tempfile::TempDir);

    impl Home {
        fn with(text: &str, mode: u32) -> Home {
            let home = Home(tempfile::tempdir().expect("a folder"));
            home.write("profile.toml", text, mode);
            home
        }

        fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).expect("it can be written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
            path
        }

        /// Address, user, password, bucket and CA that a command would use, as text.
        fn asked(&self, line: &str) -> Result<String, String> {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let place = ProfileFile(Some(self.0.path().join("profile.toml")));
            let matches = matches(&Cli::command(), &args, &place).map_err(|error| error.to_string())?;
            let sub = innermost(&matches);
            let text = |id: &str| sub.get_one::<String>(id).cloned().unwrap_or_default();
            let password = sub.try_get_one::<crate::client::Secret>("password").ok().flatten();
            let bucket = sub.try_get_one::<String>("bucket").ok().flatten();
            let ca = sub.try_get_one::<PathBuf>("tls_ca").ok().flatten();
            assert!(Cli::from_arg_matches(&matches).is_ok());
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            Ok(format!(
                "{} {} {} {} {}",
                text("addr"),
                text("username"),
                or_none(password.map(|secret| secret.0.clone())),
                or_none(bucket.cloned()),
                or_none(ca.map(|path| path.display().to_string()))
            ))
        }
    }

    #[test]
    fn a_profile_counts_before_what_is_built_in_and_behind_flags() {
        let home = Home::with(FILE, 0o600);
        for (line, expected) in [
            ("stave get k", "kv.example:11210 Administrator - default -"),
            ("stave get k --profile prod", "10.0.0.1:11210 ops secret orders /etc/ca.pem"),
            ("stave whoami-is-no-command", ""),
            (
                "stave get k --profile=prod --addr h --username u --password p --bucket b",
                "h u p b /etc/ca.pem",
            ),
            ("stave user list --profile prod", "10.0.0.1:8091 ops secret - /etc/ca.pem"),
            ("stave user list --profile prod --password p", "10.0.0.1:8091 ops p - /etc/ca.pem"),
        ] {
            let asked = home.asked(line);
            match expected {
                "" => assert!(asked.is_err(), "{line}"),
                expected => assert_eq!(asked.as_deref(), Ok(expected), "{line}"),
            }
        }
        // As an empty STAVE_PROFILE is none.
        assert_eq!(home.asked("stave get k --profile="), home.asked("stave get k"));
        let none = Home(tempfile::tempdir().expect("a folder"));
        assert_eq!(
            none.asked("stave get k").as_deref(),
            Ok("127.0.0.1:11210|11207 Administrator - default -")
        );
        assert!(none.asked("stave get k --profile prod").is_err());
    }

    #[test]
    fn a_password_that_others_may_read_is_refused() {
        for mode in [0o644, 0o640, 0o660, 0o604] {
            let why =
                Home::with(FILE, mode).asked("stave get k --profile prod").expect_err("others may read it");
            assert!(why.contains(&format!("has mode {mode:o}")) && why.contains("chmod 600"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
        let home = Home::with("", 0o644);
        let file = home.write("password", "secret\n", 0o640);
        let profile = format!("[prod]\npassword-file = {:?}\n", file.display().to_string());
        home.write("profile.toml", &profile, 0o644);
        let line = "stave get k --profile prod";
        assert!(home.asked(line).expect_err("others may read it").contains("has mode 640"));
        assert!(home.asked(&format!("{line} --password p")).is_ok(), "it is not needed");
        home.write("password", "secret\n", 0o600);
        assert_eq!(home.asked(line).as_deref(), Ok("127.0.0.1:11210|11207 Administrator secret default -"));
    }

    #[test]
    fn what_is_wrong_with_a_profile_is_said() {
        for (text, line, expected) in [
            (FILE, "stave get k --profile test", "there is no profile \"test\"; there are: default, prod"),
            ("[prod]\ncolour = 1\n", "stave get k --profile prod", "line 2: unknown field `colour`"),
            ("[prod\n", "stave get k", "profile.toml"),
            (
                "[prod]\npassword = \"a\"\npassword-file = \"b\"\n",
                "stave get k --profile prod",
                "profile.toml: profile \"prod\": it has password and password-file: leave one out",
            ),
        ] {
            let why = Home::with(text, 0o600).asked(line).expect_err("it is wrong");
            assert!(why.contains(expected), "{why}");
        }
        // A node reads no profile.
        let args = ["stave", "serve"].map(OsString::from);
        let place = ProfileFile(Some(Home::with("[prod\n", 0o600).0.path().join("profile.toml")));
        assert!(matches(&Cli::command(), &args, &place).is_ok());
    }

    /// No help text shows a password.
    #[test]
    fn help_keeps_secrets() {
        let profile = ServerProfile { password: Some("secret".to_owned()), ..ServerProfile::default() };
        let mut command = applied(Cli::command(), &profile, Some("secret"));
        let get = command.find_subcommand_mut("get").expect("it is there");
        assert!(!get.render_long_help().to_string().contains("secret"));
    }
}
