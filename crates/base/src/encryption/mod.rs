//! Encryption at rest: a disk whose files are encrypted, and the keys for it (docs/adr/0113-encryption-at-rest.md,
//! docs/encryption_format.md).
//!
//! # Guarantees
//!
//! - A byte that was changed is never decrypted into another value: a page that is not as it was written, or stands in
//!   another place or another file, reads as zeros. Every format above has checksums that zeros do not pass.
//! - A page that is durable is not written again by those who append as
//!   [`append_from`](crate::env::File::append_from) says: what is torn was not acknowledged.
//! - No key is used twice with the same nonce, also not after a crash or a copy of the files.
//! - Files that are not encrypted are read and written as they are.

mod cipher;
mod count;
mod disk;
mod keys;
mod layout;
mod sealing;
#[cfg(test)]
mod tests;

pub use cipher::{Cipher, KeyId};
pub use count::{FileCount, files_by_key};
pub use disk::{EncryptedDisk, is_unknown_key};
pub use keys::{DataKeys, KeyError, KeyRing, WrappingKeys, is_keys_file, keys_in_use};
pub use sealing::{SealFault, Sealer};

use std::io;
use std::path::Path;

use crate::FormatVersions;
use crate::env::{Disk, OpenMode};

/// The versions of encrypted files.
pub const FORMAT: FormatVersions = FormatVersions::since(1, layout::VERSION);

/// The key that a file is encrypted with; `None` if it is plain. `disk` has no encryption.
pub fn key_of_file(disk: &dyn Disk, path: &Path) -> io::Result<Option<KeyId>> {
    let file = disk.open(path, OpenMode::Read)?;
    Ok(layout::FileHead::read(&*file)?.map(|head| head.key))
}
