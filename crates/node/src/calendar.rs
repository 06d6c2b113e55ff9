//! Moments as people write them, in UTC.

/// Seconds since 1970 as year, month, day and seconds of the day, by the calendar's rule for days from March on.
pub(crate) fn civil(unix_s: u64) -> (u64, u64, u64, u64) {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day, second)
}

/// The way back from [`civil`]: seconds since 1970 of the beginning of a day.
fn unix_s_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9_999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
    days.checked_sub(719_468).map(|days| days * 86_400)
}

/// A moment as ISO 8601 in UTC, to the millisecond.
pub fn timestamp(unix_ns: u64) -> String {
    let (year, month, day, second) = civil(unix_ns / 1_000_000_000);
    let (hour, minute, rest) = (second / 3_600, second / 60 % 60, second % 60);
    let ms = unix_ns / 1_000_000 % 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{rest:02}.{ms:03}Z")
}

/// Seconds since 1970 of a text that begins like [`timestamp`]; the separators of the time may be others.
pub(crate) fn parse_moment(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
    };
    let day = unix_s_of(number(0..4)?, number(5..7)?, number(8..10)?)?;
    Some(day + number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_both_ways() {
        for (unix_s, told) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_612_172_764, "2021-02-01T09:46:04.007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(timestamp(unix_s * 1_000_000_000 + 7_000_000), told);
            assert_eq!(parse_moment(told), Some(unix_s));
        }
        for wrong in
            ["", "1970-01-01T00:00", "19x0-01-01T00:00:00", "1970-13-01T00:00:00", "0000-00-00T00:00:00"]
        {
            assert_eq!(parse_moment(wrong), None, "{wrong}");
        }
    }
}
