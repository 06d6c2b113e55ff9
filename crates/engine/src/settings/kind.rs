//! How values of settings are written, read and bounded.

use std::fmt;

/// How the value of a setting is written and bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, also written as `512MiB`.
    Bytes {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Whole percent.
    Percent {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Seconds.
    Seconds {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Milliseconds.
    Milliseconds {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A number of something.
    Count {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A decimal number, held in thousandths.
    Decimal {
        /// The smallest, in thousandths.
        least: u64,
        /// The largest, in thousandths.
        most: u64,
    },
    /// `true` or `false`.
    Switch,
    /// One of these words, held as its place in the list.
    Choice(&'static [&'static str]),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bytes { least, most } => {
                write!(f, "bytes from {} to {}, for example 512MiB", size(*least), size(*most))
            }
            Kind::Percent { least, most } => write!(f, "whole percent from {least} to {most}"),
            Kind::Seconds { least, most } => write!(f, "seconds from {least} to {most}"),
            Kind::Milliseconds { least, most } => write!(f, "milliseconds from {least} to {most}"),
            Kind::Count { least, most } => write!(f, "a number from {least} to {most}"),
            Kind::Decimal { least, most } => {
                write!(f, "a decimal number from {} to {}", decimal(*least), decimal(*most))
            }
            Kind::Switch => f.write_str("true or false"),
            Kind::Choice(words) => write!(f, "one of {}", words.join(", ")),
        }
    }
}

/// A number of bytes in the largest unit that leaves no rest.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &(u32, _)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(whole) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

fn decimal(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Kind {
    /// Reads a value; nothing if it is none, or out of bounds.
    pub fn parse(&self, text: &str) -> Option<u64> {
        let (value, least, most) = match *self {
            Kind::Bytes { least, most } => (base::size::parse_bytes(text)?, least, most),
            Kind::Percent { least, most }
            | Kind::Seconds { least, most }
            | Kind::Milliseconds { least, most }
            | Kind::Count { least, most } => (text.parse().ok()?, least, most),
            Kind::Decimal { least, most } => (parse_decimal(text)?, least, most),
            Kind::Switch => {
                return match text {
                    "true" | "on" | "1" => Some(1),
                    "false" | "off" | "0" => Some(0),
                    _ => None,
                };
            }
            Kind::Choice(words) => {
                return words.iter().position(|word| *word == text).map(|at| at as u64);
            }
        };
        (least..=most).contains(&value).then_some(value)
    }

    /// Writes a value for people, so that it can be read again.
    pub fn pretty(&self, value: u64) -> String {
        match self {
            Kind::Bytes { .. } => size(value),
            _ => self.show(value),
        }
    }

    /// Writes a value so that it can be read again.
    pub fn show(&self, value: u64) -> String {
        match self {
            Kind::Decimal { .. } => decimal(value),
            Kind::Switch => (value != 0).to_string(),
            Kind::Choice(words) => words.get(value as usize).copied().unwrap_or_default().to_owned(),
            _ => value.to_string(),
        }
    }
}

fn parse_decimal(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)
}
