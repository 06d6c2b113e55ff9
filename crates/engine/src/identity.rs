//! The identity of a bucket: 32 hexadecimal digits, made at its first start and kept in its folder.
//!
//! *Guarantee:* a bucket whose identity is lost gets another one, so that no client that knows the old one takes what is
//! found for what was there: its vBuckets begin new histories, as after a crash. A disk that refuses to give the identity
//! is no first start. A new identity is written after every other file names it: a start that ends before finds the old
//! identity lost again, and believes the other files again.

use std::path::Path;

use base::SmallFile;
use base::env::Env;

use crate::failure::Failure;

const NAME: &str = "uuid";

/// A bucket's identity.
pub(crate) struct Identity {
    pub(crate) uuid: String,
    /// Whether the folder's other files may name another one.
    is_new: bool,
}

impl Identity {
    /// Whose the folder's other files have to be, if that is known.
    pub(crate) fn owner(&self) -> Option<&str> {
        (!self.is_new).then_some(&*self.uuid)
    }

    /// Writes a new identity, durably, once the folder's other files name it.
    pub(crate) fn keep(&self, env: &Env, dir: &Path) -> Result<(), Failure> {
        if self.is_new {
            file(dir).write(&*env.disk, self.uuid.as_bytes())?;
        }
        Ok(())
    }
}

/// The file that holds it.
pub(crate) fn file(dir: &Path) -> SmallFile {
    SmallFile::new(dir, NAME)
}

/// Understands the file's content.
pub(crate) fn parse(bytes: &[u8], _version: u16) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() == 32);
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.map(str::to_owned).ok_or_else(|| "it holds no 32 hexadecimal digits".to_owned())
}

/// The identity of the bucket in a folder; a new one is not written yet.
pub(crate) fn of_bucket(env: &Env, dir: &Path) -> Result<Identity, Failure> {
    match file(dir).open(&*env.disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}")) {
        Ok(Some(uuid)) => return Ok(Identity { uuid, is_new: false }),
        Ok(None) => {}
        Err(error) if error.is_damage() => {
            tracing::error!(
                event = "bucket_identity_lost", %error,
                "the bucket's identity is lost: it gets another one, and it begins new histories"
            );
        }
        Err(error) => return Err(error.into()),
    }
    let uuid = format!("{:016x}{:016x}", env.random.next_u64(), env.random.next_u64());
    Ok(Identity { uuid, is_new: true })
}
