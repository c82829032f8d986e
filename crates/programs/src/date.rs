//! The date as HTTP writes it (RFC 9110, 5.6.7), made anew once a second.

use std::time::Duration;

use bywash_engine::stack::Timestamp;
use bywash_sys::clock::{SECOND, realtime};

const DAY: u64 = 24 * 60 * 60;
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The date of the last look at the clock.
#[derive(Debug, Default)]
pub(crate) struct Date {
    text: String,
    /// When the next second begins; `None` before the first look.
    until: Option<Timestamp>,
}

impl Date {
    /// Looks at the clock if another second has begun. The time of the call is known anyway, and costs nothing.
    #[inline]
    pub(crate) fn tell(&mut self, now: Timestamp) {
        if self.until.is_none_or(|until| until <= now) {
            let time = realtime();
            self.text = imf_fixdate(time / SECOND);
            self.until = Some(now + Duration::from_nanos(SECOND - time % SECOND));
        }
    }

    /// What was told last.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, of seconds since 1970.
fn imf_fixdate(seconds: u64) -> String {
    let (days, second) = (seconds / DAY, seconds % DAY);
    // 1970 began on a Thursday. Years that begin in March have their odd day at the end, and 400 of them are 146 097 days.
    let week_day = DAYS[usize::try_from((days + 4) % 7).unwrap_or(0)];
    let since_march_of_0 = days + 719_468;
    let (era, day) = (since_march_of_0 / 146_097, since_march_of_0 % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let month = MONTHS[usize::try_from((month + 2) % 12).unwrap_or(0)];
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{week_day}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_gnu_date() {
        for (seconds, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (1_735_689_600, "Wed, 01 Jan 2025 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(imf_fixdate(seconds), date);
        }
    }

    #[test]
    fn the_clock_is_looked_at_once_a_second() {
        let mut date = Date::default();
        date.tell(Timestamp::ZERO);
        let until = date.until.unwrap();
        assert!(date.text().ends_with(" GMT") && until <= Timestamp::ZERO + Duration::from_secs(1));
        date.text.clear();
        date.tell(Timestamp::ZERO);
        assert_eq!(date.text(), "", "it is still the same second");
        date.tell(until);
        assert!(date.text().ends_with(" GMT") && date.until > Some(until));
    }
}
