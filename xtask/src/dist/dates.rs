//! Dates of the calendar, in UTC.

/// As mail has them (RFC 2822).
pub fn rfc_2822(time: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day) = day_of(time);
    let weekday = WEEKDAYS[(time / 86_400 % 7) as usize];
    format!("{weekday}, {day:02} {} {year} {} +0000", MONTHS[month], clock(time))
}

/// As JSON has them (RFC 3339).
pub fn rfc_3339(time: u64) -> String {
    let (year, month, day) = day_of(time);
    format!("{year:04}-{:02}-{day:02}T{}Z", month + 1, clock(time))
}

fn clock(time: u64) -> String {
    let seconds = time % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Year, month from 0 on, and day from 1 on.
fn day_of(time: u64) -> (u64, usize, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, time / 86_400);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc_2822(0), "Thu, 01 Jan 1970 00:00:00 +0000");
        assert_eq!(rfc_2822(951_782_400), "Tue, 29 Feb 2000 00:00:00 +0000");
        assert_eq!(rfc_2822(1_795_720_430), "Thu, 26 Nov 2026 19:13:50 +0000");
        assert_eq!(rfc_3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc_3339(1_795_720_430), "2026-11-26T19:13:50Z");
    }
}
