//! Dates, UTC.

const DAY: u64 = 86_400;

/// The day of a time in seconds since 1970, as `2026-01-31`.
pub fn date(seconds: u64) -> String {
    // Days since 1 March of year 0, so that leap days end years, in cycles of 400 years (Howard Hinnant's algorithm).
    let since = seconds / DAY + 719_468;
    let (cycle, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * cycle + later;
    format!("{year}-{month:02}-{day:02}")
}

/// A time in seconds since 1970, as `2026-01-31 23:59:59`.
pub fn date_and_time(seconds: u64) -> String {
    let rest = seconds % DAY;
    let [hour, minute, second] = [rest / 3600, rest / 60 % 60, rest % 60];
    format!("{} {hour:02}:{minute:02}:{second:02}", date(seconds))
}

#[cfg(test)]
mod tests {
    use super::date_and_time;

    #[test]
    fn seconds_are_dates() {
        assert_eq!(date_and_time(0), "1970-01-01 00:00:00");
        assert_eq!(date_and_time(68_169_600), "1972-02-29 00:00:00");
        assert_eq!(date_and_time(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date_and_time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date_and_time(1_798_761_599), "2026-12-31 23:59:59");
        assert_eq!(date_and_time(4_107_542_400), "2100-03-01 00:00:00");
    }
}
