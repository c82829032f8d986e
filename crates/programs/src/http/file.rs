//! A file that is served, and what a request makes of it: all of it, a part, or word that it is still the same
//! (RFC 9110, 13 and 14).
//!
//! Its date is what tells one state of it from another; it has no entity tag.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_range_header::{RangeUnsatisfiableError, parse_range_header};
use httpdate::{fmt_http_date, parse_http_date};

/// A file that is served, by its name.
#[derive(Clone, Debug)]
pub struct File {
    /// `/` and this is where it is, bytes of which no URL has as they are by their numbers (`%20`).
    pub name: Vec<u8>,
    /// What is in it.
    pub bytes: Arc<[u8]>,
    /// When that was written, if that is known.
    pub modified: Option<SystemTime>,
}

/// What a request's fields make its answer depend on, and the part that they ask for, as they stand there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Conditions<'a> {
    pub(super) if_match: Option<&'a str>,
    pub(super) if_unmodified_since: Option<&'a str>,
    pub(super) if_none_match: Option<&'a str>,
    pub(super) if_modified_since: Option<&'a str>,
    pub(super) if_range: Option<&'a str>,
    pub(super) range: Option<&'a str>,
}

/// What is answered of something that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// These bytes of it.
    Bytes(Range<u64>),
    /// It has none of the bytes that are asked for.
    OutOfRange,
    /// The client has it already.
    NotModified,
    /// It is not what the client takes it for.
    ConditionFailed,
}

impl<'a> Conditions<'a> {
    /// The place of a field by its name, if it is one of these.
    pub(super) fn field(&mut self, name: &[u8]) -> Option<&mut Option<&'a str>> {
        let fields = [
            ("if-match", &mut self.if_match),
            ("if-unmodified-since", &mut self.if_unmodified_since),
            ("if-none-match", &mut self.if_none_match),
            ("if-modified-since", &mut self.if_modified_since),
            ("if-range", &mut self.if_range),
            ("range", &mut self.range),
        ];
        fields
            .into_iter()
            .find(|(field, _)| name.eq_ignore_ascii_case(field.as_bytes()))
            .map(|(_, place)| place)
    }

    /// What is answered of something of `length` bytes that is there, in the order of RFC 9110, 13.2.2; `takes_parts`: it has
    /// parts, and the method is `GET`.
    pub(super) fn part(&self, length: u64, modified: Option<SystemTime>, takes_parts: bool) -> Part {
        let since = |date: Option<&str>| Some((modified?, parse_http_date(date?).ok()?));
        // Without entity tags nothing but "whatever is there" can be met.
        let meant = match self.if_match {
            Some(tags) => tags == "*",
            None => since(self.if_unmodified_since).is_none_or(|(modified, date)| modified <= date),
        };
        if !meant {
            return Part::ConditionFailed;
        }
        let is_new = match self.if_none_match {
            Some(tags) => tags != "*",
            None => since(self.if_modified_since).is_none_or(|(modified, date)| modified > date),
        };
        if !is_new {
            return Part::NotModified;
        }
        let is_same = self.if_range.is_none() || since(self.if_range).is_some_and(|(is, was)| is == was);
        match self.range {
            Some(range) if takes_parts && is_same => part(range, length),
            _ => Part::Whole,
        }
    }
}

/// What a `Range` asks for. All of it where it asks for several parts, and where it makes no sense: a server may ignore it
/// (RFC 9110, 14.2).
fn part(range: &str, length: u64) -> Part {
    let Ok(asked) = parse_range_header(range) else { return Part::Whole };
    match asked.validate(length).as_deref() {
        Ok([range]) => Part::Bytes(*range.start()..range.end().saturating_add(1)),
        Err(RangeUnsatisfiableError::Unsatisfiable) => Part::OutOfRange,
        Ok(_) | Err(_) => Part::Whole,
    }
}

/// A file, and what an answer says of it.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) bytes: Arc<[u8]>,
    /// In whole seconds, which are all that is said of it.
    pub(super) modified: Option<SystemTime>,
    /// The fields of an answer that has it.
    pub(super) fields: String,
    /// The field that says when it was modified.
    pub(super) last_modified: String,
}

