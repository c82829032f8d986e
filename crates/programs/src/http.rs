//! A small server of HTTP/1.1 (RFC 9112): `GET` and `HEAD` of files, and of `/N`, which is N bytes.
//!
//! Connections stay open unless the client says otherwise, and requests may be sent before the last one is answered.

mod file;
mod request;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use crate::counters::Counted;
use crate::date::Date;
use crate::server::{Course, Serve, Worked};
use crate::sockets::Sockets;
pub use file::File;
use file::{Page, Part};
use request::{Asked, Refused, parse};

/// Bytes of a request's head at most.
const HEAD: usize = 16 << 10;
/// Requests that may wait for their answers; the rest waits unread.
const WAITING: usize = 64;
/// Bytes of a body that goes out with its head, in one call: the kernel would make two packets of two calls.
const SHORT: u64 = 1024;
const NOT_MODIFIED: &str = "304 Not Modified";
const CONDITION_FAILED: &str = "412 Precondition Failed";
const UNKNOWN_TYPE: &str = "Content-Type: application/octet-stream\r\n";
/// Bytes of `/N` at most, and what they are made of.
const LARGEST: u64 = 1 << 40;
const PIECE: usize = 64 << 10;

/// Serves HTTP.
#[derive(Debug)]
pub struct Http {
    /// By their names.
    pages: HashMap<Vec<u8>, Page>,
    piece: Arc<[u8]>,
    date: Date,
}

/// What is known of one connection.
#[derive(Debug, Default)]
pub struct Conversation {
    /// A request that is not all there yet.
    head: Vec<u8>,
    /// What is to be sent, in order.
    answers: VecDeque<Answer>,
    /// No more requests are taken: the last answer ends the connection.
    last: bool,
    /// The client may be sending still what nobody reads: a body, or what stands behind a request that was none.
    sends_on: bool,
}

/// What is still to be sent of an answer.
#[derive(Debug)]
struct Answer {
    /// With the body, when that is short.
    head: Vec<u8>,
    head_sent: usize,
    body: Body,
    left: u64,
}

#[derive(Debug)]
enum Body {
    /// A file's bytes up to this one.
    File(Arc<[u8]>, usize),
    /// The same bytes again and again.
    Made(Arc<[u8]>),
}

impl Body {
    /// What comes next when so many bytes are left, or the beginning of it.
    fn rest(&self, left: u64) -> &[u8] {
        match self {
            Self::File(bytes, end) => &bytes[end.saturating_sub(to_usize(left))..*end],
            Self::Made(bytes) => &bytes[..bytes.len().min(to_usize(left))],
        }
    }
}

