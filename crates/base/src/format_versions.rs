//! Versions of a format: which ones a build writes, and which it reads.

use std::fmt;

/// Versions of a format. Both ranges include their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatVersions {
    /// The versions that are written: the lowest and the highest.
    pub written: (u32, u32),
    /// The versions that are read: the lowest and the highest.
    pub read: (u32, u32),
}

impl FormatVersions {
    /// A format of which one version is written, and every one from `oldest` up to it is read.
    pub const fn since(oldest: u32, written: u32) -> FormatVersions {
        FormatVersions { written: (written, written), read: (oldest, written) }
    }
}

/// `written 13, read 11 to 14`.
impl fmt::Display for FormatVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |(first, last): (u32, u32)| {
            if first == last { first.to_string() } else { format!("{first} to {last}") }
        };
        write!(f, "written {}, read {}", range(self.written), range(self.read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_version_is_no_range() {
        assert_eq!(FormatVersions::since(1, 2).to_string(), "written 2, read 1 to 2");
        assert_eq!(FormatVersions::since(1, 1).to_string(), "written 1, read 1");
        let both = FormatVersions { written: (8, 9), read: (1, 9) };
        assert_eq!(both.to_string(), "written 8 to 9, read 1 to 9");
    }
}
