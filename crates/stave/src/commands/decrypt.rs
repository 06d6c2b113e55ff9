//! `stave decrypt`: prints an encrypted file as it would be without encryption.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use base::env::{Env, OpenMode};
use clap::Args;

use super::encryption_flags::EncryptionFlags;
use crate::cli::Outcome;

/// Bytes of a piece in which a file is read.
const PIECE_BYTES: usize = 1 << 20;

/// Print an encrypted file in clear.
///
/// The keys are looked for in the file's folder and those around it, in `encryption-keys`. A part of the file that was
/// changed is printed as zero bytes. A file that is not encrypted is printed as it is. The log of a node (--log-file) has
/// its keys beside it.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave decrypt /var/lib/stave/audit/audit.log --text --encryption-key-file /etc/stave/encryption-key
  stave decrypt /var/log/stave/stave.log --text --encryption-key-file /etc/stave/encryption-key
  stave decrypt /var/lib/stave/users.json --encryption-key-file /etc/stave/encryption-key")]
pub struct DecryptFlags {
    /// A file in a folder of data, or of the node's log
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Leave out zero bytes, which stand between lines of the audit log and of the node's log
    #[arg(long)]
    text: bool,
    #[command(flatten)]
    encryption: EncryptionFlags,
}

/// Runs the command.
pub fn run(env: &Env, flags: &DecryptFlags) -> anyhow::Result<Outcome> {
    decrypt(env, flags, &mut std::io::stdout().lock())
}

fn decrypt(env: &Env, flags: &DecryptFlags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let failed = || format!("cannot read {}", flags.file.display());
    let env = flags.encryption.world(env)?;
    let file = env.disk.open(&std::path::absolute(&flags.file)?, OpenMode::Read).with_context(failed)?;
    let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
    loop {
        let read = file.read_at(&mut piece, at).with_context(failed)?;
        if read == 0 {
            return Ok(Outcome::Done);
        }
        at += read as u64;
        if flags.text {
            piece[..read].split(|byte| *byte == 0).try_for_each(|part| out.write_all(part))?;
        } else {
            out.write_all(&piece[..read])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::encryption::{EncryptedDisk, KeyRing, WrappingKeys};

    use super::*;

    fn write(env: &Env, path: &Path, bytes: &[u8], at: u64) {
        let file = env.disk.open(path, OpenMode::Create).expect("a file");
        file.write_at(bytes, at).expect("a write");
    }

    #[test]
    fn a_file_is_printed_as_it_would_be_without_encryption() {
        let (env, folder) = (Env::real(), tempfile::tempdir().expect("a folder"));
        let digits = "7".repeat(64);
        let wrapping = WrappingKeys::parse(&digits, "the test").expect("a key");
        let ring = KeyRing::open(&env, folder.path(), "it", Some(&wrapping), true, |_| ());
        let ring = ring.expect("it opens").expect("it is wanted");
        let (path, key) = (folder.path().join("audit.log"), folder.path().join("key"));
        let encrypted = EncryptedDisk::env(&env, ring.keys().clone());
        write(&encrypted, &path, b"{\"id\":1}\n", 0);
        write(&encrypted, &path, b"{\"id\":2}\n", 4096);
        write(&env, &key, digits.as_bytes(), 0);
        let shown = |text, key: Option<PathBuf>| {
            let encryption = EncryptionFlags::of_file(key);
            let mut out = Vec::new();
            let flags = DecryptFlags { file: path.clone(), text, encryption };
            decrypt(&env, &flags, &mut out).map(|_| out)
        };
        assert_eq!(shown(true, Some(key.clone())).expect("it is read"), b"{\"id\":1}\n{\"id\":2}\n");
        assert_eq!(shown(false, Some(key)).expect("it is read").len(), 4096 + 9);
        let error = format!("{:#}", shown(true, None).expect_err("there is no key"));
        assert!(error.contains("--encryption-key-file"), "{error}");
    }
}