/// What is found where a request asks for it.
enum Found<'a> {
    Page(&'a Page),
    /// So many bytes that are made.
    Made(u64),
    /// Nothing, and why.
    Nothing(&'static str),
}

impl Answer {
    /// Sends as much as there is room for; whether that was all.
    fn send<S: Sockets>(&mut self, id: S::Id, sockets: &mut S, sent: &mut u64) -> bool {
        while self.head_sent < self.head.len() {
            let n = sockets.send(id, &self.head[self.head_sent..]);
            (self.head_sent, *sent) = (self.head_sent + n, *sent + n as u64);
            if n == 0 {
                return false;
            }
        }
        while self.left > 0 {
            let n = sockets.send(id, self.body.rest(self.left));
            (self.left, *sent) = (self.left - n as u64, *sent + n as u64);
            if n == 0 {
                return false;
            }
        }
        true
    }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Whether a method is one of those that are served.
fn is_served(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

/// The bytes that a path's numbers mean (RFC 3986, 2.1); `None` if they are no numbers.
fn decoded(path: &str) -> Option<Cow<'_, [u8]>> {
    let mut parts = path.split('%');
    let first = parts.next().unwrap_or_default();
    let mut bytes = Cow::Borrowed(first.as_bytes());
    for part in parts {
        let (digits, rest) = part.as_bytes().split_at_checked(2)?;
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        bytes.to_mut().push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        bytes.to_mut().extend_from_slice(rest);
    }
    Some(bytes)
}

impl Http {
    /// These files, and what is made.
    pub fn new(files: &[File]) -> Self {
        let piece = (0..PIECE).map(|i| b'a' + u8::try_from(i % 26).unwrap_or(0)).collect();
        let now = SystemTime::now();
        let pages = files.iter().map(|file| (file.name.clone(), Page::new(file, now))).collect();
        Self { pages, piece, date: Date::default() }
    }

    fn answer(&self, asked: Result<&Asked<'_>, Refused>) -> Answer {
        let (status, fields, body, length) = match asked {
            Err(refused) => self.nothing(refused.status()),
            Ok(Asked { method, .. }) if !is_served(method) => {
                // RFC 9110, 15.5.6: it says which methods there are.
                self.nothing("405 Method Not Allowed\r\nAllow: GET, HEAD")
            }
            Ok(asked) => match self.find(asked.path) {
                Found::Page(page) => self.page(page, asked),
                Found::Made(length) => match asked.conditions.part(length, None, false) {
                    Part::NotModified => self.nothing(NOT_MODIFIED),
                    Part::ConditionFailed => self.nothing(CONDITION_FAILED),
                    _ => ("200 OK", UNKNOWN_TYPE.into(), self.made(), length),
                },
                Found::Nothing(status) => self.nothing(status),
            },
        };
        let stays = asked.is_ok_and(|asked| asked.stays);
        let (end, date) = (if stays { "keep-alive" } else { "close" }, self.date.text());
        // What is said of a length there would be of what is not sent (RFC 9110, 8.6).
        let length_field =
            if status == NOT_MODIFIED { String::new() } else { format!("Content-Length: {length}\r\n") };
        let head = format!(
            "HTTP/1.1 {status}\r\nServer: bywash\r\nDate: {date}\r\n{fields}{length_field}Connection: {end}\r\n\r\n"
        );
        let (mut head, mut left) = (head.into_bytes(), length);
        if asked.is_ok_and(|asked| asked.method == "HEAD") {
            left = 0;
        } else if left <= SHORT {
            head.extend_from_slice(body.rest(left));
            left = 0;
        }
        Answer { head, head_sent: 0, body, left }
    }

    fn made(&self) -> Body {
        Body::Made(self.piece.clone())
    }

    /// An answer without a body: its status, its fields, and that body.
    fn nothing(&self, status: &'static str) -> (&'static str, Cow<'_, str>, Body, u64) {
        (status, Cow::Borrowed(""), self.made(), 0)
    }

    /// What is answered to who asks for a file.
    fn page<'a>(&self, page: &'a Page, asked: &Asked<'_>) -> (&'static str, Cow<'a, str>, Body, u64) {
        let Page { bytes, fields, last_modified, modified } = page;
        let length = bytes.len() as u64;
        let part = asked.conditions.part(length, *modified, asked.method == "GET");
        let (status, range, fields) = match part {
            Part::Whole => ("200 OK", 0..length, format!("{fields}{last_modified}")),
            Part::Bytes(range) => {
                let (first, last) = (range.start, range.end - 1);
                let is_part = format!("Content-Range: bytes {first}-{last}/{length}\r\n");
                ("206 Partial Content", range, format!("{fields}{last_modified}{is_part}"))
            }
            Part::OutOfRange => {
                ("416 Range Not Satisfiable", 0..0, format!("Content-Range: bytes */{length}\r\n"))
            }
            Part::NotModified => (NOT_MODIFIED, 0..0, last_modified.clone()),
            Part::ConditionFailed => (CONDITION_FAILED, 0..0, String::new()),
        };
        let body = Body::File(bytes.clone(), to_usize(range.end));
        (status, Cow::Owned(fields), body, range.end - range.start)
    }

    fn find(&self, path: &str) -> Found<'_> {
        // What follows a question mark says nothing to us.
        let name = path[1..].split('?').next().unwrap_or_default();
        let Some(name) = decoded(name) else { return Found::Nothing("400 Bad Request") };
        if let Some(page) = self.pages.get(&*name) {
            return Found::Page(page);
        }
        let number = |name: &[u8]| {
            let name = name.iter().all(u8::is_ascii_digit).then_some(name)?;
            std::str::from_utf8(name).ok()?.parse().ok()
        };
        let length = if name.is_empty() { Some(64) } else { number(&name) };
        length.filter(|length| *length <= LARGEST).map_or(Found::Nothing("404 Not Found"), Found::Made)
    }

    fn read<S: Sockets>(&self, id: S::Id, connection: &mut Conversation, sockets: &mut S) -> u64 {
        let read = sockets.read(id, &mut |bytes| {
            for (at, byte) in bytes.iter().enumerate() {
                if connection.last || connection.answers.len() >= WAITING {
                    return at;
                }
                // Empty lines before a request are nothing (RFC 9112, 2.2): old clients send one behind a body.
                if connection.head.is_empty() && matches!(byte, b'\r' | b'\n') {
                    continue;
                }
                connection.head.push(*byte);
                // A line may end without CR (RFC 9112, 2.2), and each as it likes.
                let ends = [&b"\n\r\n"[..], b"\n\n"];
                let whole = ends.into_iter().find_map(|end| connection.head.strip_suffix(end));
                if whole.is_some() || connection.head.len() > HEAD {
                    let asked = whole.map_or(Err(Refused::TooLarge), parse);
                    let asked = asked.as_ref().map_err(|refused| *refused);
                    connection.answers.push_back(self.answer(asked));
                    connection.last = !asked.is_ok_and(|asked| asked.stays);
                    connection.sends_on = asked.is_ok_and(|asked| asked.has_body) || asked.is_err();
                    connection.head.clear();
                }
            }
            bytes.len()
        });
        read as u64
    }
}

impl Serve for Http {
    type Connection = Conversation;

    fn owes(&self, connection: &Conversation) -> bool {
        !connection.answers.is_empty()
    }

    fn work<S: Sockets>(
        &mut self,
        id: S::Id,
        connection: &mut Conversation,
        peer_closed: bool,
        sockets: &mut S,
    ) -> Worked {
        let mut counted = Counted::default();
        self.date.tell(sockets.now());
        loop {
            while let Some(answer) = connection.answers.front_mut() {
                if !answer.send(id, sockets, &mut counted.sent) {
                    return Worked { counted, course: Course::Open };
                }
                counted.requests += 1;
                connection.answers.pop_front();
            }
            if connection.last {
                // What else the client may have sent is not wanted; unread, it would reset the connection.
                let read = sockets.read(id, &mut |bytes| bytes.len());
                counted.received += read as u64;
                let lingers = !peer_closed && (connection.sends_on || read > 0);
                return Worked { counted, course: if lingers { Course::Lingers } else { Course::Over } };
            }
            let read = self.read(id, connection, sockets);
            counted.received += read;
            if read == 0 {
                return Worked { counted, course: if peer_closed { Course::Over } else { Course::Open } };
            }
        }
    }
}

#[cfg(test)]
mod tests;
