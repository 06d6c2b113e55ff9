//! Which names users and groups can have.

/// Bytes of the name of a user or group.
const MOST_NAME_BYTES: usize = 128;

/// The rule of [`is_user_name`], in words.
pub const NAME_RULE: &str = "Names have 1 to 128 bytes, none of ()<>,;:\\\"/[]?={}, no @ in front, no space at an end, and \
                             nothing that does not show.";

/// Whether a user or a group that is made while the node runs can have a name: these go into addresses and logs, too.
pub fn is_user_name(name: &str) -> bool {
    let is_plain = !name.contains(|c: char| "()<>,;\\\"/[]?={}".contains(c) || is_invisible(c));
    // One that reads like another one is taken for it in logs.
    can_log_in(name) && is_plain && name.trim() == name
}

/// Whether a character shows nothing, or changes how others are shown: soft hyphen, marks of direction, joiners, byte order
/// mark.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Whether a user of the configuration can log in by that name, by every protocol: HTTP's basic authentication ends a name
/// at a colon, and names with an `@` in front are of nodes.
pub(crate) fn can_log_in(name: &str) -> bool {
    let is_short = (1..=MOST_NAME_BYTES).contains(&name.len());
    is_short && !name.starts_with('@') && !name.contains(|c: char| c == ':' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_every_way_in_can_carry() {
        let longest = "n".repeat(128);
        for name in ["Administrator", "ann@example.org", "a b", "\u{e4}", &longest] {
            assert!(is_user_name(name), "{name}");
        }
        let too_long = "n".repeat(129);
        let alike = ["ann ", " ann", "\u{feff}ann", "an\u{200b}n", "ann\u{202e}"];
        for name in ["", "@node", "a:b", "a/b", "a\"b", "a\\b", "a\nb", &too_long].into_iter().chain(alike) {
            assert!(!is_user_name(name), "{name}");
        }
        for (name, can) in
            [("a/b", true), ("scope_admin[b]", true), ("a:b", false), ("@node", false), ("", false)]
        {
            assert_eq!(can_log_in(name), can, "{name}");
        }
    }
}
