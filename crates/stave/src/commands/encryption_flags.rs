//! The key that the keys of encrypted files are wrapped with: flags of `stave serve` and of commands that read files.

use std::path::PathBuf;
use std::sync::Arc;

use base::encryption::{EncryptedDisk, WrappingKeys};
use base::env::Env;
use clap::Args;
use node::Settings;

use crate::key_source::KeySource;

/// The environment variable with the key itself.
const KEY: &str = "STAVE_ENCRYPTION_KEY";

/// Where the key comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct EncryptionFlags {
    /// The key of encrypted files, in a file of the node's user alone: 64 hexadecimal digits, as `openssl rand -hex 32`
    /// prints; further lines hold earlier keys, which only decrypt. The key itself may be in STAVE_ENCRYPTION_KEY
    #[arg(long, value_name = "FILE", env = "STAVE_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
    /// A command of the shell that prints that key, for keys that a service keeps
    #[arg(
        long,
        value_name = "COMMAND",
        env = "STAVE_ENCRYPTION_KEY_COMMAND",
        conflicts_with = "encryption_key_file"
    )]
    encryption_key_command: Option<String>,
}

impl EncryptionFlags {
    /// As settings, which the configuration file may have, too.
    pub fn settings(self) -> Settings {
        Settings {
            encryption_key_file: self.encryption_key_file,
            encryption_key_command: self.encryption_key_command,
            ..Settings::default()
        }
    }

    /// As if a file with the key had been named.
    #[cfg(test)]
    pub(super) fn of_file(encryption_key_file: Option<PathBuf>) -> EncryptionFlags {
        EncryptionFlags { encryption_key_file, ..EncryptionFlags::default() }
    }

    /// The world in which encrypted files are read and written with the keys of their folders.
    pub fn world(&self, env: &Env) -> anyhow::Result<Env> {
        Ok(world_with(env, self.keys(env)?))
    }

    /// The key that was given.
    pub fn keys(&self, env: &Env) -> anyhow::Result<Option<WrappingKeys>> {
        wrapping_keys(env, &self.clone().settings())
    }
}

/// That world, with a key that was read already.
pub fn world_with(env: &Env, keys: Option<WrappingKeys>) -> Env {
    Env { disk: Arc::new(EncryptedDisk::finding(env, keys, node::node_files::BUCKET)), ..env.clone() }
}

/// The key that was given, from the first of file, command and environment that there is.
pub fn wrapping_keys(env: &Env, settings: &Settings) -> anyhow::Result<Option<WrappingKeys>> {
    let source = KeySource {
        file: settings.encryption_key_file.as_deref(),
        command: settings.encryption_key_command.as_deref(),
        command_flag: "--encryption-key-command",
        variable: KEY,
    };
    source.read(env)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::env::OpenMode;

    use super::*;

    #[test]
    fn a_key_comes_from_a_file_or_a_command() {
        let env = Env::real();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let digits = "5".repeat(64);
        let file = env.disk.open(&path, OpenMode::CreateNew).expect("a file");
        file.write_at(format!("{digits}\n").as_bytes(), 0).expect("a write");
        let of = |file: Option<&Path>, command: Option<String>| {
            let settings = Settings {
                encryption_key_file: file.map(Path::to_owned),
                encryption_key_command: command,
                ..Settings::default()
            };
            wrapping_keys(&env, &settings)
        };
        let given = of(Some(&path), None).expect("it is read");
        assert!(given.is_some() && given == of(None, Some(format!("echo {digits}"))).expect("it runs"));
        for (command, expected) in [
            ("echo 12", "is no encryption key"),
            ("echo no such key >&2; exit 3", ": no such key"),
            ("exit 3", ": it said nothing"),
        ] {
            let error = of(None, Some(command.to_owned())).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = of(Some(Path::new("/nowhere/key")), None).expect_err("it is missing");
        assert!(format!("{error:#}").contains("/nowhere/key"), "{error:#}");
    }
}
