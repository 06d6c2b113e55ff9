//! The marks around what a log line says of users, so that `stave collect` and other tools can replace it.
//!
//! *Guarantee:* what is between the marks ends neither of them: a client that chooses a name or a key with a mark in it has
//! `<` and `>` written as `\x3c` and `\x3e`.

use std::fmt::{self, Write as _};

/// What stands in front of user data in logs, and behind it.
pub const OPEN: &str = "<ud>";
/// See [`OPEN`].
pub const CLOSE: &str = "</ud>";

/// A value of a log line that says something of a user: a name, a key, the address of a client.
pub struct UserData<T>(pub T);

impl<T: fmt::Display> fmt::Display for UserData<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OPEN)?;
        write!(Unmarked(f), "{}", self.0)?;
        f.write_str(CLOSE)
    }
}

/// Writes text without what marks are made of.
struct Unmarked<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Unmarked<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(['<', '>']) {
            let plain = piece.trim_end_matches(['<', '>']);
            self.0.write_str(plain)?;
            match &piece[plain.len()..] {
                "<" => self.0.write_str("\\x3c")?,
                ">" => self.0.write_str("\\x3e")?,
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mark_is_ended_by_what_is_marked() {
        assert_eq!(UserData("ann").to_string(), "<ud>ann</ud>");
        assert_eq!(UserData("x</ud>y<ud>").to_string(), "<ud>x\\x3c/ud\\x3ey\\x3cud\\x3e</ud>");
        assert_eq!(UserData("<>").to_string(), "<ud>\\x3c\\x3e</ud>");
    }
}
