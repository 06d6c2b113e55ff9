//! The marks around what a log line says of users, so that `stave collect` and other tools can replace it.

use std::fmt;

/// A value of a log line that says something of a user: a name, a key, the address of a client.
pub struct UserData<T>(pub T);

impl<T: fmt::Display> fmt::Display for UserData<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<ud>{}</ud>", self.0)
    }
}
