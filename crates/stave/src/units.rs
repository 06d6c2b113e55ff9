//! How numbers with units are read from the command line and written to the terminal.

use std::io::IsTerminal;
use std::time::Duration;

/// Has a terminal go to its left upper corner, and clear what is behind it.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// What comes before a page that takes the place of the last one; in a file or a pipe, where none is replaced, an empty line.
pub fn before_page() -> &'static str {
    if std::io::stdout().is_terminal() { CLEAR_SCREEN } else { "\n" }
}

/// Reads a number of bytes: a plain number, or one with B, KiB, MiB or GiB behind it (K, M and G mean the same).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it like 512, 4KiB, 256MiB or 1GiB");
    base::size::parse_bytes(text).ok_or_else(wrong)
}

/// Reads a moment as seconds since 1970: as such, or as an age like 90s, 15m, 12h or 3d before `now_s`.
pub fn parse_moment(text: &str, now_s: u32) -> Result<u32, String> {
    let wrong = || format!("`{text}` is no time; write it like 3d, 12h, 15m, 90s or in seconds since 1970");
    let (digits, unit_s) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some((at, 'd')) => (&text[..at], 24 * 3600),
        _ => return text.parse().map_err(|_| wrong()),
    };
    let age_s = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit_s)).ok_or_else(wrong)?;
    Ok(now_s.saturating_sub(age_s))
}

/// Reads a moment as nanoseconds since 1970, like `2026-11-23T15:04:05Z` or `2026-11-23T15:04:05.25Z`.
pub fn parse_utc(text: &str) -> Result<u64, String> {
    utc_ns(text).ok_or_else(|| format!("`{text}` is no moment; write it like 2026-11-23T15:04:05Z, in UTC"))
}

fn utc_ns(text: &str) -> Option<u64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let numbers = |text: &str, by: char| -> Option<[u32; 3]> {
        let is_plain = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let parts: Vec<u32> = text.split(by).filter(is_plain).filter_map(|part| part.parse().ok()).collect();
        parts.try_into().ok().filter(|_| text.matches(by).count() == 2)
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(clock, ':')?);
    let month = time::Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date =
        time::Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    let (hour, minute, second) = (hour.try_into().ok()?, minute.try_into().ok()?, second.try_into().ok()?);
    let is_fraction = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let nanos = format!("{fraction:0<9}").parse().ok().filter(|_| is_fraction)?;
    let clock = time::Time::from_hms_nano(hour, minute, second, nanos).ok()?;
    u64::try_from(date.with_time(clock).assume_utc().unix_timestamp_nanos()).ok()
}

/// A moment, which is in nanoseconds since 1970, as [`parse_utc`] reads it.
pub fn moment_text(ns: u64) -> String {
    let moment = time::OffsetDateTime::from_unix_timestamp_nanos(ns.into());
    let moment = moment.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = moment.to_calendar_date();
    let (hour, minute, second, nanos) = moment.to_hms_nano();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// A moment in whole seconds since 1970.
pub fn utc_text(unix_s: u64) -> String {
    let text = moment_text(unix_s.saturating_mul(1_000_000_000));
    text.replace(".000000000Z", "Z")
}

/// Reads a length of time: a number with ms, s, m or h behind it; a plain number counts seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const MOST_MS: u64 = 366 * 24 * 3_600_000;
    let wrong = || format!("`{text}` is no length of time; write it like 500ms, 10s, 2m or 1h, up to a year");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let ms = text[..digits].parse::<u64>().ok().and_then(|n| n.checked_mul(unit_ms));
    let ms = ms.filter(|ms| (1..=MOST_MS).contains(ms)).ok_or_else(wrong)?;
    Ok(Duration::from_millis(ms))
}

/// A number with a comma at every third digit.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of things, with the word for one of them or for several: `1 backup`, `2,000 backups`.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", thousands(number), if number == 1 { one } else { several })
}

/// A time with three significant digits: `12.3 us`, `1.05 ms`, `2.50 s`.
pub fn duration(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    let (number, unit) = match us {
        us if us < 999.5 => (us, "us"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(number))
}

/// A number of bytes with three significant digits: `512 B`, `1.25 GiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut number = count as f64;
    let mut unit = 0;
    while number >= 1023.5 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{} {}", three_digits(number), units[unit]) }
}

fn three_digits(number: f64) -> String {
    let decimals = match number {
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_its_own_word() {
        let counted = |number| counted(number, "line", "lines");
        assert_eq!([counted(0), counted(1), counted(1000)], ["0 lines", "1 line", "1,000 lines"]);
    }

    #[test]
    fn reads_sizes() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("512"), Ok(512));
        assert_eq!(parse_bytes("4KiB"), Ok(4096));
        assert_eq!(parse_bytes("256M"), Ok(256 << 20));
        assert_eq!(parse_bytes("1 gib"), Ok(1 << 30));
        for bad in ["", "KiB", "-1", "1.5M", "12 apples", "99999999999999999999", "99999999999G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_moments() {
        let now_s = 1_000_000;
        assert_eq!(parse_moment("12345", now_s), Ok(12345));
        assert_eq!(parse_moment("10s", now_s), Ok(999_990));
        assert_eq!(parse_moment("2m", now_s), Ok(999_880));
        assert_eq!(parse_moment("1h", now_s), Ok(996_400));
        assert_eq!(parse_moment("3d", now_s), Ok(740_800));
        assert_eq!(parse_moment("3000d", now_s), Ok(0));
        for bad in ["", "d", "-1d", "1.5h", "3 d", "99999999d", "yesterday", "3\u{e9}"] {
            assert!(parse_moment(bad, now_s).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_lengths_of_time() {
        let of = |text| parse_duration(text).map(|length| length.as_millis());
        for (text, ms) in
            [("250ms", 250), ("10", 10_000), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(of(text), Ok(ms), "{text}");
        }
        for bad in ["", "0", "0s", "s", "-1s", "1.5s", "10 s", "9999999h", "99999999999999999999", "3\u{e9}"]
        {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn writes_numbers() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(duration(32_000), "32.0 us");
        assert_eq!(duration(999_600), "1.00 ms");
        assert_eq!(duration(2_500_000_000), "2.50 s");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(5 << 28), "1.25 GiB");
    }
}
