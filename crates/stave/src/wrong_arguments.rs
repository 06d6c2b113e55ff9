//! Arguments that make no sense: a service that is started again with them does not find it otherwise.

use std::path::Path;

/// Arguments that can be parsed and yet make no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongArguments(pub String);

/// A file that was named and is not there is a wrong argument: a service that starts again does not find it either.
pub(crate) fn cannot_read(path: &Path, error: std::io::Error) -> anyhow::Error {
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    let what = format!("cannot read {}: {error}", path.display());
    if is_missing { WrongArguments(what).into() } else { anyhow::Error::new(error).context(what) }
}
