//! Standard output, whose reader may go away.

use std::io::{self, Write};

/// Prints a text.
///
/// # Errors
///
/// If it cannot be written. That nothing reads it any more ends a command quietly: `stave stats | head -1` is no failure.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