impl Page {
    /// As it is `now`: no answer says that a file is newer than itself (RFC 9110, 8.8.2.1).
    pub(super) fn new(file: &File, now: SystemTime) -> Self {
        let modified = file.modified.map(|modified| {
            let since = modified.min(now).duration_since(UNIX_EPOCH).unwrap_or_default();
            UNIX_EPOCH + Duration::from_secs(since.as_secs())
        });
        let name = String::from_utf8_lossy(&file.name);
        let kind = mime_guess::from_path(&*name).first_or_octet_stream();
        let fields = format!("Content-Type: {kind}\r\nAccept-Ranges: bytes\r\n");
        let last_modified =
            modified.map(|modified| format!("Last-Modified: {}\r\n", fmt_http_date(modified)));
        Self { bytes: file.bytes.clone(), modified, fields, last_modified: last_modified.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_part_of_what_is_there() {
        for (range, length, expected) in [
            ("bytes=0-0", 10, Part::Bytes(0..1)),
            ("bytes=3-5", 10, Part::Bytes(3..6)),
            ("BYTES=3-", 10, Part::Bytes(3..10)),
            ("bytes=3-99", 10, Part::Bytes(3..10)),
            ("bytes=3-18446744073709551616", 10, Part::Bytes(3..10)),
            ("bytes=-4", 10, Part::Bytes(6..10)),
            ("bytes=-40", 10, Part::Bytes(0..10)),
            ("bytes=8-9,10-", 10, Part::Bytes(8..10)),
            ("bytes=10-", 10, Part::OutOfRange),
            ("bytes=-0", 10, Part::OutOfRange),
            ("bytes=0-", 0, Part::OutOfRange),
            ("bytes=-1", 0, Part::Whole),
            ("bytes=0-1,4-5", 10, Part::Whole),
            ("bytes=5-3", 10, Part::Whole),
            ("bytes=x", 10, Part::Whole),
            ("lines=1-2", 10, Part::Whole),
        ] {
            assert_eq!(part(range, length), expected, "{range} of {length}");
        }
    }

    #[test]
    fn what_the_client_knows_decides_before_the_part_that_it_wants() {
        const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        const BEFORE: &str = "Sunday, 06-Nov-94 08:49:36 GMT";
        let modified = parse_http_date(THEN).ok();
        let none = Conditions::default();
        let range = Some("bytes=1-2");
        let some = Part::Bytes(1..3);
        for (conditions, expected) in [
            (none, Part::Whole),
            (Conditions { if_modified_since: Some(THEN), range, ..none }, Part::NotModified),
            (Conditions { if_modified_since: Some(BEFORE), range, ..none }, some.clone()),
            (Conditions { if_modified_since: Some("yesterday"), ..none }, Part::Whole),
            (Conditions { if_none_match: Some("\"a\""), if_modified_since: Some(THEN), ..none }, Part::Whole),
            (Conditions { if_none_match: Some("*"), ..none }, Part::NotModified),
            (Conditions { if_unmodified_since: Some(THEN), ..none }, Part::Whole),
            (Conditions { if_unmodified_since: Some(BEFORE), range, ..none }, Part::ConditionFailed),
            (Conditions { if_match: Some("*"), if_unmodified_since: Some(BEFORE), ..none }, Part::Whole),
            (
                Conditions { if_match: Some("\"a\""), if_modified_since: Some(THEN), ..none },
                Part::ConditionFailed,
            ),
            (Conditions { if_range: Some(THEN), range, ..none }, some.clone()),
            (Conditions { if_range: Some(BEFORE), range, ..none }, Part::Whole),
            (Conditions { if_range: Some("\"a\""), range, ..none }, Part::Whole),
        ] {
            assert_eq!(conditions.part(10, modified, true), expected, "{conditions:?}");
        }
        assert_eq!(Conditions { range, ..none }.part(10, modified, false), Part::Whole, "HEAD has no parts");
        let since = Conditions { if_modified_since: Some(THEN), if_unmodified_since: Some(BEFORE), ..none };
        assert_eq!(since.part(10, None, true), Part::Whole, "nobody knows when it was written");
        assert_eq!(Conditions { if_range: Some(THEN), range, ..none }.part(10, None, true), Part::Whole);
    }

    #[test]
    fn a_page_says_what_it_is_and_since_when() {
        let now = UNIX_EPOCH + Duration::from_millis(784_111_777_900);
        let page =
            |name: &[u8], modified| Page::new(&File { name: name.into(), bytes: [].into(), modified }, now);
        for (name, kind) in [
            (&b"index.html"[..], "text/html"),
            (b"a.PNG", "image/png"),
            (b"a.nothing", "application/octet-stream"),
            (b"\xff", "application/octet-stream"),
        ] {
            assert!(page(name, None).fields.starts_with(&format!("Content-Type: {kind}\r\n")), "{kind}");
        }
        assert_eq!(page(b"a", None).last_modified, "");
        for modified in [now, now + Duration::from_secs(900)] {
            let page = page(b"a", Some(modified));
            assert_eq!(page.last_modified, "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
            assert_eq!(page.modified, Some(now - Duration::from_millis(900)));
        }
    }
}
