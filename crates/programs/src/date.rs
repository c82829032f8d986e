//! The date of an answer (RFC 9110, 6.6.1), made anew once a second.

use std::time::{Duration, UNIX_EPOCH};

use bywash_engine::stack::Timestamp;
use bywash_sys::clock::{SECOND, realtime};
use httpdate::fmt_http_date;

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
            self.text = fmt_http_date(UNIX_EPOCH + Duration::from_nanos(time));
            self.until = Some(now + Duration::from_nanos(SECOND - time % SECOND));
        }
    }

    /// What was told last.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
