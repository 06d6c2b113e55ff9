//! What new passwords must have, by the names and with the defaults of the original.

use serde::{Deserialize, Serialize};

/// The longest password, in bytes.
const MOST_PASSWORD_BYTES: usize = 1_024;

/// The largest `minLength`.
pub const MOST_MIN_LENGTH: usize = 100;

/// What new passwords must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PasswordPolicy {
    /// The least number of characters.
    pub min_length: usize,
    /// An upper-case letter.
    pub enforce_uppercase: bool,
    /// A lower-case letter.
    pub enforce_lowercase: bool,
    /// A digit.
    pub enforce_digits: bool,
    /// Another character.
    pub enforce_special_chars: bool,
}

impl Default for PasswordPolicy {
    fn default() -> PasswordPolicy {
        PasswordPolicy {
            min_length: 6,
            enforce_uppercase: false,
            enforce_lowercase: false,
            enforce_digits: false,
            enforce_special_chars: false,
        }
    }
}

/// Whether a character is one that a rule asks for.
type IsOne = fn(char) -> bool;

impl PasswordPolicy {
    /// What a password lacks that is to be used from now on.
    pub fn fault(&self, password: &str) -> Option<String> {
        let rules: [(bool, &str, IsOne); 4] = [
            (self.enforce_uppercase, "an upper-case letter", char::is_uppercase),
            (self.enforce_lowercase, "a lower-case letter", char::is_lowercase),
            (self.enforce_digits, "a digit", |c| c.is_ascii_digit()),
            (self.enforce_special_chars, "a character that is no letter or digit", |c| !c.is_alphanumeric()),
        ];
        let missing = rules.into_iter().find(|(is_on, _, is_one)| *is_on && !password.chars().any(is_one));
        match missing {
            _ if password.chars().count() < self.min_length => {
                Some(format!("The password must be at least {} characters long.", self.min_length))
            }
            _ if password.len() > MOST_PASSWORD_BYTES || password.chars().any(char::is_control) => {
                Some("The password must be at most 1,024 bytes, without control characters.".to_owned())
            }
            missing => missing.map(|(_, what, _)| format!("The password must contain {what}.")),
        }
    }
}
